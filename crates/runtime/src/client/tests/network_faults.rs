//! Client and server together on a simulated network with faults, in simulated time.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use turmoil::net::{TcpListener, TcpStream};

use crate::client::{self, Channel};
use crate::{GrpcServices, Health, Metrics, Service};

const PORT: u16 = 9100;
/// The time that an admission may take.
const TIMEOUT: Duration = Duration::from_secs(9);

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn network<'a>() -> turmoil::Sim<'a> {
    turmoil::Builder::new()
        .simulation_duration(Duration::from_secs(120))
        .tick_duration(Duration::from_millis(10))
        .build()
}

/// Runs the gRPC server that every service has, on the current host.
async fn serve() -> Outcome {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    let connections = futures::stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await;
        Some((accepted.map(|(stream, _)| Connection(stream)), listener))
    });
    let server = GrpcServices::new().prepare(&Metrics::new(Service::EXAMPLE), 256, None)?;
    server
        .serve(connections, Health::new(), CancellationToken::new())
        .await?;
    Ok(())
}

/// The channel that every service has. Each connection goes to the next of these hosts, as behind a Kubernetes Service.
fn channel(hosts: &'static [&'static str]) -> HealthClient<Channel> {
    let next = Arc::new(AtomicUsize::new(0));
    let connect = tower::service_fn(move |_: Uri| {
        let host = hosts[next.fetch_add(1, Ordering::Relaxed) % hosts.len()];
        async move {
            let stream = TcpStream::connect((host, PORT)).await?;
            Ok::<_, std::io::Error>(TokioIo::new(stream))
        }
    });
    let endpoint = client::endpoint("service:9100", Service::EXAMPLE).unwrap();
    let transport = endpoint.connect_with_connector_lazy(connect);
    HealthClient::new(client::observed(transport, &Metrics::new(Service::EXAMPLE)))
}

async fn call(client: &mut HealthClient<Channel>, timeout: Duration) -> Result<(), Status> {
    let request = client::request(HealthCheckRequest::default(), timeout);
    client.check(request).await.map(drop)
}

#[test]
fn a_call_made_during_a_partition_is_answered_once_it_heals() -> Outcome {
    let mut network = network();
    network.host("server", serve);
    network.client("client", async {
        let mut client = channel(&["server"]);
        call(&mut client, TIMEOUT).await?;

        // Packets are lost without any error.
        turmoil::partition("client", "server");
        let healing = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            turmoil::repair("client", "server");
        };
        let (answer, ()) = futures::join!(call(&mut client, TIMEOUT), healing);
        answer?;

        // During a long partition, calls end at their deadlines. After the partition, the channel works again.
        turmoil::partition("client", "server");
        for _ in 0..3 {
            let began = tokio::time::Instant::now();
            let status = call(&mut client, TIMEOUT).await.unwrap_err();
            assert!(client::is_retryable(&status), "{status:?}");
            assert!(
                began.elapsed() <= TIMEOUT + Duration::from_millis(10),
                "{:?}",
                began.elapsed()
            );
        }
        turmoil::repair("client", "server");
        call(&mut client, TIMEOUT).await?;
        Ok(())
    });
    network.run()
}

#[test]
fn a_stream_into_a_partition_ends_so_that_it_can_be_opened_again() -> Outcome {
    let mut network = network();
    network.host("server", serve);
    network.client("client", async {
        let mut client = channel(&["server"]);
        let watch = client.watch(HealthCheckRequest::default()).await?;
        let mut stream = watch.into_inner();
        stream.message().await?;
        turmoil::partition("client", "server");
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.message()).await?;
        assert!(client::is_retryable(&ended.unwrap_err()));
        turmoil::repair("client", "server");
        client.watch(HealthCheckRequest::default()).await?;
        Ok(())
    });
    network.run()
}

#[test]
fn no_call_fails_when_one_of_two_replicas_dies() -> Outcome {
    let mut network = network();
    for replica in ["one", "two"] {
        network.host(replica, serve);
    }
    network.client("client", async {
        let mut clients = [
            channel(&["one", "two"]),
            channel(&["two", "one"]),
            channel(&["one", "two"]),
        ];
        for _ in 0..200 {
            for client in &mut clients {
                call(client, TIMEOUT).await?;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    });
    // Each host stops once and starts again, one after the other, while calls are made.
    let mut faults = vec![
        (Duration::from_secs(2), "one", false),
        (Duration::from_secs(4), "one", true),
        (Duration::from_secs(5), "two", false),
        (Duration::from_secs(7), "two", true),
    ]
    .into_iter()
    .peekable();
    while !network.step()? {
        if let Some((_, replica, comes_back)) = faults.next_if(|(at, ..)| network.elapsed() >= *at)
        {
            if comes_back {
                network.bounce(replica);
            } else {
                network.crash(replica);
            }
        }
    }
    assert!(faults.next().is_none(), "every fault has happened");
    Ok(())
}

#[test]
fn a_server_that_is_never_there_is_given_up_at_the_deadline() -> Outcome {
    let mut network = network();
    network.host("server", std::future::pending::<Outcome>);
    network.client("client", async {
        let began = tokio::time::Instant::now();
        let status = call(&mut channel(&["server"]), TIMEOUT).await.unwrap_err();
        // The deadline comes between two tries, or during one: their intervals are random.
        let given_up = [Code::Unavailable, Code::DeadlineExceeded].contains(&status.code());
        assert!(given_up, "{status:?}");
        assert!(began.elapsed() <= TIMEOUT);
        Ok(())
    });
    network.run()
}

/// A connection of the simulated network that tonic serves.
struct Connection(TcpStream);

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, buffer)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
