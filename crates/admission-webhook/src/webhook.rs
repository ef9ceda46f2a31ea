//! The wire side of the webhook: an admission review in, a question to the planner, an admission review out.

use std::time::{Duration, Instant};

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::post;
use axum::{Json, Router};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use serde::Deserialize;
use serde_json::Value;
use tonic::{Code, Status};
use tracing::{Span, error, info};

use coscheduler_kubernetes::admission::Mutation;
use coscheduler_proto::convert;
use coscheduler_proto::error::violations;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_runtime::client::Channel;
use coscheduler_runtime::trace;

use crate::events::Events;
use crate::observe::{Answered, Outcome, Reviews, observe};
use crate::surroundings::{Choices, Surroundings, Unknown};
use crate::{flags, planner, review};

/// How long the API server waits where it does not say.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);
/// What is kept of the API server's patience for the way back.
const MARGIN: Duration = Duration::from_secs(1);

/// What reviews are answered with.
#[derive(Clone, Debug)]
pub(crate) struct Webhook {
    pub(crate) planner: PlannerServiceClient<Channel>,
    pub(crate) surroundings: Surroundings,
    pub(crate) events: Events,
}

/// The paths of the webhook.
pub(crate) fn routes(webhook: Webhook, reviews: Reviews) -> Router {
    Router::new()
        .route("/admit/pipelinerun", post(admit_pipeline_run))
        .route("/admit/run", post(admit_run))
        .route("/check/config", post(check_config))
        .with_state(webhook)
        .layer(from_fn_with_state(reviews, observe))
}

type Review = Json<AdmissionReview<DynamicObject>>;
type Answer = Result<AdmissionResponse, (StatusCode, String)>;

/// The query that the API server adds to every review.
#[derive(Debug, Deserialize)]
struct Wait {
    timeout: Option<String>,
}

impl Wait {
    /// How long the planner may take. The API server writes whole seconds, `10s`.
    fn patience(&self) -> Duration {
        let seconds = self
            .timeout
            .as_deref()
            .and_then(|text| text.strip_suffix('s'))
            .and_then(|text| text.parse().ok())
            .map_or(DEFAULT_PATIENCE, Duration::from_secs);
        seconds.saturating_sub(MARGIN).max(MARGIN)
    }
}

async fn admit_pipeline_run(
    State(webhook): State<Webhook>,
    Query(wait): Query<Wait>,
    Json(review): Review,
) -> Result<Response, (StatusCode, String)> {
    let until = Instant::now() + wait.patience();
    let request = read(review)?;
    let object = review::object(&request);
    let mut question = match review::pipeline_run_question(&request, &object) {
        Ok(question) => question,
        Err(violation) => {
            return Ok(answered(
                &request,
                Ok(review::refused(&request, &[violation])),
            ));
        }
    };
    let mut warning = None;
    if request.operation == Operation::Create {
        let known = surroundings(&webhook.surroundings, &request, &object, left(until));
        let (choices, owner_group) = match known.await {
            Ok(known) => known,
            Err(unknown) => return Ok(unanswered(&request, &unknown)),
        };
        question.pipeline_coschedule = choices.pipeline;
        question.namespace_coschedule = choices.namespace;
        question.owner_group = owner_group;
        warning = choices.warning;
    }
    let answer = planner::admit_pipeline_run(&webhook.planner, question, left(until)).await;
    let decision = answer.map(|admission| {
        let traceparent = trace::traceparent(&Span::current());
        let mutation = review::pipeline_run_mutation(&request, &admission, traceparent);
        let warnings = admission.warnings.into_iter().chain(warning);
        (mutation, warnings.collect())
    });
    Ok(answered(&request, respond(&request, &object, decision)))
}

async fn admit_run(
    State(webhook): State<Webhook>,
    Query(wait): Query<Wait>,
    Json(review): Review,
) -> Result<Response, (StatusCode, String)> {
    let until = Instant::now() + wait.patience();
    let request = read(review)?;
    let object = review::object(&request);
    let Some(mut run) = review::run(&request) else {
        let message = format!(
            "a review of a {}, which nobody asked for",
            request.kind.kind
        );
        return Err((StatusCode::BAD_REQUEST, message));
    };
    let controller = run.controller.clone();
    let metadata = metadata(&request);
    let known = webhook
        .surroundings
        .owner_group(namespace(&request), &metadata, left(until));
    run.owner_group = match known.await {
        Ok(owner_group) => owner_group,
        Err(unknown) => return Ok(unanswered(&request, &unknown)),
    };
    let question = convert::child_run_to_wire(run);
    let answer = planner::admit_run(&webhook.planner, question, left(until)).await;
    let decision = answer.map(|admission| {
        if let Some(notice) = review::notice(&request, controller, &admission) {
            webhook.events.send(notice);
        }
        (review::run_mutation(&admission), admission.warnings)
    });
    Ok(answered(&request, respond(&request, &object, decision)))
}

