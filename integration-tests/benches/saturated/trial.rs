//! One trial: creates the runs on the bed of one side, and records the events of watches until all runs are done.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::audit::{self, of_services};
use integration_tests::look::{assert_succeeded, is_done, no_placeholder_left};
use integration_tests::room::Room;
use integration_tests::sides::Side;
use integration_tests::timings::{Timings, Work, percentile};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
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

/// The CPU time that all processes of a side have used, in seconds, by name.
fn cpu_seconds(
    bed: &TestBed,
    services: Option<&Services>,
) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut used = bed.processes().cpu_seconds()?;
    used.extend(services.map_or(Ok(BTreeMap::new()), Services::cpu_seconds)?);
    Ok(used)
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
    let compete = foreign::compete(bed.client(), options);
    let create = async {
        // Wait until as many foreign pods are deleted as are created.
        tokio::time::sleep(foreign::stay(options)).await;
        create(bed.client(), options).await
    };
    let limit = Duration::from_secs(options.limit_seconds);
    let all = async { tokio::try_join!(create, seen.follow(bed.client(), options.runs)) };
    let created = tokio::select! {
        ended = compete => match ended? {},
        done = tokio::time::timeout(limit, all) => done.map(|done| done.map(|(created, ())| created)),
    };
    let Ok(created) = created else {
        bail!(
            "after {limit:?}, {} of {} runs are done; {}",
            seen.done.len(),
            options.runs,
            seen.last_refusal
        );
    };
    let created = created?;
    no_placeholder_left(&bed.client(), NAMESPACE).await?;
    let mut cpu = cpu_seconds(bed, services)?;
    for (process, used) in &mut cpu {
        *used = (*used - cpu_before.get(process).unwrap_or(&0.0)) * 1000.0 / options.runs as f64;
    }
    let mut requests = audit::requests(bed, mark)?;
    requests.retain(|request| request.object.namespace == NAMESPACE && request.verb != "watch");
    let a_run = |requests: usize| requests as f64 / options.runs as f64;

    let first = created
        .values()
        .min()
        .ok_or_else(|| anyhow!("there are no runs"))?;
    let last = seen
        .done
        .values()
        .max()
        .ok_or_else(|| anyhow!("there are no runs"))?;
    let runs = || created.iter().map(|(name, since)| seen.done[name] - *since);
    let waited = |work: &Work| work.waited;
    let tasks = || seen.timings.of(NAMESPACE);
    let later = || tasks().filter(|work| work.task != "one").map(waited);
    let foreign = || seen.timings.of(foreign::NAMESPACE).map(waited);
    let makespan = (*last - *first).as_secs_f64();
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

/// Creates the runs, and returns the time at which each was sent, by name.
async fn create(client: Client, options: &Options) -> anyhow::Result<BTreeMap<String, Instant>> {
    let api: Api<PipelineRun> = Api::namespaced(client, NAMESPACE);
    stream::iter(0..options.runs)
        .map(async |number| {
            let run = runs::numbered(number, options.task_seconds);
            let since = Instant::now();
            let created = run.create(api.clone()).await?;
            anyhow::Ok((created.name_any(), since))
        })
        .buffer_unordered(CREATORS)
        .try_collect()
        .await
}

/// The state that the watches have shown so far.
struct Seen {
    timings: Timings,
    room: Room,
    /// The time at which each run was done, by name.
    done: BTreeMap<String, Instant>,
    /// The scheduler's last message about a waiting pod of a run, for the error of a trial that hangs.
    last_refusal: String,
}

impl Seen {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            timings: Timings::default(),
            room: Room::on_nodes_of(NODE_CPU)?,
            done: BTreeMap::new(),
            last_refusal: "no pod of a run was refused".to_owned(),
        })
    }

    /// Watches until `wanted` runs have succeeded.
    async fn follow(&mut self, client: Client, wanted: usize) -> anyhow::Result<()> {
        let config = watcher::Config::default;
        let pods = watcher(Api::<Pod>::all(client.clone()), config()).default_backoff();
        let runs = watcher(Api::<PipelineRun>::namespaced(client, NAMESPACE), config());
        let (mut pods, mut runs) = (pin!(pods), pin!(runs.default_backoff()));
        while self.done.len() < wanted {
            // The watcher retries errors with backoff.
            tokio::select! {
                Some(Ok(event)) = pods.next() => self.pod(&event),
                Some(Ok(event)) = runs.next() => self.run(event)?,
            }
        }
        Ok(())
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

    fn run(&mut self, event: Event<PipelineRun>) -> anyhow::Result<()> {
        if let Event::Apply(run) | Event::InitApply(run) = event
            && is_done(&run)
        {
            assert_succeeded(&run)?;
            self.done.entry(run.name_any()).or_insert_with(Instant::now);
        }
        Ok(())
    }
}
