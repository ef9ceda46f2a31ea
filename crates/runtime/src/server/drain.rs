//! The layer that ends streams once the server drains: a stream without end cannot hold up a stop. Its caller is told to
//! try again (`UNAVAILABLE`), and finds another replica or the next process.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::Status;

/// The layer: `axum::middleware::from_fn_with_state(draining, drain)`.
pub(crate) async fn drain(
    State(draining): State<CancellationToken>,
    request: Request,
    next: Next,
) -> Response {
    next.run(request).await.map(|body| {
        Body::new(DrainingBody {
            body,
            draining: Box::pin(draining.cancelled_owned()),
            drained: false,
        })
    })
}

/// The body of a response, until the server drains.
struct DrainingBody {
    body: Body,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
    drained: bool,
}

impl HttpBody for DrainingBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.drained {
            return Poll::Ready(None);
        }
        match Pin::new(&mut self.body).poll_frame(context) {
            // Only a stream waits for more to say.
            Poll::Pending if self.draining.as_mut().poll(context).is_ready() => {
                self.drained = true;
                Poll::Ready(Some(Ok(Frame::trailers(trailers()))))
            }
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.drained || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

fn trailers() -> HeaderMap {
    let (parts, ()) = Status::unavailable("the server is stopping")
        .into_http()
        .into_parts();
    let mut trailers = parts.headers;
    trailers.remove(http::header::CONTENT_TYPE);
    trailers
}
