//! The choice of a run's mode (B1). Four places can choose. The first of these places that has a value counts: the run itself,
//! its Pipeline, its Namespace, the cluster's flag. The operator sets the modes that the first three may choose.

use crate::annotations::{OVERRIDE, field};
use crate::config::Configuration;
use crate::mode::Mode;
use crate::violation::Violation;

use super::{Question, denials};

/// The mode of a run.
///
/// # Errors
/// The value that counts is not the name of a mode, or is a mode that the operator does not allow.
pub(super) fn mode(
    configuration: &Configuration,
    question: &Question<'_>,
) -> Result<Mode, Violation> {
    let Some(choice) = choice(question) else {
        return Ok(configuration.mode);
    };
    let mode = choice.text.parse();
    let mode = mode.map_err(|error| denials::unknown_mode(&choice, &error))?;
    if mode == configuration.mode || configuration.allowed_overrides.contains(&mode) {
        Ok(mode)
    } else {
        Err(denials::mode_not_allowed(&choice, mode, configuration))
    }
}

/// A choice of a mode.
pub(super) struct Choice<'a> {
    text: &'a str,
    /// The field of the run that led to the choice.
    field: String,
    /// The object with the choice; empty for the run itself.
    object: String,
}

impl Choice<'_> {
    pub(super) fn violation(&self, description: &str) -> Violation {
        Violation::new(self.field.as_str(), format!("{}{description}", self.object))
    }
}

fn choice<'a>(question: &Question<'a>) -> Option<Choice<'a>> {
    let run = question.run;
    if let Some(text) = run.annotations.get(OVERRIDE) {
        let (field, object) = (field(OVERRIDE), String::new());
        return Some(Choice {
            text,
            field,
            object,
        });
    }
    let pipeline = run.pipeline_name.as_deref().unwrap_or_default();
    let others = [
        (
            question.pipeline_override,
            "spec.pipelineRef.name",
            "Pipeline",
            pipeline,
        ),
        (
            question.namespace_override,
            "metadata.namespace",
            "Namespace",
            &run.namespace,
        ),
    ];
    others.into_iter().find_map(|(text, field, kind, name)| {
        Some(Choice {
            text: text?,
            field: field.to_owned(),
            object: format!("annotation {OVERRIDE} of {kind} {name:?}: "),
        })
    })
}
