//! The demo: an ordinary HTTP client that sends small verifiable tasks to a running Reef, reports scores,
//! and measures on held-out prompts what the server learned from them.
//! The caller starts the server and calls `run`; nothing here reaches into the server. Every figure shown
//! comes from the server or from counting answers.

mod board;
mod chart;
mod client;
mod course;
mod error;
pub mod families;
pub mod harness;
mod interval;
mod lesson;
mod page;
mod progress;
pub(crate) mod random;
#[cfg(test)]
mod run_tests;
mod scenario;
#[cfg(test)]
mod scripted;
mod summary;

use std::io::Write as _;
use std::path::PathBuf;

use board::Board;
use client::Client;
use course::Course;
use lesson::Plan;
use page::Heading;
use progress::Progress;

pub use error::DemoError;
pub use families::{Deck, Difficulty, Family, Task};
pub use summary::{DemoSummary, FamilyResult};

/// What to show, where, and to which server.
pub struct DemoOptions {
    /// Address of the server, such as `http://127.0.0.1:8420`.
    pub base_url: String,
    /// Bearer token with the scopes infer, report, read and admin; none for an open server.
    pub token: Option<String>,
    /// Seed of words, splits and sampling.
    pub seed: u64,
    /// Families in the order they are taught.
    pub families: Vec<Family>,
    /// Minutes that one family may take at most, measuring included; a family's own limit may be shorter.
    pub minutes_max: u64,
    /// Where the HTML page is written.
    pub page: PathBuf,
    /// No progress and no summary for people.
    pub quiet: bool,
}

impl std::fmt::Debug for DemoOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let families: Vec<&str> = self.families.iter().map(|family| family.name).collect();
        f.debug_struct("DemoOptions")
            .field("base_url", &self.base_url)
            .field("seed", &self.seed)
            .field("families", &families)
            .finish_non_exhaustive()
    }
}

/// Teaches each family in turn, keeps the page up to date and prints a summary for people. The caller prints
/// `DemoSummary::to_json` when nothing else can follow it.
///
/// # Errors
/// The first failure ends the run; the page keeps what was reached until then.
pub async fn run(options: DemoOptions) -> Result<DemoSummary, DemoError> {
    let client = Client::new(&options.base_url, options.token.clone())?;
    let waiting: Vec<Course> = options.families.iter().map(|family| Course::new(family, options.seed)).collect();
    let progress = Progress::new(options.quiet, &waiting);
    let heading = Heading { seed: options.seed, server: options.base_url.clone() };
    let mut board = Board::new(options.page.clone(), heading, progress, waiting);
    let mut courses = Vec::with_capacity(options.families.len());
    for family in &options.families {
        let plan = Plan { seed: options.seed, minutes_max: family.minutes_max.min(options.minutes_max as f64) };
        let taught = lesson::teach(&client, family, plan, &mut board).await;
        if taught.is_err() {
            board.finish();
        }
        courses.push(taught?);
    }
    board.finish();
    let summary = DemoSummary::of(&courses, options.seed)
        .ok_or_else(|| DemoError::Options("no family is chosen; choose at least one".to_owned()))?;
    if !options.quiet {
        print(&summary, &options).map_err(DemoError::Output)?;
    }
    Ok(summary)
}

fn print(summary: &DemoSummary, options: &DemoOptions) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    write!(out, "\n{}page: {}\n\n", summary.to_text(), options.page.display())?;
    out.flush()
}
