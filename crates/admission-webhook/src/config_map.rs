//! Checks a write to ConfigMap `coscheduler-config` (M7). The check is a pure function from the review to the response.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse};

use coscheduler_core::config;

use crate::review::refused;

/// Denies a ConfigMap with invalid values. The message lists every invalid key with its value and the allowed values. Deprecated
/// and unknown keys cause warnings. A write that does not change the data is always admitted. So labels and finalizers can be
/// changed even if the ConfigMap is invalid.
pub(crate) fn review(request: &AdmissionRequest<DynamicObject>) -> AdmissionResponse {
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
        Err(violations) => refused(request, &violations),
    }
}

/// The `data` of a ConfigMap. The API server has checked that all its values are strings.
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
        super::review(&review.try_into().unwrap())
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
    fn m7_a_write_that_does_not_change_bad_data_passes() {
        let bad = json!({"coschedule": "sideways"});
        assert!(check(&bad, Some(&bad)).allowed);
        assert!(!check(&bad, Some(&json!({"coschedule": "wrong"}))).allowed);
    }
}
