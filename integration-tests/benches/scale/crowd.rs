//! Fills a cluster with copies of an ended run and its pods, with pods of no run (foreign pods), and with active runs.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::to_json;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::Scene;
use integration_tests::etcd::{Etcd, copy, uid};
use integration_tests::look::{is_placeholder, node};
use integration_tests::metrics::{scrape, sum};
use integration_tests::runs::run;
use integration_tests::stack::Stack;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use serde_json::{Value, json};
use testbed::services::Service;

use super::{Outcome, Size};

/// The number of pods of each ended run.
const TASKS: usize = 4;
/// The number of active runs that are created at the same time.
const CREATORS: usize = 2;
/// The programs that react to new pods.
const CONTROL_PLANE: [&str; 5] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
];
/// The time between two measurements of the CPU of these programs.
const PERIOD: Duration = Duration::from_secs(10);
/// The longest time until the control plane has dealt with the new pods, and until all active runs have a node.
const PATIENCE: Duration = Duration::from_secs(900);
/// The size of an annotation that another program writes on each run, in bytes.
const SIGNATURE: usize = 2000;

pub(crate) async fn fill(stack: &Stack, size: Size) -> Outcome {
    let scene = stack.scene().await?;
    let etcd = Etcd::of(&stack.bed)?;
    let (ended, pods) = one(&scene).await?;
    // While the API server reads so many objects at once, it may be too slow for the Leases. So the services are stopped
    // meanwhile.
    for service in Service::ALL {
        stack.services.terminate(service).await?;
    }
    let namespace = scene.namespace.as_str();
    etcd.put((0..size.ended_runs).map(|number| ended_run(&ended, number, namespace)))
        .await
        .context("failed to write the ended runs")?;
    let of_runs = (0..size.ended_runs).flat_map(|number| {
        let pods = pods.iter().enumerate();
        pods.map(move |(task, pod)| ended_pod(pod, number, task, namespace, size.nodes))
    });
    etcd.put(of_runs)
        .await
        .context("failed to write the ended pods")?;
    let foreign = stack.scene().await?;
    let all =
        (0..size.foreign_pods).map(|number| foreign_pod(number, &foreign.namespace, size.nodes));
    etcd.put(all)
        .await
        .context("failed to write the foreign pods")?;
    // Check that the API server has read the pods.
    for (scene, least) in [
        (&scene, TASKS * size.ended_runs),
        (&foreign, size.foreign_pods),
    ] {
        let limit = ListParams::default().limit(1);
        let listed = scene.api::<Pod>().list_metadata(&limit).await?;
        let there = listed.metadata.remaining_item_count.unwrap_or_default() + 1;
        let there = usize::try_from(there)?;
        ensure!(there >= least, "{there} pods of {least}");
    }
    tokio::time::timeout(PATIENCE, settled(stack))
        .await
        .context("the control plane is still busy with the new objects")??;
    for service in Service::ALL {
        stack.services.start_service(service)?;
    }
    stack.services.wait_ready().await?;
    println!("{size:?}: the objects are there");

    let active = stack.scene().await?;
    stream::iter(0..size.active_runs)
        .map(|number| {
            let held = run(&format!("active-{number}"))
                .template("source")
                .task("one", &["source"], &[])
                .held("one");
            active.submit(held)
        })
        .buffer_unordered(CREATORS)
        .try_for_each(async |_| Ok(()))
        .await?;
    let manager = stack.services.http_address(Service::PlaceholderManager);
    let bound = async {
        loop {
            stack.services.check()?;
            let metrics = scrape(&manager).await?;
            let bound = sum(&metrics, "coscheduler_placeholders", &[("phase", "bound")]);
            if bound >= size.active_runs as f64 {
                return anyhow::Ok(());
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, bound)
        .await
        .context("not every active run has a node")??;
    println!("{} runs are active", size.active_runs);
    Ok(())
}

/// Waits until the control plane uses less than half of the processors.
async fn settled(stack: &Stack) -> Outcome {
    let processors = std::thread::available_parallelism()?.get() as f64;
    let used = || -> anyhow::Result<f64> {
        let used = stack.bed.processes().cpu_seconds()?;
        let of = |it: &&str| used.get(*it).with_context(|| format!("{it} does not run"));
        CONTROL_PLANE.iter().map(of).sum()
    };
    let mut before = used()?;
    loop {
        tokio::time::sleep(PERIOD).await;
        let after = used()?;
        if after - before < processors / 2.0 * PERIOD.as_secs_f64() {
            return Ok(());
        }
        before = after;
    }
}

/// An ended run and its pods, as the API server returns them.
async fn one(scene: &Scene<'_>) -> anyhow::Result<(Value, Vec<Value>)> {
    let signature = json!({"chains.tekton.dev/payload": "x".repeat(SIGNATURE)});
    let mut like = run("like")
        .metadata("annotations", signature)
        .template("source");
    for task in 0..TASKS {
        like = like.task(&format!("task-{task}"), &["source"], &[]);
    }
    scene.submit(like).await?;
    let ended = scene.succeeds("like").await?;
    scene.nothing_left_but(&[]).await?;
    let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
    let of_tasks = pods
        .into_iter()
        .filter(|pod| !is_placeholder(pod) && node(pod).is_some());
    let pods: Vec<_> = of_tasks.map(|pod| json!(pod)).collect();
    ensure!(pods.len() == TASKS, "{} pods", pods.len());
    Ok((Value::Object(to_json(&ended)), pods))
}

fn ended_run(like: &Value, number: usize, namespace: &str) -> (String, Value) {
    let name = format!("ended-{number}");
    let mut copy = copy(like, &name);
    copy["metadata"]["annotations"]["coscheduler.dev/group"] = json!(format!("{number:010x}"));
    (
        format!("/registry/tekton.dev/pipelineruns/{namespace}/{name}"),
        copy,
    )
}

fn ended_pod(
    like: &Value,
    number: usize,
    task: usize,
    namespace: &str,
    nodes: usize,
) -> (String, Value) {
    let (run, name) = (
        format!("ended-{number}"),
        format!("ended-{number}-{task}-pod"),
    );
    let mut copy = copy(like, &name);
    copy["spec"]["nodeName"] = json!(format!("node-{}", number % nodes + 1));
    let metadata = &mut copy["metadata"];
    metadata["labels"]["tekton.dev/pipelineRun"] = json!(run);
    metadata["labels"]["tekton.dev/pipelineRunUID"] = json!(uid(&run));
    // The run owns the pod, because no TaskRun exists: the garbage collector would delete a pod whose owner does not exist.
    metadata["ownerReferences"] = json!([{
        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": run, "uid": uid(&run),
    }]);
    (format!("/registry/pods/{namespace}/{name}"), copy)
}

fn foreign_pod(number: usize, namespace: &str, nodes: usize) -> (String, Value) {
    let name = format!("foreign-{number}");
    let time = "2026-01-02T03:04:05Z";
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": time}));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "uid": uid(&name), "creationTimestamp": time,
            "labels": {"app": "foreign"},
        },
        "spec": {
            "nodeName": format!("node-{}", number % nodes + 1), "schedulerName": "default-scheduler",
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "default", "securityContext": {},
            "containers": [{
                "name": "main", "image": "example/image", "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}},
            }],
        },
        "status": {
            "phase": "Running", "startTime": time, "qosClass": "Burstable", "conditions": conditions,
            "containerStatuses": [{
                "name": "main", "image": "example/image", "imageID": "", "ready": true, "started": true,
                "restartCount": 0, "state": {"running": {"startedAt": time}},
            }],
        },
    });
    (format!("/registry/pods/{namespace}/{name}"), pod)
}
