//! Computes the free CPU of nodes from a watch of all pods. [`Room`] counts the tasks that found no room on their placeholder's
//! node, those for which other pods had taken the room, and the moves of placeholders.

use std::collections::{HashMap, HashSet};

use coscheduler_core::config::PlaceholderDefaults;
use coscheduler_core::labels::INSTANCE;
use coscheduler_core::observed::PodPhase;
use coscheduler_core::quantity::Quantity;
use coscheduler_kubernetes::{needs, pods};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::watcher::Event;

/// CPU in thousandths of a CPU.
type Milli = i128;

/// The state that a watch of pods has shown so far. No two TaskRuns, and no two placeholders, may have the same name.
#[derive(Debug)]
pub struct Room {
    /// CPU of each node.
    capacity: Milli,
    /// The CPU that a placeholder requests for itself.
    own: Milli,
    /// The pods that have not ended, by uid.
    pods: HashMap<String, Seen>,
    /// The uid of the bound pod of each placeholder, by the placeholder's name.
    bound: HashMap<String, String>,
    /// The CPU that each pod of a placeholder requested for the run when the pod was bound, by uid.
    reserved: HashMap<String, Milli>,
    placeholders: HashSet<String>,
    crowded: HashSet<String>,
    taken: HashSet<String>,
    taken_by_foreign: usize,
}

#[derive(Debug)]
struct Seen {
    node: Option<String>,
    requests: Milli,
    is_placeholder: bool,
    /// True if the pod is neither a placeholder nor a pod of a run.
    is_foreign: bool,
    /// If the pod belongs to a placeholder, this placeholder. Otherwise, the placeholder whose node the pod must share.
    placeholder: Option<String>,
    /// The name of the TaskRun, while the scheduler finds no node for the pod.
    waits: Option<String>,
}

impl Room {
    /// The state before any pod is known. Each node has this many CPUs.
    ///
    /// # Errors
    ///
    /// The default of `placeholder-cpu` is not a quantity.
    pub fn on_nodes_of(cpus: u32) -> anyhow::Result<Self> {
        let own: Quantity = PlaceholderDefaults::default().cpu.parse()?;
        Ok(Self {
            capacity: Milli::from(cpus) * 1000,
            own: own.nano() / 1_000_000,
            pods: HashMap::new(),
            bound: HashMap::new(),
            reserved: HashMap::new(),
            placeholders: HashSet::new(),
            crowded: HashSet::new(),
            taken: HashSet::new(),
            taken_by_foreign: 0,
        })
    }

    /// The number of *crowded* tasks. The pod of such a task was unschedulable although its placeholder was bound: the
    /// placeholder's node had no room for the pod. The CPU that the placeholder still requested for the run counts as room.
    pub fn crowded(&self) -> usize {
        self.crowded.len()
    }

    /// The number of crowded tasks whose room other pods had taken. For such a task, the placeholder requested enough CPU for
    /// the run when the placeholder was bound: as much as the waiting pod and the run's other pods on the node need, plus the
    /// CPU that the placeholder still requests for the run.
    pub fn taken(&self) -> usize {
        self.taken.len()
    }

    /// Of the tasks that [`Self::taken`] counts, the number that would have had room if no foreign pods (pods of no run) had been
    /// on the node. This is checked when the watch first shows that the room is taken.
    pub fn taken_by_foreign(&self) -> usize {
        self.taken_by_foreign
    }

    /// The number of times that a placeholder was bound again.
    pub fn moves(&self) -> usize {
        self.reserved.len() - self.placeholders.len()
    }

    /// Applies an event of the watch.
    pub fn pod(&mut self, event: &Event<Pod>) {
        match event {
            Event::Init => {
                self.pods.clear();
                self.bound.clear();
            }
            Event::InitDone => {}
            Event::Apply(pod) | Event::InitApply(pod) => match pods::phase(pod) {
                PodPhase::Pending | PodPhase::Running | PodPhase::Unknown => self.there(pod),
                PodPhase::Succeeded | PodPhase::Failed => self.gone(pod),
            },
            Event::Delete(pod) => self.gone(pod),
        }
    }

    fn there(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        let is_placeholder = pods::is_placeholder(pod);
        let placeholder = match is_placeholder {
            true => pods::label(pod, INSTANCE).map(str::to_owned),
            false => pods::follows(pod).into_iter().next(),
        };
        let node = pods::node(pod).map(str::to_owned);
        if let (true, Some(name), Some(_)) = (is_placeholder, &placeholder, &node) {
            let beside = needs::asks(pod).milli_cpu - self.own;
            self.reserved.entry(uid.clone()).or_insert(beside);
            self.bound.insert(name.clone(), uid.clone());
            self.placeholders.insert(name.clone());
        }
        let waits = pods::label(pod, "tekton.dev/taskRun").filter(|_| pods::is_unschedulable(pod));
        let seen = Seen {
            node: node.clone(),
            requests: needs::requests(pod).milli_cpu,
            is_placeholder,
            is_foreign: !is_placeholder && pods::label(pod, "tekton.dev/pipelineRun").is_none(),
            placeholder,
            waits: waits.map(str::to_owned),
        };
        self.pods.insert(uid.clone(), seen);
        self.judge(&uid, node.as_deref());
    }

    fn gone(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        self.bound.retain(|_, bound| *bound != uid);
        if let Some(gone) = self.pods.remove(&uid) {
            self.judge(&uid, gone.node.as_deref());
        }
    }

