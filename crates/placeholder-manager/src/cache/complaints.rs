//! For each placeholder and each claim, the last Event about a failure. The cache drops an Event when the placeholder has its
//! pod, when the claim has its volume, or when the object or the Event is gone.

use std::collections::{HashMap, HashSet};

use coscheduler_core::plan::Reason;
use coscheduler_kubernetes::complaints::{About, Complaint};
use coscheduler_runtime::kubernetes::version::is_newer;
use coscheduler_runtime::kubernetes::watch::ObjectKey;

/// The Events about failures, by their object, with the name of the watch that delivered each Event.
#[derive(Debug, Default)]
pub(super) struct Complaints(HashMap<(About, ObjectKey), (&'static str, Complaint)>);

impl Complaints {
    /// Adds an Event from this watch, unless a newer Event about the object is stored. Returns true if the Event's reason is new
    /// for the object.
    pub(super) fn insert(&mut self, watch: &'static str, complaint: Complaint) -> bool {
        let key = (complaint.about, complaint.object.clone());
        let known = self.0.get(&key).map(|(_, known)| known);
        if known.is_some_and(|known| is_newer(&known.version, &complaint.version)) {
            return false;
        }
        let news = known
            .is_none_or(|known| known.uid != complaint.uid || known.reason != complaint.reason);
        self.0.insert(key, (watch, complaint));
        news
    }

    /// Drops the Event about an object from this cache. The caller knows that its cause has passed, or that the object is gone.
    pub(super) fn forget(&mut self, about: About, object: &ObjectKey) {
        self.0.remove(&(about, object.clone()));
    }

    /// Removes the Events that came from this watch and are not `listed`. Returns the objects of these Events.
    pub(super) fn retain(
        &mut self,
        watch: &'static str,
        listed: impl Fn(&ObjectKey) -> bool,
    ) -> HashSet<(About, ObjectKey)> {
        let stale = self.0.iter().filter(|(_, (by, complaint))| {
            let event = (complaint.object.0.clone(), complaint.event.clone());
            *by == watch && !listed(&event)
        });
        let stale: HashSet<_> = stale.map(|(key, _)| key.clone()).collect();
        self.0.retain(|key, _| !stale.contains(key));
        stale
    }

    /// The reason of the last Event about the object with this name and uid.
    pub(super) fn about(&self, about: About, object: &ObjectKey, uid: &str) -> Option<Reason> {
        let (_, complaint) = self.0.get(&(about, object.clone()))?;
        (complaint.uid == uid).then(|| complaint.reason.clone())
    }
}
