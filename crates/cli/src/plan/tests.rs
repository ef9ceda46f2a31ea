use coscheduler_core::mode::{CoscheduledClaims, Mode};
use serde_json::{Value, json};

use super::*;
use crate::output::Answer as _;

const FILE: &str = "
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {name: cache}
  spec: {accessModes: [ReadWriteOncePod]}
- apiVersion: tekton.dev/v1
  kind: Task
  metadata: {name: build}
  spec: {steps: [{name: s, computeResources: {requests: {cpu: '1'}}}]}
- apiVersion: tekton.dev/v1
  kind: Pipeline
  metadata: {name: p, annotations: {coscheduler.dev/placement: pack}}
  spec:
    tasks:
    - {name: a, taskRef: {name: build}}
    - {name: b, taskRef: {name: build}}
---
apiVersion: tekton.dev/v1
kind: PipelineRun
metadata: {generateName: run-}
spec:
  pipelineRef: {name: p}
  workspaces:
  - name: source
    volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}
  - {name: cache, persistentVolumeClaim: {claimName: cache}}
";

fn answer(file: &str, change: impl FnOnce(&mut Configuration)) -> Result<Answer, Failure> {
    let mut configuration = Configuration {
        mode: Mode::PipelineRuns,
        ..Configuration::default()
    };
    change(&mut configuration);
    plan_all(
        &Documents::parse(file, "file", "ci")?,
        &Admitting::Here {
            configuration,
            mode_from: "here".to_owned(),
        },
    )
}

fn allowing(word: &str) -> impl FnOnce(&mut Configuration) {
    let word = word.parse().unwrap();
    move |configuration| {
        configuration.allowed_overrides.insert(word);
    }
}

fn as_json(answer: &Answer) -> Value {
    json!(answer)["runs"][0].clone()
}

#[test]
fn b3_b5_a_placeholder_asks_for_the_peak_and_else_for_the_largest_pod() {
    let answer = answer(FILE, allowing("placement=pack")).unwrap();
    let run = as_json(&answer);
    let placeholder = &run["placeholders"][0];
    assert_eq!(
        placeholder["asks"],
        json!(["cpu 2050m, memory 100Mi", "cpu 1050m, memory 100Mi"])
    );
    assert_eq!(
        placeholder["requests"],
        json!({"cpu": "50m", "memory": "100Mi"})
    );
    let text = answer.text(false);
    let line = "asks for cpu 2050m, memory 100Mi, or else cpu 1050m, memory 100Mi; once it has a node, for only cpu 50m, \
                memory 100Mi (placeholder-reserves: placement)";
    assert!(text.contains(line), "{text}");
}

#[test]
fn v8_b5_claims_have_their_creators_and_access_modes() {
    let answer = answer(FILE, allowing("placement=pack")).unwrap();
    let mut claims = as_json(&answer)["placeholders"][0]["claims"].clone();
    let name = claims[0]["name"].take();
    assert!(name.as_str().unwrap().starts_with("pvc-"), "{name}");
    assert_eq!(
        claims,
        json!([
            {"name": null, "workspaces": ["source"], "accessModes": ["ReadWriteOnce"],
             "madeBy": "placeholder", "mounted": true},
            {"name": "cache", "workspaces": ["cache"], "accessModes": ["ReadWriteOncePod"],
             "madeBy": "user", "mounted": false},
        ])
    );
}

#[test]
fn v8_b5_with_node_bound_the_claims_of_the_file_are_shared_and_others_are_node_bound() {
    let claims = |file: &str| {
        let file = file.replace("placement: pack", "coschedule: workspaces");
        let answer = answer(&file, |configuration| {
            allowing("workspaces")(configuration);
            configuration.coschedule_claims = CoscheduledClaims::NodeBound;
        });
        let run = as_json(&answer.unwrap());
        let placeholders = run["placeholders"].as_array().unwrap().iter();
        let claims = placeholders.flat_map(|it| it["claims"].as_array().unwrap());
        let workspaces = claims.map(|it| it["workspaces"][0].as_str().unwrap().to_owned());
        workspaces.collect::<std::collections::BTreeSet<_>>()
    };
    let both = ["cache".to_owned(), "source".to_owned()].into();
    assert_eq!(claims(FILE), both);
    let shared = FILE.replace("ReadWriteOncePod", "ReadWriteMany");
    assert_eq!(claims(&shared), ["source".to_owned()].into());
    let absent = shared.replace("metadata: {name: cache}", "metadata: {name: other}");
    assert_eq!(claims(&absent), both);
}

#[test]
fn b1_b5_the_objects_of_the_file_choose_and_the_configuration_allows() {
    let Err(failure) = answer(FILE, |_| {}) else {
        panic!("allowed");
    };
    let text = failure.to_string();
    assert!(
        text.starts_with("PipelineRun ci/run- is refused:\n  spec.pipelineRef.name: "),
        "{text}"
    );
    assert_eq!(failure.exit_code(), std::process::ExitCode::from(1));

    let file = FILE.replace("placement: pack", "coschedule: workspaces");
    let run = as_json(&answer(&file, allowing("workspaces")).unwrap());
    assert_eq!(run["mode"], "workspaces");
    assert_eq!(
        run["modeFrom"],
        "annotation coscheduler.dev/coschedule of the Pipeline"
    );
    assert_eq!(run["placeholders"].as_array().unwrap().len(), 2);
}

#[test]
fn b5_names_are_those_of_the_objects_that_the_manager_creates() {
    let file = FILE.replace("ReadWriteOnce]", "ReadWriteOncePod]");
    let names = answer(&file, allowing("placement=pack")).unwrap().names();
    let kinds: Vec<_> = names
        .iter()
        .map(|name| name.split_once('/').unwrap().0)
        .collect();
    assert_eq!(kinds, ["statefulset.apps", "persistentvolumeclaim"]);
}

#[test]
fn b5_a_file_without_runs_or_with_a_run_that_is_not_valid_is_a_failure() {
    let failure = |text: &str| answer(text, |_| {}).unwrap_err().to_string();
    assert_eq!(failure("kind: Task"), "file has no PipelineRun");
    assert!(failure("a: [").starts_with("failed to parse file"));
    let text = failure("{kind: PipelineRun, metadata: {name: r}, spec: {workspaces: 7}}");
    assert!(
        text.contains("\"r\" is not valid:\n  spec.workspaces: "),
        "{text}"
    );
    assert_eq!(
        failure("{kind: PipelineRun, metadata: {uid: u}, spec: {}}"),
        "file: PipelineRun \"\" is not valid:\n  metadata.name: is not set, and metadata.generateName neither; set one of them"
    );
}

#[test]
fn b5_a_run_is_new_without_a_name_or_a_uid() {
    let (uid, status) = (
        "uid: u",
        "status: {conditions: [{type: Succeeded, status: 'True'}]}",
    );
    for (metadata, state, name, reason) in [
        ("generateName: r-".to_owned(), "", "r-xxxxx", "NoClaims"),
        (
            format!("generateName: r-, {uid}"),
            status,
            "r-xxxxx",
            "NoClaims",
        ),
        ("name: r".to_owned(), status, "r", "NoClaims"),
        (format!("name: r, {uid}"), status, "r", "NotPinned"),
    ] {
        let file = format!("{{kind: PipelineRun, metadata: {{{metadata}}}, spec: {{}}, {state}}}");
        let run =
            as_json(&answer(&file, |configuration| configuration.mode = Mode::Workspaces).unwrap());
        assert_eq!(run["name"], name, "{file}");
        assert_eq!(run["reasons"][0]["code"], reason, "{file}");
    }
}
