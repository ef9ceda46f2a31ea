use serde_json::json;

use super::*;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn run(status: Option<&str>, blocked: Option<(&str, &str)>) -> PipelineRun {
    let mut annotations = json!({});
    if let Some((reason, message)) = blocked {
        let value = json!({"reason": reason, "message": message});
        annotations[BLOCKED] = value.to_string().into();
    }
    object(json!({
        "metadata": {"name": "run", "annotations": annotations},
        "spec": {"status": status},
    }))
}

/// The placeholder's pod, which has no node if `node` is `None`.
fn placeholder(node: Option<&str>, said: Option<&str>) -> Pod {
    object(json!({
        "metadata": {"name": "p-0", "uid": "p-0", "labels": {
            "app.kubernetes.io/component": "affinity-assistant", "app.kubernetes.io/instance": "p",
        }},
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Pending", "conditions": unscheduled(said)},
    }))
}

/// A TaskRun's pod that follows the placeholder.
fn task(name: &str, node: Option<&str>, said: Option<&str>) -> Pod {
    let selects = json!({"matchLabels": {
        "app.kubernetes.io/component": "affinity-assistant", "app.kubernetes.io/instance": "p",
    }});
    object(json!({
        "metadata": {"name": name, "uid": name},
        "spec": {
            "nodeName": node, "containers": [],
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": selects, "topologyKey": "kubernetes.io/hostname"},
            ]}},
        },
        "status": {"phase": "Pending", "conditions": unscheduled(said)},
    }))
}

fn unscheduled(said: Option<&str>) -> Value {
    let condition = said.map(|said| {
        json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said})
    });
    condition.into_iter().collect()
}

fn event(about: &str, source: &str, reason: &str, second: u32) -> Event {
    object(json!({
        "metadata": {}, "regarding": {"uid": about}, "reason": reason, "note": "why",
        "reportingController": source, "eventTime": format!("2026-01-01T00:00:{second:02}.000000Z"),
    }))
}

fn found(pods: Vec<Pod>, events: Vec<Event>) -> Option<Cause> {
    let facts = Facts {
        run: run(None, None),
        pods,
        events,
        ..Facts::default()
    };
    cause(&facts)
}

fn reason(pods: Vec<Pod>, events: Vec<Event>) -> Option<&'static str> {
    found(pods, events).map(|cause| cause.reason)
}

const FULL: Option<&str> = Some("0/2 nodes are available: 1 Insufficient cpu.");
const NODE: Option<&str> = Some("node-1");

#[test]
fn a_run_may_wait_before_it_has_pods() {
    let of = |run: PipelineRun, task_runs: Vec<TaskRun>| {
        let facts = Facts {
            run,
            task_runs,
            ..Facts::default()
        };
        cause(&facts)
    };
    let pending = of(run(Some("PipelineRunPending"), None), Vec::new()).unwrap();
    assert_eq!(pending.reason, "PipelineRunPending");
    assert_eq!(pending.evidence.field, "spec.status");
    let blocked = of(run(None, Some(("QuotaExceeded", "too much"))), Vec::new()).unwrap();
    assert_eq!((blocked.reason, blocked.remedy), ("QuotaExceeded", None));
    assert_eq!(blocked.message, "too much");
    let mut done = run(None, Some(("QuotaExceeded", "too much")));
    let condition = json!([{"type": "Succeeded", "status": "False", "reason": "Failed"}]);
    done.status.insert("conditions".to_owned(), condition);
    assert_eq!(of(done, Vec::new()), None);

    let task_run = |reason: &str, pod: &str| {
        let condition =
            json!({"type": "Succeeded", "status": "Unknown", "reason": reason, "message": "why"});
        object(
            json!({"metadata": {"name": "t"}, "status": {"podName": pod, "conditions": [condition]}}),
        )
    };
    let waits = |task_run| of(run(None, None), vec![task_run]);
    let cause = waits(task_run("ExceededResourceQuota", "")).unwrap();
    assert_eq!(cause.reason, "TaskRunHasNoPod");
    assert_eq!(cause.evidence.object, "TaskRun t");
    assert_eq!(cause.evidence.value, "why");
    assert_eq!(waits(task_run("ExceededNodeResources", "pod")), None);
    assert_eq!(waits(task_run("Started", "")), None);
}

#[test]
fn the_schedulers_message_is_the_evidence_of_an_unbound_placeholder() {
    let of = |said: &str, events: Vec<Event>| {
        let facts = Facts {
            run: run(None, Some(("PlaceholderUnschedulable", "no node"))),
            pods: vec![placeholder(None, Some(said))],
            events,
            ..Facts::default()
        };
        cause(&facts).unwrap()
    };
    let plain = of("0/1 nodes are available: 1 Insufficient cpu.", Vec::new());
    assert_eq!(plain.reason, "PlaceholderUnschedulable");
    assert_eq!(plain.evidence.object, "Pod p-0");
    let isolated =
        "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules.";
    let isolated = of(isolated, Vec::new());
    assert_eq!(isolated.reason, "NoIsolatedNode");
    assert!(isolated.remedy.is_some());
    let comes = of("full", vec![event("p-0", "karpenter", "Nominated", 1)]);
    assert_eq!(comes.reason, "NodeBeingAdded");
}

