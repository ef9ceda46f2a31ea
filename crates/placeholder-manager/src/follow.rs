//! The watches: what Kubernetes says goes into the cache, and the run it belongs to into the queue of the replica that
//! leads.

mod fed;

use std::collections::HashSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{self, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event as ObjectEvent;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tracing::warn;

use coscheduler_core::annotations;
use coscheduler_core::labels::{AFFINITY_ASSISTANT, COMPONENT, PIPELINE_RUN_UID};
use coscheduler_core::pipeline_run::PipelineRun as View;
use coscheduler_kubernetes::complaints::{self, WATCHES};
use coscheduler_kubernetes::ownership::is_ours;
use coscheduler_kubernetes::pipeline_run::{self, PipelineRun};
use coscheduler_kubernetes::{claims, needs, nodes, pods, volumes};
use coscheduler_runtime::lease::Leadership;
use coscheduler_runtime::queue::Queue;
use coscheduler_runtime::{Condition, Process};

use crate::cache::{Cache, RunKey, Watch};
use fed::{Claim, Fed, Heard, Node, ON_NODES, Volume, on_node};

/// The work that a change of a run's objects may bring.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    /// For [`CleanUp`](crate::release::CleanUp).
    pub clean_up: Queue<RunKey>,
    /// For [`Evacuation`](crate::evacuate::Evacuation).
    pub evacuation: Queue<RunKey>,
    /// For [`Rescue`](crate::rescue::Rescue).
    pub rescue: Queue<RunKey>,
    /// For [`Notices`](crate::notices::Notices).
    pub notices: Queue<RunKey>,
    /// For [`Retries`](crate::retries::Retries).
    pub retries: Queue<RunKey>,
}

impl Queues {
    fn push(&self, run: RunKey) {
        self.clean_up.push(run.clone());
        self.evacuation.push(run.clone());
        self.rescue.push(run.clone());
        self.notices.push(run.clone());
        self.retries.push(run);
    }
}

/// Follows everything the manager knows about. Each watch is a condition of readiness until it has listed.
pub(crate) fn spawn(
    process: &Process,
    client: &Client,
    cache: &Arc<Cache>,
    queues: &Queues,
    leadership: &Leadership,
) {
    let follower = |kind: &'static str| Follower {
        kind,
        cache: cache.clone(),
        queues: queues.clone(),
        leadership: leadership.clone(),
        synced: process.health().condition(format!("{kind} cache")),
    };
    let assistants =
        watcher::Config::default().labels(&format!("{COMPONENT}={AFFINITY_ASSISTANT}"));
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
            assistants,
            |mut set| {
                set.metadata.managed_fields = None;
                // Tekton's own assistants are called the same.
                if is_ours(&set.metadata) {
                    Seen::Is(set)
                } else {
                    Seen::IsNot(set)
                }
            },
        ),
    );
    process.spawn(
        "watch claims",
        follower("PersistentVolumeClaim").follow(
            Api::<PersistentVolumeClaim>::all(client.clone()),
            watcher::Config::default(),
            |mut claim| {
                claims::trim(&mut claim);
                Seen::Is(Claim(claim))
            },
        ),
    );
    process.spawn(
        "watch volumes",
        follower("PersistentVolume").follow(
            Api::<PersistentVolume>::all(client.clone()),
            watcher::Config::default(),
            |mut volume| {
                volumes::trim(&mut volume);
                Seen::Is(Volume(volume))
            },
        ),
    );
    process.spawn(
        "watch nodes",
        follower("Node").follow(
            Api::<v1::Node>::all(client.clone()),
            watcher::Config::default(),
            |node| {
                Seen::Is(Node {
                    view: nodes::view(&node),
                    allocatable: needs::allocatable(&node),
                })
            },
        ),
    );
    process.spawn(
        "watch what is on nodes",
        follower("Pod on a node").follow(
            Api::<Pod>::all(client.clone()),
            watcher::Config::default().fields(ON_NODES),
            |pod| Seen::Is(on_node(&pod)),
        ),
    );
    listen::<0>(process, client, &follower);
    listen::<1>(process, client, &follower);
    listen::<2>(process, client, &follower);
    process.spawn(
        "watch pods",
        follower("Pod").follow(Api::<Pod>::all(client.clone()), of_runs, |mut pod| {
            pods::trim(&mut pod);
            Seen::Is(pod)
        }),
    );
}

/// Follows the Events of one of [`WATCHES`].
fn listen<const WATCH: Watch>(
    process: &Process,
    client: &Client,
    follower: &impl Fn(&'static str) -> Follower,
) {
    let (reason, selector) = WATCHES[WATCH];
    process.spawn(
        format!("watch Events {reason}"),
        follower(reason).follow(
            Api::<ObjectEvent>::all(client.clone()),
            watcher::Config::default().fields(selector),
            |event| {
                complaints::read(event).map_or(Seen::Unreadable, |it| Seen::Is(Heard::<WATCH>(it)))
            },
        ),
    );
}

/// What an object turns out to be, once read.
enum Seen<K> {
    /// One that the cache keeps.
    Is(K),
    /// One that it does not keep (any more).
    IsNot(K),
    /// One that cannot be read, or says nothing.
    Unreadable,
}

/// A PipelineRun, kept where something is pinned on it, or where its author has to be told that nothing is.
fn coscheduled(mut run: PipelineRun) -> Seen<View> {
    pipeline_run::trim(&mut run);
    match pipeline_run::view(&run) {
        Ok(view)
            if [annotations::MODE, annotations::OVERRIDE]
                .iter()
                .any(|key| view.annotations.contains_key(*key)) =>
        {
            Seen::Is(view)
        }
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
    queues: Queues,
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
        K: Fed,
    {
        let mut listed = HashSet::new();
        let mut events = pin!(watcher(api, config).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    let seen = read(object);
                    if let Seen::Is(object) = &seen {
                        listed.extend(object.id());
                    }
                    self.apply(seen);
                }
                Ok(Event::InitDone) => {
                    self.changed(K::retain(&listed, &self.cache));
                    self.synced.set(true);
                }
                Ok(Event::Apply(object)) => self.apply(read(object)),
                Ok(Event::Delete(object)) => {
                    if let Seen::Is(gone) | Seen::IsNot(gone) = read(object) {
                        self.changed(gone.delete(&self.cache));
                    }
                }
                Err(error) => warn!(kind = self.kind, %error, "watch failed, will be resumed"),
            }
        }
        Ok(())
    }

    fn apply<K: Fed>(&self, seen: Seen<K>) {
        match seen {
            Seen::Is(object) => self.changed(object.apply(&self.cache)),
            Seen::IsNot(object) => self.changed(object.delete(&self.cache)),
            Seen::Unreadable => {}
        }
    }

    /// The cache has the change by now, so that whoever begins to lead a moment later finds it there.
    fn changed(&self, runs: Vec<RunKey>) {
        if self.leadership.is_held() {
            for run in runs {
                self.queues.push(run);
            }
        }
    }
}
