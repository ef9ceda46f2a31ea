//! Placeholders that are pods without a controller (key `placeholder-backend: pod`).

use super::*;
use coscheduler_core::annotations::PLACEHOLDER;

/// A run whose placeholder is a pod.
fn run_with_pod() -> PipelineRun {
    let mut run = run(&["data"]);
    let text = run.annotations.get_mut(PLACEHOLDER).unwrap();
    let mut defaults: Value = serde_json::from_str(text).unwrap();
    defaults["backend"] = "pod".into();
    *text = defaults.to_string();
    run
}

/// The placeholder's pod, controlled by the run, as Kubernetes JSON.
fn own_pod(run: &PipelineRun, node: Option<&str>, phase: &str) -> Value {
    let name = &planned(run)[0];
    json!({
        "metadata": {
            "namespace": run.namespace, "name": format!("{name}-0"), "uid": "p", "resourceVersion": "7",
            "labels": {
                "tekton.dev/pipelineRunUID": run.uid,
                "app.kubernetes.io/component": "affinity-assistant",
                "app.kubernetes.io/instance": name,
                "app.kubernetes.io/managed-by": "tekton-coscheduler",
            },
            "ownerReferences": [{
                "apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "name": run.name, "uid": run.uid, "controller": true}],
        },
        "spec": {"containers": [], "nodeName": node},
        "status": {"phase": phase},
    })
}

/// The short forms of these requests, without those about claims.
fn shorts(asked: &[Asked]) -> Vec<String> {
    let others = asked.iter().filter(|it| !it.path.contains("claims"));
    others.map(Asked::short).collect()
}

#[tokio::test(start_paused = true)]
async fn p1_the_manager_creates_the_pod_and_deletes_one_that_has_ended() {
    let run = run_with_pod();
    let old = own_pod(&run, Some("node-1"), "Failed");
    let manager = Manager::new(true, move |asked| match asked.method {
        Method::POST if asked.last() == "pods" => status(409, "AlreadyExists", "exists"),
        Method::GET if asked.last() == "pods" => {
            (200, json!({"metadata": {}, "items": [old.clone()]}))
        }
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(run.clone());
    let key = key();
    let ensure = manager.reconciler.call(&key, Purpose::Ensure);
    let (ensured, ()) = tokio::join!(ensure, async {
        manager.work().await;
    });
    assert_eq!(
        ensured.unwrap_err().to_string(),
        format!("placeholder ci/{} is still being deleted", planned(&run)[0])
    );
    let asked = manager.server.asked();
    let pod = format!("{}-0", planned(&run)[0]);
    assert_eq!(
        shorts(&asked),
        ["POST pods", "GET pods", &format!("DELETE {pod}")]
    );
    let others = asked.iter().filter(|it| !it.path.contains("claims"));
    let asked: Vec<_> = others.collect();
    let owner = &asked[0].body["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], run.uid);
    assert_eq!(asked[2].body["preconditions"]["uid"], "p");
}

/// A manager whose cache contains the run and its pod on node-1, which is cordoned. The API server answers with `answer`.
async fn cordoned(
    run: &PipelineRun,
    answer: impl Fn(&Asked) -> (u16, Value) + Send + 'static,
) -> Manager {
    let manager = Manager::new(true, answer).await;
    manager.cache.apply_run(run.clone());
    let pod = read_pod(own_pod(run, Some("node-1"), "Running"));
    manager.cache.apply_pod(pod);
    manager.cache.apply_node(node("node-1", true));
    manager
}

/// The API server's answer to the creation of a StatefulSet.
fn created(asked: &Asked) -> (u16, Value) {
    let mut set = asked.body.clone();
    let metadata = &mut set["metadata"];
    (metadata["uid"], metadata["resourceVersion"]) = ("s".into(), "8".into());
    (201, set)
}

#[tokio::test(start_paused = true)]
async fn n1_the_pod_gets_a_successor_before_it_leaves_which_starts_once_the_pod_is_gone() {
    let run = run_with_pod();
    let name = planned(&run)[0].clone();
    let manager = cordoned(&run, |asked| match asked.last() {
        "statefulsets" => created(asked),
        _ => usual(asked),
    })
    .await;
    let asked = manager.asks().await.1;
    let delete = format!("DELETE {name}-0");
    assert_eq!(shorts(&asked), ["POST statefulsets", &delete]);
    let set = asked.iter().find(|it| it.method == Method::POST).unwrap();
    assert_eq!(set.body["spec"]["replicas"], 0);
    assert_eq!(record(set)["evacuated"]["times"], 1);
    // The watch still shows the pod, but the placeholder has a controller.
    let pod = read_pod(own_pod(&run, Some("node-1"), "Running"));
    manager.cache.apply_pod(pod);
    let gone = ("ci".to_owned(), format!("{name}-0"));
    manager.cache.delete_pod(&gone);
    let asked = manager.asks().await.1;
    assert_eq!(shorts(&asked), ["GET pods", &format!("PATCH {name}")]);
    assert_eq!(asked[1].body["spec"]["replicas"], 1);
}

/// The watch does not show pods that have ended.
#[tokio::test(start_paused = true)]
async fn n1_the_successor_waits_until_a_pod_that_has_ended_is_deleted() {
    let run = run_with_pod();
    let name = planned(&run)[0].clone();
    let ended = own_pod(&run, Some("node-1"), "Failed");
    let manager = cordoned(&run, move |asked| match (&asked.method, asked.last()) {
        (_, "statefulsets") => created(asked),
        (&Method::GET, "pods") => (200, json!({"metadata": {}, "items": [ended.clone()]})),
        _ => usual(asked),
    })
    .await;
    manager.asks().await;
    let gone = ("ci".to_owned(), format!("{name}-0"));
    manager.cache.delete_pod(&gone);
    let (outcome, asked) = manager.asks().await;
    assert_eq!(shorts(&asked), ["GET pods", &format!("DELETE {name}-0")]);
    assert_eq!(outcome, Outcome::Retry);
}

#[tokio::test(start_paused = true)]
async fn n1_the_pod_leaves_a_bad_node_even_if_its_successor_is_refused() {
    let run = run_with_pod();
    let manager = cordoned(&run, |asked| match asked.last() {
        "statefulsets" => status(403, "Forbidden", "exceeded quota: none"),
        _ => usual(asked),
    })
    .await;
    manager.work().await;
    let asked = manager.server.asked();
    let deletes = asked.iter().filter(|it| it.method == Method::DELETE);
    assert_eq!(deletes.count(), 1, "{asked:?}");
    let told: Vec<_> = asked.iter().map(|it| it.body["reason"].as_str()).collect();
    assert!(told.contains(&Some("QuotaExceeded")), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn p6_the_pod_of_a_run_that_has_ended_is_deleted() {
    let run = run_with_pod();
    let manager = Manager::new(true, usual).await;
    manager.cache.apply_run(run.clone());
    manager
        .cache
        .apply_pod(read_pod(own_pod(&run, Some("node-1"), "Running")));
    manager
        .cache
        .delete_run(&("ci".to_owned(), run.name.clone()));
    let asked = manager.asks().await.1;
    let pod = format!("DELETE {}-0", planned(&run)[0]);
    assert!(shorts(&asked).contains(&pod), "{asked:?}");
}
