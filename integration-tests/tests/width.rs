//! Runs that request more than the nodes have (N2, B3): runs with many parallel tasks (wide runs) on small nodes, runs of
//! random shapes, and runs whose claims cannot move to another node. All runs succeed. (As after every test, a check fails if a
//! kubelet has rejected a pod.) With a reservation, wide runs take about as long as without a reservation.
//!
//! A seed decides the random shapes. The test prints the seed. With the seed in `COSCHEDULER_SEED`, the test repeats the same
//! shapes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use coscheduler_core::config::Reserves;
use coscheduler_core::observed::PodPhase;
use coscheduler_core::sizes::Sizes;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods::phase;
use fastrand::Rng;
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::look::is_done;
use integration_tests::runs::{Run, run};
use integration_tests::stack::lead_for_long;
use integration_tests::waits::Waits;
use integration_tests::{Scene, at_scale, shared_with_overrides};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::json;
use testbed::{Config, LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS};

type Outcome = anyhow::Result<()>;

const MODES: [&str; 3] = ["workspaces", "pipelineruns", "isolate-pipelinerun"];
/// The environment variable with the seed of a repeated test.
const SEED: &str = "COSCHEDULER_SEED";

/// The number of random runs.
fn random_runs() -> usize {
    at_scale(60, 200)
}

/// The values for random runs. Without a reservation, a claim may be bound for ever to a node that is too small for a task.
const RESERVES: [Reserves; 2] = [Reserves::Placement, Reserves::Peak];
/// The number of random runs that are active at the same time. Together, they request more than the nodes have.
const AT_ONCE: usize = 24;
/// How long a pod may wait although its placeholder's node has room for the pod, or the placeholder reserves this room.
const HELD: Duration = Duration::from_secs(30);

/// Makes the tests of this file run one after the other, because each sets the configuration and keeps the machine busy.
static TURN: Mutex<()> = Mutex::new(());

fn shared(test: impl AsyncFnOnce(Scene<'static>) -> Outcome) -> Outcome {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let config = Config {
        nodes: 1,
        ..Config::default()
    };
    shared_with_overrides(config, lead_for_long, test)
}

/// A Task with one step, which requests this much CPU.
async fn create_task(scene: &Scene<'_>, cpu: &str) -> Outcome {
    let requests = json!({"requests": {"cpu": cpu}});
    let step = json!({"name": "step", "image": "example/image", "command": ["true"], "computeResources": requests});
    let task = json!({
        "apiVersion": "tekton.dev/v1", "kind": "Task", "metadata": {"name": "work"},
        "spec": {"workspaces": [{"name": "source"}], "steps": [step]},
    });
    let created = scene.send("POST", "tekton.dev/v1/tasks", &task).await?;
    created.accepted().map(drop)
}

/// A run with `width` parallel tasks, which share a claim and so one node. All tasks use the same Task. With steps in the run,
/// Tekton would write the steps of all tasks into the run's status at each change.
fn wide(scene: &Scene<'_>, mode: &str, width: usize, seconds: u32) -> Run {
    let run = run("wide")
        .in_mode(mode)
        .in_pool_of(scene)
        .template_of_class("source", MOVABLE_STORAGE_CLASS);
    (0..width).fold(run, |run, number| {
        let task = format!("task-{number}");
        run.task(&task, &["source"], &[])
            .referring("work")
            .lasting(&task, seconds)
    })
}

/// Waits until the wide run has succeeded and its objects are deleted. Checks that its placeholder reserved room if it should.
/// Returns the time from `began` until the run succeeded.
async fn time_of(
    scene: &Scene<'_>,
    reserves: Reserves,
    width: usize,
    began: Instant,
) -> anyhow::Result<Duration> {
    let ended = |pod: &Pod| phase(pod) == PodPhase::Succeeded;
    scene.until_many("have ended", width, ended).await?;
    scene.succeeds("wide").await?;
    let took = began.elapsed();
    let codes = codes(scene).await?;
    println!("told: {codes:?}");
    scene.nothing_left_but(&[]).await?;
    // The node is too small for all tasks together.
    let asked_for_more = codes.contains_key("ReservationReduced");
    ensure!(
        asked_for_more == (reserves == Reserves::Placement),
        "{reserves}: {codes:?}"
    );
    Ok(took)
}

