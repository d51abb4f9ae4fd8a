//! The demo of a harness that evolves: an agent fails a task, somebody reports it, a recipe proposes a change, the server
//! tries it on tasks in pairs and releases it, the installed agent updates itself and does the task.
//! Everything goes over the routes and the wrapper that anybody uses. Without `REEF_UPSTREAM_URL` the model is a script.

mod model;
mod tasks;

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use reef_core::ScenarioName;
use reef_episodes::Isolation;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::process::Command;

use self::model::Scripted;
use self::tasks::{TASKS, Task};
use crate::client::Client;
use crate::config::Config;
use crate::error::StartError;
use crate::host;
use crate::provider::config::{BindingSection, ProviderSection};

/// The recipe, where `make recipes` puts it.
pub const RECIPE: &str = "target/wasm32-wasip2/recipe/reef_recipe_harness_evolve.wasm";
/// A model of one's own: address, name, and the variable that holds the key.
const UPSTREAM: [&str; 3] = ["REEF_UPSTREAM_URL", "REEF_UPSTREAM_MODEL", "REEF_UPSTREAM_KEY"];
/// The scenario.
const SCENARIO: &str = "demo-harness";
/// What clients call the model.
const MODEL: &str = "demo-model";
/// The provider's name in the configuration.
const PROVIDER: &str = "demo";
/// Time between two looks for the release.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Longest wait for a release.
const RELEASE_MAX: Duration = Duration::from_secs(900);

/// What the demo needs to know.
#[derive(Debug)]
pub struct HarnessDemo {
    /// Where the server's data go.
    pub config: Config,
    /// A folder that is emptied by its owner.
    pub folder: PathBuf,
    /// No text for people.
    pub quiet: bool,
}

/// What it showed.
#[derive(Debug, Clone, Serialize)]
pub struct HarnessSummary {
    /// Who answered: `scripted`, or the upstream's model.
    pub model: String,
    /// Tasks that passed before and after, of how many.
    pub passed_before: usize,
    /// After the update.
    pub passed_after: usize,
    /// All.
    pub tasks: usize,
    /// Seconds from the answer to the report until the release was the head.
    pub report_to_release_seconds: f64,
    /// Seconds that episodes took of it.
    pub episodes_seconds: f64,
    /// Episodes that were played.
    pub episodes: f64,
    /// The new release.
    pub release: String,
    /// Why it was released.
    pub reason: String,
    /// How programs were kept apart.
    pub isolation: String,
}

/// Runs it on a server of its own.
pub async fn run(demo: HarnessDemo) -> Result<HarnessSummary, StartError> {
    let HarnessDemo { mut config, folder, quiet } = demo;
    let told = |error: std::io::Error| StartError::Other(format!("{}: {error}", folder.display()));
    tasks::write(&folder.join("tasks")).map_err(told)?;
    let scripted = match std::env::var(UPSTREAM[0]) {
        Ok(url) if !url.is_empty() => None,
        _ => Some(Scripted::start().await.map_err(told)?),
    };
    let model = models(&mut config, scripted.as_ref())?;
    config.harness.tasks.insert(SCENARIO.to_owned(), folder.join("tasks"));
    let running = host::start(config).await?;
    let shown = Shown { url: format!("http://{}", running.address), folder: folder.clone(), quiet };
    let summary = shown.lesson(model).await;
    running.shutdown().await;
    drop(scripted);
    summary
}

/// Binds the model: to the script, or to the upstream of the environment. Its name for people.
fn models(config: &mut Config, scripted: Option<&Scripted>) -> Result<String, StartError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let (url, name, key) = match scripted {
        Some(scripted) => (format!("http://{}", scripted.address), "scripted".to_owned(), None),
        None => {
            let [url, name, key] = UPSTREAM;
            let named = variable(name).ok_or_else(|| {
                StartError::Config(format!("{url} is set and {name} is not; name the model to ask there"))
            })?;
            (variable(url).unwrap_or_default(), named, variable(key).map(|_| key))
        }
    };
    let section = json!({ "url": url, "key_env": key, "models": { MODEL: name } });
    let provider: ProviderSection =
        serde_json::from_value(section).map_err(|error| StartError::Config(format!("the demo's provider: {error}")))?;
    config.providers.insert(PROVIDER.to_owned(), provider);
    let binding = BindingSection { provider: PROVIDER.to_owned(), model: MODEL.to_owned() };
    config.bindings.insert("proposer".to_owned(), binding);
    config.harness.model = Some(MODEL.to_owned());
    config.harness.episodes.isolation = Isolation::Preferred;
    Ok(name)
}

/// The demo in progress.
struct Shown {
    url: String,
    folder: PathBuf,
    quiet: bool,
}

impl Shown {
    fn say(&self, text: &str) {
        if !self.quiet {
            println!("{text}");
        }
    }

