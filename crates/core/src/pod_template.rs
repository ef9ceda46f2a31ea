//! What of pod templates a placeholder takes over: the run's own over the cluster's default (P3). It has to obey whatever
//! decides where the run's pods may run, or it would hold a node that they cannot have.
//!
//! Which side wins, for each field:
//!
//! | field | the run's `podTemplate` sets it | it does not |
//! |---|---|---|
//! | `nodeSelector`, `tolerations`, `imagePullSecrets`, `priorityClassName`, `schedulerName`, `runtimeClassName` | the run's, as a whole | the default's |
//! | `securityContext` | what Pod Security `restricted` allows of the run's, as a whole | the default's |
//! | `affinity` | the run's, **and** the placeholder's own terms | the default's, and the placeholder's own terms |
//! | `serviceAccountName` | that of the run's `taskRunTemplate`; Tekton lets the default win here | the default's |
//! | any other | neither | neither |

mod restricted;
mod scheduling;

use serde_json::{Map, Value};

use crate::document::{Object, wrong_type};
use crate::violation::Violation;

/// The fields that a placeholder shares with the run's pods.
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

/// The service account of placeholders whose run names none; only a default template has it.
pub const SERVICE_ACCOUNT_NAME: &str = "serviceAccountName";

/// A part of a `securityContext` that Pod Security `restricted` does not allow on a placeholder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Where it is, below `securityContext`: `runAsUser`, `seccompProfile`, `sysctls[kernel.msgmax]`.
    pub field: String,
    /// Its value, as JSON.
    pub value: String,
}

/// What a placeholder takes over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Merged {
    /// The shared fields that one of the sides sets.
    pub(crate) template: Map<String, Value>,
    /// What was left out of the run's `securityContext`.
    pub(crate) dropped: Vec<Dropped>,
}

/// Merges the run's template over the default's. The default is taken to be checked.
pub(crate) fn merge(run: Option<&Value>, default: &Map<String, Value>) -> Merged {
    let run = run.and_then(Value::as_object);
    let mut merged = Merged::default();
    for key in SHARED {
        let own = run
            .and_then(|run| run.get(key))
            .filter(|value| !value.is_null());
        let value = match own {
            Some(context) if key == SECURITY_CONTEXT => {
                let reduced = restricted::reduce(context);
                merged.dropped = reduced.dropped;
                Value::Object(reduced.allowed)
            }
            Some(own) => own.clone(),
            None => match default.get(key) {
                Some(value) => value.clone(),
                None => continue,
            },
        };
        merged.template.insert(key.to_owned(), value);
    }
    merged
}

/// The placeholder's service account: the run's, else the default's, else none, which is the namespace's default.
pub(crate) fn service_account_name(run: Option<&str>, default: &Map<String, Value>) -> String {
    run.filter(|name| !name.is_empty())
        .or_else(|| default.get(SERVICE_ACCOUNT_NAME).and_then(Value::as_str))
        .unwrap_or_default()
        .to_owned()
}

/// Reads a default template from YAML, of which JSON is a part. An empty text is an empty template, as in Tekton.
///
/// # Errors
/// What is wrong with it, in one sentence.
pub(crate) fn parse(text: &str) -> Result<Map<String, Value>, String> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let value: Value = serde_saphyr::from_str(text).map_err(|error| {
        format!(
            "{text:?} is not YAML: {}; allowed: {ALLOWED}",
            one_line(&error.to_string())
        )
    })?;
    let faults = faults(&value, "");
    let Value::Object(mut template) = value else {
        return Err(format!("{text:?} is not an object; allowed: {ALLOWED}"));
    };
    if !faults.is_empty() {
        let faults: Vec<_> = faults.iter().map(ToString::to_string).collect();
        return Err(faults.join("; "));
    }
    template.retain(|_, value| !value.is_null());
    Ok(template)
}

const ALLOWED: &str = "an object with some of affinity, imagePullSecrets, nodeSelector, priorityClassName, \
     runtimeClassName, schedulerName, securityContext, serviceAccountName, tolerations";

fn one_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}

/// What is wrong with a default template that stands at `path`.
pub(crate) fn faults(value: &Value, path: &str) -> Vec<Violation> {
    let mut faults = Vec::new();
    let object = Object::at(path, value, &mut faults);
    for (key, value) in value.as_object().into_iter().flatten() {
        match key.as_str() {
            _ if value.is_null() => {}
            "affinity" => {
                drop(object.object(key, &mut faults));
                faults.extend(scheduling::affinity_faults(&object.path(key), value));
            }
            "imagePullSecrets" => drop(object.objects(key, &mut faults)),
            "tolerations" => {
                let tolerations = object.objects(key, &mut faults);
                for (toleration, value) in tolerations
                    .iter()
                    .zip(value.as_array().into_iter().flatten())
                {
                    faults.extend(scheduling::toleration_faults(toleration, value));
                }
            }
            "nodeSelector" => {
                drop(object.texts(key, &mut faults));
                faults.extend(scheduling::node_selector_faults(&object.path(key), value));
            }
            "priorityClassName" | "runtimeClassName" | "schedulerName" | SERVICE_ACCOUNT_NAME => {
                let _ = object.text(key, &mut faults);
            }
            SECURITY_CONTEXT if !value.is_object() => {
                faults.push(wrong_type(&object.path(key), value, "an object"));
            }
            SECURITY_CONTEXT => {
                faults.extend(
                    restricted::reduce(value)
                        .dropped
                        .into_iter()
                        .map(|dropped| {
                            Violation::new(
                                format!("{}.{}", object.path(key), dropped.field),
                                format!(
                                    "is {}; allowed: what Pod Security `restricted` allows",
                                    dropped.value
                                ),
                            )
                        }),
                );
            }
            _ => faults.push(Violation::new(
                object.path(key),
                format!("is not known; allowed: {ALLOWED}"),
            )),
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
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
                .template
                .keys()
                .map(String::as_str)
                .collect::<Vec<_>>(),
            SHARED
        );
        for key in SHARED {
            assert_eq!(merged.template[key], of_run()[key], "{key}");
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
                    &merged.template[field], expect,
                    "{field} where the run sets {key}"
                );
            }
        }
    }

    #[test]
    fn p3_what_neither_side_sets_is_absent() {
        assert_eq!(merge(None, &Map::new()), Merged::default());
        assert_eq!(
            merge(Some(&json!({"schedulerName": null})), &Map::new()),
            Merged::default()
        );
        assert!(
            !merge(None, &default())
                .template
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
        assert_eq!(merged.template[SECURITY_CONTEXT], json!({"fsGroup": 7}));
        let expect = Dropped {
            field: "runAsUser".to_owned(),
            value: "0".to_owned(),
        };
        assert_eq!(merged.dropped, [expect]);
    }

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
            let fault = parse(text).unwrap_err();
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
