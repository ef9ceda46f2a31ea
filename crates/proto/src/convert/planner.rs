//! Conversions of the affinity-planner's requests and responses.

use std::collections::BTreeMap;

use prost_types::Struct;
use serde_json::Value;

use coscheduler_core::admit::{Admission, RewrittenBinding, RewrittenSource, TaskAnnotation};
use coscheduler_core::admit_child::{BoundClaim, ChildAdmission, ChildKind, ChildRun};
use coscheduler_core::event_texts::{Reason, ReasonCode};
use coscheduler_core::mode::IsolationScope;
use coscheduler_core::params::Params;
use coscheduler_core::pipeline;
use coscheduler_core::pipeline_run::{OwnerReference, PipelineRun};
use coscheduler_core::plan::{
    Action, ClaimTemplateSpec, PlaceholderSpec, Plan, Preview, Separation,
};
use coscheduler_core::run_claims::AccessModes;
use coscheduler_core::sizes::{Catalog, TaskSpec, resource_list};
use coscheduler_core::violation::Violation;

use super::config::{backend_to_wire, reserves_to_wire};
use super::{checked, mode_to_wire, required, within};
use crate::json;
use crate::planner as wire;
use crate::planner::binding::Source;

/// A PipelineRun from field `field` of a request.
///
/// # Errors
///
/// A violation for each part of the run that cannot be read. The violation's field is a path that begins with `field`.
pub fn pipeline_run(field: &str, message: Option<Struct>) -> Result<PipelineRun, Vec<Violation>> {
    let Some(fields) = message else {
        let description =
            "is unset; it is required, a tekton.dev/v1 PipelineRun as Kubernetes JSON";
        return Err(vec![Violation::new(field, description)]);
    };
    PipelineRun::parse(&Value::Object(json::from_struct(fields)))
        .map_err(|violations| within(field, violations))
}

/// The objects that determine the requests of a run's pods, and the defaults of parameters. Malformed parts are left out: the
/// author of the run perhaps cannot correct them.
pub fn catalog(message: wire::Catalog) -> Catalog {
    let wire::Catalog {
        pipeline,
        tasks,
        limit_ranges,
        overheads,
        tekton,
    } = message;
    let value = |fields| Value::Object(json::from_struct(fields));
    let mut catalog = Catalog::default();
    if let Some(spec) = pipeline {
        let spec = value(spec);
        catalog.defaults = Params::defaults(&spec["params"]);
        catalog.pipeline = pipeline::tasks(&spec);
    }
    for (name, spec) in tasks {
        catalog.tasks.insert(name, TaskSpec::read(&value(spec)));
    }
    for (name, fixed) in overheads {
        let fixed = resource_list(&value(fixed));
        catalog.overheads.insert(name, fixed);
    }
    for spec in limit_ranges {
        catalog.limits.add(&value(spec));
    }
    catalog.configure(&tekton);
    catalog
}

/// The access modes of claims from the wire.
pub fn access_modes(messages: BTreeMap<String, wire::AccessModes>) -> AccessModes {
    let claims = messages.into_iter();
    claims.map(|(name, it)| (name, it.modes)).collect()
}

/// The access modes of claims for the wire.
pub fn access_modes_to_wire(claims: AccessModes) -> BTreeMap<String, wire::AccessModes> {
    let claims = claims.into_iter();
    claims
        .map(|(name, modes)| (name, wire::AccessModes { modes }))
        .collect()
}

