//! Tests of the sizes of whole runs, and of the annotation.

use super::*;
use crate::annotations::PINNED;
use proptest::prelude::*;

fn run(spec: Value) -> PipelineRun {
    PipelineRun::parse(&json!({"metadata": {"name": "run", "namespace": "ci"}, "spec": spec}))
        .unwrap()
}

fn asking(cpu: &str) -> Value {
    json!({"steps": [{"name": "s", "computeResources": {"requests": {"cpu": cpu}}}]})
}

fn pipeline() -> Value {
    json!({
        "params": [{"name": "platforms", "type": "array", "default": ["a", "b", "c"]}],
        "tasks": [
            {"name": "clone", "taskSpec": asking("100m"), "workspaces": [{"name": "out", "workspace": "source"}]},
            {"name": "build", "taskRef": {"name": "builder"}, "runAfter": ["clone", "absent", "build"],
             "matrix": {"params": [{"name": "platform", "value": "$(params.platforms[*])"}, {"name": "mode", "value": ["x", "y"]}],
                        "include": [{"name": "i", "params": [{"name": "mode", "value": "z"}]}, {"params": [{"name": "mode", "value": "x"}]}]}},
            {"name": "scan", "taskRef": {"resolver": "git"}, "params": [{"name": "p", "value": "a $(tasks.clone.results.commit) b"}]},
            {"name": "approve", "taskRef": {"apiVersion": "openshift-pipelines.org/v1alpha1", "kind": "ApprovalTask", "name": "x"},
             "when": [{"input": "$(tasks.scan.results.ok[0])", "operator": "in", "values": ["$(tasks.build.status)"]}]},
            {"name": "child", "pipelineSpec": {"tasks": []}, "runAfter": ["approve"]},
        ],
        "finally": [{"name": "report", "taskRef": {"name": "absent", "kind": "Task"}, "params": [{"value": "$(tasks.build.results.image)"}]}],
    })
}

fn catalog() -> Catalog {
    Catalog {
        tasks: [("builder".to_owned(), TaskSpec::read(&asking("2")))].into(),
        ..Catalog::default()
    }
}

fn annotation(run: &PipelineRun, mode: &str, catalog: Option<&Catalog>) -> Value {
    let mut admission = Admission {
        set_annotations: [(MODE.to_owned(), mode.to_owned())].into(),
        remove_annotations: PINNED.map(str::to_owned).to_vec(),
        ..Admission::default()
    };
    pin(&mut admission, run, catalog);
    assert!(!admission.remove_annotations.contains(&SIZES.to_owned()));
    serde_json::from_str(&admission.set_annotations[SIZES]).unwrap()
}

fn expected() -> Value {
    json!({
        "clone": {"requests": {"cpu": "100m"}, "workspaces": ["source"]},
        "build": {"requests": {"cpu": "2"}, "pods": 7, "after": ["clone"]},
        "scan": {"after": ["clone"]},
        "approve": {"after": ["scan"], "custom": true},
        "child": {"after": ["approve"]},
        "report": {"after": ["build"], "finally": true},
    })
}

#[test]
fn b3_requests_order_and_number_of_the_pods_are_pinned() {
    let embedded = run(json!({"pipelineSpec": pipeline()}));
    for mode in ["workspaces", "pipelineruns"] {
        assert_eq!(annotation(&embedded, mode, Some(&catalog())), expected());
    }
    let by_name = run(json!({"pipelineRef": {"name": "build"}}));
    let known = Catalog {
        pipeline: crate::pipeline::tasks(&pipeline()),
        ..catalog()
    };
    assert_eq!(
        annotation(&by_name, "isolate-pipelinerun", Some(&known)),
        expected()
    );
    assert_eq!(named_tasks(&known.pipeline), ["absent", "builder"].into());
    assert_eq!(
        annotation(&by_name, "pipelineruns", Some(&catalog())),
        json!({})
    );
}

/// A placeholder must not wait for a node that the run may never need, or that only one of its tasks needs.
#[test]
fn b3_tasks_that_may_be_skipped_or_need_nodes_of_their_own_have_no_known_requests() {
    let when = json!([{"input": "a", "operator": "in", "values": ["b"]}]);
    let tasks = json!([
        {"name": "always", "taskSpec": asking("1"), "when": []},
        {"name": "release", "taskSpec": asking("32"), "when": when},
        {"name": "on-gpu", "taskSpec": asking("32")},
        {"name": "tolerates", "taskSpec": asking("2")},
    ]);
    let run = run(json!({
        "pipelineSpec": {"tasks": tasks},
        "taskRunSpecs": [
            {"pipelineTaskName": "on-gpu", "podTemplate": {"nodeSelector": {"pool": "gpu"}}},
            {"pipelineTaskName": "tolerates", "podTemplate": {"tolerations": []}},
        ],
    }));
    let expect = json!({
        "always": {"requests": {"cpu": "1"}},
        "release": {},
        "on-gpu": {},
        "tolerates": {"requests": {"cpu": "2"}},
    });
    let pinned = annotation(&run, "pipelineruns", Some(&catalog()));
    assert_eq!(pinned, expect);
}

