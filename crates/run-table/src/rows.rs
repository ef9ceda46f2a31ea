//! Converts a [`Board`] to rows of a table, with kubectl's words for the states.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;

use crate::board::{Board, Kind, PIPELINE_TASK, RunResult, TASK_RUN, node};

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The kind of object, or `task` for a TaskRun's pod.
    pub kind: &'static str,
    /// The object's name, or for a TaskRun's pod the name of the task in the pipeline.
    pub name: String,
    /// Its state, such as `Running` or `gone`.
    pub state: String,
    /// The name of its node; empty if it has none.
    pub node: String,
}

/// The annotation that the scheduler sets on a claim with binding mode `WaitForFirstConsumer`: the chosen node.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The rows of the table: first the run; then its StatefulSets, placeholders and claims, including deleted objects; and then the
/// pods of its tasks, in the order of their creation.
pub fn rows(board: &Board) -> Vec<Row> {
    let state = match board.result() {
        RunResult::Running(reason) => reason,
        RunResult::Succeeded => "Succeeded".to_owned(),
        RunResult::Failed(why) => why,
        RunResult::Gone => "deleted".to_owned(),
    };
    let mut rows = vec![row("PipelineRun", board.name.clone(), state, None)];

    let (mut tasks, placeholders): (Vec<&Pod>, Vec<&Pod>) = board
        .pods
        .objects
        .values()
        .partition(|pod| pod.labels().contains_key(TASK_RUN));
    let sets = board
        .sets
        .objects
        .values()
        .map(|set| (Kind::StatefulSet, set.name_any(), set_state(set), None));
    let placeholders = placeholders
        .iter()
        .map(|pod| (Kind::Placeholder, pod.name_any(), pod_state(pod), node(pod)));
    let claims = board.claims.objects.values().map(|claim| {
        let node = claim.annotations().get(SELECTED_NODE).cloned();
        (Kind::Claim, claim.name_any(), claim_state(claim), node)
    });
    let gone = board.passing().iter().filter(|(_, gone)| gone.is_some());
    let gone = gone.map(|((kind, name), _)| (*kind, name.clone(), "gone".to_owned(), None));
    // Ordered by kind and name, so that a row keeps its place when its object is deleted.
    let passing: BTreeMap<(Kind, String), (String, Option<String>)> = gone
        .chain(sets)
        .chain(placeholders)
        .chain(claims)
        .map(|(kind, name, state, node)| ((kind, name), (state, node)))
        .collect();
    rows.extend(
        passing
            .into_iter()
            .map(|((kind, name), (state, node))| row(kind.name(), name, state, node)),
    );

    tasks.sort_by_key(|pod| {
        (
            pod.metadata.creation_timestamp.clone().map(|time| time.0),
            pod.name_any(),
        )
    });
    rows.extend(tasks.iter().map(|pod| {
        let task = pod.labels().get(PIPELINE_TASK).cloned();
        row(
            "task",
            task.unwrap_or_else(|| pod.name_any()),
            pod_state(pod),
            node(pod),
        )
    }));
    rows
}

fn row(kind: &'static str, name: String, state: String, node: Option<String>) -> Row {
    Row {
        kind,
        name,
        state,
        node: node.unwrap_or_default(),
    }
}

fn set_state(set: &StatefulSet) -> String {
    let ready = set
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0);
    let wanted = set
        .spec
        .as_ref()
        .and_then(|spec| spec.replicas)
        .unwrap_or(1);
    or_terminating(set, format!("{ready}/{wanted} ready"))
}

fn claim_state(claim: &PersistentVolumeClaim) -> String {
    let phase = claim
        .status
        .as_ref()
        .and_then(|status| status.phase.clone());
    or_terminating(claim, phase.unwrap_or_else(|| "Pending".to_owned()))
}

fn pod_state(pod: &Pod) -> String {
    let status = pod.status.as_ref();
    let phase = status
        .and_then(|status| status.phase.clone())
        .unwrap_or_else(|| "Pending".to_owned());
    let conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    let unscheduled = conditions
        .filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False")
        .find_map(|condition| condition.reason.clone());
    let containers = status
        .and_then(|status| status.container_statuses.as_ref())
        .into_iter()
        .flatten();
    let waiting = containers
        .filter_map(|container| container.state.as_ref()?.waiting.as_ref()?.reason.clone())
        .find(|reason| reason != "PodInitializing" && reason != "ContainerCreating");
    let state = match unscheduled.or(waiting) {
        Some(reason) => format!("{phase} ({reason})"),
        None => phase,
    };
    or_terminating(pod, state)
}

fn or_terminating<K: ResourceExt>(object: &K, state: String) -> String {
    if object.meta().deletion_timestamp.is_some() {
        "Terminating".to_owned()
    } else {
        state
    }
}
