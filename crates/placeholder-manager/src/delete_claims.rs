//! Deletes claims of a run that has ended or is gone, and removes their finalizer `kubernetes.io/pvc-protection`. Modules
//! `claims_to_delete` and `clean_up` of `core` decide which claims, and when. Nobody deletes a claim that the author created.
//! If somebody deletes the PipelineRun, Kubernetes also deletes the claims that we or Tekton created for it. In the default
//! mode, `workspaces`, most claims that Tekton created from templates stay until Kubernetes deletes them with their owner, the
//! PipelineRun. While Tekton's own flag is on, Tekton may also delete claims of adopted runs. No other module of ours deletes
//! claims. Every replica may delete them.

use std::sync::Arc;

use coscheduler_core::observed::{KnownClaim, ObjectRef};
use coscheduler_core::reconcile::claims_to_delete::{PodUse, unprotectable};
use coscheduler_kubernetes::{claims, pods};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Resource as _};
use serde_json::json;
use tracing::info;

use crate::cache::RunKey;
use crate::error::Error;
use crate::reconciler::Reconciler;
use crate::requests::{Requests, failed, once, retried};

/// The number of pods in one page of a list. A single pod may be larger than 100 KB.
const PAGE: u32 = 100;

impl Reconciler {
    /// Deletes a claim.
    pub(crate) async fn delete_claim(&self, key: &RunKey, claim: &ObjectRef) -> Result<(), Error> {
        let left = self.requests.delete_claim(&key.namespace, claim).await?;
        info!(
            namespace = key.namespace,
            uid = key.uid,
            claim = claim.name,
            "deleted claim"
        );
        match left {
            Some(left) => self.cache.refresh_claim(left),
            None => drop(
                self.cache
                    .delete_claim(&(key.namespace.clone(), claim.name.clone())),
            ),
        }
        Ok(())
    }

    /// Removes finalizer `pvc-protection` from these claims. A claim keeps the finalizer in two cases: a pod that has neither
    /// succeeded nor failed uses the claim (V4), or the claim has changed since the decision. If a request fails, the requests
    /// about the other claims are still sent.
    pub(crate) async fn unprotect(
        &self,
        key: &RunKey,
        candidates: &[Arc<KnownClaim>],
    ) -> Result<(), Error> {
        let pods = self.requests.live_pods(&key.namespace).await?;
        let mut outcome = Ok(());
        for claim in unprotectable(candidates, &pods) {
            let name = (key.namespace.clone(), claim.object.name.clone());
            let known = self.cache.claim(&name);
            if known.is_none_or(|(known, _)| known != *claim) {
                continue;
            }
            match self.requests.unprotect(claim).await {
                Ok(Some(left)) => self.cache.refresh_claim(left),
                Ok(None) => drop(self.cache.delete_claim(&name)),
                // It would hold up the next request too.
                Err(error) if error.is_webhook_down() => return Err(error),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }
}

impl Requests {
    /// Deletes a claim. Returns the claim if finalizers still keep it, or `None` if it is gone.
    pub(crate) async fn delete_claim(
        &self,
        namespace: &str,
        claim: &ObjectRef,
    ) -> Result<Option<KnownClaim>, Error> {
        let left = self.delete("claim", namespace, claim).await?;
        Ok(left.map(claims::view))
    }

    /// The claims that the pods of a namespace use now: a list from the API server, not from the cache. The list leaves out
    /// completed pods, of which CI namespaces have many. It is read page by page to save memory. Runs that end at the same time
    /// share one list.
    pub(crate) async fn live_pods(&self, namespace: &str) -> Result<Arc<Vec<PodUse>>, Error> {
        self.pods.get(namespace, self.list_pods(namespace)).await
    }

    async fn list_pods(&self, namespace: &str) -> Result<Vec<PodUse>, Error> {
        let _turn = self.listings.acquire().await.ok();
        let pods = kube::core::Request::new(Pod::url_path(&(), Some(namespace)));
        let failed = |error| failed(format!("list the pods of namespace {namespace}"), error);
        let mut params = ListParams::default().fields(pods::NOT_ENDED).limit(PAGE);
        let mut used = Vec::new();
        loop {
            let request = pods
                .list(&params)
                .map_err(|error| failed(kube::Error::BuildRequest(error)))?;
            let page: pods::Page = retried(|| self.client.request(request.clone()))
                .await
                .map_err(failed)?;
            let next = page.next().map(str::to_owned);
            used.extend(page.claim_uses());
            match next {
                Some(next) => params = params.continue_token(&next),
                None => return Ok(used),
            }
        }
    }

    /// Removes `kubernetes.io/pvc-protection` from exactly this version of a claim. Fails if the claim has another version.
    /// Returns the changed claim, or `None` if the claim is gone.
    pub(crate) async fn unprotect(&self, claim: &KnownClaim) -> Result<Option<KnownClaim>, Error> {
        let (namespace, name) = (&claim.namespace, &claim.object.name);
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let patch = Patch::Merge(json!({"metadata": {
            "uid": claim.object.uid,
            "resourceVersion": claim.object.resource_version,
            "finalizers": claim.without_protection(),
        }}));
        // A conflict is an error here: the claim has changed, so the next reconcile must check it again.
        match once(api.patch(name, &PatchParams::default(), &patch)).await {
            Ok(left) => Ok(Some(claims::view(left))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(failed(
                format!("remove pvc-protection of claim {namespace}/{name}"),
                error,
            )),
        }
    }
}
