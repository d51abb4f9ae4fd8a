//! The operator's gate on a candidate: measures candidate and incumbent on the held-out tasks and asks the gate.
//! A step calls it with its models, and the replay of a step with the answers that the step heard: both ask the same
//! questions in the same order. A task that cannot be measured is a failure and never a score of 0; what was scored in
//! the step already is not asked of the engine again.

use std::ops::Range;

use reef_core::{Gate, GateDecision, Measurement, gate_decision};
use reef_sandbox::{Models, ModelsError, Verdict};

/// Binding of the candidate.
pub const CANDIDATE: &str = "candidate";
/// Binding of what serves.
pub const SERVED: &str = "served";
/// Why nothing is decided where there are no models to ask.
const UNMEASURED: &str = "undecided: the held-out tasks could not be measured";
/// Tasks between two looks of a gate that may stop early; as many as the engine is asked at once.
const LOT_TASKS: u32 = 32;
/// After so many failures one after the other the rest is not asked: each may take until the engine's queue gives up.
const FAILURES_IN_A_ROW_MAX: u32 = 8;

/// What becomes of a candidate that the recipe promotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gated {
    /// It is released.
    Release(String),
    /// It is refused.
    Reject(String),
    /// Nothing is decided; the step fails and its samples go back to the pool.
    Undecided(String),
}

/// The gate has the last word over the recipe's verdict.
pub fn gated(verdict: &Verdict, gate: &GateDecision) -> Gated {
    let reason = &gate.reason;
    if gate.undecided {
        Gated::Undecided(reason.clone())
    } else if gate.pass {
        Gated::Release(format!("{}; {reason}", verdict.reason))
    } else {
        Gated::Reject(format!("refused by the operator's gate: {reason}"))
    }
}

/// Measures what the gate looks at and asks it; blocks. Every task is measured, whatever the recipe chose to look at,
/// unless the gate may stop early.
pub fn gate_candidate(gate: Gate, models: Option<&mut dyn Models>, tasks: u32) -> GateDecision {
    let (mut candidate, mut incumbent) = (Vec::new(), Vec::new());
    if gate.measures() && tasks > 0 {
        let Some(models) = models else { return GateDecision::undecided(UNMEASURED) };
        for lot in lots(gate, tasks) {
            let measured = measure(models, CANDIDATE, &lot).and_then(|new| {
                let old = if gate.compares() { measure(models, SERVED, &lot)? } else { Vec::new() };
                Ok((new, old))
            });
            let (new, old) = match measured {
                Ok(both) => both,
                // Not a failure that passes: the step has used up what it may ask.
                Err(refusal) => {
                    return GateDecision::plain(false, format!("the held-out tasks could not be measured: {refusal}"));
                }
            };
            candidate.extend(new);
            incumbent.extend(old);
            if gate.is_settled(&candidate, &incumbent) {
                break;
            }
        }
    }
    gate_decision(gate, &candidate, &incumbent)
}

/// The tasks in the lots in which a gate asks for them.
pub fn lots(gate: Gate, tasks: u32) -> impl Iterator<Item = Range<u32>> {
    let size = if gate.stops_early() { LOT_TASKS } else { tasks.max(1) };
    (0..tasks).step_by(size as usize).map(move |first| first..first.saturating_add(size).min(tasks))
}

/// Scores of one binding, one by one only if they do not come together. An error: no task can be measured.
pub fn measure(models: &mut dyn Models, binding: &str, lot: &Range<u32>) -> Result<Vec<Measurement>, ModelsError> {
    let count = lot.end.saturating_sub(lot.start);
    match models.held_out_scores(binding, lot.start, count) {
        Ok(scores) if scores.len() == count as usize => return Ok(scores.into_iter().map(Measurement::of).collect()),
        Err(refusal) if is_final(&refusal) => return Err(refusal),
        Ok(_) | Err(_) => {}
    }
    let mut measured = Vec::new();
    let (mut in_a_row, mut last) = (0, String::new());
    for task in lot.clone() {
        if in_a_row == FAILURES_IN_A_ROW_MAX {
            measured.push(Measurement::Failed(last.clone()));
            continue;
        }
        match models.held_out_scores(binding, task, 1).map(|scores| scores.first().copied()) {
            Ok(Some(score)) => {
                in_a_row = 0;
                measured.push(Measurement::of(score));
            }
            Err(refusal) if is_final(&refusal) => return Err(refusal),
            failed => {
                in_a_row += 1;
                last = failed.err().map_or_else(|| "no score came".to_owned(), |problem| problem.to_string());
                measured.push(Measurement::Failed(last.clone()));
            }
        }
    }
    Ok(measured)
}

