//! `status --watch`: writes the row of a run again whenever the row changes, as kubectl does.

use std::collections::BTreeMap;
use std::sync::Arc;

use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::stream::{StreamExt as _, select};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};

use super::answer::{self, Answer, is_shown};
use crate::args::{Format, StatusArgs};
use crate::cluster::failed;
use crate::failure::Failure;
use crate::output;
use crate::run_status::{RunStatus, keep_conditions};
use crate::watched::{is_complete, kept, lasting};

/// The rows are compared after at most this many changes of objects.
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
    written: Answer,
) -> Result<(), Failure> {
    let (api_of_runs, config) = watched.runs;
    let (runs, of_runs) = kept(api_of_runs, config, keep_conditions);
    let (api_of_pods, config) = watched.pods;
    let (pods, of_pods) = kept(api_of_pods, config, |_| ());
    let mut known = BTreeMap::new();
    changed(&mut known, written.runs, |run| written_of(run, args));
    let mut with_headers = written.with_headers && known.is_empty();
    let mut widths = written.widths;
    let mut changes = select(of_runs, of_pods).ready_chunks(CHANGES);
    while let Some(chunk) = changes.next().await {
        for error in chunk.into_iter().filter_map(Result::err) {
            match lasting(error) {
                Ok(error) => return Err(failed("watch PipelineRuns and pods", error)),
                Err(error) => eprintln!("warning: a watch failed and begins again: {error}"),
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
            terminal: output::terminal_width(),
        };
        // If columns become wider, the headers that were written before no longer fit.
        answer.with_headers |= answer.widen(args.output.is_wide()) && !args.no_headers;
        if !answer.runs.is_empty() {
            if !output::write(&answer, args.output.output.as_ref())? {
                break;
            }
            with_headers = false;
        }
        widths = answer.widths;
    }
    Ok(())
}

/// A text that changes whenever the output about a run changes, except for the run's age.
fn written_of(run: &RunStatus, args: &StatusArgs) -> String {
    let row = |wide| run.cells(Timestamp::UNIX_EPOCH, wide).join(" ");
    match &args.output.output {
        None => row(false),
        Some(Format::Wide) => row(true),
        Some(Format::Json | Format::Yaml | Format::Name | Format::JsonPath(_)) => {
            format!("{run:?}")
        }
    }
}

/// The runs in `now` whose text differs from their text in `known`. Afterwards, `known` has the texts of all runs in `now`.
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
