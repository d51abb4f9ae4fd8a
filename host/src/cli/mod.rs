//! The commands of `reef`, with examples; each one is a few lines over the crate that does the work.
//! Exit codes: 0 done, 1 failed, 2 configuration or usage, 3 model, 4 address, 5 storage, 6 recipe, 7 an agent's limit.

pub mod backtest;
pub mod harness;
pub mod harness_run;
pub mod native;
pub mod recipe;
pub mod records;
pub mod registry;
pub mod release;
pub mod release_chain;
pub mod replay;
pub mod rollout;

use std::io::IsTerminal;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reef_core::{InvalidName, ReleaseId, ScenarioName};
use reef_engine::{Compute, Precision, TrainingDevice};
use reef_sandbox::{Compiler, Sandbox, SandboxConfig};
use rustix::process::setpriority_process;
use serde_json::Value;

use crate::bench;
use crate::client::Client;
use crate::component_file::DEFAULT_RECIPE;
use crate::config::{Config, print_config};
use crate::demo;
use crate::error::StartError;
use crate::host;
use crate::jobs::training_section::{TrainingSection, WORKER_COMMAND};
use crate::telemetry::{LogFormat, Telemetry};

/// A server that makes agents learn from their own use.
#[derive(Debug, Parser)]
#[command(name = "reef", version, about, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve a model, record its use, learn from it.
    #[command(
        after_help = "Examples:\n  reef serve --recipe sao.wasm\n  reef serve -c config/reef.yaml --listen 127.0.0.1:9000\n  reef serve --print-config"
    )]
    Serve(ServeArgs),
    /// Watch a model learn from its own traffic, on this machine, in minutes.
    #[command(
        after_help = "Examples:\n  reef demo\n  reef demo --seed 2 --families easy\n  reef demo --json 2>/dev/null | tail -n 1"
    )]
    Demo(DemoArgs),
    /// Watch an agent's harness evolve from one report, without a key and without a network.
    #[command(
        after_help = "REEF_UPSTREAM_URL, REEF_UPSTREAM_MODEL and REEF_UPSTREAM_KEY name a model to use instead of the script.\nExamples:\n  reef demo-harness\n  reef demo-harness --json"
    )]
    DemoHarness(HarnessDemoArgs),
    /// Measure this machine: decode, prefill, training, swap, and the sandbox of recipes.
    #[command(
        after_help = "Examples:\n  reef bench --json\n  reef bench --sandbox --json\n  reef bench --store --json\n  reef bench --training 32x40+8 --json\n  reef bench --swap-seconds 300 --json"
    )]
    Bench(BenchArgs),
    /// What a running server does now.
    #[command(after_help = "Example:\n  reef status --url http://127.0.0.1:8420")]
    Status(Remote),
    /// Releases of a scenario.
    Release {
        #[command(subcommand)]
        command: release::ReleaseCommand,
    },
    /// Records of a scenario.
    Records {
        #[command(subcommand)]
        command: records::RecordsCommand,
    },
    /// Steps of a scenario.
    Step {
        #[command(subcommand)]
        command: release::StepCommand,
    },
    /// Harnesses: as files, and tried on tasks.
    Harness {
        #[command(subcommand)]
        command: harness::HarnessCommand,
    },
    /// One task by the native agent, in the current folder, on an installed harness.
    #[command(
        after_help = "The wrapper reef-native starts this with its harness.\nExit code 0: it answered; 1: the model gave no answer; 2: the harness is wrong or the model refused; 7: a limit.\nExamples:\n  reef native -p 'count the lines of data.csv' --home ~/.reef/harness/native/home/native\n  reef native -p '/review main.rs' --json"
    )]
    Native(native::NativeArgs),
    /// Recipe components.
    Recipe {
        #[command(subcommand)]
        command: recipe::RecipeCommand,
    },
    /// Do a stored step again and compare it with what is stored; a server may run meanwhile.
    #[command(
        after_help = "Exit code 0: the step is the same; 1: it differs.\nExample:\n  reef replay --scenario my-agent 7"
    )]
    Replay(replay::ReplayArgs),
    /// Train with the server that started this process; its instructions come on standard input.
    #[command(name = WORKER_COMMAND, hide = true)]
    TrainWorker,
}

