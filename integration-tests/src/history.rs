//! Records where each pod was and when, with a watch of all pods of the cluster, because a list shows only the present. Every
//! test checks the record ([`History::verdict`]): a volume that only one node can mount must never be in use on two nodes (a real
//! cluster would report this as a Multi-Attach error), and no kubelet may reject a pod because its node is full.
//!
//! Times are resource versions, because a watch delivers changes in the order in which they happened.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_core::observed::PodPhase;
use coscheduler_kubernetes::pods;
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::look;

/// How far the watch may lag behind on a busy machine. After 300 seconds, the client ends a silent connection, for example to an
/// API server that was killed.
const BEHIND: Duration = Duration::from_secs(330);

/// A pod on its node, from its binding until its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Stay {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The name of the PipelineRun that the pod belongs to; empty if there is none.
    pub run: String,
    /// True if the pod is a placeholder.
    pub placeholder: bool,
    /// The node that the pod is bound to.
    pub node: String,
    /// The names of the claims among the pod's volumes.
    pub claims: Vec<String>,
    /// The time at which the pod was bound.
    pub from: u64,
    /// The time at which the pod ended or was deleted; `None` while neither has happened.
    pub until: Option<u64>,
}

impl Stay {
    /// True if both pods were on their nodes at the same time.
    pub fn overlaps(&self, other: &Self) -> bool {
        let before = |from: u64, until: Option<u64>| until.is_none_or(|until| from < until);
        before(self.from, other.until) && before(other.from, self.until)
    }
}

/// The watch, and its record.
pub struct History {
    client: Client,
    log: Arc<Mutex<Log>>,
    version: watch::Receiver<u64>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Default)]
struct Log {
    /// The stays of all pods, by uid.
    stays: HashMap<String, Stay>,
    /// The namespace and the newest version of each pod that exists, by uid.
    pods: HashMap<String, (String, u64)>,
    /// The uids of deleted pods. A pod that a list contains may be deleted before the watch shows the listed version of the pod.
    gone: HashSet<String>,
    /// The access modes of claims, also of deleted ones, by namespace and name.
    claims: HashMap<(String, String), Vec<String>>,
    listed: HashSet<String>,
    /// Namespaces in which pods on two nodes may use the same claim.
    exempt: HashSet<String>,
    /// The pods that a kubelet rejected because their node was full, each with the reason.
    rejected: BTreeSet<String>,
}

impl History {
    /// Starts the watch.
    pub fn follow(client: Client) -> Self {
        let log = Arc::new(Mutex::new(Log::default()));
        let (news, version) = watch::channel(0);
        let config = watcher::Config::default;
        let of_pods = watcher(Api::<Pod>::all(client.clone()), config()).default_backoff();
        let of_claims =
            watcher(Api::<PersistentVolumeClaim>::all(client.clone()), config()).default_backoff();
        let tasks = [
            tokio::spawn(take_in(of_pods, log.clone(), news, Log::pod)),
            tokio::spawn(take_in(
                of_claims,
                log.clone(),
                watch::Sender::new(0),
                Log::claim,
            )),
        ];
        Self {
            client,
            log,
            version,
            tasks,
        }
    }

