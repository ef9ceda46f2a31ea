//! A collector of traces: receives the spans that the services export by OTLP, and stores them for tests.

use std::collections::HashMap;
use std::net::TcpListener;
use std::time::Duration;

use anyhow::bail;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// How long spans may take to arrive on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The fields of a span that tests read.
#[derive(Clone, Debug)]
pub struct Span {
    /// `service.name` of the process that exported the span.
    pub service: String,
    /// The name of the span.
    pub name: String,
    /// The id of the span's trace, in hex digits.
    pub trace: String,
    /// The id of the span, in hex digits.
    pub id: String,
    /// The id of the parent span, in hex digits; empty for a root span.
    pub parent: String,
}

/// The collector; clones share the spans.
#[derive(Clone, Debug)]
pub struct Collector {
    spans: watch::Sender<Vec<Span>>,
    endpoint: String,
}

impl Collector {
    /// Returns a collector, and the listener on its free loopback port. The port accepts connections already, and [`Self::serve`]
    /// answers them.
    ///
    /// # Errors
    ///
    /// No port is free.
    pub fn bind() -> anyhow::Result<(Self, TcpListener)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let collector = Self {
            spans: watch::Sender::new(Vec::new()),
            endpoint: format!("http://{}", listener.local_addr()?),
        };
        Ok((collector, listener))
    }

    /// Receives spans as long as the test binary runs.
    ///
    /// # Errors
    ///
    /// The listener cannot be used.
    pub fn serve(&self, listener: TcpListener) -> anyhow::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let server = Server::builder()
            .add_service(TraceServiceServer::new(self.clone()))
            .serve_with_incoming(TcpIncoming::from(listener));
        tokio::spawn(server);
        Ok(())
    }

    /// The environment variables that make a service export its spans to this collector every 100 ms.
    pub fn environment(&self) -> Vec<(String, String)> {
        [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", self.endpoint.as_str()),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into()
    }

    /// Waits until `condition` holds for the spans of a trace. Returns these spans by their ids.
    ///
    /// # Errors
    ///
    /// `condition` did not hold in time. The error lists the received spans of the trace.
    pub async fn trace(
        &self,
        trace: &str,
        what: &str,
        condition: impl Fn(&[Span]) -> bool,
    ) -> anyhow::Result<HashMap<String, Span>> {
        let of_trace = |spans: &Vec<Span>| -> Vec<Span> {
            let spans = spans.iter().filter(|span| span.trace == trace);
            spans.cloned().collect()
        };
        let mut received = self.spans.subscribe();
        let arrived = received.wait_for(|spans| condition(&of_trace(spans)));
        if tokio::time::timeout(LIMIT, arrived).await.is_err() {
            bail!(
                "after {LIMIT:?} trace {trace} has no {what}: {:#?}",
                of_trace(&self.spans.borrow())
            );
        }
        let spans = of_trace(&self.spans.borrow());
        let by_id = spans.into_iter().map(|span| (span.id.clone(), span));
        Ok(by_id.collect())
    }

    /// The number of received spans.
    pub fn received(&self) -> usize {
        self.spans.borrow().len()
    }
}

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let mut spans = Vec::new();
        for of_process in request.into_inner().resource_spans {
            let attributes = of_process.resource.unwrap_or_default().attributes;
            let service = attributes.into_iter().find_map(|attribute| {
                let value = attribute.value?.value?;
                match value {
                    Value::StringValue(name) if attribute.key == "service.name" => Some(name),
                    _ => None,
                }
            });
            let service = service.unwrap_or_default();
            let of_scopes = of_process.scope_spans.into_iter();
            spans.extend(of_scopes.flat_map(|scope| scope.spans).map(|span| Span {
                service: service.clone(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
            }));
        }
        self.spans.send_modify(|all| all.extend(spans));
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
