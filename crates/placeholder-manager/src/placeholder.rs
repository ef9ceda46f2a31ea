//! A placeholder is a StatefulSet. Only this module of the service depends on this: it selects the StatefulSets to watch, and
//! creates, patches and deletes StatefulSets. Another kind of placeholder would need another implementation of this module.

mod adopt;

use coscheduler_core::labels::{AFFINITY_ASSISTANT, COMPONENT};
use coscheduler_core::observed::ObjectRef;
use coscheduler_core::observed::{Placeholder, Record};
use coscheduler_core::pinned::is_adopted;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::PlaceholderSpec;
use coscheduler_core::pod_template::EVACUATED_CLASS;
use coscheduler_core::reconcile::evacuate::RAISED;
use coscheduler_core::volumes::Volumes;
pub(crate) use coscheduler_kubernetes::placeholder::view;
use coscheduler_kubernetes::placeholder::{self, Owner, patch};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;
use tracing::warn;

use crate::error::Error;
use crate::requests::{Requests, failed, is_gone, once, retried, this_one, unless_gone};

/// The kind of a placeholder's object, for logs and errors.
pub(crate) const KIND: &str = "StatefulSet";

/// The API and the label selector of the objects to watch.
pub(crate) fn watched(client: &Client) -> (Api<StatefulSet>, watcher::Config) {
    let labels = format!("{COMPONENT}={AFFINITY_ASSISTANT}");
    let config = watcher::Config::default().labels(&labels);
    (Api::all(client.clone()), config)
}

