//! Tests of a placeholder's pod that starts gated (B3).

use coscheduler_core::observed::Answer;
use k8s_openapi::jiff::Timestamp;

use super::*;

/// A run whose placeholder has a gated pod, and whose task pod waits. The API server answers resizes with `resized`, and refuses
/// each change of the nodes that may take the pod.
async fn gated(resized: fn() -> (u16, Value)) -> Manager {
    let manager = waiting("data", move |asked| {
        if asked.body["spec"].get("affinity").is_some() {
            return status(422, "Invalid", "spec.affinity: Forbidden");
        }
        let gated = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "namespace": "ci", "name": asked.last(), "uid": "p", "resourceVersion": "9"}, "spec": {"containers": []}});
        match (&asked.method, asked.last()) {
            (&Method::PATCH, "resize") => resized(),
            (&Method::PATCH, name) if name.ends_with("-0") => (200, gated),
            (&Method::GET, "pods") => {
                let mut pod = gated;
                pod["metadata"]["name"] = format!("{}-0", planned(&run(&["data"]))[0]).into();
                (200, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]}))
            }
            _ => usual(asked),
        }
    })
    .await;
    let run = run(&["data"]);
    let mut pod =
        Pod::clone(&manager.cache.observe(&key()).pods[&format!("{}-0", planned(&run)[0])]);
    pod.node = None;
    pod.object.resource_version = "8".to_owned();
    pod.placeholder.as_mut().unwrap().gated = true;
    manager.cache.apply_pod(pod);
    let own = Answer {
        at: Timestamp::now(),
        own: true,
        let_go: 0,
    };
    let waits = manager.cache.observe(&key()).pods["waits"].clone();
    let memory = &manager.reconciler.memory;
    memory.answered(&key(), &waits.object.uid, own);
    manager
}

/// The requests about the pod, and the codes of the Events.
async fn opened(manager: &Manager) -> (Vec<Asked>, Vec<String>) {
    manager.work().await;
    let asked = manager.server.asked();
    let events = asked.iter().filter(|it| it.path.contains("/events"));
    let told = events.map(|it| it.body["reason"].as_str().unwrap_or_default().to_owned());
    let told = told.collect();
    let asked = asked.into_iter().filter(|it| it.path.contains("/pods"));
    (asked.collect(), told)
}

#[tokio::test]
async fn b3_a_gated_pod_is_resized_for_the_waiting_pod_and_then_opened() {
    let resized = || {
        (
            200,
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "p", "resourceVersion": "9"}}),
        )
    };
    let (asked, told) = opened(&gated(resized).await).await;
    let [resize, list, limited, open] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(resize.last(), "resize");
    assert_eq!(resize.body["metadata"]["resourceVersion"], "8");
    assert!(limited.body["spec"].get("affinity").is_some());
    let requests = &resize.body["spec"]["containers"][0]["resources"]["requests"];
    assert_eq!(requests["cpu"], "2");
    assert!(list.query.contains("metadata.name"), "{}", list.query);
    assert_eq!(open.body["spec"]["schedulingGates"][0]["$patch"], "delete");
    assert_eq!(told, [""; 0]);
}

/// Kubernetes before 1.33 does not serve the subresource. It names no object then.
#[tokio::test]
async fn b3_without_pods_resize_the_pod_is_opened_with_its_own_requests_and_the_author_hears_it() {
    let missing = || {
        let (code, mut answer) = status(
            404,
            "NotFound",
            "the server could not find the requested resource",
        );
        answer["details"] = json!({});
        (code, answer)
    };
    let (asked, told) = opened(&gated(missing).await).await;
    let [resize, _, _, open] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(resize.last(), "resize");
    assert_eq!(open.body["spec"]["schedulingGates"][0]["$patch"], "delete");
    assert_eq!(told, ["ReservationRefused"]);
}

/// Kubernetes 1.33 does not reduce a limit of memory.
#[tokio::test]
async fn b3_room_is_given_up_even_if_the_limit_of_memory_must_stay() {
    let manager = gated(|| status(422, "Invalid", "memory limits cannot be decreased")).await;
    let run = run(&["data"]);
    let mut pod =
        Pod::clone(&manager.cache.observe(&key()).pods[&format!("{}-0", planned(&run)[0])]);
    pod.node = Some("node-1".to_owned());
    let placeholder = pod.placeholder.as_mut().unwrap();
    placeholder.gated = false;
    placeholder.asks.milli_cpu = 9000;
    manager.cache.apply_pod(pod);
    let (asked, _) = opened(&manager).await;
    let limits = |asked: &Asked| asked.body["spec"]["containers"][0]["resources"]["limits"].clone();
    let limits: Vec<_> = asked.iter().map(limits).collect();
    let [first, second] = &limits[..] else {
        panic!("{asked:?}");
    };
    assert!(first.get("memory").is_some(), "{first}");
    assert!(
        second.get("memory").is_none() && second.get("cpu").is_some(),
        "{second}"
    );
}
