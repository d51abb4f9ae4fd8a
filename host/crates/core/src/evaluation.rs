//! Held-out tasks, how an answer is graded, and the operator's gate on a candidate.

use serde::{Deserialize, Serialize};

/// One chat message as the template reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text.
    pub content: String,
}

/// How the host grades an answer against the wanted one; both trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grader {
    /// 1 if equal, else 0.
    Exact,
    /// Similarity in [0, 1], 1 iff equal: 2·LCS/(|a|+|b|) over characters.
    Similarity,
}

/// A prompt that measures and never trains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldOutTask {
    /// The prompt.
    pub messages: Vec<Message>,
    /// The wanted answer.
    pub answer: String,
    /// How to grade.
    pub grader: Grader,
}

/// Characters of an answer that grading looks at; the LCS is quadratic.
const GRADED_CHARS_MAX: usize = 2_000;

impl Grader {
    /// Score in [0, 1].
    pub fn grade(self, answer: &str, wanted: &str) -> f64 {
        let (answer, wanted) = (answer.trim(), wanted.trim());
        match self {
            Self::Exact => f64::from(u8::from(answer == wanted)),
            Self::Similarity => similarity(answer, wanted),
        }
    }
}

fn similarity(a: &str, b: &str) -> f64 {
    let a: Vec<char> = a.chars().take(GRADED_CHARS_MAX).collect();
    let b: Vec<char> = b.chars().take(GRADED_CHARS_MAX).collect();
    if a.is_empty() && b.is_empty() {
        return 1.0;
    }
    // One row of the longest-common-subsequence table at a time.
    let mut row = vec![0usize; b.len() + 1];
    for x in &a {
        let mut diagonal = 0;
        let mut left = 0;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let above = *cell;
            *cell = if x == y { diagonal + 1 } else { above.max(left) };
            diagonal = above;
            left = *cell;
        }
    }
    2.0 * row.last().copied().unwrap_or(0) as f64 / (a.len() + b.len()) as f64
}

/// The operator's rule for releasing a candidate. It has the last word over the recipe.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind", deny_unknown_fields)]
pub enum Gate {
    /// Release whatever the recipe promotes.
    Always,
    /// Release only if the mean held-out score rises by at least `delta`.
    MinImprovement {
        /// Score points, in [0, 1].
        delta: f64,
    },
    /// Release unless the mean held-out score falls by more than `margin`.
    NonInferiority {
        /// Score points, in [0, 1].
        margin: f64,
    },
}

impl Gate {
    /// Refuses numbers that no score can meet; names the field.
    pub fn check(self) -> Result<(), String> {
        let (field, value) = match self {
            Self::Always => return Ok(()),
            Self::MinImprovement { delta } => ("delta", delta),
            Self::NonInferiority { margin } => ("margin", margin),
        };
        if (0.0..=1.0).contains(&value) {
            Ok(())
        } else {
            Err(format!("gate.{field} is {value}; use a number from 0 to 1"))
        }
    }
}

/// What the gate said, in words that are stored with the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateDecision {
    /// May it be released?
    pub pass: bool,
    /// Why.
    pub reason: String,
}

/// Applies the gate to paired scores of the candidate and the incumbent on the same held-out tasks.
///
/// With nothing to compare, `min-improvement` refuses and `non-inferiority` passes: no harm was measured.
pub fn gate_decision(gate: Gate, candidate: &[f64], incumbent: &[f64]) -> GateDecision {
    let decide = |pass: bool, reason: String| GateDecision { pass, reason };
    if matches!(gate, Gate::Always) {
        return decide(true, "gate always".to_owned());
    }
    if candidate.is_empty() || candidate.len() != incumbent.len() {
        let pass = matches!(gate, Gate::NonInferiority { .. }) && candidate.is_empty() && incumbent.is_empty();
        return decide(pass, "the scenario has no held-out tasks to compare on".to_owned());
    }
    let mean = |scores: &[f64]| scores.iter().sum::<f64>() / scores.len() as f64;
    let (new, old) = (mean(candidate), mean(incumbent));
    let change = new - old;
    let told = format!("held-out {old:.4} → {new:.4} on {} tasks", candidate.len());
    match gate {
        Gate::Always => decide(true, told),
        Gate::MinImprovement { delta } => decide(change >= delta, format!("{told}; gate min-improvement {delta}")),
        Gate::NonInferiority { margin } => decide(change >= -margin, format!("{told}; gate non-inferiority {margin}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_one_only_for_equal_texts() {
        let grade = |a: &str, b: &str| Grader::Similarity.grade(a, b);
        assert_eq!(grade(" apple\n", "apple"), 1.0);
        assert_eq!(grade("", "apple"), 0.0);
        assert!((grade("appel", "apple") - 0.8).abs() < 1e-12);
        assert!(grade("The word is apple", "apple") < 0.5);
    }

    #[test]
    fn gates_compare_paired_means() {
        let min = Gate::MinImprovement { delta: 0.1 };
        assert!(gate_decision(min, &[1.0, 1.0], &[0.5, 1.0]).pass);
        assert!(!gate_decision(min, &[0.5, 1.0], &[0.5, 1.0]).pass);
        assert!(gate_decision(Gate::NonInferiority { margin: 0.05 }, &[0.5], &[0.54]).pass);
        assert!(!gate_decision(Gate::NonInferiority { margin: 0.05 }, &[0.4], &[0.54]).pass);
    }

    #[test]
    fn gates_out_of_range_are_named() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Gate::NonInferiority { margin: bad }.check().expect_err("refused").contains("gate.margin"));
        }
        assert!(Gate::MinImprovement { delta: 1.0 }.check().is_ok() && Gate::Always.check().is_ok());
    }

    #[test]
    fn without_tasks_only_a_wanted_improvement_is_refused() {
        assert!(!gate_decision(Gate::MinImprovement { delta: 0.0 }, &[], &[]).pass);
        assert!(gate_decision(Gate::NonInferiority { margin: 0.0 }, &[], &[]).pass);
        assert!(!gate_decision(Gate::NonInferiority { margin: 1.0 }, &[1.0], &[]).pass, "unpaired scores are a fault");
        assert!(gate_decision(Gate::Always, &[], &[]).pass);
    }
}