/// What is asked along with a new PipelineRun.
async fn surroundings(
    surroundings: &Surroundings,
    request: &AdmissionRequest<DynamicObject>,
    object: &Value,
    patience: Duration,
) -> Result<(Choices, Option<String>), Unknown> {
    let (namespace, metadata) = (namespace(request), metadata(request));
    let choices = surroundings.choices(namespace, object, patience);
    let owner_group = surroundings.owner_group(namespace, &metadata, patience);
    tokio::try_join!(choices, owner_group)
}

fn metadata(request: &AdmissionRequest<DynamicObject>) -> ObjectMeta {
    let object = request.object.as_ref();
    object
        .map(|object| object.metadata.clone())
        .unwrap_or_default()
}

fn unanswered(request: &AdmissionRequest<DynamicObject>, unknown: &Unknown) -> Response {
    answered(request, Err(failed(request, &unknown.to_string())))
}

fn namespace(request: &AdmissionRequest<DynamicObject>) -> &str {
    request.namespace.as_deref().unwrap_or_default()
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// The flags are checked here, in process: no other service has to be there for it.
async fn check_config(Json(review): Review) -> Result<Response, (StatusCode, String)> {
    let request = read(review)?;
    let response = flags::checked(&request);
    if !response.allowed {
        info!(
            namespace = request.namespace,
            kind = request.kind.kind,
            reason = response.result.message,
            "refused"
        );
    }
    Ok(answered(&request, Ok(response)))
}

/// The answer on the wire, with a note of what it is.
fn answered(request: &AdmissionRequest<DynamicObject>, answer: Answer) -> Response {
    let outcome = match &answer {
        Ok(response) if !response.allowed => Outcome::Refused,
        Ok(response) if response.patch.is_some() => Outcome::Mutated,
        Ok(_) => Outcome::Allowed,
        Err(_) => Outcome::Failed,
    };
    Span::current().record("namespace", request.namespace.as_deref());
    Answered::new(&request.kind.kind, outcome)
        .on(answer.map(|response| Json(response.into_review())))
}

fn read(
    review: AdmissionReview<DynamicObject>,
) -> Result<AdmissionRequest<DynamicObject>, (StatusCode, String)> {
    review.try_into().map_err(|error| {
        let message = format!("failed to read the admission review: {error}");
        (StatusCode::BAD_REQUEST, message)
    })
}

fn respond(
    request: &AdmissionRequest<DynamicObject>,
    object: &Value,
    decision: Result<(Mutation, Vec<String>), Status>,
) -> Answer {
    let response = match decision {
        Ok((mutation, warnings)) => review::admitted(request, object, &mutation, warnings)
            .map_err(|error| failed(request, &format!("failed to write the patch: {error}")))?,
        Err(status) if status.code() == Code::InvalidArgument => {
            let violations = violations(&status);
            info!(
                namespace = request.namespace,
                kind = request.kind.kind,
                reason = status.message(),
                "refused"
            );
            review::refused(request, &violations)
        }
        Err(status) => {
            let message = format!(
                "the affinity-planner answered {:?}: {}",
                status.code(),
                status.message()
            );
            return Err(failed(request, &message));
        }
    };
    Ok(response)
}

fn failed(request: &AdmissionRequest<DynamicObject>, message: &str) -> (StatusCode, String) {
    error!(
        namespace = request.namespace,
        kind = request.kind.kind,
        reason = message,
        "failed to answer an admission review"
    );
    (StatusCode::SERVICE_UNAVAILABLE, message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcomes are counted as answers are, those that cannot even be read included.
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
        // Nobody listens there.
        let planner = client::channel("http://127.0.0.1:1", &process).unwrap();
        let webhook = Webhook {
            planner: PlannerServiceClient::new(planner),
            surroundings: Surroundings::default(),
            events: Events::channel().0,
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
        assert_eq!(wait.patience(), Duration::from_secs(seconds));
    }

    #[test]
    fn the_planner_gets_less_time_than_the_api_server_gives() {
        check(Some("10s"), 9);
        check(Some("1s"), 1);
        check(Some("soon"), 9);
        check(None, 9);
    }
}
