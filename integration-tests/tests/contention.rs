//! Pods that find no room on their placeholder's node (N2, N4). Each case has nodes of its own, on which the run's node selector
//! keeps its pods.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use coscheduler_core::labels::TASK_RUN;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods::is_unschedulable;
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::cramped::{gated, stranger, stranger_on, submit, waits};
use integration_tests::look::{is_placeholder, node};
use integration_tests::runs::{Run, run};
use integration_tests::stack::Stack;
use integration_tests::{Scene, shared_with_overrides};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams,
};
use serde_json::{Value, json};
use testbed::{Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const BLOCKED: &str = "coscheduler.dev/blocked";
const LET_GO: &str = "coscheduler.dev/let-go";
const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];

/// Runs a test on a stack on which each run may choose its mode.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 1,
        audit_log: true,
        ..Config::default()
    };
    shared_with_overrides(config, |_| (), test)
}

/// The node of a task's pod.
async fn node_of(scene: &Scene<'_>, task: &str) -> anyhow::Result<String> {
    let pods = scene.objects().await?.task_pods;
    let mut pods = pods.iter().filter(|pod| {
        let of = pod.labels().get("tekton.dev/pipelineTask");
        of.is_some_and(|of| of == task)
    });
    let pod = pods.next().with_context(|| format!("{task} has no pod"))?;
    Ok(node(pod).unwrap_or("no node").to_owned())
}

async fn each(
    stack: &Stack,
    modes: &[&'static str],
    check: impl AsyncFn(&Scene<'_>, &'static str) -> Outcome,
) -> Outcome {
    stream::iter(modes)
        .map(async |mode| {
            let scene = stack.scene().await?;
            check(&scene, mode)
                .await
                .with_context(|| (*mode).to_owned())
        })
        .buffer_unordered(modes.len())
        .try_collect()
        .await
}

/// A run whose second task requests four CPUs.
fn growing(scene: &Scene<'_>, mode: &str) -> Run {
    gated(scene, mode, MOVABLE_STORAGE_CLASS)
        .task("two", &["source"], &["gate"])
        .asking("4")
}

#[test]
fn n2_a_node_too_small_for_the_second_task_is_left() -> Outcome {
    shared(async |scene| {
        each(scene.stack, &MODES, async |scene, mode| {
            let run = growing(scene, mode).task("three", &["source"], &["two"]);
            submit(scene, [("2", 110), ("8", 110)], run).await?;
            scene.open_gate("run").await?;
            scene.succeeds("run").await?;
            assert_eq!(node_of(scene, "two").await?, scene.pool_node(2), "{mode}");
            assert_eq!(node_of(scene, "three").await?, scene.pool_node(2), "{mode}");
            let told = scene.told("run", "PlaceholderMoved").await?;
            assert_eq!(told.len(), 1, "{told:?}");
            scene.nothing_left_but(&[]).await
        })
        .await
    })
}

/// The placeholder cannot ask the scheduler for room: a LimitRange or a quota allows the second task, but not the reservation. So
/// only the preference for large nodes leads to the only node with room.
#[test]
fn b3_n2_where_no_room_may_be_reserved_the_placeholder_prefers_nodes_that_are_large_enough()
-> Outcome {
    let limits = |max: &str| {
        json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "limits"}, "spec": {"limits": [{
            "type": "Container", "max": {"cpu": max}, "default": {"cpu": max}, "defaultRequest": {"cpu": "1m"},
        }]}})
    };
    let quota = json!({"requests.cpu": "8"});
    let refusals = [("3", limits("3"), None), ("5", limits("8"), Some(quota))];
    shared(async |scene| {
        try_join_all(refusals.map(async |(cpu, limits, quota)| {
            let scene = scene.stack.scene().await?;
            create(&scene, "limitranges", &limits).await?;
            if let Some(quota) = quota {
                scene.quota(quota).await?;
            }
            let run = gated(&scene, "pipelineruns", MOVABLE_STORAGE_CLASS)
                .task("two", &["source"], &["gate"])
                .asking(cpu);
            submit(&scene, [("2", 110), ("8", 110)], run).await?;
            // The other nodes are emptier.
            stranger(&scene, &scene.pool_node(2), "2").await?;
            for number in 3..=5 {
                scene.add_node(number, "2", 110).await?;
            }
            scene.open_gate("run").await?;
            scene.succeeds("run").await?;
            assert_eq!(node_of(&scene, "two").await?, scene.pool_node(2));
            let told = scene.told("run", "PlaceholderMoved").await?;
            let codes: Vec<_> = told.iter().map(|(code, _)| code.as_str()).collect();
            let moves = codes.iter().filter(|code| **code == "PlaceholderMoved");
            assert_eq!(moves.count(), 1, "{told:?}");
            assert!(codes.contains(&"ReservationRefused"), "{told:?}");
            scene.nothing_left_but(&[]).await
        }))
        .await?;
        Ok(())
    })
}

