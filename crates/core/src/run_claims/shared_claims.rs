//! Tests of shared claims, from the admission of a run to its placeholders and TaskRuns.

use super::*;
use crate::admit::{Admission, Question, TEKTON_CONTROLLER, admit};
use crate::admit_child::{BoundClaim, ChildKind, ChildRun, admit_child};
use crate::annotations::{CLAIMS, GROUP, TEKTON_AFFINITY_ASSISTANT};
use crate::config::Configuration;
use crate::mode::{CoscheduledClaims, Mode};
use crate::names::AssistantName;
use crate::pinned::Pinned;
use crate::pipeline_run::OwnerReference;
use crate::plan::{ReasonCode, plan};
use crate::restore::restore;
use serde_json::json;

const UID: &str = "u1";

/// A configuration in mode `workspaces` that coschedules only node-bound claims.
fn node_bound() -> Configuration {
    Configuration {
        coschedule_claims: CoscheduledClaims::NodeBound,
        ..Configuration::default()
    }
}

/// A run with three workspaces. Only one node can mount the claim of `bound`. The template of `made` has these access modes.
/// The access modes of the existing claim come from [`read`].
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
        access_modes,
        ..Question::about(run, "request", "alice")
    };
    admit(Ok(configuration), TEKTON_CONTROLLER, &question).unwrap()
}

/// The claims that have placeholders.
fn placeholders(run: &PipelineRun) -> BTreeSet<String> {
    let plan = plan(run).unwrap();
    let claims = plan.action.placeholders().iter();
    claims.flat_map(|spec| spec.claims()).collect()
}

/// A TaskRun uses the claims of all these workspaces. Returns the claim whose placeholder this TaskRun follows, or an empty
/// text. The error is the reason why the TaskRun must not run.
fn followed(run: &PipelineRun, workspaces: &[&str]) -> Result<String, String> {
    let pinned = Pinned::of(run).unwrap().unwrap();
    let claims = workspaces.iter().map(|workspace| BoundClaim {
        workspace: (*workspace).to_owned(),
        claim_name: pinned.claims[*workspace].name(workspace, UID),
    });
    let claims: Vec<_> = claims.collect();
    let names: Vec<_> = claims.iter().map(|it| it.claim_name.clone()).collect();
    let task_run = ChildRun {
        pipeline_task: String::new(),
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
    let admission = admit_child(&task_run, TEKTON_CONTROLLER);
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
    // If several workspaces are bound to one claim, the claim is shared in all of these workspaces.
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
