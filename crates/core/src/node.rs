//! Nodes, and which pods may be on them: taints and tolerations.
//!
//! Kubernetes, "Taints and Tolerations": a toleration matches a taint if effect and key match. If the operator of the toleration
//! is `Equal`, the value must match too.

use std::collections::BTreeMap;

use crate::requests::Amounts;

/// The taint that Kubernetes adds to a cordoned node.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
/// The keys of the taints that a node gets if its kubelet perhaps does not answer.
const SILENT: [&str; 3] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/out-of-service",
];
const NO_SCHEDULE: &str = "NoSchedule";
pub(crate) const NO_EXECUTE: &str = "NoExecute";

/// The fields of a node that decide which pods may be on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// `spec.unschedulable`: true if the node is cordoned.
    pub unschedulable: bool,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// `metadata.labels`, which the node affinity of pods and volumes refers to.
    pub labels: BTreeMap<String, String>,
    /// `status.allocatable`, without the number of pods.
    pub allocatable: Amounts,
}

/// A taint of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Taint {
    /// `key`.
    pub key: String,
    /// `value`; may be empty.
    pub value: String,
    /// `effect`: `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A toleration of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toleration {
    /// `key`. An empty key matches every key if `operator` is `Exists`.
    pub key: String,
    /// True if `operator` is `Exists` rather than `Equal`.
    pub exists: bool,
    /// `value`.
    pub value: String,
    /// `effect`; empty matches every effect.
    pub effect: String,
    /// True if `tolerationSeconds` is set. This module ignores such tolerations, because Kubernetes adds two of them to nearly
    /// every pod: one for nodes that are not ready, and one for unreachable nodes.
    pub for_a_while: bool,
}

/// The reason why a pod with these tolerations must not be on a node: the words that follow "the node" in an Event, for example
/// "is cordoned". `None` if the pod may be there. `node` is `None` if the node does not exist.
pub(crate) fn misplaced(tolerations: &[Toleration], node: Option<&Node>) -> Option<String> {
    let Some(node) = node else {
        return Some("is gone".to_owned());
    };
    let cordon = node.unschedulable.then(|| Taint {
        key: UNSCHEDULABLE.to_owned(),
        value: String::new(),
        effect: NO_SCHEDULE.to_owned(),
    });
    let mut taints = cordon.iter().chain(&node.taints);
    let taint = taints.find(|taint| {
        let counts = [NO_SCHEDULE, NO_EXECUTE].contains(&taint.effect.as_str());
        counts && !tolerations.iter().any(|it| it.tolerates(taint))
    })?;
    let Taint { key, value, effect } = taint;
    let separator = if value.is_empty() { "" } else { "=" };
    Some(match key == UNSCHEDULABLE {
        true => "is cordoned".to_owned(),
        false => format!("has taint {key}{separator}{value}:{effect}"),
    })
}

/// True if the node does not exist, or its kubelet perhaps does not answer.
pub(crate) fn is_silent(node: Option<&Node>) -> bool {
    node.is_none_or(|node| {
        let mut taints = node.taints.iter();
        taints.any(|taint| SILENT.contains(&taint.key.as_str()))
    })
}

impl Toleration {
    /// True if a pod with this toleration may stay on a node with this taint without a time limit.
    fn tolerates(&self, taint: &Taint) -> bool {
        let effect = self.effect.is_empty() || self.effect == taint.effect;
        let key = (self.key.is_empty() && self.exists) || self.key == taint.key;
        let value = self.exists || self.value == taint.value;
        effect && key && value && !self.for_a_while
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_matches_by_effect_key_and_value() {
        #[track_caller]
        fn tolerates(key: &str, exists: bool, value: &str, effect: &str, expect: bool) {
            let taint = Taint {
                key: "spot".to_owned(),
                value: "yes".to_owned(),
                effect: NO_SCHEDULE.to_owned(),
            };
            let toleration = Toleration {
                key: key.to_owned(),
                exists,
                value: value.to_owned(),
                effect: effect.to_owned(),
                for_a_while: false,
            };
            assert_eq!(toleration.tolerates(&taint), expect, "{toleration:?}");
        }
        tolerates("spot", false, "yes", NO_SCHEDULE, true);
        tolerates("spot", false, "yes", "", true);
        tolerates("spot", true, "", NO_SCHEDULE, true);
        tolerates("", true, "", "", true);
        tolerates("spot", false, "no", NO_SCHEDULE, false);
        tolerates("spot", false, "yes", NO_EXECUTE, false);
        tolerates("other", true, "", "", false);
        tolerates("", false, "yes", "", false);
    }
}
