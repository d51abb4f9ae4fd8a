//! `reef recipe backtest`: what a component would have made of recorded experience.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};

use super::release::table;
use super::replay::Place;
use super::{bar, show};
use crate::error::StartError;
use crate::jobs::backtest::{Backtest, Column, STEPS_MAX, Turned, Wanted, backtest};

/// Rows of steps that are shown.
const ROWS_MAX: usize = 50;
/// Characters of an outcome that are shown.
const OUTCOME_CHARS_MAX: usize = 60;

#[derive(Debug, Args)]
pub(super) struct BacktestArgs {
    /// Component.
    recipe: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Steps after which it ends.
    #[arg(long, default_value_t = STEPS_MAX, value_parser = clap::value_parser!(u32).range(1..=i64::from(STEPS_MAX)))]
    steps: u32,
    /// Propose with the real trainer, instead of looking at selections only.
    #[arg(long)]
    train: bool,
    /// `key=value` of the recipe's configuration, over the scenario's; the value is JSON or text. May be repeated.
    #[arg(long)]
    set: Vec<String>,
    /// For machines.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(args: BacktestArgs) -> Result<(), StartError> {
    let (config, (tenant, scenario)) = (args.place.config()?, args.place.names()?);
    let values = values(&args.set)?;
    let wanted =
        Wanted { config, tenant, scenario, recipe: args.recipe, values, steps_max: args.steps, train: args.train };
    let bar = bar("{spinner} {pos} reports  {per_sec}  {elapsed}", args.json);
    let result = backtest(&wanted, &|reports| bar.set_position(reports)).await;
    bar.finish_and_clear();
    let result = result?;
    if args.json {
        return show(&json!(result));
    }
    print!("{}", text(&result));
    Ok(())
}

pub(super) fn values(given: &[String]) -> Result<Map<String, Value>, StartError> {
    let pair = |text: &String| {
        let (key, value) =
            text.split_once('=').ok_or_else(|| StartError::Config(format!("--set {text}: write it as key=value")))?;
        Ok((key.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()))))
    };
    given.iter().map(pair).collect()
}

fn text(result: &Backtest) -> String {
    let (imagined, recorded) = (&result.imagined, &result.recorded);
    let mut out = format!("{} reports\n\n", result.reports);
    let header = ["step", "reports", "score", "outcome", "same batch as"].map(str::to_owned);
    for (title, column) in [("this recipe", imagined), ("really happened", recorded)] {
        out.push_str(&format!("{title}: {}\n", column.recipes.join(", ")));
        let mut rows = vec![header.clone()];
        rows.extend(column.steps.iter().take(ROWS_MAX).map(row));
        out.push_str(&table(&rows));
        if column.steps.len() > ROWS_MAX {
            out.push_str(&format!("… and {} more; --json has them all\n", column.steps.len() - ROWS_MAX));
        }
        out.push('\n');
    }
    out.push_str(&table(&summary(imagined, recorded)));
    for note in &result.notes {
        out.push_str(&format!("note: {note}\n"));
    }
    out
}

fn row(step: &Turned) -> [String; 5] {
    [
        step.step.to_string(),
        step.batch.len().to_string(),
        step.score_mean.map_or("–".to_owned(), |mean| format!("{mean:.3}")),
        step.outcome.chars().take(OUTCOME_CHARS_MAX).collect(),
        step.same_as.map(|real| format!("step {real}")).unwrap_or_default(),
    ]
}

/// The figures of both sides in one table.
fn summary(imagined: &Column, recorded: &Column) -> Vec<[String; 3]> {
    let trained = |column: &Column| column.steps.iter().map(|step| step.batch.len()).sum::<usize>().to_string();
    let waits = |column: &Column| column.waits.map_or("–".to_owned(), |waits| waits.to_string());
    let last = |column: &Column| column.last_wait.clone().unwrap_or_else(|| "–".to_owned());
    let mut rows = vec![["", "this recipe", "really happened"].map(str::to_owned)];
    let mut add = |name: &str, one: String, other: String| rows.push([name.to_owned(), one, other]);
    add("steps", imagined.steps.len().to_string(), recorded.steps.len().to_string());
    add("reports trained on", trained(imagined), trained(recorded));
    add("waits", waits(imagined), waits(recorded));
    add("last wait", last(imagined), last(recorded));
    let shown = |count: Option<&u64>| count.map_or("0".to_owned(), u64::to_string);
    let mut union = |kind: &str, one: &BTreeMap<String, u64>, other: &BTreeMap<String, u64>| {
        let names: std::collections::BTreeSet<&String> = one.keys().chain(other.keys()).collect();
        for name in names {
            add(&format!("{kind}: {name}"), shown(one.get(name)), shown(other.get(name)));
        }
    };
    union("refused", &imagined.refused, &recorded.refused);
    union("fault", &imagined.faults, &recorded.faults);
    rows
}
