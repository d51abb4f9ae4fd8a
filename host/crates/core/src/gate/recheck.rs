//! Does the head still do what it did when it was released?
//! The host measures the head again every so many steps and asks here. It answers only; the host alarms or rolls back.

use super::measurement::{Measurement, Paired, mean};
use super::sign_flip::sign_flip;

/// What the fresh scores say.
#[derive(Debug, Clone, PartialEq)]
pub enum Recheck {
    /// No fall is shown.
    Holds,
    /// The head has become worse.
    Regressed {
        /// Fall of the mean score, in score points.
        by: f64,
        /// How often chance alone makes such a fall.
        p: f64,
    },
    /// Nothing can be said; a later check may.
    Undecided(String),
}

/// Is the head to be measured again after this step? Never with `every` 0.
pub fn recheck_due(step: u32, every: u32) -> bool {
    step > 0 && every > 0 && step.is_multiple_of(every)
}

/// Compares the scores of the head at its release with fresh ones on the same tasks, by the paired sign-flip test at
/// `alpha`: the null is that nothing changed. Each check errs with a chance of `alpha`, so a head that is checked
/// often deserves a small one.
pub fn recheck(released: &[Measurement], fresh: &[Measurement], alpha: f64) -> Recheck {
    if released.len() != fresh.len() || released.is_empty() {
        let (then, now) = (released.len(), fresh.len());
        return Recheck::Undecided(format!("{then} tasks were measured at the release and {now} now"));
    }
    let paired = Paired::of(released, fresh);
    if let Some(problem) = paired.unusable() {
        return Recheck::Undecided(problem);
    }
    let falls = paired.differences();
    let (p, _) = sign_flip(&falls);
    if p <= alpha { Recheck::Regressed { by: mean(&falls), p } } else { Recheck::Holds }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored(scores: &[f64]) -> Vec<Measurement> {
        scores.iter().copied().map(Measurement::of).collect()
    }

    #[test]
    fn it_is_due_every_so_many_steps_and_never_without_a_number() {
        let due = |every| (0..=9).filter(|step| recheck_due(*step, every)).collect::<Vec<_>>();
        assert_eq!((due(0), due(3), due(1).len()), (vec![], vec![3, 6, 9], 9));
    }

    #[test]
    fn a_fall_beyond_chance_is_told_with_its_size() {
        let then = scored(&[0.9; 10]);
        let mut now = scored(&[0.9; 10]);
        assert_eq!(recheck(&then, &now, 0.01), Recheck::Holds);
        now[..6].fill(Measurement::Scored(0.4));
        assert_eq!(recheck(&then, &now, 0.01), Recheck::Holds, "six falls: p is 1/64");
        now[..8].fill(Measurement::Scored(0.4));
        let Recheck::Regressed { by, p } = recheck(&then, &now, 0.01) else { panic!("eight falls: p is 1/256") };
        assert!((by - 0.4).abs() < 1e-12 && p == 1.0 / 256.0, "{by} {p}");
        assert_eq!(recheck(&now, &then, 0.01), Recheck::Holds, "a rise is no regression");
    }

    #[test]
    fn failures_are_not_falls_and_other_tasks_are_not_compared() {
        let then = scored(&[1.0; 20]);
        let mut now = then.clone();
        now[..2].fill(Measurement::Failed("the engine stayed full".to_owned()));
        assert_eq!(recheck(&then, &now, 0.05), Recheck::Holds);
        now[..3].fill(Measurement::Failed("the engine stayed full".to_owned()));
        assert!(
            matches!(recheck(&then, &now, 0.05), Recheck::Undecided(why) if why.contains("the engine stayed full"))
        );
        assert!(matches!(recheck(&then, &then[1..], 0.05), Recheck::Undecided(_)));
        assert!(matches!(recheck(&[], &[], 0.05), Recheck::Undecided(_)));
    }
}
