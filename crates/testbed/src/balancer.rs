//! A balancer of TCP connections on loopback. It plays the role of a Kubernetes Service, so that replicas can be tested without a
//! cluster network. It works like kube-proxy: each new connection goes to one of the endpoints and stays there. If there is no
//! endpoint, or the endpoint refuses the connection, the client sees a reset. The code that created the balancer sets the
//! endpoints.
//!
//! The code that created the balancer can also cut it. Then the balancer behaves like a network that loses every packet: neither
//! end sees an error, and the data arrives when the cut has ended. The code can also freeze the connections that exist: they
//! never carry data again, but new connections do.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::warn;

/// The pause after a connection could not be accepted, for example because there was no free file descriptor.
const PAUSE: Duration = Duration::from_millis(50);

/// The number of bytes that are read at a time.
const LOAD: usize = 16 * 1024;

/// Accepts connections until it is dropped. The drop also ends its connections.
#[derive(Debug)]
pub struct Balancer {
    address: SocketAddr,
    endpoints: Arc<Mutex<Endpoints>>,
    passage: watch::Sender<Passage>,
    /// One task. It is in a `JoinSet`, because dropping the set ends the task.
    _accepting: JoinSet<()>,
}

/// The connections that may carry data.
#[derive(Clone, Copy, Debug, Default)]
struct Passage {
    /// True if no connection may carry data.
    cut: bool,
    /// Connections that were accepted before this time must not carry data.
    frozen: Option<Instant>,
}

#[derive(Debug, Default)]
struct Endpoints {
    addresses: Vec<SocketAddr>,
    turn: usize,
}

impl Balancer {
    /// Starts to accept connections at `address`, with no endpoint yet. Port 0 means any free port.
    ///
    /// # Errors
    /// The address is taken.
    pub async fn start(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("failed to bind a balancer to {address}"))?;
        let address = listener
            .local_addr()
            .context("failed to read the address of a balancer")?;
        let endpoints = Arc::<Mutex<Endpoints>>::default();
        let passage = watch::Sender::default();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(
            listener,
            Arc::clone(&endpoints),
            passage.subscribe(),
        ));
        Ok(Self {
            address,
            endpoints,
            passage,
            _accepting: accepting,
        })
    }

    /// The address at which it accepts connections.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends new connections to these endpoints, in turn. Existing connections stay at their endpoints.
    pub fn set_endpoints(&self, addresses: Vec<SocketAddr>) {
        lock(&self.endpoints).addresses = addresses;
    }

    /// Holds back all data, and also the closing of connections. Neither side sees an error. New connections are accepted, but
    /// their data is held back too.
    pub fn cut(&self) {
        self.passage.send_modify(|passage| passage.cut = true);
    }

    /// Ends [`Balancer::cut`]: the data that was held back arrives, on connections that are still open.
    pub fn heal(&self) {
        self.passage.send_modify(|passage| passage.cut = false);
    }

    /// Holds back all data of the existing connections, and also their closing, for ever. Neither side sees an error. New
    /// connections carry data.
    pub fn freeze(&self) {
        let now = Some(Instant::now());
        self.passage.send_modify(|passage| passage.frozen = now);
    }
}

impl Passage {
    fn is_open_since(self, accepted: Instant) -> bool {
        !self.cut && self.frozen.is_none_or(|frozen| frozen < accepted)
    }
}

impl Endpoints {
    fn next(&mut self) -> Option<SocketAddr> {
        let chosen = self.turn.checked_rem(self.addresses.len())?;
        self.turn = self.turn.wrapping_add(1);
        self.addresses.get(chosen).copied()
    }
}

