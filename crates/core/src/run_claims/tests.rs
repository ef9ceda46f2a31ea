//! Tests of the names of claims, and of shared claims from the admission of a run to its placeholders and TaskRuns.

use super::*;
use crate::admit::{Admission, Question, TEKTON_CONTROLLER, admit};
use crate::admit_run::{BoundClaim, ChildKind, ChildRun, admit_run};
use crate::annotations::{CLAIMS, GROUP, TEKTON_AFFINITY_ASSISTANT};
use crate::config::Configuration;
use crate::mode::{CoscheduledClaims, Mode};
use crate::names::AssistantName;
use crate::pinned::Pinned;
use crate::pipeline_run::OwnerReference;
use crate::plan::{ReasonCode, plan};
use crate::restore::restore;
use crate::sizes::TaskSpec;
use serde_json::json;

fn claims() -> RunClaims {
    let run = PipelineRun::parse(&json!({"spec": {
        "params": [{"name": "cache", "value": "build-cache"}],
        "pipelineSpec": {"params": [{"name": "models", "default": "models-v1"}, {"name": "cache", "default": "none"}]},
        "workspaces": [
            {"name": "defaulted", "persistentVolumeClaim": {"claimName": "$(params.models)"}},
            {"name": "source", "volumeClaimTemplate": {"metadata": {"name": "src"}, "spec": {}}},
            {"name": "scratch", "volumeClaimTemplate": {"spec": {}}},
            {"name": "cache", "persistentVolumeClaim": {"claimName": "$(params.cache)"}},
            {"name": "models", "persistentVolumeClaim": {"claimName": "$(params.cache)-ro"}},
            {"name": "result", "persistentVolumeClaim": {"claimName": "$(tasks.make.results.claim)"}},
            {"name": "nameless", "persistentVolumeClaim": {}},
            {"name": "token", "secret": {"secretName": "t"}},
        ],
    }}))
    .unwrap();
    of_run(&run, None)
}

#[test]
fn v3_v9_what_can_be_known_is_known() {
    let claim = |workspace: &str, source: ClaimSource| (workspace.to_owned(), source.into());
    let expect = [
        claim("defaulted", ClaimSource::Name("models-v1".to_owned())),
        claim("source", ClaimSource::Template("src".to_owned())),
        claim("scratch", ClaimSource::Template(String::new())),
        claim("cache", ClaimSource::Name("build-cache".to_owned())),
        claim("models", ClaimSource::Name("build-cache-ro".to_owned())),
    ];
    assert_eq!(claims(), expect.into());
}

/// Checks the name of the claim of workspace `w`, which is bound to `$(params.c)` and has two tasks in an embedded Pipeline or
/// in a Pipeline of the cluster. `one` has more fields of the first task.
#[track_caller]
fn check(pipeline_params: Value, one: Value, expect: Option<&str>) {
    let mut tasks = json!([
        {"name": "one", "workspaces": [{"name": "in", "workspace": "w"}]},
        {"name": "two", "workspaces": [{"name": "w"}], "taskRef": {"name": "plain"}},
        {"name": "other", "params": [{"name": "c", "value": "unused"}]},
    ]);
    let fields = tasks[0].as_object_mut().unwrap();
    fields.extend(one.as_object().unwrap().clone());
    let pipeline = json!({"params": pipeline_params, "tasks": tasks});
    let mut object = json!({"spec": {
        "params": [{"name": "own", "value": "of-run"}],
        "workspaces": [{"name": "w", "persistentVolumeClaim": {"claimName": "$(params.c)"}}],
    }});
    let mut catalog = Catalog::default();
    catalog.defaults = Params::defaults(&pipeline["params"]);
    catalog.pipeline = crate::pipeline::tasks(&pipeline);
    let with_default = json!({"params": [{"name": "c", "default": "of-task"}]});
    for (name, spec) in [("plain", json!({})), ("with-default", with_default)] {
        catalog.tasks.insert(name.to_owned(), TaskSpec::read(&spec));
    }
    let name = |object: &Value| {
        let run = PipelineRun::parse(object).unwrap();
        match of_run(&run, Some(&catalog)).remove("w")?.source {
            ClaimSource::Name(name) => Some(name),
            ClaimSource::Template(_) => None,
        }
    };
    assert_eq!(name(&object).as_deref(), expect, "in the cluster");
    object["spec"]["pipelineSpec"] = pipeline;
    assert_eq!(name(&object).as_deref(), expect, "embedded");
}

