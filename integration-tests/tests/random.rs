//! Two hundred runs of all kinds, each met by something at a point of its life: it is deleted or cancelled, loses a pod, its
//! placeholder or its StatefulSet, a service is killed, the mode changes, or nothing happens. Which run, what and when is
//! made of a seed, which is printed; `COSCHEDULER_SEED` plays one again. Points are states of the run, not times, so that a
//! seed means the same on a slow machine; what runs at once may still differ.
//!
//! Whoever nobody has ended succeeds (N5, M8), and nothing is left but what the modes let stand (P6, V4).
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use coscheduler_core::labels::INSTANCE;
use coscheduler_core::labels::{MANAGED_BY, PIPELINE_RUN_UID, TEKTON_COSCHEDULER};
use coscheduler_core::teardown::PodPhase;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods;
use coscheduler_kubernetes::transient::is_transient;
use fastrand::Rng;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use integration_tests::faults::kubelet;
use integration_tests::look::{is_placeholder, node, succeeded};
use integration_tests::runs::{Run, run};
use integration_tests::{Scene, alone_with};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use testbed::Config;
use testbed::services::{CONFIG_MAP, NAMESPACE, Service};
use tokio::sync::watch;
use tokio::time::sleep;

type Outcome = anyhow::Result<()>;

const RUNS: usize = 200;
/// Runs under way at a time. There are more nodes, so that an isolated run finds an empty one.
const AT_ONCE: usize = 24;
const NODES: usize = 48;
/// What a run may take on a busy machine, with every killed leader waited out.
const PATIENCE: Duration = Duration::from_secs(300);
/// The environment variable with the seed to play again.
const SEED: &str = "COSCHEDULER_SEED";
const MODES: [&str; 4] = [
    "disabled",
    "workspaces",
    "pipelineruns",
    "isolate-pipelinerun",
];
const ONE_OF_A_POD: DeleteParams = DeleteParams {
    dry_run: false,
    grace_period_seconds: None,
    propagation_policy: None,
    preconditions: None,
};

/// A run, and what it meets where.
#[derive(Clone, Debug, PartialEq)]
struct Case {
    name: String,
    /// As it chooses itself; `None` for what is in force.
    mode: Option<&'static str>,
    volumes: Volumes,
    /// Whether the second task uses the first one's claim too.
    shared: bool,
    auto_cleanup: bool,
    finally: bool,
    retries: u32,
    /// How long the two tasks take.
    seconds: [u32; 2],
    point: Point,
    deed: Deed,
}

/// What the two tasks of a run use.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Volumes {
    None,
    Template,
    TwoTemplates,
    Brought,
    BroughtAndTemplate,
}

/// Where in its life a run meets what it meets; at its end where it does not come there.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Point {
    Admitted,
    PlaceholderBound,
    FirstTaskRunning,
    SecondTaskCreated,
    Done,
}

