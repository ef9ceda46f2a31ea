//! Reads the objects of a PipelineRun.

use std::collections::BTreeSet;

use coscheduler_core::annotations::PART_OF;
use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_core::names::pod_name;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use coscheduler_kubernetes::tekton::TaskRun;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};

use crate::cluster::{api, failed, list, unless_forbidden};
use crate::failure::Failure;

/// At most this many levels of parents are read.
const MOST_PARENTS: usize = 8;

/// The objects of a run.
pub(crate) struct RunObjects {
    pub(crate) run: PipelineRun,
    /// The topmost parent of a child run that could be read. `None` if the run has its own placeholders, or if its parent is
    /// gone or the user is not allowed to read it.
    pub(crate) parent: Option<PipelineRun>,
    /// The run's pods, and the pods of the placeholders that they follow. `None` if the user is not allowed to read pods.
    pub(crate) pods: Option<Vec<Pod>>,
    /// Empty if the user is not allowed to read TaskRuns.
    pub(crate) task_runs: Vec<TaskRun>,
}

impl RunObjects {
    /// Reads the objects. Adds a warning for each kind that the user is not allowed to read.
    pub(crate) async fn read(
        client: &Client,
        namespace: &str,
        name: &str,
        warnings: &mut Vec<String>,
    ) -> Result<Self, Failure> {
        let namespace = Some(namespace);
        let run = api::<PipelineRun>(client, namespace).get(name).await;
        let run = run.map_err(|error| failed(&format!("read PipelineRun {name}"), error))?;
        let uid = run.metadata.uid.as_deref().unwrap_or_default();
        let of_run = ListParams::default().labels(&format!("{PIPELINE_RUN_UID}={uid}"));

        let of_kind: Api<Pod> = api(client, namespace);
        let pods = list(&of_kind, of_run.clone()).await;
        let mut pods = unless_forbidden("pods and their nodes", pods, warnings)?;
        if let Some(pods) = &mut pods {
            // A child run's pods follow the placeholder of its parent.
            let followed: BTreeSet<String> = pods.iter().flat_map(pods::follows).collect();
            for placeholder in followed {
                let name = pod_name(&placeholder);
                if !pods.iter().any(|pod| pod.name_any() == name) {
                    let pod = of_kind.get_opt(&name).await;
                    pods.extend(unless_forbidden("placeholders", pod, warnings)?.flatten());
                }
            }
        }

        let task_runs = list(&api::<TaskRun>(client, namespace), of_run).await;
        let task_runs = unless_forbidden("TaskRuns", task_runs, warnings)?;
        let mut parent = None;
        for _ in 0..MOST_PARENTS {
            let child = parent.as_ref().unwrap_or(&run);
            let Some(name) = child.annotations().get(PART_OF) else {
                break;
            };
            let found = api::<PipelineRun>(client, namespace).get_opt(name).await;
            let Some(found) = unless_forbidden("parents", found, warnings)?.flatten() else {
                break;
            };
            parent = Some(found);
        }
        Ok(Self {
            run,
            parent,
            pods,
            task_runs: task_runs.unwrap_or_default(),
        })
    }
}
