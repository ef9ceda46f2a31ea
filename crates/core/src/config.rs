//! Reads the keys of ConfigMap `coscheduler-config` into one valid [`Configuration`]. All violations are reported at once. A
//! default never replaces an invalid value (M7).

mod backend;
mod flag_table;
mod image;
mod lists;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::mode::{CoscheduledClaims, IsolationScope, Mode};
use crate::overrides::{Override, Setting};
use crate::pod_template;
use crate::quantity::Quantity;
use crate::separation::Placement;
use crate::violation::Violation;
use crate::words::words;

use lists::{read_namespaces, read_overrides};

pub use backend::Backend;
pub use flag_table::{MigrationPhase, UnknownTruth, behaviour, parse_bool, tekton_coschedule};

/// Key of the mode (TEP-0135, "Configuration"). Default: `workspaces`.
pub const COSCHEDULE: &str = "coschedule";
/// Key of the deprecated flag that switches off coscheduling in mode `workspaces` (M6). Default: `false`.
pub const DISABLE_AFFINITY_ASSISTANT: &str = "disable-affinity-assistant";
/// Key of the migration phase (M6). With `during`, `coschedule` and `disable-affinity-assistant` together give the mode. With
/// `after`, `coschedule` alone gives the mode. Default: `after`.
pub const MIGRATION_PHASE: &str = "migration-phase";
/// Key of the isolation scope (M4): `cluster` or `namespace`. Default: `cluster`.
pub const ISOLATION_SCOPE: &str = "isolation-scope";
/// Key of the claims that tie pods to a node in mode `workspaces` (V8): `all` or `node-bound`. Default: `all`.
pub const COSCHEDULE_CLAIMS: &str = "coschedule-claims";
/// Key of the values that a run, its Pipeline or its Namespace may choose in addition to the values in force (B1). Commas or
/// white space separate the values. Default: none.
pub const ALLOWED_OVERRIDES: &str = "allowed-overrides";
/// Key of further values, in addition to those of [`ALLOWED_OVERRIDES`] (B1). A Namespace may choose these values, and may
/// allow its runs and Pipelines to choose them. Default: none.
pub const NAMESPACE_MAY_ALLOW: &str = "namespace-may-allow";
/// Key of the default pod template of placeholders (P3), as YAML or JSON. Default: empty. Tekton has the same key in its
/// `config-defaults`.
pub const POD_TEMPLATE: &str = "default-affinity-assistant-pod-template";
/// Key of the nodes that placeholders prefer (P4): `spread`, `pack` or `none`. Default: `spread`.
pub const PLACEMENT: &str = "placement";
/// Key of the resources that placeholders reserve (B3): `nothing`, `placement` or `peak`. Default: `placement`.
pub const PLACEHOLDER_RESERVES: &str = "placeholder-reserves";
/// Key of the Kubernetes objects that make up a placeholder (P1), a value of [`Backend`].
pub const PLACEHOLDER_BACKEND: &str = "placeholder-backend";
/// Key of the placeholder's CPU request (P5).
pub const PLACEHOLDER_CPU: &str = "placeholder-cpu";
/// Key of the placeholder's memory request (P5).
pub const PLACEHOLDER_MEMORY: &str = "placeholder-memory";
/// Key of the placeholder's image.
pub const PLACEHOLDER_IMAGE: &str = "placeholder-image";
/// Key of the namespaces whose runs are adopted from Tekton's own assistant while Tekton's flag is on (B7): names, separated by
/// commas or white space, or [`EVERY_NAMESPACE`]. Default: none.
pub const ADOPT_RUNS_IN: &str = "adopt-runs-in";
/// The value of [`ADOPT_RUNS_IN`] for all namespaces.
pub const EVERY_NAMESPACE: &str = "*";
/// All keys. Any other key causes a warning.
pub const KEYS: [&str; 15] = [
    COSCHEDULE,
    DISABLE_AFFINITY_ASSISTANT,
    MIGRATION_PHASE,
    ISOLATION_SCOPE,
    COSCHEDULE_CLAIMS,
    ALLOWED_OVERRIDES,
    NAMESPACE_MAY_ALLOW,
    POD_TEMPLATE,
    PLACEMENT,
    PLACEHOLDER_RESERVES,
    PLACEHOLDER_BACKEND,
    PLACEHOLDER_CPU,
    PLACEHOLDER_MEMORY,
    PLACEHOLDER_IMAGE,
    ADOPT_RUNS_IN,
];

