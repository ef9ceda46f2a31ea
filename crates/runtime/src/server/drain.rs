//! The layer that ends streams when the server drains, so that an endless stream does not delay a stop. The caller of the
//! stream gets `UNAVAILABLE`, and can open the stream again at another replica or at the next process.

use axum::body::{Body, HttpBody as _};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures::{StreamExt as _, stream};
use http::{HeaderMap, header};
use http_body::Frame;
use http_body_util::{BodyStream, StreamBody};
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// The layer: `axum::middleware::from_fn_with_state(draining, drain)`.
pub(crate) async fn drain(
    State(draining): State<CancellationToken>,
    request: Request,
    next: Next,
) -> Response {
    next.run(request).await.map(|body| {
        // An error response has only headers. A wrapped body would lose the end-of-stream flag of these headers.
        if body.is_end_stream() {
            return body;
        }
        let frames = stream::unfold(Some(BodyStream::new(body)), move |frames| {
            let draining = draining.clone();
            async move {
                let mut frames = frames?;
                tokio::select! {
                    // Prefer the next frame, so that a call whose answer is ready ends with this answer.
                    biased;
                    frame = frames.next() => frame.map(|frame| (frame, Some(frames))),
                    () = draining.cancelled() => Some((Ok(Frame::trailers(trailers())), None)),
                }
            }
        });
        Body::new(StreamBody::new(frames))
    })
}

fn trailers() -> HeaderMap {
    let status = Status::unavailable("the server is stopping");
    let mut trailers = status.into_http::<()>().into_parts().0.headers;
    trailers.remove(header::CONTENT_TYPE);
    trailers
}
