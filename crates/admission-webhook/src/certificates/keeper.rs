//! Carries the decisions of [`super::state`] out: watches the Secret and the webhook configuration, changes both, each only
//! from the version that was looked at, and hands the certificate in force to the TLS side. Any number of replicas may do
//! so at once: of two changes of one version the API server takes the first.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_runtime::{Condition, Process};
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, ResourceExt};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::material::{Certificate, Material};
use super::state::{self, Change, Serve, Trust, Wanted};
use super::{issue, serving};

const FIELD_MANAGER: &str = "admission-webhook";
/// How long a write may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// When to try again what failed.
const RETRY: Duration = Duration::from_secs(2);
/// When to look again at the latest, as clocks can be put forward.
const LATEST: Duration = Duration::from_secs(600);

/// The three objects this is about.
pub(super) struct Objects {
    pub(super) secrets: Api<Secret>,
    pub(super) secret: String,
    pub(super) configurations: Api<MutatingWebhookConfiguration>,
    /// The one that has the ConfigMap checked. It is told the same as the other, and nothing waits for it: where it is
    /// absent or behind, the API server lets the ConfigMap in unchecked.
    pub(super) checks: Api<ValidatingWebhookConfiguration>,
    /// The name of both.
    pub(super) configuration: String,
}

/// Looks after the certificates.
pub(super) struct Keeper {
    objects: Objects,
    wanted: Wanted,
    /// `None` until it was looked for, then as it was seen last.
    secret: Option<Option<Secret>>,
    /// The same of the webhook configuration.
    configuration: Option<Option<MutatingWebhookConfiguration>>,
    /// The one that has the ConfigMap checked, where it was seen.
    checks: Option<ValidatingWebhookConfiguration>,
    trust: Trust,
    served: Option<Certificate>,
    in_force: watch::Sender<Option<Arc<CertifiedKey>>>,
    trusted: Condition,
    expiry: Family<Labels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    certificate: &'static str,
}

impl Keeper {
    pub(super) fn new(
        objects: Objects,
        wanted: Wanted,
        in_force: watch::Sender<Option<Arc<CertifiedKey>>>,
        process: &Process,
    ) -> Self {
        Self {
            objects,
            wanted,
            secret: None,
            configuration: None,
            checks: None,
            trust: Trust::default(),
            served: None,
            in_force,
            trusted: process
                .health()
                .condition("certificate that the webhook configuration trusts"),
            expiry: process.metrics().register(
                "certificate_expiry_timestamp_seconds",
                "When a certificate of the admission webhook expires, in seconds since 1970",
                Family::default(),
            ),
        }
    }