#[derive(Debug, Args)]
struct ServeArgs {
    /// Configuration file (YAML); config/reef.yaml lists every key.
    #[arg(short, long, env = "REEF_CONFIG")]
    config: Option<PathBuf>,
    /// Recipe component to learn with.
    #[arg(long)]
    recipe: Option<PathBuf>,
    /// GGUF file or Hugging Face folder.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Address to serve on.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Folder of the database and the releases.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Show each value and where it came from, then end.
    #[arg(long)]
    print_config: bool,
}

#[derive(Debug, Args)]
struct DemoArgs {
    /// Seed of the tasks.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// `all`, `easy`, or names of task families, separated by commas.
    #[arg(long, default_value = "all")]
    families: String,
    /// The most minutes one family may take.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_440))]
    minutes: u64,
    /// Recipe component.
    #[arg(long, default_value = DEFAULT_RECIPE)]
    recipe: PathBuf,
    /// GGUF file or Hugging Face folder.
    #[arg(long)]
    model: Option<PathBuf>,
    /// The page with the learning curve.
    #[arg(long, default_value = "demo-report.html")]
    page: PathBuf,
    /// Keep the server's data here instead of a temporary folder.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Only the last line: the summary as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct HarnessDemoArgs {
    /// Recipe component.
    #[arg(long, default_value = demo::harness::RECIPE)]
    recipe: PathBuf,
    /// GGUF file or Hugging Face folder; the demo's agent does not ask it.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Only the summary, as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct BenchArgs {
    /// GGUF file or Hugging Face folder.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Recipe component.
    #[arg(long, default_value = DEFAULT_RECIPE)]
    recipe: PathBuf,
    /// Runs of each measurement; the median is told.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    runs: u16,
    /// Only the figures of the sandbox; needs no model.
    #[arg(long)]
    sandbox: bool,
    /// Only this: streams for so many seconds while adapters are exchanged every second, and for as long without.
    #[arg(long, conflicts_with = "sandbox", value_parser = clap::value_parser!(u64).range(2..=86_400))]
    swap_seconds: Option<u64>,
    /// Only this: training steps on a batch of this shape, with the memory they take.
    #[arg(long, value_name = "SAMPLESxPROMPT+RESPONSE", conflicts_with_all = ["sandbox", "swap_seconds"])]
    training: Option<bench::Shape>,
    /// Threads of a forward pass; 0 = all cores.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// With --training: processes that compute each batch together, this one included.
    #[arg(long, default_value_t = 1, requires = "training")]
    workers: usize,
    /// With --training: auto, cpu or cuda:N.
    #[arg(long, default_value_t = TrainingDevice::Cpu, requires = "training")]
    device: TrainingDevice,
    /// With --training: f32 or bf16.
    #[arg(long, default_value_t = Precision::F32, requires = "training")]
    precision: Precision,
    /// With --training: positions of one forward and backward pass.
    #[arg(long, default_value_t = Compute::default().micro_batch_tokens, requires = "training")]
    micro_batch_tokens: usize,
    /// With --training: compute each block again on the way back.
    #[arg(long, requires = "training")]
    gradient_checkpointing: bool,
    /// Only the figures of the store; needs no model.
    #[arg(long, conflicts_with_all = ["sandbox", "swap_seconds", "training"])]
    store: bool,
    /// Records of the scenario that the store's reads are measured on.
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(1_000..=100_000_000))]
    records: u32,
    /// Environment variable with the address of a Postgres database to measure instead of SQLite.
    #[arg(long, requires = "store")]
    postgres_env: Option<String>,
    /// Folder of the guests that the sandbox is measured with.
    #[arg(long, default_value = "target/wasm32-wasip2/recipe")]
    guests: PathBuf,
    /// Folder of the guests in other languages; what is not there is told as absent.
    #[arg(long, default_value = "target/languages")]
    languages: PathBuf,
    /// For machines.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Remote {
    /// Address of the server; http://127.0.0.1:8420 if neither this nor --config says it.
    #[arg(long, env = "REEF_URL")]
    url: Option<String>,
    /// Configuration file of the server on this machine, for its address.
    #[arg(short, long, env = "REEF_CONFIG")]
    config: Option<PathBuf>,
}

