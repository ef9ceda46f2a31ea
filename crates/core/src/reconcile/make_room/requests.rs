//! Computes a pod's requests as the scheduler does: exactly, in whole numbers.
//!
//! Sources: Kubernetes 1.35, `k8s.io/component-helpers/resource/helpers.go`, `PodRequests`; `pkg/scheduler/framework/types.go`,
//! `Resource`; KEP-753, "Resources calculation for scheduling and pod admission".

use std::collections::BTreeMap;
use std::fmt;

use crate::quantity::Quantity;

/// Quantities by the name of the resource, as Kubernetes writes them.
pub type ResourceList = BTreeMap<String, Quantity>;

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
const HUGE_PAGES: &str = "hugepages-";
const ATTACHABLE_VOLUMES: &str = "attachable-volumes-";
const QUOTA: &str = "requests.";

/// Quantities are computed in billionths: this many are one unit, and one thousandth.
const NANO: i128 = 1_000_000_000;
const NANO_PER_MILLI: i128 = 1_000_000;

/// Amounts of resources, without the number of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU, in thousandths.
    pub milli_cpu: i128,
    /// Memory, in bytes.
    pub memory: i128,
    /// Ephemeral storage, in bytes.
    pub ephemeral_storage: i128,
    /// Everything else, in whole units, by name: extended resources, huge pages, attachable volumes.
    pub others: BTreeMap<String, i128>,
}

/// The fields of a pod that decide its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodResources {
    /// `spec.initContainers`, in order.
    pub init_containers: Vec<InitContainer>,
    /// `resources.requests` of each of `spec.containers`, or the requests [`in_force`].
    pub containers: Vec<ResourceList>,
    /// `spec.resources.requests`: for the pod as a whole.
    pub pod: ResourceList,
    /// `spec.overhead`: the cost of its runtime class.
    pub overhead: ResourceList,
}

/// An init container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InitContainer {
    /// `resources.requests`, or the requests [`in_force`].
    pub requests: ResourceList,
    /// True if `restartPolicy` is `Always`: it keeps running beside the containers after it.
    pub sidecar: bool,
}

/// The requests in force of a container whose resources the kubelet reports, because an in-place resize may be under way: the
/// most of its requested, actual and allocated resources. A request that the kubelet finds infeasible does not count.
pub fn in_force(
    asked: &ResourceList,
    actual: &ResourceList,
    allocated: &ResourceList,
    infeasible: bool,
) -> ResourceList {
    let mut most = if infeasible {
        ResourceList::new()
    } else {
        asked.clone()
    };
    for (name, quantity) in actual.iter().chain(allocated) {
        most.entry(name.clone())
            .and_modify(|known| *known = quantity.clone().max(known.clone()))
            .or_insert_with(|| quantity.clone());
    }
    most
}

/// A pod's requests: the most that it needs at any time, plus its overhead. A sidecar keeps running beside the containers after
/// it; other init containers run one at a time. Requests of the pod as a whole replace the sum of its containers.
pub fn requests(pod: &PodResources) -> Amounts {
    let mut sidecars = Nano::default();
    let mut starting = Nano::default();
    for container in &pod.init_containers {
        if container.sidecar {
            sidecars.add(&container.requests);
            starting.at_least(&sidecars);
        } else {
            let mut beside = sidecars.clone();
            beside.add(&container.requests);
            starting.at_least(&beside);
        }
    }
    let mut most = sidecars;
    for container in &pod.containers {
        most.add(container);
    }
    most.at_least(&starting);
    for (name, quantity) in &pod.pod {
        if [CPU, MEMORY].contains(&name.as_str()) || name.starts_with(HUGE_PAGES) {
            most.0.insert(name, quantity.nano());
        }
    }
    most.add(&pod.overhead);
    most.rounded_up()
}

/// A node's `status.allocatable`: the amounts, and the number of pods.
pub fn allocatable(list: &ResourceList) -> (Amounts, i128) {
    let mut all = Nano::default();
    all.add(list);
    let pods = list
        .get("pods")
        .map_or(0, |pods| rounded_up(pods.nano(), NANO));
    (all.rounded_up(), pods)
}

impl Amounts {
    /// Adds the requests of another pod.
    pub fn add(&mut self, more: &Self) {
        self.combine(more, |left, right| left + right);
    }

