//! Which runs are parts of which. A part has its parent's placeholders, so the parent's clean-up waits for the pods of its
//! parts as for its own, and what changes about a part is news about the run at the top.

use std::collections::{BTreeSet, HashMap};

use coscheduler_core::annotations::PART_OF;
use coscheduler_core::pipeline_run::PipelineRun;

use super::RunKey;

/// Parts by parent, and parents by part. A part is remembered for as long as anything of it is.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parents: HashMap<RunKey, RunKey>,
    parts: HashMap<RunKey, BTreeSet<RunKey>>,
}

impl Parts {
    /// Takes in what a run says: admission alone writes the annotation, and only where Tekton made the run for its
    /// controller.
    pub(super) fn learn(&mut self, key: &RunKey, run: &PipelineRun) {
        let Some(owner) = &run.controller else { return };
        if !run.annotations.contains_key(PART_OF) {
            return;
        }
        let parent = RunKey {
            namespace: key.namespace.clone(),
            uid: owner.uid.clone(),
        };
        self.parts
            .entry(parent.clone())
            .or_default()
            .insert(key.clone());
        self.parents.insert(key.clone(), parent);
    }

    /// Nothing of the run is left.
    pub(super) fn forget(&mut self, key: &RunKey) {
        let Some(parent) = self.parents.remove(key) else {
            return;
        };
        if let Some(parts) = self.parts.get_mut(&parent) {
            parts.remove(key);
            if parts.is_empty() {
                self.parts.remove(&parent);
            }
        }
    }

    /// The run that is no part of another.
    pub(super) fn whole(&self, key: &RunKey) -> RunKey {
        let mut whole = key;
        let mut seen = BTreeSet::from([key]);
        while let Some(parent) = self.parents.get(whole)
            && seen.insert(parent)
        {
            whole = parent;
        }
        whole.clone()
    }

    /// The parts of a run, and theirs.
    pub(super) fn of(&self, key: &RunKey) -> BTreeSet<RunKey> {
        let mut found = BTreeSet::new();
        let mut look = vec![key];
        while let Some(next) = look.pop() {
            for part in self.parts.get(next).into_iter().flatten() {
                if found.insert(part.clone()) {
                    look.push(part);
                }
            }
        }
        found
    }
}
