//! Simulates three functions of a kubelet that KWOK lacks.
//!
//! - *Admission.* The module rejects a pod (for example with reason `OutOfcpu`) if the pod's requests do not fit on the node. A
//!   resize that does not fit waits (condition `PodResizePending`). KWOK cannot decide this, because its stages see only one
//!   pod at a time.
//! - *Start.* KWOK starts a pod when its condition `PodScheduled` is true. When the scheduler binds a pod, the API server sets
//!   this condition, and the scheduler has checked that the pod fits. For a pod that was created with a node name, this module
//!   sets the condition, if the pod fits.
//! - *End.* The module ends a deleted pod, unless a TaskRun owns the pod or the pod has completed. KWOK would delete the pod by
//!   its name, and sometimes twice (after each change of the pod's Node object). The second request would delete the next pod
//!   of the same name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http::HeaderValue;
use http::header::USER_AGENT;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tracing::warn;

mod room;

use room::{Room, Shortage};

/// The name before `/` is KWOK's, because KWOK and this module together simulate the kubelets. The benchmark counts requests by
/// this name.
const USER_AGENT_OF_KUBELETS: HeaderValue = HeaderValue::from_static("kwok/kubelets");

/// The pause before a failed patch is sent again.
const PAUSE: Duration = Duration::from_millis(200);

/// The condition of a pod that has a node and may start.
const SCHEDULED: &str = "PodScheduled";

/// The condition of a pod whose resize waits.
const RESIZE_PENDING: &str = "PodResizePending";

/// Selects the pods that have a node and have not ended.
const BOUND: &str = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed";

/// Simulates the kubelets of a test bed, as far as KWOK does not. Runs until an error.
///
/// # Errors
/// The kubeconfig cannot be used, both watches end, a quantity cannot be read, or the API server refuses a status.
pub async fn kubelets(kubeconfig: &Path) -> Result<()> {
    let mut config = crate::control_plane::config(kubeconfig).await?;
    config.headers.push((USER_AGENT, USER_AGENT_OF_KUBELETS));
    let client = crate::control_plane::connect(config)?;
    let config = watcher::Config::default();
    let pods = watcher(
        Api::<Pod>::all(client.clone()),
        config.clone().fields(BOUND),
    );
    let nodes = watcher(Api::<Node>::all(client.clone()), config);
    let (mut pods, mut nodes) = (pin!(pods.default_backoff()), pin!(nodes.default_backoff()));
    let mut all = Kubelets::default();
    let mut ending = FuturesUnordered::new();
    loop {
        let heard = tokio::select! {
            Some(told) = ending.next() => {
                told?;
                continue;
            }
            Some(pod) = pods.next() => pod.map(|pod| all.pod(pod)),
            Some(node) = nodes.next() => node.map(|node| all.node(&node)),
            else => bail!("the watches of a test bed's kubelets ended"),
        };
        match heard {
            Ok(verdicts) => {
                for (pod, verdict) in verdicts? {
                    let ended = verdict == Verdict::Ended;
                    let told = tell(client.clone(), pod, verdict);
                    if ended {
                        // Nothing follows for this pod, so the other pods need not wait.
                        ending.push(told);
                    } else {
                        told.await?;
                    }
                }
            }
            Err(error) => warn!("the watch of a test bed's kubelets failed: {error}"),
        }
    }
}

/// Runs the kubelets in a thread with its own runtime, so that they do not depend on the runtime of the caller. They end when
/// this value is dropped.
#[derive(Debug)]
pub(crate) struct Thread {
    _end: oneshot::Sender<()>,
}

impl Thread {
    pub(crate) fn start(kubeconfig: PathBuf) -> Result<Self> {
        let (sender, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("failed to start the runtime of the kubelets")?;
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    ended = kubelets(&kubeconfig) => if let Err(error) = ended {
                        warn!("the kubelets of a test bed ended: {error:#}");
                    }
                }
            });
        };
        std::thread::Builder::new()
            .name("kubelets".to_owned())
            .spawn(run)
            .context("failed to start the thread of the kubelets")?;
        Ok(Self { _end: sender })
    }
}

/// The kubelet's decision about a pod.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The pod may start. It was created with a node name, and there is room.
    Admitted,
    /// The pod never starts.
    Rejected { reason: String, message: String },
    /// The pod's resize waits.
    Deferred { reason: String, message: String },
    /// The pod's resize does not wait any more.
    Resized,
    /// The containers of the deleted pod have ended, so that its object can go.
    Ended,
}

