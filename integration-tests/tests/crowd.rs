//! A large cluster with one crowded run, and other runs whose nodes are cordoned meanwhile (N8, N1).
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::time::Duration;

use anyhow::ensure;
use integration_tests::alone;
use integration_tests::nodes::NodeEvent;
use integration_tests::runs::run;
use integration_tests::struck::Waiting;
use k8s_openapi::api::core::v1::Pod;
use testbed::{Config, LOCAL_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const NODES: usize = 300;
const WAITING: usize = 200;
/// Twice the second that a move takes on an idle cluster.
const MOVED: Duration = Duration::from_secs(2);
/// A move that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn n8_n1_two_hundred_waiting_pods_do_not_hold_up_another_runs_evacuation() -> Outcome {
    let config = Config {
        nodes: NODES,
        ..Config::default()
    };
    alone(config, async |scene| {
        // Each task takes most of a node of eight CPUs, and the claim ties them all to one node.
        let mut crowd = run("crowd").template_of_class("source", LOCAL_STORAGE_CLASS);
        for number in 0..=WAITING {
            let task = format!("task-{number}");
            crowd = crowd.task(&task, &["source"], &[]).asking("5").held(&task);
        }
        scene.submit(crowd).await?;
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(Waiting::at_gate(scene.stack, None).await?);
        }
        let mut waiting = 0;
        while waiting < WAITING {
            // Tekton takes a minute and more to create them all: each step has the usual limit.
            let next = (waiting + 50).min(WAITING);
            scene
                .until_all::<Pod>(&format!("wait, {next} of {WAITING}"), |pods| {
                    let pods = pods.iter();
                    pods.filter(|pod| coscheduler_kubernetes::pods::is_unschedulable(pod))
                        .count()
                        >= next
                })
                .await?;
            waiting = next;
        }
        let mut seconds = Vec::new();
        for other in others {
            seconds.push(other.moves(NodeEvent::Cordon, PATIENCE).await?);
        }
        eprintln!("bound elsewhere after {seconds:.2?}");
        ensure!(
            seconds
                .iter()
                .all(|took| took.is_some_and(|took| took < MOVED)),
            "bound elsewhere after {seconds:.2?}"
        );
        Ok(())
    })
}
