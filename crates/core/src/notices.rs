//! The messages to a run's author: an Event for each decision that they may not expect, once, and annotation
//! `coscheduler.dev/blocked` while the run waits.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::json;

use crate::annotations::BLOCKED;
use crate::names::hash;
use crate::observed::Planned;
use crate::pipeline_run::PipelineRun;
use crate::plan::{PlaceholderSpec, Reason, ReasonCode};
use crate::reasons;
use crate::volumes::{SeenClaim, Volumes, volumes};

/// The messages to a run's author.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notices {
    /// The Events, each published once.
    pub events: Vec<Reason>,
    /// Why the run waits.
    pub blocked: Option<Reason>,
}

/// The messages that follow from a run's plan and its claims. `claim` returns the claim with that name in the run's namespace. A
/// run without a valid plan waits.
pub fn notices(planned: &Planned, claim: impl Fn(&str) -> Option<SeenClaim>) -> Notices {
    let mut notices = Notices::default();
    match planned {
        Ok(plan) => {
            let published = plan.reasons.iter().filter(|reason| reason.is_told());
            notices.events = published.cloned().collect();
            for spec in plan.action.placeholders() {
                let seen: Vec<_> = spec.claims().filter_map(|name| claim(&name)).collect();
                let volumes = volumes(spec, &seen);
                notices.events.extend(of_volumes(spec, &volumes));
                if notices.blocked.is_none() {
                    notices.blocked = out_of_reach(spec, &volumes);
                }
            }
        }
        Err(violations) => notices.blocked = Some(reasons::pipeline_run_invalid(violations)),
    }
    notices.events.extend(notices.blocked.clone());
    notices
}

/// The existing claims that only one pod may use (V8). A plan knows their names only.
fn of_volumes(spec: &PlaceholderSpec, volumes: &Volumes) -> Vec<Reason> {
    let named: BTreeSet<&String> = spec.claim_names.iter().collect();
    let unmounted = volumes.unmounted.iter().filter(|name| named.contains(name));
    unmounted
        .map(|name| reasons::claim_not_mounted(name, None))
        .collect()
}

/// Why a placeholder cannot be placed, if no node reaches all its volumes (V7).
pub fn out_of_reach(spec: &PlaceholderSpec, volumes: &Volumes) -> Option<Reason> {
    let conflict = volumes.conflict.as_ref()?;
    Some(reasons::volume_node_affinity_conflict(conflict, &spec.name))
}

impl Reason {
    /// True if the manager publishes an Event with this reason.
    pub fn is_told(&self) -> bool {
        self.code.told().is_some()
    }

    /// The name of the Event with this reason about `run`. It depends on run and text alone, so that the API server stores the
    /// Event once, whichever replica creates it.
    pub fn event_name(&self, run: &PipelineRun) -> String {
        let code = self.code.as_str();
        let identity = format!("{}/{code}/{}", run.uid, self.message);
        format!("{}.{}", run.name, hash(&identity))
    }

    /// The value of annotation [`BLOCKED`].
    pub fn to_annotation(&self) -> String {
        json!({"reason": self.code.as_str(), "message": self.message}).to_string()
    }
}

/// The reason in the value of annotation [`BLOCKED`].
pub fn blocked_reason(value: &str) -> Option<Reason> {
    #[derive(Deserialize)]
    struct Blocked {
        reason: String,
        message: String,
    }
    let Blocked { reason, message } = serde_json::from_str(value).ok()?;
    let mut codes = ReasonCode::ALL.iter();
    let code = codes.find(|code| code.as_str() == reason)?;
    Some(Reason::new(*code, message))
}

/// The new value of annotation [`BLOCKED`] of `run`, where the inner `None` removes it; the outer `None` if it is up to date.
pub fn blocked_annotation(run: &PipelineRun, blocked: Option<&Reason>) -> Option<Option<String>> {
    let wanted = blocked.map(Reason::to_annotation);
    (run.annotations.get(BLOCKED) != wanted.as_ref()).then_some(wanted)
}

#[cfg(test)]
mod tests;
