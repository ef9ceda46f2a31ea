//! The life of a service process: its tasks, and the order in which they stop. When the first task ends, with or without an
//! error, the process ends. When a process stops, it first becomes unready. Then RPCs and graceful tasks
//! ([`Process::spawn_graceful`]) have a limited time to end. Then the process drops the loops ([`Process::spawn`]). Last, it
//! closes the HTTP server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::TcpIncoming;
use tracing::{error, info, warn};

use crate::tls::Tls;
use crate::{Condition, GrpcServices, Health, Metrics, ProcessArgs, Service, http};

/// How long RPCs and graceful tasks may take after the process begins to stop. This is less than the 30 s that Kubernetes gives
/// a pod by default.
const GRACE: Duration = Duration::from_secs(10);
/// After [`GRACE`], the loops have this time to end. Then the HTTP server has the same time. A loop only has to reach its next
/// await.
const LAST_GRACE: Duration = Duration::from_secs(1);

/// The service's handle of its running process. Clones are handles of the same process.
#[derive(Clone, Debug)]
pub struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    service: Service,
    grpc_address: SocketAddr,
    http_address: SocketAddr,
    max_concurrent_calls: usize,
    tls: Option<Tls>,
    health: Health,
    metrics: Metrics,
    /// Cancelled when the process begins to stop.
    stopping: CancellationToken,
    /// Cancelled when all graceful tasks have ended or their time is over.
    drained: CancellationToken,
    /// The gRPC server and the tasks of [`Process::spawn_graceful`].
    graceful: TaskTracker,
    loops: TaskTracker,
    /// Receives the reasons why the process must end. Only the first is read.
    ended: mpsc::UnboundedSender<anyhow::Error>,
}

/// A process before its service runs. [`crate::run()`] uses it. Tests that run a service inside their own process use it too.
#[derive(Debug)]
pub struct Supervisor {
    process: Process,
    started: Condition,
    ended: mpsc::UnboundedReceiver<anyhow::Error>,
    http_tasks: TaskTracker,
    http_stop: CancellationToken,
}

impl Process {
    /// The service that this process runs.
    pub fn service(&self) -> Service {
        self.0.service
    }

    /// The address of the HTTP server, with its actual port.
    pub fn http_address(&self) -> SocketAddr {
        self.0.http_address
    }

    /// The readiness of the process.
    pub fn health(&self) -> &Health {
        &self.0.health
    }

    /// The metrics of the process.
    pub fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    /// The certificates for connections between the services. `None`: plaintext.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.0.tls.as_ref()
    }

    /// Cancelled when the process begins to stop.
    pub fn shutdown(&self) -> CancellationToken {
        self.0.stopping.clone()
    }

    /// Spawns a loop that runs for the life of the process. If the loop ends earlier, with or without an error, the process
    /// stops with exit code 1 and logs the name of the loop. When the process stops, the loop continues until the RPCs and
    /// graceful tasks have ended. Then it is dropped at its next await. If a task has something to finish, use
    /// [`Process::spawn_graceful`].
    pub fn spawn(
        &self,
        name: impl Into<String>,
        future: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let drained = self.0.drained.clone();
        let until_drained = async move {
            tokio::select! {
                outcome = future => outcome,
                () = drained.cancelled() => Ok(()),
            }
        };
        self.supervise(&self.0.loops, name.into(), until_drained);
    }

    /// Spawns a task that runs until the process stops, like [`Process::spawn`]. The task also gets a token. When the process
    /// stops, it cancels this token, and waits a bounded time for the task to end.
    pub fn spawn_graceful<F>(
        &self,
        name: impl Into<String>,
        task: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.supervise(&self.0.graceful, name.into(), task(self.shutdown()));
    }

    /// Listens on `--grpc-address` and serves `services` together with health and reflection until the process stops.
    /// Returns the address with its actual port.
    ///
    /// # Errors
    /// The address cannot be bound, or a descriptor set is malformed. No task is spawned then.
    pub async fn serve_grpc(&self, services: GrpcServices) -> anyhow::Result<SocketAddr> {
        let tls = self.0.tls.clone();
        let server = services.prepare(&self.0.metrics, self.0.max_concurrent_calls, tls.clone())?;
        let (listener, address) = bind("gRPC", self.0.grpc_address).await?;
        info!(%address, mutual_tls = tls.is_some(), "gRPC server listens");
        let health = self.health().clone();
        let connections = TcpIncoming::from(listener).with_nodelay(Some(true));
        self.spawn_graceful("gRPC server", |shutdown| async {
            match tls {
                None => server.serve(connections, health, shutdown).await,
                Some(tls) => {
                    server
                        .serve(tls.accept(connections), health, shutdown)
                        .await
                }
            }
        });
        Ok(address)
    }

    /// Spawns `future` on `tracker`. If it ends, the process stops. If the process is stopping already, a failure is only
    /// logged.
    fn supervise(
        &self,
        tracker: &TaskTracker,
        name: String,
        future: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let (stopping, ended) = (self.0.stopping.clone(), self.0.ended.clone());
        let task = tokio::spawn(future);
        tracker.spawn(async move {
            let reason = match task.await.unwrap_or_else(|error| Err(error.into())) {
                Ok(()) if stopping.is_cancelled() => return,
                Ok(()) => anyhow!("task {name:?} ended"),
                Err(cause) => cause.context(format!("task {name:?} failed")),
            };
            if stopping.is_cancelled() {
                let error = format!("{reason:#}");
                warn!(error, "a task failed while the process was stopping");
            } else {
                let _ = ended.send(reason);
            }
        });
    }
}

