//! Placeholders that are pods without a StatefulSet (key `placeholder-backend: pod`). With environment variable
//! `TESTBED_PLACEHOLDERS=pod`, all other tests use such placeholders too.
//!
//! Most tests share one stack, on which each run may choose its mode.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::ensure;
use coscheduler_core::annotations::RECORD;
use coscheduler_core::config::{Backend, PLACEHOLDER_BACKEND, Reserves};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use integration_tests::audit::Mark;
use integration_tests::installation::{kubectl, lead_here, overlay, serve};
use integration_tests::look::{claims, is_placeholder, node};
use integration_tests::runs::{Run, run};
use integration_tests::stack::Stack;
use integration_tests::{Scene, on_bed, shared_with_overrides};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use testbed::services::{CONFIG_MAP, NAMESPACE, Service, ServicesConfig};
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
/// The longest time until an evacuated placeholder is bound elsewhere (N1).
const MOVED: Duration = Duration::from_secs(5);
/// The longest time until the manager tries again to create a refused placeholder (N3: 30 seconds).
const RETRIED_WITHIN: Duration = Duration::from_secs(60);
/// The longest time until the manager creates a deleted pod again. Normally it takes two seconds.
const BACK: Duration = Duration::from_secs(15);

fn with_pods(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let pods = |services: &mut ServicesConfig| {
        let backend = Backend::Pod.to_string();
        services
            .flags
            .insert(PLACEHOLDER_BACKEND.to_owned(), backend);
    };
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    shared_with_overrides(config, pods, test)
}

/// A run in a pool of the scene, with one claim. Its second task starts when the test opens the gate.
fn two(scene: &Scene<'_>, mode: &str) -> Run {
    run("two")
        .in_mode(mode)
        .in_pool_of(scene)
        .template_of_class("source", MOVABLE_STORAGE_CLASS)
        .task("one", &["source"], &[])
        .gate(&["one"])
        .task("last", &["source"], &["gate"])
}

/// The only placeholder's pod.
async fn own_pod(scene: &Scene<'_>) -> anyhow::Result<Pod> {
    Ok(scene.placeholder().await?.1)
}

/// The manager's writes of pods in the scene's namespace since `mark`: verb and subresource.
fn writes_of_pods(scene: &Scene<'_>, mark: Mark) -> anyhow::Result<Vec<String>> {
    let requests = scene.requests_since(mark)?.into_iter();
    let of_manager = requests.filter(|it| it.is_by(Service::PlaceholderManager) && it.is_write());
    let of_pods = of_manager
        .filter(|it| it.object.resource == "pods" && it.object.namespace == scene.namespace);
    Ok(of_pods
        .map(|it| {
            format!("{} {}", it.verb, it.object.subresource)
                .trim_end()
                .to_owned()
        })
        .collect())
}

async fn sets(scene: &Scene<'_>) -> anyhow::Result<Vec<StatefulSet>> {
    let all = scene.api::<StatefulSet>().list(&Default::default()).await?;
    Ok(all.items)
}

#[test]
fn p1_p6_v2_a_placeholder_is_a_pod_of_the_run_and_nothing_is_left_of_it() -> Outcome {
    with_pods(async |scene| {
        for mode in MODES {
            let scene = scene.stack.scene().await?;
            scene.pool(2).await?;
            let created = scene.submit(two(&scene, mode)).await?;
            scene.at_gate("two").await?;
            let pod = own_pod(&scene).await?;
            ensure!(sets(&scene).await?.is_empty(), "{mode}: a StatefulSet");
            let owner = &pod.owner_references()[0];
            assert_eq!(
                (owner.kind.as_str(), Some(&owner.uid)),
                ("PipelineRun", created.uid().as_ref())
            );
            assert_eq!(owner.controller, Some(true));
            let name = pod.name_any();
            let name = name.strip_suffix("-0").unwrap();
            let labels = pod.labels();
            assert_eq!(labels["app.kubernetes.io/component"], "affinity-assistant");
            assert_eq!(labels["app.kubernetes.io/instance"], name);
            let made = scene
                .api::<PersistentVolumeClaim>()
                .list(&Default::default())
                .await?;
            let made: BTreeSet<_> = made.iter().map(ResourceExt::name_any).collect();
            assert_eq!(made, claims(&pod).into_iter().collect(), "{mode}");
            if mode != "workspaces" {
                let suffix = format!("-{name}-0");
                ensure!(
                    made.iter().all(|claim| claim.ends_with(&suffix)),
                    "{made:?}"
                );
            }
            let home = node(&pod).unwrap();
            scene.open_gate("two").await?;
            scene.succeeds("two").await?;
            let objects = scene.objects().await?;
            ensure!(
                objects.task_pods.iter().all(|pod| node(pod) == Some(home)),
                "{mode}: not on {home}"
            );
            scene.nothing_left_but(&[]).await?;
        }
        Ok(())
    })
}

