//! Every claim with the volume behind it, and which runs use it. Whose it is does not matter here: a run may use claims
//! that somebody brought (V1, V7, V8), and claims that Tekton made for it are found by name once it is to give them up (V4).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::plan;
use coscheduler_core::teardown::auto_cleaned;
use coscheduler_core::volumes::SeenClaim;
use coscheduler_kubernetes::complaints::About;
use coscheduler_kubernetes::ownership::is_ours;
use coscheduler_kubernetes::{claims, volumes};

use super::{Cache, Kind as _, ObjectKey, Run, RunKey, is_newer};

/// The claims and volumes of the cluster, and the active runs that use each claim.
#[derive(Debug, Default)]
pub(super) struct Claims {
    claims: HashMap<ObjectKey, Arc<PersistentVolumeClaim>>,
    volumes: HashMap<String, Arc<PersistentVolume>>,
    users: HashMap<ObjectKey, HashSet<RunKey>>,
    used_by: HashMap<RunKey, Vec<ObjectKey>>,
}

/// A claim and the volume it is bound to, each as far as it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownClaim {
    pub claim: Option<Arc<PersistentVolumeClaim>>,
    pub volume: Option<Arc<PersistentVolume>>,
}

impl KnownClaim {
    /// As `core` sees it.
    pub(crate) fn seen(&self) -> Option<SeenClaim> {
        let claim = self.claim.as_ref()?;
        Some(volumes::seen(claim, self.volume.as_deref()))
    }
}

impl Claims {
    /// Among a run's claims are those that Tekton made for it exactly while they are to go with it (V4).
    pub(super) fn adopt(&self, run: &mut Run, uid: &str) {
        let itself = run.itself();
        let names = itself.as_ref().map(|run| auto_cleaned(run));
        let names: BTreeSet<String> = names.unwrap_or_default().into_iter().collect();
        run.claims
            .retain(|name, claim| !claims::is_made_by_tekton(claim, uid) || names.contains(name));
        let namespace = itself.map(|run| run.namespace.clone()).unwrap_or_default();
        for name in names {
            if let Some(claim) = self.claims.get(&(namespace.clone(), name.clone()))
                && claims::is_made_by_tekton(claim, uid)
            {
                run.claims.entry(name).or_insert_with(|| claim.clone());
            }
        }
    }

    /// Takes in that a run is now `is` where it was `was`: only an active one uses claims.
    pub(super) fn used(
        &mut self,
        key: &RunKey,
        was: Option<&Arc<PipelineRun>>,
        is: Option<&Arc<PipelineRun>>,
    ) {
        let same = match (was, is) {
            (Some(was), Some(is)) => Arc::ptr_eq(was, is),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if same {
            return;
        }
        for claim in self.used_by.remove(key).into_iter().flatten() {
            if let Some(users) = self.users.get_mut(&claim) {
                users.remove(key);
                if users.is_empty() {
                    self.users.remove(&claim);
                }
            }
        }
        let Some(plan) = is.and_then(|run| plan(run).ok()) else {
            return;
        };
        let placeholders = plan.action.placeholders().iter();
        let names = placeholders.flat_map(|spec| spec.claims().collect::<Vec<_>>());
        let used: Vec<ObjectKey> = names.map(|name| (key.namespace.clone(), name)).collect();
        for claim in &used {
            let users = self.users.entry(claim.clone()).or_default();
            users.insert(key.clone());
        }
        if !used.is_empty() {
            self.used_by.insert(key.clone(), used);
        }
    }

    /// The runs that are to look again once this claim has changed.
    pub(super) fn concerned(&self, key: &ObjectKey) -> Vec<RunKey> {
        let users = self.users.get(key).into_iter().flatten();
        users.cloned().collect()
    }

    pub(super) fn known(&self, key: &ObjectKey) -> KnownClaim {
        let claim = self.claims.get(key).cloned();
        let volume = claim.as_deref().and_then(volumes::volume_name);
        KnownClaim {
            volume: volume.and_then(|name| self.volumes.get(name)).cloned(),
            claim,
        }
    }
}

/// Claims of whoever they are, and volumes.
impl Cache {
    /// What is known of a claim.
    pub(crate) fn claim(&self, namespace: &str, name: &str) -> KnownClaim {
        let key = (namespace.to_owned(), name.to_owned());
        self.read().claims.known(&key)
    }

    /// A volume.
    pub(crate) fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.read().claims.volumes.get(name).cloned()
    }

