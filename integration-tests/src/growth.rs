//! Nodes that Karpenter adds for one scene. Each scene has a NodePool of its own, so that the scenes of a stack do not share
//! nodes.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::Scene;
use crate::look::{LIMIT, until};
use crate::nodes::POOL;

/// The time between two polls.
const PAUSE: Duration = Duration::from_millis(100);

/// The nodes that Karpenter added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// The number of nodes, by the CPUs of a node.
    sizes: BTreeMap<u32, usize>,
}

impl Added {
    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.sizes.values().sum()
    }

    /// The CPUs of all nodes.
    pub fn cpus(&self) -> usize {
        let sizes = self.sizes.iter();
        sizes.map(|(cpus, nodes)| *cpus as usize * nodes).sum()
    }

    /// Adds the nodes of another wave of runs.
    pub fn and(mut self, other: &Self) -> Self {
        for (cpus, nodes) in &other.sizes {
            *self.sizes.entry(*cpus).or_default() += nodes;
        }
        self
    }
}

impl fmt::Display for Added {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.sizes.iter();
        let sizes: Vec<_> = sizes
            .map(|(cpus, nodes)| format!("{nodes} of {cpus}"))
            .collect();
        let (cpus, nodes, sizes) = (self.cpus(), self.nodes(), sizes.join(", "));
        write!(formatter, "{cpus} CPUs on {nodes} nodes ({sizes})")
    }
}

impl Scene<'_> {
    /// Lets Karpenter add nodes to the scene's pool. The bed must have Karpenter.
    ///
    /// # Errors
    ///
    /// The API server refuses the NodePool.
    pub async fn let_pool_grow(&self) -> anyhow::Result<()> {
        let pool = json!({
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodePool",
            "metadata": {"name": self.namespace},
            "spec": {
                "template": {
                    "metadata": {"labels": {POOL: self.namespace}},
                    "spec": {
                        "nodeClassRef": {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "testbed"},
                        "requirements": [{"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}],
                        "expireAfter": "Never",
                        "taints": [self.pool_taint()],
                    },
                },
                "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
            },
        });
        self.stack.bed.apply(&pool.to_string()).await
    }

    /// Lets Karpenter remove each node of the scene's pool whose pods fit on other nodes, several nodes at a time.
    ///
    /// # Errors
    ///
    /// The API server refuses the change.
    pub async fn let_pool_shrink(&self) -> anyhow::Result<()> {
        let pool = format!("/apis/karpenter.sh/v1/nodepools/{}", self.namespace);
        let disruption = json!({
            "consolidationPolicy": "WhenEmptyOrUnderutilized",
            "consolidateAfter": "1s",
            "budgets": [{"nodes": "100%"}],
        });
        let patch = json!({"spec": {"disruption": disruption}});
        let answer = self.send_to("PATCH", &pool, &patch).await?;
        answer.accepted().map(drop)
    }

    /// Waits until Karpenter has removed a node.
    ///
    /// # Errors
    ///
    /// The node is still there after the time limit.
    pub async fn node_is_removed(&self, name: &str) -> anyhow::Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        let gone = async || Ok(nodes.get_opt(name).await?.is_none());
        until(&format!("Karpenter has removed {name}"), gone).await
    }

    /// Deletes the nodes that Karpenter added to the scene's pool, and returns their sizes. The sizes come from Karpenter's
    /// instance types, because the capacity that its provider writes on a node covers only the pods for which Karpenter added
    /// the node.
    ///
    /// # Errors
    ///
    /// The nodes are not gone in time.
    pub async fn take_added_nodes(&self) -> anyhow::Result<Added> {
        let of_pool =
            ListParams::default().labels(&format!("karpenter.sh/nodepool={}", self.namespace));
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodeClaim"));
        let claims = Api::<DynamicObject>::all_with(self.client.clone(), &kind);
        let nodes = Api::<Node>::all(self.client.clone());
        let mut seen = BTreeMap::new();
        let taken = async {
            loop {
                let there = claims.list(&of_pool).await?.items;
                if there.is_empty() {
                    if nodes.list(&of_pool).await?.items.is_empty() {
                        return anyhow::Ok(());
                    }
                    // If a NodeClaim is deleted before its node is registered, Karpenter forgets the node.
                    let all = DeleteParams::default();
                    nodes.delete_collection(&all, &of_pool).await?;
                }
                for claim in there {
                    let name = claim.name_any();
                    // Without this label, the node does not exist yet.
                    let Some(of_type) = claim.labels().get("node.kubernetes.io/instance-type")
                    else {
                        continue;
                    };
                    let cpus = of_type.strip_prefix("testbed-").unwrap_or_default();
                    let cpus: u32 = cpus.parse().with_context(|| format!("{name}: {of_type}"))?;
                    if seen.insert(name.clone(), cpus).is_none() {
                        claims.delete(&name, &DeleteParams::default()).await?;
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        match tokio::time::timeout(LIMIT, taken).await {
            Ok(taken) => taken?,
            Err(_) => {
                let claims = claims.list(&of_pool).await?;
                let claims: Vec<_> = claims.iter().map(ResourceExt::name_any).collect();
                let nodes = nodes.list(&of_pool).await?;
                let nodes: Vec<_> = nodes.iter().map(ResourceExt::name_any).collect();
                let pods = self.api::<Pod>().list(&ListParams::default()).await?;
                let pods: Vec<_> = pods.iter().map(ResourceExt::name_any).collect();
                bail!(
                    "after {LIMIT:?} there are still added nodes in {}: NodeClaims {claims:?}, \
                     nodes {nodes:?}, with pods {pods:?} in the namespace",
                    self.namespace
                )
            }
        }
        let mut added = Added::default();
        for cpus in seen.into_values() {
            *added.sizes.entry(cpus).or_default() += 1;
        }
        Ok(added)
    }
}
