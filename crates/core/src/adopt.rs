//! Adopts runs for which Tekton's own affinity assistant creates the placeholders (B7). Before an operator turns off Tekton's
//! flag `coschedule` (sets it to `disabled`), the operator sets key [`ADOPT_RUNS_IN`]. While the flag is still on, admission
//! pins new runs in Tekton's mode, with the names that Tekton uses. Admission pins an existing run when somebody sets
//! annotation [`ADOPTED`] on this run. When the flag is turned off later, new TaskRuns of the adopted runs still find their
//! placeholder and their claims.

use std::collections::BTreeMap;

use crate::admit::{Admission, InForce, MANAGED_BY_TEKTON, Question, leave_alone, warnings};
use crate::annotations::{ADOPTED, MODE, MODE_SOURCE};
use crate::config::{
    ADOPT_RUNS_IN, Backend, Configuration, EVERY_NAMESPACE, PlaceholderDefaults, Reserves,
};
use crate::labels::PIPELINE_RUN_UID;
use crate::mode::{IsolationScope, Mode};
use crate::names::Group;
use crate::pinned::Pinned;
use crate::pipeline_run::{OwnerReference, PipelineRun, RunState, WorkspaceSource};
use crate::restore::restore;
use crate::run_claims::{self, ClaimSource, RunClaims};
use crate::sizes::Catalog;
use crate::subsets::Subsets;
use crate::violation::Violation;
use crate::words::UnknownWord;

/// True if an update of a run asks for the adoption of this run.
pub fn is_asked(old: &PipelineRun, new: &PipelineRun) -> bool {
    new.annotations.contains_key(ADOPTED) && !old.annotations.contains_key(MODE)
}

/// The mode in which Tekton coschedules the run now, if the run may be adopted.
///
/// # Errors
/// The run is not adopted. The text is the cause.
pub fn adopts(configuration: &Configuration, run: &PipelineRun) -> Result<Mode, String> {
    let namespaces = &configuration.adopt_runs_in;
    let Some(flag) = &configuration.tekton_coschedule else {
        return Err("Tekton's own flag coschedule is \"disabled\", so nobody knows how Tekton began the run".to_owned());
    };
    if !namespaces.contains(EVERY_NAMESPACE) && !namespaces.contains(&run.namespace) {
        return Err(format!(
            "key {ADOPT_RUNS_IN} of ConfigMap coscheduler-config does not contain namespace {:?}",
            run.namespace
        ));
    }
    let controller = run.controller.as_ref();
    if controller.is_some_and(OwnerReference::is_pipeline_run) {
        return Err("it is a child of another run".to_owned());
    }
    let manager = run.managed_by.as_deref();
    if manager.is_some_and(|manager| manager != MANAGED_BY_TEKTON) {
        return Err("its spec.managedBy names another controller".to_owned());
    }
    // Tekton copies all labels of the run into the selector of the placeholder's object. So the placeholder's pod would have to
    // keep the run's label `pipelineRunUID` as it is, but the manager needs the run's own uid in this label.
    if run.labels.contains_key(PIPELINE_RUN_UID) {
        return Err(format!("it has label {PIPELINE_RUN_UID}"));
    }
    // Tekton ignores case, as for `tekton_coschedule`.
    let mode = flag.to_ascii_lowercase().parse();
    mode.map_err(|error: UnknownWord| format!("Tekton's own flag coschedule: {error}"))
}

/// Admits a new run whose placeholders Tekton's own assistant creates (B7). The run keeps its bindings, because Tekton's flag
/// decides about its claims.
pub(crate) fn adopt_new(
    configuration: &Configuration,
    question: &Question<'_>,
    mode: Mode,
) -> Admission {
    let mut admission = leave_alone(question, None);
    let stored = admission.apply(question.run);
    let group = Group::from_request_uid(question.request_uid);
    admission.set_annotations = annotations(configuration, &stored, mode, group, question.catalog);
    admission
        .remove_annotations
        .retain(|key| !admission.set_annotations.contains_key(key));
    admission
}

/// Decides about an update that asks for the adoption of a run. If the run cannot be adopted, the update is handled like any
/// other update, and a warning says why.
pub fn adopt_existing(
    in_force: InForce<'_>,
    old: &PipelineRun,
    new: &PipelineRun,
    request_uid: &str,
) -> Admission {
    let mut rest = new.clone();
    rest.annotations.remove(ADOPTED);
    let mut admission = restore(old, &rest);
    match adoption(in_force, old, request_uid) {
        Ok(annotations) => {
            let is_kept = |key: &String| !annotations.contains_key(key);
            admission.remove_annotations.retain(is_kept);
            admission.set_annotations.extend(annotations);
        }
        Err(why) => {
            admission.remove_annotations.push(ADOPTED.to_owned());
            admission.warnings.push(warnings::not_adopted(&why));
        }
    }
    admission
}

