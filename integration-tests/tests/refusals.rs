//! Placeholders that cannot be created or scheduled (N3). Each cause has a namespace of its own, and all causes are tested at the
//! same time. A task without a pod (the gate) keeps each run waiting until the cause is removed, because Tekton fails a TaskRun
//! whose own pod is refused.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::TcpListener;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::plugin::explanation;
use integration_tests::runs::{Run, run};
use integration_tests::sets::{only_pods, without_sets};
use integration_tests::{Scene, shared};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, PersistentVolumeClaim, Pod, ServiceAccount,
};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::MOVABLE_STORAGE_CLASS;

type Outcome = anyhow::Result<()>;

const BLOCKED: &str = "coscheduler.dev/blocked";
const RECORD: &str = "coscheduler.dev/record";
const RUN: &str = "waiting";
/// How long the API server may take to enforce a change.
const LIMIT: Duration = Duration::from_secs(60);
/// The time limit for the Event about a cause: five times the five seconds that it normally takes.
const REPORTED: Duration = Duration::from_secs(25);
/// The time limit for a retry: twice the longest pause between two retries, 30 seconds.
const RETRIED_WITHIN: Duration = Duration::from_secs(60);

/// A reason why a placeholder cannot be created or scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    QuotaOfPods,
    QuotaOfStorage,
    QuotaOfStatefulSets,
    LimitRange,
    PodSecurity,
    Policy,
    WebhookOnPods,
    WebhookOnStatefulSets,
    SilentWebhook,
    ServiceAccount,
    PriorityClass,
    Claim,
    StorageClass,
    NoNode,
}

const ALL: [Cause; 14] = [
    Cause::QuotaOfPods,
    Cause::QuotaOfStorage,
    Cause::QuotaOfStatefulSets,
    Cause::LimitRange,
    Cause::PodSecurity,
    Cause::Policy,
    Cause::WebhookOnPods,
    Cause::WebhookOnStatefulSets,
    Cause::SilentWebhook,
    Cause::ServiceAccount,
    Cause::PriorityClass,
    Cause::Claim,
    Cause::StorageClass,
    Cause::NoNode,
];

impl Cause {
    /// The reason of the Event that reports the cause, and a part of its note.
    fn told(self) -> (&'static str, &'static str) {
        match self {
            Self::QuotaOfPods => ("QuotaExceeded", "requested: pods=1, limited: pods=0. "),
            Self::QuotaOfStorage => ("QuotaExceeded", "claim pvc-"),
            Self::QuotaOfStatefulSets => ("QuotaExceeded", "count/statefulsets.apps=0. "),
            Self::LimitRange => (
                "LimitRangeViolated",
                "maximum cpu usage per Container is 10m",
            ),
            Self::PodSecurity => ("PodSecurityViolated", "net.ipv4.tcp_keepalive_time"),
            Self::Policy => ("AdmissionDenied", "denied request: not here. "),
            Self::WebhookOnPods | Self::WebhookOnStatefulSets => (
                "AdmissionWebhookFailed",
                "\"down.example.dev\" cannot be called: connection refused",
            ),
            Self::SilentWebhook => (
                "AdmissionWebhookFailed",
                "\"down.example.dev\" cannot be called: ",
            ),
            Self::ServiceAccount => (
                "ReferenceMissing",
                "serviceaccount \"builder\" not found. Create the missing object",
            ),
            Self::PriorityClass => ("ReferenceMissing", "no PriorityClass with name test-"),
            Self::Claim => (
                "ReferenceMissing",
                "persistentvolumeclaim \"data\" not found. Create the missing object",
            ),
            Self::StorageClass => (
                "ClaimNotProvisioned",
                "storageclass.storage.k8s.io \"movable\" not found. Create",
            ),
            Self::NoNode => (
                "PlaceholderUnschedulable",
                "didn't match Pod's node affinity/selector. ",
            ),
        }
    }

