//! Error texts that the control plane of Kubernetes 1.35 has written, with the reason that is read from each.

use super::*;
use crate::event_texts::NOTE_LENGTH;

const POD: &str = "affinity-assistant-0123456789-0";
const SET: &str = "affinity-assistant-0123456789";

fn name() -> AssistantName {
    SET.parse().unwrap()
}

/// The note of an Event `FailedCreate` with this error.
fn note(error: &str) -> String {
    format!("Create Pod {POD} in StatefulSet {SET} failed error: {error}")
}

/// Checks the reason that is read from an API server's answer in an Event of the StatefulSet controller about a pod.
#[track_caller]
fn pod(answer: &str, code: ReasonCode, detail: &str) {
    let reason = failed_create(&note(answer)).unwrap();
    assert_eq!(reason.code, code);
    let begins = format!("Failed to create pod {POD}: {detail}. ");
    assert!(
        reason.message.starts_with(&begins) && reason.message.len() > begins.len(),
        "{}",
        reason.message
    );
}

#[test]
fn n3_a_refused_pod_is_read_into_its_cause() {
    let forbidden = |why: &str| format!("pods \"{POD}\" is forbidden: {why}");
    let as_it_stands = |why: &str, code| pod(&forbidden(why), code, why);

    pod(
        &forbidden("exceeded quota: none, requested: pods=1, used: pods=7, limited: pods=0"),
        ReasonCode::QuotaExceeded,
        "exceeded quota: none, requested: pods=1, limited: pods=0",
    );
    as_it_stands(
        "failed quota: compute: must specify limits.cpu for: affinity-assistant",
        ReasonCode::QuotaExceeded,
    );
    as_it_stands(
        "status unknown for quota: none, resources: pods",
        ReasonCode::QuotaExceeded,
    );
    for limit in [
        "maximum cpu usage per Container is 10m, but limit is 50m",
        "[maximum cpu usage per Container is 10m, but limit is 50m, minimum memory usage per Pod is 1Gi, but request is 100Mi]",
        "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
    ] {
        as_it_stands(limit, ReasonCode::LimitRangeViolated);
    }
    as_it_stands(
        "violates PodSecurity \"baseline:v1.28\": forbidden sysctls (net.ipv4.tcp_keepalive_time)",
        ReasonCode::PodSecurityViolated,
    );
    as_it_stands(
        "ValidatingAdmissionPolicy 'no-placeholders' with binding 'in-ci' denied request: not here",
        ReasonCode::AdmissionDenied,
    );
    for missing in [
        "error looking up service account ci/builder: serviceaccount \"builder\" not found",
        "no PriorityClass with name urgent was found",
        "pod rejected: RuntimeClass \"gvisor\" not found",
    ] {
        as_it_stands(missing, ReasonCode::ReferenceMissing);
    }
    let webhook = "admission webhook \"policy.example.dev\" denied the request: pods \"x\" is forbidden: exceeded quota: \
                   none, requested: pods=1, used: pods=0, limited: pods=0";
    pod(webhook, ReasonCode::AdmissionDenied, webhook);
    pod(
        "Internal error occurred: failed calling webhook \"down.example.dev\": failed to call webhook: Post \
         \"https://127.0.0.1:1/validate?timeout=1s\": dial tcp 127.0.0.1:1: connect: connection refused",
        ReasonCode::AdmissionWebhookFailed,
        "webhook \"down.example.dev\" cannot be called: connection refused",
    );
    let other =
        forbidden("pod node label selector conflicts with its namespace node label selector");
    pod(&other, ReasonCode::PlaceholderRefused, &other);
}

#[test]
fn n3_what_one_cause_is_said_in_is_one_reason() {
    let quota = |used: &str| {
        let error = format!(
            "pods \"{POD}\" is forbidden: exceeded quota: none, requested: pods=1, used: pods={used}, limited: pods=9"
        );
        note(&error)
    };
    let once = failed_create(&quota("9"));
    assert!(once.is_some());
    assert_eq!(failed_create(&quota("10")), once);
    let combined = format!("(combined from similar events): {}", quota("11"));
    assert_eq!(failed_create(&combined), once);
    let earlier = quota("9").replace("Create Pod", "create Pod");
    assert_eq!(failed_create(&earlier), once);
}

#[test]
fn n3_a_refused_claim_is_told_once_whichever_event_says_so() {
    let refusal = |claim: &str| {
        format!(
            "persistentvolumeclaims \"{claim}-{POD}\" is forbidden: exceeded quota: none, requested: requests.storage=1Gi, \
             used: requests.storage=0, limited: requests.storage=0"
        )
    };
    let failed = |claim: &str| format!("failed to create PVC {claim}-{POD}: {}", refusal(claim));
    let one = failed_create(&note(&failed("pvc-a"))).unwrap();
    assert_eq!(one.code, ReasonCode::QuotaExceeded);
    assert!(
        one.message.starts_with(&format!(
            "Failed to create claim pvc-a-{POD}: exceeded quota: none, requested: requests.storage=1Gi, limited: "
        )),
        "{}",
        one.message
    );
    for (first, second) in [("pvc-a", "pvc-b"), ("pvc-b", "pvc-a")] {
        let both = format!("[{}, {}]", failed(first), failed(second));
        assert_eq!(failed_create(&note(&both)), Some(one.clone()));
    }
    let about_claim = format!(
        "Create Claim pvc-a-{POD} for Pod {POD} in StatefulSet {SET} failed error: {}",
        refusal("pvc-a")
    );
    assert_eq!(failed_create(&about_claim), None);
}

