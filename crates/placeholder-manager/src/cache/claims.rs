//! The parts of the cache for claims and volumes, and for Events about failures of claims and placeholders.

use std::collections::HashSet;
use std::sync::Arc;

use coscheduler_core::observed::KnownClaim;
use coscheduler_core::volumes::{SeenClaim, SeenVolume};
use coscheduler_kubernetes::complaints::{About, Complaint};
use coscheduler_runtime::kubernetes::watch::ObjectKey;

use super::store::Object as _;
use super::{Cache, Index, RunKey};

impl Cache {
    pub(crate) fn apply_claim(&self, claim: KnownClaim) -> Vec<RunKey> {
        self.change(|index, _| index.put_claim(claim))
    }

    /// Stores a claim from the API server's answer to a write, unless the watch has reported its deletion meanwhile.
    pub(crate) fn refresh_claim(&self, claim: KnownClaim) {
        let mut index = self.write();
        if index.claims.knows(&claim) {
            index.put_claim(claim);
        }
    }

    pub(crate) fn delete_claim(&self, key: &ObjectKey) -> Vec<RunKey> {
        self.change(|index, _| {
            let concerned = index.concerned(key);
            index.claims.remove(key);
            index.complaints.forget(About::Claim, key);
            concerned
        })
    }

    pub(crate) fn retain_claims(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale = self.read().claims.stale(listed);
        stale
            .iter()
            .flat_map(|key| self.delete_claim(key))
            .collect()
    }

    pub(crate) fn apply_volume(
        &self,
        name: String,
        volume: (SeenVolume, Option<ObjectKey>),
    ) -> Vec<RunKey> {
        let claim = volume.1.clone();
        self.change(|index, _| {
            index.volumes.insert(name, volume);
            claim.map_or_else(Vec::new, |claim| index.concerned(&claim))
        })
    }

    pub(crate) fn delete_volume(&self, name: &str) -> Vec<RunKey> {
        self.change(|index, _| {
            let claim = index.volumes.remove(name).and_then(|(_, claim)| claim);
            claim.map_or_else(Vec::new, |claim| index.concerned(&claim))
        })
    }

    pub(crate) fn retain_volumes(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale: Vec<String> = {
            let index = self.read();
            let names = index.volumes.keys();
            let stale = names.filter(|name| !listed.contains(&(String::new(), (*name).clone())));
            stale.cloned().collect()
        };
        stale
            .iter()
            .flat_map(|name| self.delete_volume(name))
            .collect()
    }

    /// A claim, and its volume if the cache knows the volume.
    pub(crate) fn claim(&self, key: &ObjectKey) -> Option<(Arc<KnownClaim>, SeenClaim)> {
        let index = self.read();
        Some((index.claims.get(key)?.clone(), index.seen(key)?))
    }

    /// A volume.
    pub(crate) fn volume(&self, name: &str) -> Option<SeenVolume> {
        let index = self.read();
        index.volumes.get(name).map(|(volume, _)| volume.clone())
    }

    pub(crate) fn apply_complaint(&self, watch: &'static str, complaint: Complaint) -> Vec<RunKey> {
        let (about, object) = (complaint.about, complaint.object.clone());
        self.change(|index, _| {
            // An Event may arrive after its cause has passed.
            let settled = match about {
                About::Placeholder => index.pod_of_placeholder(&object).is_some(),
                About::Claim => index
                    .claims
                    .get(&object)
                    .is_some_and(|claim| claim.volume.is_some()),
            };
            if settled || !index.complaints.insert(watch, complaint) {
                return Vec::new();
            }
            index.complained(about, &object)
        })
    }

    /// Removes the Events that came from this watch and are not `listed`. Returns the affected runs.
    pub(crate) fn retain_complaints(
        &self,
        watch: &'static str,
        listed: impl Fn(&ObjectKey) -> bool,
    ) -> Vec<RunKey> {
        self.change(|index, _| {
            let stale = index.complaints.retain(watch, listed).into_iter();
            stale
                .flat_map(|(about, object)| index.complained(about, &object))
                .collect()
        })
    }
}

impl Index {
    fn put_claim(&mut self, mut claim: KnownClaim) -> Vec<RunKey> {
        let key = claim.key();
        if self.claims.is_behind(&claim) {
            return Vec::new();
        }
        // If a run is deleted with `--cascade=orphan`, its claims lose their owner reference. The cache keeps the known owner,
        // so that the claims are still deleted after the run.
        if let Some(known) = self.claims.get(&key)
            && claim.owner.is_none()
            && known.object.uid == claim.object.uid
        {
            claim.owner = known.owner.clone();
            (claim.by_us, claim.by_tekton) = (known.by_us, known.by_tekton);
        }
        if claim.volume.is_some() {
            self.complaints.forget(About::Claim, &key);
        }
        self.claims.insert(claim);
        self.concerned(&key)
    }
}