/// Would every further question get the same refusal?
fn is_final(refusal: &ModelsError) -> bool {
    match refusal {
        ModelsError::UnknownBinding(_) | ModelsError::Invalid(_) | ModelsError::Budget(_) => true,
        ModelsError::Cancelled | ModelsError::Other(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use reef_core::Message;
    use reef_sandbox::{ChatRequest, Completion, Decision, Usage};

    use super::*;

    /// The candidate answers right, the incumbent wrong; some tasks fail. Notes what it was asked.
    #[derive(Default)]
    struct Scripted {
        failing: BTreeSet<u32>,
        refusal: Option<ModelsError>,
        asked: Vec<(String, u32, u32)>,
    }

    impl Models for Scripted {
        fn bindings(&mut self) -> Result<Vec<String>, ModelsError> {
            Ok(Vec::new())
        }
        fn chat(&mut self, _: &str, _: Vec<ChatRequest>) -> Result<Vec<Vec<Completion>>, ModelsError> {
            Ok(Vec::new())
        }
        fn score(&mut self, _: &str, _: &[Message], _: &str) -> Result<Vec<f32>, ModelsError> {
            Ok(Vec::new())
        }
        fn spent(&mut self) -> Result<Usage, ModelsError> {
            Ok(Usage::default())
        }
        fn held_out_count(&mut self) -> Result<u32, ModelsError> {
            Ok(0)
        }
        fn held_out_scores(&mut self, binding: &str, first: u32, count: u32) -> Result<Vec<f64>, ModelsError> {
            self.asked.push((binding.to_owned(), first, count));
            if let Some(refusal) = &self.refusal {
                return Err(refusal.clone());
            }
            if (first..first + count).any(|task| self.failing.contains(&task)) {
                return Err(ModelsError::Other("the engine stopped".to_owned()));
            }
            Ok(vec![f64::from(u8::from(binding == CANDIDATE)); count as usize])
        }
    }

    fn asked(models: &Scripted) -> Vec<(&str, u32, u32)> {
        models.asked.iter().map(|(binding, first, count)| (binding.as_str(), *first, *count)).collect()
    }

    const EARLY: Gate = Gate::Superiority { delta: 0.0, alpha: 0.05, minimum: 6, early_stop: true };

    #[test]
    fn each_side_is_asked_for_all_tasks_at_once_and_a_floor_asks_the_candidate_only() {
        let mut models = Scripted::default();
        assert!(gate_candidate(Gate::ScoreComparison {}, Some(&mut models), 40).pass);
        assert_eq!(asked(&models), [(CANDIDATE, 0, 40), (SERVED, 0, 40)]);
        let mut models = Scripted::default();
        assert!(gate_candidate(Gate::Floor { minimum: 1.0 }, Some(&mut models), 3).pass);
        assert_eq!(asked(&models), [(CANDIDATE, 0, 3)]);
        let mut models = Scripted::default();
        assert!(gate_candidate(Gate::Always {}, Some(&mut models), 3).pass && models.asked.is_empty());
        assert!(gate_candidate(Gate::non_inferiority(0.0), None, 0).pass, "nothing to measure");
        assert!(gate_candidate(Gate::non_inferiority(0.0), None, 1).undecided, "nobody to ask");
    }

    #[test]
    fn an_early_stop_asks_for_no_further_lot() {
        let mut models = Scripted::default();
        let decision = gate_candidate(EARLY, Some(&mut models), 1_000);
        assert!(decision.pass && asked(&models) == [(CANDIDATE, 0, 32), (SERVED, 0, 32)]);
        assert_eq!(lots(EARLY, 70).collect::<Vec<_>>(), [0..32, 32..64, 64..70]);
        assert!(lots(Gate::ScoreComparison {}, 70).eq(std::iter::once(0..70)));
        assert_eq!(lots(EARLY, 0).count(), 0);
    }

    #[test]
    fn a_task_that_fails_is_left_out_and_many_leave_the_step_undecided() {
        let mut models = Scripted { failing: BTreeSet::from([3]), ..Scripted::default() };
        let decision = gate_candidate(Gate::ScoreComparison {}, Some(&mut models), 20);
        let numbers = decision.evidence.expect("numbers");
        assert!(decision.pass && (numbers.tasks, numbers.failed) == (19, 1));
        let mut models = Scripted { failing: (0..1_000).collect(), ..Scripted::default() };
        let decision = gate_candidate(Gate::ScoreComparison {}, Some(&mut models), 1_000);
        assert!(decision.undecided && decision.reason.contains("the engine stopped"), "{}", decision.reason);
        assert_eq!(models.asked.len(), 2 * (1 + FAILURES_IN_A_ROW_MAX as usize), "it does not wait 1,000 times");
    }

    #[test]
    fn a_budget_that_is_used_up_refuses_and_is_not_tried_again() {
        let refusal = Some(ModelsError::Budget("a step makes at most 3 model calls".to_owned()));
        let mut models = Scripted { refusal, ..Scripted::default() };
        let decision = gate_candidate(Gate::ScoreComparison {}, Some(&mut models), 5);
        assert!(!decision.pass && !decision.undecided && decision.reason.ends_with("at most 3 model calls"));
        assert_eq!(models.asked.len(), 1);
    }

    #[test]
    fn the_gate_has_the_last_word() {
        let verdict =
            Verdict { decision: Decision::Promote, reason: "better".to_owned(), measurements: BTreeMap::new() };
        let said = |pass| gated(&verdict, &GateDecision::plain(pass, "told"));
        assert_eq!(said(true), Gated::Release("better; told".to_owned()));
        assert_eq!(said(false), Gated::Reject("refused by the operator's gate: told".to_owned()));
        assert_eq!(gated(&verdict, &GateDecision::undecided("told")), Gated::Undecided("told".to_owned()));
    }
}
