//! The four kinds that the cache knows, and how each names the run it belongs to.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::pipeline_run::PipelineRun;

use super::{Run, RunKey};

/// A kind of object that belongs to a run.
pub(crate) trait Kind: Sized {
    /// The object's name.
    fn name(&self) -> &str;

    /// The run it belongs to. `None` for what is not this product's business.
    fn run_key(&self) -> Option<RunKey>;

    /// Its uid and its version.
    fn version(&self) -> (&str, &str);

    /// Where a run keeps objects of this kind.
    fn slot(run: &mut Run) -> &mut BTreeMap<String, Arc<Self>>;
}

impl Kind for PipelineRun {
    fn name(&self) -> &str {
        &self.name
    }

    fn run_key(&self) -> Option<RunKey> {
        Some(RunKey {
            namespace: self.namespace.clone(),
            uid: self.uid.clone(),
        })
    }

    fn version(&self) -> (&str, &str) {
        (&self.uid, &self.resource_version)
    }

    fn slot(run: &mut Run) -> &mut BTreeMap<String, Arc<Self>> {
        &mut run.pipeline_run
    }
}

impl Kind for StatefulSet {
    fn name(&self) -> &str {
        name(&self.metadata)
    }

    fn run_key(&self) -> Option<RunKey> {
        owned_by(&self.metadata)
    }

    fn version(&self) -> (&str, &str) {
        version(&self.metadata)
    }

    fn slot(run: &mut Run) -> &mut BTreeMap<String, Arc<Self>> {
        &mut run.stateful_sets
    }
}

impl Kind for PersistentVolumeClaim {
    fn name(&self) -> &str {
        name(&self.metadata)
    }

    fn run_key(&self) -> Option<RunKey> {
        owned_by(&self.metadata)
    }

    fn version(&self) -> (&str, &str) {
        version(&self.metadata)
    }

    fn slot(run: &mut Run) -> &mut BTreeMap<String, Arc<Self>> {
        &mut run.claims
    }
}

impl Kind for Pod {
    fn name(&self) -> &str {
        name(&self.metadata)
    }

    fn run_key(&self) -> Option<RunKey> {
        Some(RunKey {
            namespace: self.metadata.namespace.clone()?,
            uid: self
                .metadata
                .labels
                .as_ref()?
                .get(PIPELINE_RUN_UID)?
                .clone(),
        })
    }

    fn version(&self) -> (&str, &str) {
        version(&self.metadata)
    }

    fn slot(run: &mut Run) -> &mut BTreeMap<String, Arc<Self>> {
        &mut run.pods
    }
}

fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

fn version(metadata: &ObjectMeta) -> (&str, &str) {
    let uid = metadata.uid.as_deref().unwrap_or_default();
    let version = metadata.resource_version.as_deref().unwrap_or_default();
    (uid, version)
}

/// Whether `left` is a later version than `right`. Resource versions of one resource compare as numbers (Kubernetes
/// 1.35, "Resource versions"); ones that are not numbers are never later.
pub(crate) fn is_newer(left: &str, right: &str) -> bool {
    match (left.parse::<u128>(), right.parse::<u128>()) {
        (Ok(left), Ok(right)) => left > right,
        (Ok(_) | Err(_), Ok(_) | Err(_)) => false,
    }
}

/// StatefulSets and claims are owned by their run; a label could be anybody's.
fn owned_by(metadata: &ObjectMeta) -> Option<RunKey> {
    let owners = metadata.owner_references.as_ref()?;
    let owner = owners.iter().find(|owner| owner.kind == "PipelineRun")?;
    Some(RunKey {
        namespace: metadata.namespace.clone()?,
        uid: owner.uid.clone(),
    })
}
