//! The links between the services, and between services and the API server. Each link has a balancer of its own, so that a test
//! can cut or freeze the connections of a single link.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use anyhow::Context as _;

use super::{Ports, Service, Services};
use crate::Balancer;
use crate::control_plane::config;

/// One end of a link: a service or the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Peer {
    /// All processes of a service.
    Service(Service),
    /// The API server.
    ApiServer,
}

/// The connections that `from` opens to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Link {
    /// The client.
    pub from: Peer,
    /// The server.
    pub to: Peer,
}

impl From<Service> for Peer {
    fn from(service: Service) -> Self {
        Self::Service(service)
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(service) => service.fmt(formatter),
            Self::ApiServer => formatter.write_str("the API server"),
        }
    }
}

impl fmt::Display for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "from {} to {}", self.from, self.to)
    }
}

impl Link {
    /// The link from one peer to another.
    pub fn new(from: impl Into<Peer>, to: impl Into<Peer>) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
        }
    }

    /// All links among the services and the API server.
    pub fn all() -> impl Iterator<Item = Self> {
        let of = |from: Service| {
            let asked = from.calls().iter().map(|service| Peer::from(*service));
            let reads = from.talks_to_kubernetes().then_some(Peer::ApiServer);
            asked.chain(reads).map(move |to| Self::new(from, to))
        };
        let asked = Self::new(Peer::ApiServer, Service::AdmissionWebhook);
        Service::ALL.into_iter().flat_map(of).chain([asked])
    }
}

/// The balancer of each link. Empty if connections are direct.
#[derive(Debug, Default)]
pub(super) struct Links(BTreeMap<Link, Balancer>);

impl Links {
    /// Starts a balancer for each link, each on its own port.
    ///
    /// # Errors
    /// The kubeconfig contains a host name for the API server instead of an IP address and a port. The API server's certificate
    /// is then not valid for a balancer's loopback address.
    pub(super) async fn start(ports: Ports, kubeconfig: &Path) -> anyhow::Result<Self> {
        let url = config(kubeconfig).await?.cluster_url;
        let api_server: SocketAddr = url
            .authority()
            .and_then(|authority| authority.as_str().parse().ok())
            .context("expected an API server at an IP address")
            .with_context(|| format!("failed to use kubeconfig {}", kubeconfig.display()))?;
        let loopback = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut balancers = BTreeMap::new();
        for link in Link::all() {
            let to = match (link.from, link.to) {
                (_, Peer::ApiServer) => api_server,
                (Peer::ApiServer, Peer::Service(_)) => loopback(ports.admission()),
                (Peer::Service(_), Peer::Service(to)) => loopback(ports.grpc(to)),
            };
            let balancer = Balancer::start(loopback(0)).await?;
            balancer.set_endpoints(vec![to]);
            balancers.insert(link, balancer);
        }
        Ok(Self(balancers))
    }

    /// The loopback port of a link; `None` if connections are direct.
    pub(super) fn port(&self, from: impl Into<Peer>, to: impl Into<Peer>) -> Option<u16> {
        let balancer = self.0.get(&Link::new(from, to))?;
        Some(balancer.address().port())
    }
}

impl Services {
    /// Cuts a link until [`Services::heal`]: no data passes, and neither end sees an error.
    ///
    /// # Errors
    /// Connections are direct, because [`ServicesConfig::links`](super::ServicesConfig::links) is false.
    pub fn cut(&self, link: Link) -> anyhow::Result<()> {
        self.link(link).map(Balancer::cut)
    }

    /// Heals a cut link: the data that was held back arrives.
    ///
    /// # Errors
    /// As [`Services::cut`].
    pub fn heal(&self, link: Link) -> anyhow::Result<()> {
        self.link(link).map(Balancer::heal)
    }

    /// Freezes the existing connections of a link: they stay open, and never carry data again. New connections carry data.
    ///
    /// # Errors
    /// As [`Services::cut`].
    pub fn freeze(&self, link: Link) -> anyhow::Result<()> {
        self.link(link).map(Balancer::freeze)
    }

    /// The loopback port to which the client of a link connects.
    ///
    /// # Errors
    /// As [`Services::cut`].
    pub fn link_port(&self, link: Link) -> anyhow::Result<u16> {
        self.link(link).map(|balancer| balancer.address().port())
    }

    fn link(&self, link: Link) -> anyhow::Result<&Balancer> {
        let found = self.launch.links.0.get(&link);
        found.with_context(|| format!("there is no link {link}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_link_from_each_client_to_each_of_its_servers() {
        let links: Vec<_> = Link::all().map(|link| link.to_string()).collect();
        assert_eq!(
            links,
            [
                "from config-service to the API server",
                "from affinity-planner to config-service",
                "from affinity-planner to placeholder-manager",
                "from placeholder-manager to the API server",
                "from watcher to affinity-planner",
                "from watcher to the API server",
                "from admission-webhook to affinity-planner",
                "from admission-webhook to the API server",
                "from the API server to admission-webhook",
            ]
        );
    }
}
