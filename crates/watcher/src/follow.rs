//! The watch: every PipelineRun goes into the store, and its key into the queue of the replica that leads.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::reflector::{ObjectRef, Store, reflector, store::Writer};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, MissedTickBehavior};
use tracing::warn;

use coscheduler_core::pipeline_run::RunState;
use coscheduler_kubernetes::pipeline_run::{self, PipelineRun};
use coscheduler_runtime::Condition;
use coscheduler_runtime::lease::Leadership;
use coscheduler_runtime::queue::Queue;

/// How often a run that is not done is reported although nothing about it has changed: what was done behind our back is
/// put right within a minute (N6), which leaves as long again for putting it right.
const REPEAT: Duration = Duration::from_secs(30);

/// Feeds the store for the life of the process, and the queue while it leads: who does not lead works nothing off.
pub(crate) async fn follow(
    client: Client,
    writer: Writer<PipelineRun>,
    queue: Queue<ObjectRef<PipelineRun>>,
    leadership: Leadership,
    synced: Condition,
) -> anyhow::Result<()> {
    let report = |run: ObjectRef<PipelineRun>| {
        // The store has it by now, so that whoever begins to lead a moment later finds it there.
        if leadership.is_held() {
            queue.push(run);
        }
    };
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
                listed.drain(..).for_each(report);
                synced.set(true);
            }
            Ok(Event::Apply(run)) => report(ObjectRef::from_obj(&run)),
            // What belonged to a deleted run goes by its owner references.
            Ok(Event::Delete(_)) => {}
            Err(error) => warn!(%error, "watch of PipelineRuns failed, will be resumed"),
        }
    }
    Ok(())
}

/// Reports every run once, since whoever led before may have missed its last change, and from then on every run that is
/// not done again and again.
pub(crate) async fn repeat(store: &Store<PipelineRun>, queue: &Queue<ObjectRef<PipelineRun>>) {
    for run in store.state() {
        queue.push(ObjectRef::from_obj(&*run));
    }
    let mut rounds = tokio::time::interval_at(Instant::now() + REPEAT, REPEAT);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        rounds.tick().await;
        for run in store.state() {
            if pipeline_run::view(&run).is_ok_and(|view| view.state != RunState::Done) {
                queue.push(ObjectRef::from_obj(&*run));
            }
        }
    }
}
