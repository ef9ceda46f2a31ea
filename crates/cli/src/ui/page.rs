//! The page as HTML. The width of a run in a node's bar is the CPU that the run requests there.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use maud::{DOCTYPE, Markup, html};

use super::lanes::{Block, Lane, Lanes, Waiting};

/// The whole page. `content` is the result of function [`content`].
pub(super) fn whole(content: &str) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "PipelineRuns and their nodes" }
                link rel="stylesheet" href="page.css";
                script src="page.js" defer {}
            }
            body {
                h1 { "PipelineRuns and their nodes" }
                p #connection .problem { "The page is out of date: kubectl coschedule ui does not answer." }
                main { (maud::PreEscaped(content)) }
            }
        }
    };
    page.into_string()
}

/// The part of the page that changes. `namespace` is `None` for all namespaces, and `problem` is the last error of a watch.
pub(super) fn content(facts: &Lanes, namespace: Option<&str>, problem: Option<&str>) -> String {
    let count = |number: usize, one: &str| match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    };
    let content = html! {
        @if let Some(problem) = problem {
            p .problem { (problem) }
        }
        @if !facts.waiting.is_empty() {
            h2 { (count(facts.waiting.len(), "PipelineRun")) " waiting" }
            @for run in &facts.waiting { (waits(run)) }
        }
        h2 { (count(facts.lanes.len(), "node")) " with PipelineRuns" }
        @for lane in &facts.lanes { (lane_of(lane)) }
        p .soft {
            @match facts.other_nodes {
                Some(0) => {},
                Some(others) => { (count(others, "other node")) ". " },
                None => "You are not allowed to read nodes, so their size is not shown. ",
            }
            @if let Some(namespace) = namespace {
                "Only namespace " (namespace) ": pods of other namespaces are not shown. "
            }
            "A bar is the CPU of a node. Dashed: a placeholder and what it requests."
        }
    };
    content.into_string()
}

fn waits(run: &Waiting) -> Markup {
    html! {
        section .waits {
            strong { (run.namespace) "/" (run.run) }
            " " span .soft {
                (run.mode)
                @if let Some(created) = run.created { ", created " (created.strftime("%F %T")) " UTC" }
            }
            p { @if !run.reason.is_empty() { b { (run.reason) } ": " } (run.message) }
            code .soft { "kubectl coschedule explain " (run.run) " -n " (run.namespace) }
        }
    }
}

fn lane_of(lane: &Lane) -> Markup {
    let part = |milli_cpu: i128| format!("flex-grow: {milli_cpu}");
    html! {
        section .lane {
            header {
                strong { (lane.node) }
                @if let Some(room) = &lane.allocatable { span .soft { (room) } }
                @if lane.is_cordoned { span .cordoned { "unschedulable" } }
            }
            @if lane.allocatable.is_some() {
                div .bar aria-hidden="true" {
                    @for block in &lane.blocks {
                        i style={ (part(block.milli_cpu())) "; " (hue(block)) } {}
                    }
                    @if lane.others_milli_cpu > 0 {
                        i .others style=(part(lane.others_milli_cpu)) title="other pods" {}
                    }
                    i .free style=(part(lane.free_milli_cpu())) {}
                }
            }
            div .blocks { @for block in &lane.blocks { (block_of(block)) } }
        }
    }
}

fn block_of(block: &Block) -> Markup {
    html! {
        article .block style=(hue(block)) {
            strong { (block.namespace) "/" (block.run) } " " span .soft { (block.mode) }
            ul .chips {
                @for requests in block.placeholders.values() {
                    li .held title="placeholder" { "placeholder: " (requests) }
                }
                @for task in block.tasks.values() {
                    li .(task.phase) title=(task.requests) { (task.name) ": " (task.phase) }
                }
            }
        }
    }
}

/// A colour that a run has on all nodes.
fn hue(block: &Block) -> String {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let hash = hasher.hash_one((&block.namespace, &block.run));
    format!("--hue: {}", hash % 360)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_users_are_text_and_no_html() {
        let block = Block {
            namespace: "ns".to_owned(),
            run: "<script>".to_owned(),
            ..Block::default()
        };
        let facts = Lanes {
            lanes: vec![Lane {
                node: "n1".to_owned(),
                blocks: vec![block],
                ..Lane::default()
            }],
            ..Lanes::default()
        };
        let page = whole(&content(&facts, Some("ns"), Some("<b>")));
        assert!(page.contains("ns/&lt;script&gt;"), "{page}");
        assert!(page.contains("&lt;b&gt;"), "{page}");
        assert!(page.contains("You are not allowed to read nodes"), "{page}");
        assert!(page.contains("Only namespace ns:"), "{page}");
        assert!(!page.contains("<script>"), "{page}");
    }
}