/// What a run meets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Nothing,
    Delete(Cascade),
    /// With this as `spec.status`.
    Cancel(&'static str),
    /// A pod of a task is deleted, with its grace period or without one.
    KillTask {
        at_once: bool,
    },
    KillPlaceholder,
    DeleteStatefulSets {
        with_pods: bool,
    },
    Crash(Service),
    Flip(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Cascade {
    Background,
    Foreground,
}

impl Deed {
    /// Whether the run may end otherwise than well for it.
    fn ends_the_run(self) -> bool {
        match self {
            Self::Delete(_) | Self::Cancel(_) | Self::KillTask { .. } => true,
            Self::Nothing
            | Self::KillPlaceholder
            | Self::DeleteStatefulSets { .. }
            | Self::Crash(_)
            | Self::Flip(_) => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Delete(_) => "delete",
            Self::Cancel(_) => "cancel",
            Self::KillTask { .. } => "kill a task's pod",
            Self::KillPlaceholder => "kill the placeholder's pod",
            Self::DeleteStatefulSets { .. } => "delete the StatefulSet",
            Self::Crash(_) => "kill a service",
            Self::Flip(_) => "change the mode",
        }
    }
}

/// The runs that a seed makes.
fn cases(seed: u64) -> Vec<Case> {
    let mut rng = Rng::with_seed(seed);
    (0..RUNS).map(|index| case(&mut rng, index)).collect()
}

fn case(rng: &mut Rng, index: usize) -> Case {
    Case {
        name: format!("run-{index:03}"),
        mode: rng.bool().then(|| pick(rng, &MODES)),
        volumes: pick(
            rng,
            &[
                Volumes::None,
                Volumes::Template,
                Volumes::Template,
                Volumes::TwoTemplates,
                Volumes::Brought,
                Volumes::BroughtAndTemplate,
            ],
        ),
        shared: rng.u8(0..8) == 0,
        auto_cleanup: rng.bool(),
        finally: rng.bool(),
        retries: u32::from(rng.u8(0..4) == 0),
        seconds: [rng.u32(1..4), rng.u32(1..3)],
        point: pick(
            rng,
            &[
                Point::Admitted,
                Point::PlaceholderBound,
                Point::FirstTaskRunning,
                Point::SecondTaskCreated,
                Point::Done,
            ],
        ),
        deed: deed(rng),
    }
}

/// In a hundred: services are killed seldom, as it takes a quarter of a minute until somebody leads again.
fn deed(rng: &mut Rng) -> Deed {
    match rng.u8(0..100) {
        0..12 => Deed::Nothing,
        12..34 => Deed::Delete(pick(rng, &[Cascade::Background, Cascade::Foreground])),
        34..56 => Deed::Cancel(pick(
            rng,
            &["Cancelled", "CancelledRunFinally", "StoppedRunFinally"],
        )),
        56..70 => Deed::KillTask {
            at_once: rng.bool(),
        },
        70..80 => Deed::KillPlaceholder,
        80..86 => Deed::DeleteStatefulSets {
            with_pods: rng.bool(),
        },
        86..92 => Deed::Crash(pick(
            rng,
            &[
                Service::PlaceholderManager,
                Service::Watcher,
                Service::AffinityPlanner,
            ],
        )),
        _ => Deed::Flip(pick(rng, &MODES)),
    }
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

impl Case {
    /// The claim that the run's author brings.
    fn brought(&self) -> Option<String> {
        match self.volumes {
            Volumes::Brought | Volumes::BroughtAndTemplate => {
                Some(format!("{}-brought", self.name))
            }
            Volumes::None | Volumes::Template | Volumes::TwoTemplates => None,
        }
    }

    fn run(&self) -> Run {
        let mut built = run(&self.name);
        if let Some(claim) = self.brought() {
            let source = json!({"persistentVolumeClaim": {"claimName": claim}});
            built = built.workspace("brought", source);
        }
        let (built, used): (_, &[&str]) = match self.volumes {
            Volumes::None => (built, &[]),
            Volumes::Brought => (built, &["brought"]),
            Volumes::Template => (built.template("a"), &["a"]),
            Volumes::TwoTemplates => (built.template("a").template("b"), &["a", "b"]),
            Volumes::BroughtAndTemplate => (built.template("a"), &["brought", "a"]),
        };
        let first = &used[..used.len().min(1)];
        let second = match self.shared {
            true => used,
            false => &used[used.len().saturating_sub(1)..],
        };
        let mut built = built
            .task("one", first, &[])
            .with("retries", self.retries.into())
            .task("two", second, &["one"])
            .with("retries", self.retries.into())
            .lasting("one", self.seconds[0])
            .lasting("two", self.seconds[1]);
        if self.finally {
            built = built.finally("last", first);
        }
        let mut annotations = serde_json::Map::new();
        if self.auto_cleanup {
            annotations.insert("tekton.dev/auto-cleanup-pvc".to_owned(), json!("true"));
        }
        let built = built.metadata("annotations", annotations.into());
        match self.mode {
            Some(mode) => built.in_mode(mode),
            None => built,
        }
    }

    /// Whether a run in this mode has a task that may not run (M2).
    fn is_refused_in(&self, mode: &str) -> bool {
        let two = matches!(
            self.volumes,
            Volumes::TwoTemplates | Volumes::BroughtAndTemplate
        );
        self.shared && two && mode == "workspaces"
    }
}

/// The runs and pods of the namespace as a watch has them, by the run's uid and by name.
#[derive(Default)]
struct World {
    runs: Kept<PipelineRun>,
    pods: Kept<Pod>,
}

type Kept<K> = Mutex<HashMap<String, BTreeMap<String, K>>>;

fn lock<K>(kept: &Kept<K>) -> MutexGuard<'_, HashMap<String, BTreeMap<String, K>>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn follow<K>(
    api: Api<K>,
    kept: &Kept<K>,
    news: &watch::Sender<()>,
    run_of: fn(&K) -> Option<String>,
) -> Outcome
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    let mut events = pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut listed: HashMap<String, BTreeMap<String, K>> = HashMap::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                if let Some(run) = run_of(&object) {
                    let of_run = listed.entry(run).or_default();
                    of_run.insert(object.name_any(), object);
                }
            }
            Ok(Event::InitDone) => *lock(kept) = std::mem::take(&mut listed),
            Ok(Event::Apply(object)) => {
                if let Some(run) = run_of(&object) {
                    let mut kept = lock(kept);
                    let of_run = kept.entry(run).or_default();
                    of_run.insert(object.name_any(), object);
                }
            }
            Ok(Event::Delete(object)) => {
                if let Some(run) = run_of(&object)
                    && let Some(of_run) = lock(kept).get_mut(&run)
                {
                    of_run.remove(&object.name_any());
                }
            }
            Err(_) => {}
        }
        news.send_replace(());
    }
    bail!("a watch ended")
}

