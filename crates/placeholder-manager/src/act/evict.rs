//! Deletes a pod that must leave its node, or a placeholder's pod that a new pod has to replace. If the placeholder is only
//! this pod, it first gets a controller, which keeps the record of the manager's actions and creates the next pod.

use coscheduler_core::observed::Observed;
use coscheduler_core::reconcile::Step;
use coscheduler_core::volumes::volumes;
use coscheduler_kubernetes::placeholder::Succession;

use super::Acted;
use crate::cache::RunKey;
use crate::error::Error;
use crate::reconciler::Reconciler;

impl Reconciler {
    /// Takes a step of kind [`Step::Evict`].
    pub(super) async fn evict(
        &self,
        key: &RunKey,
        observed: &Observed,
        step: &Step,
        acted: &mut Acted,
    ) -> Result<(), Error> {
        let Step::Evict {
            pod,
            at_once,
            unless_exists,
            raise,
            update,
            control,
            reason,
        } = step
        else {
            return Ok(());
        };
        // The watch of nodes may be behind the watch of pods, so a node that is not in the cache may exist.
        if let Some(node) = unless_exists
            && self.requests.node_exists(node).await?
        {
            acted.look_later = true;
            return Ok(());
        }
        let known = |name: &String| observed.placeholders.get(name);
        if let (Some(spec), Some((run, _))) = (control, &observed.run) {
            let volumes = volumes(spec, &self.seen(run, spec).await?);
            let record = update.as_ref().map(|it| it.record.clone());
            let succession = Succession {
                // If the node is bad, the next pod may go to any other node, so it gets the gate only if the placeholder
                // reserves room.
                gated: record.as_ref().is_none_or(|it| it.moved.is_some()),
                record: record.unwrap_or_default(),
                raised: raise.is_some() && self.requests.can_raise(run).await,
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
        } else {
            if let Some(own) = raise.as_ref().and_then(known)
                && let Some(raised) = self.requests.raise(own).await
            {
                self.cache.refresh_placeholder(raised);
                acted.look_again = true;
                return Ok(());
            }
            if let Some((update, own)) = update
                .as_ref()
                .and_then(|it| Some((it, known(&it.placeholder)?)))
            {
                let recorded = self.requests.record(own, &update.record).await?;
                self.refresh(recorded);
            }
        }
        // If the pod has changed meanwhile, the request deletes nothing, and the next reconcile of the run decides again.
        let deleted = self.requests.evict(&key.namespace, pod, *at_once).await?;
        if deleted {
            acted.events.push(reason.clone());
        }
        Ok(())
    }
}