    /// Every stay until now, in namespaces whose names begin with `namespaces`.
    ///
    /// # Errors
    ///
    /// The watch does not catch up in time.
    pub async fn stays(&self, namespaces: &str) -> anyhow::Result<Vec<Stay>> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let list = pods.list(&ListParams::default()).await?;
        let now = number(list.metadata.resource_version.as_deref());
        let there: BTreeMap<_, _> = list
            .items
            .iter()
            .filter(|pod| pod.namespace().unwrap_or_default().starts_with(namespaces))
            .map(|pod| (pod.uid().unwrap_or_default(), version(pod)))
            .collect();
        let mut news = self.version.clone();
        let caught_up = news.wait_for(|_| {
            let log = self.log();
            let seen = |(uid, version): (&String, &u64)| {
                log.gone.contains(uid)
                    || log.pods.get(uid).is_some_and(|(_, known)| known >= version)
            };
            there.iter().all(seen)
                && log.pods.iter().all(|(uid, (namespace, known))| {
                    *known > now || there.contains_key(uid) || !namespace.starts_with(namespaces)
                })
        });
        let caught_up = tokio::time::timeout(BEHIND, caught_up).await;
        drop(caught_up.context("the watch of pods is behind")??);
        Ok(self.seen(namespaces))
    }

    /// Allows that pods on two nodes use the same claim in this namespace. Some tests evacuate nodes on which tasks run. These
    /// tasks keep their volume while the placeholder is bound elsewhere. A real kubelet would make the placeholder wait, but
    /// the simulated kubelets of the bed do not.
    pub fn exempt(&self, namespace: &str) {
        self.log().exempt.insert(namespace.to_owned());
    }

    /// Checks that until now, in any namespace, no claim that only one node can mount was in use on two nodes at the same time, and
    /// no kubelet rejected a pod because its node was full.
    ///
    /// # Errors
    ///
    /// A claim was in use in this way (the error names the claims, pods and nodes), a kubelet rejected a pod, or the watch does not
    /// catch up in time.
    pub async fn verdict(&self) -> anyhow::Result<()> {
        self.stays("").await?;
        self.verdict_so_far()
    }

    /// As [`History::verdict`], but without waiting for the watch, because the control plane may be gone.
    ///
    /// # Errors
    ///
    /// A claim was in use in this way, or a kubelet rejected a pod.
    pub fn verdict_so_far(&self) -> anyhow::Result<()> {
        let rejected = self.log().rejected.clone();
        ensure!(rejected.is_empty(), "rejected by a kubelet: {rejected:?}");
        let exempt = self.log().exempt.clone();
        let stays = self.seen("");
        let mut users: BTreeMap<(&str, &str), Vec<&Stay>> = BTreeMap::new();
        for stay in &stays {
            if exempt.contains(&stay.namespace) {
                continue;
            }
            for claim in &stay.claims {
                let users = users.entry((&stay.namespace, claim)).or_default();
                users.push(stay);
            }
        }
        let mut conflicts = Vec::new();
        for ((namespace, claim), users) in users {
            if self.log().is_for_many_nodes(namespace, claim) {
                continue;
            }
            for (index, one) in users.iter().enumerate() {
                for other in &users[index + 1..] {
                    if one.node != other.node && one.overlaps(other) {
                        conflicts.push(format!(
                            "claim {namespace}/{claim} was in use by {} on {} and by {} on {} at a time",
                            one.pod, one.node, other.pod, other.node
                        ));
                    }
                }
            }
        }
        ensure!(conflicts.is_empty(), "{}", conflicts.join("\n"));
        Ok(())
    }

    fn seen(&self, namespaces: &str) -> Vec<Stay> {
        let log = self.log();
        let stays = log.stays.values();
        stays
            .filter(|stay| stay.namespace.starts_with(namespaces))
            .cloned()
            .collect()
    }

    fn log(&self) -> std::sync::MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for History {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("History").finish_non_exhaustive()
    }
}

impl Drop for History {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Passes a watch's events to `reduce`, and counts them in `news`.
async fn take_in<K>(
    events: impl Stream<Item = Result<Event<K>, watcher::Error>>,
    log: Arc<Mutex<Log>>,
    news: watch::Sender<u64>,
    reduce: fn(&mut Log, Event<K>),
) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        // The watcher retries errors with backoff.
        if let Ok(event) = event {
            reduce(
                &mut log.lock().unwrap_or_else(PoisonError::into_inner),
                event,
            );
            news.send_modify(|count| *count += 1);
        }
    }
}