/// A TaskRun or CustomRun from the wire.
///
/// # Errors
///
/// A violation for each required field that is empty, for an unknown kind, and for each part of the PipelineRun that cannot be
/// read.
pub fn child_run(message: wire::AdmitRunRequest) -> Result<ChildRun, Vec<Violation>> {
    let mut violations = Vec::new();
    required("username", &message.username, &mut violations);
    let kind = [ChildKind::TaskRun, ChildKind::CustomRun]
        .into_iter()
        .find(|kind| kind.as_str() == message.kind);
    if kind.is_none() {
        let description = format!("is {:?}; allowed: TaskRun, CustomRun", message.kind);
        violations.push(Violation::new("kind", description));
    }
    for (index, claim) in message.claims.iter().enumerate() {
        let field = format!("claims[{index}].workspace");
        required(&field, &claim.workspace, &mut violations);
    }
    let owner = message.pipeline_run;
    let owner = owner.map(|owner| pipeline_run("pipeline_run", Some(owner)));
    let owner = owner.transpose().unwrap_or_else(|faults| {
        violations.extend(faults);
        None
    });
    let run = kind.map(|kind| ChildRun {
        kind,
        name: message.name,
        pipeline_task: message.pipeline_task,
        annotations: message.annotations,
        controller: message.controller.map(|owner| OwnerReference {
            api_version: owner.api_version,
            kind: owner.kind,
            name: owner.name,
            uid: owner.uid,
        }),
        owner_group: message.owner_group,
        created_by: message.username,
        claims: claims(message.claims),
        params: Params::from_flattened(message.params),
        pipeline_run: owner,
    });
    checked(run, violations)
}

/// A TaskRun or CustomRun for the wire. Its PipelineRun is not included.
pub fn child_run_to_wire(run: ChildRun) -> wire::AdmitRunRequest {
    wire::AdmitRunRequest {
        kind: run.kind.as_str().to_owned(),
        name: run.name,
        pipeline_task: run.pipeline_task,
        annotations: run.annotations,
        controller: run.controller.map(|owner| wire::OwnerReference {
            api_version: owner.api_version,
            kind: owner.kind,
            name: owner.name,
            uid: owner.uid,
        }),
        owner_group: run.owner_group,
        username: run.created_by,
        claims: claims_to_wire(run.claims),
        params: run.params.flattened().clone(),
        pipeline_run: None,
    }
}

/// Changes to a TaskRun or CustomRun for the wire.
pub fn child_admission_to_wire(admission: ChildAdmission) -> wire::AdmitRunResponse {
    wire::AdmitRunResponse {
        remove_annotations: admission.remove_annotations,
        warnings: admission.warnings,
        set_annotations: admission.set_annotations,
        refusal_message: admission.refusal.unwrap_or_default(),
        bindings: claims_to_wire(admission.bindings),
        events: admission.events.iter().map(reason_to_wire).collect(),
    }
}

/// Changes to a TaskRun or CustomRun from the wire.
pub fn child_admission(message: wire::AdmitRunResponse) -> ChildAdmission {
    ChildAdmission {
        set_annotations: message.set_annotations,
        remove_annotations: message.remove_annotations,
        refusal: Some(message.refusal_message).filter(|message| !message.is_empty()),
        bindings: claims(message.bindings),
        warnings: message.warnings,
        // A newer planner may know codes that this version does not know.
        events: message.events.into_iter().filter_map(reason).collect(),
    }
}

fn claims_to_wire(claims: Vec<BoundClaim>) -> Vec<wire::BoundClaim> {
    let claims = claims.into_iter().map(|claim| wire::BoundClaim {
        workspace: claim.workspace,
        claim_name: claim.claim_name,
    });
    claims.collect()
}

fn claims(messages: Vec<wire::BoundClaim>) -> Vec<BoundClaim> {
    let claims = messages.into_iter().map(|claim| BoundClaim {
        workspace: claim.workspace,
        claim_name: claim.claim_name,
    });
    claims.collect()
}

/// Changes to a PipelineRun for the wire.
pub fn admission_to_wire(admission: Admission) -> wire::AdmitPipelineRunResponse {
    let of_tasks = admission.remove_task_annotations.into_iter();
    wire::AdmitPipelineRunResponse {
        set_annotations: admission.set_annotations,
        remove_annotations: admission.remove_annotations,
        bindings: bindings_to_wire(admission.bindings),
        warnings: admission.warnings,
        remove_task_annotations: of_tasks
            .map(|annotation| wire::TaskAnnotation {
                index: i32::try_from(annotation.index).unwrap_or(i32::MAX),
                key: annotation.key,
            })
            .collect(),
        claims_to_read: admission.claims_to_read.into_iter().collect(),
    }
}