/// Everything that the two hundred share.
struct Stage<'a> {
    scene: &'a Scene<'a>,
    world: World,
    news: watch::Receiver<()>,
    /// Held by whoever has killed a service.
    turn: tokio::sync::Mutex<()>,
    /// How many met each deed, and how many of them at their end, before they came to its point.
    met: Mutex<BTreeMap<&'static str, (usize, usize)>>,
}

/// Where a run stands.
struct Seen {
    run: Option<PipelineRun>,
    pods: Vec<Pod>,
}

impl Seen {
    /// Whether the run is done or gone.
    fn is_over(&self) -> bool {
        let run = self.run.as_ref();
        run.is_none_or(|run| matches!(succeeded(run), Some("True" | "False")))
    }

    fn of_tasks(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| !is_placeholder(pod))
    }

    fn is_at(&self, point: Point) -> bool {
        match point {
            Point::Admitted => true,
            Point::PlaceholderBound => {
                let mut pods = self.pods.iter();
                pods.any(|pod| is_placeholder(pod) && node(pod).is_some())
            }
            Point::FirstTaskRunning => self
                .of_tasks()
                .any(|pod| pods::phase(pod) == PodPhase::Running),
            Point::SecondTaskCreated => self.of_tasks().any(|pod| {
                let task = pod.labels().get("tekton.dev/pipelineTask");
                task.is_some_and(|task| task == "two")
            }),
            Point::Done => self.is_over(),
        }
    }
}

