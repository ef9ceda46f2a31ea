//! Calls and objects that say what is not so. Each field of `Ensure` and `Release` in turn names something of another
//! PipelineRun, namespace or service account: refused with a reason, and nothing is written. Annotations that only
//! admission writes, forged by an author: stripped or restored, with a warning.
//!
//! The watcher is stopped, so that nobody but these tests calls the manager, and no placeholder exists that a forged call
//! could hide behind.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use coscheduler_core::annotations::PINNED;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, to_json};
use coscheduler_proto::error::reason;
use coscheduler_proto::json::to_struct;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::{
    ClaimTemplate, EnsureOutcome, EnsureRequest, PipelineRunRef, PlaceholderSpec, ReleaseOutcome,
    ReleaseRequest, Separation,
};
use coscheduler_proto::planner::PlanRequest;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use integration_tests::audit::Mark;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, shared};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::Service;
use tokio::sync::OnceCell;
use tonic::transport::Channel;
use tonic::{Code, Status};

type Outcome = anyhow::Result<()>;

/// How long the manager's watch may be behind on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run with what an honest call about it says.
#[derive(Clone, Debug)]
struct Party {
    run: PipelineRunRef,
    placeholder: PlaceholderSpec,
}

/// Whose things a forged call names.
struct Others {
    /// Another run in the same namespace.
    other: Party,
    /// A run in another namespace.
    foreign: Party,
}

/// Three active runs without placeholders.
struct Trial {
    scene: Scene<'static>,
    elsewhere: String,
    planner: PlannerServiceClient<Channel>,
    manager: PlaceholderServiceClient<Channel>,
}

impl Trial {
    async fn new(scene: Scene<'static>) -> anyhow::Result<Self> {
        static SILENT: OnceCell<()> = OnceCell::const_new();
        let services = &scene.stack.services;
        SILENT
            .get_or_try_init(async || services.kill(Service::Watcher))
            .await?;
        let elsewhere = format!("{}-elsewhere", scene.namespace);
        scene.stack.bed.create_namespace(&elsewhere, &[]).await?;
        for (namespace, name) in [
            (&scene.namespace, "mine"),
            (&scene.namespace, "other"),
            (&elsewhere, "foreign"),
        ] {
            let object: PipelineRun = serde_json::from_value(distinct(name).into_json())?;
            Api::namespaced(scene.client.clone(), namespace)
                .create(&PostParams::default(), &object)
                .await?;
        }
        let planner =
            PlannerServiceClient::connect(services.grpc_address(Service::AffinityPlanner)).await?;
        let manager =
            PlaceholderServiceClient::connect(services.grpc_address(Service::PlaceholderManager))
                .await?;
        Ok(Self {
            elsewhere,
            planner,
            manager,
            scene,
        })
    }

    /// A run as it is now, with its plan.
    async fn party(&self, namespace: &str, name: &str) -> anyhow::Result<Party> {
        let runs: Api<PipelineRun> = Api::namespaced(self.scene.client.clone(), namespace);
        let run = runs.get(name).await?;
        let request = PlanRequest {
            pipeline_run: Some(to_struct(&to_json(&run))),
            request_uid: String::new(),
            ..PlanRequest::default()
        };
        let plan = self.planner.clone().plan(request).await?.into_inner().plan;
        let placeholder = plan.and_then(|plan| plan.placeholders.into_iter().next());
        Ok(Party {
            run: PipelineRunRef {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: run.uid().unwrap(),
                resource_version: run.resource_version().unwrap(),
            },
            placeholder: placeholder.with_context(|| format!("nothing is planned for {name}"))?,
        })
    }

    /// Mine, and those of others.
    async fn parties(&self) -> anyhow::Result<(Party, Others)> {
        let mine = self.party(&self.scene.namespace, "mine").await?;
        let others = Others {
            other: self.party(&self.scene.namespace, "other").await?,
            foreign: self.party(&self.elsewhere, "foreign").await?,
        };
        Ok((mine, others))
    }