impl Remote {
    /// A client of that server.
    fn client(&self) -> Result<Client, StartError> {
        if let Some(url) = &self.url {
            return Client::new(url);
        }
        let mut listen = configured(self.config.as_deref())?.listen;
        if listen.port() == 0 {
            let told = "the configuration lets the server choose a port (listen); name its address with --url";
            return Err(StartError::Config(told.to_owned()));
        }
        if listen.ip().is_unspecified() {
            listen.set_ip(if listen.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        Client::new(&format!("http://{listen}"))
    }
}

/// The configuration in a file, or the defaults.
fn configured(file: Option<&Path>) -> Result<Config, StartError> {
    file.map_or_else(|| Ok(Config::default()), |path| Ok(Config::read(path)?.0))
}

/// Exit code of what has no other.
const FAILURE: u8 = 1;
/// How far a process that trains with a server steps back behind those that serve, from 0 to 19.
const WORKER_NICENESS: i32 = 19;

/// Runs a command to its exit code; errors go to standard error as one sentence.
pub fn run(cli: Cli) -> u8 {
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("reef: the runtime cannot start: {error}");
            return FAILURE;
        }
    };
    let result = runtime.block_on(async {
        match cli.command {
            Command::Serve(args) => serve(args).await,
            Command::Demo(args) => run_demo(args).await,
            Command::DemoHarness(args) => run_harness_demo(args).await,
            Command::Bench(args) => run_bench(args).await,
            Command::Status(remote) => show(&remote.client()?.get("/reef/status").await?),
            Command::Release { command } => release::run(command).await,
            Command::Step { command } => release::run_step(command).await,
            Command::Records { command } => records::run(command).await,
            Command::Harness { command } => harness::run(command).await,
            Command::Native(args) => native::run(args).await,
            Command::Recipe { command } => recipe::run(command).await,
            Command::Replay(args) => replay::run(args).await,
            Command::TrainWorker => train_worker(),
        }
    });
    // Blocking threads (a training step that was cut off) must not keep the process alive.
    runtime.shutdown_background();
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("reef: {error}");
            error.exit_code()
        }
    }
}

fn train_worker() -> Result<(), StartError> {
    // Without it the worker only disturbs more.
    let _ = setpriority_process(None, WORKER_NICENESS);
    reef_engine::train::work().map_err(|error| StartError::Other(format!("a training worker: {error}")))
}

async fn serve(args: ServeArgs) -> Result<(), StartError> {
    let (mut config, file) = match &args.config {
        Some(path) => Config::read(path).map(|(config, value)| (config, Some(value)))?,
        None => (Config::default(), None),
    };
    let mut flags = Vec::new();
    let mut set = |name: &'static str, given: bool| given.then(|| flags.push(name));
    set("recipe", args.recipe.is_some());
    set("model", args.model.is_some());
    set("listen", args.listen.is_some());
    set("data", args.data.is_some());
    config.recipe = args.recipe.or(config.recipe);
    config.model = args.model.unwrap_or(config.model);
    config.listen = args.listen.unwrap_or(config.listen);
    config.data = args.data.unwrap_or(config.data);
    if args.print_config {
        println!("{}", print_config(&config, file.as_ref(), &flags)?);
        return Ok(());
    }
    let telemetry = Telemetry::install(&config.telemetry)?;
    let running = host::start(config).await?;
    println!("reef serves on http://{}", running.address);
    stop_signal().await;
    tracing::info!("stopping");
    running.shutdown().await;
    telemetry.shutdown();
    Ok(())
}

async fn stop_signal() {
    let interrupt = tokio::signal::ctrl_c();
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => drop(signal.recv().await),
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = interrupt => {}
        () = terminated => {}
    }
}

