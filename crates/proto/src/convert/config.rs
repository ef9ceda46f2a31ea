//! Conversions of configurations, and of the answers of `CheckFlags`.

use std::collections::BTreeSet;

use coscheduler_core::config::{Answer, Backend, Configuration, PlaceholderDefaults, Reserves};
use coscheduler_core::mode::{CoscheduledClaims, IsolationScope, Mode};
use coscheduler_core::overrides::Override;
use coscheduler_core::separation::Placement;
use coscheduler_core::violation::Violation;

use crate::config as wire;
use crate::config::r#override::Value;
use crate::json;

/// A mode for the wire.
pub fn mode_to_wire(mode: Mode) -> wire::Mode {
    match mode {
        Mode::Workspaces => wire::Mode::Workspaces,
        Mode::PipelineRuns => wire::Mode::Pipelineruns,
        Mode::IsolatePipelineRun => wire::Mode::IsolatePipelinerun,
        Mode::Disabled => wire::Mode::Disabled,
    }
}

fn isolation_scope_to_wire(scope: IsolationScope) -> wire::IsolationScope {
    match scope {
        IsolationScope::Cluster => wire::IsolationScope::Cluster,
        IsolationScope::Namespace => wire::IsolationScope::Namespace,
    }
}

fn coschedule_claims_to_wire(claims: CoscheduledClaims) -> wire::CoscheduledClaims {
    match claims {
        CoscheduledClaims::All => wire::CoscheduledClaims::All,
        CoscheduledClaims::NodeBound => wire::CoscheduledClaims::NodeBound,
    }
}

fn placement_to_wire(placement: Placement) -> wire::Placement {
    match placement {
        Placement::Spread => wire::Placement::Spread,
        Placement::Pack => wire::Placement::Pack,
        Placement::None => wire::Placement::None,
    }
}

pub(super) fn reserves_to_wire(reserves: Reserves) -> wire::Reserves {
    match reserves {
        Reserves::Nothing => wire::Reserves::Nothing,
        Reserves::Placement => wire::Reserves::Placement,
        Reserves::Peak => wire::Reserves::Peak,
    }
}

pub(super) fn backend_to_wire(backend: Backend) -> wire::Backend {
    match backend {
        Backend::Controlled => wire::Backend::Statefulset,
        Backend::Pod => wire::Backend::Pod,
    }
}

/// The value among `all` that has this number on the wire. `None` if there is none.
fn known<T: Copy, W: Into<i32>, const N: usize>(
    all: [T; N],
    to_wire: fn(T) -> W,
    number: i32,
) -> Option<T> {
    all.into_iter().find(|it| to_wire(*it).into() == number)
}

/// The value among `all` that has this number on the wire. 0 (unspecified) means the default, because an older config-service
/// does not set the field.
fn known_or_default<T: Copy + Default, W: Into<i32>, const N: usize>(
    all: [T; N],
    to_wire: fn(T) -> W,
    number: i32,
) -> Option<T> {
    match number {
        0 => Some(T::default()),
        _ => known(all, to_wire, number),
    }
}

fn override_to_wire(value: &Override) -> wire::Override {
    wire::Override {
        value: Some(match value {
            Override::Mode(mode) => Value::Mode(mode_to_wire(*mode).into()),
            Override::Placement(placement) => {
                Value::Placement(placement_to_wire(*placement).into())
            }
            Override::Reserves(reserves) => Value::Reserves(reserves_to_wire(*reserves).into()),
        }),
    }
}

/// An override from the wire. If this version does not know the value, the error is the value's number. If there is no value, the
/// error is 0.
fn override_of(message: &wire::Override) -> Result<Override, i32> {
    let (value, number) = match message.value.ok_or(0)? {
        Value::Mode(it) => (known(Mode::ALL, mode_to_wire, it).map(Override::Mode), it),
        Value::Placement(it) => {
            let placement = known(Placement::ALL, placement_to_wire, it);
            (placement.map(Override::Placement), it)
        }
        Value::Reserves(it) => {
            let reserves = known(Reserves::ALL, reserves_to_wire, it);
            (reserves.map(Override::Reserves), it)
        }
    };
    value.ok_or(number)
}

