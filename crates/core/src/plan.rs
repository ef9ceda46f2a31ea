//! From a PipelineRun to what is to be done for it, so complete that nothing is left to decide:
//! which placeholder, with which claims, labels and resources. A plan follows from the run and what
//! is pinned on it alone, never from the configuration of the day (M8).

mod claims;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::admit::{Admission, admit};
use crate::annotations::MODE;
use crate::config::Configuration;
use crate::labels;
use crate::mode::Mode;
use crate::names::{AssistantName, ClaimTemplateName, label_value};
use crate::pinned::Pinned;
use crate::pipeline_run::{PipelineRun, RunState};
use crate::pod_template::{self, Dropped};
use crate::violation::Violation;

/// What is to be done for a run, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The mode pinned on the run; [`Mode::Disabled`] where none is, or none that can be read.
    pub mode: Mode,
    /// What is to be done.
    pub action: Action,
    /// Why, in the order in which it was decided.
    pub reasons: Vec<Reason>,
}

/// What is to be done for a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing: the run is left alone, or has not started.
    Nothing,
    /// These placeholders exist, created once and never updated (P1).
    Ensure(Vec<PlaceholderSpec>),
    /// Whatever belongs to the run, by owner uid, is torn down (P6).
    Release {
        /// Why.
        cause: ReleaseCause,
    },
}

/// Why a run's objects are torn down (P6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReleaseCause {
    /// The run has completed, failed, been cancelled, stopped or timed out.
    Done,
    /// The run is being deleted.
    Deleted,
}

/// One step of the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// Which.
    pub code: ReasonCode,
    /// In words, with the values at hand.
    pub message: String,
}

/// The steps a decision can take. The list is closed, so that clients can match on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReasonCode {
    /// Nothing is pinned on the run (M5).
    NotPinned,
    /// The run has not started (P9).
    PipelineRunPending,
    /// The run is done (P6).
    PipelineRunDone,
    /// The run is being deleted (P6).
    PipelineRunDeleted,
    /// One placeholder for the whole run (M3).
    CoschedulePipelineRun,
    /// A claim's name has a variable, so it is only known while the run goes on (V9).
    ClaimNameVariable,
    /// A claim has no name.
    ClaimNameEmpty,
    /// A workspace has a `volumeClaimTemplate` although the run is pinned: admission did not see
    /// it, Tekton makes the claim.
    ClaimTemplateNotReplaced,
    /// A part of the run's `securityContext` is not allowed on a placeholder (P3).
    SecurityContextReduced,
}

impl ReasonCode {
    /// The code as clients and logs show it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotPinned => "NotPinned",
            Self::PipelineRunPending => "PipelineRunPending",
            Self::PipelineRunDone => "PipelineRunDone",
            Self::PipelineRunDeleted => "PipelineRunDeleted",
            Self::CoschedulePipelineRun => "CoschedulePipelineRun",
            Self::ClaimNameVariable => "ClaimNameVariable",
            Self::ClaimNameEmpty => "ClaimNameEmpty",
            Self::ClaimTemplateNotReplaced => "ClaimTemplateNotReplaced",
            Self::SecurityContextReduced => "SecurityContextReduced",
        }
    }
}

/// A placeholder, complete: nothing about it is left to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceholderSpec {
    /// Name of the StatefulSet (P1).
    pub name: AssistantName,
    /// Labels of the StatefulSet and its pod: the run's own except Kueue's, and ours, which win
    /// (P1).
    pub labels: BTreeMap<String, String>,
    /// Claims the StatefulSet makes (V2), in the order of the run's workspaces.
    pub claim_templates: Vec<ClaimTemplateSpec>,
    /// Claims that exist already and are mounted too (V1), each once (V6), in the order of the
    /// run's workspaces.
    pub claim_names: Vec<String>,
    /// CPU request and limit, a Kubernetes quantity (P5).
    pub cpu: String,
    /// Memory request and limit, a Kubernetes quantity (P5).
    pub memory: String,
    /// Image reference.
    pub image: String,
    /// What the placeholder takes over of the run's `podTemplate` and the default's, as [`pod_template`] says (P3).
    pub pod_template: Map<String, Value>,
    /// The run's service account, else the default's; empty where neither names one (P3).
    pub service_account_name: String,
}

/// A claim the StatefulSet makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimTemplateSpec {
    /// Name of the template and of the pod's volume.
    pub name: ClaimTemplateName,
    /// The workspace it backs.
    pub workspace: String,
    /// `spec` of the template as the author wrote it, an object.
    pub spec: Value,
    /// Labels of the claim: the author's, and ours, which win (V2).
    pub labels: BTreeMap<String, String>,
    /// Annotations of the claim: the author's.
    pub annotations: BTreeMap<String, String>,
}

