//! A control plane with the five services, and a namespace on it for one test.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use testbed::services::{CONFIG_MAP, NAMESPACE, Service, Services, ServicesConfig};
use testbed::{Config, TestBed};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

use crate::history::History;
use crate::runs::run;

/// Several times as long as the longest test takes on two cores. A test that hangs fails then, by its name.
const TEST_LIMIT: Duration = Duration::from_secs(15 * 60);

/// All tests of a process run on one runtime: a shared stack's tasks must outlive the test that was first.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    #[allow(clippy::expect_used, reason = "no test can run without it")]
    Runtime::new().expect("failed to start a tokio runtime")
});
/// The stack of each file of tests.
static SHARED: Mutex<BTreeMap<&str, &OnceCell<Stack>>> = Mutex::new(BTreeMap::new());
static NAMESPACES: AtomicUsize = AtomicUsize::new(1);

/// A control plane with the five services.
#[derive(Debug)]
pub struct Stack {
    /// The control plane.
    pub bed: TestBed,
    /// The five services.
    pub services: Services,
    /// Where each pod was, from the beginning.
    pub history: History,
}

/// A test's view of a stack.
pub struct Scene<'a> {
    /// The stack.
    pub stack: &'a Stack,
    /// A client with all rights.
    pub client: Client,
    /// A namespace of the test's own.
    pub namespace: String,
}

impl Stack {
    /// Boots a stack in mode `pipelineruns`, with the services' configuration changed by `change`.
    ///
    /// # Errors
    ///
    /// The part that could not be booted, with the end of its log.
    pub async fn boot(
        config: Config,
        change: impl FnOnce(&mut ServicesConfig),
    ) -> anyhow::Result<Self> {
        let bed = TestBed::start(config)
            .await
            .context("failed to boot the test bed")?;
        let mut services = ServicesConfig::new(bed.kubeconfig())?;
        change(&mut services);
        let services = Services::start(services)
            .await
            .context("failed to start the services")?;
        Ok(Self::new(bed, services))
    }

    /// A stack of services that already run beside a control plane.
    pub fn new(bed: TestBed, services: Services) -> Self {
        let history = History::follow(bed.client());
        Self {
            bed,
            services,
            history,
        }
    }

    /// Lets every run choose its mode and what its placeholders reserve, and waits until the services know.
    ///
    /// # Errors
    ///
    /// Where no override is allowed within a minute.
    pub async fn allow_overrides(&self) -> anyhow::Result<()> {
        let client = self.bed.client();
        let configuration: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
        let all = "disabled workspaces pipelineruns isolate-pipelinerun \
            placeholder-reserves=nothing placeholder-reserves=placement placeholder-reserves=peak";
        let patch = Patch::Merge(json!({"data": {"allowed-overrides": all}}));
        configuration
            .patch(CONFIG_MAP, &PatchParams::default(), &patch)
            .await?;
        let probe = run("probe").task("one", &[], &[]).in_mode("workspaces");
        let probe: PipelineRun = serde_json::from_value(probe.into_json())?;
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let runs: Api<PipelineRun> = Api::namespaced(client, "default");
        let accepted = async {
            while runs.create(&dry_run, &probe).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), accepted)
            .await
            .context("no override is allowed")
    }

    /// The memory of a service that is not backed by files, in bytes.
    ///
    /// # Errors
    ///
    /// Where the service does not run.
    pub fn memory(&self, service: Service) -> anyhow::Result<u64> {
        let pid = self.services.pid(service)?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let mut lines = status.lines();
        let anonymous = lines.find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = anonymous.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = kib.context("no RssAnon")?.parse()?;
        Ok(kib * 1024)
    }

    /// Creates a namespace for a test.
    ///
    /// # Errors
    ///
    /// Where it cannot be created.
    pub async fn scene(&self) -> anyhow::Result<Scene<'_>> {
        let namespace = format!("test-{:03}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
        self.bed.create_namespace(&namespace, &[]).await?;
        Ok(Scene {
            stack: self,
            client: self.bed.client(),
            namespace,
        })
    }
}

