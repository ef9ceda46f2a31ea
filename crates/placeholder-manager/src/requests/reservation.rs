//! The requests about the room that a placeholder's pod reserves (B3).

use coscheduler_core::observed::{ObjectRef, Placeholder};
use coscheduler_core::reconcile::requests::Amounts;
use coscheduler_kubernetes::placeholder::size;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};

use super::{Requests, failed, once};
use crate::error::Error;

/// The outcome of a resize.
#[derive(Debug)]
pub(crate) enum Resized {
    /// The pod asks for the size now.
    To(Box<Pod>),
    /// The pod is gone or replaced.
    Gone,
    /// The API server's objection.
    Refused(String),
}

impl Requests {
    /// Makes a placeholder's pod ask for this size.
    pub(crate) async fn resize(
        &self,
        namespace: &str,
        pod: &ObjectRef,
        size: &Amounts,
    ) -> Result<Resized, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Strategic(size::resize(pod, size));
        match once(api.patch_resize(&pod.name, &PatchParams::default(), &patch)).await {
            Ok(pod) => Ok(Resized::To(Box::new(pod))),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Resized::Gone),
            // An API server without the subresource names no object.
            Err(kube::Error::Api(status)) if status.code == 404 => {
                let of_pod = status
                    .details
                    .as_ref()
                    .is_some_and(|it| it.name == pod.name);
                Ok(match of_pod {
                    true => Resized::Gone,
                    false => Resized::Refused("it does not serve pods/resize".to_owned()),
                })
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
                Ok(Resized::Refused(status.message.clone()))
            }
            Err(error) => Err(failed(
                format!("resize pod {namespace}/{}", pod.name),
                error,
            )),
        }
    }

    /// Lets the scheduler have a placeholder's pod, for this node only if one is given. Returns `None` if the pod is gone or
    /// replaced.
    pub(crate) async fn open(
        &self,
        own: &Placeholder,
        pod: &ObjectRef,
        node: Option<&str>,
    ) -> Result<Option<Pod>, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &own.namespace);
        let patch = Patch::Strategic(size::open(own, pod, node));
        match once(api.patch(&pod.name, &PatchParams::default(), &patch)).await {
            Ok(pod) => Ok(Some(pod)),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(failed(
                format!("remove the gate of pod {}/{}", own.namespace, pod.name),
                error,
            )),
        }
    }
}