    /// Takes in a claim that was created or changed. Answers the runs that it concerns: those that use it, and the one it
    /// was made for.
    pub(crate) fn apply_claim(&self, claim: PersistentVolumeClaim) -> Vec<RunKey> {
        let Some(key) = claim_key(&claim) else {
            return Vec::new();
        };
        let claim = self.as_made(claim);
        let mut concerned = {
            let mut index = self.write();
            let known = Arc::new(claim.clone());
            index.claims.claims.insert(key.clone(), known);
            if volumes::volume_name(&claim).is_some() {
                index.complaints.forget(About::Claim, key.clone());
            }
            index.claims.concerned(&key)
        };
        let run = claim.run_key();
        if is_ours(&claim.metadata) {
            concerned.extend(self.apply(claim));
        } else if let Some(run) = run.filter(|run| self.knows(run)) {
            self.refresh(claim);
            concerned.push(run);
        }
        concerned
    }

    /// Takes in the answer to a write, unless the watch has said meanwhile that the claim is gone.
    pub(crate) fn refresh_claim(&self, claim: PersistentVolumeClaim) {
        let claim = self.as_made(claim);
        if let Some(key) = claim_key(&claim)
            && let Some(known) = self.write().claims.claims.get_mut(&key)
            && !is_newer(known.version().1, claim.version().1)
        {
            *known = Arc::new(claim.clone());
        }
        self.refresh(claim);
    }

    /// Forgets a claim. Answers the runs that it concerned.
    pub(crate) fn delete_claim(&self, claim: &PersistentVolumeClaim) -> Vec<RunKey> {
        let Some(key) = claim_key(claim) else {
            return Vec::new();
        };
        let claim = self.as_made(claim.clone());
        let mut concerned = {
            let mut index = self.write();
            index.claims.claims.remove(&key);
            index.complaints.forget(About::Claim, key.clone());
            index.claims.concerned(&key)
        };
        if claim.run_key().is_some_and(|run| self.knows(&run)) {
            concerned.extend(self.delete(&claim));
        }
        concerned
    }

    /// Forgets the claims that a fresh list did not have. Answers the runs that they concerned.
    pub(crate) fn retain_claims(&self, listed: &HashSet<ObjectKey>) -> Vec<RunKey> {
        let stale: Vec<_> = {
            let index = self.read();
            let known = index.claims.claims.iter();
            let stale = known.filter(|(key, _)| !listed.contains(*key));
            stale.map(|(_, claim)| claim.clone()).collect()
        };
        let concerned = stale.iter().flat_map(|claim| self.delete_claim(claim));
        concerned.collect()
    }

    /// Takes in a volume. Answers the runs that it concerns.
    pub(crate) fn apply_volume(&self, name: String, volume: PersistentVolume) -> Vec<RunKey> {
        let mut index = self.write();
        let key = volumes::claim_key(&volume);
        index.claims.volumes.insert(name, Arc::new(volume));
        key.map(|key| index.claims.concerned(&key))
            .unwrap_or_default()
    }

    /// Forgets a volume. Answers the runs that it concerned.
    pub(crate) fn delete_volume(&self, name: &str) -> Vec<RunKey> {
        let mut index = self.write();
        let gone = index.claims.volumes.remove(name);
        let key = gone.and_then(|volume| volumes::claim_key(&volume));
        key.map(|key| index.claims.concerned(&key))
            .unwrap_or_default()
    }

    /// Forgets the volumes that a fresh list did not have. Answers the runs that they concerned.
    pub(crate) fn retain_volumes(&self, listed: &HashSet<String>) -> Vec<RunKey> {
        let stale: Vec<String> = {
            let index = self.read();
            let known = index.claims.volumes.keys();
            known
                .filter(|name| !listed.contains(*name))
                .cloned()
                .collect()
        };
        let concerned = stale.iter().flat_map(|name| self.delete_volume(name));
        concerned.collect()
    }

    /// A claim that was made for a run stays that run's: deleting the run with `--cascade=orphan` takes its owner away.
    fn as_made(&self, mut claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
        if claim.run_key().is_none()
            && let Some(key) = claim_key(&claim)
            && let Some(known) = self.read().claims.claims.get(&key)
            && known.metadata.uid == claim.metadata.uid
        {
            claim.metadata.owner_references = known.metadata.owner_references.clone();
        }
        claim
    }

    fn knows(&self, run: &RunKey) -> bool {
        self.read().runs.contains_key(run)
    }
}

fn claim_key(claim: &PersistentVolumeClaim) -> Option<ObjectKey> {
    let metadata = &claim.metadata;
    Some((metadata.namespace.clone()?, metadata.name.clone()?))
}

#[cfg(test)]
mod tests;
