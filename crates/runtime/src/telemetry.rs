//! What leaves the process besides its answers: logs to standard error, as JSON for collectors or as text for people, and,
//! where the standard `OTEL_*` variables ask for it, spans by OTLP over gRPC. One subscriber is installed for the life of
//! the process; further layers belong here.
//!
//! Telemetry never stops a service: what cannot be exported is left out, and a warning says so.

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{info, warn};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::{LogFormat, ProcessArgs, Service};

/// How long the last spans may take to leave when the process ends.
const FLUSH_PATIENCE: Duration = Duration::from_secs(3);

/// What was installed and must be ended.
#[derive(Debug)]
pub(crate) struct Telemetry {
    spans: Option<SdkTracerProvider>,
}

/// What the `OTEL_*` variables ask for.
#[derive(Debug, PartialEq, Eq)]
enum Export {
    /// Nothing, as nothing was said or nothing is wanted.
    Off,
    /// Spans, to the endpoint that the exporter reads from the variables itself.
    Spans,
    /// Something that cannot be done, for this reason.
    Impossible(String),
}

/// Installs the process-wide subscriber. Called inside a tokio runtime, which the export of spans runs on.
///
/// # Errors
/// The filter does not parse, or a subscriber is installed already.
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
    let (provider, trouble) = match Export::of(variable) {
        Export::Off => (None, None),
        Export::Spans => match provider(service, variable) {
            Ok(provider) => (Some(provider), None),
            Err(error) => (None, Some(error.to_string())),
        },
        Export::Impossible(reason) => (None, Some(reason)),
    };
    // What is logged does not depend on what is traced, nor the other way round.
    let spans = provider.as_ref().map(|provider| {
        tracing_opentelemetry::layer()
            .with_tracer(provider.tracer(service.name))
            .with_filter(LevelFilter::INFO)
    });
    tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .with(spans)
        .try_init()?;
    if let Some(reason) = trouble {
        warn!(reason, "spans are not exported");
    } else if provider.is_some() {
        info!("spans are exported by OTLP");
    }
    Ok(Telemetry { spans: provider })
}

impl Telemetry {
    /// Sends what is left, within a bounded time. The runtime must still be there.
    pub(crate) fn end(self) {
        let Some(provider) = self.spans else { return };
        if let Err(error) = provider.shutdown_with_timeout(FLUSH_PATIENCE) {
            warn!(%error, "failed to export the last spans");
        }
    }
}

impl Export {
    /// As OpenTelemetry defines the variables, but off unless an exporter or an endpoint is named.
    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        if given("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Export::Off;
        }
        let endpoint = given("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
            .or_else(|| given("OTEL_EXPORTER_OTLP_ENDPOINT"));
        match given("OTEL_TRACES_EXPORTER").as_deref() {
            Some("none") => return Export::Off,
            Some("otlp") => {}
            Some(other) => {
                return Export::Impossible(format!(
                    "OTEL_TRACES_EXPORTER is {other:?}; allowed: otlp, none"
                ));
            }
            None if endpoint.is_none() => return Export::Off,
            None => {}
        }
        let protocol = given("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
            .or_else(|| given("OTEL_EXPORTER_OTLP_PROTOCOL"));
        match protocol.as_deref() {
            None | Some("grpc") => Export::Spans,
            Some(other) => Export::Impossible(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is {other:?}; allowed: grpc"
            )),
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
    let mut resource = Resource::builder().with_attribute(opentelemetry::KeyValue::new(
        "service.version",
        service.version,
    ));
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
            Export::Impossible(
                "OTEL_EXPORTER_OTLP_PROTOCOL is \"http/protobuf\"; allowed: grpc".to_owned(),
            ),
        );
        check(
            &[("OTEL_TRACES_EXPORTER", "zipkin")],
            Export::Impossible(
                "OTEL_TRACES_EXPORTER is \"zipkin\"; allowed: otlp, none".to_owned(),
            ),
        );
    }
}
