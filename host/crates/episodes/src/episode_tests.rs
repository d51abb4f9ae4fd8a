//! Whole episodes: files in, agent, verifier, outcome.

use serde_json::{Value, json};

use super::*;
use crate::agent::{AskError, Said};
use crate::cage::Isolation;
use crate::task::testing::task;
use crate::task::{TaskLimits, VerifierSource};

const SETTINGS: &str =
    r#"{"url":"http://h","model":"m","scenario":"s","release":"r","context_tokens":8192,"output_tokens":512}"#;
const VERIFY: &str = "[ \"$(cat sum.txt)\" = 3 ] && [ \"$(tail -n 1 \"$REEF_OUTPUT\")\" = done ]\n";

/// A model that writes a sum with the tool and answers; or what the script says.
fn model(script: &'static str) -> Ask {
    Arc::new(move |body| {
        Box::pin(async move {
            let turns = body["messages"].as_array().map_or(0, Vec::len);
            let message: Value = match (script, turns) {
                ("away", _) => return Err(AskError::Unavailable("503".to_owned())),
                ("loops", _) => call("exec", json!({ "command": "true" })),
                ("lazy", _) => json!({ "content": "done" }),
                (_, 2) => call("exec", json!({ "command": "echo $(( $(cat a) + $(cat b) )) >sum.txt" })),
                _ => json!({ "content": "I am\ndone" }),
            };
            Ok(Said { body: json!({ "choices": [{ "message": message }] }), receipt: None })
        })
    })
}

fn call(name: &str, arguments: Value) -> Value {
    json!({ "tool_calls": [{ "id": "1", "function": { "name": name, "arguments": arguments.to_string() } }] })
}

fn judge() -> Judge {
    Arc::new(|name, _, answer| {
        Box::pin(async move {
            match name.as_str() {
                "ends-with-done" => Ok(f64::from(u8::from(answer.ends_with("done")))),
                "wild" => Ok(7.0),
                _ => Err(format!("there is no verifier '{name}'")),
            }
        })
    })
}

fn plan(task: Task, script: &'static str, cage: Cage) -> Plan {
    let home = vec![HomeFile { path: "native/settings.json".to_owned(), mode: 0o600, text: SETTINGS.to_owned() }];
    let runner = Runner::Native { ask: model(script), folder: "native".to_owned() };
    Plan { task: Arc::new(task), home: Arc::new(home), runner, cage, judge: judge(), seed: 1 }
}

async fn cages() -> Vec<Cage> {
    let isolated = Cage::detect(Isolation::Required).await.ok();
    std::iter::once(Cage::open("a test")).chain(isolated).collect()
}

#[tokio::test]
async fn a_task_that_is_solved_scores_one_and_one_that_is_not_scores_zero() {
    for cage in cages().await {
        let (_folder, task) = task("sum", "Add a and b.", VERIFY, &[("files/a", "1\n"), ("files/b", "2\n")]);
        let episode = plan(task.clone(), "works", cage.clone()).play().await;
        assert_eq!((episode.status, episode.score), (Status::Scored, Some(1.0)), "{episode:?}");
        assert!(episode.trace.contains("exec") && episode.seconds > 0.0);
        let episode = plan(task, "lazy", cage).play().await;
        assert_eq!((episode.status, episode.score), (Status::Scored, Some(0.0)), "{episode:?}");
    }
}

#[tokio::test]
async fn whoever_fails_is_told_apart() {
    let cage = Cage::open("a test");
    let (_folder, mut task) = task("sum", "Add.", "exit 3\n", &[]);
    let outcome = async |task: &Task, script| plan(task.clone(), script, cage.clone()).play().await;
    let episode = outcome(&task, "lazy").await;
    assert_eq!((episode.status, episode.score), (Status::VerifierFailed, None));
    assert!(episode.reason.contains("exit code 3"), "{episode:?}");
    let episode = outcome(&task, "away").await;
    assert_eq!((episode.status, episode.score), (Status::InfrastructureFailed, None));
    task.limits = TaskLimits { turns: 3, ..task.limits };
    let episode = outcome(&task, "loops").await;
    assert_eq!((episode.status, episode.score), (Status::AgentFailed, Some(0.0)));
    assert_eq!(episode.reason, "it used its 3 turns");
    task.verifier = VerifierSource::Component("ends-with-done".to_owned());
    assert_eq!(outcome(&task, "lazy").await.score, Some(1.0));
    for (name, words) in [("wild", "the score 7"), ("absent", "no verifier 'absent'")] {
        task.verifier = VerifierSource::Component(name.to_owned());
        let episode = outcome(&task, "lazy").await;
        assert_eq!(episode.status, Status::VerifierFailed);
        assert!(episode.reason.contains(words), "{episode:?}");
    }
    let mut broken = plan(task, "lazy", cage.clone());
    broken.home = Arc::default();
    assert_eq!(broken.play().await.status, Status::InfrastructureFailed, "a home that is none");
}

#[tokio::test]
async fn a_verifier_may_give_part_of_a_score() {
    let (_folder, task) = task("part", "Try.", "echo checked; echo 0.25\n", &[]);
    assert_eq!(plan(task, "lazy", Cage::open("a test")).play().await.score, Some(0.25));
    let (_folder, task) = self::task("much", "Try.", "echo 2\n", &[]);
    assert_eq!(plan(task, "lazy", Cage::open("a test")).play().await.status, Status::VerifierFailed);
}

/// A program that is no agent of Reef's: it reads its home, works in its folder and speaks for itself.
#[tokio::test]
async fn an_agent_program_plays_by_its_own_command_line() {
    let (_folder, task) = task("sum", "Add.", VERIFY, &[]);
    let cage = Cage::open("a test");
    let with = |script: &'static str, failed: u32| {
        let launch = move |home: &Path, prompt: &str| Launch {
            argv: vec!["sh".to_owned(), "-c".to_owned(), script.to_owned(), "agent".to_owned(), prompt.to_owned()],
            environment: [("RULES".to_owned(), home.join("rules.md").display().to_string())].into(),
        };
        let runner = Runner::Program {
            launch: Arc::new(launch),
            gateway: Gateway { address: "127.0.0.1:1".to_owned(), port: 1 },
            reef: PathBuf::from("/usr/bin/reef"),
            programs: Vec::new(),
            failures: Arc::new(move || failed),
        };
        let home = vec![HomeFile { path: "rules.md".to_owned(), mode: 0o600, text: "say 3\n".to_owned() }];
        Plan { runner, home: Arc::new(home), ..plan(task.clone(), "lazy", cage.clone()) }
    };
    let works = "grep -q 'say 3' \"$RULES\" && [ \"$1\" = Add. ] && echo 3 >sum.txt && echo done";
    let episode = with(works, 0).play().await;
    assert_eq!((episode.status, episode.score), (Status::Scored, Some(1.0)), "{episode:?}");
    let episode = with("echo lost >&2; exit 4", 0).play().await;
    assert_eq!((episode.status, episode.trace.trim()), (Status::AgentFailed, "lost"));
    let episode = with("exit 4", 2).play().await;
    assert_eq!(episode.status, Status::InfrastructureFailed, "the models failed it: {episode:?}");
}