impl Supervisor {
    /// Sets up the process and its HTTP server, so that `/livez` answers before the service starts.
    ///
    /// # Errors
    /// The HTTP address cannot be bound, or the certificates in `--tls-dir` are unusable.
    pub async fn bind(service: Service, args: &ProcessArgs) -> anyhow::Result<Self> {
        let tls = args.tls_dir.clone().map(Tls::open).transpose()?;
        let (listener, http_address) = bind("HTTP", args.http_address).await?;
        info!(address = %http_address, "HTTP server listens");
        let (ended_sender, ended) = mpsc::unbounded_channel();
        let process = Process(Arc::new(Inner {
            service,
            grpc_address: args.grpc_address,
            http_address,
            max_concurrent_calls: args.max_concurrent_calls,
            tls,
            health: Health::new(),
            metrics: Metrics::new(service),
            stopping: CancellationToken::new(),
            drained: CancellationToken::new(),
            graceful: TaskTracker::new(),
            loops: TaskTracker::new(),
            ended: ended_sender,
        }));
        let started = process.health().condition("start-up");
        let (http_tasks, http_stop) = (TaskTracker::new(), CancellationToken::new());
        let serve = http::serve(
            listener,
            process.health().clone(),
            process.metrics().clone(),
            http_stop.clone(),
        );
        process.supervise(&http_tasks, "HTTP server".to_owned(), serve);
        Ok(Supervisor {
            process,
            started,
            ended,
            http_tasks,
            http_stop,
        })
    }

    /// A handle of this process, with which the service starts tasks and reports its health and metrics.
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// Starts the service with `start`, waits until `stop` completes or a task ends, and then stops the process in order.
    ///
    /// # Errors
    /// `start` failed, or a task ended before `stop` completed. In these cases too, the process was stopped in order, and the
    /// error was logged.
    pub async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        start: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let Service { name, version, .. } = self.process.service();
        let started = self.started.clone();
        let start = async {
            if let Err(cause) = start.await {
                return cause.context(format!("failed to start {name}"));
            }
            started.set(true);
            info!(service = name, version, "started");
            std::future::pending().await
        };
        let outcome = tokio::select! {
            () = stop => Ok(()),
            Some(reason) = self.ended.recv() => Err(reason),
            reason = start => Err(reason),
        };
        if let Err(reason) = &outcome {
            error!(error = format!("{reason:#}"), "{name} cannot go on");
        }
        self.stop().await;
        outcome
    }

    async fn stop(self) {
        let inner = &*self.process.0;
        info!("stopping");
        inner.health.stop();
        inner.stopping.cancel();
        wait(&inner.graceful, GRACE, "calls and graceful tasks").await;
        inner.drained.cancel();
        wait(&inner.loops, LAST_GRACE, "loops").await;
        self.http_stop.cancel();
        wait(&self.http_tasks, LAST_GRACE, "HTTP connections").await;
        info!("stopped");
    }
}

async fn wait(tasks: &TaskTracker, grace: Duration, what: &str) {
    tasks.close();
    if tokio::time::timeout(grace, tasks.wait()).await.is_err() {
        let (left, grace_seconds) = (tasks.len(), grace.as_secs());
        warn!(left, grace_seconds, "{what} did not end in time");
    }
}

async fn bind(server: &str, address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let failed = || format!("failed to bind {server} address {address}");
    let listener = TcpListener::bind(address).await.with_context(failed)?;
    let bound = listener.local_addr().with_context(failed)?;
    Ok((listener, bound))
}
