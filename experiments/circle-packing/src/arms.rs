//! The arms: restarts from nothing, and the archive search with and without exploration. Each spends evaluations of the
//! objective and tells what it had found after how many.

use std::collections::BTreeMap;
use std::time::Instant;

use rand::RngExt;
use reef_search::{Node, Problem, Rollout, Search, SearchError, Settings};
use reef_verifier_circle_packing::{Circle, check, parse, write};
use serde::{Deserialize, Serialize};

use crate::local::Optimizer;
use crate::mutate::{anywhere, generator, mutated};

/// Starting points of a search; they are random restarts and count.
const SEEDS: u64 = 8;
/// Sums closer than this are taken for the same packing.
const SUM_STEP: f64 = 1e-7;
/// Parents of a step.
const GROUPS: u32 = 4;
/// Children of a parent.
const ROLLOUTS: u32 = 4;

/// How children are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arm {
    /// Every run starts from random circles.
    Restarts,
    /// PUCT with c = 1.
    Puct,
    /// The archive without exploration, c = 0: always what is best, one parent a step.
    Greedy,
}

/// A better packing, and after how many evaluations it was there.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Improvement {
    /// Evaluations of the objective until then.
    pub evaluations: u64,
    /// Sum of the radii.
    pub sum: f64,
}

/// What an arm found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Circles.
    pub circles: usize,
    /// Seed of all randomness.
    pub seed: u64,
    /// How children were made.
    pub arm: Arm,
    /// Sum of the radii of the best packing, valid at tolerance 0.
    pub best: f64,
    /// Evaluations of the objective that were spent.
    pub evaluations: u64,
    /// Local optimisations that were run.
    pub local_runs: u64,
    /// Wall seconds, on one thread.
    pub seconds: f64,
    /// Every improvement, first to last.
    pub improvements: Vec<Improvement>,
    /// The best packing as the verifier reads it.
    pub packing: String,
}

/// Packings, their optimiser and what was found so far.
struct Packer {
    n: usize,
    optimizer: Optimizer,
    improvements: Vec<Improvement>,
    packing: String,
    /// The first packing of each sum. Sums that agree to [`SUM_STEP`] belong to one packing up to symmetry, rounding
    /// and loose circles, and an archive keeps equal constructions once.
    known: BTreeMap<u64, String>,
}

impl Packer {
    fn new(n: usize) -> Self {
        Self {
            n,
            optimizer: Optimizer::default(),
            improvements: Vec::new(),
            packing: String::new(),
            known: BTreeMap::new(),
        }
    }

    /// Optimises a starting point and remembers it if it is the best; the error says why it did not become a packing.
    fn pack(&mut self, start: &[Circle]) -> Result<(String, f64), String> {
        let circles = self.optimizer.optimize(start);
        let sum = check(&circles, 0.0)?;
        let known = self.known.entry((sum / SUM_STEP).round() as u64).or_insert_with(|| write(&circles));
        let construction = known.clone();
        if self.improvements.last().is_none_or(|best| sum > best.sum) {
            self.improvements.push(Improvement { evaluations: self.optimizer.evaluations, sum });
            self.packing = write(&circles);
        }
        Ok((construction, sum))
    }
}

impl Problem for Packer {
    fn propose(&mut self, parent: &Node, rollout: &Rollout) -> Result<String, String> {
        let start = mutated(&mut generator(rollout.seed), &parse(&parent.construction)?);
        self.pack(&start).map(|(construction, _)| construction)
    }

    fn verify(&mut self, construction: &str) -> Result<f64, String> {
        check(&parse(construction)?, 0.0)
    }
}

/// Runs one arm until it has spent `evaluations`; it ends what it has begun.
///
/// # Errors
/// The search refuses: none of its starting points became a packing.
pub fn run(arm: Arm, circles: usize, seed: u64, evaluations: u64) -> Result<Run, SearchError> {
    let began = Instant::now();
    let mut packer = Packer::new(circles);
    match arm {
        Arm::Restarts => restart(&mut packer, seed, evaluations),
        Arm::Puct => search(&mut packer, seed, evaluations, 1.0)?,
        Arm::Greedy => search(&mut packer, seed, evaluations, 0.0)?,
    }
    Ok(Run {
        circles,
        seed,
        arm,
        best: packer.improvements.last().map_or(0.0, |best| best.sum),
        evaluations: packer.optimizer.evaluations,
        local_runs: packer.optimizer.runs,
        seconds: began.elapsed().as_secs_f64(),
        improvements: packer.improvements,
        packing: packer.packing,
    })
}

fn restart(packer: &mut Packer, seed: u64, evaluations: u64) {
    let mut rng = generator(seed);
    while packer.optimizer.evaluations < evaluations {
        let start = anywhere(&mut rng, packer.n);
        // What did not become a packing was paid for, here as in a search, and there is another start.
        let _ = packer.pack(&start);
    }
}

fn search(packer: &mut Packer, seed: u64, evaluations: u64, exploration: f64) -> Result<(), SearchError> {
    let mut rng = generator(seed);
    let mut starts: Vec<(String, f64)> = Vec::new();
    for _ in 0..SEEDS {
        let start = anywhere(&mut rng, packer.n);
        // Two random starts may lead to one packing.
        if let Ok(found) = packer.pack(&start)
            && starts.iter().all(|(known, _)| *known != found.0)
        {
            starts.push(found);
        }
    }
    let groups_per_step = if exploration > 0.0 { GROUPS } else { 1 };
    let rollouts_per_group = ROLLOUTS * GROUPS / groups_per_step;
    let settings = Settings { groups_per_step, rollouts_per_group, exploration, seed: rng.random() };
    let mut search = Search::new(settings, starts)?;
    while packer.optimizer.evaluations < evaluations {
        search.step(packer)?;
    }
    Ok(())
}
