//! Placeholders that reserve room (B3). They are bound to a node that has room for the whole run, and give the room up at once.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_core::config::Reserves;
use coscheduler_core::observed::PodPhase;
use coscheduler_kubernetes::needs::asks;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods::{is_unschedulable, phase};
use futures::future::try_join_all;
use integration_tests::cramped::stranger;
use integration_tests::look::{is_placeholder, node};
use integration_tests::refusing::Refusal;
use integration_tests::runs::{Run, run};
use integration_tests::sets::only_pods;
use integration_tests::waits::Waits;
use integration_tests::{Scene, alone, shared_with_overrides};
use k8s_openapi::api::core::v1::{LimitRange, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
/// The longest time from the creation of a run until its placeholder, or its first pod, is bound. Normally this takes a few
/// seconds. But if a quota refuses a pod, Tekton tries again only after a minute.
const AT_ONCE: Duration = Duration::from_secs(30);
/// The longest time that a pod may wait for the room that its placeholder gives up. Normally this takes one to two seconds, and
/// the scheduler's backoff.
const HAND_OVER: Duration = Duration::from_secs(20);
/// The CPU that a placeholder requests for itself, in thousandths of a CPU.
const OWN: i128 = 50;

/// The sizes of three nodes. The third node has the most free CPUs as soon as a [`stranger`] requests [`TAKEN`] there, but a
/// smaller part of its CPUs is free. So the scheduler prefers the second node for a placeholder that asks only for its largest
/// pod.
const SIZES: [(&str, u32); 3] = [("1500m", 110), ("2500m", 110), ("16", 110)];
const TAKEN: &str = "12";

/// Runs a test on a stack whose placeholders reserve room. Each run may choose its mode.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    shared_with_overrides(config, |_| {}, test)
}

/// A run with a task of one CPU, and then two tasks that request three CPUs together.
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

/// Waits until the placeholder is bound and requests only its own CPU, and returns its pod.
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
        scene.pool_of(&SIZES).await?;
        stranger(&scene, &scene.pool_node(3), TAKEN).await?;
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
            // `ReservationRefused`: the placeholder left its node because its room did not become free.
            let moved = ["PlaceholderMoved", "ReservationRefused"];
            assert!(
                told.iter().all(|(code, _)| !moved.contains(&code.as_str())),
                "{told:?}"
            );
        }
        // The pods of the tasks, and the stranger.
        assert_eq!(waits.bound(), 20 * 3 + 1);
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

/// The first quota has room for each pod of the run, but not for the two parallel pods together. The second quota has room for
/// all pods, so it would allow a reservation. But if such a quota were nearly used up, the reservation would compete with the
/// run's first pod. So the placeholder reserves nothing under any quota.
#[test]
fn b3_a_quota_that_holds_no_reservation_does_not_keep_a_run_from_starting() -> Outcome {
    shared(async |scene| {
        let stack = scene.stack;
        let reserving = [Reserves::Placement, Reserves::Peak];
        let cases = reserving.map(|reserves| [("2", reserves), ("8", reserves)]);
        try_join_all(cases.concat().into_iter().map(async |(cpu, reserves)| {
            let scene = stack.scene().await?;
            starts_at_once_under_quota(&scene, cpu, reserves)
                .await
                .with_context(|| format!("a quota of {cpu} CPUs, {reserves}"))
        }))
        .await?;
        Ok(())
    })
}

