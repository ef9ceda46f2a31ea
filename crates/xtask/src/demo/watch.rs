//! What happens to a run, as one stream of changes: its PipelineRun, and the StatefulSets, claims and pods that carry its
//! uid. Watches, not polls; a broken watch is taken up again by itself.

use std::fmt::Debug;
use std::pin::Pin;

use anyhow::Context as _;
use futures::stream::{Stream, StreamExt as _, select_all};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use super::example::Submitted;

/// One change of one kind of object.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a few dozen in a whole demo, and each is taken apart at once"
)]
pub(super) enum Change {
    Run(Event<DynamicObject>),
    Set(Event<StatefulSet>),
    Claim(Event<PersistentVolumeClaim>),
    Pod(Event<Pod>),
}

type Changes = Pin<Box<dyn Stream<Item = anyhow::Result<Change>> + Send>>;

/// Everything that happens to `run`, from what is there now on.
pub(super) fn changes(run: &Submitted) -> Changes {
    let itself = watcher::Config::default().fields(&format!("metadata.name={}", run.name));
    // Tekton labels TaskRun pods with it, and the placeholder-manager what it creates.
    let belonging =
        watcher::Config::default().labels(&format!("tekton.dev/pipelineRunUID={}", run.uid));
    let (client, namespace) = (&run.client, run.namespace.as_str());
    Box::pin(select_all([
        stream(run.api(), itself, "PipelineRun", Change::Run),
        stream(
            Api::namespaced(client.clone(), namespace),
            belonging.clone(),
            "StatefulSets",
            Change::Set,
        ),
        stream(
            Api::namespaced(client.clone(), namespace),
            belonging.clone(),
            "claims",
            Change::Claim,
        ),
        stream(
            Api::namespaced(client.clone(), namespace),
            belonging,
            "pods",
            Change::Pod,
        ),
    ]))
}

fn stream<K>(
    api: Api<K>,
    config: watcher::Config,
    what: &'static str,
    change: fn(Event<K>) -> Change,
) -> Changes
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = watcher(api, config).default_backoff();
    Box::pin(events.map(move |event| {
        event
            .map(change)
            .with_context(|| format!("failed to watch {what}"))
    }))
}
