//! Retries of calls, over a scripted transport and with a paused clock.

mod network_faults;

use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt as _, Full};
use tokio::time::Instant;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(9);

/// One answer of the scripted server.
#[derive(Clone)]
enum Says {
    /// A message.
    Ok,
    /// This status, at once.
    Status(Status),
    /// The beginning of an answer, and then this status.
    BreaksWith(Code),
    /// No answer.
    Nothing,
}

/// The time of a call, and its `grpc-timeout`.
type Call = (Instant, Option<String>);

/// A scripted server. It gives the answers on its list in order, and repeats the last answer for all further calls. It records
/// the time and the `grpc-timeout` of each call.
#[derive(Clone)]
struct Scripted {
    says: Arc<Mutex<Vec<Says>>>,
    calls: Arc<Mutex<Vec<Call>>>,
    metrics: Metrics,
}

impl Scripted {
    fn new(says: impl IntoIterator<Item = Says>) -> Self {
        Scripted {
            says: Arc::new(Mutex::new(says.into_iter().collect())),
            calls: Arc::default(),
            metrics: Metrics::new(Service::EXAMPLE),
        }
    }

    fn client(&self) -> HealthClient<Channel> {
        let script = self.clone();
        let transport = tower::service_fn(move |request: HttpRequest<Body>| {
            let script = script.clone();
            async move { Ok::<_, std::convert::Infallible>(script.answer(request).await) }
        });
        let caller = Caller::new(transport, &self.metrics);
        HealthClient::new(Channel::new(caller))
    }

    async fn answer(&self, request: HttpRequest<Body>) -> HttpResponse<Body> {
        let timeout = request.headers().get("grpc-timeout");
        let timeout = timeout.map(|value| value.to_str().unwrap().to_owned());
        self.calls.lock().unwrap().push((Instant::now(), timeout));
        let says = {
            let mut says = self.says.lock().unwrap();
            if says.len() > 1 {
                says.remove(0)
            } else {
                says[0].clone()
            }
        };
        let message = |code: Code| {
            let trailers = HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                i32::from(code).into(),
            )]);
            let message = Full::new(Bytes::from_static(&[0; 5]));
            let body = message.with_trailers(std::future::ready(Some(Ok(trailers))));
            HttpResponse::new(Body::new(body))
        };
        match says {
            Says::Ok => message(Code::Ok),
            Says::BreaksWith(code) => message(code),
            Says::Status(status) => status.into_http(),
            Says::Nothing => std::future::pending().await,
        }
    }

    async fn check(&self) -> Result<HealthCheckResponse, Status> {
        let request = request(HealthCheckRequest::default(), TIMEOUT);
        Ok(self.client().check(request).await?.into_inner())
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    #[track_caller]
    fn metric(&self, line: &str) {
        let encoded = self.metrics.encode().unwrap();
        assert!(encoded.lines().any(|found| found == line), "{encoded}");
    }
}

fn unavailable() -> Says {
    Says::Status(Status::unavailable("not now"))
}

#[tokio::test(start_paused = true)]
async fn a_call_is_tried_until_it_succeeds_and_counts_once() {
    let broken = Says::BreaksWith(Code::Unavailable);
    let server = Scripted::new([unavailable(), broken, unavailable(), Says::Ok]);
    server.check().await.unwrap();
    assert_eq!(server.calls(), 4);
    let labels = r#"grpc_service="grpc.health.v1.Health",grpc_method="Check""#;
    server.metric(&format!(
        r#"grpc_client_handled_total{{{labels},grpc_code="OK"}} 1"#
    ));
    server.metric(&format!(
        "coscheduler_grpc_client_retries_total{{{labels}}} 3"
    ));
}

