//! Measures one side: boots a bed, creates the runs of each load, and records the events of watches until all runs are done and
//! their placeholders and claims are deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context as _;
use integration_tests::audit::{self, Request};
use integration_tests::look::{is_placeholder, node};
use integration_tests::metrics;
use integration_tests::pace::{self, Creation, Follower};
use integration_tests::sides::{cpu_of_a_run, cpu_seconds};
use integration_tests::timings::percentile;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt as _};
use testbed::services::{Service, Services, kube_client};
use testbed::{Config, TestBed};
use tokio::time::{Instant, timeout};

use super::figures::Figures;
use super::plan::{Load, Pace, Workload};
use super::sides::OneSide;

/// The number of clients that create runs, each with its own connection.
const CLIENTS: usize = 16;
/// The load before the first one that is measured. It fills caches and opens connections.
const WARM_UP: Load = Load {
    workload: Workload::OneClaim,
    nodes: 0,
    pace: Pace::Burst,
    runs: 4,
};
/// The longest time for a load.
const LIMIT: Duration = Duration::from_secs(900);

/// The figures of each load on a new bed. The bed grows if a load needs more nodes than the one before.
pub(crate) async fn measure(side: &OneSide, loads: &[Load]) -> anyhow::Result<Vec<Figures>> {
    let mut config = Config {
        nodes: loads.first().map_or(0, |load| load.nodes),
        audit_log: true,
        ..Config::default()
    };
    side.side
        .measure(config.clone(), async |bed, services| {
            let mut clients = Vec::new();
            for _ in 0..CLIENTS {
                clients.push(kube_client(bed.kubeconfig()).await?);
            }
            let trial = Trial {
                bed,
                services,
                clients,
                claims_go: side.claims_go,
            };
            let mut all = Vec::new();
            for (number, load) in [&WARM_UP].into_iter().chain(loads).enumerate() {
                if load.nodes > config.nodes {
                    bed.grow(&config, load.nodes).await?;
                    config.nodes = load.nodes;
                }
                let figures = timeout(LIMIT, trial.load(&format!("load-{number}"), load)).await;
                let figures =
                    figures.with_context(|| format!("{load}: not done after {LIMIT:?}"))?;
                all.push(figures.with_context(|| load.to_string())?);
            }
            all.remove(0);
            Ok(all)
        })
        .await
}

struct Trial<'a> {
    bed: &'a TestBed,
    services: Option<&'a Services>,
    clients: Vec<Client>,
    /// True if the claims are deleted at the end of each run.
    claims_go: bool,
}

impl Trial<'_> {
    async fn load(&self, namespace: &str, load: &Load) -> anyhow::Result<Figures> {
        let Self {
            bed,
            services,
            clients,
            claims_go,
        } = self;
        bed.create_namespace(namespace, &[]).await?;
        let client = bed.client();
        for client in clients {
            // Opens the connection, so that no creation waits for it.
            client.apiserver_version().await?;
        }
        let mut follower = Follower::start(
            &client,
            namespace,
            Api::namespaced(client.clone(), namespace),
        );
        let (mut bound, mut rejected) = (BTreeMap::new(), BTreeSet::new());
        let bytes_before = Bytes::now(&client).await?;
        let mark = audit::end(bed)?;
        let cpu_before = cpu_seconds(bed, *services)?;
        let begin = Instant::now();

        let runs = |from, to| (from..to).map(|number| load.workload.run(number));
        let mut created = BTreeMap::new();
        // With `Pace::Alone`, each step creates one run. Otherwise, a single step creates all runs.
        let (step, per_second) = match load.pace {
            Pace::Alone => (1, None),
            Pace::Rate(rate) => (load.runs, Some(rate)),
            Pace::Burst => (load.runs, None),
        };
        for from in (0..load.runs).step_by(step) {
            let to = from + step;
            let create = pace::create(clients, namespace, per_second, runs(from, to));
            let follow = follower.until_done(to, |event| {
                first_bound(&mut bound, event);
                rejected.extend(rejected_pod(event));
            });
            let (of_step, ()) = tokio::try_join!(create, follow)?;
            created.extend(of_step);
        }
        follower.until_clean(*claims_go).await?;

        let cpu = cpu_of_a_run(bed, *services, &cpu_before, load.runs)?;
        let milliseconds = begin.elapsed().as_secs_f64() * 1000.0;
        let cores = cpu.values().sum::<f64>() * load.runs as f64 / milliseconds;
        let requests = audit::requests(bed, mark)?;
        let bytes = Bytes::now(&client).await?;
        let of_run = |all: f64| all / load.runs as f64;
        let until = |ends: &BTreeMap<String, Instant>, percent| {
            let since = |(run, end): (&String, &Instant)| Some(*end - created.get(run)?.since);
            percentile(ends.iter().filter_map(since), percent)
        };
        let creation = |percent| percentile(created.values().map(|it: &Creation| it.took), percent);
        Ok(Figures {
            makespan: follower.makespan(&created).as_secs_f64(),
            bound_p50: until(&bound, 50),
            bound_p99: until(&bound, 99),
            done_p50: until(&follower.done, 50),
            done_p99: until(&follower.done, 99),
            create_p50: creation(50),
            create_p99: creation(99),
            rejected_pods: of_run(rejected.len() as f64),
            claim_conflicts: of_run(claim_conflicts(&requests, namespace) as f64),
            requests: by_client(&requests, namespace, load.runs),
            request_bytes: of_run(bytes.requests - bytes_before.requests),
            answer_bytes: of_run(bytes.answers - bytes_before.answers),
            cpu,
            cores,
            memory: services.map_or(Ok(BTreeMap::new()), peak_memory)?,
        })
    }
}

