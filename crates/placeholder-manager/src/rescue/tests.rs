//! What is asked of the API server to make room, with the caches filled by hand.

use super::*;
use coscheduler_core::annotations::{
    CLAIMS, GROUP, ISOLATION_SCOPE, MODE, PLACEHOLDER, VOLUME_CLAIM_TEMPLATES,
};
use coscheduler_core::evacuate::Node;
use coscheduler_core::rescue::requests::Amounts;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tower_test::mock::{self, Handle};

use crate::cache::OnNode;

const SET: &str = "affinity-assistant-0123456789";

fn key() -> RunKey {
    RunKey {
        namespace: "ci".to_owned(),
        uid: "u".to_owned(),
    }
}

fn cpu(milli_cpu: i128) -> Amounts {
    Amounts {
        milli_cpu,
        ..Amounts::default()
    }
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// A placeholder on node-1, which has 1 CPU, and a pod that waits for it and asks for 2. Node-2 has 4.
fn cache(mode: &str, claim_of_pod: &str) -> Arc<Cache> {
    let cache = Arc::new(Cache::default());
    let annotations = [
        (MODE, mode),
        (GROUP, "0123456789"),
        (ISOLATION_SCOPE, "cluster"),
        (
            PLACEHOLDER,
            r#"{"cpu": "50m", "memory": "100Mi", "image": "pause"}"#,
        ),
        (VOLUME_CLAIM_TEMPLATES, "{}"),
        (CLAIMS, r#"{"source": {"name": "data"}}"#),
    ];
    cache.apply(PipelineRun {
        namespace: "ci".to_owned(),
        name: "run".to_owned(),
        uid: "u".to_owned(),
        annotations: annotations
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..PipelineRun::default()
    });
    cache.apply(set(Value::Null));
    cache.apply::<Pod>(object(json!({
        "metadata": {
            "namespace": "ci", "name": format!("{SET}-0"), "uid": "p", "resourceVersion": "7",
            "labels": {
                "tekton.dev/pipelineRunUID": "u", "app.kubernetes.io/component": "affinity-assistant",
                "app.kubernetes.io/instance": SET,
            },
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": SET, "uid": "s", "controller": true}],
        },
        "spec": {"nodeName": "node-1", "containers": [], "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]},
        "status": {"phase": "Running"},
    })));
    cache.apply::<Pod>(object(json!({
        "metadata": {
            "namespace": "ci", "name": "waits", "uid": "w", "resourceVersion": "8",
            "labels": {"tekton.dev/pipelineRunUID": "u"},
            "ownerReferences": [{"apiVersion": "tekton.dev/v1", "kind": "TaskRun", "name": "task", "uid": "t", "controller": true}],
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim_of_pod}}],
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {
                    "app.kubernetes.io/component": "affinity-assistant", "app.kubernetes.io/instance": SET}},
            }]}},
        },
        "status": {"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
    })));
    for (name, milli_cpu) in [("node-1", 1000), ("node-2", 4000)] {
        let node = Node {
            name: name.to_owned(),
            ..Node::default()
        };
        cache.apply_node(node, (cpu(milli_cpu), 110));
    }
    cache.put_on_node(OnNode {
        key: ("ci".to_owned(), format!("{SET}-0")),
        node: "node-1".to_owned(),
        requests: cpu(50),
    });
    cache
}

fn set(annotation: Value) -> StatefulSet {
    object(json!({
        "metadata": {
            "namespace": "ci", "name": SET, "uid": "s", "resourceVersion": "5",
            "annotations": annotation.as_str().map(|text| json!({"coscheduler.dev/move": text})),
            "ownerReferences": [{
                "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": "u", "controller": true}],
        },
        "spec": {"selector": {}, "template": {"spec": {"containers": []}}},
    }))
}

/// What was asked for, Events of ours and whose the TaskRun is aside: method, path and body.
type Asked = Vec<(Method, String, Value)>;

/// What the API server answers that is not as usual.
#[derive(Clone, Copy, Default)]
struct Answers {
    /// The autoscaler adds a node for the pod.
    scaled_up: bool,
    /// The TaskRun is another one by now.
    replaced: bool,
}

