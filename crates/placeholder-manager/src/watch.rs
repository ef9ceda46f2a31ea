//! The watches of Kubernetes objects. They write each change of an object into the cache. On the leader, they also push the
//! affected runs into the queue.

use std::fmt::Debug;
use std::sync::Arc;

use coscheduler_core::annotations;
use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::pipeline_run::{PipelineRun as View, RunState};
use coscheduler_kubernetes::complaints::{self, WATCHES};
use coscheduler_kubernetes::kept::Kept;
use coscheduler_kubernetes::pipeline_run::{self, PipelineRun};
use coscheduler_kubernetes::{claims, nodes, pods, volumes};
use coscheduler_runtime::kubernetes::watch::{Change, follow, key};
use coscheduler_runtime::lease::Leadership;
use coscheduler_runtime::queue::Queue;
use coscheduler_runtime::{Health, Process};
use k8s_openapi::api::core::v1::{
    Node, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota,
};
use k8s_openapi::api::events::v1::Event;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tracing::warn;

use crate::cache::{Cache, RunKey};
use crate::placeholder;

/// Starts all watches. The manager becomes ready when all watches have listed their objects, except the watch of pods that have
/// ended. That watch starts only when the manager is ready.
pub(crate) fn spawn(
    process: &Process,
    client: &Client,
    cache: &Arc<Cache>,
    queue: &Queue<RunKey>,
    leadership: &Leadership,
) {
    let watches = Watches {
        process,
        cache,
        queue,
        leadership,
    };
    let everything = watcher::Config::default;

    watches.spawn(
        "PipelineRun",
        Api::<Kept<PipelineRun>>::all(client.clone()),
        everything(),
        |cache, change| match change {
            Change::Applied(run) => {
                let key = key(&run);
                coscheduled(run.part)
                    .map_or_else(|| cache.delete_run(&key), |run| cache.apply_run(run))
            }
            Change::Deleted(run) => cache.delete_run(&key(&run)),
            Change::Listed(keys) => cache.retain_runs(&keys),
        },
    );
    let (placeholders, labelled) = placeholder::watched(client);
    watches.spawn(
        placeholder::KIND,
        placeholders,
        labelled,
        move |cache, change| match change {
            Change::Applied(object) => {
                let key = key(&object);
                placeholder::view(object).map_or_else(
                    || cache.delete_placeholder(&key),
                    |own| cache.apply_placeholder(own),
                )
            }
            Change::Deleted(object) => cache.delete_placeholder(&key(&object)),
            Change::Listed(keys) => cache.retain_placeholders(&keys),
        },
    );
    watches.spawn(
        "PersistentVolumeClaim",
        Api::all(client.clone()),
        everything(),
        |cache, change| match change {
            Change::Applied(claim) => cache.apply_claim(claims::view(claim)),
            Change::Deleted(claim) => cache.delete_claim(&key::<PersistentVolumeClaim>(&claim)),
            Change::Listed(keys) => cache.retain_claims(&keys),
        },
    );
    watches.spawn(
        "PersistentVolume",
        Api::all(client.clone()),
        everything(),
        |cache, change| match change {
            Change::Applied(volume) => cache.apply_volume(key(&volume).1, volumes::view(volume)),
            Change::Deleted(volume) => cache.delete_volume(&key::<PersistentVolume>(&volume).1),
            Change::Listed(keys) => cache.retain_volumes(&keys),
        },
    );
    watches.spawn(
        "ResourceQuota",
        Api::all(client.clone()),
        everything(),
        |cache, change| match change {
            Change::Applied(quota) => cache.apply_quota(key(&quota), &quota),
            Change::Deleted(quota) => {
                let gone = key::<ResourceQuota>(&quota);
                cache.retain_quotas(|quota| *quota != gone)
            }
            Change::Listed(keys) => cache.retain_quotas(|quota| keys.contains(quota)),
        },
    );
    watches.spawn(
        "Node",
        Api::all(client.clone()),
        everything(),
        |cache, change| match change {
            Change::Applied(node) => cache.apply_node(nodes::view(&node)),
            Change::Deleted(node) => cache.delete_node(&key::<Node>(&node).1),
            Change::Listed(keys) => cache.retain_nodes(&keys),
        },
    );
    let of_runs = everything().labels(PIPELINE_RUN_UID);
    watches.spawn(
        "Pod",
        Api::<Kept<Pod>>::all(client.clone()),
        of_runs.clone().fields(pods::NOT_ENDED),
        |cache, change| match change {
            Change::Applied(pod) => {
                let key = key(&pod);
                let of_run = pod.part;
                of_run.map_or_else(|| cache.delete_pod(&key), |pod| cache.apply_pod(pod))
            }
            Change::Deleted(pod) => cache.delete_pod(&key(&pod)),
            Change::Listed(keys) => cache.retain_pods(&keys),
        },
    );
    watches.spawn_ended_pods(Api::all(client.clone()), of_runs.fields(pods::ENDED));
    for (reason, selector) in WATCHES {
        let warnings = everything().fields(selector);
        watches.spawn(
            reason,
            Api::all(client.clone()),
            warnings,
            move |cache, change| match change {
                Change::Applied(event) => complaints::read(event)
                    .map(|complaint| cache.apply_complaint(reason, complaint))
                    .unwrap_or_default(),
                Change::Deleted(event) => {
                    let gone = key::<Event>(&event);
                    cache.retain_complaints(reason, |event| *event != gone)
                }
                Change::Listed(keys) => {
                    cache.retain_complaints(reason, |event| keys.contains(event))
                }
            },
        );
    }
}

