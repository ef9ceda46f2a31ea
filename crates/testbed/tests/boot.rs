//! Tests of the test bed: it boots, two beds run side by side, Tekton's runs finish on its nodes, its volumes have the right
//! node affinity, and after its end no process or file is left.

#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::Api;
use kube::api::{DynamicObject, ListParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;
use testbed::{Config, TestBed};

const PATIENCE: Duration = Duration::from_secs(60);

const SHARED_VOLUME: &str = r#"
apiVersion: tekton.dev/v1
kind: PipelineRun
metadata: {name: shared-volume}
spec:
  workspaces:
    - name: source
      volumeClaimTemplate:
        spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
  pipelineSpec:
    workspaces: [{name: source}]
    tasks:
      - name: build
        workspaces: [{name: source}]
        taskSpec: &task
          workspaces: [{name: source}]
          steps: [{name: run, image: busybox, command: ["true"]}]
      - name: check
        runAfter: [build]
        workspaces: [{name: source}]
        taskSpec: *task
"#;

const TASKS_THAT_FAIL: &str = r#"
apiVersion: tekton.dev/v1
kind: TaskRun
metadata:
  name: fails
  annotations: {testbed.coscheduler.dev/exit-code: "3", testbed.coscheduler.dev/duration: 10ms}
spec: {taskSpec: {steps: [{name: run, image: busybox, command: ["true"]}]}}
---
apiVersion: tekton.dev/v1
kind: TaskRun
metadata:
  name: is-deleted
  annotations: {testbed.coscheduler.dev/duration: 10m}
spec: {taskSpec: {steps: [{name: run, image: busybox, command: ["true"]}]}}
"#;

/// The first of two StatefulSets with claims of every storage class. The two differ only in their names. Their volumes may be in
/// the same zones or in different ones.
const SET: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: set-abc}
spec:
  serviceName: ""
  selector: {matchLabels: {app: set}}
  template:
    metadata: {labels: {app: set}}
    spec: {containers: [{name: pause, image: pause}]}
  volumeClaimTemplates:
    - metadata: {name: one}
      spec: {storageClassName: zonal, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
    - metadata: {name: two}
      spec: {storageClassName: zonal, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
    - metadata: {name: three}
      spec: {storageClassName: movable, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"#;

/// An object of one of Tekton's kinds.
async fn tekton(bed: &TestBed, kind: &str, name: &str) -> Value {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1", kind));
    let api: Api<DynamicObject> = Api::default_namespaced_with(bed.client(), &resource);
    serde_json::to_value(api.get(name).await.unwrap()).unwrap()
}

/// Waits until condition `Succeeded` is not `Unknown` any more, and returns its status and reason.
async fn outcome(bed: &TestBed, kind: &str, name: &str) -> (String, String) {
    let end = Instant::now() + PATIENCE;
    loop {
        let object = tekton(bed, kind, name).await;
        let condition = &object["status"]["conditions"][0];
        let field = |field: &str| condition[field].as_str().unwrap_or_default().to_owned();
        if ["True", "False"].contains(&field("status").as_str()) {
            return (field("status"), field("reason"));
        }
        assert!(
            Instant::now() < end,
            "{kind} {name} did not finish: {object:#}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
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

/// The key and the values of a volume's node affinity; `None` if every node reaches the volume.
fn reachable_from(volume: &PersistentVolume) -> Option<(String, Vec<String>)> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?;
    let terms = &affinity.required.as_ref()?.node_selector_terms;
    let expression = terms.first()?.match_expressions.as_ref()?.first()?;
    Some((expression.key.clone(), expression.values.clone()?))
}

async fn volume_of(bed: &TestBed, claim: &str) -> PersistentVolume {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(bed.client());
    let name = wait_for("a bound claim", async || {
        let claim = claims.get_opt(claim).await.unwrap()?;
        let bound = claim.status?.phase.is_some_and(|phase| phase == "Bound");
        bound.then_some(claim.spec?.volume_name?)
    })
    .await;
    Api::<PersistentVolume>::all(bed.client())
        .get(&name)
        .await
        .unwrap()
}

async fn a_run_with_a_shared_volume_finishes_on_one_node(bed: &TestBed) {
    bed.apply(SHARED_VOLUME).await.unwrap();
    let (status, reason) = outcome(bed, "PipelineRun", "shared-volume").await;
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Succeeded"));

    let pods: Api<Pod> = Api::default_namespaced(bed.client());
    let of_run = ListParams::default().labels("tekton.dev/pipelineRun=shared-volume");
    let pods = pods.list(&of_run).await.unwrap().items;
    assert_eq!(pods.len(), 2);
    let nodes: Vec<&str> = pods
        .iter()
        .map(|pod| pod.spec.as_ref().unwrap().node_name.as_deref().unwrap())
        .collect();
    assert!(
        nodes[0].starts_with("node-") && nodes[0] == nodes[1],
        "{nodes:?}"
    );

    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(bed.client());
    let claims = claims.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(claims.len(), 1);
    let volume = volume_of(bed, claims[0].metadata.name.as_deref().unwrap()).await;
    let expected = (
        "kubernetes.io/hostname".to_owned(),
        vec![nodes[0].to_owned()],
    );
    assert_eq!(reachable_from(&volume), Some(expected));
}

async fn a_task_pod_that_is_deleted_fails_its_task_as_a_step_that_fails_does(bed: &TestBed) {
    bed.apply(TASKS_THAT_FAIL).await.unwrap();
    let pods: Api<Pod> = Api::default_namespaced(bed.client());
    wait_for("a running pod", async || {
        let pod = pods.get_opt("is-deleted-pod").await.unwrap()?;
        (pod.status?.phase? == "Running").then_some(())
    })
    .await;
    pods.delete("is-deleted-pod", &Default::default())
        .await
        .unwrap();
    for name in ["fails", "is-deleted"] {
        let (status, _) = outcome(bed, "TaskRun", name).await;
        assert_eq!(status, "False", "{name}");
    }
    wait_for("the pod's end", async || {
        pods.get_opt("is-deleted-pod")
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
}

async fn volumes_are_where_their_class_says(bed: &TestBed) {
    bed.apply(SET).await.unwrap();
    let one = reachable_from(&volume_of(bed, "one-set-abc-0").await);
    let two = reachable_from(&volume_of(bed, "two-set-abc-0").await);
    let three = reachable_from(&volume_of(bed, "three-set-abc-0").await);
    let (key, zones) = one.clone().unwrap();
    assert_eq!(key, "topology.kubernetes.io/zone");
    assert!(zones[0].starts_with("zone-"), "{zones:?}");
    assert_eq!(one, two, "claims of one set are in one zone");
    assert_eq!(three, None);

    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(bed.client());
    let sets: Api<k8s_openapi::api::apps::v1::StatefulSet> = Api::default_namespaced(bed.client());
    sets.delete("set-abc", &Default::default()).await.unwrap();
    for claim in ["one-set-abc-0", "two-set-abc-0", "three-set-abc-0"] {
        claims.delete(claim, &Default::default()).await.unwrap();
    }
    let volumes: Api<PersistentVolume> = Api::all(bed.client());
    wait_for("the volumes' end", async || {
        let volumes = volumes.list(&ListParams::default()).await.unwrap().items;
        let class = |volume: &PersistentVolume| {
            volume
                .spec
                .as_ref()
                .unwrap()
                .storage_class_name
                .clone()
                .unwrap()
        };
        volumes
            .iter()
            .all(|volume| class(volume) == "local")
            .then_some(())
    })
    .await;
}

async fn a_service_account_has_its_own_rights(bed: &TestBed) {
    bed.create_namespace("elsewhere", &[("team", "x")])
        .await
        .unwrap();
    let kubeconfig = bed.kubeconfig_for("elsewhere", "default").await.unwrap();
    let kubectl = |arguments: &'static [&'static str]| {
        let mut command = tokio::process::Command::new(bed.kubectl_path());
        command.args(arguments).env("KUBECONFIG", &kubeconfig);
        async move { command.output().await.unwrap() }
    };
    let who = kubectl(&[
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo.username}",
    ])
    .await;
    let who = String::from_utf8(who.stdout).unwrap();
    assert_eq!(who, "system:serviceaccount:elsewhere:default");
    let answer = kubectl(&["get", "pods", "-n", "elsewhere"]).await;
    assert!(
        String::from_utf8(answer.stderr)
            .unwrap()
            .contains("forbidden")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_beds_live_side_by_side_and_leave_nothing() {
    let with_zones = Config {
        zones: 2,
        audit_log: true,
        ..Config::default()
    };
    let small = Config {
        nodes: 2,
        task_duration: Duration::from_millis(200),
        ..Config::default()
    };
    let (one, two) = tokio::join!(TestBed::start(with_zones), TestBed::start(small));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.dir(), two.dir());

    tokio::join!(
        async {
            a_run_with_a_shared_volume_finishes_on_one_node(&one).await;
            volumes_are_where_their_class_says(&one).await;
        },
        async {
            a_run_with_a_shared_volume_finishes_on_one_node(&two).await;
            a_task_pod_that_is_deleted_fails_its_task_as_a_step_that_fails_does(&two).await;
            a_service_account_has_its_own_rights(&two).await;
        },
    );

    assert_eq!(two.audit_log(), None);
    let audit = std::fs::read_to_string(one.audit_log().unwrap()).unwrap();
    let created_task_runs = audit
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut creators: Vec<Value> = created_task_runs
        .filter(|entry| entry["verb"] == "create" && entry["objectRef"]["resource"] == "taskruns")
        .map(|entry| entry["user"]["username"].clone())
        .collect();
    creators.dedup();
    assert_eq!(
        creators,
        ["system:serviceaccount:tekton-pipelines:tekton-pipelines-controller"]
    );

    let (dir, group) = (one.dir().to_owned(), one.processes().id());
    one.check().unwrap();
    one.stop().await.unwrap();
    assert!(!dir.exists());
    assert_no_process_of(group);

    let detached = two.detach().unwrap();
    assert!(detached.is_up());
    detached.down().await.unwrap();
    assert!(!detached.is_up());
    assert!(!detached.dir.exists());
    assert_no_process_of(detached.group);
    detached.down().await.unwrap();
}

#[track_caller]
fn assert_no_process_of(group: u32) {
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        let alive = fields.len() > 2 && fields[0] != "Z" && fields[2] == group.to_string();
        assert!(!alive, "still there: {stat}");
    }
}
