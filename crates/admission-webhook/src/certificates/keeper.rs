//! Carries out the decisions of [`super::state`]: watches the Secret and the webhook configurations, patches them, and hands
//! the certificate to the TLS side. Any number of replicas may do so at once: a patch names the `resourceVersion` that the
//! replica has seen, so the API server takes the first of two.

use std::fmt::Debug;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use coscheduler_runtime::{Condition, Process};
use futures::StreamExt as _;
use futures::stream::{BoxStream, select_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Api, Resource, ResourceExt};
use prometheus_client::metrics::gauge::Gauge;
use rustls::sign::CertifiedKey;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use super::material::{Certificate, Material};
use super::state::{self, Change, Serve, Served, Trust, Wanted};
use super::{issue, serving};

const FIELD_MANAGER: &str = "admission-webhook";
/// For one write.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// The longest delay, since somebody may set the clock forward.
const LATEST: Duration = Duration::from_secs(600);

/// The three objects that the keeper reads and patches.
pub(super) struct Objects {
    pub(super) secrets: Api<Secret>,
    pub(super) secret: String,
    /// MutatingWebhookConfigurations.
    pub(super) mutating: Api<DynamicObject>,
    /// ValidatingWebhookConfigurations. The one of ours checks the ConfigMap. It gets the same `caBundle`, but nothing waits
    /// for it: without it the API server admits the ConfigMap unchecked.
    pub(super) validating: Api<DynamicObject>,
    /// The name of both webhook configurations.
    pub(super) configuration: String,
}

/// Looks after the certificates.
pub(super) struct Keeper {
    objects: Objects,
    wanted: Wanted,
    /// `None` before the first look, `Some(None)` where there is no such object.
    secret: Option<Option<Secret>>,
    mutating: Option<Option<DynamicObject>>,
    validating: Option<DynamicObject>,
    trust: Trust,
    served: Option<Served>,
    tls: watch::Sender<Option<Arc<CertifiedKey>>>,
    trusted: Condition,
    expiry: Gauge,
}

/// A state of one of the objects; `None` where there is no such object.
enum Seen {
    Secret(Option<Secret>),
    Mutating(Option<DynamicObject>),
    Validating(Option<DynamicObject>),
}

impl Keeper {
    pub(super) fn new(
        objects: Objects,
        wanted: Wanted,
        tls: watch::Sender<Option<Arc<CertifiedKey>>>,
        process: &Process,
    ) -> Self {
        let trusted = "certificate that the webhook configuration trusts";
        Self {
            objects,
            wanted,
            secret: None,
            mutating: None,
            validating: None,
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

    /// Goes on for the life of the process.
    ///
    /// # Errors
    /// A certificate cannot be made, which another try would not mend.
    pub(super) async fn run(mut self) -> anyhow::Result<()> {
        let Objects {
            secrets,
            secret,
            mutating,
            validating,
            configuration,
        } = &self.objects;
        let mut changes = select_all([
            follow("Secret", secrets, secret, Seen::Secret),
            follow(
                "MutatingWebhookConfiguration",
                mutating,
                configuration,
                Seen::Mutating,
            ),
            follow(
                "ValidatingWebhookConfiguration",
                validating,
                configuration,
                Seen::Validating,
            ),
        ]);
        let mut wait = LATEST;
        loop {
            match tokio::time::timeout(wait, changes.next()).await {
                Ok(Some(Seen::Secret(secret))) => self.secret = Some(secret),
                Ok(Some(Seen::Mutating(seen))) => self.observe(seen),
                Ok(Some(Seen::Validating(seen))) => self.validating = seen,
                Ok(None) => return Ok(()),
                Err(_) => {}
            }
            wait = self.act().await?.min(LATEST);
        }
    }

    fn observe(&mut self, mutating: Option<DynamicObject>) {
        let generation = mutating.as_ref().map(|mutating| {
            let generation = mutating.metadata.generation;
            generation.unwrap_or_default()
        });
        let bundles = mutating.iter().flat_map(webhooks).map(|(_, bundle)| {
            let pem = serde_json::from_value(bundle.clone());
            pem.map(|pem| Certificate::from_pem(&pem))
                .unwrap_or_default()
        });
        let bundles = bundles.collect();
        self.trust.observe(generation, bundles, Timestamp::now());
        self.mutating = Some(mutating);
    }

    /// Takes the steps that are due; the time until the next one.
    async fn act(&mut self) -> anyhow::Result<Duration> {
        // Each round follows a write of this replica.
        loop {
            let (Some(secret), Some(mutating)) = (&self.secret, &self.mutating) else {
                return Ok(LATEST);
            };
            let Some(secret) = secret else {
                let name = &self.objects.secret;
                warn!(
                    secret = name,
                    "the Secret is gone: apply the installation again"
                );
                return Ok(LATEST);
            };
            let stored = read(secret);
            let (now, wanted) = (Timestamp::now(), &self.wanted);
            let served = self.served.as_ref();
            let next = state::next(now, stored.as_ref(), served, &self.trust, wanted);
            if let Some(change) = next.change {
                let after =
                    issue::apply(&change, now, wanted).context("failed to make a certificate")?;
                let written = self.store(&after, secret).await;
                let Some(secret) = written else {
                    return Ok(RETRY);
                };
                log(&change, &after);
                self.secret = Some(Some(secret));
                continue;
            }
            let Some(stored) = &stored else {
                return Ok(RETRY);
            };
            let mut wait = next.look_again.map_or(LATEST, |at| until(at, now));
            let bundle = json!(stored.bundle());
            let Objects {
                mutating: api,
                validating: checks,
                ..
            } = &self.objects;
            if let Some(seen) = mutating.as_ref().filter(|seen| !trusts(seen, &bundle)) {
                if let Some(seen) = trust(api, seen, &bundle).await {
                    info!("wrote the caBundle of the MutatingWebhookConfiguration");
                    self.observe(Some(seen));
                    continue;
                }
                wait = wait.min(RETRY);
            }
            if let Some(seen) = self
                .validating
                .as_ref()
                .filter(|seen| !trusts(seen, &bundle))
            {
                match trust(checks, seen, &bundle).await {
                    Some(seen) => self.validating = Some(seen),
                    None => wait = wait.min(RETRY),
                }
            }
            return Ok(wait.min(self.serve(stored, now)?));
        }
    }

    /// Serves the certificate that is due; the time until that may change.
    fn serve(&mut self, stored: &Material, now: Timestamp) -> anyhow::Result<Duration> {
        let (served, overlap) = (self.served.as_ref(), self.wanted.overlap);
        let wait = match state::serve(now, served, stored, &self.trust, overlap) {
            Serve::Keep => LATEST,
            Serve::KeepUntil(at) => until(at, now),
            Serve::Stored => {
                let certified = serving::certified(&stored.current)?;
                self.tls.send_replace(Some(certified));
                let certificate = stored.current.certificate.clone();
                info!(expires = %certificate.expires, "serves with another certificate");
                self.expiry.set(certificate.expires.as_second());
                self.served = Some(Served {
                    certificate,
                    since: now,
                });
                // The certificates of before may now be retired.
                Duration::ZERO
            }
        };
        let served = self.served.as_ref();
        let accepted = served.is_some_and(|served| self.trust.accepts(&served.certificate, now));
        self.trusted.set(accepted);
        Ok(wait)
    }

    async fn store(&self, material: &Material, seen: &Secret) -> Option<Secret> {
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": seen.resource_version()},
            "data": material.data(),
        }));
        patched(&self.objects.secrets, seen, &patch).await
    }
}

