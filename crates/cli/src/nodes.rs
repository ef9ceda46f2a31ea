//! `nodes`: the nodes, the PipelineRuns on them, the requests of placeholders, and the free CPU and memory.

use std::collections::{BTreeMap, BTreeSet};

use coscheduler_core::labels::{PIPELINE_RUN, PIPELINE_RUN_UID};
use coscheduler_core::requests::{Amounts, in_words};
use coscheduler_kubernetes::pods::{self, NOT_ENDED};
use coscheduler_kubernetes::{needs, nodes};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use serde::Serialize;

use crate::args::NodesArgs;
use crate::cluster::{Cluster, each, failed, list};
use crate::failure::Failure;
use crate::output;

/// The nodes, ordered by name.
#[derive(Debug, Default, Serialize)]
struct Answer {
    nodes: Vec<NodeStatus>,
    #[serde(skip)]
    with_headers: bool,
}

/// A node, and the pods on it that have not ended.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    name: String,
    /// The PipelineRuns of the pods, as `namespace/name`, coscheduled or not.
    runs: BTreeSet<String>,
    /// The names of the placeholders' pods, as `namespace/name`.
    placeholders: BTreeSet<String>,
    pods: BTreeSet<PodStatus>,
    /// CPU in thousandths that the node has for pods.
    allocatable_milli_cpu: i128,
    /// Memory in bytes that the node has for pods.
    allocatable_memory: i128,
    /// CPU in thousandths that the placeholders request.
    held_milli_cpu: i128,
    /// Memory in bytes that the placeholders request.
    held_memory: i128,
    /// CPU in thousandths that no pod requests.
    free_milli_cpu: i128,
    /// Memory in bytes that no pod requests.
    free_memory: i128,
}

/// A pod. Pods are ordered by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    /// `namespace/name`.
    name: String,
    /// The pod's PipelineRun, as `namespace/name`.
    run: Option<String>,
    /// CPU in thousandths that the pod requests.
    milli_cpu: i128,
    /// Memory in bytes that the pod requests.
    memory: i128,
}

/// Reads the nodes and the pods on them that have not ended, and writes the answer.
pub(crate) fn run(args: &NodesArgs) -> Result<(), Failure> {
    let answer = crate::runtime()?.block_on(read(args))?;
    output::write(&answer, args.output.output.as_ref())?;
    Ok(())
}

async fn read(args: &NodesArgs) -> Result<Answer, Failure> {
    let client = Cluster::of(&args.kubeconfig).await?.client;
    let nodes = list(&Api::<Node>::all(client.clone()), ListParams::default()).await;
    let nodes = nodes.map_err(|error| failed("list nodes", error))?;
    let mut seen = BTreeMap::new();
    for node in &nodes {
        seen.insert(node.name_any(), NodeStatus::new(node));
    }
    let not_ended = ListParams::default().fields(NOT_ENDED);
    let pods: Api<Pod> = Api::all(client);
    let read = each(&pods, not_ended, |pod| {
        if let Some(node) = pods::node(&pod).and_then(|name| seen.get_mut(name)) {
            node.add(&pod);
        }
    });
    read.await.map_err(|error| failed("list pods", error))?;
    Ok(Answer {
        nodes: seen.into_values().collect(),
        with_headers: !args.no_headers,
    })
}

impl NodeStatus {
    fn new(node: &Node) -> Self {
        let allocatable = nodes::view(node).allocatable;
        Self {
            name: node.name_any(),
            allocatable_milli_cpu: allocatable.milli_cpu,
            allocatable_memory: allocatable.memory,
            free_milli_cpu: allocatable.milli_cpu,
            free_memory: allocatable.memory,
            ..Self::default()
        }
    }

