//! What is asked of the API server to evacuate a node, with the cache filled by hand.

use super::*;
use coscheduler_core::evacuate::Node;
use http::{Method, Request, Response};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower_test::mock;

const SET: &str = "affinity-assistant-0123456789";

fn key() -> RunKey {
    RunKey {
        namespace: "ci".to_owned(),
        uid: "u".to_owned(),
    }
}

fn node(unschedulable: bool) -> Node {
    Node {
        name: "node-1".to_owned(),
        unschedulable,
        ..Node::default()
    }
}

fn pod(name: &str, owner: Value, change: impl FnOnce(&mut Value)) -> Pod {
    let mut pod = json!({
        "metadata": {
            "namespace": "ci", "name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "7",
            "labels": {"tekton.dev/pipelineRunUID": "u"},
            "ownerReferences": [owner],
        },
        "spec": {"nodeName": "node-1", "containers": []},
        "status": {"phase": "Pending"},
    });
    change(&mut pod);
    serde_json::from_value(pod).unwrap()
}

fn owner(kind: &str, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": uid, "controller": true})
}

fn placeholder(owner_uid: &str) -> Pod {
    pod(
        &format!("{SET}-0"),
        owner("StatefulSet", owner_uid),
        |pod| {
            pod["metadata"]["labels"]["app.kubernetes.io/component"] = "affinity-assistant".into();
            pod["metadata"]["labels"]["app.kubernetes.io/instance"] = SET.into();
            pod["status"]["phase"] = "Running".into();
        },
    )
}

fn task(name: &str, kind: &str, change: impl FnOnce(&mut Value)) -> Pod {
    pod(name, owner(kind, "t"), |pod| {
        pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([{
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {
                "app.kubernetes.io/component": "affinity-assistant", "app.kubernetes.io/instance": SET}},
        }]);
        change(pod);
    })
}

/// A run with a placeholder, and these pods.
fn cache(state: RunState, pods: Vec<Pod>) -> Arc<Cache> {
    let cache = Arc::new(Cache::default());
    cache.apply(PipelineRun {
        namespace: "ci".to_owned(),
        name: "run".to_owned(),
        uid: "u".to_owned(),
        state,
        ..PipelineRun::default()
    });
    let set: StatefulSet = serde_json::from_value(json!({"metadata": {
        "namespace": "ci", "name": SET, "uid": "s",
        "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": "u", "controller": true}],
    }}))
    .unwrap();
    cache.apply(set);
    for pod in pods {
        cache.apply(pod);
    }
    cache
}

/// Works on the run, with an API server where `node_exists` and nothing changes; what it was asked, Events aside.
async fn asked(evacuated: &Evacuee) -> (Outcome, Vec<(Method, String, Value)>) {
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let node_exists = evacuated.node_exists;
    let server = tokio::spawn(async move {
        let mut asked = Vec::new();
        while let Some((request, respond)) = server.next_request().await {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let path = parts.uri.path().to_owned();
            let answer = if path == "/api/v1/nodes" {
                let nodes = if node_exists {
                    vec![json!({"metadata": {"name": "node-1"}})]
                } else {
                    vec![]
                };
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": nodes})
            } else if path.ends_with("/events") {
                json!({"metadata": {"name": "told"}})
            } else {
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
            };
            if !path.ends_with("/events") {
                let body = serde_json::from_slice(&body).unwrap_or_default();
                asked.push((parts.method, path, body));
            }
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            respond.send_response(Response::new(answer));
        }
        asked
    });
    let objects = Objects::new(Client::new(service, "ci"));
    let evacuation = Evacuation {
        objects,
        cache: evacuated.cache.clone(),
        remembered: Mutex::default(),
    };
    let outcome = evacuation.work(key()).await;
    drop(evacuation);
    (outcome, server.await.unwrap())
}

struct Evacuee {
    cache: Arc<Cache>,
    node_exists: bool,
}

impl Evacuee {
    fn on(node: Option<Node>, cache: Arc<Cache>) -> Self {
        if let Some(node) = node {
            cache.apply_node(node, Default::default());
        }
        Self {
            cache,
            node_exists: false,
        }
    }
}

fn names(asked: &[(Method, String, Value)]) -> Vec<&str> {
    let deleted = asked.iter().filter(|(method, ..)| method == Method::DELETE);
    deleted
        .filter_map(|(_, path, _)| path.strip_prefix("/api/v1/namespaces/ci/pods/"))
        .collect()
}

#[tokio::test]
async fn n1_exactly_the_version_that_was_looked_at_leaves_a_cordoned_node() {
    let run = cache(
        RunState::Active,
        vec![placeholder("s"), task("waiting", "TaskRun", |_| ())],
    );
    let (outcome, asked) = asked(&Evacuee::on(Some(node(true)), run)).await;
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(names(&asked), [format!("{SET}-0").as_str(), "waiting"]);
    let (_, _, body) = &asked[0];
    assert_eq!(
        body["preconditions"],
        json!({"uid": format!("uid-of-{SET}-0"), "resourceVersion": "7"})
    );
    assert_eq!(
        body.get("gracePeriodSeconds"),
        None,
        "the kubelet confirms its end"
    );
    assert_eq!(asked[1].2["gracePeriodSeconds"], 0);
}