fn follow<K>(
    kind: &'static str,
    api: &Api<K>,
    name: &str,
    seen: fn(Option<K>) -> Seen,
) -> BoxStream<'static, Seen>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    watch_object(api.clone(), name)
        .default_backoff()
        .filter_map(move |object| {
            let failed = |error| warn!(kind, %error, "watch failed, will be resumed");
            ready(object.map_err(failed).ok().map(seen))
        })
        .boxed()
}

/// The name and the `caBundle` of each webhook in a webhook configuration.
fn webhooks(configuration: &DynamicObject) -> impl Iterator<Item = (&Value, &Value)> {
    let webhooks = configuration.data["webhooks"].as_array();
    let webhooks = webhooks.into_iter().flatten();
    webhooks.map(|webhook| (&webhook["name"], &webhook["clientConfig"]["caBundle"]))
}

fn trusts(configuration: &DynamicObject, bundle: &Value) -> bool {
    webhooks(configuration).all(|(_, written)| written == bundle)
}

/// Writes `bundle` into every webhook of the configuration. The API server merges webhooks by name, so nothing else changes.
async fn trust(
    api: &Api<DynamicObject>,
    seen: &DynamicObject,
    bundle: &Value,
) -> Option<DynamicObject> {
    let webhooks: Vec<_> = webhooks(seen)
        .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
        .collect();
    let patch = Patch::Strategic(json!({
        "metadata": {"resourceVersion": seen.resource_version()},
        "webhooks": webhooks,
    }));
    patched(api, seen, &patch).await
}

/// The object after the patch; `None`, and why in the log, where it failed.
async fn patched<K>(api: &Api<K>, seen: &K, patch: &Patch<Value>) -> Option<K>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let name = seen.name_any();
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let write = tokio::time::timeout(TIMEOUT, api.patch(&name, &params, patch));
    let object = api.resource_url();
    match write.await {
        Ok(Ok(written)) => return Some(written),
        Ok(Err(kube::Error::Api(status))) if status.is_conflict() => {
            debug!(object, name, "another replica was faster");
        }
        Ok(Err(error)) => warn!(object, name, %error, "failed to patch, will be tried again"),
        Err(error) => warn!(object, name, %error, "failed to patch, will be tried again"),
    }
    None
}

fn read(secret: &Secret) -> Option<Material> {
    Material::read(secret.data.as_ref()?).unwrap_or_else(|error| {
        let secret = secret.name_any();
        warn!(secret, %error, "the stored certificates cannot be used, so new ones are made");
        None
    })
}

fn until(at: Timestamp, now: Timestamp) -> Duration {
    at.duration_since(now).try_into().unwrap_or_default()
}

fn log(change: &Change<'_>, after: &Material) {
    let change = match change {
        Change::Begin { .. } => "made a certificate",
        Change::Introduce(_) => "made the next certificate",
        Change::Promote(..) => "promoted the next certificate",
        Change::Retire(_) => "removed the certificates of before",
    };
    info!(expires = %after.current.certificate.expires, "{change}");
}
