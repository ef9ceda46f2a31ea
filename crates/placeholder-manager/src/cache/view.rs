//! Placeholders as the gRPC API shows them. Each entry combines a placeholder, its pod and its run.

use std::collections::BTreeMap;
use std::ops::Bound;

use coscheduler_core::annotations::BLOCKED;
use coscheduler_core::event_texts::ReasonCode;
use coscheduler_core::mode::Mode;
use coscheduler_core::observed::Placeholder;
use coscheduler_core::pipeline_run::RunState;
use coscheduler_core::plan::Reason;
use coscheduler_core::reconcile::tell::blocked_reason;
use coscheduler_runtime::kubernetes::watch::ObjectKey;
use k8s_openapi::jiff::Timestamp;
use tokio::sync::broadcast;

use super::{Cache, Index, RunKey};
use crate::cache::store::Object as _;

/// The phase of a placeholder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Its pod is not bound to a node.
    Pending,
    /// Its pod is bound.
    Bound,
    /// It is being deleted.
    Terminating,
}

impl Phase {
    /// Every phase.
    pub(crate) const ALL: [Self; 3] = [Self::Pending, Self::Bound, Self::Terminating];

    /// The phase as a word, for metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Bound => "bound",
            Self::Terminating => "terminating",
        }
    }
}

/// A placeholder as the gRPC API shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Listed {
    pub namespace: String,
    pub name: String,
    pub phase: Phase,
    /// The node that its pod is bound to; empty until then.
    pub node: String,
    /// The name of the PipelineRun that owns it.
    pub run_name: String,
    /// The uid of the PipelineRun that owns it.
    pub run_uid: String,
    /// The claims that it mounts.
    pub claim_names: Vec<String>,
    /// The mode of its run, if the run is known.
    pub mode: Option<Mode>,
    pub created: Option<Timestamp>,
    /// The reason why the run waits, from its annotation `coscheduler.dev/blocked`.
    pub waiting: Option<Reason>,
}

/// A placeholder that changed.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// Its current state, or its last state if it is gone.
    pub placeholder: Listed,
    /// True if it is gone.
    pub deleted: bool,
}

impl Cache {
    /// The next placeholders that match `wanted`, at most `size`, ordered by namespace and name. The list begins after the
    /// placeholder with key `after`.
    pub(crate) fn list(
        &self,
        after: Option<ObjectKey>,
        size: usize,
        wanted: impl Fn(&Placeholder) -> bool,
    ) -> Vec<Listed> {
        let index = self.read();
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let placeholders = index.placeholders.all();
        let placeholders = placeholders.range((after, Bound::Unbounded));
        let wanted = placeholders.filter(|(_, own)| wanted(own));
        let listed = wanted.map(|(_, own)| index.view(own));
        listed.take(size).collect()
    }

    /// The code of the reason in annotation `coscheduler.dev/blocked` of each run that waits.
    pub(crate) fn waiting(&self) -> Vec<ReasonCode> {
        let index = self.read();
        let runs = index.runs.all().values().map(|known| &known.run);
        let active = runs.filter(|run| run.state != RunState::Done);
        let blocked = active.filter_map(|run| blocked_reason(run.annotations.get(BLOCKED)?));
        blocked.map(|reason| reason.code).collect()
    }

    /// The placeholder of this namespace and name.
    pub(crate) fn placeholder(&self, key: &ObjectKey) -> Option<Listed> {
        let index = self.read();
        index.placeholders.get(key).map(|own| index.view(own))
    }

    /// The run with this namespace and name. If it is a child run, its topmost parent instead.
    pub(crate) fn top_run(&self, key: &ObjectKey) -> Option<RunKey> {
        let index = self.read();
        let known = index.runs.get(key)?;
        Some(index.children.top(&RunKey::of(&known.run)))
    }

    /// A receiver of every change of a placeholder from now on.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }
}

impl Index {
    /// The placeholders of a run.
    pub(super) fn listed(&self, run: &RunKey) -> Vec<Listed> {
        let placeholders = self.placeholders.of(run);
        placeholders.map(|own| self.view(own)).collect()
    }

    fn view(&self, own: &Placeholder) -> Listed {
        let key = own.key();
        let node = self
            .pod_of_placeholder(&key)
            .and_then(|pod| pod.node.clone())
            .unwrap_or_default();
        let phase = match (own.object.deleting, node.is_empty()) {
            (true, _) => Phase::Terminating,
            (false, true) => Phase::Pending,
            (false, false) => Phase::Bound,
        };
        let known = self.names.get(&own.run_uid);
        let known = known.and_then(|name| self.runs.get(name));
        let blocked = known.and_then(|known| known.run.annotations.get(BLOCKED));
        Listed {
            namespace: key.0,
            name: key.1,
            phase,
            node,
            run_name: own.run_name().to_owned(),
            run_uid: own.run_uid.clone(),
            claim_names: own.claims.clone(),
            mode: known.and_then(|known| {
                known
                    .run
                    .annotations
                    .get(coscheduler_core::annotations::MODE)?
                    .parse()
                    .ok()
            }),
            created: own.created,
            waiting: blocked.and_then(|text| blocked_reason(text)),
        }
    }
}

/// Compares a run's placeholders before and after a change, and returns the differences.
pub(super) fn changes(before: Vec<Listed>, after: Vec<Listed>) -> Vec<Change> {
    let before = before.into_iter();
    let mut gone: BTreeMap<_, _> = before.map(|it| (it.name.clone(), it)).collect();
    let mut changes: Vec<_> = after
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