async fn run_demo(args: DemoArgs) -> Result<(), StartError> {
    let families = demo::families::select(&args.families)
        .map_err(|problem| StartError::Config(format!("--families: {problem}")))?;
    let temporary = tempfile::tempdir().map_err(|error| StartError::Other(format!("no temporary folder: {error}")))?;
    let mut config =
        Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), recipe: Some(args.recipe), ..Config::default() };
    config.data = args.data.unwrap_or_else(|| temporary.path().to_path_buf());
    config.model = args.model.unwrap_or(config.model);
    config.telemetry.log = "error".to_owned();
    config.telemetry.log_format = LogFormat::Text;
    // The demo waits for the learner, so training may have the machine.
    config.training.share = 1.0;
    let _telemetry = Telemetry::install(&config.telemetry)?;
    let running = host::start(config).await?;
    let options = demo::DemoOptions {
        base_url: format!("http://{}", running.address),
        token: None,
        seed: args.seed,
        families,
        minutes_max: args.minutes,
        page: args.page,
        quiet: args.json,
    };
    let summary = demo::run(options).await;
    running.shutdown().await;
    let summary = summary.map_err(|error| StartError::Other(error.to_string()))?;
    println!("{}", summary.to_json());
    Ok(())
}

async fn run_harness_demo(args: HarnessDemoArgs) -> Result<(), StartError> {
    let temporary = tempfile::tempdir().map_err(|error| StartError::Other(format!("no temporary folder: {error}")))?;
    let mut config =
        Config { listen: SocketAddr::from(([127, 0, 0, 1], 0)), recipe: Some(args.recipe), ..Config::default() };
    config.data = temporary.path().join("data");
    config.model = args.model.unwrap_or(config.model);
    config.telemetry.log = "error".to_owned();
    config.telemetry.log_format = LogFormat::Text;
    let _telemetry = Telemetry::install(&config.telemetry)?;
    let folder = temporary.path().to_path_buf();
    let summary = demo::harness::run(demo::harness::HarnessDemo { config, folder, quiet: args.json }).await?;
    let passed = summary.passed_after == summary.tasks;
    show(&serde_json::to_value(&summary).unwrap_or_default())?;
    if passed { Ok(()) } else { Err(StartError::Other("a task still fails on the new release".to_owned())) }
}

async fn run_bench(args: BenchArgs) -> Result<(), StartError> {
    let mut config = Config::default();
    config.model = args.model.unwrap_or(config.model);
    config.recipe = Some(args.recipe);
    let guests = bench::Guests { folder: args.guests, languages: args.languages };
    let runs = usize::from(args.runs);
    config.store.postgres_env = args.postgres_env;
    config.engine.threads = args.threads;
    config.training = TrainingSection {
        workers: args.workers,
        device: args.device,
        precision: args.precision,
        micro_batch_tokens: args.micro_batch_tokens,
        gradient_checkpointing: args.gradient_checkpointing,
        ..config.training
    };
    config.training.check().map_err(StartError::Config)?;
    let results = match (args.sandbox, args.store, args.training, args.swap_seconds) {
        (true, ..) => bench::sandbox_only(&config, &guests, runs).await?,
        (_, true, ..) => bench::store_only(&config, runs, args.records).await?,
        (_, _, Some(shape), _) => bench::training_only(&config, shape, runs).await?,
        (.., Some(seconds)) => bench::swaps(&config, seconds).await?,
        (.., None) => bench::run(&config, &guests, runs).await?,
    };
    if args.json {
        println!("{results}");
        return Ok(());
    }
    show(&results)
}

/// Names become parts of addresses, so they are checked before anything is sent.
fn scenario_name(text: &str) -> Result<ScenarioName, InvalidName> {
    ScenarioName::parse(text)
}

fn release_id(text: &str) -> Result<ReleaseId, InvalidName> {
    ReleaseId::parse(text)
}

/// A sandbox that compiles components in a bounded process, as a server does.
fn sandbox(limits: &SandboxConfig) -> Result<Sandbox, StartError> {
    Sandbox::with_compiler(limits.clone(), Compiler::this_program())
        .map_err(|error| StartError::Recipe(error.to_string()))
}

/// Progress on standard error; on a terminal only, unless a machine reads.
fn bar(template: &str, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::no_length();
    let style = ProgressStyle::with_template(template);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
    if quiet || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

fn show(value: &Value) -> Result<(), StartError> {
    let text = serde_json::to_string_pretty(value).map_err(|error| StartError::Other(error.to_string()))?;
    println!("{text}");
    Ok(())
}
