//! `status`: the coscheduled PipelineRuns of the cluster with their nodes, and the causes for which they wait. It reads
//! PipelineRuns and pods with the user's own rights.

mod answer;

use coscheduler_core::labels::PIPELINE_RUN_UID;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::args::StatusArgs;
use crate::cluster::{Cluster, failed};
use crate::failure::Failure;
use crate::output;

use answer::Answer;

/// The number of objects in a page of a list.
const PAGE: u32 = 500;
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
    let namespace = namespace.as_deref();
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
    let (pods, warnings) = match list(&api::<Pod>(&client, namespace), params).await {
        Ok(pods) => (Some(pods), Vec::new()),
        // The facts about the runs are of use without their nodes.
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let warning = format!("nodes and pods are not shown: {}", status.message);
            (None, vec![warning])
        }
        Err(error) => return Err(failed("list pods", error)),
    };
    Ok(Answer {
        runs: answer::of(&runs, pods.as_deref()),
        warnings,
        now: Timestamp::now(),
        with_namespace: namespace.is_none(),
        with_headers: !args.no_headers,
    })
}

fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Lists all objects, page by page.
async fn list<K>(api: &Api<K>, params: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = params.limit(PAGE);
    let mut all = Vec::new();
    loop {
        let page = api.list(&params).await?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(all),
        }
    }
}

#[cfg(test)]
mod tests;
