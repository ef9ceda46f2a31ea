//! Child runs: PipelineRuns that Tekton creates for a PipelineRun. A child run uses its parent's placeholders, so the parent's
//! clean-up waits for the pods of its child runs too. A change of a child run queues the run at the top.

use std::collections::{BTreeSet, HashMap};

use coscheduler_core::annotations::PART_OF;
use coscheduler_core::pipeline_run::PipelineRun;

use super::RunKey;

/// Child runs by parent, and parents by child run. A child run stays while the cache has an object of it.
#[derive(Debug, Default)]
pub(super) struct Children {
    parents: HashMap<RunKey, RunKey>,
    children: HashMap<RunKey, BTreeSet<RunKey>>,
}

impl Children {
    /// Adds a child run. Its annotation is proof: only admission sets it, and only if Tekton created the run for its controller.
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

    /// Removes a run without objects.
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

    /// The run at the top: the run itself, or its first ancestor that is no child run.
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

    /// The child runs of a run, and their child runs.
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