impl Log {
    fn pod(&mut self, event: Event<Pod>) {
        match event {
            Event::Init => self.listed.clear(),
            Event::InitApply(pod) => {
                self.listed.insert(pod.uid().unwrap_or_default());
                self.applied(&pod);
            }
            Event::InitDone => {
                let newest = self.pods.values().map(|(_, version)| *version).max();
                let known = self.pods.keys();
                let gone: Vec<_> = known
                    .filter(|uid| !self.listed.contains(*uid))
                    .cloned()
                    .collect();
                for uid in gone {
                    self.gone(&uid, newest.unwrap_or_default());
                }
            }
            Event::Apply(pod) => self.applied(&pod),
            Event::Delete(pod) => self.gone(&pod.uid().unwrap_or_default(), version(&pod)),
        }
    }

    fn claim(&mut self, event: Event<PersistentVolumeClaim>) {
        let (Event::InitApply(claim) | Event::Apply(claim)) = event else {
            return;
        };
        let key = (claim.namespace().unwrap_or_default(), claim.name_any());
        let spec = claim.spec.unwrap_or_default();
        self.claims
            .insert(key, spec.access_modes.unwrap_or_default());
    }

    fn applied(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        let namespace = pod.namespace().unwrap_or_default();
        self.pods
            .insert(uid.clone(), (namespace.clone(), version(pod)));
        let status = pod.status.as_ref();
        let reason = status.and_then(|status| status.reason.as_deref());
        if let Some(reason) = reason.filter(|reason| reason.starts_with("OutOf")) {
            let rejected = format!("{namespace}/{}: {reason}", pod.name_any());
            self.rejected.insert(rejected);
        }
        let Some(node) = pods::node(pod) else { return };
        let stay = self.stays.entry(uid).or_insert_with(|| Stay {
            namespace,
            pod: pod.name_any(),
            run: pods::label(pod, "tekton.dev/pipelineRun")
                .unwrap_or_default()
                .to_owned(),
            placeholder: pods::is_placeholder(pod),
            node: node.to_owned(),
            claims: look::claims(pod),
            from: version(pod),
            until: None,
        });
        match pods::phase(pod) {
            PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => {}
            PodPhase::Succeeded | PodPhase::Failed => {
                stay.until.get_or_insert(version(pod));
            }
        }
    }

    fn gone(&mut self, uid: &str, version: u64) {
        self.pods.remove(uid);
        self.gone.insert(uid.to_owned());
        if let Some(stay) = self.stays.get_mut(uid) {
            stay.until.get_or_insert(version);
        }
    }

    fn is_for_many_nodes(&self, namespace: &str, claim: &str) -> bool {
        let modes = self.claims.get(&(namespace.to_owned(), claim.to_owned()));
        modes.is_some_and(|modes| {
            let many = |mode: &String| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
            modes.iter().any(many)
        })
    }
}

fn version(pod: &Pod) -> u64 {
    number(pod.metadata.resource_version.as_deref())
}

fn number(version: Option<&str>) -> u64 {
    version
        .and_then(|version| version.parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stay(from: u64, until: Option<u64>) -> Stay {
        Stay {
            namespace: "n".to_owned(),
            pod: "p".to_owned(),
            run: "r".to_owned(),
            placeholder: false,
            node: "node-1".to_owned(),
            claims: Vec::new(),
            from,
            until,
        }
    }

    #[test]
    fn a_pod_that_comes_when_another_is_gone_does_not_overlap() {
        let first = stay(1, Some(5));
        for (from, until, overlaps) in [
            (5, None, false),
            (4, None, true),
            (0, Some(1), false),
            (0, Some(2), true),
            (2, Some(3), true),
        ] {
            let other = stay(from, until);
            assert_eq!(first.overlaps(&other), overlaps, "{other:?}");
            assert_eq!(other.overlaps(&first), overlaps, "{other:?}");
        }
        assert!(stay(1, None).overlaps(&stay(9, None)));
    }
}
