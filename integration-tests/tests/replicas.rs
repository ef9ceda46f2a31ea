//! Two replicas of every service. Any one of them may end at any time, and no two replicas lead at the same time.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::{PipelineRunRef, ReleaseRequest};
use futures::future::{join_all, try_join_all};
use integration_tests::leases::{LED, leads};
use integration_tests::look::node;
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_unattended, alone_with, grpc};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use testbed::Config;
use testbed::services::{Replica, Service, ServicesConfig};
use tokio::task::JoinSet;
use tonic::transport::Channel;

type Outcome = anyhow::Result<()>;

/// The number of runs that are created around each of the ten kills.
const WAVE: usize = 10;

/// How long the API server may continue to call a replica of the webhook that was killed.
const REFUSED: Duration = Duration::from_secs(30);

/// The time of a task in seconds: longer than a process may be paused (ten seconds).
const LONGER_THAN_A_BREAK: u32 = 12;

/// The number of calls to a paused process for each version of a run. The calls wait in the socket of the process.
const CALLS: usize = 20;

fn two_replicas(services: &mut ServicesConfig) {
    services.replicas = 2;
}

fn two_tasks(name: &str) -> Run {
    run(name)
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
}

/// Calls `Release` several times for each of these versions of a run, and ignores the answers. A watcher does not serve
/// `Release`, and refuses these calls.
fn release_again_and_again(manager: Channel, runs: &[PipelineRun]) -> JoinSet<()> {
    let identities = runs.iter().map(|run| PipelineRunRef {
        namespace: run.namespace().unwrap_or_default(),
        name: run.name_any(),
        uid: run.uid().unwrap_or_default(),
        resource_version: run.resource_version().unwrap_or_default(),
    });
    let calls = identities.flat_map(|identity| std::iter::repeat_n(identity, CALLS));
    calls
        .map(|identity| {
            let mut manager = PlaceholderServiceClient::new(manager.clone());
            async move {
                let pipeline_run = Some(identity);
                drop(manager.release(ReleaseRequest { pipeline_run }).await);
            }
        })
        .collect()
}

fn of(pod: &Pod) -> &str {
    &pod.labels()["tekton.dev/pipelineRun"]
}

/// Creates a run. If the API server calls the killed replica of the webhook, it refuses the run, and does not call the other
/// replica. Then tries again. Returns the number of refusals.
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
            // Our own clients call the other replica instead.
            let by_the_api_server = replica.service() == Service::AdmissionWebhook;
            assert!(
                refused == 0 || by_the_api_server,
                "{refused} refusals while {replica} was down"
            );
            // Only the other replica of the service serves these runs.
            for outcome in join_all(names.iter().map(|name| scene.succeeds(name))).await {
                outcome.with_context(|| format!("while {replica} was down"))?;
            }
            if led {
                // Otherwise the killed replica could be elected again.
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
            // Two pods for two tasks: no pod was created twice.
            assert_eq!(nodes.len(), 2, "{name}");
            assert_eq!(BTreeSet::from_iter(nodes).len(), 1, "{name}");
        }
        scene.nothing_left_but(&[]).await?;

        let (handovers, leaders) = observer.verdict()?;
        // The leaders of both services were killed, so each of their replicas has led.
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
fn n6_a_process_that_was_paused_over_a_completion_writes_nothing_and_ends() -> Outcome {
    let config = Config {
        audit_log: true,
        ..Config::default()
    };
    alone_unattended(config, two_replicas, async |scene| {
        let services = &scene.stack.services;
        let observer = scene.observe_leaders();
        for service in LED {
            let leader = scene.leader(service).await?;
            pause_over_a_completion(scene, leader, "leader").await?;
        }
        // A manager serves calls even if it does not lead.
        let leader = scene.leader(Service::PlaceholderManager).await?;
        let standby = services
            .replicas(Service::PlaceholderManager)
            .find(|replica| *replica != leader);
        let standby = standby.context("there are two")?;
        pause_over_a_completion(scene, standby, "standby").await?;
        observer.verdict()?;
        anyhow::Ok(())
    })
}

/// Pauses a process in the middle of a run, and sends calls to it. Resumes the process when the run is cleaned up and another
/// process leads. The process must end without a write.
async fn pause_over_a_completion(scene: &Scene<'_>, paused: Replica, role: &str) -> Outcome {
    let services = &scene.stack.services;
    let name = format!("without-{role}-{paused}");
    let submitted = scene
        .submit(two_tasks(&name).lasting("one", LONGER_THAN_A_BREAK))
        .await?;
    scene.placeholder().await?;
    let certificates = services.certificates(Service::AffinityPlanner.name());
    let address = services.grpc_address_of(paused);
    let channel = grpc::connect_to(&address, certificates.as_deref()).await?;
    services.pause(paused)?;
    let done = scene.succeeds(&name).await?;
    scene.nothing_left_but(&[]).await?;
    let _calls = release_again_and_again(channel, &[submitted, done]);
    let others = services
        .replicas(paused.service())
        .filter(|other| *other != paused);
    scene
        .leader_among(others)
        .await
        .context("nobody took over")?;

    let mark = scene.mark()?;
    let resumed = Timestamp::now();
    services.resume(paused)?;
    let code = services.ended(paused).await?;
    assert_eq!(code, Some(1), "{paused} must notice that it was paused");
    let written: Vec<_> = scene
        .requests_since(mark)?
        .into_iter()
        .filter(|request| request.is_by(Service::PlaceholderManager) && request.is_write())
        .filter(|request| request.object.resource != "leases")
        // The audit log may contain a late entry of the process that leads now.
        .filter(|request| request.received.0 >= resumed)
        .collect();
    assert!(written.is_empty(), "{paused}: {written:#?}");
    services.start_service(paused)?;
    services.wait_ready().await?;
    scene.nothing_left_but(&[]).await
}
