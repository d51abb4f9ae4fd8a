//! `reef harness run`: episodes by hand, on a server that runs. The tree is the one that clients install, or one on disk.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use reef_core::ScenarioName;
use reef_episodes::{Cage, Episode, Gateway, Isolation, Judge, Status, Task, read_tasks};
use reef_harness::{Adapters, Binding};
use serde_json::{Value, json};

use super::{bar, scenario_name, show};
use crate::client::Client;
use crate::episodes::model::Line;
use crate::episodes::plan::{Making, Own, on_path};
use crate::error::StartError;
use crate::harness_source;
use crate::scenarios::HarnessContent;

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// A task's folder, or a folder of tasks.
    tasks: PathBuf,
    /// Agent program.
    #[arg(long, default_value = "native")]
    adapter: String,
    /// Its path; found on the PATH by default.
    #[arg(long)]
    program: Option<PathBuf>,
    /// A tree: folder or JSON file. By default the one that clients install.
    #[arg(long)]
    harness: Option<PathBuf>,
    /// Address of the server.
    #[arg(long, env = "REEF_URL", default_value = "http://127.0.0.1:8420")]
    url: String,
    /// Scenario.
    #[arg(long, default_value = "default", value_parser = scenario_name)]
    scenario: ScenarioName,
    /// Model that the agent asks for; the server's own by default.
    #[arg(long)]
    model: Option<String>,
    /// Episodes of each task, each on its own seed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeats: u32,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Run programs as this user where bubblewrap does not work.
    #[arg(long)]
    without_isolation: bool,
    /// For machines.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: RunArgs) -> Result<(), StartError> {
    let config = |error: String| StartError::Config(error);
    let tasks = read_tasks(&args.tasks).map_err(|error| config(error.to_string()))?;
    let client = Client::new(&args.url)?;
    let content = tree(&args, &client).await?;
    let isolation = if args.without_isolation { Isolation::Preferred } else { Isolation::Required };
    let cage = Cage::detect(isolation).await;
    let cage = cage.map_err(|error| config(format!("{error}; or allow it with --without-isolation")))?;
    let told = cage.told();
    let making = making(&args, cage)?;
    let binding = Binding {
        url: format!("{}/reef/scenarios/{}/evaluation", args.url.trim_end_matches('/'), args.scenario),
        model: model(&args, &client).await?,
        scenario: args.scenario.clone(),
        release: "0".to_owned(),
        context_tokens: 8_192,
        output_tokens: 1_024,
        version: None,
    };
    let progress = bar("{bar:30} {pos}/{len} episodes  {msg}", args.json);
    progress.set_length(tasks.len() as u64 * u64::from(args.repeats));
    let mut rows = Vec::new();
    for task in tasks.into_iter().map(Arc::new) {
        for repeat in 0..args.repeats {
            progress.set_message(task.name.clone());
            let seed = args.seed.wrapping_add(repeat);
            rows.push((task.name.clone(), seed, one(&making, &content, (&binding, &task), seed).await));
            progress.inc(1);
        }
    }
    progress.finish_and_clear();
    report(&rows, &told, args.json)
}

async fn one(making: &Making, content: &HarnessContent, (binding, task): (&Binding, &Arc<Task>), seed: u32) -> Episode {
    let own = Own {
        tree: &content.tree,
        binding: binding.clone(),
        task: Arc::clone(task),
        seed,
        token: std::env::var("REEF_TOKEN").ok().filter(|token| !token.is_empty()).unwrap_or_else(|| "none".to_owned()),
        session: format!("run-{}-{seed}", task.name),
        failures: Arc::new(|| 0),
    };
    match making.plan(own) {
        Ok(plan) => plan.play().await,
        Err(told) => Episode::broken(told),
    }
}

async fn tree(args: &RunArgs, client: &Client) -> Result<HarnessContent, StartError> {
    if let Some(path) = &args.harness {
        return harness_source::read(path);
    }
    let answer = client.get_in(&args.scenario, "/reef/harness").await?;
    harness_source::from_answer(&answer)
}

async fn model(args: &RunArgs, client: &Client) -> Result<String, StartError> {
    if let Some(model) = &args.model {
        return Ok(model.clone());
    }
    let listed = client.get(&format!("/reef/scenarios/{}/evaluation/v1/models", args.scenario)).await?;
    let first = listed.pointer("/data/0/id").and_then(Value::as_str);
    first.map(str::to_owned).ok_or_else(|| StartError::Other("the server lists no model; name one with --model".into()))
}

fn making(args: &RunArgs, cage: Cage) -> Result<Making, StartError> {
    let adapters = Adapters::embedded().map_err(|error| StartError::Other(error.to_string()))?;
    let adapter = adapters.get(&args.adapter).cloned().ok_or_else(|| {
        let known: Vec<&str> = adapters.iter().map(|adapter| adapter.name.as_str()).collect();
        StartError::Config(format!("there is no adapter '{}'; use one of {}", args.adapter, known.join(", ")))
    })?;
    let url = reqwest::Url::parse(&args.url).map_err(|error| StartError::Config(format!("--url: {error}")))?;
    let port = url.port_or_known_default().unwrap_or(80);
    let address = format!("{}:{port}", url.host_str().unwrap_or("127.0.0.1"));
    let judge: Judge = Arc::new(|name, _, _| {
        Box::pin(async move { Err(format!("the verifier '{name}' is a component of the server; use a program here")) })
    });
    Ok(Making {
        program: args.program.clone().or_else(|| on_path(&adapter.binary)),
        adapter: Arc::new(adapter),
        reef: std::env::current_exe()
            .map_err(|error| StartError::Other(format!("this program has no path: {error}")))?,
        cage,
        judge,
        line: Line::new(String::new(), None, Vec::new())?,
        gateway: Gateway { address, port },
    })
}

fn report(rows: &[(String, u32, Episode)], isolation: &str, as_json: bool) -> Result<(), StartError> {
    let scores: Vec<f64> = rows.iter().filter_map(|(_, _, episode)| episode.score).collect();
    let mean = (!scores.is_empty()).then(|| scores.iter().sum::<f64>() / scores.len() as f64);
    if as_json {
        let row =
            |(task, seed, episode): &(String, u32, Episode)| json!({ "task": task, "seed": seed, "episode": episode });
        let rows: Vec<Value> = rows.iter().map(row).collect();
        show(&json!({ "episodes": rows, "mean": mean, "scored": scores.len(), "isolation": isolation }))?;
    } else {
        for (task, seed, episode) in rows {
            let outcome = match (episode.status, episode.score) {
                (Status::Scored, Some(score)) => format!("scored {score}"),
                (Status::AgentFailed, _) => format!("the agent failed: {}", episode.reason),
                (Status::VerifierFailed, _) => format!("no score, the verifier failed: {}", episode.reason),
                _ => format!("no score, the machine failed: {}", episode.reason),
            };
            println!("{task}  seed {seed}  {outcome}  ({:.2} s)", episode.seconds);
        }
        println!("{isolation}");
        println!(
            "mean      {}",
            mean.map_or("none".to_owned(), |mean| format!("{mean:.3} of {} episodes", scores.len()))
        );
    }
    if scores.is_empty() { Err(StartError::Other("no episode has a score".to_owned())) } else { Ok(()) }
}
