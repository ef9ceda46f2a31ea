//! The kubeconfigs of the services. Each names a file with a token of the service's own account. The launcher replaces the token
//! long before it expires, as the kubelet does for a pod. The affinity-planner has no kubeconfig.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::PostParams;
use kube::config::{AuthInfo, Context, Kubeconfig, NamedAuthInfo, NamedContext};
use kube::{Api, Client};
use tokio::task::JoinSet;
use tracing::warn;

use super::links::{Links, Peer};
use super::{NAMESPACE, Service};

/// The lifetime that is requested for a token.
const TOKEN_SECONDS: i64 = 24 * 3600;
/// How often tokens are replaced. An API server may shorten their lifetime, but not below ten minutes.
const REFRESH: Duration = Duration::from_secs(300);

/// Keeps the tokens of the services valid until it is dropped.
#[derive(Debug)]
pub(super) struct Accounts {
    _refresh: JoinSet<()>,
}

impl Accounts {
    /// Writes a kubeconfig into `folder` for each service that calls the API server. The kubeconfig contains the current cluster
    /// of kubeconfig `administrator`. If there are `links`, it names the service's link instead of the API server.
    pub(super) async fn write(
        client: &Client,
        administrator: &Path,
        folder: &Path,
        links: &Links,
    ) -> anyhow::Result<Self> {
        let administrator = Kubeconfig::read_from(administrator)
            .with_context(|| format!("failed to read kubeconfig {}", administrator.display()))?;
        for service in with_account() {
            refresh(client, folder, service).await?;
            let mut kubeconfig = act_as(&administrator, folder, service)?;
            if let Some(port) = links.port(service, Peer::ApiServer) {
                lead_to(&mut kubeconfig, port);
            }
            let text = serde_json::to_string(&kubeconfig)
                .with_context(|| format!("failed to describe a kubeconfig for {service}"))?;
            write(&kubeconfig_of(folder, service), &text)?;
        }
        let mut tasks = JoinSet::new();
        tasks.spawn(keep_fresh(client.clone(), folder.to_owned()));
        Ok(Self { _refresh: tasks })
    }
}

/// The path of the kubeconfig of `service`.
pub(super) fn kubeconfig_of(folder: &Path, service: Service) -> PathBuf {
    folder.join(format!("{service}.kubeconfig"))
}

fn token_of(folder: &Path, service: Service) -> PathBuf {
    folder.join(format!("{service}.token"))
}

fn with_account() -> impl Iterator<Item = Service> {
    Service::ALL
        .into_iter()
        .filter(|service| service.talks_to_kubernetes())
}

async fn keep_fresh(client: Client, folder: PathBuf) {
    loop {
        tokio::time::sleep(REFRESH).await;
        for service in with_account() {
            // A failure is only logged, because the old token is still valid for a long time.
            if let Err(error) = refresh(&client, &folder, service).await {
                warn!("{error:#}; trying again in {REFRESH:?}");
            }
        }
    }
}

async fn refresh(client: &Client, folder: &Path, service: Service) -> anyhow::Result<()> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let request = TokenRequest {
        spec: TokenRequestSpec {
            expiration_seconds: Some(TOKEN_SECONDS),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let act = || format!("failed to get a token of service account {NAMESPACE}/{service}");
    let answer = accounts
        .create_token_request(service.name(), &PostParams::default(), &request)
        .await
        .with_context(act)?;
    let status = answer.status.with_context(act)?;
    // The new file replaces the old file when it is complete, because the service may read the token at any time.
    let path = token_of(folder, service);
    let fresh = path.with_extension("fresh");
    write(&fresh, &status.token)?;
    std::fs::rename(&fresh, &path).with_context(|| format!("failed to write {}", path.display()))
}

/// The administrator's kubeconfig, but with the account of `service` as its user.
fn act_as(
    administrator: &Kubeconfig,
    folder: &Path,
    service: Service,
) -> anyhow::Result<Kubeconfig> {
    let current = administrator.current_context.as_deref().unwrap_or_default();
    let context = administrator
        .contexts
        .iter()
        .find(|context| context.name == current)
        .and_then(|context| context.context.as_ref())
        .context("the kubeconfig has no current context")?;
    let clusters: Vec<_> = administrator
        .clusters
        .iter()
        .filter(|cluster| cluster.name == context.cluster)
        .cloned()
        .collect();
    if clusters.is_empty() {
        bail!("the kubeconfig has no cluster {}", context.cluster);
    }
    let user = service.name().to_owned();
    Ok(Kubeconfig {
        clusters,
        auth_infos: vec![NamedAuthInfo {
            name: user.clone(),
            auth_info: Some(AuthInfo {
                token_file: Some(token_of(folder, service).display().to_string()),
                ..AuthInfo::default()
            }),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: user.clone(),
            context: Some(Context {
                cluster: context.cluster.clone(),
                user: Some(user.clone()),
                ..Context::default()
            }),
            ..NamedContext::default()
        }],
        current_context: Some(user),
        ..Kubeconfig::default()
    })
}

/// Replaces the API server's address in the kubeconfig by a loopback port.
fn lead_to(kubeconfig: &mut Kubeconfig, port: u16) {
    for cluster in &mut kubeconfig.clusters {
        if let Some(cluster) = &mut cluster.cluster {
            cluster.server = Some(format!("https://127.0.0.1:{port}"));
        }
    }
}

/// Writes a file that only its owner may read.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("failed to write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_reaches_the_same_cluster_as_nobody_but_itself() {
        let yaml = "
            apiVersion: v1
            kind: Config
            current-context: b
            clusters:
            - {name: a, cluster: {server: https://a}}
            - {name: b-cluster, cluster: {server: https://b, certificate-authority-data: Q0E=}}
            users:
            - {name: admin, user: {token: secret}}
            contexts:
            - {name: a, context: {cluster: a, user: admin}}
            - {name: b, context: {cluster: b-cluster, user: admin, namespace: other}}
        ";
        let administrator = Kubeconfig::from_yaml(yaml).unwrap();
        let made = act_as(&administrator, Path::new("/f"), Service::Watcher).unwrap();
        let linked = {
            let mut made = made.clone();
            lead_to(&mut made, 1234);
            serde_json::to_value(made).unwrap()
        };
        let made = serde_json::to_value(made).unwrap();
        assert_eq!(made["current-context"], "watcher");
        assert_eq!(made["clusters"].as_array().unwrap().len(), 1);
        let cluster = &made["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], "https://b");
        assert_eq!(cluster["certificate-authority-data"], "Q0E=");
        assert_eq!(made["users"][0]["user"]["tokenFile"], "/f/watcher.token");
        assert_eq!(made["contexts"][0]["context"]["cluster"], "b-cluster");
        assert!(!made.to_string().contains("secret"), "{made}");
        let mut expected = made;
        expected["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1234".into();
        assert_eq!(linked, expected);
    }
}
