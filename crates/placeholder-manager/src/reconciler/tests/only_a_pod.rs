//! Placeholders that are pods without a controller (key `placeholder-backend: pod`).

use super::*;
use coscheduler_core::annotations::{PLACEHOLDER, SIZES};

/// A run whose placeholder is a pod.
fn run_with_pod() -> PipelineRun {
    let mut run = run(&["data"]);
    let text = run.annotations.get_mut(PLACEHOLDER).unwrap();
    let mut defaults: Value = serde_json::from_str(text).unwrap();
    defaults["backend"] = "pod".into();
    *text = defaults.to_string();
    run
}

/// The placeholder's pod on node-1, controlled by the run, as Kubernetes JSON.
fn own_pod(run: &PipelineRun, phase: &str) -> Value {
    let mut pod = placeholder_pod_json(run);
    pod["metadata"]["ownerReferences"] = set(run, "5")["metadata"]["ownerReferences"].clone();
    pod["spec"]["nodeName"] = "node-1".into();
    pod["status"] = json!({"phase": phase});
    pod
}

/// The short forms of these requests, without requests about claims and about the resources of API v1.
fn shorts(asked: &[Asked]) -> Vec<String> {
    let others = asked
        .iter()
        .filter(|it| !it.path.contains("claims") && it.last() != "v1");
    others.map(Asked::short).collect()
}

#[tokio::test(start_paused = true)]
async fn p1_the_manager_creates_the_pod_and_deletes_one_that_has_ended() {
    let run = run_with_pod();
    let old = own_pod(&run, "Failed");
    let manager = Manager::new(true, move |asked| match asked.method {
        Method::POST if asked.last() == "pods" => status(409, "AlreadyExists", "exists"),
        Method::GET if asked.last() == "pods" => {
            (200, json!({"metadata": {}, "items": [old.clone()]}))
        }
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(run.clone());
    let (ensured, _) = manager.called(Purpose::Ensure).await;
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
    let of = |method| asked.iter().rfind(|it| it.method == method).unwrap();
    let owner = &of(Method::POST).body["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], run.uid);
    assert_eq!(of(Method::DELETE).body["preconditions"]["uid"], "p");
}

/// The API server's answer if it serves pods and this resource.
fn serving(name: &str) -> (u16, Value) {
    let served = ["pods", name].map(
        |name| json!({"name": name, "singularName": "", "namespaced": true, "kind": "Pod", "verbs": []}),
    );
    (200, json!({"groupVersion": "v1", "resources": served}))
}

/// The gates and the CPU requests of the pods that a manager tries to create, and the codes of the Events. `served` is the answer
/// to the question about the resources of API v1. The run's tasks request 2 CPUs and 1 CPU.
async fn creating(
    served: (u16, Value),
    accept: impl Fn(&Asked) -> bool + Send + 'static,
) -> (Vec<(Option<Value>, Value)>, Vec<String>) {
    let mut run = run_with_pod();
    let sizes = r#"{"a": {"requests": {"cpu": "2"}}, "b": {"requests": {"cpu": "1"}}}"#;
    run.annotations.insert(SIZES.to_owned(), sizes.to_owned());
    let manager = Manager::new(true, move |asked| match asked.last() {
        "v1" => served.clone(),
        "pods" if asked.method == Method::POST && !accept(asked) => {
            status(403, "Forbidden", "maximum cpu usage per Container is 2")
        }
        _ => usual(asked),
    })
    .await;
    manager.cache.apply_run(run);
    drop(manager.called(Purpose::Ensure).await);
    let asked = manager.server.asked();
    let events = asked.iter().filter(|it| it.path.contains("/events"));
    let told = events.map(|it| it.body["reason"].as_str().unwrap().to_owned());
    let pods = asked.iter().filter(|it| it.short() == "POST pods");
    let pods = pods.map(|it| {
        let spec = &it.body["spec"];
        let requests = &spec["containers"][0]["resources"]["requests"];
        (
            spec.get("schedulingGates").cloned(),
            requests["cpu"].clone(),
        )
    });
    (pods.collect(), told.collect())
}

#[tokio::test(start_paused = true)]
async fn b3_the_pod_is_created_with_the_first_size_that_the_api_server_accepts() {
    let cpu =
        |asked: &Asked| asked.body["spec"]["containers"][0]["resources"]["requests"]["cpu"].clone();
    let open = |cpu: &str| (None, json!(cpu));
    let (pods, told) = creating(serving("pods/resize"), |_| true).await;
    assert_eq!((pods, told), (vec![open("3050m")], vec![]));
    let (pods, told) = creating(serving("pods/resize"), move |asked| cpu(asked) == "2050m").await;
    let refused = "ReservationRefused".to_owned();
    assert_eq!(
        (pods, told),
        (vec![open("3050m"), open("2050m")], vec![refused.clone()])
    );
    let (pods, told) = creating(serving("pods/resize"), move |asked| cpu(asked) == "50m").await;
    assert_eq!(pods, [open("3050m"), open("2050m"), open("50m")]);
    assert_eq!(told, [refused.clone(), refused]);
    // The API server refuses the pod without a reservation too, so the size is not the cause.
    let (pods, told) = creating(serving("pods/resize"), |_| false).await;
    assert_eq!(pods.len(), 3);
    assert!(!told.contains(&"ReservationRefused".to_owned()), "{told:?}");
    assert_eq!(told.len(), 1);
    // Kubernetes before 1.33 cannot reduce the requests later. A manager without the right to ask does not know.
    let forbidden = status(403, "Forbidden", "forbidden: cannot get path /api/v1");
    for served in [serving("pods/status"), forbidden] {
        let (pods, told) = creating(served, |_| true).await;
        let gate = json!([{"name": "coscheduler.dev/reservation"}]);
        assert_eq!((pods, told), (vec![(Some(gate), json!("50m"))], vec![]));
    }
}

/// A manager whose cache contains the run and its pod on node-1, which is cordoned. The API server answers with `answer`.
async fn cordoned(
    run: &PipelineRun,
    answer: impl Fn(&Asked) -> (u16, Value) + Send + 'static,
) -> Manager {
    let manager = Manager::new(true, answer).await;
    manager.cache.apply_run(run.clone());
    let pod = read_pod(own_pod(run, "Running"));
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
    let pod = read_pod(own_pod(&run, "Running"));
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
    let ended = own_pod(&run, "Failed");
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
    manager.cache.apply_pod(read_pod(own_pod(&run, "Running")));
    manager
        .cache
        .delete_run(&("ci".to_owned(), run.name.clone()));
    let asked = manager.asks().await.1;
    let pod = format!("DELETE {}-0", planned(&run)[0]);
    assert!(shorts(&asked).contains(&pod), "{asked:?}");
}
