//! The claims of a run's workspaces and volumes: existing claims, and claims that Tekton creates. When the run is created,
//! admission pins the claims whose names it knows (V3, V6, V9). The names of other claims become known when Tekton has fetched
//! the Pipeline. In mode `workspaces`, each claim with a known name has a placeholder, with one exception: with
//! `coschedule-claims: node-bound`, a claim that several nodes can mount at once is *shared*, and has no placeholder (V8). In
//! this mode, a TaskRun gets the placeholder of one of these claims, or no placeholder.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::names::tekton_claim_name;
use crate::params::{Params, has_param, has_variable};
use crate::pinned::Pinned;
use crate::pipeline::Work;
use crate::pipeline_run::{PipelineRun, WorkspaceSource};
use crate::sizes::{self, Catalog};

/// The claims of a run. The key is the workspace, or the place of a volume: `podTemplate.volumes[<name>]`,
/// `taskRunSpecs[<task>].podTemplate.volumes[<name>]` or `tasks[<task>].volumes[<name>]`.
pub type RunClaims = BTreeMap<String, RunClaim>;

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunClaim {
    /// The source of the claim's name.
    #[serde(flatten)]
    pub source: ClaimSource,
    /// True if the claim ties no pod to a node (V8): several nodes can mount it at once, and key `coschedule-claims` was
    /// `node-bound` when the run was created. Only in mode `workspaces`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
}

/// The source of a claim's name. This type does not contain the run's uid, because a new run has none yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimSource {
    /// An existing claim with this name.
    Name(String),
    /// The claim that Tekton creates from a `volumeClaimTemplate`. The text is the template's `metadata.name`, or empty (V3).
    Template(String),
}

/// The access modes of existing claims. The key is the claim's name. The list is empty if the claim does not exist or could not
/// be read.
pub type AccessModes = BTreeMap<String, Vec<String>>;

impl RunClaim {
    /// The claim's name in a run with this uid.
    pub fn name(&self, workspace: &str, run_uid: &str) -> String {
        match &self.source {
            ClaimSource::Name(name) => name.clone(),
            ClaimSource::Template(template) => {
                tekton_claim_name(workspace, Some(template), run_uid)
            }
        }
    }
}

impl From<ClaimSource> for RunClaim {
    /// A claim that is not shared.
    fn from(source: ClaimSource) -> Self {
        Self {
            source,
            shared: false,
        }
    }
}

/// The claims of a run. Variables in claim names are replaced by parameters. A claim is left out if its name is empty, still has
/// a variable, or is not the same in all tasks (V9).
pub fn of_run(run: &PipelineRun, catalog: Option<&Catalog>) -> RunClaims {
    let claims = run.workspaces.iter().filter_map(|binding| {
        let claim = match &binding.source {
            WorkspaceSource::Claim { claim_name } => {
                let name = resolve(run, catalog, &binding.name, claim_name)?;
                (!name.is_empty() && !has_variable(&name)).then_some(ClaimSource::Name(name))?
            }
            WorkspaceSource::ClaimTemplate(template) => {
                ClaimSource::Template(template.name.clone().unwrap_or_default())
            }
            WorkspaceSource::Other => return None,
        };
        Some((binding.name.clone(), claim.into()))
    });
    claims.collect()
}

/// The existing claims that pods of the run mount without a workspace (V1): in `volumes` of the run's `podTemplate`, of a task's
/// `podTemplate`, and of each Task that is known. The result has each claim once (V6). A claim is left out if its name is empty
/// or has a variable.
pub(crate) fn of_volumes(run: &PipelineRun, catalog: Option<&Catalog>) -> RunClaims {
    let tasks = sizes::tasks(run, catalog);
    let template = run
        .pod_template
        .as_ref()
        .map(|it| in_volumes(&it["volumes"]));
    let template = template.map(|volumes| ("podTemplate".to_owned(), volumes));
    // If several items name the task, Tekton uses the last one, as in `sizes`.
    let settings: BTreeMap<_, _> = (run.task_run_specs.iter())
        .filter(|it| tasks.is_empty() || tasks.iter().any(|task| task.name == it.task))
        .map(|it| (&it.task, &it.pods.claims))
        .collect();
    let settings = settings.into_iter().map(|(task, volumes)| {
        let place = format!("taskRunSpecs[{task}].podTemplate");
        (place, volumes.clone())
    });
    let specs = tasks.iter().filter_map(|task| {
        let spec = match &task.work {
            Work::Embedded(spec) => spec,
            Work::Task(name) => catalog?.tasks.get(name)?,
            Work::Custom | Work::Pipeline | Work::Elsewhere => return None,
        };
        Some((format!("tasks[{}]", task.name), spec.claims.clone()))
    });
    let mut seen = BTreeSet::new();
    let mut claims = RunClaims::new();
    for (place, volumes) in template.into_iter().chain(settings).chain(specs) {
        for (volume, claim) in volumes {
            if seen.insert(claim.clone()) {
                let key = format!("{place}.volumes[{volume}]");
                claims.insert(key, ClaimSource::Name(claim).into());
            }
        }
    }
    claims
}

