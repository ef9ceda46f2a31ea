//! A table of faults. Each fault happens while runs of every mode are in progress and new runs are created. The tasks of every
//! run succeed on one node, each task has one pod, and nothing is left (N5).
//!
//! The faults of one kind happen one after the other on one stack. `outages.rs` tests longer faults, and `replicas.rs` tests two
//! replicas of each service.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use coscheduler_core::annotations::MODE;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::future::{join_all, try_join_all};
use integration_tests::faults::{Fault, kubelet};
use integration_tests::look::{self, LIMIT, node};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_unattended};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;
use testbed::Config;
use testbed::services::{Link, Peer, Service, ServicesConfig};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];

/// The documented refusal of a new run while a service is down.
const REFUSAL: &str = "failed calling webhook";

/// The pause between two attempts to create a refused run.
const PAUSE: Duration = Duration::from_millis(200);

/// The outcome of creating a run.
#[derive(Clone, Copy, Debug, Default)]
struct Creation {
    refusals: usize,
    is_done: bool,
}

type Creations = watch::Sender<BTreeMap<&'static str, Creation>>;

/// A run with two tasks that share a claim. In every mode, the claim is deleted after the run has ended.
fn two_tasks(when: &str, mode: &str) -> Run {
    let annotations = json!({"tekton.dev/auto-cleanup-pvc": "true"});
    run(&format!("{when}-{mode}"))
        .metadata("annotations", annotations)
        .in_mode(mode)
        .template("source")
        .task("one", &["source"], &[])
        .task("two", &["source"], &["one"])
}

fn tasks_of<'a>(pods: impl Iterator<Item = &'a Pod>, run: &str) -> Vec<&'a Pod> {
    let label = |pod: &'a Pod, key: &str| pod.labels().get(key).map(String::as_str);
    pods.filter(|pod| label(pod, "tekton.dev/pipelineRun") == Some(run))
        .filter(|pod| label(pod, "tekton.dev/taskRun").is_some())
        .collect()
}

fn is_running(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Running")
}

/// Tests these faults on one stack, one after the other.
fn matrix(faults: impl Iterator<Item = Fault>) -> Outcome {
    let config = Config {
        nodes: 8,
        task_duration: Duration::from_millis(200),
        ..Config::default()
    };
    let change = |services: &mut ServicesConfig| services.links = true;
    alone_unattended(config, change, async |scene| {
        scene.stack.allow_overrides().await?;
        for fault in faults {
            let scene = scene.stack.scene().await?;
            let (restarted, seen) = watch::channel(BTreeSet::new());
            let services = &scene.stack.services;
            let outcome = tokio::select! {
                outcome = befall(&scene, fault, seen) => outcome,
                never = kubelet(services, &restarted) => match never? {},
            };
            outcome.with_context(|| fault.to_string())?;
        }
        anyhow::Ok(())
    })
}

/// Begins the fault when the first task of a run in each mode runs. During the fault, these tasks end, so that Tekton creates the
/// second tasks, and a new run of each mode is created. Then waits until all runs have succeeded.
async fn befall(
    scene: &Scene<'_>,
    fault: Fault,
    mut restarted: watch::Receiver<BTreeSet<Service>>,
) -> Outcome {
    let stack = scene.stack;
    for mode in MODES {
        // On a busy machine, a service may have lost its Lease during the previous fault, and is perhaps starting again.
        look::until("a run is created before the fault", async || {
            let submitted = scene.submit(two_tasks("midst", mode).held("one")).await;
            match submitted.map_err(|error| format!("{error:#}")) {
                Ok(_) => Ok(true),
                Err(refusal) if refusal.contains(REFUSAL) => Ok(false),
                Err(error) => bail!(error),
            }
        })
        .await?;
    }
    scene
        .until_all::<Pod>("have a running task of each run", |pods| {
            MODES.iter().all(|mode| {
                let pods = pods.iter().map(AsRef::as_ref);
                tasks_of(pods, &format!("midst-{mode}"))
                    .iter()
                    .any(|pod| is_running(pod))
            })
        })
        .await?;

    fault.strike(stack)?;
    let creations = Creations::default();
    let created = try_join_all(
        MODES
            .iter()
            .map(|mode| create(scene, fault, mode, &creations)),
    );
    let ended = try_join_all(MODES.iter().map(|mode| end(scene, mode)));
    let lasted = async {
        let meanwhile = async {
            let creations = tried(&creations, fault);
            let (_, creations) = tokio::join!(sleep(fault.duration()), creations);
            creations?;
            if fault == Fault::EtcdSlow {
                see_through(scene).await?;
            }
            anyhow::Ok(())
        };
        fault.last(stack, meanwhile).await?;
        fault.heal(stack).await
    };
    tokio::try_join!(created, ended, lasted)?;

    see_through(scene).await?;
    // On a busy machine, other services may lose their Leases too, and are then restarted.
    let expected = fault.ends();
    let ended = restarted.wait_for(|ended| ended.is_superset(&expected));
    let ended = timeout(LIMIT, ended).await;
    drop(ended.with_context(|| format!("{expected:?} should have ended by itself"))??);
    stack.services.wait_ready().await?;
    stack.bed.check()
}

