//! The watches: what Kubernetes says goes into the cache, and the run it belongs to into the queue of the replica that
//! leads.

use std::collections::HashSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tracing::warn;

use coscheduler_core::annotations;
use coscheduler_core::pipeline_run::PipelineRun as View;
use coscheduler_kubernetes::labels::{MANAGED_BY, PIPELINE_RUN_UID, TEKTON_COSCHEDULER};
use coscheduler_kubernetes::pipeline_run::{self, PipelineRun};
use coscheduler_kubernetes::{claims, pods};
use coscheduler_runtime::lease::Leadership;
use coscheduler_runtime::queue::Queue;
use coscheduler_runtime::{Condition, Process};

use crate::cache::{Cache, Kind, RunKey};

/// Follows everything the manager knows about. Each watch is a condition of readiness until it has listed.
pub(crate) fn spawn(
    process: &Process,
    client: &Client,
    cache: &Arc<Cache>,
    queue: &Queue<RunKey>,
    leadership: &Leadership,
) {
    let follower = |kind: &'static str| Follower {
        kind,
        cache: cache.clone(),
        queue: queue.clone(),
        leadership: leadership.clone(),
        synced: process.health().condition(format!("{kind} cache")),
    };
    let ours = || watcher::Config::default().labels(&format!("{MANAGED_BY}={TEKTON_COSCHEDULER}"));
    let of_runs = watcher::Config::default().labels(PIPELINE_RUN_UID);

    process.spawn(
        "watch PipelineRuns",
        follower("PipelineRun").follow(
            Api::<PipelineRun>::all(client.clone()),
            watcher::Config::default(),
            coscheduled,
        ),
    );
    process.spawn(
        "watch StatefulSets",
        follower("StatefulSet").follow(
            Api::<StatefulSet>::all(client.clone()),
            ours(),
            |mut set| {
                set.metadata.managed_fields = None;
                Seen::Is(set)
            },
        ),
    );
    process.spawn(
        "watch claims",
        follower("PersistentVolumeClaim").follow(
            Api::<PersistentVolumeClaim>::all(client.clone()),
            ours(),
            |mut claim| {
                claims::trim(&mut claim);
                Seen::Is(claim)
            },
        ),
    );
    process.spawn(
        "watch pods",
        follower("Pod").follow(Api::<Pod>::all(client.clone()), of_runs, |mut pod| {
            pods::trim(&mut pod);
            Seen::Is(pod)
        }),
    );
}

/// What an object turns out to be, once read.
enum Seen<K> {
    /// One that the cache keeps.
    Is(K),
    /// One that it does not keep (any more).
    IsNot(K),
    /// One that cannot be read.
    Unreadable,
}

/// A PipelineRun, kept where something is pinned on it.
fn coscheduled(mut run: PipelineRun) -> Seen<View> {
    pipeline_run::trim(&mut run);
    match pipeline_run::view(&run) {
        Ok(view) if view.annotations.contains_key(annotations::MODE) => Seen::Is(view),
        Ok(view) => Seen::IsNot(view),
        Err(violations) => {
            let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
            warn!(
                namespace = run.namespace(),
                pipeline_run = run.name_any(),
                violations = violations.join("; "),
                "left a PipelineRun alone that cannot be read"
            );
            Seen::Unreadable
        }
    }
}

/// Feeds one kind of object into the cache.
struct Follower {
    kind: &'static str,
    cache: Arc<Cache>,
    queue: Queue<RunKey>,
    leadership: Leadership,
    synced: Condition,
}

impl Follower {
    async fn follow<O, K>(
        self,
        api: Api<O>,
        config: watcher::Config,
        read: fn(O) -> Seen<K>,
    ) -> anyhow::Result<()>
    where
        O: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        K: Kind,
    {
        let mut listed = HashSet::new();
        let mut events = pin!(watcher(api, config).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    let seen = read(object);
                    if let Seen::Is(object) = &seen
                        && let Some(run) = object.run_key()
                    {
                        listed.insert((run, object.name().to_owned()));
                    }
                    self.apply(seen);
                }
                Ok(Event::InitDone) => {
                    for run in self.cache.retain::<K>(&listed) {
                        self.changed(run);
                    }
                    self.synced.set(true);
                }
                Ok(Event::Apply(object)) => self.apply(read(object)),
                Ok(Event::Delete(object)) => {
                    if let Seen::Is(gone) | Seen::IsNot(gone) = read(object) {
                        self.delete(&gone);
                    }
                }
                Err(error) => warn!(kind = self.kind, %error, "watch failed, will be resumed"),
            }
        }
        Ok(())
    }

    fn apply<K: Kind>(&self, seen: Seen<K>) {
        match seen {
            Seen::Is(object) => {
                if let Some(run) = self.cache.apply(object) {
                    self.changed(run);
                }
            }
            Seen::IsNot(object) => self.delete(&object),
            Seen::Unreadable => {}
        }
    }

    fn delete<K: Kind>(&self, object: &K) {
        if let Some(run) = self.cache.delete(object) {
            self.changed(run);
        }
    }

    /// The cache has the change by now, so that whoever begins to lead a moment later finds it there.
    fn changed(&self, run: RunKey) {
        if self.leadership.is_held() {
            self.queue.push(run);
        }
    }
}
