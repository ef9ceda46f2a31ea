//! A placeholder is a StatefulSet. This module is the only one of the service that knows: it watches StatefulSets, and creates,
//! patches and deletes them. Another kind of placeholder would be a second implementation of it.

use coscheduler_core::labels::{AFFINITY_ASSISTANT, COMPONENT};
use coscheduler_core::observed::{Placeholder, Record};
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::PlaceholderSpec;
use coscheduler_core::teardown::ObjectRef;
use coscheduler_core::volumes::Volumes;
pub(crate) use coscheduler_kubernetes::placeholder::view;
use coscheduler_kubernetes::placeholder::{self, Owner, patch};
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;

use crate::error::Error;
use crate::requests::{Requests, failed, is_gone, retried, this_one};

/// The kind of object, in metrics, logs and errors.
pub(crate) const KIND: &str = "StatefulSet";

/// The objects to watch.
pub(crate) fn watched(client: &Client) -> (Api<StatefulSet>, watcher::Config) {
    let labels = format!("{COMPONENT}={AFFINITY_ASSISTANT}");
    let config = watcher::Config::default().labels(&labels);
    (Api::all(client.clone()), config)
}

impl Requests {
    /// Creates a placeholder of a run. False where the run has it already.
    ///
    /// # Errors
    ///
    /// Where the API server refuses, or the name belongs to somebody else (P7).
    pub(crate) async fn create_placeholder(
        &self,
        run: &PipelineRun,
        spec: &PlaceholderSpec,
        volumes: &Volumes,
    ) -> Result<bool, Error> {
        let owner = Owner {
            namespace: &run.namespace,
            name: &run.name,
            uid: &run.uid,
        };
        // First, so that a placeholder that exists has all its claims (V8).
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
        Ok(false)
    }

    /// Writes a record on a placeholder, which also makes its controller try again at once what it failed to do. `None` where
    /// it is gone or replaced.
    pub(crate) async fn record(
        &self,
        own: &Placeholder,
        record: &Record,
    ) -> Result<Option<Placeholder>, Error> {
        self.patch(own, patch::record(own, record)).await
    }

    /// Sends exactly this version of a placeholder to one of these nodes. `None` where it has changed since or is gone.
    pub(crate) async fn send(
        &self,
        own: &Placeholder,
        record: &Record,
        nodes: &[String],
    ) -> Result<Option<Placeholder>, Error> {
        self.patch(own, patch::send(own, record, nodes)).await
    }

    /// Ends the move of exactly this version of a placeholder. `None` where it has changed since, is gone, or does not move.
    pub(crate) async fn end_move(
        &self,
        own: &Placeholder,
        record: &Record,
    ) -> Result<Option<Placeholder>, Error> {
        match patch::end(own, record) {
            Some(patch) => self.patch(own, patch).await,
            None => Ok(None),
        }
    }

    async fn patch(&self, own: &Placeholder, patch: Value) -> Result<Option<Placeholder>, Error> {
        let (api, name) = (self.placeholders(&own.namespace), &own.object.name);
        let params = PatchParams::default();
        match api.patch(name, &params, &Patch::Merge(patch)).await {
            Ok(patched) => Ok(view(patched)),
            // A conflict: another object has taken the name, or this one has changed.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(failed(
                format!("patch {KIND} {}/{name}", own.namespace),
                error,
            )),
        }
    }

    /// Deletes a placeholder, its pod with it. One that is gone or replaced already is left alone.
    pub(crate) async fn delete_placeholder(
        &self,
        namespace: &str,
        own: &ObjectRef,
    ) -> Result<(), Error> {
        let api = self.placeholders(namespace);
        let params = DeleteParams::background().preconditions(this_one(own));
        match retried(|| api.delete(&own.name, &params)).await {
            Ok(_) => Ok(()),
            Err(error) if is_gone(&error) => Ok(()),
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

/// An object with the right name and another owner is never adopted (P7).
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
