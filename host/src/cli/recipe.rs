//! `reef recipe …`: make, build, check and try a recipe, look at one, and exchange the one that a scenario uses.

use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Subcommand};
use reef_core::ScenarioName;
use reef_sandbox::Recipe;
use serde_json::{Map, Value, json};

use super::backtest::{self, BacktestArgs, values};
use super::registry::{self, RegistryCommand};
use super::release::table;
use super::{Remote, sandbox, scenario_name, show};
use crate::component_file;
use crate::config::Config;
use crate::error::StartError;
use crate::lab::check::{self, Finding};
use crate::lab::project::{self, Language};
use crate::lab::trial::{self, Trial, TrialStep};

/// Bytes of a component that is sent to a server, whose own limit has the last word.
const SENT_BYTES_MAX: u64 = 1 << 30;

#[derive(Debug, Subcommand)]
pub(super) enum RecipeCommand {
    /// Make a folder with a recipe that works.
    #[command(after_help = "Example:\n  reef recipe new my-recipe --lang python\n  reef recipe build my-recipe")]
    New {
        /// Lower-case letters, digits and '-'.
        name: String,
        /// Language of the source.
        #[arg(long, value_enum, default_value_t = Language::Rust)]
        lang: Language,
        /// The folder; the name if it is left out.
        #[arg(long)]
        folder: Option<PathBuf>,
    },
    /// Build the component of a recipe: a folder, or its one source.
    #[command(after_help = "Example:\n  reef recipe build my-recipe\n  reef recipe build my_recipe.py --out my.wasm")]
    Build {
        /// Folder, Cargo.toml, .py, .ts, .js or .c file.
        source: PathBuf,
        /// The component; beside the source if it is left out.
        #[arg(long)]
        out: Option<PathBuf>,
    },
    /// Would a server run this component, and does it behave? World, capabilities, size, determinism, budgets.
    #[command(after_help = "Example:\n  reef recipe check my_recipe.wasm")]
    Check(TryArgs),
    /// A few steps in the real sandbox on generated experience: nothing is served, stored or trained.
    #[command(after_help = "Example:\n  reef recipe test my_recipe.wasm --steps 3 --set batch_size=16")]
    Test {
        #[command(flatten)]
        what: TryArgs,
        /// Samples that arrive before each step.
        #[arg(long, default_value_t = 48, value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
        samples: usize,
        /// Steps.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        steps: u32,
        /// Seed of the experience.
        #[arg(long, default_value_t = 1)]
        seed: u32,
    },
    /// Load a component in the sandbox and show what it is: generation, imports, exports, digest, a sample call.
    #[command(after_help = "Example:\n  reef recipe inspect target/wasm32-wasip2/recipe/reef_recipe_sao.wasm")]
    Inspect {
        /// Component.
        path: PathBuf,
    },
    /// Run a component over the recorded experience of a scenario, beside the recipe in use; nothing is changed.
    #[command(
        after_help = "The reports arrive in their order and a selection follows each. What serves, and so every lag, is\nwhat served when the report arrived; what an imagined step proposes serves nobody.\n\nExample:\n  reef recipe backtest my_recipe.wasm --scenario my-agent --set batch_size=16"
    )]
    Backtest(BacktestArgs),
    /// Exchange the recipe of a scenario while it runs, on the surface that it evolves: tried on recorded selections, state
    /// migrated, then swapped.
    #[command(after_help = "Example:\n  reef recipe use my_recipe.wasm --scenario my-agent")]
    Use {
        /// Component.
        path: PathBuf,
        /// Scenario.
        #[arg(long, value_parser = scenario_name)]
        scenario: ScenarioName,
        #[command(flatten)]
        remote: Remote,
    },
    /// Go back to the recipe that the scenario used before, with its state.
    #[command(after_help = "Example:\n  reef recipe rollback --scenario my-agent")]
    Rollback {
        /// Scenario.
        #[arg(long, value_parser = scenario_name)]
        scenario: ScenarioName,
        /// weights or harness, where recipes evolve both; else the one that is evolved.
        #[arg(long, value_parser = ["weights", "harness"])]
        surface: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    #[command(flatten)]
    Registry(RegistryCommand),
}

