//! Placeholders that reserve room (B3): they are bound where the whole run fits, and give the room up at once.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_core::config::Reserves;
use coscheduler_kubernetes::needs::asks;
use coscheduler_kubernetes::pods::is_unschedulable;
use futures::future::try_join_all;
use integration_tests::cramped::stranger;
use integration_tests::look::{is_placeholder, node};
use integration_tests::refusing::Refusal;
use integration_tests::runs::{Run, run};
use integration_tests::waits::Waits;
use integration_tests::{Scene, shared_with_overrides};
use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
/// The time from the creation of a run to its placeholder, or to its first pod: a few seconds. Tekton tries again after a minute
/// where a quota refuses a pod.
const AT_ONCE: Duration = Duration::from_secs(30);
/// The time that a pod waits for the room that its placeholder gives up: one to two seconds, and the scheduler's backoff.
const HAND_OVER: Duration = Duration::from_secs(20);
/// CPU that a placeholder asks for itself, in thousandths.
const OWN: i128 = 50;

/// On a stack whose placeholders reserve room, and on which each run chooses its mode.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    shared_with_overrides(config, |_| {}, test)
}

/// A task of one CPU, and two behind it that ask for three together.
fn three(name: &str, mode: &str) -> Run {
    run(name)
        .in_mode(mode)
        .template_of_class("source", MOVABLE_STORAGE_CLASS)
        .task("one", &["source"], &[])
        .asking("1")
        .task("two", &["source"], &["one"])
        .asking("2")
        .task("three", &["source"], &["one"])
        .asking("1")
}

/// The placeholder's pod once it is bound and asks for its own requests alone.
async fn settled(scene: &Scene<'_>) -> anyhow::Result<Arc<Pod>> {
    let is_settled =
        |pod: &Pod| is_placeholder(pod) && node(pod).is_some() && asks(pod).milli_cpu == OWN;
    let pods = scene
        .until_all::<Pod>("have a placeholder that gave its room up", |pods| {
            pods.iter().any(|pod| is_settled(pod))
        })
        .await?;
    Ok(pods.into_iter().find(|pod| is_settled(pod)).unwrap())
}

#[test]
fn b3_a_placeholder_is_bound_where_the_whole_run_fits_twenty_times_of_twenty() -> Outcome {
    shared(async |scene| {
        let sizes = [("1500m", 110), ("2500m", 110), ("4", 110)];
        scene.pool_of(&sizes).await?;
        let waits = Waits::follow(&scene).await?;
        for number in 0..20 {
            let name = format!("run-{number}");
            let mode = MODES[number % 3];
            let began = Instant::now();
            scene.submit(three(&name, mode).in_pool_of(&scene)).await?;
            let placeholder = settled(&scene).await?;
            let took = began.elapsed();
            assert!(took < AT_ONCE, "{name} in {mode}: {took:?}");
            let third = scene.pool_node(3);
            assert_eq!(node(&placeholder), Some(third.as_str()), "{name} in {mode}");
            scene.succeeds(&name).await?;
            scene.nothing_left_but(&[]).await?;
            let told = scene.told_so_far(&name).await?;
            assert!(
                told.iter().all(|(code, _)| code != "PlaceholderMoved"),
                "{told:?}"
            );
        }
        let longest = waits.longest();
        println!("the longest wait: {longest:?}");
        assert!(
            longest.as_ref().is_none_or(|wait| wait.time < HAND_OVER),
            "{longest:?}"
        );
        Ok(())
    })
}

