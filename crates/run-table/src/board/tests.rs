//! Tests of the board: each applies events and compares the rows and the objects that are left.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::rows::{Row, rows};

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

pub(super) fn run(status: &str, reason: &str) -> Change {
    Change::Run(Event::Apply(object(json!({
        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "metadata": { "name": "run" },
        "status": {
            "conditions": [{ "type": "Succeeded", "status": status, "reason": reason, "message": "said so" }],
            "childReferences": [{ "kind": "TaskRun", "name": "run-build" }, { "kind": "CustomRun", "name": "run-wait" }],
        },
    }))))
}

fn pod(name: &str, task: Option<&str>, node: Option<&str>) -> Pod {
    let labels = match task {
        Some(task) => {
            json!({ "tekton.dev/taskRun": format!("run-{task}"), "tekton.dev/pipelineTask": task })
        }
        None => json!({ "app.kubernetes.io/component": "affinity-assistant" }),
    };
    object(
        json!({ "metadata": { "name": name, "labels": labels }, "spec": { "containers": [], "nodeName": node } }),
    )
}

fn set(name: &str) -> StatefulSet {
    object(json!({
        "metadata": { "name": name },
        "spec": { "replicas": 1, "selector": {}, "template": {}, "serviceName": "" }, "status": { "replicas": 1, "readyReplicas": 1 },
    }))
}

fn claim(name: &str) -> PersistentVolumeClaim {
    object(json!({
        "metadata": { "name": name, "annotations": { "volume.kubernetes.io/selected-node": "node-2" } },
        "status": { "phase": "Bound" },
    }))
}

fn board(changes: Vec<Change>) -> Board {
    let mut board = Board::new("run");
    for (second, change) in (1..).zip(changes) {
        board.apply(change, Duration::from_secs(second));
    }
    board
}

fn lines(board: &Board) -> Vec<String> {
    let rows = rows(board).into_iter();
    rows.map(
        |Row {
             kind,
             name,
             state,
             node,
         }| format!("{kind}|{name}|{state}|{node}"),
    )
    .collect()
}

#[test]
fn shows_the_run_what_holds_it_together_and_its_tasks() {
    let board = board(vec![
        run("Unknown", "Running"),
        Change::Pod(Event::Apply(pod(
            "run-build-pod",
            Some("build"),
            Some("node-2"),
        ))),
        Change::Set(Event::Apply(set("affinity-assistant-1"))),
        Change::Pod(Event::Apply(pod(
            "affinity-assistant-1-0",
            None,
            Some("node-2"),
        ))),
        Change::Claim(Event::Apply(claim("pvc-1-affinity-assistant-1-0"))),
    ]);
    assert_eq!(
        lines(&board),
        [
            "PipelineRun|run|Running|",
            "StatefulSet|affinity-assistant-1|1/1 ready|",
            "placeholder|affinity-assistant-1-0|Pending|node-2",
            "claim|pvc-1-affinity-assistant-1-0|Bound|node-2",
            "task|build|Pending|node-2",
        ]
    );
    assert_eq!(board.children(), 1);
}

#[test]
fn remembers_what_is_gone_and_when() {
    let board = board(vec![
        Change::Set(Event::Apply(set("affinity-assistant-1"))),
        Change::Claim(Event::Apply(claim("claim-1"))),
        Change::Set(Event::Delete(set("affinity-assistant-1"))),
    ]);
    assert_eq!(board.left(), ["claim claim-1"]);
    let passing: Vec<_> = board
        .passing()
        .iter()
        .map(|((kind, name), gone)| (*kind, name.as_str(), *gone))
        .collect();
    assert_eq!(
        passing,
        [
            (
                Kind::StatefulSet,
                "affinity-assistant-1",
                Some(Duration::from_secs(3))
            ),
            (Kind::Claim, "claim-1", None),
        ]
    );
    assert_eq!(
        lines(&board),
        [
            "PipelineRun|run|created|",
            "StatefulSet|affinity-assistant-1|gone|",
            "claim|claim-1|Bound|node-2"
        ]
    );
}

#[test]
fn a_pod_that_was_deleted_still_counts_with_its_node() {
    let board = board(vec![
        Change::Pod(Event::Apply(pod(
            "run-build-pod",
            Some("build"),
            Some("node-2"),
        ))),
        Change::Pod(Event::Delete(pod("run-build-pod", Some("build"), None))),
    ]);
    let expected = TaskPod {
        task: "build".to_owned(),
        node: Some("node-2".to_owned()),
    };
    assert_eq!(board.task_pods().get("run-build-pod"), Some(&expected));
}

#[test]
fn a_watch_that_starts_again_forgets_what_is_not_listed_any_more() {
    let mut board = board(vec![
        Change::Claim(Event::Init),
        Change::Claim(Event::InitApply(claim("old"))),
        Change::Claim(Event::InitDone),
        Change::Claim(Event::Init),
        Change::Claim(Event::InitApply(claim("new"))),
    ]);
    assert_eq!(board.left(), ["claim old"]);
    assert!(!board.is_complete());
    board.apply(Change::Claim(Event::InitDone), Duration::ZERO);
    assert_eq!(board.left(), ["claim new"]);
}

#[test]
fn the_result_is_the_succeeded_condition() {
    let cases = [
        (
            run("Unknown", "Running"),
            RunResult::Running("Running".to_owned()),
        ),
        (run("True", "Completed"), RunResult::Succeeded),
        (
            run("False", "Failed"),
            RunResult::Failed("Failed: said so".to_owned()),
        ),
    ];
    for (change, expected) in cases {
        assert_eq!(board(vec![change]).result(), expected);
    }
    assert_eq!(
        board(vec![]).result(),
        RunResult::Running("created".to_owned())
    );
    let Change::Run(Event::Apply(deleted)) = run("Unknown", "Running") else {
        panic!()
    };
    let gone = board(vec![
        run("Unknown", "Running"),
        Change::Run(Event::Delete(deleted)),
    ]);
    assert_eq!(gone.result(), RunResult::Gone);
}
