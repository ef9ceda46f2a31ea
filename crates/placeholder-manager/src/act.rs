//! Carries out the steps that `core` decided, one after the other. Every step is safe to repeat. Most answers of the API server
//! to patches and deletions go into the cache at once. So the next observation of the run includes these writes, even if the
//! watch is late.

mod evict;
mod open;

use std::collections::BTreeMap;
use std::sync::Arc;

use coscheduler_core::config::Backend;
use coscheduler_core::event_texts;
use coscheduler_core::names::pod_name;
use coscheduler_core::observed::{ObjectRef, Observed, Placeholder};
use coscheduler_core::pinned::Pinned;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::{PlaceholderSpec, Reason};
use coscheduler_core::reconcile::{Purpose, Step};
use coscheduler_core::requests::Amounts;
use coscheduler_core::run_claims::brought;
use coscheduler_core::volumes::{Nodes, SeenClaim, conflict, volumes};
use coscheduler_kubernetes::placeholder::patch;
use coscheduler_kubernetes::pods;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Patch;
use serde_json::Value;
use tracing::{debug, info, warn};

use crate::cache::RunKey;
use crate::error::Error;
use crate::reconciler::Reconciler;
use crate::requests::Resized;

/// For each purpose of steps, the first error.
pub(crate) type Failed = BTreeMap<Purpose, Arc<Error>>;

/// The outcome of the steps.
#[derive(Debug, Default)]
pub(crate) struct Acted {
    /// True if a placeholder was created.
    pub created: bool,
    /// True if the run can be observed again at once, because the cache already has the result of a step.
    pub look_again: bool,
    /// True if the API server was asked about a waiting pod.
    pub asked: bool,
    /// True if the run must be observed again after a backoff, although no step failed.
    pub look_later: bool,
    /// The Events to publish.
    pub events: Vec<Reason>,
    /// The errors of the steps. After an error, the remaining steps are still taken, with one exception. If an admission
    /// webhook is down, the remaining steps with the same purpose are skipped, because each could wait for the webhook for up
    /// to thirty seconds.
    pub failed: Failed,
    /// For the run's author: the reason why a placeholder could not be created, or keeps its scheduling gate.
    pub refused: Option<Reason>,
}

impl Reconciler {
    /// Takes the steps in order.
    pub(crate) async fn act(&self, key: &RunKey, observed: &Observed, steps: &[Step]) -> Acted {
        let mut acted = Acted::default();
        for step in steps {
            let purpose = step.purpose();
            // The Lease may have expired since the decision.
            if purpose == Purpose::Move && !self.leadership.is_held() {
                continue;
            }
            let before = acted.failed.get(&purpose);
            if before.is_some_and(|error| error.is_webhook_down()) {
                continue;
            }
            if let Err(error) = self.take(key, observed, step, &mut acted).await {
                debug!(
                    namespace = key.namespace,
                    error = error.with_causes(),
                    "failed to take a step"
                );
                if matches!(purpose, Purpose::Ensure | Purpose::Open) {
                    acted.refused = acted.refused.or_else(|| error.to_reason());
                }
                acted.failed.entry(purpose).or_insert(Arc::new(error));
            }
        }
        acted
    }

    async fn take(
        &self,
        key: &RunKey,
        observed: &Observed,
        step: &Step,
        acted: &mut Acted,
    ) -> Result<(), Error> {
        let namespace = &key.namespace;
        match step {
            Step::Create { spec, sizes } => {
                if let Some((run, _)) = &observed.run {
                    let created = self.create(run, spec, sizes.as_deref(), &observed.nodes);
                    if let Some(refused) = created.await? {
                        acted.created = true;
                        self.memory.created(key, spec.name.to_string());
                        acted.events.extend(refused);
                    }
                }
            }
            Step::Delete(own) => {
                self.delete(key, observed, own).await?;
                acted.look_again = true;
            }
            Step::DeleteOrphan(pod) => {
                self.delete_orphan(key, pod).await?;
                acted.look_again = true;
            }
            Step::DeleteClaim(claim) => {
                self.delete_claim(key, claim).await?;
                acted.look_again = true;
            }
            Step::Unprotect(claims) => self.unprotect(key, claims).await?,
            Step::Ask {
                pod,
                task_run,
                run_uid,
            } => {
                let answer = self.requests.ask(namespace, task_run, run_uid).await?;
                if !answer.own {
                    warn!(
                        namespace,
                        pod = pod.name,
                        "ignored a pod because its TaskRun does not belong to the run that the pod's label names"
                    );
                }
                self.memory.answered(key, &pod.uid, answer);
                acted.asked = true;
            }
            Step::Open {
                own,
                pod,
                sizes,
                place,
                unless_followed,
            } => {
                if *unless_followed && self.is_followed(observed, own).await? {
                    acted.look_later = true;
                    return Ok(());
                }
                self.open(own, pod.clone(), sizes, place, acted).await?;
            }
            Step::Shrink { pod, size, reason } => {
                match self.requests.resize(namespace, pod, size).await? {
                    Resized::To(pod) => {
                        self.refresh_pod(*pod);
                        acted.events.extend(reason.clone());
                    }
                    Resized::Gone => {}
                    Resized::Refused(message) => warn!(
                        namespace,
                        pod = pod.name,
                        message,
                        "the API server refused to reduce the requests of a placeholder's pod"
                    ),
                }
            }
            Step::Retry(own, record) => {
                let spec = observed.spec(&own.object.name);
                let had_pod = spec.is_some_and(|spec| spec.backend == Backend::Pod);
                if had_pod && self.requests.has_old_pod(own).await? {
                    acted.look_later = true;
                    return Ok(());
                }
                self.patch(own, Patch::Merge(patch::record(own, record)))
                    .await?;
                debug!(
                    namespace,
                    placeholder = own.object.name,
                    "retried placeholder"
                );
                if let Some((run, _)) = &observed.run {
                    self.requests.find_adopted_pod(run, &own.object).await?;
                }
            }
            Step::Evict(eviction) => self.evict(observed, eviction, namespace, acted).await?,
            Step::Gate(own) => {
                self.patch(own, Patch::Strategic(patch::gate(own))).await?;
            }
            Step::Start(own) => {
                if self.requests.has_old_pod(own).await? {
                    acted.look_later = true;
                    return Ok(());
                }
                self.patch(own, Patch::Merge(patch::start(own))).await?;
            }
            Step::LetGo {
                pod,
                task_run,
                placeholder,
                times,
                reason,
            } => {
                let let_go = self
                    .requests
                    .let_go(namespace, task_run, placeholder, *times);
                // Tekton creates the pod again, from the changed TaskRun.
                if let_go.await? && self.requests.evict(namespace, pod, true).await? {
                    acted.events.push(reason.clone());
                }
            }
        }
        Ok(())
    }

