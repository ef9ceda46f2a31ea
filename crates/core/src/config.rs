//! The flags of ConfigMap `coscheduler-config`: read key by key into one valid [`Configuration`]. All violations are reported at
//! once, and none is corrected silently (M7).

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
use crate::separation::Placement;
use crate::violation::Violation;
use crate::words::words;

pub use flags::{MigrationPhase, UnknownTruth, behaviour, parse_bool};

/// Key of the mode (TEP-0135, "Configuration"). Default: `workspaces`.
pub const COSCHEDULE: &str = "coschedule";
/// Key of the deprecated flag that switches off the assistants of workspaces (M6). Default: `false`.
pub const DISABLE_AFFINITY_ASSISTANT: &str = "disable-affinity-assistant";
/// Key of the migration phase (M6): `during` or `after`. Default: `after`.
pub const MIGRATION_PHASE: &str = "migration-phase";
/// Key of the scope of isolation (M4): `cluster` or `namespace`. Default: `cluster`.
pub const ISOLATION_SCOPE: &str = "isolation-scope";
/// Key of the modes that a run, its Pipeline or its Namespace may choose (B1), separated by commas or white space. Default: none.
pub const ALLOWED_OVERRIDES: &str = "allowed-overrides";
/// Key of the default pod template of placeholders (P3), as YAML or JSON. Default: empty. Tekton has the same key in its
/// `config-defaults`.
pub const POD_TEMPLATE: &str = "default-affinity-assistant-pod-template";
/// Key of the nodes that placeholders prefer (P4): `spread`, `pack` or `none`. Default: `spread`.
pub const PLACEMENT: &str = "placement";
/// Key of what placeholders reserve (B3): `nothing` or `placement`. Default: `nothing`.
pub const PLACEHOLDER_RESERVES: &str = "placeholder-reserves";
/// Key of the placeholder's CPU request and limit (P5).
pub const PLACEHOLDER_CPU: &str = "placeholder-cpu";
/// Key of the placeholder's memory request and limit (P5).
pub const PLACEHOLDER_MEMORY: &str = "placeholder-memory";
/// Key of the placeholder's image.
pub const PLACEHOLDER_IMAGE: &str = "placeholder-image";
/// Every key that this version knows.
pub const KEYS: [&str; 11] = [
    COSCHEDULE,
    DISABLE_AFFINITY_ASSISTANT,
    MIGRATION_PHASE,
    ISOLATION_SCOPE,
    ALLOWED_OVERRIDES,
    POD_TEMPLATE,
    PLACEMENT,
    PLACEHOLDER_RESERVES,
    PLACEHOLDER_CPU,
    PLACEHOLDER_MEMORY,
    PLACEHOLDER_IMAGE,
];

/// The operator's settings for the cluster. They are pinned on every run that is created while they are in force (M8).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The mode of new runs.
    pub mode: Mode,
    /// The scope of isolation (M4).
    pub isolation_scope: IsolationScope,
    /// The modes that a run, its Pipeline or its Namespace may choose (B1).
    pub allowed_overrides: BTreeSet<Mode>,
    /// The defaults of placeholders of new runs.
    pub placeholder: PlaceholderDefaults,
    /// Tekton's own `coschedule` flag, unless it is `disabled`: new runs are left to Tekton then (M9). It comes from Tekton's
    /// ConfigMap ([`tekton_coschedule`]), not from ours.
    pub tekton_coschedule: Option<String>,
}

words! {
    /// The resources that a placeholder asks for beside its own (B3).
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Reserves: "what a placeholder can reserve" {
        /// None.
        #[default]
        Nothing = "nothing",
        /// Until it is bound, the most CPU and memory that the run's pods may request at the same time.
        Placement = "placement",
    }
}

/// Resources and image of placeholders (P5), their default pod template (P3), and the nodes they prefer (P4).
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
    /// The nodes that they prefer, outside isolation (P4).
    #[serde(default)]
    pub placement: Placement,
    /// The resources that they ask for beside their own (B3).
    #[serde(default)]
    pub reserves: Reserves,
}

