//! The check of the ConfigMap with the flags, when somebody writes it (M7). A pure function from review to response.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse};

use coscheduler_core::config;

use crate::review;

/// Refuses a ConfigMap whose flags are not valid, with every key, its value and what is allowed; warns of keys that are
/// deprecated or not known. A write that leaves the data as it is passes whatever the data is, so that a bad ConfigMap that
/// slipped in can be labelled, and deleted by whatever waits for its finalizers.
pub(crate) fn checked(request: &AdmissionRequest<DynamicObject>) -> AdmissionResponse {
    let data = data(request.object.as_ref());
    let old = request.old_object.as_ref();
    if old.is_some_and(|old| self::data(Some(old)) == data) {
        return AdmissionResponse::from(request);
    }
    let answer = config::answer(&data);
    match answer.outcome {
        Ok(_) => {
            let mut response = AdmissionResponse::from(request);
            response.warnings = Some(answer.warnings).filter(|warnings| !warnings.is_empty());
            response
        }
        Err(violations) => review::refused(request, &violations),
    }
}

/// `data` of a ConfigMap. What is no text the API server has refused before.
fn data(map: Option<&DynamicObject>) -> BTreeMap<String, String> {
    map.and_then(|map| serde_json::from_value(map.data.get("data")?.clone()).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::admission::AdmissionReview;
    use serde_json::{Value, json};

    fn check(data: &Value, old: Option<&Value>) -> AdmissionResponse {
        let map = |data: &Value| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data});
        let review: AdmissionReview<DynamicObject> = serde_json::from_value(json!({
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u",
                "operation": if old.is_some() { "UPDATE" } else { "CREATE" },
                "name": "c",
                "namespace": "coscheduler-system",
                "userInfo": {},
                "kind": {"group": "", "version": "v1", "kind": "ConfigMap"},
                "resource": {"group": "", "version": "v1", "resource": "configmaps"},
                "object": map(data),
                "oldObject": old.map(map),
            },
        }))
        .unwrap();
        checked(&review.try_into().unwrap())
    }

    #[test]
    fn m7_bad_flags_are_refused_with_key_value_and_what_is_allowed() {
        let bad = json!({"coschedule": "sideways", "placeholder-cpu": "many"});
        for old in [None, Some(&json!({}))] {
            let response = check(&bad, old);
            assert!(!response.allowed);
            assert_eq!(response.result.code, 422);
            let message = response.result.message;
            for part in [
                "refuses this ConfigMap: coschedule: \"sideways\"",
                "allowed: workspaces",
                "; placeholder-cpu: \"many\"",
            ] {
                assert!(message.contains(part), "{message}");
            }
        }
    }

    #[test]
    fn m6_m7_good_flags_pass_and_deprecated_ones_are_warned_of() {
        let silent = check(&json!({"coschedule": "disabled"}), None);
        assert!(silent.allowed && silent.warnings.is_none());
        let warned = check(&json!({"disable-affinity-assistant": "true"}), None);
        assert!(warned.allowed);
        assert!(warned.warnings.unwrap()[0].contains("deprecated"));
        assert!(check(&Value::Null, None).allowed, "defaults are valid");
    }

    #[test]
    fn m7_what_leaves_bad_data_as_it_is_passes() {
        let bad = json!({"coschedule": "sideways"});
        assert!(check(&bad, Some(&bad)).allowed);
        assert!(!check(&bad, Some(&json!({"coschedule": "wrong"}))).allowed);
    }
}
