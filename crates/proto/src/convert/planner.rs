//! Questions to the planner, and its answers.

use prost_types::Struct;
use serde_json::Value;

use coscheduler_core::admit::{Admission, ChildRun, RewrittenBinding, TaskAnnotation};
use coscheduler_core::pipeline_run::{OwnerReference, PipelineRun};
use coscheduler_core::plan::{Action, Plan, Preview};
use coscheduler_core::violation::Violation;

use super::{checked, mode_to_wire, placeholder_spec_to_wire, required};
use crate::json;
use crate::planner as wire;

/// A PipelineRun from the wire.
///
/// # Errors
///
/// Every field that cannot be read, by its path below `pipeline_run`.
pub fn pipeline_run(message: Option<Struct>) -> Result<PipelineRun, Vec<Violation>> {
    let Some(fields) = message else {
        return Err(vec![Violation::new(
            "pipeline_run",
            "is unset; it is required, a tekton.dev/v1 PipelineRun as Kubernetes JSON",
        )]);
    };
    pipeline_run_at("pipeline_run", fields)
}

/// A PipelineRun from the request's field `field`.
///
/// # Errors
///
/// Every field that cannot be read, by its path below `field`.
pub fn pipeline_run_at(field: &str, fields: Struct) -> Result<PipelineRun, Vec<Violation>> {
    PipelineRun::parse(&Value::Object(json::from_struct(fields))).map_err(|violations| {
        violations
            .into_iter()
            .map(|violation| Violation {
                field: format!("{field}.{}", violation.field),
                description: violation.description,
            })
            .collect()
    })
}

/// A TaskRun or CustomRun from the wire.
///
/// # Errors
///
/// Every required field that is empty.
pub fn child_run(message: wire::AdmitRunRequest) -> Result<ChildRun, Vec<Violation>> {
    let mut violations = Vec::new();
    required("username", &message.username, &mut violations);
    let run = ChildRun {
        annotations: message.annotations,
        controller: message.controller.map(|owner| OwnerReference {
            api_version: owner.api_version,
            kind: owner.kind,
            name: owner.name,
            uid: owner.uid,
        }),
        created_by: message.username,
    };
    checked(Some(run), violations)
}

/// What admission writes, for the wire.
pub fn admission_to_wire(admission: Admission) -> wire::AdmitPipelineRunResponse {
    wire::AdmitPipelineRunResponse {
        set_annotations: admission.set_annotations,
        remove_annotations: admission.remove_annotations,
        bindings: bindings_to_wire(admission.bindings),
        warnings: admission.warnings,
        remove_task_annotations: admission
            .remove_task_annotations
            .into_iter()
            .map(|annotation| wire::TaskAnnotation {
                index: i32::try_from(annotation.index).unwrap_or(i32::MAX),
                key: annotation.key,
            })
            .collect(),
    }
}

/// What admission writes, from the wire.
pub fn admission(message: wire::AdmitPipelineRunResponse) -> Admission {
    Admission {
        set_annotations: message.set_annotations,
        remove_annotations: message.remove_annotations,
        bindings: message
            .bindings
            .into_iter()
            .map(|binding| RewrittenBinding {
                workspace: binding.workspace,
                claim_name: binding.claim_name,
            })
            .collect(),
        remove_task_annotations: message
            .remove_task_annotations
            .into_iter()
            .filter_map(|annotation| {
                Some(TaskAnnotation {
                    index: usize::try_from(annotation.index).ok()?,
                    key: annotation.key,
                })
            })
            .collect(),
        warnings: message.warnings,
    }
}

/// A plan for the wire.
pub fn plan_to_wire(plan: &Plan) -> wire::Plan {
    let (action, placeholders) = match &plan.action {
        Action::Nothing => (wire::Action::None, Vec::new()),
        Action::Ensure(specs) => (
            wire::Action::Ensure,
            specs.iter().map(placeholder_spec_to_wire).collect(),
        ),
        Action::Release { .. } => (wire::Action::Release, Vec::new()),
    };
    wire::Plan {
        mode: mode_to_wire(plan.mode).into(),
        action: action.into(),
        placeholders,
        bindings: Vec::new(),
        annotations: std::collections::BTreeMap::new(),
        reasons: plan
            .reasons
            .iter()
            .map(|reason| wire::Reason {
                code: reason.code.as_str().to_owned(),
                message: reason.message.clone(),
            })
            .collect(),
    }
}

/// What would become of a run that is not created yet, for the wire.
pub fn preview_to_wire(preview: Preview) -> wire::Plan {
    wire::Plan {
        bindings: bindings_to_wire(preview.admission.bindings),
        annotations: preview.admission.set_annotations,
        ..plan_to_wire(&preview.plan)
    }
}

fn bindings_to_wire(bindings: Vec<RewrittenBinding>) -> Vec<wire::Binding> {
    bindings
        .into_iter()
        .map(|binding| wire::Binding {
            workspace: binding.workspace,
            claim_name: binding.claim_name,
        })
        .collect()
}