#[tokio::test(start_paused = true)]
async fn what_the_server_says_for_good_is_not_asked_again() {
    for code in [
        Code::FailedPrecondition,
        Code::InvalidArgument,
        Code::Internal,
    ] {
        let server = Scripted::new([Says::Status(Status::new(code, ""))]);
        assert_eq!(server.check().await.unwrap_err().code(), code);
        assert_eq!(server.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn no_try_goes_beyond_the_deadline_and_each_says_what_is_left_of_it() {
    let began = Instant::now();
    let server = Scripted::new([unavailable()]);
    let status = server.check().await.unwrap_err();
    assert_eq!(
        status.message(),
        "not now",
        "the last answer, not the deadline"
    );
    assert!(began.elapsed() <= TIMEOUT);
    assert!(server.calls() >= 6, "{} calls", server.calls());

    for (at, timeout) in server.calls.lock().unwrap().iter() {
        let mut left = Request::new(());
        left.set_timeout(TIMEOUT - (*at - began));
        let left = left
            .metadata()
            .get("grpc-timeout")
            .unwrap()
            .to_str()
            .unwrap();
        assert_eq!(timeout.as_deref(), Some(left));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_nothing_is_waited_for_until_the_deadline() {
    let server = Scripted::new([unavailable(), Says::Nothing]);
    let began = Instant::now();
    let status = server.check().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(began.elapsed().as_secs(), TIMEOUT.as_secs());
    assert_eq!(server.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_when_to_come_back_is_heeded() {
    let asked = Duration::from_secs(3);
    let busy = Status::with_error_details(
        Code::ResourceExhausted,
        "busy",
        ErrorDetails::with_retry_info(Some(asked)),
    );
    let server = Scripted::new([Says::Status(busy), Says::Ok]);
    let began = Instant::now();
    server.check().await.unwrap();
    assert!(began.elapsed() >= asked, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stream_is_begun_once() {
    let server = Scripted::new([unavailable(), Says::Ok]);
    let status = server
        .client()
        .watch(HealthCheckRequest::default())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(server.calls(), 1);

    let mut stream = server
        .client()
        .watch(HealthCheckRequest::default())
        .await
        .unwrap()
        .into_inner();
    while stream.message().await.unwrap().is_some() {}
    let labels = r#"grpc_service="grpc.health.v1.Health",grpc_method="Watch""#;
    server.metric(&format!(
        r#"grpc_client_handled_total{{{labels},grpc_code="OK"}} 1"#
    ));
}

/// A hundred callers call a server for nine seconds, and the server refuses all calls. Without a budget, each caller would
/// retry about a dozen times.
#[tokio::test(start_paused = true)]
async fn the_budget_bounds_what_all_calls_together_send() {
    let server = Scripted::new([unavailable()]);
    let client = server.client();
    let calls = (0..100).map(|_| {
        let mut client = client.clone();
        async move {
            client
                .check(request(HealthCheckRequest::default(), TIMEOUT))
                .await
        }
    });
    let began = Instant::now();
    let answers = futures::future::join_all(calls).await;
    assert!(answers.iter().all(Result::is_err));

    let calls = server.calls.lock().unwrap();
    let retries = calls.len() - answers.len();
    let within = |seconds| {
        let until = began + Duration::from_secs(seconds);
        calls.iter().filter(|(at, _)| *at < until).count() - answers.len()
    };
    for seconds in 1..=9 {
        let most = 50 + 50 * seconds as usize + 20;
        assert!(
            within(seconds) <= most,
            "{} within {seconds} s",
            within(seconds)
        );
    }
    assert!(
        retries > 50 * 4,
        "{retries} retries: the budget was not used"
    );
}

/// A hundred callers call a server that refuses all calls for two seconds, and then answers. All callers get an answer.
#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_the_budget_still_succeed() {
    let server = Scripted::new([unavailable()]);
    let client = server.client();
    let calls = (0..100).map(|_| {
        let mut client = client.clone();
        async move {
            client
                .check(request(HealthCheckRequest::default(), TIMEOUT))
                .await
        }
    });
    let comes_back = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        *server.says.lock().unwrap() = vec![Says::Ok];
    };
    let (answers, ()) = futures::join!(futures::future::join_all(calls), comes_back);
    let failed: Vec<_> = answers.iter().filter_map(|a| a.as_ref().err()).collect();
    assert!(
        failed.is_empty(),
        "{} failed: {:?}",
        failed.len(),
        failed[0]
    );
}
