//! The certificates that the webhook shows to API servers. By default, the webhook makes self-signed serving certificates. It
//! keeps them in one Secret, which all its replicas share, and writes them into the `caBundle` of its webhook configurations.
//! It replaces each certificate before it expires. It needs no certificate manager, and it never reads or writes another
//! Secret or webhook configuration. With `--external-certificates`, another program fills the Secret. The webhook then only
//! serves the certificate in the Secret, and writes the CA in the Secret into the `caBundle`.
//! `docs/decisions/webhook-certificates.md` has the reasons.
//!
//! Module `state` decides, `issue` makes certificates, `keeper` patches the objects, and `serving` uses the certificate in TLS
//! handshakes.

mod issue;
mod keeper;
mod material;
mod serving;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use coscheduler_runtime::Process;
use jiff::SignedDuration;
use kube::{Api, Client};
use rustls::ServerConfig;
use tokio::sync::watch;

use keeper::{Keeper, Objects};
use state::Wanted;

use crate::object::{Configurations, Object};

/// The flags for certificates.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Certificates")]
pub(crate) struct CertificateArgs {
    /// Host names and IP addresses by which the API server calls this service
    #[arg(
        long,
        env = "CERTIFICATE_NAMES",
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "admission-webhook.coscheduler-system.svc"
    )]
    certificate_names: Vec<String>,

    /// How long a serving certificate is valid. It is replaced after two thirds of this time
    #[arg(
        long,
        env = "CERTIFICATE_LIFETIME",
        value_name = "DURATION",
        default_value = "2160h"
    )]
    certificate_lifetime: SignedDuration,

    /// How long API servers must have trusted a new certificate before it is served. All API servers must notice a new
    /// certificate within this time
    #[arg(
        long,
        env = "CERTIFICATE_OVERLAP",
        value_name = "DURATION",
        default_value = "1m"
    )]
    certificate_overlap: SignedDuration,

    /// Use certificates that another program, such as cert-manager, writes into the Secret: tls.crt, tls.key and ca.crt. The
    /// webhook then makes no certificates, and --certificate-lifetime has no effect
    #[arg(long, env = "EXTERNAL_CERTIFICATES")]
    external_certificates: bool,

    /// Name of the Secret that holds the certificates. It must exist, but it may be empty
    #[arg(
        long,
        env = "CERTIFICATE_SECRET",
        value_name = "NAME",
        default_value = "admission-webhook-certs"
    )]
    certificate_secret: String,
}

/// Starts the task that manages the certificates. Returns the TLS configuration of the server. The process is not ready until the
/// webhook configuration trusts the served certificate.
///
/// # Errors
/// The flags contradict each other.
pub(crate) fn start(
    args: CertificateArgs,
    namespace: &str,
    configurations: Configurations,
    client: Client,
    process: &Process,
) -> anyhow::Result<Arc<ServerConfig>> {
    let CertificateArgs {
        certificate_names,
        certificate_lifetime,
        certificate_overlap,
        external_certificates,
        certificate_secret,
    } = args;
    let wanted = Wanted {
        names: certificate_names.into_iter().collect(),
        lifetime: certificate_lifetime,
        overlap: certificate_overlap,
    };
    check(&wanted)?;
    let (sender, receiver) = watch::channel(None);
    let tls = serving::config(receiver)?;
    let secrets = Api::namespaced(client, namespace);
    let objects = Objects {
        secret: Object::new(secrets, &certificate_secret),
        configurations,
    };
    let keeper = Keeper::new(objects, wanted, external_certificates, sender, process);
    process.spawn("look after the certificates", keeper.run());
    Ok(tls)
}

fn check(wanted: &Wanted) -> anyhow::Result<()> {
    let names_are_set = wanted.names.iter().all(|name| !name.is_empty());
    ensure!(names_are_set, "--certificate-names has an empty name");
    let overlap = wanted.overlap;
    ensure!(
        overlap.is_positive(),
        "--certificate-overlap must be positive"
    );
    // A rotation takes up to four overlaps and some delay. With a lifetime of six overlaps, enough time remains for the next
    // rotation to replace the new certificate before it expires.
    let shortest = overlap
        .checked_mul(6)
        .context("--certificate-overlap is too long")?;
    ensure!(
        wanted.lifetime >= shortest,
        "--certificate-lifetime must be at least six times --certificate-overlap"
    );
    Ok(())
}
