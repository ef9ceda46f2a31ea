//! The annotations that *pin* a run's mode and the settings for its placeholders. Admission writes these annotations on a new
//! run, and every later decision reads them. So a run keeps the configuration that was in force when it was created (M8).

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::annotations::{
    ADOPTED, CLAIMS, GROUP, ISOLATION_SCOPE, MODE, PLACEHOLDER, SCHEMA_VERSION, SUBSETS,
    TEKTON_AFFINITY_ASSISTANT, VOLUME_CLAIM_TEMPLATES, field,
};
use crate::claim_template::Parts;
use crate::config::{
    PLACEHOLDER_CPU, PLACEHOLDER_IMAGE, PLACEHOLDER_MEMORY, POD_TEMPLATE, PlaceholderDefaults,
};
use crate::document::{Faults, Object};
use crate::mode::{IsolationScope, Mode};
use crate::names::Group;
use crate::naming::Naming;
use crate::overrides::{Override, Setting};
use crate::pipeline_run::PipelineRun;
use crate::run_claims::{self, RunClaims};
use crate::separation::Separation;
use crate::subsets::Subsets;
use crate::violation::Violation;

/// The version of the annotations' format for most runs. There is a new version only if an older version of this module would
/// misread the annotations.
const SCHEMA: &str = "1";
/// The version for adopted runs (B7). Annotation [`ADOPTED`] counts only in this version. In other versions, the annotation may
/// come from a Pipeline or a task: anybody can write it there, and Tekton copies it from there.
const ADOPTED_SCHEMA: &str = "2";
/// The version of runs with annotation [`SUBSETS`] or [`AWAITS_PIPELINE`](crate::annotations::AWAITS_PIPELINE) (B1). For such a
/// run, older versions of this module would create only one placeholder, or would create a placeholder too early.
pub(crate) const NEWEST_SCHEMA: &str = "3";
const SCHEMAS: [&str; 3] = [SCHEMA, ADOPTED_SCHEMA, NEWEST_SCHEMA];

/// `volumeClaimTemplate`s. The key is the workspace.
type Templates = BTreeMap<String, Value>;

/// The contents of the pinned annotations of a run (M8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// The mode. Never [`Mode::Disabled`], because then nothing is pinned (M5).
    pub mode: Mode,
    /// The isolation scope, for [`Mode::IsolatePipelineRun`] (M4).
    pub isolation_scope: IsolationScope,
    /// The run's group.
    pub group: Group,
    /// The placeholder defaults.
    pub placeholder: PlaceholderDefaults,
    /// The `volumeClaimTemplate`s that admission replaced by claims (V2). In an adopted run: the `volumeClaimTemplate`s from
    /// which Tekton's assistant makes claims (B7). The key is the workspace. Empty in [`Mode::Workspaces`] (V3).
    pub templates: BTreeMap<String, Value>,
    /// The run's claims that are not in `templates` (V1, V3, V9).
    pub claims: RunClaims,
    /// The text of annotation [`ADOPTED`], if the run is adopted (B7). In an adopted run, the bindings of the workspaces in
    /// `templates` stay as the author wrote them.
    pub adopted: Option<String>,
    /// The subsets of the run's tasks (B1). Always empty in an adopted run.
    pub subsets: Subsets,
}

impl Pinned {
    /// Reads the pinned annotations. `None` if there is no mode. This function does not read Tekton's own annotation, because its
    /// value derives from the group.
    ///
    /// # Errors
    /// All violations at once. The field of a violation is, for example, `metadata.annotations[coscheduler.dev/group]`. If the
    /// schema version is unknown, there is only a violation of this version, because the other annotations are not read then.
    pub fn read(annotations: &BTreeMap<String, String>) -> Result<Option<Self>, Vec<Violation>> {
        if !annotations.contains_key(MODE) {
            return Ok(None);
        }
        if let Some(version) = unknown_schema(annotations) {
            let fault = format!(
                "is {version:?}; allowed: {}, or not set",
                SCHEMAS.join(", ")
            );
            return Err(vec![Violation::new(field(SCHEMA_VERSION), fault)]);
        }
        let reader = Reader {
            annotations,
            faults: Faults::default(),
        };
        let pinned = reader.pinned();
        reader.faults.unless_any(pinned)
    }

    /// Reads the pinned annotations of a run. The claims include those whose names depend on the defaults of a Pipeline that
    /// Tekton fetched after the run was created (V9).
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn of(run: &PipelineRun) -> Result<Option<Self>, Vec<Violation>> {
        let pinned = Self::read(&run.annotations)?;
        Ok(pinned.map(|pinned| Self {
            claims: run_claims::known(run, &pinned.claims),
            ..pinned
        }))
    }

    /// The source of the names of the run's placeholders. `run_name` is the name of the run.
    pub(crate) fn naming<'a>(&'a self, run_name: &'a str) -> Naming<'a> {
        Naming::of(&self.group, self.adopted.as_deref(), run_name)
    }