    async fn lesson(&self, model: String) -> Result<HarnessSummary, StartError> {
        let client = Client::new(&self.url)?;
        let scenario = ScenarioName::parse(SCENARIO).map_err(|error| StartError::Other(error.to_string()))?;
        client.post("/reef/scenarios", &json!({ "scenario": SCENARIO })).await?;
        self.say("1. An agent is installed on the empty harness, with one line of shell.");
        let line = format!(
            "curl -fsS -H 'x-reef-scenario: {SCENARIO}' '{}/reef/harness/install?adapter=native' | sh",
            self.url
        );
        self.shell(&line).await?;
        self.say("2. It does three tasks. A program reads the last line of each answer.");
        let passed_before = self.all_tasks().await?;
        let task = TASKS.iter().find(|task| !self.passed(task)).copied();
        let Some(task) = task else {
            return Err(StartError::Other(
                "the model passes every task without a harness: there is nothing to show".into(),
            ));
        };
        self.say(&format!("3. It failed '{}'. Somebody reports that with a word on what was wrong.", task.name));
        self.task(&task).await?;
        self.shell(&format!("reef-native report --score 0 --feedback '{}'", task.feedback())).await?;
        let reported = Instant::now();
        let (step, release) = self.released(&client, &scenario).await?;
        let took = reported.elapsed().as_secs_f64();
        let metric = |name: &str| step.pointer("/metrics").and_then(|all| all.get(name)?.as_f64()).unwrap_or(f64::NAN);
        let reason = step.get("reason").and_then(Value::as_str).unwrap_or_default().to_owned();
        self.say(&format!(
            "4. The recipe proposes a change, {} episodes try it beside what serves, and it is released after {took:.2} s:\n   {reason}",
            metric("episodes/played")
        ));
        self.say("5. The installed agent pulls the release.");
        self.shell("reef-native update").await?;
        let passed_after = self.all_tasks().await?;
        self.say(&format!(
            "6. It does the same tasks again: {passed_before} of {} passed before, {passed_after} pass now.",
            TASKS.len()
        ));
        let isolation = reef_episodes::Cage::detect(Isolation::Preferred).await;
        Ok(HarnessSummary {
            model,
            passed_before,
            passed_after,
            tasks: TASKS.len(),
            report_to_release_seconds: took,
            episodes_seconds: metric("episodes_seconds"),
            episodes: metric("episodes/played"),
            release,
            reason,
            isolation: isolation.map_or_else(|error| error.to_string(), |cage| cage.told()),
        })
    }

    /// Has the agent do every task; how many pass.
    async fn all_tasks(&self) -> Result<usize, StartError> {
        let mut passed = 0;
        for task in TASKS {
            let said = self.task(&task).await?;
            let good = task.passes(&said);
            passed += usize::from(good);
            let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
            self.say(&format!("   {:6} {}  last line: {last}", task.name, if good { "passed" } else { "failed" }));
            let outcome = if good { "passed" } else { "failed" };
            std::fs::write(self.folder.join(task.name), outcome)
                .map_err(|error| StartError::Other(format!("{}: {error}", self.folder.display())))?;
        }
        Ok(passed)
    }

    fn passed(&self, task: &Task) -> bool {
        std::fs::read_to_string(self.folder.join(task.name)).is_ok_and(|outcome| outcome == "passed")
    }

    /// One task by the installed agent; its answer.
    async fn task(&self, task: &Task) -> Result<String, StartError> {
        let work = self.folder.join("work").join(task.name);
        task.lay_out(&work).map_err(|error| StartError::Other(format!("{}: {error}", work.display())))?;
        let line = format!("cd '{}' && reef-native task '{}'", work.display(), task.instruction.trim());
        let done = self.output(&line).await?;
        Ok(String::from_utf8_lossy(&done.stdout).into_owned())
    }

    async fn shell(&self, line: &str) -> Result<(), StartError> {
        let done = self.output(line).await?;
        if done.status.success() {
            return Ok(());
        }
        let told = String::from_utf8_lossy(&done.stderr).trim().to_owned();
        Err(StartError::Other(format!("'{line}' failed: {told}")))
    }

    /// A line of shell as a person would type it, in a home of its own.
    async fn output(&self, line: &str) -> Result<Output, StartError> {
        let home = self.folder.join("home");
        let told = |error: std::io::Error| StartError::Other(format!("sh: {error}"));
        std::fs::create_dir_all(&home).map_err(told)?;
        let own = std::env::current_exe().ok().and_then(|path| path.parent().map(Path::to_path_buf));
        let inherited = std::env::var("PATH").unwrap_or_default();
        let folders = [Some(home.join(".local/bin")), own].into_iter().flatten();
        let mut path: Vec<String> = folders.map(|folder| folder.display().to_string()).collect();
        path.push(inherited);
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).env("HOME", &home).env("PATH", path.join(":")).env_remove("REEF_TOKEN");
        shell.env_remove("REEF_SESSION").current_dir(&home).kill_on_drop(true);
        shell.output().await.map_err(told)
    }

    /// Waits for the step that releases; the step and the release.
    async fn released(&self, client: &Client, scenario: &ScenarioName) -> Result<(Value, String), StartError> {
        let patience = Instant::now() + RELEASE_MAX;
        loop {
            let steps = client.get(&format!("/reef/scenarios/{scenario}/steps?limit=1")).await?;
            let step = steps.pointer("/steps/0").cloned().unwrap_or_default();
            match step.get("kind").and_then(Value::as_str) {
                Some("released") => {
                    let release = step.get("release").and_then(Value::as_str).unwrap_or_default().to_owned();
                    return Ok((step, release));
                }
                None | Some("running") if Instant::now() < patience => tokio::time::sleep(LOOK_EVERY).await,
                _ => return Err(StartError::Other(format!("no release came of the report: {step}"))),
            }
        }
    }
}
