//! Events on PipelineRuns about what was answered to a review, for those who do not see the answer: Tekton does, the
//! author of the run does not. They are written after the answer, which never waits for them.

use std::time::Duration;

use coscheduler_core::pipeline_run::OwnerReference;
use coscheduler_kubernetes::events::ACTION;
use coscheduler_runtime::Process;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::warn;

const CONTROLLER: &str = "coscheduler.dev/admission-webhook";
/// What the API server allows, in bytes.
const LONGEST_NOTE: usize = 1024;
/// Events that may wait for being written; beyond that they are dropped, and the log says so.
const WAITING: usize = 256;
/// How long a write may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// An Event that is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) namespace: String,
    /// The PipelineRun it is about.
    pub(crate) pipeline_run: OwnerReference,
    pub(crate) reason: &'static str,
    pub(crate) note: String,
}

/// Takes Events to be written.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    waiting: mpsc::Sender<Notice>,
}

impl Events {
    /// Writes Events for the life of the process.
    pub(crate) fn spawn(process: &Process, client: Client) -> Self {
        let (events, mut waiting) = Self::channel();
        process.spawn("write Events", async move {
            while let Some(notice) = waiting.recv().await {
                write(&client, notice).await;
            }
            Ok(())
        });
        events
    }

    /// The Events that are sent, for whoever receives them.
    pub(crate) fn channel() -> (Self, mpsc::Receiver<Notice>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self { waiting: sender }, receiver)
    }

    /// Has an Event written, soon.
    pub(crate) fn send(&self, notice: Notice) {
        if let Err(error) = self.waiting.try_send(notice) {
            warn!(%error, "dropped an Event: too many wait for being written");
        }
    }
}

async fn write(client: &Client, notice: Notice) {
    let Notice {
        namespace,
        pipeline_run,
        reason,
        note,
    } = notice;
    let event = Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(shortened(note)),
        action: ACTION.to_owned(),
        secondary: None,
    };
    let regarding = ObjectReference {
        api_version: Some(pipeline_run.api_version),
        kind: Some(pipeline_run.kind),
        name: Some(pipeline_run.name.clone()),
        namespace: Some(namespace.clone()),
        uid: Some(pipeline_run.uid),
        ..ObjectReference::default()
    };
    let reporter = Reporter {
        controller: CONTROLLER.to_owned(),
        instance: None,
    };
    // One recorder an Event: it would make one series of what several TaskRuns of a run are told.
    let recorder = Recorder::new(client.clone(), reporter);
    let written = tokio::time::timeout(PATIENCE, recorder.publish(&event, &regarding)).await;
    let failed = match written {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(late) => late.to_string(),
    };
    warn!(
        namespace,
        pipeline_run = pipeline_run.name,
        reason,
        error = failed,
        "failed to write an Event"
    );
}

fn shortened(mut note: String) -> String {
    if note.len() > LONGEST_NOTE {
        note.truncate(note.floor_char_boundary(LONGEST_NOTE - 3));
        note.push_str("...");
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_never_longer_than_the_api_server_allows() {
        for (note, expect) in [
            ("short".to_owned(), "short".to_owned()),
            ("x".repeat(LONGEST_NOTE), "x".repeat(LONGEST_NOTE)),
            ("é".repeat(600), format!("{}...", "é".repeat(510))),
        ] {
            assert_eq!(shortened(note), expect);
        }
    }
}
