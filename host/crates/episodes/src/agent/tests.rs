//! The loop: what the model is asked, what tools do, and how a run ends.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::home::testing::home;
use super::*;

/// Bodies that the model was sent.
type Asked = Arc<Mutex<Vec<Map<String, Value>>>>;

/// A model that says these things in order, then that it is unavailable.
fn scripted(answers: Vec<Value>) -> (Ask, Asked) {
    let (answers, asked) = (Mutex::new(VecDeque::from(answers)), Asked::default());
    let heard = Arc::clone(&asked);
    let ask: Ask = Arc::new(move |body| {
        heard.lock().expect("held").push(body);
        let next = answers.lock().expect("held").pop_front();
        Box::pin(async move {
            let message = next.ok_or_else(|| AskError::Unavailable("nothing more to say".to_owned()))?;
            if message == json!("refuse") {
                return Err(AskError::Refused("too long".to_owned()));
            }
            let body = json!({ "choices": [{ "message": message }], "usage": { "total_tokens": 10 } });
            Ok(Said { body, receipt: Some("receipt".to_owned()) })
        })
    });
    (ask, asked)
}

fn call(name: &str, arguments: Value) -> Value {
    json!({ "content": null, "tool_calls": [{ "id": "c1", "type": "function",
        "function": { "name": name, "arguments": arguments.to_string() } }] })
}

fn says(text: &str) -> Value {
    json!({ "content": text })
}

async fn run(files: &[(&str, &str)], answers: Vec<Value>) -> (Ended, Vec<Map<String, Value>>, tempfile::TempDir) {
    let (_folder, home) = home(files);
    let work = tempfile::tempdir().expect("a folder");
    let (ask, asked) = scripted(answers);
    let agent = Agent::new(home, work.path().to_owned(), Cage::open("a test"), ask).expect("an agent").seeded(7);
    let ended = agent.run("Do it.").await;
    let asked = asked.lock().expect("held").clone();
    (ended, asked, work)
}

#[tokio::test]
async fn tools_work_in_the_folder_and_their_results_go_back_to_the_model() {
    let answers = vec![
        call("write", json!({ "path": "a/n.txt", "text": "4\n" })),
        call("exec", json!({ "command": "expr $(cat a/n.txt) + 1; exit 2" })),
        call("search", json!({ "text": "4" })),
        call("read", json!({ "path": "../secret" })),
        says("5"),
    ];
    let (ended, asked, work) = run(&[], answers).await;
    assert_eq!((ended.stop, ended.answer.as_str()), (Stop::Answered, "5"));
    assert_eq!(std::fs::read_to_string(work.path().join("a/n.txt")).expect("written"), "4\n");
    assert_eq!((ended.usage.turns, ended.usage.tool_calls, ended.usage.tokens), (5, 4, 50));
    assert_eq!(ended.usage.receipts.len(), 5);
    let results: Vec<&str> = asked[4]["messages"]
        .as_array()
        .expect("messages")
        .iter()
        .filter(|message| message["role"] == "tool")
        .map(|message| message["content"].as_str().expect("text"))
        .collect();
    assert_eq!(results[0], "a/n.txt is written");
    assert_eq!(results[1], "5\n\n[exit code 2]");
    assert_eq!(results[2], "a/n.txt:1: 4");
    assert!(results[3].contains("outside of the working folder"), "{results:?}");
    assert_eq!((&asked[0]["seed"], &asked[0]["model"]), (&json!(7), &json!("m")));
    assert!(ended.trace.contains("exec ") && ended.trace.ends_with("answer: 5"), "{}", ended.trace);
}

#[tokio::test]
async fn skills_are_in_the_index_and_read_on_demand_and_agents_share_the_budget() {
    let files = [
        ("skills/ropes/SKILL.md", "---\ndescription: \"Knots\"\n---\nBowline.\n"),
        ("agents/helper.md", "---\ndescription: \"Helps\"\n---\nYou help.\n"),
    ];
    let answers = vec![
        call("skill", json!({ "name": "ropes" })),
        call("agent", json!({ "name": "helper", "task": "Think." })),
        says("thought"),
        says("done"),
    ];
    let (ended, asked, _work) = run(&files, answers).await;
    assert_eq!((ended.answer.as_str(), ended.usage.turns), ("done", 4));
    let system = |at: usize| asked[at]["messages"][0]["content"].as_str().expect("text").to_owned();
    assert!(system(0).contains("- ropes: Knots") && !system(0).contains("Bowline"));
    assert_eq!(asked[1]["messages"][3]["content"], "Bowline.\n");
    assert!(system(2).starts_with("You help.") && asked[2]["messages"][1]["content"] == "Think.");
    assert_eq!(asked[3]["messages"][5]["content"], "thought");
}

#[tokio::test]
async fn a_run_ends_at_its_limits_and_says_at_which() {
    let again = || call("exec", json!({ "command": "true" }));
    for (settings, words) in [("turns_max", "its 2 turns"), ("tokens_max", "its 2 tokens")] {
        let text = format!(
            r#"{{"url":"http://h","model":"m","scenario":"s","release":"r","context_tokens":8192,"output_tokens":512,"{settings}":2}}"#
        );
        let (ended, asked, _work) = run(&[("settings.json", &text)], vec![again(), again(), again()]).await;
        assert_eq!(ended.stop, Stop::Limit(format!("it used {words}")));
        assert!(asked.len() <= 2);
    }
    let text = r#"{"url":"http://h","model":"m","scenario":"s","release":"r","context_tokens":8192,"output_tokens":512,"seconds_max":1}"#;
    let slow = call("exec", json!({ "command": "sleep 30" }));
    let (ended, ..) = run(&[("settings.json", text)], vec![slow]).await;
    assert!(matches!(&ended.stop, Stop::Limit(told) if told.contains("longer than 1 s")), "{ended:?}");
}

#[tokio::test]
async fn a_model_that_refuses_and_one_that_is_away_are_told_apart() {
    assert_eq!(run(&[], vec![json!("refuse")]).await.0.stop, Stop::Refused("too long".to_owned()));
    let (ended, ..) = run(&[], Vec::new()).await;
    assert_eq!(ended.stop, Stop::Unavailable("nothing more to say".to_owned()));
    let odd = json!({ "content": "x", "tool_calls": [{}] });
    let (ended, asked, _work) = run(&[], vec![odd, says("done")]).await;
    assert_eq!(ended.answer, "done", "a call that is none is answered");
    assert!(asked[1]["messages"][3]["content"].as_str().expect("text").contains("no tool ''"));
}

#[test]
fn old_results_are_forgotten_and_the_task_is_not() {
    let tool = |text: &str| json!({ "role": "tool", "content": text });
    let mut messages = vec![json!({ "role": "user", "content": "task" }), tool(&"a".repeat(500)), tool("b")];
    forget(&mut messages, 300);
    assert_eq!((&messages[0]["content"], &messages[1]["content"]), (&json!("task"), &json!(FORGOTTEN)));
    assert_eq!(messages[2]["content"], "b");
}