    /// Checks the pod that has changed, and the pods that wait beside a placeholder on `node`.
    fn judge(&mut self, changed: &str, node: Option<&str>) {
        for (uid, pod) in &self.pods {
            let (Some(task_run), Some(name)) = (&pod.waits, &pod.placeholder) else {
                continue;
            };
            let Some((placeholder, seen)) = self
                .bound
                .get(name)
                .and_then(|it| self.pods.get_key_value(it))
            else {
                continue;
            };
            if uid != changed && seen.node.as_deref() != node {
                continue;
            }
            let sum = |counts: &dyn Fn(&Seen) -> bool| -> Milli {
                let there = self.pods.values().filter(|it| it.node == seen.node);
                there.filter(|it| counts(it)).map(|it| it.requests).sum()
            };
            let held = seen.requests - self.own;
            let lacks = sum(&|_| true) - held + pod.requests - self.capacity;
            if lacks <= 0 {
                continue;
            }
            self.crowded.insert(task_run.clone());
            let mates = sum(&|it| !it.is_placeholder && it.placeholder == pod.placeholder);
            if mates + held + pod.requests <= self.reserved[placeholder] {
                let is_new = self.taken.insert(task_run.clone());
                if is_new && lacks <= sum(&|it| it.is_foreign) {
                    self.taken_by_foreign += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use coscheduler_core::labels::AFFINITY_ASSISTANT;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, node: Option<&str>, cpu: &str, labels: &Value) -> Pod {
        let refused =
            json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]);
        let term = json!([{
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {
                "app.kubernetes.io/component": "affinity-assistant", INSTANCE: "assistant",
            }},
        }]);
        let follows = labels.get("tekton.dev/taskRun").is_some();
        let affinity = follows.then(
            || json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}),
        );
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "labels": labels},
            "spec": {
                "nodeName": node,
                "affinity": affinity,
                "containers": [{"name": AFFINITY_ASSISTANT, "resources": {"requests": {"cpu": cpu}}}],
            },
            "status": {"phase": "Pending", "conditions": if node.is_none() { refused } else { json!([]) }},
        }))
        .unwrap()
    }

    fn placeholder(uid: &str, node: Option<&str>, cpu: &str) -> Pod {
        let labels =
            json!({"app.kubernetes.io/component": "affinity-assistant", INSTANCE: "assistant"});
        pod(uid, node, cpu, &labels)
    }

    fn task(name: &str, node: Option<&str>, cpu: &str) -> Pod {
        let labels = json!({"tekton.dev/taskRun": name, "tekton.dev/pipelineRun": "run"});
        pod(name, node, cpu, &labels)
    }

    fn foreign(name: &str, cpu: &str) -> Pod {
        pod(name, Some("node"), cpu, &json!({}))
    }

    #[track_caller]
    fn check(seen: &[Pod], crowded: usize, taken: usize) {
        let mut room = Room::on_nodes_of(4).unwrap();
        for pod in seen {
            room.pod(&Event::Apply(pod.clone()));
        }
        assert_eq!((room.crowded(), room.taken()), (crowded, taken));
    }

    #[test]
    fn room_is_taken_if_the_run_would_fit_into_what_was_reserved() {
        let reserved = placeholder("p", Some("node"), "3050m");
        let given_up = placeholder("p", Some("node"), "50m");
        let one = task("one", Some("node"), "1");
        let two = task("two", None, "2");
        let taker = foreign("foreign", "1");
        let seen = [&reserved, &given_up, &one, &taker, &two].map(Clone::clone);
        check(&seen, 1, 1);
        // There is room, but the scheduler has not tried again yet.
        check(
            &[reserved.clone(), given_up.clone(), one.clone(), two.clone()],
            0,
            0,
        );
        // The placeholder still requests the room.
        check(&[reserved.clone(), two.clone()], 0, 0);
        // Nothing was reserved.
        check(&[given_up, one.clone(), taker.clone(), two.clone()], 1, 0);
        // The run's own pods use the room.
        let more = task("more", Some("node"), "2");
        check(
            &[
                reserved,
                placeholder("p", Some("node"), "50m"),
                one,
                more,
                two,
            ],
            1,
            0,
        );
        // The placeholder waits too.
        check(
            &[
                placeholder("p", None, "3050m"),
                taker,
                task("two", None, "4"),
            ],
            0,
            0,
        );
    }

    #[test]
    fn room_that_is_taken_later_counts_once() {
        let mut room = Room::on_nodes_of(4).unwrap();
        let events = [
            Event::Apply(placeholder("p", Some("node"), "2050m")),
            Event::Apply(task("two", None, "2")),
            Event::Apply(placeholder("p", Some("node"), "50m")),
            Event::Apply(foreign("first", "2")),
            Event::Apply(foreign("second", "1")),
            Event::Delete(foreign("second", "1")),
            Event::Apply(foreign("third", "1")),
        ];
        for event in &events {
            room.pod(event);
        }
        assert_eq!((room.crowded(), room.taken(), room.moves()), (1, 1, 0));
        assert_eq!(room.taken_by_foreign(), 1);
    }

    #[test]
    fn a_placeholder_that_is_bound_again_has_moved() {
        let mut room = Room::on_nodes_of(4).unwrap();
        for event in [
            Event::Apply(placeholder("p", Some("node"), "50m")),
            Event::Delete(placeholder("p", Some("node"), "50m")),
            Event::Apply(placeholder("q", None, "1")),
            Event::Apply(placeholder("q", Some("other"), "1")),
            Event::Apply(placeholder("q", Some("other"), "50m")),
        ] {
            room.pod(&event);
        }
        assert_eq!(room.moves(), 1);
    }
}
