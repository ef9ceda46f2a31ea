//! Pure functions that convert admission reviews to questions for the planner, and the planner's answers to responses.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, Operation};
use kube::core::response::{StatusCause, StatusDetails};
use prost_types::Struct;
use serde_json::Value;

use coscheduler_core::admit::{Admission, RewrittenSource};
use coscheduler_core::admit_child::{ChildAdmission, ChildRun};
use coscheduler_core::annotations;
use coscheduler_core::event_texts::Reason;
use coscheduler_core::pipeline_run::{OwnerReference, PipelineRun};
use coscheduler_core::violation::Violation;
use coscheduler_kubernetes::admission::{Mutation, patch};
use coscheduler_kubernetes::child_run;
use coscheduler_kubernetes::pipeline_run::read_parts;
use coscheduler_proto::json;
use coscheduler_proto::planner::AdmitPipelineRunRequest;

use crate::notices::Notice;

/// HTTP 422, which the API server also sends for invalid objects. Tekton does not repeat such a request (`CreateRunFailed`).
const UNPROCESSABLE: u16 = 422;

/// The object of a review, as JSON. Takes it out of the review, because an object can be as large as several megabytes.
pub(crate) fn take_object(request: &mut AdmissionRequest<DynamicObject>) -> Value {
    request.object.take().map(to_json).unwrap_or_default()
}

fn to_json(object: DynamicObject) -> Value {
    let mut json = object.data;
    if let Some(types) = object.types {
        json["apiVersion"] = types.api_version.into();
        json["kind"] = types.kind.into();
    }
    json["metadata"] = serde_json::to_value(object.metadata).unwrap_or_default();
    json
}

/// The question about a new or updated PipelineRun. It contains only facts from the review. The caller adds the facts from other
/// objects. Takes the old object out of the review.
///
/// # Errors
///
/// The object is nested more deeply than the planner's messages allow.
pub(crate) fn pipeline_run_question(
    request: &mut AdmissionRequest<DynamicObject>,
    object: &Value,
) -> Result<AdmitPipelineRunRequest, Violation> {
    let old = request.old_object.take().map(|old| askable(&to_json(old)));
    Ok(AdmitPipelineRunRequest {
        request_uid: request.uid.clone(),
        pipeline_run: Some(askable(object)?),
        old_pipeline_run: old.transpose()?,
        username: request.user_info.username.clone().unwrap_or_default(),
        pipeline_annotations: BTreeMap::new(),
        namespace_annotations: BTreeMap::new(),
        owner_group: None,
        catalog: None,
        source_templates: BTreeMap::new(),
        access_modes: BTreeMap::new(),
    })
}

/// True if the request updates a PipelineRun that had annotation `coscheduler.dev/awaits-pipeline` before the update.
pub(crate) fn awaited_pipeline(request: &AdmissionRequest<DynamicObject>) -> bool {
    let old = request.old_object.as_ref();
    let pinned = old.and_then(|old| old.metadata.annotations.as_ref());
    pinned.is_some_and(|all| all.contains_key(annotations::AWAITS_PIPELINE))
}

/// The parts of a PipelineRun that the planner needs.
pub(crate) fn askable(object: &Value) -> Result<Struct, Violation> {
    let parts = read_parts(object);
    match json::too_deep(&parts) {
        None => Ok(json::object_to_struct(&parts)),
        Some(field) => Err(Violation::new(
            field,
            format!("is nested deeper than {} levels", json::DEEPEST),
        )),
    }
}

/// A new TaskRun or CustomRun. `None` for objects of any other kind.
pub(crate) fn run(request: &AdmissionRequest<DynamicObject>) -> Option<ChildRun> {
    let object = request.object.as_ref()?;
    let username = request.user_info.username.as_deref().unwrap_or_default();
    let spec = &object.data["spec"];
    child_run::view(&request.kind.kind, &object.metadata, spec, username)
}

/// The Events on the PipelineRun that is the controller of a TaskRun or CustomRun. Empty for a dry run.
pub(crate) fn notices(
    request: &AdmissionRequest<DynamicObject>,
    controller: Option<OwnerReference>,
    events: Vec<Reason>,
) -> Vec<Notice> {
    let Some(controller) = controller.filter(|_| !request.dry_run) else {
        return Vec::new();
    };
    let pipeline_run = PipelineRun {
        namespace: request.namespace.clone().unwrap_or_default(),
        name: controller.name,
        uid: controller.uid,
        ..PipelineRun::default()
    };
    let events = events.into_iter().map(|reason| Notice {
        pipeline_run: pipeline_run.clone(),
        reason,
    });
    events.collect()
}

