//! Placeholders that reserve room (B3): they are bound where the whole run fits, and give the room up at once.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use coscheduler_kubernetes::needs::asks;
use integration_tests::look::{is_placeholder, node};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, shared_with_overrides};
use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;
use testbed::services::Service;
use testbed::{Config, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
/// CPU that a placeholder asks for itself, in thousandths.
const OWN: i128 = 50;

/// On a stack whose placeholders reserve room, and on which each run chooses its mode.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    let reserve = |services: &mut testbed::services::ServicesConfig| {
        services.flags = [("placeholder-reserves".to_owned(), "placement".to_owned())].into();
    };
    shared_with_overrides(config, reserve, test)
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

fn is_gated(pod: &Pod) -> bool {
    let gates = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
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
        for number in 0..20 {
            let name = format!("run-{number}");
            let mode = MODES[number % 3];
            scene.submit(three(&name, mode).in_pool_of(&scene)).await?;
            let placeholder = settled(&scene).await?;
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

#[test]
fn b3_a_quota_that_forbids_the_reservation_does_not_keep_the_placeholder() -> Outcome {
    shared(async |scene| {
        // A quota asks for a request of each container.
        let small: LimitRange = serde_json::from_value(json!({
            "metadata": {"name": "small"},
            "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "1m"}}]},
        }))?;
        let quota: ResourceQuota = serde_json::from_value(json!({
            "metadata": {"name": "cpu"},
            "spec": {"hard": {"requests.cpu": "2"}},
        }))?;
        let params = PostParams::default();
        scene.api::<LimitRange>().create(&params, &small).await?;
        scene.api::<ResourceQuota>().create(&params, &quota).await?;
        let never = json!([{"input": "a", "operator": "in", "values": ["b"]}]);
        let run = run("run")
            .in_mode("pipelineruns")
            .template("source")
            .task("one", &["source"], &[])
            .asking("1500m")
            .task("never", &["source"], &["one"])
            .asking("4")
            .with("when", never);
        scene.submit(run).await?;
        scene.told("run", "ReservationRefused").await?;
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

/// The manager dies before it gives room up, and while the pod has its gate.
#[test]
fn n5_b3_a_manager_that_dies_leaves_no_reservation_and_no_gate() -> Outcome {
    shared(async |scene| {
        let services = &scene.stack.services;
        let manager = Service::PlaceholderManager;
        scene.pool_of(&[("8", 110)]).await?;
        scene.cordon(&scene.pool_node(1), true).await?;
        let run = three("run", "pipelineruns").held("one").in_pool_of(&scene);
        scene.submit(run).await?;
        let placeholder = async |what: &str, is: fn(&Pod) -> bool| {
            let wanted = |pods: &[Arc<Pod>]| pods.iter().any(|pod| is_placeholder(pod) && is(pod));
            scene.until_all::<Pod>(what, wanted).await
        };
        let waits = "have a placeholder that waits for room";
        placeholder(waits, |pod| {
            node(pod).is_none() && !is_gated(pod) && asks(pod).milli_cpu > OWN
        })
        .await?;
        services.kill(manager)?;
        scene.cordon(&scene.pool_node(1), false).await?;
        let bound = "have a placeholder that holds room";
        placeholder(bound, |pod| {
            node(pod).is_some() && asks(pod).milli_cpu > OWN
        })
        .await?;
        services.start_service(manager)?;
        let first = settled(&scene).await?;

        services.kill(manager)?;
        let name = first.name_any();
        scene
            .api::<Pod>()
            .delete(&name, &DeleteParams::default())
            .await?;
        placeholder("have a placeholder with a gate", is_gated).await?;
        services.start_service(manager)?;
        settled(&scene).await?;
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
