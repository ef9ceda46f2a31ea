//! Chooses a run's mode, placement and reservation (B1). Four objects can set each of these settings: the run itself, its
//! Pipeline, its Namespace, and ConfigMap `coscheduler-config`. The first object in this order that sets a value decides. The
//! operator limits the values that the run, the Pipeline and the Namespace may choose. Within the operator's limit, the Namespace
//! can set another limit for its runs and Pipelines.

use std::collections::{BTreeMap, BTreeSet};

use crate::annotations::{ALLOWED_OVERRIDES, field};
use crate::config::Configuration;
use crate::mode::Mode;
use crate::overrides::{Override, Setting, words};
use crate::violation::Violation;

use super::{Question, denials, warnings};

/// The settings that are chosen for a run.
pub(super) struct Chosen {
    /// The configuration in force, changed by the chosen values.
    pub(super) configuration: Configuration,
    /// A warning if the Namespace's list of allowed values has words without effect.
    pub(super) warning: Option<String>,
    /// True if a Pipeline that a resolver fetches later may still choose another value.
    pub(super) is_open: bool,
}

/// Chooses the settings of a run.
///
/// # Errors
/// One violation for each setting for which the object that decides chooses a value that does not exist or is not allowed. In
/// mode `disabled`, only the mode is checked.
pub(super) fn choose(
    configuration: &Configuration,
    question: &Question<'_>,
) -> Result<Chosen, Vec<Violation>> {
    let (limits, warning) = Limits::of(configuration, question);
    let mut chosen = configuration.clone();
    let mut violations = Vec::new();
    for setting in Setting::ALL {
        if setting != Setting::Mode && chosen.mode == Mode::Disabled {
            break;
        }
        match value(setting, configuration, question, &limits) {
            Ok(value) => chosen.choose(value),
            Err(violation) => violations.push(violation),
        }
    }
    if !violations.is_empty() {
        return Err(violations);
    }
    Ok(Chosen {
        warning,
        is_open: question.run.has_resolver && limits.leave_open(question, &chosen),
        configuration: chosen,
    })
}

fn value(
    setting: Setting,
    configuration: &Configuration,
    question: &Question<'_>,
    limits: &Limits,
) -> Result<Override, Violation> {
    let of_cluster = configuration.value(setting);
    let of_namespace = match Choice::of_namespace(setting, question) {
        Some(choice) => choice.among(&limits.of_namespace, limits),
        None => Ok(of_cluster),
    };
    let Some(choice) = Choice::of_author(setting, question) else {
        return of_namespace;
    };
    // An author may always choose the value that would be in force without the choice.
    let mut allowed = limits.of_authors.clone();
    allowed.insert(of_namespace.unwrap_or(of_cluster));
    choice.among(&allowed, limits)
}

/// The values that the Namespace, and the authors of runs and Pipelines, may choose.
struct Limits {
    /// The values that the Namespace may choose for its runs, and may allow its runs and Pipelines to choose.
    of_namespace: BTreeSet<Override>,
    /// The values that runs and Pipelines may choose.
    of_authors: BTreeSet<Override>,
}

impl Limits {
    fn of(configuration: &Configuration, question: &Question<'_>) -> (Self, Option<String>) {
        let mut of_authors = configuration.allowed_overrides.clone();
        of_authors.extend(Setting::ALL.map(|setting| configuration.value(setting)));
        let of_namespace = &of_authors | &configuration.namespace_may_allow;
        let mut warning = None;
        if let Some(text) = annotation(question.namespace_annotations, ALLOWED_OVERRIDES) {
            let permitted = |word: &str| word.parse().ok().filter(|it| of_namespace.contains(it));
            of_authors = words(text).filter_map(permitted).collect();
            let others: Vec<_> = words(text)
                .filter(|word| permitted(word).is_none())
                .collect();
            if !others.is_empty() {
                let namespace = &question.run.namespace;
                warning = Some(warnings::not_permitted(namespace, &others, &of_namespace));
            }
        }
        let limits = Self {
            of_namespace,
            of_authors,
        };
        (limits, warning)
    }

    /// True if a Pipeline may choose another value for a setting that the run itself does not choose. A reservation does not
    /// count: the tasks of a Pipeline that a resolver fetches have no known requests, so there is nothing to reserve.
    fn leave_open(&self, question: &Question<'_>, chosen: &Configuration) -> bool {
        let by_run = |setting: Setting| question.run.annotations.contains_key(setting.annotation());
        let is_off = chosen.mode == Mode::Disabled && by_run(Setting::Mode);
        let mut allowed = self.of_authors.iter();
        !is_off
            && allowed.any(|it| {
                let setting = it.setting();
                setting != Setting::Reserves && !by_run(setting) && *it != chosen.value(setting)
            })
    }
}

/// An annotation that chooses a value for a setting.
pub(super) struct Choice<'a> {
    setting: Setting,
    text: &'a str,
    /// The run's field that a violation names: the run's own annotation, or the field that names the Pipeline or the Namespace.
    field: String,
    /// The beginning of a message: the annotation, and the object that has the annotation. Empty if the run itself has the
    /// annotation.
    object: String,
    /// The run's Namespace.
    pub(super) namespace: &'a str,
}

impl<'a> Choice<'a> {
    /// The choice of the run, or else of its Pipeline. `None` if neither has the annotation.
    fn of_author(setting: Setting, question: &Question<'a>) -> Option<Self> {
        let run = question.run;
        if let Some(text) = run.annotations.get(setting.annotation()) {
            return Some(Self {
                setting,
                text,
                field: field(setting.annotation()),
                object: String::new(),
                namespace: &run.namespace,
            });
        }
        let pipeline = ("Pipeline", run.pipeline_name.as_deref().unwrap_or_default());
        let annotations = question.pipeline_annotations;
        let field = "spec.pipelineRef.name";
        Self::of(setting, question, annotations, field, pipeline)
    }

    fn of_namespace(setting: Setting, question: &Question<'a>) -> Option<Self> {
        let namespace = ("Namespace", question.run.namespace.as_str());
        let annotations = question.namespace_annotations;
        let field = "metadata.namespace";
        Self::of(setting, question, annotations, field, namespace)
    }

    fn of(
        setting: Setting,
        question: &Question<'a>,
        annotations: Option<&'a BTreeMap<String, String>>,
        field: &str,
        (kind, name): (&str, &str),
    ) -> Option<Self> {
        let key = setting.annotation();
        Some(Self {
            setting,
            text: annotation(annotations, key)?,
            field: field.to_owned(),
            object: format!("annotation {key} of {kind} {name:?}: "),
            namespace: &question.run.namespace,
        })
    }

    fn among(&self, allowed: &BTreeSet<Override>, limits: &Limits) -> Result<Override, Violation> {
        let value = self.setting.parse(self.text);
        let value = value.map_err(|error| denials::unknown_value(self, &error))?;
        if allowed.contains(&value) {
            return Ok(value);
        }
        let by_namespace = limits.of_namespace.contains(&value);
        Err(denials::not_allowed(self, value, allowed, by_namespace))
    }

    pub(super) fn violation(&self, description: &str) -> Violation {
        Violation::new(self.field.as_str(), format!("{}{description}", self.object))
    }
}

fn annotation<'a>(annotations: Option<&'a BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    annotations?.get(key).map(String::as_str)
}