/// Notes the time at which the first task pod of each run was seen on a node.
fn first_bound(bound: &mut BTreeMap<String, Instant>, event: &Event<Pod>) {
    if let Event::Apply(pod) | Event::InitApply(pod) = event
        && !is_placeholder(pod)
        && node(pod).is_some()
        && let Some(run) = pod.labels().get("tekton.dev/pipelineRun")
    {
        bound.entry(run.clone()).or_insert_with(Instant::now);
    }
}

/// The name of a task pod for which the scheduler has found no node.
fn rejected_pod(event: &Event<Pod>) -> Option<String> {
    let (Event::Apply(pod) | Event::InitApply(pod)) = event else {
        return None;
    };
    let mut conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let is_rejected = conditions
        .any(|it| it.type_ == "PodScheduled" && it.reason.as_deref() == Some("Unschedulable"));
    (is_rejected && !is_placeholder(pod)).then(|| pod.name_any())
}

/// The kinds of objects that belong to runs.
const OF_RUNS: [&str; 9] = [
    "controllerrevisions",
    "customruns",
    "events",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pipelineruns",
    "pods",
    "statefulsets",
    "taskruns",
];

/// The API server's counters of bytes about objects of runs. They do not tell clients apart.
struct Bytes {
    requests: f64,
    answers: f64,
}

impl Bytes {
    async fn now(client: &Client) -> anyhow::Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let text = client.request_text(request).await?;
        let of_runs = |name| {
            let of = |resource: &&str| metrics::sum(&text, name, &[("resource", *resource)]);
            OF_RUNS.iter().map(of).sum()
        };
        Ok(Self {
            requests: of_runs("apiserver_request_body_size_bytes_sum"),
            answers: of_runs("apiserver_response_sizes_sum"),
        })
    }
}

/// The requests for each of `runs` runs in a namespace, by client and verb.
fn by_client(
    requests: &[Request],
    namespace: &str,
    runs: usize,
) -> BTreeMap<String, BTreeMap<String, f64>> {
    let mut counts = BTreeMap::<_, BTreeMap<_, f64>>::new();
    for request in requests {
        let about = &request.object;
        let cluster_scoped = match about.resource.as_str() {
            "persistentvolumes" => true,
            // The other requests are heartbeats.
            "nodes" => request.verb == "get",
            _ => false,
        };
        let of_runs = about.namespace == namespace || cluster_scoped;
        // This benchmark has no user agent.
        if let Some((program, _)) = request.user_agent.split_once('/')
            && of_runs
            && request.verb != "watch"
        {
            let verbs = counts.entry(program.to_owned()).or_default();
            *verbs.entry(request.verb.clone()).or_default() += 1.0 / runs as f64;
        }
    }
    counts
}

/// The number of the scheduler's writes to claims of a namespace that the API server refused, because the scheduler did not know
/// the last version.
fn claim_conflicts(requests: &[Request], namespace: &str) -> usize {
    let refused = requests.iter().filter(|request| {
        request.answer.code == http::StatusCode::CONFLICT.as_u16()
            && request.object.namespace == namespace
            && request.object.resource == "persistentvolumeclaims"
            && request.user_agent.starts_with("kube-scheduler/")
    });
    refused.count()
}

/// The most resident memory of each service since its start, in MiB.
fn peak_memory(services: &Services) -> anyhow::Result<BTreeMap<String, f64>> {
    let of = |service: Service| {
        let pid = services.pid(service)?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = peak.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: f64 = kib.context("no VmHWM")?.parse()?;
        Ok((service.name().to_owned(), kib / 1024.0))
    };
    Service::ALL.into_iter().map(of).collect()
}
