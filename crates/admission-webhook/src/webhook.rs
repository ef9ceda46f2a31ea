//! The HTTP side of the webhook. It receives an admission review, asks the planner or checks the ConfigMap, and sends the
//! response.

use std::fmt::Display;
use std::mem::take;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::to_bytes;
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tonic::{Code, Status};
use tracing::{Span, error, info};

use coscheduler_proto::convert;
use coscheduler_proto::error::violations;
use coscheduler_proto::planner::AdmitPipelineRunRequest;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_runtime::client::{Channel, request as call};
use coscheduler_runtime::trace;

use crate::catalog::Catalog;
use crate::notices::Notices;
use crate::observe::{Answered, Outcome, Reviews, observe};
use crate::surroundings::Surroundings;
use crate::{claims, config_map, review};

/// The timeout of a webhook, if the API server does not send one. It is the default of Kubernetes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The part of the timeout that is reserved for sending the response.
const MARGIN: Duration = Duration::from_secs(1);

/// The answer to a request of Tekton that comes too early.
const NO_PIPELINE: &str = "settings or claims of the PipelineRun depend on its Pipeline, and Tekton has not stored this \
                           Pipeline in the PipelineRun's status yet, or has stored it only a moment ago; Tekton repeats \
                           this request";

/// The state that all handlers share.
#[derive(Clone)]
pub(crate) struct Webhook {
    pub(crate) client: Client,
    pub(crate) planner: PlannerServiceClient<Channel>,
    pub(crate) surroundings: Surroundings,
    pub(crate) catalog: Catalog,
    pub(crate) notices: Notices,
}

/// How long the body of a review may take to arrive.
const ARRIVES: Duration = Duration::from_secs(2);
/// A review with fewer bytes does not wait for other reviews. Most reviews have a few kilobytes.
const SMALL_BYTES: usize = 64 << 10;
/// The most bytes of one review, and of all large reviews in progress together. The review of an update contains the object
/// twice, and the API server accepts objects of up to 3 MiB.
const MOST_BYTES: usize = 8 << 20;

/// The URL paths of the webhook, with their handlers.
pub(crate) fn routes(webhook: Webhook, reviews: Reviews) -> Router {
    Router::new()
        .route("/admit/pipelinerun", post(admit_pipeline_run))
        .route("/admit/run", post(admit_run))
        .route("/check/config", post(check_config))
        .with_state(webhook)
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .layer(from_fn_with_state(
            Arc::new(Semaphore::new(MOST_BYTES)),
            queue,
        ))
        .layer(from_fn_with_state(reviews, observe))
}

/// The layer that delays large reviews, so that the large reviews in progress together never have more than [`MOST_BYTES`].
/// Large reviews keep their order. If the API server gives up, it ends the call, and the review leaves the queue. Small reviews
/// are not delayed, so large objects of one tenant do not delay small objects of another.
async fn queue(
    State(free): State<Arc<Semaphore>>,
    request: axum::extract::Request,
    next: Next,
) -> Response {
    let (parts, body) = request.into_parts();
    // A client that sends nothing must not keep others waiting. So a review counts only after its whole body has arrived.
    let body = match tokio::time::timeout(ARRIVES, to_bytes(body, MOST_BYTES)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) => {
            return (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()).into_response();
        }
        Err(late) => return (StatusCode::REQUEST_TIMEOUT, late.to_string()).into_response(),
    };
    let large = match body.len() {
        small if small < SMALL_BYTES => 0,
        large => u32::try_from(large).unwrap_or(u32::MAX),
    };
    let permit = free.acquire_many(large).await;
    let request = axum::extract::Request::from_parts(parts, body.into());
    let response = next.run(request).await;
    drop(permit);
    response
}

type Request = AdmissionRequest<DynamicObject>;
type Review = Json<AdmissionReview<DynamicObject>>;
pub(crate) type Failure = (StatusCode, String);

/// The query parameters that the API server adds to every call of a webhook.
#[derive(Debug, Deserialize)]
struct Wait {
    timeout: Option<String>,
}

