//! The layer around every request to the API server. It counts and times requests by verb and resource, as RBAC names them. If
//! a request belongs to a trace, the layer opens a span. It counts watches, but does not time them.

use std::task::{Context, Poll};
use std::time::Instant;

use futures::future::BoxFuture;
use http::{Method, Request, Response, Uri};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tower::{Layer, Service};
use tracing::{Instrument as _, Span, field, info_span};

use crate::metrics_registry::{Metrics, Seconds};

/// The code of a request without an answer, as in client-go.
const NO_ANSWER: &str = "<error>";
/// The label value for requests without a resource, such as `/version`.
const NO_RESOURCE: &str = "none";

/// The layer, with its metrics.
#[derive(Clone, Debug)]
pub(super) struct Requests {
    requests: Family<AnswerLabels, Counter>,
    seconds: Seconds<RequestLabels>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    verb: &'static str,
    resource: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    #[prometheus(flatten)]
    request: RequestLabels,
    code: String,
}

/// A client's service with the layer around it.
#[derive(Clone, Debug)]
pub(super) struct Observed<S> {
    inner: S,
    requests: Requests,
}

impl Requests {
    pub(super) fn new(metrics: &Metrics) -> Self {
        metrics.shared(|metrics| Requests {
            requests: metrics.register(
                "kubernetes_requests",
                "Requests to the Kubernetes API server, by verb, resource and HTTP status",
                Family::default(),
            ),
            seconds: metrics.register(
                "kubernetes_request_seconds",
                "Seconds from a request to the Kubernetes API server to the beginning of its answer, except watches",
                Metrics::seconds(),
            ),
        })
    }

    fn ended(&self, request: RequestLabels, code: String, began: Instant) {
        if request.verb != "watch" {
            let seconds = self.seconds.get_or_create(&request);
            seconds.observe(began.elapsed().as_secs_f64());
        }
        let labels = AnswerLabels { request, code };
        self.requests.get_or_create(&labels).inc();
    }
}

impl<S> Layer<S> for Requests {
    type Service = Observed<S>;

    fn layer(&self, inner: S) -> Observed<S> {
        Observed {
            inner,
            requests: self.clone(),
        }
    }
}

impl<S, B, R> Service<Request<B>> for Observed<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: std::fmt::Display,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let labels = RequestLabels::of(request.method(), request.uri());
        let span = span(&labels);
        let requests = self.requests.clone();
        let began = Instant::now();
        let answer = span.in_scope(|| self.inner.call(request));
        let observed = async move {
            let answer = answer.await;
            let code = match &answer {
                Ok(response) => response.status().as_u16().to_string(),
                Err(_) => NO_ANSWER.to_owned(),
            };
            let span = Span::current();
            span.record("http.response.status_code", &code);
            // Other codes, such as 404 and 409, are part of normal work.
            if code.starts_with('5') || code == NO_ANSWER {
                span.record("otel.status_code", "ERROR");
            }
            requests.ended(labels, code, began);
            answer
        };
        Box::pin(observed.instrument(span))
    }
}

/// A span for a request inside another span. Lists and watches of the caches belong to no trace, so they get no span.
fn span(labels: &RequestLabels) -> Span {
    let RequestLabels { verb, resource } = labels;
    if Span::current().is_none() {
        return Span::none();
    }
    info_span!(
        "kubernetes request",
        otel.name = format!("{verb} {resource}"),
        otel.kind = "client",
        otel.status_code = field::Empty,
        verb,
        resource,
        http.response.status_code = field::Empty,
    )
}

