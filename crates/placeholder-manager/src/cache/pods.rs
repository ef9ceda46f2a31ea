//! The part of the cache for placeholders and pods.

use std::collections::HashSet;

use coscheduler_core::config::Backend;
use coscheduler_core::observed::{Placeholder, Pod};
use coscheduler_core::pipeline_run::RunState;
use coscheduler_kubernetes::complaints::About;
use coscheduler_runtime::kubernetes::watch::ObjectKey;

use super::store::Object as _;
use super::{Before, Cache, Index, RunKey};

impl Cache {
    pub(crate) fn apply_placeholder(&self, own: Placeholder) -> Vec<RunKey> {
        self.change(|index, before| index.put_placeholder(own, before))
    }

    /// Stores the answer to a write, unless the watch has reported meanwhile that the object is gone.
    pub(crate) fn refresh_placeholder(&self, own: Placeholder) {
        self.change(|index, before| {
            if index.placeholders.knows(&own) {
                index.put_placeholder(own, before)
            } else {
                Vec::new()
            }
        });
    }

    pub(crate) fn delete_placeholder(&self, key: &ObjectKey) -> Vec<RunKey> {
        self.change(|index, before| {
            let Some(run) = index.placeholders.get(key).and_then(|own| own.run()) else {
                return Vec::new();
            };
            before.of(index, &run);
            index.placeholders.remove(key);
            index.complaints.forget(About::Placeholder, key);
            let pod = index.pod_of_placeholder(key);
            let made_up = pod.and_then(|pod| pod.to_placeholder());
            if let Some(made_up) = made_up {
                index.placeholders.insert(made_up);
            }
            vec![run]
        })
    }

    pub(crate) fn retain_placeholders(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let mut stale = self.read().placeholders.stale(listed);
        // The watch of placeholders lists only those with a controller.
        stale.retain(|key| {
            let index = self.read();
            let own = index.placeholders.get(key);
            own.is_some_and(|own| own.backend == Backend::Controlled)
        });
        let news = stale.iter().flat_map(|key| self.delete_placeholder(key));
        news.collect()
    }

    /// Stores a pod that has not ended.
    pub(crate) fn apply_pod(&self, pod: Pod) -> Vec<RunKey> {
        self.change(|index, before| index.put_pod(pod, before))
    }

    /// Removes a pod that has ended, and keeps only the name of its TaskRun. The name is kept until the run has ended.
    pub(crate) fn end_pod(&self, pod: &Pod) -> Vec<RunKey> {
        self.change(|index, before| {
            let run = RunKey::new(&pod.namespace, &pod.run_uid);
            before.of(index, &run);
            // The watch of ended pods may be late: a later pod may have the name.
            let mut news = if index.pods.knows(pod) {
                index.lose_pod(&pod.key())
            } else {
                Vec::new()
            };
            if index.end(&run, pod) {
                news.push(run);
            }
            news
        })
    }

    /// Stores the answer to a write, as [`Self::refresh_placeholder`] does.
    pub(crate) fn refresh_pod(&self, pod: Pod) {
        self.change(|index, before| {
            if index.pods.knows(&pod) {
                index.put_pod(pod, before)
            } else {
                Vec::new()
            }
        });
    }

    pub(crate) fn delete_pod(&self, key: &ObjectKey) -> Vec<RunKey> {
        self.change(|index, before| {
            if let Some(run) = index.pods.get(key).and_then(|pod| pod.run()) {
                before.of(index, &run);
            }
            index.lose_pod(key)
        })
    }

    pub(crate) fn retain_pods(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale = self.read().pods.stale(listed);
        stale.iter().flat_map(|key| self.delete_pod(key)).collect()
    }
}

impl Index {
    fn put_placeholder(&mut self, mut own: Placeholder, before: &mut Before) -> Vec<RunKey> {
        if self.placeholders.is_behind(&own) {
            return Vec::new();
        }
        // If a run is deleted with `--cascade=orphan`, its placeholders lose their owner reference. The cache keeps the known
        // owner.
        if own.run_uid.is_empty() {
            match self.placeholders.get(&own.key()) {
                Some(known) if known.object.uid == own.object.uid => {
                    own.run_uid = known.run_uid.clone();
                    own.controller = known.controller.clone();
                }
                Some(_) | None => return Vec::new(),
            }
        }
        let run = RunKey::new(&own.namespace, &own.run_uid);
        before.of(self, &run);
        self.placeholders.insert(own);
        vec![run]
    }

    /// Notes that a TaskRun's pod has ended. Returns true if this is new. Returns false, and notes nothing, if the cache does not
    /// contain the run, if the run is done, or if the pod belongs to no TaskRun.
    fn end(&mut self, run: &RunKey, pod: &Pod) -> bool {
        let name = self.names.get(&run.uid);
        let known = name.and_then(|name| self.runs.get(name));
        let is_active = known.is_some_and(|known| known.run.state != RunState::Done);
        match pod.task_run() {
            Some(task_run) if is_active => {
                let ended = self.ended.entry(run.clone()).or_default();
                ended.insert(task_run.name.clone())
            }
            Some(_) | None => false,
        }
    }

    /// Removes a pod that has ended or is gone. Returns the pod's run. If the pod was bound and is not a placeholder's pod,
    /// also returns the other runs that use a claim of the pod: the pod may have kept their placeholders on its node.
    fn lose_pod(&mut self, key: &ObjectKey) -> Vec<RunKey> {
        let pod = self.pods.get(key).cloned();
        let mut news = self.forget_pod(key);
        let Some(pod) = pod.filter(|pod| pod.node.is_some() && pod.placeholder.is_none()) else {
            return news;
        };
        for claim in &pod.claims {
            let claim = (pod.namespace.clone(), claim.clone());
            let users = self.users.get(&claim).into_iter().flatten();
            news.extend(users.filter(|run| run.uid != pod.run_uid).cloned());
        }
        news
    }

    fn put_pod(&mut self, pod: Pod, before: &mut Before) -> Vec<RunKey> {
        if self.pods.is_behind(&pod) {
            return Vec::new();
        }
        let (key, run) = (pod.key(), RunKey::new(&pod.namespace, &pod.run_uid));
        before.of(self, &run);
        let mut news = self.forget_pod(&key);
        if let Some(node) = &pod.node {
            let there = self.pods_by_node.entry(node.clone()).or_default();
            there.insert(key.clone());
        }
        for claim in &pod.claims {
            let claim = (pod.namespace.clone(), claim.clone());
            let using = self.pods_by_claim.entry(claim).or_default();
            using.insert(key.clone());
        }
        if let Some(labels) = &pod.placeholder {
            let of_run = self.placeholder_pods.entry(run.clone()).or_default();
            of_run.insert(key.clone());
            if pod.is_refused() {
                self.refused.insert(key.clone());
            }
            let own = (pod.namespace.clone(), labels.name.clone());
            self.complaints.forget(About::Placeholder, &own);
        }
        if let Some(made_up) = pod.to_placeholder() {
            // If the placeholder has a controller meanwhile, it no longer consists of this pod.
            let known = self.placeholders.get(&made_up.key());
            if known.is_none_or(|known| known.backend == Backend::Pod) {
                self.placeholders.insert(made_up);
            }
        }
        self.pods.insert(pod);
        news.retain(|other| *other != run);
        news.push(run);
        news
    }
}
