//! Modes, configurations, and what flags would do.

use coscheduler_core::config::{Answer, Configuration, PlaceholderDefaults};
use coscheduler_core::mode::{IsolationScope, Mode};
use coscheduler_core::violation::Violation;

use super::checked;
use crate::config as wire;
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

/// A mode from the wire.
///
/// # Errors
///
/// Names `field` where the value is unspecified or unknown to this version.
pub fn mode(field: &str, value: i32) -> Result<Mode, Violation> {
    match wire::Mode::try_from(value) {
        Ok(wire::Mode::Workspaces) => Ok(Mode::Workspaces),
        Ok(wire::Mode::Pipelineruns) => Ok(Mode::PipelineRuns),
        Ok(wire::Mode::IsolatePipelinerun) => Ok(Mode::IsolatePipelineRun),
        Ok(wire::Mode::Disabled) => Ok(Mode::Disabled),
        Ok(wire::Mode::Unspecified) | Err(_) => Err(Violation::new(
            field,
            format!(
                "is {value}; allowed: MODE_DISABLED (1), MODE_PIPELINERUNS (2), MODE_WORKSPACES (3), \
                 MODE_ISOLATE_PIPELINERUN (4)"
            ),
        )),
    }
}

/// An isolation scope for the wire.
pub fn isolation_scope_to_wire(scope: IsolationScope) -> wire::IsolationScope {
    match scope {
        IsolationScope::Cluster => wire::IsolationScope::Cluster,
        IsolationScope::Namespace => wire::IsolationScope::Namespace,
    }
}

/// An isolation scope from the wire.
///
/// # Errors
///
/// Names `field` where the value is unspecified or unknown to this version.
pub fn isolation_scope(field: &str, value: i32) -> Result<IsolationScope, Violation> {
    match wire::IsolationScope::try_from(value) {
        Ok(wire::IsolationScope::Cluster) => Ok(IsolationScope::Cluster),
        Ok(wire::IsolationScope::Namespace) => Ok(IsolationScope::Namespace),
        Ok(wire::IsolationScope::Unspecified) | Err(_) => Err(Violation::new(
            field,
            format!(
                "is {value}; allowed: ISOLATION_SCOPE_CLUSTER (1), ISOLATION_SCOPE_NAMESPACE (2)"
            ),
        )),
    }
}

/// A configuration for the wire, without Tekton's own flag, which stands beside it there.
pub fn configuration_to_wire(configuration: &Configuration) -> wire::Configuration {
    let overrides = configuration.allowed_overrides.iter();
    let placeholder = &configuration.placeholder;
    wire::Configuration {
        mode: mode_to_wire(configuration.mode).into(),
        placeholder: Some(wire::PlaceholderDefaults {
            cpu: placeholder.cpu.clone(),
            memory: placeholder.memory.clone(),
            image: placeholder.image.clone(),
            pod_template: (!placeholder.pod_template.is_empty())
                .then(|| json::to_struct(&placeholder.pod_template)),
        }),
        isolation_scope: isolation_scope_to_wire(configuration.isolation_scope).into(),
        allowed_overrides: overrides.map(|mode| mode_to_wire(*mode).into()).collect(),
    }
}

/// A configuration from the wire, without Tekton's own flag, which stands beside it there.
///
/// # Errors
///
/// Every field that is missing or unknown to this version.
pub fn configuration(message: wire::Configuration) -> Result<Configuration, Vec<Violation>> {
    let mut violations = Vec::new();
    let mut kept = |violation| violations.push(violation);
    let mode = mode("configuration.mode", message.mode)
        .map_err(&mut kept)
        .ok();
    let isolation_scope = isolation_scope("configuration.isolation_scope", message.isolation_scope)
        .map_err(&mut kept)
        .ok();
    let allowed_overrides = message
        .allowed_overrides
        .iter()
        .enumerate()
        .filter_map(|(index, value)| {
            self::mode(&format!("configuration.allowed_overrides[{index}]"), *value)
                .map_err(&mut kept)
                .ok()
        })
        .collect();
    let placeholder = message.placeholder.map(|defaults| PlaceholderDefaults {
        cpu: defaults.cpu,
        memory: defaults.memory,
        image: defaults.image,
        pod_template: defaults
            .pod_template
            .map(json::from_struct)
            .unwrap_or_default(),
    });
    if placeholder.is_none() {
        violations.push(Violation::new(
            "configuration.placeholder",
            "is unset; it is required",
        ));
    }
    let value =
        mode.zip(isolation_scope)
            .zip(placeholder)
            .map(|((mode, isolation_scope), placeholder)| Configuration {
                mode,
                isolation_scope,
                allowed_overrides,
                placeholder,
                tekton_coschedule: None,
            });
    checked(value, violations)
}

/// What flags would do, for the wire.
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
                    allowed_overrides: [Mode::Disabled, mode].into(),
                    placeholder: PlaceholderDefaults {
                        pod_template: json!({"nodeSelector": {"disk": "ssd"}})
                            .as_object()
                            .cloned()
                            .unwrap(),
                        ..PlaceholderDefaults::default()
                    },
                    tekton_coschedule: None,
                };
                assert_eq!(
                    super::configuration(configuration_to_wire(&configuration)),
                    Ok(configuration)
                );
            }
        }
        let nothing_set = Configuration::default();
        assert_eq!(
            super::configuration(configuration_to_wire(&nothing_set)),
            Ok(nothing_set)
        );
    }

    #[test]
    fn every_missing_field_is_named() {
        let message = wire::Configuration {
            allowed_overrides: vec![1, 99],
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
