//! The end of the HTTPS server, without the loss of a review.
//!
//! The API server calls webhooks with HTTP/1.1, and keeps its connections open between reviews. If the webhook simply closed an
//! idle connection, the API server could send a review on it at the same moment, and would not send this review again. So the
//! webhook first announces the end of each connection in an answer. The API server then uses connections to other replicas.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Version};
use axum::middleware::Next;
use axum::response::Response;
use axum_server::Handle;
use tokio_util::sync::CancellationToken;

/// How long the webhook still answers reviews after the process begins to stop. If a connection has no review in this time, it
/// counts as idle, and is closed at the end of this time.
const LAST_REVIEWS: Duration = Duration::from_secs(3);
/// The longest time that reviews under way may take after that.
const GRACE: Duration = Duration::from_secs(6);

/// While the process stops, this layer adds header `Connection: close` to each HTTP/1.1 answer, so that the connection ends with
/// this answer. HTTP/2 has its own message for the end of a connection, and the server sends it.
pub(crate) async fn close(
    State(stopping): State<CancellationToken>,
    request: Request,
    next: Next,
) -> Response {
    let announces = request.version() <= Version::HTTP_11;
    let mut response = next.run(request).await;
    if announces && stopping.is_cancelled() {
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Waits until the process begins to stop, and then stops the server.
pub(crate) async fn stop(server: Handle<SocketAddr>, stopping: CancellationToken) {
    stopping.cancelled().await;
    tokio::time::sleep(LAST_REVIEWS).await;
    server.graceful_shutdown(Some(GRACE));
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(connection: &mut TcpStream) -> String {
        let question = b"GET / HTTP/1.1\r\nhost: webhook\r\n\r\n";
        connection.write_all(question).await.unwrap();
        let mut answer = vec![0; 1024];
        let length = connection.read(&mut answer).await.unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    #[tokio::test]
    async fn b8_a_review_on_an_open_connection_is_answered_while_the_process_stops() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (handle, stopping) = (Handle::new(), CancellationToken::new());
        let routes = Router::new()
            .route("/", get(async || ""))
            .layer(from_fn_with_state(stopping.clone(), close));
        let server = axum_server::from_tcp(listener).unwrap();
        let serve = server
            .handle(handle.clone())
            .serve(routes.into_make_service());
        let stopped = stop(handle, stopping.clone());
        let served = tokio::spawn(async { tokio::join!(serve, stopped) });

        let mut used = TcpStream::connect(address).await.unwrap();
        let mut idle = TcpStream::connect(address).await.unwrap();
        for connection in [&mut used, &mut idle] {
            let answer = ask(connection).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert!(!answer.contains("connection: close"), "{answer}");
        }
        stopping.cancel();
        // The server does not close the connection before it has announced the end.
        let mut end = [0];
        let closed = tokio::time::timeout(Duration::from_secs(1), used.read(&mut end)).await;
        assert!(closed.is_err(), "{closed:?}");
        let answer = ask(&mut used).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
        for connection in [&mut used, &mut idle] {
            assert_eq!(connection.read(&mut [0]).await.unwrap(), 0);
        }
        served.await.unwrap().0.unwrap();
    }
}
