//! Patches of a placeholder's object.

use coscheduler_core::annotations::RECORD;
use coscheduler_core::labels::AFFINITY_ASSISTANT;
use coscheduler_core::observed::{Placeholder, Record};
use coscheduler_core::pod_template::EVACUATED_CLASS;
use coscheduler_core::reconcile::reserve::GATE;
use serde_json::{Value, json};

use super::size::limits;

/// The merge patch that writes the record of earlier actions (N1, N2, N3).
pub fn record(own: &Placeholder, record: &Record) -> Value {
    let text = serde_json::to_string(record).unwrap_or_default();
    json!({"metadata": {"uid": own.object.uid, "annotations": {RECORD: text}}})
}

/// The strategic merge patch after which the placeholder's next pod starts with the scheduling gate, and can be resized. It
/// applies to exactly this version of the placeholder. The update strategy `OnDelete` leaves the running pod alone.
pub fn gate(own: &Placeholder) -> Value {
    json!({
        "metadata": {"uid": own.object.uid, "resourceVersion": own.object.resource_version},
        "spec": {"template": {"spec": {
            "schedulingGates": [{"name": GATE}],
            "containers": [{
                "name": AFFINITY_ASSISTANT,
                "resources": {"limits": limits(&own.needs.requests)},
            }],
        }}},
    })
}

/// The merge patch after which the placeholder's next pod has PriorityClass [`EVACUATED_CLASS`]. The update strategy `OnDelete`
/// leaves the running pod alone.
pub fn raise(own: &Placeholder) -> Value {
    json!({
        "metadata": {"uid": own.object.uid},
        "spec": {"template": {"spec": {"priorityClassName": EVACUATED_CLASS}}},
    })
}

/// The merge patch after which the StatefulSet of a parked placeholder (it has zero replicas) gets its pod.
pub fn start(own: &Placeholder) -> Value {
    json!({"metadata": {"uid": own.object.uid}, "spec": {"replicas": 1}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::observed::Done;
    use k8s_openapi::jiff::Timestamp;

    use crate::placeholder::view;

    fn set() -> Value {
        json!({
            "metadata": {
                "name": "s", "uid": "u", "resourceVersion": "7",
                "labels": {"app.kubernetes.io/managed-by": "tekton-coscheduler", "tekton.dev/pipelineRunUID": "run"},
                "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "r", "uid": "run", "controller": true}],
            },
            "spec": {"selector": {}, "template": {"spec": {"containers": []}}},
        })
    }

    fn read(set: &Value) -> Placeholder {
        view(serde_json::from_value(set.clone()).unwrap()).unwrap()
    }

    #[test]
    fn n2_the_next_pod_of_a_gated_placeholder_can_be_resized() {
        let mut own = read(&set());
        assert!(!own.gated);
        (own.needs.requests.milli_cpu, own.needs.requests.memory) = (50, 100 << 20);
        let patch = gate(&own);
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let spec = &patch["spec"]["template"]["spec"];
        let limits = &spec["containers"][0]["resources"]["limits"];
        assert_eq!(limits, &json!({"cpu": "51m", "memory": "101Mi"}));
        let mut gated = set();
        gated["spec"]["template"]["spec"]["schedulingGates"] = spec["schedulingGates"].clone();
        assert!(read(&gated).gated);
    }

    #[test]
    fn n8_the_next_pod_of_a_raised_placeholder_has_the_other_class() {
        let mut object = set();
        assert_eq!(read(&object).priority_class, None);
        let patch = raise(&read(&object));
        let template = &patch["spec"]["template"];
        assert_eq!(
            patch,
            json!({"metadata": {"uid": "u"}, "spec": {"template": template}})
        );
        let class = &template["spec"]["priorityClassName"];
        object["spec"]["template"]["spec"]["priorityClassName"] = class.clone();
        let class = read(&object).priority_class;
        assert_eq!(class.as_deref(), Some(EVACUATED_CLASS));
    }

    #[test]
    fn a_record_is_written_whatever_the_version_but_on_the_same_object() {
        let mut object = set();
        let done = Record {
            retried: Done::again(None, Timestamp::UNIX_EPOCH, ""),
            left: Some("n1".to_owned()),
            ..Record::default()
        };
        let patch = record(&read(&object), &done);
        let text = &patch["metadata"]["annotations"][RECORD];
        let expect = json!({"metadata": {"uid": "u", "annotations": {RECORD: text}}});
        assert_eq!(patch, expect);
        object["metadata"]["annotations"][RECORD] = text.clone();
        assert_eq!(read(&object).record, done);
        // A record that cannot be read comes from another version of this product.
        object["metadata"]["annotations"][RECORD] = "{".into();
        assert_eq!(read(&object).record, Record::default());
    }
}