/// The operator's settings for the cluster. Admission pins the settings in force on each new run (M8).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Configuration {
    /// The mode of new runs.
    pub mode: Mode,
    /// The isolation scope (M4).
    pub isolation_scope: IsolationScope,
    /// The claims that tie pods to a node in mode `workspaces` (V8).
    pub coschedule_claims: CoscheduledClaims,
    /// The values that a run, its Pipeline or its Namespace may choose in addition to the values in force (B1).
    pub allowed_overrides: BTreeSet<Override>,
    /// The values that a Namespace may choose, and may allow its runs and Pipelines to choose, in addition to
    /// `allowed_overrides` (B1).
    pub namespace_may_allow: BTreeSet<Override>,
    /// The placeholder defaults of new runs.
    pub placeholder: PlaceholderDefaults,
    /// The namespaces whose runs are adopted from Tekton's own assistant (B7), or [`EVERY_NAMESPACE`].
    pub adopt_runs_in: BTreeSet<String>,
    /// The value of Tekton's own flag `coschedule`. `None` if the flag is `disabled`. With any other value, new runs are left to
    /// Tekton (M9) or adopted (B7). The value comes from Tekton's ConfigMap ([`tekton_coschedule`]), not from
    /// `coscheduler-config`.
    pub tekton_coschedule: Option<String>,
    /// `metadata.resourceVersion` of ConfigMap `coscheduler-config`. `None` if it is not known.
    pub version: Option<i64>,
}

impl Configuration {
    /// The value of a setting.
    pub(crate) const fn value(&self, setting: Setting) -> Override {
        setting.value(self.mode, &self.placeholder)
    }

    /// Replaces the value of a setting.
    pub(crate) const fn choose(&mut self, value: Override) {
        match value {
            Override::Mode(mode) => self.mode = mode,
            Override::Placement(placement) => self.placeholder.placement = placement,
            Override::Reserves(reserves) => self.placeholder.reserves = reserves,
        }
    }
}

words! {
    /// The resources that a placeholder requests in addition to `cpu` and `memory` of its defaults (B3).
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Reserves: "a value of placeholder-reserves" {
        /// No additional resources.
        Nothing = "nothing",
        /// Until the placeholder is bound to a node: the most CPU and memory that the run's pods may request at the same time.
        #[default]
        Placement = "placement",
        /// The same additional resources as with `placement`. Once the placeholder is bound, it gives them up step by step, as
        /// pods of the run are created.
        Peak = "peak",
    }
}

/// Resources and image of placeholders (P5), their default pod template (P3), and the nodes they prefer (P4).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceholderDefaults {
    /// CPU request: a Kubernetes quantity, more than zero, in whole thousandths of a CPU.
    pub cpu: String,
    /// Memory request: a Kubernetes quantity, more than zero, in whole bytes.
    pub memory: String,
    /// A container image reference.
    pub image: String,
    /// The default pod template, as [`pod_template`] describes it.
    #[serde(default, rename = "podTemplate", skip_serializing_if = "Map::is_empty")]
    pub pod_template: Map<String, Value>,
    /// The nodes that placeholders prefer in all modes except `isolate-pipelinerun` (P4).
    #[serde(default)]
    pub placement: Placement,
    /// The resources that placeholders request in addition to `cpu` and `memory` (B3).
    #[serde(default)]
    pub reserves: Reserves,
    /// The Kubernetes objects that make up a placeholder (P1).
    #[serde(default)]
    pub backend: Backend,
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
            backend: Backend::default(),
        }
    }
}

impl PlaceholderDefaults {
    /// Returns all violations. `field` turns a key in [`KEYS`] into the path of its value in the document.
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

/// The effect of the keys in a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The mode if `migration-phase` were `during`. `None` if the values of `coschedule` and `disable-affinity-assistant` are not
    /// valid together in that phase (M6).
    pub during: Option<Mode>,
    /// The mode if `migration-phase` were `after`. `None` if the value of `coschedule` is not valid.
    pub after: Option<Mode>,
    /// The configuration, or all violations at once. The field of a violation is the key. The description has the value found and
    /// the values allowed (M7).
    pub outcome: Result<Configuration, Vec<Violation>>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// A valid configuration with its warnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// The configuration.
    pub configuration: Configuration,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
}

/// Checks the ConfigMap's data. An absent key has its default.
///
/// # Errors
/// All violations at once, as in [`Answer::outcome`] (M7).
pub fn check(data: &BTreeMap<String, String>) -> Result<Checked, Vec<Violation>> {
    let Answer {
        outcome, warnings, ..
    } = answer(data);
    outcome.map(|configuration| Checked {
        configuration,
        warnings,
    })
}