#[test]
fn n2_a_node_at_its_pod_limit_is_left() -> Outcome {
    shared(async |scene| {
        each(scene.stack, &MODES, async |scene, mode| {
            let run = gated(scene, mode, MOVABLE_STORAGE_CLASS).task("two", &["source"], &["gate"]);
            submit(scene, [("8", 2), ("8", 2)], run).await?;
            stranger(scene, &scene.pool_node(1), "0").await?;
            scene.open_gate("run").await?;
            scene.succeeds("run").await?;
            assert_eq!(node_of(scene, "two").await?, scene.pool_node(2), "{mode}");
            scene.nothing_left_but(&[]).await
        })
        .await
    })
}

#[test]
fn n2_the_runs_own_pods_are_waited_for() -> Outcome {
    shared(async |scene| {
        each(scene.stack, &MODES, async |scene, mode| {
            let run = gated(scene, mode, MOVABLE_STORAGE_CLASS)
                .task("two", &["source"], &["gate"])
                .asking("1500m")
                .task("three", &["source"], &["gate"])
                .asking("1500m")
                .lasting("two", 5)
                .lasting("three", 5);
            submit(scene, [("2", 110), ("8", 110)], run).await?;
            scene.open_gate("run").await?;
            waits(scene).await?;
            scene.succeeds("run").await?;
            for task in ["two", "three"] {
                assert_eq!(node_of(scene, task).await?, scene.pool_node(1), "{mode}");
            }
            // The placeholder does not move, and there is no other Event.
            for (reason, note) in scene.told_so_far("run").await? {
                assert_eq!(reason, "WaitsForOwnPods", "{mode}: {note}");
            }
            Ok(())
        })
        .await
    })
}

#[test]
fn n2_a_task_without_volumes_that_fits_no_node_the_rest_fits_is_let_go() -> Outcome {
    shared(async |scene| {
        let run = gated(&scene, "pipelineruns", LOCAL_STORAGE_CLASS)
            .task("two", &[], &["gate"])
            .asking("4")
            .task("three", &["source"], &["two"]);
        submit(&scene, [("2", 110), ("8", 110)], run).await?;
        scene.open_gate("run").await?;
        scene.succeeds("run").await?;
        assert_eq!(node_of(&scene, "two").await?, scene.pool_node(2));
        assert_eq!(node_of(&scene, "three").await?, scene.pool_node(1));
        let told = scene.told("run", "PodLetGo").await?;
        assert_eq!(told.len(), 1, "{told:?}");
        let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("tekton.dev", "v1", "TaskRun"));
        let task_runs = kube::Api::<DynamicObject>::namespaced_with(
            scene.client.clone(),
            &scene.namespace,
            &kind,
        );
        let let_go = task_runs.list(&ListParams::default()).await?;
        let let_go = let_go.iter();
        let let_go: Vec<_> = let_go
            .filter(|task_run| task_run.annotations().contains_key(LET_GO))
            .map(kube::ResourceExt::name_any)
            .collect();
        assert_eq!(let_go, ["run-two"]);
        scene.nothing_left_but(&[]).await
    })
}

