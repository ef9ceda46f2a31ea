//! A placeholder is a StatefulSet with one pod, or only a pod (key `placeholder-backend`). This module builds these objects,
//! reads StatefulSets, and makes patches. The placeholder-manager sends the requests: its module `placeholder` those about
//! StatefulSets and about the objects that Tekton created, its module `requests` those about other pods.
//!
//! A new kind of placeholders is a new file beside `stateful_set.rs` and `pod.rs`. `docs/decisions/kinds-of-placeholders.md`
//! lists all other places to change ("To add a kind of placeholders"), and the exceptions to the rule that no other code builds
//! these objects, or reads StatefulSets.

pub mod adopt;
pub mod patch;
mod pod;
pub mod size;
mod stateful_set;

use coscheduler_core::annotations::RECORD;
use coscheduler_core::config::Backend;
use coscheduler_core::observed::Placeholder;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;

pub use pod::{Succession, opened, pod, successor};
pub use stateful_set::{Owner, build, made_claims, selector, single_pod_claims};

use crate::objects;
use crate::ownership::is_ours;

/// Converts a StatefulSet to a placeholder. `None` if this product neither created it for a PipelineRun nor took it over. The
/// name alone does not show this, because Tekton's own affinity assistants have names of the same form.
pub fn view(set: StatefulSet) -> Option<Placeholder> {
    let metadata = set.metadata;
    if !is_ours(&metadata) {
        return None;
    }
    let record = metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(RECORD));
    let observed = set.status.and_then(|status| status.observed_generation);
    let spec = set.spec.unwrap_or_default();
    let templates = spec.volume_claim_templates.into_iter().flatten();
    let name = metadata.name.clone().unwrap_or_default();
    let made = templates
        .filter_map(|template| template.metadata.name)
        .map(|template| format!("{template}-{name}-0"));
    let pod = Pod {
        spec: spec.template.spec,
        ..Pod::default()
    };
    Some(Placeholder {
        backend: Backend::Controlled,
        parked: spec.replicas == Some(0),
        run_uid: objects::pipeline_run(&metadata).map_or_else(String::new, |run| run.uid),
        gated: crate::pods::is_gated(&pod),
        observed: observed >= metadata.generation,
        created: metadata.creation_timestamp.as_ref().map(|time| time.0),
        controller: objects::controller(&metadata),
        // If another version of this product wrote a record that this version cannot read, the record starts empty.
        record: record
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default(),
        claims: made.chain(crate::pods::claims(&pod)).collect(),
        needs: crate::needs::needs(&pod),
        priority_class: pod.spec.and_then(|spec| spec.priority_class_name),
        namespace: metadata.namespace.clone().unwrap_or_default(),
        object: objects::reference(metadata),
    })
}