/// Evaluates the data of the ConfigMap. The data need not be valid.
pub fn answer(data: &BTreeMap<String, String>) -> Answer {
    let mut violations = Vec::new();
    let coschedule: Option<Mode> = read(data, COSCHEDULE, &mut violations);
    let phase: Option<MigrationPhase> = read(data, MIGRATION_PHASE, &mut violations);
    let isolation_scope: Option<IsolationScope> = read(data, ISOLATION_SCOPE, &mut violations);
    let coschedule_claims = read(data, COSCHEDULE_CLAIMS, &mut violations);
    let allowed_overrides = read_overrides(data, ALLOWED_OVERRIDES, &mut violations);
    let namespace_may_allow = read_overrides(data, NAMESPACE_MAY_ALLOW, &mut violations);
    let adopt_runs_in = read_namespaces(data, ADOPT_RUNS_IN, &mut violations);
    let disable = data
        .get(DISABLE_AFFINITY_ASSISTANT)
        .map_or(Ok(false), |text| parse_bool(text));
    let placeholder = read_placeholder(data, &mut violations);

    let mode_in = |phase, disable: Option<bool>| behaviour(disable?, coschedule?, phase);
    let during = mode_in(MigrationPhase::During, disable.clone().ok());
    // After the migration, the deprecated flag does not count, so it may be malformed.
    let after = mode_in(MigrationPhase::After, Some(false));
    let mode = match phase {
        None => None,
        Some(MigrationPhase::After) => after,
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
    let outcome = match (mode, isolation_scope, coschedule_claims) {
        (Some(mode), Some(isolation_scope), Some(coschedule_claims)) if violations.is_empty() => {
            Ok(Configuration {
                mode,
                isolation_scope,
                coschedule_claims,
                allowed_overrides,
                namespace_may_allow,
                placeholder,
                adopt_runs_in,
                tekton_coschedule: None,
                version: None,
            })
        }
        (Some(_) | None, Some(_) | None, Some(_) | None) => Err(violations),
    };
    Answer {
        during,
        after,
        outcome,
        warnings: warnings(data, phase),
    }
}

/// Returns a ConfigMap's `metadata.resourceVersion` as a number, so that two versions can be compared (Kubernetes API concepts,
/// "Resource versions"). An empty version, or one that is not a number, counts as 0, which is less than all others. Module
/// `runtime::kubernetes::version` compares the versions of all other objects.
pub fn version_number(resource_version: &str) -> i64 {
    resource_version.parse().unwrap_or_default()
}

/// The value of a key, or the default if the key is absent. If the value is not valid, the result is `None`, and `violations`
/// gets a violation.
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

fn read_placeholder(
    data: &BTreeMap<String, String>,
    violations: &mut Vec<Violation>,
) -> PlaceholderDefaults {
    let defaults = PlaceholderDefaults::default();
    let value = |key: &str, default: String| data.get(key).cloned().unwrap_or(default);
    let text = data.get(POD_TEMPLATE).map_or("", String::as_str);
    let pod_template = pod_template::default::parse(text)
        .map_err(|faults| {
            let faults = faults.into_iter();
            violations.extend(faults.map(|fault| Violation::new(POD_TEMPLATE, fault)));
        })
        .unwrap_or_default();
    let placeholder = PlaceholderDefaults {
        cpu: value(PLACEHOLDER_CPU, defaults.cpu),
        memory: value(PLACEHOLDER_MEMORY, defaults.memory),
        image: value(PLACEHOLDER_IMAGE, defaults.image),
        pod_template,
        placement: read(data, PLACEMENT, violations).unwrap_or_default(),
        reserves: read(data, PLACEHOLDER_RESERVES, violations).unwrap_or_default(),
        backend: read(data, PLACEHOLDER_BACKEND, violations).unwrap_or_default(),
    };
    violations.extend(placeholder.violations(str::to_owned));
    placeholder
}

/// The violation for a row of TEP-0135's table that is not valid during the migration (M6). There are three such rows.
fn invalid_combination(coschedule: Mode) -> Violation {
    Violation::new(
        COSCHEDULE,
        format!(
            "\"{coschedule}\" cannot be combined with {DISABLE_AFFINITY_ASSISTANT} \"false\" while {MIGRATION_PHASE} is \
             \"during\"; allowed: {}, or {DISABLE_AFFINITY_ASSISTANT} \"true\"",
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
