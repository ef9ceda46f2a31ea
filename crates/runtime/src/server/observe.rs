//! The outermost layer around every RPC. It opens the span of the call, as part of the caller's trace. When the call ends, it
//! counts, times and logs the call, even if another layer answered it.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use tracing::Instrument;

use crate::rpc::RpcMetrics;
use crate::trace;

/// The layer: `axum::middleware::from_fn_with_state(metrics, observe)`.
pub(crate) async fn observe(
    State(metrics): State<RpcMetrics>,
    request: Request,
    next: Next,
) -> Response {
    let rpc = metrics.begin(request.uri().path());
    trace::join_caller(&rpc.span(), request.headers());
    let response = next.run(request).instrument(rpc.span()).await;
    rpc.observe(response, Body::new)
}
