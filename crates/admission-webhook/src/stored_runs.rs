//! Reads PipelineRuns from the API server for those reviews that need more of a stored run than the caches have.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Instant;

use coscheduler_core::admit::awaits_pipeline;
use coscheduler_core::admit_child::ChildRun;
use coscheduler_core::annotations::{AWAITS_PIPELINE, GROUP, MODE, VOLUME_CLAIM_TEMPLATES};
use coscheduler_core::pipeline_run::{OwnerReference, PipelineRun as View};
use coscheduler_kubernetes::objects::controller;
use coscheduler_kubernetes::pipeline_run::{PipelineRun, owner_parts};
use coscheduler_proto::json;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use prost_types::Struct;
use serde_json::Value;

use crate::webhook::{Failure, Webhook, left, unavailable};

impl Webhook {
    /// A new run may name claims that were made for other runs (V2a). Returns annotation [`VOLUME_CLAIM_TEMPLATES`] of these
    /// other runs. The key is the group of the other run. Most new runs name no claim of another run.
    pub(crate) async fn source_templates(
        &self,
        namespace: &str,
        object: &Value,
        until: Instant,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let mut templates = BTreeMap::new();
        for (group, name) in self.surroundings.sources(namespace, object) {
            let Some(run) = self.stored(namespace, &name, until).await? else {
                continue;
            };
            let annotations = run.metadata.annotations.unwrap_or_default();
            if annotations.get(GROUP) == Some(&group)
                && let Some(text) = annotations.get(VOLUME_CLAIM_TEMPLATES)
            {
                templates.insert(group, text.clone());
            }
        }
        Ok(templates)
    }

    /// True in two cases (B1). First: the PipelineRun that owns a new PipelineRun (the parent) still awaits its Pipeline. Second:
    /// the parent's mode has changed since Tekton copied the parent's annotations to the new PipelineRun.
    pub(crate) async fn has_early_parent(
        &self,
        namespace: &str,
        metadata: &ObjectMeta,
        until: Instant,
    ) -> Result<bool, Failure> {
        let own = metadata.annotations.as_ref();
        let Some(own) = own.filter(|all| all.contains_key(AWAITS_PIPELINE)) else {
            return Ok(false);
        };
        let owner = controller(metadata).filter(OwnerReference::is_pipeline_run);
        let Some(owner) = owner else {
            return Ok(false);
        };
        let parent = self.owner(namespace, &owner, until).await?;
        let parent = parent.and_then(|parts| View::parse(&parts).ok());
        Ok(parent
            .is_some_and(|it| awaits_pipeline(&it) || it.annotations.get(MODE) != own.get(MODE)))
    }

    /// Reads the PipelineRun that owns an object. Returns the parts of this PipelineRun on which the admission of the object
    /// depends. `None` if this PipelineRun is not stored.
    async fn owner(
        &self,
        namespace: &str,
        owner: &OwnerReference,
        until: Instant,
    ) -> Result<Option<Value>, Failure> {
        let stored = self.stored(namespace, &owner.name, until).await?;
        let stored = stored.filter(|it| it.metadata.uid.as_ref() == Some(&owner.uid));
        Ok(stored.map(|stored| owner_parts(&stored)))
    }

    /// The stored PipelineRun with this name, read from the API server. There is no cache of whole PipelineRuns, because few
    /// reviews need a whole PipelineRun, and a cache would have to keep up with every change of `status`.
    async fn stored(
        &self,
        namespace: &str,
        name: &str,
        until: Instant,
    ) -> Result<Option<PipelineRun>, Failure> {
        let failed = |error: &dyn Display| {
            unavailable(format_args!("failed to read PipelineRun {name:?}: {error}"))
        };
        let runs: Api<PipelineRun> = Api::namespaced(self.client.clone(), namespace);
        let stored = tokio::time::timeout(left(until), runs.get_opt(name)).await;
        let stored = stored.map_err(|late| failed(&late))?;
        stored.map_err(|error| failed(&error))
    }

    /// Returns the PipelineRun that owns `run`, if the planner needs this PipelineRun. There are two cases: the Pipeline may
    /// have chosen the settings of the PipelineRun (B1), or a claim name of `run` still has a variable (V9). Returns `None` in
    /// all other cases, and if the PipelineRun is not stored. Also completes `run`: adds the defaults of its Task to
    /// `run.params`, and sets `run.pipeline_run` to the PipelineRun.
    pub(crate) async fn completing(
        &self,
        run: &mut ChildRun,
        namespace: &str,
        object: &Value,
        until: Instant,
    ) -> Result<Option<Struct>, Failure> {
        let of_task = self.catalog.task_defaults(namespace, object);
        run.params = run.params.or(&of_task);
        let by_variable = run.owner_group.is_some() && run.names_claims_by_variables();
        let owner = run.controller.as_ref();
        let Some(owner) = owner
            .filter(|owner| owner.is_pipeline_run() && (by_variable || run.has_late_settings()))
        else {
            return Ok(None);
        };
        let Some(parts) = self.owner(namespace, owner, until).await? else {
            return Ok(None);
        };
        run.pipeline_run = View::parse(&parts).ok();
        Ok(Some(json::object_to_struct(&parts)))
    }
}