/// A run that is looked at, and an API server.
struct Looked {
    rescue: Rescue,
    causes: Causes,
    server: JoinHandle<Asked>,
}

impl Looked {
    fn new(cache: &Arc<Cache>, answers: Answers) -> Self {
        let (service, server) = mock::pair();
        let causes = Causes::default();
        let rescue = Rescue::new(
            cache.clone(),
            Objects::new(Client::new(service, "ci")),
            Duration::from_secs(60),
            causes.clone(),
            |_| (),
        );
        Self {
            rescue,
            causes,
            server: tokio::spawn(serve(server, answers)),
        }
    }

    /// Works on the run three times, the first two `time` apart.
    async fn work(&self, time: Duration) -> Outcome {
        self.rescue.work(key()).await;
        tokio::time::advance(time).await;
        self.rescue.work(key()).await;
        // What was written is known by now.
        self.rescue.work(key()).await
    }

    async fn asked(self) -> Asked {
        drop(self.rescue);
        self.server.await.unwrap()
    }
}

/// Answers until nobody asks any more.
async fn serve(mut server: Handle<Request<Body>, Response<Body>>, answers: Answers) -> Asked {
    let mut asked = Vec::new();
    while let Some((request, respond)) = server.next_request().await {
        let (parts, body) = request.into_parts();
        let body: Value =
            serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
        let path = parts.uri.path().to_owned();
        let events = path.ends_with("/events");
        let task = path.contains("/taskruns/");
        let (code, answer) = if events && parts.method == Method::GET {
            let items = answers
                .scaled_up
                .then(|| json!({"metadata": {"name": "e"}}));
            let items: Vec<_> = items.into_iter().collect();
            (
                200,
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": items}),
            )
        } else if task && parts.method == Method::GET {
            let run = if path.ends_with("/task") {
                "u"
            } else {
                "other"
            };
            (
                200,
                json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {
                    "name": "task", "uid": "t",
                    "ownerReferences": [{
                        "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": "run", "uid": run, "controller": true}],
                }}),
            )
        } else if task && answers.replaced {
            (
                409,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Conflict", "code": 409}),
            )
        } else if path.contains("/statefulsets/") {
            (
                200,
                json!(set(
                    body["metadata"]["annotations"]["coscheduler.dev/move"].clone()
                )),
            )
        } else {
            (
                200,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {"name": "n"}, "status": "Success"}),
            )
        };
        if !events && (!task || parts.method != Method::GET) {
            asked.push((parts.method, path, body));
        }
        let answer = Body::from(serde_json::to_vec(&answer).unwrap());
        respond.send_response(Response::builder().status(code).body(answer).unwrap());
    }
    asked
}

/// Looks at the run far enough apart that what is wanted has settled. Every write succeeds.
async fn worked(cache: &Arc<Cache>) -> (Outcome, Asked, Causes) {
    worked_with(cache, Answers::default()).await
}

async fn worked_with(cache: &Arc<Cache>, answers: Answers) -> (Outcome, Asked, Causes) {
    let looked = Looked::new(cache, answers);
    let outcome = looked.work(Duration::from_secs(2)).await;
    let causes = looked.causes.clone();
    (outcome, looked.asked().await, causes)
}