#[derive(Debug, Args)]
pub(super) struct TryArgs {
    /// Component.
    recipe: PathBuf,
    /// Configuration file of the server, for limits and grants.
    #[arg(short, long)]
    config: Option<PathBuf>,
    /// `key=value` of the recipe's configuration; the value is JSON or text. May be repeated.
    #[arg(long)]
    set: Vec<String>,
    /// For machines.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(command: RecipeCommand) -> Result<(), StartError> {
    match command {
        RecipeCommand::New { name, lang, folder } => {
            let folder = folder.unwrap_or_else(|| PathBuf::from(&name));
            let source = project::create(&name, lang, &folder)?;
            println!("edit {}, then: reef recipe build {}", source.display(), folder.display());
            Ok(())
        }
        RecipeCommand::Build { source, out } => {
            let built = blocking(move || project::build(&source, out)).await?;
            println!("{}", built.display());
            Ok(())
        }
        RecipeCommand::Check(args) => run_check(args).await,
        RecipeCommand::Test { what, samples, steps, seed } => run_trial(what, (samples, steps, seed)).await,
        RecipeCommand::Inspect { path } => inspect(path).await,
        RecipeCommand::Backtest(args) => backtest::run(args).await,
        RecipeCommand::Registry(command) => registry::run(command).await,
        RecipeCommand::Use { path, scenario, remote } => {
            let bytes = component_file::read_async(&path, SENT_BYTES_MAX).await?;
            show(&remote.client()?.put(&format!("/reef/scenarios/{scenario}/recipe"), bytes).await?)
        }
        RecipeCommand::Rollback { scenario, surface, remote } => {
            let query = surface.map(|surface| format!("?surface={surface}")).unwrap_or_default();
            let path = format!("/reef/scenarios/{scenario}/recipe/rollback{query}");
            show(&remote.client()?.post(&path, &json!({})).await?)
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StartError> + Send + 'static,
) -> Result<T, StartError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StartError::Other(error.to_string()))?
}

/// What is tried, and with what.
struct Tried {
    recipe: Recipe,
    bytes: usize,
    config: Config,
    /// The recipe's configuration.
    values: Map<String, Value>,
}

/// A component in a sandbox with the operator's limits.
async fn load(args: &TryArgs) -> Result<Tried, StartError> {
    let config = match &args.config {
        Some(path) => Config::read(path)?.0,
        None => Config::default(),
    };
    let mut of_recipe: Map<String, Value> = config.recipes.config.clone().into_iter().collect();
    of_recipe.extend(values(&args.set)?);
    let (recipe, bytes) = component_file::load(&sandbox(&config.sandbox)?, &args.recipe, &config).await?;
    Ok(Tried { recipe, bytes: bytes.len(), config, values: of_recipe })
}

fn trial(tried: &Tried, (samples, steps, seed): (usize, u32, u32)) -> Trial {
    Trial { samples, steps, seed, config: tried.values.clone(), pool_max: tried.config.training.pool_max }
}

async fn run_check(args: TryArgs) -> Result<(), StartError> {
    let Tried { recipe, bytes, config, values } = load(&args).await?;
    let lines = check::check(&recipe, bytes, &values, &config.sandbox).await;
    if args.json {
        show(&json!({ "recipe": recipe.label(), "passed": check::passed(&lines), "lines": lines }))?;
    } else {
        println!("{}", recipe.label());
        let mark = |finding| match finding {
            Finding::Ok => "ok",
            Finding::Warning => "look",
            Finding::Failed => "FAILED",
        };
        let rows: Vec<[String; 3]> =
            lines.iter().map(|line| [mark(line.finding).to_owned(), line.what.to_owned(), line.told.clone()]).collect();
        print!("{}", table(&rows));
    }
    if check::passed(&lines) {
        return Ok(());
    }
    Err(StartError::Recipe("the check failed; what to mend stands in the lines marked FAILED".to_owned()))
}

async fn run_trial(args: TryArgs, sizes: (usize, u32, u32)) -> Result<(), StartError> {
    let tried = load(&args).await?;
    let (recipe, trial) = (&tried.recipe, trial(&tried, sizes));
    recipe.manifest().check_config(&trial.config).map_err(|problem| StartError::Config(format!("--set: {problem}")))?;
    let ran = trial::run(recipe, &trial).await;
    if args.json {
        show(&trial::to_json(recipe, &trial, &ran))?;
    } else {
        println!("{} on generated experience, seed {}", recipe.label(), trial.seed);
        ran.iter().for_each(|step| print!("{}", step_text(step)));
    }
    trial::failure(&ran).map_or(Ok(()), |told| Err(StartError::Recipe(told.to_owned())))
}

fn step_text(step: &TrialStep) -> String {
    let mut rows = vec![];
    for ((function, decision), call) in step.decisions.iter().zip(&step.calls) {
        let cost = format!("fuel {}, {} µs, {} KiB", call.fuel, call.guest_us, call.memory_peak_bytes >> 10);
        rows.push([format!("  {function}"), cost, decision.clone()]);
    }
    let metrics: Vec<_> = step.metrics.iter().map(|(name, value)| format!("{name} {value:.4}")).collect();
    let told = if metrics.is_empty() { String::new() } else { format!("  metrics: {}\n", metrics.join(", ")) };
    format!("step {}, {} samples in the pool\n{}{told}", step.step, step.pool, table(&rows))
}

async fn inspect(path: PathBuf) -> Result<(), StartError> {
    let tried = load(&TryArgs { recipe: path, config: None, set: Vec::new(), json: true }).await?;
    let recipe = &tried.recipe;
    let ran = trial::run(recipe, &trial(&tried, (48, 1, 1))).await;
    let calls: Vec<_> = ran.iter().flat_map(|step| &step.calls).collect();
    show(&json!({
        "label": recipe.label(),
        "digest": recipe.digest(),
        "generation": recipe.generation(),
        "imports": recipe.imports(),
        "exports": recipe.exports(),
        "manifest": recipe.manifest(),
        "sample_calls": calls,
    }))
}
