//! The flags of ConfigMap `coscheduler-config`: from text, key by key, to one checked [`Configuration`].
//!
//! Everything that is wrong is said at once, and nothing is put right silently (M7).

mod flags;
mod image;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::mode::{IsolationScope, Mode};
use crate::pod_template;
use crate::quantity::Quantity;
use crate::violation::Violation;

pub use flags::{MigrationPhase, UnknownTruth, behaviour, parse_bool};

/// Key of the mode (TEP-0135, "Configuration"). Default: `workspaces`.
pub const COSCHEDULE: &str = "coschedule";
/// Key of the deprecated flag that switches the assistant of each workspace off (M6). Default: `false`.
pub const DISABLE_AFFINITY_ASSISTANT: &str = "disable-affinity-assistant";
/// Key of the column of the table in force (M6): `during` or `after`. Default: `after`.
pub const MIGRATION_PHASE: &str = "migration-phase";
/// Key of how far an isolated run keeps other placeholders away (M4): `cluster` or `namespace`. Default: `cluster`.
pub const ISOLATION_SCOPE: &str = "isolation-scope";
/// Key of the modes that a run, its Pipeline or its Namespace may choose for itself (B1): modes, separated by commas or
/// white space. Default: none.
pub const ALLOWED_OVERRIDES: &str = "allowed-overrides";
/// Key of what placeholders take over where the run's `podTemplate` has nothing (P3): YAML or JSON. Default: nothing.
/// Tekton has the same key in its `config-defaults`.
pub const POD_TEMPLATE: &str = "default-affinity-assistant-pod-template";
/// Key of the placeholder's CPU request and limit (P5).
pub const PLACEHOLDER_CPU: &str = "placeholder-cpu";
/// Key of the placeholder's memory request and limit (P5).
pub const PLACEHOLDER_MEMORY: &str = "placeholder-memory";
/// Key of the placeholder's image.
pub const PLACEHOLDER_IMAGE: &str = "placeholder-image";
/// Every key this version knows.
pub const KEYS: [&str; 9] = [
    COSCHEDULE,
    DISABLE_AFFINITY_ASSISTANT,
    MIGRATION_PHASE,
    ISOLATION_SCOPE,
    ALLOWED_OVERRIDES,
    POD_TEMPLATE,
    PLACEHOLDER_CPU,
    PLACEHOLDER_MEMORY,
    PLACEHOLDER_IMAGE,
];

/// What the operator has set for the cluster; pinned on every run that is created while it is in
/// force (M8).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The mode new runs get.
    pub mode: Mode,
    /// How far isolated runs keep other placeholders away (M4).
    pub isolation_scope: IsolationScope,
    /// The modes that a run, its Pipeline or its Namespace may choose for itself (B1).
    pub allowed_overrides: BTreeSet<Mode>,
    /// The placeholder new runs get.
    pub placeholder: PlaceholderDefaults,
    /// Tekton's own `coschedule` flag where it is not `disabled`: new runs are left to Tekton then (M9). It comes from
    /// Tekton's ConfigMap ([`tekton_coschedule`]), not from ours.
    pub tekton_coschedule: Option<String>,
}

/// What a placeholder asks of its node, what it runs (P5), and what it takes over where the run has nothing (P3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceholderDefaults {
    /// CPU request and limit: a Kubernetes quantity, more than zero, in whole thousandths.
    pub cpu: String,
    /// Memory request and limit: a Kubernetes quantity, more than zero, in whole bytes.
    pub memory: String,
    /// Image reference.
    pub image: String,
    /// The default pod template, as [`pod_template`] describes it.
    #[serde(default, rename = "podTemplate", skip_serializing_if = "Map::is_empty")]
    pub pod_template: Map<String, Value>,
}

impl Default for PlaceholderDefaults {
    fn default() -> Self {
        Self {
            cpu: "50m".to_owned(),
            memory: "100Mi".to_owned(),
            image: "registry.k8s.io/pause:3.10.1".to_owned(),
            pod_template: Map::new(),
        }
    }
}