/// A placeholder that is only a pod is created without a scheduling gate. If it reserves room, its first requests include this
/// room. So the reservation costs only one write, which reduces the requests later.
#[test]
fn b3_a_placeholder_costs_two_writes_and_its_reservation_one() -> Outcome {
    with_pods(async |scene| {
        for mode in MODES {
            for (reserves, expected) in [
                (Reserves::Nothing, &["create", "delete"][..]),
                (Reserves::Placement, &["create", "patch resize", "delete"]),
            ] {
                let scene = scene.stack.scene().await?;
                scene.pool(2).await?;
                let mark = scene.mark()?;
                let sized = run("sized")
                    .in_mode(mode)
                    .reserving(reserves)
                    .in_pool_of(&scene)
                    .template_of_class("source", MOVABLE_STORAGE_CLASS)
                    .task("one", &["source"], &[])
                    .task("two", &["source"], &["one"])
                    .asking("300m");
                scene.submit(sized).await?;
                scene.succeeds("sized").await?;
                scene.nothing_left_but(&[]).await?;
                let writes = writes_of_pods(&scene, mark)?;
                assert_eq!(writes, expected, "{mode}, {reserves}");
            }
        }
        Ok(())
    })
}

#[test]
fn n1_n6_a_placeholder_that_moves_gets_a_stateful_set_that_keeps_the_record() -> Outcome {
    with_pods(async |scene| {
        scene.pool(3).await?;
        scene.submit(two(&scene, "pipelineruns")).await?;
        scene.at_gate("two").await?;
        let mut old = node(&own_pod(&scene).await?).unwrap().to_owned();
        for times in [1, 2] {
            // The pause between two moves is a second.
            let began = Instant::now();
            scene.cordon(&old, true).await?;
            let moved = scene.moved_from(&old).await?;
            let took = began.elapsed();
            println!("move {times}: after {took:.2?}");
            ensure!(took < MOVED, "moved after {took:?}");
            let sets = sets(&scene).await?;
            let [set] = &sets[..] else {
                panic!("{sets:?}");
            };
            assert_eq!(moved.owner_references()[0].uid, set.uid().unwrap());
            let record: serde_json::Value = serde_json::from_str(&set.annotations()[RECORD])?;
            assert_eq!(record["evacuated"]["times"], times, "{record}");
            node(&moved).unwrap().clone_into(&mut old);
        }
        // Somebody deletes the StatefulSet without its pod.
        let (pod, deleted) = (own_pod(&scene).await?, sets(&scene).await?.remove(0));
        scene
            .api::<StatefulSet>()
            .delete(&deleted.name_any(), &DeleteParams::orphan())
            .await?;
        let taken_back = |pod: Option<&Pod>| {
            let mut owners = pod.iter().flat_map(|pod| pod.owner_references());
            owners.any(|owner| {
                owner.kind == "StatefulSet" && deleted.uid().as_ref() != Some(&owner.uid)
            })
        };
        let kept = scene
            .until(&pod.name_any(), "has another StatefulSet", taken_back)
            .await?;
        assert_eq!(kept.unwrap().uid(), pod.uid());
        scene.open_gate("two").await?;
        scene.succeeds("two").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn n3_a_refused_pod_is_told_and_created_once_the_cause_is_gone() -> Outcome {
    with_pods(async |scene| {
        scene.pool(1).await?;
        scene.quota(json!({"pods": "0"})).await?;
        scene.submit(two(&scene, "pipelineruns")).await?;
        let told = scene.told("two", "QuotaExceeded").await?;
        ensure!(told.len() == 1, "{told:?}");
        scene.without_quota().await?;
        let since = Instant::now();
        own_pod(&scene).await?;
        let healed = since.elapsed();
        ensure!(healed < RETRIED_WITHIN, "created after {healed:?}");
        scene.at_gate("two").await?;
        scene.open_gate("two").await?;
        scene.succeeds("two").await?;
        scene.nothing_left_but(&[]).await
    })
}

/// Makes the placeholder's pod go, and waits until it is back on the node of the run's pod.
async fn comes_back(scene: &Scene<'_>, go: impl AsyncFnOnce(&Pod) -> Outcome) -> Outcome {
    let old = own_pod(scene).await?;
    go(&old).await?;
    let since = Instant::now();
    let is_back = |pod: &Pod| is_placeholder(pod) && pod.uid() != old.uid() && node(pod).is_some();
    let pods = scene
        .until_all::<Pod>("have a new placeholder", |pods| {
            pods.iter().any(|pod| is_back(pod))
        })
        .await?;
    let took = since.elapsed();
    ensure!(took < BACK, "back after {took:?}");
    let back = pods.iter().find(|pod| is_back(pod)).unwrap();
    assert_eq!(node(back), node(&old));
    Ok(())
}

#[test]
fn p1_a_pod_that_is_deleted_or_has_ended_comes_back_on_its_node() -> Outcome {
    with_pods(async |scene| {
        scene.pool(2).await?;
        let run = run("held")
            .in_mode("pipelineruns")
            .in_pool_of(&scene)
            .template_of_class("source", MOVABLE_STORAGE_CLASS)
            .task("one", &["source"], &[])
            .asking("100m")
            .held("one");
        scene.submit(run).await?;
        scene
            .until_all::<Pod>("run", |pods| {
                pods.iter()
                    .any(|pod| !is_placeholder(pod) && node(pod).is_some())
            })
            .await?;
        let pods = scene.api::<Pod>();
        comes_back(&scene, async |pod| {
            pods.delete(&pod.name_any(), &DeleteParams::default())
                .await?;
            Ok(())
        })
        .await?;
        comes_back(&scene, async |pod| {
            let ended = Patch::Merge(json!({"status": {"phase": "Failed", "reason": "Evicted"}}));
            pods.patch_status(&pod.name_any(), &PatchParams::default(), &ended)
                .await?;
            Ok(())
        })
        .await?;
        scene.end("held", "one").await?;
        scene.succeeds("held").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p7_somebody_elses_pod_of_the_right_name_is_left_alone_and_told() -> Outcome {
    with_pods(async |scene| {
        let pending = run("clash")
            .in_mode("pipelineruns")
            .task("one", &[], &[])
            .spec("status", json!("PipelineRunPending"));
        let created = scene.submit(pending).await?;
        let name = &created.annotations()["pipeline.tekton.dev/affinity-assistant"];
        let theirs: Pod = serde_json::from_value(json!({
            "metadata": {"name": format!("{name}-0")},
            "spec": {"containers": [{"name": "c", "image": "example/image"}]},
        }))?;
        let pods = scene.api::<Pod>();
        let theirs = pods.create(&Default::default(), &theirs).await?;
        let start = Patch::Merge(json!({"spec": {"status": null}}));
        let runs = scene.api::<PipelineRun>();
        runs.patch("clash", &PatchParams::default(), &start).await?;
        let told = scene.told("clash", "PlaceholderNameTaken").await?;
        let object = format!("Pod {}/{name}-0 exists already", scene.namespace);
        ensure!(told[0].1.starts_with(&object), "{told:?}");
        let left = pods.get(&theirs.name_any()).await?;
        assert_eq!(left.uid(), theirs.uid());
        pods.delete(&theirs.name_any(), &DeleteParams::default())
            .await?;
        scene.succeeds("clash").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn p1_an_installation_with_component_placeholder_pods_needs_no_other_rights() -> Outcome {
    on_bed(Config::default(), async |bed| {
        let overlay = overlay(&bed, &["base"], "placeholder-pods")?;
        kubectl(&bed, &["apply", "-k", &overlay]).await?;
        let all = json!({"data": {"allowed-overrides": "pipelineruns"}}).to_string();
        let patch = [
            "patch",
            "configmap",
            CONFIG_MAP,
            "--namespace",
            NAMESPACE,
            "--patch",
            &all,
        ];
        kubectl(&bed, &patch).await?;
        let services = serve(&bed, 1).await?;
        lead_here(&bed.client(), &services).await?;
        let stack = Stack::new(bed, services);
        let scene = stack.scene().await?;
        scene.pool(2).await?;
        scene.submit(two(&scene, "pipelineruns")).await?;
        scene.at_gate("two").await?;
        let old = own_pod(&scene).await?;
        ensure!(sets(&scene).await?.is_empty(), "a StatefulSet");
        let old = node(&old).unwrap();
        scene.cordon(old, true).await?;
        scene.moved_from(old).await?;
        scene.open_gate("two").await?;
        scene.succeeds("two").await?;
        scene.nothing_left_but(&[]).await?;
        stack.services.check()
    })
}
