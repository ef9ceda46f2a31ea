//! The facts on the page: each node with the runs on it, and the runs that wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use coscheduler_core::annotations::MODE;
use coscheduler_core::labels::{PIPELINE_RUN, PIPELINE_RUN_UID};
use coscheduler_core::requests::Amounts;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, is_done};
use coscheduler_kubernetes::{needs, nodes, pods};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;

use crate::run_status::{RunStatus, mode, phase};

/// The label with the name of the task in its Pipeline. Tekton sets it on the pod of each TaskRun.
const PIPELINE_TASK: &str = "tekton.dev/pipelineTask";

/// The facts on the page.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    /// The nodes with PipelineRuns, ordered by name.
    pub(super) lanes: Vec<Lane>,
    /// The number of nodes without PipelineRuns. `None` if the user is not allowed to read nodes.
    pub(super) other_nodes: Option<usize>,
    /// The runs that wait, ordered by namespace and name.
    pub(super) waiting: Vec<Waiting>,
}

/// A node.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) node: String,
    /// `None` if the user is not allowed to read nodes.
    pub(super) allocatable: Option<Amounts>,
    /// True if the node is cordoned.
    pub(super) is_cordoned: bool,
    /// The runs, ordered by namespace and name.
    pub(super) blocks: Vec<Block>,
    /// The CPU requests, in thousandths, of pods that belong to no PipelineRun. Pods that the page does not watch, such as those
    /// of other namespaces, do not count.
    pub(super) others_milli_cpu: i128,
}

/// The pods of a run on a node.
#[derive(Debug, Default)]
pub(super) struct Block {
    pub(super) namespace: String,
    pub(super) run: String,
    /// `unknown` if the run was deleted, or was not seen yet.
    pub(super) mode: String,
    /// The requests of each of the run's placeholders.
    pub(super) placeholders: BTreeMap<String, Amounts>,
    /// The pods of its tasks, ordered by name.
    pub(super) tasks: BTreeMap<String, Task>,
}

/// The pod of a task.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) name: String,
    pub(super) phase: String,
    pub(super) requests: Amounts,
}

/// A run that waits.
#[derive(Debug, PartialEq)]
pub(super) struct Waiting {
    pub(super) namespace: String,
    pub(super) run: String,
    pub(super) mode: String,
    /// The code of the cause. Empty if tekton-coscheduler gave none.
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) created: Option<Timestamp>,
}

impl Lane {
    /// CPU in thousandths that is free: the room between the blocks and the end of the lane.
    pub(super) fn free_milli_cpu(&self) -> i128 {
        let used: i128 = self.blocks.iter().map(Block::milli_cpu).sum();
        let allocatable = self.allocatable.as_ref().map_or(0, |it| it.milli_cpu);
        (allocatable - used - self.others_milli_cpu).max(0)
    }
}

impl Block {
    /// CPU in thousandths that the run requests on the node.
    pub(super) fn milli_cpu(&self) -> i128 {
        let tasks = self.tasks.values().map(|task| &task.requests);
        let all = self.placeholders.values().chain(tasks);
        all.map(|requests| requests.milli_cpu).sum()
    }
}

