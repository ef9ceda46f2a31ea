//! A control plane with the five services, and a namespace on it for one test.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use kube::Client;
use testbed::services::{Services, ServicesConfig};
use testbed::{Config, TestBed};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;

/// All tests of a binary run on one runtime: the shared stack's tasks must outlive the test that was first.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    #[allow(clippy::expect_used, reason = "no test can run without it")]
    Runtime::new().expect("failed to start a tokio runtime")
});
static SHARED: OnceCell<Stack> = OnceCell::const_new();
static NAMESPACES: AtomicUsize = AtomicUsize::new(1);

/// A control plane with the five services.
#[derive(Debug)]
pub struct Stack {
    /// The control plane.
    pub bed: TestBed,
    /// The five services.
    pub services: Services,
}

/// What a test sees.
pub struct Scene<'a> {
    /// The stack.
    pub stack: &'a Stack,
    /// A client with all rights.
    pub client: Client,
    /// A namespace of the test's own.
    pub namespace: String,
}

impl Stack {
    /// Boots a stack in mode `pipelineruns`, with the services changed as `change` says.
    ///
    /// # Errors
    ///
    /// What could not be booted, with the end of its log.
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
        Ok(Self { bed, services })
    }

    /// A namespace of its own for a test.
    ///
    /// # Errors
    ///
    /// Where it cannot be created.
    pub async fn scene(&self) -> anyhow::Result<Scene<'_>> {
        let namespace = format!("test-{}", NAMESPACES.fetch_add(1, Ordering::Relaxed));
        self.bed.create_namespace(&namespace, &[]).await?;
        Ok(Scene {
            stack: self,
            client: self.bed.client(),
            namespace,
        })
    }
}

/// Runs a test on the stack that all tests of this binary share. It keeps an audit log.
///
/// # Errors
///
/// What the test answers, and what could not be booted.
pub fn shared(test: impl AsyncFnOnce(Scene<'static>) -> anyhow::Result<()>) -> anyhow::Result<()> {
    RUNTIME.block_on(async {
        let stack = SHARED
            .get_or_try_init(|| {
                let config = Config {
                    audit_log: true,
                    ..Config::default()
                };
                Stack::boot(config, |_| {})
            })
            .await?;
        test(stack.scene().await?).await?;
        stack.bed.check()?;
        stack.services.check()
    })
}

/// Runs a test on a stack of its own, and stops it in order.
///
/// # Errors
///
/// What the test answers, and what could not be booted or stopped.
pub fn alone(
    config: Config,
    test: impl AsyncFnOnce(&Scene<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    alone_with_services(config, |_| {}, test)
}

/// As [`alone`], with the services changed as `change` says.
///
/// # Errors
///
/// As [`alone`].
pub fn alone_with_services(
    config: Config,
    change: impl FnOnce(&mut ServicesConfig),
    test: impl AsyncFnOnce(&Scene<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    RUNTIME.block_on(async {
        let stack = Stack::boot(config, change).await?;
        let outcome = test(&stack.scene().await?).await;
        let Stack { bed, services } = stack;
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
/// What the test answers, and what could not be booted.
pub fn alone_with(
    config: Config,
    test: impl AsyncFnOnce(TestBed) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    RUNTIME.block_on(async {
        let bed = TestBed::start(config)
            .await
            .context("failed to boot the test bed")?;
        test(bed).await
    })
}
