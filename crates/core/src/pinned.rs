//! What was pinned on a run when it was created: written once by admission, read by every later
//! decision, so that a run keeps what was in force at its creation, whatever the configuration
//! becomes (M8).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::annotations::{
    GROUP, MODE, PLACEHOLDER, TEKTON_AFFINITY_ASSISTANT, VOLUME_CLAIM_TEMPLATES, field,
};
use crate::claim_template::Parts;
use crate::config::{
    PLACEHOLDER_CPU, PLACEHOLDER_IMAGE, PLACEHOLDER_MEMORY, POD_TEMPLATE, PlaceholderDefaults,
};
use crate::document::Object;
use crate::mode::Mode;
use crate::names::{AssistantName, Group};
use crate::violation::Violation;

/// What was pinned on a run when it was created (M8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// The mode; never [`Mode::Disabled`], which pins nothing (M5).
    pub mode: Mode,
    /// The run's group.
    pub group: Group,
    /// The placeholder defaults.
    pub placeholder: PlaceholderDefaults,
    /// The `volumeClaimTemplate`s that admission replaced by claims, by workspace name (V2).
    pub templates: BTreeMap<String, Value>,
}

impl Pinned {
    /// Reads what is pinned; `None` where no mode is.
    ///
    /// Tekton's own annotation is not read: its value derives from the group.
    ///
    /// # Errors
    /// Every violation at once, with fields such as `metadata.annotations[coscheduler.dev/group]`.
    pub fn read(annotations: &BTreeMap<String, String>) -> Result<Option<Self>, Vec<Violation>> {
        let Some(mode) = annotations.get(MODE) else {
            return Ok(None);
        };
        let faults = &mut Vec::new();
        let mode = read_mode(mode, faults);
        let group = text(annotations, GROUP, faults).and_then(|text| read_group(text, faults));
        let placeholder =
            text(annotations, PLACEHOLDER, faults).and_then(|text| read_placeholder(text, faults));
        let templates = text(annotations, VOLUME_CLAIM_TEMPLATES, faults)
            .and_then(|text| read_templates(text, faults));
        match (mode, group, placeholder, templates) {
            (Some(mode), Some(group), Some(placeholder), Some(templates)) if faults.is_empty() => {
                Ok(Some(Self {
                    mode,
                    group,
                    placeholder,
                    templates,
                }))
            }
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
        [
            (MODE, self.mode.to_string()),
            (GROUP, self.group.to_string()),
            (PLACEHOLDER, placeholder.to_string()),
            (VOLUME_CLAIM_TEMPLATES, Value::Object(templates).to_string()),
            (
                TEKTON_AFFINITY_ASSISTANT,
                AssistantName::of(&self.group).to_string(),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
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
        Ok(Mode::PipelineRuns) => return Some(Mode::PipelineRuns),
        Ok(Mode::Workspaces | Mode::IsolatePipelineRun | Mode::Disabled) => {
            format!("{text:?} is never pinned; allowed: {}", Mode::PipelineRuns)
        }
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
mod tests {
    use super::*;
    use crate::annotations::{PINNED, TRACEPARENT};
    use proptest::prelude::*;
    use serde_json::json;

    fn example() -> Pinned {
        Pinned {
            mode: Mode::PipelineRuns,
            group: "79340742ab".parse().unwrap(),
            placeholder: PlaceholderDefaults::default(),
            templates: [(
                "source".to_owned(),
                json!({"spec": {"accessModes": ["ReadWriteOnce"]}}),
            )]
            .into(),
        }
    }

    #[test]
    fn m8_exactly_the_pinned_annotations_are_written() {
        let annotations = example().to_annotations();
        let mut keys: Vec<_> = PINNED
            .into_iter()
            .filter(|key| *key != TRACEPARENT)
            .collect();
        keys.sort_unstable();
        assert_eq!(
            annotations.keys().map(String::as_str).collect::<Vec<_>>(),
            keys
        );
        assert_eq!(annotations[MODE], "pipelineruns");
        assert_eq!(annotations[GROUP], "79340742ab");
        assert_eq!(
            annotations[TEKTON_AFFINITY_ASSISTANT],
            "affinity-assistant-79340742ab"
        );
        assert_eq!(
            serde_json::from_str::<Value>(&annotations[PLACEHOLDER]).unwrap(),
            json!({"cpu": "50m", "memory": "100Mi", "image": "registry.k8s.io/pause:3.10.1"})
        );
        assert_eq!(
            annotations[VOLUME_CLAIM_TEMPLATES],
            r#"{"source":{"spec":{"accessModes":["ReadWriteOnce"]}}}"#
        );
    }

    #[test]
    fn m5_nothing_is_pinned_without_a_mode() {
        let mut annotations = example().to_annotations();
        annotations.remove(MODE);
        assert_eq!(Pinned::read(&annotations), Ok(None));
        assert_eq!(Pinned::read(&BTreeMap::new()), Ok(None));
    }

    #[track_caller]
    fn refused(key: &str, value: Option<&str>, expect: &[(&str, &str)]) {
        let mut annotations = example().to_annotations();
        match value {
            Some(value) => annotations.insert(key.to_owned(), value.to_owned()),
            None => annotations.remove(key),
        };
        let violations = Pinned::read(&annotations).unwrap_err();
        let found: Vec<_> = violations
            .iter()
            .map(|fault| (fault.field.as_str(), fault.description.as_str()))
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn each_unreadable_annotation_is_refused_by_its_key() {
        let mode = "metadata.annotations[coscheduler.dev/mode]";
        refused(
            MODE,
            Some("disabled"),
            &[(mode, "\"disabled\" is never pinned; allowed: pipelineruns")],
        );
        refused(
            MODE,
            Some("all"),
            &[(
                mode,
                "\"all\" is not a coschedule mode; allowed: workspaces, pipelineruns, isolate-pipelinerun, disabled",
            )],
        );
        let group = "metadata.annotations[coscheduler.dev/group]";
        refused(
            GROUP,
            Some("x"),
            &[(
                group,
                "\"x\" is not a group; allowed: exactly 10 lowercase hex digits",
            )],
        );
        refused(
            GROUP,
            None,
            &[(
                group,
                "is not set; allowed: what admission writes beside coscheduler.dev/mode",
            )],
        );
        let templates = "metadata.annotations[coscheduler.dev/volume-claim-templates]";
        refused(
            VOLUME_CLAIM_TEMPLATES,
            Some("[]"),
            &[(templates, "is a list, []; allowed: an object")],
        );
        refused(
            VOLUME_CLAIM_TEMPLATES,
            Some(r#"{"source":{"spec":3},"cache":{}}"#),
            &[
                (
                    &format!("{templates}[cache].spec"),
                    "is not set; allowed: an object, the spec of a PersistentVolumeClaim",
                ),
                (
                    &format!("{templates}[source].spec"),
                    "is a number, 3; allowed: an object",
                ),
            ],
        );
        refused(
            PLACEHOLDER,
            Some(r#"{"cpu":"0","memory":"100Mi","image":"pause"}"#),
            &[(
                "metadata.annotations[coscheduler.dev/placeholder].cpu",
                "\"0\" is not an amount a pod can ask for; allowed: more than 0, in whole thousandths of a CPU, such as 50m",
            )],
        );
        for text in ["", "{}", "null", r#"{"cpu":"50m","memory":"1Mi"}"#] {
            let mut annotations = example().to_annotations();
            annotations.insert(PLACEHOLDER.to_owned(), text.to_owned());
            assert_eq!(
                Pinned::read(&annotations).unwrap_err()[0].field,
                "metadata.annotations[coscheduler.dev/placeholder]"
            );
        }
    }

    #[test]
    fn all_violations_come_at_once() {
        let annotations = [(MODE.to_owned(), "x".to_owned())].into();
        assert_eq!(Pinned::read(&annotations).unwrap_err().len(), 4);
    }

    proptest! {
        #[test]
        fn m8_what_is_written_reads_back(
            request in "\\PC*",
            cpu in 1_u32..10_000,
            memory in 1_u32..10_000,
            templates in proptest::collection::btree_map("\\PC*", ("\\PC*", proptest::option::of(1_u64..u64::MAX)), 0..4),
        ) {
            let pinned = Pinned {
                mode: Mode::PipelineRuns,
                group: Group::from_request_uid(&request),
                placeholder: PlaceholderDefaults {
                    cpu: format!("{cpu}m"),
                    memory: format!("{memory}Ki"),
                    image: format!("registry.example/pause:{cpu}"),
                    ..PlaceholderDefaults::default()
                },
                templates: templates
                    .into_iter()
                    .map(|(workspace, (name, storage))| {
                        let spec = json!({"resources": {"requests": {"storage": storage}}});
                        (workspace, json!({"metadata": {"name": name}, "spec": spec}))
                    })
                    .collect(),
            };
            prop_assert_eq!(Pinned::read(&pinned.to_annotations()), Ok(Some(pinned)));
        }
    }
}
