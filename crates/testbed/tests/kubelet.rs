//! Tests of the kubelets of a test bed: resizes, and pods for which there is no room. All tests share one bed, but each test
//! has its own node.

#![allow(clippy::unwrap_used)]

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::{Config, TestBed};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

const PATIENCE: Duration = Duration::from_secs(60);

/// The shared bed needs a runtime that outlives each test.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static BED: OnceCell<TestBed> = OnceCell::const_new();

/// A node of 8 CPUs, and access to the pods of one test there.
struct Scene {
    pods: Api<Pod>,
    node: &'static str,
}

impl Scene {
    async fn on(node: &'static str) -> Self {
        let bed = BED.get_or_init(async || TestBed::start(Config::default()).await.unwrap());
        Self {
            pods: Api::default_namespaced(bed.await.client()),
            node,
        }
    }

    fn name(&self, pod: &str) -> String {
        format!("{pod}-on-{}", self.node)
    }

    /// Creates a pod that requests `cpu`. `more` contains further fields of its spec.
    async fn create(&self, pod: &str, cpu: &str, more: Value) {
        let mut object = json!({
            "metadata": {"name": self.name(pod)},
            "spec": {"containers": [{
                "name": "main",
                "image": "i/i",
                "resources": {"requests": {"cpu": cpu}},
            }]},
        });
        let spec = object["spec"].as_object_mut().unwrap();
        spec.extend(more.as_object().unwrap().clone());
        let object = serde_json::from_value(object).unwrap();
        let created = self.pods.create(&PostParams::default(), &object).await;
        created.unwrap();
    }

    /// Fields of a pod's spec with which the scheduler chooses this scene's node.
    fn scheduled(&self) -> Value {
        json!({"nodeSelector": {"kubernetes.io/hostname": self.node}})
    }

    /// Fields of a pod's spec that bind the pod to this scene's node without the scheduler.
    fn bound(&self) -> Value {
        json!({"nodeName": self.node})
    }

    async fn resize(&self, pod: &str, cpu: &str) {
        let patch = Patch::Strategic(json!({"spec": {"containers": [
            {"name": "main", "resources": {"requests": {"cpu": cpu}}},
        ]}}));
        let (name, params) = (self.name(pod), PatchParams::default());
        let resized = self
            .pods
            .patch_subresource("resize", &name, &params, &patch);
        resized.await.unwrap();
    }

    async fn delete(&self, pod: &str) {
        let (name, params) = (self.name(pod), DeleteParams::default());
        self.pods.delete(&name, &params).await.unwrap();
    }

    /// Waits until `holds` returns true for the pod, and returns the pod.
    async fn until(&self, pod: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            let found = self.pods.get(&self.name(pod)).await.unwrap();
            let found = serde_json::to_value(found).unwrap();
            if holds(&found) {
                return found;
            }
            assert!(Instant::now() < end, "waited in vain for {found:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn phase(phase: &str) -> impl Fn(&Value) -> bool {
    move |pod| pod["status"]["phase"] == phase
}

/// Checks that the kubelet has given the pod this amount of CPU.
fn actual(cpu: &str) -> impl Fn(&Value) -> bool {
    move |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["resources"]["requests"]["cpu"] == cpu && status["allocatedResources"]["cpu"] == cpu
    }
}

/// The reason of a condition with status `True`.
fn because<'a>(pod: &'a Value, condition: &str) -> Option<&'a str> {
    let conditions = pod["status"]["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|found| found["type"] == condition && found["status"] == "True")?;
    Some(found["reason"].as_str().unwrap_or_default())
}

#[test]
fn a_running_pod_shrinks_a_second_or_two_after_its_resize_and_a_waiting_pod_gets_the_room() {
    RUNTIME.block_on(async {
        let scene = Scene::on("node-1").await;
        scene.create("large", "7", scene.scheduled()).await;
        scene.until("large", actual("7")).await;
        scene.create("waiting", "6", scene.scheduled()).await;
        scene
            .until("waiting", |pod| {
                pod["status"]["conditions"][0]["reason"] == "Unschedulable"
            })
            .await;

        let asked = Instant::now();
        scene.resize("large", "1").await;
        let large = scene.until("large", actual("1")).await;
        let took = asked.elapsed();
        assert!(took >= Duration::from_secs(1), "{took:?}");
        assert_eq!(
            large["status"]["observedGeneration"],
            large["metadata"]["generation"]
        );
        scene.until("waiting", phase("Running")).await;
    });
}

#[test]
fn a_pod_with_a_scheduling_gate_is_resized_before_it_is_scheduled() {
    RUNTIME.block_on(async {
        let scene = Scene::on("node-2").await;
        let mut gated = scene.scheduled();
        gated["schedulingGates"] = json!([{"name": "example.com/size"}]);
        scene.create("gated", "1", gated).await;
        scene.resize("gated", "6").await;
        let open = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
        let (name, params) = (scene.name("gated"), PatchParams::default());
        scene.pods.patch(&name, &params, &open).await.unwrap();
        scene.until("gated", actual("6")).await;
    });
}

#[test]
fn a_pod_beyond_the_room_of_the_node_that_it_names_never_starts() {
    RUNTIME.block_on(async {
        let scene = Scene::on("node-3").await;
        scene.create("first", "5", scene.bound()).await;
        scene.until("first", phase("Running")).await;
        scene.create("second", "4", scene.bound()).await;
        let second = scene.until("second", phase("Failed")).await;
        let status = &second["status"];
        assert_eq!(status["reason"], "OutOfcpu");
        let message = "Pod was rejected: Node didn't have enough resource: cpu, requested: 4000, used: 5000, capacity: 8000";
        assert_eq!(status["message"], message);
        assert_eq!(status.get("containerStatuses"), None, "it never started");
    });
}

#[test]
fn a_pod_that_grows_takes_the_room_of_pods_to_come_and_waits_for_that_of_others() {
    RUNTIME.block_on(async {
        let scene = Scene::on("node-4").await;
        scene.create("grows", "1", scene.scheduled()).await;
        scene.create("other", "2", scene.scheduled()).await;
        scene.until("grows", phase("Running")).await;
        scene.until("other", phase("Running")).await;

        scene.resize("grows", "5").await;
        scene.create("rejected", "2", scene.bound()).await;
        let rejected = scene.until("rejected", phase("Failed")).await;
        assert_eq!(rejected["status"]["reason"], "OutOfcpu");
        scene.until("grows", actual("5")).await;

        scene.resize("grows", "9").await;
        let pending = |reason| move |pod: &Value| because(pod, "PodResizePending") == reason;
        scene.until("grows", pending(Some("Infeasible"))).await;
        scene.resize("grows", "7").await;
        scene.until("grows", pending(Some("Deferred"))).await;
        scene.delete("other").await;
        let grows = scene.until("grows", actual("7")).await;
        assert_eq!(because(&grows, "PodResizePending"), None);
    });
}
