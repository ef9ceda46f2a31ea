//! Runs that Tekton's own affinity assistant begins, and that tekton-coscheduler adopts before Tekton's flag is turned off
//! (B7). Each test has runs under way whose next tasks start only after the change.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use coscheduler_core::annotations::{ADOPTED, MODE, TEKTON_AFFINITY_ASSISTANT};
use coscheduler_core::config::ADOPT_RUNS_IN;
use coscheduler_core::labels::{MANAGED_BY, PIPELINE_RUN_UID};
use coscheduler_core::names::AssistantName;
use coscheduler_kubernetes::pods;
use futures::future::try_join;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::look::{self, is_placeholder, node};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_with};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;
use testbed::services::{Service, ServicesConfig};
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

/// The longest time until a placeholder has left a cordoned node (normally a second).
const LEFT: Duration = Duration::from_secs(10);

/// The number of runs under way. `MIGRATED_RUNS` sets another number.
fn runs() -> usize {
    let number = std::env::var("MIGRATED_RUNS");
    number.map_or(12, |number| number.parse().unwrap())
}

/// A run whose tasks share a claim that every node can reach. Its first task ends when the test ends it. Tekton copies the
/// run's labels to its StatefulSet, and into the selector.
fn three(name: &str) -> Run {
    let tool = if name.ends_with('1') {
        "tekton-coscheduler"
    } else {
        "another-tool"
    };
    run(name)
        .metadata("labels", json!({MANAGED_BY: tool}))
        .template_of_class("source", MOVABLE_STORAGE_CLASS)
        .metadata(
            "annotations",
            json!({"tekton.dev/auto-cleanup-pvc": "true"}),
        )
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
        .task("three", &["source"], &["two"])
        .held("one")
}

async fn all<'a>(names: &'a [String], act: impl AsyncFn(&'a str) -> Outcome) -> Outcome {
    let acts = stream::iter(names).map(|name| act(name));
    acts.buffer_unordered(10).try_collect::<()>().await
}

/// Waits until this number of runs have placeholders and running first tasks on nodes. Returns the nodes of the placeholders,
/// by name.
async fn under_way(scene: &Scene<'_>, number: usize) -> anyhow::Result<BTreeMap<String, String>> {
    let bound = |pods: &[Arc<Pod>]| -> BTreeMap<String, String> {
        let placeholders = pods.iter().filter(|pod| is_placeholder(pod));
        let bound = placeholders.filter_map(|pod| {
            let name = pod.name_any().trim_end_matches("-0").to_owned();
            Some((name, node(pod)?.to_owned()))
        });
        bound.collect()
    };
    let pods = scene
        .until_all::<Pod>("have placeholders and first tasks", |pods| {
            let of_tasks = pods.iter().filter(|pod| !is_placeholder(pod));
            let started = of_tasks.filter(|pod| pods::has_started(pod)).count();
            (started, bound(pods).len()) == (number, number)
        })
        .await?;
    Ok(bound(&pods))
}

/// Waits until tekton-coscheduler owns this number of StatefulSets, and checks that there is no other.
async fn adopted(scene: &Scene<'_>, number: usize) -> Outcome {
    let sets = scene
        .until_all::<StatefulSet>("are adopted", |sets| {
            let ours = |set: &&Arc<StatefulSet>| set.labels().contains_key(PIPELINE_RUN_UID);
            sets.iter().filter(ours).count() == number
        })
        .await?;
    ensure!(sets.len() == number, "{} StatefulSets", sets.len());
    Ok(())
}

/// Kills a service and starts it again.
async fn strike(scene: &Scene<'_>, service: Option<Service>) -> Outcome {
    if let Some(service) = service {
        scene.stack.services.kill(service)?;
        scene.stack.services.start_service(service)?;
        scene.stack.services.wait_ready().await?;
    }
    Ok(())
}

/// Asks for the adoption of a run, as an operator does, until it is adopted.
async fn ask(scene: &Scene<'_>, name: &str) -> Outcome {
    let path = format!("tekton.dev/v1/pipelineruns/{name}");
    let asked = json!({"metadata": {"annotations": {ADOPTED: ""}}});
    look::until(&format!("run {name} is adopted"), async || {
        let answer = scene.send("PATCH", &path, &asked).await?;
        Ok(answer.annotation(ADOPTED) == Some(name))
    })
    .await
}

