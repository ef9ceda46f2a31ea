//! The requests about the room that a placeholder's pod reserves (B3).

use coscheduler_core::observed::ObjectRef;
use coscheduler_core::reconcile::requests::Amounts;
use coscheduler_core::reconcile::reserve::Place;
use coscheduler_kubernetes::placeholder::size;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};

use super::{Requests, failed, once, retried, unless_gone};
use crate::error::Error;

/// The outcome of a resize.
#[derive(Debug)]
pub(crate) enum Resized {
    /// The pod asks for the size now.
    To(Box<Pod>),
    /// The pod is gone, or it was changed or replaced meanwhile.
    Gone,
    /// The API server's objection.
    Refused(String),
}

impl Requests {
    /// Makes a placeholder's pod ask for this size. Kubernetes before 1.34 does not reduce the memory limit of a pod. There, the
    /// memory limit stays as it is.
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
            409 => Ok(Resized::Gone),
            404 if named == Some(&pod.name) => Ok(Resized::Gone),
            // If the API server does not serve the subresource, its error names no object.
            404 => Ok(Resized::Refused("it does not serve pods/resize".to_owned())),
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
