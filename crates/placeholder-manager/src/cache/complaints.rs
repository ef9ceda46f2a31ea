//! The last complaint about each placeholder's StatefulSet and each claim, for as long as the object is without what the
//! complaint is about: its pod, its volume.

use std::collections::{HashMap, HashSet};

use coscheduler_core::plan::Reason;
use coscheduler_kubernetes::complaints::{About, Complaint};
use coscheduler_kubernetes::volumes;

use super::kind::is_newer;
use super::{Cache, Index, ObjectKey, Run, RunKey};

/// Which of the watches of Events it was heard by.
pub(crate) type Watch = usize;

/// Complaints, by the object they are about.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    last: HashMap<(About, ObjectKey), (Watch, Complaint)>,
}

impl Complaints {
    /// The run's StatefulSets that have their pod were complained about before that.
    pub(super) fn settle(&mut self, namespace: &str, run: &Run) {
        if self.last.is_empty() {
            return;
        }
        for name in run.stateful_sets.keys() {
            if run.placeholder_pod(name).is_some() {
                self.forget(About::StatefulSet, (namespace.to_owned(), name.clone()));
            }
        }
    }

    /// The object has what the complaint was about, or is gone.
    pub(super) fn forget(&mut self, about: About, key: ObjectKey) {
        self.last.remove(&(about, key));
    }
}

impl Cache {
    /// Takes in a complaint. Answers the runs that it concerns, where it says something new.
    pub(crate) fn apply_complaint(&self, watch: Watch, complaint: Complaint) -> Vec<RunKey> {
        let mut index = self.write();
        if index.is_settled(&complaint) {
            return Vec::new();
        }
        let key = (complaint.namespace.clone(), complaint.name.clone());
        let about = complaint.about;
        let known = index.complaints.last.get(&(about, key.clone()));
        let news = match known {
            Some((_, known)) if known.uid == complaint.uid => {
                if is_newer(&known.version, &complaint.version) {
                    return Vec::new();
                }
                known.reason != complaint.reason
            }
            Some(_) | None => true,
        };
        let concerned = if news {
            index.concerned(about, &key)
        } else {
            Vec::new()
        };
        index
            .complaints
            .last
            .insert((about, key), (watch, complaint));
        concerned
    }

    /// Forgets what an Event said that has expired.
    pub(crate) fn delete_complaint(&self, complaint: &Complaint) -> Vec<RunKey> {
        let key = (complaint.namespace.clone(), complaint.name.clone());
        let mut index = self.write();
        let of = (complaint.about, key);
        let known = index.complaints.last.get(&of);
        if known.is_none_or(|(_, known)| known.event != complaint.event) {
            return Vec::new();
        }
        index.complaints.last.remove(&of);
        index.concerned(of.0, &of.1)
    }

    /// Forgets what was said in Events that a fresh list of this watch did not have, by namespace and name.
    pub(crate) fn retain_complaints(
        &self,
        watch: Watch,
        listed: &HashSet<ObjectKey>,
    ) -> Vec<RunKey> {
        let stale: Vec<Complaint> = {
            let index = self.read();
            let heard = index.complaints.last.values();
            heard
                .filter(|(heard_by, complaint)| {
                    let event = (complaint.namespace.clone(), complaint.event.clone());
                    *heard_by == watch && !listed.contains(&event)
                })
                .map(|(_, complaint)| complaint.clone())
                .collect()
        };
        let concerned = stale.iter().flat_map(|gone| self.delete_complaint(gone));
        concerned.collect()
    }

    /// What was complained about last of the object with that name and uid.
    pub(crate) fn complaint(
        &self,
        about: About,
        namespace: &str,
        name: &str,
        uid: Option<&String>,
    ) -> Option<Reason> {
        let index = self.read();
        let key = (about, (namespace.to_owned(), name.to_owned()));
        let (_, complaint) = index.complaints.last.get(&key)?;
        (uid == Some(&complaint.uid)).then(|| complaint.reason.clone())
    }
}

impl Index {
    /// Whether the object has what the complaint is about by now: Events are written late.
    fn is_settled(&self, complaint: &Complaint) -> bool {
        let key = (complaint.namespace.clone(), complaint.name.clone());
        match complaint.about {
            About::StatefulSet => self
                .with_set(&key)
                .any(|(_, run)| run.placeholder_pod(&key.1).is_some()),
            About::Claim => {
                let known = self.claims.known(&key).claim;
                known.is_some_and(|claim| volumes::volume_name(&claim).is_some())
            }
        }
    }

    fn concerned(&self, about: About, key: &ObjectKey) -> Vec<RunKey> {
        match about {
            About::StatefulSet => self.with_set(key).map(|(run, _)| run.clone()).collect(),
            About::Claim => self.claims.concerned(key),
        }
    }

    fn with_set<'a>(&'a self, key: &'a ObjectKey) -> impl Iterator<Item = (&'a RunKey, &'a Run)> {
        let in_namespace = self.runs.iter().filter(|(run, _)| run.namespace == key.0);
        in_namespace.filter(|(_, run)| run.stateful_sets.contains_key(&key.1))
    }
}

#[cfg(test)]
mod tests;
