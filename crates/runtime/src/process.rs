//! The life of a service process: what it spawns, and in which order it stops. The first task to end, well or badly,
//! ends the process; stopping takes readiness away first, then lets calls and finishing tasks end within a bounded
//! grace, then drops the loops, and closes the HTTP server last.

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::server::TcpIncoming;
use tracing::{error, info, warn};

use crate::{Condition, GrpcServices, Health, Metrics, ProcessArgs, Service, http};

/// How long calls and finishing tasks may take once the process is stopping. Below the 30 s that Kubernetes gives a pod.
const GRACE: Duration = Duration::from_secs(10);
/// How long what is left may take after that: loops only have to reach their next await.
const LAST_GRACE: Duration = Duration::from_secs(1);

/// The running process, as its service sees it; clones are handles of the same process.
#[derive(Clone, Debug)]
pub struct Process {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    service: Service,
    grpc_address: SocketAddr,
    http_address: SocketAddr,
    max_concurrent_calls: usize,
    health: Health,
    metrics: Metrics,
    /// Cancelled when the process begins to stop.
    stopping: CancellationToken,
    /// Cancelled when calls and finishing tasks have ended, or the grace has.
    drained: CancellationToken,
    /// What the grace is for: the gRPC server and the tasks of [`Process::spawn_graceful`].
    finishing: TaskTracker,
    loops: TaskTracker,
    ended: mpsc::UnboundedSender<StopReason>,
}

/// A process that is set up but not yet supervised. [`crate::run()`] uses it; tests that run a service in process may too.
#[derive(Debug)]
pub struct Supervisor {
    process: Process,
    started: Condition,
    ended: mpsc::UnboundedReceiver<StopReason>,
    http_tasks: TaskTracker,
    http_stop: CancellationToken,
}