impl Wait {
    /// The time limit for the response. The API server writes its timeout in whole seconds, such as `10s`.
    fn timeout(&self) -> Duration {
        let timeout = self.timeout.as_deref();
        let seconds = timeout.and_then(|timeout| timeout.strip_suffix('s')?.parse().ok());
        let timeout = seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs);
        timeout.saturating_sub(MARGIN).max(MARGIN)
    }
}

async fn admit_pipeline_run(
    State(webhook): State<Webhook>,
    Query(wait): Query<Wait>,
    Json(review): Review,
) -> Result<Response, Failure> {
    let until = Instant::now() + wait.timeout();
    let mut request = read(review)?;
    let answer = webhook.pipeline_run(&mut request, until).await;
    Ok(answered(&request, answer))
}

async fn admit_run(
    State(webhook): State<Webhook>,
    Query(wait): Query<Wait>,
    Json(review): Review,
) -> Result<Response, Failure> {
    let until = Instant::now() + wait.timeout();
    let mut request = read(review)?;
    let answer = webhook.run(&mut request, until).await;
    Ok(answered(&request, answer))
}

/// Checks the ConfigMap in this process. So the check works even if no other service is available.
async fn check_config(Json(review): Review) -> Result<Response, Failure> {
    let request = read(review)?;
    let response = config_map::review(&request);
    Ok(answered(&request, Ok(response)))
}

impl Webhook {
    async fn pipeline_run(
        &self,
        request: &mut Request,
        until: Instant,
    ) -> Result<AdmissionResponse, Failure> {
        let metadata = metadata(request);
        let object = review::take_object(request);
        let awaits_pipeline = review::awaited_pipeline(request);
        let mut question = match review::pipeline_run_question(request, &object) {
            Ok(question) => question,
            Err(violation) => return Ok(review::refused(request, &[violation])),
        };
        let mut warning = None;
        if request.operation == Operation::Create {
            let early = self.has_early_parent(namespace(request), &metadata, until);
            if early.await? {
                return Ok(review::not_yet(request, NO_PIPELINE));
            }
            let informed = self.inform(&mut question, request, &metadata, &object, until);
            warning = informed.await?;
        } else if awaits_pipeline {
            let namespace = namespace(request);
            let choices = self.surroundings.of_namespace(namespace, left(until));
            question.namespace_annotations = choices.await.map_err(unavailable)?;
        }
        let mut planner = self.planner.clone();
        // If the planner's decision depends on claims, the first answer names these claims. A second question then has their
        // access modes. The run is not copied for this, because it may be large. The old run is copied only if the second
        // question needs it.
        let (run, old) = (
            question.pipeline_run.take(),
            question.old_pipeline_run.take(),
        );
        let mut facts = question.clone();
        facts.old_pipeline_run = awaits_pipeline.then(|| old.clone()).flatten();
        (question.pipeline_run, question.old_pipeline_run) = (run, old);
        let mut admission = loop {
            let asked = planner.admit_pipeline_run(call(question, left(until)));
            let admission = match asked.await {
                Ok(answer) => convert::admission(answer.into_inner()),
                Err(status) => return not_admitted(request, &status),
            };
            if admission.claims_to_read.is_empty() || !facts.access_modes.is_empty() {
                break admission;
            }
            let (namespace, names) = (namespace(request), admission.claims_to_read);
            let known = claims::access_modes(&self.client, namespace, names, left(until));
            facts.access_modes = convert::access_modes_to_wire(known.await);
            question = facts.clone();
            question.pipeline_run = review::askable(&object).ok();
        };
        let mut warnings = take(&mut admission.warnings);
        warnings.extend(warning);
        let traceparent = trace::traceparent(&Span::current());
        let mutation = review::pipeline_run_mutation(request, admission, traceparent);
        review::admitted(request, &object, &mutation, warnings).map_err(unavailable)
    }

    /// Adds the facts from other objects to the question about a new PipelineRun. Returns a warning for the run's author.
    async fn inform(
        &self,
        question: &mut AdmitPipelineRunRequest,
        request: &Request,
        metadata: &ObjectMeta,
        object: &Value,
        until: Instant,
    ) -> Result<Option<String>, Failure> {
        let namespace = namespace(request);
        let choices = self.surroundings.choices(namespace, object, left(until));
        let owner_group = self
            .surroundings
            .owner_group(namespace, metadata, left(until));
        let (choices, owner_group) = tokio::try_join!(choices, owner_group).map_err(unavailable)?;
        question.pipeline_annotations = choices.pipeline;
        question.namespace_annotations = choices.namespace;
        question.owner_group = owner_group;
        question.catalog = self.catalog.of_run(namespace, object);
        question.source_templates = self.source_templates(namespace, object, until).await?;
        Ok(choices.warning)
    }

