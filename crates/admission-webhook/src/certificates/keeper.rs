//! Carries out the decisions of [`super::state`]: follows and patches the Secret and the webhook configurations, and passes the
//! certificate to module `serving`. Several replicas do this at the same time. If two replicas patch the same version of an
//! object, the API server accepts only the first patch.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_runtime::{Condition, Process};
use futures::StreamExt as _;
use futures::stream::select_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::Patch;
use kube::core::DynamicObject;
use prometheus_client::metrics::gauge::Gauge;
use rustls::sign::CertifiedKey;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{info, warn};

use super::issue;
use super::material::{Certificate, Material, Pair};
use super::state::{self, Change, Next, Serve, Served, Trust, Wanted};
use crate::object::{Configurations, Object};

/// The delay before a failed request is repeated.
const RETRY: Duration = Duration::from_secs(2);
/// The longest delay between two decisions. If somebody sets the clock forward, the keeper notices this within this time.
const LATEST: Duration = Duration::from_secs(600);

/// The objects that the keeper follows and patches.
pub(super) struct Objects {
    pub(super) secret: Object<Secret>,
    /// All webhooks get the same `caBundle`. The replacement of a certificate waits only until the MutatingWebhookConfiguration
    /// trusts the new certificate. It does not wait for the ValidatingWebhookConfiguration: while the API server cannot call that
    /// webhook, it admits ConfigMap `coscheduler-config` unchecked (`failurePolicy: Ignore`).
    pub(super) configurations: Configurations,
}

/// The task that manages the certificates.
pub(super) struct Keeper {
    objects: Objects,
    wanted: Wanted,
    /// True if another program fills the Secret.
    issued: bool,
    trust: Trust,
    served: Option<Served>,
    tls: watch::Sender<Option<Arc<CertifiedKey>>>,
    trusted: Condition,
    expiry: Gauge,
}

/// A new state of one of the objects. `None` if the object does not exist.
enum Seen {
    Secret(Option<Secret>),
    Mutating(Option<DynamicObject>),
    Validating(Option<DynamicObject>),
}

impl Keeper {
    pub(super) fn new(
        objects: Objects,
        wanted: Wanted,
        issued: bool,
        tls: watch::Sender<Option<Arc<CertifiedKey>>>,
        process: &Process,
    ) -> Self {
        let trusted = "certificate that the webhook configuration trusts";
        Self {
            objects,
            wanted,
            issued,
            trust: Trust::default(),
            served: None,
            tls,
            trusted: process.health().condition(trusted),
            expiry: process.metrics().register(
                "certificate_expiry_timestamp_seconds",
                "When the certificate that the admission webhook serves expires, in seconds since 1970",
                Gauge::default(),
            ),
        }
    }

