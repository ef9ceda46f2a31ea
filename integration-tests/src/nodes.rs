//! The nodes of one test (a pool), and events of nodes. The node selector of a run keeps the run's pods on the pool. A taint keeps
//! the pods of other tests away.

use std::fmt;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use testbed::{CUSTOM_STATUS, STATUS_ANNOTATION};

use crate::Scene;
use crate::look::{LIMIT, is_placeholder, node};
use crate::runs::Run;

/// The label of the nodes of a pool, and the key of their taint. Its value is the test's namespace.
pub const POOL: &str = "example.dev/pool";

/// An event after which a node takes no pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeEvent {
    /// `kubectl cordon`.
    Cordon,
    /// A taint `NoSchedule`.
    NoSchedule,
    /// A taint `NoExecute`.
    NoExecute,
    /// Its kubelet reports that the node is not ready.
    NotReady,
    /// The node object is deleted.
    Deletion,
}

impl NodeEvent {
    /// All events.
    pub const ALL: [Self; 5] = [
        Self::Cordon,
        Self::NoSchedule,
        Self::NoExecute,
        Self::NotReady,
        Self::Deletion,
    ];
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Cordon => "cordon",
            Self::NoSchedule => "no-schedule",
            Self::NoExecute => "no-execute",
            Self::NotReady => "not-ready",
            Self::Deletion => "deletion",
        })
    }
}

impl Run {
    /// Keeps the run's pods on the nodes of the scene's pool.
    pub fn in_pool_of(self, scene: &Scene<'_>) -> Self {
        self.in_pool_with(scene, json!({}))
    }

    /// As [`Run::in_pool_of`], with further fields in the pod template.
    pub fn in_pool_with(self, scene: &Scene<'_>, mut pod_template: Value) -> Self {
        pod_template["nodeSelector"] = json!({POOL: scene.namespace});
        let own = pod_template["tolerations"].as_array().cloned();
        let mut tolerations = own.unwrap_or_default();
        tolerations.push(scene.pool_toleration());
        pod_template["tolerations"] = json!(tolerations);
        self.spec("taskRunTemplate", json!({"podTemplate": pod_template}))
    }
}