    fn refresh_pod(&self, pod: Pod) {
        if let Some(pod) = pods::view(pod) {
            self.cache.refresh_pod(pod);
        }
    }

    /// Creates a placeholder. Returns the Events about sizes that the API server refused, or `None` if the run has this
    /// placeholder already.
    async fn create(
        &self,
        run: &PipelineRun,
        spec: &PlaceholderSpec,
        sizes: Option<&[Amounts]>,
        nodes: &Nodes,
    ) -> Result<Option<Vec<Reason>>, Error> {
        let seen = self.seen(run, spec).await?;
        if let Some(conflict) = conflict(&seen, nodes) {
            let reason = event_texts::volume_node_affinity_conflict(&conflict, &spec.name);
            return Err(Error::OutOfReach { reason });
        }
        let volumes = volumes(spec, &seen);
        let created = self
            .requests
            .create_placeholder(run, spec, sizes, &volumes)
            .await?;
        if created.is_some() {
            info!(
                namespace = run.namespace,
                pipeline_run = run.name,
                placeholder = %spec.name,
                "created placeholder"
            );
        }
        Ok(created)
    }

    /// The claims of a placeholder and their volumes. An existing claim that is not in the cache is read from the API server,
    /// because the author may have created it right before the run.
    async fn seen(
        &self,
        run: &PipelineRun,
        spec: &PlaceholderSpec,
    ) -> Result<Vec<SeenClaim>, Error> {
        let pinned = Pinned::of(run).map_err(Error::BadRequest)?;
        let claims = pinned.map(|pinned| pinned.claims).unwrap_or_default();
        let existing = brought(&claims);
        let mut seen = Vec::new();
        for name in spec.claims() {
            // A claim that is made for the run does not always exist yet, so the API server is not asked.
            let look_up = existing.contains(name.as_str());
            seen.extend(self.claim((run.namespace.clone(), name), look_up).await?);
        }
        Ok(seen)
    }

    async fn claim(
        &self,
        key: (String, String),
        look_up: bool,
    ) -> Result<Option<SeenClaim>, Error> {
        let known = self.cache.claim(&key);
        let (claim, mut seen) = match known {
            Some(known) => known,
            None if look_up => match self.requests.claim(&key.0, &key.1).await? {
                Some(claim) => {
                    let seen = SeenClaim {
                        name: key.1,
                        single_pod: claim.single_pod,
                        volume: None,
                    };
                    (Arc::new(claim), seen)
                }
                None => return Ok(None),
            },
            None => return Ok(None),
        };
        if let (Some(volume), None, true) = (&claim.volume, &seen.volume, look_up) {
            seen.volume = match self.cache.volume(volume) {
                Some(volume) => Some(volume),
                None => self.requests.volume(volume).await?,
            };
        }
        Ok(Some(seen))
    }

    async fn delete(
        &self,
        key: &RunKey,
        observed: &Observed,
        own: &ObjectRef,
    ) -> Result<(), Error> {
        let namespace = &key.namespace;
        let known = observed.placeholders.get(&own.name);
        if known.is_some_and(|known| known.backend == Backend::Pod) {
            let pod = ObjectRef {
                name: pod_name(&own.name),
                ..own.clone()
            };
            return self.delete_orphan(key, &pod).await;
        }
        let left = self.requests.delete_placeholder(namespace, own).await?;
        let (uid, placeholder) = (&key.uid, &own.name);
        info!(namespace, uid, placeholder, "deleted placeholder");
        let name = (namespace.clone(), own.name.clone());
        match left {
            Some(left) => self.cache.refresh_placeholder(left),
            None => drop(self.cache.delete_placeholder(&name)),
        }
        Ok(())
    }

    async fn delete_orphan(&self, key: &RunKey, pod: &ObjectRef) -> Result<(), Error> {
        let left = self.requests.delete_pod(&key.namespace, pod).await?;
        info!(
            namespace = key.namespace,
            uid = key.uid,
            pod = pod.name,
            "deleted pod of a placeholder"
        );
        match left.and_then(pods::view) {
            Some(left) => self.cache.refresh_pod(left),
            None => drop(
                self.cache
                    .delete_pod(&(key.namespace.clone(), pod.name.clone())),
            ),
        }
        Ok(())
    }

    /// Patches a placeholder's object. If the object is gone or replaced, or if the patch names another version, does nothing.
    async fn patch(&self, own: &Placeholder, patch: Patch<Value>) -> Result<(), Error> {
        if let Some(own) = self.requests.patch(own, patch).await? {
            self.cache.refresh_placeholder(own);
        }
        Ok(())
    }
}