/// The annotations to pin on an existing run, or the cause for which the run cannot be adopted.
fn adoption(
    in_force: InForce<'_>,
    run: &PipelineRun,
    request_uid: &str,
) -> Result<BTreeMap<String, String>, String> {
    let invalid = |_: &[Violation]| "no configuration is valid".to_owned();
    let configuration = in_force.map_err(invalid)?;
    if run.state == RunState::Done || run.deletion {
        return Err("it has ended".to_owned());
    }
    let mode = adopts(configuration, run)?;
    let group = Group::from_request_uid(request_uid);
    Ok(annotations(configuration, run, mode, group, None))
}

/// The annotations to pin on a run that Tekton coschedules in this mode.
pub(crate) fn annotations(
    configuration: &Configuration,
    run: &PipelineRun,
    mode: Mode,
    group: Group,
    catalog: Option<&Catalog>,
) -> BTreeMap<String, String> {
    let mut claims = run_claims::of_run(run, catalog);
    let mut templates = BTreeMap::new();
    match mode {
        Mode::Workspaces | Mode::Disabled => retain_tektons(&mut claims, run),
        Mode::PipelineRuns | Mode::IsolatePipelineRun => {
            for binding in &run.workspaces {
                if let WorkspaceSource::ClaimTemplate(own) = &binding.source {
                    claims.remove(&binding.name);
                    templates.insert(binding.name.clone(), own.template.clone());
                }
            }
        }
    }
    let pinned = Pinned {
        mode,
        // Tekton's own mode `isolate-pipelinerun` has this scope.
        isolation_scope: IsolationScope::Namespace,
        group,
        placeholder: PlaceholderDefaults {
            reserves: Reserves::Nothing,
            // Tekton's assistant creates the placeholder.
            backend: Backend::Controlled,
            ..configuration.placeholder.clone()
        },
        templates,
        claims,
        subsets: Subsets::new(),
        adopted: Some(run.name.clone()),
    };
    let mut annotations = pinned.to_annotations();
    let source = "Tekton's own flag coschedule, whose affinity assistant began the run";
    annotations.insert(MODE_SOURCE.to_owned(), source.to_owned());
    annotations
}

