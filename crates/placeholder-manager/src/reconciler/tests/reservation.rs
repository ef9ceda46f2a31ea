//! Tests of a placeholder's pod that starts gated (B3).

use coscheduler_core::observed::Answer;

use super::*;

/// A run whose placeholder has a gated pod, and whose task pod waits. The API server answers resizes with `resized` if it is
/// not `None`, and refuses each change of the nodes that may take the pod.
async fn gated(resized: Option<(u16, Value)>) -> Manager {
    let name = pod_name();
    let manager = waiting("data", move |asked| {
        if asked.body["spec"].get("affinity").is_some() {
            return status(422, "Invalid", "spec.affinity: Forbidden");
        }
        let gated = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "namespace": "ci", "name": name, "uid": "p", "resourceVersion": "9"}, "spec": {"containers": []}});
        let list = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [gated]});
        match (&asked.method, asked.last()) {
            (&Method::PATCH, "resize") => resized.clone().unwrap_or((200, gated)),
            (&Method::PATCH, last) if last == name => (200, gated),
            (&Method::GET, "pods") => (200, list),
            _ => usual(asked),
        }
    })
    .await;
    change_pod(&manager, gate);
    let own = Answer {
        own: true,
        ..Answer::default()
    };
    let memory = &manager.reconciler.memory;
    memory.answered(&key(), "uid-of-waits", own);
    manager
}

fn pod_name() -> String {
    format!("{}-0", planned(&run(&["data"]))[0])
}

/// Changes the placeholder's pod in the cache.
fn change_pod(manager: &Manager, change: impl FnOnce(&mut Pod)) {
    let mut pod = Pod::clone(&manager.cache.observe(&key()).pods[&pod_name()]);
    change(&mut pod);
    manager.cache.apply_pod(pod);
}

/// Makes the pod a new one, which still has its gate.
fn gate(pod: &mut Pod) {
    pod.node = None;
    pod.object.resource_version = "8".to_owned();
    pod.placeholder.as_mut().unwrap().gated = true;
}

/// The requests about the pod, and the codes of the Events.
async fn opened(manager: &Manager) -> (Vec<Asked>, Vec<String>) {
    manager.work().await;
    let asked = manager.server.asked();
    let events = asked.iter().filter(|it| it.path.contains("/events"));
    let told = Vec::from_iter(events.map(|it| it.body["reason"].as_str().unwrap().to_owned()));
    let asked = asked.into_iter().filter(|it| it.path.contains("/pods"));
    (asked.collect(), told)
}

/// Kubernetes before 1.33 does not serve subresource `pods/resize`. Its error then names no object.
#[tokio::test]
async fn b3_a_gated_pod_is_resized_for_the_waiting_pod_and_then_opened_even_without_pods_resize() {
    let (code, mut missing) = status(404, "NotFound", "no such resource");
    missing["details"] = json!({});
    let missing = Some((code, missing));
    for (resized, events) in [(None, vec![]), (missing, vec!["ReservationRefused"])] {
        let (asked, told) = opened(&gated(resized).await).await;
        let [resize, list, limited, open] = &asked[..] else {
            panic!("{asked:?}");
        };
        assert_eq!(resize.last(), "resize");
        assert_eq!(resize.body["metadata"]["resourceVersion"], "8");
        let requests = &resize.body["spec"]["containers"][0]["resources"]["requests"];
        assert_eq!(requests["cpu"], "2");
        assert!(list.query.contains("metadata.name"), "{}", list.query);
        assert!(limited.body["spec"].get("affinity").is_some());
        assert_eq!(open.body["spec"]["schedulingGates"][0]["$patch"], "delete");
        assert_eq!(told, events);
    }
}

/// The API server compares the uid like any other field that must not change.
#[tokio::test]
async fn b3_a_gated_pod_that_was_replaced_is_left_alone() {
    let replaced = status(422, "Invalid", "metadata.uid: field is immutable");
    let (asked, told) = opened(&gated(Some(replaced)).await).await;
    let lasts: Vec<_> = asked.iter().map(Asked::last).collect();
    assert_eq!((lasts, told), (vec!["resize"], vec![]));
}

/// The API server tries three times to count the pod in its quota, while other pods of the namespace change the quota.
#[tokio::test]
async fn b3_a_gated_pod_is_resized_again_after_a_conflict_about_a_quota() {
    let said = "Operation cannot be fulfilled on resourcequotas";
    let (code, mut conflict) = status(409, "Conflict", said);
    conflict["details"] = json!({"name": "quota", "kind": "resourcequotas"});
    let manager = gated(Some((code, conflict))).await;
    assert_eq!(manager.work().await, Outcome::Retry);
}

/// Kubernetes 1.33 does not reduce a limit of memory.
#[tokio::test]
async fn b3_room_is_given_up_even_if_the_limit_of_memory_must_stay() {
    let refused = status(422, "Invalid", "memory limits cannot be decreased");
    let manager = gated(Some(refused)).await;
    change_pod(&manager, |pod| {
        pod.node = Some("node-1".to_owned());
        let placeholder = pod.placeholder.as_mut().unwrap();
        (placeholder.gated, placeholder.asks.milli_cpu) = (false, 9000);
    });
    let (asked, _) = opened(&manager).await;
    let limited = asked.iter().map(|it| {
        let limits = it.body["spec"]["containers"][0]["resources"]["limits"].as_object();
        limits.unwrap().keys().map(String::as_str).collect()
    });
    let limited: Vec<Vec<_>> = limited.collect();
    assert_eq!(limited, [vec!["cpu", "memory"], vec!["cpu"]]);
}

/// The scheduler bound the run's pod to the old node while the placeholder left it, and the watch is late.
#[tokio::test(start_paused = true)]
async fn n2_a_moved_placeholder_returns_to_a_pod_that_was_bound_meanwhile() {
    let manager = waiting("data", |asked| {
        let pods = (&asked.method, asked.last()) == (&Method::GET, "pods");
        if !pods || !asked.query.contains("labelSelector") {
            return usual(asked);
        }
        let mut bound = follower(&run(&["data"]), "waits");
        bound["spec"]["nodeName"] = "node-1".into();
        bound["metadata"]["resourceVersion"] = "12".into();
        (200, json!({"metadata": {}, "items": [bound]}))
    })
    .await;
    manager.moved_before(&run(&["data"]));
    change_pod(&manager, gate);
    let (asked, _) = opened(&manager).await;
    let short = Vec::from_iter(asked.iter().map(Asked::short));
    assert_eq!(short, ["GET pods"], "its gate stays");
    let waits = &manager.cache.observe(&key()).pods["waits"];
    assert_eq!(waits.node.as_deref(), Some("node-1"));
    // The cache now has the node of every pod that follows the placeholder, so the manager does not list the pods again.
    tokio::time::advance(60 * SECOND).await;
    let (asked, _) = opened(&manager).await;
    let mut queries = asked.iter().map(|it| &it.query);
    assert!(!queries.any(|it| it.contains("labelSelector")), "{asked:?}");
}
