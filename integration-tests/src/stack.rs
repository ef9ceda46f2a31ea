//! A stack: a control plane with the five services. A scene: a stack, with a namespace for one test.

use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use testbed::services::{CONFIG_MAP, NAMESPACE, Service, Services, ServicesConfig};
use testbed::{Config, TestBed};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

use crate::configuration::admitted_until;
use crate::history::History;
use crate::runs::run;

/// Several times as long as the longest test takes on two cores, beside other tests. After this time, a test that hangs fails
/// under its own name.
const TEST_LIMIT: Duration = Duration::from_secs(30 * 60);

/// All tests of a process run on one runtime, because the tasks of a shared stack must outlive the test that booted it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    #[allow(clippy::expect_used, reason = "no test can run without it")]
    Runtime::new().expect("failed to start a tokio runtime")
});
/// The shared stack of each test file.
static SHARED: Mutex<BTreeMap<&str, &OnceCell<Stack>>> = Mutex::new(BTreeMap::new());
static NAMESPACES: AtomicUsize = AtomicUsize::new(1);
/// One permit for each control plane that a process may boot for one test alone. `cargo xtask test` runs many tests of a process
/// at the same time, because most of them share a control plane and mostly wait.
static OWN_CONTROL_PLANES: Semaphore = Semaphore::const_new(2);

/// A control plane with the five services.
#[derive(Debug)]
pub struct Stack {
    /// The control plane.
    pub bed: TestBed,
    /// The five services.
    pub services: Services,
    /// A record of the nodes of all pods, from the beginning.
    pub history: History,
}

/// A stack, with a namespace for one test.
pub struct Scene<'a> {
    /// The stack.
    pub stack: &'a Stack,
    /// A client with all rights.
    pub client: Client,
    /// The namespace of the test.
    pub namespace: String,
}

impl Stack {
    /// Boots a stack in mode `pipelineruns`. `change` may change the services' configuration first.
    ///
    /// # Errors
    ///
    /// A part cannot be booted. The error contains the end of its log.
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

    /// A stack of a control plane and services that run already.
    pub fn new(bed: TestBed, services: Services) -> Self {
        let history = History::follow(bed.client());
        Self {
            bed,
            services,
            history,
        }
    }

    /// Lets every run choose its mode and `placeholder-reserves`, and waits until the webhook accepts this.
    ///
    /// # Errors
    ///
    /// The webhook accepts no override within a minute.
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
        let runs = Api::namespaced(client, "default");
        let accepted = admitted_until(&runs, probe, |_| true);
        accepted.await.context("no override is allowed")
    }

    /// The anonymous memory of a service (memory that is not backed by files), in bytes.
    ///
    /// # Errors
    ///
    /// The service does not run.
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
    /// The namespace cannot be created.
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

/// Runs a test on the stack that the tests of the calling file share. The stack has an audit log.
///
/// # Errors
///
/// The test or its final checks fail, or the stack cannot be booted.
#[track_caller]
pub fn shared(test: impl AsyncFnOnce(Scene<'static>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    shared_with(Config::default(), |_| {}, test)
}

/// As [`shared`], on a stack with this configuration. All tests of a file must pass the same configuration, because the first
/// test boots the stack.
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

/// As [`shared_with`], on a stack on which each run may choose its mode and `placeholder-reserves`. The stack has an audit log
/// only if `config` says so.
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
        tokio::select! {
            outcome = in_time(Box::pin(test(stack.scene().await?))) => outcome?,
            failed = keep_running(&stack.services) => return failed,
        }
        // This checks all namespaces of the stack, because a test may have created further namespaces.
        stack.history.verdict().await?;
        stack.bed.check()?;
        attend(&stack.services)
    })
}

/// Runs a test on a stack of its own, and then stops the stack in order.
///
/// # Errors
///
/// The test or its final checks fail, or the stack cannot be booted or stopped.
pub fn alone(
    config: Config,
    test: impl AsyncFnOnce(&Scene<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    alone_with(config, |_| {}, test)
}

/// As [`alone`]. `change` may change the services' configuration first.
///
/// # Errors
///
/// As [`alone`].
pub fn alone_with(
    config: Config,
    change: impl FnOnce(&mut ServicesConfig),
    test: impl AsyncFnOnce(&Scene<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    alone_unattended(config, change, async |scene| {
        tokio::select! {
            outcome = test(scene) => outcome?,
            failed = keep_running(&scene.stack.services) => return failed,
        }
        attend(&scene.stack.services)
    })
}

/// As [`alone_with`], for a test in which services end by themselves. The test starts them again itself.
///
/// # Errors
///
/// As [`alone`].
pub fn alone_unattended(
    config: Config,
    change: impl FnOnce(&mut ServicesConfig),
    test: impl AsyncFnOnce(&Scene<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    RUNTIME.block_on(async {
        let _permit = permit().await?;
        let stack = Stack::boot(config, change).await?;
        let outcome = async {
            in_time(Box::pin(test(&stack.scene().await?))).await?;
            stack.history.verdict().await
        };
        let outcome = outcome.await;
        let Stack { bed, services, .. } = stack;
        let stopped = services.stop().await;
        // A process that ended too early explains why the test failed.
        match (outcome, stopped) {
            (Err(outcome), Err(ended)) => return Err(outcome.context(format!("{ended:#}"))),
            (outcome, stopped) => outcome.and(stopped)?,
        }
        bed.stop().await
    })
}

/// Runs a test on a control plane of its own, without services. The test starts the services that it needs.
///
/// # Errors
///
/// The test or its final check fails, or the control plane cannot be booted.
pub fn on_bed(
    config: Config,
    test: impl AsyncFnOnce(TestBed) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    RUNTIME.block_on(async {
        let _permit = permit().await?;
        let bed = TestBed::start(config)
            .await
            .context("failed to boot the test bed")?;
        let history = History::follow(bed.client());
        // On the heap, because the thread of a test has a call stack of only two megabytes.
        in_time(Box::pin(test(bed))).await?;
        history.verdict_so_far()
    })
}

/// Waits until the test may boot a control plane of its own.
async fn permit() -> anyhow::Result<SemaphorePermit<'static>> {
    let permit = OWN_CONTROL_PLANES.acquire().await;
    permit.context("the semaphore is closed")
}

/// Lets leaders keep their Leases for longer. Many runs on two busy processors can keep the API server from answering for more
/// than ten seconds. Otherwise, the process of a leader would then end, and a new leader would have to read all objects.
pub fn lead_for_long(services: &mut ServicesConfig) {
    let timing = [("LEASE_DURATION", "90s"), ("RENEW_DEADLINE", "60s")];
    let timing = timing.map(|(key, time)| (format!("LEADER_ELECT_{key}"), time.to_owned()));
    services.environment.extend(timing);
}

/// As [`attend`], again and again, until an error.
async fn keep_running(services: &Services) -> anyhow::Result<()> {
    loop {
        attend(services)?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Starts services again that a standstill of the machine has ended.
///
/// # Errors
///
/// A service has ended for another reason, or cannot be started.
#[allow(
    clippy::print_stdout,
    reason = "who reads about a failure must know of it"
)]
fn attend(services: &Services) -> anyhow::Result<()> {
    let again = services.start_again_after_standstill()?;
    if !again.is_empty() {
        println!("ended after a standstill, and were started again: {again:?}");
    }
    services.check()
}

async fn in_time(test: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let ended = tokio::time::timeout(TEST_LIMIT, test).await;
    ended.unwrap_or_else(|_| bail!("the test did not end within {TEST_LIMIT:?}"))
}