    /// Goes on for the life of the process.
    ///
    /// # Errors
    /// A certificate cannot be made, which another try would not mend.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let Objects {
            secrets,
            secret,
            configurations,
            checks,
            configuration,
        } = &self.objects;
        let mut checks = pin!(watch_object(checks.clone(), configuration).default_backoff());
        let mut secrets = pin!(watch_object(secrets.clone(), secret).default_backoff());
        let mut configurations =
            pin!(watch_object(configurations.clone(), configuration).default_backoff());
        let mut wait = LATEST;
        loop {
            tokio::select! {
                state = secrets.next() => match state {
                    Some(Ok(secret)) => self.secret = Some(secret),
                    Some(Err(error)) => warn!(%error, "watch of the Secret failed, will be resumed"),
                    None => return Ok(()),
                },
                state = configurations.next() => match state {
                    Some(Ok(configuration)) => self.observe(configuration),
                    Some(Err(error)) => {
                        warn!(%error, "watch of the webhook configuration failed, will be resumed");
                    }
                    None => return Ok(()),
                },
                state = checks.next() => match state {
                    Some(Ok(checks)) => self.checks = checks,
                    Some(Err(error)) => {
                        warn!(%error, "watch of the ConfigMap's webhook configuration failed, will be resumed");
                    }
                    None => return Ok(()),
                },
                () = tokio::time::sleep(wait) => {}
            }
            wait = self.act().await?.min(LATEST);
        }
    }

    fn observe(&mut self, configuration: Option<MutatingWebhookConfiguration>) {
        let seen = configuration.as_ref();
        let bundles = seen
            .and_then(|seen| seen.webhooks.as_ref())
            .into_iter()
            .flatten()
            .map(|webhook| {
                let bundle = webhook.client_config.ca_bundle.as_ref();
                bundle
                    .map(|ByteString(pem)| Certificate::from_pem(pem))
                    .unwrap_or_default()
            })
            .collect();
        let generation = seen.map(|seen| seen.metadata.generation.unwrap_or_default());
        self.trust.observe(generation, bundles, Timestamp::now());
        self.configuration = Some(configuration);
    }

    /// Does what is to be done now, and answers when to look again.
    async fn act(&mut self) -> anyhow::Result<Duration> {
        // Each turn of the loop follows a change of the Secret that this replica made.
        loop {
            let (Some(secret), Some(_)) = (&self.secret, &self.configuration) else {
                return Ok(LATEST);
            };
            let Some(secret) = secret else {
                warn!(
                    secret = self.objects.secret,
                    "the Secret for the certificates is gone: apply the installation again"
                );
                return Ok(LATEST);
            };
            let stored = read(secret);
            let now = Timestamp::now();
            let state::Next { change, look_again } =
                state::next(now, stored.as_ref(), &self.trust, &self.wanted);
            if let Some(change) = change {
                let after = issue::apply(&change, now, &self.wanted)
                    .context("failed to make a certificate")?;
                let version = secret.resource_version().unwrap_or_default();
                match self.store(&after, &version).await {
                    Ok(secret) => {
                        log(&change, &after);
                        self.secret = Some(Some(secret));
                        continue;
                    }
                    Err(error) => failed("store the certificates", &error),
                }
                return Ok(RETRY);
            }
            let Some(stored) = stored else {
                return Ok(RETRY);
            };
            let mut wait = look_again.map_or(LATEST, |at| until(at, now));
            if self.trust.differs_from(&stored) {
                match self.inject(&stored).await {
                    Ok(configuration) => {
                        info!("told the API server which authorities to trust");
                        self.observe(Some(configuration));
                        continue;
                    }
                    Err(error) => failed("write the caBundle", &error),
                }
                wait = wait.min(RETRY);
            }
            if let Some(checks) = &self.checks
                && lacks(checks, &stored.bundle())
            {
                match self.inject_into_checks(checks, &stored).await {
                    Ok(checks) => self.checks = Some(checks),
                    Err(error) => {
                        failed("write the caBundle of the ConfigMap's webhook", &error);
                        wait = wait.min(RETRY);
                    }
                }
            }
            return Ok(wait.min(self.serve(&stored, now)?));
        }
    }

    /// Serves what is to be served now, and answers when that may change.
    fn serve(&mut self, stored: &Material, now: Timestamp) -> anyhow::Result<Duration> {
        let overlap = self.wanted.overlap;
        let wait = match state::serve(now, self.served.as_ref(), stored, &self.trust, overlap) {
            Serve::Keep => LATEST,
            Serve::KeepUntil(at) => until(at, now),
            Serve::Stored => {
                let certified = serving::certified(&stored.serving)?;
                self.in_force.send_replace(Some(certified));
                let certificate = stored.serving.certificate.clone();
                info!(expires = %certificate.expires, "serves with another certificate");
                self.served = Some(certificate);
                LATEST
            }
        };
        let expiries = [
            ("authority", Some(&stored.current.certificate)),
            ("serving", self.served.as_ref()),
        ];
        for (certificate, expires) in expiries {
            if let Some(expires) = expires {
                self.expiry
                    .get_or_create(&Labels { certificate })
                    .set(expires.expires.as_second());
            }
        }
        let served = self.served.as_ref();
        self.trusted
            .set(served.is_some_and(|served| self.trust.accepts(served, now)));
        Ok(wait)
    }

    async fn store(&self, material: &Material, version: &str) -> kube::Result<Secret> {
        let Objects {
            secrets, secret, ..
        } = &self.objects;
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": version},
            "data": material.data(),
        }));
        within(secrets.patch(secret, &written_by_us(), &patch)).await
    }

    async fn inject(&self, stored: &Material) -> kube::Result<MutatingWebhookConfiguration> {
        let Objects {
            configurations,
            configuration,
            ..
        } = &self.objects;
        let seen = self.configuration.iter().flatten().next();
        let version = seen.and_then(ResourceExt::resource_version);
        let webhooks = seen.and_then(|seen| seen.webhooks.as_ref());
        let names = webhooks.into_iter().flatten().map(|webhook| &webhook.name);
        let patch = bundles(version, names, &stored.bundle());
        within(configurations.patch(configuration, &written_by_us(), &patch)).await
    }

    async fn inject_into_checks(
        &self,
        seen: &ValidatingWebhookConfiguration,
        stored: &Material,
    ) -> kube::Result<ValidatingWebhookConfiguration> {
        let Objects {
            checks,
            configuration,
            ..
        } = &self.objects;
        let names = seen.webhooks.iter().flatten().map(|webhook| &webhook.name);
        let patch = bundles(seen.resource_version(), names, &stored.bundle());
        within(checks.patch(configuration, &written_by_us(), &patch)).await
    }
}

/// Writes `bundle` into every one of these webhooks. They are merged by name, so that nothing but their bundles changes.
fn bundles<'a>(
    version: Option<String>,
    webhooks: impl Iterator<Item = &'a String>,
    bundle: &ByteString,
) -> Patch<Value> {
    let webhooks: Vec<_> = webhooks
        .map(|name| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
        .collect();
    Patch::Strategic(json!({
        "metadata": {"resourceVersion": version},
        "webhooks": webhooks,
    }))
}

fn lacks(checks: &ValidatingWebhookConfiguration, bundle: &ByteString) -> bool {
    let mut webhooks = checks.webhooks.iter().flatten();
    webhooks.any(|webhook| webhook.client_config.ca_bundle.as_ref() != Some(bundle))
}

fn written_by_us() -> PatchParams {
    PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

async fn within<T>(write: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    tokio::time::timeout(PATIENCE, write)
        .await
        .unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
}

fn read(secret: &Secret) -> Option<Material> {
    let data = secret.data.as_ref()?;
    Material::read(data).unwrap_or_else(|unusable| {
        warn!(
            secret = secret.name_any(),
            reason = %unusable,
            "the stored certificates cannot be used, so new ones are made"
        );
        None
    })
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    at.duration_since(now).try_into().unwrap_or_default()
}

fn failed(act: &str, error: &kube::Error) {
    match error {
        kube::Error::Api(status) if status.is_conflict() => {
            debug!(act, "another replica was faster");
        }
        error => warn!(%error, "failed to {act}, will be tried again"),
    }
}

fn log(change: &Change<'_>, after: &Material) {
    let what = match change {
        Change::Begin { .. } => "made an authority and a certificate",
        Change::Introduce(_) => "made the next authority",
        Change::Promote(..) => "went on to the next authority",
        Change::Renew(_) => "made another certificate",
        Change::Retire(_) => "dropped the authority of before",
    };
    info!(
        authority_expires = %after.current.certificate.expires,
        certificate_expires = %after.serving.certificate.expires,
        "{what}"
    );
}
