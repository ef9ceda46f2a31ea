//! Placeholders as people see them: one line each, put together from StatefulSet, pod and claims.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::jiff::Timestamp;

use coscheduler_core::annotations::{BLOCKED, MODE};
use coscheduler_core::mode::Mode;
use coscheduler_kubernetes::pods;

use super::{Change, Run, RunKey};

/// Where a placeholder stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Its pod is not bound to a node.
    Pending,
    /// Its pod is bound.
    Bound,
    /// It is being deleted.
    Terminating,
}

/// A placeholder as it is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Placeholder {
    /// Its namespace.
    pub namespace: String,
    /// The StatefulSet's name.
    pub name: String,
    /// Where it stands.
    pub phase: Phase,
    /// The node its pod is bound to; empty until then.
    pub node: String,
    /// Name of the PipelineRun that owns it.
    pub run_name: String,
    /// Uid of the PipelineRun that owns it.
    pub run_uid: String,
    /// The claims it holds.
    pub claim_names: Vec<String>,
    /// The mode of its run, where the run is known.
    pub mode: Option<Mode>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Why it, or a pod that needs it, waits: annotation [`BLOCKED`] of its run.
    pub waiting: Option<String>,
}

/// The placeholders of a run.
pub(super) fn placeholders(key: &RunKey, run: &Run) -> Vec<Placeholder> {
    run.stateful_sets
        .iter()
        .map(|(name, set)| placeholder(key, run, name, set))
        .collect()
}

/// What differs between two views of the same run.
pub(super) fn changes(before: Vec<Placeholder>, after: Vec<Placeholder>) -> Vec<Change> {
    let mut gone: BTreeMap<_, _> = before
        .into_iter()
        .map(|placeholder| (placeholder.name.clone(), placeholder))
        .collect();
    let mut changes: Vec<Change> = after
        .into_iter()
        .filter(|now| gone.remove(&now.name).as_ref() != Some(now))
        .map(|placeholder| Change {
            placeholder,
            deleted: false,
        })
        .collect();
    changes.extend(gone.into_values().map(|placeholder| Change {
        placeholder,
        deleted: true,
    }));
    changes
}

fn placeholder(key: &RunKey, run: &Run, name: &str, set: &StatefulSet) -> Placeholder {
    let node = run
        .placeholder_pod(name)
        .and_then(|pod| pods::node(pod))
        .unwrap_or_default();
    let phase = if set.metadata.deletion_timestamp.is_some() {
        Phase::Terminating
    } else if node.is_empty() {
        Phase::Pending
    } else {
        Phase::Bound
    };
    let owner = run.itself();
    let owner = owner.as_ref();
    Placeholder {
        namespace: key.namespace.clone(),
        name: name.to_owned(),
        phase,
        node: node.to_owned(),
        run_name: owner_name(set),
        run_uid: key.uid.clone(),
        claim_names: claim_names(name, set),
        mode: owner.and_then(|owner| owner.annotations.get(MODE)?.parse().ok()),
        created: set.metadata.creation_timestamp.as_ref().map(|time| time.0),
        waiting: owner.and_then(|owner| owner.annotations.get(BLOCKED).cloned()),
    }
}

fn owner_name(set: &StatefulSet) -> String {
    let owners = set.metadata.owner_references.iter().flatten();
    owners
        .filter(|owner| owner.controller == Some(true))
        .map(|owner| owner.name.clone())
        .next()
        .unwrap_or_default()
}

fn claim_names(name: &str, set: &StatefulSet) -> Vec<String> {
    let Some(spec) = &set.spec else {
        return Vec::new();
    };
    let made = spec
        .volume_claim_templates
        .iter()
        .flatten()
        .filter_map(|template| template.metadata.name.as_deref())
        .map(|template| format!("{template}-{name}-0"));
    let brought = spec
        .template
        .spec
        .iter()
        .flat_map(|pod| pod.volumes.iter().flatten())
        .filter_map(|volume| volume.persistent_volume_claim.as_ref())
        .map(|source| source.claim_name.clone());
    made.chain(brought).collect()
}
