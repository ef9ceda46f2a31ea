//! Tests of the client: after each fault, the status of the call shows correctly whether a retry may help.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use coscheduler_runtime::{GrpcServices, client};
use http::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::Service;

use super::{Running, SERVICE, TIMEOUT, caller, channel, within};

/// A service whose method `Cancelled` answers with status `CANCELLED`. Its other methods never answer.
#[derive(Clone, Default)]
pub(crate) struct Scripted {
    called: CancellationToken,
}

impl NamedService for Scripted {
    const NAME: &'static str = "test.Scripted";
}

impl Service<Request<Body>> for Scripted {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.called.cancel();
        let cancels = request.uri().path().ends_with("/Cancelled");
        Box::pin(async move {
            if cancels {
                return Ok(Status::cancelled("Timeout expired").into_http());
            }
            std::future::pending().await
        })
    }
}

/// Calls `method` of the scripted service behind `address`.
async fn call(address: SocketAddr, method: &'static str, timeout: Duration) -> Status {
    let channel = channel(address).await;
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let codec: tonic_prost::ProstCodec<HealthCheckRequest, HealthCheckRequest> = Default::default();
    let path = http::uri::PathAndQuery::from_static(method);
    // Not `client::request`, because such a request would be retried.
    let mut request = tonic::Request::new(HealthCheckRequest::default());
    request.set_timeout(timeout);
    grpc.unary::<_, HealthCheckRequest, _>(request, path, codec)
        .await
        .unwrap_err()
}

#[tokio::test]
async fn a_server_that_is_not_there_is_worth_another_try_and_found_once_it_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut client = HealthClient::new(channel(address).await);
    let status = within(client.check(HealthCheckRequest::default()))
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(client::is_retryable(&status), "{status:?}");

    let args = coscheduler_runtime::ProcessArgs {
        grpc_address: address,
        ..coscheduler_runtime::ProcessArgs::loopback()
    };
    let supervisor = coscheduler_runtime::Supervisor::bind(SERVICE, &args)
        .await
        .unwrap();
    supervisor
        .process()
        .serve_grpc(GrpcServices::new())
        .await
        .unwrap();
    within(client.check(HealthCheckRequest::default()))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_deadline_that_passes_is_worth_another_try() {
    let running = Running::start(GrpcServices::new().add_service(Scripted::default(), &[])).await;
    let status = within(call(
        running.grpc,
        "/test.Scripted/Never",
        Duration::from_millis(50),
    ))
    .await;
    assert!(client::is_retryable(&status), "{status:?}");
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn a_connection_that_breaks_is_worth_another_try() {
    let scripted = Scripted::default();
    let called = scripted.called.clone();
    let running = Running::start(GrpcServices::new().add_service(scripted, &[])).await;

    // A proxy between client and server breaks the connection during the call.
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = proxy.local_addr().unwrap();
    let upstream = running.grpc;
    let breaking = tokio::spawn(async move {
        let (mut client, _) = proxy.accept().await.unwrap();
        let mut server = TcpStream::connect(upstream).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
            () = called.cancelled() => {}
        }
    });
    let status = within(call(address, "/test.Scripted/Never", TIMEOUT)).await;
    assert!(client::is_retryable(&status), "{status:?}");
    breaking.await.unwrap();
    running.stopped().await.unwrap();
}

#[tokio::test]
async fn a_peer_that_does_not_speak_grpc_is_worth_another_try() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let closing = tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            drop(connection)
        }
    });
    let status = within(call(address, "/test.Scripted/Never", TIMEOUT)).await;
    assert!(client::is_retryable(&status), "{status:?}");
    closing.abort();
}

#[tokio::test]
async fn what_the_server_says_is_final_unless_it_says_try_again() {
    let running = Running::start(GrpcServices::new().add_service(Scripted::default(), &[])).await;
    let status = within(call(running.grpc, "/test.Scripted/Cancelled", TIMEOUT)).await;
    assert_eq!(status.code(), Code::Cancelled);
    assert!(!client::is_retryable(&status), "{status:?}");
    let status = within(call(running.grpc, "/test.Unheard/Of", TIMEOUT)).await;
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(!client::is_retryable(&status), "{status:?}");
    running.stopped().await.unwrap();

    for (code, retryable) in [
        (Code::Aborted, true),
        (Code::DeadlineExceeded, true),
        (Code::ResourceExhausted, true),
        (Code::Unavailable, true),
        (Code::FailedPrecondition, false),
        (Code::Internal, false),
        (Code::InvalidArgument, false),
        (Code::Unknown, false),
    ] {
        assert_eq!(
            client::is_retryable(&Status::new(code, "")),
            retryable,
            "{code:?}"
        );
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_called_is_refused_by_name() {
    let process = caller().await;
    for address in [
        "http://planner:9102",
        "https://planner",
        "planner",
        "planner:",
        "planner:99999",
        "",
    ] {
        let error = client::channel(address, &process).unwrap_err();
        assert!(
            error.to_string().contains(&format!("{address:?}")),
            "{error}"
        );
    }
}
