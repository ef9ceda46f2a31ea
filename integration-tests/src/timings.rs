//! Measures how long the pods of tasks wait, by the clock of this machine, and computes percentiles and medians. [`Timings`]
//! gets the events of a watch as they arrive, because the times in the objects themselves are whole seconds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use coscheduler_kubernetes::pods;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

/// The pods that did the same work one after the other: the pods of one TaskRun, or a single pod of no TaskRun.
#[derive(Clone, Debug)]
pub struct Work {
    /// The pods' namespace.
    pub namespace: String,
    /// The name of the pipeline task; empty if there is none.
    pub task: String,
    /// The total time in which the scheduler reported that no node fits.
    pub waited: Duration,
    waits_since: Option<Instant>,
}

/// The times that a watch of pods has shown so far, without those of placeholders.
#[derive(Clone, Debug, Default)]
pub struct Timings {
    works: BTreeMap<(String, String), Work>,
}

impl Timings {
    /// Applies an event of the watch that arrived at time `now`.
    pub fn pod(&mut self, now: Instant, event: &Event<Pod>) {
        let (pod, waits) = match event {
            Event::Apply(pod) | Event::InitApply(pod) => (pod, pods::is_unschedulable(pod)),
            Event::Delete(pod) => (pod, false),
            Event::Init | Event::InitDone => return,
        };
        if pods::is_placeholder(pod) {
            return;
        }
        let namespace = pod.namespace().unwrap_or_default();
        let label = |key: &str| pods::label(pod, key).map(str::to_owned);
        let name = label("tekton.dev/taskRun").unwrap_or_else(|| pod.name_any());
        let key = (namespace.clone(), name);
        let work = self.works.entry(key).or_insert_with(|| Work {
            namespace,
            task: label("tekton.dev/pipelineTask").unwrap_or_default(),
            waited: Duration::ZERO,
            waits_since: None,
        });
        match (work.waits_since, waits) {
            (None, true) => work.waits_since = Some(now),
            (Some(since), false) => {
                work.waited += now - since;
                work.waits_since = None;
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// All work in a namespace.
    pub fn of(&self, namespace: &str) -> impl Iterator<Item = &Work> {
        let works = self.works.values();
        works.filter(move |work| work.namespace == namespace)
    }
}

/// The percentile of these times by nearest rank, in seconds; 0 if there are none.
pub fn percentile(times: impl IntoIterator<Item = Duration>, percent: usize) -> f64 {
    let mut sorted: Vec<_> = times.into_iter().collect();
    sorted.sort_unstable();
    let rank = (sorted.len() * percent).div_ceil(100);
    let found = sorted.get(rank.saturating_sub(1));
    found.copied().unwrap_or_default().as_secs_f64()
}

/// The middle one of these figures, or the mean of the two in the middle; 0 if there are none.
pub fn median(figures: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<_> = figures.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    (at(sorted.len().saturating_sub(1) / 2) + at(sorted.len() / 2)) / 2.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, node: Option<&str>, refused: bool) -> Pod {
        let refusal =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "ci",
                "labels": {"tekton.dev/taskRun": "run-two", "tekton.dev/pipelineTask": "two"},
            },
            "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": if refused { refusal } else { json!([]) }},
        }))
        .unwrap()
    }

    #[test]
    fn the_waits_of_a_task_runs_pods_are_summed_up() {
        let mut timings = Timings::default();
        let start = Instant::now();
        let events = [
            (0, Event::Apply(pod("a", None, false))),
            (1, Event::Apply(pod("a", None, true))),
            (3, Event::Apply(pod("a", None, true))),
            (4, Event::Delete(pod("a", None, true))),
            (5, Event::Apply(pod("b", None, true))),
            (7, Event::Apply(pod("b", Some("node-1"), true))),
            (9, Event::Apply(pod("b", Some("node-1"), false))),
        ];
        for (second, event) in events {
            timings.pod(start + Duration::from_secs(second), &event);
        }
        let works: Vec<_> = timings.of("ci").collect();
        assert_eq!(works.len(), 1);
        assert_eq!(works[0].waited, Duration::from_secs(5));
        assert_eq!(works[0].task, "two");
    }

    #[test]
    fn percentiles_are_those_of_the_nearest_rank() {
        let of = |seconds: &[u64], percent| {
            let times = seconds.iter().copied().map(Duration::from_secs);
            percentile(times, percent)
        };
        assert_eq!(of(&[3, 1, 2], 50), 2.0);
        assert_eq!(of(&[3, 1, 2], 99), 3.0);
        assert_eq!(of(&[], 50), 0.0);
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_two_in_the_middle() {
        assert_eq!(median([9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([9.0, 1.0, 2.0, 4.0]), 3.0);
        assert_eq!(median([]), 0.0);
    }
}
