//! Modes and configurations.

use coscheduler_core::config::{Configuration, PlaceholderDefaults};
use coscheduler_core::mode::Mode;
use coscheduler_core::violation::Violation;

use super::checked;
use crate::config as wire;

/// A mode for the wire.
pub fn mode_to_wire(mode: Mode) -> wire::Mode {
    match mode {
        Mode::Disabled => wire::Mode::Disabled,
        Mode::PipelineRuns => wire::Mode::Pipelineruns,
    }
}

/// A mode from the wire.
///
/// # Errors
///
/// Names `field` where the value is unspecified or unknown to this version.
pub fn mode(field: &str, value: i32) -> Result<Mode, Violation> {
    match wire::Mode::try_from(value) {
        Ok(wire::Mode::Disabled) => Ok(Mode::Disabled),
        Ok(wire::Mode::Pipelineruns) => Ok(Mode::PipelineRuns),
        Ok(wire::Mode::Unspecified) | Err(_) => Err(Violation::new(
            field,
            format!("is {value}; allowed: MODE_DISABLED (1), MODE_PIPELINERUNS (2)"),
        )),
    }
}

/// A configuration for the wire.
pub fn configuration_to_wire(configuration: &Configuration) -> wire::Configuration {
    wire::Configuration {
        mode: mode_to_wire(configuration.mode).into(),
        placeholder: Some(wire::PlaceholderDefaults {
            cpu: configuration.placeholder.cpu.clone(),
            memory: configuration.placeholder.memory.clone(),
            image: configuration.placeholder.image.clone(),
        }),
    }
}

/// A configuration from the wire.
///
/// # Errors
///
/// Every field that is missing or unknown to this version.
pub fn configuration(message: wire::Configuration) -> Result<Configuration, Vec<Violation>> {
    let mut violations = Vec::new();
    let mode = mode("configuration.mode", message.mode)
        .map_err(|violation| violations.push(violation))
        .ok();
    let placeholder = message.placeholder.map(|defaults| PlaceholderDefaults {
        cpu: defaults.cpu,
        memory: defaults.memory,
        image: defaults.image,
    });
    if placeholder.is_none() {
        violations.push(Violation::new(
            "configuration.placeholder",
            "is unset; it is required",
        ));
    }
    let value = mode
        .zip(placeholder)
        .map(|(mode, placeholder)| Configuration { mode, placeholder });
    checked(value, violations)
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

    #[test]
    fn a_configuration_survives_the_wire() {
        for mode in Mode::ALL {
            let configuration = Configuration {
                mode,
                placeholder: PlaceholderDefaults::default(),
            };
            assert_eq!(
                super::configuration(configuration_to_wire(&configuration)),
                Ok(configuration)
            );
        }
    }

    #[test]
    fn every_missing_field_is_named() {
        let violations = configuration(wire::Configuration::default()).unwrap_err();
        let fields: Vec<_> = violations.iter().map(|v| v.field.as_str()).collect();
        assert_eq!(fields, ["configuration.mode", "configuration.placeholder"]);
    }
}
