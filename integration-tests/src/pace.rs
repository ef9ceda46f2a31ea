//! Creates PipelineRuns at a pace, and follows them with watches until they are done, for benchmarks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::time::{Instant, sleep_until};

use crate::look::{assert_succeeded, is_done, is_placeholder};
use crate::runs::Run;

/// The creation of a run.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    /// The time at which the request was sent.
    pub since: Instant,
    /// The time until the answer.
    pub took: Duration,
}

/// Creates the runs at once, or `per_second` of them a second, with at most one request at a time for each client. Returns the
/// creations by the names of the runs.
///
/// # Errors
///
/// The API server refuses a run.
pub async fn create(
    clients: &[Client],
    namespace: &str,
    per_second: Option<f64>,
    runs: impl IntoIterator<Item = Run>,
) -> anyhow::Result<BTreeMap<String, Creation>> {
    let start = Instant::now();
    let one = async |(number, run): (usize, Run)| {
        let api: Api<PipelineRun> =
            Api::namespaced(clients[number % clients.len()].clone(), namespace);
        if let Some(per_second) = per_second {
            sleep_until(start + Duration::from_secs_f64(number as f64 / per_second)).await;
        }
        let since = Instant::now();
        let created = run.create(api).await?;
        let took = since.elapsed();
        anyhow::Ok((created.name_any(), Creation { since, took }))
    };
    stream::iter(runs.into_iter().enumerate())
        .map(one)
        .buffer_unordered(clients.len())
        .try_collect()
        .await
}

/// Watches of runs, pods and claims, with the state that they have shown so far.
pub struct Follower {
    namespace: String,
    runs: BoxStream<'static, watcher::Result<Event<PipelineRun>>>,
    pods: BoxStream<'static, watcher::Result<Event<Pod>>>,
    claims: BoxStream<'static, watcher::Result<Event<PersistentVolumeClaim>>>,
    /// The time at which each run was done, by name.
    pub done: BTreeMap<String, Instant>,
    placeholders_left: BTreeSet<String>,
    claims_left: BTreeSet<String>,
}

impl Follower {
    /// Follows the runs, placeholders and claims of a namespace. `pods` may have the pods of other namespaces too.
    pub fn start(client: &Client, namespace: &str, pods: Api<Pod>) -> Self {
        let config = watcher::Config::default;
        let runs: Api<PipelineRun> = Api::namespaced(client.clone(), namespace);
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
        Self {
            namespace: namespace.to_owned(),
            runs: watcher(runs, config()).default_backoff().boxed(),
            pods: watcher(pods, config()).default_backoff().boxed(),
            claims: watcher(claims, config()).default_backoff().boxed(),
            done: BTreeMap::new(),
            placeholders_left: BTreeSet::new(),
            claims_left: BTreeSet::new(),
        }
    }

    /// Watches until `wanted` runs have succeeded. Calls `on_pod` with each event of a pod.
    ///
    /// # Errors
    ///
    /// A run has failed.
    pub async fn until_done(
        &mut self,
        wanted: usize,
        mut on_pod: impl FnMut(&Event<Pod>),
    ) -> anyhow::Result<()> {
        while self.done.len() < wanted {
            self.next(&mut on_pod).await?;
        }
        Ok(())
    }

    /// The time from the first creation to the end of the last run.
    pub fn makespan(&self, created: &BTreeMap<String, Creation>) -> Duration {
        let first = created.values().map(|creation| creation.since).min();
        let last = self.done.values().max();
        last.zip(first)
            .map_or(Duration::ZERO, |(last, first)| *last - first)
    }

    /// Watches until there is no placeholder and, with `claims_too`, no claim.
    ///
    /// # Errors
    ///
    /// A run has failed.
    pub async fn until_clean(&mut self, claims_too: bool) -> anyhow::Result<()> {
        while !self.placeholders_left.is_empty() || (claims_too && !self.claims_left.is_empty()) {
            self.next(&mut |_| {}).await?;
        }
        Ok(())
    }

    /// Applies the next event of a watch. The watches retry errors with backoff.
    async fn next(&mut self, on_pod: &mut impl FnMut(&Event<Pod>)) -> anyhow::Result<()> {
        tokio::select! {
            Some(Ok(event)) = self.pods.next() => {
                on_pod(&event);
                let here = |pod: &Pod| pod.namespace().as_ref() == Some(&self.namespace);
                keep(&mut self.placeholders_left, &event, |pod| here(pod) && is_placeholder(pod));
            }
            Some(Ok(event)) = self.claims.next() => keep(&mut self.claims_left, &event, |_| true),
            Some(Ok(event)) = self.runs.next() => {
                if let Event::Apply(run) | Event::InitApply(run) = event && is_done(&run) {
                    assert_succeeded(&run)?;
                    self.done.entry(run.name_any()).or_insert_with(Instant::now);
                }
            }
            // A watch failed, and its stream retries after a pause.
            else => {}
        }
        Ok(())
    }
}

/// Adds the object of an event to a set of names, or removes it from the set.
fn keep<K: ResourceExt>(
    names: &mut BTreeSet<String>,
    event: &Event<K>,
    wanted: impl Fn(&K) -> bool,
) {
    match event {
        Event::Apply(object) | Event::InitApply(object) if wanted(object) => {
            names.insert(object.name_any());
        }
        Event::Delete(object) if wanted(object) => {
            names.remove(&object.name_any());
        }
        Event::Init => names.clear(),
        Event::Apply(_) | Event::InitApply(_) | Event::Delete(_) | Event::InitDone => {}
    }
}