#[tokio::test]
async fn n1_nobody_leaves_a_good_node_or_a_run_that_is_done() {
    let pods = || vec![placeholder("s"), task("waiting", "TaskRun", |_| ())];
    for (state, node) in [
        (RunState::Active, node(false)),
        (RunState::Done, node(true)),
    ] {
        let evacuee = Evacuee::on(Some(node), cache(state, pods()));
        assert_eq!(asked(&evacuee).await, (Outcome::Done, vec![]));
    }
}

/// A label is anybody's to write.
#[tokio::test]
async fn n1_what_is_not_the_runs_own_is_left_where_it_is() {
    let others = vec![
        placeholder("another-set"),
        task("bare", "Job", |_| ()),
        task("elsewhere", "TaskRun", |pod| {
            pod["spec"]["affinity"] = Value::Null
        }),
        task("running", "TaskRun", |pod| {
            pod["status"]["phase"] = "Running".into()
        }),
    ];
    let evacuee = Evacuee::on(Some(node(true)), cache(RunState::Active, others));
    assert_eq!(asked(&evacuee).await, (Outcome::Done, vec![]));
}

#[tokio::test]
async fn n1_a_node_that_is_not_known_is_looked_for_before_it_counts_as_gone() {
    let mut evacuee = Evacuee::on(None, cache(RunState::Active, vec![placeholder("s")]));
    let (outcome, gone) = asked(&evacuee).await;
    assert_eq!(outcome, Outcome::Done);
    assert_eq!(names(&gone), [format!("{SET}-0")]);
    assert_eq!(
        gone[1].2["gracePeriodSeconds"], 0,
        "nobody confirms its end"
    );
    evacuee.node_exists = true;
    let (outcome, late) = asked(&evacuee).await;
    assert_eq!(outcome, Outcome::Retry);
    assert!(names(&late).is_empty());
}

#[tokio::test]
async fn n1_a_placeholder_that_ends_already_is_only_told_again_where_nobody_hears() {
    let mut ending = placeholder("s");
    ending.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let cordoned = Evacuee::on(
        Some(node(true)),
        cache(RunState::Active, vec![ending.clone()]),
    );
    assert_eq!(asked(&cordoned).await, (Outcome::Done, vec![]));
    let gone = Evacuee::on(None, cache(RunState::Active, vec![ending]));
    assert_eq!(names(&asked(&gone).await.1).len(), 1);
}

/// Kubernetes deletes pods of a node with a NoExecute taint itself, and may be faster.
#[tokio::test(start_paused = true)]
async fn n1_an_author_is_told_once_whoever_told_the_placeholder_to_end() {
    let mut ending = placeholder("s");
    ending.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    let cache = cache(RunState::Active, vec![ending]);
    cache.apply_node(node(true), Default::default());
    let (service, mut server) = mock::pair::<Request<Body>, Response<Body>>();
    let evacuation = Evacuation::new(cache, Objects::new(Client::new(service, "ci")));
    let server = tokio::spawn(async move {
        let mut told = Vec::new();
        while let Some((request, respond)) = server.next_request().await {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap();
            let event: Value = serde_json::from_slice(&body).unwrap();
            told.push((parts.method, event["reason"].clone()));
            let answer = json!({"metadata": {"name": "told"}}).to_string();
            respond.send_response(Response::new(Body::from(answer.into_bytes())));
        }
        told
    });
    assert_eq!(evacuation.work(key()).await, Outcome::Done);
    assert_eq!(evacuation.work(key()).await, Outcome::Done);
    drop(evacuation);
    let told = server.await.unwrap();
    assert_eq!(told, [(Method::POST, json!("PodEvacuated"))]);
}

#[tokio::test(start_paused = true)]
async fn n1_the_first_move_is_made_at_once_and_later_ones_wait_longer_and_longer() {
    let (service, _server) = mock::pair::<Request<Body>, Response<Body>>();
    let cache = cache(RunState::Active, vec![]);
    let evacuation = Evacuation::new(cache.clone(), Objects::new(Client::new(service, "ci")));
    for pause in [0, 1, 2, 4, 8, 16, 32, 60, 60] {
        if pause > 0 {
            tokio::time::advance(Duration::from_millis(pause * 1000 - 1)).await;
            assert!(!evacuation.may_move(&key(), SET), "before {pause} s");
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!(evacuation.may_move(&key(), SET), "after {pause} s");
        evacuation.moved(&key(), SET);
    }
    assert!(evacuation.may_move(&key(), "another"), "each on its own");
    cache.delete(&PipelineRun {
        namespace: "ci".to_owned(),
        name: "run".to_owned(),
        uid: "u".to_owned(),
        ..PipelineRun::default()
    });
    assert_eq!(evacuation.work(key()).await, Outcome::Done);
    assert!(evacuation.remembered.lock().unwrap().is_empty());
}