#[test]
fn v9_defaults_complete_a_name_where_all_tasks_that_use_the_claim_agree() {
    let default = |value: Value| json!([{"name": "c", "default": value}]);
    let of_pipeline = || default(json!("of-pipeline"));
    let passing = |value: &str| json!({"params": [{"name": "c", "value": value}]});
    check(of_pipeline(), json!({}), Some("of-pipeline"));
    // A default may have variables. Tekton gives a task the value of its own parameter.
    check(
        default(json!("a-$(params.own)")),
        json!({}),
        Some("a-of-run"),
    );
    check(of_pipeline(), passing("$(params.c)"), Some("of-pipeline"));
    check(of_pipeline(), passing("other"), None);
    check(of_pipeline(), passing("$(tasks.x.results.c)"), None);
    check(
        of_pipeline(),
        json!({"matrix": {"params": [{"name": "c", "value": ["a", "b"]}]}}),
        None,
    );
    check(
        of_pipeline(),
        json!({"matrix": {"include": [{"params": [{"name": "c", "value": "a"}]}]}}),
        None,
    );
    check(
        of_pipeline(),
        json!({"taskRef": {"name": "with-default"}}),
        None,
    );
    check(
        of_pipeline(),
        json!({"taskSpec": {"params": [{"name": "c", "default": "of-pipeline"}]}}),
        Some("of-pipeline"),
    );
    // Without a default, nothing is known. A list has no value without an index.
    check(json!([{"name": "c"}]), json!({}), None);
    check(default(json!(["a"])), json!({}), None);
    check(default(json!("")), json!({}), None);
}

#[test]
fn v9_the_default_of_a_task_names_a_claim_that_only_this_task_uses() {
    let run = PipelineRun::parse(&json!({"spec": {
        "pipelineSpec": {"tasks": [{"name": "t", "workspaces": [{"name": "w"}], "taskSpec": {
            "params": [{"name": "c", "default": {"claim": "of-task"}}],
        }}]},
        "workspaces": [{"name": "w", "persistentVolumeClaim": {"claimName": "$(params.c.claim)"}}],
    }}))
    .unwrap();
    let expect = (
        "w".to_owned(),
        ClaimSource::Name("of-task".to_owned()).into(),
    );
    assert_eq!(of_run(&run, None), [expect].into());
}

#[test]
fn v3_claims_of_templates_are_known_by_the_runs_uid() {
    let name = tekton_claim_name("source", Some("src"), "u1");
    assert!(find(&claims(), &name, "u1").is_some());
    assert!(find(&claims(), &name, "u2").is_none());
    assert!(find(&claims(), "build-cache", "u2").is_some());
    assert!(find(&claims(), "$(tasks.make.results.claim)", "u1").is_none());
    assert!(find(&claims(), "", "u1").is_none());
}

#[test]
fn they_are_readable_as_json() {
    let text = serde_json::to_string(&claims()).unwrap();
    assert_eq!(
        text,
        r#"{"cache":{"name":"build-cache"},"defaulted":{"name":"models-v1"},"models":{"name":"build-cache-ro"},"scratch":{"template":""},"source":{"template":"src"}}"#
    );
    assert_eq!(serde_json::from_str::<RunClaims>(&text).unwrap(), claims());
}

const UID: &str = "u1";

/// A configuration in mode `workspaces` that coschedules only node-bound claims.
fn node_bound() -> Configuration {
    Configuration {
        coschedule_claims: CoscheduledClaims::NodeBound,
        ..Configuration::default()
    }
}

