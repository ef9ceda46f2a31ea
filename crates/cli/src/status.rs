//! `status`: the coscheduled PipelineRuns of the cluster with their nodes, and the causes for which they wait. It reads
//! PipelineRuns and pods with the user's own rights.

mod answer;

use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;

use crate::args::StatusArgs;
use crate::cluster::{Cluster, api, failed, list, unless_forbidden};
use crate::failure::Failure;
use crate::output;

use answer::Answer;

/// Pods that have not ended. Those that have ended would be most of the answer in a large cluster.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Lists the runs and their pods, and writes the answer.
pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    let answer = crate::runtime()?.block_on(read(args))?;
    for warning in &answer.warnings {
        eprintln!("warning: {warning}");
    }
    if answer.runs.is_empty() {
        eprintln!("No coscheduled PipelineRun is under way.");
    }
    output::write(&answer, args.output.output)?;
    Ok(())
}

async fn read(args: &StatusArgs) -> Result<Answer, Failure> {
    let Cluster { client, namespace } = Cluster::new(&args.cluster).await?;
    let namespace = (!args.all_namespaces).then_some(namespace.as_str());
    let runs = api::<PipelineRun>(&client, namespace);
    let runs = match &args.name {
        Some(name) => {
            let run = runs.get(name).await;
            vec![run.map_err(|error| failed(&format!("read PipelineRun {name}"), error))?]
        }
        None => {
            let listed = list(&runs, ListParams::default()).await;
            let mut runs = listed.map_err(|error| failed("list PipelineRuns", error))?;
            runs.retain(answer::is_shown);
            runs
        }
    };
    let mut selector = PIPELINE_RUN_UID.to_owned();
    if let (Some(_), [run]) = (&args.name, runs.as_slice()) {
        let uid = run.metadata.uid.as_deref().unwrap_or_default();
        selector = format!("{PIPELINE_RUN_UID}={uid}");
    }
    let params = ListParams::default().labels(&selector).fields(NOT_ENDED);
    let pods = list(&api::<Pod>(&client, namespace), params).await;
    let mut warnings = Vec::new();
    // The facts about the runs are of use without their nodes.
    let pods = unless_forbidden("pods and their nodes", pods, &mut warnings)?;
    Ok(Answer {
        runs: answer::of(&runs, pods.as_deref()),
        warnings,
        now: Timestamp::now(),
        with_namespace: namespace.is_none(),
        with_headers: !args.no_headers,
    })
}

#[cfg(test)]
mod tests;