#[test]
fn b3_the_runs_own_settings_and_parameters_count() {
    let mine = run(json!({
        "pipelineSpec": pipeline(),
        "params": [{"name": "platforms", "value": ["a", "b", "c", "d"]}],
        "taskRunSpecs": [
            {"pipelineTaskName": "clone", "computeResources": {"requests": {"cpu": "7"}}},
            {"pipelineTaskName": "clone", "stepSpecs": [{"name": "s", "computeResources": {"requests": {"cpu": "3"}}}]},
        ],
        "taskRunTemplate": {"podTemplate": {"runtimeClassName": "heavy"}},
    }));
    let mut catalog = catalog();
    catalog.overheads = [("heavy".to_owned(), resource_list(&json!({"cpu": "1"})))].into();
    let read = annotation(&mine, "pipelineruns", Some(&catalog));
    assert_eq!(read["clone"]["requests"], json!({"cpu": "4"}));
    assert_eq!(read["build"]["requests"], json!({"cpu": "3"}));
    assert_eq!(read["build"]["pods"], 9);
}

#[test]
fn b3_without_a_catalog_only_the_order_is_known() {
    let embedded = run(json!({"pipelineSpec": pipeline()}));
    let mut expect = expected();
    for task in ["clone", "build"] {
        expect[task].as_object_mut().unwrap().remove("requests");
    }
    assert_eq!(annotation(&embedded, "pipelineruns", None), expect);
}

#[test]
fn b3_a_run_that_is_left_alone_has_no_sizes_and_one_that_is_too_large_none_that_are_known() {
    let mut admission = Admission::default();
    pin(
        &mut admission,
        &run(json!({"pipelineSpec": pipeline()})),
        Some(&catalog()),
    );
    assert_eq!(admission, Admission::default());
    let names: Vec<_> = (0..300).map(|index| format!("task-{index}")).collect();
    let tasks: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(index, name)| json!({"name": name, "runAfter": names[..index], "taskSpec": asking("1")}))
        .collect();
    let large = run(json!({"pipelineSpec": {"tasks": tasks}}));
    assert_eq!(
        annotation(&large, "pipelineruns", Some(&catalog())),
        json!({})
    );
}

fn read(text: &str) -> Result<Sizes, Vec<Violation>> {
    Sizes::read(&[(SIZES.to_owned(), text.to_owned())].into())
}

#[test]
fn b3_a_malformed_annotation_is_refused_by_field_value_and_what_is_allowed() {
    let at = |path: &str| format!("metadata.annotations[{SIZES}]{path}");
    // Each line has a text, the path of its violation, and the description of the violation.
    let table = r#"
        { =>  EOF while parsing an object at line 1 column 1; allowed: JSON, an object of sizes by task
        [] =>  is a list, []; allowed: an object
        {"a": 7} => .a is a number, 7; allowed: an object
        {"a": {"requests": {"cpu": "-1"}}} => .a.requests[cpu] is "-1"; allowed: a quantity that is not negative
        {"a": {"requests": {"cpu": 1}}} => .a.requests[cpu] is a number, 1; allowed: a string
        {"a": {"pods": 0}} => .a.pods is 0; allowed: 1 to 100000
        {"a": {"pods": "1"}} => .a.pods is "1"; allowed: 1 to 100000
        {"a": {"after": ["b"]}} => .a.after[0] is "b"; allowed: the name of a task in this annotation
        {"a": {"workspaces": [7]}} => .a.workspaces[0] is 7; allowed: the name of a workspace
        {"a": {"custom": "yes"}} => .a.custom is a string, "yes"; allowed: true or false"#;
    for line in table.trim().lines() {
        let (text, violation) = line.trim_start().split_once(" => ").unwrap();
        let (path, description) = violation.split_once(' ').unwrap();
        let violation = Violation::new(at(path), description);
        assert_eq!(read(text), Err(vec![violation]), "{text}");
    }
    let both = read(r#"{"a": {"pods": 0, "requests": {"cpu": "much"}}}"#).unwrap_err();
    assert_eq!(both.len(), 2);
    assert_eq!(Sizes::read(&BTreeMap::new()), Ok(Sizes::default()));
    assert_eq!(read(r#"{"a": {"later": true}}"#).unwrap().0["a"].pods, 1);
}

proptest! {
    #[test]
    fn b3_what_is_written_reads_back(
        tasks in proptest::collection::btree_map("[a-z]{1,3}", (
            proptest::option::of((0_i128..1 << 40, 0_i128..1 << 50, 1_i128..9)), 1_u32..300, any::<bool>(), any::<bool>(),
            proptest::collection::btree_set("\\PC{0,3}", 0..3)), 0..6),
    ) {
        let names: BTreeSet<_> = tasks.keys().cloned().collect();
        let sizes = tasks.into_iter().map(|(name, (requests, pods, finally, custom, workspaces))| {
            let requests = requests.map(|(milli_cpu, memory, gpus)| Amounts {
                milli_cpu,
                memory,
                others: [("example.dev/gpu".to_owned(), gpus)].into(),
            });
            let after = names.iter().filter(|other| **other < name).cloned().collect();
            (name, TaskSize { requests, pods, after, finally, custom, workspaces })
        });
        let sizes = Sizes(sizes.collect());
        prop_assert_eq!(read(&sizes.to_annotation()), Ok(sizes));
    }

    #[test]
    fn b3_no_text_makes_it_panic(text in "\\PC*", task in "[{}\\[\\]\",:a-z0-9]{0,40}") {
        let _ = read(&text);
        let _ = read(&format!(r#"{{"a":{task}}}"#));
    }
}
