//! What every repetition starts from: graded answers in a scenario that does not learn yet, on a tiny model and a real
//! recipe, and the library that kills.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use reef::provider::config::{BindingSection, ProviderSection};
use reef_core::Surface;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::flows::evolve::{tasks, upstream};
use crate::flows::learn::quick;
use crate::support::{Answer, Caller, Database, Home, ServerProcess, TINY, component, poll, root, sao, tiny_model};

pub const SCENARIO: &str = "killed";
/// How long a server may take to come to its point.
pub const ALIVE_MAX: Duration = Duration::from_secs(90);
pub const LOOK_EVERY: Duration = Duration::from_millis(10);
const GRADED: usize = 4;

pub struct Ground {
    pub surface: Surface,
    pub home: Home,
    /// Records that the first server acknowledged: answers and the reports about them.
    pub receipts: Vec<String>,
    /// Commits of the release repository before the step.
    pub commits: usize,
    library: PathBuf,
    scratch: TempDir,
}

impl Ground {
    pub async fn new(database: Database, surface: Surface) -> Self {
        let scratch = tempfile::tempdir().expect("a folder");
        let (library, model) = (shim(scratch.path()), tiny_model(scratch.path()));
        let far = (surface == Surface::Harness).then(|| scratch.path().join("tasks"));
        let url = match &far {
            Some(folder) => Some(evolution(folder).await),
            None => None,
        };
        let home = Home::new(database, |config| {
            config.model = model;
            config.recipe = Some(if far.is_some() { component("reef_recipe_harness_evolve.wasm") } else { sao() });
            if let (Some(url), Some(folder)) = (url, far) {
                evolve(config, &url, folder);
            }
        });
        let server = home.start();
        let caller = server.caller(SCENARIO);
        // One pair of episodes decides.
        let once = json!({ "episode_repeats": 1, "significance": 1.0 });
        let config = if surface == Surface::Harness { once } else { quick() };
        let settings = json!({ "recipe_config": config, "gate": { "kind": "always" }, "training_mode": "manual" });
        caller.create(settings).await;
        let mut receipts = Vec::new();
        if surface == Surface::Harness {
            caller.get("/reef/harness").await.ok();
            receipts.extend(graded(&caller, 0, 0.0).await);
        } else {
            for n in 0..GRADED {
                receipts.extend(graded(&caller, n, if n % 2 == 0 { 1.0 } else { 0.1 }).await);
            }
        }
        assert!(server.terminate().success());
        let commits = commits(&home);
        Self { surface, home, receipts, commits, library, scratch }
    }
}

/// One answer of the tiny model.
pub async fn ask(caller: &Caller, text: &str) -> Answer {
    caller.chat(text, json!({ "model": TINY, "temperature": 1.0, "seed": 7, "max_tokens": 4 })).await
}

/// An answer and its report, by their receipts.
async fn graded(caller: &Caller, n: usize, score: f64) -> [String; 2] {
    let receipt = ask(caller, &format!("Thing {n}.")).await.ok().receipt();
    let report = json!({ "score": score, "references": [receipt], "metadata": { "feedback": "so" } });
    let report = caller.post("/reef/report", report).await.ok().body["agent_record_id"].clone();
    [receipt, report.as_str().expect("an id").to_owned()]
}

/// The model that proposes and plays, and one task of it in this folder.
async fn evolution(folder: &Path) -> String {
    tasks(folder, &[("one", 1, 2)]);
    upstream().await.0
}

fn evolve(config: &mut reef::config::Config, url: &str, tasks: PathBuf) {
    let provider = json!({ "url": url, "models": { "far": "far-1" }, "retries_max": 0 });
    let provider: ProviderSection = serde_json::from_value(provider).expect("a provider");
    config.providers.insert("far".to_owned(), provider);
    let binding = BindingSection { provider: "far".to_owned(), model: "far".to_owned() };
    config.bindings.insert("proposer".to_owned(), binding);
    config.harness.model = Some("far".to_owned());
    config.harness.tasks.insert(SCENARIO.to_owned(), tasks);
    config.harness.episodes.isolation = reef_episodes::Isolation::Preferred;
}

