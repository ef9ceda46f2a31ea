//! The watch: every PipelineRun goes into the store, and its key into the queue.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, reflector, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::time::MissedTickBehavior;
use tracing::warn;

use coscheduler_core::pipeline_run::RunState;
use coscheduler_kubernetes::pipeline_run::{self, PipelineRun};
use coscheduler_runtime::Condition;
use coscheduler_runtime::queue::Queue;

/// How often a run that is not done is reported although nothing about it has changed.
const REPEAT: Duration = Duration::from_secs(60);

/// Feeds the store and the queue for the life of the process.
pub(crate) async fn follow(
    client: Client,
    writer: Writer<PipelineRun>,
    queue: Queue<ObjectRef<PipelineRun>>,
    synced: Condition,
) -> anyhow::Result<()> {
    let api: Api<PipelineRun> = Api::all(client);
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .modify(pipeline_run::trim);
    let mut events = pin!(reflector(writer, events));
    let mut listed = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            // The store shows what was listed once the list is complete.
            Ok(Event::InitApply(run)) => listed.push(ObjectRef::from_obj(&run)),
            Ok(Event::InitDone) => {
                listed.drain(..).for_each(|run| queue.push(run));
                synced.set(true);
            }
            Ok(Event::Apply(run)) => queue.push(ObjectRef::from_obj(&run)),
            // What belonged to a deleted run goes by its owner references.
            Ok(Event::Delete(_)) => {}
            Err(error) => warn!(%error, "watch of PipelineRuns failed, will be resumed"),
        }
    }
    Ok(())
}

/// Reports every run that is not done again, once a minute.
pub(crate) async fn repeat(
    store: Store<PipelineRun>,
    queue: Queue<ObjectRef<PipelineRun>>,
) -> anyhow::Result<()> {
    let mut minutes = tokio::time::interval(REPEAT);
    minutes.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        minutes.tick().await;
        for run in store.state() {
            if pipeline_run::view(&run).is_ok_and(|view| view.state != RunState::Done) {
                queue.push(ObjectRef::from_obj(&*run));
            }
        }
    }
}