/// A run with an existing claim and a template, each with these access modes, and a template that only one node can mount.
fn mixed(access_modes: &[&str]) -> PipelineRun {
    let template =
        |modes: &[&str]| json!({"metadata": {"name": "t"}, "spec": {"accessModes": modes}});
    PipelineRun::parse(&json!({
        "metadata": {"namespace": "ci", "name": "build", "uid": UID},
        "spec": {
            "workspaces": [
                {"name": "bound", "volumeClaimTemplate": template(&["ReadWriteOnce"])},
                {"name": "existing", "persistentVolumeClaim": {"claimName": "$(params.claim)"}},
                {"name": "made", "volumeClaimTemplate": template(access_modes)},
            ],
            "pipelineSpec": {
                "params": [{"name": "claim", "default": "cache"}],
                "tasks": [
                    {"name": "all", "workspaces": [{"name": "bound"}, {"name": "existing"}, {"name": "made"}]},
                    {"name": "two", "workspaces": [{"name": "existing"}, {"name": "made"}]},
                ],
            },
        },
    }))
    .unwrap()
}

fn read(name: &str, access_modes: &[&str]) -> AccessModes {
    let modes = access_modes.iter().map(ToString::to_string);
    [(name.to_owned(), modes.collect())].into()
}

fn admission(
    configuration: &Configuration,
    run: &PipelineRun,
    access_modes: Option<&AccessModes>,
) -> Admission {
    let question = Question {
        run,
        request_uid: "request",
        created_by: "alice",
        pipeline_annotations: None,
        namespace_annotations: None,
        owner_group: None,
        source_templates: None,
        catalog: None,
        access_modes,
    };
    admit(Ok(configuration), TEKTON_CONTROLLER, &question).unwrap()
}

/// The claims that have placeholders.
fn placeholders(run: &PipelineRun) -> BTreeSet<String> {
    let plan = plan(run).unwrap();
    let claims = plan.action.placeholders().iter();
    claims.flat_map(|spec| spec.claims()).collect()
}

/// The claim whose placeholder a TaskRun with all claims of these workspaces follows, or an empty text. The error is the reason
/// why the TaskRun may not run.
fn followed(run: &PipelineRun, workspaces: &[&str]) -> Result<String, String> {
    let pinned = Pinned::of(run).unwrap().unwrap();
    let claims = workspaces.iter().map(|workspace| BoundClaim {
        workspace: (*workspace).to_owned(),
        claim_name: pinned.claims[*workspace].name(workspace, UID),
    });
    let claims: Vec<_> = claims.collect();
    let names: Vec<_> = claims.iter().map(|it| it.claim_name.clone()).collect();
    let task_run = ChildRun {
        kind: ChildKind::TaskRun,
        name: "build-all".to_owned(),
        owner_group: run.annotations.get(GROUP).cloned(),
        annotations: run.annotations.clone(),
        controller: Some(OwnerReference::to_pipeline_run(run)),
        created_by: TEKTON_CONTROLLER.to_owned(),
        claims,
        params: Params::default(),
        pipeline_run: None,
    };
    let admission = admit_run(&task_run, TEKTON_CONTROLLER);
    if let Some(refusal) = admission.refusal {
        return Err(refusal);
    }
    let assistant = &admission.set_annotations[TEKTON_AFFINITY_ASSISTANT];
    let mut names = names.into_iter();
    let of_claim =
        |name: &String| AssistantName::of_claim(&pinned.group, name).as_str() == assistant;
    Ok(names.find(of_claim).unwrap_or_default())
}

