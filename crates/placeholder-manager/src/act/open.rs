//! Removes the scheduling gate of a placeholder's pod.

use std::collections::BTreeSet;

use coscheduler_core::event_texts;
use coscheduler_core::observed::{ObjectRef, Observed, Placeholder};
use coscheduler_core::reconcile::reserve::Place;
use coscheduler_core::requests::Amounts;
use coscheduler_kubernetes::{objects, pods};

use super::Acted;
use crate::error::Error;
use crate::reconciler::Reconciler;
use crate::requests::Resized;

impl Reconciler {
    /// Sets the requests of a placeholder's pod to the first of `sizes` that the API server accepts, and then removes the pod's
    /// scheduling gate. If the API server refuses every size, for example because of a quota, the pod keeps the requests of its
    /// template. If the pod is gone, does nothing.
    pub(super) async fn open(
        &self,
        own: &Placeholder,
        mut pod: ObjectRef,
        sizes: &[Amounts],
        place: &Place,
        acted: &mut Acted,
    ) -> Result<(), Error> {
        let namespace = &own.namespace;
        for (index, size) in sizes.iter().enumerate() {
            match self.requests.resize(namespace, &pod, size).await? {
                Resized::To(resized) => {
                    pod = objects::reference(resized.metadata);
                    break;
                }
                Resized::Gone => return Ok(()),
                Resized::Refused(message) => {
                    let (name, next) = (&own.object.name, sizes.get(index + 1));
                    let reason = event_texts::reservation_refused(name, size, &message, next);
                    acted.events.push(reason);
                }
            }
        }
        if let Some(opened) = self.requests.open(namespace, &pod, place).await? {
            self.refresh_pod(opened);
        }
        Ok(())
    }

    /// True if the scheduler has bound a pod that follows the placeholder, and the observation does not show this binding yet.
    pub(super) async fn is_followed(
        &self,
        observed: &Observed,
        own: &Placeholder,
    ) -> Result<bool, Error> {
        let known = observed.pods.values();
        let mut runs: BTreeSet<&str> = known.map(|pod| pod.run_uid.as_str()).collect();
        runs.insert(&own.run_uid);
        let now = self.requests.pods_of_runs(&own.namespace, &runs).await?;
        let now = now.into_iter().filter_map(pods::view);
        let mut followed = false;
        for pod in now.filter(|pod| pod.node.is_some() && pod.follows.contains(&own.object.name)) {
            let known = observed.pods.get(&pod.object.name);
            if known.is_none_or(|known| known.node.is_none()) {
                followed = true;
                self.cache.refresh_pod(pod);
            }
        }
        Ok(followed)
    }
}