/// All kubelets of a bed.
#[derive(Default)]
struct Kubelets {
    nodes: BTreeMap<String, Kubelet>,
}

/// The kubelet of one node, with the pods that wait for a decision.
#[derive(Default)]
struct Kubelet {
    /// `None` while the node is not known.
    room: Option<Room>,
    /// True if condition `Ready` of the node is `Unknown`. Then this kubelet decides nothing.
    silent: bool,
    /// The pods that wait while the node is unknown or silent, and the pods whose resize waits, by uid.
    waiting: BTreeMap<String, Pod>,
    /// The pods of an incomplete list, by uid. The watch delivers the pods of a list one by one.
    listed: BTreeMap<String, Pod>,
    /// The deleted pods that this kubelet has ended, by uid. The API server may change such a pod once more. This is ignored.
    ended: BTreeSet<String>,
}

impl Kubelets {
    /// Applies an event of a node, and returns the resulting decisions.
    fn node(&mut self, event: &Event<Node>) -> Result<Vec<(Pod, Verdict)>> {
        match event {
            Event::Apply(node) | Event::InitApply(node) => {
                let kubelet = self.nodes.entry(node.name_any()).or_default();
                kubelet.room.get_or_insert_default().allocatable = room::allocatable(node)?;
                kubelet.silent = is_silent(node);
                kubelet.look_again()
            }
            Event::Delete(node) => {
                self.nodes.remove(&node.name_any());
                Ok(Vec::new())
            }
            Event::Init | Event::InitDone => Ok(Vec::new()),
        }
    }

    /// Applies an event of a pod, and returns the resulting decisions.
    fn pod(&mut self, event: Event<Pod>) -> Result<Vec<(Pod, Verdict)>> {
        match event {
            Event::Apply(pod) => self.on(&pod).look_at(pod),
            Event::InitApply(pod) => {
                let kubelet = self.on(&pod);
                kubelet.listed.insert(pod.uid().unwrap_or_default(), pod);
                Ok(Vec::new())
            }
            Event::Delete(pod) => {
                let kubelet = self.on(&pod);
                kubelet.forget(|uid| pod.metadata.uid.as_ref() == Some(uid));
                kubelet.look_again()
            }
            Event::InitDone => {
                let mut verdicts = Vec::new();
                for kubelet in self.nodes.values_mut() {
                    let listed = std::mem::take(&mut kubelet.listed);
                    kubelet.forget(|uid| !listed.contains_key(uid));
                    kubelet.ended.clear();
                    kubelet.waiting.extend(listed);
                    verdicts.extend(kubelet.look_again()?);
                }
                Ok(verdicts)
            }
            Event::Init => Ok(Vec::new()),
        }
    }

    fn on(&mut self, pod: &Pod) -> &mut Kubelet {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        self.nodes.entry(node.unwrap_or_default()).or_default()
    }
}

impl Kubelet {
    fn forget(&mut self, gone: impl Fn(&String) -> bool) {
        self.waiting.retain(|uid, _| !gone(uid));
        self.ended.retain(|uid| !gone(uid));
        if let Some(room) = &mut self.room {
            room.pods.retain(|uid, _| !gone(uid));
        }
    }

    /// Decides about the pod, and again about all waiting pods, because `pod` may request less than before.
    fn look_at(&mut self, pod: Pod) -> Result<Vec<(Pod, Verdict)>> {
        self.waiting.insert(pod.uid().unwrap_or_default(), pod);
        self.look_again()
    }

    fn look_again(&mut self) -> Result<Vec<(Pod, Verdict)>> {
        let Some(room) = self.room.as_mut().filter(|_| !self.silent) else {
            return Ok(Vec::new());
        };
        let mut verdicts = Vec::new();
        for (uid, pod) in std::mem::take(&mut self.waiting) {
            let verdict = judge(room, &uid, &pod)?;
            if let Some(Verdict::Deferred { reason, .. }) = &verdict {
                self.waiting.insert(uid.clone(), pod.clone());
                if has_condition(&pod, RESIZE_PENDING, reason) {
                    continue;
                }
            }
            if verdict == Some(Verdict::Ended) && !self.ended.insert(uid) {
                continue;
            }
            verdicts.extend(verdict.map(|verdict| (pod, verdict)));
        }
        Ok(verdicts)
    }
}

/// True if the node controller of Kubernetes has heard nothing from the kubelet for longer than the grace period.
fn is_silent(node: &Node) -> bool {
    let status = node.status.as_ref();
    let mut conditions = status
        .into_iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "Unknown")
}

