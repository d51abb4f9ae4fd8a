//! `reef-experiment-circle-packing [EVALUATIONS [SEEDS [OUT.json]]]`: runs the experiment on 26 and 32 circles, prints
//! who won and writes the results.

use std::process::ExitCode;

use reef_experiment_circle_packing::report::Experiment;

/// Evaluations of the objective a search may spend when the command names no number.
const EVALUATIONS: u64 = 2_000_000;
/// The first seed; smaller ones were used while the mutations were written.
const SEED_FIRST: u64 = 11;
/// Seeds when the command names no number.
const SEEDS: u64 = 5;
/// Where results go when the command names no file.
const OUT: &str = "experiments/circle-packing/results.json";

fn experiment() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let evaluations = match arguments.next() {
        Some(text) => text.parse().map_err(|error| format!("{text} is no number of evaluations: {error}"))?,
        None => EVALUATIONS,
    };
    let seeds: u64 = match arguments.next() {
        Some(text) => text.parse().map_err(|error| format!("{text} is no number of seeds: {error}"))?,
        None => SEEDS,
    };
    let seeds: Vec<u64> = (SEED_FIRST..SEED_FIRST.saturating_add(seeds)).collect();
    let out = arguments.next().unwrap_or_else(|| OUT.to_owned());
    let experiment = Experiment::run(&[26, 32], &seeds, evaluations, |run| {
        println!(
            "{} circles, seed {}, {:?}: {:.9} in {} local runs, {} evaluations, {:.1} s",
            run.circles, run.seed, run.arm, run.best, run.local_runs, run.evaluations, run.seconds
        );
    })
    .map_err(|error| error.to_string())?;
    println!("\n{}", experiment.table());
    let json = serde_json::to_string_pretty(&experiment).map_err(|error| error.to_string())?;
    std::fs::write(&out, json + "\n").map_err(|error| format!("{out} cannot be written: {error}"))
}

fn main() -> ExitCode {
    match experiment() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}