/// While the scheduler binds a placeholder, it also binds pods beside it. Then the placeholder's own binding may fail. Here, the
/// API server refuses to bind the placeholder, and a pod with the same labels attracts the task's pod to a node. This node is then
/// full, so the scheduler would choose the other node for the placeholder, even if it has nominated the first one.
#[test]
fn p2_v1_a_placeholder_that_could_not_be_bound_follows_the_pods_that_were_bound_beside_it()
-> Outcome {
    shared(async |scene| {
        // A rival: the placeholder of a run whose pool has no node.
        let other = scene.stack.scene().await?;
        let rival = run("rival")
            .in_mode("isolate-pipelinerun")
            .in_pool_of(&other);
        other.submit(rival.task("one", &[], &[])).await?;
        let refused = |pod: &Pod| is_placeholder(pod) && is_unschedulable(pod);
        other.until_many("wait", 1, refused).await?;
        scene.pool_of(&[("4", 110), ("4", 110)]).await?;
        scene.refuse_to_bind_placeholders().await?;
        let run = run("run")
            .in_mode("isolate-pipelinerun")
            .in_pool_of(&scene)
            .template_of_class("source", MOVABLE_STORAGE_CLASS)
            .task("one", &["source"], &[])
            .asking("1")
            .lasting("one", 20);
        scene.submit(run).await?;
        let failed = |pods: &[Arc<Pod>]| pods.iter().find(|pod| has_failed(pod)).cloned();
        let pods = scene
            .until_all("are not bound", |pods| failed(pods).is_some())
            .await?;
        let first = failed(&pods).unwrap();
        let mut twin = stranger_on(&scene.pool_node(1), "1")?;
        twin.metadata.labels = first.metadata.labels.clone();
        let twins = scene.api::<Pod>();
        twins.create(&PostParams::default(), &twin).await?;
        let bound = |pod: &Pod| pod.labels().contains_key(TASK_RUN) && node(pod).is_some();
        scene.until_many("are bound", 1, bound).await?;
        let at_once = DeleteParams::default().grace_period(0);
        twins.delete(&twin.name_any(), &at_once).await?;

        let home = node_of(&scene, "one").await?;
        stranger(&scene, &home, "3").await?;
        scene.refuse_no_more().await?;
        let waits =
            |pod: &Pod| is_placeholder(pod) && pod.uid() != first.uid() && is_unschedulable(pod);
        scene.until_many("wait", 1, waits).await?;
        twins.delete(&format!("stranger-{home}"), &at_once).await?;
        let (_, placeholder) = scene.placeholder().await?;
        assert_eq!(node(&placeholder), Some(home.as_str()));
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await?;
        let runs = other.api::<PipelineRun>();
        runs.delete("rival", &DeleteParams::background()).await?;
        other.nothing_left_but(&[]).await
    })
}

/// True if the scheduler chose a node for the placeholder's pod, but could not bind the pod to it.
fn has_failed(pod: &Pod) -> bool {
    let view = coscheduler_kubernetes::pods::view(pod.clone());
    is_placeholder(pod) && view.is_some_and(|it| it.unscheduled.is_some_and(|it| it.failed))
}

/// Creates an object of Kubernetes' core group in the namespace, or a PersistentVolume.
async fn create(scene: &Scene<'_>, resource: &str, object: &Value) -> Outcome {
    let namespace = match resource {
        "persistentvolumes" => String::new(),
        _ => format!("namespaces/{}/", scene.namespace),
    };
    let uri = format!("/api/v1/{namespace}{resource}");
    let created = scene.send_to("POST", &uri, object).await?;
    created.accepted().map(drop)
}

