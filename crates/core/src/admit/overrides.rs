//! Who chooses a run's mode (B1): the run itself, else its Pipeline, else its Namespace, else the cluster's flag. The
//! operator says which modes may be chosen; choosing what the flag says anyway is no override.

use crate::annotations::{OVERRIDE, field};
use crate::config::{ALLOWED_OVERRIDES, COSCHEDULE, Configuration};
use crate::mode::Mode;
use crate::violation::Violation;
use crate::words::UnknownWord;

use super::Question;

/// The mode of a run.
///
/// # Errors
/// Where the first who chooses chooses what is no mode, or is not allowed.
pub(super) fn mode(
    configuration: &Configuration,
    question: &Question<'_>,
) -> Result<Mode, Violation> {
    let Some(choice) = choice(question) else {
        return Ok(configuration.mode);
    };
    let mode = choice
        .text
        .parse()
        .map_err(|error: UnknownWord| choice.violation(&error.to_string()))?;
    if mode == configuration.mode || configuration.allowed_overrides.contains(&mode) {
        return Ok(mode);
    }
    let flag = configuration.mode;
    let allowed = match configuration.allowed_overrides.len() {
        0 => format!("{flag}, as the cluster's {COSCHEDULE} says"),
        _ => {
            let modes: Vec<_> = configuration
                .allowed_overrides
                .iter()
                .map(|mode| mode.as_str())
                .collect();
            format!(
                "{flag}, as the cluster's {COSCHEDULE} says, and {} of {ALLOWED_OVERRIDES}",
                modes.join(", ")
            )
        }
    };
    Err(choice.violation(&format!(
        "\"{mode}\" may not be chosen here; the operator allows it with key {ALLOWED_OVERRIDES} of ConfigMap \
         coscheduler-config; allowed: {allowed}"
    )))
}

/// What somebody has chosen.
struct Choice<'a> {
    text: &'a str,
    field: String,
    /// Empty where it is the run itself.
    who: String,
}

impl Choice<'_> {
    fn violation(&self, description: &str) -> Violation {
        Violation::new(self.field.as_str(), format!("{}{description}", self.who))
    }
}

fn choice<'a>(question: &Question<'a>) -> Option<Choice<'a>> {
    let run = question.run;
    let of_run = run.annotations.get(OVERRIDE).map(|text| Choice {
        text: text.as_str(),
        field: field(OVERRIDE),
        who: String::new(),
    });
    let of_pipeline = || {
        question.pipeline_override.map(|text| Choice {
            text,
            field: "spec.pipelineRef.name".to_owned(),
            who: format!(
                "annotation {OVERRIDE} of Pipeline {:?}: ",
                run.pipeline_name.as_deref().unwrap_or_default()
            ),
        })
    };
    let of_namespace = || {
        question.namespace_override.map(|text| Choice {
            text,
            field: "metadata.namespace".to_owned(),
            who: format!("annotation {OVERRIDE} of Namespace {:?}: ", run.namespace),
        })
    };
    of_run.or_else(of_pipeline).or_else(of_namespace)
}
