//! A placeholder is a StatefulSet with one pod, or only a pod. This module creates both, selects the StatefulSets to watch, and
//! patches and deletes StatefulSets. No other module of the service uses StatefulSets.

mod adopt;

use std::future::Future;

use coscheduler_core::config::Backend;
use coscheduler_core::labels::{AFFINITY_ASSISTANT, COMPONENT};
use coscheduler_core::names::pod_name;
use coscheduler_core::observed::{ObjectRef, Placeholder};
use coscheduler_core::pinned::is_adopted;
use coscheduler_core::pipeline_run::PipelineRun;
use coscheduler_core::plan::{PlaceholderSpec, Reason};
use coscheduler_core::pod_template::EVACUATED_CLASS;
use coscheduler_core::reconcile::evacuate::RAISED;
use coscheduler_core::requests::Amounts;
use coscheduler_core::volumes::Volumes;
pub(crate) use coscheduler_kubernetes::placeholder::view;
use coscheduler_kubernetes::placeholder::{self, Owner, Succession, patch};
use coscheduler_kubernetes::{objects, pods};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::Value;
use tracing::warn;

use crate::error::Error;
use crate::requests::{Requests, failed, once, retried, unless_gone};

/// The kind of a placeholder's object, for logs and errors.
pub(crate) const KIND: &str = "StatefulSet";

/// The API and the label selector of the objects to watch.
pub(crate) fn watched(client: &Client) -> (Api<StatefulSet>, watcher::Config) {
    let labels = format!("{COMPONENT}={AFFINITY_ASSISTANT}");
    let config = watcher::Config::default().labels(&labels);
    (Api::all(client.clone()), config)
}

impl Requests {
    /// First creates the claims that the StatefulSet controller does not create for the placeholder, and then the placeholder.
    /// A placeholder that is only a pod gets the first of `sizes` that the API server accepts. Returns the Events about refused
    /// sizes, or `None` if the run has this placeholder already. If Tekton's assistant created the StatefulSet of an adopted
    /// run, takes over this StatefulSet (B7).
    ///
    /// # Errors
    ///
    /// The API server refuses, an object with this name has another owner (P7), or the placeholder is being deleted.
    pub(crate) async fn create_placeholder(
        &self,
        run: &PipelineRun,
        spec: &PlaceholderSpec,
        sizes: Option<&[Amounts]>,
        volumes: &Volumes,
    ) -> Result<Option<Vec<Reason>>, Error> {
        let owner = owner(run);
        // Claims that only one pod may use are created first, so that they exist if the placeholder exists (V8).
        for claim in placeholder::single_pod_claims(owner, spec) {
            self.create_claim(&run.namespace, &claim).await?;
        }
        if spec.backend == Backend::Pod {
            return self.create_pod(run, spec, sizes, volumes).await;
        }
        let set = placeholder::build(owner, spec, volumes);
        let (created, set) = self.create_set(run, spec, &set).await?;
        if !created && is_adopted(&run.annotations) {
            self.adopt(owner, spec, &set).await?;
        }
        Ok(created.then(Vec::new))
    }

