//! The configuration in force. The config-service streams it to the planner. If a stream ends, the planner opens a new one. The
//! new stream may come from a replica that has an older configuration, so the planner ignores a configuration that is older than
//! its own.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::sync::watch;
use tonic::{Status, Streaming};
use tracing::{info, warn};

use coscheduler_core::admit::InForce;
use coscheduler_core::config::{Configuration, version_number};
use coscheduler_core::violation::Violation;
use coscheduler_proto::config::config_service_client::ConfigServiceClient;
use coscheduler_proto::config::{ConfigStatus, WatchConfigRequest, WatchConfigResponse};
use coscheduler_proto::convert;
use coscheduler_runtime::Condition;
use coscheduler_runtime::client::Channel;

use crate::error::Error;

/// The newest state of each of the two ConfigMaps that the planner has received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// The configuration from ConfigMap `coscheduler-config`, or the violations in this ConfigMap if this process has not
    /// received a valid configuration yet. `None` until the config-service has sent a message.
    configuration: Option<Result<Configuration, Vec<Violation>>>,
    version: i64,
    /// The value of Tekton's own flag `coschedule`. `None` if the value is `disabled` (M9).
    tekton_coschedule: Option<String>,
    tekton_version: i64,
}

impl Known {
    /// The configuration in force, or the violations in the ConfigMap if no configuration was ever valid.
    ///
    /// # Errors
    ///
    /// The config-service has not sent a message yet.
    pub(crate) fn in_force(&self) -> Result<InForce<'_>, Error> {
        match &self.configuration {
            None => Err(Error::ConfigNotRead),
            Some(configuration) => Ok(configuration.as_ref().map_err(Vec::as_slice)),
        }
    }

    /// Takes over the received state of both ConfigMaps, with two exceptions. An older state of Tekton's flag is ignored. A
    /// valid configuration stays if the message has violations or an older configuration.
    fn update(&mut self, sent: Self) {
        if sent.tekton_version >= self.tekton_version {
            self.tekton_coschedule = sent.tekton_coschedule;
            self.tekton_version = sent.tekton_version;
        } else {
            warn!(
                sent = sent.tekton_version,
                known = self.tekton_version,
                "ignored an older state of Tekton's flag"
            );
        }
        match (&self.configuration, sent.configuration) {
            // If a config-service starts while the ConfigMap is not valid, it does not know the last valid configuration (M7).
            (Some(Ok(_)), Some(Err(violations))) => {
                warn!(
                    ?violations,
                    "the ConfigMap is not valid; the known configuration stays in force"
                );
            }
            (Some(Ok(_)), Some(Ok(_))) if sent.version < self.version => {
                warn!(
                    sent = sent.version,
                    known = self.version,
                    "ignored an older configuration"
                );
            }
            (Some(_) | None, configuration) => {
                self.configuration = configuration;
                self.version = sent.version;
            }
        }
        if let Some(Ok(configuration)) = &mut self.configuration {
            configuration
                .tekton_coschedule
                .clone_from(&self.tekton_coschedule);
        }
        info!(known = ?self, "the configuration is in force");
    }
}

/// Receives configurations for the life of the process. Sets `received` after the first message.
pub(crate) async fn follow(
    mut client: ConfigServiceClient<Channel>,
    known: watch::Sender<Known>,
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
                        Ok(sent) => {
                            delays = backoff.build();
                            known.send_modify(|known| known.update(sent));
                            received.set(true);
                        }
                        Err(status) => break status,
                    }
                }
            }
            Err(status) => status,
        };
        warn!(code = ?ended.code(), reason = ended.message(), "failed to watch the config-service; will try again");
        tokio::time::sleep(delays.next().unwrap_or_default()).await;
    }
}

async fn next(stream: &mut Streaming<WatchConfigResponse>) -> Result<Known, Status> {
    let message = stream
        .message()
        .await?
        .ok_or_else(|| Status::unavailable("the stream has ended"))?;
    read(message.status.unwrap_or_default()).map_err(|violations| {
        let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
        let violations = violations.join("; ");
        Status::internal(format!("failed to read the configuration: {violations}"))
    })
}

