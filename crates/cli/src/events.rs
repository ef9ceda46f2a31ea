//! `events`: the Events about a PipelineRun and its objects, in the order of their times.

use std::collections::BTreeSet;

use coscheduler_core::annotations::GROUP;
use coscheduler_core::names::{AssistantName, Group, pod_name};
use coscheduler_kubernetes::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, ObjectReference};
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde::Serialize;

use crate::args::NamedArgs;
use crate::cluster::{Cluster, api, each, failed};
use crate::failure::Failure;
use crate::output;
use crate::run_objects::RunObjects;

/// The Events about a run.
#[derive(Debug, Serialize)]
struct Timeline {
    events: Vec<Line>,
}

/// An Event.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    /// The last time at which it happened.
    time: Option<Timestamp>,
    /// Kind and name, such as `Pod/example`.
    object: String,
    #[serde(rename = "type")]
    severity: String,
    reason: String,
    message: String,
}

/// Reads the Events, and writes the answer.
pub(crate) fn run(args: &NamedArgs) -> Result<(), Failure> {
    let timeline = crate::runtime()?.block_on(read(args))?;
    if timeline.events.is_empty() {
        eprintln!(
            "The API server has no Events about this PipelineRun. By default, it keeps Events for one hour."
        );
    }
    output::write(&timeline, args.output.output.as_ref())?;
    Ok(())
}

async fn read(args: &NamedArgs) -> Result<Timeline, Failure> {
    let Cluster { client, namespace } = Cluster::new(&args.cluster).await?;
    let mut warnings = Vec::new();
    let objects = RunObjects::read(&client, &namespace, &args.name, &mut warnings).await?;
    output::warn(&warnings);
    let about = About::new(&objects);
    let mut events = Vec::new();
    let of_kind = api::<Event>(&client, Some(&namespace));
    let read = each(&of_kind, ListParams::default(), |event: Event| {
        if about.contains(&event.involved_object) {
            events.push(Line::new(event));
        }
    });
    read.await.map_err(|error| failed("list Events", error))?;
    events.sort();
    Ok(Timeline { events })
}

/// The objects of a run. Placeholders and claims are known by name, because some of them perhaps do not exist any more.
#[derive(Debug, Default)]
struct About {
    uids: BTreeSet<String>,
    /// Kind and name of each placeholder, its pod and the claims.
    names: BTreeSet<(&'static str, String)>,
}

impl About {
    fn new(objects: &RunObjects) -> Self {
        let run = &objects.run;
        let pods = objects.pods.iter().flatten();
        let uids = objects.task_runs.iter().map(|it| &it.metadata.uid);
        let uids = uids.chain(pods.clone().map(|it| &it.metadata.uid));
        let uids = uids.chain([&run.metadata.uid]).flatten().cloned();
        let group = run.annotations().get(GROUP);
        let group = group.and_then(|group| group.parse::<Group>().ok());
        let of_run = group.map(|group| AssistantName::of(&group).to_string());
        let placeholders = pods.clone().flat_map(pods::follows).chain(of_run);
        let names = placeholders.flat_map(|name| [("Pod", pod_name(&name)), ("StatefulSet", name)]);
        let claims = pods
            .flat_map(pods::claims)
            .map(|name| ("PersistentVolumeClaim", name));
        Self {
            uids: uids.collect(),
            names: names.chain(claims).collect(),
        }
    }

    fn contains(&self, object: &ObjectReference) -> bool {
        let of_object = |(kind, name): &(&str, String)| {
            object.kind.as_deref() == Some(*kind) && object.name.as_ref() == Some(name)
        };
        let uid = object.uid.as_ref();
        uid.is_some_and(|uid| self.uids.contains(uid)) || self.names.iter().any(of_object)
    }
}

impl Line {
    fn new(event: Event) -> Self {
        let time = last_time(&event);
        let object = event.involved_object;
        let kind = object.kind.unwrap_or_default();
        Self {
            time,
            object: format!("{kind}/{}", object.name.unwrap_or_default()),
            severity: event.type_.unwrap_or_default(),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        }
    }

    /// The object as `kubectl -o name` writes it, such as `pod/example`.
    fn name(&self) -> String {
        let (kind, name) = self.object.split_once('/').unwrap_or_default();
        let group = match kind {
            "PipelineRun" | "TaskRun" | "CustomRun" => ".tekton.dev",
            "StatefulSet" => ".apps",
            _ => "",
        };
        format!("{}{group}/{name}", kind.to_lowercase())
    }
}

/// The last time at which the Event happened.
pub(crate) fn last_time(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref();
    let series = series.and_then(|it| Some(it.last_observed_time.as_ref()?.0));
    let last = event.last_timestamp.as_ref().map(|it| it.0);
    series
        .max(last)
        .max(event.event_time.as_ref().map(|it| it.0))
}

impl output::Answer for Timeline {
    fn text(&self, _wide: bool) -> String {
        let headers = vec!["TIME", "OBJECT", "TYPE", "REASON", "MESSAGE"];
        let rows = self.events.iter().map(|line| {
            let time = line.time.map(|time| time.strftime("%H:%M:%S").to_string());
            vec![
                time.unwrap_or_else(|| "<unknown>".to_owned()),
                line.object.clone(),
                line.severity.clone(),
                line.reason.clone(),
                line.message.clone(),
            ]
        });
        output::table(Some(headers), rows)
    }

    fn names(&self) -> Vec<String> {
        let names: BTreeSet<_> = self.events.iter().map(Line::name).collect();
        names.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_time_of_an_event_is_the_last_one() {
        let time = |second: u8| format!("2026-01-01T00:00:0{second}Z");
        let of = |mut value: serde_json::Value| {
            value["involvedObject"] = json!({});
            let event: Event = serde_json::from_value(value).unwrap();
            last_time(&event).map(|time| time.to_string())
        };
        let first = json!({"metadata": {}, "eventTime": "2026-01-01T00:00:01.000000Z"});
        assert_eq!(of(first.clone()), Some(time(1)));
        let mut again = first;
        let series = json!({"count": 2, "lastObservedTime": "2026-01-01T00:00:03.000000Z"});
        again["series"] = series;
        assert_eq!(of(again), Some(time(3)));
        assert_eq!(
            of(json!({"metadata": {}, "lastTimestamp": time(2)})),
            Some(time(2))
        );
        assert_eq!(of(json!({"metadata": {}})), None);
    }

    #[test]
    fn each_object_is_named_once_as_kubectl_names_it() {
        let line = |object: &str, reason: &str| Line {
            time: None,
            object: object.to_owned(),
            severity: "Normal".to_owned(),
            reason: reason.to_owned(),
            message: String::new(),
        };
        let timeline = Timeline {
            events: vec![
                line("TaskRun/b", "Started"),
                line("Pod/a", "Scheduled"),
                line("Pod/a", "Pulled"),
                line("StatefulSet/p", "SuccessfulCreate"),
            ],
        };
        let names = output::Answer::names(&timeline);
        assert_eq!(
            names,
            ["pod/a", "statefulset.apps/p", "taskrun.tekton.dev/b"]
        );
    }
}