    fn add(&mut self, pod: &Pod) {
        let requests = needs::requests(pod);
        self.free_milli_cpu -= requests.milli_cpu;
        self.free_memory -= requests.memory;
        let named = |name: &str| format!("{}/{name}", pod.namespace().unwrap_or_default());
        if pods::is_placeholder(pod) {
            let Amounts {
                milli_cpu, memory, ..
            } = needs::asks(pod);
            self.held_milli_cpu += milli_cpu;
            self.held_memory += memory;
            self.placeholders.insert(named(&pod.name_any()));
        }
        let of_run = pods::label(pod, PIPELINE_RUN_UID).is_some();
        let run = of_run.then(|| named(pods::label(pod, PIPELINE_RUN).unwrap_or_default()));
        self.runs.extend(run.clone());
        self.pods.insert(PodStatus {
            name: named(&pod.name_any()),
            run,
            milli_cpu: requests.milli_cpu,
            memory: requests.memory,
        });
    }
}

impl output::Answer for Answer {
    fn text(&self, wide: bool) -> String {
        let mut headers = vec!["NODE", "RUNS", "PLACEHOLDERS", "HELD", "FREE"];
        if wide {
            headers.extend(["ALLOCATABLE", "RUN NAMES", "REQUESTS OF PODS"]);
        }
        let amounts = |milli_cpu, memory| {
            let (cpu, memory) = (in_words("cpu", milli_cpu), in_words("memory", memory));
            format!("cpu {cpu}, memory {memory}")
        };
        let rows = self.nodes.iter().map(|node| {
            let mut cells = vec![
                node.name.clone(),
                node.runs.len().to_string(),
                node.placeholders.len().to_string(),
                amounts(node.held_milli_cpu, node.held_memory),
                amounts(node.free_milli_cpu, node.free_memory),
            ];
            if wide {
                let pods = node.pods.iter();
                let pods: Vec<_> = pods
                    .map(|it| format!("{}: {}", it.name, amounts(it.milli_cpu, it.memory)))
                    .collect();
                cells.extend([
                    amounts(node.allocatable_milli_cpu, node.allocatable_memory),
                    output::words(node.runs.iter().map(String::as_str)),
                    pods.join("\n"),
                ]);
            }
            cells
        });
        output::table(self.with_headers.then_some(headers), rows)
    }

    fn names(&self) -> Vec<String> {
        let names = self.nodes.iter().map(|node| &node.name);
        names.map(|name| format!("node/{name}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Answer as _;
    use serde_json::{Value, json};

    #[test]
    fn a_nodes_room_is_what_no_pod_requests() {
        let node = serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}},
        }));
        let mut seen = NodeStatus::new(&node.unwrap());
        let mut add = |name: &str, labels: Value, container: &str| {
            let requests = json!({"requests": {"cpu": "500m", "memory": "1Gi"}});
            let pod = serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "ns", "labels": labels},
                "spec": {"containers": [{"name": container, "resources": requests}]},
            }));
            seen.add(&pod.unwrap());
        };
        let of_run = json!({"tekton.dev/pipelineRun": "r", "tekton.dev/pipelineRunUID": "u"});
        let mut placeholder = of_run.clone();
        placeholder["app.kubernetes.io/component"] = "affinity-assistant".into();
        add("p-0", placeholder, "affinity-assistant");
        add("task", of_run, "step");
        add("stranger", json!({}), "c");
        let pods: Vec<_> = seen.pods.iter().map(|pod| pod.run.as_deref()).collect();
        assert_eq!(pods, [Some("ns/r"), None, Some("ns/r")]);
        let answer = Answer {
            nodes: vec![seen],
            with_headers: false,
        };
        let cells = |wide| -> Vec<String> {
            let text = answer.text(wide);
            let cells = text.split(['\n', ' ']).filter(|it| !it.is_empty());
            cells.map(str::to_owned).collect()
        };
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let narrow = "a 1 1 cpu 500m, memory 1Gi cpu 2500m, memory 5Gi";
        assert_eq!(cells(false), words(narrow));
        // Each pod has a line of its own.
        let wide = ["p-0", "stranger", "task"].map(|pod| format!("ns/{pod}: cpu 500m, memory 1Gi"));
        let wide = format!("{narrow} cpu 4, memory 8Gi ns/r {}", wide.join(" "));
        assert_eq!(cells(true), words(&wide));
        assert_eq!(answer.text(true).lines().count(), 3);
    }
}