#[test]
fn v8_with_node_bound_a_claim_that_many_nodes_can_mount_has_no_placeholder_and_counts_for_no_task_run()
 {
    let bound = tekton_claim_name("bound", Some("t"), UID);
    let made = tekton_claim_name("made", Some("t"), UID);
    for (modes, shared) in [
        (&["ReadWriteMany"][..], true),
        (&["ReadOnlyMany"], true),
        (&["ReadWriteOnce", "ReadOnlyMany"], true),
        (&["ReadWriteOnce", "ReadWriteMany"], true),
        (&["ReadWriteOnce"], false),
        (&["ReadWriteOncePod"], false),
        (&[], false),
    ] {
        let run = mixed(modes);
        let known = read("cache", modes);
        let admission = admission(&node_bound(), &run, Some(&known));
        assert_eq!(admission.claims_to_read, BTreeSet::new());
        assert_eq!(
            admission.warnings.is_empty(),
            shared,
            "{modes:?}: {:?}",
            admission.warnings
        );
        let stored = admission.apply(&run);
        let followed = |workspaces: &[&str]| followed(&stored, workspaces);
        let mut expect = BTreeSet::from([bound.clone()]);
        if !shared {
            expect.extend(["cache".to_owned(), made.clone()]);
        }
        assert_eq!(placeholders(&stored), expect, "{modes:?}");
        assert_eq!(followed(&["bound"]), Ok(bound.clone()));
        let own = |claim: &str| Ok(if shared { "" } else { claim }.to_owned());
        assert_eq!(followed(&["existing"]), own("cache"), "{modes:?}");
        assert_eq!(followed(&["made"]), own(&made), "{modes:?}");
        for (workspaces, follows) in [
            (&["existing", "made"][..], ""),
            (&["existing", "made", "bound"], &*bound),
        ] {
            let found = followed(workspaces);
            match shared {
                true => assert_eq!(found, Ok(follows.to_owned()), "{modes:?}"),
                false => assert!(
                    found.unwrap_err().contains("persistent volume claims"),
                    "{modes:?}"
                ),
            }
        }
        let reasons = plan(&stored).unwrap().reasons.into_iter();
        let said = reasons.filter(|reason| reason.code == ReasonCode::ClaimShared);
        assert_eq!(said.count(), if shared { 2 } else { 0 }, "{modes:?}");
    }
}

#[test]
fn v8_only_node_bound_in_workspaces_depends_on_access_modes() {
    let run = mixed(&["ReadWriteMany"]);
    for mode in Mode::ALL {
        for coschedule_claims in CoscheduledClaims::ALL {
            let configuration = Configuration {
                mode,
                coschedule_claims,
                ..Configuration::default()
            };
            let admitted = |known| admission(&configuration, &run, known);
            let unread = admitted(None);
            let read = admitted(Some(&read("cache", &["ReadWriteMany"])));
            let names: Vec<_> = unread.claims_to_read.iter().collect();
            if mode == Mode::Workspaces && coschedule_claims == CoscheduledClaims::NodeBound {
                assert_eq!(names, ["cache"]);
                assert_ne!(unread, read);
            } else {
                assert_eq!(names, [""; 0], "{mode} {coschedule_claims}");
                assert_eq!(unread, read, "{mode} {coschedule_claims}");
                let claims = read.set_annotations.get(CLAIMS);
                assert!(claims.is_none_or(|it| !it.contains("shared")), "{claims:?}");
            }
        }
    }
}

#[test]
fn v8_a_claim_that_nobody_could_read_is_node_bound() {
    let run = mixed(&["ReadWriteMany"]);
    for (known, to_read) in [
        (None, &["cache"][..]),
        (Some(read("other", &["ReadWriteMany"])), &["cache"]),
        (Some(read("cache", &[])), &[]),
    ] {
        let admission = admission(&node_bound(), &run, known.as_ref());
        let names: Vec<_> = admission.claims_to_read.iter().collect();
        assert_eq!(names, to_read);
        let stored = admission.apply(&run);
        assert!(placeholders(&stored).contains("cache"));
        assert_eq!(
            followed(&stored, &["existing", "made"]),
            Ok("cache".to_owned())
        );
        assert!(followed(&stored, &["existing", "bound"]).is_err());
    }
}

