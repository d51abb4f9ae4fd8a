//! `reef native`: one task by the native agent, in the folder where it is started, on an installed harness. The wrapper
//! `reef-native` starts it; a person may, too.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use reef_episodes::{Agent, Cage, Ended, HOME_VARIABLE, Home, Isolation, Stop};
use serde_json::json;

use super::show;
use crate::episodes::model::Line;
use crate::error::StartError;

/// The token of the server.
const TOKEN_VARIABLE: &str = "REEF_TOKEN";
/// The session that the run belongs to.
const SESSION_VARIABLE: &str = "REEF_SESSION";
/// What the wrapper says instead of nothing.
const NONE: &str = "none";

/// How the commands of the agent run.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Apart {
    /// In bubblewrap, or not at all.
    Required,
    /// In bubblewrap where it works.
    Preferred,
    /// As this user.
    None,
}

#[derive(Debug, Args)]
pub(super) struct NativeArgs {
    /// The task; `/name …` begins it with a command of the harness.
    #[arg(short, long)]
    prompt: String,
    /// Folder of the rendered harness.
    #[arg(long, env = HOME_VARIABLE)]
    home: PathBuf,
    /// Folder to work in; the current one by default.
    #[arg(long)]
    work: Option<PathBuf>,
    /// How the agent's commands run: without network and other files, or as you do.
    #[arg(long, value_enum, default_value = "preferred")]
    isolation: Apart,
    /// Seed for the model.
    #[arg(long)]
    seed: Option<u32>,
    /// Show on standard error what the agent did.
    #[arg(long)]
    trace: bool,
    /// The answer with what it took, as one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: NativeArgs) -> Result<(), StartError> {
    let home = Home::read(&args.home).map_err(|error| StartError::Config(error.to_string()))?;
    let work = match args.work {
        Some(work) => work,
        None => std::env::current_dir().map_err(|error| StartError::Config(format!("the current folder: {error}")))?,
    };
    let wanted = match args.isolation {
        Apart::Required => Isolation::Required,
        Apart::Preferred => Isolation::Preferred,
        Apart::None => Isolation::None,
    };
    let cage = Cage::detect(wanted).await.map_err(|error| StartError::Config(error.to_string()))?;
    let line = line(&home)?;
    let agent = Agent::new(home, work.clone(), cage, line.ask())
        .map_err(|error| StartError::Config(format!("{}: {error}; name a folder with --work", work.display())))?;
    let agent = match args.seed {
        Some(seed) => agent.seeded(seed),
        None => agent,
    };
    let ended = agent.run(&args.prompt).await;
    if args.trace {
        eprintln!("{}", plain(&ended.trace));
    }
    let Ended { stop, answer, usage, .. } = ended;
    if args.json {
        let stopped = match &stop {
            Stop::Answered => "answered",
            Stop::Limit(_) => "limit",
            Stop::Refused(_) => "refused",
            Stop::Unavailable(_) => "unavailable",
        };
        show(&json!({
            "answer": answer, "stopped": stopped, "turns": usage.turns, "tool_calls": usage.tool_calls,
            "tokens": usage.tokens, "receipts": usage.receipts,
        }))?;
    } else if stop == Stop::Answered {
        println!("{}", plain(&answer));
    }
    match stop {
        Stop::Answered => Ok(()),
        Stop::Limit(told) => Err(StartError::Limit(format!("the agent stopped before it was done: {told}"))),
        Stop::Refused(told) => Err(StartError::Refused(format!("the model refused the request: {told}"))),
        Stop::Unavailable(told) => Err(StartError::Other(format!("the model gave no answer: {told}"))),
    }
}

/// The way to the model that the home names, with scenario, release and session in every request.
fn line(home: &Home) -> Result<Line, StartError> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty() && value != NONE);
    let settings = &home.settings;
    let mut headers = vec![
        ("x-reef-scenario", settings.scenario.clone()),
        ("x-reef-tag-client", "native".to_owned()),
        ("x-reef-tag-release", settings.release.clone()),
    ];
    headers.extend(variable(SESSION_VARIABLE).map(|session| ("x-reef-tag-session", session)));
    Line::new(settings.endpoint(), variable(TOKEN_VARIABLE), headers)
}

/// A model's text for a terminal.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}