/// Creates a run, and tries again after each refusal.
async fn create(
    scene: &Scene<'_>,
    fault: Fault,
    mode: &'static str,
    creations: &Creations,
) -> Outcome {
    let tell = |change: fn(&mut Creation)| {
        creations.send_modify(|creations| change(creations.entry(mode).or_default()));
    };
    let mut refusal = None;
    let tries = async {
        while let Err(error) = scene.submit(two_tasks("new", mode)).await {
            // An earlier attempt created the run, but its answer was lost.
            let text = format!("{error:#}");
            if text.contains("already exists") {
                break;
            }
            let is_documented = text.contains(REFUSAL);
            ensure!(
                is_documented || fault == Fault::ApiServerRestarted,
                "{text}"
            );
            refusal = Some(error);
            tell(|creation| creation.refusals += 1);
            sleep(PAUSE).await;
        }
        Ok(())
    };
    let tried = timeout(LIMIT, tries).await;
    tried.with_context(|| format!("the run in {mode} was refused: {refusal:?}"))??;
    tell(|creation| creation.is_done = true);
    Ok(())
}

/// If the fault causes refusals, waits until every new run was refused. Otherwise, waits until every new run was created.
async fn tried(creations: &Creations, fault: Fault) -> Outcome {
    let mut creations = creations.subscribe();
    let all = creations.wait_for(|creations| {
        let met = |creation: &Creation| {
            if fault.refuses_runs() {
                creation.refusals > 0
            } else {
                creation.is_done
            }
        };
        creations.len() == MODES.len() && creations.values().all(met)
    });
    let creations = timeout(LIMIT, all).await;
    let creations = creations.context("new runs are neither created nor refused")??;
    let refused = creations.values().any(|creation| creation.refusals > 0);
    let created = creations.values().any(|creation| creation.is_done);
    ensure!(refused != created, "not as it is documented: {creations:?}");
    Ok(())
}

/// Ends the first task of a run, and retries while the API server does not answer.
async fn end(scene: &Scene<'_>, mode: &str) -> Outcome {
    let run = format!("midst-{mode}");
    let tries = async {
        while scene.end(&run, "one").await.is_err() {
            sleep(PAUSE).await;
        }
    };
    timeout(LIMIT, tries)
        .await
        .with_context(|| format!("task one of {run} does not end"))
}

/// Waits until all runs have succeeded, checks that the pods of each were on one node, and waits until nothing is left.
async fn see_through(scene: &Scene<'_>) -> Outcome {
    let names = ["midst", "new"].map(|when| MODES.map(|mode| (mode, format!("{when}-{mode}"))));
    let names = names.as_flattened();
    for done in join_all(names.iter().map(|(_, name)| scene.succeeds(name))).await {
        done?;
    }
    let pods = scene.objects().await?.task_pods;
    for (mode, name) in names {
        let run = scene.api::<PipelineRun>().get(name).await?;
        let pinned = run.annotations().get(MODE).map(String::as_str);
        assert_eq!(pinned, Some(*mode), "{name}");
        let nodes: Vec<_> = tasks_of(pods.iter(), name)
            .into_iter()
            .map(|pod| node(pod).unwrap())
            .collect();
        // Two pods for two tasks: no task was retried.
        assert_eq!(nodes.len(), 2, "{name}");
        assert_eq!(BTreeSet::from_iter(nodes).len(), 1, "{name}");
    }
    scene.nothing_left_but(&[]).await
}

#[test]
fn n5_runs_of_every_mode_outlive_each_service_killed() -> Outcome {
    matrix(Service::ALL.into_iter().map(Fault::Killed))
}

#[test]
fn n5_runs_of_every_mode_outlive_each_service_paused() -> Outcome {
    matrix(Service::ALL.into_iter().map(Fault::Paused))
}

#[test]
fn n5_runs_of_every_mode_outlive_each_service_cut_off_from_its_neighbours() -> Outcome {
    let between = |link: &Link| link.from != Peer::ApiServer && link.to != Peer::ApiServer;
    matrix(Link::all().filter(between).map(Fault::Cut))
}

#[test]
fn n5_runs_of_every_mode_outlive_each_service_cut_off_from_the_api_server() -> Outcome {
    let with_api_server = |link: &Link| [link.from, link.to].contains(&Peer::ApiServer);
    matrix(Link::all().filter(with_api_server).map(Fault::Cut))
}

#[test]
fn n5_runs_of_every_mode_outlive_the_api_server_restarted_and_a_slow_etcd() -> Outcome {
    matrix([Fault::ApiServerRestarted, Fault::EtcdSlow].into_iter())
}
