//! Reads the identity and the owners of an object.

use coscheduler_core::observed::ObjectRef;
use coscheduler_core::pipeline_run::OwnerReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{self, ObjectMeta};

/// The object's identity and version.
pub fn reference(metadata: ObjectMeta) -> ObjectRef {
    ObjectRef {
        name: metadata.name.unwrap_or_default(),
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
    }
}

/// The owner with `controller: true`.
pub fn controller(metadata: &ObjectMeta) -> Option<OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    let controller = owners.find(|owner| owner.controller == Some(true));
    controller.map(owner)
}

/// The PipelineRun among the object's owners. It need not be the controller.
pub fn pipeline_run(metadata: &ObjectMeta) -> Option<OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    let run = owners.find(|owner| owner.kind == "PipelineRun");
    run.map(owner)
}

fn owner(owner: &v1::OwnerReference) -> OwnerReference {
    OwnerReference {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    }
}
