//! One trace leads from a request to the release it caused and the first answer of that release.

use std::sync::{Arc, Mutex};

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;
use serde_json::json;

use super::learn::{ended, feed, quick};
use crate::support::{ServerProcess, poll, sao};

/// Trace id, span name.
type Seen = Arc<Mutex<Vec<(Vec<u8>, String)>>>;

async fn collect(State(seen): State<Seen>, body: Bytes) -> Vec<u8> {
    let request = ExportTraceServiceRequest::decode(body).expect("OTLP over HTTP is protobuf");
    let spans = request.resource_spans.into_iter().flat_map(|r| r.scope_spans).flat_map(|s| s.spans);
    seen.lock().unwrap().extend(spans.map(|span| (span.trace_id, span.name)));
    Vec::new()
}

async fn collector() -> (String, Seen) {
    let seen = Seen::default();
    let app = axum::Router::new().route("/v1/traces", post(collect)).with_state(Arc::clone(&seen));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    (endpoint, seen)
}

#[tokio::test]
async fn one_trace_links_request_record_report_step_release_and_first_answer() {
    let (endpoint, seen) = collector().await;
    let data = tempfile::tempdir().unwrap();
    let config = data.path().join("reef.yaml");
    std::fs::write(&config, format!("listen: 127.0.0.1:0\ntelemetry:\n  otlp_endpoint: {endpoint}\n  log: error\n"))
        .unwrap();
    let server = ServerProcess::start(
        &data.path().join("data"),
        &["--recipe", sao().to_str().unwrap(), "--config", config.to_str().unwrap()],
    );
    let caller = server.caller("traced");
    caller.create(json!({ "recipe_config": quick(), "gate": { "kind": "always" } })).await;
    feed(&caller, 4).await;
    ended(&caller, 1).await;
    caller.chat("hi", json!({})).await.ok();
    let names = poll("the spans", || {
        let seen = Arc::clone(&seen);
        async move {
            let spans = seen.lock().unwrap();
            let step = spans.iter().find(|(_, name)| name == "step").map(|(trace, _)| trace.clone());
            let names: Vec<String> =
                spans.iter().filter(|(trace, _)| Some(trace) == step.as_ref()).map(|(_, name)| name.clone()).collect();
            if names.iter().any(|name| name == "release.first_answer") { Ok(names) } else { Err(format!("{spans:?}")) }
        }
    })
    .await;
    for phase in ["inference", "record", "report", "step", "propose", "evaluate", "release", "release.first_answer"] {
        assert!(names.iter().any(|name| name == phase), "{phase} in {names:?}");
    }
}
