//! Takes over a StatefulSet that Tekton's own affinity assistant created for a run, with its pod and its claims (B7). All of them
//! get the labels by which the placeholder-manager finds these objects. The claims also get the run as owner, so that they are
//! cleaned up. The pod also gets the annotations that keep autoscalers from removing its node. The pod keeps running, because the
//! update strategy becomes `OnDelete`.

use std::collections::BTreeMap;

use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::plan::PlaceholderSpec;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::stateful_set::{KEEPS_NODE, Owner, made, reference, with_owner};
use crate::objects;
use crate::ownership::is_ours;

/// True if the StatefulSet of this run can be taken over, and has not been taken over yet. The selector of a StatefulSet cannot
/// be changed. So if the selector has label [`PIPELINE_RUN_UID`], the StatefulSet cannot be taken over. The selector has this
/// label if the run had it when Tekton created the StatefulSet.
pub fn is_tektons(set: &StatefulSet) -> bool {
    !is_ours(&set.metadata) && !selector(set).contains_key(PIPELINE_RUN_UID)
}

/// The labels by which the StatefulSet selects its pod: all labels that the run had when Tekton created the StatefulSet.
fn selector(set: &StatefulSet) -> BTreeMap<String, String> {
    let labels = set.spec.as_ref().map(|spec| &spec.selector.match_labels);
    labels.cloned().flatten().unwrap_or_default()
}

/// Our labels, except those in the StatefulSet's selector. If the pod got other values of these labels, the StatefulSet would
/// lose the pod.
fn labels(owner: Owner<'_>, set: &StatefulSet) -> BTreeMap<String, String> {
    let mut labels = with_owner(BTreeMap::new(), owner);
    let selector = selector(set);
    labels.retain(|key, _| !selector.contains_key(key));
    labels
}

/// The strategic merge patch that takes over exactly this version of a StatefulSet. Its next pod has our labels too. Update
/// strategy `OnDelete` leaves the running pod alone.
pub fn set(owner: Owner<'_>, set: &StatefulSet) -> Value {
    let labels = labels(owner, set);
    json!({
        "metadata": {
            "uid": set.metadata.uid,
            "resourceVersion": set.metadata.resource_version,
            "labels": labels,
        },
        "spec": {
            "updateStrategy": {"type": "OnDelete", "rollingUpdate": null},
            "template": {"metadata": {"labels": labels, "annotations": BTreeMap::from(KEEPS_NODE)}},
        },
    })
}

/// The merge patch that takes over the pod of the StatefulSet. `None` if the StatefulSet does not control the pod, or if the
/// pod has our labels already.
pub fn pod(owner: Owner<'_>, set: &StatefulSet, pod: &Pod) -> Option<Value> {
    let controller = objects::controller(&pod.metadata)?;
    let is_own = Some(controller.uid) == set.metadata.uid;
    let has_labels = pod.metadata.labels.as_ref();
    let has_labels = has_labels.is_some_and(|it| it.contains_key(PIPELINE_RUN_UID));
    (is_own && !has_labels).then(|| {
        json!({"metadata": {
            "uid": pod.metadata.uid,
            "labels": labels(owner, set),
            "annotations": BTreeMap::from(KEEPS_NODE),
        }})
    })
}

/// The claims that the StatefulSet makes from its templates, as this product would make them.
pub fn claims(
    owner: Owner<'_>,
    spec: &PlaceholderSpec,
    set: &StatefulSet,
) -> Vec<PersistentVolumeClaim> {
    let templates = set.spec.iter().flat_map(|it| &it.volume_claim_templates);
    let names: Vec<_> = templates
        .flatten()
        .filter_map(|template| template.metadata.name.clone())
        .map(|template| Some(format!("{template}-{}-0", spec.name)))
        .collect();
    // Tekton's assistants mount ReadWriteOncePod claims too.
    let made_by_set = made(owner, spec, &spec.claim_templates);
    made_by_set
        .chain(made(owner, spec, &spec.single_pod_claims))
        .filter(|claim| names.contains(&claim.metadata.name))
        .collect()
}

