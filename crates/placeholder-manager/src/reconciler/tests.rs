//! Tests of the requests that one reconcile of a run sends to the API server. The tests fill the cache by hand.

mod clean_up;
mod notices;
mod only_a_pod;
mod reservation;

use super::*;
use crate::fixtures::{
    Asked, Manager, key, object, placeholder, placeholder_pod, placeholder_pod_json, planned,
    read_claim, read_pod, run, run_in, set, status, success, task_pod, usual,
};
use std::time::Duration;

use coscheduler_core::mode::Mode;
use coscheduler_core::node::Node;
use coscheduler_core::observed::Pod;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_kubernetes::volumes;
use http::Method;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

fn node(name: &str, unschedulable: bool) -> Node {
    Node {
        name: name.to_owned(),
        unschedulable,
        ..Node::default()
    }
}

/// A TaskRun's pod with required affinity to the run's placeholder.
fn follower(run: &PipelineRun, name: &str) -> Value {
    let mut pod = task_pod("u", name);
    pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {
            "app.kubernetes.io/component": "affinity-assistant", "app.kubernetes.io/instance": planned(run)[0]}},
    }]);
    pod
}

impl Manager {
    async fn work(&self) -> Outcome {
        self.reconciler.work(key()).await
    }

    /// Calls the manager for this purpose while it reconciles once. Returns the answer to the call and the outcome.
    async fn called(&self, purpose: Purpose) -> (Result<Looked, Arc<Error>>, Outcome) {
        let key = key();
        tokio::join!(self.reconciler.call(&key, purpose), self.work())
    }

    /// Reconciles once, and returns the outcome and the requests, without those for Events.
    async fn asks(&self) -> (Outcome, Vec<Asked>) {
        let outcome = self.work().await;
        let asked = self.server.asked().into_iter();
        (
            outcome,
            asked.filter(|it| !it.path.contains("/events")).collect(),
        )
    }
}

