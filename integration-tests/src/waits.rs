//! Records with a watch how long the pods of a namespace wait for room. The nodes are those of the scene's own pool
//! ([`Scene::pool_of`]). No pods of other scenes may run on them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coscheduler_core::labels::INSTANCE;
use coscheduler_core::observed::PodPhase;
use coscheduler_core::quantity::Quantity;
use coscheduler_kubernetes::pods;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Node, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource;
use kube::api::ListParams;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt as _};
use tokio::task::JoinHandle;

use crate::Scene;
use crate::nodes::POOL;

/// The requests of a placeholder that reserves nothing: the defaults of `placeholder-cpu` and `placeholder-memory`.
const OWN: Room = Room {
    milli_cpu: 50,
    memory: 100 << 20,
};

/// The watch, and its record.
pub struct Waits {
    log: Arc<Mutex<Log>>,
    task: JoinHandle<()>,
}

/// The time for which a pod waited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// The length of the time.
    pub time: Duration,
    /// The name of the pod.
    pub pod: String,
}

impl Waits {
    /// Starts the watch, with the nodes that the scene's pool has now.
    ///
    /// # Errors
    ///
    /// The nodes cannot be listed.
    pub async fn follow(scene: &Scene<'_>) -> anyhow::Result<Self> {
        let of_pool = ListParams::default().labels(&format!("{POOL}={}", scene.namespace));
        let nodes = Api::<Node>::all(scene.client.clone());
        let nodes = nodes.list(&of_pool).await?.items.into_iter();
        let log = Arc::new(Mutex::new(Log {
            nodes: nodes
                .map(|node| (node.name_any(), Room::allocatable(&node)))
                .collect(),
            ..Log::default()
        }));
        let events = watcher(scene.api::<Pod>(), watcher::Config::default());
        let task = tokio::spawn({
            let log = log.clone();
            async move {
                let mut events = pin!(events);
                while let Some(event) = events.next().await {
                    // kube's `watcher` retries after an error. The control plane does not stop, so `watcher` lists the pods only
                    // at its start, and sees each deletion.
                    let mut log = lock(&log);
                    match event {
                        Ok(Event::InitApply(pod) | Event::Apply(pod)) => log.applied(&pod),
                        Ok(Event::Delete(pod)) => log.gone(&pod.uid().unwrap_or_default()),
                        Ok(Event::Init | Event::InitDone) | Err(_) => {}
                    }
                    log.look();
                }
            }
        });
        Ok(Self { log, task })
    }

    /// The longest uninterrupted time in which a pod was unschedulable although its placeholder was bound to a node with room
    /// for the pod. The room that the placeholder reserves for the run counts as free room.
    pub fn longest_for_held_room(&self) -> Option<Wait> {
        lock(&self.log).held.longest.clone()
    }

    /// The longest uninterrupted time in which a pod was unschedulable, for any reason. Placeholders do not count.
    pub fn longest(&self) -> Option<Wait> {
        lock(&self.log).all.longest.clone()
    }

    /// The number of pods that were on a node. Placeholders do not count.
    pub fn bound(&self) -> usize {
        lock(&self.log).bound.len()
    }
}

impl fmt::Debug for Waits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Waits").finish_non_exhaustive()
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Default)]
struct Log {
    nodes: BTreeMap<String, Room>,
    /// The pods that have not ended, by uid.
    pods: HashMap<String, Seen>,
    held: Clock,
    all: Clock,
    /// The uids of the pods that were on a node.
    bound: HashSet<String>,
}

struct Seen {
    name: String,
    /// The placeholder's name, if the pod is a placeholder.
    placeholder: Option<String>,
    /// The placeholders whose node the pod must share.
    follows: Vec<String>,
    node: Option<String>,
    requests: Room,
    unschedulable: bool,
}

/// Uninterrupted times, by the pod's uid.
#[derive(Default)]
struct Clock {
    since: HashMap<String, Instant>,
    longest: Option<Wait>,
}

