//! The pod template of a placeholder (P3). It combines fields of the run's own `podTemplate` with the cluster's default template.
//! The table lists all fields that a placeholder takes. Among them are node selector, affinity and tolerations, so that a
//! placeholder is not bound to a node that the run's pods cannot use. A placeholder does not take `topologySpreadConstraints`.
//!
//! | field | if the run sets the field | if the run does not set the field |
//! |---|---|---|
//! | `nodeSelector`, `tolerations`, `imagePullSecrets`, `priorityClassName`, `schedulerName`, `runtimeClassName` | the run's, as a whole | the default's |
//! | `securityContext` | those parts of the run's value that Pod Security `restricted` allows and a placeholder needs | the default's |
//! | `affinity` | the run's, and the placeholder's own terms | the default's, and the placeholder's own terms |
//! | `serviceAccountName` | the run's | the default's |
//!
//! A run sets `serviceAccountName` in its `taskRunTemplate`, and all other fields in its `podTemplate`. Tekton's built-in
//! assistant differs in `serviceAccountName`: it prefers the default template's value to the run's value.

pub(crate) mod default;
mod restricted;

use serde_json::{Map, Value};

/// The fields that a placeholder takes from the run's `podTemplate`.
const SHARED: [&str; 8] = [
    "affinity",
    "imagePullSecrets",
    "nodeSelector",
    "priorityClassName",
    "runtimeClassName",
    "schedulerName",
    SECURITY_CONTEXT,
    "tolerations",
];

const SECURITY_CONTEXT: &str = "securityContext";

/// The field of the default template that names a service account. Placeholders use this service account if their run names none.
/// A run's `podTemplate` has no such field.
pub const SERVICE_ACCOUNT_NAME: &str = "serviceAccountName";

/// The PriorityClass of component `placeholder-priority` for placeholders.
pub const PLACEHOLDER_CLASS: &str = "coscheduler-placeholder";

/// The PriorityClass that a placeholder with [`PLACEHOLDER_CLASS`] gets when it is evacuated. This class has a higher value,
/// because the run is in progress. So the scheduler takes the evacuated placeholder before the placeholders of new runs (N8).
pub const EVACUATED_CLASS: &str = "coscheduler-evacuated-placeholder";

/// A pod template or a `securityContext`, reduced to the fields that a placeholder may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Reduced {
    /// The fields that a placeholder has.
    pub(crate) allowed: Map<String, Value>,
    /// The parts of a `securityContext` that Pod Security `restricted` does not allow, or that a placeholder does not need.
    pub(crate) dropped: Vec<Dropped>,
}

/// A part of a `securityContext` that a placeholder does not get, because Pod Security `restricted` does not allow it, or a
/// placeholder does not need it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// The path below `securityContext`, for example `runAsUser`, `seccompProfile` or `sysctls[kernel.msgmax]`.
    pub(crate) field: String,
    /// The value, as JSON.
    pub(crate) value: String,
}

/// Combines the run's template with the default template, by the table in this module's documentation. The default template must
/// be valid.
pub(crate) fn merge(run: Option<&Value>, default: &Map<String, Value>) -> Reduced {
    let mut merged = Reduced::default();
    for key in SHARED {
        let own = run.and_then(|run| run.get(key));
        let value = match own.filter(|value| !value.is_null()) {
            Some(context) if key == SECURITY_CONTEXT => {
                let context = restricted::reduce(context);
                merged.dropped = context.dropped;
                Value::Object(context.allowed)
            }
            Some(own) => own.clone(),
            None => match default.get(key) {
                Some(value) => value.clone(),
                None => continue,
            },
        };
        merged.allowed.insert(key.to_owned(), value);
    }
    merged
}

/// The placeholder's service account: the run's, or else the default template's. If neither names a service account, the result
/// is empty, and Kubernetes uses service account `default`.
pub(crate) fn service_account_name(run: Option<&str>, default: &Map<String, Value>) -> String {
    run.filter(|name| !name.is_empty())
        .or_else(|| default.get(SERVICE_ACCOUNT_NAME).and_then(Value::as_str))
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    fn default() -> Map<String, Value> {
        object(json!({
            "affinity": {"nodeAffinity": {"default": true}},
            "imagePullSecrets": [{"name": "default"}],
            "nodeSelector": {"default": "yes"},
            "priorityClassName": "default",
            "runtimeClassName": "default",
            "schedulerName": "default",
            "securityContext": {"fsGroup": 1},
            "serviceAccountName": "default",
            "tolerations": [{"key": "default"}],
        }))
    }

    fn of_run() -> Value {
        json!({
            "affinity": {"nodeAffinity": {"run": true}},
            "imagePullSecrets": [{"name": "run"}],
            "nodeSelector": {"run": "yes"},
            "priorityClassName": "run",
            "runtimeClassName": "run",
            "schedulerName": "run",
            "securityContext": {"fsGroup": 2},
            "tolerations": [{"key": "run"}],
            "env": [{"name": "SECRET", "value": "x"}],
            "hostNetwork": true,
        })
    }

    #[test]
    fn p3_every_field_of_the_run_wins_over_the_default_and_others_never_come_through() {
        let merged = merge(Some(&of_run()), &default());
        assert_eq!(
            merged
                .allowed
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>(),
            SHARED
        );
        for key in SHARED {
            assert_eq!(merged.allowed[key], of_run()[key], "{key}");
        }
        assert_eq!(merged.dropped, []);
    }

    #[test]
    fn p3_each_field_alone_is_decided_by_itself() {
        for key in SHARED {
            let run = json!({key: of_run()[key]});
            let merged = merge(Some(&run), &default());
            for field in SHARED {
                let expect = if field == key {
                    &run[key]
                } else {
                    &default()[field]
                };
                assert_eq!(
                    &merged.allowed[field], expect,
                    "{field} where the run sets {key}"
                );
            }
        }
    }

    #[test]
    fn p3_what_neither_side_sets_is_absent() {
        assert_eq!(merge(None, &Map::new()), Reduced::default());
        assert_eq!(
            merge(Some(&json!({"schedulerName": null})), &Map::new()),
            Reduced::default()
        );
        assert!(
            !merge(None, &default())
                .allowed
                .contains_key(SERVICE_ACCOUNT_NAME)
        );
    }

    #[test]
    fn p3_the_runs_service_account_wins_over_the_default() {
        assert_eq!(service_account_name(Some("run"), &default()), "run");
        assert_eq!(service_account_name(Some(""), &default()), "default");
        assert_eq!(service_account_name(None, &default()), "default");
        assert_eq!(service_account_name(None, &Map::new()), "");
    }

    #[test]
    fn p3_what_restricted_forbids_is_left_out_and_named() {
        let run = json!({"securityContext": {"runAsUser": 0, "fsGroup": 7}});
        let merged = merge(Some(&run), &Map::new());
        assert_eq!(merged.allowed[SECURITY_CONTEXT], json!({"fsGroup": 7}));
        let expect = Dropped {
            field: "runAsUser".to_owned(),
            value: "0".to_owned(),
        };
        assert_eq!(merged.dropped, [expect]);
    }
}
