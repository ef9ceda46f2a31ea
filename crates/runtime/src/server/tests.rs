//! Tests of the layers: calls that never end, and too many calls.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::response::Response;
use http_body::Frame;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;
use tower::ServiceExt as _;

use super::*;
use crate::Service;

/// A router whose calls never end. `/test.Known/Silent` never answers. Any other path begins a stream that sends nothing.
fn endless(metrics: &Metrics, draining: &CancellationToken) -> Router {
    let router = Router::new()
        .route(
            "/test.Known/Silent",
            axum::routing::any(std::future::pending::<Response>),
        )
        .fallback(async || Response::new(Body::new(Endless)));
    layered(
        router,
        RpcMetrics::server(metrics, vec!["test.Known", HEALTH]),
        Limit::new(metrics, 2, &["test.Known"]),
        Guard::new(None, &[]),
        draining.clone(),
    )
}

struct Endless;

impl HttpBody for Endless {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Poll::Pending
    }
}

fn call(path: &str, timeout: &str) -> Request {
    Request::builder()
        .uri(path)
        .header("grpc-timeout", timeout)
        .body(Body::empty())
        .unwrap()
}

#[track_caller]
fn check(metrics: &Metrics, expected: &str) {
    let encoded = metrics.encode().unwrap();
    let handled: Vec<_> = encoded
        .lines()
        .filter(|line| line.starts_with("grpc_server_handled_total"))
        .collect();
    assert_eq!(handled, [format!("grpc_server_handled_total{expected} 1")]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_misses_the_deadline_is_answered_for() {
    let metrics = Metrics::new(Service::EXAMPLE);
    let router = endless(&metrics, &CancellationToken::new());
    let began = tokio::time::Instant::now();
    let response = router
        .oneshot(call("/test.Known/Silent", "5S"))
        .await
        .unwrap();
    assert_eq!(began.elapsed().as_secs(), 5);
    let status = Status::from_header_map(response.headers()).unwrap();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    check(
        &metrics,
        r#"{grpc_service="test.Known",grpc_method="Silent",grpc_code="DeadlineExceeded"}"#,
    );
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_is_counted() {
    let metrics = Metrics::new(Service::EXAMPLE);
    let router = endless(&metrics, &CancellationToken::new());
    let waiting = router.oneshot(call("/test.Known/Silent", "5S"));
    tokio::time::timeout(Duration::from_secs(1), waiting)
        .await
        .unwrap_err();
    check(
        &metrics,
        r#"{grpc_service="test.Known",grpc_method="Silent",grpc_code="Canceled"}"#,
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_outlives_the_deadline_and_ends_when_the_server_drains() {
    let (metrics, draining) = (Metrics::new(Service::EXAMPLE), CancellationToken::new());
    let router = endless(&metrics, &draining);
    let mut body = router
        .oneshot(call("/test.Known/Stream", "5S"))
        .await
        .unwrap()
        .into_body();
    let mut frame = async || {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        tokio::time::timeout(Duration::from_secs(3600), frame).await
    };
    frame().await.unwrap_err();

    draining.cancel();
    let frame_of_trailers = frame().await.unwrap().unwrap().unwrap();
    let trailers = frame_of_trailers.into_trailers().unwrap();
    assert_eq!(
        Status::from_header_map(&trailers).unwrap().code(),
        Code::Unavailable
    );
    assert!(frame().await.unwrap().is_none());
    check(
        &metrics,
        r#"{grpc_service="test.Known",grpc_method="Stream",grpc_code="Unavailable"}"#,
    );
}

#[tokio::test]
async fn callers_cannot_make_up_label_values() {
    let metrics = Metrics::new(Service::EXAMPLE);
    let router = endless(&metrics, &CancellationToken::new());
    drop(router.oneshot(call("/made.Up/Name", "5S")).await.unwrap());
    check(
        &metrics,
        r#"{grpc_service="unknown",grpc_method="unknown",grpc_code="Canceled"}"#,
    );
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_limit_are_turned_away_at_once_and_told_when_to_come_back() {
    let metrics = Metrics::new(Service::EXAMPLE);
    let router = endless(&metrics, &CancellationToken::new());
    let ask = |path: &'static str| {
        let router = router.clone();
        async move { router.oneshot(call(path, "5S")).await.unwrap() }
    };
    let code = |response: &Response| {
        Status::from_header_map(response.headers()).map(|status| status.code())
    };

    let waiting = futures::future::join(ask("/test.Known/Silent"), ask("/test.Known/Silent"));
    let (turned_away, exempt, stream_of_nobody) = {
        let mut waiting = std::pin::pin!(waiting);
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        let began = tokio::time::Instant::now();
        let turned_away = ask("/test.Known/Stream").await;
        assert!(began.elapsed().is_zero());
        let (exempt, unknown) = (
            ask("/grpc.health.v1.Health/Watch").await,
            ask("/made.Up/Name").await,
        );
        waiting.await;
        (turned_away, exempt, unknown)
    };
    let status = Status::from_header_map(turned_away.headers()).unwrap();
    assert_eq!(status.code(), Code::ResourceExhausted);
    let retry = status.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_millis(200)));
    assert_eq!(
        status.get_details_error_info().unwrap().reason,
        "TOO_MANY_CALLS"
    );
    assert_eq!(code(&exempt), None, "health begins to stream");
    assert_eq!(code(&stream_of_nobody), None);

    // The two silent calls have ended, and a stream does not count after its response has begun.
    let streams = [
        ask("/test.Known/Stream").await,
        ask("/test.Known/Stream").await,
        ask("/test.Known/Stream").await,
    ];
    assert!(streams.iter().all(|stream| code(stream).is_none()));
    let encoded = metrics.encode().unwrap();
    for line in [
        r#"coscheduler_rpcs_shed_total{grpc_service="test.Known"} 1"#,
        "coscheduler_rpcs_in_flight 0",
    ] {
        assert!(encoded.lines().any(|found| found == line), "{encoded}");
    }
}
