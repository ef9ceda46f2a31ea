//! Karpenter with its KWOK provider adds nodes for pods that fit on no node. It creates Node objects, and the bed's KWOK
//! simulates these nodes like all others.
//!
//! Karpenter's process listens on all interfaces, because it has no setting for the address. It uses any free ports.

use std::time::Duration;

use anyhow::Result;
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::Config;
use crate::binaries::Binaries;
use crate::control_plane::Site;
use crate::credentials::Identity;
use crate::files::write;
use crate::waiting::{served, until};
use crate::{manifests, nodes};

const POOL: &str = include_str!("../manifests/karpenter.yaml");

/// The sizes of the nodes that Karpenter may add, in CPUs. A node has 2Gi of memory for each CPU. Karpenter's provider reserves
/// 100m CPU and 10Mi memory, which pods cannot use.
const SIZES: [u32; 4] = [2, 4, 8, 16];

/// How long Karpenter may take to start.
const TIMEOUT: Duration = Duration::from_secs(90);

/// If there are `binaries`: applies Karpenter's CustomResourceDefinitions, starts its process, and creates the NodePool.
pub(crate) async fn start(
    site: &Site,
    binaries: Option<&Binaries>,
    client: &Client,
    config: &Config,
) -> Result<()> {
    let Some(binaries) = binaries else {
        return Ok(());
    };
    manifests::apply(
        client,
        &binaries.karpenter_kinds()?,
        manifests::FIELD_MANAGER,
    )
    .await?;
    served(&site.processes, client).await?;

    let path = site.folder.join("instance-types.json");
    write(&path, &instance_types(config)?.to_string())?;
    let mut command = site.command_of(binaries, "karpenter");
    for (name, value) in [
        ("SYSTEM_NAMESPACE", "kube-system"),
        ("KUBERNETES_MIN_VERSION", "v1.28.0"),
        ("DISABLE_LEADER_ELECTION", "true"),
        ("BATCH_IDLE_DURATION", "1s"),
        // Any free port.
        ("METRICS_PORT", "0"),
        ("HEALTH_PROBE_PORT", "0"),
    ] {
        command.env(name, value);
    }
    command.env("INSTANCE_TYPES_FILE_PATH", &path).env(
        "KUBECONFIG",
        site.credentials.kubeconfig(Identity::Karpenter),
    );
    site.processes.spawn("karpenter", command)?;
    manifests::apply(client, &manifests::parse(POOL)?, manifests::FIELD_MANAGER).await
}

/// If Karpenter is started, waits until it reports the NodePool as ready.
pub(crate) async fn wait(site: &Site, client: &Client, config: &Config) -> Result<()> {
    if !config.karpenter {
        return Ok(());
    }
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("karpenter.sh", "v1", "NodePool"));
    let pools: Api<DynamicObject> = Api::all_with(client.clone(), &kind);
    until(
        &site.processes,
        "Karpenter's pool to be ready",
        TIMEOUT,
        async || {
            let pool = pools.get("testbed").await?;
            let conditions = pool.data["status"]["conditions"].as_array();
            Ok(conditions.is_some_and(|conditions| {
                conditions
                    .iter()
                    .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
            }))
        },
    )
    .await
}

/// The instance types that Karpenter may choose from, in every zone of the bed.
fn instance_types(config: &Config) -> Result<Value> {
    let mut zones = nodes::zones(config)?;
    if zones.is_empty() {
        zones.push("zone-a".to_owned());
    }
    let is_in = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let types = SIZES.map(|cpus| {
        let offering = |zone: &String| {
            json!({
                "Price": f64::from(cpus),
                "Available": true,
                "Requirements": [
                    is_in("karpenter.sh/capacity-type", "on-demand"),
                    is_in("topology.kubernetes.io/zone", zone),
                ],
            })
        };
        json!({
            "name": format!("testbed-{cpus}"),
            "offerings": zones.iter().map(offering).collect::<Vec<_>>(),
            "architecture": "amd64",
            "operatingSystems": ["linux"],
            "resources": {
                "cpu": cpus.to_string(),
                "memory": format!("{}Gi", 2 * cpus),
                "pods": config.pods_per_node.to_string(),
            },
        })
    });
    Ok(json!(types))
}