impl Requests {
    /// Creates a placeholder of a run. Returns false if the run has this placeholder already. If Tekton's assistant created the
    /// StatefulSet of an adopted run, takes over this StatefulSet (B7).
    ///
    /// # Errors
    ///
    /// The API server refuses, an object with this name has another owner (P7), or the placeholder is being deleted.
    pub(crate) async fn create_placeholder(
        &self,
        run: &PipelineRun,
        spec: &PlaceholderSpec,
        volumes: &Volumes,
    ) -> Result<bool, Error> {
        let owner = owner(run);
        // Claims that only one pod may use are created first, so that they exist if the placeholder exists (V8).
        for claim in placeholder::single_pod_claims(owner, spec) {
            self.create_claim(&run.namespace, &claim).await?;
        }
        let set = placeholder::build(owner, spec, volumes);
        let (api, name) = (self.placeholders(&run.namespace), spec.name.as_str());
        let params = PostParams::default();
        let created = match retried(|| api.create(&params, &set)).await {
            Ok(_) => return Ok(true),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                retried(|| api.get_opt(name)).await
            }
            Err(error) => {
                let act = format!("create {KIND} {}/{name}", run.namespace);
                return Err(failed(act, error));
            }
        };
        let found = created
            .map_err(|error| failed(format!("read {KIND} {}/{name}", run.namespace), error))?;
        let name = format!("{}/{name}", run.namespace);
        let Some(found) = found else {
            return Err(Error::Terminating { name });
        };
        check_owner(&found, run, name)?;
        if is_adopted(&run.annotations) {
            self.adopt(owner, spec, &found).await?;
        }
        Ok(false)
    }

    /// Looks for the pod of an adopted placeholder whose pod is not known (B7). The placeholder's controller may have created the
    /// pod from the object's old version, without our labels. If so, this function adds our labels to the pod.
    pub(crate) async fn find_adopted_pod(
        &self,
        run: &PipelineRun,
        own: &ObjectRef,
    ) -> Result<(), Error> {
        if !is_adopted(&run.annotations) {
            return Ok(());
        }
        let (api, name) = (self.placeholders(&run.namespace), &own.name);
        let found = retried(|| api.get_opt(name)).await;
        let act = || format!("read {KIND} {}/{name}", run.namespace);
        match found.map_err(|error| failed(act(), error))? {
            Some(set) => self.adopt_pod(owner(run), &set).await,
            None => Ok(()),
        }
    }

    /// Writes annotation `coscheduler.dev/record` of a placeholder. If the creation of the pod failed, this change also makes the
    /// StatefulSet controller try again at once. Returns `None` if the placeholder is gone or replaced.
    pub(crate) async fn record(
        &self,
        own: &Placeholder,
        record: &Record,
    ) -> Result<Option<Placeholder>, Error> {
        self.patch(own, Patch::Merge(patch::record(own, record)))
            .await
    }

    /// Makes the next pod of a placeholder start with the scheduling gate. Changes exactly this version of the placeholder.
    /// Returns `None` if the placeholder has changed or is gone.
    pub(crate) async fn gate(&self, own: &Placeholder) -> Result<Option<Placeholder>, Error> {
        self.patch(own, Patch::Strategic(patch::gate(own))).await
    }

    /// Gives the next pod of a placeholder the PriorityClass of evacuated placeholders. Returns `None` if this does not succeed
    /// within [`RAISED`], if the placeholder is gone or replaced, or if there is no such class. (The API server would refuse a
    /// pod whose class does not exist.)
    pub(crate) async fn raise(&self, own: &Placeholder) -> Option<Placeholder> {
        let classes: Api<PriorityClass> = Api::all(self.client.clone());
        let raised = tokio::time::timeout(RAISED, async {
            let found = once(classes.get_metadata_opt(EVACUATED_CLASS)).await;
            let act = || format!("read PriorityClass {EVACUATED_CLASS}");
            match found.map_err(|error| failed(act(), error))? {
                Some(_) => self.patch(own, Patch::Merge(patch::raise(own))).await,
                None => Ok(None),
            }
        });
        let error = match raised.await {
            Ok(Ok(raised)) => return raised,
            Ok(Err(error)) => error.with_causes(),
            Err(late) => late.to_string(),
        };
        warn!(
            namespace = own.namespace,
            placeholder = own.object.name,
            error,
            "failed to change the PriorityClass of a placeholder before its evacuation"
        );
        None
    }

    async fn patch(
        &self,
        own: &Placeholder,
        patch: Patch<Value>,
    ) -> Result<Option<Placeholder>, Error> {
        let (api, name) = (self.placeholders(&own.namespace), &own.object.name);
        let params = PatchParams::default();
        let patched = once(api.patch(name, &params, &patch)).await;
        let patched = unless_gone(patched, || format!("patch {KIND} {}/{name}", own.namespace))?;
        Ok(patched.and_then(view))
    }

    /// Deletes a placeholder and its pod. Returns the placeholder if finalizers still keep it, or `None` if it is gone.
    pub(crate) async fn delete_placeholder(
        &self,
        namespace: &str,
        own: &ObjectRef,
    ) -> Result<Option<Placeholder>, Error> {
        let api = self.placeholders(namespace);
        let params = DeleteParams::background().preconditions(this_one(own));
        match retried(|| api.delete(&own.name, &params)).await {
            Ok(answer) => Ok(answer.left().and_then(view)),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(failed(
                format!("delete {KIND} {namespace}/{}", own.name),
                error,
            )),
        }
    }

    fn placeholders(&self, namespace: &str) -> Api<StatefulSet> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

fn owner(run: &PipelineRun) -> Owner<'_> {
    Owner {
        namespace: &run.namespace,
        name: &run.name,
        uid: &run.uid,
    }
}

/// Fails if the controller of the object is not this run, because the manager never uses an object of another owner (P7). Also
/// fails if the object is being deleted.
fn check_owner(set: &StatefulSet, run: &PipelineRun, name: String) -> Result<(), Error> {
    let owners = set.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    let owner = match controllers.next() {
        Some(owner) if owner.uid == run.uid => None,
        Some(owner) => Some(format!("{} {} ({})", owner.kind, owner.name, owner.uid)),
        None => Some("nobody".to_owned()),
    };
    match owner {
        Some(owner) => Err(Error::NameTaken { name, owner }),
        None if set.metadata.deletion_timestamp.is_some() => Err(Error::Terminating { name }),
        None => Ok(()),
    }
}