/// The record that a patch of a placeholder writes.
fn record(patch: &Asked) -> Value {
    let record = &patch.body["metadata"]["annotations"]["coscheduler.dev/record"];
    serde_json::from_str(record.as_str().unwrap()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_an_active_run_needs_costs_no_request() {
    let run = run(&["data"]);
    let manager = Manager::with(&run).await;
    manager.cache.apply_node(node("node-1", false));
    manager.cache.apply_pod(read_pod(follower(&run, "build")));
    assert_eq!(manager.asks().await, (Outcome::Done, vec![]));
}

#[tokio::test(start_paused = true)]
async fn n1_the_record_is_written_before_exactly_the_version_that_was_looked_at_leaves() {
    let run = run(&["data"]);
    let manager = Manager::with(&run).await;
    manager.moved_before(&run);
    manager.cache.apply_node(node("node-1", true));
    let mut waits = follower(&run, "waits");
    waits["spec"]["nodeName"] = "node-1".into();
    manager.cache.apply_pod(read_pod(waits));
    manager.work().await;
    let asked = manager.server.asked();
    let told = asked.iter().filter(|it| it.short() == "POST events");
    let told: Vec<_> = told.map(|it| it.body["reason"].clone()).collect();
    assert_eq!(told, ["PodEvacuated", "PodEvacuated"]);
    let asked: Vec<_> = asked.iter().filter(|it| it.last() != "events").collect();
    let [follower, patch, placeholder] = asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(follower.short(), "DELETE waits");
    assert_eq!(follower.body["gracePeriodSeconds"], 0);
    let set = &planned(&run)[0];
    assert_eq!(patch.short(), format!("PATCH {set}"));
    assert_eq!(patch.body["metadata"]["uid"], "s");
    assert_eq!(record(patch)["evacuated"]["times"], 2);
    assert_eq!(placeholder.short(), format!("DELETE {set}-0"));
    let preconditions = &placeholder.body["preconditions"];
    assert_eq!(*preconditions, json!({"uid": "p", "resourceVersion": "7"}));
    assert_eq!(
        placeholder.body.get("gracePeriodSeconds"),
        None,
        "the kubelet confirms its end"
    );
    // The cache has the new record from the answer to the write, before the watch delivers it. So the next move is delayed.
    let (outcome, asked) = manager.asks().await;
    let deleted: Vec<_> = asked.iter().map(Asked::short).collect();
    assert_eq!(deleted, ["DELETE waits"]);
    assert!(
        matches!(outcome, Outcome::Later(rest) if rest <= 2 * SECOND),
        "{outcome:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn n1_nothing_is_deleted_where_the_record_cannot_be_written() {
    let manager = Manager::new(true, |asked| match asked.method {
        Method::PATCH => status(500, "InternalError", "etcd"),
        _ => usual(asked),
    })
    .await;
    manager.know(&run(&["data"]));
    manager.moved_before(&run(&["data"]));
    manager.cache.apply_node(node("node-1", true));
    let (outcome, asked) = manager.asks().await;
    assert_eq!(outcome, Outcome::Retry);
    assert!(
        asked.iter().all(|it| it.method == Method::PATCH),
        "{asked:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn n1_a_node_that_is_not_known_is_looked_for_before_it_counts_as_gone() {
    let run = run(&["data"]);
    let set = &planned(&run)[0];
    let (patch, delete) = (format!("PATCH {set}"), format!("DELETE {set}-0"));
    for (nodes, expect) in [
        (json!([]), vec!["GET nodes", &patch, &delete]),
        (json!([{"metadata": {"name": "node-1"}}]), vec!["GET nodes"]),
    ] {
        let list = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": nodes});
        let manager = Manager::new(true, move |asked| match asked.last() {
            "nodes" => (200, list.clone()),
            _ => usual(asked),
        })
        .await;
        manager.know(&run);
        manager.moved_before(&run);
        let (outcome, asked) = manager.asks().await;
        let short: Vec<_> = asked.iter().map(Asked::short).collect();
        assert_eq!(short, expect);
        match asked.get(2) {
            // Nobody confirms the end of this pod.
            Some(delete) => assert_eq!(delete.body["gracePeriodSeconds"], 0),
            None => assert_eq!(outcome, Outcome::Retry),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_leader_moves_anything() {
    let run = run(&["data"]);
    let manager = Manager::new(false, usual).await;
    manager.know(&run);
    manager.cache.apply_node(node("node-1", true));
    let (looked, outcome) = manager.called(Purpose::Ensure).await;
    assert!(!looked.unwrap().created);
    assert_eq!((outcome, manager.server.short()), (Outcome::Done, vec![]));
}

#[tokio::test(start_paused = true)]
async fn n3_a_retry_is_a_change_of_the_object_whatever_its_version() {
    let run = run(&[]);
    let manager = Manager::new(true, usual).await;
    manager.cache.apply_run(run.clone());
    manager.cache.apply_placeholder(placeholder(&run));
    let (outcome, asked) = manager.asks().await;
    let Outcome::Later(pause) = outcome else {
        panic!("{outcome:?}");
    };
    assert_eq!(asked, []);
    tokio::time::advance(pause).await;
    let (outcome, asked) = manager.asks().await;
    let [patch] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(patch.short(), format!("PATCH {}", planned(&run)[0]));
    assert_eq!(patch.body["metadata"]["uid"], "s");
    assert_eq!(patch.body["metadata"].get("resourceVersion"), None);
    assert_eq!(record(patch)["retried"]["times"], 1);
    // The cache knows the answer to the patch before the watch delivers it.
    assert!(matches!(outcome, Outcome::Later(_)), "{outcome:?}");
    let (outcome, asked) = manager.asks().await;
    assert_eq!(asked, []);
    assert!(
        matches!(outcome, Outcome::Later(next) if next > pause),
        "{outcome:?}"
    );
}

/// A run with a pod that waits beside its placeholder on node-1.
async fn waiting(claim: &str, answer: impl Fn(&Asked) -> (u16, Value) + Send + 'static) -> Manager {
    waiting_of(run(&["data"]), claim, answer).await
}

/// As [`waiting`]: the pod of this run follows the run's first placeholder.
async fn waiting_of(
    run: PipelineRun,
    claim: &str,
    answer: impl Fn(&Asked) -> (u16, Value) + Send + 'static,
) -> Manager {
    let manager = Manager::new(true, answer).await;
    manager.know(&run);
    let mut waits = follower(&run, "waits");
    waits["spec"]["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": "2"}}}]);
    waits["spec"]["volumes"] =
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    waits["status"]["conditions"] =
        json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
    manager.cache.apply_pod(read_pod(waits));
    manager.cache.apply_node(node("node-1", false));
    manager.cache.apply_node(node("node-2", false));
    manager
}

/// Reconciles twice, two seconds apart, so at the second reconcile the manager has seen the waiting pod for long enough to take a
/// step. Returns the outcome and the requests of the second reconcile.
async fn settled(manager: &Manager) -> (Outcome, Vec<Asked>) {
    let (_, asked) = manager.asks().await;
    assert_eq!(asked, []);
    tokio::time::advance(2 * SECOND).await;
    manager.asks().await
}

#[tokio::test(start_paused = true)]
async fn n2_a_placeholder_leaves_once_the_api_server_has_said_whose_the_pod_is() {
    let manager = waiting("data", usual).await;
    let (_, asked) = settled(&manager).await;
    let set = planned(&run(&["data"])).remove(0);
    let [task_run, gate] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(task_run.short(), "GET task");
    assert_eq!(gate.short(), format!("PATCH {set}"));
    assert_eq!(gate.body["metadata"]["resourceVersion"], "5");
    let gates = &gate.body["spec"]["template"]["spec"]["schedulingGates"];
    assert_eq!(gates[0]["name"], "coscheduler.dev/reservation");
    // The cache has the gate from the answer to the patch. So now the manager deletes the placeholder's pod, in the version
    // that the cache has.
    let (_, asked) = manager.asks().await;
    let [recorded, leave] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(record(recorded)["moved"]["times"], 1);
    assert_eq!(record(recorded)["left"], "node-1");
    assert_eq!(leave.short(), format!("DELETE {set}-0"));
    assert_eq!(
        leave.body["preconditions"],
        json!({"uid": "p", "resourceVersion": "7"})
    );
}

/// The API server refuses the run's second placeholder each time.
#[tokio::test(start_paused = true)]
async fn n2_a_placeholder_that_is_refused_does_not_keep_another_one_on_a_full_node() {
    let run = run_in(Mode::Workspaces, &["data", "other"]);
    let leaves = format!("PATCH {}", planned(&run)[0]);
    let manager = waiting_of(run, "data", |asked| match asked.method {
        Method::POST if asked.path.ends_with("/statefulsets") => status(403, "Forbidden", "no"),
        _ => usual(asked),
    })
    .await;
    manager.asks().await;
    tokio::time::advance(2 * SECOND).await;
    let (outcome, asked) = manager.asks().await;
    assert_eq!(outcome, Outcome::Retry);
    let asked: Vec<_> = asked.iter().map(Asked::short).collect();
    assert!(asked.contains(&leaves), "{asked:?}");
    let refused = asked.iter().filter(|it| it.starts_with("POST"));
    assert_eq!(refused.count(), 1, "{asked:?}");
}

/// Two pods wait. Each answer about a pod takes so long that the earlier answer about the other pod has expired.
#[tokio::test]
async fn n2_there_is_a_pause_before_the_api_server_is_asked_once_more() {
    let manager = to_let_go(|asked| {
        if asked.method == Method::GET && asked.path.contains("/taskruns/") {
            std::thread::sleep(Duration::from_millis(2050));
        }
        usual(asked)
    })
    .await;
    let known = manager.cache.observe(&key()).pods["waits"].clone();
    let mut other = Pod::clone(&known);
    other.object.name = "waits-too".to_owned();
    other.object.uid = "uid-of-waits-too".to_owned();
    manager.cache.apply_pod(other);
    manager.asks().await;
    tokio::time::sleep(2 * SECOND).await;
    let (outcome, asked) = manager.asks().await;
    assert_eq!(outcome, Outcome::Retry);
    let asked = asked.iter().filter(|it| it.short() == "GET task");
    // One question about each of the two pods, and one more about the first pod.
    assert_eq!(asked.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn n2_p7_nothing_is_done_for_a_pod_whose_task_run_is_another_runs() {
    let manager = waiting("data", |asked| {
        let (code, mut answer) = usual(asked);
        if asked.path.contains("/taskruns/") {
            answer["metadata"]["ownerReferences"][0]["uid"] = "other".into();
        }
        (code, answer)
    })
    .await;
    let (_, asked) = settled(&manager).await;
    let short: Vec<_> = asked.iter().map(Asked::short).collect();
    assert_eq!(short, ["GET task"]);
}

/// As [`waiting`], but the pod uses no claim of the placeholder, and the placeholder cannot leave node-1.
async fn to_let_go(answer: impl Fn(&Asked) -> (u16, Value) + Send + 'static) -> Manager {
    let manager = waiting("own", answer).await;
    let volume = json!({"metadata": {"name": "pv"}, "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}}}});
    manager
        .cache
        .apply_volume("pv".to_owned(), volumes::view(object(volume)));
    let claim =
        json!({"metadata": {"namespace": "ci", "name": "data"}, "spec": {"volumeName": "pv"}});
    manager.cache.apply_claim(read_claim(claim));
    manager
}

#[tokio::test(start_paused = true)]
async fn n2_a_pod_is_let_go_by_its_task_run_and_made_anew() {
    let manager = to_let_go(usual).await;
    let (_, asked) = settled(&manager).await;
    let [_, task_run, pod] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(
        (task_run.short(), pod.short()),
        ("PATCH task".to_owned(), "DELETE waits".to_owned())
    );
    let annotations = json!({
        "pipeline.tekton.dev/affinity-assistant": "",
        "coscheduler.dev/let-go": planned(&run(&["data"]))[0],
        "coscheduler.dev/let-go-times": "1",
    });
    assert_eq!(
        task_run.body["metadata"],
        json!({"uid": "t", "annotations": annotations})
    );
    assert_eq!(
        pod.body["preconditions"],
        json!({"uid": "uid-of-waits", "resourceVersion": "8"})
    );
    assert_eq!(pod.body["gracePeriodSeconds"], 0);
}

#[tokio::test(start_paused = true)]
async fn n2_a_pod_whose_task_run_was_replaced_stays() {
    let manager = to_let_go(|asked| match asked.method {
        Method::PATCH => status(409, "Conflict", "another uid"),
        _ => usual(asked),
    })
    .await;
    let (_, asked) = settled(&manager).await;
    let short: Vec<_> = asked.iter().map(Asked::short).collect();
    assert_eq!(short, ["GET task", "PATCH task"]);
}
