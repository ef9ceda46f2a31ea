//! Calls and objects with false contents. A call of `Ensure` or `Release` contains only a reference to a PipelineRun. In each
//! field of the reference in turn, these tests write the value of another run. The manager refuses the call with a reason and
//! writes nothing. If an author forges annotations that only admission writes, they are removed or restored, with a warning.
//!
//! The watcher is stopped, so that only these tests call the manager. The manager never leads, so that it creates no missing
//! placeholder by itself.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use coscheduler_core::annotations::PINNED;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_proto::error::reason;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::{
    EnsureOutcome, EnsureRequest, PipelineRunRef, ReleaseOutcome, ReleaseRequest,
};
use integration_tests::audit::Mark;
use integration_tests::runs::run;
use integration_tests::{Scene, grpc, shared};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::services::{NAMESPACE, Service};
use tokio::sync::OnceCell;
use tonic::transport::Channel;
use tonic::{Code, Status};

type Outcome = anyhow::Result<()>;

/// How far the manager's watch may lag behind on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// References to the newest versions of three active runs.
#[derive(Clone, Debug)]
struct References {
    mine: PipelineRunRef,
    /// Another run in the same namespace.
    other: PipelineRunRef,
    /// A run in another namespace.
    foreign: PipelineRunRef,
}

/// A reference that mixes two runs.
struct Forgery {
    forge: fn(&mut PipelineRunRef, References),
    /// The field that the message of the manager's answer names.
    field: &'static str,
}

const FORGERIES: [Forgery; 7] = [
    Forgery {
        forge: |run, others| run.namespace = others.foreign.namespace,
        field: "pipeline_run.namespace",
    },
    Forgery {
        forge: |run, others| run.name = others.other.name,
        field: "pipeline_run.name",
    },
    // The manager checks the name even if the version is old.
    Forgery {
        forge: |run, others| {
            run.name = others.other.name;
            run.resource_version = "1".to_owned();
        },
        field: "pipeline_run.name",
    },
    Forgery {
        forge: |run, others| run.uid = others.other.uid,
        field: "pipeline_run",
    },
    Forgery {
        forge: |run, others| run.uid = others.foreign.uid,
        field: "pipeline_run",
    },
    // No run has this uid, and the version belongs to the run with the true uid.
    Forgery {
        forge: |run, _| run.uid = "0".to_owned(),
        field: "pipeline_run.resource_version",
    },
    Forgery {
        forge: |run, others| run.resource_version = others.other.resource_version,
        field: "pipeline_run.resource_version",
    },
];

/// Names every field, without `..`, so that a new field is a compile error. Add the new field here and to [`FORGERIES`].
fn _every_field(ensure: EnsureRequest, release: ReleaseRequest) {
    let EnsureRequest { pipeline_run: _ } = ensure;
    let ReleaseRequest { pipeline_run } = release;
    let _ = pipeline_run.map(
        |PipelineRunRef {
             namespace: _,
             name: _,
             uid: _,
             resource_version: _,
         }| (),
    );
}

/// Gives a Lease to another holder for longer than these tests last.
async fn hold_lease(client: &kube::Client, name: &str) -> Outcome {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let held = json!({"spec": {
        "holderIdentity": "somebody-else",
        "leaseDurationSeconds": 3600,
        "renewTime": MicroTime(Timestamp::now()),
    }});
    let held = Patch::Merge(held);
    leases.patch(name, &PatchParams::default(), &held).await?;
    Ok(())
}

/// Three active runs without placeholders.
struct Trial {
    scene: Scene<'static>,
    elsewhere: String,
    manager: PlaceholderServiceClient<Channel>,
}

