//! Records beyond their making: export, import, erasure, retraction, dead letters; and the command for them.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{Caller, MODEL, reef, shared};

/// The lines of an export.
async fn export(caller: &Caller, after: i64) -> Vec<Value> {
    let path = caller.path(&format!("/export?after_sequence={after}"));
    let text = caller.request(Method::GET, &path).send().await.expect("answered").text().await.expect("text");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

async fn answered_and_graded(caller: &Caller) -> (String, String) {
    let receipt = caller.chat("say a word", json!({ "max_tokens": 4 })).await.ok().receipt();
    let report = caller.report(&receipt, 1.0).await.ok().body["agent_record_id"].as_str().expect("an id").to_owned();
    (receipt, report)
}

#[tokio::test]
async fn what_is_exported_can_be_imported_once() {
    let (from, into) = (shared(), shared());
    let (receipt, report) = answered_and_graded(&from).await;
    let lines = export(&from, 0).await;
    let kinds: Vec<&Value> = lines.iter().map(|line| &line["kind"]).collect();
    assert_eq!(kinds, [&json!("inference"), &json!("report")]);
    assert_eq!((&lines[0]["record"]["id"], &lines[1]["record"]["id"]), (&json!(receipt), &json!(report)));
    assert_eq!(export(&from, lines[0]["sequence"].as_i64().expect("a number")).await, lines[1..]);
    into.create(json!({})).await;
    let import = || into.post("/reef/records/batch", json!({ "records": lines }));
    assert_eq!(import().await.ok().body["imported"], 2);
    let again = import().await.ok().body;
    assert_eq!((&again["imported"], &again["duplicates"]), (&json!(0), &json!(2)));
    let record = into.get(&into.path(&format!("/records/{receipt}"))).await.ok().body["record"].clone();
    assert_eq!(record["request"], lines[0]["record"]["request"]);
    // Its release is not of this lineage, so that the recipe may have retired it already; it is one sample in any case.
    let status = into.status().await;
    let samples = |state: &str| status[state].as_u64().expect("a count");
    assert_eq!((samples("reports"), samples("pending") + samples("retired")), (1, 1), "{status}");
}

#[tokio::test]
async fn a_batch_with_one_bad_record_changes_nothing() {
    let caller = shared();
    answered_and_graded(&caller).await;
    let mut lines = export(&caller, 0).await;
    lines[1]["kind"] = json!("rumour");
    let into = shared();
    into.create(json!({})).await;
    let refused = into.post("/reef/records/batch", json!({ "records": lines })).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.body["error"]["param"], "records[1]", "{}", refused.body);
    assert!(export(&into, 0).await.is_empty());
    for body in [json!({}), json!({ "records": 1 }), json!({ "records": [], "more": 1 })] {
        assert_eq!(into.post("/reef/records/batch", body).await.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_retracted_report_is_not_learned_from_and_told_among_the_dead_letters() {
    let caller = shared();
    let (_, report) = answered_and_graded(&caller).await;
    let retract = || caller.send(caller.request(Method::DELETE, &format!("/reef/reports/{report}")));
    assert_eq!(retract().await.ok().body["state"], "retracted");
    assert_eq!(retract().await.ok().body["state"], "not_waiting");
    assert_eq!(caller.status().await["pending"], 0);
    let letters = caller.get(&caller.path("/dead-letters")).await.ok().body;
    assert_eq!(letters["dead_letters"][0]["report"], json!(report), "{letters}");
    let unknown = caller.send(caller.request(Method::DELETE, "/reef/reports/nothing-like-it")).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn an_answer_that_is_erased_while_it_is_produced_is_not_stored() {
    let caller = shared();
    caller.create(json!({})).await;
    let body = json!({ "model": MODEL, "stream": true, "max_tokens": 48, "temperature": 0,
        "messages": [{ "role": "user", "content": "Tell me a story." }] });
    let request = caller.request(reqwest::Method::POST, "/v1/chat/completions").json(&body);
    let answer = request.send().await.expect("an answer begins");
    let receipt = answer.headers()["x-reef-agent-record-id"].to_str().expect("text").to_owned();
    let erased = async { caller.post(&caller.path("/erase"), json!({ "record": receipt })).await.ok().body };
    let (erased, whole) = futures::join!(erased, answer.text());
    whole.expect("it goes on");
    assert_eq!((&erased["records"], &erased["waiting"]), (&json!(1), &json!(0)), "{erased}");
    let gone = caller.get(&caller.path(&format!("/records/{receipt}"))).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND, "{}", gone.body);
}

#[tokio::test]
async fn the_command_exports_imports_and_erases() {
    let (caller, into) = (shared(), shared());
    let (receipt, _) = answered_and_graded(&caller).await;
    into.create(json!({})).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("records.jsonl").display().to_string();
    let run = |arguments: &[&str]| {
        let mut command = reef();
        let output = command.args(["records"]).args(arguments).args(["--url", &caller.url]).output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    run(&["export", &caller.scenario, "--out", &file]);
    assert_eq!(std::fs::read_to_string(&file).expect("written").lines().count(), 2);
    let told: Value = serde_json::from_str(&run(&["import", &into.scenario, &file])).expect("JSON");
    assert_eq!(told["imported"], 2);
    let told: Value = serde_json::from_str(&run(&["erase", &caller.scenario, "--record", &receipt])).expect("JSON");
    assert_eq!((&told["records"], &told["trained_releases"]), (&json!(2), &json!([])), "the answer and its report");
    assert!(export(&caller, 0).await.is_empty());
    assert_eq!(caller.get(&caller.path(&format!("/records/{receipt}"))).await.status, StatusCode::NOT_FOUND);
    for body in [json!({}), json!({ "record": 1 }), json!({ "tag": { "a": "1", "b": "2" } }), json!({ "all": true })] {
        assert_eq!(caller.post(&caller.path("/erase"), body).await.status, StatusCode::BAD_REQUEST);
    }
}

#[tokio::test]
async fn a_parquet_file_holds_the_records_of_an_export() {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    let caller = shared();
    let (receipt, report) = answered_and_graded(&caller).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("records.parquet");
    let output = reef()
        .args(["records", "export", &caller.scenario, "--format", "parquet", "--out"])
        .arg(&file)
        .args(["--url", &caller.url])
        .output()
        .expect("runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let reader = SerializedFileReader::new(std::fs::File::open(&file).expect("written")).expect("a Parquet file");
    let rows: Vec<_> = reader.get_row_iter(None).expect("rows").map(|row| row.expect("a row")).collect();
    let ids: Vec<&String> = rows.iter().map(|row| row.get_string(1).expect("an id")).collect();
    assert_eq!(ids, [&receipt, &report]);
    let path = caller.path("/export?format=parquet&after_sequence=999999");
    let empty = caller.request(Method::GET, &path).send().await.expect("answered").bytes().await.expect("a body");
    assert!(empty.starts_with(b"PAR1") && empty.ends_with(b"PAR1"));
    for query in ["format=csv", "after_sequence=x"] {
        let refused = caller.get(&caller.path(&format!("/export?{query}"))).await;
        assert_eq!(
            (refused.status, &refused.body["error"]["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_request"))
        );
    }
}