    /// Manages the certificates for the life of the process.
    ///
    /// # Errors
    /// A certificate cannot be created. A retry would fail too.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let mut changes = select_all([
            self.objects.secret.follow(Seen::Secret),
            self.objects.configurations.mutating.follow(Seen::Mutating),
            self.objects
                .configurations
                .validating
                .follow(Seen::Validating),
        ]);
        let mut wait = LATEST;
        loop {
            match tokio::time::timeout(wait, changes.next()).await {
                Ok(Some(Seen::Secret(seen))) => self.objects.secret.seen = Some(seen),
                Ok(Some(Seen::Mutating(seen))) => {
                    self.objects.configurations.mutating.seen = Some(seen);
                    self.observe();
                }
                Ok(Some(Seen::Validating(seen))) => {
                    self.objects.configurations.validating.seen = Some(seen)
                }
                Ok(None) => return Ok(()),
                Err(_) => {}
            }
            wait = self.act().await?.min(LATEST);
        }
    }

    fn observe(&mut self) {
        let mutating = &self.objects.configurations.mutating;
        let configuration = mutating.seen.iter().flatten().next();
        let generation = configuration.map(|seen| seen.metadata.generation.unwrap_or_default());
        let bundles = mutating.webhooks().map(|webhook| {
            let pem = serde_json::from_value(bundle(webhook).clone());
            pem.map(|pem| Certificate::from_pem(&pem))
                .unwrap_or_default()
        });
        let bundles = bundles.collect();
        self.trust.observe(generation, bundles, Timestamp::now());
    }

    /// Takes the steps that are due. Returns the time until the next step.
    async fn act(&mut self) -> anyhow::Result<Duration> {
        // After each successful patch, the loop decides again.
        loop {
            let Objects {
                secret,
                configurations:
                    Configurations {
                        mutating,
                        validating,
                    },
            } = &mut self.objects;
            let (Some(stored), Some(_)) = (&secret.seen, &mutating.seen) else {
                return Ok(LATEST);
            };
            let Some(stored) = stored else {
                let mend = match self.issued {
                    true => "another program must create it (--external-certificates)",
                    false => "apply the installation again",
                };
                warn!("there is no Secret with the certificates: {mend}");
                self.judge(Timestamp::now());
                return Ok(LATEST);
            };
            let (now, served, wanted) = (Timestamp::now(), self.served.as_ref(), &self.wanted);
            let (stored, look_again) = if self.issued {
                let Some(issued) = issued(stored, wanted, now) else {
                    self.judge(now);
                    return Ok(RETRY);
                };
                let (certificate, overlap) = (&issued.certificate, wanted.overlap);
                let (previous, look_again) =
                    state::outgoing(now, served, certificate, &self.trust, overlap);
                let stored = Material {
                    current: issued,
                    next: None,
                    previous,
                };
                (stored, look_again)
            } else {
                let stored = read(stored);
                let Next { change, look_again } =
                    state::next(now, stored.as_ref(), served, &self.trust, wanted);
                if let Some(change) = change {
                    let after = issue::apply(&change, now, wanted)
                        .context("failed to make a certificate")?;
                    let data = json!({"data": after.data()});
                    if !secret.patch(Patch::Merge, data).await {
                        return Ok(RETRY);
                    }
                    log(&change, &after);
                    continue;
                }
                let Some(stored) = stored else {
                    return Ok(RETRY);
                };
                (stored, look_again)
            };
            let mut wait = look_again.map_or(LATEST, |at| until(at, now));
            let trusted = json!(stored.bundle());
            if lacks(mutating, &trusted) {
                if trust(mutating, &trusted).await {
                    info!("wrote the caBundle of the MutatingWebhookConfiguration");
                    self.observe();
                    continue;
                }
                wait = wait.min(RETRY);
            }
            if lacks(validating, &trusted) && !trust(validating, &trusted).await {
                wait = wait.min(RETRY);
            }
            return Ok(wait.min(self.serve(&stored, now)?));
        }
    }

    /// Serves another certificate if this is due. Returns the time until the next change.
    fn serve(&mut self, stored: &Material, now: Timestamp) -> anyhow::Result<Duration> {
        let (served, overlap) = (self.served.as_ref(), self.wanted.overlap);
        let wait = match state::serve(now, served, stored, &self.trust, overlap) {
            Serve::Keep => LATEST,
            Serve::KeepUntil(at) => until(at, now),
            Serve::Stored => {
                let certified = stored.current.certified()?;
                self.tls.send_replace(Some(certified));
                let certificate = stored.current.certificate.clone();
                info!(expires = %certificate.expires, "now serves another certificate");
                self.expiry.set(certificate.expires.as_second());
                self.served = Some(Served {
                    certificate,
                    since: now,
                });
                // Decide again at once: only now is it known when the previous certificates can be retired.
                Duration::ZERO
            }
        };
        self.judge(now);
        Ok(wait)
    }

    /// The process is ready while API servers accept the served certificate.
    fn judge(&self, now: Timestamp) {
        let served = self.served.as_ref();
        let accepted = served.is_some_and(|served| self.trust.accepts(&served.certificate, now));
        self.trusted.set(accepted);
    }
}

/// The webhook's `caBundle`, in base64.
fn bundle(webhook: &Value) -> &Value {
    &webhook["clientConfig"]["caBundle"]
}

/// True if a webhook of the configuration has another `caBundle` than `trusted`.
fn lacks(configuration: &Object<DynamicObject>, trusted: &Value) -> bool {
    let mut webhooks = configuration.webhooks();
    webhooks.any(|webhook| bundle(webhook) != trusted)
}

/// Writes the `caBundle` of every webhook. Returns `false` if this failed.
async fn trust(configuration: &mut Object<DynamicObject>, trusted: &Value) -> bool {
    let webhooks = configuration.webhooks();
    let changes =
        webhooks.map(|it| json!({"name": it["name"], "clientConfig": {"caBundle": trusted}}));
    let changes = changes.collect();
    configuration.patch_webhooks(changes).await
}

fn read(secret: &Secret) -> Option<Material> {
    Material::read(secret.data.as_ref()?).unwrap_or_else(|error| {
        let secret = secret.name_any();
        warn!(secret, %error, "the stored certificates cannot be used, so new ones are made");
        None
    })
}

fn issued(secret: &Secret, wanted: &Wanted, now: Timestamp) -> Option<Pair> {
    let data = secret.data.clone().unwrap_or_default();
    Material::issued(&data, &wanted.names, now)
        .inspect_err(|error| {
            let secret = secret.name_any();
            let error = format!("{error:#}");
            warn!(
                secret,
                error, "the certificate in the Secret cannot be used"
            );
        })
        .ok()
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    at.duration_since(now).try_into().unwrap_or_default()
}

fn log(change: &Change<'_>, after: &Material) {
    let change = match change {
        Change::Begin { .. } => "made a certificate",
        Change::Introduce(_) => "made the next certificate",
        Change::Promote(..) => "promoted the next certificate",
        Change::Retire(_) => "removed the previous certificates",
    };
    info!(expires = %after.current.certificate.expires, "{change}");
}