/// A server could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("failed to bind {server} address {address}")]
    Bind {
        /// Which server: `gRPC` or `HTTP`.
        server: &'static str,
        /// The address that was asked for.
        address: SocketAddr,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// A file descriptor set given to [`GrpcServices::descriptors`] is malformed.
    #[error("failed to read the file descriptor sets for gRPC reflection")]
    Descriptors(#[from] tonic_reflection::server::Error),
}

/// Why a process that nobody asked to stop has stopped; its message includes the causes.
#[derive(Debug, thiserror::Error)]
pub enum StopReason {
    /// The service could not be started.
    #[error("failed to start {service}: {cause:#}")]
    Start {
        /// Name of the service.
        service: &'static str,
        /// What failed.
        cause: anyhow::Error,
    },
    /// A task ended that should have gone on.
    #[error("task {task:?} ended")]
    TaskEnded {
        /// Name of the task, as given to [`Process::spawn`].
        task: String,
    },
    /// A task failed.
    #[error("task {task:?} failed: {cause:#}")]
    TaskFailed {
        /// Name of the task, as given to [`Process::spawn`].
        task: String,
        /// What failed.
        cause: anyhow::Error,
    },
}

impl Process {
    /// The service this process runs.
    pub fn service(&self) -> Service {
        self.inner.service
    }

    /// The address of the HTTP server, with the port it really has.
    pub fn http_address(&self) -> SocketAddr {
        self.inner.http_address
    }

    /// The readiness of the process.
    pub fn health(&self) -> &Health {
        &self.inner.health
    }

    /// The metrics of the process.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Cancelled when the process begins to stop.
    pub fn shutdown(&self) -> CancellationToken {
        self.inner.stopping.clone()
    }

    /// Spawns a loop that is meant to go on for the life of the process. If it ends earlier, well or badly, the process
    /// stops with exit code 1 and names it. When the process stops, the loop goes on while calls drain, and is then
    /// dropped at its next await; one that has something to finish belongs in [`Process::spawn_graceful`].
    pub fn spawn(
        &self,
        name: impl Into<String>,
        future: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let drained = self.inner.drained.clone();
        let until_drained = async move {
            tokio::select! {
                outcome = future => outcome,
                () = drained.cancelled() => Ok(()),
            }
        };
        self.supervise(&self.inner.loops, name.into(), until_drained);
    }

    /// Like [`Process::spawn`], but the process waits for the task to finish, within the grace, after the token it is
    /// given is cancelled.
    pub fn spawn_graceful<F>(
        &self,
        name: impl Into<String>,
        task: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        self.supervise(&self.inner.finishing, name.into(), task(self.shutdown()));
    }

    /// Listens on `--grpc-address` and serves `services` together with health and reflection until the process stops.
    /// Returns the address with the port it really has.
    ///
    /// # Errors
    /// The address cannot be bound, or a descriptor set is malformed. Nothing has been spawned then.
    pub async fn serve_grpc(&self, services: GrpcServices) -> Result<SocketAddr, ServeError> {
        let server = services.prepare(&self.inner.metrics, self.inner.max_concurrent_calls)?;
        let (listener, address) = bind("gRPC", self.inner.grpc_address).await?;
        info!(%address, "gRPC server listens");
        let health = self.health().clone();
        let connections = TcpIncoming::from(listener).with_nodelay(Some(true));
        self.spawn_graceful("gRPC server", |shutdown| {
            server.serve(connections, health, shutdown)
        });
        Ok(address)
    }

    /// Runs `future` on `tracker`, and reports its end unless the process is stopping anyway.
    fn supervise(
        &self,
        tracker: &TaskTracker,
        name: String,
        future: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) {
        let stopping = self.inner.stopping.clone();
        let ended = self.inner.ended.clone();
        let task = tokio::spawn(future);
        tracker.spawn(async move {
            let outcome = task
                .await
                .unwrap_or_else(|error| match error.try_into_panic() {
                    Ok(panic) => Err(anyhow!("panicked: {}", panic_message(&*panic))),
                    Err(cancelled) => Err(cancelled.into()),
                });
            let reason = match outcome {
                Ok(()) => StopReason::TaskEnded { task: name },
                Err(cause) => StopReason::TaskFailed { task: name, cause },
            };
            if !stopping.is_cancelled() {
                // Only the first to end is read, and nobody reads after that.
                let _ = ended.send(reason);
            } else if let StopReason::TaskFailed { task, cause } = reason {
                warn!(
                    task,
                    error = format!("{cause:#}"),
                    "task failed while the process was stopping"
                );
            }
        });
    }
}

impl Supervisor {
    /// Sets the process up and listens on its HTTP address, so that it is seen to live from its first moment.
    ///
    /// # Errors
    /// The HTTP address cannot be bound.
    pub async fn bind(service: Service, args: &ProcessArgs) -> Result<Self, ServeError> {
        let (listener, http_address) = bind("HTTP", args.http_address).await?;
        info!(address = %http_address, "HTTP server listens");
        let (ended_sender, ended) = mpsc::unbounded_channel();
        let process = Process {
            inner: Arc::new(Inner {
                service,
                grpc_address: args.grpc_address,
                http_address,
                max_concurrent_calls: args.max_concurrent_calls,
                health: Health::new(),
                metrics: Metrics::new(service),
                stopping: CancellationToken::new(),
                drained: CancellationToken::new(),
                finishing: TaskTracker::new(),
                loops: TaskTracker::new(),
                ended: ended_sender,
            }),
        };
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

    /// The handle for the service.
    pub fn process(&self) -> Process {
        self.process.clone()
    }

    /// Starts the service with `start`, keeps it until `stop` completes or a task ends, then stops it in order.
    ///
    /// # Errors
    /// `start` failed, or a task ended before `stop` completed. By then it was logged, and the process has stopped in
    /// order as well.
    pub async fn run(
        mut self,
        stop: impl Future<Output = ()>,
        start: impl Future<Output = anyhow::Result<()>>,
    ) -> Result<(), StopReason> {
        let started = self.started.clone();
        let service = self.process.service();
        let start = async {
            match start.await {
                Ok(()) => {
                    started.set(true);
                    info!(service = service.name, version = service.version, "started");
                    std::future::pending().await
                }
                Err(cause) => StopReason::Start {
                    service: service.name,
                    cause,
                },
            }
        };
        let outcome = tokio::select! {
            () = stop => Ok(()),
            Some(reason) = self.ended.recv() => Err(reason),
            reason = start => Err(reason),
        };
        if let Err(reason) = &outcome {
            error!(error = %reason, "{} cannot go on", service.name);
        }
        self.stop().await;
        outcome
    }

    async fn stop(self) {
        let Inner {
            health,
            stopping,
            drained,
            finishing,
            loops,
            ..
        } = &*self.process.inner;
        info!("stopping");
        health.stop();
        stopping.cancel();
        wait(finishing, GRACE, "calls and finishing tasks").await;
        drained.cancel();
        wait(loops, LAST_GRACE, "loops").await;
        self.http_stop.cancel();
        wait(&self.http_tasks, LAST_GRACE, "HTTP connections").await;
        info!("stopped");
    }
}

async fn wait(tasks: &TaskTracker, grace: Duration, what: &str) {
    tasks.close();
    if tokio::time::timeout(grace, tasks.wait()).await.is_err() {
        warn!(
            left = tasks.len(),
            grace_seconds = grace.as_secs(),
            "left {what} behind that did not end in time"
        );
    }
}

async fn bind(
    server: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), ServeError> {
    let failed = |source| ServeError::Bind {
        server,
        address,
        source,
    };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a message")
}