/// A claim named `cache`, whose volume only these nodes can reach.
async fn create_cache(scene: &Scene<'_>, nodes: &[String]) -> Outcome {
    let name = format!("{}-cache", scene.namespace);
    let reach = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": nodes});
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "by-hand",
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": "/cache"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [reach]}]}},
        },
    });
    create(scene, "persistentvolumes", &volume).await?;
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "cache"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand", "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    create(scene, "persistentvolumeclaims", &claim).await
}

/// A run whose first task uses the claim of [`create_cache`].
fn cached(scene: &Scene<'_>) -> Run {
    let source = json!({"persistentVolumeClaim": {"claimName": "cache"}});
    run("run")
        .in_mode("pipelineruns")
        .in_pool_of(scene)
        .workspace("cache", source)
        .task("one", &["cache"], &[])
}

/// The nodes that can reach the claim are too small for a later task that uses the claim. So the placeholder waits for a larger
/// node that can reach the claim.
#[test]
fn b3_n7_a_later_task_that_uses_the_placeholders_claim_counts_where_few_nodes_reach_it() -> Outcome
{
    shared(async |scene| {
        scene.pool_of(&[("2", 110), ("2", 110)]).await?;
        let nodes = [1, 2, 3].map(|number| scene.pool_node(number));
        create_cache(&scene, &nodes).await?;
        let run = cached(&scene).task("two", &["cache"], &["one"]).asking("4");
        scene.submit(run).await?;
        scene.told("run", "PlaceholderUnschedulable").await?;
        scene.add_node(3, "8", 110).await?;
        scene.succeeds("run").await?;
        for task in ["one", "two"] {
            assert_eq!(node_of(&scene, task).await?, nodes[2]);
        }
        let told = scene.told_so_far("run").await?;
        let gave_up = |code: &str| ["ReservationReduced", "PlaceholderMoved"].contains(&code);
        assert!(!told.iter().any(|(code, _)| gave_up(code)), "{told:?}");
        scene.nothing_left_but(&["cache"]).await
    })
}

/// One or two nodes can reach the claim, and the run's largest task requests more CPUs than they have.
#[test]
fn b3_n2_a_reservation_that_fits_no_node_of_the_claim_keeps_no_run_from_starting() -> Outcome {
    shared(async |scene| {
        try_join_all([1, 2].map(async |reaching| {
            let scene = scene.stack.scene().await?;
            scene.pool_of(&[("2", 110), ("2", 110), ("8", 110)]).await?;
            let nodes: Vec<_> = (1..=reaching).map(|it| scene.pool_node(it)).collect();
            create_cache(&scene, &nodes).await?;
            let run = cached(&scene).task("two", &[], &["one"]).asking("4").task(
                "three",
                &["cache"],
                &["two"],
            );
            scene.submit(run).await?;
            scene.succeeds("run").await?;
            assert_eq!(node_of(&scene, "two").await?, scene.pool_node(3));
            assert!(nodes.contains(&node_of(&scene, "three").await?));
            let told = scene.told("run", "PodLetGo").await?;
            let codes: Vec<_> = told.iter().map(|(code, _)| code.as_str()).collect();
            assert!(codes.contains(&"ReservationReduced"), "{told:?}");
            assert!(!codes.contains(&"ClaimsNotMovable"), "{told:?}");
            scene.nothing_left_but(&["cache"]).await
        }))
        .await?;
        Ok(())
    })
}