/// If several workspaces are bound to one existing claim, Tekton derives the name of the claim's assistant from the last of these
/// workspaces (Tekton v1.12.0, `createOrUpdateAffinityAssistantsAndPVCs`). This function removes the other workspaces from
/// `claims`.
pub(crate) fn retain_tektons(claims: &mut RunClaims, run: &PipelineRun) {
    let mut last = BTreeMap::new();
    for binding in &run.workspaces {
        if let Some(ClaimSource::Name(name)) = claims.get(&binding.name).map(|it| &it.source) {
            last.insert(name.clone(), binding.name.clone());
        }
    }
    claims.retain(|workspace, claim| match &claim.source {
        ClaimSource::Name(name) => last.get(name) == Some(workspace),
        ClaimSource::Template(_) => true,
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admit::{TEKTON_CONTROLLER, admit};
    use crate::admit_child::{BoundClaim, ChildKind, ChildRun, admit_child};
    use crate::annotations::{GROUP, PINNED, TEKTON_AFFINITY_ASSISTANT};
    use crate::params::Params;
    use crate::plan::{Action, plan};
    use serde_json::{Value, json};

    /// The configuration while Tekton's flag is on.
    fn configuration(flag: &str, adopt_runs_in: &[&str]) -> Configuration {
        Configuration {
            adopt_runs_in: adopt_runs_in.iter().map(|it| (*it).to_owned()).collect(),
            tekton_coschedule: Some(flag.to_owned()),
            placeholder: PlaceholderDefaults {
                backend: Backend::Pod,
                ..PlaceholderDefaults::default()
            },
            ..Configuration::default()
        }
    }

    /// A run with a claim of its own and an existing claim, which two workspaces use.
    fn run(change: impl FnOnce(&mut Value)) -> PipelineRun {
        let mut object = json!({
            "metadata": {"name": "build", "namespace": "ci", "uid": "u1"},
            "spec": {"workspaces": [
                {"name": "zeta", "persistentVolumeClaim": {"claimName": "cache"}},
                {"name": "alpha", "persistentVolumeClaim": {"claimName": "cache"}},
                {"name": "source", "volumeClaimTemplate": {"metadata": {"name": "src"}, "spec": {}}},
            ]},
        });
        change(&mut object);
        PipelineRun::parse(&object).unwrap()
    }

    fn create(configuration: &Configuration, run: &PipelineRun) -> Admission {
        let question = Question::about(run, "request", "alice");
        admit(Ok(configuration), TEKTON_CONTROLLER, &question).unwrap()
    }

    /// The update by which somebody asks for the adoption of `old`.
    fn ask(configuration: &Configuration, old: &PipelineRun) -> Admission {
        let mut new = old.clone();
        new.annotations.insert(ADOPTED.to_owned(), "x".to_owned());
        assert!(is_asked(old, &new));
        adopt_existing(Ok(configuration), old, &new, "request")
    }

    fn stored(flag: &str) -> PipelineRun {
        let run = run(|_| {});
        let asked = ask(&configuration(flag, &["*"]), &run);
        let created = create(&configuration(flag, &["other", "ci"]), &run);
        // A new run gets the same annotations as an existing run.
        assert_eq!(asked.set_annotations, created.set_annotations);
        assert!(created.warnings.is_empty() && created.bindings.is_empty());
        let mut stored = asked.apply(&run);
        stored.has_begun = true;
        stored
    }

    /// The names of the placeholders in the plan, each with the placeholder's claims.
    fn planned(run: &PipelineRun) -> BTreeMap<String, Vec<String>> {
        let plan = plan(run).unwrap();
        let specs = plan.action.placeholders().iter();
        specs
            .map(|spec| (spec.name.to_string(), spec.claims().collect()))
            .collect()
    }

    // The names in these tests come from `GetAffinityAssistantName` and `GeneratePVCNameFromWorkspaceBinding` of Tekton v1.12.0:
    // the first ten digits of the SHA-256 of "sourcebuild", "alphabuild", "build" and "sourceu1".
    const OF_SOURCE: &str = "affinity-assistant-f2eed3e9ad";
    const OF_CACHE: &str = "affinity-assistant-9edc28693a";
    const OF_RUN: &str = "affinity-assistant-44575cf5b2";
    const SOURCE: &str = "src-4a1d2e7dd4";

    #[test]
    fn b7_an_adopted_run_has_tektons_placeholders_and_claims() {
        let claims = |names: &[&str]| names.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let in_workspaces = [
            (OF_CACHE.to_owned(), claims(&["cache"])),
            (OF_SOURCE.to_owned(), claims(&[SOURCE])),
        ];
        // Tekton ignores case.
        assert_eq!(planned(&stored("Workspaces")), in_workspaces.into());
        for spec in plan(&stored("workspaces")).unwrap().action.placeholders() {
            assert_eq!(spec.backend, Backend::Controlled);
        }
        let made = format!("{SOURCE}-{OF_RUN}-0");
        for flag in ["pipelineruns", "isolate-pipelinerun"] {
            let whole = [(OF_RUN.to_owned(), claims(&[&made, "cache"]))];
            assert_eq!(planned(&stored(flag)), whole.into(), "{flag}");
        }
    }

    #[test]
    fn b7_tekton_creates_the_placeholders_before_the_first_task_run() {
        let mut waits = stored("pipelineruns");
        waits.has_begun = false;
        let plan = plan(&waits).unwrap();
        assert_eq!(plan.action, Action::Nothing);
        assert_eq!(plan.reasons[0].code.as_str(), "TektonBegins");
    }

    /// Tekton binds a new TaskRun of the run to claim `bound`. Returns the TaskRun's placeholder and claim after admission.
    fn task_run(run: &PipelineRun, bound: &str) -> (String, String) {
        let child = ChildRun {
            kind: ChildKind::TaskRun,
            pipeline_task: String::new(),
            name: "build-two".to_owned(),
            annotations: run.annotations.clone(),
            controller: Some(OwnerReference::to_pipeline_run(run)),
            owner_group: run.annotations.get(GROUP).cloned(),
            created_by: TEKTON_CONTROLLER.to_owned(),
            claims: vec![BoundClaim {
                workspace: "w".to_owned(),
                claim_name: bound.to_owned(),
            }],
            params: Params::default(),
            pipeline_run: None,
        };
        let mut admission = admit_child(&child, TEKTON_CONTROLLER);
        let claim = admission.bindings.pop().map(|bound| bound.claim_name);
        let assistant = admission.set_annotations[TEKTON_AFFINITY_ASSISTANT].clone();
        (assistant, claim.unwrap_or_else(|| bound.to_owned()))
    }

    #[test]
    fn b7_task_runs_find_placeholder_and_claim_before_and_after_the_flag_is_turned_off() {
        let of = |assistant: &str, claim: &str| (assistant.to_owned(), claim.to_owned());
        let run = stored("workspaces");
        assert_eq!(task_run(&run, SOURCE), of(OF_SOURCE, SOURCE));
        assert_eq!(task_run(&run, "cache"), of(OF_CACHE, "cache"));
        let made = format!("{SOURCE}-{OF_RUN}-0");
        for flag in ["pipelineruns", "isolate-pipelinerun"] {
            let run = stored(flag);
            assert_eq!(task_run(&run, &made), of(OF_RUN, &made));
            assert_eq!(task_run(&run, SOURCE), of(OF_RUN, &made));
            assert_eq!(task_run(&run, "cache"), of(OF_RUN, "cache"));
        }
    }

    #[test]
    fn b7_a_run_without_a_name_takes_its_names_from_the_name_it_gets() {
        let configuration = configuration("pipelineruns", &["*"]);
        let unnamed = run(|object| {
            object["metadata"] = json!({"generateName": "bui", "namespace": "ci"});
        });
        let mut stored = create(&configuration, &unnamed).apply(&unnamed);
        (stored.name, stored.uid) = ("build".to_owned(), "u1".to_owned());
        stored.has_begun = true;
        assert_eq!(stored.annotations[ADOPTED], "");
        assert!(planned(&stored).contains_key(OF_RUN));
        assert_eq!(task_run(&stored, "cache").0, OF_RUN);
    }

    #[test]
    fn b7_what_cannot_be_adopted_is_left_to_tekton_and_an_update_says_why() {
        let child = json!([{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "p", "uid": "p", "controller": true}]);
        let ended = json!({"conditions": [{"type": "Succeeded", "status": "True"}]});
        let on = || configuration("workspaces", &["ci"]);
        let off = Configuration {
            tekton_coschedule: None,
            ..on()
        };
        let plain = || run(|_| {});
        for (configuration, run, why) in [
            (
                configuration("workspaces", &[]),
                plain(),
                "does not contain namespace \"ci\"",
            ),
            (
                configuration("workspaces", &["cid"]),
                plain(),
                "does not contain namespace \"ci\"",
            ),
            (off, plain(), "is \"disabled\""),
            (
                on(),
                run(|it| it["metadata"]["ownerReferences"] = child.clone()),
                "child of another run",
            ),
            (
                on(),
                run(|it| it["spec"]["managedBy"] = json!("example.com/other")),
                "names another controller",
            ),
            (on(), run(|it| it["status"] = ended.clone()), "it has ended"),
        ] {
            let admission = ask(&configuration, &run);
            if run.state != RunState::Done {
                let created = create(&configuration, &run);
                assert!(!created.set_annotations.contains_key(ADOPTED), "{why}");
            }
            assert!(admission.set_annotations.is_empty(), "{why}");
            assert_eq!(admission.remove_annotations, [ADOPTED]);
            assert!(
                admission.warnings.iter().any(|it| it.contains(why)),
                "{:?}",
                admission.warnings
            );
        }
        let invalid = adopt_existing(Err(&[]), &plain(), &plain(), "request");
        assert!(invalid.warnings[0].contains("no configuration is valid"));
    }

    #[test]
    fn b7_a_later_update_changes_nothing_of_an_adopted_run_that_is_pending() {
        for flag in ["workspaces", "pipelineruns", "isolate-pipelinerun"] {
            let mut pending = stored(flag);
            pending.state = RunState::Pending;
            let mut update = pending.clone();
            let other = "other".to_owned();
            update.annotations.insert(ADOPTED.to_owned(), other);
            let restored = restore(&pending, &update).apply(&update);
            assert_eq!(restored.annotations, pending.annotations, "{flag}");
        }
    }

    #[test]
    fn b7_adoption_never_changes_the_spec_which_tekton_would_refuse() {
        let run = run(|object| {
            let annotations = json!({"coscheduler.dev/mode": "workspaces"});
            object["spec"]["taskRunSpecs"] =
                json!([{"pipelineTaskName": "one", "metadata": {"annotations": annotations}}]);
        });
        let asked = ask(&configuration("pipelineruns", &["*"]), &run);
        assert!(asked.set_annotations.contains_key(ADOPTED));
        assert!(asked.remove_task_annotations.is_empty() && asked.bindings.is_empty());
    }

    #[test]
    fn b7_nobody_is_adopted_by_an_annotation_that_admission_did_not_write() {
        // A run that is pinned already keeps everything.
        let adopted = stored("pipelineruns");
        let mut forged = adopted.clone();
        forged
            .annotations
            .insert(ADOPTED.to_owned(), "other".to_owned());
        assert!(!is_asked(&adopted, &forged));
        let restored = restore(&adopted, &forged).apply(&forged);
        assert_eq!(restored.annotations, adopted.annotations);
        // Tekton copies an annotation of a Pipeline or a task to the TaskRuns if the run does not have this annotation.
        let off = Configuration {
            mode: Mode::PipelineRuns,
            ..Configuration::default()
        };
        let plain = run(|_| {});
        let ours = create(&off, &plain).apply(&plain);
        let expect = task_run(&ours, "cache");
        let mut copied = ours;
        copied
            .annotations
            .insert(ADOPTED.to_owned(), "other".to_owned());
        assert_eq!(task_run(&copied, "cache"), expect);
        assert!(PINNED.contains(&ADOPTED));
    }
}
