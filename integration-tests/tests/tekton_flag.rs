//! Tekton's own flag `coschedule`: it is on while runs are created, or it is changed while runs are in progress.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;

use integration_tests::configuration::TEKTON_FLAGS;
use integration_tests::look::{condition, node, succeeded};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone, alone_with};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::DeleteParams;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::Config;
use testbed::services::{Service, ServicesConfig};

use coscheduler_proto::config::Mode;

type Outcome = anyhow::Result<()>;

const ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";
const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];

#[test]
fn m9_a_run_is_left_to_tekton_while_tektons_own_flag_is_on() -> Outcome {
    alone(Config::default(), async |scene| {
        assert_eq!(scene.config().await?.tekton_coschedule, "");
        for flag in ["workspaces", "pipelineruns"] {
            scene.set_tekton_flag(flag).await?;
            let status = scene
                .config_until("told of Tekton's flag", |status| {
                    status.tekton_coschedule == flag
                })
                .await?;
            assert!(
                status
                    .warnings
                    .iter()
                    .any(|warning| warning.contains("left to Tekton") && warning.contains(flag)),
                "{:?}",
                status.warnings
            );
            scene.planned_in(Mode::Disabled).await?;
            let name = format!("left-{flag}");
            let two = run(&name)
                .template("source")
                .task("one", &["source"], &[])
                .task("two", &["source"], &["one"]);
            let told = scene.submit_told(two).await?;
            assert!(
                told.warnings
                    .iter()
                    .any(|warning| warning.contains("leaves this run to Tekton")
                        && warning.contains(flag)),
                "{:?}",
                told.warnings
            );
            let annotations = &told.object["metadata"]["annotations"];
            assert!(
                !annotations.to_string().contains("coscheduler.dev"),
                "{annotations}"
            );
            scene.succeeds(&name).await?;
            // Tekton's own affinity assistant did its work undisturbed.
            let pods = pods_of(scene, &name).await?;
            assert_eq!(pods.len(), 2);
            for pod in &pods {
                assert!(pod.annotations()[ASSISTANT].starts_with("affinity-assistant-"));
            }
        }

        // The flag is off again, so our services coschedule the next run. This stays so when the ConfigMap is deleted, as for
        // Tekton itself.
        scene.set_tekton_flag("Disabled").await?;
        scene.planned_in(Mode::Pipelineruns).await?;
        let (namespace, name) = TEKTON_FLAGS;
        let flags: Api<ConfigMap> = Api::namespaced(scene.client.clone(), namespace);
        let before = flags.get(name).await?;
        flags.delete(name, &DeleteParams::default()).await?;
        let gone = scene
            .config_until("told that it has gone", |status| {
                status
                    .warnings
                    .iter()
                    .any(|warning| warning.contains("has gone"))
            })
            .await?;
        assert_eq!(gone.tekton_coschedule, "");

        // Services that have never seen the ConfigMap use Tekton's default, and report this.
        for service in [Service::ConfigService, Service::AffinityPlanner] {
            scene.stack.services.kill(service)?;
            scene.stack.services.start_service(service)?;
        }
        scene.stack.services.wait_ready().await?;
        let absent = scene.config().await?;
        assert_eq!(absent.tekton_coschedule, "workspaces");
        assert!(
            absent
                .warnings
                .iter()
                .any(|warning| warning.contains("--tekton-namespace"))
        );
        scene.planned_in(Mode::Disabled).await?;

        let mut again = before;
        again.metadata.resource_version = None;
        again.metadata.uid = None;
        flags.create(&Default::default(), &again).await?;
        scene.planned_in(Mode::Pipelineruns).await?;
        Ok(())
    })
}

async fn pods_of(scene: &Scene<'_>, name: &str) -> anyhow::Result<Vec<Pod>> {
    let pods = scene.objects().await?.task_pods;
    let of_run = pods
        .into_iter()
        .filter(|pod| pod.labels()["tekton.dev/pipelineRun"] == name);
    Ok(of_run.collect())
}

/// A run with three tasks in a row, and a task without a workspace. The first task is held, so that Tekton's flag can be changed
/// meanwhile. The template has a long name: Tekton 1.15 cuts the names of such claims while its flag is on.
fn three(name: &str, mode: &str) -> Run {
    let source = json!({"volumeClaimTemplate": {
        "metadata": {"name": "s".repeat(57)},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }});
    run(name)
        .metadata("annotations", json!({"coscheduler.dev/coschedule": mode}))
        .workspace("source", source)
        .workspace(
            "existing",
            json!({"persistentVolumeClaim": {"claimName": format!("existing-{name}")}}),
        )
        .task("one", &["source"], &[])
        .task("two", &["existing"], &["one"])
        .task("three", &["source"], &["two"])
        .task("bare", &[], &["two"])
        .held("one")
}

async fn create_claim(scene: &Scene<'_>, name: &str) -> Outcome {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": format!("existing-{name}")},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))?;
    scene.api().create(&Default::default(), &claim).await?;
    Ok(())
}

fn overridable(services: &mut ServicesConfig) {
    services.mode = Some("pipelineruns".to_owned());
}

/// The names of the StatefulSets of the namespace. They stay until their run has ended, so each call sees all of them.
async fn sets(scene: &Scene<'_>) -> anyhow::Result<BTreeSet<String>> {
    let sets = scene.objects().await?.stateful_sets;
    Ok(sets.iter().map(StatefulSet::name_any).collect())
}