#[test]
fn v8_a_run_with_shared_claims_only_has_no_placeholder() {
    let mut run = mixed(&["ReadWriteMany"]);
    run.workspaces.remove(0);
    let known = read("cache", &["ReadOnlyMany"]);
    let stored = admission(&node_bound(), &run, Some(&known)).apply(&run);
    let plan = plan(&stored).unwrap();
    assert!(plan.action.placeholders().is_empty());
    let codes: Vec<_> = plan.reasons.iter().map(|reason| reason.code).collect();
    assert_eq!(codes, [ReasonCode::ClaimShared; 2]);
}

#[test]
fn v8_an_author_cannot_make_a_claim_shared() {
    let mut run = mixed(&["ReadWriteOnce"]);
    let forged = r#"{"existing":{"name":"cache","shared":true}}"#;
    run.annotations.insert(CLAIMS.to_owned(), forged.to_owned());
    for configuration in [Configuration::default(), node_bound()] {
        let stored = admission(&configuration, &run, None).apply(&run);
        assert!(placeholders(&stored).contains("cache"));
        assert!(followed(&stored, &["existing", "bound"]).is_err());
        let mut update = stored.clone();
        update
            .annotations
            .insert(CLAIMS.to_owned(), forged.to_owned());
        assert_eq!(restore(&stored, &update).apply(&update), stored);
    }
}

#[test]
fn v8_a_pending_run_keeps_shared_claims_and_gets_no_more() {
    let mut run = mixed(&["ReadWriteMany"]);
    run.state = crate::pipeline_run::RunState::Pending;
    let known = read("cache", &["ReadWriteMany"]);
    let stored = admission(&node_bound(), &run, Some(&known)).apply(&run);
    let shared = |update: &PipelineRun| {
        let updated = restore(&stored, update).apply(update);
        let claims = Pinned::of(&updated).unwrap().unwrap().claims;
        let shared = claims.into_iter().filter(|(_, claim)| claim.shared);
        shared.map(|(workspace, _)| workspace).collect::<Vec<_>>()
    };
    assert_eq!(shared(&stored), ["existing", "made"]);
    let bound_to = |workspace: usize, claim_name: &str| {
        let mut update = stored.clone();
        update.workspaces[workspace].source = WorkspaceSource::Claim {
            claim_name: claim_name.to_owned(),
        };
        update
    };
    assert_eq!(shared(&bound_to(1, "another")), ["made"]);
    let mut update = stored.clone();
    update.params = Params::read(&json!([{"name": "claim", "value": "another"}]));
    assert_eq!(shared(&update), ["made"]);
    assert_eq!(shared(&bound_to(2, "another")), ["existing"]);
    // All workspaces that are bound to one claim agree.
    assert_eq!(shared(&bound_to(0, "cache")), ["bound", "existing", "made"]);
    let mut update = stored.clone();
    update.workspaces[2].source = mixed(&["ReadWriteOnce"]).workspaces[2].source.clone();
    assert_eq!(shared(&update), ["existing"]);
}

#[test]
fn v8_v9_a_name_that_becomes_known_late_is_shared_if_another_workspace_has_the_claim() {
    let late = |claim: &str| {
        let workspaces = json!([
            {"name": "late", "persistentVolumeClaim": {"claimName": "$(params.late)"}},
            {"name": "known", "persistentVolumeClaim": {"claimName": "cache"}},
        ]);
        let mut document = json!({
            "metadata": {"namespace": "ci", "name": "build", "uid": UID},
            "spec": {"pipelineRef": {"resolver": "git"}, "workspaces": workspaces},
        });
        let run = PipelineRun::parse(&document).unwrap();
        let known = read("cache", &["ReadWriteMany"]);
        let admitted = admission(&node_bound(), &run, Some(&known)).apply(&run);
        document["status"] =
            json!({"pipelineSpec": {"params": [{"name": "late", "default": claim}]}});
        let mut fetched = PipelineRun::parse(&document).unwrap();
        fetched.annotations = admitted.annotations;
        placeholders(&fetched)
    };
    assert_eq!(late("cache"), BTreeSet::new());
    assert_eq!(late("other"), BTreeSet::from(["other".to_owned()]));
}
