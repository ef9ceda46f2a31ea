//! The webhook's own certificates. It makes its authority and its serving certificate itself, keeps both in a Secret that
//! all replicas share, tells the API server through the webhook configuration whom to trust, and replaces everything in
//! time. Needs no certificate manager, and never reads or writes another Secret or configuration.
//!
//! `state` decides, `issue` makes what was decided, `keeper` carries it out, `serving` answers handshakes.

mod issue;
mod keeper;
mod material;
#[cfg(test)]
mod rotation_tests;
mod serving;
mod state;

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use coscheduler_runtime::Process;
use jiff::SignedDuration;
use kube::{Api, Client};
use rustls::ServerConfig;
use tokio::sync::watch;

use keeper::{Keeper, Objects};
use state::Wanted;

/// The flags about certificates.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Certificates")]
pub(crate) struct CertificateArgs {
    /// Host names and IP addresses that the API server calls this service by
    #[arg(
        long,
        env = "CERTIFICATE_NAMES",
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "admission-webhook.coscheduler-system.svc"
    )]
    certificate_names: Vec<String>,

    /// How long a serving certificate is valid; it is replaced after two thirds of that
    #[arg(
        long,
        env = "CERTIFICATE_LIFETIME",
        value_name = "DURATION",
        default_value = "2160h"
    )]
    certificate_lifetime: SignedDuration,

    /// How long the authority that signs it is valid; it is replaced after two thirds of that
    #[arg(
        long,
        env = "AUTHORITY_LIFETIME",
        value_name = "DURATION",
        default_value = "8760h"
    )]
    authority_lifetime: SignedDuration,

    /// How long a new authority is trusted before it is used, so that every API server has heard of it
    #[arg(
        long,
        env = "CERTIFICATE_OVERLAP",
        value_name = "DURATION",
        default_value = "1m"
    )]
    certificate_overlap: SignedDuration,

    /// Namespace of the Secret that holds the certificates
    #[arg(
        long,
        env = "CERTIFICATE_SECRET_NAMESPACE",
        value_name = "NAME",
        default_value = "coscheduler-system"
    )]
    certificate_secret_namespace: String,

    /// Name of the Secret that holds the certificates; it must exist, and may be empty
    #[arg(
        long,
        env = "CERTIFICATE_SECRET",
        value_name = "NAME",
        default_value = "admission-webhook-certs"
    )]
    certificate_secret: String,

    /// Name of the MutatingWebhookConfiguration, and of the ValidatingWebhookConfiguration, that lead to this service
    #[arg(
        long,
        env = "WEBHOOK_CONFIGURATION",
        value_name = "NAME",
        default_value = "coscheduler.dev"
    )]
    webhook_configuration: String,
}

/// Starts looking after the certificates; the TLS configuration to serve with. The process is ready once the API server has
/// been told to trust what is served.
///
/// # Errors
/// The lifetimes do not fit together.
pub(crate) fn start(
    args: CertificateArgs,
    client: Client,
    process: &Process,
) -> anyhow::Result<Arc<ServerConfig>> {
    let CertificateArgs {
        certificate_names,
        certificate_lifetime,
        authority_lifetime,
        certificate_overlap,
        certificate_secret_namespace,
        certificate_secret,
        webhook_configuration,
    } = args;
    let wanted = Wanted {
        names: certificate_names.into_iter().collect(),
        authority_lifetime,
        certificate_lifetime,
        overlap: certificate_overlap,
    };
    check(&wanted)?;
    let (sender, receiver) = watch::channel(None);
    let tls = serving::config(receiver)?;
    let objects = Objects {
        secrets: Api::namespaced(client.clone(), &certificate_secret_namespace),
        secret: certificate_secret,
        configurations: Api::all(client.clone()),
        checks: Api::all(client),
        configuration: webhook_configuration,
    };
    let keeper = Keeper::new(objects, wanted, sender, process);
    process.spawn("look after the certificates", keeper.run());
    Ok(tls)
}

/// A step of a rotation must be over before the next one is due.
fn check(wanted: &Wanted) -> anyhow::Result<()> {
    let Wanted {
        names,
        authority_lifetime,
        certificate_lifetime,
        overlap,
    } = wanted;
    ensure!(
        names.iter().all(|name| !name.is_empty()),
        "--certificate-names holds an empty name"
    );
    ensure!(
        overlap.is_positive(),
        "--certificate-overlap must be more than nothing"
    );
    let shortest = overlap
        .checked_mul(4)
        .context("--certificate-overlap is too long")?;
    ensure!(
        *certificate_lifetime >= shortest,
        "--certificate-lifetime must be at least four times --certificate-overlap"
    );
    ensure!(
        authority_lifetime >= certificate_lifetime,
        "--authority-lifetime must be at least --certificate-lifetime"
    );
    Ok(())
}
