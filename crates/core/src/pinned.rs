//! What was pinned on a run when it was created: written once by admission, read by every later
//! decision, so that a run keeps what was in force at its creation, whatever the configuration
//! becomes (M8).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::annotations::{
    CLAIMS, GROUP, ISOLATION_SCOPE, MODE, PLACEHOLDER, SCHEMA_VERSION, TEKTON_AFFINITY_ASSISTANT,
    VOLUME_CLAIM_TEMPLATES, field,
};
use crate::claim_template::Parts;
use crate::config::{
    PLACEHOLDER_CPU, PLACEHOLDER_IMAGE, PLACEHOLDER_MEMORY, POD_TEMPLATE, PlaceholderDefaults,
};
use crate::document::Object;
use crate::mode::{IsolationScope, Mode};
use crate::names::{AssistantName, Group};
use crate::run_claims::RunClaims;
use crate::violation::Violation;

/// The schema version that this module reads and writes. It grows only when an older version of this module would misread
/// the annotations.
const SCHEMA: &str = "1";

/// What was pinned on a run when it was created (M8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// The mode; never [`Mode::Disabled`], which pins nothing (M5).
    pub mode: Mode,
    /// How far the run keeps other placeholders away; of no meaning outside [`Mode::IsolatePipelineRun`] (M4).
    pub isolation_scope: IsolationScope,
    /// The run's group.
    pub group: Group,
    /// The placeholder defaults.
    pub placeholder: PlaceholderDefaults,
    /// The `volumeClaimTemplate`s that admission replaced by claims, by workspace name (V2); empty in
    /// [`Mode::Workspaces`] (V3).
    pub templates: BTreeMap<String, Value>,
    /// The claims of the other workspaces (V1, V3, V9).
    pub claims: RunClaims,
}

impl Pinned {
    /// Reads what is pinned; `None` where no mode is.
    ///
    /// Tekton's own annotation is not read: its value derives from the group.
    ///
    /// # Errors
    /// Every violation at once, with fields such as `metadata.annotations[coscheduler.dev/group]`. A schema version that is
    /// not known is the only violation: the other annotations are not read.
    pub fn read(annotations: &BTreeMap<String, String>) -> Result<Option<Self>, Vec<Violation>> {
        let Some(mode) = annotations.get(MODE) else {
            return Ok(None);
        };
        if let Some(version) = unknown_schema(annotations) {
            let fault = format!("is {version:?}; allowed: {SCHEMA}, or not set");
            return Err(vec![Violation::new(field(SCHEMA_VERSION), fault)]);
        }
        let faults = &mut Vec::new();
        let mode = read_mode(mode, faults);
        let isolation_scope =
            text(annotations, ISOLATION_SCOPE, faults).and_then(|text| read_scope(text, faults));
        let group = text(annotations, GROUP, faults).and_then(|text| read_group(text, faults));
        let placeholder =
            text(annotations, PLACEHOLDER, faults).and_then(|text| read_placeholder(text, faults));
        let templates = text(annotations, VOLUME_CLAIM_TEMPLATES, faults)
            .and_then(|text| read_templates(text, faults));
        let claims = text(annotations, CLAIMS, faults).and_then(|text| read_claims(text, faults));
        match (mode, isolation_scope, group, placeholder, templates, claims) {
            (
                Some(mode),
                Some(isolation_scope),
                Some(group),
                Some(placeholder),
                Some(templates),
                Some(claims),
            ) if faults.is_empty() => Ok(Some(Self {
                mode,
                isolation_scope,
                group,
                placeholder,
                templates,
                claims,
            })),
            _ => Err(std::mem::take(faults)),
        }
    }

