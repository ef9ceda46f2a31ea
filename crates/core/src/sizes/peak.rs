//! The most that the pods of a run can request at the same time: the heaviest antichain of the tasks that are left, for each
//! resource by itself.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use petgraph::algo::tred::{dag_to_toposorted_adjacency_list, dag_transitive_reduction_closure};
use petgraph::algo::{dinics, toposort};
use petgraph::graph::{DiGraph, NodeIndex};
use petgraph::visit::{Dfs, EdgeRef as _, IntoEdgeReferences as _};

use crate::reconcile::requests::Amounts;

use super::{Sizes, TaskSize};

/// The progress of a task that has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Its pod, or its custom task, has not ended.
    Running,
    /// It ended, or was skipped.
    Ended,
}

/// The requests of the pods that a group of tasks can still have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Demand {
    /// The most that pods, those that run included, can request at the same time, for each resource by itself.
    pub peak: Amounts,
    /// The most that one pod still to come requests, for each resource by itself. A node with less cannot take all of these pods,
    /// not even one after the other. Never more than the peak.
    pub need: Amounts,
}

/// The tasks that have not ended, with an edge from each to those that wait for it. `None` stands between `finally` and the others.
type Order<'a> = DiGraph<Option<&'a str>, ()>;

impl Sizes {
    /// The demand of the tasks that `belongs` accepts. A task that is not in `progress` is still to come. The order of
    /// the tasks includes the tasks that `belongs` rejects. A task without a known request adds nothing.
    ///
    /// A custom task, such as an approval, and the tasks behind it count as nothing until it has ended: their turn may come hours
    /// later.
    pub fn demand(
        &self,
        progress: &BTreeMap<&str, Progress>,
        belongs: impl Fn(&str, &TaskSize) -> bool,
    ) -> Demand {
        let order = reduced(&self.order(progress));
        let requests = |name: &str| {
            let task = self.0.get(name).filter(|task| belongs(name, task))?;
            Some((task.requests.as_ref()?, task.pods))
        };
        let mut demand = Demand::default();
        let mut resources = BTreeSet::new();
        for name in order.tasks.iter().flatten() {
            let Some((requests, _)) = requests(name) else {
                continue;
            };
            for (resource, amount) in requests.resources() {
                resources.insert(resource);
                if !progress.contains_key(name) {
                    let need = demand.need.of(resource).max(amount);
                    set(&mut demand.need, resource, need);
                }
            }
        }
        for resource in resources {
            let peak = heaviest(&order, |name| {
                requests(name).map_or(0, |(one, pods)| one.of(resource) * i128::from(pods))
            });
            set(&mut demand.peak, resource, peak);
        }
        demand
    }

    /// The tasks that run, and those that no custom task keeps from starting.
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
        order.filter_map(
            |node, name| (!blocked.contains(&node) || runs(name)).then_some(*name),
            |_, ()| Some(()),
        )
    }
}

/// An order without the edges that follow from others, by the indices of the tasks.
struct Reduced<'a> {
    tasks: Vec<Option<&'a str>>,
    edges: Vec<(usize, usize)>,
}

fn reduced<'a>(order: &Order<'a>) -> Reduced<'a> {
    // Tekton refuses a Pipeline with a cycle. Should there be one, all its tasks count at the same time.
    let sorted = toposort(order, None).unwrap_or_default();
    let (successors, _) = dag_to_toposorted_adjacency_list::<_, u32>(order, &sorted);
    let (reduction, _) = dag_transitive_reduction_closure(&successors);
    let tasks = if sorted.is_empty() {
        order.node_weights().copied().collect()
    } else {
        sorted.iter().map(|node| order[*node]).collect()
    };
    let edges = reduction.edge_references();
    Reduced {
        tasks,
        edges: edges
            .map(|edge| (edge.source() as usize, edge.target() as usize))
            .collect(),
    }
}

fn set(amounts: &mut Amounts, resource: &str, amount: i128) {
    match resource {
        "cpu" => amounts.milli_cpu = amount,
        "memory" => amounts.memory = amount,
        "ephemeral-storage" => amounts.ephemeral_storage = amount,
        other => drop(amounts.others.insert(other.to_owned(), amount)),
    }
}

/// The weight of the heaviest set of tasks of which none waits for another. By Dilworth's theorem with weights, it is the sum of
/// all weights less a maximum flow. Each task is a node that flow leaves and one that it reaches; an edge between these two lets
/// flow on to later tasks, so that a few edges of the order are enough.
fn heaviest(order: &Reduced<'_>, weight: impl Fn(&str) -> i128) -> i128 {
    let Reduced { tasks, edges } = order;
    let weight = |name| u128::try_from(weight(name)).unwrap_or(0);
    let weights = tasks.iter().map(|name| name.map_or(0, weight));
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
    for (from, to) in edges {
        network.add_edge(left(*from), reached(*to), total);
    }
    let (flow, _) = dinics(&network, source, sink);
    i128::try_from(total - flow).unwrap_or(i128::MAX)
}

#[cfg(test)]
mod tests;
