//! The most CPU, and the most memory, that the pods of a run can request at the same time. Tasks can run at the same time if
//! none of them waits for another. So the most CPU is the largest sum of CPU requests of such a set of tasks. The most memory
//! is computed separately, and may belong to another set of tasks.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use petgraph::algo::{dinics, is_cyclic_directed};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::Dfs;

use crate::requests::Amounts;

use super::{Sizes, TaskSize};

/// The progress of a task that has started or was skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// The task has ended, or Tekton has skipped it.
    Ended,
    /// The task's TaskRun exists, but has no pod yet.
    Waiting,
    /// The task has a pod that has not ended.
    Running,
}

/// The CPU and memory of the pods that a set of tasks can still have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demand {
    /// The most CPU, and the most memory, that these pods can request at the same time, together with the pods that already run.
    pub peak: Amounts,
    /// The most CPU, and the most memory, that a single pod requests. [`Sizes::demand`] counts the future pods of tasks that have
    /// no pod now. Module `reserve` also counts the existing pods without a node. If a node has less room than this amount, at
    /// least one of these pods cannot run there. This amount is never greater than `peak`.
    pub need: Amounts,
}

/// The tasks that have not ended. An edge leads from each task to each task that waits for it. Node `None` stands for the end of
/// all tasks outside `finally`. An edge leads from each task outside `finally` to node `None`, and from node `None` to each
/// `finally` task.
type Order<'a> = DiGraph<Option<&'a str>, ()>;

impl Sizes {
    /// The demand of the tasks for which `belongs` is true. All other tasks add nothing, but tasks still wait for them. A task
    /// that is not in `progress` has not started. A task without `requests` adds nothing.
    ///
    /// A custom task, such as an approval, may take hours. So the tasks that wait for it add nothing until they have TaskRuns.
    pub fn demand(
        &self,
        progress: &BTreeMap<&str, Progress>,
        belongs: impl Fn(&str, &TaskSize) -> bool,
    ) -> Demand {
        let order = self.order(progress);
        let requests = |name: &str| {
            let task = self.0.get(name).filter(|task| belongs(name, task))?;
            Some((task.requests.as_ref()?, task.pods))
        };
        let mut demand = Demand::default();
        let waiting = |name: &&str| progress.get(name) != Some(&Progress::Running);
        for name in order.node_weights().flatten().filter(|it| waiting(it)) {
            if let Some((one, _)) = requests(name) {
                demand.need.milli_cpu = demand.need.milli_cpu.max(one.milli_cpu);
                demand.need.memory = demand.need.memory.max(one.memory);
            }
        }
        let peak = |of: fn(&Amounts) -> i128| {
            let weight =
                |name: &str| requests(name).map_or(0, |(one, pods)| of(one) * i128::from(pods));
            heaviest(&order, weight)
        };
        demand.peak.milli_cpu = peak(|one| one.milli_cpu);
        demand.peak.memory = peak(|one| one.memory);
        demand
    }

    /// The tasks that must have ended, because a task that waits for them is in `started`.
    pub fn before<'a>(&'a self, started: impl Iterator<Item = &'a String>) -> BTreeSet<&'a str> {
        let mut before = BTreeSet::new();
        for task in started.filter_map(|name| self.0.get(name)) {
            before.extend(task.after.iter().map(String::as_str));
            let others = self
                .0
                .iter()
                .filter(|(_, other)| task.finally && !other.finally);
            before.extend(others.map(|(name, _)| name.as_str()));
        }
        before
    }

    /// The order of the tasks that have not ended. The order leaves out the custom tasks, and those tasks that wait for a custom
    /// task and have no TaskRun yet.
    fn order<'a>(&'a self, progress: &BTreeMap<&str, Progress>) -> Order<'a> {
        let mut order = Order::new();
        let gate = order.add_node(None);
        let mut nodes = BTreeMap::new();
        for name in self.0.keys().map(String::as_str) {
            if progress.get(name) != Some(&Progress::Ended) {
                nodes.insert(name, order.add_node(Some(name)));
            }
        }
        let mut blocked = HashSet::new();
        for (name, node) in &nodes {
            let task = &self.0[*name];
            for before in &task.after {
                if let Some(before) = nodes.get(before.as_str()) {
                    order.add_edge(*before, *node, ());
                }
            }
            let (first, then) = if task.finally {
                (gate, *node)
            } else {
                (*node, gate)
            };
            order.add_edge(first, then, ());
        }
        for (_, node) in nodes.iter().filter(|(name, _)| self.0[**name].custom) {
            let mut behind = Dfs::new(&order, *node);
            while let Some(found) = behind.next(&order) {
                blocked.insert(found);
            }
        }
        let runs = |name: &Option<&str>| {
            name.is_some_and(|name| progress.contains_key(name) && !self.0[name].custom)
        };
        let mut order = order.filter_map(
            |node, name| (!blocked.contains(&node) || runs(name)).then_some(*name),
            |_, ()| Some(()),
        );
        // Tekton denies a Pipeline with a cycle. If there is a cycle nevertheless, all tasks count as if they ran at the same time.
        if is_cyclic_directed(&order) {
            order.clear_edges();
        }
        order
    }
}

/// The greatest total weight of a set of tasks in which no task waits for another. By the weighted form of Dilworth's theorem,
/// this is the sum of all weights minus a maximum flow. The network has two nodes for each task: flow leaves the task through the
/// first node, and reaches the task through the second node. An edge from the second node to the first lets flow continue to
/// later tasks.
fn heaviest(order: &Order<'_>, weight: impl Fn(&str) -> i128) -> i128 {
    let weight = |name| u128::try_from(weight(name)).unwrap_or(0);
    let weights = order.node_weights().map(|name| name.map_or(0, weight));
    let weights: Vec<_> = weights.collect();
    let total: u128 = weights.iter().sum();
    let count = weights.len();
    let left = |index| NodeIndex::new(index);
    let reached = |index| NodeIndex::new(count + index);
    let (source, sink) = (NodeIndex::new(2 * count), NodeIndex::new(2 * count + 1));
    let mut network = DiGraph::<(), u128>::new();
    for _ in 0..2 * count + 2 {
        network.add_node(());
    }
    for (index, weight) in weights.into_iter().enumerate() {
        network.add_edge(source, left(index), weight);
        network.add_edge(reached(index), sink, weight);
        network.add_edge(reached(index), left(index), total);
    }
    for edge in order.raw_edges() {
        let (from, to) = (edge.source().index(), edge.target().index());
        network.add_edge(left(from), reached(to), total);
    }
    let (flow, _) = dinics(&network, source, sink);
    i128::try_from(total - flow).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests;
