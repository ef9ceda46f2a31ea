//! The configuration in force, as the config service streams it. A stream that breaks is opened again with backoff;
//! meanwhile what was sent last stays in force.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::watch;
use tonic::{Status, Streaming};
use tracing::{info, warn};

use coscheduler_core::admit::InForce;
use coscheduler_core::config::Configuration;
use coscheduler_core::violation::Violation;
use coscheduler_proto::config::config_service_client::ConfigServiceClient;
use coscheduler_proto::config::{ConfigStatus, WatchConfigRequest, WatchConfigResponse};
use coscheduler_proto::convert;
use coscheduler_runtime::Condition;

use crate::error::Error;
use coscheduler_runtime::client::Channel;

/// What is known about the configuration.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    /// The config service has said nothing yet.
    Nothing,
    /// It has never seen a valid configuration, for these reasons: coscheduling is off.
    Invalid(Vec<Violation>),
    /// This is in force.
    InForce(Configuration),
}

impl Known {
    /// The configuration in force, or why there is none.
    ///
    /// # Errors
    ///
    /// Where nothing is known yet.
    pub(crate) fn in_force(&self) -> Result<InForce<'_>, Error> {
        match self {
            Self::Nothing => Err(Error::ConfigNotRead),
            Self::Invalid(violations) => Ok(Err(violations)),
            Self::InForce(configuration) => Ok(Ok(configuration)),
        }
    }

    /// Takes in what the config service has sent; whether that changed anything. A config service that has restarted
    /// beside a ConfigMap that is not valid knows of no valid configuration: then the one that was in force stays (M7).
    fn take_in(&mut self, sent: Self) -> bool {
        match (&self, &sent) {
            (Self::InForce(configuration), Self::Invalid(violations)) => {
                warn!(
                    ?configuration,
                    ?violations,
                    "the ConfigMap is not valid; what was in force stays in force"
                );
                false
            }
            (Self::Nothing | Self::Invalid(_) | Self::InForce(_), _) => {
                info!(configuration = ?sent, "received the configuration");
                *self = sent;
                true
            }
        }
    }
}

/// A place for the configuration that was sent last.
pub(crate) fn latest() -> (watch::Sender<Known>, watch::Receiver<Known>) {
    watch::channel(Known::Nothing)
}

/// Follows the configuration for the life of the process.
pub(crate) async fn follow(
    mut client: ConfigServiceClient<Channel>,
    latest: watch::Sender<Known>,
    received: Condition,
) -> anyhow::Result<()> {
    let backoff = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(Duration::from_secs(5))
        .without_max_times()
        .with_jitter();
    let mut delays = backoff.build();
    loop {
        let ended = match client.watch_config(WatchConfigRequest {}).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                loop {
                    match next(&mut stream).await {
                        Ok(known) => {
                            delays = backoff.build();
                            latest.send_if_modified(|current| current.take_in(known));
                            received.set(true);
                        }
                        Err(status) => break status,
                    }
                }
            }
            Err(status) => status,
        };
        warn!(code = ?ended.code(), reason = ended.message(), "failed to watch the config service, will try again");
        tokio::time::sleep(delays.next().unwrap_or_default()).await;
    }
}

async fn next(stream: &mut Streaming<WatchConfigResponse>) -> Result<Known, Status> {
    let message = stream
        .message()
        .await?
        .ok_or_else(|| Status::unavailable("the stream has ended"))?;
    known(message.status.unwrap_or_default()).map_err(|violations| {
        let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
        Status::internal(format!(
            "the configuration cannot be read: {}",
            violations.join("; ")
        ))
    })
}

fn known(status: ConfigStatus) -> Result<Known, Vec<Violation>> {
    match status.configuration {
        Some(configuration) => convert::configuration(configuration).map(Known::InForce),
        None => Ok(Known::Invalid(
            status
                .violations
                .into_iter()
                .map(|violation| Violation::new(violation.key, violation.description))
                .collect(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::mode::Mode;

    fn in_force(mode: Mode) -> Known {
        Known::InForce(Configuration {
            mode,
            ..Configuration::default()
        })
    }

    #[test]
    fn m7_what_was_in_force_outlives_a_config_service_that_knows_nothing_valid() {
        let mut known = Known::Nothing;
        assert!(known.take_in(Known::Invalid(Vec::new())));
        assert!(known.take_in(in_force(Mode::PipelineRuns)));
        assert!(!known.take_in(Known::Invalid(Vec::new())));
        assert!(matches!(&known, Known::InForce(now) if now.mode == Mode::PipelineRuns));
        assert!(known.take_in(in_force(Mode::Disabled)));
        assert!(matches!(&known, Known::InForce(now) if now.mode == Mode::Disabled));
    }
}
