//! Patches of a placeholder's pod: its requests, and its scheduling gate (B3).

use std::collections::BTreeMap;

use coscheduler_core::labels::AFFINITY_ASSISTANT;
use coscheduler_core::observed::{ObjectRef, Placeholder};
use coscheduler_core::quantity::Quantity as Parsed;
use coscheduler_core::reconcile::requests::{Amounts, in_words};
use coscheduler_core::reconcile::reserve::GATE;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::patch;

/// The number of billionths, in which quantities are computed, in a whole.
const NANO: i128 = 1_000_000_000;

/// The limits of a pod with these requests: a hundredth more. A pod whose limits equal its requests is Guaranteed, which no
/// resize may change; with whole CPUs it could also get processors of its own.
pub(super) fn burstable(requests: &BTreeMap<String, Quantity>) -> BTreeMap<String, Quantity> {
    let limits = requests.iter().map(|(name, quantity)| {
        let nano = quantity
            .0
            .parse::<Parsed>()
            .map_or(0, |parsed| parsed.nano());
        let unit = if name == "cpu" { NANO / 1000 } else { NANO };
        let limit = in_words(name, more(nano / unit));
        (name.clone(), Quantity(limit))
    });
    limits.collect()
}

fn more(amount: i128) -> i128 {
    amount + (amount / 100).max(1)
}

/// The strategic merge patch of subresource `resize` that makes a pod ask for this size.
pub fn resize(pod: &ObjectRef, size: &Amounts) -> Value {
    let list =
        |cpu, memory| json!({"cpu": in_words("cpu", cpu), "memory": in_words("memory", memory)});
    json!({
        "metadata": {"uid": pod.uid},
        "spec": {"containers": [{
            "name": AFFINITY_ASSISTANT,
            "resources": {
                "requests": list(size.milli_cpu, size.memory),
                "limits": list(more(size.milli_cpu), more(size.memory)),
            },
        }]},
    })
}

/// The strategic merge patch that removes the gate of a placeholder's pod, and lets only `node` take it.
pub fn open(own: &Placeholder, pod: &ObjectRef, node: Option<&str>) -> Value {
    let mut patch = json!({
        "metadata": {"uid": pod.uid},
        "spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]},
    });
    if let Some(node) = node {
        let affinity = patch::only(own.node_affinity.clone(), &[node.to_owned()]);
        patch["spec"]["affinity"] = json!({"nodeAffinity": affinity});
    }
    patch
}
