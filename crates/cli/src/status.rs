//! `status`: the coscheduled PipelineRuns of a namespace or of the cluster, with their nodes and the causes for which they
//! wait. It reads PipelineRuns and pods with the user's own rights.

mod answer;
mod watch;

use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods::NOT_ENDED;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::watcher;

use crate::args::StatusArgs;
use crate::cluster::{Cluster, api, each, failed, list, unless_forbidden};
use crate::failure::Failure;
use crate::output;

use answer::Answer;
use watch::{Watched, watch};

/// Lists the runs and their pods, and writes the answer.
pub(crate) fn run(args: &StatusArgs) -> Result<(), Failure> {
    crate::runtime()?.block_on(show(args))
}

async fn show(args: &StatusArgs) -> Result<(), Failure> {
    let Cluster { client, namespace } = Cluster::new(&args.cluster).await?;
    let namespace = (!args.all_namespaces).then_some(namespace.as_str());
    let api_of_runs = api::<PipelineRun>(&client, namespace);
    let runs = match &args.name {
        Some(name) => {
            let run = api_of_runs.get(name).await;
            vec![run.map_err(|error| failed(&format!("read PipelineRun {name}"), error))?]
        }
        None => {
            let mut shown = Vec::new();
            let read = each(&api_of_runs, ListParams::default(), |run| {
                if answer::is_shown(&run) {
                    shown.push(run);
                }
            });
            read.await
                .map_err(|error| failed("list PipelineRuns", error))?;
            shown
        }
    };
    let mut selector = PIPELINE_RUN_UID.to_owned();
    if let (Some(_), [run]) = (&args.name, runs.as_slice()) {
        let uid = run.metadata.uid.as_deref().unwrap_or_default();
        selector = format!("{PIPELINE_RUN_UID}={uid}");
    }
    let api_of_pods = api::<Pod>(&client, namespace);
    let params = ListParams::default().labels(&selector).fields(NOT_ENDED);
    let mut warnings = Vec::new();
    let pods = match list(&api_of_pods, params).await {
        Err(error) if args.watch => return Err(failed("list pods", error)),
        // The facts about the runs are of use without their nodes.
        pods => unless_forbidden("pods and their nodes", pods, &mut warnings)?,
    };
    let mut answer = Answer {
        runs: answer::of(&runs, pods.as_deref()),
        warnings,
        now: Timestamp::now(),
        with_namespace: namespace.is_none(),
        with_headers: !args.no_headers,
        widths: Vec::new(),
        terminal: output::terminal_width(),
    };
    answer.widen(args.output.is_wide());
    output::warn(&answer.warnings);
    if answer.runs.is_empty() && !args.watch {
        match namespace {
            Some(namespace) => eprintln!(
                "No coscheduled PipelineRun is under way in namespace {namespace}. -A shows all namespaces, and `explain NAME` a run that has ended."
            ),
            None => eprintln!("No coscheduled PipelineRun is under way."),
        }
    }
    output::write(&answer, args.output.output.as_ref())?;
    if !args.watch {
        return Ok(());
    }
    let mut of_runs = watcher::Config::default();
    if let Some(name) = &args.name {
        of_runs = of_runs.fields(&format!("metadata.name={name}"));
    }
    let of_pods = watcher::Config::default()
        .labels(&selector)
        .fields(NOT_ENDED);
    let watched = Watched {
        runs: (api_of_runs, of_runs),
        pods: (api_of_pods, of_pods),
    };
    watch(args, watched, answer).await
}

#[cfg(test)]
mod tests;