/// Checks that a wide run takes at most 1.1 times as long with `placement` as with `nothing`. Both runs are active at the same
/// time, each on nodes of its own, so that a busy machine delays both. A busy machine can delay one of them more than the other,
/// by more than a tenth. So up to four pairs of runs are made, in alternating order, until the shortest time with `placement`
/// and the shortest time with `nothing` pass this check.
fn takes_no_longer(mode: &str, width: usize, cpu: &str, seconds: u32) -> Outcome {
    let mut order = [Reserves::Nothing, Reserves::Placement];
    let mut best = BTreeMap::<Reserves, Duration>::new();
    shared(async |scene| {
        for _ in 0..4 {
            let mut runs = Vec::new();
            for reserves in order {
                let of = scene.stack.scene().await?;
                create_task(&of, cpu).await?;
                of.pool_of(&[("4", 500), ("4", 500)]).await?;
                of.set_reserves(reserves).await?;
                let began = Instant::now();
                let run = of.submit(wide(&of, mode, width, seconds)).await?;
                let sizes = Sizes::read(run.annotations()).unwrap();
                let known = sizes.0.values().filter(|task| task.requests.is_some());
                ensure!(known.count() == width, "the webhook does not know the Task");
                runs.push(async move {
                    let took = time_of(&of, reserves, width, began).await?;
                    anyhow::Ok((reserves, took))
                });
            }
            for (reserves, took) in try_join_all(runs).await? {
                let best = best.entry(reserves).or_insert(took);
                *best = took.min(*best);
            }
            let [with, without] = [Reserves::Placement, Reserves::Nothing].map(|it| best[&it]);
            println!("{width} wide, {mode}: {with:.1?} with placement, {without:.1?} with nothing");
            if 10 * with.as_millis() <= 11 * without.as_millis() {
                return Ok(());
            }
            order.reverse();
        }
        bail!("{width} wide, {mode}: {best:.1?}")
    })
}

/// A reservation costs up to two seconds at the start of a run, because a kubelet acts on a resize after one to two seconds. So
/// the tasks must not be too short. For example, with tasks of four seconds, a run took 19.9 s with a reservation, and 17.9 s
/// without.
fn ten_wide(mode: &str) -> Outcome {
    takes_no_longer(mode, 10, "1", 10)
}

#[test]
fn b3_n2_a_run_ten_wide_takes_turns_on_a_small_node_in_the_same_time() -> Outcome {
    ten_wide("pipelineruns")
}

#[test]
fn b3_n2_m1_a_run_ten_wide_takes_turns_in_the_same_time_if_claims_are_coscheduled() -> Outcome {
    ten_wide("workspaces")
}

#[test]
fn b3_n2_m4_an_isolated_run_ten_wide_takes_turns_in_the_same_time() -> Outcome {
    ten_wide("isolate-pipelinerun")
}

#[test]
fn b3_n2_a_very_wide_run_takes_turns_on_a_small_node_in_the_same_time() -> Outcome {
    let (width, seconds) = at_scale((64, 6), (256, 3));
    takes_no_longer("pipelineruns", width, "500m", seconds)
}

