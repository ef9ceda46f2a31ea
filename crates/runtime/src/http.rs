//! The HTTP server for probes and Prometheus: `/livez`, `/readyz` and `/metrics`. It ends after the gRPC server. So while gRPC
//! connections drain, `/readyz` answers 503, and Prometheus can read the last metrics.

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics_registry::CONTENT_TYPE;
use crate::{Health, Metrics};

/// Serves until `stop` is cancelled.
///
/// # Errors
/// The listener failed.
pub(crate) async fn serve(
    listener: TcpListener,
    health: Health,
    metrics: Metrics,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let router = Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .with_state(health)
        .route("/metrics", get(scrape).with_state(metrics));
    axum::serve(listener, router)
        .with_graceful_shutdown(stop.cancelled_owned())
        .await?;
    Ok(())
}

async fn readyz(State(health): State<Health>) -> Response {
    let missing = health.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    let lines = missing.iter().map(|name| format!("not ready: {name}\n"));
    (StatusCode::SERVICE_UNAVAILABLE, lines.collect::<String>()).into_response()
}

async fn scrape(State(metrics): State<Metrics>) -> Response {
    match metrics.encode() {
        Ok(encoded) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], encoded).into_response(),
        Err(error) => {
            let message = format!("failed to encode the metrics: {error}\n");
            (StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
        }
    }
}