impl Stage<'_> {
    fn seen(&self, uid: &str) -> Seen {
        let run = lock(&self.world.runs).get(uid).cloned();
        let pods = lock(&self.world.pods).get(uid).cloned();
        Seen {
            run: run.and_then(|run| run.into_values().next()),
            pods: pods.into_iter().flat_map(BTreeMap::into_values).collect(),
        }
    }

    /// Waits until a run is seen so.
    async fn until(
        &self,
        uid: &str,
        what: &str,
        holds: impl Fn(&Seen) -> bool,
    ) -> anyhow::Result<Seen> {
        let mut news = self.news.clone();
        let wait = async {
            loop {
                news.mark_unchanged();
                let seen = self.seen(uid);
                if holds(&seen) {
                    return anyhow::Ok(seen);
                }
                news.changed().await?;
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(seen) => seen,
            Err(_) => {
                let Seen { run, pods } = self.seen(uid);
                let status = run.map(|run| run.status.get("conditions").cloned());
                let pods: Vec<_> = pods
                    .iter()
                    .map(|pod| {
                        let phase = pods::phase(pod);
                        format!("{} on {:?} {phase:?}", pod.name_any(), node(pod))
                    })
                    .collect();
                bail!("after {PATIENCE:?} it is not {what}: {status:?}, {pods:#?}")
            }
        }
    }

    /// Plays one run to its end.
    async fn play(&self, case: &Case) -> Outcome {
        if let Some(claim) = case.brought() {
            self.bring(&claim).await?;
        }
        let object: PipelineRun = serde_json::from_value(case.run().into_json())?;
        let api = self.scene.api::<PipelineRun>();
        let params = PostParams::default();
        let created = insist(async || api.create(&params, &object).await).await;
        let uid = match created? {
            Some(created) => created.uid(),
            // It was created by a request whose answer was lost.
            None => api.get(&case.name).await?.uid(),
        };
        let uid = uid.context("a run without a uid")?;
        self.until(&uid, "seen", |seen| seen.run.is_some()).await?;
        let seen = self
            .until(&uid, "there", |seen| {
                seen.is_at(case.point) || seen.is_over()
            })
            .await?;
        {
            let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
            let (all, late) = met.entry(case.deed.name()).or_default();
            *all += 1;
            *late += usize::from(!seen.is_at(case.point));
        }
        self.act(case, &uid, &seen).await?;
        let seen = self.until(&uid, "over", Seen::is_over).await?;
        if case.deed.ends_the_run() {
            return Ok(());
        }
        let run = seen.run.context("it is gone although nobody deleted it")?;
        let mode = run.annotations().get("coscheduler.dev/mode");
        let well = !case.is_refused_in(mode.map_or("disabled", String::as_str));
        let expected = if well { "True" } else { "False" };
        ensure!(
            succeeded(&run) == Some(expected),
            "{:?}",
            run.status.get("conditions")
        );
        Ok(())
    }

    async fn bring(&self, name: &str) -> Outcome {
        let claim: PersistentVolumeClaim = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }))?;
        let api = self.scene.api();
        api.create(&PostParams::default(), &claim).await?;
        Ok(())
    }

    /// Does to a run what it is to meet. What is gone already has met its end.
    async fn act(&self, case: &Case, uid: &str, seen: &Seen) -> Outcome {
        let services = &self.scene.stack.services;
        let runs = self.scene.api::<PipelineRun>();
        match case.deed {
            Deed::Nothing => {}
            Deed::Delete(cascade) => {
                let params = DeleteParams {
                    propagation_policy: Some(match cascade {
                        Cascade::Background => PropagationPolicy::Background,
                        Cascade::Foreground => PropagationPolicy::Foreground,
                    }),
                    ..DeleteParams::default()
                };
                insist(async || runs.delete(&case.name, &params).await).await?;
            }
            Deed::Cancel(status) => {
                let patch = Patch::Merge(json!({"spec": {"status": status}}));
                let params = PatchParams::default();
                insist(async || runs.patch(&case.name, &params, &patch).await).await?;
            }
            Deed::KillTask { at_once } => {
                let params = DeleteParams {
                    grace_period_seconds: at_once.then_some(0),
                    ..ONE_OF_A_POD
                };
                if let Some(pod) = seen.of_tasks().last() {
                    self.delete::<Pod>(&pod.name_any(), &params).await?;
                }
            }
            Deed::KillPlaceholder => {
                for pod in seen.pods.iter().filter(|pod| is_placeholder(pod)) {
                    self.delete::<Pod>(&pod.name_any(), &ONE_OF_A_POD).await?;
                }
            }
            Deed::DeleteStatefulSets { with_pods } => {
                let params = match with_pods {
                    true => DeleteParams::background(),
                    false => DeleteParams::orphan(),
                };
                let of_run = ListParams::default().labels(&format!("{PIPELINE_RUN_UID}={uid}"));
                for set in self.scene.api::<StatefulSet>().list(&of_run).await? {
                    self.delete::<StatefulSet>(&set.name_any(), &params).await?;
                }
            }
            Deed::Crash(service) => {
                let _turn = self.turn.lock().await;
                services.kill(service)?;
                services.start_service(service)?;
                // A leader that the API server does not answer in time ends, and is started again by the kubelet.
                while services.wait_ready().await.is_err() {
                    sleep(Duration::from_millis(100)).await;
                }
            }
            Deed::Flip(mode) => {
                let api = Api::<ConfigMap>::namespaced(self.scene.client.clone(), NAMESPACE);
                let patch = Patch::Merge(json!({"data": {"coschedule": mode}}));
                let params = PatchParams::default();
                insist(async || api.patch(CONFIG_MAP, &params, &patch).await).await?;
            }
        }
        Ok(())
    }

    async fn delete<K>(&self, name: &str, params: &DeleteParams) -> Outcome
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        let api = self.scene.api::<K>();
        insist(async || api.delete(name, params).await).await?;
        Ok(())
    }
}