/// A configuration for the wire, without Tekton's own flag, which is a field of `ConfigStatus`.
pub fn configuration_to_wire(configuration: &Configuration) -> wire::Configuration {
    let overrides = |values: &BTreeSet<Override>| values.iter().map(override_to_wire).collect();
    let placeholder = &configuration.placeholder;
    wire::Configuration {
        mode: mode_to_wire(configuration.mode).into(),
        placeholder: Some(wire::PlaceholderDefaults {
            cpu: placeholder.cpu.clone(),
            memory: placeholder.memory.clone(),
            image: placeholder.image.clone(),
            pod_template: (!placeholder.pod_template.is_empty())
                .then(|| json::to_struct(&placeholder.pod_template)),
            placement: placement_to_wire(placeholder.placement).into(),
            reserves: reserves_to_wire(placeholder.reserves).into(),
            backend: backend_to_wire(placeholder.backend).into(),
        }),
        isolation_scope: isolation_scope_to_wire(configuration.isolation_scope).into(),
        coschedule_claims: coschedule_claims_to_wire(configuration.coschedule_claims).into(),
        allowed_overrides: overrides(&configuration.allowed_overrides),
        namespace_may_allow: overrides(&configuration.namespace_may_allow),
        adopt_runs_in: configuration.adopt_runs_in.iter().cloned().collect(),
    }
}

/// A configuration from the wire, without Tekton's own flag, which is a field of `ConfigStatus`.
///
/// # Errors
///
/// A violation for each required field that is missing, and for each value that this version does not know. If `placement`,
/// `reserves`, `backend` or `coschedule_claims` is missing, it has its default.
pub fn configuration(message: wire::Configuration) -> Result<Configuration, Vec<Violation>> {
    let mut violations = Vec::new();
    let mut unknown = |field: &str, value: i32| {
        let description = format!("is {value}, which is unspecified or not known to this version");
        violations.push(Violation::new(
            format!("configuration.{field}"),
            description,
        ));
    };
    let mode = known(Mode::ALL, mode_to_wire, message.mode);
    if mode.is_none() {
        unknown("mode", message.mode);
    }
    let scope = message.isolation_scope;
    let isolation_scope = known(IsolationScope::ALL, isolation_scope_to_wire, scope);
    if isolation_scope.is_none() {
        unknown("isolation_scope", scope);
    }
    let claims = message.coschedule_claims;
    let coschedule_claims =
        known_or_default(CoscheduledClaims::ALL, coschedule_claims_to_wire, claims).unwrap_or_else(
            || {
                unknown("coschedule_claims", claims);
                CoscheduledClaims::default()
            },
        );
    let mut overrides = |field: &str, messages: &[wire::Override]| {
        let values = messages.iter().enumerate().filter_map(|(index, message)| {
            override_of(message)
                .map_err(|number| unknown(&format!("{field}[{index}]"), number))
                .ok()
        });
        values.collect()
    };
    let allowed_overrides = overrides("allowed_overrides", &message.allowed_overrides);
    let namespace_may_allow = overrides("namespace_may_allow", &message.namespace_may_allow);
    let placeholder = message.placeholder.map(|defaults| PlaceholderDefaults {
        cpu: defaults.cpu,
        memory: defaults.memory,
        image: defaults.image,
        pod_template: defaults
            .pod_template
            .map(json::from_struct)
            .unwrap_or_default(),
        placement: known_or_default(Placement::ALL, placement_to_wire, defaults.placement)
            .unwrap_or_else(|| {
                unknown("placeholder.placement", defaults.placement);
                Placement::default()
            }),
        reserves: known_or_default(Reserves::ALL, reserves_to_wire, defaults.reserves)
            .unwrap_or_else(|| {
                unknown("placeholder.reserves", defaults.reserves);
                Reserves::default()
            }),
        backend: known_or_default(Backend::ALL, backend_to_wire, defaults.backend).unwrap_or_else(
            || {
                unknown("placeholder.backend", defaults.backend);
                Backend::default()
            },
        ),
    });
    if placeholder.is_none() {
        let field = "configuration.placeholder";
        violations.push(Violation::new(field, "is unset; it is required"));
    }
    let (Some(mode), Some(isolation_scope), Some(placeholder), true) =
        (mode, isolation_scope, placeholder, violations.is_empty())
    else {
        return Err(violations);
    };
    Ok(Configuration {
        mode,
        isolation_scope,
        coschedule_claims,
        allowed_overrides,
        namespace_may_allow,
        placeholder,
        adopt_runs_in: message.adopt_runs_in.into_iter().collect(),
        tekton_coschedule: None,
        version: None,
    })
}

/// An answer about flags for the wire.
pub fn answer_to_wire(answer: Answer) -> wire::CheckFlagsResponse {
    let mode = |mode: Option<Mode>| mode.map_or(wire::Mode::Unspecified, mode_to_wire).into();
    let (configuration, violations) = match answer.outcome {
        Ok(configuration) => (Some(configuration_to_wire(&configuration)), Vec::new()),
        Err(violations) => (None, violations_to_wire(&violations)),
    };
    wire::CheckFlagsResponse {
        configuration,
        violations,
        warnings: answer.warnings,
        mode_during_migration: mode(answer.during),
        mode_after_migration: mode(answer.after),
    }
}