/// The facts about these objects. `nodes` is `None` if the user is not allowed to read nodes.
pub(super) fn of(
    nodes: Option<&[Arc<Node>]>,
    runs: &[Arc<PipelineRun>],
    pods: &[Arc<Pod>],
) -> Lanes {
    let modes: BTreeMap<_, _> = runs
        .iter()
        .filter_map(|run| Some((run.metadata.uid.as_deref()?, mode(run))))
        .collect();
    let is_known = nodes.is_some();
    let mut lanes = BTreeMap::new();
    for node in nodes.into_iter().flatten() {
        let view = nodes::view(node);
        let lane = Lane {
            node: view.name.clone(),
            allocatable: Some(view.allocatable),
            is_cordoned: view.unschedulable,
            ..Lane::default()
        };
        lanes.insert(view.name, lane);
    }
    let mut blocks = BTreeMap::<_, Block>::new();
    for pod in pods {
        let Some(node) = pods::node(pod) else {
            continue;
        };
        let lane = lanes.entry(node.to_owned()).or_insert_with(|| Lane {
            node: node.to_owned(),
            ..Lane::default()
        });
        let Some(uid) = pods::label(pod, PIPELINE_RUN_UID) else {
            lane.others_milli_cpu += needs::requests(pod).milli_cpu;
            continue;
        };
        let block = blocks.entry((node, uid)).or_default();
        block.mode = modes.get(uid).copied().unwrap_or("unknown").to_owned();
        block.add(pod);
    }
    for ((node, _), block) in blocks {
        if let Some(lane) = lanes.get_mut(node) {
            lane.blocks.push(block);
        }
    }
    let others = lanes
        .values()
        .filter(|lane: &&Lane| lane.allocatable.is_some() && lane.blocks.is_empty())
        .count();
    let mut lanes: Vec<_> = lanes.into_values().collect();
    lanes.retain(|lane| !lane.blocks.is_empty());
    for lane in &mut lanes {
        let key = |block: &Block| (block.namespace.clone(), block.run.clone());
        lane.blocks.sort_by_key(key);
    }
    Lanes {
        other_nodes: is_known.then_some(others),
        lanes,
        waiting: waiting(runs, pods),
    }
}

impl Block {
    fn add(&mut self, pod: &Pod) {
        self.namespace = pod.namespace().unwrap_or_default();
        let run = pods::label(pod, PIPELINE_RUN).unwrap_or_default();
        run.clone_into(&mut self.run);
        let requests = needs::requests(pod);
        if pods::is_placeholder(pod) {
            self.placeholders.insert(pod.name_any(), requests);
            return;
        }
        let name = pod.name_any();
        let task = pods::label(pod, PIPELINE_TASK).map(str::to_owned);
        let task = Task {
            name: task.unwrap_or_else(|| name.clone()),
            phase: phase(pod),
            requests,
        };
        self.tasks.insert(name, task);
    }
}

