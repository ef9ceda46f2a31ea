//! Child runs: PipelineRuns that Tekton made for a PipelineRun. A child has its parent's placeholders, so the parent's clean-up
//! waits for the pods of its children as for its own, and a change of a child is news about the run at the top.

use std::collections::{BTreeSet, HashMap};

use coscheduler_core::annotations::PART_OF;
use coscheduler_core::pipeline_run::PipelineRun;

use super::RunKey;

/// Children by parent, and parents by child. A child is remembered for as long as anything of it is.
#[derive(Debug, Default)]
pub(super) struct Children {
    parents: HashMap<RunKey, RunKey>,
    children: HashMap<RunKey, BTreeSet<RunKey>>,
}

impl Children {
    /// Takes in a run: admission alone writes the annotation, and only where Tekton made the run for its controller.
    pub(super) fn learn(&mut self, run: &PipelineRun) {
        let Some(owner) = &run.controller else { return };
        if !run.annotations.contains_key(PART_OF) {
            return;
        }
        let key = RunKey::of(run);
        let parent = RunKey::new(&run.namespace, &owner.uid);
        let children = self.children.entry(parent.clone()).or_default();
        children.insert(key.clone());
        self.parents.insert(key, parent);
    }

    /// Forgets a run of which nothing is left.
    pub(super) fn forget(&mut self, key: &RunKey) {
        let Some(parent) = self.parents.remove(key) else {
            return;
        };
        if let Some(children) = self.children.get_mut(&parent) {
            children.remove(key);
            if children.is_empty() {
                self.children.remove(&parent);
            }
        }
    }

    /// The run that is no child of another.
    pub(super) fn top(&self, key: &RunKey) -> RunKey {
        let mut top = key;
        let mut seen = BTreeSet::from([key]);
        while let Some(parent) = self.parents.get(top)
            && seen.insert(parent)
        {
            top = parent;
        }
        top.clone()
    }

    /// The children of a run, and theirs.
    pub(super) fn of(&self, key: &RunKey) -> BTreeSet<RunKey> {
        let mut found = BTreeSet::new();
        let mut look = vec![key];
        while let Some(next) = look.pop() {
            for child in self.children.get(next).into_iter().flatten() {
                if found.insert(child.clone()) {
                    look.push(child);
                }
            }
        }
        found
    }
}
