//! The flags of ConfigMap `coscheduler-config`: from text, key by key, to one checked
//! [`Configuration`].
//!
//! Everything that is wrong is said at once, and nothing is put right silently (M7).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::mode::Mode;
use crate::quantity::Quantity;
use crate::violation::Violation;

/// Key of the mode (TEP-0135, "Configuration"). Required in this version.
pub const COSCHEDULE: &str = "coschedule";
/// Key of the placeholder's CPU request and limit (P5).
pub const PLACEHOLDER_CPU: &str = "placeholder-cpu";
/// Key of the placeholder's memory request and limit (P5).
pub const PLACEHOLDER_MEMORY: &str = "placeholder-memory";
/// Key of the placeholder's image.
pub const PLACEHOLDER_IMAGE: &str = "placeholder-image";
/// Every key this version knows.
pub const KEYS: [&str; 4] = [
    COSCHEDULE,
    PLACEHOLDER_CPU,
    PLACEHOLDER_MEMORY,
    PLACEHOLDER_IMAGE,
];

/// What the operator has set for the cluster; pinned on every run that is created while it is in
/// force (M8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    /// The mode new runs get.
    pub mode: Mode,
    /// The placeholder new runs get.
    pub placeholder: PlaceholderDefaults,
}

/// What a placeholder asks of its node, and what it runs (P5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceholderDefaults {
    /// CPU request and limit: a Kubernetes quantity, more than zero, in whole thousandths.
    pub cpu: String,
    /// Memory request and limit: a Kubernetes quantity, more than zero, in whole bytes.
    pub memory: String,
    /// Image reference.
    pub image: String,
}

impl Default for PlaceholderDefaults {
    fn default() -> Self {
        Self {
            cpu: "50m".to_owned(),
            memory: "100Mi".to_owned(),
            image: "registry.k8s.io/pause:3.10.1".to_owned(),
        }
    }
}

impl PlaceholderDefaults {
    /// What is wrong with them. `field` names the field of a violation, given one of the [`KEYS`].
    pub(crate) fn violations(&self, field: impl Fn(&str) -> String) -> Vec<Violation> {
        [
            (PLACEHOLDER_CPU, cpu_fault(&self.cpu)),
            (PLACEHOLDER_MEMORY, memory_fault(&self.memory)),
            (PLACEHOLDER_IMAGE, image_fault(&self.image)),
        ]
        .into_iter()
        .filter_map(|(key, fault)| Some(Violation::new(field(key), fault?)))
        .collect()
    }
}

/// A configuration without violations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The configuration.
    pub configuration: Configuration,
    /// What the operator should know although it breaks no rule.
    pub warnings: Vec<String>,
}

/// Checks the ConfigMap's data. Keys that are absent take their defaults, `coschedule` excepted.
///
/// # Errors
/// Every violation at once; the field is the key, the description names the value and what is
/// allowed (M7).
pub fn check(data: &BTreeMap<String, String>) -> Result<Checked, Vec<Violation>> {
    let mut violations = Vec::new();
    let mode = read_mode(data.get(COSCHEDULE)).map_err(|violation| violations.push(violation));

    let defaults = PlaceholderDefaults::default();
    let value = |key: &str, default: String| data.get(key).cloned().unwrap_or(default);
    let placeholder = PlaceholderDefaults {
        cpu: value(PLACEHOLDER_CPU, defaults.cpu),
        memory: value(PLACEHOLDER_MEMORY, defaults.memory),
        image: value(PLACEHOLDER_IMAGE, defaults.image),
    };
    violations.extend(placeholder.violations(str::to_owned));

    match mode {
        Ok(mode) if violations.is_empty() => Ok(Checked {
            configuration: Configuration { mode, placeholder },
            warnings: unknown_keys(data),
        }),
        Ok(_) | Err(()) => Err(violations),
    }
}