impl PlaceholderDefaults {
    /// What is wrong with them. `field` names the field of a violation, given one of the [`KEYS`].
    pub(crate) fn violations(&self, field: impl Fn(&str) -> String) -> Vec<Violation> {
        let mut violations: Vec<_> = [
            (PLACEHOLDER_CPU, cpu_fault(&self.cpu)),
            (PLACEHOLDER_MEMORY, memory_fault(&self.memory)),
            (PLACEHOLDER_IMAGE, image_fault(&self.image)),
        ]
        .into_iter()
        .filter_map(|(key, fault)| Some(Violation::new(field(key), fault?)))
        .collect();
        let template = Value::Object(self.pod_template.clone());
        violations.extend(pod_template::default::faults(
            &template,
            &field(POD_TEMPLATE),
        ));
        violations
    }
}

/// What flags do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The mode with `migration-phase: during`; `None` where the flags are not valid then (M6).
    pub during: Option<Mode>,
    /// The mode with `migration-phase: after`; `None` where `coschedule` is not valid.
    pub after: Option<Mode>,
    /// The configuration they make, or every violation at once: the field is the key, the description names the value
    /// and what is allowed (M7).
    pub outcome: Result<Configuration, Vec<Violation>>,
    /// What the operator should know although it breaks no rule.
    pub warnings: Vec<String>,
}

/// A configuration without violations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The configuration.
    pub configuration: Configuration,
    /// What the operator should know although it breaks no rule.
    pub warnings: Vec<String>,
}

/// Checks the ConfigMap's data. Keys that are absent take their defaults.
///
/// # Errors
/// Every violation at once; the field is the key, the description names the value and what is
/// allowed (M7).
pub fn check(data: &BTreeMap<String, String>) -> Result<Checked, Vec<Violation>> {
    let Answer {
        outcome, warnings, ..
    } = answer(data);
    outcome.map(|configuration| Checked {
        configuration,
        warnings,
    })
}

/// Says what the ConfigMap's data would do, whether it is valid or not.
pub fn answer(data: &BTreeMap<String, String>) -> Answer {
    let mut violations = Vec::new();
    let coschedule: Option<Mode> = read(data, COSCHEDULE, &mut violations);
    let phase: Option<MigrationPhase> = read(data, MIGRATION_PHASE, &mut violations);
    let isolation_scope: Option<IsolationScope> = read(data, ISOLATION_SCOPE, &mut violations);
    let allowed_overrides = read_overrides(data, &mut violations);
    let disable = data
        .get(DISABLE_AFFINITY_ASSISTANT)
        .map_or(Ok(false), |text| parse_bool(text));
    let placeholder = read_placeholder(data, &mut violations);

    let mode_in = |phase| behaviour(disable.clone().ok()?, coschedule?, phase);
    let during = mode_in(MigrationPhase::During);
    let mode = match phase {
        Some(MigrationPhase::During) => {
            match (&disable, coschedule) {
                (Err(error), _) => violations.push(Violation::new(
                    DISABLE_AFFINITY_ASSISTANT,
                    error.to_string(),
                )),
                (Ok(_), Some(coschedule)) if during.is_none() => {
                    violations.push(invalid_combination(coschedule));
                }
                (Ok(_), Some(_) | None) => {}
            }
            during
        }
        Some(MigrationPhase::After) => coschedule,
        None => None,
    };
    let outcome = match (mode, isolation_scope) {
        (Some(mode), Some(isolation_scope)) if violations.is_empty() => Ok(Configuration {
            mode,
            isolation_scope,
            allowed_overrides,
            placeholder,
            tekton_coschedule: None,
        }),
        (Some(_) | None, Some(_) | None) => Err(violations),
    };
    Answer {
        during,
        after: coschedule,
        outcome,
        warnings: warnings(data, phase),
    }
}

/// Tekton's own `coschedule` flag, from the data of its ConfigMap `feature-flags`: `None` where it is `disabled`, and so
/// Tekton stays out of our way (M9). Where it is not set, Tekton takes `workspaces`; upper and lower case are the same to it
/// (Tekton v1.12.0, `pkg/apis/config/feature_flags.go`).
pub fn tekton_coschedule(feature_flags: &BTreeMap<String, String>) -> Option<String> {
    let value = feature_flags
        .get(COSCHEDULE)
        .map_or(Mode::Workspaces.as_str(), String::as_str);
    (!value.eq_ignore_ascii_case(Mode::Disabled.as_str())).then(|| value.to_owned())
}

