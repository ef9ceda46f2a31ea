//! The last complaint about each placeholder and each claim, for as long as the object is without what the complaint is
//! about: its pod, its volume.

use std::collections::{HashMap, HashSet};

use coscheduler_core::plan::Reason;
use coscheduler_core::version::is_newer;
use coscheduler_kubernetes::complaints::{About, Complaint};
use coscheduler_runtime::kubernetes::watch::ObjectKey;

/// Complaints, by the object they are about.
#[derive(Debug, Default)]
pub(super) struct Complaints(HashMap<(About, ObjectKey), (&'static str, Complaint)>);

impl Complaints {
    /// Takes in a complaint that the watch of this name has brought. Answers whether it says something new.
    pub(super) fn insert(&mut self, watch: &'static str, complaint: Complaint) -> bool {
        let key = (complaint.about, complaint.object.clone());
        let news = match self.0.get(&key) {
            Some((_, known)) if known.uid == complaint.uid => {
                if is_newer(&known.version, &complaint.version) {
                    return false;
                }
                known.reason != complaint.reason
            }
            Some(_) | None => true,
        };
        self.0.insert(key, (watch, complaint));
        news
    }

    /// The object has what the complaint was about, or is gone.
    pub(super) fn forget(&mut self, about: About, object: &ObjectKey) {
        self.0.remove(&(about, object.clone()));
    }

    /// Forgets what the Events said that are not among `listed`, if this watch has brought them. Answers what they were about.
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

    /// The last complaint about the object with that name and uid.
    pub(super) fn about(&self, about: About, object: &ObjectKey, uid: &str) -> Option<Reason> {
        let (_, complaint) = self.0.get(&(about, object.clone()))?;
        (complaint.uid == uid).then(|| complaint.reason.clone())
    }
}
