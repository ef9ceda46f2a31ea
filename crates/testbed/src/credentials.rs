//! The credentials of a test bed: its certificate authority, the API server's certificate, one static token for each component,
//! and their kubeconfigs. Each bed has its own credentials. They are removed when the bed ends.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::json;

use crate::authority::{Authority, key_pair};
use crate::files::{create_folder, read, write};

/// A user of the API server that has a static token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// The people and tests that use the bed.
    Administrator,
    ControllerManager,
    Scheduler,
    Kwok,
    TektonController,
    TektonWebhook,
    Karpenter,
}

impl Identity {
    const ALL: [Self; 7] = [
        Self::Administrator,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kwok,
        Self::TektonController,
        Self::TektonWebhook,
        Self::Karpenter,
    ];

    /// The name of the identity's kubeconfig file. If the identity is a component, also the name of its process.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Administrator => "kubeconfig",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
            Self::TektonController => "tekton-controller",
            Self::TektonWebhook => "tekton-webhook",
            Self::Karpenter => "karpenter",
        }
    }

    /// User name and groups in the API server. The scheduler has its default RBAC rights, and Tekton has the rights in its
    /// manifests. All others have all rights.
    fn user(self) -> (&'static str, &'static str) {
        match self {
            Self::Administrator => ("admin", "system:masters"),
            Self::ControllerManager => ("system:kube-controller-manager", "system:masters"),
            Self::Scheduler => ("system:kube-scheduler", ""),
            Self::Kwok => ("system:kwok", "system:masters"),
            Self::Karpenter => ("system:karpenter", "system:masters"),
            Self::TektonController => (
                "system:serviceaccount:tekton-pipelines:tekton-pipelines-controller",
                "system:serviceaccounts,system:serviceaccounts:tekton-pipelines",
            ),
            Self::TektonWebhook => (
                "system:serviceaccount:tekton-pipelines:tekton-pipelines-webhook",
                "system:serviceaccounts,system:serviceaccounts:tekton-pipelines",
            ),
        }
    }
}

/// The credential files of one bed.
#[derive(Debug)]
pub(crate) struct Credentials {
    folder: PathBuf,
}

impl Credentials {
    /// Creates `folder` with certificates, keys and tokens.
    pub(crate) fn create(folder: PathBuf) -> Result<Self> {
        create_folder(&folder)?;
        let credentials = Self { folder };
        credentials.make_certificates()?;
        credentials.make_tokens()?;
        Ok(credentials)
    }

    /// The certificate of the authority that signed the API server's certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The API server's certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.folder.join("tls.crt")
    }

    /// The key of the API server's certificate.
    pub(crate) fn key(&self) -> PathBuf {
        self.folder.join("tls.key")
    }

    /// The key that signs the tokens of service accounts.
    pub(crate) fn service_account_key(&self) -> PathBuf {
        self.folder.join("service-accounts.key")
    }

    /// The key that verifies the tokens of service accounts.
    pub(crate) fn service_account_public_key(&self) -> PathBuf {
        self.folder.join("service-accounts.pub")
    }

    /// The API server's static token file.
    pub(crate) fn tokens(&self) -> PathBuf {
        self.folder.join("tokens.csv")
    }

    /// The kubeconfig of `identity`, once [`Self::write_kubeconfigs`] has written it.
    pub(crate) fn kubeconfig(&self, identity: Identity) -> PathBuf {
        self.folder.join(identity.name())
    }

    /// Writes the kubeconfig of each identity for the API server at `port`.
    pub(crate) fn write_kubeconfigs(&self, port: u16) -> Result<()> {
        let tokens = read(&self.tokens())?;
        for (identity, line) in Identity::ALL.into_iter().zip(tokens.lines()) {
            let token = line.split(',').next().unwrap_or_default();
            self.write_kubeconfig(&self.kubeconfig(identity), port, identity.user().0, token)?;
        }
        Ok(())
    }

    /// Writes a kubeconfig for the API server at `port`, with this user and token.
    pub(crate) fn write_kubeconfig(
        &self,
        path: &Path,
        port: u16,
        user: &str,
        token: &str,
    ) -> Result<()> {
        // The file is JSON. This is valid YAML, so kubectl, client-go and kube can read it.
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "certificate-authority": self.authority(),
            }}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "current-context": "testbed",
        });
        write(path, &format!("{config:#}"))
    }

    fn make_certificates(&self) -> Result<()> {
        let names = [
            "127.0.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default.svc",
        ];
        Authority::new()?.issue(&self.folder, &names)?;
        let service_accounts = key_pair()?;
        write(
            &self.service_account_key(),
            &service_accounts.serialize_pem(),
        )?;
        write(
            &self.service_account_public_key(),
            &service_accounts.public_key_pem(),
        )
    }

    fn make_tokens(&self) -> Result<()> {
        let mut text = String::new();
        for identity in Identity::ALL {
            // The token is a digest of a new random key, so that this crate needs no dependency for random numbers.
            let token = crate::binaries::hex_digest(&[&key_pair()?.serialize_der()], 32);
            let (user, groups) = identity.user();
            writeln!(
                text,
                "{token},{user},{name},\"{groups}\"",
                name = identity.name()
            )
            .context("failed to write the static tokens")?;
        }
        write(&self.tokens(), &text)
    }
}
