//! The agent pi does one thing with a tool, headless, against a scripted provider behind Reef, in every dialect that it
//! speaks: the adapter's own template points it there, and the session that it names is the records' session.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::scripted::{self, TOKEN};
use super::{finish, node, node_modules};
use crate::support::{Caller, root};

const PACKAGE: &str = "@earendil-works/pi-coding-agent";
const SCENARIO: &str = "coding";
const SESSION: &str = "11111111-2222-4333-8444-555555555555";
/// Bytes of a request of pi.
const BODY_BYTES_MAX: usize = 1 << 20;

/// What Reef answered: headers and body.
type Told = Arc<Mutex<Vec<(HeaderMap, String)>>>;

/// Stands between pi and Reef, changes nothing and keeps the answers.
#[derive(Clone)]
struct Tap {
    to: String,
    http: reqwest::Client,
    told: Told,
}

async fn pass(State(tap): State<Tap>, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.expect("a body");
    parts.headers.remove(header::HOST);
    let asked = tap.http.request(parts.method, format!("{}{}", tap.to, parts.uri)).headers(parts.headers).body(body);
    let answer = asked.send().await.expect("Reef answers");
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    let text = answer.text().await.expect("a body");
    tap.told.lock().expect("told").push((headers.clone(), text.clone()));
    headers.remove(header::TRANSFER_ENCODING);
    (status, headers, text).into_response()
}

async fn tap(to: &str) -> (String, Told) {
    let http = reef::tls::http_client().build().expect("a client");
    let tap = Tap { to: to.to_owned(), http, told: Told::default() };
    let told = Arc::clone(&tap.told);
    let app = Router::new().fallback(pass).with_state(tap);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move { axum::serve(listener, app).await });
    (format!("http://{address}"), told)
}

/// A dialect as pi names it, the path that it ends at, and in which of its ways pi sends the session.
struct Dialect {
    api: &'static str,
    path: &'static str,
    session: &'static str,
}

/// The adapter's template, with the scripted model's window, the dialect, and sessions told.
fn models(url: &str, dialect: &Dialect) -> Value {
    let template = root().join("harness-adapters/pi/models.json.template");
    let template = fs::read_to_string(template).expect("the adapter's template");
    let filled = [("{{url}}", url), ("{{model}}", scripted::MODEL), ("{{scenario}}", SCENARIO)]
        .into_iter()
        .fold(template, |text, (name, value)| text.replace(name, value));
    let mut models: Value = serde_json::from_str(&filled).expect("the template is JSON");
    let reef = &mut models["providers"]["reef"];
    reef["api"] = json!(dialect.api);
    // pi appends `/v1` itself where Anthropic's package does.
    if dialect.api == "anthropic-messages" {
        reef["baseUrl"] = json!(url);
    }
    reef["compat"] = json!({ "sendSessionAffinityHeaders": true, "sessionAffinityFormat": dialect.session });
    reef["models"][0]["contextWindow"] = json!(32_000);
    reef["models"][0]["maxTokens"] = json!(1024);
    // The session is told by pi's own header here.
    reef["headers"].as_object_mut().expect("headers").remove("x-reef-tag-session");
    models
}

/// `pi -p` in a home of its own.
fn pi(home: &Path) -> Command {
    let modules = node_modules(PACKAGE);
    let mut command = node();
    command.arg(modules.join(".bin/pi")).args(["--model", &format!("reef/{}", scripted::MODEL)]);
    command.args(["--session-id", SESSION, "-p", "Write hello.txt."]);
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin", modules.join(".bin").display());
    command.env_clear().env("PATH", path).env("HOME", home).env("REEF_TOKEN", TOKEN);
    command.env("PI_CODING_AGENT_DIR", home.join("agent")).env("PI_OFFLINE", "1").env("PI_TELEMETRY", "0");
    command.current_dir(home.join("work"));
    command
}

/// Both exchanges of the scenario, oldest first.
async fn exchanges(caller: &Caller) -> [Value; 2] {
    let mut body = caller.get(&caller.path("/records")).await.ok().body;
    let records = body["records"].as_array_mut().expect("records").iter_mut();
    let records: Vec<Value> = records.map(|entry| entry["record"].take()).collect();
    records.try_into().unwrap_or_else(|records: Vec<Value>| panic!("{} records", records.len()))
}

async fn pi_writes_a_file(dialect: Dialect) {
    let (host, seen) = scripted::host().await;
    let caller = host.caller(SCENARIO).with_token(TOKEN);
    let (url, told) = tap(&host.url).await;
    let home = tempfile::tempdir().unwrap();
    for folder in ["agent", "work"] {
        fs::create_dir(home.path().join(folder)).unwrap();
    }
    fs::write(home.path().join("agent/models.json"), models(&url, &dialect).to_string()).unwrap();

    let said = finish(pi(home.path()), "pi").await;
    assert_eq!(said.trim(), scripted::SAID.concat());
    let written = fs::read_to_string(home.path().join("work").join(scripted::FILE));
    assert_eq!(written.expect("the tool has written the file"), scripted::CONTENT);

    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    assert!(!format!("{seen:?}").contains(TOKEN), "the client's token is not passed on");
    let turns = seen[1].1["messages"].as_array().unwrap();
    let result = turns.iter().find(|turn| turn["role"] == "tool").expect("the tool's result");
    assert_eq!(result["tool_call_id"], "call_1");

    let records = exchanges(&caller).await;
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), 2);
    for (record, (headers, body)) in records.iter().zip(&told) {
        assert_eq!((&record["path"], &record["status"]), (&json!(dialect.path), &json!("complete")), "{record}");
        assert_eq!(record["session"], SESSION, "{record}");
        let receipt = record["id"].as_str().unwrap();
        assert_eq!(headers["x-reef-agent-record-id"], receipt);
        assert!(body.contains(&format!("\"agent_record_id\":\"{receipt}\"")), "the receipt is in the stream: {body}");
    }
    let [called, answered] = records.map(|record| record["response"].to_string());
    assert!(called.contains("\"name\":\"write\"") && called.contains(scripted::FILE), "{called}");
    assert!(answered.contains(&scripted::SAID.concat()), "{answered}");
    host.stop().await;
}

#[tokio::test]
async fn pi_writes_a_file_over_chat_completions() {
    pi_writes_a_file(Dialect { api: "openai-completions", path: "/v1/chat/completions", session: "openai" }).await;
}

#[tokio::test]
async fn pi_writes_a_file_over_responses() {
    pi_writes_a_file(Dialect { api: "openai-responses", path: "/v1/responses", session: "openrouter" }).await;
}

#[tokio::test]
async fn pi_writes_a_file_over_messages() {
    pi_writes_a_file(Dialect { api: "anthropic-messages", path: "/v1/messages", session: "openrouter" }).await;
}