/// Runs a test on the stack that the tests of the calling file share. It keeps an audit log.
///
/// # Errors
///
/// The test's own, and a stack that could not be booted.
#[track_caller]
pub fn shared(test: impl AsyncFnOnce(Scene<'static>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    shared_with(Config::default(), |_| {}, test)
}

/// As [`shared`], on a stack of this configuration. All tests of a file must ask for the same one: the first one boots it.
///
/// # Errors
///
/// As [`shared`].
#[track_caller]
pub fn shared_with(
    config: Config,
    change: impl FnOnce(&mut ServicesConfig),
    test: impl AsyncFnOnce(Scene<'static>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let boot = async || {
        let config = Config {
            audit_log: true,
            ..config
        };
        Stack::boot(config, change).await
    };
    shared_on(boot, test)
}

/// As [`shared_with`], on a stack on which each run chooses its mode.
///
/// # Errors
///
/// As [`shared`].
#[track_caller]
pub fn shared_with_overrides(
    config: Config,
    change: impl FnOnce(&mut ServicesConfig),
    test: impl AsyncFnOnce(Scene<'static>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let boot = async || {
        let stack = Stack::boot(config, change).await?;
        stack.allow_overrides().await?;
        Ok(stack)
    };
    shared_on(boot, test)
}

/// As [`shared`], on a stack that the first test of the file boots with `boot`.
///
/// # Errors
///
/// As [`shared`].
#[track_caller]
pub fn shared_on(
    boot: impl AsyncFnOnce() -> anyhow::Result<Stack>,
    test: impl AsyncFnOnce(Scene<'static>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let stack: &'static OnceCell<Stack> = SHARED
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .entry(Location::caller().file())
        .or_insert_with(|| Box::leak(Box::default()));
    RUNTIME.block_on(async {
        let stack = stack.get_or_try_init(|| boot()).await?;
        in_time(Box::pin(test(stack.scene().await?))).await?;
        // All namespaces of the stack: a test may have made more than its own.
        stack.history.verdict().await?;
        stack.bed.check()?;
        stack.services.check()
    })
}

/// Runs a test on a stack of its own, and stops it in order.
///
/// # Errors
///
/// The test's own, and a stack that could not be booted or stopped.
pub fn alone(
    config: Config,
    test: impl AsyncFnOnce(&Scene<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    alone_with(config, |_| {}, test)
}

/// As [`alone`], with the services' configuration changed by `change`.
///
/// # Errors
///
/// As [`alone`].
pub fn alone_with(
    config: Config,
    change: impl FnOnce(&mut ServicesConfig),
    test: impl AsyncFnOnce(&Scene<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    RUNTIME.block_on(async {
        let stack = Stack::boot(config, change).await?;
        let outcome = async {
            in_time(Box::pin(test(&stack.scene().await?))).await?;
            stack.history.verdict().await
        };
        let outcome = outcome.await;
        let Stack { bed, services, .. } = stack;
        let stopped = services.stop().await;
        outcome?;
        stopped?;
        bed.stop().await
    })
}

/// Runs a test on a control plane of its own, without services: the test starts what it needs.
///
/// # Errors
///
/// The test's own, and a stack that could not be booted.
pub fn on_bed(
    config: Config,
    test: impl AsyncFnOnce(TestBed) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    RUNTIME.block_on(async {
        let bed = TestBed::start(config)
            .await
            .context("failed to boot the test bed")?;
        let history = History::follow(bed.client());
        // On the heap: a thread of a test has two megabytes of stack.
        in_time(Box::pin(test(bed))).await?;
        history.verdict_so_far()
    })
}

async fn in_time(test: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let ended = tokio::time::timeout(TEST_LIMIT, test).await;
    ended.unwrap_or_else(|_| bail!("the test did not end within {TEST_LIMIT:?}"))
}