impl Trial {
    async fn new(scene: Scene<'static>) -> anyhow::Result<Self> {
        static SILENT: OnceCell<()> = OnceCell::const_new();
        let services = &scene.stack.services;
        SILENT
            .get_or_try_init(async || {
                services.kill(Service::Watcher)?;
                services.kill(Service::PlaceholderManager)?;
                let manager = Service::PlaceholderManager.name();
                hold_lease(&scene.client, manager).await?;
                services.start_service(Service::PlaceholderManager)?;
                services.wait_ready().await
            })
            .await?;
        let elsewhere = format!("{}-elsewhere", scene.namespace);
        scene.stack.bed.create_namespace(&elsewhere, &[]).await?;
        for (namespace, name) in [
            (&scene.namespace, "mine"),
            (&scene.namespace, "other"),
            (&elsewhere, "foreign"),
        ] {
            // The run waits for a task that no controller works on, so that it stays active and has no pod.
            let waiting = run(name).template("source").task("wait", &[], &[]).with(
                "taskSpec",
                json!({"apiVersion": "example.dev/v1", "kind": "Wait", "spec": {}}),
            );
            let object: PipelineRun = serde_json::from_value(waiting.into_json())?;
            Api::namespaced(scene.client.clone(), namespace)
                .create(&PostParams::default(), &object)
                .await?;
        }
        let planner = Service::AffinityPlanner.name();
        let manager = grpc::connect(services, Service::PlaceholderManager, planner).await?;
        let manager = PlaceholderServiceClient::new(manager);
        Ok(Self {
            elsewhere,
            manager,
            scene,
        })
    }

    async fn references(&self) -> anyhow::Result<References> {
        let reference = async |namespace: &str, name: &str| {
            let runs: Api<PipelineRun> = Api::namespaced(self.scene.client.clone(), namespace);
            let run = runs.get(name).await?;
            anyhow::Ok(PipelineRunRef {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                uid: run.uid().unwrap(),
                resource_version: run.resource_version().unwrap(),
            })
        };
        Ok(References {
            mine: reference(&self.scene.namespace, "mine").await?,
            other: reference(&self.scene.namespace, "other").await?,
            foreign: reference(&self.elsewhere, "foreign").await?,
        })
    }

    async fn ensure(&self, pipeline_run: PipelineRunRef) -> Result<EnsureOutcome, Status> {
        let request = EnsureRequest {
            pipeline_run: Some(pipeline_run),
        };
        let answer = self.manager.clone().ensure(request).await?;
        Ok(answer.into_inner().outcome())
    }

    async fn release(&self, pipeline_run: PipelineRunRef) -> Result<ReleaseOutcome, Status> {
        let request = ReleaseRequest {
            pipeline_run: Some(pipeline_run),
        };
        let answer = self.manager.clone().release(request).await?;
        Ok(answer.into_inner().outcome())
    }

    /// Checks that each forgery is refused, with its field in the message. If the run has changed before the call, the manager
    /// does not check the forgery, because the reference is old. Then `call` returns true, and is repeated.
    async fn each_is_refused(
        &self,
        call: impl AsyncFn(PipelineRunRef) -> Result<bool, Status>,
    ) -> Outcome {
        for Forgery { forge, field } in FORGERIES {
            let attempts = async {
                loop {
                    let references = self.references().await?;
                    let mut forged = references.mine.clone();
                    forge(&mut forged, references.clone());
                    ensure!(forged != references.mine, "nothing was forged");
                    match call(forged.clone()).await {
                        Ok(late) => ensure!(late, "the manager accepted {forged:?}"),
                        Err(status)
                            if reason(&status).as_deref() == Some("PIPELINE_RUN_NOT_SEEN") => {}
                        Err(status) => return Ok(status),
                    }
                }
            };
            let status = tokio::time::timeout(PATIENCE, attempts)
                .await
                .with_context(|| format!("{field}: every call came too late or too early"))??;
            assert_eq!(
                (status.code(), reason(&status).as_deref()),
                (Code::FailedPrecondition, Some("PIPELINE_RUN_MISMATCH")),
                "{field}: {status:?}"
            );
            assert!(status.message().contains(field), "{field}: {status:?}");
        }
        Ok(())
    }