#[tokio::test(start_paused = true)]
async fn n2_a_placeholder_is_sent_on_and_exactly_the_version_that_was_looked_at_leaves() {
    let (outcome, asked, _) = worked(&cache("pipelineruns", "data")).await;
    assert_eq!(outcome, Outcome::Later(STEP));
    let [(patch, set, body), (delete, pod, options)] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!((patch, delete), (&Method::PATCH, &Method::DELETE));
    assert!(set.ends_with(&format!("/statefulsets/{SET}")));
    assert_eq!(body["metadata"]["resourceVersion"], "5");
    let affinity = &body["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
    assert!(affinity.to_string().contains("node-2"), "{affinity}");
    assert!(pod.ends_with(&format!("/pods/{SET}-0")));
    assert_eq!(
        options["preconditions"],
        json!({"uid": "p", "resourceVersion": "7"})
    );
}

#[tokio::test(start_paused = true)]
async fn n2_what_is_wanted_is_looked_at_again_when_it_is_due_and_what_nobody_foresees_now_and_then()
{
    let looked = Looked::new(&cache("pipelineruns", "data"), Answers::default());
    let settles = Duration::from_secs(1);
    assert_eq!(looked.rescue.work(key()).await, Outcome::Later(settles));
    tokio::time::advance(settles / 4).await;
    let left = settles * 3 / 4;
    assert_eq!(looked.rescue.work(key()).await, Outcome::Later(left));
    assert_eq!(looked.asked().await, vec![]);
    let hopeless = cache("pipelineruns", "data");
    hopeless.delete_node("node-2");
    let (outcome, ..) = worked(&hopeless).await;
    assert_eq!(outcome, Outcome::Retry);
}

#[tokio::test(start_paused = true)]
async fn n2_a_pod_is_let_go_by_its_task_run_and_only_where_it_may() {
    let pinned = |cache: Arc<Cache>| {
        let volume = object(json!({
            "metadata": {"name": "pv"},
            "spec": {
                "claimRef": {"namespace": "ci", "name": "data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]}},
            },
        }));
        cache.apply_volume("pv".to_owned(), volume);
        cache.apply_claim(object(json!({
            "metadata": {"namespace": "ci", "name": "data"}, "spec": {"volumeName": "pv"}})));
        cache
    };
    let (_, asked, _) = worked(&pinned(cache("pipelineruns", "own"))).await;
    let [(patch, task_run, body), (delete, pod, options)] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!((patch, delete), (&Method::PATCH, &Method::DELETE));
    assert!(task_run.ends_with("/taskruns/task") && pod.ends_with("/pods/waits"));
    assert_eq!(
        body["metadata"],
        json!({"uid": "t", "annotations": {
            "pipeline.tekton.dev/affinity-assistant": "", "coscheduler.dev/let-go": SET}})
    );
    assert_eq!(options["preconditions"]["resourceVersion"], "8");
    let replaced = Answers {
        replaced: true,
        ..Answers::default()
    };
    let (_, asked, _) = worked_with(&pinned(cache("pipelineruns", "own")), replaced).await;
    let patches = asked.iter().all(|(method, ..)| method == Method::PATCH);
    assert!(patches && !asked.is_empty(), "{asked:?}");
    for (mode, claim) in [("pipelineruns", "data"), ("isolate-pipelinerun", "own")] {
        let (outcome, asked, causes) = worked(&pinned(cache(mode, claim))).await;
        assert_eq!(
            (outcome, asked),
            (Outcome::Retry, vec![]),
            "{mode}, {claim}"
        );
        let causes = causes.lock().unwrap();
        assert!(causes.contains_key(&key()), "{mode}, {claim}");
    }
}

#[tokio::test(start_paused = true)]
async fn n2_p7_nothing_is_done_or_said_for_a_pod_whose_task_run_is_another_runs() {
    let of_another_run = |cache: Arc<Cache>| {
        let pod = cache.get(&key()).unwrap().pods["waits"].clone();
        let mut pod = (*pod).clone();
        let owners = pod.metadata.owner_references.as_mut().unwrap();
        owners[0].name = "stranger".to_owned();
        cache.refresh(pod);
        cache
    };
    let (outcome, asked, _) = worked(&of_another_run(cache("pipelineruns", "data"))).await;
    assert_eq!((outcome, asked), (Outcome::Retry, vec![]));
    let hopeless = of_another_run(cache("pipelineruns", "data"));
    hopeless.delete_node("node-2");
    let (outcome, asked, causes) = worked(&hopeless).await;
    assert_eq!((outcome, asked), (Outcome::Retry, vec![]));
    assert!(causes.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn n4_nothing_is_moved_for_a_pod_that_the_autoscaler_adds_a_node_for() {
    let (outcome, asked, _) = {
        let answers = Answers {
            scaled_up: true,
            ..Answers::default()
        };
        worked_with(&cache("pipelineruns", "data"), answers).await
    };
    assert_eq!((outcome, asked), (Outcome::Later(LOOK), vec![]));
}

#[tokio::test(start_paused = true)]
async fn n2_a_move_ends_where_the_placeholder_has_arrived() {
    let cache = cache("pipelineruns", "data");
    // The pod that waits has been taken meanwhile.
    let gone = cache.get(&key()).unwrap().pods["waits"].clone();
    cache.delete(&*gone);
    cache.refresh(set(is_sent("node-1")));
    let (outcome, asked, _) = worked(&cache).await;
    assert_eq!(outcome, Outcome::Done);
    let [(Method::PATCH, path, body)] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert!(path.ends_with(SET));
    assert_eq!(
        body["metadata"]["annotations"],
        json!({"coscheduler.dev/move": null})
    );
}

fn is_sent(to: &str) -> Value {
    json!({"nodes": [to], "before": null}).to_string().into()
}

#[tokio::test(start_paused = true)]
async fn n2_a_placeholder_leaves_once_its_controller_knows_where_it_goes() {
    for (known, expect) in [(1, &[][..]), (2, &[Method::DELETE][..])] {
        let cache = cache("pipelineruns", "data");
        let mut sent = set(is_sent("node-2"));
        sent.metadata.generation = Some(2);
        sent.status = Some(object(json!({"replicas": 1, "observedGeneration": known})));
        cache.refresh(sent);
        let (outcome, asked, _) = worked(&cache).await;
        assert_eq!(outcome, Outcome::Later(STEP));
        let mut methods: Vec<_> = asked.iter().map(|(method, ..)| method.clone()).collect();
        methods.dedup();
        assert_eq!(methods, expect, "generation {known} is known");
    }
}

/// The scheduler has the last word.
#[tokio::test(start_paused = true)]
async fn n2_a_placeholder_that_no_node_takes_may_go_anywhere_again_and_is_not_sent_there_again() {
    let cache = cache("pipelineruns", "data");
    let bound = cache.get(&key()).unwrap().pods[&format!("{SET}-0")].clone();
    let mut lost = serde_json::to_value(&*bound).unwrap();
    lost["spec"]["nodeName"] = Value::Null;
    lost["status"] = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]});
    cache.refresh::<Pod>(object(lost));
    cache.refresh(set(is_sent("node-2")));
    let (outcome, asked, _) = worked(&cache).await;
    assert_eq!(
        (outcome, &asked[..]),
        (Outcome::Later(STEP), &[][..]),
        "not at once"
    );
    let looked = Looked::new(&cache, Answers::default());
    looked.work(Duration::from_secs(11)).await;
    // Back where it was.
    cache.refresh::<Pod>((*bound).clone());
    cache.refresh(set(Value::Null));
    looked.work(Duration::from_secs(5)).await;
    let asked = looked.asked().await;
    let methods: Vec<_> = asked.iter().map(|(method, ..)| method.clone()).collect();
    assert_eq!(methods, [Method::PATCH, Method::DELETE], "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn n2_a_run_that_is_done_or_has_room_is_left_alone() {
    let done = cache("pipelineruns", "data");
    let itself = done.get(&key()).unwrap().itself().unwrap();
    done.apply(PipelineRun {
        state: RunState::Done,
        ..(*itself).clone()
    });
    let (outcome, asked, _) = worked(&done).await;
    assert_eq!((outcome, asked), (Outcome::Done, vec![]));
    let unreadable = cache("pipelineruns", "data");
    let mut changed = (*itself).clone();
    changed
        .annotations
        .insert(MODE.to_owned(), "sideways".to_owned());
    unreadable.apply(changed);
    let (outcome, asked, _) = worked(&unreadable).await;
    assert_eq!((outcome, asked), (Outcome::Done, vec![]));
    let roomy = cache("pipelineruns", "data");
    let node = Node {
        name: "node-1".to_owned(),
        ..Node::default()
    };
    roomy.apply_node(node, (cpu(8000), 110));
    let (outcome, asked, _) = worked(&roomy).await;
    assert_eq!((outcome, asked), (Outcome::Retry, vec![]));
}
