//! The wire side of the webhook: an admission review in, a question to the planner, an admission review out.

use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionReview};
use serde::Deserialize;
use serde_json::Value;
use tonic::{Code, Status};
use tracing::{error, info};

use coscheduler_kubernetes::admission::Mutation;
use coscheduler_proto::error::violations;
use coscheduler_proto::planner::planner_service_client::PlannerServiceClient;
use coscheduler_runtime::client::Channel;

use crate::{planner, review};

/// How long the API server waits where it does not say.
const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);
/// What is kept of the API server's patience for the way back.
const MARGIN: Duration = Duration::from_secs(1);

/// The paths of the webhook.
pub(crate) fn routes(planner: PlannerServiceClient<Channel>) -> Router {
    Router::new()
        .route("/admit/pipelinerun", post(admit_pipeline_run))
        .route("/admit/run", post(admit_run))
        .with_state(planner)
}

type Planner = State<PlannerServiceClient<Channel>>;
type Review = Json<AdmissionReview<DynamicObject>>;
type Answer = Result<Review, (StatusCode, String)>;

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
    State(planner): Planner,
    Query(wait): Query<Wait>,
    Json(review): Review,
) -> Answer {
    let request = read(review)?;
    let object = review::object(&request);
    let question = match review::pipeline_run_question(&request, &object) {
        Ok(question) => question,
        Err(violation) => {
            return Ok(Json(review::refused(&request, &[violation]).into_review()));
        }
    };
    let answer = planner::admit_pipeline_run(&planner, question, wait.patience()).await;
    let decision = answer.map(|admission| {
        let mutation = review::pipeline_run_mutation(&admission);
        (mutation, admission.warnings)
    });
    respond(&request, &object, decision)
}

async fn admit_run(
    State(planner): Planner,
    Query(wait): Query<Wait>,
    Json(review): Review,
) -> Answer {
    let request = read(review)?;
    let object = review::object(&request);
    let question = review::run_question(&request);
    let answer = planner::admit_run(&planner, question, wait.patience()).await;
    let decision = answer.map(|answer| (review::run_mutation(&answer), answer.warnings));
    respond(&request, &object, decision)
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
    Ok(Json(response.into_review()))
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