/// The coscheduled runs that tekton-coscheduler reports as waiting, and those with a pod for which the scheduler found no node.
fn waiting(runs: &[Arc<PipelineRun>], pods: &[Arc<Pod>]) -> Vec<Waiting> {
    let mut unplaced = BTreeMap::new();
    for pod in pods.iter().filter(|pod| pods::is_unschedulable(pod)) {
        if let Some(uid) = pods::label(pod, PIPELINE_RUN_UID) {
            let first = unplaced.entry(uid).or_insert(pod);
            // The order of the pods is not stable.
            if pod.metadata.name < first.metadata.name {
                *first = pod;
            }
        }
    }
    let mut waiting: Vec<_> = runs
        .iter()
        .filter(|run| run.annotations().contains_key(MODE) && !is_done(run))
        .filter(|run| run.metadata.deletion_timestamp.is_none())
        .filter_map(|run| {
            let status = RunStatus::new(run, None);
            let uid = run.metadata.uid.as_deref().unwrap_or_default();
            let (reason, message) = match (status.blocked, unplaced.get(uid)) {
                (Some(blocked), _) => (blocked.reason, blocked.message),
                (None, Some(pod)) => {
                    let said = pods::scheduler_said(pod).unwrap_or_default();
                    let pod = pod.name_any();
                    ("", format!("Pod {pod} has no node. The scheduler: {said}"))
                }
                (None, None) => return None,
            };
            Some(Waiting {
                namespace: status.namespace,
                run: status.name,
                mode: status.mode,
                reason,
                message,
                created: status.created,
            })
        })
        .collect();
    let key = |run: &Waiting| (run.namespace.clone(), run.run.clone());
    waiting.sort_by_key(key);
    waiting
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn object<T: serde::de::DeserializeOwned>(value: Value) -> Arc<T> {
        Arc::new(serde_json::from_value(value).unwrap())
    }

    fn node(name: &str) -> Arc<Node> {
        object(json!({
            "metadata": {"name": name},
            "spec": {"unschedulable": true},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}},
        }))
    }

    fn run(name: &str, annotations: Value) -> Arc<PipelineRun> {
        object(json!({
            "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "spec": {},
            "metadata": {"namespace": "ns", "name": name, "uid": name, "annotations": annotations},
        }))
    }

    fn pod(name: &str, labels: Value, node: Option<&str>, status: Value) -> Arc<Pod> {
        let asks = json!({"requests": {"cpu": "500m"}});
        object(json!({
            "metadata": {"namespace": "ns", "name": name, "labels": labels},
            "spec": {"nodeName": node, "containers": [{"name": "c", "resources": asks}]},
            "status": status,
        }))
    }

    fn of_run(run: &str, more: Value) -> Value {
        let mut labels = more;
        labels["tekton.dev/pipelineRun"] = run.into();
        labels["tekton.dev/pipelineRunUID"] = run.into();
        labels
    }

    #[test]
    fn a_lane_has_the_runs_of_its_node_and_the_room_between_them() {
        let runs = [
            run("a", json!({"coscheduler.dev/mode": "workspaces"})),
            run("b", json!({})),
        ];
        let running = json!({"phase": "Running"});
        let component = json!({"app.kubernetes.io/component": "affinity-assistant"});
        let task = json!({"tekton.dev/pipelineTask": "build", "tekton.dev/taskRun": "t"});
        let on = Some("n1");
        let pods = [
            pod("p-0", of_run("a", component), on, running.clone()),
            pod("build", of_run("a", task.clone()), on, running.clone()),
            pod("b", of_run("b", task.clone()), on, running.clone()),
            pod("c", of_run("c", task.clone()), on, running.clone()),
            pod("stranger", json!({}), on, running.clone()),
            pod("unplaced", of_run("a", task), None, json!({})),
        ];
        let facts = of(Some(&[node("n1"), node("n2")]), &runs, &pods);
        assert_eq!(facts.other_nodes, Some(1));
        let [lane] = &facts.lanes[..] else {
            panic!("{facts:?}");
        };
        assert_eq!((lane.node.as_str(), lane.is_cordoned), ("n1", true));
        assert_eq!((lane.others_milli_cpu, lane.free_milli_cpu()), (500, 1500));
        let [a, b, c] = &lane.blocks[..] else {
            panic!("{facts:?}");
        };
        assert_eq!((a.run.as_str(), a.mode.as_str()), ("a", "workspaces"));
        assert_eq!((b.run.as_str(), b.mode.as_str()), ("b", "disabled"));
        assert_eq!((c.run.as_str(), c.mode.as_str()), ("c", "unknown"));
        assert_eq!((a.placeholders.len(), a.milli_cpu()), (1, 1000));
        assert_eq!(a.tasks["build"].name, "build");
        let few_rights = of(None, &runs, &pods);
        assert_eq!(few_rights.other_nodes, None);
        assert_eq!(few_rights.lanes[0].allocatable, None);
    }

    #[test]
    fn a_run_waits_for_the_cause_on_it_or_for_what_the_scheduler_says() {
        let mode = "coscheduler.dev/mode";
        let blocked = json!({"reason": "QuotaExceeded", "message": "too much"}).to_string();
        let runs = [
            run("c", json!({mode: "workspaces"})),
            run(
                "b",
                json!({mode: "workspaces", "coscheduler.dev/blocked": blocked}),
            ),
            run("a", json!({mode: "workspaces"})),
        ];
        let unschedulable = json!({"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room",
        }]});
        let pods = [
            pod("c-task", of_run("c", json!({})), None, unschedulable),
            pod("a-task", of_run("a", json!({})), None, json!({})),
        ];
        let waiting = of(None, &runs, &pods).waiting;
        let told: Vec<_> = waiting
            .iter()
            .map(|run| (run.run.as_str(), run.reason, run.message.as_str()))
            .collect();
        let expect = [
            ("b", "QuotaExceeded", "too much"),
            ("c", "", "Pod c-task has no node. The scheduler: no room"),
        ];
        assert_eq!(told, expect);
    }
}
