//! The room on a node: its allocatable resources, minus the requests of its pods.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context as _, Result};
use coscheduler_core::quantity::Quantity;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource;

/// Amounts by resource, in billionths of the resource's unit.
pub(super) type Amounts = BTreeMap<String, i128>;

/// The allocatable resources of a node, and the requests of its pods by uid.
#[derive(Debug, Default)]
pub(super) struct Room {
    pub(super) allocatable: Amounts,
    pub(super) pods: BTreeMap<String, Amounts>,
}

/// A resource of which the node has too little for a pod. Its `Display` text is the same as in the message of a real kubelet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    resource: String,
    pub(super) requested: i128,
    used: i128,
    pub(super) capacity: i128,
}

impl Shortage {
    /// The beginning of the reason; the name of the resource follows.
    pub(super) const REASON: &str = "OutOf";

    pub(super) fn reason(&self) -> String {
        format!("{}{}", Self::REASON, self.resource)
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.resource.as_str() {
            "cpu" => 1_000_000,
            _ => 1_000_000_000,
        };
        write!(
            formatter,
            "Node didn't have enough resource: {}, requested: {}, used: {}, capacity: {}",
            self.resource,
            self.requested / unit,
            self.used / unit,
            self.capacity / unit
        )
    }
}

impl Room {
    /// The first resource of which the node has too little for `wanted`. A resource counts only if the pod now requests more of
    /// it than before.
    pub(super) fn shortage(&self, uid: &str, wanted: &Amounts) -> Option<Shortage> {
        let amount = |amounts: &Amounts, resource: &String| amounts.get(resource).copied();
        let had = |resource: &String| self.pods.get(uid).and_then(|had| amount(had, resource));
        wanted.iter().find_map(|(resource, &requested)| {
            let capacity = amount(&self.allocatable, resource)?;
            let others = self.pods.iter().filter(|(other, _)| *other != uid);
            let used = others.filter_map(|(_, pod)| amount(pod, resource)).sum();
            let grows = requested > had(resource).unwrap_or_default();
            (grows && used + requested > capacity).then(|| Shortage {
                resource: resource.clone(),
                requested,
                used,
                capacity,
            })
        })
    }
}

/// The allocatable resources of a node.
pub(super) fn allocatable(node: &Node) -> Result<Amounts> {
    let status = node.status.as_ref();
    amounts(status.and_then(|status| status.allocatable.as_ref()))
}

/// The requests of a pod, as Kubernetes counts them (`k8s.io/component-helpers/resource`, `PodRequests`), plus one of resource
/// `pods`.
pub(super) fn requests(pod: &Pod) -> Result<Amounts> {
    let spec = pod.spec.as_ref().context("a pod has no spec")?;
    let of = |container: &k8s_openapi::api::core::v1::Container| {
        let resources = container.resources.as_ref();
        amounts(resources.and_then(|resources| resources.requests.as_ref()))
    };
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, of(container)?);
    }
    let (mut sidecars, mut starting) = (Amounts::new(), Amounts::new());
    for container in spec.init_containers.iter().flatten() {
        let mut now = of(container)?;
        if container.restart_policy.as_deref() == Some("Always") {
            add(&mut total, now.clone());
            add(&mut sidecars, now);
        } else {
            add(&mut now, sidecars.clone());
            raise(&mut starting, now);
        }
    }
    raise(&mut total, starting);
    add(&mut total, amounts(spec.overhead.as_ref())?);
    add(
        &mut total,
        Amounts::from([("pods".to_owned(), 1_000_000_000)]),
    );
    Ok(total)
}

fn amounts(list: Option<&BTreeMap<String, resource::Quantity>>) -> Result<Amounts> {
    list.into_iter()
        .flatten()
        .map(|(resource, quantity)| {
            let quantity: Quantity = quantity.0.parse()?;
            Ok((resource.clone(), quantity.nano()))
        })
        .collect()
}

fn add(total: &mut Amounts, more: Amounts) {
    for (resource, amount) in more {
        *total.entry(resource).or_default() += amount;
    }
}

fn raise(total: &mut Amounts, to: Amounts) {
    for (resource, amount) in to {
        let total = total.entry(resource).or_default();
        *total = amount.max(*total);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container(cpu: &str) -> Value {
        json!({"name": cpu, "image": "i/i", "resources": {"requests": {"cpu": cpu}}})
    }

    fn sidecar(cpu: &str) -> Value {
        let mut sidecar = container(cpu);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    }

    #[track_caller]
    fn check(init: &[Value], containers: &[Value], milli_cpu: i128) {
        let pod = json!({"spec": {"initContainers": init, "containers": containers}});
        let requested = requests(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(requested["cpu"], milli_cpu * 1_000_000);
    }

    #[test]
    fn a_pod_requests_what_runs_at_one_time() {
        check(&[], &[container("1"), container("500m")], 1500);
        check(&[container("1")], &[container("2")], 2000);
        check(&[container("3")], &[container("2")], 3000);
        check(&[sidecar("1"), container("3")], &[container("2")], 4000);
        check(&[container("3"), sidecar("1")], &[container("2")], 3000);
        check(&[container("2"), sidecar("1")], &[container("2")], 3000);
    }
}