/// A run of random shape.
#[derive(Clone, Debug, PartialEq)]
struct Case {
    name: String,
    mode: &'static str,
    reserves: Reserves,
    /// The storage classes of its claims.
    claims: Vec<&'static str>,
    tasks: Vec<Task>,
    finally: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Task {
    /// The indices of the earlier tasks after which this task runs.
    after: Vec<usize>,
    /// The indices of the claims that this task uses.
    uses: Vec<usize>,
    cpu: &'static str,
    memory: &'static str,
    seconds: u32,
}

/// The CPUs of each node, and its maximum number of pods.
const NODES: [(&str, u32); 7] = [
    ("1500m", 110),
    ("1500m", 110),
    ("2500m", 110),
    ("2500m", 110),
    ("4", 110),
    ("4", 110),
    ("8", 110),
];

fn cases(seed: u64) -> Vec<Case> {
    let mut rng = Rng::with_seed(seed);
    (0..random_runs())
        .map(|index| case(&mut rng, index))
        .collect()
}

fn case(rng: &mut Rng, index: usize) -> Case {
    let mode = pick(
        rng,
        &[MODES[0], MODES[0], MODES[1], MODES[1], MODES[1], MODES[2]],
    );
    let claims: Vec<_> = (0..rng.usize(0..3))
        .map(|_| pick(rng, &[LOCAL_STORAGE_CLASS, MOVABLE_STORAGE_CLASS]))
        .collect();
    let tasks = (0..rng.usize(2..5)).map(|number| Task {
        after: (0..number).filter(|_| rng.u8(0..3) == 0).collect(),
        uses: match (mode, claims.len()) {
            (_, 0) => Vec::new(),
            // In this mode, a task with two claims is refused (M2).
            ("workspaces", claims) => Vec::from_iter(rng.bool().then(|| rng.usize(..claims))),
            (_, claims) => (0..claims).filter(|_| rng.bool()).collect(),
        },
        cpu: pick(rng, &["0", "100m", "250m", "500m", "1", "1500m", "2", "3"]),
        memory: pick(rng, &["0", "0", "512Mi", "2Gi", "6Gi"]),
        seconds: rng.u32(1..4),
    });
    let tasks = tasks.collect();
    Case {
        name: format!("run-{index:03}"),
        mode,
        reserves: pick(rng, &RESERVES),
        claims,
        tasks,
        finally: rng.u8(0..4) == 0,
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

impl Case {
    fn run(&self, scene: &Scene<'_>) -> Run {
        let named = |prefix: &str, numbers: &[usize]| -> Vec<String> {
            numbers.iter().map(|it| format!("{prefix}-{it}")).collect()
        };
        fn refs(names: &[String]) -> Vec<&str> {
            names.iter().map(String::as_str).collect()
        }
        let mut built = run(&self.name).in_pool_of(scene);
        for (number, class) in self.claims.iter().enumerate() {
            built = built.template_of_class(&format!("claim-{number}"), class);
        }
        for (number, task) in self.tasks.iter().enumerate() {
            let name = format!("task-{number}");
            let (uses, after) = (named("claim", &task.uses), named("task", &task.after));
            built = built
                .task(&name, &refs(&uses), &refs(&after))
                .asking(task.cpu)
                .asking_of("memory", task.memory)
                .lasting(&name, task.seconds);
        }
        if self.finally {
            built = built.finally("last", &[]);
        }
        built.in_mode(self.mode).reserving(self.reserves)
    }
}

/// The number of Events that our services have written in the scene, by code.
async fn codes(scene: &Scene<'_>) -> anyhow::Result<BTreeMap<String, usize>> {
    let events = scene.api::<Event>().list(&ListParams::default()).await?;
    let mut codes = BTreeMap::new();
    for event in events {
        let by = event.reporting_controller.unwrap_or_default();
        if by.starts_with("coscheduler.dev/") {
            *codes.entry(event.reason.unwrap_or_default()).or_default() += 1;
        }
    }
    Ok(codes)
}

fn seed() -> anyhow::Result<u64> {
    match std::env::var(SEED) {
        Ok(seed) => seed.parse().with_context(|| format!("{SEED}={seed}")),
        Err(_) => Ok(RandomState::new().hash_one(SEED)),
    }
}

#[test]
fn a_seed_makes_the_same_shapes_again_and_another_one_others() {
    assert_eq!(cases(7), cases(7));
    assert_ne!(cases(7), cases(8));
    let cases = cases(7);
    let modes: BTreeSet<_> = cases.iter().map(|case| case.mode).collect();
    assert_eq!(modes.len(), MODES.len(), "{modes:?}");
    let reserves: BTreeSet<_> = cases.iter().map(|case| case.reserves).collect();
    assert_eq!(reserves.len(), RESERVES.len(), "{reserves:?}");
}

#[test]
fn b3_n2_of_many_runs_of_random_shapes_none_waits_long_for_room_it_held() -> Outcome {
    let seed = seed()?;
    println!("{SEED}={seed} plays this again");
    let played = shared(async |scene| {
        // Isolated runs need nodes without other runs. On the nodes of the other runs, they would wait until all of these have
        // ended.
        let apart = scene.stack.scene().await?;
        let mut waits = Vec::new();
        for scene in [&scene, &apart] {
            scene.pool_of(&NODES).await?;
            waits.push(Waits::follow(scene).await?);
        }
        let cases = cases(seed);
        let began = Instant::now();
        let play = async |case: &Case| {
            let scene = match case.mode {
                "isolate-pipelinerun" => &apart,
                _ => &scene,
            };
            scene.submit(case.run(scene)).await?;
            let done = scene.succeeds(&case.name).await;
            done.map(drop).with_context(|| format!("{case:?}"))
        };
        let plays = stream::iter(&cases).map(play).buffer_unordered(AT_ONCE);
        plays.try_for_each(async |()| Ok(())).await?;
        println!("{} runs in {:.0?}", cases.len(), began.elapsed());
        let mut bound = 0;
        for (scene, waits) in [&scene, &apart].into_iter().zip(&waits) {
            println!("told: {:?}", codes(scene).await?);
            println!("the longest wait: {:?}", waits.longest());
            let held = waits.longest_for_held_room();
            println!("the longest wait for room that was held or free: {held:?}");
            bound += waits.bound();
            let held = held.filter(|wait| wait.time > HELD);
            ensure!(
                held.is_none(),
                "waited for room that its run held: {held:?}"
            );
            scene.nothing_left_but(&[]).await?;
        }
        let pods = |case: &Case| case.tasks.len() + usize::from(case.finally);
        let pods: usize = cases.iter().map(pods).sum();
        ensure!(bound == pods, "saw {bound} of {pods} pods on nodes");
        Ok(())
    });
    played.with_context(|| format!("{SEED}={seed} plays this again"))
}

/// A run with three parallel tasks, and a claim that cannot leave its node. On a node of four CPUs, all parallel tasks of every
/// second run have room at the same time.
fn bound(scene: &Scene<'_>, mode: &str, number: usize) -> Run {
    let asks = if number.is_multiple_of(2) {
        "1"
    } else {
        "1500m"
    };
    let run = run(&format!("run-{number}"))
        .in_mode(mode)
        .in_pool_of(scene)
        .template_of_class("source", LOCAL_STORAGE_CLASS)
        .task("first", &["source"], &[])
        .asking("1");
    let run = ["a", "b", "c"].into_iter().fold(run, |run, task| {
        run.task(task, &["source"], &["first"])
            .asking(asks)
            .lasting(task, 3)
    });
    run.task("last", &["source"], &["a", "b", "c"]).asking(asks)
}

#[test]
fn b3_n2_six_runs_whose_claims_stay_on_two_crowded_nodes_all_end() -> Outcome {
    shared(async |scene| {
        for reserves in Reserves::ALL {
            scene.set_reserves(reserves).await?;
            try_join_all(MODES.map(async |mode| {
                let scene = scene.stack.scene().await?;
                scene.pool_of(&[("4", 110), ("4", 110)]).await?;
                let waits = Waits::follow(&scene).await?;
                let began = Instant::now();
                try_join_all((0..6).map(|number| scene.submit(bound(&scene, mode, number))))
                    .await?;
                // Some runs wait for the end of others, so each has a time limit of its own.
                for number in 1..=6 {
                    let done = |runs: &[Arc<PipelineRun>]| {
                        runs.iter().filter(|run| is_done(run)).count() >= number
                    };
                    let what = format!("are done: {number} of six, {reserves}, {mode}");
                    scene.until_all(&what, done).await?;
                }
                for number in 0..6 {
                    let done = scene.succeeds(&format!("run-{number}")).await;
                    done.with_context(|| format!("{reserves}, {mode}"))?;
                }
                println!("six runs, {reserves}, {mode}: {:.0?}", began.elapsed());
                println!("the longest wait: {:?}", waits.longest());
                println!("told: {:?}", codes(&scene).await?);
                scene.nothing_left_but(&[]).await
            }))
            .await?;
        }
        Ok(())
    })
}
