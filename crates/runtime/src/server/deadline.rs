//! How long the caller of an RPC still waits. The caller says it in `grpc-timeout`; the server adds a maximum, so that
//! no RPC waits for ever, and the handler passes on what is left of it.

use std::time::Duration;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::{HeaderMap, HeaderValue};
use tokio::time::Instant;
use tonic::Status;

/// The header that says how long the caller waits.
pub(crate) const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The longest an RPC may take until its response begins. Streams may go on for as long as they like after that.
pub(crate) const MAXIMUM: Duration = Duration::from_secs(30);

/// The moment after which nobody waits for the answer of an RPC any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

impl Deadline {
    /// The deadline of the RPC that `request` belongs to: the caller's own, at most 30 s after it came in.
    pub fn of<T>(request: &tonic::Request<T>) -> Self {
        request
            .extensions()
            .get::<Deadline>()
            .copied()
            .unwrap_or_else(|| Deadline::after(MAXIMUM))
    }

    /// What is left; zero once it has passed.
    pub fn remaining(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub(crate) fn from_headers(headers: &HeaderMap) -> Self {
        let asked = headers
            .get(GRPC_TIMEOUT)
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

    /// What is left, as the value of `grpc-timeout`.
    pub(crate) fn to_header(self) -> HeaderValue {
        write(self.remaining())
    }
}

/// The layer: `axum::middleware::from_fn(enforce)`. It tells the handler the deadline, and answers for it once that has
/// passed.
pub(crate) async fn enforce(mut request: Request, next: Next) -> Response {
    let deadline = Deadline::from_headers(request.headers());
    request.extensions_mut().insert(deadline);
    let handled = tokio::time::timeout_at(deadline.instant(), next.run(request));
    handled.await.unwrap_or_else(|_| {
        Status::deadline_exceeded("the deadline passed before the call was answered").into_http()
    })
}

/// Writes a `grpc-timeout`, in the finest unit that leaves at most eight digits.
fn write(duration: Duration) -> HeaderValue {
    const MOST: u128 = 99_999_999;
    let units = [
        (duration.as_micros(), 'u'),
        (duration.as_millis(), 'm'),
        (u128::from(duration.as_secs()), 'S'),
    ];
    let (amount, unit) = units
        .into_iter()
        .find(|(amount, _)| *amount <= MOST)
        .unwrap_or((MOST, 'S'));
    HeaderValue::from_str(&format!("{amount}{unit}")).unwrap_or(HeaderValue::from_static("0u"))
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

    #[test]
    fn what_is_written_is_what_is_read() {
        for (duration, written) in [
            (Duration::ZERO, "0u"),
            (Duration::from_millis(1500), "1500000u"),
            (Duration::from_secs(200), "200000m"),
            (Duration::from_secs(1_000_000), "1000000S"),
        ] {
            assert_eq!(write(duration), written);
            assert_eq!(parse(written), Some(duration));
        }
        assert_eq!(write(Duration::MAX), "99999999S");
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