#[test]
fn n2_n4_a_task_that_fits_no_node_is_reported_and_goes_on_once_there_is_one() -> Outcome {
    shared(async |scene| {
        each(scene.stack, &MODES, async |scene, mode| {
            let run = gated(scene, mode, MOVABLE_STORAGE_CLASS)
                .task("two", &["source"], &["gate"])
                .asking("64");
            submit(scene, [("2", 110), ("8", 110)], run).await?;
            scene.open_gate("run").await?;
            let told = scene.told("run", "PlaceholderUnschedulable").await?;
            let mut told = told
                .iter()
                .filter(|(code, _)| code == "PlaceholderUnschedulable");
            let (_, message) = told.next().unwrap();
            assert!(
                message.contains("cpu 64050m") && message.contains("Insufficient cpu"),
                "{message}"
            );
            let is_blocked = |run: Option<&PipelineRun>| {
                run.is_some_and(|run| run.annotations().contains_key(BLOCKED))
            };
            scene.until("run", "is blocked", is_blocked).await?;
            scene.add_node(3, "80", 110).await?;
            scene.succeeds("run").await?;
            // The placeholder left its node once, and then waited for another node.
            let told = scene.told("run", "PlaceholderMoved").await?;
            let moves = told.iter().filter(|(code, _)| code == "PlaceholderMoved");
            assert_eq!(moves.count(), 1, "{told:?}");
            assert_eq!(node_of(scene, "two").await?, scene.pool_node(3), "{mode}");
            scene.nothing_left_but(&[]).await?;
            scene
                .until("run", "is not blocked", |run| !is_blocked(run))
                .await?;
            Ok(())
        })
        .await
    })
}

#[test]
fn n2_an_isolated_task_is_not_let_go() -> Outcome {
    shared(async |scene| {
        let run = gated(&scene, "isolate-pipelinerun", LOCAL_STORAGE_CLASS)
            .task("two", &[], &["gate"])
            .asking("4");
        submit(&scene, [("2", 110), ("8", 110)], run).await?;
        scene.open_gate("run").await?;
        let told = scene.told("run", "ClaimsNotMovable").await?;
        assert!(!told.iter().any(|(code, _)| code == "PodLetGo"), "{told:?}");
        let waiting = waits(&scene).await?;
        assert!(!coscheduler_kubernetes::pods::follows(&waiting).is_empty());
        Ok(())
    })
}

/// Sets how much of a resource a node has. For resource `pods`, this is the maximum number of pods.
async fn allow(scene: &Scene<'_>, node: &str, resource: &str, amount: usize) -> Outcome {
    let amounts = json!({resource: amount.to_string()});
    let size = json!({"status": {"allocatable": amounts, "capacity": amounts}});
    let path = format!("/api/v1/nodes/{node}/status");
    scene.send_to("PATCH", &path, &size).await?.accepted()?;
    Ok(())
}

/// Kubernetes resizes no extended resource, so the placeholder cannot request such a resource to find a node that has it.
#[test]
fn n2_a_placeholder_stays_until_another_node_has_the_gpu_that_a_pod_lacks() -> Outcome {
    /// A node of the other scene may have this resource too, but the pods of this scene's run cannot run there.
    const GPU: &str = "example.dev/gpu";
    shared(async |scene| {
        try_join_all([(1, 0), (2, 1)].map(async |(gpu_node, moves)| {
            let scene = scene.stack.scene().await?;
            let run = gated(&scene, "pipelineruns", MOVABLE_STORAGE_CLASS)
                .task("two", &["source"], &["gate"])
                .asking_of(GPU, "1");
            submit(&scene, [("8", 110), ("8", 110)], run).await?;
            scene.open_gate("run").await?;
            let told = scene.told("run", "ResourceMissing").await?;
            assert_eq!(told.len(), 1, "{told:?}");
            assert!(told[0].1.contains(GPU), "{told:?}");
            let gpu_node = scene.pool_node(gpu_node);
            allow(&scene, &gpu_node, GPU, 1).await?;
            scene.succeeds("run").await?;
            assert_eq!(node_of(&scene, "two").await?, gpu_node);
            let told = scene.told_so_far("run").await?;
            let moved = told.iter().filter(|(code, _)| code == "PlaceholderMoved");
            assert_eq!(moved.count(), moves, "{told:?}");
            scene.nothing_left_but(&[]).await
        }))
        .await?;
        Ok(())
    })
}

