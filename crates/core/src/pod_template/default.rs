//! Reads and checks the default pod template of placeholders (M7). Without this check, the operator could set an invalid
//! template. The API server would then refuse placeholders with this template, and their runs would wait.
//!
//! Sources: Kubernetes API reference, `v1.Toleration` and `v1.Affinity`; "Labels and Selectors".

use serde_json::{Map, Value};

use super::{Dropped, SECURITY_CONTEXT, SERVICE_ACCOUNT_NAME, restricted};
use crate::document::{Faults, Object};
use crate::names::is_label_value;
use crate::violation::Violation;

const FIELDS: [&str; 9] = [
    "affinity",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    SECURITY_CONTEXT,
    SERVICE_ACCOUNT_NAME,
    "tolerations",
];
const NAMES: [&str; 4] = [
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    SERVICE_ACCOUNT_NAME,
];
const TOLERATION: [&str; 5] = ["effect", "key", "operator", "tolerationSeconds", "value"];
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
const OPERATORS: [&str; 2] = ["Equal", "Exists"];
const AFFINITY: [&str; 3] = ["nodeAffinity", "podAffinity", "podAntiAffinity"];
const RULES: [&str; 2] = [
    "preferredDuringSchedulingIgnoredDuringExecution",
    "requiredDuringSchedulingIgnoredDuringExecution",
];
const SELECTS: [&str; 6] = ["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"];

/// Reads a default template from YAML or JSON. An empty text is an empty template, as in Tekton.
///
/// # Errors
/// All faults, each in one text.
pub(crate) fn parse(text: &str) -> Result<Map<String, Value>, Vec<String>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let allowed = || format!("an object with some of {}", FIELDS.join(", "));
    let value: Value = serde_saphyr::from_str(text).map_err(|error| {
        let error = error.to_string();
        let error = error.lines().next().unwrap_or_default().trim();
        vec![format!(
            "{text:?} is not YAML: {error}; allowed: {}",
            allowed()
        )]
    })?;
    let faults = faults(&value, "");
    let Value::Object(mut template) = value else {
        return Err(vec![format!(
            "{text:?} is not an object; allowed: {}",
            allowed()
        )]);
    };
    if !faults.is_empty() {
        return Err(faults.iter().map(ToString::to_string).collect());
    }
    template.retain(|_, value| !value.is_null());
    Ok(template)
}

/// All faults of a default template. `path` is its path in the document.
pub(crate) fn faults(value: &Value, path: &str) -> Vec<Violation> {
    let faults = Faults::default();
    check(&Object::at(path, value, &faults), &faults);
    faults.unless_any(()).err().unwrap_or_default()
}

fn check(template: &Object<'_>, faults: &Faults) {
    template.only(&FIELDS);
    for name in NAMES {
        let _ = template.text(name);
    }
    let _ = template.objects("imagePullSecrets");
    for toleration in template.objects("tolerations") {
        toleration.only(&TOLERATION);
        for (key, allowed) in [("operator", &OPERATORS[..]), ("effect", &EFFECTS[..])] {
            if let Some(value) = toleration.get(key) {
                check_word(&toleration.path(key), value, allowed, faults);
            }
        }
        if let Some(key) = toleration.text("key").filter(|key| !key.is_empty()) {
            check_label_key(toleration.path("key"), key, faults);
        }
    }
    for (key, value) in template.texts("nodeSelector") {
        let path = format!("{}[{key}]", template.path("nodeSelector"));
        if !is_label_value(&value) {
            let fault = format!("is {value:?}; allowed: the value of a label");
            faults.add(path.as_str(), fault);
        }
        check_label_key(path, &key, faults);
    }
    let affinity = template.object("affinity");
    affinity.only(&AFFINITY);
    for rules in AFFINITY.map(|kind| affinity.object(kind)) {
        rules.only(&RULES);
        for rule in RULES {
            if let Some(value) = rules.get(rule) {
                check_operators(&rules.path(rule), value, faults);
            }
        }
    }
    let context = template.object(SECURITY_CONTEXT);
    let value = template.get(SECURITY_CONTEXT);
    if let Some(value) = value.filter(|value| value.is_object()) {
        for Dropped { field, value } in restricted::reduce(value).dropped {
            let fault = format!("is {value}; allowed: what Pod Security `restricted` allows");
            faults.add(context.path(&field), fault);
        }
    }
}