async fn starts_at_once_under_quota(scene: &Scene<'_>, cpu: &str, reserves: Reserves) -> Outcome {
    // Under this quota, each container must have a request.
    let small: LimitRange = serde_json::from_value(json!({
        "metadata": {"name": "small"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1m"}}]},
    }))?;
    let params = PostParams::default();
    scene.api::<LimitRange>().create(&params, &small).await?;
    scene.quota(json!({"requests.cpu": cpu})).await?;
    let run = run("run")
        .in_mode("pipelineruns")
        .reserving(reserves)
        .template("source")
        .task("one", &["source"], &[])
        .asking("1500m")
        .task("two", &["source"], &["one"])
        .asking("1500m")
        .task("three", &["source"], &["one"])
        .asking("1500m");
    let began = Instant::now();
    scene.submit(run).await?;
    let mut took = None;
    let mut asked = 0;
    scene
        .until_all::<Pod>("have three task pods that have ended", |pods| {
            let (placeholders, tasks): (Vec<_>, Vec<_>) =
                pods.iter().partition(|pod| is_placeholder(pod));
            let asks = placeholders.iter().map(|pod| asks(pod).milli_cpu);
            asked = asks.fold(asked, i128::max);
            if tasks.iter().any(|pod| node(pod).is_some()) {
                took.get_or_insert_with(|| began.elapsed());
            }
            let ended = tasks.iter().filter(|pod| phase(pod) == PodPhase::Succeeded);
            ended.count() == 3
        })
        .await?;
    ensure!(took.is_some_and(|took| took < AT_ONCE), "{took:?}");
    ensure!(asked == OWN, "the placeholder asked for {asked}");
    scene.told("run", "ReservationReduced").await?;
    scene.succeeds("run").await?;
    scene.nothing_left_but(&[]).await
}

/// A LimitRange does not allow the placeholder to request room for all pods. So the placeholder requests the room of the largest
/// pod. It is not bound to the emptier node, which has too little room for this pod.
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

/// The limits of a placeholder that reserves room are a little higher than its requests.
#[test]
fn b3_where_limits_may_not_exceed_requests_only_a_run_that_reserves_nothing_starts() -> Outcome {
    shared(async |scene| {
        let equal: LimitRange = serde_json::from_value(json!({
            "metadata": {"name": "equal"},
            "spec": {"limits": [{"type": "Container", "maxLimitRequestRatio": {"cpu": "1"},
                "default": {"cpu": "100m"}, "defaultRequest": {"cpu": "100m"}}]},
        }))?;
        let params = PostParams::default();
        scene.api::<LimitRange>().create(&params, &equal).await?;
        let one = |name| {
            let run = run(name).in_mode("pipelineruns").template("source");
            run.task("one", &["source"], &[]).asking("100m")
        };
        scene.submit(one("refused")).await?;
        scene.told("refused", "LimitRangeViolated").await?;
        scene
            .submit(one("starts").reserving(Reserves::Nothing))
            .await?;
        scene.succeeds("starts").await?;
        let runs = scene.api::<PipelineRun>();
        runs.delete("refused", &DeleteParams::background()).await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn b3_without_pods_resize_a_run_starts_without_a_reservation_and_its_author_hears_it() -> Outcome {
    let config = Config {
        nodes: 1,
        resizes_pods: false,
        ..Config::default()
    };
    alone(config, async |scene| {
        scene.stack.allow_overrides().await?;
        // Beside a reservation, the first task would have no room on this node.
        scene.pool_of(&[("4", 110)]).await?;
        for (name, mode) in ["one", "two", "three"].into_iter().zip(MODES) {
            scene.submit(three(name, mode).in_pool_of(scene)).await?;
            scene.told(name, "ReservationRefused").await?;
            scene.succeeds(name).await?;
        }
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn b3_if_every_resize_is_refused_a_run_starts_without_a_reservation_and_its_author_hears_it()
-> Outcome {
    shared(async |scene| {
        let allowed = "!variables.resizes";
        scene.refuse(Refusal::Invalid, allowed).await?;
        scene.pool_of(&[("8", 110)]).await?;
        let run = three("run", "pipelineruns").in_pool_of(&scene);
        scene.submit(run).await?;
        // A placeholder that is only a pod gets all its requests at its creation. Its run ends before the placeholder has held
        // the room for too long.
        if !only_pods() {
            scene.told("run", "ReservationRefused").await?;
        }
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

/// The placeholder's pod is created again, on the node of the run's pods.
#[test]
fn b3_a_reservation_that_cannot_be_given_up_has_an_end() -> Outcome {
    shared(async |scene| {
        let allowed = "!variables.resizes || !has(object.spec.nodeName)";
        scene.refuse(Refusal::Invalid, allowed).await?;
        // The first task has no room beside the reservation.
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

#[test]
fn b3_a_placeholder_that_waits_for_its_claim_is_bound_where_the_whole_run_fits() -> Outcome {
    shared(async |scene| {
        scene.pool_of(&SIZES).await?;
        stranger(&scene, &scene.pool_node(3), TAKEN).await?;
        let bound = json!({"persistentVolumeClaim": {"claimName": "late"}});
        let waits = run("waits")
            .in_mode("pipelineruns")
            .workspace("source", bound);
        let waits = waits.task("one", &["source"], &[]).asking("1");
        let waits = waits.task("two", &["source"], &[]).asking("2");
        scene.submit(waits.in_pool_of(&scene)).await?;
        scene
            .until_all::<Pod>("have a placeholder without a claim", |pods| {
                let mut pods = pods.iter();
                pods.any(|pod| is_placeholder(pod) && is_unschedulable(pod))
            })
            .await?;
        // The run has this Event when the manager has decided about the scheduler's answer.
        scene.told("waits", "ReferenceMissing").await?;
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": "late"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": MOVABLE_STORAGE_CLASS,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }))?;
        scene.api().create(&PostParams::default(), &claim).await?;
        let placeholder = settled(&scene).await?;
        assert_eq!(node(&placeholder), Some(scene.pool_node(3).as_str()));
        scene.succeeds("waits").await?;
        let told = scene.told_so_far("waits").await?;
        assert!(
            told.iter().all(|(code, _)| code != "ReservationReduced"),
            "{told:?}"
        );
        scene.nothing_left_but(&["late"]).await
    })
}

/// In this test, a pod of no run requests as much CPU as the placeholder keeps for two tasks.
#[test]
fn b3_with_peak_nobody_else_takes_the_room_of_pods_that_do_not_exist_yet() -> Outcome {
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
        let is_next = |pod: &Pod| {
            let task = pod.labels().get("tekton.dev/pipelineTask");
            task.is_some_and(|task| task != "one")
        };
        let pods = scene
            .until_all::<Pod>("have a pod of two or three", |pods| {
                pods.iter().any(|pod| is_next(pod))
            })
            .await?;
        let stranger = pods.iter().find(|pod| is_stranger(pod)).unwrap();
        assert_eq!(node(stranger), None);
        // The stranger is deleted, because the scheduler may bind it before later pods of the run from now on.
        api.delete(&stranger.name_any(), &DeleteParams::default())
            .await?;
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

/// Waits until there is a bound placeholder that requests this much CPU for the run.
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