    /// Calls `Ensure` with a true reference. Repeats the call while the version is too old or not seen yet.
    async fn ensure_honestly(&self) -> anyhow::Result<EnsureOutcome> {
        let attempts = async {
            loop {
                match self.ensure(self.references().await?.mine).await {
                    Ok(EnsureOutcome::Superseded) => {}
                    Ok(outcome) => return Ok(outcome),
                    Err(status) if status.code() == Code::Unavailable => {}
                    Err(status) => bail!("the manager refused a true reference: {status:?}"),
                }
            }
        };
        tokio::time::timeout(PATIENCE, attempts)
            .await
            .context("every call came too late or too early")?
    }

    /// The StatefulSets and claims in the trial's namespaces, which the manager may have written.
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

    /// Checks that the manager has written nothing in the trial's namespaces since `mark`.
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

#[test]
fn p7_an_ensure_that_mixes_two_runs_is_refused_and_writes_nothing() -> Outcome {
    shared(async |scene| {
        let trial = Trial::new(scene).await?;
        let mark = trial.scene.mark()?;
        trial
            .each_is_refused(async |forged| {
                Ok(trial.ensure(forged).await? == EnsureOutcome::Superseded)
            })
            .await?;
        assert_eq!(trial.written().await?, Vec::<String>::new());
        trial.nothing_written_since(mark)?;
        assert_eq!(trial.ensure_honestly().await?, EnsureOutcome::Created);
        Ok(())
    })
}

#[test]
fn p7_a_release_that_mixes_two_runs_is_refused_and_writes_nothing() -> Outcome {
    shared(async |scene| {
        let trial = Trial::new(scene).await?;
        assert_eq!(trial.ensure_honestly().await?, EnsureOutcome::Created);
        trial
            .scene
            .until_all::<PersistentVolumeClaim>("are one", |claims| claims.len() == 1)
            .await?;
        let (before, mark) = (trial.written().await?, trial.scene.mark()?);
        trial
            .each_is_refused(async |forged| {
                // The manager gives these answers if the version is no longer the newest, or if no run has the uid.
                let outcome = trial.release(forged).await?;
                Ok([ReleaseOutcome::RunActive, ReleaseOutcome::Released].contains(&outcome))
            })
            .await?;
        let mine = trial.references().await?.mine;
        assert_eq!(trial.release(mine).await?, ReleaseOutcome::RunActive);
        assert_eq!(trial.written().await?, before);
        trial.nothing_written_since(mark)
    })
}

/// Sends JSON to the API server. Returns the object that was stored, and the warnings that kubectl would show.
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

/// Annotations that an author must not write, and one that an author may write.
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
            "no warning about {key} in {place:?}: {warnings:?}"
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
        check_warned(&warnings, "These annotations are ignored");
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
        check_warned(&warnings, "of an existing run");

        let removed: serde_json::Map<_, _> = PINNED
            .map(|key| (key.to_owned(), Value::Null))
            .into_iter()
            .collect();
        let removed = json!({"metadata": {"annotations": removed}});
        let (after, warnings) = send(&scene, "PATCH", "pipelineruns/edited", &removed).await?;
        assert_eq!(pinned(&after), pinned(&created));
        // Without tracing, the run has no annotation with a trace.
        let kept: Vec<_> = PINNED
            .into_iter()
            .filter(|key| created.annotations().contains_key(*key))
            .collect();
        assert!(kept.len() > 4, "{kept:?}");
        check_warned_of(&kept, &warnings, "of an existing run");

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
        // An author can write an owner reference, but cannot use Tekton's account.
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
                check_warned(&warnings, "These annotations are ignored");
            }
        }
        // Perhaps this account is the account of Tekton's controller. Then nobody reads the warnings. So there is an Event too.
        let told = scene.told("owner", "TektonAccountUnknown").await?;
        let told = told
            .iter()
            .filter(|(code, _)| code == "TektonAccountUnknown");
        assert_eq!(told.count(), 1, "for both objects");
        Ok(())
    })
}
