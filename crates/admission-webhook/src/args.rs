//! The flags of the admission-webhook.

use std::net::SocketAddr;
use std::path::PathBuf;

/// The admission-webhook's own flags.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Where the affinity-planner is, as http://HOST:PORT
    #[arg(
        long,
        env = "AFFINITY_PLANNER_ADDRESS",
        value_name = "URL",
        default_value = "http://127.0.0.1:9102"
    )]
    pub(crate) affinity_planner_address: String,

    /// Address that admission reviews are answered on over HTTPS, as IP:PORT
    #[arg(
        long,
        env = "WEBHOOK_ADDRESS",
        value_name = "IP:PORT",
        default_value = "127.0.0.1:9443"
    )]
    pub(crate) webhook_address: SocketAddr,

    /// File with the certificate chain that the API server is shown, in PEM
    #[arg(long, env = "TLS_CERT_FILE", value_name = "FILE")]
    pub(crate) tls_cert_file: PathBuf,

    /// File with the certificate's private key, in PEM
    #[arg(long, env = "TLS_PRIVATE_KEY_FILE", value_name = "FILE")]
    pub(crate) tls_private_key_file: PathBuf,
}
