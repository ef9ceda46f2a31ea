//! Tests of a process over real sockets: its services, its stop and its exit code.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod calling;
mod exit_codes;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod serving;
mod tasks;

use std::net::SocketAddr;
use std::time::Duration;

use coscheduler_runtime::{
    GrpcServices, Process, ProcessArgs, Service, Supervisor,
    client::{self, Channel},
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const SERVICE: Service = Service {
    name: "example",
    version: "1.2.3",
    about: "A service under test",
    grpc_address: "127.0.0.1:0",
    http_address: "127.0.0.1:0",
};

/// If a test waits for this time, it fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A process that serves gRPC. The test can stop it.
struct Running {
    process: Process,
    grpc: SocketAddr,
    stop: CancellationToken,
    ended: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    async fn start(services: GrpcServices) -> Running {
        let supervisor = Supervisor::bind(SERVICE, &ProcessArgs::loopback())
            .await
            .unwrap();
        let process = supervisor.process();
        let stop = CancellationToken::new();
        let grpc = process.serve_grpc(services).await.unwrap();
        let stopped = stop.clone().cancelled_owned();
        let ended = tokio::spawn(supervisor.run(stopped, async { Ok(()) }));
        Running {
            process,
            grpc,
            stop,
            ended,
        }
    }

    fn channel(&self) -> Channel {
        client::channel(&self.grpc.to_string(), &self.process).unwrap()
    }

    /// Status code and body of a GET on the HTTP server.
    async fn get(&self, path: &str) -> (u16, String) {
        http_get(self.process.http_address(), path)
            .await
            .expect("the HTTP server answers")
    }

    async fn stopped(self) -> anyhow::Result<()> {
        self.stop.cancel();
        within(self.ended).await.unwrap()
    }
}

/// A channel to `address` from a process that serves nothing.
async fn channel(address: SocketAddr) -> Channel {
    client::channel(&address.to_string(), &caller().await).unwrap()
}

async fn caller() -> Process {
    let supervisor = Supervisor::bind(SERVICE, &ProcessArgs::loopback()).await;
    supervisor.unwrap().process()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future)
        .await
        .expect("waited in vain")
}

async fn http_get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let mut connection = TcpStream::connect(address).await?;
    connection
        .write_all(format!("GET {path} HTTP/1.0\r\nHost: test\r\n\r\n").as_bytes())
        .await?;
    let mut response = String::new();
    connection.read_to_string(&mut response).await?;
    let (head, body) = response.split_once("\r\n\r\n").expect("an HTTP response");
    let code = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .expect("a status code");
    Ok((code, body.to_owned()))
}
