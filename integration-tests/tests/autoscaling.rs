//! Runs whose next task fits on no existing node (N7). The real Karpenter adds nodes for them, and not many more than for the
//! same runs without coscheduling. If the claims of a run cannot be mounted on another node, its author gets an Event.
//!
//! Each mode has a pool of its own: two nodes of two CPUs and 4Gi, and the nodes that Karpenter adds. All modes are measured at
//! the same time, with the same runs. The runs of a mode are created in waves. When the last tasks of all runs of a wave are
//! running, they are allowed to end. So the number of added nodes does not depend on the speed of the machine. Before the next
//! wave, the added nodes are deleted.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use coscheduler_core::config::Reserves;
use coscheduler_core::observed::PodPhase;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods::{has_started, is_unschedulable, phase};
use futures::future::{try_join, try_join_all};
use integration_tests::cramped::stranger;
use integration_tests::growth::Added;
use integration_tests::look::node;
use integration_tests::nodes::POOL;
use integration_tests::runs::{Run, run};
use integration_tests::stack::{Stack, lead_for_long};
use integration_tests::{Scene, alone_with, at_scale, shared_with_overrides};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::json;
use testbed::services::ServicesConfig;
use testbed::{Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
const WITHOUT: &str = "disabled";
/// The number of runs that are created at the same time, for each wave. At full scale, these are fifty runs in six waves, one
/// after the other. The last three runs are alone.
fn waves() -> &'static [usize] {
    at_scale(&[8, 1], &[20, 20, 7, 1, 1, 1])
}
/// The longest time from the moment when the scheduler finds no node for a task's pod until the Event that the claims cannot
/// follow. The test reads the first time from the pod's condition, in whole seconds. It reads the second time from the Event.
const TOLD: Duration = Duration::from_secs(10);

/// Makes the tests of this file run one after the other, because each sets the configuration and measures times.
static TURN: Mutex<()> = Mutex::new(());

fn bed() -> Config {
    Config {
        nodes: 1,
        karpenter: true,
        ..Config::default()
    }
}

/// Runs a test on the shared bed with Karpenter, with this value of `placeholder-reserves`.
fn shared(reserves: Reserves, test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    shared_with_overrides(bed(), lead_for_long, async |scene| {
        scene.set_reserves(reserves).await?;
        test(scene).await
    })
}

/// A scene with two nodes of two CPUs and 4Gi, to which Karpenter may add nodes.
async fn elastic(stack: &Stack) -> anyhow::Result<Scene<'_>> {
    let scene = stack.scene().await?;
    scene
        .pool_with_memory(&[("2", "4Gi"), ("2", "4Gi")])
        .await?;
    scene.let_pool_grow().await?;
    Ok(scene)
}

fn name(number: usize) -> String {
    format!("run-{number}")
}

/// A run whose second task fits on no existing node, because of its CPU or its memory. The run has no claim, or a claim that
/// every node can reach. Each second task needs a node of 8 CPUs and 16Gi. All need the same size, because the scheduler, and
/// not Karpenter, chooses the node of a pod. With two sizes, an isolated run could occupy a larger node than it needs, and
/// leave only a smaller one for the next run.
fn growing(scene: &Scene<'_>, mode: &str, number: usize) -> Run {
    let asks = [("cpu", "6"), ("memory", "12Gi")];
    let (resource, amount) = asks[number % 2];
    let run = run(&name(number)).in_pool_of(scene);
    let (run, uses): (_, &[&str]) = match number / 2 % 2 {
        0 => {
            let run = run.template_of_class("source", MOVABLE_STORAGE_CLASS);
            (run, &["source"])
        }
        _ => (run, &[]),
    };
    run.in_mode(mode)
        .task("one", uses, &[])
        .asking("100m")
        .task("two", uses, &["one"])
        .asking_of(resource, amount)
        .held("two")
}