#[test]
fn a_pod_without_a_node_waits_for_its_placeholder_its_claim_or_room() {
    let waits = |said: &str, more: Vec<Pod>| {
        let mut pods = vec![task("waits", None, Some(said))];
        pods.extend(more);
        reason(pods, Vec::new())
    };
    let at_home = || vec![placeholder(NODE, None)];
    let full = FULL.unwrap();
    assert_eq!(waits(full, Vec::new()), Some("PlaceholderMissing"));
    let unbound = vec![placeholder(None, None)];
    assert_eq!(waits(full, unbound), Some("WaitsForScheduler"));
    let stale = "0/1 nodes are available: 1 node(s) didn't match pod affinity rules.";
    assert_eq!(waits(stale, at_home()), Some("WaitsForScheduler"));
    assert_eq!(waits(full, at_home()), Some("NoRoomBesidePlaceholder"));
    let mut beside = at_home();
    beside.push(task("runs", NODE, None));
    let cause = found(
        [vec![task("waits", None, FULL)], beside].concat(),
        Vec::new(),
    );
    let cause = cause.unwrap();
    assert_eq!(cause.reason, "WaitsForOwnPods");
    assert!(
        cause.message.ends_with("pods of the run: runs."),
        "{cause:?}"
    );
    let selector = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    assert_eq!(waits(selector, at_home()), Some("PodUnschedulable"));
    let unbound = "pod has unbound immediate PersistentVolumeClaims. not found";
    assert_eq!(waits(unbound, at_home()), Some("ClaimNotBound"));
    let in_use = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode.";
    assert_eq!(waits(in_use, at_home()), Some("ClaimInUse"));
    // The scheduler has not tried the pod.
    let untried = vec![task("new", None, None), placeholder(NODE, None)];
    assert_eq!(reason(untried, Vec::new()), None);
}

#[test]
fn the_last_word_of_an_autoscaler_counts_and_the_schedulers_words_do_not() {
    let waits = |events| {
        reason(
            vec![task("waits", None, FULL), placeholder(NODE, None)],
            events,
        )
    };
    let comes = event("waits", "cluster-autoscaler", "TriggeredScaleUp", 2);
    assert_eq!(waits(vec![comes.clone()]), Some("NodeBeingAdded"));
    let none = |second, source| event("waits", source, "FailedScheduling", second);
    let after = vec![comes.clone(), none(3, "default-scheduler")];
    assert_eq!(waits(after), Some("NodeBeingAdded"));
    let before = vec![comes.clone(), none(1, "karpenter")];
    assert_eq!(waits(before), Some("NodeBeingAdded"));
    let after = vec![comes, none(3, "karpenter")];
    assert_eq!(waits(after), Some("NoRoomBesidePlaceholder"));
    let other = event("other", "cluster-autoscaler", "TriggeredScaleUp", 2);
    assert_eq!(waits(vec![other]), Some("NoRoomBesidePlaceholder"));
}

#[test]
fn a_pod_with_a_node_waits_for_an_image_or_a_volume() {
    let with = |state: Value, events: Vec<Event>| {
        let mut pod = task("one", NODE, None);
        let status = json!({"phase": "Pending", "containerStatuses": [{
            "name": "step", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state,
        }]});
        pod.status = Some(object(status));
        found(vec![pod, placeholder(NODE, None)], events)
    };
    let waiting = |reason: &str| json!({"waiting": {"reason": reason, "message": "why"}});
    let image = with(waiting("ImagePullBackOff"), Vec::new()).unwrap();
    assert_eq!(image.reason, "ContainerCannotStart");
    assert_eq!(image.evidence.value, "why");
    assert_eq!(with(waiting("ContainerCreating"), Vec::new()), None);
    let mount = || vec![event("one", "kubelet", "FailedMount", 1)];
    let volume = with(waiting("ContainerCreating"), mount()).unwrap();
    assert_eq!(volume.reason, "VolumeNotMounted");
    assert_eq!(volume.evidence.object, "Event about Pod one");
    assert_eq!(
        with(json!({"running": {}}), mount()),
        None,
        "it has started"
    );
}

#[test]
fn a_gate_of_another_program_is_named() {
    let gated = |gate: &str| {
        let mut pod = placeholder(None, None);
        pod.spec.as_mut().unwrap().scheduling_gates = Some(object(json!([{"name": gate}])));
        found(vec![pod], Vec::new())
    };
    let cause = gated("kueue.x-k8s.io/admission").unwrap();
    assert_eq!(cause.reason, "SchedulingGated");
    assert_eq!(cause.evidence.value, "kueue.x-k8s.io/admission");
    assert_eq!(gated(GATE), None);
}