impl Scene<'_> {
    /// Creates nodes for this scene alone, and waits until pods can be bound to them.
    ///
    /// # Errors
    ///
    /// A node cannot be created, or does not become ready in time.
    pub async fn pool(&self, nodes: usize) -> anyhow::Result<()> {
        self.pool_of(&vec![("8", 110); nodes]).await
    }

    /// As [`Scene::pool`], with one node for each entry of `sizes`: its CPUs, and its maximum number of pods.
    ///
    /// # Errors
    ///
    /// As [`Scene::pool`].
    pub async fn pool_of(&self, sizes: &[(&str, u32)]) -> anyhow::Result<()> {
        for (index, (cpu, pods)) in sizes.iter().enumerate() {
            self.add_node(index + 1, cpu, *pods).await?;
        }
        self.pool_ready(sizes.len()).await
    }

    /// As [`Scene::pool`], with one node for each entry of `sizes`: its CPUs, and its memory.
    ///
    /// # Errors
    ///
    /// As [`Scene::pool`].
    pub async fn pool_with_memory(&self, sizes: &[(&str, &str)]) -> anyhow::Result<()> {
        for (index, (cpu, memory)) in sizes.iter().enumerate() {
            self.add_node_of(index + 1, (cpu, memory, 110)).await?;
        }
        self.pool_ready(sizes.len()).await
    }

    async fn pool_ready(&self, nodes: usize) -> anyhow::Result<()> {
        let api = self.nodes();
        for number in 1..=nodes {
            let name = self.pool_node(number);
            let ready = await_condition(api.clone(), &name, |node: Option<&Node>| {
                node.is_some_and(takes_pods)
            });
            tokio::time::timeout(LIMIT, ready)
                .await
                .with_context(|| format!("node {name} does not become ready"))??;
        }
        Ok(())
    }

    /// Adds a node with 16Gi of memory to the scene's pool, without waiting until it is ready.
    ///
    /// # Errors
    ///
    /// The API server refuses the node.
    pub async fn add_node(&self, number: usize, cpu: &str, pods: u32) -> anyhow::Result<()> {
        self.add_node_of(number, (cpu, "16Gi", pods)).await
    }

    async fn add_node_of(
        &self,
        number: usize,
        (cpu, memory, pods): (&str, &str, u32),
    ) -> anyhow::Result<()> {
        let name = self.pool_node(number);
        let size = json!({"cpu": cpu, "memory": memory, "pods": pods.to_string()});
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                POOL: self.namespace,
            }},
            "spec": {"taints": [self.pool_taint()]},
            "status": {"allocatable": size, "capacity": size},
        }))?;
        self.nodes().create(&PostParams::default(), &node).await?;
        Ok(())
    }

    /// The taint of the nodes of the scene's pool.
    pub fn pool_taint(&self) -> Value {
        json!({"key": POOL, "value": self.namespace, "effect": "NoSchedule"})
    }

    /// The toleration of the pods that may run on the scene's pool.
    pub fn pool_toleration(&self) -> Value {
        json!({"key": POOL, "operator": "Equal", "value": self.namespace, "effect": "NoSchedule"})
    }

    /// The name of a node of the scene's pool: the namespace, and the number of the node, from 1.
    pub fn pool_node(&self, number: usize) -> String {
        format!("{}-node-{number}", self.namespace)
    }

    /// Makes an event happen to a node.
    ///
    /// # Errors
    ///
    /// The API server refuses a request.
    pub async fn strike(&self, node: &str, event: NodeEvent) -> anyhow::Result<()> {
        match event {
            NodeEvent::Cordon => self.cordon(node, true).await,
            NodeEvent::NoSchedule => self.taint(node, "NoSchedule").await,
            NodeEvent::NoExecute => self.taint(node, "NoExecute").await,
            NodeEvent::NotReady => self.unready(node).await,
            NodeEvent::Deletion => {
                let params = DeleteParams::default();
                self.nodes().delete(node, &params).await?;
                Ok(())
            }
        }
    }

    /// Cordons or uncordons a node.
    ///
    /// # Errors
    ///
    /// The API server refuses the change.
    pub async fn cordon(&self, node: &str, cordoned: bool) -> anyhow::Result<()> {
        self.patch_node(node, json!({"spec": {"unschedulable": cordoned}}))
            .await
    }

    /// Gives a node a taint with this effect.
    ///
    /// # Errors
    ///
    /// The API server refuses the change.
    pub async fn taint(&self, node: &str, effect: &str) -> anyhow::Result<()> {
        let taints = json!([{"key": "example.dev/maintenance", "effect": effect}]);
        self.patch_node(node, json!({"spec": {"taints": taints}}))
            .await
    }

    /// Removes all taints of a node, also the taint of its pool. The pods of child runs do not tolerate it, because they have no
    /// pod template.
    ///
    /// # Errors
    ///
    /// The API server refuses the change.
    pub async fn untaint(&self, node: &str) -> anyhow::Result<()> {
        let patch = json!({"spec": {"taints": null}});
        self.patch_node(node, patch).await
    }

    /// Waits until the scene's placeholder is bound to another node than `from`, and returns its pod.
    ///
    /// # Errors
    ///
    /// The placeholder is not bound elsewhere in time. The error describes the namespace.
    pub async fn moved_from(&self, from: &str) -> anyhow::Result<Pod> {
        let elsewhere = |pod: &Pod| {
            let alive = pod.metadata.deletion_timestamp.is_none();
            is_placeholder(pod) && alive && node(pod).is_some_and(|node| node != from)
        };
        let what = format!("have a placeholder bound to another node than {from}");
        let pods = self
            .until_all::<Pod>(&what, |pods| pods.iter().any(|pod| elsewhere(pod)))
            .await?;
        let moved = pods.iter().find(|pod| elsewhere(pod));
        Ok(moved.context("there is none")?.as_ref().clone())
    }

    async fn unready(&self, node: &str) -> anyhow::Result<()> {
        // From now on, KWOK does not change the status of the node.
        let custom = json!({"metadata": {"annotations": {STATUS_ANNOTATION: CUSTOM_STATUS}}});
        self.patch_node(node, custom).await?;
        let now = Timestamp::now().strftime("%FT%TZ").to_string();
        let conditions = json!([{
            "type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "of the test's making",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }]);
        let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
        self.nodes()
            .patch_status(node, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    async fn patch_node(&self, node: &str, patch: Value) -> anyhow::Result<()> {
        let params = PatchParams::default();
        let patched = self
            .nodes()
            .patch(node, &params, &Patch::Merge(patch))
            .await?;
        anyhow::ensure!(patched.name_any() == node);
        Ok(())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }
}

/// True if the node has a taint that its pool does not have.
pub fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key != POOL)
}

fn takes_pods(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten();
    !is_tainted(node)
        && ready
            .into_iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
