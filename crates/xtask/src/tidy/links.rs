//! Checks that links in Markdown files lead to files, folders and headings that exist in the repository.

use super::Finding;
use crate::workspace::Files;

pub(super) fn check(files: &Files) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, text) in files.iter().filter(|(file, _)| is_markdown(file)) {
        for link in links(text) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = resolve(file, path);
            let leads = if heading.is_empty() {
                exists(&target, files)
            } else {
                let text = files.get(&target).filter(|_| is_markdown(&target));
                text.is_some_and(|text| headings(text).any(|slug| slug == heading))
            };
            if !leads {
                findings.push(Finding::new(
                    format!("{file} links to {link}, which is not there"),
                    "name a file, folder or heading of the repository",
                ));
            }
        }
    }
    findings
}

fn is_markdown(file: &str) -> bool {
    file.ends_with(".md")
}

/// The targets of inline links, without links to other sites.
fn links(text: &str) -> impl Iterator<Item = &str> {
    prose(text)
        .flat_map(|line| line.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(link, _)| link)
        .filter(|link| !link.contains("://") && !link.starts_with("mailto:"))
}

/// The anchors that GitHub generates for the headings.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text)
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let heading = line.trim_start_matches('#').trim().to_lowercase();
            let kept = heading
                .chars()
                .filter(|character| character.is_alphanumeric() || " -_".contains(*character));
            kept.map(|character| if character == ' ' { '-' } else { character })
                .collect()
        })
}

/// The lines that are not in code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Resolves `path`, which is relative to the folder of `file`, to a path from the root of the repository. If `path` is empty,
/// returns `file`.
fn resolve(file: &str, path: &str) -> String {
    if path.is_empty() {
        return file.to_owned();
    }
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn exists(target: &str, files: &Files) -> bool {
    let folder = format!("{target}/");
    files.contains_key(target) || files.keys().any(|file| file.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// True if the check accepts this link in `docs/guide.md`.
    fn leads(link: &str) -> bool {
        let files = Files::from([
            (
                "docs/guide.md".to_owned(),
                format!("# Guide\n\n## What's `x`, and why?\n\n[text]({link})\n"),
            ),
            (
                "README.md".to_owned(),
                "```\n# no heading\n```\n".to_owned(),
            ),
            ("examples/a.yaml".to_owned(), "# x\n".to_owned()),
        ]);
        check(&files).is_empty()
    }

    #[test]
    fn a_link_leads_to_a_file_a_folder_or_a_heading() {
        for link in [
            "../README.md",
            "../examples/a.yaml",
            "../examples",
            "guide.md#guide",
            "#whats-x-and-why",
            "https://example.com/x#y",
        ] {
            assert!(leads(link), "{link}");
        }
        for link in [
            "README.md",
            "../examples/b.yaml",
            "#nowhere",
            "../README.md#no-heading",
            "../examples/a.yaml#x",
        ] {
            assert!(!leads(link), "{link}");
        }
    }
}