async fn accept(
    listener: TcpListener,
    endpoints: Arc<Mutex<Endpoints>>,
    passage: watch::Receiver<Passage>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    let endpoint = lock(&endpoints).next();
                    connections.spawn(carry(client, endpoint, passage.clone()));
                }
                Err(error) => {
                    warn!(%error, "failed to accept a connection; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Copies data in both directions between a client and an endpoint, until both directions have ended or one has failed.
async fn carry(
    mut client: TcpStream,
    endpoint: Option<SocketAddr>,
    mut passage: watch::Receiver<Passage>,
) {
    let accepted = Instant::now();
    opened(&mut passage, accepted).await;
    let connected = match endpoint {
        Some(endpoint) => TcpStream::connect(endpoint).await.ok(),
        None => None,
    };
    let Some(mut server) = connected else {
        // The client sees a reset, as with a Service without endpoints.
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    // An error in one direction stops both directions, so client and endpoint see that the connection closes.
    let _ = tokio::try_join!(
        forward(from_client, to_server, passage.clone(), accepted),
        forward(from_server, to_client, passage, accepted),
    );
}

/// Copies data in one direction until its end.
async fn forward(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut passage: watch::Receiver<Passage>,
    accepted: Instant,
) -> std::io::Result<()> {
    let mut load = vec![0; LOAD];
    loop {
        let read = from.read(&mut load).await;
        opened(&mut passage, accepted).await;
        match load.get(..read?) {
            None | Some([]) => return to.shutdown().await,
            Some(read) => to.write_all(read).await?,
        }
    }
}

async fn opened(passage: &mut watch::Receiver<Passage>, accepted: Instant) {
    // An error means that the balancer was dropped, and this task ends with it.
    let open = passage.wait_for(|passage| passage.is_open_since(accepted));
    let _ = open.await;
}

fn lock(endpoints: &Mutex<Endpoints>) -> std::sync::MutexGuard<'_, Endpoints> {
    // A panic elsewhere cannot leave a list half-written.
    endpoints.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    use super::*;

    /// A server that first sends its own port, and then sends back all data that it receives. It runs until `tasks` is dropped.
    async fn echo(tasks: &mut JoinSet<()>) -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                connections.spawn(async move {
                    stream.write_u16(address.port()).await.unwrap();
                    let (mut read, mut write) = stream.split();
                    let _ = tokio::io::copy(&mut read, &mut write).await;
                });
            }
        });
        address
    }

    async fn balancer(endpoints: &[SocketAddr]) -> Balancer {
        let balancer = Balancer::start((Ipv4Addr::LOCALHOST, 0).into())
            .await
            .unwrap();
        balancer.set_endpoints(endpoints.to_vec());
        balancer
    }

    /// A connection through the balancer, and the port that the server sent.
    async fn connect(balancer: &Balancer) -> std::io::Result<(TcpStream, u16)> {
        let mut stream = TcpStream::connect(balancer.address()).await?;
        let greeted = stream.read_u16().await?;
        Ok((stream, greeted))
    }

    /// True once the other end has closed or reset the connection.
    async fn has_ended(stream: &mut TcpStream) -> bool {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut [0])).await;
        !matches!(read.unwrap(), Ok(1..))
    }

    /// Opens `count` connections, and returns how many of them each port answered.
    async fn spread(balancer: &Balancer, count: usize) -> BTreeMap<u16, usize> {
        let mut answered = BTreeMap::new();
        for _ in 0..count {
            let (_, port) = connect(balancer).await.unwrap();
            *answered.entry(port).or_default() += 1;
        }
        answered
    }

    #[tokio::test]
    async fn new_connections_are_spread_over_the_endpoints() {
        let mut servers = JoinSet::new();
        let (one, two) = (echo(&mut servers).await, echo(&mut servers).await);
        let balancer = balancer(&[one, two]).await;
        let even = BTreeMap::from([(one.port(), 3), (two.port(), 3)]);
        assert_eq!(spread(&balancer, 6).await, even);
        balancer.set_endpoints(vec![two]);
        assert_eq!(
            spread(&balancer, 2).await,
            BTreeMap::from([(two.port(), 2)])
        );
    }

    #[tokio::test]
    async fn a_connection_stays_where_it_is_and_carries_everything_both_ways() {
        let mut servers = JoinSet::new();
        let (one, two) = (echo(&mut servers).await, echo(&mut servers).await);
        let balancer = balancer(&[one]).await;
        let (mut stream, _) = connect(&balancer).await.unwrap();
        balancer.set_endpoints(vec![two]);
        let sent: Vec<u8> = (0..200_000_u32).map(|byte| byte as u8).collect();
        let mut answer = vec![0; sent.len()];
        let (mut read, mut write) = stream.split();
        let (written, answered) =
            tokio::join!(write.write_all(&sent), read.read_exact(&mut answer));
        written.unwrap();
        answered.unwrap();
        assert_eq!(answer, sent);
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_server() {
        let mut servers = JoinSet::new();
        let one = echo(&mut servers).await;
        let balancer = balancer(&[one]).await;
        let (mut stream, _) = connect(&balancer).await.unwrap();
        servers.shutdown().await;
        assert!(has_ended(&mut stream).await);
    }

    #[tokio::test]
    async fn a_connection_that_finds_nobody_is_refused() {
        let nobody = balancer(&[]).await;
        let error = connect(&nobody).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

        let mut servers = JoinSet::new();
        let gone = echo(&mut servers).await;
        servers.shutdown().await;
        let error = connect(&balancer(&[gone]).await).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn what_is_sent_into_a_cut_arrives_once_it_is_healed() {
        let mut servers = JoinSet::new();
        let one = echo(&mut servers).await;
        let balancer = balancer(&[one]).await;
        let (mut before, _) = connect(&balancer).await.unwrap();
        balancer.cut();
        let mut during = TcpStream::connect(balancer.address()).await.unwrap();
        before.write_u8(7).await.unwrap();
        for silent in [&mut before, &mut during] {
            let heard = tokio::time::timeout(Duration::from_millis(200), silent.read_u8()).await;
            heard.unwrap_err();
        }
        balancer.heal();
        assert_eq!(before.read_u8().await.unwrap(), 7);
        assert_eq!(during.read_u16().await.unwrap(), one.port());
    }

    #[tokio::test]
    async fn nobody_hears_of_an_end_beyond_a_cut_before_it_is_healed() {
        let mut servers = JoinSet::new();
        let one = echo(&mut servers).await;
        let balancer = balancer(&[one]).await;
        let (mut stream, _) = connect(&balancer).await.unwrap();
        balancer.cut();
        servers.shutdown().await;
        let heard = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut [0])).await;
        heard.unwrap_err();
        balancer.heal();
        assert!(has_ended(&mut stream).await);
    }

    #[tokio::test]
    async fn frozen_connections_stay_open_and_silent_and_new_ones_are_served() {
        let mut servers = JoinSet::new();
        let one = echo(&mut servers).await;
        let balancer = balancer(&[one]).await;
        let (mut frozen, _) = connect(&balancer).await.unwrap();
        balancer.freeze();
        frozen.write_u8(7).await.unwrap();
        let (mut new, _) = connect(&balancer).await.unwrap();
        new.write_u8(8).await.unwrap();
        assert_eq!(new.read_u8().await.unwrap(), 8);
        servers.shutdown().await;
        assert!(has_ended(&mut new).await);
        let heard = tokio::time::timeout(Duration::from_millis(200), frozen.read(&mut [0])).await;
        heard.unwrap_err();
    }

    #[tokio::test]
    async fn dropping_it_ends_its_connections_and_frees_its_address() {
        let mut servers = JoinSet::new();
        let one = echo(&mut servers).await;
        let balancer = balancer(&[one]).await;
        let address = balancer.address();
        let (mut stream, _) = connect(&balancer).await.unwrap();
        drop(balancer);
        assert!(has_ended(&mut stream).await);
        Balancer::start(address).await.unwrap();
    }
}
