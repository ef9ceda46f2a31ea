//! One trial: creates the runs on the bed of one side, and records the events of watches until all runs are done.

use std::time::{Duration, Instant};

use anyhow::bail;
use integration_tests::audit::{self, of_services};
use integration_tests::look::no_placeholder_left;
use integration_tests::pace::{self, Follower};
use integration_tests::room::Room;
use integration_tests::sides::{Side, cpu_of_a_run, cpu_seconds};
use integration_tests::timings::{Timings, Work, percentile};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt as _};
use testbed::services::Services;
use testbed::{Config, TestBed};

use super::report::Figures;
use super::runs::{self, NODE_CPU};
use super::{Options, foreign};

/// The namespace of the runs.
const NAMESPACE: &str = "runs";
/// The number of runs that are created at the same time.
const CREATORS: usize = 16;

pub(crate) async fn measure(side: &Side, options: &Options) -> anyhow::Result<Figures> {
    let config = Config {
        nodes: runs::nodes(options.runs),
        node_cpu: NODE_CPU.to_string(),
        audit_log: true,
        ..Config::default()
    };
    side.measure(config, async |bed, services| {
        on(bed, services, options).await
    })
    .await
}

async fn on(
    bed: &TestBed,
    services: Option<&Services>,
    options: &Options,
) -> anyhow::Result<Figures> {
    for namespace in [NAMESPACE, foreign::NAMESPACE] {
        bed.create_namespace(namespace, &[]).await?;
    }
    let mark = audit::end(bed)?;
    let cpu_before = cpu_seconds(bed, services)?;
    let mut seen = Seen::new()?;
    let pods = Api::all(bed.client());
    let mut follower = Follower::start(&bed.client(), NAMESPACE, pods);
    let compete = foreign::compete(bed.client(), options);
    let create = async {
        // Wait until as many foreign pods are deleted as are created.
        tokio::time::sleep(foreign::stay(options)).await;
        let clients = vec![bed.client(); CREATORS];
        let runs = (0..options.runs).map(|number| runs::numbered(number, options.task_seconds));
        pace::create(&clients, NAMESPACE, None, runs).await
    };
    let limit = Duration::from_secs(options.limit_seconds);
    let all = async {
        tokio::try_join!(
            create,
            follower.until_done(options.runs, |event| seen.pod(event))
        )
    };
    let created = tokio::select! {
        ended = compete => match ended? {},
        done = tokio::time::timeout(limit, all) => done.map(|done| done.map(|(created, ())| created)),
    };
    let Ok(created) = created else {
        bail!(
            "after {limit:?}, {} of {} runs are done; {}",
            follower.done.len(),
            options.runs,
            seen.last_refusal
        );
    };
    let created = created?;
    no_placeholder_left(&bed.client(), NAMESPACE).await?;
    let cpu = cpu_of_a_run(bed, services, &cpu_before, options.runs)?;
    let mut requests = audit::requests(bed, mark)?;
    requests.retain(|request| request.object.namespace == NAMESPACE && request.verb != "watch");
    let a_run = |requests: usize| requests as f64 / options.runs as f64;

    let runs = || {
        let created = created.iter();
        created.map(|(name, creation)| follower.done[name] - creation.since)
    };
    let waited = |work: &Work| work.waited;
    let tasks = || seen.timings.of(NAMESPACE);
    let later = || tasks().filter(|work| work.task != "one").map(waited);
    let foreign = || seen.timings.of(foreign::NAMESPACE).map(waited);
    let makespan = follower.makespan(&created).as_secs_f64();
    Ok(Figures {
        makespan,
        use_percent: runs::use_percent(options.runs, options.task_seconds, makespan),
        run_p50: percentile(runs(), 50),
        run_p99: percentile(runs(), 99),
        wait_p50: percentile(tasks().map(waited), 50),
        wait_p99: percentile(tasks().map(waited), 99),
        later_wait_p50: percentile(later(), 50),
        later_wait_p99: percentile(later(), 99),
        crowded: seen.room.crowded(),
        taken: seen.room.taken(),
        taken_by_foreign: seen.room.taken_by_foreign(),
        moves: seen.room.moves(),
        requests: a_run(requests.len()),
        requests_of_ours: a_run(of_services(requests).len()),
        foreign_wait_p50: percentile(foreign(), 50),
        foreign_wait_p99: percentile(foreign(), 99),
        cpu,
    })
}

/// The state that the watches have shown so far.
struct Seen {
    timings: Timings,
    room: Room,
    /// The scheduler's last message about a waiting pod of a run, for the error of a trial that hangs.
    last_refusal: String,
}

impl Seen {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            timings: Timings::default(),
            room: Room::on_nodes_of(NODE_CPU)?,
            last_refusal: "no pod of a run was refused".to_owned(),
        })
    }

    fn pod(&mut self, event: &Event<Pod>) {
        self.timings.pod(Instant::now(), event);
        self.room.pod(event);
        if let Event::Apply(pod) = event
            && pod.namespace().as_deref() == Some(NAMESPACE)
            && coscheduler_kubernetes::pods::is_unschedulable(pod)
        {
            let conditions = pod
                .status
                .as_ref()
                .and_then(|status| status.conditions.as_ref());
            let mut messages = conditions
                .into_iter()
                .flatten()
                .filter_map(|it| it.message.as_deref());
            self.last_refusal = format!(
                "{}: {}",
                pod.name_any(),
                messages.next().unwrap_or_default()
            );
        }
    }
}