/// Changes to a PipelineRun from the wire.
pub fn admission(message: wire::AdmitPipelineRunResponse) -> Admission {
    let bindings = message.bindings.into_iter().filter_map(|binding| {
        let source = match binding.source? {
            Source::ClaimName(name) => RewrittenSource::Claim(name),
            Source::VolumeClaimTemplate(template) => {
                RewrittenSource::Template(Value::Object(json::from_struct(template)))
            }
        };
        Some(RewrittenBinding {
            workspace: binding.workspace,
            source,
        })
    });
    let of_tasks = message.remove_task_annotations.into_iter();
    Admission {
        set_annotations: message.set_annotations,
        remove_annotations: message.remove_annotations,
        bindings: bindings.collect(),
        remove_task_annotations: of_tasks
            .filter_map(|annotation| {
                Some(TaskAnnotation {
                    index: usize::try_from(annotation.index).ok()?,
                    key: annotation.key,
                })
            })
            .collect(),
        warnings: message.warnings,
        claims_to_read: message.claims_to_read.into_iter().collect(),
    }
}

fn bindings_to_wire(bindings: Vec<RewrittenBinding>) -> Vec<wire::Binding> {
    let bindings = bindings.into_iter().map(|binding| wire::Binding {
        workspace: binding.workspace,
        source: Some(match binding.source {
            RewrittenSource::Claim(name) => Source::ClaimName(name),
            RewrittenSource::Template(template) => {
                Source::VolumeClaimTemplate(json::object_to_struct(&template))
            }
        }),
    });
    bindings.collect()
}

/// A plan for the wire.
pub fn plan_to_wire(plan: &Plan) -> wire::Plan {
    let action = match &plan.action {
        Action::Nothing => wire::Action::None,
        Action::Ensure(_) => wire::Action::Ensure,
        Action::Release { .. } => wire::Action::Release,
    };
    let placeholders = plan.action.placeholders().iter();
    wire::Plan {
        mode: mode_to_wire(plan.mode).into(),
        action: action.into(),
        placeholders: placeholders.map(placeholder_spec_to_wire).collect(),
        reasons: plan.reasons.iter().map(reason_to_wire).collect(),
        ..wire::Plan::default()
    }
}

/// A preview for the wire: the plan of a run that does not exist yet.
pub fn preview_to_wire(preview: Preview) -> wire::Plan {
    wire::Plan {
        bindings: bindings_to_wire(preview.admission.bindings),
        annotations: preview.admission.set_annotations,
        ..plan_to_wire(&preview.plan)
    }
}

/// A reason for the wire.
pub fn reason_to_wire(reason: &Reason) -> crate::reason::Reason {
    crate::reason::Reason {
        code: reason.code.as_str().to_owned(),
        message: reason.message.clone(),
    }
}

fn reason(message: crate::reason::Reason) -> Option<Reason> {
    let code = ReasonCode::read(&message.code)?;
    Some(Reason::new(code, message.message))
}