    /// The annotations, the one Tekton reads included.
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        let placeholder = serde_json::to_value(&self.placeholder).unwrap_or_default();
        let templates: Map<String, Value> = self
            .templates
            .iter()
            .map(|(workspace, template)| (workspace.clone(), template.clone()))
            .collect();
        let claims = claims_to_annotation(&self.claims);
        let assistant = whole_run(self.mode, &self.group);
        [
            (SCHEMA_VERSION, SCHEMA.to_owned()),
            (MODE, self.mode.to_string()),
            (ISOLATION_SCOPE, self.isolation_scope.to_string()),
            (GROUP, self.group.to_string()),
            (PLACEHOLDER, placeholder.to_string()),
            (VOLUME_CLAIM_TEMPLATES, Value::Object(templates).to_string()),
            (CLAIMS, claims),
            (
                TEKTON_AFFINITY_ASSISTANT,
                assistant.map(|name| name.to_string()).unwrap_or_default(),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

/// The schema version of annotations that this module cannot read. A run without a version was pinned before there were
/// versions, with the annotations of version 1.
pub(crate) fn unknown_schema(annotations: &BTreeMap<String, String>) -> Option<&str> {
    let version = annotations.get(SCHEMA_VERSION)?;
    (version != SCHEMA).then_some(version)
}

/// The placeholder that all pods of a run share; `None` in a mode where there is no such one.
pub(crate) fn whole_run(mode: Mode, group: &Group) -> Option<AssistantName> {
    match mode {
        Mode::PipelineRuns | Mode::IsolatePipelineRun => Some(AssistantName::of(group)),
        Mode::Workspaces | Mode::Disabled => None,
    }
}

/// The claims as the annotation has them.
pub(crate) fn claims_to_annotation(claims: &RunClaims) -> String {
    serde_json::to_value(claims).unwrap_or_default().to_string()
}

/// What a run hands on to what Tekton makes of it: mode, group and claims, where all of them can be read and the group is
/// the run's own. Tekton also copies what a Pipeline or an embedded task carries, wherever the run has nothing under that
/// key: a run that is coscheduled has all three, and one that is left alone has no group.
pub(crate) fn handed_on(
    annotations: &BTreeMap<String, String>,
    owners_group: Option<&str>,
) -> Option<(Mode, Group, RunClaims)> {
    let faults = &mut Vec::new();
    let mode = read_mode(annotations.get(MODE)?, faults)?;
    let group = annotations.get(GROUP)?;
    if Some(group.as_str()) != owners_group || unknown_schema(annotations).is_some() {
        return None;
    }
    let group = read_group(group, faults)?;
    let claims = read_claims(annotations.get(CLAIMS)?, faults)?;
    Some((mode, group, claims))
}

/// The group and templates an annotated object carries, for an object that may be a copy of a run:
/// `None` unless both can be read.
pub(crate) fn carried_templates(
    annotations: &BTreeMap<String, String>,
) -> Option<(Group, BTreeMap<String, Value>)> {
    let faults = &mut Vec::new();
    let group = read_group(annotations.get(GROUP)?, faults)?;
    let templates = read_templates(annotations.get(VOLUME_CLAIM_TEMPLATES)?, faults)?;
    faults.is_empty().then_some((group, templates))
}

fn text<'a>(
    annotations: &'a BTreeMap<String, String>,
    key: &str,
    faults: &mut Vec<Violation>,
) -> Option<&'a str> {
    let found = annotations.get(key);
    if found.is_none() {
        faults.push(Violation::new(
            field(key),
            format!("is not set; allowed: what admission writes beside {MODE}"),
        ));
    }
    found.map(String::as_str)
}

fn read_mode(text: &str, faults: &mut Vec<Violation>) -> Option<Mode> {
    let fault = match text.parse::<Mode>() {
        Ok(mode @ (Mode::Workspaces | Mode::PipelineRuns | Mode::IsolatePipelineRun)) => {
            return Some(mode);
        }
        Ok(Mode::Disabled) => format!(
            "{text:?} is never pinned; allowed: {}, {}, {}",
            Mode::Workspaces,
            Mode::PipelineRuns,
            Mode::IsolatePipelineRun
        ),
        Err(error) => error.to_string(),
    };
    faults.push(Violation::new(field(MODE), fault));
    None
}

fn read_group(text: &str, faults: &mut Vec<Violation>) -> Option<Group> {
    text.parse()
        .map_err(|error: crate::names::InvalidName| {
            faults.push(Violation::new(field(GROUP), error.to_string()))
        })
        .ok()
}

fn read_scope(text: &str, faults: &mut Vec<Violation>) -> Option<IsolationScope> {
    text.parse()
        .map_err(|error: crate::mode::UnknownScope| {
            faults.push(Violation::new(field(ISOLATION_SCOPE), error.to_string()))
        })
        .ok()
}

fn read_claims(text: &str, faults: &mut Vec<Violation>) -> Option<RunClaims> {
    read_json(
        text,
        CLAIMS,
        "an object of claims by workspace, each with name or template",
        faults,
    )
}

fn read_placeholder(text: &str, faults: &mut Vec<Violation>) -> Option<PlaceholderDefaults> {
    let defaults: PlaceholderDefaults = read_json(
        text,
        PLACEHOLDER,
        "an object with cpu, memory and image",
        faults,
    )?;
    faults.extend(defaults.violations(|key| {
        let part = match key {
            PLACEHOLDER_CPU => "cpu",
            PLACEHOLDER_MEMORY => "memory",
            PLACEHOLDER_IMAGE => "image",
            POD_TEMPLATE => "podTemplate",
            other => other,
        };
        format!("{}.{part}", field(PLACEHOLDER))
    }));
    Some(defaults)
}

fn read_templates(text: &str, faults: &mut Vec<Violation>) -> Option<BTreeMap<String, Value>> {
    let value: Value = read_json(
        text,
        VOLUME_CLAIM_TEMPLATES,
        "an object of templates by workspace",
        faults,
    )?;
    let path = field(VOLUME_CLAIM_TEMPLATES);
    Object::at(path.as_str(), &value, faults);
    let Value::Object(templates) = value else {
        return None;
    };
    for (workspace, template) in &templates {
        Parts::read(format!("{path}[{workspace}]"), template, faults);
    }
    Some(templates.into_iter().collect())
}

fn read_json<T: serde::de::DeserializeOwned>(
    text: &str,
    key: &str,
    allowed: &str,
    faults: &mut Vec<Violation>,
) -> Option<T> {
    serde_json::from_str(text)
        .map_err(|error| {
            faults.push(Violation::new(
                field(key),
                format!("{error}; allowed: JSON, {allowed}"),
            ))
        })
        .ok()
}

#[cfg(test)]
mod tests;