    async fn run(
        &self,
        request: &mut Request,
        until: Instant,
    ) -> Result<AdmissionResponse, Failure> {
        let mut run = review::run(request).ok_or_else(|| {
            let message = format!("a {} is neither TaskRun nor CustomRun", request.kind.kind);
            (StatusCode::BAD_REQUEST, message)
        })?;
        let controller = run.controller.clone();
        let metadata = metadata(request);
        let object = review::take_object(request);
        let namespace = namespace(request);
        let owner_group = self
            .surroundings
            .owner_group(namespace, &metadata, left(until));
        run.owner_group = owner_group.await.map_err(unavailable)?;
        let pipeline_run = self.completing(&mut run, namespace, &object, until).await?;
        if run.awaits_pipeline() {
            return Ok(review::not_yet(request, NO_PIPELINE));
        }
        let mut question = convert::child_run_to_wire(run);
        question.pipeline_run = pipeline_run;
        let mut planner = self.planner.clone();
        let mut admission = match planner.admit_run(call(question, left(until))).await {
            Ok(answer) => convert::child_admission(answer.into_inner()),
            Err(status) => return not_admitted(request, &status),
        };
        for notice in review::notices(request, controller, take(&mut admission.events)) {
            self.notices.send(notice);
        }
        let warnings = take(&mut admission.warnings);
        let mutation = review::run_mutation(admission);
        review::admitted(request, &object, &mutation, warnings).map_err(unavailable)
    }
}

fn read(review: AdmissionReview<DynamicObject>) -> Result<Request, Failure> {
    review.try_into().map_err(|error| {
        let message = format!("failed to read the admission review: {error}");
        (StatusCode::BAD_REQUEST, message)
    })
}

fn metadata(request: &Request) -> ObjectMeta {
    let metadata = request
        .object
        .as_ref()
        .map(|object| object.metadata.clone());
    metadata.unwrap_or_default()
}

fn namespace(request: &Request) -> &str {
    request.namespace.as_deref().unwrap_or_default()
}

pub(crate) fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

pub(crate) fn unavailable(error: impl Display) -> Failure {
    (StatusCode::SERVICE_UNAVAILABLE, error.to_string())
}

/// The response if the planner returned an error. With code `InvalidArgument`, the planner denies the object. With any other
/// code, there is no decision.
fn not_admitted(request: &Request, status: &Status) -> Result<AdmissionResponse, Failure> {
    if status.code() == Code::InvalidArgument {
        return Ok(review::refused(request, &violations(status)));
    }
    let (code, message) = (status.code(), status.message());
    Err(unavailable(format_args!(
        "the affinity-planner answered {code:?}: {message}"
    )))
}

