//! Logs and spans. Logs go to standard error, as JSON for collectors or as text for people. If the standard `OTEL_*` variables
//! name a collector, spans go to it by OTLP over gRPC.
//!
//! A problem with spans never stops a service. If the export cannot be set up, or the last spans cannot be exported at the end,
//! the service logs a warning. Other failures of the export are not logged.

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{info, warn};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::{LogFormat, ProcessArgs, Service};

/// The time limit for the export of the last spans when the process ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// The installed export of spans, if any.
#[derive(Debug)]
pub(crate) struct Telemetry(Option<SdkTracerProvider>);

/// The export that the `OTEL_*` variables ask for.
#[derive(Debug, PartialEq, Eq)]
enum Export {
    Off,
    /// Export of spans. The exporter itself reads the endpoint from the variables.
    Spans,
    /// The variables ask for an export that is not supported. The text is the reason.
    Unsupported(String),
}

/// Begins the log and the traces of the process. The caller must be in the tokio runtime that exports the traces.
///
/// # Errors
/// The filter does not parse, or the process has a subscriber already.
pub(crate) fn init(service: Service, args: &ProcessArgs) -> anyhow::Result<Telemetry> {
    let filter = EnvFilter::try_new(&args.log_level)?;
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match args.log_format {
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_span_list(false)
            .boxed(),
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            lines.with_ansi(colour).boxed()
        }
    };

    let variable = |name: &str| std::env::var(name).ok();
    let provider = match Export::of(variable) {
        Export::Off => Ok(None),
        Export::Spans => provider(service, variable)
            .map(Some)
            .map_err(|error| error.to_string()),
        Export::Unsupported(reason) => Err(reason),
    };
    // The flag for the level of the log does not apply to spans.
    let spans = provider.as_ref().ok().and_then(Option::as_ref);
    let spans = spans.map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(service.name))
            .with_filter(LevelFilter::INFO)
    });
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans)
        .try_init()?;
    match &provider {
        Err(reason) => warn!(reason, "spans are not exported"),
        Ok(Some(_)) => info!("spans are exported by OTLP"),
        Ok(None) => {}
    }
    Ok(Telemetry(provider.unwrap_or_default()))
}

impl Telemetry {
    /// Exports the last spans, within a bounded time. The tokio runtime must still exist.
    pub(crate) fn end(self) {
        let Some(provider) = self.0 else { return };
        if let Err(error) = provider.shutdown_with_timeout(FLUSH_TIMEOUT) {
            warn!(%error, "failed to export the last spans");
        }
    }
}

impl Export {
    /// Reads OpenTelemetry's variables. There are three differences from OpenTelemetry's specification. If neither an endpoint
    /// nor an exporter is set, there is no export. The only protocol is `grpc`. The exporter is `otlp` or `none`.
    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        if given("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Export::Off;
        }
        let endpoint = given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            .or_else(|| given("OTEL_EXPORTER_OTLP_ENDPOINT"));
        match given("OTEL_TRACES_EXPORTER").as_deref() {
            Some("none") => return Export::Off,
            None if endpoint.is_none() => return Export::Off,
            Some("otlp") | None => {}
            Some(other) => {
                let reason = format!("OTEL_TRACES_EXPORTER is {other:?}; allowed: otlp, none");
                return Export::Unsupported(reason);
            }
        }
        let mut names = [
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
            "OTEL_EXPORTER_OTLP_PROTOCOL",
        ]
        .into_iter();
        match names.find_map(|name| Some((name, given(name)?))) {
            Some((name, other)) if other != "grpc" => {
                Export::Unsupported(format!("{name} is {other:?}; allowed: grpc"))
            }
            Some(_) | None => Export::Spans,
        }
    }
}

fn provider(
    service: Service,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<SdkTracerProvider, opentelemetry_otlp::ExporterBuildError> {
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_tonic()
        .build()?;
    let version = KeyValue::new("service.version", service.version);
    let mut resource = Resource::builder().with_attribute(version);
    let named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
    if !named {
        resource = resource.with_service_name(service.name);
    }
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource.build())
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(variables: &[(&str, &str)], expected: Export) {
        let export = Export::of(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        });
        assert_eq!(export, expected, "{variables:?}");
    }

    #[test]
    fn spans_are_exported_only_where_the_standard_variables_ask_for_it() {
        const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
        check(&[], Export::Off);
        check(&[("OTEL_SERVICE_NAME", "planner")], Export::Off);
        check(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")], Export::Off);
        check(&[ENDPOINT], Export::Spans);
        check(
            &[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://c:4317")],
            Export::Spans,
        );
        check(&[("OTEL_TRACES_EXPORTER", "otlp")], Export::Spans);
        check(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")], Export::Off);
        check(&[ENDPOINT, ("OTEL_SDK_DISABLED", "true")], Export::Off);
        check(&[ENDPOINT, ("OTEL_SDK_DISABLED", "false")], Export::Spans);
        check(
            &[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
            Export::Spans,
        );
        check(
            &[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")],
            Export::Unsupported(
                "OTEL_EXPORTER_OTLP_PROTOCOL is \"http/protobuf\"; allowed: grpc".to_owned(),
            ),
        );
        check(
            &[
                ENDPOINT,
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
            ],
            Export::Unsupported(
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is \"http/json\"; allowed: grpc".to_owned(),
            ),
        );
        check(
            &[("OTEL_TRACES_EXPORTER", "zipkin")],
            Export::Unsupported(
                "OTEL_TRACES_EXPORTER is \"zipkin\"; allowed: otlp, none".to_owned(),
            ),
        );
    }
}