/// Violations of ConfigMap keys for the wire.
pub fn violations_to_wire(violations: &[Violation]) -> Vec<wire::FlagViolation> {
    violations
        .iter()
        .map(|violation| wire::FlagViolation {
            key: violation.field.clone(),
            description: violation.description.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_configuration_survives_the_wire() {
        for mode in Mode::ALL {
            for isolation_scope in IsolationScope::ALL {
                let configuration = Configuration {
                    mode,
                    isolation_scope,
                    coschedule_claims: CoscheduledClaims::NodeBound,
                    allowed_overrides: [Override::Mode(mode)].into(),
                    namespace_may_allow: Override::all().collect(),
                    placeholder: PlaceholderDefaults {
                        pod_template: json!({"nodeSelector": {"disk": "ssd"}})
                            .as_object()
                            .cloned()
                            .unwrap(),
                        ..PlaceholderDefaults::default()
                    },
                    adopt_runs_in: ["team-a".to_owned()].into(),
                    tekton_coschedule: None,
                    version: None,
                };
                assert_eq!(
                    super::configuration(configuration_to_wire(&configuration)),
                    Ok(configuration)
                );
            }
        }
        for placement in Placement::ALL {
            for reserves in Reserves::ALL {
                for backend in Backend::ALL {
                    let mut configuration = Configuration::default();
                    configuration.placeholder.placement = placement;
                    configuration.placeholder.reserves = reserves;
                    configuration.placeholder.backend = backend;
                    assert_eq!(
                        super::configuration(configuration_to_wire(&configuration)),
                        Ok(configuration)
                    );
                }
            }
        }
        let nothing_set = Configuration::default();
        assert_eq!(
            super::configuration(configuration_to_wire(&nothing_set)),
            Ok(nothing_set)
        );
    }

    #[test]
    fn p4_v8_b3_what_an_older_config_service_leaves_out_has_its_default_and_unknown_words_are_named()
     {
        let with = |value: i32| {
            let mut message = configuration_to_wire(&Configuration::default());
            let placeholder = message.placeholder.as_mut().unwrap();
            (placeholder.placement, placeholder.reserves) = (value, value);
            placeholder.backend = value;
            message.coschedule_claims = value;
            configuration(message)
        };
        assert_eq!(with(0), Ok(Configuration::default()));
        let violations = with(99).unwrap_err();
        let fields: Vec<_> = violations.iter().map(|v| v.field.as_str()).collect();
        let placeholder = "configuration.placeholder";
        assert_eq!(
            fields,
            [
                "configuration.coschedule_claims".to_owned(),
                format!("{placeholder}.placement"),
                format!("{placeholder}.reserves"),
                format!("{placeholder}.backend")
            ]
        );
    }

    #[test]
    fn every_missing_field_is_named() {
        let message = wire::Configuration {
            allowed_overrides: [
                Some(Value::Mode(1)),
                Some(Value::Mode(99)),
                None,
                Some(Value::Placement(0)),
            ]
            .map(|value| wire::Override { value })
            .into(),
            namespace_may_allow: vec![wire::Override {
                value: Some(Value::Reserves(99)),
            }],
            ..wire::Configuration::default()
        };
        let violations = configuration(message).unwrap_err();
        let fields: Vec<_> = violations.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "configuration.mode",
                "configuration.isolation_scope",
                "configuration.allowed_overrides[1]",
                "configuration.allowed_overrides[2]",
                "configuration.allowed_overrides[3]",
                "configuration.namespace_may_allow[0]",
                "configuration.placeholder"
            ]
        );
    }

    #[test]
    fn m6_both_columns_of_the_table_are_on_the_wire() {
        let flags = |coschedule: &str| [("coschedule".to_owned(), coschedule.to_owned())].into();
        let answer = answer_to_wire(coscheduler_core::config::answer(&flags("pipelineruns")));
        assert_eq!(answer.mode_during_migration(), wire::Mode::Unspecified);
        assert_eq!(answer.mode_after_migration(), wire::Mode::Pipelineruns);
        assert!(answer.configuration.is_some());
        let answer = answer_to_wire(coscheduler_core::config::answer(&flags("sideways")));
        assert_eq!(answer.mode_after_migration(), wire::Mode::Unspecified);
        assert_eq!(answer.violations[0].key, "coschedule");
    }
}
