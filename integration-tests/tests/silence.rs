//! The connections of each service in turn are frozen: they stay open and carry no data, but new connections do. The service
//! closes the frozen connections within 45 seconds. Within a minute, a new run gets its placeholder, a placeholder leaves a
//! cordoned node, and a changed configuration is in force (N9).
#![allow(clippy::print_stdout)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_core::config::Reserves;
use integration_tests::faults::kubelet;
use integration_tests::nodes::NodeEvent;
use integration_tests::runs::run;
use integration_tests::stack::Stack;
use integration_tests::struck::Waiting;
use integration_tests::{Scene, alone_unattended};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::runtime::wait::await_condition;
use testbed::Config;
use testbed::services::{Link, NAMESPACE, Peer, Service, ServicesConfig};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

type Outcome = anyhow::Result<()>;

/// How long a service may keep a frozen connection.
const SILENCE: Duration = Duration::from_secs(45);
const MINUTE: Duration = Duration::from_secs(60);
/// The time between two checks of the open connections.
const LOOK: Duration = Duration::from_millis(200);

/// Freezes the connections of one service after the other. The services have these environment variables. Only services in
/// `may_end` may end by themselves; they are then restarted.
fn each_service_in_turn(environment: &[(&str, &str)], may_end: &[Service]) -> Outcome {
    let change = |services: &mut ServicesConfig| {
        services.links = true;
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        services.environment = environment.iter().map(owned).collect();
    };
    alone_unattended(Config::default(), change, async |scene| {
        let (restarted, _) = watch::channel(BTreeSet::new());
        let reserves = [Reserves::Nothing, Reserves::Placement].into_iter().cycle();
        for (service, reserves) in Service::ALL.into_iter().zip(reserves) {
            let frozen = async {
                freeze(scene.stack, service, reserves).await?;
                renewed(scene.stack).await
            };
            tokio::select! {
                outcome = frozen => outcome.with_context(|| format!("{service} frozen"))?,
                never = kubelet(&scene.stack.services, &restarted) => match never? {},
            }
            scene.stack.services.wait_ready().await?;
            let ended = restarted.borrow().clone();
            let expected = ended.iter().all(|ended| may_end.contains(ended));
            ensure!(expected, "{service} frozen: {ended:?} ended");
        }
        Ok(())
    })
}

/// Freezes all connections from and to a service. At the same time, cordons the node of a placeholder, creates a run and
/// changes the configuration.
async fn freeze(stack: &Stack, service: Service, reserves: Reserves) -> Outcome {
    let waiting = Waiting::at_gate(stack, None).await?;
    let scene = stack.scene().await?;
    let frozen = connections(stack, service)?;
    ensure!(!frozen.is_empty(), "it has no connections");
    for link in links(service) {
        stack.services.freeze(link)?;
    }

    let closed = async {
        while !frozen.is_disjoint(&connections(stack, service)?) {
            sleep(LOOK).await;
        }
        Ok(())
    };
    let moved = async {
        let moved = waiting.moves(NodeEvent::Cordon, MINUTE).await?;
        moved.context("the placeholder is still on the cordoned node")
    };
    let (closed, moved, created, configured) = tokio::try_join!(
        within(SILENCE, "all connections were closed", closed),
        moved,
        within(MINUTE, "the new run has a placeholder", new_run(&scene)),
        within(
            MINUTE,
            "the configuration changed",
            scene.set_reserves(reserves)
        ),
    )?;
    println!(
        "{service}: closed {} after {closed:.1?}, moved {moved:.1?}, placeholder {created:.1?}, configuration {configured:.1?}",
        frozen.len()
    );
    scene.succeeds("new").await.map(drop)
}

/// Waits until each leader has renewed its Lease, or has lost it, has ended, and was replaced.
async fn renewed(stack: &Stack) -> Outcome {
    let now = Timestamp::now();
    let leases: Api<Lease> = Api::namespaced(stack.bed.client(), NAMESPACE);
    let is_renewed = |lease: Option<&Lease>| {
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        let time = spec.and_then(|spec| spec.renew_time.as_ref());
        time.is_some_and(|time| time.0 > now)
    };
    for service in [Service::PlaceholderManager, Service::Watcher] {
        let renewed = await_condition(leases.clone(), service.name(), is_renewed);
        let renewed = timeout(MINUTE, renewed).await;
        renewed.with_context(|| format!("the Lease of {service} is not renewed"))??;
    }
    Ok(())
}

/// Creates a run. Tries again until the run is admitted, because the API server cannot reach the webhook over a frozen
/// connection. Then waits until the run's placeholder is bound.
async fn new_run(scene: &Scene<'_>) -> Outcome {
    let new = || run("new").template("source").task("one", &["source"], &[]);
    while let Err(error) = scene.submit(new()).await {
        let refusal = format!("{error:#}");
        ensure!(refusal.contains("failed calling webhook"), "{refusal}");
    }
    scene.placeholder().await.map(drop)
}

async fn within(
    limit: Duration,
    what: &str,
    work: impl Future<Output = Outcome>,
) -> anyhow::Result<Duration> {
    let since = Instant::now();
    let done = timeout(limit, work).await;
    done.with_context(|| format!("after {limit:?} it does not hold that {what}"))??;
    Ok(since.elapsed())
}

/// The links from and to a service.
fn links(service: Service) -> impl Iterator<Item = Link> {
    let peer = service.into();
    Link::all().filter(move |link| [link.from, link.to].contains(&peer))
}

/// The established connections of a service's links, from the service's end: the service's own port, and the other port.
fn connections(stack: &Stack, service: Service) -> anyhow::Result<BTreeSet<(u16, u16)>> {
    let services = &stack.services;
    let ports = services.ports();
    let (mut served, mut called) = (Vec::new(), Vec::new());
    for link in links(service) {
        match link.from {
            Peer::ApiServer => served.push(ports.admission()),
            Peer::Service(from) if from == service => called.push(services.link_port(link)?),
            Peer::Service(_) => served.push(ports.grpc(service)),
        }
    }
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let mut connections: BTreeSet<_> = table.lines().filter_map(established).collect();
    connections.retain(|(own, other)| served.contains(own) || called.contains(other));
    Ok(connections)
}

/// The two ports of an established connection in the kernel's table (`0: 0100007F:2382 0100007F:A1B2 01 …`).
fn established(line: &str) -> Option<(u16, u16)> {
    let mut columns = line.split_whitespace().skip(1);
    let mut port = || u16::from_str_radix(columns.next()?.split_once(':')?.1, 16).ok();
    let ports = (port()?, port()?);
    (columns.next()? == "01").then_some(ports)
}

#[test]
fn n9_frozen_connections_delay_no_placeholder_and_no_evacuation_by_a_minute() -> Outcome {
    // The leaders lose their Leases and end, and are then restarted.
    each_service_in_turn(&[], &[Service::PlaceholderManager, Service::Watcher])
}

#[test]
fn n9_each_service_replaces_its_frozen_connections_itself() -> Outcome {
    // No service ends, because the Leases are valid for longer than a frozen connection stays open.
    let leases = [
        ("LEADER_ELECT_LEASE_DURATION", "120s"),
        ("LEADER_ELECT_RENEW_DEADLINE", "110s"),
    ];
    each_service_in_turn(&leases, &[])
}
