//! Builds the pod of a placeholder without a StatefulSet, and the StatefulSet that succeeds this pod.
//!
//! The pod is like the pod that the StatefulSet controller would create: it has the same name, volumes and claims, and the
//! labels of the StatefulSet's pod template. If the manager has to move the placeholder, a StatefulSet takes the pod's place:
//! it creates the next pod, and keeps the record of the manager's actions while there is no pod.

use coscheduler_core::annotations::RECORD;
use coscheduler_core::config::Reserves;
use coscheduler_core::names::{claim_name, pod_name};
use coscheduler_core::observed::Record;
use coscheduler_core::plan::PlaceholderSpec;
use coscheduler_core::pod_template::EVACUATED_CLASS;
use coscheduler_core::requests::Amounts;
use coscheduler_core::volumes::Volumes;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::size::{limits, list};
use super::stateful_set::{Owner, build, keeps_node, pod_spec, reference, volume, with_owner};

/// The pod of a placeholder without a StatefulSet. The run is its controller, because `kubectl drain` without `--force` refuses
/// to evict a pod that has no controller.
pub fn pod(owner: Owner<'_>, spec: &PlaceholderSpec, volumes: &Volumes) -> Pod {
    let mut pod = pod_spec(spec, volumes);
    let made = spec.claim_templates.iter().map(|template| {
        let claim = claim_name(&template.name, &spec.name);
        volume(template.name.to_string(), claim)
    });
    let mounted: Vec<_> = made
        .chain(pod.volumes.take().into_iter().flatten())
        .collect();
    pod.volumes = Some(mounted);
    Pod {
        metadata: ObjectMeta {
            name: Some(pod_name(spec.name.as_str())),
            namespace: Some(owner.namespace.to_owned()),
            labels: Some(with_owner(spec.labels.clone(), owner)),
            annotations: Some(keeps_node()),
            owner_references: Some(vec![OwnerReference {
                controller: Some(true),
                ..reference(owner)
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(pod),
        status: None,
    }
}

/// The pod without the scheduling gate. It requests `size`. Without `size`, its requests stay.
pub fn opened(mut pod: Pod, size: Option<&Amounts>) -> Pod {
    let Some(spec) = &mut pod.spec else {
        return pod;
    };
    spec.scheduling_gates = None;
    let container = spec.containers.iter_mut().next();
    if let (Some(container), Some(size)) = (container, size) {
        container.resources = Some(ResourceRequirements {
            requests: Some(list(size.milli_cpu, size.memory)),
            limits: Some(limits(size)),
            ..ResourceRequirements::default()
        });
    }
    pod
}

/// Properties of the StatefulSet that succeeds a placeholder's pod, in addition to the specification.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Succession {
    /// The record of the manager's actions on the placeholder.
    pub record: Record,
    /// True if its pods start with the scheduling gate even if the specification reserves nothing.
    pub gated: bool,
    /// True if its pods have PriorityClass [`EVACUATED_CLASS`].
    pub raised: bool,
}

/// The StatefulSet that succeeds the pod of a placeholder. It has no replica yet, because the pod still exists.
pub fn successor(
    owner: Owner<'_>,
    spec: &PlaceholderSpec,
    volumes: &Volumes,
    succession: &Succession,
) -> StatefulSet {
    let mut spec = spec.clone();
    if succession.gated && spec.reserves == Reserves::Nothing {
        // The StatefulSet would be the same with `Reserves::Peak`.
        spec.reserves = Reserves::Placement;
    }
    let mut set = build(owner, &spec, volumes);
    let text = serde_json::to_string(&succession.record).unwrap_or_default();
    set.metadata.annotations = Some([(RECORD.to_owned(), text)].into());
    if let Some(set) = &mut set.spec {
        set.replicas = Some(0);
        if let (Some(pod), true) = (&mut set.template.spec, succession.raised) {
            pod.priority_class_name = Some(EVACUATED_CLASS.to_owned());
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::super::stateful_set::tests::spec;
    use super::*;
    use crate::placeholder::view;
    use coscheduler_core::observed::Done;
    use coscheduler_core::reconcile::reserve::GATE;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    const OWNER: Owner<'_> = Owner {
        namespace: "ci",
        name: "build",
        uid: "u",
    };

    #[test]
    fn p1_v2_the_pod_is_like_the_pod_of_the_stateful_set() {
        let volumes = Volumes::default();
        let pod = pod(OWNER, &spec(), &volumes);
        let set = build(OWNER, &spec(), &volumes).spec.unwrap().template;
        let (own, of_set) = (pod.metadata, set.metadata.unwrap());
        assert_eq!(own.name.as_deref(), Some("affinity-assistant-0123456789-0"));
        assert_eq!(
            (own.labels, own.annotations),
            (of_set.labels, of_set.annotations)
        );
        assert_eq!(
            json!(own.owner_references),
            json!([{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "build", "uid": "u", "controller": true}])
        );
        let (mut spec, of_set) = (pod.spec.unwrap(), set.spec.unwrap());
        let made = json!({"name": "pvc-0123456789",
            "persistentVolumeClaim": {"claimName": "pvc-0123456789-affinity-assistant-0123456789-0"}});
        assert_eq!(json!(spec.volumes.as_mut().unwrap().remove(0)), made);
        assert_eq!(spec, of_set);
    }

    #[test]
    fn b3_the_first_pod_asks_for_its_size_without_a_gate() {
        let size = Amounts {
            milli_cpu: 2000,
            memory: 1000,
            ..Amounts::default()
        };
        let mut reserving = spec();
        reserving.reserves = Reserves::Placement;
        let gated = pod(OWNER, &reserving, &Volumes::default());
        let own = opened(gated.clone(), None);
        let sized = opened(gated.clone(), Some(&size)).spec.unwrap();
        let resources = json!(sized.containers[0].resources);
        assert_eq!(
            resources,
            json!({"requests": {"cpu": "2", "memory": "1000"}, "limits": {"cpu": "2020m", "memory": "1010"}})
        );
        let mut expected = gated.clone().spec.unwrap();
        expected.scheduling_gates = None;
        assert_eq!(own.spec, Some(expected.clone()));
        expected.containers[0].resources = sized.containers[0].resources.clone();
        assert_eq!(sized, expected);
    }

    #[test]
    fn n1_the_successor_has_no_replica_yet_and_keeps_the_record() {
        let record = Record {
            evacuated: Done::again(None, Timestamp::UNIX_EPOCH, "the node is cordoned"),
            ..Record::default()
        };
        for (gated, raised) in [(false, true), (true, false)] {
            let succession = Succession {
                record: record.clone(),
                gated,
                raised,
            };
            let set = successor(OWNER, &spec(), &Volumes::default(), &succession);
            let pod = set.spec.as_ref().unwrap().template.spec.clone().unwrap();
            let gates = pod.scheduling_gates.into_iter().flatten();
            let gates: Vec<_> = gates.map(|gate| gate.name).collect();
            assert_eq!(gates, if gated { vec![GATE] } else { vec![] });
            let class = pod.priority_class_name.as_deref();
            assert_eq!(class, raised.then_some(EVACUATED_CLASS));
            let view = view(set).unwrap();
            assert_eq!((view.parked, view.gated), (true, gated));
            assert_eq!(view.record, record);
        }
    }
}
