//! The configuration in force, as the config service streams it. A stream that breaks is opened again with backoff, perhaps
//! to a replica that is behind: what was sent stays in force until something newer is.

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

use crate::error::Error;
use coscheduler_runtime::client::Channel;

/// What is known about the configuration: of each of the two ConfigMaps it is made of, the newest that was sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    /// `None` while the config service has said nothing yet; why, where it has never seen a valid configuration.
    configuration: Option<Result<Configuration, Vec<Violation>>>,
    version: i64,
    tekton: TektonFlag,
}

/// What the config service has sent.
#[derive(Clone, Debug)]
struct Sent {
    /// Without Tekton's flag; why, where there is none: coscheduling is off.
    configuration: Result<Configuration, Vec<Violation>>,
    version: i64,
    tekton: TektonFlag,
}

/// Tekton's own flag (M9).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TektonFlag {
    coschedule: Option<String>,
    version: i64,
}

impl Known {
    /// The configuration in force, or why there is none.
    ///
    /// # Errors
    ///
    /// Where nothing is known yet.
    pub(crate) fn in_force(&self) -> Result<InForce<'_>, Error> {
        match &self.configuration {
            None => Err(Error::ConfigNotRead),
            Some(Err(violations)) => Ok(Err(violations)),
            Some(Ok(configuration)) => Ok(Ok(configuration)),
        }
    }

    /// Takes in what the config service has sent, but for what is older than what is known already.
    fn take_in(&mut self, sent: Sent) {
        let Sent {
            configuration,
            version,
            tekton,
        } = sent;
        let (known, of_tekton) = (self.version, self.tekton.version);
        if tekton.version >= of_tekton {
            self.tekton = tekton;
        } else {
            warn!(
                sent = tekton.version,
                known = of_tekton,
                "was sent an older state of Tekton's flag, which is ignored"
            );
        }
        match (&self.configuration, configuration) {
            // A config service that has restarted beside a ConfigMap that is not valid knows of no valid one (M7).
            (Some(Ok(_)), Err(violations)) => {
                warn!(
                    ?violations,
                    "the ConfigMap is not valid; what was in force stays in force"
                );
            }
            (Some(Ok(_)), Ok(_)) if version < known => {
                warn!(
                    sent = version,
                    known, "was sent an older configuration, which is ignored"
                );
            }
            (Some(_) | None, configuration) => {
                self.configuration = Some(configuration);
                self.version = version;
            }
        }
        if let Some(Ok(configuration)) = &mut self.configuration {
            configuration
                .tekton_coschedule
                .clone_from(&self.tekton.coschedule);
        }
        info!(configuration = ?self.configuration, version = self.version, tekton_version = self.tekton.version, "this is in force");
    }
}

/// A place for the configuration that was sent last.
pub(crate) fn latest() -> (watch::Sender<Known>, watch::Receiver<Known>) {
    watch::channel(Known::default())
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
                        Ok(sent) => {
                            delays = backoff.build();
                            latest.send_modify(|known| known.take_in(sent));
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

async fn next(stream: &mut Streaming<WatchConfigResponse>) -> Result<Sent, Status> {
    let message = stream
        .message()
        .await?
        .ok_or_else(|| Status::unavailable("the stream has ended"))?;
    sent(message.status.unwrap_or_default()).map_err(|violations| {
        let violations: Vec<_> = violations.iter().map(ToString::to_string).collect();
        Status::internal(format!(
            "the configuration cannot be read: {}",
            violations.join("; ")
        ))
    })
}

fn sent(status: ConfigStatus) -> Result<Sent, Vec<Violation>> {
    let configuration = match status.configuration {
        Some(configuration) => Ok(convert::configuration(configuration)?),
        None => Err(status
            .violations
            .into_iter()
            .map(|violation| Violation::new(violation.key, violation.description))
            .collect()),
    };
    Ok(Sent {
        configuration,
        version: version_number(&status.resource_version),
        tekton: TektonFlag {
            coschedule: Some(status.tekton_coschedule).filter(|flag| !flag.is_empty()),
            version: version_number(&status.tekton_resource_version),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use coscheduler_core::mode::Mode;

    fn sent(mode: Mode, version: i64, tekton: Option<&str>, tekton_version: i64) -> Sent {
        Sent {
            configuration: Ok(Configuration {
                mode,
                ..Configuration::default()
            }),
            version,
            tekton: TektonFlag {
                coschedule: tekton.map(str::to_owned),
                version: tekton_version,
            },
        }
    }

    fn nothing_valid() -> Sent {
        Sent {
            configuration: Err(Vec::new()),
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
        known.take_in(nothing_valid());
        assert!(known.in_force().unwrap().is_err());
        known.take_in(sent(Mode::PipelineRuns, 5, None, 1));
        known.take_in(nothing_valid());
        check(&known, Mode::PipelineRuns, None);
        known.take_in(sent(Mode::Disabled, 6, None, 1));
        check(&known, Mode::Disabled, None);
    }

    #[test]
    fn m8_what_is_older_than_what_is_known_is_ignored() {
        let mut known = Known::default();
        known.take_in(sent(Mode::PipelineRuns, 9, None, 3));
        known.take_in(sent(Mode::Disabled, 10, None, 3));
        known.take_in(sent(Mode::PipelineRuns, 9, None, 3));
        check(&known, Mode::Disabled, None);
        // The same version once more, as after a reconnect, is no step back.
        known.take_in(sent(Mode::Disabled, 10, None, 3));
        check(&known, Mode::Disabled, None);
        known.take_in(sent(Mode::Workspaces, 11, None, 3));
        check(&known, Mode::Workspaces, None);
    }

    #[test]
    fn m9_of_two_replicas_that_are_each_behind_in_one_config_map_the_newer_of_each_counts() {
        let mut known = Known::default();
        known.take_in(sent(Mode::PipelineRuns, 10, None, 3));
        known.take_in(sent(Mode::Disabled, 9, Some("workspaces"), 12));
        check(&known, Mode::PipelineRuns, Some("workspaces"));
        known.take_in(sent(Mode::Workspaces, 13, None, 3));
        check(&known, Mode::Workspaces, Some("workspaces"));
        // A replica that has found no ConfigMap of Tekton's has no version to show for it.
        known.take_in(sent(Mode::Workspaces, 13, None, 14));
        known.take_in(sent(Mode::Workspaces, 13, Some("workspaces"), 0));
        check(&known, Mode::Workspaces, None);
        // Tekton's flag counts although our own ConfigMap is not valid.
        known.take_in(Sent {
            tekton: sent(Mode::Disabled, 0, Some("pipelineruns"), 15).tekton,
            ..nothing_valid()
        });
        check(&known, Mode::Workspaces, Some("pipelineruns"));
    }
}