    /// Subtracts the requests of a pod.
    pub fn subtract(&mut self, less: &Self) {
        self.combine(less, |left, right| left - right);
        self.others.retain(|_, amount| *amount != 0);
    }

    /// The amount of the resource with this name.
    pub fn of(&self, name: &str) -> i128 {
        match name {
            CPU => self.milli_cpu,
            MEMORY => self.memory,
            EPHEMERAL_STORAGE => self.ephemeral_storage,
            other => self.others.get(other).copied().unwrap_or(0),
        }
    }

    /// Each resource with an amount other than zero, with its name.
    pub fn resources(&self) -> impl Iterator<Item = (&str, i128)> {
        let others = self.others.iter();
        [
            (CPU, self.milli_cpu),
            (MEMORY, self.memory),
            (EPHEMERAL_STORAGE, self.ephemeral_storage),
        ]
        .into_iter()
        .chain(others.map(|(name, amount)| (name.as_str(), *amount)))
        .filter(|(_, amount)| *amount != 0)
    }

    fn combine(&mut self, other: &Self, combine: impl Fn(i128, i128) -> i128) {
        self.milli_cpu = combine(self.milli_cpu, other.milli_cpu);
        self.memory = combine(self.memory, other.memory);
        self.ephemeral_storage = combine(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.others {
            let own = self.others.entry(name.clone()).or_default();
            *own = combine(*own, *amount);
        }
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, amount)) in self.resources().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{name} {}", in_words(name, amount))?;
        }
        Ok(())
    }
}

/// An amount of a resource as people write it: `1500m`, `2Gi`.
pub fn in_words(name: &str, amount: i128) -> String {
    match name {
        CPU if amount % 1000 != 0 => format!("{amount}m"),
        CPU => (amount / 1000).to_string(),
        _ if name == MEMORY || name == EPHEMERAL_STORAGE || name.starts_with(HUGE_PAGES) => {
            let suffixes = [("Gi", 1_i128 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
            suffixes
                .iter()
                .find(|(_, unit)| amount != 0 && amount % unit == 0)
                .map_or_else(
                    || amount.to_string(),
                    |(suffix, unit)| format!("{}{suffix}", amount / unit),
                )
        }
        _ => amount.to_string(),
    }
}

/// Billionths by the name of the resource, before anything is rounded.
#[derive(Clone, Default)]
struct Nano<'a>(BTreeMap<&'a str, i128>);

impl<'a> Nano<'a> {
    fn add(&mut self, list: &'a ResourceList) {
        for (name, quantity) in list {
            *self.0.entry(name).or_default() += quantity.nano();
        }
    }

    fn at_least(&mut self, other: &Self) {
        for (name, amount) in &other.0 {
            let own = self.0.entry(name).or_insert(*amount);
            *own = (*own).max(*amount);
        }
    }

    /// Whole thousandths of CPU, and whole units of the other resources that the scheduler counts.
    fn rounded_up(self) -> Amounts {
        let mut amounts = Amounts::default();
        for (name, nano) in self.0 {
            match name {
                CPU => amounts.milli_cpu = rounded_up(nano, NANO_PER_MILLI),
                MEMORY => amounts.memory = rounded_up(nano, NANO),
                EPHEMERAL_STORAGE => amounts.ephemeral_storage = rounded_up(nano, NANO),
                other if is_counted(other) && nano != 0 => {
                    amounts
                        .others
                        .insert(other.to_owned(), rounded_up(nano, NANO));
                }
                _ => {}
            }
        }
        amounts
    }
}

/// True if the scheduler counts a resource other than CPU, memory and ephemeral storage (`pkg/scheduler/util/utils.go`,
/// `IsScalarResourceName`).
fn is_counted(name: &str) -> bool {
    let prefixed = name.contains('/') && !name.starts_with(QUOTA);
    prefixed || name.starts_with(HUGE_PAGES) || name.starts_with(ATTACHABLE_VOLUMES)
}

fn rounded_up(nano: i128, unit: i128) -> i128 {
    nano.div_euclid(unit) + i128::from(nano.rem_euclid(unit) != 0)
}

#[cfg(test)]
mod tests;
