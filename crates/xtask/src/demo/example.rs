//! The PipelineRun of the demo. The demo reads it from a file, creates it, and deletes it if the cluster continues after the
//! demo.

use std::path::Path;

use anyhow::Context as _;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::{Api, Client, ResourceExt as _};
use run_table::Run;

pub(crate) use run_table::pipeline_runs;

/// The annotation that our webhook writes. It contains the name of the placeholder for the whole run. In the modes `workspaces`
/// and `disabled` it is empty or missing.
const AFFINITY_ASSISTANT: &str = "pipeline.tekton.dev/affinity-assistant";

/// A PipelineRun that was created.
#[derive(Clone, Debug)]
pub(super) struct Submitted {
    pub(super) run: Run,
    /// True if the webhook has planned a placeholder for the whole run.
    pub(super) coscheduled: bool,
}

impl Submitted {
    /// Deletes the run. It is no error if the run is gone already.
    pub(super) async fn delete(&self) -> anyhow::Result<()> {
        let Run {
            namespace, name, ..
        } = &self.run;
        let api = self.run.api();
        match api.delete(name, &DeleteParams::background()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            Err(error) => Err(error)
                .with_context(|| format!("failed to delete PipelineRun {namespace}/{name}")),
        }
    }
}

/// Reads a PipelineRun from a YAML file.
pub(crate) fn read(path: &Path) -> anyhow::Result<DynamicObject> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("failed to read {}", path.display()))?;
    serde_saphyr::from_str(&text)
        .with_context(|| format!("failed to parse {} as one PipelineRun", path.display()))
}

/// Creates the run. If it has `generateName`, the API server chooses the name.
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
        coscheduled: created
            .annotations()
            .get(AFFINITY_ASSISTANT)
            .is_some_and(|name| !name.is_empty()),
        run: Run {
            client: client.clone(),
            namespace: namespace.to_owned(),
            name: created.name_any(),
            uid: created
                .uid()
                .context("the created PipelineRun has no uid")?,
        },
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