/// Creates runs at the same time, and waits until they have succeeded. Returns the nodes that Karpenter added for them.
async fn wave(scene: &Scene<'_>, mode: &str, numbers: Range<usize>) -> anyhow::Result<Added> {
    let began = Instant::now();
    try_join_all(
        numbers
            .clone()
            .map(|number| scene.submit(growing(scene, mode, number))),
    )
    .await?;
    let runs = |pod: &Arc<Pod>| {
        let task = pod.labels().get("tekton.dev/pipelineTask");
        task.is_some_and(|task| task == "two") && phase(pod) == PodPhase::Running
    };
    let what = format!("of all second tasks run, in {mode}");
    scene
        .until_all::<Pod>(&what, |pods| {
            pods.iter().filter(|pod| runs(pod)).count() == numbers.len()
        })
        .await?;
    let took = began.elapsed();
    try_join_all(numbers.clone().map(async |number| {
        let name = name(number);
        scene.end(&name, "two").await?;
        scene.succeeds(&name).await.map(drop)
    }))
    .await?;
    let all = ListParams::default();
    let runs = scene.api::<PipelineRun>();
    runs.delete_collection(&DeleteParams::background(), &all)
        .await?;
    scene.nothing_left_but(&[]).await?;
    scene
        .until_all::<Pod>("are gone", |pods| pods.is_empty())
        .await?;
    let added = scene.take_added_nodes().await?;
    println!("{mode:>20}: {numbers:?} in {took:.0?}: {added}");
    Ok(added)
}

/// Creates waves of runs in a mode, one after the other. Returns the mode and the added nodes.
async fn play(
    stack: &Stack,
    mode: &'static str,
    waves: &[usize],
) -> anyhow::Result<(&'static str, Added)> {
    let scene = elastic(stack).await?;
    let (mut added, mut first) = (Added::default(), 0);
    for runs in waves {
        added = added.and(&wave(&scene, mode, first..first + runs).await?);
        first += runs;
    }
    Ok((mode, added))
}

/// Creates the same runs in each mode. Checks that runs that reserve room need at most one and a half times as many CPUs as
/// without coscheduling, and that isolated runs need at most one node each. With `nothing`, isolated runs may need any number of
/// nodes, and other runs five times as many CPUs.
fn in_each_mode(reserves: Reserves, waves: &[usize]) -> Outcome {
    let runs: usize = waves.iter().sum();
    shared(reserves, async |scene| {
        let modes = MODES.into_iter().chain([WITHOUT]);
        let added = try_join_all(modes.map(|mode| play(scene.stack, mode, waves))).await?;
        let added: BTreeMap<_, _> = added.into_iter().collect();
        for (mode, added) in &added {
            println!("{reserves}: {mode} adds {added} for {runs} runs");
        }
        // In halves of what Karpenter adds without coscheduling.
        let most = match reserves {
            Reserves::Nothing => 10,
            Reserves::Placement | Reserves::Peak => 3,
        };
        for mode in ["workspaces", "pipelineruns"] {
            let (with, without) = (added[mode].cpus(), added[WITHOUT].cpus());
            ensure!(without > 0, "{reserves}: nothing was added");
            ensure!(
                2 * with <= most * without,
                "{reserves}: {mode} adds {with} CPUs, without coscheduling it is {without}"
            );
        }
        let isolated = added["isolate-pipelinerun"].nodes();
        ensure!(
            isolated <= runs || reserves == Reserves::Nothing,
            "{isolated} nodes for {runs} isolated runs"
        );
        Ok(())
    })
}

#[test]
fn n7_b3_an_autoscaler_adds_nodes_for_many_runs_that_reserve_room() -> Outcome {
    in_each_mode(Reserves::Placement, waves())
}

#[test]
fn n7_b3_an_autoscaler_adds_nodes_for_runs_that_keep_their_room() -> Outcome {
    in_each_mode(Reserves::Peak, &[10])
}