/// The merge patch that gives the claim `found` the labels and the owner of `made`. `None` if the claim lacks a label of the
/// StatefulSet's selector (the StatefulSet did not make it), or has an owner (it is taken over already).
pub fn claim(
    owner: Owner<'_>,
    set: &StatefulSet,
    made: &PersistentVolumeClaim,
    found: &PersistentVolumeClaim,
) -> Option<Value> {
    let selector = selector(set);
    let labels = found.metadata.labels.as_ref()?;
    let is_selected = selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value));
    let has_owner = found
        .metadata
        .owner_references
        .as_ref()
        .is_some_and(|owners| !owners.is_empty());
    let mut wanted = made.metadata.labels.clone().unwrap_or_default();
    wanted.retain(|key, _| !selector.contains_key(key));
    (is_selected && !selector.is_empty() && !has_owner).then(|| {
        json!({"metadata": {
            "uid": found.metadata.uid,
            "resourceVersion": found.metadata.resource_version,
            "labels": wanted,
            "ownerReferences": [reference(owner)],
        }})
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::labels::{MANAGED_BY, TEKTON_COSCHEDULER};

    const OWNER: Owner<'_> = Owner {
        namespace: "ci",
        name: "build",
        uid: "u",
    };

    fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    /// A StatefulSet of Tekton's own assistant.
    fn of_tekton() -> StatefulSet {
        let labels = json!({"app.kubernetes.io/instance": "a", "tekton.dev/pipelineRun": "build"});
        read(json!({
            "metadata": {"name": "a", "uid": "s", "resourceVersion": "7", "labels": labels},
            "spec": {"selector": {"matchLabels": labels}, "serviceName": "", "template": {}},
        }))
    }

    #[test]
    fn b7_a_set_is_taken_over_once_with_its_next_pods_and_without_a_restart() {
        let mut of_tekton = of_tekton();
        assert!(is_tektons(&of_tekton));
        let patch = set(OWNER, &of_tekton);
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["updateStrategy"]["type"], "OnDelete");
        let labels = json!({MANAGED_BY: TEKTON_COSCHEDULER, PIPELINE_RUN_UID: "u"});
        assert_eq!(patch["metadata"]["labels"], labels);
        let next = &patch["spec"]["template"]["metadata"];
        assert_eq!(next["labels"], labels);
        assert_eq!(next["annotations"]["karpenter.sh/do-not-disrupt"], "true");
        of_tekton.metadata.labels = Some(read(labels));
        of_tekton.metadata.owner_references = Some(vec![reference(OWNER)]);
        assert!(!is_tektons(&of_tekton));
    }

    #[test]
    fn b7_a_label_that_the_set_selects_by_never_changes() {
        let with = |key: &str, value: &str| {
            let mut set = of_tekton();
            let selector = set.spec.as_mut().unwrap().selector.match_labels.as_mut();
            selector.unwrap().insert(key.to_owned(), value.to_owned());
            set.metadata.labels = set.spec.as_ref().unwrap().selector.match_labels.clone();
            set
        };
        // First a value of the run's author, then our own value. Tekton copied each of them from the run.
        for value in ["pipelines-as-code", TEKTON_COSCHEDULER] {
            let set = with(MANAGED_BY, value);
            assert!(is_tektons(&set), "{value}");
            let labels = json!({PIPELINE_RUN_UID: "u"});
            let patch = super::set(OWNER, &set);
            assert_eq!(patch["metadata"]["labels"], labels);
            assert_eq!(patch["spec"]["template"]["metadata"]["labels"], labels);
        }
        assert!(!is_tektons(&with(PIPELINE_RUN_UID, "other")));
    }

    #[test]
    fn b7_a_pod_is_taken_over_only_if_the_set_controls_it() {
        let patch = |controller: &str, labels: Value| {
            let found: Pod = read(json!({"metadata": {
                "name": "a-0", "uid": "p", "labels": labels,
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "a", "uid": controller, "controller": true,
                }],
            }}));
            pod(OWNER, &of_tekton(), &found)
        };
        let taken = patch("s", json!({"note": "x"})).unwrap();
        assert_eq!(taken["metadata"]["uid"], "p");
        assert_eq!(taken["metadata"]["labels"][PIPELINE_RUN_UID], "u");
        assert_eq!(patch("other", json!({})), None);
        assert_eq!(patch("s", json!({PIPELINE_RUN_UID: "u"})), None);
    }

    #[test]
    fn b7_a_claim_is_taken_over_only_if_the_set_made_it() {
        let selected =
            json!({"app.kubernetes.io/instance": "a", "tekton.dev/pipelineRun": "build"});
        let made = read(json!({"metadata": {"labels": {PIPELINE_RUN_UID: "u"}}}));
        let patch = |labels: &Value, owners: Value| {
            let found = read(json!({"metadata": {
                "name": "c", "uid": "c", "resourceVersion": "9", "labels": labels, "ownerReferences": owners,
            }}));
            claim(OWNER, &of_tekton(), &made, &found)
        };
        let taken = patch(&selected, json!([])).unwrap();
        assert_eq!(taken["metadata"]["resourceVersion"], "9");
        assert_eq!(taken["metadata"]["labels"][PIPELINE_RUN_UID], "u");
        assert_eq!(taken["metadata"]["ownerReferences"][0]["uid"], "u");
        let mut others = selected.clone();
        others["tekton.dev/pipelineRun"] = "other".into();
        assert_eq!(patch(&others, json!([])), None);
        assert_eq!(patch(&json!({}), json!([])), None);
        let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}]);
        assert_eq!(patch(&selected, owner), None);
    }
}