fn read(status: ConfigStatus) -> Result<Known, Vec<Violation>> {
    let version = version_number(&status.resource_version);
    let configuration = match status.configuration {
        Some(configuration) => Ok(Configuration {
            version: Some(version),
            ..convert::configuration(configuration)?
        }),
        None => Err(status
            .violations
            .into_iter()
            .map(|violation| Violation::new(violation.key, violation.description))
            .collect()),
    };
    Ok(Known {
        configuration: Some(configuration),
        version,
        tekton_coschedule: Some(status.tekton_coschedule).filter(|flag| !flag.is_empty()),
        tekton_version: version_number(&status.tekton_resource_version),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::mode::Mode;

    fn sent(mode: Mode, version: i64, tekton: Option<&str>, tekton_version: i64) -> Known {
        Known {
            configuration: Some(Ok(Configuration {
                mode,
                ..Configuration::default()
            })),
            version,
            tekton_coschedule: tekton.map(str::to_owned),
            tekton_version,
        }
    }

    fn nothing_valid() -> Known {
        Known {
            configuration: Some(Err(Vec::new())),
            ..sent(Mode::Disabled, 0, None, 1)
        }
    }

    #[track_caller]
    fn check(known: &Known, mode: Mode, tekton: Option<&str>) {
        let configuration = known.in_force().unwrap().unwrap();
        let flag = configuration.tekton_coschedule.as_deref();
        assert_eq!((configuration.mode, flag), (mode, tekton));
    }

    #[test]
    fn m7_what_was_in_force_outlives_a_config_service_that_knows_nothing_valid() {
        let mut known = Known::default();
        assert!(known.in_force().is_err());
        known.update(nothing_valid());
        assert!(known.in_force().unwrap().is_err());
        known.update(sent(Mode::PipelineRuns, 5, None, 1));
        known.update(nothing_valid());
        check(&known, Mode::PipelineRuns, None);
        known.update(sent(Mode::Disabled, 6, None, 1));
        check(&known, Mode::Disabled, None);
    }

    #[test]
    fn m8_what_is_older_than_what_is_known_is_ignored() {
        let mut known = Known::default();
        known.update(sent(Mode::PipelineRuns, 9, None, 3));
        known.update(sent(Mode::Disabled, 10, None, 3));
        known.update(sent(Mode::PipelineRuns, 9, None, 3));
        check(&known, Mode::Disabled, None);
        // After a reconnect, the planner may receive the same version again. It accepts this version.
        known.update(sent(Mode::Disabled, 10, None, 3));
        check(&known, Mode::Disabled, None);
        known.update(sent(Mode::Workspaces, 11, None, 3));
        check(&known, Mode::Workspaces, None);
    }

    #[test]
    fn m9_of_two_replicas_that_are_each_behind_in_one_config_map_the_newer_of_each_counts() {
        let mut known = Known::default();
        known.update(sent(Mode::PipelineRuns, 10, None, 3));
        known.update(sent(Mode::Disabled, 9, Some("workspaces"), 12));
        check(&known, Mode::PipelineRuns, Some("workspaces"));
        known.update(sent(Mode::Workspaces, 13, None, 3));
        check(&known, Mode::Workspaces, Some("workspaces"));
        known.update(sent(Mode::Workspaces, 13, None, 14));
        // A replica that has never found Tekton's ConfigMap sends Tekton's default, without a version (0).
        known.update(sent(Mode::Workspaces, 13, Some("workspaces"), 0));
        check(&known, Mode::Workspaces, None);
        // Tekton's flag changes even while our own ConfigMap is not valid.
        known.update(Known {
            configuration: nothing_valid().configuration,
            ..sent(Mode::Disabled, 0, Some("pipelineruns"), 15)
        });
        check(&known, Mode::Workspaces, Some("pipelineruns"));
    }
}
