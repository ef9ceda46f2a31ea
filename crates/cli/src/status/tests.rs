use kube::api::ObjectMeta;
use serde_json::{Value, json};

use super::answer::{Answer, is_shown, of};
use super::*;
use crate::output::Answer as _;

fn run(name: &str, annotations: Value, conditions: Value) -> PipelineRun {
    let metadata: ObjectMeta = serde_json::from_value(json!({
        "namespace": "ns", "name": name, "uid": name, "annotations": annotations,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }))
    .unwrap();
    serde_json::from_value(json!({
        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "metadata": metadata,
        "spec": {}, "status": {"conditions": conditions},
    }))
    .unwrap()
}

fn condition(status: &str, reason: &str) -> Value {
    json!([{"type": "Succeeded", "status": status, "reason": reason}])
}

fn pinned(blocked: Option<&str>) -> Value {
    let mut annotations = json!({"coscheduler.dev/mode": "pipelineruns"});
    if let Some(message) = blocked {
        let value = json!({"reason": "QuotaExceeded", "message": message});
        annotations["coscheduler.dev/blocked"] = value.to_string().into();
    }
    annotations
}

fn pod(name: &str, labels: Value, node: Option<&str>, phase: &str) -> Pod {
    let mut labels = labels;
    labels["tekton.dev/pipelineRunUID"] = "b".into();
    let asks = json!({"requests": {"cpu": "50m"}});
    serde_json::from_value(json!({
        "metadata": {"namespace": "ns", "name": name, "uid": name, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "affinity-assistant", "resources": asks}]},
        "status": {"phase": phase},
    }))
    .unwrap()
}

fn pods() -> Vec<Pod> {
    let placeholder = json!({
        "app.kubernetes.io/component": "affinity-assistant", "app.kubernetes.io/instance": "p",
    });
    let task = json!({"tekton.dev/taskRun": "t"});
    vec![
        pod("p-0", placeholder, Some("node-1"), "Running"),
        pod("two", task.clone(), None, "Pending"),
        pod("one", task, Some("node-1"), "Running"),
    ]
}

fn answer(runs: &[PipelineRun], pods: Option<&[Pod]>) -> Answer {
    Answer {
        runs: of(runs, pods),
        warnings: Vec::new(),
        now: "2026-01-01T00:03:10Z".parse().unwrap(),
        with_namespace: false,
        with_headers: true,
        widths: Vec::new(),
        terminal: None,
    }
}

#[test]
fn a_list_shows_the_coscheduled_runs_that_have_not_ended() {
    let none = json!([]);
    assert!(is_shown(&run("a", pinned(None), none.clone())));
    assert!(is_shown(&run(
        "a",
        pinned(None),
        condition("Unknown", "Running")
    )));
    assert!(!is_shown(&run(
        "a",
        pinned(None),
        condition("True", "Succeeded")
    )));
    assert!(!is_shown(&run(
        "a",
        pinned(None),
        condition("False", "Failed")
    )));
    assert!(!is_shown(&run("a", json!({}), none)));
}

#[test]
fn each_run_is_a_row_with_its_state_its_nodes_and_the_cause_for_which_it_waits() {
    let runs = [
        run(
            "c",
            pinned(Some("too much")),
            condition("Unknown", "Running"),
        ),
        run("b", pinned(None), condition("Unknown", "Running")),
        run("a", json!({}), json!([])),
        // The annotation of a run that has ended is no cause any more.
        run(
            "d",
            pinned(Some("too much")),
            condition("False", "Cancelled"),
        ),
    ];
    let mut all = answer(&runs, Some(&pods()));
    let rows = |answer: &Answer, wide: bool| {
        let text = answer.text(wide);
        let lines = text
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>()
    };
    let expect = [
        "NAME MODE STATE NODE RUNNING AGE REASON",
        "a disabled Pending <none> 0/0 3m <none>",
        "b pipelineruns Running node-1 1/2 3m <none>",
        "c pipelineruns Waiting <none> 0/0 3m QuotaExceeded",
        "d pipelineruns Cancelled <none> 0/0 3m <none>",
    ];
    assert_eq!(rows(&all, false), expect);
    all.with_headers = false;
    all.with_namespace = true;
    assert_eq!(
        rows(&all, true)[1..3],
        [
            "ns b pipelineruns Running node-1 1/2 3m <none> p-0 <none>",
            "ns c pipelineruns Waiting <none> 0/0 3m QuotaExceeded <none> too much",
        ]
    );
    assert_eq!(all.names()[0], "pipelinerun.tekton.dev/a");
    let unknown = answer(&runs[1..2], None);
    assert_eq!(
        rows(&unknown, false)[1],
        "b pipelineruns Running <unknown> <unknown> 3m <none>"
    );
    assert_eq!(answer(&[], None).text(false), "");
}

#[test]
fn a_table_that_is_wider_than_the_terminal_has_two_lines_for_each_run() {
    let long = "build-".repeat(10);
    let runs = [
        run(&long, pinned(None), condition("Unknown", "Running")),
        run("c", pinned(Some("too much")), json!([])),
    ];
    let mut all = answer(&runs, Some(&[]));
    all.with_namespace = true;
    assert!(all.widen(false));
    assert!(!all.widen(false), "nothing grows twice");
    let table = all.text(false);
    let width = table.lines().map(str::len).max();
    all.terminal = width;
    assert_eq!(all.text(false), table);
    all.terminal = width.map(|it| it - 1);
    let two_lines = all.text(false);
    let expect = format!(
        "NAMESPACE/NAME\n  MODE           STATE     NODE     RUNNING   AGE   REASON\n\
         ns/{long}\n  pipelineruns   Running   <none>   0/0       3m    <none>\n\
         ns/c\n  pipelineruns   Waiting   <none>   0/0       3m    QuotaExceeded\n"
    );
    assert_eq!(two_lines, expect);
}

#[test]
fn every_fact_is_in_the_json() {
    let b = run(
        "b",
        pinned(Some("too much")),
        condition("Unknown", "Running"),
    );
    let json = serde_json::to_value(answer(&[b], Some(&pods()))).unwrap();
    let expect = json!({"runs": [{
        "namespace": "ns", "name": "b", "mode": "pipelineruns", "state": "Waiting",
        "blocked": {"reason": "QuotaExceeded", "message": "too much"},
        "created": "2026-01-01T00:00:00Z",
        "placeholders": [{"pod": "p-0", "node": "node-1", "requests": "cpu 50m"}],
        "tasks": [
            {"pod": "one", "node": "node-1", "phase": "Running"},
            {"pod": "two", "node": null, "phase": "Pending"},
        ],
    }]});
    assert_eq!(json, expect);
}

#[test]
fn an_age_has_one_unit() {
    for (seconds, expect) in [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (172_800, "2d"),
    ] {
        let created: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let now = created + std::time::Duration::from_secs(seconds);
        assert_eq!(answer::age(created, now), expect);
    }
}
