//! The work of a leader, seen from outside. The leader repairs deleted objects within a minute (N6), and leadership passes from
//! process to process.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use coscheduler_core::annotations::BLOCKED;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use integration_tests::look::{is_placeholder, until};
use integration_tests::metrics;
use integration_tests::runs::run;
use integration_tests::sets::without_sets;
use integration_tests::{Scene, alone, shared};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt as _};
use testbed::Config;
use testbed::services::{NAMESPACE, Service};
use tokio::time::Instant;

type Outcome = anyhow::Result<()>;

/// The time limit for a repair (N6).
const MINUTE: Duration = Duration::from_secs(60);

/// How long a Lease is valid without a renewal: the services' default.
const DURATION: Duration = Duration::from_secs(15);

/// Waits until there is a StatefulSet with the name of `set` and another uid, within a minute.
async fn comes_back(scene: &Scene<'_>, set: &StatefulSet) -> Outcome {
    let start = Instant::now();
    let before = set.uid();
    let what = "exists again";
    scene
        .until(&set.name_any(), what, |now: Option<&StatefulSet>| {
            now.is_some_and(|now| now.uid() != before)
        })
        .await?;
    ensure!(start.elapsed() < MINUTE, "after {:?}", start.elapsed());
    Ok(())
}

#[test]
fn n6_a_stateful_set_deleted_by_hand_in_the_middle_of_a_run_is_back_within_a_minute() -> Outcome {
    if without_sets() {
        return Ok(());
    }
    shared(async |scene| {
        let one = run("bereft")
            .template("source")
            .task("one", &["source"], &[])
            .lasting("one", 60)
            .task("two", &["source"], &["one"]);
        scene.submit(one).await?;
        let (set, _) = scene.placeholder().await?;
        scene
            .api::<StatefulSet>()
            .delete(&set.name_any(), &DeleteParams::background())
            .await?;
        comes_back(&scene, &set).await?;
        scene.succeeds("bereft").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn n6_a_stateful_set_deleted_without_its_pod_takes_the_pod_back() -> Outcome {
    if without_sets() {
        return Ok(());
    }
    shared(async |scene| {
        let one = run("orphaned")
            .template("source")
            .task("one", &["source"], &[])
            .lasting("one", 60);
        scene.submit(one).await?;
        let (set, pod) = scene.placeholder().await?;
        scene
            .api::<StatefulSet>()
            .delete(&set.name_any(), &DeleteParams::orphan())
            .await?;
        comes_back(&scene, &set).await?;
        let adopted = scene
            .until(&pod.name_any(), "has an owner", |pod: Option<&Pod>| {
                pod.is_some_and(|pod| !pod.owner_references().is_empty())
            })
            .await?;
        assert_eq!(adopted.unwrap().uid(), pod.uid());
        scene.succeeds("orphaned").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn n6_what_is_left_over_while_the_manager_is_down_is_swept() -> Outcome {
    if without_sets() {
        return Ok(());
    }
    alone(Config::default(), async |scene| {
        let services = &scene.stack.services;
        let one = |name: &str| {
            run(name)
                .template("source")
                .task("one", &["source"], &[])
                .held("one")
        };
        scene.submit(one("without-its-stateful-set")).await?;
        let (set, pod) = scene.placeholder().await?;
        scene.submit(one("whole")).await?;
        scene
            .until_all::<Pod>("have two placeholders", |pods| {
                pods.iter().filter(|pod| is_placeholder(pod)).count() == 2
            })
            .await?;
        services.kill(Service::PlaceholderManager)?;
        scene
            .api::<StatefulSet>()
            .delete(&set.name_any(), &DeleteParams::orphan())
            .await?;
        for name in ["without-its-stateful-set", "whole"] {
            scene.end(name, "one").await?;
            scene.succeeds(name).await?;
        }
        let left = scene.objects().await?;
        assert_eq!(left.stateful_sets.len(), 1);
        let orphans: Vec<_> = left
            .placeholders
            .iter()
            .filter(|pod| pod.owner_references().is_empty())
            .map(kube::ResourceExt::uid)
            .collect();
        assert_eq!(orphans, [pod.uid()]);
        services.start_service(Service::PlaceholderManager)?;
        scene.nothing_left_but(&[]).await
    })
}

/// The manager is killed twice: first before a cause has lasted for two seconds, and then after the cause was published.
#[test]
fn b2_n3_the_next_manager_tells_the_cause_once_and_withdraws_it() -> Outcome {
    alone(Config::default(), async |scene| {
        let services = &scene.stack.services;
        let waits = run("waits")
            .template("source")
            .task("one", &["source"], &[]);
        scene.submit(waits.in_pool_of(scene)).await?;
        scene
            .until_all::<Pod>("wait for a node", |pods| {
                pods.len() == 2 && pods.iter().all(|pod| pods::is_unschedulable(pod))
            })
            .await?;
        let code = "PlaceholderUnschedulable";
        // The kinds of the objects that have the Event, in order.
        let told = |events: &[Arc<Event>]| {
            let of_cause = events
                .iter()
                .filter(|it| it.reason.as_deref() == Some(code));
            let kinds = of_cause.filter_map(|it| it.regarding.as_ref()?.kind.clone());
            let mut kinds: Vec<_> = kinds.collect();
            kinds.sort();
            kinds
        };
        let both = ["PipelineRun", "TaskRun"];
        for _ in 0..2 {
            services.kill(Service::PlaceholderManager)?;
            services.start_service(Service::PlaceholderManager)?;
            services.wait_ready().await?;
            scene
                .until_all::<Event>("are told", |events| told(events).len() >= both.len())
                .await?;
            until("the manager leads", async || {
                leads(scene, Service::PlaceholderManager).await
            })
            .await?;
        }
        scene.pool(1).await?;
        scene.succeeds("waits").await?;
        let run = scene
            .until("waits", "has no cause", |run: Option<&PipelineRun>| {
                run.is_some_and(|run| !run.annotations().contains_key(BLOCKED))
            })
            .await?;
        assert!(run.is_some());
        scene.nothing_left_but(&[]).await?;
        let events = scene.api::<Event>().list(&ListParams::default()).await?;
        let events: Vec<_> = events.items.into_iter().map(Arc::new).collect();
        assert_eq!(told(&events), both);
        Ok(())
    })
}

/// Waits until `condition` holds for the Lease of a service, and returns this Lease.
async fn lease(
    scene: &Scene<'_>,
    service: Service,
    condition: impl Fn(Option<&Lease>) -> bool + Clone + Send + Sync,
) -> anyhow::Result<Lease> {
    let leases: Api<Lease> = Api::namespaced(scene.client.clone(), NAMESPACE);
    let wait = await_condition(leases, service.name(), condition);
    let lease = tokio::time::timeout(2 * MINUTE, wait).await??;
    Ok(lease.unwrap_or_default())
}

fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}

async fn leads(scene: &Scene<'_>, service: Service) -> anyhow::Result<bool> {
    let text = metrics::scrape(&scene.stack.services.http_address(service)).await?;
    let gauge = metrics::sum(&text, "coscheduler_leader", &[("lease", service.name())]);
    Ok(gauge == 1.0)
}

#[test]
fn a_lease_goes_from_process_to_process_and_is_made_again_where_it_is_deleted() -> Outcome {
    alone(Config::default(), async |scene| {
        let services = &scene.stack.services;
        for service in [Service::Watcher, Service::PlaceholderManager] {
            let held = |lease: Option<&Lease>| lease.and_then(holder).is_some();
            let first = lease(scene, service, held).await?;
            ensure!(leads(scene, service).await?, "{service}");

            // If somebody deletes the Lease, its holder creates it again and continues to lead.
            let leases: Api<Lease> = Api::namespaced(scene.client.clone(), NAMESPACE);
            leases
                .delete(service.name(), &DeleteParams::default())
                .await?;
            let uid = first.uid();
            let again = lease(scene, service, |lease| {
                lease.is_some_and(|lease| lease.uid() != uid)
            })
            .await?;
            assert_eq!(holder(&again), holder(&first), "{service}");
            assert_eq!(again.labels(), first.labels(), "{service}");
            ensure!(leads(scene, service).await?, "{service}");

            // A process that ends in order releases the Lease, so that the next process leads at once.
            services.terminate(service).await?;
            let free = lease(scene, service, |lease| {
                lease.is_some_and(|lease| holder(lease).is_none())
            })
            .await?;
            assert_eq!(free.uid(), again.uid(), "{service}");
            let start = Instant::now();
            services.start_service(service)?;
            let taken = lease(scene, service, held).await?;
            assert_ne!(holder(&taken), holder(&first), "{service}");
            ensure!(
                start.elapsed() < DURATION,
                "{service}: {:?}",
                start.elapsed()
            );

            // After a process was killed, the next process waits until the Lease has expired, and is ready meanwhile.
            let start = Instant::now();
            services.kill(service)?;
            services.start_service(service)?;
            services.wait_ready().await?;
            let other = |lease: Option<&Lease>| {
                let holder = lease.and_then(holder);
                holder.is_some() && holder != self::holder(&taken)
            };
            lease(scene, service, other).await?;
            ensure!(
                start.elapsed() >= DURATION,
                "{service}: {:?}",
                start.elapsed()
            );
        }
        scene
            .submit(
                run("after")
                    .template("source")
                    .task("one", &["source"], &[]),
            )
            .await?;
        scene.succeeds("after").await?;
        scene.nothing_left_but(&[]).await
    })
}