#[test]
fn b3_where_no_node_has_room_for_all_the_largest_pod_counts_and_the_others_take_turns() -> Outcome {
    shared(async |scene| {
        scene.pool_of(&[("1500m", 110), ("2500m", 110)]).await?;
        scene
            .submit(three("run", "pipelineruns").in_pool_of(&scene))
            .await?;
        let placeholder = settled(&scene).await?;
        assert_eq!(node(&placeholder), Some(scene.pool_node(2).as_str()));
        scene.told("run", "ReservationReduced").await?;
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

/// The first quota holds each pod of the run, but not the two that run side by side. The second one holds them all: a reservation would
/// be granted, and where such a quota is nearly used up, it would compete with the run's first pod.
#[test]
fn b3_a_quota_that_holds_no_reservation_does_not_keep_a_run_from_starting() -> Outcome {
    shared(async |scene| {
        let stack = scene.stack;
        try_join_all(["2", "8"].map(async |cpu| {
            let scene = stack.scene().await?;
            starts_at_once_under_quota(&scene, cpu)
                .await
                .with_context(|| format!("a quota of {cpu} CPUs"))
        }))
        .await?;
        Ok(())
    })
}

async fn starts_at_once_under_quota(scene: &Scene<'_>, cpu: &str) -> Outcome {
    // A quota asks for a request of each container.
    let small: LimitRange = serde_json::from_value(json!({
        "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1m"}}]},
    }))?;
    let quota: ResourceQuota = serde_json::from_value(json!({
        "metadata": {"name": "cpu"},
        "spec": {"hard": {"requests.cpu": cpu}},
    }))?;
    let params = PostParams::default();
    scene.api::<LimitRange>().create(&params, &small).await?;
    scene.api::<ResourceQuota>().create(&params, &quota).await?;
    let run = run("run")
        .in_mode("pipelineruns")
        .template("source")
        .task("one", &["source"], &[])
        .asking("1500m")
        .task("two", &["source"], &["one"])
        .asking("1500m")
        .task("three", &["source"], &["one"])
        .asking("1500m");
    let began = Instant::now();
    scene.submit(run).await?;
    let starts = |pod: &Pod| !is_placeholder(pod) && node(pod).is_some();
    let mut asked = 0;
    scene
        .until_all::<Pod>("have a bound task pod", |pods| {
            let placeholders = pods.iter().filter(|pod| is_placeholder(pod));
            let asks = placeholders.map(|pod| asks(pod).milli_cpu);
            asked = asks.fold(asked, i128::max);
            pods.iter().any(|pod| starts(pod))
        })
        .await?;
    let took = began.elapsed();
    ensure!(took < AT_ONCE, "{took:?}");
    ensure!(asked <= OWN, "the placeholder asked for {asked}");
    scene.told("run", "ReservationReduced").await?;
    scene.succeeds("run").await?;
    scene.nothing_left_but(&[]).await
}

