//! The cluster of the user's kubeconfig.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use k8s_openapi::NamespaceResourceScope;
use kube::api::ListParams;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;
use tower::BoxError;
use tower::util::MapErrLayer;

use crate::args::{ClusterArgs, KubeconfigArgs};
use crate::failure::{Failure, no_answer};

/// The time limit for connecting to the API server.
const CONNECT: Duration = Duration::from_secs(10);

/// The number of objects in a page of a list.
const PAGE: u32 = 500;

/// A client with the user's rights, and the namespace that the arguments or the kubeconfig choose.
pub(crate) struct Cluster {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Cluster {
    /// The cluster that the arguments and the kubeconfig choose, as for kubectl.
    pub(crate) async fn new(args: &ClusterArgs) -> Result<Self, Failure> {
        let mut cluster = Self::of(&args.kubeconfig).await?;
        if let Some(namespace) = &args.namespace {
            cluster.namespace.clone_from(namespace);
        }
        Ok(cluster)
    }

    /// The cluster and the namespace of the kubeconfig's context.
    pub(crate) async fn of(args: &KubeconfigArgs) -> Result<Self, Failure> {
        let mut config = config(args).await?;
        config.connect_timeout = Some(CONNECT);
        let namespace = config.default_namespace.clone();
        let address = config.cluster_url.to_string();
        let client = ClientBuilder::try_from(config).context("failed to use the kubeconfig")?;
        let client = client.with_layer(&MapErrLayer::new(move |error: BoxError| {
            // An error of this type comes from the client itself, before it sends the request.
            if error.is::<kube::Error>() {
                return error;
            }
            no_answer("API server", &address, &anyhow!(error)).into()
        }));
        Ok(Self {
            client: client.build(),
            namespace,
        })
    }
}

/// The namespace that the arguments or the kubeconfig choose. Reads the kubeconfig only if the arguments name none.
pub(crate) async fn namespace(args: &ClusterArgs) -> Result<String, Failure> {
    match &args.namespace {
        Some(namespace) => Ok(namespace.clone()),
        None => Ok(config(&args.kubeconfig).await?.default_namespace),
    }
}

async fn config(args: &KubeconfigArgs) -> anyhow::Result<Config> {
    let options = KubeConfigOptions {
        context: args.context.clone(),
        ..KubeConfigOptions::default()
    };
    let config = match &args.kubeconfig {
        Some(path) => match Kubeconfig::read_from(path) {
            Ok(kubeconfig) => Config::from_custom_kubeconfig(kubeconfig, &options).await,
            Err(error) => Err(error),
        },
        None => Config::from_kubeconfig(&options).await,
    };
    config.context("failed to read the kubeconfig")
}

/// The failure of a request to the API server.
pub(crate) fn failed(what: &str, error: kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound" => {
            Failure::NotFound(anyhow!("{}", status.message))
        }
        kube::Error::Api(status) => {
            Failure::Failed(anyhow!("{}", status.message).context(format!("failed to {what}")))
        }
        // This error has the text that `Cluster::of` wrote.
        kube::Error::Service(error) => Failure::Unreachable(anyhow!(error)),
        kube::Error::HyperError(error) => {
            Failure::Unreachable(anyhow!(error).context(format!("failed to {what}")))
        }
        error => Failure::Failed(anyhow!(error).context(format!("failed to {what}"))),
    }
}

/// The objects of a namespace. `None` for all namespaces.
pub(crate) fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Lists all objects, page by page.
pub(crate) async fn list<K>(api: &Api<K>, params: ListParams) -> kube::Result<Vec<K>>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut all = Vec::new();
    each(api, params, |object| all.push(object)).await?;
    Ok(all)
}

/// Lists all objects, page by page, and gives each of them to `take`.
pub(crate) async fn each<K>(
    api: &Api<K>,
    params: ListParams,
    mut take: impl FnMut(K),
) -> kube::Result<()>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut params = params.limit(PAGE);
    loop {
        let page = api.list(&params).await?;
        page.items.into_iter().for_each(&mut take);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// The answer of the API server. If the user is not allowed to read the objects, adds a warning and returns `None`.
pub(crate) fn unless_forbidden<T>(
    what: &str,
    answer: kube::Result<T>,
    warnings: &mut Vec<String>,
) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(kube::Error::Api(status)) if status.code == 403 => {
            warnings.push(format!("{what} are not shown: {}", status.message));
            Ok(None)
        }
        Err(error) => Err(failed(&format!("read {what}"), error)),
    }
}