impl Default for PlaceholderDefaults {
    fn default() -> Self {
        Self {
            cpu: "50m".to_owned(),
            memory: "100Mi".to_owned(),
            image: "registry.k8s.io/pause:3.10.1".to_owned(),
            pod_template: Map::new(),
            placement: Placement::default(),
            reserves: Reserves::default(),
        }
    }
}

impl PlaceholderDefaults {
    /// Their violations. `field` gives the field's name for one of the [`KEYS`].
    pub(crate) fn violations(&self, field: impl Fn(&str) -> String) -> Vec<Violation> {
        let share = "more than 0, in whole thousandths of a CPU, such as 50m";
        let bytes = "more than 0, in whole bytes, such as 100Mi";
        let cpu = quantity_fault(&self.cpu, Quantity::is_whole_milli, share);
        let memory = quantity_fault(&self.memory, Quantity::is_whole, bytes);
        let mut violations: Vec<_> = [
            (PLACEHOLDER_CPU, cpu),
            (PLACEHOLDER_MEMORY, memory),
            (PLACEHOLDER_IMAGE, image::fault(&self.image)),
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

/// The effect of flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The mode with `migration-phase: during`; `None` if the flags are not valid then (M6).
    pub during: Option<Mode>,
    /// The mode with `migration-phase: after`; `None` if `coschedule` is not valid.
    pub after: Option<Mode>,
    /// The configuration, or every violation at once: the field is the key, the description names the value and the values
    /// allowed (M7).
    pub outcome: Result<Configuration, Vec<Violation>>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// A valid configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The configuration.
    pub configuration: Configuration,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// Checks the ConfigMap's data. Keys that are absent take their defaults.
///
/// # Errors
/// Every violation at once, as in [`Answer::outcome`] (M7).
pub fn check(data: &BTreeMap<String, String>) -> Result<Checked, Vec<Violation>> {
    let Answer {
        outcome, warnings, ..
    } = answer(data);
    outcome.map(|configuration| Checked {
        configuration,
        warnings,
    })
}

/// The effect of the ConfigMap's data, valid or not.
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
        None => None,
        Some(MigrationPhase::After) => coschedule,
        Some(MigrationPhase::During) => {
            if let Err(error) = &disable {
                violations.push(Violation::new(
                    DISABLE_AFFINITY_ASSISTANT,
                    error.to_string(),
                ));
            } else if let (Some(coschedule), None) = (coschedule, during) {
                violations.push(invalid_combination(coschedule));
            }
            during
        }
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

/// Tekton's own `coschedule` flag, from the data of its ConfigMap `feature-flags`; `None` if it is `disabled` (M9). If it is not
/// set, Tekton takes `workspaces`. Tekton ignores case (Tekton v1.12.0, `pkg/apis/config/feature_flags.go`).
pub fn tekton_coschedule(feature_flags: &BTreeMap<String, String>) -> Option<String> {
    let value = feature_flags
        .get(COSCHEDULE)
        .map_or(Mode::Workspaces.as_str(), String::as_str);
    (!value.eq_ignore_ascii_case(Mode::Disabled.as_str())).then(|| value.to_owned())
}

/// A ConfigMap's `metadata.resourceVersion` as a number, to tell older from newer (Kubernetes API concepts, "Resource versions").
/// An empty one is 0, older than all others. The number is `generation` on the wire. The order of all other objects' versions is in
/// `runtime::kubernetes::version`, which the planner cannot use.
pub fn version_number(resource_version: &str) -> i64 {
    resource_version.parse().unwrap_or_default()
}

/// The value of a key, or its default.
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
        placement: read(data, PLACEMENT, violations).unwrap_or_default(),
        reserves: read(data, PLACEHOLDER_RESERVES, violations).unwrap_or_default(),
    };
    violations.extend(placeholder.violations(str::to_owned));
    placeholder
}

/// One of the three rows of the table that are not valid during the migration (M6).
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

fn quantity_fault(text: &str, whole: impl Fn(&Quantity) -> bool, allowed: &str) -> Option<String> {
    match text.parse::<Quantity>() {
        Err(error) => Some(error.to_string()),
        Ok(quantity) if quantity.nano() <= 0 || !whole(&quantity) => Some(format!(
            "{text:?} is not an amount a pod can ask for; allowed: {allowed}"
        )),
        Ok(_) => None,
    }
}

#[cfg(test)]
mod tests;
