//! Logs and traces: a `tracing` subscriber, with OTLP export when an endpoint is configured.
//! Called once by the binary. Work that follows from a request continues its trace through the W3C
//! `traceparent` that records carry, so one trace leads from a request to the release it caused.

use std::io::IsTerminal;
use std::time::Duration;

use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState, TracerProvider};
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde::{Deserialize, Serialize};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use crate::error::StartError;
use crate::tls;

/// Logs and traces.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetrySection {
    /// Filter, e.g. `info,reef_engine=debug`.
    pub log: String,
    /// `text` or `json`.
    pub log_format: LogFormat,
    /// OTLP/HTTP endpoint for traces, e.g. `http://127.0.0.1:4318/v1/traces`; none = no export.
    pub otlp_endpoint: Option<String>,
}

/// Form of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
}

impl Default for TelemetrySection {
    fn default() -> Self {
        Self { log: "info".to_owned(), log_format: LogFormat::Text, otlp_endpoint: None }
    }
}

/// Time for one export.
const EXPORT_MAX: Duration = Duration::from_secs(10);

/// Keeps the exporter alive; `shutdown` sends what is buffered.
#[derive(Debug, Default)]
pub struct Telemetry {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Installs the subscriber of the process. A second call in one process keeps the first.
    pub fn install(section: &TelemetrySection) -> Result<Self, StartError> {
        let filter = EnvFilter::try_new(&section.log).map_err(|e| {
            StartError::Config(format!("telemetry.log '{}' is not a log filter: {e}; try 'info'", section.log))
        })?;
        let lines = match section.log_format {
            LogFormat::Text => tracing_subscriber::fmt::layer()
                .with_ansi(std::io::stderr().is_terminal())
                .with_writer(std::io::stderr)
                .boxed(),
            LogFormat::Json => tracing_subscriber::fmt::layer().json().with_writer(std::io::stderr).boxed(),
        };
        let provider = section.otlp_endpoint.as_deref().map(exporter).transpose()?;
        // Spans reach the exporter whatever the log filter hides from the lines.
        let spans = provider.as_ref().map(|provider| {
            tracing_opentelemetry::layer()
                .with_tracer(provider.tracer("reef"))
                .with_filter(EnvFilter::new("warn,reef=debug,reef_engine=debug,reef_sandbox=debug"))
        });
        let installed = tracing_subscriber::registry().with(spans).with(lines.with_filter(filter)).try_init();
        if installed.is_err() {
            return Ok(Self::default());
        }
        Ok(Self { provider })
    }

    /// Sends what is buffered.
    pub fn shutdown(&self) {
        if let Some(provider) = &self.provider
            && let Err(error) = provider.shutdown()
        {
            tracing::warn!(%error, "telemetry.shutdown");
        }
    }
}

fn exporter(endpoint: &str) -> Result<SdkTracerProvider, StartError> {
    let refuse = |reason: String| {
        StartError::Config(format!("telemetry.otlp_endpoint '{endpoint}' cannot be used: {reason}; check it"))
    };
    // A blocking client has a runtime of its own, which must not begin inside another.
    let client = std::thread::spawn(|| tls::blocking_http_client().timeout(EXPORT_MAX).build())
        .join()
        .map_err(|_| refuse("its HTTP client died".to_owned()))?
        .map_err(|error| refuse(error.to_string()))?;
    let exporter = opentelemetry_otlp::SpanExporter::builder()
        .with_http()
        .with_http_client(client)
        .with_endpoint(endpoint)
        .with_headers(std::collections::HashMap::new())
        .build()
        .map_err(|error| refuse(error.to_string()))?;
    let resource = Resource::builder()
        .with_service_name("reef")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}

/// The W3C `traceparent` of a span; none when traces are not exported.
pub fn traceparent(span: &Span) -> Option<String> {
    let context = span.context();
    let span_context = context.span().span_context().clone();
    span_context.is_valid().then(|| {
        format!("00-{}-{}-{:02x}", span_context.trace_id(), span_context.span_id(), span_context.trace_flags().to_u8())
    })
}

/// Makes `span` a child of the given `traceparent`; a malformed one is ignored.
pub fn continue_trace(span: &Span, traceparent: Option<&str>) {
    if let Some(parent) = traceparent.and_then(parse) {
        // Fails only on a span that is disabled, which has no trace to continue.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
}

/// Links `span` to another trace.
pub fn link_trace(span: &Span, traceparent: Option<&str>) {
    if let Some(other) = traceparent.and_then(parse) {
        span.add_link(other);
    }
}

fn parse(text: &str) -> Option<SpanContext> {
    let mut parts = text.split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    if version.len() != 2 || trace.len() != 32 || span.len() != 16 {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()?;
    let context = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags),
        true,
        TraceState::default(),
    );
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_traceparents_are_ignored() {
        for bad in ["", "00", "00-zz-00-01", "00-00000000000000000000000000000000-0000000000000000-01", "é-ü"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
        assert!(parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").is_some());
    }
}
