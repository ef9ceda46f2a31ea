//! What of a pod goes into a cache.

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerStatus, PersistentVolumeClaimVolumeSource, Pod, PodSpec,
    PodStatus, ResourceRequirements, Volume,
};

use super::{is_unscheduled, node};

/// Drops what nobody here reads, before a pod goes into a cache. What a pod asks for is kept until it has a node: from then on
/// it is counted there.
pub fn trim(pod: &mut Pod) {
    pod.metadata.managed_fields = None;
    pod.metadata.annotations = None;
    let waits = node(pod).is_none();
    if let Some(spec) = &mut pod.spec {
        let mut asking = asked_for(spec);
        if !waits {
            asking = PodSpec::default();
        }
        *spec = PodSpec {
            node_name: spec.node_name.take(),
            node_selector: spec.node_selector.take(),
            tolerations: spec.tolerations.take(),
            affinity: spec.affinity.take().map(|affinity| Affinity {
                pod_anti_affinity: None,
                ..affinity
            }),
            volumes: spec.volumes.take().map(with_claims_alone),
            ..asking
        };
    }
    if let Some(status) = &mut pod.status {
        let phase = status.phase.take();
        let states = |containers: Option<Vec<ContainerStatus>>| {
            containers.map(|containers| containers.into_iter().map(state_alone).collect())
        };
        let conditions = status.conditions.take().map(|mut conditions| {
            conditions.retain(is_unscheduled);
            conditions
        });
        *status = PodStatus {
            phase,
            conditions,
            container_statuses: states(status.container_statuses.take()),
            init_container_statuses: states(status.init_container_statuses.take()),
            ..Default::default()
        };
    }
}

fn with_claims_alone(volumes: Vec<Volume>) -> Vec<Volume> {
    let named = volumes
        .into_iter()
        .filter(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
    named
        .map(|volume| Volume {
            name: volume.name,
            persistent_volume_claim: volume.persistent_volume_claim.map(|source| {
                PersistentVolumeClaimVolumeSource {
                    claim_name: source.claim_name,
                    read_only: None,
                }
            }),
            ephemeral: volume.ephemeral.map(|_| Default::default()),
            ..Volume::default()
        })
        .collect()
}

fn state_alone(container: ContainerStatus) -> ContainerStatus {
    ContainerStatus {
        name: container.name,
        state: container.state,
        ..ContainerStatus::default()
    }
}

/// Drops of a pod's spec what says nothing about what it asks for.
fn asked_for(spec: &mut PodSpec) -> PodSpec {
    let containers = |containers: Vec<Container>| {
        containers
            .into_iter()
            .map(|container| Container {
                name: container.name,
                resources: container.resources.map(|resources| ResourceRequirements {
                    requests: resources.requests,
                    ..ResourceRequirements::default()
                }),
                restart_policy: container.restart_policy,
                ..Container::default()
            })
            .collect()
    };
    PodSpec {
        containers: containers(std::mem::take(&mut spec.containers)),
        init_containers: spec.init_containers.take().map(containers),
        resources: spec.resources.take(),
        overhead: spec.overhead.take(),
        ..PodSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use coscheduler_core::teardown::PodPhase;
    use serde_json::json;

    use super::*;
    use crate::pods::phase;

    #[test]
    fn trimming_keeps_what_is_read() {
        let mut full: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p", "annotations": {"a": "b"}},
            "spec": {"nodeName": "n", "containers": [{"name": "c"}]},
            "status": {"phase": "Succeeded", "podIP": "10.0.0.1"},
        }))
        .unwrap();
        trim(&mut full);
        assert_eq!(node(&full), Some("n"));
        assert_eq!(phase(&full), PodPhase::Succeeded);
        assert!(full.metadata.annotations.is_none());
    }
}