/// As [`of_volumes`], for an update of a pending run. Admission of an update does not read the Tasks of the cluster again. So the
/// pinned claims of these Tasks stay as they are.
pub(crate) fn of_volumes_now(old: &PipelineRun, new: &PipelineRun) -> RunClaims {
    let own = of_volumes(old, None);
    let pinned = Pinned::read(&old.annotations).ok().flatten();
    let mut claims = pinned.map(|pinned| pinned.claims).unwrap_or_default();
    claims.retain(|key, _| key.starts_with("tasks[") && !own.contains_key(key));
    claims.extend(of_volumes(new, None));
    claims
}

/// The names of the claims in a pod's `volumes`, by the name of the volume. A claim is left out if its name is empty or has a
/// variable.
pub(crate) fn in_volumes(volumes: &Value) -> BTreeMap<String, String> {
    let volumes = volumes.as_array().into_iter().flatten();
    let claims = volumes.filter_map(|volume| {
        let claim = volume["persistentVolumeClaim"]["claimName"].as_str()?;
        let name = volume["name"].as_str()?;
        let is_known = !claim.is_empty() && !has_variable(claim);
        is_known.then(|| (name.to_owned(), claim.to_owned()))
    });
    claims.collect()
}

/// The name of a workspace's claim, if all tasks that use the workspace give it the same name. `None` if the tasks give it
/// different names, or if a Task that may have a default for the name is not known. The value of a variable comes from the first
/// of these that sets the parameter: the run's parameters, the task's parameters, the defaults of its Task, the defaults of the
/// Pipeline.
fn resolve(
    run: &PipelineRun,
    catalog: Option<&Catalog>,
    workspace: &str,
    claim_name: &str,
) -> Option<String> {
    let name = run.params.resolve(claim_name);
    let none = Params::default();
    let defaults = run.defaults.as_ref();
    let defaults = defaults.or(catalog.map(|catalog| &catalog.defaults));
    let params = run.params.or(defaults.unwrap_or(&none));
    let tasks = sizes::tasks(run, catalog).iter();
    let using = tasks.filter(|task| task.workspaces.contains(workspace));
    let names = using.map(|task| {
        let own = task.params.resolved(&params);
        let of_task = match &task.work {
            Work::Embedded(spec) => &spec.defaults,
            Work::Task(task) => match catalog.and_then(|catalog| catalog.tasks.get(task)) {
                Some(spec) => &spec.defaults,
                // This Task may have a default of its own.
                None if has_param(&own.resolve(&name)) => return None,
                None => &none,
            },
            Work::Custom | Work::Pipeline | Work::Elsewhere => &none,
        };
        Some(params.resolve(&own.or(of_task).resolve(&name)))
    });
    let mut names: BTreeSet<_> = names.collect::<Option<_>>()?;
    match names.len() {
        0 => Some(params.resolve(&name)),
        1 => names.pop_first(),
        _ => None,
    }
}

/// The claims pinned on a run, and the claims whose names became known when Tekton had fetched the Pipeline (V9).
pub(crate) fn known(run: &PipelineRun, pinned: &RunClaims) -> RunClaims {
    let mut claims = of_run(run, None);
    claims.retain(|workspace, _| awaited(run, pinned).any(|it| it == workspace));
    keep_shared(&mut claims, pinned);
    claims.extend(pinned.clone());
    claims
}

/// True if the name of a claim depends on a parameter whose default is not known yet: Tekton has not stored the Pipeline in
/// `status.pipelineSpec`.
pub(crate) fn awaits_pipeline(run: &PipelineRun, pinned: &RunClaims) -> bool {
    run.defaults.is_none() && awaited(run, pinned).next().is_some()
}

/// The workspaces whose claims are not pinned, because their names have parameters that the run does not set.
fn awaited<'a>(run: &'a PipelineRun, pinned: &RunClaims) -> impl Iterator<Item = &'a str> {
    run.workspaces.iter().filter_map(|binding| {
        let name = run.params.resolve(binding.source.claim_name()?);
        let awaited = has_param(&name) && !pinned.contains_key(&binding.name);
        awaited.then_some(binding.name.as_str())
    })
}

/// The same claims, with the names that they have in a run with this uid.
pub(crate) fn named(claims: &RunClaims, run_uid: &str) -> RunClaims {
    let named = claims.iter().map(|(workspace, claim)| {
        let named = RunClaim {
            source: ClaimSource::Name(claim.name(workspace, run_uid)),
            shared: claim.shared,
        };
        (workspace.clone(), named)
    });
    named.collect()
}