    /// The rule for other placeholders on the node of the run's placeholder (M4, P4).
    pub fn separation(&self) -> Separation {
        match self.mode {
            Mode::IsolatePipelineRun => Separation::Isolate(self.isolation_scope),
            Mode::Workspaces | Mode::PipelineRuns | Mode::Disabled => {
                Separation::shared(self.placeholder.placement, self.placeholder.reserves)
            }
        }
    }

    /// The annotations to write, including Tekton's own.
    pub fn to_annotations(&self) -> BTreeMap<String, String> {
        // On an adopted run itself, admission does not write Tekton's annotation. It writes the annotation on each TaskRun of the
        // run.
        let (schema, assistant) = match &self.adopted {
            Some(_) => (ADOPTED_SCHEMA, None),
            None => {
                let schema = match self.subsets.is_empty() {
                    true => SCHEMA,
                    false => NEWEST_SCHEMA,
                };
                (schema, Naming::Group(&self.group).whole_run(self.mode))
            }
        };
        let mut annotations: BTreeMap<_, _> = [
            (SCHEMA_VERSION, schema.to_owned()),
            (MODE, self.mode.to_string()),
            (ISOLATION_SCOPE, self.isolation_scope.to_string()),
            (GROUP, self.group.to_string()),
            (PLACEHOLDER, json!(self.placeholder).to_string()),
            (VOLUME_CLAIM_TEMPLATES, json!(self.templates).to_string()),
            (CLAIMS, claims_to_annotation(&self.claims)),
            (
                TEKTON_AFFINITY_ASSISTANT,
                assistant.map(|name| name.to_string()).unwrap_or_default(),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into();
        if let Some(name) = &self.adopted {
            annotations.insert(ADOPTED.to_owned(), name.clone());
        }
        if !self.subsets.is_empty() {
            annotations.insert(SUBSETS.to_owned(), json!(self.subsets).to_string());
        }
        annotations
    }
}

/// The value that a setting had when the run was created. If no mode can be read, the mode is `disabled`. Other settings are
/// `None` if the run is not coscheduled, or if its annotations cannot be read.
pub(crate) fn value(annotations: &BTreeMap<String, String>, setting: Setting) -> Option<Override> {
    match setting {
        Setting::Mode => {
            let mode = annotations.get(MODE).and_then(|mode| mode.parse().ok());
            Some(Override::Mode(mode.unwrap_or(Mode::Disabled)))
        }
        Setting::Placement | Setting::Reserves => {
            let pinned = Pinned::read(annotations).ok()??;
            Some(setting.value(pinned.mode, &pinned.placeholder))
        }
    }
}

/// The schema version of the annotations, if this module cannot read this version. `None` if it can. Annotations without a
/// version have version 1.
pub(crate) fn unknown_schema(annotations: &BTreeMap<String, String>) -> Option<&str> {
    let version = annotations.get(SCHEMA_VERSION)?;
    (!SCHEMAS.contains(&version.as_str())).then_some(version)
}

/// True if a run with these annotations is adopted (B7).
pub fn is_adopted(annotations: &BTreeMap<String, String>) -> bool {
    adopted(annotations).is_some()
}

/// The text of annotation [`ADOPTED`], if it counts.
fn adopted(annotations: &BTreeMap<String, String>) -> Option<String> {
    let counts = annotations
        .get(SCHEMA_VERSION)
        .is_some_and(|it| it == ADOPTED_SCHEMA);
    counts.then(|| annotations.get(ADOPTED).cloned().unwrap_or_default())
}

/// True if annotation [`SUBSETS`] exists and counts. A child run does not have this annotation.
fn has_subsets(annotations: &BTreeMap<String, String>) -> bool {
    let schema = annotations.get(SCHEMA_VERSION);
    let counts = schema.is_some_and(|it| it == NEWEST_SCHEMA);
    counts && annotations.contains_key(SUBSETS)
}

/// The claims as the text of annotation [`CLAIMS`].
pub(crate) fn claims_to_annotation(claims: &RunClaims) -> String {
    json!(claims).to_string()
}

/// The annotations that a TaskRun, CustomRun or child PipelineRun inherited from its owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HandedOn {
    pub(crate) mode: Mode,
    pub(crate) group: Group,
    pub(crate) claims: RunClaims,
    /// As [`Pinned::adopted`].
    pub(crate) adopted: Option<String>,
    pub(crate) subsets: Subsets,
}

/// Reads the annotations of [`HandedOn`]. `None` if one of them cannot be read, if the mode is `disabled`, or if the group is not
/// the owner's.
///
/// The group must match, because Tekton also copies annotations of a Pipeline or an embedded task if the run does not have them.
/// So a child may have all these annotations although its owner is not coscheduled. But such an owner has no group, so the groups
/// do not match.
pub(crate) fn handed_on(
    annotations: &BTreeMap<String, String>,
    owners_group: Option<&str>,
) -> Option<HandedOn> {
    let group = annotations.get(GROUP)?;
    if Some(group.as_str()) != owners_group || unknown_schema(annotations).is_some() {
        return None;
    }
    let mode: Mode = annotations.get(MODE)?.parse().ok()?;
    let claims = serde_json::from_str(annotations.get(CLAIMS)?).ok()?;
    let group = group.parse().ok()?;
    let adopted = adopted(annotations);
    let subsets = match has_subsets(annotations) {
        true => serde_json::from_str(annotations.get(SUBSETS)?).ok()?,
        false => Subsets::new(),
    };
    (mode != Mode::Disabled).then_some(HandedOn {
        mode,
        group,
        claims,
        adopted,
        subsets,
    })
}

/// Group and templates from the annotations of a run, or of a copy of a run. `None` if one of them cannot be read.
pub(crate) fn carried_templates(
    annotations: &BTreeMap<String, String>,
) -> Option<(Group, Templates)> {
    let reader = Reader {
        annotations,
        faults: Faults::default(),
    };
    let carried = (reader.parsed(GROUP)?, reader.templates()?);
    reader.faults.unless_any(carried).ok()
}

struct Reader<'a> {
    annotations: &'a BTreeMap<String, String>,
    faults: Faults,
}

