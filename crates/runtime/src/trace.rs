//! Passes trace context between processes, and from a run's admission to later work on the run. The wire format is W3C Trace
//! Context, the headers `traceparent` and `tracestate`. Without an exporter (see `telemetry`), spans have no context. Then
//! nothing is injected, and incoming context is ignored.

use std::collections::HashMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";

/// The context of `span` as a `traceparent`, so that later spans can join its trace. `None` if the span is not sampled.
pub fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    let sampled = context.span().span_context().is_sampled();
    sampled.then(|| fields(&context).remove(TRACEPARENT))?
}

/// Makes `span` part of the trace that `traceparent` names. Call this before the span is first entered. A malformed
/// `traceparent` is ignored.
pub fn join(span: &Span, traceparent: &str) {
    let fields = [(TRACEPARENT.to_owned(), traceparent.to_owned())];
    join_fields(span, &HashMap::from(fields));
}

/// Makes `span` part of the trace in the caller's `headers`.
pub fn join_caller(span: &Span, headers: &HeaderMap) {
    let field = |name: &str| {
        let value = headers.get(name)?.to_str().ok()?;
        Some((name.to_owned(), value.to_owned()))
    };
    let fields = [TRACEPARENT, TRACESTATE].into_iter().filter_map(field);
    join_fields(span, &fields.collect());
}

fn join_fields(span: &Span, fields: &HashMap<String, String>) {
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), fields);
    if context.span().span_context().is_valid() {
        // This fails only if spans are not exported.
        let _ = span.set_parent(context);
    }
}

/// Adds the context of `span` to the `headers` of a request.
pub(crate) fn inject(span: &Span, headers: &mut HeaderMap) {
    for (name, value) in fields(&span.context()) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
}

fn fields(context: &Context) -> HashMap<String, String> {
    let mut fields = HashMap::new();
    TraceContextPropagator::new().inject_context(context, &mut fields);
    fields
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use tracing::info_span;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn traced(sampler: Sampler, test: impl FnOnce()) {
        let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), test);
    }

    #[test]
    fn a_span_joins_the_trace_it_is_given_and_passes_it_on() {
        traced(Sampler::AlwaysOn, || {
            let span = info_span!("late");
            join(&span, GIVEN);
            let passed_on = traceparent(&span).unwrap();
            assert_eq!(passed_on[..36], GIVEN[..36], "the same trace");
            assert_ne!(passed_on[36..], GIVEN[36..], "another span");

            let mut headers = HeaderMap::new();
            inject(&span, &mut headers);
            assert_eq!(headers[TRACEPARENT], passed_on);
            let callee = info_span!("callee");
            join_caller(&callee, &headers);
            assert_eq!(traceparent(&callee).unwrap()[..36], GIVEN[..36]);
        });
    }

    #[test]
    fn what_is_malformed_or_not_recorded_joins_nothing() {
        traced(Sampler::AlwaysOn, || {
            for malformed in ["", "forged", "00-0-0-01", "\n"] {
                let span = info_span!("late");
                join(&span, malformed);
                assert_ne!(traceparent(&span).unwrap()[..36], GIVEN[..36]);
            }
        });
        traced(Sampler::AlwaysOff, || {
            assert_eq!(traceparent(&info_span!("unrecorded")), None);
        });
    }

    #[test]
    fn without_an_exporter_nothing_is_injected() {
        let span = info_span!("untraced");
        join(&span, GIVEN);
        let mut headers = HeaderMap::new();
        inject(&span, &mut headers);
        assert_eq!((traceparent(&span), headers.len()), (None, 0));
    }
}
