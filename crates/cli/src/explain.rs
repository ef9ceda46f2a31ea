//! `explain`: a PipelineRun with its placeholders, claims and pods, and the cause for which it waits. It reads the cluster with
//! the user's own rights. With `--server`, it asks the placeholder-manager instead.

mod answer;
mod causes;
mod server;

use std::collections::BTreeSet;

use coscheduler_core::annotations::{BLOCKED, TEKTON_AFFINITY_ASSISTANT};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};

use crate::args::{ExplainArgs, NamedArgs};
use crate::cluster::{Cluster, api, list, namespace, unless_forbidden};
use crate::failure::Failure;
use crate::output;
use crate::run_objects::RunObjects;
use crate::server::Server;

use answer::{ClaimStatus, Explanation};
use causes::Facts;

/// Events are read about at most this many objects.
const MOST_WAITING: usize = 10;

/// Reads the run and its objects, and writes the answer.
pub(crate) fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let ExplainArgs {
        run: args,
        server,
        certificates,
    } = args;
    if let Some(address) = server {
        let namespace = crate::runtime()?.block_on(namespace(&args.cluster))?;
        let server = Server::connect("placeholder-manager", address, certificates)?;
        let answer = server::ask(&server, namespace, args.name.clone())?;
        output::write(&answer, args.output.output.as_ref())?;
        return Ok(());
    }
    let answer = crate::runtime()?.block_on(read(args))?;
    output::warn(&answer.warnings);
    output::write(&answer, args.output.output.as_ref())?;
    Ok(())
}

async fn read(args: &NamedArgs) -> Result<Explanation, Failure> {
    let Cluster { client, namespace } = Cluster::new(&args.cluster).await?;
    let mut warnings = Vec::new();
    let objects = RunObjects::read(&client, &namespace, &args.name, &mut warnings).await?;
    let RunObjects {
        run,
        parent,
        pods,
        task_runs,
    } = objects;
    let with_pods = pods.is_some();
    let pods = pods.unwrap_or_default();
    let namespace = Some(namespace.as_str());
    let claims = claims(&api(&client, namespace), &run, &pods, &mut warnings).await?;
    let blocked = parent.as_ref().unwrap_or(&run);
    let is_blocked = blocked.annotations().contains_key(BLOCKED);
    let of_placeholders = is_blocked.then(|| of_placeholders(blocked, &pods, &claims));
    let selectors = of_pods(&pods).chain(of_placeholders.into_iter().flatten());
    let events = events(&api(&client, namespace), selectors, &mut warnings).await?;
    let facts = Facts {
        run,
        parent,
        pods,
        task_runs,
        events,
        missing_claims: claims.iter().filter_map(ClaimStatus::missing).collect(),
        now: Timestamp::now(),
    };
    Ok(Explanation::new(&facts, with_pods, claims, warnings))
}

/// The claims of the run's pods and workspaces.
async fn claims(
    of_kind: &Api<PersistentVolumeClaim>,
    run: &PipelineRun,
    pods: &[Pod],
    warnings: &mut Vec<String>,
) -> Result<Vec<ClaimStatus>, Failure> {
    let workspaces = run.spec.get("workspaces").and_then(|it| it.as_array());
    let bound = workspaces.into_iter().flatten().filter_map(|workspace| {
        let claim = workspace["persistentVolumeClaim"]["claimName"].as_str();
        claim.map(str::to_owned)
    });
    let names: BTreeSet<String> = pods.iter().flat_map(pods::claims).chain(bound).collect();
    let mut claims = Vec::new();
    for name in names {
        let claim = of_kind.get_opt(&name).await;
        let Some(claim) = unless_forbidden("claims", claim, warnings)? else {
            break;
        };
        claims.push(ClaimStatus::new(name, claim.as_ref()));
    }
    Ok(claims)
}

/// The field selectors of the Events about pods that have not started.
fn of_pods(pods: &[Pod]) -> impl Iterator<Item = String> {
    let waiting = pods
        .iter()
        .filter(|pod| !pods::has_started(pod) && !pods::phase(pod).has_ended());
    waiting.map(|pod| {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        format!("involvedObject.uid={uid}")
    })
}

/// The field selectors of the Events about the run's placeholders, and about claims without a volume.
fn of_placeholders(run: &PipelineRun, pods: &[Pod], claims: &[ClaimStatus]) -> Vec<String> {
    let of_run = run.annotations().get(TEKTON_AFFINITY_ASSISTANT).cloned();
    let of_run = of_run.filter(|it| !it.is_empty());
    let placeholders: BTreeSet<_> = pods.iter().flat_map(pods::follows).chain(of_run).collect();
    let placeholders = placeholders.into_iter().map(|it| ("StatefulSet", it));
    let claims = claims.iter().filter_map(ClaimStatus::without_volume);
    let objects = placeholders.chain(claims.map(|it| ("PersistentVolumeClaim", it)));
    let selector = |(kind, name)| format!("involvedObject.kind={kind},involvedObject.name={name}");
    objects.map(selector).collect()
}

/// The Events that match one of these field selectors.
async fn events(
    of_kind: &Api<Event>,
    selectors: impl Iterator<Item = String>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Event>, Failure> {
    let mut events = Vec::new();
    for selector in selectors.take(MOST_WAITING) {
        let params = ListParams::default().fields(&selector);
        let listed = list(of_kind, params).await;
        let Some(listed) = unless_forbidden("Events", listed, warnings)? else {
            break;
        };
        events.extend(listed);
    }
    Ok(events)
}