#[test]
fn n3_a_write_of_ours_that_is_refused_is_read_alike() {
    let answer = format!(
        "statefulsets.apps \"{SET}\" is forbidden: exceeded quota: none, requested: count/statefulsets.apps=1, used: \
         count/statefulsets.apps=1, limited: count/statefulsets.apps=0"
    );
    let reason = refused(&format!("create StatefulSet ci/{SET}"), &answer);
    assert_eq!(reason.code, ReasonCode::QuotaExceeded);
    assert_eq!(
        reason.message,
        format!(
            "Failed to create StatefulSet ci/{SET}: exceeded quota: none, requested: count/statefulsets.apps=1, limited: \
             count/statefulsets.apps=0. Raise the quota, or wait until other objects in the namespace are deleted. If the \
             quota limits the number of pods, it must allow the placeholder's pod and a pod of the run at the same time."
        )
    );
    for (prefix, remedy) in [
        ("", "accepts the request."),
        ("maximum cpu usage per Pod is 1, ", "allows this value."),
    ] {
        let answer = format!("{prefix}{}", "é".repeat(1000));
        let long = refused("create claim ci/source", &answer).message;
        assert!(long.len() <= NOTE_LENGTH, "{}", long.len());
        assert!(long.contains("é…. ") && long.ends_with(remedy), "{long}");
    }
}

#[test]
fn n3_a_claim_without_a_volume_says_what_helps() {
    #[track_caller]
    fn check(note: &str, remedy: &str) {
        let reason = not_provisioned("source", note);
        assert_eq!(reason.code, ReasonCode::ClaimNotProvisioned);
        let begins = format!("Claim source has no volume: {note}. ");
        let told = reason.message.strip_prefix(&begins);
        assert!(
            told.is_some_and(|told| told.contains(remedy)),
            "{}",
            reason.message
        );
    }
    let missing = "storageclass.storage.k8s.io \"fast\" not found";
    check(missing, "Create the StorageClass");
    check(
        "no persistent volumes available for this claim and no storage class is set",
        "a default StorageClass",
    );
    let failed = "failed to provision volume with StorageClass \"fast\": rpc error: code = ResourceExhausted desc = full";
    check(failed, "tries again by itself");
    let combined = format!("(combined from similar events): {missing}");
    assert_eq!(
        not_provisioned("source", &combined),
        not_provisioned("source", missing)
    );
}

fn pending(said: &str) -> Option<Reason> {
    let asks = Amounts {
        milli_cpu: 2000,
        ..Amounts::default()
    };
    unschedulable(&name(), meets_other_placeholders(said), &asks, said, |_| {
        false
    })
}

#[test]
fn n3_a_placeholder_without_a_node_is_told_without_the_numbers_of_the_moment() {
    let said = |nodes, tainted, other| {
        pending(&format!(
            "0/{nodes} nodes are available: {tainted} node(s) had untolerated taint(s), {other} node(s) didn't match Pod's node \
             affinity/selector. no new claims to deallocate, preemption: 0/{nodes} nodes are available: {nodes} Preemption is \
             not helpful for scheduling."
        ))
        .unwrap()
    };
    let reason = said(5, 1, 4);
    assert_eq!(reason.code, ReasonCode::PlaceholderUnschedulable);
    assert!(
        reason.message.starts_with(&format!(
            "No node can run placeholder {SET} (requests: cpu 2): node(s) didn't match Pod's node affinity/selector, node(s) had \
             untolerated taint(s). "
        )),
        "{}",
        reason.message
    );
    assert_eq!(said(300, 12, 288), reason);
    let gated = pending("Scheduling is blocked due to non-empty scheduling gates").unwrap();
    assert_eq!(gated.code, ReasonCode::PlaceholderUnschedulable);
    assert!(gated.message.contains("scheduling gates"));
}

#[test]
fn n3_nodes_of_other_isolated_runs_have_their_own_code() {
    let isolated = "1 node(s) didn't satisfy existing pods anti-affinity rules";
    let choice = "2 node(s) didn't match Pod's node affinity/selector";
    let code = |causes: &[&str]| {
        let causes = causes.join(", ");
        let said = format!("0/4 nodes are available: {causes}. preemption: none.");
        pending(&said).unwrap().code
    };
    assert_eq!(code(&[isolated]), ReasonCode::NoIsolatedNode);
    assert_eq!(code(&[isolated, choice]), ReasonCode::NoIsolatedNode);
    assert_eq!(code(&[choice]), ReasonCode::PlaceholderUnschedulable);
    let shared = unschedulable(&name(), false, &Amounts::default(), isolated, |_| false).unwrap();
    assert_eq!(shared.code, ReasonCode::PlaceholderUnschedulable);
}

#[test]
fn n3_a_claim_that_does_not_exist_is_told_and_a_volume_on_its_way_is_not() {
    let missing =
        pending("0/5 nodes are available: persistentvolumeclaim \"data\" not found. not found")
            .unwrap();
    assert_eq!(missing.code, ReasonCode::ReferenceMissing);
    assert!(
        missing
            .message
            .contains(": persistentvolumeclaim \"data\" not found. ")
    );
    let not_heard_of_yet =
        "0/5 nodes are available: persistentvolumeclaim \"data\" not found. not found";
    let asks = Amounts::default();
    let said = unschedulable(&name(), false, &asks, not_heard_of_yet, |it| it == "data");
    assert_eq!(said, None);
    let unbound =
        "0/5 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found";
    assert_eq!(pending(unbound), None);
}

#[test]
fn n3_every_cause_has_a_code_of_its_own_and_is_a_warning() {
    let codes: BTreeSet<_> = REFUSALS.iter().map(|code| code.as_str()).collect();
    assert_eq!(codes.len(), REFUSALS.len());
    for code in REFUSALS {
        assert_eq!(code.told(), Some(crate::plan::Severity::Warning));
    }
}
