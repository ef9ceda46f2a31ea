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

/// Quantities are computed in billionths. These are the numbers of billionths in one unit and in one thousandth.
const NANO: i128 = 1_000_000_000;
const NANO_PER_MILLI: i128 = 1_000_000;

/// Amounts of resources, without the number of pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU, in thousandths.
    pub milli_cpu: i128,
    /// Memory, in bytes.
    pub memory: i128,
    /// Everything else, in whole units, by name: ephemeral storage, extended resources, huge pages, attachable volumes.
    pub others: BTreeMap<String, i128>,
}

/// The fields of a pod that decide its requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodResources {
    /// `spec.initContainers`, in order.
    pub init_containers: Vec<InitContainer>,
    /// `resources.requests` of each of `spec.containers`.
    pub containers: Vec<ResourceList>,
    /// `spec.resources.requests`: for the pod as a whole.
    pub pod: ResourceList,
    /// `spec.overhead`: the resources that its RuntimeClass adds.
    pub overhead: ResourceList,
}

/// An init container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InitContainer {
    /// `resources.requests`.
    pub requests: ResourceList,
    /// True if `restartPolicy` is `Always`: the container keeps running beside all later containers.
    pub sidecar: bool,
}

/// A pod's requests: the most that its containers request at the same time, plus its overhead. A sidecar keeps running beside all
/// later containers. Other init containers run one at a time. If the pod as a whole has a request for CPU, memory or huge pages,
/// this request replaces the value from the containers.
pub fn requests(pod: &PodResources) -> Amounts {
    let mut sidecars = Nano::default();
    let mut starting = Nano::default();
    for container in &pod.init_containers {
        let mut together = sidecars.clone();
        together.add(&container.requests);
        starting.at_least(&together);
        if container.sidecar {
            sidecars = together;
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

/// The amounts of a list, without the number of pods. Fractions are rounded up.
pub fn amounts(list: &ResourceList) -> Amounts {
    let mut all = Nano::default();
    all.add(list);
    all.rounded_up()
}

impl Amounts {
    /// The amount of the resource with this name.
    pub fn of(&self, name: &str) -> i128 {
        let mut resources = self.resources();
        let found = resources.find(|(it, _)| *it == name);
        found.map_or(0, |(_, amount)| amount)
    }

    /// The name and the amount of each resource whose amount is not zero.
    pub fn resources(&self) -> impl Iterator<Item = (&str, i128)> {
        let own = [(CPU, self.milli_cpu), (MEMORY, self.memory)].into_iter();
        let others = self.others.iter();
        own.chain(others.map(|(name, amount)| (name.as_str(), *amount)))
            .filter(|(_, amount)| *amount != 0)
    }
}

impl fmt::Display for Amounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resources = self.resources();
        let words = resources.map(|(name, amount)| format!("{name} {}", in_words(name, amount)));
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

/// An amount of a resource as people write it: `1500m`, `2Gi`.
pub fn in_words(name: &str, amount: i128) -> String {
    match name {
        CPU if amount % 1000 != 0 => format!("{amount}m"),
        CPU => (amount / 1000).to_string(),
        _ if name == MEMORY || name == EPHEMERAL_STORAGE || name.starts_with(HUGE_PAGES) => {
            let mut units = [("Gi", 1_i128 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)].into_iter();
            let fitting = units.find(|(_, unit)| amount != 0 && amount % unit == 0);
            let (suffix, unit) = fitting.unwrap_or(("", 1));
            format!("{}{suffix}", amount / unit)
        }
        _ => amount.to_string(),
    }
}

/// The amount of each resource in billionths, by the resource's name. Nothing is rounded yet.
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
            let unit = if name == CPU { NANO_PER_MILLI } else { NANO };
            let amount = nano.div_euclid(unit) + i128::from(nano.rem_euclid(unit) != 0);
            match name {
                CPU => amounts.milli_cpu = amount,
                MEMORY => amounts.memory = amount,
                other if is_counted(other) && nano != 0 => {
                    amounts.others.insert(other.to_owned(), amount);
                }
                _ => {}
            }
        }
        amounts
    }
}

/// True if the scheduler counts a resource other than CPU and memory (`pkg/scheduler/util/utils.go`, `IsScalarResourceName`).
fn is_counted(name: &str) -> bool {
    let extended = name.contains('/') && !name.starts_with("requests.");
    let scalar = name.starts_with(HUGE_PAGES) || name.starts_with("attachable-volumes-");
    extended || scalar || name == EPHEMERAL_STORAGE
}

#[cfg(test)]
mod tests;