    /// A run that waits only because of the cause.
    fn run(self, scene: &Scene<'_>) -> Run {
        let run = run(RUN);
        let with_template = |template: Value| json!({"podTemplate": template});
        let run = match self {
            Self::QuotaOfStorage => run.template("source"),
            Self::StorageClass => run.workspace(
                "source",
                json!({"volumeClaimTemplate": {"spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": MOVABLE_STORAGE_CLASS,
                    "resources": {"requests": {"storage": "1Gi"}},
                }}}),
            ),
            Self::Claim => run.workspace(
                "source",
                json!({"persistentVolumeClaim": {"claimName": "data"}}),
            ),
            Self::PodSecurity => run.spec("taskRunTemplate", with_template(sysctls())),
            Self::ServiceAccount => {
                run.spec("taskRunTemplate", json!({"serviceAccountName": "builder"}))
            }
            Self::PriorityClass => run.spec(
                "taskRunTemplate",
                with_template(json!({"priorityClassName": scene.namespace})),
            ),
            Self::NoNode => run.in_pool_of(scene),
            Self::QuotaOfPods
            | Self::QuotaOfStatefulSets
            | Self::LimitRange
            | Self::Policy
            | Self::WebhookOnPods
            | Self::WebhookOnStatefulSets
            | Self::SilentWebhook => run,
        };
        let workspaces: &[&str] = match self {
            Self::QuotaOfStorage | Self::StorageClass | Self::Claim => &["source"],
            _ => &[],
        };
        run.gate(&[]).task("one", workspaces, &["gate"])
    }

    /// The time limit for the Event about the cause.
    fn reported(self) -> Duration {
        match self {
            // The API server waits for the webhook for ten seconds.
            Self::SilentWebhook => REPORTED + Duration::from_secs(10),
            _ => REPORTED,
        }
    }

    /// Creates the cause, and waits until the API server enforces it.
    async fn begin(self, scene: &Scene<'_>) -> Outcome {
        let namespace = &scene.namespace;
        let in_namespace = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
        match self {
            Self::QuotaOfPods => scene.quota(json!({"pods": "0"})).await,
            Self::QuotaOfStorage => scene.quota(json!({"requests.storage": "0"})).await,
            Self::QuotaOfStatefulSets => scene.quota(json!({"count/statefulsets.apps": "0"})).await,
            Self::LimitRange => {
                let low = json!({"metadata": {"name": "low"}, "spec": {"limits": [
                    {"type": "Container", "max": {"cpu": "10m"}}]}});
                create(&scene.api::<LimitRange>(), low).await?;
                refused(scene, json!({}), "maximum cpu").await
            }
            Self::PodSecurity => {
                enforce(scene, Some("baseline")).await?;
                refused(scene, sysctls(), "violates PodSecurity").await
            }
            Self::Policy => {
                let policy = json!({"metadata": {"name": namespace}, "spec": {
                    "matchConstraints": {"resourceRules": [rule("", "pods")]},
                    "validations": [{"expression": "false", "message": "not here"}],
                }});
                create(&all::<ValidatingAdmissionPolicy>(scene), policy).await?;
                let binding = json!({"metadata": {"name": namespace}, "spec": {
                    "policyName": namespace,
                    "validationActions": ["Deny"],
                    "matchResources": {"namespaceSelector": in_namespace},
                }});
                create(&all::<ValidatingAdmissionPolicyBinding>(scene), binding).await?;
                refused(scene, json!({}), "not here").await
            }
            Self::WebhookOnPods => {
                // Nothing listens on this port.
                webhook(scene, 1, rule("", "pods")).await?;
                refused(scene, json!({}), "failed calling webhook").await
            }
            Self::WebhookOnStatefulSets => {
                webhook(scene, 1, placeholders()).await?;
                refused(scene, json!({}), "failed calling webhook").await
            }
            Self::SilentWebhook => {
                webhook(scene, silent_port(), placeholders()).await?;
                refused(scene, json!({}), "failed calling webhook").await
            }
            // These causes are objects that do not exist yet.
            Self::ServiceAccount
            | Self::PriorityClass
            | Self::Claim
            | Self::StorageClass
            | Self::NoNode => Ok(()),
        }
    }

    /// Removes the cause.
    async fn end(self, scene: &Scene<'_>) -> Outcome {
        let namespace = &scene.namespace;
        match self {
            Self::QuotaOfPods | Self::QuotaOfStorage | Self::QuotaOfStatefulSets => {
                scene.without_quota().await
            }
            Self::LimitRange => {
                delete(&scene.api::<LimitRange>(), "low").await?;
                accepted(scene).await
            }
            Self::PodSecurity => enforce(scene, None).await,
            Self::Policy => {
                delete(&all::<ValidatingAdmissionPolicyBinding>(scene), namespace).await?;
                delete(&all::<ValidatingAdmissionPolicy>(scene), namespace).await
            }
            Self::WebhookOnPods | Self::WebhookOnStatefulSets | Self::SilentWebhook => {
                delete(&all::<ValidatingWebhookConfiguration>(scene), namespace).await
            }
            Self::ServiceAccount => {
                let account = json!({"metadata": {"name": "builder"}});
                create(&scene.api::<ServiceAccount>(), account).await
            }
            Self::PriorityClass => {
                let class = json!({"metadata": {"name": namespace}, "value": 1});
                create(&all::<PriorityClass>(scene), class).await
            }
            Self::Claim => {
                let claim = json!({"metadata": {"name": "data"}, "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Gi"}},
                }});
                create(&scene.api::<PersistentVolumeClaim>(), claim).await
            }
            Self::StorageClass => {
                let class = json!({
                    "metadata": {"name": MOVABLE_STORAGE_CLASS},
                    "provisioner": "storage.testbed.coscheduler.dev",
                    "volumeBindingMode": "WaitForFirstConsumer",
                });
                create(&all::<StorageClass>(scene), class).await
            }
            Self::NoNode => scene.pool(1).await,
        }
    }
}