/// The names of the existing claims: those that Tekton does not create.
pub fn brought(claims: &RunClaims) -> BTreeSet<&str> {
    let brought = claims.values().filter_map(|claim| match &claim.source {
        ClaimSource::Name(name) => Some(name.as_str()),
        ClaimSource::Template(_) => None,
    });
    brought.collect()
}

/// True if one of the run's claims has this name.
pub fn contains(claims: &RunClaims, claim_name: &str, run_uid: &str) -> bool {
    claims
        .iter()
        .any(|(workspace, claim)| claim.name(workspace, run_uid) == claim_name)
}

/// True if the run's claim of this name is shared.
pub(crate) fn is_shared(claims: &RunClaims, claim_name: &str, run_uid: &str) -> bool {
    let mut shared = claims.iter().filter(|(_, claim)| claim.shared);
    shared.any(|(workspace, claim)| claim.name(workspace, run_uid) == claim_name)
}

/// Marks claims as shared if several nodes can mount them at once (V8). Does not mark an existing claim (not from a template)
/// that `known` lacks. Returns the names of these unknown claims.
pub(crate) fn mark_shared(
    claims: &mut RunClaims,
    run: &PipelineRun,
    known: &AccessModes,
) -> BTreeSet<String> {
    let mut unknown = BTreeSet::new();
    for (workspace, claim) in claims {
        claim.shared = match &claim.source {
            ClaimSource::Name(name) => match known.get(name) {
                Some(modes) => modes.iter().any(|mode| is_of_many_nodes(mode)),
                None => {
                    unknown.insert(name.clone());
                    false
                }
            },
            ClaimSource::Template(_) => {
                let mut bindings = run.workspaces.iter();
                bindings.any(|it| it.name == *workspace && is_shared_template(&it.source))
            }
        };
    }
    unknown
}

/// Marks an existing claim as shared if it is shared in `pinned`. All other existing claims are not shared, because admission
/// reads access modes only when the run is created.
pub(crate) fn keep_shared(claims: &mut RunClaims, pinned: &RunClaims) {
    for claim in claims.values_mut() {
        claim.shared = match claim.source {
            ClaimSource::Name(_) => pinned
                .values()
                .any(|it| it.shared && it.source == claim.source),
            ClaimSource::Template(_) => claim.shared,
        };
    }
}

fn is_shared_template(source: &WorkspaceSource) -> bool {
    match source {
        WorkspaceSource::ClaimTemplate(own) => {
            let modes = own.template["spec"]["accessModes"].as_array();
            let modes = modes.into_iter().flatten();
            modes.filter_map(Value::as_str).any(is_of_many_nodes)
        }
        WorkspaceSource::Claim { .. } | WorkspaceSource::Other => false,
    }
}

/// True if several nodes can mount a claim with this access mode at once, whatever other modes the claim has. Kubernetes attaches
/// volumes by the same rule (Kubernetes v1.35, `pkg/volume/util/util.go`, `IsMultiAttachAllowed`).
fn is_of_many_nodes(access_mode: &str) -> bool {
    matches!(access_mode, "ReadWriteMany" | "ReadOnlyMany")
}

