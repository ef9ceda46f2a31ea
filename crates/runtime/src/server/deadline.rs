//! The deadline of an RPC. The caller sends its time limit in `grpc-timeout`. The server shortens a limit that is too long, so
//! that no RPC waits for ever. The handler uses the remaining time for the RPCs that it sends.

use std::time::Duration;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::HeaderMap;
use tokio::time::Instant;
use tonic::Status;

/// The longest time that an RPC may take until its response begins. After that, a stream may last for any time.
pub(crate) const MAXIMUM: Duration = Duration::from_secs(30);

/// The time at which the caller of an RPC stops waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline of the RPC that `request` belongs to: the caller's deadline, but at most 30 s after the arrival of the
    /// request.
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        request
            .extensions()
            .get::<Deadline>()
            .copied()
            .unwrap_or_else(|| Deadline::after(MAXIMUM))
    }

    /// The time left; zero once the deadline has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let asked = headers
            .get("grpc-timeout")
            .and_then(|value| value.to_str().ok())
            .and_then(parse);
        Deadline::after(asked.map_or(MAXIMUM, |asked| asked.min(MAXIMUM)))
    }

    pub(crate) fn instant(self) -> Instant {
        self.0
    }

    /// `duration` from now.
    pub(crate) fn after(duration: Duration) -> Self {
        Deadline(Instant::now() + duration)
    }
}

/// The layer: `axum::middleware::from_fn(enforce)`. It passes the deadline to the handler. If the deadline passes first, the
/// layer answers instead of the handler.
pub(crate) async fn enforce(mut request: Request, next: Next) -> Response {
    let deadline = Deadline::from_headers(request.headers());
    request.extensions_mut().insert(deadline);
    let handled = tokio::time::timeout_at(deadline.instant(), next.run(request));
    handled.await.unwrap_or_else(|_| {
        Status::deadline_exceeded("the deadline passed before the call was answered").into_http()
    })
}

/// Reads a `grpc-timeout`: at most eight digits and a unit, as the gRPC protocol over HTTP/2 defines it.
fn parse(value: &str) -> Option<Duration> {
    let (unit_at, unit) = value.char_indices().next_back()?;
    let digits = value.get(..unit_at)?;
    if digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(amount * 3600)),
        'M' => Some(Duration::from_secs(amount * 60)),
        'S' => Some(Duration::from_secs(amount)),
        'm' => Some(Duration::from_millis(amount)),
        'u' => Some(Duration::from_micros(amount)),
        'n' => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_timeouts_are_read_as_the_protocol_writes_them() {
        let cases = [
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("10S", Some(Duration::from_secs(10))),
            ("250m", Some(Duration::from_millis(250))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("S", None),
            ("10", None),
            ("+1S", None),
            ("999999999S", None),
            ("1s", None),
            ("1é", None),
        ];
        for (value, expected) in cases {
            assert_eq!(parse(value), expected, "{value:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_server_maximum_bounds_the_callers_wish() {
        let asked = |value: &'static str| {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-timeout"),
                http::HeaderValue::from_static(value),
            )]);
            Deadline::from_headers(&headers).remaining()
        };
        assert_eq!(asked("5S"), Duration::from_secs(5));
        assert_eq!(asked("1H"), MAXIMUM);
        assert_eq!(asked("soon"), MAXIMUM);
        assert_eq!(
            Deadline::from_headers(&HeaderMap::new()).remaining(),
            MAXIMUM
        );
    }
}