fn all<K: Resource<DynamicType = ()>>(scene: &Scene<'_>) -> Api<K> {
    Api::all(scene.client.clone())
}

async fn create<K>(api: &Api<K>, object: Value) -> Outcome
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let object: K = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

async fn delete<K>(api: &Api<K>, name: &str) -> Outcome
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    api.delete(name, &DeleteParams::default()).await?;
    Ok(())
}

/// A pod template with a setting that Pod Security (`baseline`) allows only since Kubernetes 1.29.
fn sysctls() -> Value {
    json!({"securityContext": {"sysctls": [
        {"name": "net.ipv4.tcp_keepalive_time", "value": "600"}]}})
}

async fn enforce(scene: &Scene<'_>, level: Option<&str>) -> Outcome {
    let labels = json!({
        "pod-security.kubernetes.io/enforce": level,
        "pod-security.kubernetes.io/enforce-version": level.map(|_| "v1.28"),
    });
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    let namespaces = all::<Namespace>(scene);
    namespaces
        .patch(&scene.namespace, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

fn rule(group: &str, resource: &str) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]})
}

/// A webhook's rule for placeholders of each kind. (`refused` creates a pod as a dry run, so the rule applies to pods too.)
fn placeholders() -> Value {
    let mut rule = rule("", "pods");
    rule["apiGroups"] = json!(["", "apps"]);
    rule["resources"] = json!(["pods", "statefulsets"]);
    rule
}

/// A port that accepts connections and never answers.
fn silent_port() -> u16 {
    static SILENT: LazyLock<TcpListener> =
        LazyLock::new(|| TcpListener::bind("127.0.0.1:0").unwrap());
    SILENT.local_addr().unwrap().port()
}

/// Creates a webhook with this port. The API server gives up after thirty seconds, or after ten seconds if the TLS handshake
/// has not ended by then.
async fn webhook(scene: &Scene<'_>, port: u16, rule: Value) -> Outcome {
    let configuration = json!({"metadata": {"name": scene.namespace}, "webhooks": [{
        "name": "down.example.dev",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Fail",
        "timeoutSeconds": 30,
        "clientConfig": {"url": format!("https://127.0.0.1:{port}/validate")},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scene.namespace}},
        "rules": [rule],
    }]});
    create(&all::<ValidatingWebhookConfiguration>(scene), configuration).await
}

/// Waits until the API server refuses pods with these fields in their spec, with `why` in its message.
async fn refused(scene: &Scene<'_>, spec: Value, why: &str) -> Outcome {
    tried_out(scene, spec, |answer| match answer {
        Err(kube::Error::Api(status)) => status.message.contains(why),
        Ok(_) | Err(_) => false,
    })
    .await
    .with_context(|| format!("no pod is refused: {why}"))
}

/// Waits until the API server accepts pods again. It caches a LimitRange for up to half a minute
/// (`plugin/pkg/admission/limitranger/admission.go`).
async fn accepted(scene: &Scene<'_>) -> Outcome {
    tried_out(scene, json!({}), |answer| answer.is_ok())
        .await
        .context("every pod is refused")
}