    /// Creates a placeholder's StatefulSet. If the run has it already, returns false and the existing StatefulSet.
    async fn create_set(
        &self,
        run: &PipelineRun,
        spec: &PlaceholderSpec,
        set: &StatefulSet,
    ) -> Result<(bool, StatefulSet), Error> {
        let (api, name) = (self.placeholders(&run.namespace), spec.name.as_str());
        let params = PostParams::default();
        let act = |verb: &str| format!("{verb} {KIND} {}/{name}", run.namespace);
        let found = match retried(|| api.create(&params, set)).await {
            Ok(set) => return Ok((true, set)),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                retried(|| api.get_opt(name)).await
            }
            Err(error) => return Err(failed(act("create"), error)),
        };
        let Some(found) = found.map_err(|error| failed(act("read"), error))? else {
            let name = format!("{}/{name}", run.namespace);
            return Err(Error::Terminating { name });
        };
        check_owner(KIND, &found.metadata, run)?;
        Ok((false, found))
    }

    /// Creates the claims of a placeholder that is only a pod, and then the pod. If this pod exists but has ended, this
    /// function deletes it and fails, and the next try creates the pod. (If a pod of a StatefulSet ends, the StatefulSet
    /// controller replaces it.)
    async fn create_pod(
        &self,
        run: &PipelineRun,
        spec: &PlaceholderSpec,
        sizes: Option<&[Amounts]>,
        volumes: &Volumes,
    ) -> Result<Option<Vec<Reason>>, Error> {
        let (owner, namespace) = (owner(run), run.namespace.as_str());
        for claim in placeholder::made_claims(owner, spec) {
            self.create_claim(namespace, &claim).await?;
        }
        let pod = placeholder::pod(owner, spec, volumes);
        let created = match sizes {
            Some(sizes) if self.can_resize().await? => {
                self.create_opened(namespace, spec, pod, sizes).await
            }
            Some(_) | None => self.create(namespace, &pod).await.map(|()| Vec::new()),
        };
        match created {
            Ok(refused) => return Ok(Some(refused)),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
            Err(error) => {
                let name = pod_name(spec.name.as_str());
                return Err(failed(format!("create pod {name}"), error));
            }
        }
        let name = format!("{namespace}/{}", spec.name);
        let Some(found) = self.own_pod(namespace, spec.name.as_str()).await? else {
            return Err(Error::Terminating { name });
        };
        check_owner("Pod", &found.metadata, run)?;
        match pods::phase(&found).has_ended() {
            true => {
                self.delete_pod(namespace, &objects::reference(found.metadata))
                    .await?;
                Err(Error::Terminating { name })
            }
            false => Ok(None),
        }
    }

    /// Reads the pod that has the name of the placeholder's pod. `None` if this pod does not exist.
    async fn own_pod(&self, namespace: &str, placeholder: &str) -> Result<Option<Pod>, Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let name = pod_name(placeholder);
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        let found = retried(|| api.list(&params)).await;
        let found = found.map_err(|error| failed(format!("read pod {namespace}/{name}"), error))?;
        Ok(found.items.into_iter().next())
    }

    /// True if the placeholder was only a pod before it got a controller, and this pod still exists. If the pod has ended, this
    /// function deletes it, because the StatefulSet controller does not delete a pod that the run controls.
    pub(crate) async fn has_old_pod(&self, own: &Placeholder) -> Result<bool, Error> {
        let found = self.own_pod(&own.namespace, &own.object.name).await?;
        let of_run = |pod: &Pod| {
            let controller = objects::controller(&pod.metadata);
            controller.is_some_and(|it| it.uid == own.run_uid)
        };
        let Some(found) = found.filter(of_run) else {
            return Ok(false);
        };
        if pods::phase(&found).has_ended() && found.metadata.deletion_timestamp.is_none() {
            let pod = objects::reference(found.metadata);
            self.delete_pod(&own.namespace, &pod).await?;
        }
        Ok(true)
    }

    /// Creates the StatefulSet that succeeds the pod of a placeholder. Returns the placeholder, which has a controller now.
    ///
    /// # Errors
    ///
    /// The API server refuses, or a StatefulSet with this name has another owner or is being deleted.
    pub(crate) async fn control(
        &self,
        run: &PipelineRun,
        spec: &PlaceholderSpec,
        volumes: &Volumes,
        succession: &Succession,
    ) -> Result<Placeholder, Error> {
        let set = placeholder::successor(owner(run), spec, volumes, succession);
        let (_, set) = self.create_set(run, spec, &set).await?;
        view(set).ok_or_else(|| Error::Terminating {
            name: format!("{}/{}", run.namespace, spec.name),
        })
    }

    /// Looks for the pod of an adopted placeholder in the API server (B7). The StatefulSet controller may have created the pod
    /// from the old version of the StatefulSet, without our labels, so that no watch shows the pod. If so, this function adds
    /// our labels.
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

    /// Gives the next pod of a placeholder the PriorityClass of evacuated placeholders. Returns `None` if this does not succeed
    /// within [`RAISED`], if the placeholder is gone or replaced, or if there is no such class. (The API server would refuse a
    /// pod whose class does not exist.)
    pub(crate) async fn raise(&self, own: &Placeholder) -> Option<Placeholder> {
        let raised = async {
            match self.has_evacuated_class().await? {
                true => self.patch(own, Patch::Merge(patch::raise(own))).await,
                false => Ok(None),
            }
        };
        in_time(&own.namespace, &own.object.name, raised).await?
    }

    /// True if a pod may have the PriorityClass of evacuated placeholders. False if this is not known within [`RAISED`].
    pub(crate) async fn can_raise(&self, run: &PipelineRun) -> bool {
        let exists = self.has_evacuated_class();
        let exists = in_time(&run.namespace, &run.name, exists).await;
        exists.unwrap_or_default()
    }

    async fn has_evacuated_class(&self) -> Result<bool, Error> {
        let classes: Api<PriorityClass> = Api::all(self.client.clone());
        let found = once(classes.get_metadata_opt(EVACUATED_CLASS)).await;
        let act = || format!("read PriorityClass {EVACUATED_CLASS}");
        Ok(found.map_err(|error| failed(act(), error))?.is_some())
    }

    /// Patches a placeholder's object. Returns `None` if the object is gone or replaced, or if the patch names another version.
    pub(crate) async fn patch(
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
        let left = self.delete(KIND, namespace, own).await?;
        Ok(left.and_then(view))
    }

    fn placeholders(&self, namespace: &str) -> Api<StatefulSet> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// The outcome of a request about a PriorityClass. `None` if the request fails or takes longer than [`RAISED`].
async fn in_time<T>(
    namespace: &str,
    object: &str,
    request: impl Future<Output = Result<T, Error>>,
) -> Option<T> {
    let error = match tokio::time::timeout(RAISED, request).await {
        Ok(Ok(answer)) => return Some(answer),
        Ok(Err(error)) => error.with_causes(),
        Err(late) => late.to_string(),
    };
    warn!(
        namespace,
        object, error, "failed to change the PriorityClass of a placeholder before its evacuation"
    );
    None
}

fn owner(run: &PipelineRun) -> Owner<'_> {
    Owner {
        namespace: &run.namespace,
        name: &run.name,
        uid: &run.uid,
    }
}

/// Fails if the controller of an object of this kind is not this run, because the manager never uses an object of another owner
/// (P7). Also fails if the object is being deleted.
fn check_owner(kind: &str, metadata: &ObjectMeta, run: &PipelineRun) -> Result<(), Error> {
    let name = metadata.name.as_deref().unwrap_or_default();
    let name = format!("{}/{name}", run.namespace);
    let owners = metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    let owner = match controllers.next() {
        Some(owner) if owner.uid == run.uid => None,
        Some(owner) => Some(format!("{} {} ({})", owner.kind, owner.name, owner.uid)),
        None => Some("nobody".to_owned()),
    };
    match owner {
        Some(owner) => Err(Error::NameTaken {
            object: format!("{kind} {name}"),
            owner,
        }),
        None if metadata.deletion_timestamp.is_some() => Err(Error::Terminating { name }),
        None => Ok(()),
    }
}