async fn flip(scene: &Scene<'_>, flag: &str, seen: &str) -> Outcome {
    scene.set_tekton_flag(flag).await?;
    let told = scene.config_until("told of Tekton's flag", |status| {
        status.tekton_coschedule == seen
    });
    told.await.map(drop)
}

/// Ends the first tasks of these runs, and waits until the runs have succeeded.
async fn finish(scene: &Scene<'_>, names: &[String]) -> Outcome {
    all(names, async |name| scene.end(name, "one").await).await?;
    all(names, async |name| scene.succeeds(name).await.map(drop)).await
}

/// Checks that the pods of each run have shared a node, and have followed the placeholder with Tekton's name. `before` are the
/// nodes of the placeholders of the old runs when their first tasks ran.
async fn shared_a_node(
    scene: &Scene<'_>,
    mode: &str,
    names: &[String],
    before: &BTreeMap<String, String>,
) -> Outcome {
    let pods = scene.objects().await?.task_pods;
    let workspace = if mode == "workspaces" { "source" } else { "" };
    for name in names {
        let of_run = pods.iter();
        let of_run = of_run.filter(|pod| pod.labels()["tekton.dev/pipelineRun"] == *name);
        let of_run: Vec<_> = of_run.collect();
        assert_eq!(of_run.len(), 3, "{name}");
        let nodes: BTreeSet<_> = of_run.iter().map(|pod| node(pod)).collect();
        assert_eq!(nodes.len(), 1, "{name}: {nodes:?}");
        let assistant = AssistantName::of_tekton(workspace, name);
        for pod in of_run {
            let follows = &pod.annotations()[TEKTON_AFFINITY_ASSISTANT];
            assert_eq!(follows, assistant.as_str(), "{name}");
        }
        if let Some(on) = before.get(assistant.as_str()) {
            assert_eq!(nodes, [Some(on.as_str())].into(), "{name}");
        }
    }
    Ok(())
}

/// Turns Tekton's flag off while runs are under way. When half of them have ended, turns it on again. Kills a service during the
/// adoption, and again when the flag is turned off.
fn flipped(mode: &'static str, struck: Option<Service>) -> Outcome {
    let number = runs();
    let config = Config {
        nodes: number + 4,
        tekton_coschedule: mode.to_owned(),
        ..Config::default()
    };
    let change = |services: &mut ServicesConfig| services.mode = Some("disabled".to_owned());
    alone_with(config, change, async |scene| {
        let old: Vec<_> = (0..number).map(|it| format!("old-{it}")).collect();
        let new: Vec<_> = (0..2).map(|it| format!("new-{it}")).collect();
        let names = [old.clone(), new.clone()].concat();
        all(&old, async |name| {
            let run = three(name);
            // Tekton's assistant makes this claim too.
            let run = match name {
                "old-2" if mode != "workspaces" => {
                    run.template_with_access("lock", "ReadWriteOncePod")
                }
                _ => run,
            };
            scene.submit(run).await.map(drop)
        })
        .await?;
        let before = under_way(scene, number).await?;

        scene
            .set_flags(&[("coschedule", "disabled"), (ADOPT_RUNS_IN, "*")])
            .await?;
        try_join(
            all(&old, async |name| ask(scene, name).await),
            strike(scene, struck),
        )
        .await?;
        all(&new, async |name| {
            let created = scene.submit(three(name)).await?;
            assert_eq!(created.annotations()[MODE], mode);
            Ok(())
        })
        .await?;
        under_way(scene, names.len()).await?;
        adopted(scene, names.len()).await?;

        let flipped = Instant::now();
        try_join(flip(scene, "disabled", ""), strike(scene, struck)).await?;
        let (first, last) = names.split_at(names.len() / 2);
        finish(scene, first).await?;
        flip(scene, mode, mode).await?;
        finish(scene, last).await?;
        let took = flipped.elapsed();
        println!("{mode}: {} runs ended {took:?} after the flip", names.len());
        scene.nothing_left_but(&[]).await?;
        shared_a_node(scene, mode, &names, &before).await
    })
}

