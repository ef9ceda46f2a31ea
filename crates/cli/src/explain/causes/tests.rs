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
            "tekton.dev/pipelineRunUID": "run",
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
        "metadata": {"name": name, "uid": name, "labels": {"tekton.dev/pipelineRunUID": "run"}},
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
    let note = match reason {
        "Nominated" => "Pod should schedule on: nodeclaim/default-x",
        _ => "why",
    };
    object(json!({
        "metadata": {}, "involvedObject": {"kind": "Pod", "name": about, "uid": about}, "reason": reason, "message": note,
        "reportingComponent": source, "eventTime": format!("2026-01-01T00:00:{second:02}.000000Z"),
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
    assert_eq!(
        (blocked.reason, blocked.message.as_str()),
        ("QuotaExceeded", "too much")
    );
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
    for reason in ["Started", "ToBeRetried"] {
        assert_eq!(waits(task_run(reason, "")), None, "{reason}");
    }
}

#[test]
fn the_schedulers_message_is_the_evidence_of_an_unbound_placeholder() {
    let with = |placeholder: Pod, events: Vec<Event>| {
        let facts = Facts {
            run: run(None, Some(("NoIsolatedNode", "no node"))),
            pods: vec![placeholder],
            events,
            ..Facts::default()
        };
        cause(&facts)
    };
    let unbound = || placeholder(None, FULL);
    let plain = with(unbound(), Vec::new()).unwrap();
    assert_eq!(
        (plain.reason, plain.message.as_str()),
        ("NoIsolatedNode", "no node")
    );
    assert_eq!(plain.evidence.object, "Pod p-0");
    assert_eq!(Some(plain.evidence.value.as_str()), FULL);
    let tried_again = with(placeholder(None, None), Vec::new()).unwrap();
    assert_eq!(tried_again.evidence.object, "PipelineRun run");
    assert_eq!(with(placeholder(NODE, None), Vec::new()), None, "it is old");
    let comes = with(unbound(), vec![event("p-0", "karpenter", "Nominated", 1)]);
    assert_eq!(comes.unwrap().reason, "NodeBeingAdded");
}

#[test]
fn claims_that_tie_a_run_to_a_full_node_have_the_schedulers_message() {
    let facts = Facts {
        run: run(None, Some(("ClaimsNotMovable", "the claims are there"))),
        pods: vec![placeholder(NODE, None), task("waits", None, FULL)],
        ..Facts::default()
    };
    let cause = cause(&facts).unwrap();
    assert_eq!(cause.reason, "ClaimsNotMovable");
    assert_eq!(cause.evidence.object, "Pod waits");
    assert_eq!(Some(cause.evidence.value.as_str()), FULL);
    let unbound = Facts {
        pods: vec![placeholder(None, FULL), task("waits", None, FULL)],
        ..facts
    };
    assert_eq!(super::cause(&unbound).unwrap().evidence.object, "Pod p-0");
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
    assert_eq!(waits(full, at_home()), Some("PodCannotFollow"));
    let idle = task("idle", NODE, None);
    let mut runs = task("runs", NODE, None);
    let asks = json!([{"name": "c", "resources": {"requests": {"cpu": "1"}}}]);
    runs.spec.get_or_insert_default().containers = object(asks);
    let mut beside = at_home();
    beside.push(idle);
    assert_eq!(waits(full, beside.clone()), Some("PodCannotFollow"));
    beside.push(runs);
    let cause = found(
        [vec![task("waits", None, FULL)], beside].concat(),
        Vec::new(),
    );
    assert_eq!(cause.unwrap().reason, "WaitsForOwnPods");
    let selector = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.";
    assert_eq!(waits(selector, at_home()), Some("PodCannotFollow"));
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
    assert_eq!(waits(after), Some("PodCannotFollow"));
    let other = event("other", "cluster-autoscaler", "TriggeredScaleUp", 2);
    assert_eq!(waits(vec![other]), Some("PodCannotFollow"));
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
    assert_eq!(gated("coscheduler.dev/reservation"), None);
}

#[test]
fn what_the_scheduler_said_before_the_placeholder_was_bound_does_not_count() {
    let after = |seconds: u64, said: &str| {
        let mut leader = placeholder(NODE, None);
        let bound = json!([{
            "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        leader.status = Some(object(json!({"phase": "Running", "conditions": bound})));
        let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let facts = Facts {
            run: run(None, None),
            pods: vec![task("waits", None, Some(said)), leader],
            now: begin + Duration::from_secs(seconds),
            ..Facts::default()
        };
        cause(&facts).unwrap().reason
    };
    let tainted = "0/4 nodes are available: 1 node(s) had untolerated taint {a: }, 3 node(s) didn't match pod affinity rules.";
    assert_eq!(after(5, tainted), "WaitsForScheduler");
    assert_eq!(after(13, tainted), "PodCannotFollow");
    let unbound = "0/4 nodes are available: 4 node(s) didn't match pod affinity rules.";
    assert_eq!(after(60, unbound), "WaitsForScheduler");
    assert_eq!(after(400, unbound), "PodCannotFollow");
}

#[test]
fn a_claim_that_does_not_exist_is_missing_and_one_that_does_was_not_seen() {
    let of = |missing: &[&str]| {
        let said = "0/2 nodes are available: persistentvolumeclaim \"c\" not found. not found";
        let mut pod = task("waits", None, Some(said));
        let volume = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
        pod.spec.as_mut().unwrap().volumes = Some(object(volume));
        let facts = Facts {
            run: run(None, None),
            pods: vec![pod],
            missing_claims: missing.iter().map(ToString::to_string).collect(),
            ..Facts::default()
        };
        cause(&facts).unwrap().reason
    };
    assert_eq!(of(&["c"]), "ClaimMissing");
    assert_eq!(of(&[]), "WaitsForScheduler");
}

#[test]
fn the_manager_reports_on_the_topmost_parent_and_not_on_a_run_that_ends() {
    let blocked = run(None, Some(("QuotaExceeded", "too much")));
    let child = Facts {
        run: run(None, None),
        parent: Some(blocked.clone()),
        ..Facts::default()
    };
    assert_eq!(cause(&child).unwrap().reason, "QuotaExceeded");
    let ends = |run: PipelineRun| {
        let facts = Facts {
            run,
            ..Facts::default()
        };
        assert_eq!(cause(&facts), None);
    };
    let mut deleted = blocked.clone();
    deleted.metadata.deletion_timestamp = Some(object(json!("2026-01-01T00:00:00Z")));
    ends(deleted);
    ends(run(Some("Cancelled"), Some(("QuotaExceeded", "too much"))));
}

#[test]
fn a_node_may_be_chosen_or_lack_a_network() {
    let mut chosen = task("waits", None, FULL);
    chosen.status.as_mut().unwrap().nominated_node_name = Some("node-1".to_owned());
    assert_eq!(reason(vec![chosen], Vec::new()), Some("WaitsForScheduler"));
    let events = || {
        vec![
            event("one", "kubelet", "FailedMount", 1),
            event("one", "kubelet", "FailedCreatePodSandBox", 2),
        ]
    };
    let mut pod = task("one", NODE, None);
    let of = |pod: &Pod| reason(vec![pod.clone(), placeholder(NODE, None)], events());
    assert_eq!(of(&pod), Some("SandboxNotCreated"), "the newest Event");
    let ready = json!([{"type": "PodReadyToStartContainers", "status": "True"}]);
    pod.status.as_mut().unwrap().conditions = Some(object(ready));
    assert_eq!(of(&pod), None);
}

#[test]
fn karpenter_adds_no_node_if_it_names_an_existing_one_and_an_old_word_does_not_count() {
    let waits = |note: &str, seconds: u64| {
        let mut said = event("waits", "karpenter", "Nominated", 0);
        said.message = Some(note.to_owned());
        let begin: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let facts = Facts {
            run: run(None, None),
            pods: vec![task("waits", None, FULL), placeholder(NODE, None)],
            events: vec![said],
            now: begin + Duration::from_secs(seconds),
            ..Facts::default()
        };
        cause(&facts).unwrap().reason
    };
    let new = "Pod should schedule on: nodeclaim/a";
    assert_eq!(waits(new, 60), "NodeBeingAdded");
    assert_eq!(waits(new, 3600), "PodCannotFollow");
    assert_eq!(
        waits("Pod should schedule on: nodeclaim/a, node/b", 60),
        "PodCannotFollow"
    );
}
