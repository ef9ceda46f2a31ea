//! `status --watch`: writes the row of a run again whenever the row changes, as kubectl does.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::future::FutureExt as _;
use futures::stream::{Stream, StreamExt as _, select};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use super::answer::{self, Answer, is_shown};
use crate::args::{Format, StatusArgs};
use crate::cluster::failed;
use crate::failure::Failure;
use crate::output;
use crate::run_status::RunStatus;

/// The most changes of objects after which rows are compared.
const CHANGES: usize = 1000;

/// Each kind of object to watch.
pub(super) struct Watched {
    pub(super) runs: (Api<PipelineRun>, watcher::Config),
    pub(super) pods: (Api<Pod>, watcher::Config),
}

/// Writes the rows that are new since `written`. Ends if nobody reads them any more.
pub(super) async fn watch(
    args: &StatusArgs,
    watched: Watched,
    mut written: Answer,
) -> Result<(), Failure> {
    written.widen();
    let (runs, of_runs) = kept(watched.runs, |run| {
        run.spec.clear();
        run.status.retain(|key, _| key == "conditions");
    });
    let (pods, of_pods) = kept(watched.pods, |_| ());
    let mut known = BTreeMap::new();
    changed(&mut known, written.runs, |run| written_of(run, args));
    let mut with_headers = written.with_headers && known.is_empty();
    let mut widths = written.widths;
    let mut changes = select(of_runs, of_pods).ready_chunks(CHANGES);
    while let Some(chunk) = changes.next().await {
        for error in chunk.into_iter().filter_map(Result::err) {
            match error {
                watcher::Error::InitialListFailed(error)
                | watcher::Error::WatchStartFailed(error)
                    if is_forbidden(&error) =>
                {
                    return Err(failed("watch PipelineRuns and pods", error));
                }
                error => eprintln!("warning: a watch failed and begins again: {error}"),
            }
        }
        if !is_complete(&runs) || !is_complete(&pods) {
            continue;
        }
        let shown = |run: &&PipelineRun| {
            let key = (run.namespace().unwrap_or_default(), run.name_any());
            args.name.is_some() || known.contains_key(&key) || is_shown(run)
        };
        let (runs, pods) = (runs.state(), pods.state());
        let runs: Vec<_> = runs
            .iter()
            .map(Arc::as_ref)
            .filter(shown)
            .cloned()
            .collect();
        let pods: Vec<_> = pods.iter().map(|pod| pod.as_ref().clone()).collect();
        let mut answer = Answer {
            runs: changed(&mut known, answer::of(&runs, Some(&pods)), |run| {
                written_of(run, args)
            }),
            warnings: Vec::new(),
            now: Timestamp::now(),
            with_namespace: written.with_namespace,
            with_headers,
            widths,
        };
        answer.widen();
        if !answer.runs.is_empty() {
            if !output::write(&answer, args.output.output)? {
                break;
            }
            with_headers = false;
        }
        widths = answer.widths;
    }
    Ok(())
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [401, 403].contains(&status.code))
}

/// The objects of one kind, and the stream of their changes. `reduce` removes what no row shows.
fn kept<K>(
    (api, config): (Api<K>, watcher::Config),
    reduce: fn(&mut K),
) -> (
    Store<K>,
    impl Stream<Item = Result<(), watcher::Error>> + Unpin,
)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let changes = watcher(api, config).default_backoff().modify(reduce);
    let changes = reflector::reflector(writer, changes);
    (store, changes.map(|change| change.map(drop)).boxed())
}

/// True if the first list of the objects is complete.
fn is_complete<K>(store: &Store<K>) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let ready = store.wait_until_ready().now_or_never();
    ready.is_some_and(|ready| ready.is_ok())
}

/// What is written of a run, without its age.
fn written_of(run: &RunStatus, args: &StatusArgs) -> String {
    let row = |wide| run.cells(Timestamp::UNIX_EPOCH, wide).join(" ");
    match args.output.output {
        None => row(false),
        Some(Format::Wide) => row(true),
        Some(Format::Json | Format::Yaml | Format::Name) => format!("{run:?}"),
    }
}

/// The runs of which something else is written than in `known`. Afterwards, `known` has what is written of each run in `now`.
fn changed(
    known: &mut BTreeMap<(String, String), String>,
    now: Vec<RunStatus>,
    written: impl Fn(&RunStatus) -> String,
) -> Vec<RunStatus> {
    let mut before = std::mem::take(known);
    let mut changed = Vec::new();
    for run in now {
        let key = (run.namespace.clone(), run.name.clone());
        let text = written(&run);
        if before.remove(&key).as_ref() != Some(&text) {
            changed.push(run);
        }
        known.insert(key, text);
    }
    changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_written_once_for_each_change() {
        let run = |name: &str, state: &str| RunStatus {
            name: name.to_owned(),
            state: state.to_owned(),
            ..RunStatus::default()
        };
        let mut known = BTreeMap::new();
        let mut check = |now: &[RunStatus], expect: &[RunStatus]| {
            assert_eq!(
                changed(&mut known, now.to_vec(), |run| run.state.clone()),
                expect
            );
        };
        let (a, b) = (run("a", "Running"), run("b", "Running"));
        check(&[a.clone(), b.clone()], &[a.clone(), b.clone()]);
        check(&[a.clone(), b.clone()], &[]);
        let done = run("a", "Succeeded");
        check(&[done.clone(), b.clone()], std::slice::from_ref(&done));
        // A run that was deleted and created again is new.
        check(std::slice::from_ref(&b), &[]);
        check(&[done.clone(), b], &[done]);
    }
}
