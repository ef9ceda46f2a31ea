//! Two replicas of every service: one of them may go at any time, and no two of them ever do what is for one alone.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::future::{join_all, try_join_all};
use integration_tests::leases::{LED, leads};
use integration_tests::look::node;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_with};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use testbed::Config;
use testbed::services::{Service, ServicesConfig};

type Outcome = anyhow::Result<()>;

/// Runs beside each of the ten kills.
const WAVE: usize = 10;

/// How long a replica of the webhook that has just been killed may be in the way of a new run.
const REFUSED: Duration = Duration::from_secs(30);

fn two_replicas(services: &mut ServicesConfig) {
    services.replicas = 2;
}

fn two_tasks(name: &str) -> Run {
    run(name)
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
}

fn of(pod: &Pod) -> &str {
    &pod.labels()["tekton.dev/pipelineRun"]
}

/// Submits a run as a person would who tries again where the API server could not reach the webhook: the connection to the
/// replica that was killed breaks, and the API server does not ask another one. Answers how often it was refused.
async fn submit(scene: &Scene<'_>, run: Run) -> anyhow::Result<usize> {
    let attempts = async {
        let mut refused = 0;
        loop {
            match scene.submit(run.clone()).await {
                Ok(_) => return Ok(refused),
                Err(error) if error.to_string().contains("failed calling webhook") => refused += 1,
                Err(error) => return Err(error),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(REFUSED, attempts).await?
}

#[test]
fn n5_each_of_two_replicas_is_killed_once_and_a_hundred_runs_succeed() -> Outcome {
    let config = Config {
        node_cpu: "64".to_owned(),
        node_memory: "256Gi".to_owned(),
        pods_per_node: 500,
        ..Config::default()
    };
    alone_with(config, two_replicas, async |scene| {
        let services = &scene.stack.services;
        let observer = scene.observe_leaders();
        for service in LED {
            scene.leader(service).await?;
        }
        let mut all = Vec::new();
        for replica in Service::ALL
            .into_iter()
            .flat_map(|service| services.replicas(service))
        {
            let names: Vec<_> = (0..WAVE)
                .map(|index| format!("{replica}-{index}"))
                .collect();
            let (before, after) = names.split_at(WAVE / 2);
            let create = |names: &[String]| {
                let submitted = names.iter().map(|name| submit(scene, two_tasks(name)));
                try_join_all(submitted.collect::<Vec<_>>())
            };
            create(before).await?;
            scene
                .until_all::<Pod>("have a running task of this wave", |pods| {
                    pods.iter().any(|pod| {
                        let phase = pod
                            .status
                            .as_ref()
                            .and_then(|status| status.phase.as_deref());
                        let run = pod.labels().get("tekton.dev/pipelineRun");
                        phase == Some("Running") && run.is_some_and(|run| before.contains(run))
                    })
                })
                .await?;
            let led = LED.contains(&replica.service()) && leads(services, replica).await;
            services.kill(replica)?;
            let refused: usize = create(after).await?.into_iter().sum();
            // Whoever asks a replica of ours that was killed asks the other one.
            let by_the_api_server = replica.service() == Service::AdmissionWebhook;
            assert!(
                refused == 0 || by_the_api_server,
                "{refused} refusals while {replica} was down"
            );
            // The other replica alone sees them through.
            for outcome in join_all(names.iter().map(|name| scene.succeeds(name))).await {
                outcome.with_context(|| format!("while {replica} was down"))?;
            }
            if led {
                // The killed one would stand for election again.
                scene.leader(replica.service()).await?;
            }
            services.start_service(replica)?;
            services.wait_ready().await?;
            all.extend(names);
        }
        assert_eq!(all.len(), 100);
        let pods = scene.objects().await?.task_pods;
        let mut nodes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for pod in &pods {
            nodes.entry(of(pod)).or_default().push(node(pod).unwrap());
        }
        for name in &all {
            let nodes = &nodes[name.as_str()];
            // Two tasks, two pods: nothing had to be tried twice.
            assert_eq!(nodes.len(), 2, "{name}");
            assert_eq!(BTreeSet::from_iter(nodes).len(), 1, "{name}");
        }
        scene.nothing_left_but(&[]).await?;

        let (handovers, leaders) = observer.verdict()?;
        // Each of two leaders was killed, so that the other one took over.
        let both: BTreeSet<_> = LED
            .into_iter()
            .flat_map(|service| services.replicas(service))
            .collect();
        assert_eq!(leaders, both);
        ensure!(handovers >= 2, "{handovers} handovers were seen");
        anyhow::Ok(())
    })
}

#[test]
fn n6_a_leader_that_was_paused_over_a_completion_creates_nothing_and_ends() -> Outcome {
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    alone_with(config, two_replicas, async |scene| {
        let services = &scene.stack.services;
        let observer = scene.observe_leaders();
        for service in LED {
            let paused = scene.leader(service).await?;
            let name = format!("without-{service}");
            scene.submit(two_tasks(&name).lasting("one", 3)).await?;
            scene.placeholder().await?;
            services.pause(paused)?;
            scene.succeeds(&name).await?;
            scene.nothing_left_but(&[]).await?;
            let others = services.replicas(service).filter(|other| *other != paused);
            scene
                .leader_among(others)
                .await
                .context("nobody took over")?;

            let mark = scene.mark()?;
            services.resume(paused)?;
            let code = services.ended(paused).await?;
            assert_eq!(code, Some(1), "{paused} has lost its Lease");
            let created: Vec<_> = scene
                .requests_since(mark)?
                .into_iter()
                .filter(|request| request.is_by(Service::PlaceholderManager) && request.is_write())
                .filter(|request| request.object.resource != "leases")
                .collect();
            assert!(created.is_empty(), "{created:#?}");
            services.start_service(paused)?;
            services.wait_ready().await?;
            scene.nothing_left_but(&[]).await?;
        }
        observer.verdict()?;
        anyhow::Ok(())
    })
}