/// Decides about one pod. If there is room for its requests, or the pod was admitted before this process started, adds the
/// requests to the node.
fn judge(room: &mut Room, uid: &str, pod: &Pod) -> Result<Option<Verdict>> {
    if pod.metadata.deletion_timestamp.is_some() {
        let mut owners = pod.owner_references().iter();
        let is_task = owners.any(|owner| owner.kind == "TaskRun");
        return Ok((!is_task).then_some(Verdict::Ended));
    }
    let status = pod.status.clone().unwrap_or_default();
    let reason = status.reason.unwrap_or_default();
    if reason.starts_with(Shortage::REASON) {
        // The pod is rejected already, but KWOK may have started it at the same moment. So the rejection is written again.
        let message = status.message.unwrap_or_default();
        return Ok(Some(Verdict::Rejected { reason, message }));
    }
    let wanted = room::requests(pod)?;
    let shortage = room.shortage(uid, &wanted);
    match shortage {
        Some(shortage) if room.pods.contains_key(uid) => {
            let never = shortage.requested > shortage.capacity;
            let reason = if never { "Infeasible" } else { "Deferred" };
            Ok(Some(Verdict::Deferred {
                reason: reason.to_owned(),
                message: shortage.to_string(),
            }))
        }
        // Only a pending pod can be rejected. A running pod was admitted before this process started.
        Some(shortage) if status.phase.as_deref() == Some("Pending") => {
            Ok(Some(Verdict::Rejected {
                reason: shortage.reason(),
                message: format!("Pod was rejected: {shortage}"),
            }))
        }
        Some(_) | None => {
            room.pods.insert(uid.to_owned(), wanted);
            Ok(if !has_condition(pod, SCHEDULED, "") {
                Some(Verdict::Admitted)
            } else if has_condition(pod, RESIZE_PENDING, "") {
                Some(Verdict::Resized)
            } else {
                None
            })
        }
    }
}

/// True if the condition is true, and has this reason if `reason` is not empty.
fn has_condition(pod: &Pod, name: &str, reason: &str) -> bool {
    let status = pod.status.as_ref();
    let mut conditions = status
        .into_iter()
        .flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| {
        let named = condition.reason.as_deref().unwrap_or_default();
        condition.type_ == name
            && condition.status == "True"
            && (reason.is_empty() || named == reason)
    })
}

/// Writes a decision into the pod's status, or deletes a pod that has ended. Retries while the API server does not answer or is
/// overloaded. Does nothing if the pod is gone or replaced.
async fn tell(client: Client, pod: Pod, verdict: Verdict) -> Result<()> {
    let name = pod.name_any();
    let namespace = pod.namespace().unwrap_or_default();
    let api: Api<Pod> = Api::namespaced(client, &namespace);
    let this = Preconditions {
        uid: pod.uid(),
        resource_version: None,
    };
    let delete = DeleteParams::default().grace_period(0).preconditions(this);
    let status = status(&pod, &verdict);
    loop {
        let told = match &status {
            Some(status) => {
                let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
                let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
                api.patch_status(&name, &params, &patch).await.map(drop)
            }
            None => api.delete(&name, &delete).await.map(drop),
        };
        match told {
            Ok(()) => return Ok(()),
            Err(kube::Error::Api(answer)) if answer.code < 500 && answer.code != 429 => {
                return if answer.is_not_found() || answer.is_conflict() {
                    Ok(())
                } else {
                    Err(kube::Error::Api(answer)).with_context(|| {
                        format!("failed to tell {verdict:?} about pod {namespace}/{name}")
                    })
                };
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// The status with this decision. `None` for [`Verdict::Ended`].
fn status(pod: &Pod, verdict: &Verdict) -> Option<Value> {
    let generation = pod.metadata.generation;
    let condition = |name: &str| {
        json!({
            "type": name,
            "status": "True",
            "observedGeneration": generation,
            "lastTransitionTime": Timestamp::now(),
        })
    };
    Some(match verdict {
        Verdict::Admitted => json!({"conditions": [condition(SCHEDULED)]}),
        Verdict::Rejected { reason, message } => json!({
            "phase": "Failed",
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
        }),
        Verdict::Deferred { reason, message } => {
            let mut condition = condition(RESIZE_PENDING);
            condition["reason"] = json!(reason);
            condition["message"] = json!(message);
            json!({"conditions": [condition]})
        }
        Verdict::Resized => json!({"conditions": [{"type": RESIZE_PENDING, "$patch": "delete"}]}),
        Verdict::Ended => return None,
    })
}
