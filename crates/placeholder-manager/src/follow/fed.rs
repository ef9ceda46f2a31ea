//! What each kind of watch feeds into the cache.

use std::collections::HashSet;
use std::hash::Hash;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt as _;

use coscheduler_core::evacuate;
use coscheduler_core::rescue::requests::Amounts;
use coscheduler_kubernetes::complaints::Complaint;
use coscheduler_kubernetes::{needs, pods};

use crate::cache::{Cache, Kind, ObjectKey, OnNode, RunKey, Watch};

/// What the watch of one kind feeds into the cache. Each step answers the runs that are to be looked at again.
pub(super) trait Fed: Sized {
    /// Tells the objects of the kind apart.
    type Id: Eq + Hash;

    fn id(&self) -> Option<Self::Id>;
    fn apply(self, cache: &Cache) -> Vec<RunKey>;
    fn delete(&self, cache: &Cache) -> Vec<RunKey>;
    fn retain(listed: &HashSet<Self::Id>, cache: &Cache) -> Vec<RunKey>;
}

impl<K: Kind> Fed for K {
    type Id = (RunKey, String);

    fn id(&self) -> Option<Self::Id> {
        Some((self.run_key()?, self.name().to_owned()))
    }

    fn apply(self, cache: &Cache) -> Vec<RunKey> {
        cache.apply(self).into_iter().collect()
    }

    fn delete(&self, cache: &Cache) -> Vec<RunKey> {
        cache.delete(self).into_iter().collect()
    }

    fn retain(listed: &HashSet<Self::Id>, cache: &Cache) -> Vec<RunKey> {
        cache.retain::<K>(listed)
    }
}

/// A claim, whosever it is.
pub(super) struct Claim(pub PersistentVolumeClaim);

impl Fed for Claim {
    type Id = ObjectKey;

    fn id(&self) -> Option<Self::Id> {
        Some((self.0.namespace()?, self.0.name_any()))
    }

    fn apply(self, cache: &Cache) -> Vec<RunKey> {
        cache.apply_claim(self.0)
    }

    fn delete(&self, cache: &Cache) -> Vec<RunKey> {
        cache.delete_claim(&self.0)
    }

    fn retain(listed: &HashSet<Self::Id>, cache: &Cache) -> Vec<RunKey> {
        cache.retain_claims(listed)
    }
}

/// A volume.
pub(super) struct Volume(pub PersistentVolume);

impl Fed for Volume {
    type Id = String;

    fn id(&self) -> Option<Self::Id> {
        Some(self.0.name_any())
    }

    fn apply(self, cache: &Cache) -> Vec<RunKey> {
        cache.apply_volume(self.0.name_any(), self.0)
    }

    fn delete(&self, cache: &Cache) -> Vec<RunKey> {
        cache.delete_volume(&self.0.name_any())
    }

    fn retain(listed: &HashSet<Self::Id>, cache: &Cache) -> Vec<RunKey> {
        cache.retain_volumes(listed)
    }
}

/// A node, as far as it may turn pods away, and what it has for those that it takes.
pub(super) struct Node {
    pub view: evacuate::Node,
    pub allocatable: (Amounts, i128),
}

impl Fed for Node {
    type Id = String;

    fn id(&self) -> Option<Self::Id> {
        Some(self.view.name.clone())
    }

    fn apply(self, cache: &Cache) -> Vec<RunKey> {
        cache.apply_node(self.view, self.allocatable)
    }

    fn delete(&self, cache: &Cache) -> Vec<RunKey> {
        cache.delete_node(&self.view.name)
    }

    fn retain(listed: &HashSet<Self::Id>, cache: &Cache) -> Vec<RunKey> {
        cache.retain_nodes(listed)
    }
}

/// A complaint that one of [`WATCHES`] has brought.
pub(super) struct Heard<const WATCH: Watch>(pub Complaint);

impl<const WATCH: Watch> Fed for Heard<WATCH> {
    type Id = ObjectKey;

    fn id(&self) -> Option<Self::Id> {
        Some((self.0.namespace.clone(), self.0.event.clone()))
    }

    fn apply(self, cache: &Cache) -> Vec<RunKey> {
        cache.apply_complaint(WATCH, self.0)
    }

    fn delete(&self, cache: &Cache) -> Vec<RunKey> {
        cache.delete_complaint(&self.0)
    }

    fn retain(listed: &HashSet<Self::Id>, cache: &Cache) -> Vec<RunKey> {
        cache.retain_complaints(WATCH, listed)
    }
}

/// Pods that take something of a node (Kubernetes, "Field Selectors").
pub(super) const ON_NODES: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

pub(super) fn on_node(pod: &Pod) -> OnNode {
    OnNode {
        key: (pod.namespace().unwrap_or_default(), pod.name_any()),
        node: pods::node(pod).unwrap_or_default().to_owned(),
        requests: needs::requests(pod),
    }
}

/// What pods come and go is no news: who waits for room looks again and again.
impl Fed for OnNode {
    type Id = ObjectKey;

    fn id(&self) -> Option<Self::Id> {
        Some(self.key.clone())
    }

    fn apply(self, cache: &Cache) -> Vec<RunKey> {
        cache.put_on_node(self);
        Vec::new()
    }

    fn delete(&self, cache: &Cache) -> Vec<RunKey> {
        cache.take_from_node(&self.key);
        Vec::new()
    }

    fn retain(listed: &HashSet<Self::Id>, cache: &Cache) -> Vec<RunKey> {
        cache.retain_on_nodes(listed);
        Vec::new()
    }
}