/// The changes of a PipelineRun that the planner decided. If a new run is coscheduled and the review is traced, the run also gets
/// an annotation with the trace, so that later spans about the run can join this trace.
pub(crate) fn pipeline_run_mutation(
    request: &AdmissionRequest<DynamicObject>,
    admission: Admission,
    traceparent: Option<String>,
) -> Mutation {
    let mut set_annotations = admission.set_annotations;
    let coscheduled = set_annotations.contains_key(annotations::MODE);
    if let Some(traceparent) = traceparent
        && coscheduled
        && request.operation == Operation::Create
    {
        set_annotations.insert(annotations::TRACEPARENT.to_owned(), traceparent);
    }
    Mutation {
        set_annotations,
        remove_annotations: admission.remove_annotations,
        remove_task_annotations: (admission.remove_task_annotations.into_iter())
            .map(|annotation| (annotation.index, annotation.key))
            .collect(),
        bindings: (admission.bindings.into_iter())
            .map(|binding| (binding.workspace, binding.source))
            .collect(),
        refusal: None,
    }
}

/// The changes of a TaskRun or CustomRun that the planner decided.
pub(crate) fn run_mutation(admission: ChildAdmission) -> Mutation {
    Mutation {
        set_annotations: admission.set_annotations,
        remove_annotations: admission.remove_annotations,
        refusal: admission.refusal,
        bindings: (admission.bindings.into_iter())
            .map(|bound| (bound.workspace, RewrittenSource::Claim(bound.claim_name)))
            .collect(),
        ..Mutation::default()
    }
}

/// The response that admits the object, with the changes of `mutation`.
///
/// # Errors
///
/// The patch cannot be written as JSON.
pub(crate) fn admitted(
    request: &AdmissionRequest<DynamicObject>,
    object: &Value,
    mutation: &Mutation,
    warnings: Vec<String>,
) -> Result<AdmissionResponse, kube::core::admission::SerializePatchError> {
    let mut response = AdmissionResponse::from(request);
    let patch = patch(object, mutation);
    if !patch.0.is_empty() {
        response = response.with_patch(patch)?;
    }
    if !warnings.is_empty() {
        response.warnings = Some(warnings);
    }
    Ok(response)
}

/// The response that denies the object for now. Tekton tries again after every refusal except `Invalid` and `BadRequest` (Tekton
/// v1.12.0, `pkg/reconciler/pipelinerun/pipelinerun.go`, `handleRunCreationError`). Without a code, the API server would answer
/// `BadRequest`.
pub(crate) fn not_yet(
    request: &AdmissionRequest<DynamicObject>,
    message: &str,
) -> AdmissionResponse {
    let mut response = AdmissionResponse::from(request).deny(message);
    response.result.code = 403;
    response.result.reason = "Forbidden".to_owned();
    response
}

/// The response that denies the object, with these reasons. Each reason names a field of the author's object.
pub(crate) fn refused(
    request: &AdmissionRequest<DynamicObject>,
    violations: &[Violation],
) -> AdmissionResponse {
    let causes: Vec<_> = violations
        .iter()
        .map(|violation| StatusCause {
            reason: "FieldValueInvalid".to_owned(),
            message: violation.description.clone(),
            field: violation
                .field
                .trim_start_matches("pipeline_run.")
                .to_owned(),
        })
        .collect();
    let reasons: Vec<_> = causes
        .iter()
        .map(|cause| format!("{}: {}", cause.field, cause.message))
        .collect();
    let mut response = AdmissionResponse::from(request).deny(format!(
        "tekton-coscheduler refuses this {}: {}",
        request.kind.kind,
        reasons.join("; ")
    ));
    // `kubectl edit` shows these details to the user.
    response.result.details = Some(StatusDetails {
        name: request.name.clone(),
        group: request.kind.group.clone(),
        kind: request.kind.kind.clone(),
        uid: String::new(),
        causes,
        retry_after_seconds: 0,
    });
    response.result.code = UNPROCESSABLE;
    response.result.reason = "Invalid".to_owned();
    response
}