#[test]
fn b7_runs_of_workspaces_are_adopted_and_finish_on_their_node() -> Outcome {
    flipped("workspaces", Some(Service::AffinityPlanner))
}

#[test]
fn b7_runs_of_pipelineruns_are_adopted_and_finish_on_their_node() -> Outcome {
    flipped("pipelineruns", Some(Service::PlaceholderManager))
}

#[test]
fn b7_runs_of_isolate_pipelinerun_are_adopted_and_finish_on_their_node() -> Outcome {
    flipped("isolate-pipelinerun", Some(Service::AdmissionWebhook))
}

/// True if a new run would be adopted now.
async fn would_adopt(scene: &Scene<'_>) -> anyhow::Result<bool> {
    let object = three("dry").into_json();
    let path = "tekton.dev/v1/pipelineruns?dryRun=All";
    let answer = scene.send("POST", path, &object).await?.accepted()?;
    Ok(answer.annotation(ADOPTED).is_some())
}

/// While Tekton's flag is still on, an adopted placeholder leaves a cordoned node, which Tekton's own assistant does not do
/// once the run has begun.
#[test]
fn b7_n1_one_namespace_is_adopted_first_and_its_placeholder_leaves_a_cordoned_node() -> Outcome {
    let config = Config {
        nodes: 6,
        tekton_coschedule: "pipelineruns".to_owned(),
        ..Config::default()
    };
    alone_with(
        config,
        |_| {},
        async |scene| {
            let other = scene.stack.scene().await?;
            let flags = [
                ("coschedule", "disabled"),
                (ADOPT_RUNS_IN, &scene.namespace),
            ];
            scene.set_flags(&flags).await?;
            look::until("new runs are adopted", async || would_adopt(scene).await).await?;

            let told = other.submit_told(three("run")).await?;
            let left = |warning: &String| warning.contains("leaves this run to Tekton");
            ensure!(told.warnings.iter().any(left), "{:?}", told.warnings);
            let told = scene.submit_told(three("run")).await?;
            ensure!(told.warnings.is_empty(), "{:?}", told.warnings);
            under_way(&other, 1).await?;
            let before = under_way(scene, 1).await?;
            adopted(scene, 1).await?;

            let (_, first) = scene.placeholder().await?;
            let cordoned = before.values().next().unwrap();
            // The task that runs keeps its claim until it ends.
            scene.stack.history.exempt(&scene.namespace);
            scene.cordon(cordoned, true).await?;
            let evicted = Instant::now();
            let pods = scene
                .until_all::<Pod>("have another placeholder", |pods| {
                    let mut placeholders = pods.iter().filter(|pod| is_placeholder(pod));
                    placeholders.any(|pod| pod.uid() != first.uid())
                })
                .await?;
            let took = evicted.elapsed();
            println!("the placeholder left the cordoned node after {took:?}");
            ensure!(took < LEFT, "{took:?}");
            let next = pods.iter().find(|pod| is_placeholder(pod)).unwrap();
            assert_eq!(next.labels()[MANAGED_BY], "another-tool");
            assert!(next.labels().contains_key(PIPELINE_RUN_UID));
            scene.end("run", "one").await?;
            scene.succeeds("run").await?;
            scene.nothing_left_but(&[]).await?;
            let pods = scene.objects().await?.task_pods;
            let later = pods.iter();
            let later = later.filter(|pod| pod.labels()["tekton.dev/pipelineTask"] != "one");
            let nodes: BTreeSet<_> = later.map(|pod| node(pod)).collect();
            ensure!(
                nodes.len() == 1 && !nodes.contains(&Some(cordoned)),
                "{nodes:?}"
            );

            let sets = other.objects().await?.stateful_sets;
            ensure!(sets.len() == 1 && !sets[0].labels().contains_key(PIPELINE_RUN_UID));
            other.end("run", "one").await?;
            other.succeeds("run").await?;
            other.nothing_left_but(&[]).await
        },
    )
}