struct Watches<'a> {
    process: &'a Process,
    cache: &'a Arc<Cache>,
    queue: &'a Queue<RunKey>,
    leadership: &'a Leadership,
}

impl Watches<'_> {
    /// Starts a watch. `reduce` writes each change into the cache and returns the affected runs.
    fn spawn<O>(
        &self,
        kind: &'static str,
        api: Api<O>,
        config: watcher::Config,
        reduce: impl Fn(&Cache, Change<O>) -> Vec<RunKey> + Send + 'static,
    ) where
        O: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let synced = self.process.health().condition(format!("{kind} cache"));
        let follow = follow(kind, api, config, synced, self.queueing(reduce));
        self.process.spawn(format!("watch {kind}"), follow);
    }

    /// When the manager is ready, starts the watch of pods that have ended. A cluster may keep tens of thousands of such pods,
    /// and the API server needs long to send them. Meanwhile, tasks that ended before the manager started may count as tasks to
    /// come, so a placeholder may reserve too much room.
    fn spawn_ended_pods(&self, api: Api<PartialObjectMeta<Pod>>, config: watcher::Config) {
        const KIND: &str = "ended Pod";
        let reduce = self.queueing(
            |cache, change: Change<PartialObjectMeta<Pod>>| match change {
                Change::Applied(pod) => {
                    let ended = pods::ended(pod.metadata);
                    ended.map_or_else(Vec::new, |pod| cache.end_pod(&pod))
                }
                Change::Deleted(_) | Change::Listed(_) => Vec::new(),
            },
        );
        let health = self.process.health().clone();
        // Nothing waits for this condition.
        let synced = Health::new().condition(KIND);
        self.process.spawn(format!("watch {KIND}"), async move {
            health.ready().await;
            follow(KIND, api, config, synced, reduce).await
        });
    }

    /// Calls `reduce`, and queues the affected runs if this replica leads.
    fn queueing<O, F>(&self, reduce: F) -> impl FnMut(Change<O>) + use<O, F>
    where
        F: Fn(&Cache, Change<O>) -> Vec<RunKey>,
    {
        let (cache, queue) = (self.cache.clone(), self.queue.clone());
        let leadership = self.leadership.clone();
        move |change| {
            let runs = reduce(&cache, change);
            // If this replica begins to lead after this check, its first sweep queues the runs, and the change is in the cache.
            if leadership.is_held() {
                runs.into_iter().for_each(|run| queue.push(run));
            }
        }
    }
}

/// The run, if admission wrote a mode on it, or if the run is not done and its author asked for a mode. `None` for every other
/// run, and for a run that cannot be parsed.
fn coscheduled(run: PipelineRun) -> Option<View> {
    match pipeline_run::view(&run) {
        Ok(view) => {
            let has = |key| view.annotations.contains_key(key);
            let asks = has(annotations::OVERRIDE) && view.state != RunState::Done;
            (has(annotations::MODE) || asks).then_some(view)
        }
        Err(violations) => {
            let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
            warn!(
                namespace = run.namespace(),
                pipeline_run = run.name_any(),
                violations = violations.join("; "),
                "ignored a PipelineRun that cannot be read"
            );
            None
        }
    }
}