/// The added nodes are larger than necessary, for two reasons. Karpenter adds up the requests of the placeholder and of the pod
/// that follows the placeholder. And Karpenter treats the placeholders' preference for nodes of their own as a requirement.
#[test]
fn n7_an_autoscaler_adds_nodes_for_runs_that_reserve_nothing() -> Outcome {
    in_each_mode(Reserves::Nothing, &[6])
}

/// With `--peak-wait`, the placeholder requests the room for all four tasks until Karpenter has added a node with this room.
#[test]
fn n7_b3_an_autoscaler_adds_a_node_for_the_tasks_that_run_side_by_side() -> Outcome {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let change = |services: &mut ServicesConfig| {
        services.mode = Some("pipelineruns".to_owned());
        let wait = ("PEAK_WAIT".to_owned(), "2m".to_owned());
        services.environment.push(wait);
    };
    alone_with(bed(), change, async |scene| {
        let scene = elastic(scene.stack).await?;
        let run = run("run")
            .in_pool_of(&scene)
            .template_of_class("source", MOVABLE_STORAGE_CLASS)
            .task("one", &["source"], &[]);
        let tasks = ["a", "b", "c", "d"];
        let run = tasks.into_iter().fold(run, |run, task| {
            run.task(task, &["source"], &["one"])
                .asking("1500m")
                .held(task)
        });
        scene.submit(run).await?;
        let is_there = |pod: &&Arc<Pod>| {
            let task = pod.labels().get("tekton.dev/pipelineTask");
            task.is_some_and(|it| tasks.contains(&it.as_str())) && phase(pod) == PodPhase::Running
        };
        scene
            .until_all::<Pod>("of the four tasks run", |pods| {
                pods.iter().filter(is_there).count() == tasks.len()
            })
            .await?;
        for task in tasks {
            scene.end("run", task).await?;
        }
        scene.succeeds("run").await?;
        scene.nothing_left_but(&[]).await?;
        let added = scene.take_added_nodes().await?;
        println!("side by side: {added}");
        ensure!(added.nodes() == 1, "{added}");
        Ok(())
    })
}

/// The values of `placeholder-reserves`, except `placement`.
fn others() -> impl Iterator<Item = Reserves> {
    let all = Reserves::ALL.into_iter();
    all.filter(|reserves| *reserves != Reserves::Placement)
}

/// Brings a run to its gate, fills the nodes with other pods, and opens the gate. The second task of the run then requests more
/// than is left on each node.
async fn crowded_out(scene: &Scene<'_>, mode: &str, class: &str) -> Outcome {
    let run = run("later")
        .in_mode(mode)
        .in_pool_of(scene)
        .template_of_class("source", class)
        .task("one", &["source"], &[])
        .gate(&["one"])
        .task("two", &["source"], &["gate"])
        .asking("1500m");
    scene.submit(run).await?;
    scene.at_gate("later").await?;
    for number in 1..=2 {
        stranger(scene, &scene.pool_node(number), "1").await?;
    }
    scene.open_gate("later").await
}

#[test]
fn n7_b3_a_node_is_added_for_a_run_whose_room_others_took() -> Outcome {
    shared(Reserves::Placement, async |scene| {
        try_join_all(MODES.map(async |mode| {
            let scene = elastic(scene.stack).await?;
            crowded_out(&scene, mode, MOVABLE_STORAGE_CLASS).await?;
            scene.succeeds("later").await?;
            let told = scene.told("later", "PlaceholderMoved").await?;
            let moved = told.iter().filter(|(code, _)| code == "PlaceholderMoved");
            ensure!(moved.count() == 1, "{mode}: {told:?}");
            let added = scene.take_added_nodes().await?;
            println!("{mode}: {added}");
            ensure!(added.nodes() == 1, "{mode}: {added}");
            scene.nothing_left_but(&[]).await
        }))
        .await?;
        Ok(())
    })
}

