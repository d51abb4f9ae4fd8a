//! `reef replay`: a stored step done again, thing by thing.

use std::path::PathBuf;

use clap::Args;
use reef_core::{ScenarioName, TenantId};
use serde_json::json;

use super::{configured, show};
use crate::config::Config;
use crate::error::StartError;
use crate::jobs::replay_step::{Replayed, Wanted, replay_step};

/// Which stored step, and where it lies.
#[derive(Debug, Args)]
pub(super) struct Place {
    /// Scenario.
    #[arg(long)]
    pub(super) scenario: String,
    /// Owner of the scenario.
    #[arg(long, default_value = "default")]
    pub(super) tenant: String,
    /// Folder of the server.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Configuration file of the server, for its folder, its database, limits and sizes.
    #[arg(short, long, env = "REEF_CONFIG")]
    config: Option<PathBuf>,
    /// GGUF file or Hugging Face folder that the scenario learns on.
    #[arg(long)]
    model: Option<PathBuf>,
}

impl Place {
    /// The server's configuration, with the folder and the model that are named here.
    pub(super) fn config(&self) -> Result<Config, StartError> {
        let mut config = configured(self.config.as_deref())?;
        config.data = self.data.clone().unwrap_or(config.data);
        config.model = self.model.clone().unwrap_or(config.model);
        Ok(config)
    }

    /// Checked names.
    pub(super) fn names(&self) -> Result<(TenantId, ScenarioName), StartError> {
        let refuse = |flag: &str, error: String| StartError::Config(format!("--{flag}: {error}"));
        Ok((
            TenantId::parse(self.tenant.as_str()).map_err(|error| refuse("tenant", error.to_string()))?,
            ScenarioName::parse(self.scenario.as_str()).map_err(|error| refuse("scenario", error.to_string()))?,
        ))
    }
}

#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Number of the step.
    step: u32,
    #[command(flatten)]
    place: Place,
    /// Threads of the trainer; left out = as many as the step had. Others may round differently.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    threads: Option<u16>,
    /// For machines.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: ReplayArgs) -> Result<(), StartError> {
    let (config, (tenant, scenario)) = (args.place.config()?, args.place.names()?);
    let wanted = Wanted {
        data: config.data,
        store: config.store,
        model: config.model,
        tenant,
        scenario,
        step: args.step,
        threads: args.threads.map(usize::from),
        compile_in_process: false,
    };
    let replayed = replay_step(&wanted).await?;
    if args.json {
        show(&json!(replayed))?;
    } else {
        print!("{}", text(&replayed));
    }
    if replayed.same {
        return Ok(());
    }
    let differing = replayed.items.iter().filter(|item| !item.same).count();
    Err(StartError::Other(format!("step {} differs in {differing} of {} things", replayed.step, replayed.items.len())))
}

fn text(replayed: &Replayed) -> String {
    let mut out = format!("step {} with {}\n", replayed.step, replayed.recipe);
    let width = replayed.items.iter().map(|item| item.name.chars().count()).max().unwrap_or(0);
    for item in &replayed.items {
        let told = if item.same {
            format!("same     {}", item.was)
        } else {
            format!("DIFFERS  was {}, is {}", item.was, item.is)
        };
        out.push_str(&format!("  {:<width$}  {told}\n", item.name));
    }
    for note in &replayed.notes {
        out.push_str(&format!("  note: {note}\n"));
    }
    out
}