/// Asks again while the API server cannot ask a webhook: services are killed meanwhile. `None` where there is nothing to be
/// done any more: the object is gone, or done, or was made by a request that was not answered.
async fn insist<T>(request: impl AsyncFn() -> Result<T, kube::Error>) -> anyhow::Result<Option<T>> {
    let asked = async {
        loop {
            match request().await {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) if is_transient(&error) => {
                    sleep(Duration::from_millis(100)).await;
                }
                Err(kube::Error::Api(status))
                    if status.code == 404
                        || status.reason == "AlreadyExists"
                        || status.message.contains("Once the PipelineRun is complete") =>
                {
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    };
    tokio::time::timeout(PATIENCE, asked).await?
}

fn seed() -> anyhow::Result<u64> {
    match std::env::var(SEED) {
        Ok(seed) => seed.parse().with_context(|| format!("{SEED}={seed}")),
        Err(_) => Ok(RandomState::new().hash_one(SEED)),
    }
}

/// Waits until no StatefulSet and no placeholder is left, and no claim but those that the runs' authors brought and those that
/// Tekton made for runs that are still there and want them.
async fn nothing_left_but_what_may_stay(scene: &Scene<'_>, cases: &[Case]) -> Outcome {
    let brought: BTreeSet<String> = cases.iter().filter_map(Case::brought).collect();
    let auto_cleanup: BTreeSet<_> = cases
        .iter()
        .filter(|case| case.auto_cleanup)
        .map(|case| case.name.as_str())
        .collect();
    let all = ListParams::default();
    let runs = scene.api::<PipelineRun>().list(&all).await?;
    let runs: HashMap<String, PipelineRun> = runs
        .into_iter()
        .filter_map(|run| Some((run.uid()?, run)))
        .collect();
    let mode = |run: &PipelineRun| run.annotations().get("coscheduler.dev/mode").cloned();
    let stays = |claim: &PersistentVolumeClaim| {
        let made_by_us =
            claim.labels().get(MANAGED_BY).map(String::as_str) == Some(TEKTON_COSCHEDULER);
        let owners = claim.owner_references().iter();
        let mut of_runs = owners.filter_map(|owner| runs.get(&owner.uid));
        let of_tekton = of_runs.any(|run| match mode(run).as_deref() {
            None => true,
            Some("workspaces") => !auto_cleanup.contains(run.name_any().as_str()),
            Some(_) => false,
        });
        !made_by_us && (of_tekton || brought.contains(&claim.name_any()))
    };
    scene
        .until_all::<StatefulSet>("are gone", |sets| sets.is_empty())
        .await?;
    scene
        .until_all::<Pod>("have no placeholder", |pods| {
            !pods
                .iter()
                .any(|pod| is_placeholder(pod) || pod.labels().contains_key(INSTANCE))
        })
        .await?;
    let left = scene
        .until_all::<PersistentVolumeClaim>("are those that may stay", |claims| {
            claims.iter().all(|claim| stays(claim))
        })
        .await?;
    let left: BTreeSet<String> = left.iter().map(|claim| claim.name_any()).collect();
    ensure!(
        brought.is_subset(&left),
        "brought claims are gone: {:?}",
        brought.difference(&left)
    );
    // Tekton's own are where nobody wanted them gone.
    let claims = scene.api::<PersistentVolumeClaim>().list(&all).await?;
    for case in cases {
        let run = runs.values().find(|run| run.name_any() == case.name);
        let Some(run) = run.filter(|run| succeeded(run) == Some("True")) else {
            continue;
        };
        let kept = match mode(run).as_deref() {
            None => true,
            Some("workspaces") => !case.auto_cleanup,
            Some(_) => false,
        };
        let bound = run
            .spec
            .get("workspaces")
            .and_then(|bound| bound.as_array());
        let templates = bound
            .into_iter()
            .flatten()
            .filter(|binding| binding.get("volumeClaimTemplate").is_some())
            .count();
        let is_of_run = |claim: &&PersistentVolumeClaim| {
            let mut owners = claim.owner_references().iter();
            owners.any(|owner| Some(&owner.uid) == run.uid().as_ref())
        };
        let of_run = claims.iter().filter(is_of_run).count();
        let expected = if kept { templates } else { 0 };
        ensure!(
            of_run == expected,
            "{}: {of_run} claims, {expected} expected",
            case.name
        );
    }
    Ok(())
}

#[test]
fn a_seed_makes_the_same_runs_again_and_another_one_others() {
    assert_eq!(cases(7), cases(7));
    assert_ne!(cases(7), cases(8));
    let deeds: BTreeSet<_> = cases(7).iter().map(|case| case.deed.name()).collect();
    assert_eq!(deeds.len(), 8, "{deeds:?}");
    let points: BTreeSet<_> = cases(7).iter().map(|case| case.point).collect();
    assert_eq!(points.len(), 5, "{points:?}");
}

#[test]
fn n5_p6_v4_of_two_hundred_runs_ended_and_disturbed_at_random_nothing_is_left() -> Outcome {
    let seed = seed()?;
    println!("{SEED}={seed} plays this again");
    let cases = cases(seed);
    let config = Config {
        nodes: NODES,
        task_duration: Duration::from_millis(500),
        ..Config::default()
    };
    let played = alone_with(
        config,
        |_| {},
        async |scene| {
            scene.stack.allow_overrides().await?;
            let (news, received) = watch::channel(());
            let stage = Stage {
                scene,
                world: World::default(),
                news: received,
                turn: tokio::sync::Mutex::default(),
                met: Mutex::default(),
            };
            let began = Instant::now();
            let play = async |case: &Case| {
                let played = stage.play(case).await;
                played.with_context(|| format!("{case:?}"))
            };
            let (restarted, leaders) = watch::channel(BTreeSet::new());
            let plays = stream::iter(&cases).map(play).buffer_unordered(AT_ONCE);
            tokio::select! {
                played = plays.try_for_each(async |()| Ok(())) => played?,
                ended = follow(scene.api(), &stage.world.runs, &news, |run: &PipelineRun| run.uid()) => ended?,
                ended = follow(scene.api(), &stage.world.pods, &news, |pod: &Pod| {
                    pod.labels().get(PIPELINE_RUN_UID).cloned()
                }) => ended?,
                never = kubelet(&scene.stack.services, &restarted) => match never? {},
            }
            let led = [Service::PlaceholderManager, Service::Watcher].into();
            let leaders = leaders.borrow().clone();
            ensure!(leaders.is_subset(&led), "{leaders:?} ended by themselves");
            let over = Instant::now();
            println!("{RUNS} runs are over after {:.1?}", over - began);
            let met = stage
                .met
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            for (deed, (all, late)) in met {
                println!("  {deed}: {all}, {late} of them at their end");
            }
            nothing_left_but_what_may_stay(scene, &cases).await?;
            println!("nothing is left {:.1?} later", over.elapsed());
            Ok(())
        },
    );
    played.with_context(|| format!("{SEED}={seed} plays this again"))
}
