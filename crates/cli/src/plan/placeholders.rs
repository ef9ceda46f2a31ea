//! The placeholders of a planned run: their claims, and the objects that the manager creates.

use std::collections::BTreeMap;
use std::sync::Arc;

use coscheduler_core::config::Backend;
use coscheduler_core::names::{claim_name, pod_name};
use coscheduler_core::observed::{Observed, RunPresence};
use coscheduler_core::pinned::Pinned;
use coscheduler_core::pipeline_run::{PipelineRun, WorkspaceSource};
use coscheduler_core::plan::{ClaimTemplateSpec, PlaceholderSpec, Plan};
use coscheduler_core::reconcile::{Step, reconcile};
use coscheduler_core::run_claims::{RunClaims, brought};
use coscheduler_core::volumes::{SeenClaim, Volumes, volumes};
use coscheduler_kubernetes::placeholder::{
    Owner, build, made_claims, pod, single_pod_claims, view,
};
use coscheduler_kubernetes::pods;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::answer::{Claim, MadeBy, PlaceholderPlan};
use super::documents::Documents;

/// The placeholders of `plan`, the plan of `run`.
pub(super) fn of(run: &PipelineRun, plan: &Plan, documents: &Documents) -> Vec<PlaceholderPlan> {
    let pinned = Pinned::of(run).ok().flatten();
    let known = pinned.map(|pinned| pinned.claims).unwrap_or_default();
    let owner = Owner {
        namespace: &run.namespace,
        name: &run.name,
        uid: &run.uid,
    };
    let placeholders = plan.action.placeholders().iter();
    placeholders
        .map(|spec| {
            let seen: Vec<_> = spec
                .claims()
                .map(|name| SeenClaim {
                    single_pod: documents.is_single_pod(&run.namespace, &name),
                    name,
                    volume: None,
                })
                .collect();
            let volumes = volumes(spec, &seen);
            let own = json!(build(owner, spec, &volumes));
            let requests =
                &own["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"];
            let minimum = requests.clone();
            let asks = asks(run, plan, &own);
            let single_pod_claims = single_pod_claims(owner, spec);
            let (own, claims_made) = match spec.backend {
                Backend::Controlled => (own, Vec::new()),
                Backend::Pod => (json!(pod(owner, spec, &volumes)), made_claims(owner, spec)),
            };
            let claims_made = claims_made.into_iter().chain(single_pod_claims);
            let claims_made = claims_made.map(|claim| json!(claim));
            PlaceholderPlan {
                name: spec.name.to_string(),
                reserves: spec.reserves,
                requests: texts(&minimum),
                asks,
                claims: claims(run, spec, &volumes, &known, documents),
                objects: [own].into_iter().chain(claims_made).collect(),
            }
        })
        .collect()
}

/// The requests that the manager sets on the first pod of the placeholder `own`, one after the other, until the scheduler finds a
/// node. Empty if the pod keeps the requests of its template. The list comes from `reconcile`, which gets a simulated
/// observation with this pod.
fn asks(run: &PipelineRun, plan: &Plan, own: &Value) -> Vec<String> {
    let mut own = own.clone();
    own["metadata"]["uid"] = "placeholder".into();
    let name = own["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let mut pod = json!({
        "metadata": own["spec"]["template"]["metadata"],
        "spec": own["spec"]["template"]["spec"],
        "status": {"phase": "Pending"},
    });
    pod["metadata"]["name"] = pod_name(&name).into();
    pod["metadata"]["namespace"] = own["metadata"]["namespace"].clone();
    pod["metadata"]["ownerReferences"] = json!([{
        "apiVersion": own["apiVersion"], "kind": own["kind"], "name": name, "uid": "placeholder", "controller": true,
    }]);
    let pod = serde_json::from_value::<Pod>(pod).ok().and_then(pods::view);
    let placeholder = serde_json::from_value(own).ok().and_then(view);
    let (Some(pod), Some(placeholder)) = (pod, placeholder) else {
        return Vec::new();
    };
    let observed = Observed {
        leads: true,
        presence: RunPresence::Active,
        run: Some((Arc::new(run.clone()), Arc::new(Ok(plan.clone())))),
        placeholders: BTreeMap::from([(name, Arc::new(placeholder))]),
        pods: BTreeMap::from([(pod.object.name.clone(), Arc::new(pod))]),
        ..Observed::default()
    };
    let opened = reconcile(&observed)
        .steps
        .into_iter()
        .find_map(|step| match step {
            Step::Open { sizes, .. } => Some(sizes),
            Step::Create { .. }
            | Step::Delete(_)
            | Step::DeleteOrphan(_)
            | Step::DeleteClaim(_)
            | Step::Unprotect(_)
            | Step::Retry(..)
            | Step::Gate(_)
            | Step::Start(_)
            | Step::Shrink { .. }
            | Step::Evict(_)
            | Step::Ask { .. }
            | Step::LetGo { .. } => None,
        });
    let sizes = opened.unwrap_or_default();
    sizes.iter().map(ToString::to_string).collect()
}

fn claims(
    run: &PipelineRun,
    spec: &PlaceholderSpec,
    volumes: &Volumes,
    known: &RunClaims,
    documents: &Documents,
) -> Vec<Claim> {
    let brought = brought(known);
    let of_template = |template: &ClaimTemplateSpec, made_by, mounted| Claim {
        name: claim_name(&template.name, &spec.name),
        workspaces: vec![template.workspace.clone()],
        access_modes: list(&template.spec["accessModes"]),
        made_by,
        mounted,
    };
    let named = |name: &String, mounted| {
        let mut workspaces = Vec::new();
        for (workspace, claim) in known {
            if claim.name(workspace, &run.uid) == *name {
                workspaces.push(workspace.clone());
            }
        }
        let exists = brought.contains(name.as_str());
        let modes = match documents.claim(&run.namespace, name) {
            Some(claim) if exists => json!(claim)["spec"]["accessModes"].clone(),
            Some(_) | None => template(run, &workspaces)["spec"]["accessModes"].clone(),
        };
        Claim {
            name: name.clone(),
            access_modes: list(&modes),
            workspaces,
            made_by: if exists { MadeBy::User } else { MadeBy::Tekton },
            mounted: mounted && !volumes.unmounted.contains(name),
        }
    };
    let made = spec.claim_templates.iter();
    let made_by = match spec.backend {
        Backend::Controlled => MadeBy::Placeholder,
        Backend::Pod => MadeBy::PlaceholderManager,
    };
    let made = made.map(|it| of_template(it, made_by, true));
    let single = spec.single_pod_claims.iter();
    let single = single.map(|it| of_template(it, MadeBy::PlaceholderManager, false));
    let mounted = spec.claim_names.iter().map(|name| named(name, true));
    let unmounted = spec.unmounted_claim_names.iter();
    let unmounted = unmounted.map(|name| named(name, false));
    made.chain(single).chain(mounted).chain(unmounted).collect()
}

/// The `volumeClaimTemplate` of the first of these workspaces that has one.
fn template(run: &PipelineRun, workspaces: &[String]) -> Value {
    let bindings = run.workspaces.iter();
    let mut own = bindings.filter(|binding| workspaces.contains(&binding.name));
    let found = own.find_map(|binding| match &binding.source {
        WorkspaceSource::ClaimTemplate(claim) => Some(claim.template.clone()),
        WorkspaceSource::Claim { .. } | WorkspaceSource::Other => None,
    });
    found.unwrap_or_default()
}

fn list(texts: &Value) -> Vec<String> {
    serde_json::from_value(texts.clone()).unwrap_or_default()
}

fn texts(map: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(map.clone()).unwrap_or_default()
}
