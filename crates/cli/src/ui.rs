//! `ui`: a page with the nodes, the PipelineRuns on them, and the runs that wait. It reads nodes, PipelineRuns and pods with
//! the user's own rights. Only programs on the same machine can reach the page.

mod lanes;
mod page;

use std::convert::Infallible;
use std::future::IntoFuture as _;
use std::io::{Write as _, stdout};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use coscheduler_kubernetes::pipeline_run::PipelineRun;
use coscheduler_kubernetes::pods::NOT_ENDED;
use futures::stream::{self, BoxStream, SelectAll, Stream, StreamExt as _, select_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::args::UiArgs;
use crate::cluster::{Cluster, api, failed, unless_forbidden};
use crate::failure::Failure;
use crate::output;
use crate::run_status::keep_conditions;
use crate::watched::{Changes, is_complete, kept, lasting};

/// The least time between two versions of the page.
const PERIOD: Duration = Duration::from_millis(250);

/// How long the error of a watch is shown: longer than the time until the watch begins again.
const SHOWN: Duration = Duration::from_secs(60);

/// The page loads nothing from other servers. A block's width and colour are in its `style`.
const POLICY: &str = "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; \
                      style-src-attr 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'";

/// The names by which a browser on this machine reaches the page.
const HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// The newest version of the page's content.
type Content = watch::Receiver<String>;

/// Watches the cluster and serves the page until the program is ended.
pub(crate) fn run(args: &UiArgs) -> Result<(), Failure> {
    crate::runtime()?.block_on(serve(args))
}

async fn serve(args: &UiArgs) -> Result<(), Failure> {
    let Cluster { client, namespace } = Cluster::new(&args.cluster).await?;
    let namespace = (!args.all_namespaces).then_some(namespace.as_str());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port)).await;
    let listener = listener.with_context(|| {
        let port = args.port;
        format!("failed to listen on port {port}; --port chooses another one")
    })?;
    let address = listener.local_addr().context("failed to read the port")?;
    let mut watched = Watched::new(&client, namespace).await?;
    while !watched.is_complete() {
        watched.change().await.map_err(|error| match error {
            watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error) => {
                failed("watch PipelineRuns, pods and nodes", error)
            }
            error => anyhow!(error).context("a watch failed").into(),
        })?;
    }
    let (writer, content) = watch::channel(watched.content());
    writeln!(stdout(), "http://{address} shows the page until Ctrl-C")
        .context("failed to write to standard output")?;
    let serve = axum::serve(listener, routes(content));
    tokio::select! {
        served = serve.into_future() => Ok(served.context("failed to serve the page")?),
        () = watched.follow(&writer) => Ok(()),
    }
}

/// A watch failed. It begins again by itself.
struct Broken {
    of_nodes: bool,
    error: watcher::Error,
}

fn labelled(changes: Changes, of_nodes: bool) -> BoxStream<'static, Result<(), Broken>> {
    let labelled = move |error| Broken { of_nodes, error };
    changes.map(move |it| it.map_err(labelled)).boxed()
}

/// The objects that the page shows.
struct Watched {
    /// `None` for all namespaces.
    namespace: Option<String>,
    /// `None` if the user is not allowed to read nodes.
    nodes: Option<Store<Node>>,
    runs: Store<PipelineRun>,
    pods: Store<Pod>,
    changes: SelectAll<BoxStream<'static, Result<(), Broken>>>,
    /// The last error of a watch, and the time at which the page stops showing it. A time is needed, because a watch that works
    /// again may report nothing for long.
    problem: Option<(String, Instant)>,
}

