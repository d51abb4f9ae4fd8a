//! `reef release pin|canary|shadow|stop|rollouts`: a release of a running server beside its head.

use clap::Subcommand;
use reef_core::{ReleaseId, ScenarioName};
use serde_json::{Value, json};

use super::{Remote, release_id, scenario_name, show};
use crate::error::StartError;

#[derive(Debug, Subcommand)]
pub(super) enum RolloutCommand {
    /// Serve a release and keep it served: candidates that pass their gate are held until `stop`.
    #[command(after_help = "Example:\n  reef release pin my-agent 3f1c…")]
    Pin {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// Release; where it is not the head, a rollback makes it so.
        #[arg(value_parser = release_id)]
        release: ReleaseId,
        #[command(flatten)]
        remote: Remote,
    },
    /// Answer a share of the traffic with a held or earlier release; scores promote it or roll it back.
    #[command(
        after_help = "Examples:\n  reef release canary my-agent 3f1c… --percent 10\n  reef release canary my-agent 3f1c… --percent 5 --tag user --margin 0.02"
    )]
    Canary {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// Release.
        #[arg(value_parser = release_id)]
        release: ReleaseId,
        /// Percent of the sessions, over 0 and under 100.
        #[arg(long)]
        percent: f64,
        /// Requests with the same value of this tag meet the same release; without it, requests of a session do.
        #[arg(long)]
        tag: Option<String>,
        /// Chance of a wrong promotion, at most [default: 0.05].
        #[arg(long)]
        alpha: Option<f64>,
        /// Score points by which it may be worse; 0 = it must be better [default: 0].
        #[arg(long)]
        margin: Option<f64>,
        /// Pairs of sessions before which nothing is promoted [default: 20].
        #[arg(long)]
        pairs_min: Option<u32>,
        /// Pairs after which it ends undecided [default: 1000].
        #[arg(long)]
        pairs_max: Option<u32>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Let a release answer a share of the requests a second time, unseen and never trained on.
    #[command(after_help = "Example:\n  reef release shadow my-agent 3f1c… --percent 25")]
    Shadow {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        /// Release.
        #[arg(value_parser = release_id)]
        release: ReleaseId,
        /// Percent of the requests, over 0 and at most 100.
        #[arg(long)]
        percent: f64,
        #[command(flatten)]
        remote: Remote,
    },
    /// End the pin, canary or shadow that runs; the head stays where it is.
    Stop {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        #[command(flatten)]
        remote: Remote,
    },
    /// What runs, with its figures so far, and all that ran.
    Rollouts {
        /// Scenario.
        #[arg(value_parser = scenario_name)]
        scenario: ScenarioName,
        #[command(flatten)]
        remote: Remote,
    },
}

pub(super) async fn run(command: RolloutCommand) -> Result<(), StartError> {
    let (remote, scenario, action, body) = match command {
        RolloutCommand::Pin { scenario, release, remote } => {
            (remote, scenario, "pin", json!({ "release_id": release }))
        }
        RolloutCommand::Canary { scenario, release, percent, tag, alpha, margin, pairs_min, pairs_max, remote } => {
            let sticky = if tag.is_some() { "tag" } else { "session" };
            let mut body = json!({
                "release_id": release, "percent": percent, "sticky": sticky, "tag": tag, "alpha": alpha,
                "margin": margin, "pairs_min": pairs_min, "pairs_max": pairs_max,
            });
            if let Some(fields) = body.as_object_mut() {
                fields.retain(|_, value| *value != Value::Null);
            }
            (remote, scenario, "canary", body)
        }
        RolloutCommand::Shadow { scenario, release, percent, remote } => {
            (remote, scenario, "shadow", json!({ "release_id": release, "percent": percent }))
        }
        RolloutCommand::Stop { scenario, remote } => {
            return show(&remote.client()?.delete(&format!("/reef/scenarios/{scenario}/rollout")).await?);
        }
        RolloutCommand::Rollouts { scenario, remote } => {
            return show(&remote.client()?.get(&format!("/reef/scenarios/{scenario}/rollouts")).await?);
        }
    };
    show(&remote.client()?.post(&format!("/reef/scenarios/{scenario}/{action}"), &body).await?)
}
