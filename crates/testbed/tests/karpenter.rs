//! Tests of the real Karpenter in a test bed: for which pods it adds a node, and that pods and volumes work on such a node. The
//! tests share one bed, whose own node has two CPUs.

#![allow(clippy::unwrap_used)]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use testbed::{Config, TestBed};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

const PATIENCE: Duration = Duration::from_secs(90);

/// The shared bed needs a runtime that outlives each test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static BED: OnceCell<TestBed> = OnceCell::const_new();

async fn client() -> Client {
    let config = Config {
        nodes: 1,
        node_cpu: "2".to_owned(),
        karpenter: true,
        ..Config::default()
    };
    let bed = BED.get_or_init(async || TestBed::start(config).await.unwrap());
    bed.await.client()
}

/// Creates a pod that requests `cpu`. `more` contains further fields of its spec.
async fn create(client: &Client, name: &str, cpu: &str, more: Value) {
    let mut pod = json!({
        "metadata": {"name": name, "labels": {"pod": name}},
        "spec": {"containers": [{
            "name": "main",
            "image": "i/i",
            "resources": {"requests": {"cpu": cpu}},
        }]},
    });
    let spec = pod["spec"].as_object_mut().unwrap();
    spec.extend(more.as_object().unwrap().clone());
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let pods = Api::default_namespaced(client.clone());
    pods.create(&PostParams::default(), &pod).await.unwrap();
}

async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until the pod runs, and returns the name of its node.
async fn node_of(client: &Client, name: &str) -> String {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    wait_for("a running pod", async || {
        let pod = pods.get(name).await.unwrap();
        (pod.status?.phase? == "Running").then_some(pod.spec?.node_name?)
    })
    .await
}

/// Reason and message of the Events about a pod.
async fn said(client: &Client, name: &str) -> Vec<(String, String)> {
    let events: Api<Event> = Api::default_namespaced(client.clone());
    let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
    let events = events.list(&about).await.unwrap().items.into_iter();
    events
        .filter(|event| event.reporting_component.as_deref() == Some("karpenter"))
        .map(|event| (event.reason.unwrap(), event.message.unwrap()))
        .collect()
}

#[test]
fn a_pod_that_fits_nowhere_gets_a_node_on_which_it_runs_with_its_volume() {
    RUNTIME.block_on(async {
        let client = client().await;
        let claim = json!({
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        });
        let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
        claims.create(&PostParams::default(), &claim).await.unwrap();
        let volume = json!({"volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        ]});
        create(&client, "large", "6", volume).await;

        let name = node_of(&client, "large").await;
        let node = Api::<Node>::all(client.clone()).get(&name).await.unwrap();
        let labels = node.metadata.labels.unwrap();
        assert_eq!(labels["karpenter.sh/nodepool"], "testbed");
        assert_eq!(labels["kubernetes.io/hostname"], name);
        assert_eq!(labels["node.kubernetes.io/instance-type"], "testbed-8");

        let claim = claims.get("data").await.unwrap();
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let volume = claim.spec.unwrap().volume_name.unwrap();
        let volume = serde_json::to_value(volumes.get(&volume).await.unwrap()).unwrap();
        let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        assert_eq!(terms[0]["matchExpressions"][0]["values"], json!([name]));

        // The new node is like all others: the next pod starts there at once, and this pod can be resized.
        create(&client, "small", "1500m", json!({"nodeName": name})).await;
        assert_eq!(node_of(&client, "small").await, name);
        let small = Api::<Pod>::default_namespaced(client).get("small").await.unwrap();
        let status = serde_json::to_value(small.status).unwrap();
        assert_eq!(status["containerStatuses"][0]["resources"]["requests"]["cpu"], "1500m");
    });
}

#[test]
fn a_pod_that_must_be_beside_a_bound_pod_gets_no_node() {
    RUNTIME.block_on(async {
        let client = client().await;
        let here = json!({"nodeSelector": {"kubernetes.io/hostname": "node-1"}});
        create(&client, "anchor", "100m", here).await;
        assert_eq!(node_of(&client, "anchor").await, "node-1");
        let beside = json!({"affinity": {"podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": {"matchLabels": {"pod": "anchor"}},
                "topologyKey": "kubernetes.io/hostname",
            }],
        }}});
        create(&client, "follower", "6", beside).await;
        let (reason, message) = wait_for("Karpenter's Event", async || {
            said(&client, "follower").await.into_iter().next()
        })
        .await;
        assert_eq!(reason, "FailedScheduling");
        assert!(
            message.contains("unsatisfiable topology constraint"),
            "{message}"
        );
    });
}