/// Plans for a run from what is pinned on it, and nothing else.
///
/// # Errors
/// Every violation at once: a pinned annotation that cannot be read, a pinned template whose
/// workspace is not bound to the claim it becomes, a run without a name. A run that is done or
/// being deleted is released whatever is wrong with it.
pub fn plan(run: &PipelineRun) -> Result<Plan, Vec<Violation>> {
    let Some(mode) = run.annotations.get(MODE) else {
        return Ok(not_pinned());
    };
    let mode = mode.parse().unwrap_or(Mode::Disabled);
    if run.deletion {
        let action = Action::Release {
            cause: ReleaseCause::Deleted,
        };
        let reason = Reason::new(ReasonCode::PipelineRunDeleted, "the run is being deleted");
        return Ok(Plan::of(mode, action, reason));
    }
    match run.state {
        RunState::Done => {
            let action = Action::Release {
                cause: ReleaseCause::Done,
            };
            let reason = Reason::new(ReasonCode::PipelineRunDone, "the run is done");
            Ok(Plan::of(mode, action, reason))
        }
        RunState::Pending => {
            let message = "the run is pending and gets its placeholder when it starts";
            let reason = Reason::new(ReasonCode::PipelineRunPending, message);
            Ok(Plan::of(mode, Action::Nothing, reason))
        }
        RunState::Active => match Pinned::read(&run.annotations)? {
            Some(pinned) => ensure(run, &pinned),
            None => Ok(not_pinned()),
        },
    }
}

impl Plan {
    fn of(mode: Mode, action: Action, reason: Reason) -> Self {
        Self {
            mode,
            action,
            reasons: vec![reason],
        }
    }
}

impl Reason {
    fn new(code: ReasonCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

fn not_pinned() -> Plan {
    let message = "nothing was pinned on the run when it was created: coscheduling was disabled, \
                   or another controller than Tekton's manages the run";
    let reason = Reason::new(ReasonCode::NotPinned, message);
    Plan::of(Mode::Disabled, Action::Nothing, reason)
}

fn ensure(run: &PipelineRun, pinned: &Pinned) -> Result<Plan, Vec<Violation>> {
    let mut faults = Vec::new();
    if run.name.is_empty() {
        faults.push(Violation::new(
            "metadata.name",
            "is not set; allowed: the name of a run that exists",
        ));
    }
    let name = AssistantName::of(&pinned.group);
    let claim_templates = claims::templates(run, pinned, &name, &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    let message = match pinned.mode {
        Mode::PipelineRuns => format!("all pods of the run share the node of placeholder {name}"),
        Mode::Workspaces | Mode::IsolatePipelineRun | Mode::Disabled => return Ok(not_pinned()),
    };
    let mut reasons = vec![Reason::new(ReasonCode::CoschedulePipelineRun, message)];
    let claim_names = claims::existing(run, &claim_templates, &name, &mut reasons);
    let merged = pod_template::merge(run.pod_template.as_ref(), &pinned.placeholder.pod_template);
    reasons.extend(merged.dropped.iter().map(dropped));
    let placeholder = PlaceholderSpec {
        labels: placeholder_labels(run, &name),
        name,
        claim_templates,
        claim_names,
        cpu: pinned.placeholder.cpu.clone(),
        memory: pinned.placeholder.memory.clone(),
        image: pinned.placeholder.image.clone(),
        pod_template: merged.template,
        service_account_name: pod_template::service_account_name(
            run.service_account_name.as_deref(),
            &pinned.placeholder.pod_template,
        ),
    };
    Ok(Plan {
        mode: pinned.mode,
        action: Action::Ensure(vec![placeholder]),
        reasons,
    })
}

fn dropped(part: &Dropped) -> Reason {
    let Dropped { field, value } = part;
    let message = format!(
        "the placeholder goes without {field}: {value} of the run's podTemplate.securityContext, which Pod Security \
         `restricted` does not allow"
    );
    Reason::new(ReasonCode::SecurityContextReduced, message)
}

fn placeholder_labels(run: &PipelineRun, name: &AssistantName) -> BTreeMap<String, String> {
    let mut labels = labels::inherited(&run.labels);
    labels.extend(
        [
            (labels::COMPONENT, labels::AFFINITY_ASSISTANT.to_owned()),
            (labels::INSTANCE, name.to_string()),
            (labels::PIPELINE_RUN, label_value(&run.name)),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    labels
}

/// What would become of a run that is not created yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// What admission would change.
    pub admission: Admission,
    /// The plan that would follow.
    pub plan: Plan,
}

/// What Kubernetes appends to `generateName` has this length; which characters cannot be known.
const GENERATED_SUFFIX: &str = "xxxxx";

/// Admits a run that is not created yet, and plans for what would be stored.
///
/// A run without a name gets `<generateName>xxxxx`. The group depends on the request that really
/// creates the run, so names with it are examples.
///
/// # Errors
/// As [`plan`].
pub fn preview(
    configuration: &Configuration,
    run: &PipelineRun,
    request_uid: &str,
) -> Result<Preview, Vec<Violation>> {
    let admission = admit(configuration, run, request_uid);
    let mut stored = admission.apply(run);
    if stored.name.is_empty() && !stored.generate_name.is_empty() {
        stored.name = format!("{}{GENERATED_SUFFIX}", stored.generate_name);
    }
    let plan = plan(&stored)?;
    Ok(Preview { admission, plan })
}

#[cfg(test)]
mod tests;
