//! What a gate says of measured candidates: in words, and in the numbers behind them.
//! The host calls it in a step, and again when the step is replayed, so the same measurements give the same decision.

use serde::{Deserialize, Serialize};

use super::betting::{self, Interval, p_at_most};
use super::measurement::{Measurement, Paired, mean};
use super::sign_flip::sign_flip;
use super::{Gate, PAIRS_MAX, Progress, Proof};

/// Means that differ by less are equal: 0.6 - 0.5 is under 0.1 in binary.
const ROUNDING: f64 = 1e-9;
/// Error on each side of the interval of a gate that states no alpha: together 95 % of coverage.
const SIDE_ALPHA: f64 = 0.025;

/// What the gate said; stored with the step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateDecision {
    /// May it be released?
    pub pass: bool,
    /// Why.
    pub reason: String,
    /// Nothing was decided, because measuring failed; never together with `pass`. It may be tried again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undecided: bool,
    /// The numbers; none where nothing was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Evidence>,
}

/// The numbers behind a decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Tasks that both sides answered, or the candidate where only it is asked.
    pub tasks: u32,
    /// Tasks left out because an answer failed.
    pub failed: u32,
    /// Mean score of the candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub candidate: Option<f64>,
    /// Mean score of the incumbent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incumbent: Option<f64>,
    /// Mean of candidate minus incumbent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub difference: Option<f64>,
    /// Where the true mean difference lies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// The test, where the gate asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<Tested>,
}

/// The result of a test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tested {
    /// How p was found.
    pub method: Method,
    /// How often a candidate that does not meet the claim looks this good, at most.
    pub p: f64,
    /// Largest p that passes.
    pub alpha: f64,
}

/// A test of paired scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Sign-flip test over every pattern.
    SignFlipExact,
    /// Sign-flip test over random patterns.
    SignFlipMonteCarlo,
    /// Betting on a number of tasks that was fixed.
    Betting,
    /// Betting, looking after every task.
    BettingAnytime,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::SignFlipExact => "exact sign-flip test",
            Self::SignFlipMonteCarlo => "Monte Carlo sign-flip test",
            Self::Betting => "betting test",
            Self::BettingAnytime => "betting test with early stop",
        })
    }
}

impl GateDecision {
    /// A decision without numbers.
    pub fn plain(pass: bool, reason: impl Into<String>) -> Self {
        Self { pass, reason: reason.into(), undecided: false, evidence: None }
    }

    /// No decision: measuring failed.
    pub fn undecided(reason: impl Into<String>) -> Self {
        Self { undecided: true, ..Self::plain(false, reason) }
    }

    fn with(self, evidence: Evidence) -> Self {
        Self { evidence: Some(evidence), ..self }
    }
}

/// Applies the gate to measurements of candidate and incumbent on the same held-out tasks, in the same order.
///
/// With nothing to compare, only a gate that asks for no proof of anything passes: `always`, and `non-inferiority`
/// without `alpha`, because no harm was measured. A gate that `check` refuses passes nothing. `floor` reads the
/// candidate only.
pub fn gate_decision(gate: Gate, candidate: &[Measurement], incumbent: &[Measurement]) -> GateDecision {
    if let Err(problem) = gate.check() {
        return GateDecision::plain(false, problem);
    }
    if !gate.measures() {
        return GateDecision::plain(true, gate.to_string());
    }
    if gate.compares() && candidate.len() != incumbent.len() {
        let (new, old) = (candidate.len(), incumbent.len());
        return GateDecision::undecided(format!("undecided: {new} tasks of the candidate meet {old} of the incumbent"));
    }
    if candidate.is_empty() {
        let harmless = matches!(gate, Gate::NonInferiority { alpha: None, .. });
        return GateDecision::plain(harmless, "the scenario has no held-out tasks to compare on");
    }
    let paired = Paired::of(candidate, if gate.compares() { incumbent } else { candidate });
    if let Some(problem) = paired.unusable() {
        return GateDecision::undecided(problem).with(evidence(gate, &paired));
    }
    match gate.proof() {
        None => by_means(gate, &paired),
        Some(proof) if proof.early_stop => match proof.run(candidate, incumbent) {
            Err(problem) => GateDecision::plain(false, problem),
            Ok((run, progress)) => {
                let tested = Tested { method: Method::BettingAnytime, p: run.p(), alpha: proof.alpha };
                let ended = run.is_under() || progress == Progress::Accept;
                by_proof(gate, &paired, (tested, ended), progress == Progress::Accept)
            }
        },
        Some(proof) => {
            let tested = proof.test(&paired.differences());
            by_proof(gate, &paired, (tested, false), tested.p <= tested.alpha)
        }
    }
}