/// The placeholder then asks for the largest pod, so it is not bound to the emptier node, which has no room for that.
#[test]
fn b3_where_a_limit_range_forbids_all_the_placeholder_asks_for_the_largest_pod() -> Outcome {
    shared(async |scene| {
        let four: LimitRange = serde_json::from_value(json!({
            "metadata": {"name": "four"},
            "spec": {"limits": [{"type": "Container", "max": {"cpu": "4"},
                "default": {"cpu": "4"}, "defaultRequest": {"cpu": "1m"}}]},
        }))?;
        let params = PostParams::default();
        scene.api::<LimitRange>().create(&params, &four).await?;
        scene.pool_of(&[("2", 110), ("8", 110)]).await?;
        stranger(&scene, &scene.pool_node(2), "4").await?;
        let run = run("run")
            .in_mode("pipelineruns")
            .template("source")
            .in_pool_of(&scene)
            .task("one", &["source"], &[])
            .asking("100m")
            .task("two", &["source"], &["one"])
            .asking("3")
            .task("three", &["source"], &["one"])
            .asking("3");
        scene.submit(run).await?;
        let placeholder = settled(&scene).await?;
        assert_eq!(node(&placeholder), Some(scene.pool_node(2).as_str()));
        let told = scene.told("run", "ReservationRefused").await?;
        assert!(
            told.iter()
                .any(|(_, text)| text.contains("asks for cpu 3050m")),
            "{told:?}"
        );
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

/// As Kubernetes before 1.33, which has no `pods/resize`.
#[test]
fn b3_if_every_resize_is_refused_a_run_starts_without_a_reservation_and_its_author_hears_it()
-> Outcome {
    shared(async |scene| {
        let allowed = "!variables.resizes";
        scene.refuse(Refusal::Invalid, allowed).await?;
        scene.pool_of(&[("8", 110)]).await?;
        let run = three("run", "pipelineruns").in_pool_of(&scene);
        scene.submit(run).await?;
        scene.told("run", "ReservationRefused").await?;
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

/// The placeholder is created again, and returns to the pods of its run.
#[test]
fn b3_a_reservation_that_cannot_be_given_up_has_an_end() -> Outcome {
    shared(async |scene| {
        let allowed = "!variables.resizes || !has(object.spec.nodeName)";
        scene.refuse(Refusal::Invalid, allowed).await?;
        // The first task does not fit beside the reservation.
        scene.pool_of(&[("4", 110)]).await?;
        let run = three("run", "pipelineruns").held("one").in_pool_of(&scene);
        scene.submit(run).await?;
        let placeholder = settled(&scene).await?;
        assert_eq!(node(&placeholder), Some(scene.pool_node(1).as_str()));
        scene.end("run", "one").await?;
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn b3_a_placeholder_that_is_lost_returns_to_its_runs_pods() -> Outcome {
    shared(async |scene| {
        scene.pool_of(&[("4", 110), ("8", 110)]).await?;
        let run = three("run", "pipelineruns").held("one").in_pool_of(&scene);
        scene.submit(run).await?;
        let lost = settled(&scene).await?;
        let running = |pod: &Arc<Pod>| {
            let phase = pod
                .status
                .as_ref()
                .and_then(|status| status.phase.as_deref());
            !is_placeholder(pod) && phase == Some("Running")
        };
        scene
            .until_all::<Pod>("run", |pods| pods.iter().any(running))
            .await?;
        let name = lost.name_any();
        scene
            .api::<Pod>()
            .delete(&name, &DeleteParams::default())
            .await?;
        scene
            .until_all::<Pod>("have another placeholder", |pods| {
                let back = |pod: &&Arc<Pod>| pod.name_any() == name && pod.uid() != lost.uid();
                pods.iter()
                    .find(back)
                    .is_some_and(|pod| node(pod).is_some())
            })
            .await?;
        assert_eq!(node(&*settled(&scene).await?), node(&lost));
        scene.end("run", "one").await?;
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

/// A pod of no run is as large as the room that the placeholder keeps for two tasks.
#[test]
fn b3_with_peak_nobody_else_takes_the_room_of_the_runs_next_pods() -> Outcome {
    shared(async |scene| {
        scene.pool_of(&[("4", 110)]).await?;
        let run = three("run", "pipelineruns").held("one").held("two");
        let run = run.reserving(Reserves::Peak).in_pool_of(&scene);
        scene.submit(run).await?;
        asks_for(&scene, 2000).await?;
        let stranger = asking_pod(&scene, "2");
        let api = scene.api::<Pod>();
        api.create(&PostParams::default(), &stranger).await?;
        let is_stranger = |pod: &Pod| pod.name_any() == stranger.name_any();
        scene
            .until_all::<Pod>("have a stranger that waits", |pods| {
                pods.iter()
                    .any(|pod| is_stranger(pod) && is_unschedulable(pod))
            })
            .await?;
        scene.end("run", "one").await?;
        let tasks = |pods: &[Arc<Pod>]| {
            let bound = pods.iter().filter(|pod| {
                let task = pod.labels().get("tekton.dev/pipelineTask");
                task.is_some_and(|task| task != "one") && node(pod).is_some()
            });
            bound.count() == 2
        };
        let pods = scene
            .until_all::<Pod>("have bound pods of two and three", |pods| tasks(pods))
            .await?;
        let stranger = pods.iter().find(|pod| is_stranger(pod)).unwrap();
        assert_eq!(node(stranger), None);
        scene.end("run", "two").await?;
        scene.succeeds("run").await?;
        let told = scene.told_so_far("run").await?;
        assert!(
            !told.iter().any(|(code, _)| code == "PlaceholderMoved"),
            "{told:?}"
        );
        scene.nothing_left_but(&[]).await
    })
}

/// Waits for a bound placeholder that asks for this much CPU beside its own.
async fn asks_for(scene: &Scene<'_>, milli_cpu: i128) -> Outcome {
    let is = |pod: &Pod| {
        is_placeholder(pod) && node(pod).is_some() && asks(pod).milli_cpu == OWN + milli_cpu
    };
    let what = format!("have a placeholder that keeps {milli_cpu} thousandths of CPU");
    scene
        .until_all::<Pod>(&what, |pods| pods.iter().any(|pod| is(pod)))
        .await?;
    Ok(())
}

/// A pod of no run in the pool, with this CPU request.
fn asking_pod(scene: &Scene<'_>, cpu: &str) -> Pod {
    let pod = json!({
        "metadata": {"name": "stranger"},
        "spec": {
            "nodeSelector": {"example.dev/pool": scene.namespace},
            "containers": [{"name": "c", "image": "example/image", "resources": {"requests": {"cpu": cpu}}}],
        },
    });
    serde_json::from_value(pod).unwrap()
}