/// Checks that each `operator` in an affinity is an operator of a selector.
fn check_operators(path: &str, value: &Value, faults: &Faults) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = format!("{path}.{key}");
                if key == "operator" {
                    check_word(&path, value, &SELECTS, faults);
                } else if key != "matchLabels" {
                    check_operators(&path, value, faults);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                check_operators(&format!("{path}[{index}]"), item, faults);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn check_word(path: &str, value: &Value, allowed: &[&str], faults: &Faults) {
    let is_good = |text: &str| text.is_empty() || allowed.contains(&text);
    if !value.as_str().is_some_and(is_good) {
        faults.add(path, format!("is {value}; allowed: {}", allowed.join(", ")));
    }
}

fn check_label_key(path: String, key: &str, faults: &Faults) {
    let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_dns_part = |part: &str| {
        part.starts_with(is_lower)
            && part.ends_with(is_lower)
            && part.chars().all(|c| is_lower(c) || c == '-')
    };
    let is_prefix = |prefix: &str| prefix.len() <= 253 && prefix.split('.').all(is_dns_part);
    let (is_good, name) = match key.rsplit_once('/') {
        Some((prefix, name)) => (is_prefix(prefix), name),
        None => (true, key),
    };
    if !is_good || name.is_empty() || !is_label_value(name) {
        let allowed = "the key of a label, [prefix/]name of letters, digits, '-', '_' and '.'";
        faults.add(path, format!("is {key:?}; allowed: {allowed}"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::SHARED;
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn a_default_is_yaml_or_json() {
        let yaml = "nodeSelector:\n  disk: ssd\ntolerations:\n- key: ci\n  operator: Exists\nschedulerName: null\n";
        let json = r#"{"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "ci", "operator": "Exists"}]}"#;
        assert_eq!(parse(yaml), parse(json));
        assert_eq!(parse(yaml).unwrap()["nodeSelector"], json!({"disk": "ssd"}));
        assert_eq!(parse(" \n"), Ok(Map::new()));
    }

    #[test]
    fn m7_a_bad_default_is_refused_with_what_is_allowed() {
        for (text, part) in [
            ("[]", "is not an object"),
            ("a: b: c", "is not YAML"),
            ("hostNetwork: true", "hostNetwork: is not known"),
            ("nodeSelector: ssd", "nodeSelector: is a string"),
            ("nodeSelector: {disk: 1}", "nodeSelector[disk]: is a number"),
            ("tolerations: {}", "tolerations: is an object"),
            ("priorityClassName: 7", "priorityClassName: is a number"),
            (
                "tolerations: [{key: a, operator: Nope}]",
                "tolerations[0].operator: is \"Nope\"",
            ),
            (
                "tolerations: [{key: a, opertor: Exists}]",
                "tolerations[0].opertor: is not known",
            ),
            (
                "tolerations: [{key: a, effect: Never}]",
                "tolerations[0].effect: is \"Never\"",
            ),
            (
                "tolerations: [{key: a b}]",
                "tolerations[0].key: is \"a b\"",
            ),
            ("nodeSelector: {a b: c}", "nodeSelector[a b]: is \"a b\""),
            ("nodeSelector: {a: b c}", "nodeSelector[a]: is \"b c\""),
            ("nodeSelector: {A.b/c: d}", "nodeSelector[A.b/c]: is"),
            (
                "affinity: {nodeAfinity: {}}",
                "affinity.nodeAfinity: is not known",
            ),
            (
                "affinity: {nodeAffinity: {required: {}}}",
                "affinity.nodeAffinity.required: is not known",
            ),
            (
                "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: \
                 [{matchExpressions: [{key: a, operator: Inn}]}]}}}",
                "matchExpressions[0].operator: is \"Inn\"",
            ),
            (
                "securityContext: {runAsUser: 0}",
                "securityContext.runAsUser: is 0",
            ),
            ("securityContext: x", "securityContext: is a string"),
        ] {
            let fault = parse(text).unwrap_err().join("; ");
            assert!(
                fault.contains(part) && fault.contains("allowed: "),
                "{text}: {fault}"
            );
        }
    }

    proptest! {
        #[test]
        fn p3_no_text_makes_it_panic_and_what_is_read_is_known(text in "[a-zA-Z:{}\\[\\] \\n'-]{0,40}") {
            if let Ok(template) = parse(&text) {
                prop_assert!(template.keys().all(|key| SHARED.contains(&key.as_str()) || key == SERVICE_ACCOUNT_NAME));
            }
        }
    }
}