/// Creates a pod of no run in the scene's pool, and waits until it is on a node. Returns the name of this node.
async fn bystander(scene: &Scene<'_>) -> anyhow::Result<String> {
    let asks = json!({"requests": {"cpu": "1500m"}});
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "bystander"},
        "spec": {
            "nodeSelector": {POOL: scene.namespace},
            "tolerations": [scene.pool_toleration()],
            "containers": [{"name": "c", "image": "example/image", "resources": asks}],
        },
    }))?;
    let pods = scene.api::<Pod>();
    pods.create(&PostParams::default(), &pod).await?;
    let bound = |pod: Option<&Pod>| pod.is_some_and(has_started);
    let pod = scene.until("bystander", "runs", bound).await?;
    let node = pod.as_ref().and_then(node).context("it has no node")?;
    Ok(node.to_owned())
}

/// While an isolated run waits at its gate, only its placeholder is on the node that Karpenter added for the run. The placeholder
/// would fit on another node. The test waits until Karpenter has removed a second added node, whose only pod fits on another node
/// too. By then, Karpenter has also decided to keep the node of the run.
#[test]
fn n7_m4_the_node_added_for_an_isolated_run_is_removed_after_the_run_and_not_between_its_tasks()
-> Outcome {
    shared(Reserves::Placement, async |scene| {
        let scene = elastic(scene.stack).await?;
        let pool = [1, 2].map(|number| scene.pool_node(number));
        for name in &pool {
            scene.cordon(name, true).await?;
        }
        let others = bystander(&scene).await?;
        let run = run("run")
            .in_mode("isolate-pipelinerun")
            .in_pool_of(&scene)
            .task("one", &[], &[])
            .asking("6")
            .gate(&["one"])
            .task("two", &[], &["gate"])
            .asking("6");
        scene.submit(run).await?;
        scene.at_gate("run").await?;
        let (_, before) = scene.placeholder().await?;
        let home = node(&before).context("it has no node")?;
        ensure!(home != others, "both pods are on {home}");
        for name in &pool {
            scene.cordon(name, false).await?;
        }
        scene.let_pool_shrink().await?;
        scene.node_is_removed(&others).await?;
        let (_, now) = scene.placeholder().await?;
        ensure!(now.uid() == before.uid(), "the placeholder left {home}");
        ensure!(
            now.metadata.deletion_timestamp.is_none(),
            "it leaves {home}"
        );
        scene.open_gate("run").await?;
        scene.succeeds("run").await?;
        for pod in scene.objects().await?.task_pods {
            ensure!(node(&pod) == Some(home), "{} left {home}", pod.name_any());
        }
        scene.nothing_left_but(&[]).await?;
        scene.node_is_removed(home).await
    })
}

/// The time at which the scheduler first found no node for the pod with this name.
async fn found_no_room(scene: &Scene<'_>, name: &str) -> anyhow::Result<Timestamp> {
    let since = |pod: &Pod| {
        let conditions = pod.status.as_ref()?.conditions.as_ref()?;
        let mut conditions = conditions.iter();
        let scheduled = conditions.find(|condition| condition.type_ == "PodScheduled")?;
        let refused = pod.name_any() == name && is_unschedulable(pod);
        refused.then_some(scheduled.last_transition_time.as_ref()?.0)
    };
    let pods = scene
        .until_all::<Pod>("wait for room", |pods| {
            pods.iter().any(|pod| since(pod).is_some())
        })
        .await?;
    pods.iter()
        .find_map(|pod| since(pod))
        .context("it has gone")
}