impl RequestLabels {
    fn of(method: &Method, uri: &Uri) -> Self {
        let path = uri.path().split('/').filter(|part| !part.is_empty());
        let path: Vec<&str> = path.collect();
        // /api/VERSION or /apis/GROUP/VERSION, then perhaps /namespaces/NAMESPACE.
        let below_version = match path.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => &[],
        };
        let (resource, named) = match below_version {
            ["namespaces", _, resource] | [resource] => ((*resource).to_owned(), false),
            ["namespaces", _, resource, _] | [resource, _] => ((*resource).to_owned(), true),
            ["namespaces", _, resource, _, subresource, ..] | [resource, _, subresource, ..] => {
                (format!("{resource}/{subresource}"), true)
            }
            [] => (NO_RESOURCE.to_owned(), true),
        };
        let mut query = uri.query().unwrap_or_default().split('&');
        let verb = match (method, named) {
            (&Method::GET, _) if query.any(|pair| pair == "watch=true" || pair == "watch=1") => {
                "watch"
            }
            (&Method::GET, true) => "get",
            (&Method::GET, false) => "list",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, true) => "delete",
            (&Method::DELETE, false) => "deletecollection",
            (_, _) => "other",
        };
        RequestLabels { verb, resource }
    }
}

#[cfg(test)]
mod tests {
    use tower::ServiceExt as _;

    use super::*;
    use crate::Service as Example;

    #[track_caller]
    fn check(method: Method, uri: &str, verb: &str, resource: &str) {
        let labels = RequestLabels::of(&method, &uri.parse().unwrap());
        assert_eq!(
            (labels.verb, labels.resource.as_str()),
            (verb, resource),
            "{uri}"
        );
    }

    #[test]
    fn requests_are_labelled_in_the_terms_of_rbac() {
        let (get, post, delete) = (Method::GET, Method::POST, Method::DELETE);
        let sets = "/apis/apps/v1/namespaces/ci/statefulsets";
        check(get.clone(), "/api/v1/pods?limit=500", "list", "pods");
        check(
            get.clone(),
            "/api/v1/pods?&watch=true&timeoutSeconds=290",
            "watch",
            "pods",
        );
        check(get.clone(), "/api/v1/namespaces/ci/pods/one", "get", "pods");
        check(get.clone(), "/api/v1/namespaces", "list", "namespaces");
        check(get.clone(), "/api/v1/namespaces/ci", "get", "namespaces");
        check(get, "/version", "get", "none");
        check(post.clone(), sets, "create", "statefulsets");
        check(
            delete.clone(),
            &format!("{sets}/one"),
            "delete",
            "statefulsets",
        );
        check(delete, sets, "deletecollection", "statefulsets");
        check(
            Method::PUT,
            &format!("{sets}/one"),
            "update",
            "statefulsets",
        );
        check(
            Method::PATCH,
            &format!("{sets}/one/status"),
            "patch",
            "statefulsets/status",
        );
        check(
            post,
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "create",
            "selfsubjectaccessreviews",
        );
    }

    #[tokio::test]
    async fn requests_are_counted_by_their_answer_and_watches_are_not_timed() {
        let metrics = Metrics::new(Example::EXAMPLE);
        let server = tower::service_fn(|request: Request<()>| async move {
            match request.uri().path() {
                "/api/v1/nodes" => Err("no route"),
                _ => Ok(Response::builder().status(404).body(()).unwrap()),
            }
        });
        let client = Requests::new(&metrics).layer(server);
        let ask = |uri: &'static str| client.clone().oneshot(Request::get(uri).body(()).unwrap());
        ask("/api/v1/namespaces/ci/pods/one").await.unwrap();
        ask("/api/v1/pods?watch=true").await.unwrap();
        ask("/api/v1/nodes").await.unwrap_err();

        let encoded = metrics.encode().unwrap();
        let lines: Vec<_> = encoded
            .lines()
            .filter(|line| line.contains("_total{") || line.contains("_count{"))
            .collect();
        for line in [
            r#"coscheduler_kubernetes_requests_total{verb="get",resource="pods",code="404"} 1"#,
            r#"coscheduler_kubernetes_requests_total{verb="watch",resource="pods",code="404"} 1"#,
            r#"coscheduler_kubernetes_requests_total{verb="list",resource="nodes",code="<error>"} 1"#,
            r#"coscheduler_kubernetes_request_seconds_count{verb="get",resource="pods"} 1"#,
            r#"coscheduler_kubernetes_request_seconds_count{verb="list",resource="nodes"} 1"#,
        ] {
            assert!(lines.contains(&line), "{encoded}");
        }
        assert_eq!(lines.len(), 5, "{encoded}");
    }
}
