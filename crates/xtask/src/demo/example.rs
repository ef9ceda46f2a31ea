//! The PipelineRun the demo is about: read from a file, created as `kubectl create` does, deleted where it must not stay.

use std::fmt;
use std::path::Path;

use anyhow::Context as _;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};

/// Pinned by the webhook; empty on a PipelineRun that gets no placeholder.
const AFFINITY_ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";

/// A PipelineRun that is in the cluster.
#[derive(Clone)]
pub(super) struct Submitted {
    pub(super) client: Client,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    /// Whether the webhook gave it a placeholder.
    pub(super) coscheduled: bool,
}

impl fmt::Debug for Submitted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // `kube::Client` has no `Debug`.
        let Self {
            client: _,
            namespace,
            name,
            uid,
            coscheduled,
        } = self;
        write!(
            formatter,
            "Submitted({namespace}/{name}, {uid}, coscheduled: {coscheduled})"
        )
    }
}

impl Submitted {
    pub(super) fn api(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &pipeline_runs())
    }

    /// Deletes it; one that is gone is no error.
    pub(super) async fn delete(&self) -> anyhow::Result<()> {
        match self
            .api()
            .delete(&self.name, &DeleteParams::background())
            .await
        {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(error).with_context(|| {
                format!(
                    "failed to delete PipelineRun {}/{}",
                    self.namespace, self.name
                )
            }),
        }
    }
}

pub(crate) fn pipeline_runs() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("tekton.dev", "v1", "PipelineRun"),
        "pipelineruns",
    )
}

/// Reads a PipelineRun from a YAML file.
pub(crate) fn read(path: &Path) -> anyhow::Result<DynamicObject> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("failed to read {}", path.display()))?;
    serde_saphyr::from_str(&text)
        .with_context(|| format!("failed to parse {} as one PipelineRun", path.display()))
}

/// Creates it; a generated name is the API server's.
pub(super) async fn submit(
    client: &Client,
    namespace: &str,
    example: &DynamicObject,
) -> anyhow::Result<Submitted> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &pipeline_runs());
    let created = api
        .create(&PostParams::default(), example)
        .await
        .with_context(|| format!("failed to create the PipelineRun in namespace {namespace}"))?;
    Ok(Submitted {
        client: client.clone(),
        namespace: namespace.to_owned(),
        name: created.name_any(),
        coscheduled: created
            .annotations()
            .get(AFFINITY_ASSISTANT)
            .is_some_and(|name| !name.is_empty()),
        uid: created
            .uid()
            .context("the created PipelineRun has no uid")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_what_its_comments_say() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/two-volumes.yaml");
        let example = read(&path).unwrap();
        let at = |pointer: &str| {
            example
                .data
                .pointer(pointer)
                .unwrap_or_else(|| panic!("{pointer} is missing"))
        };
        assert_eq!(
            example.metadata.generate_name.as_deref(),
            Some("two-volumes-")
        );
        let workspaces = at("/spec/workspaces").as_array().unwrap();
        assert_eq!(workspaces.len(), 2);
        assert!(
            workspaces
                .iter()
                .all(|workspace| workspace.get("volumeClaimTemplate").is_some())
        );
        let tasks = at("/spec/pipelineSpec/tasks").as_array().unwrap().iter();
        for task in tasks.chain(at("/spec/pipelineSpec/finally").as_array().unwrap()) {
            for step in task.pointer("/taskSpec/steps").unwrap().as_array().unwrap() {
                assert!(
                    step.get("command").is_some() && step.get("image").is_some(),
                    "{step}"
                );
            }
        }
        assert!(
            at("/spec/pipelineSpec/finally/0")
                .get("workspaces")
                .is_none()
        );
    }
}
