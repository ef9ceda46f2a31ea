//! The manager's requests to the API server. Each request is one function, which sets the preconditions and interprets
//! refusals. Module `placeholder` has the requests about the controllers of placeholders' pods, and module `delete_claims`
//! deletes claims.
//!
//! Transient errors (409, 429, 5xx, no connection) are retried with backoff and jitter. A 409 is not retried if the object
//! exists already, or if its uid is not the expected one. Patches, deletions of one exact version, and reads of a PriorityClass
//! are not retried. No request is retried if the API server cannot call a webhook or does not answer in time. The next
//! reconcile of the run then decides again.

mod reservation;
mod waiting_pods;

pub(crate) use reservation::Resized;

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use backon::{ExponentialBuilder, Retryable};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::error::Elapsed;

use coscheduler_core::observed::{KnownClaim, ObjectRef, RunPresence};
use coscheduler_core::pipeline_run::PipelineRun as View;
use coscheduler_core::reconcile::claims_to_delete::PodUse;
use coscheduler_core::volumes::SeenVolume;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, is_done};
use coscheduler_kubernetes::transient::{is_transient, is_webhook_down};
use coscheduler_kubernetes::{claims, volumes};

use crate::error::Error;
use crate::one_list::OneList;

/// The time limit of a single request. An admission webhook may take up to thirty seconds. The API server must be the first to
/// give up, because only its answer says that a webhook is the cause. The client's own limit is much longer, because the client
/// also serves the watches.
const TIMEOUT: Duration = Duration::from_secs(35);

/// The largest number of namespaces whose pods are listed at the same time.
const LISTINGS: usize = 4;

/// The manager's requests to the API server.
#[derive(Clone)]
pub(crate) struct Requests {
    pub(crate) client: Client,
    pub(crate) listings: Arc<Semaphore>,
    pub(crate) pods: OneList<Vec<PodUse>>,
    can_resize: Arc<OnceCell<bool>>,
}

impl Requests {
    pub(crate) fn new(client: Client) -> Self {
        Self {
            client,
            listings: Arc::new(Semaphore::new(LISTINGS)),
            pods: OneList::default(),
            can_resize: Arc::default(),
        }
    }