impl Watched {
    /// Watches the PipelineRuns and pods of a namespace, or of all namespaces, and the nodes.
    async fn new(client: &Client, namespace: Option<&str>) -> Result<Self, Failure> {
        let api_of_nodes = Api::<Node>::all(client.clone());
        let one = ListParams::default().limit(1);
        let listed = api_of_nodes.list_metadata(&one).await;
        let mut warnings = Vec::new();
        let may_read_nodes = unless_forbidden("nodes", listed, &mut warnings)?.is_some();
        output::warn(&warnings);
        let (runs, of_runs) = kept(
            api(client, namespace),
            watcher::Config::default(),
            keep_conditions,
        );
        let not_ended = watcher::Config::default().fields(NOT_ENDED);
        let (pods, of_pods) = kept(api(client, namespace), not_ended, |pod: &mut Pod| {
            pod.metadata.managed_fields = None;
        });
        let mut changes = select_all([of_runs, of_pods].map(|it| labelled(it, false)));
        let nodes = may_read_nodes.then(|| {
            let (nodes, of_nodes) = kept(api_of_nodes, watcher::Config::default(), |node| {
                node.metadata.managed_fields = None;
                node.status.get_or_insert_default().images = None;
            });
            changes.push(labelled(of_nodes, true));
            nodes
        });
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            nodes,
            runs,
            pods,
            changes,
            problem: None,
        })
    }

    fn is_complete(&self) -> bool {
        let nodes = self.nodes.as_ref();
        nodes.is_none_or(is_complete) && is_complete(&self.runs) && is_complete(&self.pods)
    }

    /// Waits for the next change of an object, or until a watch fails.
    async fn change(&mut self) -> Result<(), watcher::Error> {
        match self.changes.next().await {
            Some(Err(Broken { of_nodes, error })) => match lasting(error) {
                Ok(_) if of_nodes => {
                    self.nodes = None;
                    Ok(())
                }
                Ok(error) => Err(watcher::Error::WatchStartFailed(error)),
                Err(error) => Err(error),
            },
            Some(Ok(())) => Ok(()),
            // The watches never end.
            None => std::future::pending().await,
        }
    }

    /// Writes the content of the page again whenever it changes.
    async fn follow(&mut self, content: &watch::Sender<String>) {
        loop {
            self.note_change().await;
            let pause = sleep(PERIOD);
            tokio::pin!(pause);
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    () = self.note_change() => {}
                }
            }
            let new = self.content();
            content.send_if_modified(|old| {
                let is_new = *old != new;
                *old = new;
                is_new
            });
        }
    }

    /// Waits until an object changes, a watch fails, or the page stops showing the last error.
    async fn note_change(&mut self) {
        let end = self.problem.as_ref().map(|(_, end)| *end);
        let ends = async {
            match end {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.change() => {
                if let Err(error) = changed {
                    let now = Timestamp::now().strftime("%T");
                    let problem = format!("A watch failed at {now} UTC and begins again: {error}");
                    self.problem = Some((problem, Instant::now() + SHOWN));
                }
            }
            () = ends => self.problem = None,
        }
    }

    fn content(&self) -> String {
        let nodes = self.nodes.as_ref().map(Store::state);
        let (runs, pods) = (self.runs.state(), self.pods.state());
        let facts = lanes::of(nodes.as_deref(), &runs, &pods);
        let problem = self.problem.as_ref().map(|(problem, _)| problem.as_str());
        page::content(&facts, self.namespace.as_deref(), problem)
    }
}

fn routes(content: Content) -> Router {
    let script = (
        [(CONTENT_TYPE, "text/javascript")],
        include_str!("ui/page.js"),
    );
    let style = ([(CONTENT_TYPE, "text/css")], include_str!("ui/page.css"));
    Router::new()
        .route("/", get(whole))
        .route("/changes", get(changes))
        .route("/page.js", get(async move || script))
        .route("/page.css", get(async move || style))
        .layer(middleware::from_fn(guard))
        .with_state(content)
}

async fn whole(State(content): State<Content>) -> Html<String> {
    Html(page::whole(&content.borrow()))
}

/// The content now, and each later version.
async fn changes(
    State(mut content): State<Content>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    content.mark_changed();
    let versions = stream::unfold(content, async |mut content| {
        content.changed().await.ok()?;
        let event = Event::default().data(content.borrow_and_update().as_str());
        Some((Ok(event), content))
    });
    Sse::new(versions).keep_alive(KeepAlive::default())
}

/// Refuses requests whose header `Host` names another host. Otherwise, a page of another server could read this page, if the
/// DNS name of that server resolves to this machine (DNS rebinding).
async fn guard(request: Request, next: Next) -> Response {
    if !is_for_this_machine(request.headers()) {
        let hosts = HOSTS.join(", ");
        let refusal = format!("header Host must be one of {hosts}, with or without a port\n");
        return (StatusCode::FORBIDDEN, refusal).into_response();
    }
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn is_for_this_machine(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    host.is_some_and(|host| HOSTS.contains(&host.host()))
}