#[cfg(test)]
mod shared_claims;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Configuration;
    use crate::mode::{IsolationScope, Mode};
    use crate::names::Group;
    use crate::sizes::TaskSpec;
    use serde_json::{Value, json};

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

    /// Checks the name of the claim of workspace `w`, which is bound to `$(params.c)` and has two tasks in an embedded Pipeline
    /// or in a Pipeline of the cluster. `one` has more fields of the first task.
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
        assert!(contains(&claims(), &name, "u1"));
        assert!(!contains(&claims(), &name, "u2"));
        assert!(contains(&claims(), "build-cache", "u2"));
        assert!(!contains(&claims(), "$(tasks.make.results.claim)", "u1"));
        assert!(!contains(&claims(), "", "u1"));
    }

    fn volumes(claims: &[(&str, &str)]) -> Value {
        let volume = |(name, claim): &(&str, &str)| json!({"name": name, "persistentVolumeClaim": {"claimName": claim}});
        claims.iter().map(volume).collect()
    }

    #[track_caller]
    fn mounts(claims: &RunClaims, expect: &[(&str, &str)]) {
        let claim = |(key, name): &(&str, &str)| {
            let source = ClaimSource::Name((*name).to_owned());
            ((*key).to_owned(), source.into())
        };
        assert_eq!(*claims, expect.iter().map(claim).collect());
    }

    #[test]
    fn v1_claims_of_volumes_are_known_by_their_volumes() {
        let mut volumes = volumes(&[
            ("cache", "build-cache"),
            ("empty", ""),
            ("variable", "$(params.cache)"),
        ]);
        let others = [
            json!({"name": "nameless", "persistentVolumeClaim": {}}),
            json!({"name": "scratch", "emptyDir": {}}),
        ];
        volumes.as_array_mut().unwrap().extend(others);
        let template = json!({"podTemplate": {"volumes": volumes}});
        for (spec, key) in [
            (
                json!({"taskRunTemplate": template}),
                "podTemplate.volumes[cache]",
            ),
            (
                json!({"taskRunSpecs": [{"pipelineTaskName": "t", "podTemplate": template["podTemplate"]}]}),
                "taskRunSpecs[t].podTemplate.volumes[cache]",
            ),
            (
                json!({"pipelineSpec": {"tasks": [{"name": "t", "taskSpec": {"volumes": volumes}}]}}),
                "tasks[t].volumes[cache]",
            ),
        ] {
            let run = PipelineRun::parse(&json!({"spec": spec})).unwrap();
            mounts(&of_volumes(&run, None), &[(key, "build-cache")]);
        }
    }

    #[test]
    fn v1_v6_claims_of_all_tasks_that_are_known_are_there_once() {
        let task = |name: &str, work: Value| {
            let mut task = json!({"name": name});
            let fields = task.as_object_mut().unwrap();
            fields.extend(work.as_object().unwrap().clone());
            task
        };
        let tasks = json!([
            task(
                "embedded",
                json!({"taskSpec": {"volumes": volumes(&[("v", "own"), ("w", "shared")])}})
            ),
            task(
                "again",
                json!({"taskSpec": {"volumes": volumes(&[("v", "own")])}})
            ),
            task("of-cluster", json!({"taskRef": {"name": "build"}})),
            task("unknown", json!({"taskRef": {"name": "absent"}})),
            task(
                "custom",
                json!({"taskSpec": {"apiVersion": "a", "kind": "K", "volumes": volumes(&[("v", "c")])}})
            ),
        ]);
        let setting = |task: &str, claim: &str| json!({"pipelineTaskName": task, "podTemplate": {"volumes": volumes(&[("v", claim)])}});
        let settings = json!([
            setting("again", "replaced"),
            setting("again", "special"),
            setting("no-task", "unused"),
        ]);
        let mut object = json!({"spec": {
            "taskRunTemplate": {"podTemplate": {"volumes": volumes(&[("v", "shared")])}},
            "taskRunSpecs": settings,
            "pipelineRef": {"name": "p"},
        }});
        let mut catalog = Catalog::default();
        catalog.pipeline = crate::pipeline::tasks(&json!({"tasks": tasks}));
        let build = TaskSpec::read(&json!({"volumes": volumes(&[("v", "of-task"), ("w", "own")])}));
        catalog.tasks.insert("build".to_owned(), build);
        let expect = [
            ("podTemplate.volumes[v]", "shared"),
            ("taskRunSpecs[again].podTemplate.volumes[v]", "special"),
            ("tasks[embedded].volumes[v]", "own"),
            ("tasks[of-cluster].volumes[v]", "of-task"),
        ];
        let run = PipelineRun::parse(&object).unwrap();
        mounts(&of_volumes(&run, Some(&catalog)), &expect);
        object["spec"]["pipelineSpec"] = json!({"tasks": tasks});
        let run = PipelineRun::parse(&object).unwrap();
        mounts(&of_volumes(&run, Some(&catalog)), &expect);
        mounts(&of_volumes(&run, None), &expect[..3]);
    }

    #[test]
    fn v1_a_pending_run_keeps_the_claims_of_tasks_in_the_cluster() {
        let run = |embedded: &str| {
            let tasks = json!([
                {"name": "a", "taskSpec": {"volumes": volumes(&[("v", embedded)])}},
                {"name": "b", "taskRef": {"name": "build"}},
            ]);
            PipelineRun::parse(&json!({"spec": {"pipelineSpec": {"tasks": tasks}}})).unwrap()
        };
        let mut catalog = Catalog::default();
        let build = TaskSpec::read(&json!({"volumes": volumes(&[("v", "of-task")])}));
        catalog.tasks.insert("build".to_owned(), build);
        let mut old = run("one");
        let pinned = Pinned {
            subsets: Default::default(),
            mode: Mode::PipelineRuns,
            isolation_scope: IsolationScope::default(),
            group: Group::from_request_uid("request"),
            placeholder: Configuration::default().placeholder,
            templates: BTreeMap::new(),
            claims: of_volumes(&old, Some(&catalog)),
            adopted: None,
        };
        old.annotations = pinned.to_annotations();
        let expect = [
            ("tasks[a].volumes[v]", "two"),
            ("tasks[b].volumes[v]", "of-task"),
        ];
        mounts(&of_volumes_now(&old, &run("two")), &expect);
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
}
