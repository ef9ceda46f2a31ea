//! What is wrong with the parts of a default template that the API server would refuse on every placeholder: a typing error
//! here would keep every new run waiting (M7). Sources: Kubernetes API reference, `v1.Toleration` and `v1.Affinity`;
//! "Labels and Selectors".

use serde_json::Value;

use crate::document::Object;
use crate::violation::Violation;

const TOLERATION: [&str; 5] = ["effect", "key", "operator", "tolerationSeconds", "value"];
const EFFECTS: [&str; 3] = ["NoExecute", "NoSchedule", "PreferNoSchedule"];
const OPERATORS: [&str; 2] = ["Equal", "Exists"];
const AFFINITY: [&str; 3] = ["nodeAffinity", "podAffinity", "podAntiAffinity"];
const RULES: [&str; 2] = [
    "preferredDuringSchedulingIgnoredDuringExecution",
    "requiredDuringSchedulingIgnoredDuringExecution",
];
const SELECTS: [&str; 6] = ["DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn"];

pub(super) fn toleration_faults(toleration: &Object<'_>, value: &Value) -> Vec<Violation> {
    let mut faults = unknown_keys(toleration.own_path(), value, &TOLERATION);
    for (key, allowed) in [("operator", &OPERATORS[..]), ("effect", &EFFECTS[..])] {
        if let Some(text) = value.get(key).filter(|value| !value.is_null()) {
            faults.extend(not_among(&toleration.path(key), text, allowed));
        }
    }
    if let Some(key) = value
        .get("key")
        .and_then(Value::as_str)
        .filter(|key| !key.is_empty())
    {
        faults.extend(label_key_fault(&toleration.path("key"), key));
    }
    faults
}

pub(super) fn node_selector_faults(path: &str, labels: &Value) -> Vec<Violation> {
    let labels = labels.as_object().into_iter().flatten();
    labels
        .flat_map(|(key, value)| {
            let path = format!("{path}[{key}]");
            let value = value.as_str().filter(|value| !is_label_value(value));
            let value = value.map(|value| {
                Violation::new(
                    path.clone(),
                    format!("is {value:?}; allowed: the value of a label"),
                )
            });
            label_key_fault(&path, key).into_iter().chain(value)
        })
        .collect()
}

pub(super) fn affinity_faults(path: &str, affinity: &Value) -> Vec<Violation> {
    let mut faults = unknown_keys(path, affinity, &AFFINITY);
    for (kind, rules) in affinity.as_object().into_iter().flatten() {
        let path = format!("{path}.{kind}");
        faults.extend(unknown_keys(&path, rules, &RULES));
        operator_faults(&path, rules, &mut faults);
    }
    faults
}

/// Wherever an affinity has an operator, it is one of a selector.
fn operator_faults(path: &str, value: &Value, faults: &mut Vec<Violation>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = format!("{path}.{key}");
                if key == "operator" {
                    faults.extend(not_among(&path, value, &SELECTS));
                } else if key != "matchLabels" {
                    operator_faults(&path, value, faults);
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                operator_faults(&format!("{path}[{index}]"), item, faults);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn unknown_keys(path: &str, value: &Value, known: &[&str]) -> Vec<Violation> {
    let keys = value
        .as_object()
        .into_iter()
        .flat_map(|object| object.keys());
    keys.filter(|key| !known.contains(&key.as_str()))
        .map(|key| {
            let allowed = known.join(", ");
            Violation::new(
                format!("{path}.{key}"),
                format!("is not known; allowed: {allowed}"),
            )
        })
        .collect()
}

fn not_among(path: &str, value: &Value, allowed: &[&str]) -> Option<Violation> {
    let good = value
        .as_str()
        .is_some_and(|text| text.is_empty() || allowed.contains(&text));
    (!good).then(|| Violation::new(path, format!("is {value}; allowed: {}", allowed.join(", "))))
}

fn label_key_fault(path: &str, key: &str) -> Option<Violation> {
    let (prefix, name) = key
        .rsplit_once('/')
        .map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let prefix = prefix.is_none_or(|prefix| {
        prefix.len() <= 253
            && prefix.split('.').all(|part| {
                is_bounded(part, |c| c.is_ascii_lowercase() || c.is_ascii_digit())
                    && part
                        .chars()
                        .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            })
    });
    let good = prefix && !name.is_empty() && is_label_value(name);
    (!good).then(|| {
        let allowed = "the key of a label, [prefix/]name of letters, digits, '-', '_' and '.'";
        Violation::new(path, format!("is {key:?}; allowed: {allowed}"))
    })
}

fn is_label_value(value: &str) -> bool {
    value.is_empty()
        || (value.len() <= 63
            && is_bounded(value, |c| c.is_ascii_alphanumeric())
            && value
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')))
}

/// Whether a text begins and ends with such characters.
fn is_bounded(text: &str, edge: impl Fn(char) -> bool + Copy) -> bool {
    text.starts_with(edge) && text.ends_with(edge)
}