impl Reader<'_> {
    /// Reads all pinned annotations. The result is `None` only if there is a violation.
    fn pinned(&self) -> Option<Pinned> {
        let mode = self.parsed(MODE);
        if mode == Some(Mode::Disabled) {
            let fault = format!(
                "\"{}\" is not the mode of a coscheduled run; allowed: {}, {}, {}",
                Mode::Disabled,
                Mode::Workspaces,
                Mode::PipelineRuns,
                Mode::IsolatePipelineRun
            );
            self.faults.add(field(MODE), fault);
        }
        let isolation_scope = self.parsed(ISOLATION_SCOPE);
        let group = self.parsed(GROUP);
        let placeholder = self.placeholder();
        let templates = self.templates();
        let claims = "an object of claims by workspace, each with name or template";
        let claims = self.json(CLAIMS, claims);
        let subsets = match has_subsets(self.annotations) {
            true => self.json(SUBSETS, "an object of subsets by key"),
            false => Some(Subsets::new()),
        };
        Some(Pinned {
            mode: mode?,
            isolation_scope: isolation_scope?,
            group: group?,
            placeholder: placeholder?,
            templates: templates?,
            claims: claims?,
            adopted: adopted(self.annotations),
            subsets: subsets?,
        })
    }

    fn text(&self, key: &str) -> Option<&str> {
        let found = self.annotations.get(key);
        if found.is_none() {
            let fault = format!(
                "is not set; allowed: the value that admission writes together with {MODE}"
            );
            self.faults.add(field(key), fault);
        }
        found.map(String::as_str)
    }

    fn parsed<T: FromStr<Err: Display>>(&self, key: &str) -> Option<T> {
        let parsed = self.text(key)?.parse();
        parsed
            .map_err(|error: T::Err| self.faults.add(field(key), error.to_string()))
            .ok()
    }

    fn json<T: DeserializeOwned>(&self, key: &str, allowed: &str) -> Option<T> {
        serde_json::from_str(self.text(key)?)
            .map_err(|error| {
                let fault = format!("{error}; allowed: JSON, {allowed}");
                self.faults.add(field(key), fault);
            })
            .ok()
    }

    fn placeholder(&self) -> Option<PlaceholderDefaults> {
        let allowed = "an object with cpu, memory and image";
        let defaults: PlaceholderDefaults = self.json(PLACEHOLDER, allowed)?;
        let violations = defaults.violations(|key| {
            let part = match key {
                PLACEHOLDER_CPU => "cpu",
                PLACEHOLDER_MEMORY => "memory",
                PLACEHOLDER_IMAGE => "image",
                POD_TEMPLATE => "podTemplate",
                other => other,
            };
            format!("{}.{part}", field(PLACEHOLDER))
        });
        for Violation { field, description } in violations {
            self.faults.add(field, description);
        }
        Some(defaults)
    }

    fn templates(&self) -> Option<Templates> {
        let allowed = "an object of templates by workspace";
        let value: Value = self.json(VOLUME_CLAIM_TEMPLATES, allowed)?;
        let path = field(VOLUME_CLAIM_TEMPLATES);
        Object::at(path.as_str(), &value, &self.faults);
        let templates = value.as_object()?;
        for (workspace, template) in templates {
            Parts::read(format!("{path}[{workspace}]"), template, &self.faults);
        }
        Some(templates.clone().into_iter().collect())
    }
}

#[cfg(test)]
mod tests;