    /// The status that refuses a call made from the newest versions of the runs. A call about a version that is not the
    /// newest any more is late, not forged.
    async fn refusal(
        &self,
        mut call: impl AsyncFnMut(Party, Others) -> anyhow::Result<Result<bool, Status>>,
    ) -> anyhow::Result<Status> {
        let attempts = async {
            loop {
                let (mine, others) = self.parties().await?;
                match call(mine, others).await? {
                    Ok(late) => ensure!(late, "the forged call was taken for an honest one"),
                    Err(status) if reason(&status).as_deref() == Some("PIPELINE_RUN_NOT_SEEN") => {}
                    Err(status) => return Ok(status),
                }
            }
        };
        tokio::time::timeout(PATIENCE, attempts)
            .await
            .context("every call came too late or too early")?
    }

    /// The manager asks for the same thing, honestly this time.
    async fn ensure_honestly(&self) -> anyhow::Result<EnsureOutcome> {
        let attempts = async {
            loop {
                let (mine, _) = self.parties().await?;
                let answer = self.manager.clone().ensure(honest(mine)).await;
                match answer {
                    Ok(answer) => match answer.into_inner().outcome() {
                        EnsureOutcome::Superseded => {}
                        outcome => return Ok(outcome),
                    },
                    Err(status) if status.code() == Code::Unavailable => {}
                    Err(status) => bail!("an honest call was refused: {status:?}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, attempts)
            .await
            .context("every call came too late or too early")?
    }

    /// Names and versions of what the manager might have written.
    async fn written(&self) -> anyhow::Result<Vec<String>> {
        let all = ListParams::default();
        let mut found = Vec::new();
        for namespace in [&self.scene.namespace, &self.elsewhere] {
            let client = || self.scene.client.clone();
            let sets = Api::<StatefulSet>::namespaced(client(), namespace);
            let claims = Api::<PersistentVolumeClaim>::namespaced(client(), namespace);
            let sets = sets.list(&all).await?.items.into_iter();
            let claims = claims.list(&all).await?.items.into_iter();
            let metadata = sets
                .map(|set| set.metadata)
                .chain(claims.map(|claim| claim.metadata));
            found.extend(metadata.map(|metadata| {
                let deleting = metadata.deletion_timestamp.is_some();
                format!(
                    "{namespace} {:?} {:?} deleting={deleting}",
                    metadata.name, metadata.uid
                )
            }));
        }
        found.sort();
        Ok(found)
    }

    /// The manager has sent no write about the trial's namespaces since `mark`.
    fn nothing_written_since(&self, mark: Mark) -> Outcome {
        for request in self.scene.requests_since(mark)? {
            let namespace = &request.object.namespace;
            let here = *namespace == self.scene.namespace || *namespace == self.elsewhere;
            ensure!(
                !(here && request.is_write() && request.is_by(Service::PlaceholderManager)),
                "the manager wrote: {request:?}"
            );
        }
        Ok(())
    }
}

/// A run that differs from another one in everything that a call can name. It waits for a task that nobody does, so that
/// it stays active and has no pod.
fn distinct(name: &str) -> Run {
    run(name)
        .metadata("labels", json!({"team": name}))
        .workspace(
            "source",
            json!({"volumeClaimTemplate": {
                "metadata": {"name": format!("{name}-source"), "labels": {"team": name}, "annotations": {"team": name}},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": format!("{}Gi", name.len())}},
                },
            }}),
        )
        .workspace(
            "cache",
            json!({"persistentVolumeClaim": {"claimName": format!("{name}-cache")}}),
        )
        .spec(
            "taskRunTemplate",
            json!({
                "serviceAccountName": name,
                "podTemplate": {"nodeSelector": {"example.dev/team": name}},
            }),
        )
        .task("wait", &[], &[])
        .with(
            "taskSpec",
            json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": {}}),
        )
}

/// What the planner would send.
fn honest(party: Party) -> EnsureRequest {
    EnsureRequest {
        pipeline_run: Some(party.run),
        placeholders: vec![party.placeholder],
    }
}

/// Every field there is, without `..`: a new one does not compile before it is here, and has a test below.
fn _every_field(request: EnsureRequest, release: ReleaseRequest, template: ClaimTemplate) {
    let EnsureRequest {
        pipeline_run: _,
        mut placeholders,
    } = request;
    let ReleaseRequest { pipeline_run } = release;
    let _ = pipeline_run.map(
        |PipelineRunRef {
             namespace: _,
             name: _,
             uid: _,
             resource_version: _,
         }| (),
    );
    let _ = placeholders.pop().map(
        |PlaceholderSpec {
             name: _,
             labels: _,
             claim_templates: _,
             claim_names: _,
             cpu: _,
             memory: _,
             image: _,
             pod_template: _,
             service_account_name: _,
             single_pod_claims: _,
             unmounted_claim_names: _,
             separation: _,
         }| (),
    );
    let ClaimTemplate {
        name: _,
        workspace: _,
        spec: _,
        labels: _,
        annotations: _,
    } = template;
}

#[track_caller]
fn check_status(status: &Status, field: &str) {
    assert_eq!(
        (status.code(), reason(status).as_deref()),
        (Code::FailedPrecondition, Some("PIPELINE_RUN_MISMATCH")),
        "{field}: {status:?}"
    );
    assert!(status.message().contains(field), "{field}: {status:?}");
}

/// An `Ensure` that `forge` made of an honest one is refused on account of `field`, nothing is written, and the honest one
/// is carried out.
fn ensure_refused(field: &str, forge: impl Fn(&mut EnsureRequest, &Others)) -> Outcome {
    shared(async |scene| {
        let trial = Trial::new(scene).await?;
        let mark = trial.scene.mark()?;
        let status = trial
            .refusal(async |mine, others| {
                let mut request = honest(mine);
                let before = request.clone();
                forge(&mut request, &others);
                ensure!(request != before, "nothing was forged");
                let answer = trial.manager.clone().ensure(request).await;
                Ok(answer.map(|answer| answer.into_inner().outcome() == EnsureOutcome::Superseded))
            })
            .await?;
        check_status(&status, field);
        assert_eq!(trial.written().await?, Vec::<String>::new());
        trial.nothing_written_since(mark)?;
        assert_eq!(trial.ensure_honestly().await?, EnsureOutcome::Created);
        Ok(())
    })
}

/// A `Release` that `forge` made of an honest one is refused on account of `field`, nothing is written, and the honest one
/// finds the run active.
fn release_refused(field: &str, forge: impl Fn(&mut PipelineRunRef, &Others)) -> Outcome {
    shared(async |scene| {
        let trial = Trial::new(scene).await?;
        assert_eq!(trial.ensure_honestly().await?, EnsureOutcome::Created);
        trial
            .scene
            .until_all::<PersistentVolumeClaim>("are one", |claims| claims.len() == 1)
            .await?;
        let (before, mark) = (trial.written().await?, trial.scene.mark()?);
        let release = async |pipeline_run| {
            let request = ReleaseRequest {
                pipeline_run: Some(pipeline_run),
            };
            let answer = trial.manager.clone().release(request).await?;
            Ok::<_, Status>(answer.into_inner().outcome())
        };
        let status = trial
            .refusal(async |mine, others| {
                let mut forged = mine.run.clone();
                forge(&mut forged, &others);
                ensure!(forged != mine.run, "nothing was forged");
                let answer = release(forged).await;
                // A version that is no longer the newest is nobody's that the manager knows.
                Ok(answer.map(|outcome| {
                    field.ends_with("version") && outcome == ReleaseOutcome::RunActive
                }))
            })
            .await?;
        check_status(&status, field);
        let (mine, _) = trial.parties().await?;
        assert_eq!(release(mine.run).await?, ReleaseOutcome::RunActive);
        assert_eq!(trial.written().await?, before);
        trial.nothing_written_since(mark)
    })
}

/// The reference of a forged call.
fn reference(call: &mut EnsureRequest) -> &mut PipelineRunRef {
    call.pipeline_run.as_mut().unwrap()
}

#[test]
fn p7_ensure_in_the_namespace_of_another_run() -> Outcome {
    ensure_refused("pipeline_run.namespace", |call, others| {
        reference(call).namespace = others.foreign.run.namespace.clone();
    })
}

#[test]
fn p7_ensure_with_the_name_of_another_run() -> Outcome {
    ensure_refused("pipeline_run.name", |call, others| {
        reference(call).name = others.other.run.name.clone();
    })
}

#[test]
fn p7_ensure_with_the_uid_of_another_run() -> Outcome {
    ensure_refused("pipeline_run", |call, others| {
        reference(call).uid = others.other.run.uid.clone();
    })
}

#[test]
fn p7_ensure_with_the_uid_of_a_run_in_another_namespace() -> Outcome {
    ensure_refused("pipeline_run", |call, others| {
        reference(call).uid = others.foreign.run.uid.clone();
    })
}

#[test]
fn p7_ensure_with_the_version_of_another_run() -> Outcome {
    ensure_refused("pipeline_run.resource_version", |call, others| {
        reference(call).resource_version = others.other.run.resource_version.clone();
    })
}

#[test]
fn p7_ensure_about_another_run_altogether() -> Outcome {
    ensure_refused("placeholders[0].name", |call, others| {
        *reference(call) = others.other.run.clone();
    })
}

#[test]
fn p7_ensure_with_a_placeholder_of_another_run_beside_its_own() -> Outcome {
    ensure_refused("placeholders", |call, others| {
        call.placeholders.push(others.other.placeholder.clone());
    })
}

#[test]
fn p7_ensure_with_the_placeholder_name_of_another_run() -> Outcome {
    ensure_refused("placeholders[0].name", |call, others| {
        call.placeholders[0].name = others.other.placeholder.name.clone();
    })
}

#[test]
fn p7_ensure_with_the_labels_of_another_run() -> Outcome {
    ensure_refused("placeholders[0].labels", |call, others| {
        call.placeholders[0].labels = others.other.placeholder.labels.clone();
    })
}

#[test]
fn p7_ensure_with_the_claim_template_of_another_run() -> Outcome {
    ensure_refused("placeholders[0].claim_templates", |call, others| {
        call.placeholders[0].claim_templates = others.other.placeholder.claim_templates.clone();
    })
}

#[test]
fn p7_ensure_with_a_claim_template_of_another_runs_name() -> Outcome {
    ensure_refused("placeholders[0].claim_templates", |call, others| {
        call.placeholders[0].claim_templates[0].name =
            others.other.placeholder.claim_templates[0].name.clone();
    })
}

#[test]
fn p7_ensure_with_a_claim_template_for_another_workspace() -> Outcome {
    ensure_refused("placeholders[0].claim_templates", |call, _| {
        call.placeholders[0].claim_templates[0].workspace = "cache".to_owned();
    })
}

#[test]
fn p7_ensure_with_a_claim_template_of_another_runs_spec() -> Outcome {
    ensure_refused("placeholders[0].claim_templates", |call, others| {
        call.placeholders[0].claim_templates[0].spec =
            others.foreign.placeholder.claim_templates[0].spec.clone();
    })
}

#[test]
fn p7_ensure_with_a_claim_template_of_another_runs_labels() -> Outcome {
    ensure_refused("placeholders[0].claim_templates", |call, others| {
        call.placeholders[0].claim_templates[0].labels =
            others.other.placeholder.claim_templates[0].labels.clone();
    })
}

#[test]
fn p7_ensure_with_a_claim_template_of_another_runs_annotations() -> Outcome {
    ensure_refused("placeholders[0].claim_templates", |call, others| {
        call.placeholders[0].claim_templates[0].annotations =
            others.other.placeholder.claim_templates[0]
                .annotations
                .clone();
    })
}

#[test]
fn p7_ensure_with_a_template_of_another_run_to_create_beside_the_placeholder() -> Outcome {
    ensure_refused("placeholders[0].single_pod_claims", |call, others| {
        call.placeholders[0].single_pod_claims = others.other.placeholder.claim_templates.clone();
    })
}

#[test]
fn p7_ensure_with_a_claim_of_another_run_that_is_not_mounted() -> Outcome {
    ensure_refused("placeholders[0].unmounted_claim_names", |call, others| {
        call.placeholders[0].unmounted_claim_names = others.other.placeholder.claim_names.clone();
    })
}

#[test]
fn m4_ensure_with_the_isolation_of_another_mode() -> Outcome {
    ensure_refused("placeholders[0].separation", |call, _| {
        call.placeholders[0].set_separation(Separation::IsolateCluster);
    })
}

#[test]
fn p7_ensure_with_the_claim_of_another_run() -> Outcome {
    ensure_refused("placeholders[0].claim_names", |call, others| {
        call.placeholders[0].claim_names = others.other.placeholder.claim_names.clone();
    })
}

#[test]
fn p7_ensure_with_the_claim_of_another_run_beside_its_own() -> Outcome {
    ensure_refused("placeholders[0].claim_names", |call, others| {
        let theirs = others.other.placeholder.claim_names.clone();
        call.placeholders[0].claim_names.extend(theirs);
    })
}

#[test]
fn p7_ensure_with_more_cpu_than_was_pinned() -> Outcome {
    ensure_refused("placeholders[0].cpu", |call, _| {
        call.placeholders[0].cpu = "64".to_owned();
    })
}

#[test]
fn p7_ensure_with_more_memory_than_was_pinned() -> Outcome {
    ensure_refused("placeholders[0].memory", |call, _| {
        call.placeholders[0].memory = "1Ti".to_owned();
    })
}

#[test]
fn p7_ensure_with_an_image_that_was_not_pinned() -> Outcome {
    ensure_refused("placeholders[0].image", |call, _| {
        call.placeholders[0].image = "registry.example/miner".to_owned();
    })
}

#[test]
fn p7_ensure_with_the_pod_template_of_another_run() -> Outcome {
    ensure_refused("placeholders[0].pod_template", |call, others| {
        call.placeholders[0].pod_template = others.other.placeholder.pod_template.clone();
    })
}

#[test]
fn p7_ensure_without_the_pod_template_of_the_run() -> Outcome {
    ensure_refused("placeholders[0].pod_template", |call, _| {
        call.placeholders[0].pod_template = None;
    })
}

#[test]
fn p7_ensure_with_another_service_account() -> Outcome {
    ensure_refused("placeholders[0].service_account_name", |call, others| {
        call.placeholders[0].service_account_name =
            others.other.placeholder.service_account_name.clone();
    })
}

#[test]
fn p7_release_in_the_namespace_of_another_run() -> Outcome {
    release_refused("pipeline_run.namespace", |run, others| {
        run.namespace = others.foreign.run.namespace.clone();
    })
}

#[test]
fn p7_release_with_the_name_of_another_run() -> Outcome {
    release_refused("pipeline_run.name", |run, others| {
        run.name = others.other.run.name.clone();
    })
}

#[test]
fn p7_release_with_the_uid_of_another_run() -> Outcome {
    release_refused("pipeline_run", |run, others| {
        run.uid = others.other.run.uid.clone();
    })
}

#[test]
fn p7_release_with_the_version_of_another_run() -> Outcome {
    release_refused("pipeline_run.resource_version", |run, others| {
        run.resource_version = others.other.run.resource_version.clone();
    })
}

/// Sends JSON to the API server as it stands; the object that was stored, and the warnings that kubectl would show.
async fn send(
    scene: &Scene<'_>,
    method: &str,
    path: &str,
    object: &Value,
) -> anyhow::Result<(PipelineRun, Vec<String>)> {
    let version = if path.starts_with("customruns") {
        "v1beta1"
    } else {
        "v1"
    };
    let resource = format!("tekton.dev/{version}/{path}");
    let answer = scene.send(method, &resource, object).await?.accepted()?;
    Ok((serde_json::from_value(answer.object)?, answer.warnings))
}

/// Annotations that are not an author's to write, and one that is.
fn forged() -> Value {
    let mut annotations: serde_json::Map<_, _> = PINNED
        .into_iter()
        .map(|key| (key.to_owned(), json!("affinity-assistant-ffffffffff")))
        .collect();
    annotations.insert("example.dev/note".to_owned(), json!("mine"));
    Value::Object(annotations)
}

#[track_caller]
fn check_warned(warnings: &[String], place: &str) {
    check_warned_of(&PINNED, warnings, place);
}

#[track_caller]
fn check_warned_of(keys: &[&str], warnings: &[String], place: &str) {
    for key in keys {
        assert!(
            warnings
                .iter()
                .any(|told| told.contains(key) && told.contains(place)),
            "nobody was told about {key} in {place:?}: {warnings:?}"
        );
    }
}

#[test]
fn m8_annotations_forged_at_creation_are_stripped_with_a_warning() -> Outcome {
    shared(async |scene| {
        let object = run("forged")
            .metadata("annotations", forged())
            .spec(
                "taskRunSpecs",
                json!([
                    {"pipelineTaskName": "one", "metadata": {"annotations": {"example.dev/note": "mine"}}},
                    {"pipelineTaskName": "two", "metadata": {"annotations": forged()}},
                ]),
            )
            .task("one", &[], &[])
            .task("two", &[], &["one"])
            .into_json();
        let (created, warnings) = send(&scene, "POST", "pipelineruns", &object).await?;
        check_warned(&warnings, "ignored what was given for");
        check_warned(&warnings, "spec.taskRunSpecs[1]");
        for (key, value) in created.annotations() {
            assert!(!value.contains("ffffffffff"), "{key}: {value}");
        }
        assert_eq!(created.annotations()["example.dev/note"], "mine");
        for spec in created.spec["taskRunSpecs"].as_array().unwrap() {
            let kept = &spec["metadata"]["annotations"];
            assert_eq!(*kept, json!({"example.dev/note": "mine"}));
        }
        Ok(())
    })
}

#[test]
fn m8_annotations_forged_later_are_restored_or_stripped_with_a_warning() -> Outcome {
    shared(async |scene| {
        let tasks = |annotations: Value| json!([{"pipelineTaskName": "one", "metadata": {"annotations": annotations}}]);
        let object = run("edited")
            .template("source")
            .task("one", &["source"], &[])
            .spec("taskRunSpecs", tasks(json!({"example.dev/note": "mine"})))
            .into_json();
        let (created, warnings) = send(&scene, "POST", "pipelineruns", &object).await?;
        assert_eq!(warnings, Vec::<String>::new());
        let pinned = |run: &PipelineRun| PINNED.map(|key| run.annotations().get(key).cloned());

        let changed = json!({"metadata": {"annotations": forged()}});
        let (after, warnings) = send(&scene, "PATCH", "pipelineruns/edited", &changed).await?;
        assert_eq!(pinned(&after), pinned(&created));
        check_warned(&warnings, "as it was when the run was created");

        let removed: serde_json::Map<_, _> = PINNED
            .map(|key| (key.to_owned(), Value::Null))
            .into_iter()
            .collect();
        let removed = json!({"metadata": {"annotations": removed}});
        let (after, warnings) = send(&scene, "PATCH", "pipelineruns/edited", &removed).await?;
        assert_eq!(pinned(&after), pinned(&created));
        // Without tracing there is no trace to keep.
        let kept: Vec<_> = PINNED
            .into_iter()
            .filter(|key| created.annotations().contains_key(*key))
            .collect();
        assert!(kept.len() > 4, "{kept:?}");
        check_warned_of(&kept, &warnings, "as it was when the run was created");

        let in_task = json!({"spec": {"taskRunSpecs": tasks(forged())}});
        let (after, warnings) = send(&scene, "PATCH", "pipelineruns/edited", &in_task).await?;
        assert_eq!(after.spec["taskRunSpecs"], created.spec["taskRunSpecs"]);
        check_warned(&warnings, "spec.taskRunSpecs[0]");
        Ok(())
    })
}

#[test]
fn m3_annotations_of_a_task_run_that_tekton_did_not_make_are_stripped_with_a_warning() -> Outcome {
    shared(async |scene| {
        // Whoever makes a TaskRun can write an owner reference, but cannot be Tekton.
        let (owner, _) = send(
            &scene,
            "POST",
            "pipelineruns",
            &run("owner").task("one", &[], &[]).into_json(),
        )
        .await?;
        let metadata = |name: &str, owned: bool| {
            let reference = json!({
                "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "owner",
                "uid": owner.uid(), "controller": true,
            });
            let owners = if owned { json!([reference]) } else { json!([]) };
            json!({"name": name, "annotations": forged(), "ownerReferences": owners})
        };
        let steps = json!([{"name": "s", "image": "i/i", "command": ["true"]}]);
        for (name, owned) in [("alone", false), ("owned", true)] {
            let task_run = json!({
                "apiVersion": "tekton.dev/v1", "kind": "TaskRun", "metadata": metadata(name, owned),
                "spec": {"taskSpec": {"steps": steps}},
            });
            let custom_run = json!({
                "apiVersion": "tekton.dev/v1beta1", "kind": "CustomRun", "metadata": metadata(name, owned),
                "spec": {"customRef": {"apiVersion": "example.dev/v1", "kind": "Wait"}},
            });
            for (path, object) in [("taskruns", task_run), ("customruns", custom_run)] {
                let (created, warnings) = send(&scene, "POST", path, &object).await?;
                let left: Vec<_> = PINNED
                    .into_iter()
                    .filter(|key| created.annotations().contains_key(*key))
                    .collect();
                assert_eq!(left, Vec::<&str>::new(), "{path}/{name}");
                assert_eq!(created.annotations()["example.dev/note"], "mine");
                check_warned(&warnings, "ignored what was given for");
            }
        }
        Ok(())
    })
}
