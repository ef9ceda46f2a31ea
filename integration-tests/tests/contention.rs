//! Pods that find no room beside their placeholder (N2, N4). Each case has nodes of its own, which its pods reach by node
//! selector.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::audit::Request;
use integration_tests::cramped::{gated, stranger, submit, waits};
use integration_tests::look::node;
use integration_tests::metrics;
use integration_tests::stack::Stack;
use integration_tests::{Scene, alone_with, shared_with_overrides};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt as _;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, PostParams,
};
use serde_json::json;
use testbed::services::Service;
use testbed::{Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const BLOCKED: &str = "coscheduler.dev/blocked";
const LET_GO: &str = "coscheduler.dev/let-go";
const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
const HOLD: &str = "SCALE_UP_HOLD";
/// How long a condition that is polled for may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// On a stack on which each run chooses its mode, and on which new nodes do not hold moves back for long.
fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let config = Config {
        nodes: 1,
        audit_log: true,
        ..Config::default()
    };
    let hold = (HOLD.to_owned(), "100ms".to_owned());
    shared_with_overrides(config, |services| services.environment.push(hold), test)
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

#[test]
fn n2_a_node_too_small_for_the_second_task_is_left() -> Outcome {
    shared(async |scene| {
        each(scene.stack, &MODES, async |scene, mode| {
            let run = gated(scene, mode, MOVABLE_STORAGE_CLASS)
                .task("two", &["source"], &["gate"])
                .asking("4")
                .task("three", &["source"], &["two"]);
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

#[test]
fn n2_a_moved_placeholder_may_go_anywhere_again() -> Outcome {
    shared(async |scene| {
        let run = gated(&scene, "pipelineruns", MOVABLE_STORAGE_CLASS)
            .task("two", &["source"], &["gate"])
            .asking("4")
            .task("three", &["source"], &["two"])
            .lasting("two", 5);
        submit(&scene, [("2", 110), ("8", 110)], run).await?;
        let (before, _) = scene.placeholder().await?;
        let template = |set: &StatefulSet| set.spec.as_ref().map(|spec| spec.template.clone());
        scene.open_gate("run").await?;
        scene.moved_from(&scene.pool_node(1)).await?;
        scene
            .until(
                &before.name_any(),
                "is as it was",
                |set: Option<&StatefulSet>| {
                    set.is_some_and(|set| template(set) == template(&before))
                },
            )
            .await?;
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await
    })
}

#[test]
fn n2_a_node_at_its_pod_limit_is_left() -> Outcome {
    shared(async |scene| {
        each(scene.stack, &MODES, async |scene, mode| {
            let run = gated(scene, mode, MOVABLE_STORAGE_CLASS).task("two", &["source"], &["gate"]);
            submit(scene, [("8", 2), ("8", 2)], run).await?;
            stranger(scene).await?;
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
            assert_eq!(scene.told_so_far("run").await?, [], "{mode}");
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

#[test]
fn n2_a_task_that_fits_no_node_is_reported_and_goes_on_once_there_is_one() -> Outcome {
    shared(async |scene| {
        each(scene.stack, &MODES, async |scene, mode| {
            let run = gated(scene, mode, MOVABLE_STORAGE_CLASS)
                .task("two", &["source"], &["gate"])
                .asking("64");
            submit(scene, [("2", 110), ("8", 110)], run).await?;
            scene.open_gate("run").await?;
            let told = scene.told("run", "PodFitsNoNode").await?;
            let (_, message) = &told[0];
            assert!(
                message.contains("cpu 64") && message.contains("cpu 8"),
                "{message}"
            );
            let is_blocked = |run: Option<&PipelineRun>| {
                run.is_some_and(|run| run.annotations().contains_key(BLOCKED))
            };
            scene.until("run", "is blocked", is_blocked).await?;
            scene.add_node(3, "80", 110).await?;
            scene.succeeds("run").await?;
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

/// Sets the number of pods that a node takes.
async fn allow_pods(scene: &Scene<'_>, node: &str, pods: usize) -> Outcome {
    let pods = json!({"pods": pods.to_string()});
    let size = json!({"status": {"allocatable": pods, "capacity": pods}});
    let path = format!("/api/v1/nodes/{node}/status");
    scene.send_to("PATCH", &path, &size).await?.accepted()?;
    Ok(())
}

#[test]
fn n2_runs_whose_placeholders_alone_fill_every_node_go_on_once_one_ends() -> Outcome {
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
            on.entry(node).or_default().push((of, placeholder));
        }
        // The placeholders alone leave no room for a pod.
        for number in 1..=2 {
            let node = scene.pool_node(number);
            allow_pods(&scene, &node, on.get(&node).map_or(0, Vec::len)).await?;
        }
        for (of, _) in on.values().flatten() {
            of.open_gate("run").await?;
        }
        for (of, placeholder) in on.values().flatten() {
            of.told("run", "NodesFull").await?;
            // No placeholder has moved.
            let now = of.placeholder().await?.1;
            assert_eq!(now.metadata.uid, placeholder.metadata.uid);
        }
        let mut nodes: Vec<_> = on.into_values().collect();
        nodes.sort_by_key(Vec::len);
        let (ends, _) = nodes
            .last_mut()
            .and_then(Vec::pop)
            .context("nobody is there")?;
        let runs = ends.api::<PipelineRun>();
        runs.delete("run", &DeleteParams::background()).await?;
        for (of, _) in nodes.iter().flatten() {
            of.succeeds("run").await?;
            of.nothing_left_but(&[]).await?;
        }
        ends.nothing_left_but(&[]).await
    })
}

/// Polls until `holds` does.
async fn until(holds: impl AsyncFn() -> anyhow::Result<bool>) -> Outcome {
    let wait = async {
        while !holds().await? {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, wait).await?
}

/// Restarts the manager, which forgets the nodes that were added.
async fn restart(scene: &Scene<'_>) -> Outcome {
    let services = &scene.stack.services;
    services.kill(Service::PlaceholderManager)?;
    services.start_service(Service::PlaceholderManager)?;
    services.wait_ready().await?;
    Ok(())
}

#[test]
fn n4_a_scale_up_in_flight_holds_moves_back() -> Outcome {
    let config = Config {
        nodes: 1,
        audit_log: true,
        ..Config::default()
    };
    let hold = (HOLD.to_owned(), "1h".to_owned());
    alone_with(
        config,
        |services| services.environment.push(hold),
        async |scene| {
            let run = gated(scene, "pipelineruns", MOVABLE_STORAGE_CLASS)
                .metadata("annotations", json!({}))
                .task("two", &["source"], &["gate"])
                .asking("4");
            // The nodes of the pool were added just now, as far as the manager knows.
            submit(scene, [("2", 110), ("8", 110)], run).await?;
            scene.open_gate("run").await?;
            let pod = waits(scene).await?;
            let event: Event = serde_json::from_value(json!({
                "metadata": {"name": "scale-up"},
                "type": "Normal",
                "reason": "TriggeredScaleUp",
                "message": "pod triggered scale-up: [{pool 1->2 (max: 3)}]",
                "source": {"component": "cluster-autoscaler"},
                "involvedObject": {
                    "apiVersion": "v1", "kind": "Pod", "namespace": scene.namespace, "name": pod.name_any(), "uid": pod.uid(),
                },
            }))?;
            let events = scene.api::<Event>();
            events.create(&PostParams::default(), &event).await?;
            let mark = scene.mark()?;
            restart(scene).await?;
            let asks = |request: &Request| {
                let lists = request.verb == "list" && request.object.resource == "events";
                lists && request.is_by(Service::PlaceholderManager)
            };
            until(async || Ok(scene.requests_since(mark)?.iter().any(asks))).await?;
            // It has looked twice more, and not acted.
            let manager = scene
                .stack
                .services
                .http_address(Service::PlaceholderManager);
            let looks = async || {
                let metrics = metrics::scrape(&manager).await?;
                let of_rescue = [("queue", "rescue")];
                anyhow::Ok(metrics::sum(
                    &metrics,
                    "coscheduler_reconciles_total",
                    &of_rescue,
                ))
            };
            let before = looks().await?;
            until(async || Ok(looks().await? > before + 1.0)).await?;
            let (_, placeholder) = scene.placeholder().await?;
            assert_eq!(node(&placeholder), Some(scene.pool_node(1).as_str()));
            assert_eq!(placeholder.metadata.deletion_timestamp, None);
            // A manager that has never seen the Event moves the placeholder at once.
            events.delete("scale-up", &DeleteParams::default()).await?;
            restart(scene).await?;
            scene.succeeds("run").await?;
            assert_eq!(node_of(scene, "two").await?, scene.pool_node(2));
            Ok(())
        },
    )
}