/// When a ConfigMap's `metadata.resourceVersion` was written, to tell older from newer: the API server's versions of one
/// resource compare as numbers (Kubernetes API concepts, "Resource versions"). 0 where it is empty, and so older than all.
pub fn version_number(resource_version: &str) -> i64 {
    resource_version.parse().unwrap_or_default()
}

/// The value of a key, or its default where it is absent.
fn read<T>(data: &BTreeMap<String, String>, key: &str, violations: &mut Vec<Violation>) -> Option<T>
where
    T: FromStr + Default,
    T::Err: Display,
{
    match data.get(key) {
        None => Some(T::default()),
        Some(text) => text
            .parse()
            .map_err(|error: T::Err| violations.push(Violation::new(key, error.to_string())))
            .ok(),
    }
}

fn read_overrides(
    data: &BTreeMap<String, String>,
    violations: &mut Vec<Violation>,
) -> BTreeSet<Mode> {
    let text = data.get(ALLOWED_OVERRIDES).map_or("", String::as_str);
    let mut modes = BTreeSet::new();
    for word in text.split(|c: char| c == ',' || c.is_whitespace()) {
        match word.parse::<Mode>() {
            _ if word.is_empty() => {}
            Ok(mode) => drop(modes.insert(mode)),
            Err(error) => violations.push(Violation::new(ALLOWED_OVERRIDES, error.to_string())),
        }
    }
    modes
}

fn read_placeholder(
    data: &BTreeMap<String, String>,
    violations: &mut Vec<Violation>,
) -> PlaceholderDefaults {
    let defaults = PlaceholderDefaults::default();
    let value = |key: &str, default: String| data.get(key).cloned().unwrap_or(default);
    let text = data.get(POD_TEMPLATE).map_or("", String::as_str);
    let pod_template = pod_template::default::parse(text)
        .map_err(|fault| violations.push(Violation::new(POD_TEMPLATE, fault)))
        .unwrap_or_default();
    let placeholder = PlaceholderDefaults {
        cpu: value(PLACEHOLDER_CPU, defaults.cpu),
        memory: value(PLACEHOLDER_MEMORY, defaults.memory),
        image: value(PLACEHOLDER_IMAGE, defaults.image),
        pod_template,
    };
    violations.extend(placeholder.violations(str::to_owned));
    placeholder
}

/// The three rows of the table that are not valid during the migration (M6).
fn invalid_combination(coschedule: Mode) -> Violation {
    Violation::new(
        COSCHEDULE,
        format!(
            "\"{coschedule}\" does not go with {DISABLE_AFFINITY_ASSISTANT} \"false\" under {MIGRATION_PHASE} \"during\"; \
             allowed: {}, or {DISABLE_AFFINITY_ASSISTANT} \"true\"",
            Mode::Workspaces
        ),
    )
}

fn warnings(data: &BTreeMap<String, String>, phase: Option<MigrationPhase>) -> Vec<String> {
    let mut warnings = Vec::new();
    if phase == Some(MigrationPhase::After) && data.contains_key(DISABLE_AFFINITY_ASSISTANT) {
        warnings.push(format!(
            "key {DISABLE_AFFINITY_ASSISTANT:?} is deprecated and was ignored: {COSCHEDULE:?} alone counts, unless \
             {MIGRATION_PHASE:?} is \"during\""
        ));
    }
    let unknown = data.keys().filter(|key| !KEYS.contains(&key.as_str()));
    warnings.extend(unknown.map(|key| {
        format!(
            "key {key:?} is not known and was ignored; known keys: {}",
            KEYS.join(", ")
        )
    }));
    warnings
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
    (!image::is_image_reference(text)).then(|| {
        format!(
            "{text:?} is not an image reference; allowed: [registry/]path[:tag][@digest] without spaces, such as \
             registry.k8s.io/pause:3.10.1"
        )
    })
}

#[cfg(test)]
mod tests;