fn read_mode(value: Option<&String>) -> Result<Mode, Violation> {
    let Some(text) = value else {
        let description = format!("is not set; allowed: {}", Mode::allowed());
        return Err(Violation::new(COSCHEDULE, description));
    };
    text.parse()
        .map_err(|error: crate::mode::UnknownMode| Violation::new(COSCHEDULE, error.to_string()))
}

fn unknown_keys(data: &BTreeMap<String, String>) -> Vec<String> {
    data.keys()
        .filter(|key| !KEYS.contains(&key.as_str()))
        .map(|key| {
            format!(
                "key {key:?} is not known and was ignored; known keys: {}",
                KEYS.join(", ")
            )
        })
        .collect()
}

fn cpu_fault(text: &str) -> Option<String> {
    quantity_fault(
        text,
        Quantity::is_whole_milli,
        "more than 0, in whole thousandths of a CPU, such as 50m",
    )
}

fn memory_fault(text: &str) -> Option<String> {
    quantity_fault(
        text,
        Quantity::is_whole,
        "more than 0, in whole bytes, such as 100Mi",
    )
}

fn quantity_fault(text: &str, whole: impl Fn(&Quantity) -> bool, allowed: &str) -> Option<String> {
    match text.parse::<Quantity>() {
        Err(error) => Some(error.to_string()),
        Ok(quantity) if quantity.nano() <= 0 || !whole(&quantity) => Some(format!(
            "{text:?} is not an amount a pod can ask for; allowed: {allowed}"
        )),
        Ok(_) => None,
    }
}

fn image_fault(text: &str) -> Option<String> {
    (!is_image_reference(text)).then(|| {
        format!(
            "{text:?} is not an image reference; allowed: [registry/]path[:tag][@digest] without spaces, such as \
             registry.k8s.io/pause:3.10.1"
        )
    })
}

/// The grammar of `distribution/reference`, except that the registry is not told from the path,
/// which nobody here needs.
fn is_image_reference(text: &str) -> bool {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    // A colon after the last slash starts the tag; one before it belongs to the registry's port.
    let tag_start = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match rest[tag_start..].find(':') {
        Some(colon) => (
            &rest[..tag_start + colon],
            Some(&rest[tag_start + colon + 1..]),
        ),
        None => (rest, None),
    };
    digest.is_none_or(is_digest) && tag.is_none_or(is_tag) && is_path(path)
}

fn is_path(path: &str) -> bool {
    let mut parts = path.split('/').peekable();
    let mut first = true;
    let mut good = path.len() <= 255;
    while let Some(part) = parts.next() {
        let registry = first && parts.peek().is_some();
        first = false;
        good &= part.starts_with(|c: char| c.is_ascii_alphanumeric() || (registry && c == '['))
            && part.ends_with(|c: char| c.is_ascii_alphanumeric() || (registry && c == ']'))
            && part.chars().all(|c| {
                c.is_ascii_lowercase()
                    || c.is_ascii_digit()
                    || matches!(c, '.' | '-' | '_')
                    || (registry && (c.is_ascii_uppercase() || matches!(c, ':' | '[' | ']')))
            });
    }
    good
}

fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && !tag.starts_with(['.', '-'])
        && tag
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && algorithm
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '.' | '-' | '_'))
            && hex.len() >= 32
            && hex.chars().all(|c| c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn every_mode_is_read_and_the_rest_takes_its_defaults() {
        for mode in Mode::ALL {
            let checked = check(&data(&[("coschedule", mode.as_str())])).unwrap();
            assert_eq!(
                checked,
                Checked {
                    configuration: Configuration {
                        mode,
                        placeholder: PlaceholderDefaults::default()
                    },
                    warnings: vec![],
                }
            );
        }
    }

    #[test]
    fn p5_the_placeholder_is_configurable() {
        let image = "registry.example:5000/pause@sha256:7031c1b283388c2c57d1ad30bbd4d8f1d2c5a8e9a8f0d4fb4d4d9b8c1a2b3c4d";
        let checked = check(&data(&[
            ("coschedule", "pipelineruns"),
            ("placeholder-cpu", "0.1"),
            ("placeholder-memory", "64Mi"),
            ("placeholder-image", image),
        ]));
        assert_eq!(
            checked.unwrap().configuration.placeholder,
            PlaceholderDefaults {
                cpu: "0.1".to_owned(),
                memory: "64Mi".to_owned(),
                image: image.to_owned()
            }
        );
    }

    #[test]
    fn an_unknown_key_is_a_warning() {
        let checked = check(&data(&[
            ("coschedule", "disabled"),
            ("placeholder_cpu", "1"),
        ]))
        .unwrap();
        assert_eq!(
            checked.warnings,
            [
                "key \"placeholder_cpu\" is not known and was ignored; known keys: coschedule, placeholder-cpu, \
              placeholder-memory, placeholder-image"
            ]
        );
    }

    #[test]
    fn m7_all_violations_come_at_once_with_key_value_and_what_is_allowed() {
        let violations = check(&data(&[
            ("coschedule", "workspaces"),
            ("placeholder-cpu", "50 m"),
            ("placeholder-memory", "0"),
            ("placeholder-image", ""),
        ]))
        .unwrap_err();
        let fields: Vec<&str> = violations
            .iter()
            .map(|violation| violation.field.as_str())
            .collect();
        assert_eq!(fields, KEYS);
        for (violation, (value, allowed)) in violations.iter().zip([
            ("\"workspaces\"", "allowed: pipelineruns, disabled"),
            ("\"50 m\"", "allowed: a decimal number"),
            ("\"0\"", "allowed: more than 0"),
            ("\"\"", "allowed: [registry/]path"),
        ]) {
            assert!(violation.description.contains(value), "{violation}");
            assert!(violation.description.contains(allowed), "{violation}");
        }
    }

    #[test]
    fn m7_each_bad_value_is_refused_by_its_key() {
        for (key, values) in [
            (
                COSCHEDULE,
                &["isolate-pipelinerun", "", "PipelineRuns", "disabled\n"][..],
            ),
            (
                PLACEHOLDER_CPU,
                &["", "-1", "0m", "0.5m", "1n", "fifty", "1e"],
            ),
            (
                PLACEHOLDER_MEMORY,
                &["", "100m", "1.5", "-1Gi", "100MB", "lots"],
            ),
            (
                PLACEHOLDER_IMAGE,
                &[
                    "a b",
                    "/pause",
                    "pause/",
                    "Pause",
                    "pause:",
                    "pause@sha256:12",
                    "a:b:c",
                    ":tag",
                    "a//b",
                ],
            ),
        ] {
            for value in values {
                let mut flags = data(&[("coschedule", "pipelineruns")]);
                flags.insert(key.to_owned(), (*value).to_owned());
                let violations = check(&flags).unwrap_err();
                assert_eq!(violations.len(), 1, "{key}={value:?}: {violations:?}");
                assert_eq!(violations[0].field, key);
                assert!(
                    violations[0].description.starts_with(&format!("{value:?}")),
                    "{}",
                    violations[0]
                );
            }
        }
    }

    #[test]
    fn the_mode_is_required() {
        let violations = check(&BTreeMap::new()).unwrap_err();
        assert_eq!(
            violations,
            [Violation::new(
                "coschedule",
                "is not set; allowed: pipelineruns, disabled"
            )]
        );
    }

    #[test]
    fn ordinary_image_references_are_read() {
        for image in [
            "pause",
            "pause:3.10",
            "library/pause:V1_0",
            "registry.k8s.io/pause:3.10.1",
            "localhost:5000/a/b-c_d.e",
            "[2001:db8::1]:5000/pause",
            "Registry.Example/pause",
        ] {
            assert!(is_image_reference(image), "{image}");
        }
    }
}
