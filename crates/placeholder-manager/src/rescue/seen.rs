//! What is seen of a pod that waits, from the caches: everything that `core` decides by.

use coscheduler_core::evacuate::Role;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::plan;
use coscheduler_core::rescue::room::{Needs, Room};
use coscheduler_core::rescue::{Contention, Placeholder, Resident, ScaleUp, Waiting};
use coscheduler_core::volumes::SeenClaim;
use coscheduler_kubernetes::{needs, pods};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;

use super::state::State;
use crate::cache::{Cache, Run, RunKey};
use crate::evacuate::belongs;

/// What is seen of a pod that waits.
pub(super) struct Seen {
    pub placeholder: Placeholder,
    pod: Waiting,
    also_waiting: Vec<Needs>,
    residents: Vec<Resident>,
    rooms: Vec<Room>,
}

impl Seen {
    pub(super) fn contention(&self, moves: u32, scale_up: ScaleUp) -> Contention<'_> {
        Contention {
            pod: &self.pod,
            placeholder: &self.placeholder,
            also_waiting: &self.also_waiting,
            residents: &self.residents,
            rooms: &self.rooms,
            scale_up,
            moves,
        }
    }
}

/// Everything that decides about a pod that waits for this placeholder; `None` while the caches do not fit together.
pub(super) fn see(
    cache: &Cache,
    (key, itself, run): (&RunKey, &PipelineRun, &Run),
    state: &State,
    (set, pod): (&StatefulSet, &Pod),
    waits: &Pod,
) -> Option<Seen> {
    let node = pods::node(pod)?;
    let name = set.name_any();
    let pod_key = (key.namespace.clone(), pod.name_any());
    let held = held(itself, &name, pod);
    let claims = |names: &[String]| -> Vec<SeenClaim> {
        let seen = |name: &String| {
            let seen = cache.claim(&key.namespace, name).seen();
            seen.unwrap_or_else(|| SeenClaim {
                name: name.clone(),
                ..SeenClaim::default()
            })
        };
        names.iter().map(seen).collect()
    };
    let need = |pod: &Pod| Needs {
        claims: claims(&pods::claims(pod)),
        refused: state.refused_by_pod(&pod.name_any()),
        ..needs::needs(pod)
    };
    let others = waiting(run, &name).into_iter();
    let others = others.filter(|other| other.name_any() != waits.name_any());
    Some(Seen {
        also_waiting: others.map(need).collect(),
        residents: cache.residents((key, run), &name, node, &held),
        rooms: cache.rooms(&pod_key),
        pod: Waiting {
            name: waits.name_any(),
            needs: need(waits),
        },
        placeholder: Placeholder {
            namespace: key.namespace.clone(),
            node: node.to_owned(),
            needs: Needs {
                requests: cache.counted_on(&pod_key, node)?,
                claims: claims(&held),
                refused: state.refused_by_placeholder(&name),
                // Not the pod's own: it may have been sent where it is.
                ..needs::needs(&of_template(set))
            },
            separation: run.separation(),
            name,
        },
    })
}

/// The claims that a placeholder stands for, mounted or not.
fn held(run: &PipelineRun, placeholder: &str, pod: &Pod) -> Vec<String> {
    let plan = plan(run).ok();
    let specs = plan.iter().flat_map(|plan| plan.action.placeholders());
    let planned = specs.filter(|spec| spec.name.as_str() == placeholder);
    let mut held = pods::claims(pod);
    held.extend(planned.flat_map(|spec| spec.claims().collect::<Vec<_>>()));
    held.sort();
    held.dedup();
    held
}

/// The run's pods that no node is found for and that follow this placeholder.
pub(super) fn waiting<'a>(run: &'a Run, placeholder: &str) -> Vec<&'a Pod> {
    let pods = run.pods.values().map(AsRef::as_ref);
    let waiting = pods.filter(|pod| {
        pods::is_unschedulable(pod)
            && !pods::is_placeholder(pod)
            && pod.metadata.deletion_timestamp.is_none()
            && pods::follows(pod).contains(&placeholder)
            && belongs(run, pod, Role::NeverStarted)
    });
    waiting.collect()
}

fn of_template(set: &StatefulSet) -> Pod {
    let spec = set.spec.as_ref().and_then(|set| set.template.spec.clone());
    Pod {
        spec,
        ..Pod::default()
    }
}

/// The TaskRun that a pod is of.
pub(super) fn task_run(pod: &Pod) -> Option<&OwnerReference> {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.find(|owner| owner.kind == "TaskRun")
}

/// Whether a placeholder is on a node and nobody has told it to leave.
pub(super) fn stays(pod: &Pod) -> bool {
    pods::node(pod).is_some() && pod.metadata.deletion_timestamp.is_none()
}