impl Proof {
    fn test(self, differences: &[f64]) -> Tested {
        let (method, p) = if self.is_by_sign_flip() {
            let (p, exact) = sign_flip(differences);
            (if exact { Method::SignFlipExact } else { Method::SignFlipMonteCarlo }, p)
        } else {
            (Method::Betting, p_at_most(self.threshold, differences))
        };
        Tested { method, p, alpha: self.alpha }
    }
}

fn by_means(gate: Gate, paired: &Paired) -> GateDecision {
    let new = mean(&paired.candidate);
    let change = new - mean(&paired.incumbent);
    let pass = match gate {
        Gate::Floor { minimum } => new >= minimum - ROUNDING,
        Gate::ScoreComparison {} => change > ROUNDING,
        Gate::MinImprovement { delta } => change >= delta - ROUNDING,
        Gate::NonInferiority { margin, .. } => change >= -margin - ROUNDING,
        Gate::Always {} | Gate::Superiority { .. } => false,
    };
    GateDecision::plain(pass, format!("{}; {gate}", told(gate, paired))).with(evidence(gate, paired))
}

/// `settled`: the comparison ended before its tasks did, so that their number is no reason against it.
fn by_proof(gate: Gate, paired: &Paired, (tested, settled): (Tested, bool), shown: bool) -> GateDecision {
    let evidence = Evidence { test: Some(tested), ..evidence(gate, paired) };
    let told = told(gate, paired);
    let minimum = gate.proof().map_or(0, |proof| proof.minimum);
    let (scored, all) = (evidence.tasks, evidence.tasks.saturating_add(evidence.failed));
    if scored < minimum && !settled {
        let problem = format!("{told}; {gate} needs {minimum} scored tasks");
        return if all < minimum {
            GateDecision::plain(false, format!("{problem}: add held-out tasks or lower gate.minimum")).with(evidence)
        } else {
            GateDecision::undecided(format!("undecided: evaluation failed: {problem}")).with(evidence)
        };
    }
    let Tested { method, p, alpha } = tested;
    let hint = if shown { None } else { hint(gate, scored) };
    let reason = format!("{told}; p {p:.2e} at alpha {alpha} by the {method}; {gate}{}", hint.unwrap_or_default());
    GateDecision::plain(shown, reason).with(evidence)
}

/// Why even an equal candidate cannot pass, where that is so.
fn hint(gate: Gate, scored: u32) -> Option<String> {
    let Proof { threshold, alpha, .. } = gate.proof()?;
    let needed = (threshold < 0.0).then(|| betting::pairs_needed(0.0, threshold, alpha, PAIRS_MAX))?;
    match needed {
        None => Some(format!("; with equal scores this margin needs more than {PAIRS_MAX} tasks")),
        Some(needed) if needed > scored => Some(format!("; with equal scores this margin needs {needed} tasks")),
        Some(_) => None,
    }
}

fn told(gate: Gate, paired: &Paired) -> String {
    let (new, old) = (mean(&paired.candidate), mean(&paired.incumbent));
    let tasks = paired.candidate.len();
    let failed = if paired.failed == 0 { String::new() } else { format!(", {} failed and left out", paired.failed) };
    if gate.compares() {
        format!("held-out {old:.4} → {new:.4} on {tasks} tasks{failed}")
    } else {
        format!("held-out {new:.4} on {tasks} tasks{failed}")
    }
}

fn evidence(gate: Gate, paired: &Paired) -> Evidence {
    let count = |items: usize| u32::try_from(items).unwrap_or(u32::MAX);
    let measured = !paired.candidate.is_empty();
    let compared = measured && gate.compares();
    let (new, old) = (mean(&paired.candidate), mean(&paired.incumbent));
    let alpha = gate.proof().map_or(SIDE_ALPHA, |proof| proof.alpha);
    Evidence {
        tasks: count(paired.candidate.len()),
        failed: count(paired.failed),
        candidate: measured.then_some(new),
        incumbent: compared.then_some(old),
        difference: compared.then(|| mean(&paired.differences())),
        interval: compared.then(|| betting::interval(&paired.differences(), alpha)),
        test: None,
    }
}