/// The time and the text of the first Event that tells the author of a run that its claims cannot follow.
async fn told_of_claims(scene: &Scene<'_>, run: &str) -> anyhow::Result<(Timestamp, String)> {
    let about = |event: &Event| {
        let regards = event.regarding.as_ref()?;
        let code = event.reason.as_deref()?;
        let says_so = regards.kind.as_deref() == Some("PipelineRun")
            && regards.name.as_deref() == Some(run)
            && ["ClaimsNotMovable", "VolumeNodeAffinityConflict"].contains(&code);
        let note = event.note.as_deref().unwrap_or_default();
        says_so.then_some((event.event_time.as_ref()?.0, format!("{code}: {note}")))
    };
    let told = scene.until_all::<Event>("tell of claims that cannot follow", |events| {
        events.iter().any(|event| about(event).is_some())
    });
    match tokio::time::timeout(3 * TOLD, told).await {
        Ok(events) => {
            let told = events?.iter().filter_map(|event| about(event)).min();
            told.context("it has gone")
        }
        Err(_) => bail!("told only {:?}", scene.told_so_far(run).await?),
    }
}

async fn told_in_time(scene: &Scene<'_>, run: &str, what: &str) -> Outcome {
    let waits = found_no_room(scene, &format!("{run}-two-pod")).await?;
    let (told, words) = told_of_claims(scene, run).await?;
    let after = told.duration_since(waits).as_secs_f64();
    println!("{what}: told after {after:.1} s: {words}");
    ensure!(after < TOLD.as_secs_f64(), "told after {after} s");
    Ok(())
}

/// The claim is on a node that other pods have filled.
async fn claim_in_a_crowd(stack: &Stack, mode: &str, what: &str) -> Outcome {
    let scene = elastic(stack).await?;
    crowded_out(&scene, mode, LOCAL_STORAGE_CLASS).await?;
    told_in_time(&scene, "later", what).await?;
    // The run continues as soon as there is room on the node of the claim.
    let pods = scene.api::<Pod>();
    for number in 1..=2 {
        let name = format!("stranger-{}", scene.pool_node(number));
        pods.delete(&name, &DeleteParams::default()).await?;
    }
    scene.succeeds("later").await?;
    scene.nothing_left_but(&[]).await
}

/// An earlier run bound the claim to a node that is too small for this run.
async fn claim_on_a_small_node(stack: &Stack, mode: &str, what: &str) -> Outcome {
    let scene = elastic(stack).await?;
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "cache"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": LOCAL_STORAGE_CLASS,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }))?;
    scene
        .api::<PersistentVolumeClaim>()
        .create(&PostParams::default(), &claim)
        .await?;
    let with_cache = |name: &str| {
        let source = json!({"persistentVolumeClaim": {"claimName": "cache"}});
        run(name)
            .in_mode(mode)
            .in_pool_of(&scene)
            .workspace("cache", source)
            .task("one", &["cache"], &[])
    };
    scene.submit(with_cache("before")).await?;
    scene.succeeds("before").await?;
    scene.nothing_left_but(&["cache"]).await?;
    let run = with_cache("run")
        .task("two", &["cache"], &["one"])
        .asking("6");
    scene.submit(run).await?;
    told_in_time(&scene, "run", what).await?;
    let runs = scene.api::<PipelineRun>();
    runs.delete("run", &DeleteParams::background()).await?;
    scene.nothing_left_but(&["cache"]).await
}

fn claims_that_cannot_follow(reserves: Reserves) -> Outcome {
    shared(reserves, async |scene| {
        let crowds = MODES.map(async |mode| {
            let what = format!("{reserves}, {mode}, a full node");
            claim_in_a_crowd(scene.stack, mode, &what)
                .await
                .context(what)
        });
        let small = MODES.map(async |mode| {
            let what = format!("{reserves}, {mode}, a small node");
            claim_on_a_small_node(scene.stack, mode, &what)
                .await
                .context(what)
        });
        try_join(try_join_all(crowds), try_join_all(small)).await?;
        Ok(())
    })
}

#[test]
fn n7_b3_claims_that_cannot_follow_a_run_that_reserves_room_are_told_in_ten_seconds() -> Outcome {
    claims_that_cannot_follow(Reserves::Placement)
}

#[test]
fn n7_b3_claims_that_cannot_follow_are_told_in_ten_seconds_whatever_else_is_reserved() -> Outcome {
    others().try_for_each(claims_that_cannot_follow)
}