fn shim(folder: &Path) -> PathBuf {
    let library = folder.join("kill_at.so");
    let source = root().join("tests/flows/kill/kill_at.c");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl").status();
    assert!(built.expect("a C compiler").success());
    library
}

/// A server with the library in it.
pub struct Life {
    pub server: ServerProcess,
    armed: PathBuf,
}

impl Life {
    /// Nothing counts before it is armed.
    pub fn start(ground: &Ground, home: &Home, more: (&str, &Path)) -> Self {
        let armed = home.data.path().join("armed");
        let environment = [("LD_PRELOAD", ground.library.as_path()), ("KILL_ARMED", armed.as_path()), more];
        Self { server: home.start_with(&environment), armed }
    }

    pub fn arm(&self) {
        fs::write(&self.armed, "").expect("armed");
    }
}

/// The names of the points of a server that is left alone until its release is the head of its branch, and the releases
/// that it ends with.
pub async fn left_alone(ground: &Ground) -> (Vec<String>, Vec<Value>) {
    let (home, trace) = (ground.home.copy(), ground.scratch.path().join("trace"));
    let life = Life::start(ground, &home, ("KILL_TRACE", &trace));
    life.arm();
    let caller = life.server.caller(SCENARIO);
    super::learn(&caller).await;
    let step = super::ended(&caller).await;
    assert_eq!(step["kind"], "released", "{step}");
    let head = step["release"].as_str().expect("a release").to_owned();
    poll("the branch", || async {
        let branches = git(&home, &["for-each-ref", "--format=%(objectname)"]);
        if branches.contains(&head) { Ok(()) } else { Err(branches) }
    })
    .await;
    fs::remove_file(&life.armed).expect("disarmed");
    let trace = fs::read_to_string(&trace).expect("a trace");
    // Files outside of the database and the repository are what agents work on in their folders.
    let points = trace.lines().filter(|point| !point.starts_with("file")).map(str::to_owned).collect();
    let releases = of(ground.surface, caller.releases().await);
    assert!(life.server.terminate().success());
    (points, releases)
}

pub fn shown(surface: Surface) -> &'static str {
    if surface == Surface::Harness { "harness" } else { "weights" }
}

/// Releases of one chain.
pub fn of(surface: Surface, releases: Vec<Value>) -> Vec<Value> {
    releases.into_iter().filter(|release| release["surface"] == shown(surface)).collect()
}

fn git(home: &Home, arguments: &[&str]) -> String {
    let output = Command::new("git").arg("-C").arg(home.data.path().join("releases.git")).args(arguments).output();
    String::from_utf8(output.expect("git runs").stdout).expect("text")
}

/// Releases in the repository, in use or not: a step that was done again as another would leave one more.
pub fn commits(home: &Home) -> usize {
    let objects = git(home, &["cat-file", "--batch-all-objects", "--batch-check=%(objecttype)"]);
    objects.lines().filter(|kind| *kind == "commit").count()
}

/// A number that the person who runs the tests gives.
pub fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is '{text}'; set it to a number")))
}

/// Keeps what was found so far in the folder that REEF_KILL_REPORTS names.
pub fn keep(name: &str, found: &Value) {
    println!("{name}: {found}");
    if let Some(path) = report(name) {
        fs::write(path, found.to_string()).expect("written");
    }
}

/// What an earlier run kept there.
pub fn kept(name: &str) -> Option<Value> {
    let text = fs::read_to_string(report(name)?).ok()?;
    Some(serde_json::from_str(&text).expect("a report"))
}

fn report(name: &str) -> Option<PathBuf> {
    std::env::var_os("REEF_KILL_REPORTS").map(|folder| Path::new(&folder).join(format!("{name}.json")))
}

/// Adds to a figure.
pub fn add(found: &mut Value, field: &str, more: u64) {
    found[field] = json!(found[field].as_u64().unwrap_or(0) + more);
}
