//! One stream of all changes of a PipelineRun, and of the StatefulSets, claims and pods that have the run's uid in a label. If
//! a watch breaks, it is restarted.

use std::fmt::{self, Debug};
use std::pin::Pin;

use anyhow::Context as _;
use futures::stream::{Stream, StreamExt as _, select_all};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

/// A PipelineRun in a cluster.
#[derive(Clone)]
pub struct Run {
    /// A client of the cluster.
    pub client: Client,
    /// The run's namespace.
    pub namespace: String,
    /// The run's name.
    pub name: String,
    /// The run's uid.
    pub uid: String,
}

impl Debug for Run {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `kube::Client` has no `Debug`.
        let Self {
            client: _,
            namespace,
            name,
            uid,
        } = self;
        write!(formatter, "Run({namespace}/{name}, {uid})")
    }
}

impl Run {
    /// The API for PipelineRuns in the run's namespace.
    pub fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &pipeline_runs())
    }
}

/// Tekton's resource `pipelineruns`.
pub fn pipeline_runs() -> ApiResource {
    let kind = GroupVersionKind::gvk("tekton.dev", "v1", "PipelineRun");
    ApiResource::from_gvk_with_plural(&kind, "pipelineruns")
}

/// One change of one kind of object.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there are few, and each is taken apart at once"
)]
pub enum Change {
    /// A change of the PipelineRun.
    Run(Event<DynamicObject>),
    /// A change of a StatefulSet.
    Set(Event<StatefulSet>),
    /// A change of a claim.
    Claim(Event<PersistentVolumeClaim>),
    /// A change of a placeholder's pod or a TaskRun's pod.
    Pod(Event<Pod>),
}

/// A stream of changes. Each error is the failure of a watch, which the stream then restarts.
pub type Changes = Pin<Box<dyn Stream<Item = anyhow::Result<Change>> + Send>>;

/// Watches `run`, beginning with the objects that exist.
pub fn changes(run: &Run) -> Changes {
    let itself = watcher::Config::default().fields(&format!("metadata.name={}", run.name));
    // Tekton sets this label on TaskRun pods, and the placeholder-manager on the objects that it creates.
    let belonging =
        watcher::Config::default().labels(&format!("tekton.dev/pipelineRunUID={}", run.uid));
    let (client, namespace) = (&run.client, run.namespace.as_str());
    let sets = Api::namespaced(client.clone(), namespace);
    let claims = Api::namespaced(client.clone(), namespace);
    let pods = Api::namespaced(client.clone(), namespace);
    Box::pin(select_all([
        stream(run.api(), itself, "PipelineRun", Change::Run),
        stream(sets, belonging.clone(), "StatefulSets", Change::Set),
        stream(claims, belonging.clone(), "claims", Change::Claim),
        stream(pods, belonging, "pods", Change::Pod),
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
