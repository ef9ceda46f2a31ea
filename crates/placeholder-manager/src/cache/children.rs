//! Child runs: PipelineRuns that Tekton creates for a PipelineRun. A child run uses its parent's placeholders, so the clean-up
//! of the parent waits for the pods of its child runs too. A change of a child run queues its top run: the ancestor that is not
//! a child run itself.

use std::collections::{BTreeSet, HashMap};

use coscheduler_core::annotations::PART_OF;
use coscheduler_core::pipeline_run::PipelineRun;

use super::RunKey;

/// Child runs by parent, and parents by child run. A child run is kept while the cache contains the run or one of its objects.
#[derive(Debug, Default)]
pub(super) struct Children {
    parents: HashMap<RunKey, RunKey>,
    children: HashMap<RunKey, BTreeSet<RunKey>>,
}

impl Children {
    /// Adds a run if it is a child run. Annotation [`PART_OF`] proves this: only admission sets it, and only if Tekton created
    /// the run for the PipelineRun that owns the run.
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

    /// Removes a child run. The caller has checked that the cache contains neither the run nor one of its objects.
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

    /// The top run: the run itself if it is no child run, otherwise its first ancestor that is no child run.
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

    /// The child runs of a run, their child runs, and so on.
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