fn placeholder_spec_to_wire(spec: &PlaceholderSpec) -> wire::PlaceholderSpec {
    let templates = |templates: &[ClaimTemplateSpec]| {
        templates
            .iter()
            .map(|template| wire::ClaimTemplate {
                name: template.name.to_string(),
                workspace: template.workspace.clone(),
                spec: Some(json::object_to_struct(&template.spec)),
                labels: template.labels.clone(),
                annotations: template.annotations.clone(),
            })
            .collect()
    };
    let separation = match spec.separation {
        Separation::Spread => wire::Separation::Spread,
        Separation::Pack => wire::Separation::Pack,
        Separation::None => wire::Separation::None,
        Separation::Isolate(IsolationScope::Cluster) => wire::Separation::IsolateCluster,
        Separation::Isolate(IsolationScope::Namespace) => wire::Separation::IsolateNamespace,
    };
    wire::PlaceholderSpec {
        name: spec.name.to_string(),
        labels: spec.labels.clone(),
        claim_templates: templates(&spec.claim_templates),
        claim_names: spec.claim_names.clone(),
        cpu: spec.cpu.clone(),
        memory: spec.memory.clone(),
        image: spec.image.clone(),
        pod_template: (!spec.pod_template.is_empty()).then(|| json::to_struct(&spec.pod_template)),
        service_account_name: spec.service_account_name.clone(),
        single_pod_claims: templates(&spec.single_pod_claims),
        unmounted_claim_names: spec.unmounted_claim_names.clone(),
        separation: separation.into(),
        reserves: reserves_to_wire(spec.reserves).into(),
        backend: backend_to_wire(spec.backend).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_admission_writes_survives_the_wire() {
        let binding = |workspace: &str, source| RewrittenBinding {
            workspace: workspace.to_owned(),
            source,
        };
        let admission = Admission {
            set_annotations: [("a".to_owned(), "b".to_owned())].into(),
            remove_annotations: vec!["c".to_owned()],
            remove_task_annotations: vec![TaskAnnotation {
                index: 3,
                key: "d".to_owned(),
            }],
            bindings: vec![
                binding("source", RewrittenSource::Claim("claim".to_owned())),
                binding(
                    "cache",
                    RewrittenSource::Template(json!({"spec": {"accessModes": ["x"]}})),
                ),
            ],
            warnings: vec!["e".to_owned()],
            claims_to_read: ["f".to_owned()].into(),
        };
        assert_eq!(
            super::admission(admission_to_wire(admission.clone())),
            admission
        );
    }

    fn child() -> ChildRun {
        ChildRun {
            kind: ChildKind::TaskRun,
            pipeline_task: "compile".to_owned(),
            name: "build-compile".to_owned(),
            annotations: [("a".to_owned(), "b".to_owned())].into(),
            controller: Some(OwnerReference {
                api_version: "tekton.dev/v1".to_owned(),
                kind: "PipelineRun".to_owned(),
                name: "build".to_owned(),
                uid: "u".to_owned(),
            }),
            owner_group: Some("0123456789".to_owned()),
            created_by: "tekton".to_owned(),
            claims: vec![BoundClaim {
                workspace: "source".to_owned(),
                claim_name: "$(params.list[1])".to_owned(),
            }],
            params: Params::read(&json!([{"name": "list", "value": ["x", "y"]}])),
            pipeline_run: None,
        }
    }

    #[test]
    fn a_task_run_and_what_becomes_of_it_survive_the_wire() {
        assert_eq!(child_run(child_run_to_wire(child())), Ok(child()));
        let owner = json!({"spec": {"pipelineSpec": {"params": [{"name": "c", "default": "d"}]}}});
        let mut message = child_run_to_wire(child());
        message.pipeline_run = Some(json::object_to_struct(&owner));
        let read = child_run(message.clone()).unwrap();
        assert_eq!(read.pipeline_run, PipelineRun::parse(&owner).ok());
        let malformed = json!({"spec": {"workspaces": 7}});
        message.pipeline_run = Some(json::object_to_struct(&malformed));
        let faults = child_run(message).unwrap_err();
        assert_eq!(faults[0].field, "pipeline_run.spec.workspaces");
        for refusal in [None, Some("why".to_owned())] {
            let admission = ChildAdmission {
                set_annotations: [("a".to_owned(), "b".to_owned())].into(),
                remove_annotations: vec!["c".to_owned()],
                refusal,
                bindings: child().claims,
                warnings: vec!["d".to_owned()],
                events: vec![Reason::new(ReasonCode::TaskRunRefused, "e")],
            };
            assert_eq!(
                child_admission(child_admission_to_wire(admission.clone())),
                admission
            );
        }
    }

    #[test]
    fn every_violation_of_a_task_run_is_named_at_once() {
        let message = wire::AdmitRunRequest {
            kind: "Pod".to_owned(),
            claims: vec![wire::BoundClaim::default()],
            ..wire::AdmitRunRequest::default()
        };
        let violations = child_run(message).unwrap_err();
        let fields: Vec<_> = violations
            .iter()
            .map(|violation| violation.field.as_str())
            .collect();
        assert_eq!(fields, ["username", "kind", "claims[0].workspace"]);
    }
}