/// Converts the result to an HTTP response. The log and [`observe`] get the outcome.
fn answered(request: &Request, answer: Result<AdmissionResponse, Failure>) -> Response {
    let (namespace, kind) = (namespace(request), &request.kind.kind);
    let outcome = match &answer {
        Ok(response) if !response.allowed => {
            let reason = &response.result.message;
            info!(namespace, kind, reason, "refused");
            Outcome::Refused
        }
        Ok(response) if response.patch.is_some() => Outcome::Mutated,
        Ok(_) => Outcome::Allowed,
        Err((_, reason)) => {
            error!(
                namespace,
                kind, reason, "failed to answer an admission review"
            );
            Outcome::Failed
        }
    };
    Span::current().record("namespace", namespace);
    Answered::new(kind, outcome).on(answer.map(|response| Json(response.into_review())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn n8_neither_a_silent_client_nor_large_reviews_delay_a_small_review() {
        use axum::body::Body;
        use axum::http::Request;
        use tower::ServiceExt as _;

        let free = Arc::new(Semaphore::new(MOST_BYTES));
        let routes = Router::new().route("/", post(async || ""));
        let routes = routes.layer(from_fn_with_state(free.clone(), queue));
        let status = |body: Body| {
            let request = Request::post("/").body(body).unwrap();
            let answer = routes.clone().oneshot(request);
            async { answer.await.unwrap().status().as_u16() }
        };
        let most = u32::try_from(MOST_BYTES).unwrap();
        let in_progress = free.acquire_many(most).await.unwrap();
        assert_eq!(status(Body::from("{}")).await, 200);
        let silent = futures::stream::pending::<Result<Vec<u8>, std::io::Error>>();
        assert_eq!(status(Body::from_stream(silent)).await, 408);
        let large = status(Body::from(vec![b' '; SMALL_BYTES]));
        let mut large = std::pin::pin!(large);
        let waits = tokio::time::timeout(ARRIVES, &mut large).await;
        assert!(waits.is_err());
        drop(in_progress);
        assert_eq!(large.await, 200);
        assert_eq!(status(Body::from(vec![b' '; MOST_BYTES + 1])).await, 413);
    }

    /// Requests that the webhook cannot read are counted too.
    #[tokio::test]
    async fn every_review_is_counted_by_kind_and_outcome() {
        use axum::body::Body;
        use axum::http::Request;
        use coscheduler_runtime::{ProcessArgs, Supervisor, client};
        use tower::ServiceExt as _;

        let supervisor = Supervisor::bind(crate::SERVICE, &ProcessArgs::loopback())
            .await
            .unwrap();
        let process = supervisor.process();
        // No server listens on this address.
        let planner = client::channel("127.0.0.1:1", &process).unwrap();
        let kubernetes = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let webhook = Webhook {
            client: Client::try_from(kubernetes).unwrap(),
            planner: PlannerServiceClient::new(planner),
            surroundings: Surroundings::default(),
            catalog: Catalog::default(),
            notices: Notices::channel().0,
        };
        let routes = routes(webhook, Reviews::new(process.metrics()));
        let ask = |body: String| {
            let request = Request::post("/admit/pipelinerun?timeout=1s")
                .header("content-type", "application/json")
                .body(Body::from(body))
                .unwrap();
            routes.clone().oneshot(request)
        };
        let review = |depth: usize| {
            let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            format!(
                r#"{{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {{
                    "uid": "u", "operation": "CREATE", "name": "run", "namespace": "ci", "userInfo": {{}},
                    "kind": {{"group": "tekton.dev", "version": "v1", "kind": "PipelineRun"}},
                    "resource": {{"group": "tekton.dev", "version": "v1", "resource": "pipelineruns"}},
                    "object": {{"apiVersion": "tekton.dev/v1", "kind": "PipelineRun", "metadata": {{"name": "run"}},
                        "spec": {{"workspaces": [{{"name": "w", "volumeClaimTemplate": {nested}}}]}}}}}}}}"#
            )
        };
        assert_eq!(ask("no review".to_owned()).await.unwrap().status(), 400);
        assert_eq!(ask(review(1)).await.unwrap().status(), 503);
        assert_eq!(ask(review(110)).await.unwrap().status(), 200);

        let encoded = process.metrics().encode().unwrap();
        for line in [
            r#"coscheduler_admission_reviews_total{kind="unknown",outcome="failed"} 1"#,
            r#"coscheduler_admission_reviews_total{kind="PipelineRun",outcome="failed"} 1"#,
            r#"coscheduler_admission_reviews_total{kind="PipelineRun",outcome="refused"} 1"#,
            r#"coscheduler_admission_review_seconds_count{kind="PipelineRun"} 2"#,
        ] {
            assert!(encoded.lines().any(|found| found == line), "{encoded}");
        }
    }

    #[track_caller]
    fn check(timeout: Option<&str>, seconds: u64) {
        let wait = Wait {
            timeout: timeout.map(str::to_owned),
        };
        assert_eq!(wait.timeout(), Duration::from_secs(seconds));
    }

    #[test]
    fn the_planner_gets_less_time_than_the_api_server_gives() {
        check(Some("10s"), 9);
        check(Some("1s"), 1);
        check(Some("soon"), 9);
        check(None, 9);
    }
}
