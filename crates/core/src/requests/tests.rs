use super::*;
use proptest::prelude::*;

#[test]
fn n2_a_sum_is_rounded_up_once_and_only_what_the_scheduler_counts_is_counted() {
    let asks = "cpu 100n, memory 500m, ephemeral-storage 1, storage 1Gi, pods 110, requests.example.dev/a 1, \
         hugepages-2Mi 4Mi, attachable-volumes-csi-x 3, example.dev/zero 0";
    let asks = asks.split(", ").map(|it| it.split_once(' ').unwrap());
    let asks = asks.map(|(name, quantity)| (name.to_owned(), quantity.parse().unwrap()));
    let asks: ResourceList = asks.collect();
    let pod = PodResources {
        containers: vec![asks.clone(), asks],
        ..PodResources::default()
    };
    let expect =
        "cpu 1m, memory 1, attachable-volumes-csi-x 6, ephemeral-storage 2, hugepages-2Mi 8Mi";
    assert_eq!(requests(&pod).to_string(), expect);
}

fn any_list() -> impl Strategy<Value = ResourceList> {
    let name = prop::sample::select(vec!["cpu", "memory", "example.dev/gpu", "hugepages-2Mi"]);
    let suffix = prop::sample::select(vec!["", "m", "u", "Ki"]);
    let quantity = (0_u32..3000, suffix)
        .prop_map(|(number, suffix)| format!("{number}{suffix}").parse().unwrap());
    prop::collection::btree_map(name.prop_map(str::to_owned), quantity, 0..4)
}

fn any_pod() -> impl Strategy<Value = PodResources> {
    let init = (any_list(), any::<bool>());
    let init = init.prop_map(|(requests, sidecar)| InitContainer { requests, sidecar });
    let init_containers = prop::collection::vec(init, 0..5);
    let containers = prop::collection::vec(any_list(), 0..4);
    (init_containers, containers, any_list(), any_list()).prop_map(
        |(init_containers, containers, pod, overhead)| PodResources {
            init_containers,
            containers,
            pod,
            overhead,
        },
    )
}

/// The requests of a pod for one resource, by the definition: goes through every moment of the pod's life, and adds the
/// requests of the containers that run then. The result is the greatest sum. The examples of Kubernetes are special cases
/// (`computePodResourceRequest` in `noderesources/fit.go`, and KEP-753).
fn by_living(pod: &PodResources, resource: &str) -> i128 {
    let of = |list: &ResourceList| list.get(resource).map_or(0, Quantity::nano);
    let sidecars = |started: &[InitContainer]| -> i128 {
        let sidecars = started.iter().filter(|container| container.sidecar);
        sidecars.map(|container| of(&container.requests)).sum()
    };
    let init = pod.init_containers.iter().enumerate();
    let starting = init.map(|(now, it)| sidecars(&pod.init_containers[..now]) + of(&it.requests));
    let running = sidecars(&pod.init_containers) + pod.containers.iter().map(of).sum::<i128>();
    let of_pod = pod.pod.get(resource).map(Quantity::nano);
    let of_pod = of_pod.filter(|_| !resource.contains('/'));
    of_pod.unwrap_or_else(|| starting.chain([running]).max().unwrap()) + of(&pod.overhead)
}

proptest! {
    #[test]
    fn n2_a_pod_asks_for_the_most_that_it_needs_at_any_time(pod in any_pod()) {
        let asked = requests(&pod);
        for (resource, unit) in [
            ("cpu", NANO_PER_MILLI), ("memory", NANO), ("example.dev/gpu", NANO), ("hugepages-2Mi", NANO),
        ] {
            let nano = by_living(&pod, resource);
            // The result is the least whole number that is enough.
            prop_assert!(asked.of(resource) * unit >= nano, "{resource}");
            prop_assert!((asked.of(resource) - 1) * unit < nano || nano == 0, "{resource}");
        }
    }
}
