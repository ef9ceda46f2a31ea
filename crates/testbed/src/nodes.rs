//! Nodes, kubelets and storage: creates Node objects, and starts KWOK with stages that simulate the kubelet and the storage
//! provisioner. The stages are YAML files in folder `manifests`.

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Config;
use crate::config::{CUSTOM_STATUS, STATUS_ANNOTATION, ZONAL_STORAGE_CLASS};
use crate::control_plane::{Site, flag};
use crate::credentials::Identity;
use crate::files::write;
use crate::manifests;
use crate::waiting::until;

const NODE_STAGES: &str = include_str!("../manifests/node-stages.yaml");
const POD_RESIZE_STAGE: &str = include_str!("../manifests/pod-resize-stage.yaml");
const POD_STAGES: &str = include_str!("../manifests/pod-stages.yaml");
const STORAGE_STAGES: &str = include_str!("../manifests/storage-stages.yaml");
const STORAGE_CLASSES: &str = include_str!("../manifests/storage-classes.yaml");

/// How long the nodes may take to become ready.
const NODES_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts KWOK with all stages.
pub(crate) fn start_kwok(site: &Site, config: &Config) -> Result<()> {
    let zones = serde_json::to_string(&zones(config)?).context("failed to name the zones")?;
    let pods = POD_STAGES.replace(
        "${TASK_MILLISECONDS}",
        &config.task_duration.as_millis().to_string(),
    );
    let storage = STORAGE_STAGES.replace("${ZONES}", &zones);
    let options = json!({
        "apiVersion": "config.kwok.x-k8s.io/v1alpha1",
        "kind": "KwokConfiguration",
        "options": {
            "manageAllNodes": true,
            "disregardStatusWithAnnotationSelector": format!("{STATUS_ANNOTATION}={CUSTOM_STATUS}"),
            "cidr": "10.244.0.0/16",
            "nodeLeaseDurationSeconds": 40,
            "nodeLeaseParallelism": 4,
            "nodePlayStageParallelism": 4,
            "podPlayStageParallelism": 16,
            "podsOnNodeSyncParallelism": 4,
            "enablePodsOnNodeSyncStreamWatch": true,
        },
    });
    let own = kwok_stages(&site.binaries.kwok_stages()?)?;
    let mut parts = vec![
        options.to_string(),
        own,
        NODE_STAGES.to_owned(),
        pods,
        storage,
    ];
    if config.resizes_pods {
        parts.push(POD_RESIZE_STAGE.to_owned());
    }
    let path = site.folder.join("kwok.yaml");
    write(&path, &parts.join("\n---\n"))?;
    site.start(
        "kwok",
        &[
            flag("config", path.display()),
            flag(
                "kubeconfig",
                site.credentials.kubeconfig(Identity::Kwok).display(),
            ),
        ],
    )
}

/// KWOK's own stages, with three changes. A pod starts only after it is scheduled (see [`crate::kubelet`]). The status of a
/// container shows its resources, because the API server refuses a resize of a pod without them. And the pod's status has an
/// `observedGeneration`.
fn kwok_stages(yaml: &str) -> Result<String> {
    let mut stages = manifests::parse(yaml)?;
    let ready = stages
        .iter_mut()
        .find(|stage| stage["metadata"]["name"] == "pod-ready")
        .context("KWOK has no stage pod-ready")?;
    let spec = &mut ready["spec"];
    spec["selector"]["matchExpressions"]
        .as_array_mut()
        .context("KWOK's stage pod-ready selects no pods")?
        .push(json!({
            "key": ".status.conditions.[] | select(.type == \"PodScheduled\") | .status",
            "operator": "In",
            "values": ["True"],
        }));
    let template = spec["next"]["statusTemplate"].as_str().unwrap_or_default();
    let with_resources = template.replace(
        "  restartCount: 0\n",
        "  restartCount: 0
  resources: {{ or .resources dict | toJson }}
  allocatedResources: {{ or .resources.requests dict | toJson }}\n",
    );
    if with_resources == template {
        bail!("KWOK's stage pod-ready writes no status of containers");
    }
    let observed = "observedGeneration: {{ or .metadata.generation 0 }}";
    spec["next"]["statusTemplate"] = json!(format!("{with_resources}\n{observed}\n"));
    let stages: Vec<String> = stages.iter().map(Value::to_string).collect();
    Ok(stages.join("\n---\n"))
}

/// Creates nodes and storage classes. KWOK may start before or after this.
pub(crate) async fn create(client: &Client, config: &Config) -> Result<()> {
    let mut classes = manifests::parse(STORAGE_CLASSES)?;
    if config.zones == 0 {
        classes.retain(|class| class["metadata"]["name"] != ZONAL_STORAGE_CLASS);
    }
    manifests::apply(client, &classes, manifests::FIELD_MANAGER).await?;
    add(client, config, 1..=config.nodes).await
}

/// Creates the nodes with these numbers.
pub(crate) async fn add(
    client: &Client,
    config: &Config,
    numbers: RangeInclusive<usize>,
) -> Result<()> {
    let zones = zones(config)?;
    let api: Api<Node> = Api::all(client.clone());
    stream::iter(numbers)
        .map(|number| {
            let (api, node) = (&api, node(config, &zones, number));
            async move {
                let node: Node =
                    serde_json::from_value(node).context("failed to describe a node")?;
                api.create(&PostParams::default(), &node)
                    .await
                    .with_context(|| format!("failed to create node node-{number}"))?;
                Ok(())
            }
        })
        .buffer_unordered(16)
        .try_collect()
        .await
}

/// Waits until exactly `nodes` nodes are ready and have no taints.
pub(crate) async fn wait(site: &Site, client: &Client, nodes: usize) -> Result<()> {
    let api: Api<Node> = Api::all(client.clone());
    until(
        &site.processes,
        "the nodes to be ready",
        NODES_TIMEOUT,
        async || {
            let found = api.list(&ListParams::default()).await?;
            Ok(found.items.iter().filter(|node| is_ready(node)).count() == nodes)
        },
    )
    .await
}

fn is_ready(node: &Node) -> bool {
    let tainted = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_ref())
        .is_some_and(|taints| !taints.is_empty());
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let ready = conditions.is_some_and(|conditions| {
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    });
    ready && !tainted
}

/// The names of the zones.
pub(crate) fn zones(config: &Config) -> Result<Vec<String>> {
    if config.zones > 26 {
        bail!("a test bed has at most 26 zones, not {}", config.zones);
    }
    Ok(('a'..='z')
        .take(config.zones)
        .map(|letter| format!("zone-{letter}"))
        .collect())
}

fn node(config: &Config, zones: &[String], number: usize) -> Value {
    let name = format!("node-{number}");
    let mut labels = json!({
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    });
    if !zones.is_empty() {
        let zone = &zones[(number - 1) % zones.len()];
        labels["topology.kubernetes.io/zone"] = json!(zone);
        labels["topology.kubernetes.io/region"] = json!("region");
    }
    let size = json!({
        "cpu": config.node_cpu,
        "memory": config.node_memory,
        "pods": config.pods_per_node.to_string(),
    });
    json!({
        "metadata": {"name": name, "labels": labels},
        "status": {"allocatable": size, "capacity": size},
    })
}
