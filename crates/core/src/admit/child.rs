//! Admission of a child run: a PipelineRun that Tekton creates for a task of another PipelineRun, its parent (M3).

use std::collections::BTreeMap;

use super::Admission;
use super::reserved::without;
use crate::annotations::{ADOPTED, CLAIMS, HANDED_ON, PART_OF, TEKTON_AFFINITY_ASSISTANT};
use crate::naming::Naming;
use crate::pinned::{HandedOn, claims_to_annotation, handed_on, unknown_schema};
use crate::pipeline_run::PipelineRun;
use crate::run_claims;

/// Admits a child run. The child keeps the annotations that its own TaskRuns need. If one of these annotations cannot be read, or
/// the group is not the parent's, the child is not coscheduled. There is one exception: if another version of this product pinned
/// the parent, the child always keeps these annotations, so that the other version can read them.
pub(super) fn join(run: &PipelineRun, parents_group: Option<&str>) -> Admission {
    let (parent, parents_uid) = match &run.controller {
        Some(owner) => (owner.name.clone(), owner.uid.as_str()),
        None => Default::default(),
    };
    let mut set_annotations = BTreeMap::from([(PART_OF.to_owned(), parent.clone())]);
    let assistant = match handed_on(&run.annotations, parents_group) {
        Some(HandedOn {
            mode,
            group,
            claims,
            adopted,
            ..
        }) => {
            // The names of the claims that Tekton created for the parent depend on the parent's uid. Tekton 1.15 binds workspaces
            // of the child to these claims.
            let claims = run_claims::named(&claims, parents_uid);
            set_annotations.insert(CLAIMS.to_owned(), claims_to_annotation(&claims));
            let naming = Naming::of(&group, adopted.as_deref(), &parent);
            if let Naming::Tekton(name) = naming {
                set_annotations.insert(ADOPTED.to_owned(), name.to_owned());
            }
            naming.whole_run(mode).map(|name| name.to_string())
        }
        // Another version of this product pinned the parent. The child keeps the placeholder's name that Tekton copied from the
        // parent.
        None if parents_group.is_some() && unknown_schema(&run.annotations).is_some() => {
            run.annotations.get(TEKTON_AFFINITY_ASSISTANT).cloned()
        }
        None => return without(run, |_| true),
    };
    let key = TEKTON_AFFINITY_ASSISTANT.to_owned();
    set_annotations.insert(key, assistant.unwrap_or_default());
    let kept = |key: &str| set_annotations.contains_key(key) || HANDED_ON.contains(&key);
    Admission {
        set_annotations: set_annotations.clone(),
        ..without(run, |key| !kept(key))
    }
}