impl Clock {
    fn tell(&mut self, uid: &str, pod: &str, waits: bool) {
        let now = Instant::now();
        let since = match waits {
            true => *self.since.entry(uid.to_owned()).or_insert(now),
            false => match self.since.remove(uid) {
                Some(since) => since,
                None => return,
            },
        };
        let wait = Wait {
            time: now - since,
            pod: pod.to_owned(),
        };
        self.longest = self.longest.take().max(Some(wait));
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Room {
    milli_cpu: i128,
    memory: i128,
}

impl Room {
    fn allocatable(node: &Node) -> Self {
        let status = node.status.as_ref();
        Self::read(status.and_then(|status| status.allocatable.as_ref()))
    }

    /// The sum of the requests of the pod's containers. Until the kubelet has acted on a resize, the larger requests count.
    fn requests(pod: &Pod) -> Self {
        let asks = |resources: Option<&ResourceRequirements>| {
            Self::read(resources.and_then(|resources| resources.requests.as_ref()))
        };
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let statuses = pod.status.iter();
        let statuses = statuses.flat_map(|status| status.container_statuses.iter().flatten());
        let statuses: Vec<_> = statuses.collect();
        containers.fold(Self::default(), |sum, container| {
            let status = statuses.iter().find(|it| it.name == container.name);
            let asked = asks(container.resources.as_ref());
            let given = asks(status.and_then(|status| status.resources.as_ref()));
            sum.with(asked.or_more(given))
        })
    }

    fn read(list: Option<&BTreeMap<String, resource::Quantity>>) -> Self {
        let nano = |resource: &str| {
            let quantity = list.and_then(|list| list.get(resource));
            let quantity = quantity.and_then(|quantity| quantity.0.parse::<Quantity>().ok());
            quantity.map_or(0, |quantity| quantity.nano())
        };
        Self {
            milli_cpu: nano("cpu") / 1_000_000,
            memory: nano("memory") / 1_000_000_000,
        }
    }

    fn with(self, other: Self) -> Self {
        Self {
            milli_cpu: self.milli_cpu + other.milli_cpu,
            memory: self.memory + other.memory,
        }
    }

    fn without(self, other: Self) -> Self {
        Self {
            milli_cpu: self.milli_cpu - other.milli_cpu,
            memory: self.memory - other.memory,
        }
    }

    fn or_more(self, other: Self) -> Self {
        Self {
            milli_cpu: self.milli_cpu.max(other.milli_cpu),
            memory: self.memory.max(other.memory),
        }
    }

    fn takes(self, requests: Self) -> bool {
        requests.milli_cpu <= self.milli_cpu && requests.memory <= self.memory
    }
}

impl Log {
    fn applied(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        let is_placeholder = pods::is_placeholder(pod);
        if !is_placeholder && pods::node(pod).is_some() {
            self.bound.insert(uid.clone());
        }
        if matches!(pods::phase(pod), PodPhase::Succeeded | PodPhase::Failed) {
            self.gone(&uid);
            return;
        }
        let seen = Seen {
            name: pod.name_any(),
            placeholder: is_placeholder
                .then(|| pods::label(pod, INSTANCE).unwrap_or_default().to_owned()),
            follows: if is_placeholder {
                Vec::new()
            } else {
                pods::follows(pod)
            },
            node: pods::node(pod).map(str::to_owned),
            requests: Room::requests(pod),
            unschedulable: !is_placeholder && pods::is_unschedulable(pod),
        };
        self.pods.insert(uid, seen);
    }

    fn gone(&mut self, uid: &str) {
        self.pods.remove(uid);
        for clock in [&mut self.held, &mut self.all] {
            clock.since.remove(uid);
        }
    }

    /// Checks which pods wait now, and updates the times.
    fn look(&mut self) {
        let mut free = self.nodes.clone();
        for pod in self.pods.values() {
            let node = pod.node.as_ref().and_then(|node| free.get_mut(node));
            if let Some(node) = node {
                *node = node.without(pod.requests);
            }
        }
        for (uid, pod) in &self.pods {
            let waits = pod.unschedulable && self.has_room(pod, &free);
            self.held.tell(uid, &pod.name, waits);
            self.all.tell(uid, &pod.name, pod.unschedulable);
        }
    }

    fn has_room(&self, pod: &Seen, free: &BTreeMap<String, Room>) -> bool {
        let mut placeholders = self.pods.values().filter(|it| {
            let name = it.placeholder.as_ref();
            name.is_some_and(|name| pod.follows.contains(name))
        });
        placeholders.any(|placeholder| {
            let node = placeholder.node.as_ref().and_then(|node| free.get(node));
            let held = placeholder.requests.or_more(OWN).without(OWN);
            node.is_some_and(|node| node.with(held).takes(pod.requests))
        })
    }
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(milli_cpu: i128) -> Room {
        Room {
            milli_cpu,
            memory: 0,
        }
    }

    fn seen(name: &str, node: Option<&str>, milli_cpu: i128) -> Seen {
        Seen {
            name: name.to_owned(),
            placeholder: None,
            follows: Vec::new(),
            node: node.map(str::to_owned),
            requests: room(milli_cpu),
            unschedulable: node.is_none(),
        }
    }

    fn waits_for_held_room(placeholder: i128, other: i128) -> bool {
        let holder = Seen {
            placeholder: Some("p".to_owned()),
            ..seen("p-0", Some("node"), placeholder)
        };
        let waiting = Seen {
            follows: vec!["p".to_owned()],
            ..seen("waiting", None, 1000)
        };
        let other = seen("other", Some("node"), other);
        let pods = [("1", holder), ("2", waiting), ("3", other)];
        let mut log = Log {
            nodes: [("node".to_owned(), room(2000))].into(),
            pods: pods.map(|(uid, pod)| (uid.to_owned(), pod)).into(),
            ..Log::default()
        };
        log.look();
        log.held.longest.is_some_and(|wait| wait.pod == "waiting")
    }

    #[test]
    fn a_pod_waits_for_room_that_is_free_or_that_its_placeholder_holds() {
        assert!(waits_for_held_room(50, 900));
        assert!(waits_for_held_room(1950, 50));
        assert!(!waits_for_held_room(50, 1000));
        assert!(!waits_for_held_room(550, 1000));
    }
}