/// Sends dry-run requests to create a pod with these fields in its spec, until `is_such` is true for the API server's answer.
async fn tried_out(
    scene: &Scene<'_>,
    mut spec: Value,
    is_such: impl Fn(&kube::Result<Pod>) -> bool,
) -> Outcome {
    let size = json!({"cpu": "50m"});
    spec["containers"] = json!([{"name": "c", "image": "example/image",
        "resources": {"limits": size, "requests": size}}]);
    let probe: Pod = serde_json::from_value(json!({"metadata": {"name": "probe"}, "spec": spec}))?;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pods = scene.api::<Pod>();
    let answered = async {
        while !is_such(&pods.create(&dry_run, &probe).await) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    Ok(tokio::time::timeout(LIMIT, answered).await?)
}

fn blocked(run: Option<&PipelineRun>) -> Option<Value> {
    let annotation = run?.annotations().get(BLOCKED)?;
    serde_json::from_str(annotation).ok()
}

async fn told_and_healed(scene: &Scene<'_>, cause: Cause) -> Outcome {
    cause.begin(scene).await?;
    let since = Instant::now();
    scene.submit(cause.run(scene)).await?;
    let (code, part) = cause.told();
    let told = scene.told(RUN, code).await?;
    let reported = since.elapsed();
    ensure!(reported < cause.reported(), "reported after {reported:.1?}");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].1.contains(part), "{told:?}");
    let run = scene
        .until(RUN, "is blocked", |run| blocked(run).is_some())
        .await?;
    let expected = json!({"reason": code, "message": told[0].1});
    assert_eq!(blocked(run.as_ref()), Some(expected));
    let found = explanation(scene, RUN).await?;
    assert_eq!(found["cause"]["reason"], code, "{found}");
    assert_eq!(found["cause"]["message"], told[0].1, "{found}");
    let evidence = found["cause"]["evidence"]["value"].as_str();
    ensure!(evidence.is_some_and(|it| !it.is_empty()), "{found}");
    // If the API server refused a request of ours, the evidence is on the run. All other causes have their evidence on other
    // objects.
    let of_run = found["cause"]["evidence"]["object"] == format!("PipelineRun {RUN}");
    let ours = match only_pods() {
        true => ["create pod", "create claim"],
        false => ["create StatefulSet"; 2],
    };
    let is_ours = ours.iter().any(|act| told[0].1.contains(act));
    assert_eq!(of_run, is_ours, "{found}");

    cause.end(scene).await?;
    let since = Instant::now();
    scene.placeholder().await?;
    let healed = since.elapsed();
    ensure!(
        healed < RETRIED_WITHIN,
        "bound only {healed:.1?} after it was gone"
    );
    scene
        .until(RUN, "is not blocked", |run: Option<&PipelineRun>| {
            run.is_some_and(|run| !run.annotations().contains_key(BLOCKED))
        })
        .await?;
    scene.at_gate(RUN).await?;
    scene.open_gate(RUN).await?;
    scene.succeeds(RUN).await?;
    let existing: &[&str] = match cause {
        Cause::Claim => &["data"],
        _ => &[],
    };
    scene.nothing_left_but(existing).await?;
    let told = scene.told_so_far(RUN).await?;
    assert_eq!(told.len(), 1, "{told:?}");
    Ok(())
}

#[test]
fn b2_n3_each_cause_is_told_and_explained_and_the_run_goes_on_once_it_is_gone() -> Outcome {
    shared(async |scene| {
        delete(&all::<StorageClass>(&scene), MOVABLE_STORAGE_CLASS).await?;
        // No StatefulSet is created for a placeholder that is only a pod.
        let of_sets = |cause: &Cause| only_pods() && *cause == Cause::QuotaOfStatefulSets;
        stream::iter(ALL.into_iter().filter(|cause| !of_sets(cause)))
            .map(async |cause| {
                let scene = scene.stack.scene().await?;
                told_and_healed(&scene, cause)
                    .await
                    .with_context(|| format!("{cause:?} in {}", scene.namespace))
            })
            .buffer_unordered(ALL.len())
            .try_collect()
            .await
    })
}

#[test]
fn n3_a_placeholder_that_stays_refused_is_tried_again_and_nothing_else_of_it_changes() -> Outcome {
    if without_sets() {
        return Ok(());
    }
    shared(async |scene| {
        Cause::QuotaOfPods.begin(&scene).await?;
        scene.submit(Cause::QuotaOfPods.run(&scene)).await?;
        let mut tries = BTreeSet::new();
        while tries.len() < 3 {
            let since = Instant::now();
            let sets = scene
                .until_sets("are tried again", |sets| {
                    let mut sets = sets.iter();
                    sets.any(|set| tried(set).is_some_and(|it| !tries.contains(it)))
                })
                .await?;
            let pause = since.elapsed();
            ensure!(pause < RETRIED_WITHIN, "tried again after {pause:.1?}");
            tries.extend(sets.iter().filter_map(|set| tried(set).map(str::to_owned)));
        }
        Cause::QuotaOfPods.end(&scene).await?;
        let since = Instant::now();
        let (set, _) = scene.placeholder().await?;
        let healed = since.elapsed();
        ensure!(healed < RETRIED_WITHIN, "bound only after {healed:.1?}");
        assert_eq!(set.metadata.generation, Some(1));
        scene.at_gate(RUN).await?;
        scene.open_gate(RUN).await?;
        scene.succeeds(RUN).await?;
        scene.nothing_left_but(&[]).await
    })
}

/// The record annotation, whose value changes with each retry.
fn tried(set: &StatefulSet) -> Option<&str> {
    set.annotations().get(RECORD).map(String::as_str)
}