#[test]
fn n2_runs_whose_placeholders_alone_fill_every_node_get_on() -> Outcome {
    shared(async |scene| {
        scene.pool(2).await?;
        let mut on = BTreeMap::<_, Vec<_>>::new();
        for _ in 0..4 {
            let of = scene.stack.scene().await?;
            let run = gated(&scene, "pipelineruns", MOVABLE_STORAGE_CLASS).task(
                "two",
                &["source"],
                &["gate"],
            );
            of.submit(run).await?;
            of.at_gate("run").await?;
            let placeholder = of.placeholder().await?.1;
            let node = node(&placeholder).context("not bound")?.to_owned();
            on.entry(node).or_default().push(of);
        }
        // The placeholders alone leave no room for a pod.
        for number in 1..=2 {
            let node = scene.pool_node(number);
            let pods = on.get(&node).map_or(0, Vec::len);
            allow(&scene, &node, "pods", pods).await?;
        }
        for of in on.values().flatten() {
            of.open_gate("run").await?;
        }
        // A placeholder that leaves its node makes room for another run's pod.
        for of in on.values().flatten() {
            of.succeeds("run").await?;
            of.nothing_left_but(&[]).await?;
        }
        Ok(())
    })
}

/// An earlier version of the manager waited a minute for an autoscaler after each new node.
#[test]
fn n4_nodes_that_come_all_the_time_delay_no_move() -> Outcome {
    shared(async |scene| {
        submit(
            &scene,
            [("2", 110), ("8", 110)],
            growing(&scene, "pipelineruns"),
        )
        .await?;
        let others = scene.stack.scene().await?;
        let added = Cell::new(0);
        let nodes = async {
            for number in 1.. {
                others.add_node(number, "1", 110).await?;
                added.set(number);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            anyhow::Ok(())
        };
        let moved = async {
            scene.open_gate("run").await?;
            waits(&scene).await?;
            let (since, before) = (Instant::now(), added.get());
            scene.moved_from(&scene.pool_node(1)).await?;
            anyhow::Ok((since.elapsed(), added.get() - before))
        };
        let (moved, new) = tokio::select! {
            moved = moved => moved?,
            failed = nodes => bail!("{failed:?}"),
        };
        println!("The placeholder left after {moved:?} and {new} new nodes");
        assert!(new > 0);
        // A move normally takes two seconds, or up to fourteen if the placeholder was bound a moment before.
        assert!(moved < Duration::from_secs(40), "{moved:?}");
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

/// No pod can follow a placeholder on a node without label `kubernetes.io/hostname`. So the placeholder leaves such a
/// node, as it leaves a node without room. Here, there is no other node, so the placeholder returns.
#[test]
fn n2_n3_a_run_on_a_node_without_a_hostname_label_goes_on_once_the_node_has_the_label() -> Outcome {
    shared(async |scene| {
        each(scene.stack, &MODES, async |scene, mode| {
            scene.pool(1).await?;
            let nameless = scene.pool_node(1);
            scene.take_hostname(&nameless).await?;
            let run = run("run")
                .in_mode(mode)
                .in_pool_of(scene)
                .template_of_class("source", MOVABLE_STORAGE_CLASS)
                .task("one", &["source"], &[]);
            scene.submit(run).await?;
            let waiting = waits(scene).await?;
            let (_, placeholder) = scene.placeholder().await?;
            assert_eq!(node(&placeholder), Some(nameless.as_str()));
            let told = scene.told("run", "PlaceholderMoved").await?;
            let text = &told.last().context("nothing was told")?.1;
            assert!(text.contains(&waiting.name_any()), "{text}");
            assert!(text.contains(&nameless), "{text}");
            scene.refuse_no_more().await?;
            scene.give_hostname(&nameless).await?;
            scene.succeeds("run").await?;
            assert_eq!(node_of(scene, "one").await?, nameless);
            scene.nothing_left_but(&[]).await
        })
        .await
    })
}
