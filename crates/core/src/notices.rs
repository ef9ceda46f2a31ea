//! What the author of a run is told: what was decided otherwise than they may expect, each once and as an Event, and why
//! the run waits, for as long as it does and as an annotation.

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

/// What the author of a run is told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notices {
    /// Once each.
    pub events: Vec<Reason>,
    /// Why the run waits, while it does.
    pub blocked: Option<Reason>,
}

/// What there is to say to the author of a run, from its plan and from what is seen of the claims it names: `claim` answers with
/// the claim of that name in the run's namespace. A run that cannot be planned for waits until it can.
pub fn notices(planned: &Planned, claim: impl Fn(&str) -> Option<SeenClaim>) -> Notices {
    let mut notices = Notices::default();
    match planned {
        Ok(plan) => {
            let told = plan.reasons.iter().filter(|reason| reason.is_told());
            notices.events = told.cloned().collect();
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

/// The claims that somebody brought and that only one pod may use: a plan does not know them (V8).
fn of_volumes(spec: &PlaceholderSpec, volumes: &Volumes) -> Vec<Reason> {
    let named: BTreeSet<&String> = spec.claim_names.iter().collect();
    let unmounted = volumes.unmounted.iter().filter(|name| named.contains(name));
    unmounted
        .map(|name| reasons::claim_not_mounted(name, None))
        .collect()
}

/// Why a placeholder waits: no node could take it (V7).
pub fn out_of_reach(spec: &PlaceholderSpec, volumes: &Volumes) -> Option<Reason> {
    let conflict = volumes.conflict.as_ref()?;
    Some(reasons::volume_node_affinity_conflict(conflict, &spec.name))
}

impl Reason {
    /// Whether the run's author is told.
    pub fn is_told(&self) -> bool {
        self.code.told().is_some()
    }

    /// The name of the Event that tells the author of `run`: the same for the same reason, whoever tells it and however
    /// often, so that the API server keeps it once.
    pub fn event_name(&self, run: &PipelineRun) -> String {
        let code = self.code.as_str();
        let told = format!("{}/{code}/{}", run.uid, self.message);
        format!("{}.{}", run.name, hash(&told))
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

/// What annotation [`BLOCKED`] of `run` has to become; `None` where it is as it should be.
pub fn blocked_annotation(run: &PipelineRun, blocked: Option<&Reason>) -> Option<Option<String>> {
    let wanted = blocked.map(Reason::to_annotation);
    (run.annotations.get(BLOCKED) != wanted.as_ref()).then_some(wanted)
}

#[cfg(test)]
mod tests;
