//! The requests about the CPU and memory that a placeholder's pod reserves (B3).

use coscheduler_core::event_texts;
use coscheduler_core::observed::ObjectRef;
use coscheduler_core::plan::{PlaceholderSpec, Reason};
use coscheduler_core::reconcile::reserve::Place;
use coscheduler_core::requests::Amounts;
use coscheduler_kubernetes::placeholder::{self, size};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};

use super::{Requests, failed, once, retried, unless_gone};
use crate::error::Error;

/// The outcome of a resize.
#[derive(Debug)]
pub(crate) enum Resized {
    /// The pod now requests this size.
    To(Box<Pod>),
    /// The pod is gone, or it was changed or replaced meanwhile.
    Gone,
    /// The API server's objection.
    Refused(String),
}

impl Requests {
    /// Creates a placeholder's pod without the scheduling gate. The pod gets the first of `sizes` that the API server accepts, or
    /// else its own requests. Returns the Events about refused sizes.
    pub(crate) async fn create_opened(
        &self,
        namespace: &str,
        spec: &PlaceholderSpec,
        pod: Pod,
        sizes: &[Amounts],
    ) -> Result<Vec<Reason>, kube::Error> {
        let mut refused = Vec::new();
        for (index, size) in sizes.iter().enumerate() {
            let sized = placeholder::opened(pod.clone(), Some(size));
            match self.create(namespace, &sized).await {
                Ok(()) => return Ok(refused),
                Err(kube::Error::Api(it)) if matches!(it.code, 400 | 403 | 422) => {
                    let (name, next) = (spec.name.as_str(), sizes.get(index + 1));
                    refused.push(event_texts::reservation_refused(
                        name,
                        size,
                        &it.message,
                        next,
                    ));
                }
                Err(error) => return Err(error),
            }
        }
        // If the API server refuses this pod too, the size was not the cause.
        self.create(namespace, &placeholder::opened(pod, None))
            .await?;
        Ok(refused)
    }

    /// Creates a pod.
    pub(crate) async fn create(&self, namespace: &str, pod: &Pod) -> Result<(), kube::Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        retried(|| api.create(&params, pod)).await.map(drop)
    }

    /// True if the API server serves subresource `pods/resize`. Without it, a placeholder could never reduce its requests.
    /// Remembers the API server's answer, but no error.
    pub(crate) async fn can_resize(&self) -> Result<bool, Error> {
        let ask = async || {
            let served = retried(|| self.client.list_core_api_resources("v1")).await?;
            Ok(served.resources.iter().any(|it| it.name == "pods/resize"))
        };
        match self.can_resize.get_or_try_init(ask).await {
            Ok(can) => Ok(*can),
            // The manager lacks the right to ask.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(false),
            Err(error) => Err(failed("list the resources of API v1".to_owned(), error)),
        }
    }

    /// Makes a placeholder's pod request this size. Kubernetes before 1.34 does not reduce the memory limit of a pod, so there
    /// this limit stays.
    pub(crate) async fn resize(
        &self,
        namespace: &str,
        pod: &ObjectRef,
        size: &Amounts,
    ) -> Result<Resized, Error> {
        let act = || format!("resize pod {namespace}/{}", pod.name);
        let mut limits = size::limits(size);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let send = async |limits: &_| {
            let patch = Patch::Strategic(size::resize(pod, size, limits));
            once(api.patch_resize(&pod.name, &PatchParams::default(), &patch)).await
        };
        let resized = match send(&limits).await {
            Err(kube::Error::Api(it))
                if it.message.contains("memory limits cannot be decreased") =>
            {
                limits.remove("memory");
                send(&limits).await
            }
            resized => resized,
        };
        let refused = match resized {
            Ok(pod) => return Ok(Resized::To(Box::new(pod))),
            Err(kube::Error::Api(refused)) => refused,
            Err(error) => return Err(failed(act(), error)),
        };
        let named = refused.details.as_ref().map(|it| &it.name);
        match refused.code {
            // A conflict about another object, such as a quota that many pods use at the same time, does not mean that the pod
            // is gone.
            409 if named.is_none_or(|name| *name == pod.name) => Ok(Resized::Gone),
            404 if named == Some(&pod.name) => Ok(Resized::Gone),
            // If the API server does not serve the subresource, its error names no object.
            404 => Ok(Resized::Refused("it does not serve pods/resize".to_owned())),
            // The pod was replaced. A resize that names no version gets this answer.
            422 if refused.message.contains("metadata.uid") => Ok(Resized::Gone),
            // If a webhook denies a request and its answer has no code, the API server answers with 400.
            400 | 403 | 422 => Ok(Resized::Refused(refused.message.clone())),
            _ => Err(failed(act(), kube::Error::Api(refused))),
        }
    }

    /// Removes the gate of a placeholder's pod, and limits the pod to the nodes of `place`. If the API server refuses these
    /// nodes, every node that the template allows may take the pod. Returns `None` if the pod is gone or replaced.
    pub(crate) async fn open(
        &self,
        namespace: &str,
        pod: &ObjectRef,
        place: &Place,
    ) -> Result<Option<Pod>, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let act = || format!("remove the scheduling gate of pod {namespace}/{}", pod.name);
        let patch = if *place == Place::default() {
            size::open(pod)
        } else {
            // The patch replaces whole lists, such as the tolerations, so it must contain the items that the pod has now.
            let params = ListParams::default().fields(&format!("metadata.name={}", pod.name));
            let found = retried(|| api.list(&params)).await;
            let mut found = found.map_err(|error| failed(act(), error))?.into_iter();
            match found.find(|it| it.metadata.uid.as_ref() == Some(&pod.uid)) {
                Some(found) => size::open_at(found, place),
                None => return Ok(None),
            }
        };
        let send = async |patch| {
            let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
            once(api.patch(&pod.name, &params, &patch)).await
        };
        let patched = match send(patch).await {
            Err(kube::Error::Api(it)) if matches!(it.code, 400 | 403 | 422) => {
                send(size::open(pod)).await
            }
            patched => patched,
        };
        unless_gone(patched, act)
    }
}
