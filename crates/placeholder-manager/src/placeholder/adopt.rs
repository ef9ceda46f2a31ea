//! Takes over the StatefulSets that Tekton's own affinity assistant created for adopted runs, with their pods and claims (B7).

use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::names::pod_name;
use coscheduler_core::plan::PlaceholderSpec;
use coscheduler_kubernetes::placeholder::{Owner, adopt};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use tracing::{info, warn};

use super::{KIND, view};
use crate::error::Error;
use crate::requests::{Requests, failed, once, retried, unless_gone};

impl Requests {
    /// Takes over a StatefulSet of a run. Does nothing in three cases: this product created the StatefulSet, has taken it over
    /// already, or cannot take it over because its selector has label [`PIPELINE_RUN_UID`]. The claims and the pod are taken over
    /// before the StatefulSet itself. So if this function fails before the end, the next `Ensure` repeats everything.
    pub(super) async fn adopt(
        &self,
        owner: Owner<'_>,
        spec: &PlaceholderSpec,
        set: &StatefulSet,
    ) -> Result<(), Error> {
        let (namespace, name) = (owner.namespace, spec.name.as_str());
        if !adopt::is_tektons(set) {
            if view(set.clone()).is_none() {
                warn!(
                    namespace,
                    placeholder = name,
                    "cannot adopt a {KIND} that selects its pod by label {PIPELINE_RUN_UID}"
                );
            }
            return Ok(());
        }
        for claim in adopt::claims(owner, spec, set) {
            self.adopt_claim(owner, set, &claim).await?;
        }
        self.adopt_pod(owner, set).await?;
        let (api, patch) = (self.placeholders(namespace), adopt::set(owner, set));
        let params = PatchParams::default();
        let patched = once(api.patch(name, &params, &Patch::Strategic(patch))).await;
        patched.map_err(|error| failed(format!("adopt {KIND} {namespace}/{name}"), error))?;
        info!(
            namespace,
            pipeline_run = owner.name,
            placeholder = name,
            "adopted placeholder"
        );
        Ok(())
    }

    /// Gives the pod of the StatefulSet our labels. Does nothing if the pod has these labels already, or does not exist.
    pub(super) async fn adopt_pod(&self, owner: Owner<'_>, set: &StatefulSet) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), owner.namespace);
        let name = pod_name(&set.name_any());
        let act = || format!("adopt pod {}/{name}", owner.namespace);
        let found = self.own_pod(owner.namespace, &set.name_any()).await?;
        if let Some(patch) = found.and_then(|found| adopt::pod(owner, set, &found)) {
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            unless_gone(once(api.patch(&name, &params, &patch)).await, act)?;
        }
        Ok(())
    }

    /// Gives the labels and the owner of `made` to the claim that `set` created, so that the claim is deleted after the run. If
    /// the claim does not exist yet, creates `made`. Does nothing if the claim with this name does not come from `set`.
    async fn adopt_claim(
        &self,
        owner: Owner<'_>,
        set: &StatefulSet,
        made: &PersistentVolumeClaim,
    ) -> Result<(), Error> {
        self.create_claim(owner.namespace, made).await?;
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), owner.namespace);
        let name = made.metadata.name.as_deref().unwrap_or_default();
        let act = || format!("adopt claim {}/{name}", owner.namespace);
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = retried(|| api.list(&params)).await;
        let mut found = found.map_err(|error| failed(act(), error))?.into_iter();
        if let Some(patch) = found.find_map(|found| adopt::claim(owner, set, made, &found)) {
            let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
            let patched = once(api.patch(name, &params, &patch)).await;
            patched.map_err(|error| failed(act(), error))?;
        }
        Ok(())
    }
}