    /// Creates a claim, unless a claim of this name exists.
    pub(crate) async fn create_claim(
        &self,
        namespace: &str,
        claim: &PersistentVolumeClaim,
    ) -> Result<(), Error> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let name = claim.metadata.name.clone().unwrap_or_default();
        let params = PostParams::default();
        match retried(|| api.create(&params, claim)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
            Err(error) => Err(failed(format!("create claim {name}"), error)),
        }
    }

    /// Reads a claim. Returns `None` if it does not exist.
    pub(crate) async fn claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<KnownClaim>, Error> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        retried(|| api.list(&params))
            .await
            .map(|list| list.items.into_iter().next().map(claims::view))
            .map_err(|error| failed(format!("read claim {namespace}/{name}"), error))
    }

    /// Reads a volume. Returns `None` if it does not exist.
    pub(crate) async fn volume(&self, name: &str) -> Result<Option<SeenVolume>, Error> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        retried(|| api.list(&params))
            .await
            .map(|list| list.items.into_iter().next().map(|it| volumes::view(it).0))
            .map_err(|error| failed(format!("read volume {name}"), error))
    }

    /// Creates an Event. Returns false if the Event exists already: Events of the same name have the same text.
    pub(crate) async fn create_event(&self, namespace: &str, event: &Event) -> Result<bool, Error> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let name = event.metadata.name.clone().unwrap_or_default();
        let params = PostParams::default();
        match retried(|| api.create(&params, event)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(false),
            Err(error) => Err(failed(format!("create Event {namespace}/{name}"), error)),
        }
    }

    /// Sets or removes an annotation of the PipelineRun. Returns the run's new version, or `None` if the run is gone or replaced.
    pub(crate) async fn annotate(
        &self,
        run: &View,
        key: &str,
        value: Option<String>,
    ) -> Result<Option<String>, Error> {
        let api: Api<PipelineRun> = Api::namespaced(self.client.clone(), &run.namespace);
        let patch = Patch::Merge(json!({"metadata": {
            "uid": run.uid,
            "annotations": {key: value},
        }}));
        let params = PatchParams::default();
        // A conflict means that another run has this name.
        let patched = once(api.patch_metadata(&run.name, &params, &patch)).await;
        let act = || format!("annotate PipelineRun {}/{}", run.namespace, run.name);
        let patched = unless_gone(patched, act)?;
        Ok(patched.and_then(|run| run.metadata.resource_version))
    }

    /// Finds out if the PipelineRun of this name and uid still needs its objects.
    pub(crate) async fn run_presence(
        &self,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<RunPresence, Error> {
        let api: Api<PipelineRun> = Api::namespaced(self.client.clone(), namespace);
        let run = retried(|| api.get_opt(name))
            .await
            .map_err(|error| failed(format!("read PipelineRun {namespace}/{name}"), error))?;
        Ok(match run {
            Some(run) if run.metadata.uid.as_deref() != Some(uid) => RunPresence::Gone,
            Some(run) if run.metadata.deletion_timestamp.is_some() => RunPresence::Gone,
            Some(run) if is_done(&run) => RunPresence::Done,
            Some(_) => RunPresence::Active,
            None => RunPresence::Gone,
        })
    }

    /// Deletes a pod. Returns the terminating pod, or `None` if it is gone.
    pub(crate) async fn delete_pod(
        &self,
        namespace: &str,
        pod: &ObjectRef,
    ) -> Result<Option<Pod>, Error> {
        self.delete("pod", namespace, pod).await
    }

    /// Deletes an object, which `kind` names in errors. Returns the object if it still exists, for example because finalizers
    /// keep it, or `None` if it is gone.
    pub(crate) async fn delete<K>(
        &self,
        kind: &str,
        namespace: &str,
        object: &ObjectRef,
    ) -> Result<Option<K>, Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let (name, params) = (&object.name, this_one(object));
        let params = DeleteParams::background().preconditions(params);
        match retried(|| api.delete(name, &params)).await {
            Ok(answer) => Ok(answer.left()),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(failed(format!("delete {kind} {namespace}/{name}"), error)),
        }
    }

    /// Deletes exactly this version of a pod. If `at_once` is true, the pod has no grace period; otherwise, the pod has its own.
    /// Returns false if the pod has changed or is gone.
    pub(crate) async fn evict(
        &self,
        namespace: &str,
        pod: &ObjectRef,
        at_once: bool,
    ) -> Result<bool, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let name = &pod.name;
        let params = DeleteParams {
            grace_period_seconds: at_once.then_some(0),
            preconditions: Some(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: Some(pod.resource_version.clone()),
            }),
            ..DeleteParams::background()
        };
        let deleted = once(api.delete(name, &params)).await;
        let deleted = unless_gone(deleted, || format!("delete pod {namespace}/{name}"))?;
        Ok(deleted.is_some())
    }

    /// True if a node of this name exists.
    pub(crate) async fn node_exists(&self, name: &str) -> Result<bool, Error> {
        let api: Api<Node> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        retried(|| api.list_metadata(&params))
            .await
            .map(|list| !list.items.is_empty())
            .map_err(|error| failed(format!("look for node {name}"), error))
    }
}

/// Retries a request after transient errors: five times at most, with pauses of three to six seconds in total. If the API server
/// cannot call an admission webhook, there is no retry, so that the run's author gets an Event at once (N3). If the API server
/// does not answer in time, there is none either, because other runs wait for this worker.
pub(crate) async fn retried<T, F, Fut>(mut request: F) -> Result<T, kube::Error>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, kube::Error>>,
{
    let backoff = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(2))
        .with_max_times(5)
        .with_jitter();
    let bounded = || once(request());
    bounded
        .retry(backoff)
        .when(|error| {
            is_transient(error) && !is_gone(error) && !is_webhook_down(error) && !is_late(error)
        })
        .await
}

/// Sends a request once, with a time limit.
pub(crate) async fn once<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    tokio::time::timeout(TIMEOUT, request)
        .await
        .unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
}

/// True if the API server did not answer within [`TIMEOUT`].
fn is_late(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Service(cause) if cause.is::<Elapsed>())
}

/// True if the object is gone, or another object has its name: the API server answers a failed uid precondition with 409.
pub(crate) fn is_gone(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => {
            status.code == 404
                || (status.code == 409 && status.message.contains("UID in precondition"))
        }
        _ => false,
    }
}

/// The API server's answer to a request that names a uid or a version. `None` if the object is gone, replaced or changed.
pub(crate) fn unless_gone<T>(
    answer: Result<T, kube::Error>,
    act: impl FnOnce() -> String,
) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
        Err(error) => Err(failed(act(), error)),
    }
}

pub(crate) fn this_one(object: &ObjectRef) -> Preconditions {
    Preconditions {
        uid: Some(object.uid.clone()),
        resource_version: None,
    }
}

pub(crate) fn failed(act: String, error: kube::Error) -> Error {
    Error::Kubernetes {
        act,
        transient: is_transient(&error),
        source: Box::new(error),
    }
}

#[cfg(test)]
mod tests;