/// Changes Tekton's flag to `flag` when the first task of a run in each mode has a bound pod. The runs must keep their
/// placeholders.
fn flipped_to(flag: &'static str) -> Outcome {
    let config = Config {
        nodes: 6,
        ..Config::default()
    };
    alone_with(config, overridable, async |scene| {
        let overrides = MODES.join(",");
        scene
            .set_flags(&[
                ("coschedule", "disabled"),
                ("allowed-overrides", &overrides),
            ])
            .await?;
        scene.planned_in(Mode::Disabled).await?;
        for mode in MODES {
            create_claim(scene, mode).await?;
            scene.submit(three(mode, mode)).await?;
        }
        scene
            .until_all::<Pod>("have a bound pod of each first task", |pods| {
                let first = pods.iter().filter(|pod| {
                    let task = pod.labels().get("tekton.dev/pipelineTask");
                    task.is_some_and(|task| task == "one") && node(pod).is_some()
                });
                first.count() == MODES.len()
            })
            .await?;
        let before = sets(scene).await?;
        assert_eq!(before.len(), 4, "{before:?}");

        scene.set_tekton_flag(flag).await?;
        scene
            .config_until("told of Tekton's flag", |status| {
                status.tekton_coschedule == flag
            })
            .await?;
        for mode in MODES {
            scene.end(mode, "one").await?;
        }
        // Wait until the later tasks of all runs have pods. No further StatefulSet may appear.
        let mut seen = before.clone();
        for task in ["two", "three"] {
            scene
                .until_all::<Pod>("have a pod of each task", |pods| {
                    let started = pods.iter().filter(|pod| {
                        pod.labels()
                            .get("tekton.dev/pipelineTask")
                            .is_some_and(|found| found == task)
                    });
                    started.count() == MODES.len()
                })
                .await?;
            seen.extend(sets(scene).await?);
        }
        assert_eq!(seen, before, "another StatefulSet appeared");

        for mode in MODES {
            let done = scene.done(mode).await?;
            assert_eq!(
                succeeded(&done),
                Some("True"),
                "{mode}: {:?}",
                done.status.get("conditions")
            );
            let group: BTreeSet<String> = before.clone();
            let pods = pods_of(scene, mode).await?;
            assert_eq!(pods.len(), 4, "{mode}");
            let of = |task: &str| {
                pods.iter()
                    .find(|pod| pod.labels()["tekton.dev/pipelineTask"] == task)
                    .unwrap()
            };
            let assistant = |task: &str| {
                of(task)
                    .annotations()
                    .get(ASSISTANT)
                    .cloned()
                    .unwrap_or_default()
            };
            for task in ["one", "two", "three"] {
                assert!(
                    group.contains(&assistant(task)),
                    "{mode} {task}: {:?}",
                    assistant(task)
                );
            }
            assert_eq!(assistant("one"), assistant("three"), "{mode}");
            assert_eq!(node(of("one")), node(of("three")), "{mode}");
            if mode == "workspaces" {
                assert_ne!(assistant("one"), assistant("two"));
                assert_eq!(assistant("bare"), "");
            } else {
                for task in ["two", "bare"] {
                    assert_eq!(assistant("one"), assistant(task), "{mode} {task}");
                    assert_eq!(node(of("one")), node(of(task)), "{mode} {task}");
                }
            }
        }
        scene.until_sets("are gone", |sets| sets.is_empty()).await?;
        Ok(())
    })
}

#[test]
fn m9_runs_keep_their_group_when_tektons_flag_becomes_workspaces() -> Outcome {
    flipped_to("workspaces")
}

#[test]
fn m9_runs_keep_their_group_when_tektons_flag_becomes_pipelineruns() -> Outcome {
    flipped_to("pipelineruns")
}

#[test]
fn m9_runs_keep_their_group_when_tektons_flag_becomes_isolate_pipelinerun() -> Outcome {
    flipped_to("isolate-pipelinerun")
}

/// A limit of an unmodified Tekton: if its flag is `workspaces`, it fails a TaskRun with two claims, whatever the mode of the
/// run. The run ends at once, and is cleaned up.
#[test]
fn m9_a_task_with_two_claims_fails_at_once_when_tektons_flag_becomes_workspaces() -> Outcome {
    alone(Config::default(), async |scene| {
        let both = run("both")
            .template("source")
            .template("cache")
            .task("one", &["source"], &[])
            .task("two", &["source", "cache"], &["one"])
            .finally("last", &["source"])
            .held("one");
        scene.submit(both).await?;
        scene.placeholder().await?;
        scene
            .until_all::<Pod>("have a task's pod", |pods| {
                pods.iter()
                    .any(|pod| pod.labels().contains_key("tekton.dev/taskRun"))
            })
            .await?;
        scene.set_tekton_flag("workspaces").await?;
        scene
            .config_until("told of Tekton's flag", |status| {
                status.tekton_coschedule == "workspaces"
            })
            .await?;
        scene.end("both", "one").await?;
        let done = scene.done("both").await?;
        assert_eq!(succeeded(&done), Some("False"));
        assert_eq!(condition(&done).unwrap()["reason"], "Failed");
        let refused = scene
            .send("GET", "tekton.dev/v1/taskruns/both-two", &Value::Null)
            .await?
            .accepted()?;
        let refused = &refused.object["status"]["conditions"][0];
        assert_eq!(refused["reason"], "TaskRunValidationFailed", "{refused}");
        let pods = pods_of(scene, "both").await?;
        let tasks: BTreeSet<_> = pods
            .iter()
            .map(|pod| pod.labels()["tekton.dev/pipelineTask"].clone())
            .collect();
        assert_eq!(tasks, ["one", "last"].map(str::to_owned).into());
        scene.nothing_left_but(&[]).await
    })
}
