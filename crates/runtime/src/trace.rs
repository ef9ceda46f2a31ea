//! Trace context across processes, and across the time between a run's admission and its reports. The wire format is
//! W3C Trace Context, the header `traceparent`. Without an exporter (see `telemetry`), spans have no context: nothing is
//! injected, and incoming context is ignored.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator as _};
use opentelemetry::trace::TraceContextExt as _;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

const TRACEPARENT: &str = "traceparent";

/// The context of `span` as a `traceparent`, for others to join; `None` if the span is not recorded.
pub fn traceparent(span: &Span) -> Option<String> {
    if !span.context().span().span_context().is_sampled() {
        return None;
    }
    let mut headers = HeaderMap::new();
    inject(span, &mut headers);
    let value = headers.get(TRACEPARENT)?.to_str().ok()?;
    Some(value.to_owned())
}

/// Makes `span` part of the trace that `traceparent` names, before it is first entered. A malformed one is ignored.
pub fn join(span: &Span, traceparent: &str) {
    if let Ok(value) = HeaderValue::from_str(traceparent) {
        join_caller(
            span,
            &HeaderMap::from_iter([(HeaderName::from_static(TRACEPARENT), value)]),
        );
    }
}

/// Makes `span` part of the trace in the caller's `headers`.
pub fn join_caller(span: &Span, headers: &HeaderMap) {
    let context =
        TraceContextPropagator::new().extract_with_context(&Context::new(), &Received(headers));
    if context.span().span_context().is_valid() {
        // This fails only where spans are not exported.
        let _ = span.set_parent(context);
    }
}

/// Adds the context of `span` to the `headers` of a request.
pub(crate) fn inject(span: &Span, headers: &mut HeaderMap) {
    TraceContextPropagator::new().inject_context(&span.context(), &mut Headers(headers));
}

struct Headers<'a>(&'a mut HeaderMap);

impl Injector for Headers<'_> {
    fn set(&mut self, key: &str, value: String) {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(key), HeaderValue::try_from(value)) {
            self.0.insert(name, value);
        }
    }
}

struct Received<'a>(&'a HeaderMap);

impl Extractor for Received<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
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
