//! `explain --server`: asks the placeholder-manager about a PipelineRun.

use coscheduler_core::mode::Mode;
use coscheduler_proto::convert::mode_to_wire;
use coscheduler_proto::placeholder::placeholder_service_client::PlaceholderServiceClient;
use coscheduler_proto::placeholder::{
    ExplainRequest, ExplainResponse, PipelineRunRef, Placeholder, PlaceholderPhase, TaskRunPod,
};
use coscheduler_proto::reason::Reason;
use jiff::Timestamp;
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::failure::Failure;
use crate::output::{self, Branch};
use crate::server::Server;

/// The placeholder-manager's answer.
pub(super) struct Answer(ExplainResponse);

/// Asks the placeholder-manager about a run.
pub(super) fn ask(server: &Server, namespace: String, name: String) -> Result<Answer, Failure> {
    let asked = ExplainRequest { namespace, name };
    let answer = server.call(asked, async |channel, request| {
        let mut manager = PlaceholderServiceClient::new(channel);
        manager.explain(request).await
    });
    answer.map(Answer).map_err(|status| server.failed(&status))
}

/// `None` if the field is not set.
fn set(field: &str) -> Option<&str> {
    (!field.is_empty()).then_some(field)
}

fn phase(placeholder: &Placeholder) -> &'static str {
    match placeholder.phase() {
        PlaceholderPhase::Unspecified => "Unknown",
        PlaceholderPhase::Pending => "Pending",
        PlaceholderPhase::Bound => "Bound",
        PlaceholderPhase::Terminating => "Terminating",
    }
}

/// `None` if the placeholder-manager does not know the mode.
fn mode(placeholder: &Placeholder) -> Option<&'static str> {
    let mut modes = Mode::ALL.into_iter();
    let found = modes.find(|mode| mode_to_wire(*mode) == placeholder.mode());
    found.map(Mode::as_str)
}

fn node(node: &str) -> String {
    set(node).map_or_else(|| "no node".to_owned(), |node| format!("on {node}"))
}

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let reason = |Reason { code, message }: &Reason| json!({"code": code, "message": message});
        let run = |run: &PipelineRunRef| json!({"namespace": run.namespace, "name": run.name, "uid": run.uid});
        let placeholder = |it: &Placeholder| {
            let created = it.create_time.as_ref();
            let created = created.and_then(|time| Timestamp::from_second(time.seconds).ok());
            json!({
                "name": it.name, "phase": phase(it), "node": set(&it.node), "mode": mode(it),
                "claimNames": it.claim_names, "createTime": created,
                "waiting": it.waiting.as_ref().map(reason),
            })
        };
        let pod = |it: &TaskRunPod| {
            json!({
                "name": it.name, "node": set(&it.node), "placeholders": it.placeholders,
                "schedulerMessage": set(&it.scheduler_message),
            })
        };
        let ExplainResponse {
            pipeline_run,
            placeholders,
            pods,
            cause,
            mode_source,
            done,
        } = &self.0;
        let answer = json!({
            "pipelineRun": pipeline_run.as_ref().map(run),
            "placeholders": placeholders.iter().map(placeholder).collect::<Vec<_>>(),
            "pods": pods.iter().map(pod).collect::<Vec<_>>(),
            "cause": cause.as_ref().map(reason),
            "modeFrom": set(mode_source),
            "done": done,
        });
        answer.serialize(serializer)
    }
}

impl output::Answer for Answer {
    fn text(&self, _wide: bool) -> String {
        let run = self.0.pipeline_run.clone().unwrap_or_default();
        let mut below = vec![match &self.0.cause {
            Some(Reason { code, message }) => {
                Branch::new(format!("waits: {code}"), [message.clone()])
            }
            None if self.0.done => "the run is done".to_owned().into(),
            None => "no cause for waiting found".to_owned().into(),
        }];
        if let Some(mode) = self.0.placeholders.first().and_then(mode) {
            let from = set(&self.0.mode_source).map(|from| format!(", from {from}"));
            below.push(format!("mode: {mode}{}", from.unwrap_or_default()).into());
        }
        for it in &self.0.placeholders {
            let line = format!("placeholder {}: {}, {}", it.name, phase(it), node(&it.node));
            let claims = it.claim_names.iter();
            below.push(Branch::new(
                line,
                claims.map(|claim| format!("claim {claim}")),
            ));
        }
        for it in &self.0.pods {
            let message = set(&it.scheduler_message).map(str::to_owned);
            below.push(Branch::new(
                format!("pod {}: {}", it.name, node(&it.node)),
                message,
            ));
        }
        let line = format!("PipelineRun {}/{}", run.namespace, run.name);
        Branch { line, below }.text()
    }

    fn names(&self) -> Vec<String> {
        let run = self.0.pipeline_run.iter();
        run.map(|run| format!("pipelinerun.tekton.dev/{}", run.name))
            .collect()
    }
}
