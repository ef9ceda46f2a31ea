//! Deletes a pod that must leave its node, or a placeholder's pod that a new pod has to replace. If the placeholder is only
//! this pod, it first gets a controller, which keeps the record of the manager's actions and creates the next pod.

use coscheduler_core::observed::Observed;
use coscheduler_core::reconcile::Eviction;
use coscheduler_core::volumes::volumes;
use coscheduler_kubernetes::placeholder::{Succession, patch};
use kube::api::Patch;

use super::Acted;
use crate::error::Error;
use crate::reconciler::Reconciler;

impl Reconciler {
    /// Deletes a pod, after the changes of the pod's placeholder that the eviction requires.
    pub(super) async fn evict(
        &self,
        observed: &Observed,
        eviction: &Eviction,
        namespace: &str,
        acted: &mut Acted,
    ) -> Result<(), Error> {
        let Eviction {
            pod,
            at_once,
            unless_exists,
            own,
            raise,
            record,
            control,
            reason,
        } = eviction;
        // The watch of nodes may be behind the watch of pods, so a node that is not in the cache may exist.
        if let Some(node) = unless_exists
            && self.requests.node_exists(node).await?
        {
            acted.look_later = true;
            return Ok(());
        }
        if let (Some(spec), Some((run, _))) = (control, &observed.run) {
            let volumes = volumes(spec, &self.seen(run, spec).await?);
            let succession = Succession {
                // If the node is bad, the next pod may go to any other node, so it gets the gate only if the placeholder
                // reserves room.
                gated: record.as_ref().is_none_or(|it| it.moved.is_some()),
                record: record.clone().unwrap_or_default(),
                raised: *raise && self.requests.can_raise(run).await,
            };
            let controlled = self.requests.control(run, spec, &volumes, &succession);
            match controlled.await {
                Ok(own) => drop(self.cache.apply_placeholder(own)),
                Err(error) => {
                    acted.refused = acted.refused.take().or_else(|| error.to_reason());
                    // A placeholder on a bad node must leave, even if its record is lost. The manager then creates the pod again.
                    if error.is_transient() || succession.gated {
                        return Err(error);
                    }
                }
            }
        } else if let Some(own) = own {
            if *raise && let Some(raised) = self.requests.raise(own).await {
                self.cache.refresh_placeholder(raised);
                acted.look_again = true;
                return Ok(());
            }
            if let Some(record) = record {
                self.patch(own, Patch::Merge(patch::record(own, record)))
                    .await?;
            }
        }
        // If the pod has changed meanwhile, the request deletes nothing, and the next reconcile of the run decides again.
        if self.requests.evict(namespace, pod, *at_once).await? {
            acted.events.push(reason.clone());
        }
        Ok(())
    }
}
