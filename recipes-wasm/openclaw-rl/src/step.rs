//! One step: ask the judge, choose what each turn is learned from, one update, checkpoint.

use reef_recipe::prelude::*;
use reef_recipe::{Term, TopKDistillation};

use crate::judge::{self, Judged, Question};
use crate::settings::Settings;
use crate::{live, teacher};

/// The turns that teach something.
#[derive(Default)]
struct Lessons {
    turns: Vec<Sample>,
    /// Score of each turn.
    scores: Vec<f64>,
    /// What the teacher reads, one per turn: with a hint, or the turn itself as an anchor.
    contexts: Vec<Sample>,
    hinted: usize,
    unplaced: usize,
}

/// Learns from turns whose next state is known: a candidate, or a skip with its reason.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Proposal> {
    let (turns, questions) = questions(batch)?;
    let (judged, failed) = judge::ask(&settings.judge, &settings.voting, &questions)?;
    let lessons = lessons(&turns, &questions, &judged)?;
    report(batch, &judged, &lessons, failed);
    if lessons.turns.is_empty() {
        log::warn!("no turn of the batch got a valid vote: nothing to learn from");
        return Ok(Proposal::skip("no turn of the batch got a valid vote: nothing to learn from"));
    }
    let terms = terms(&lessons, settings);
    if terms.is_empty() {
        metrics::gauge("zero_advantage_batch", 1.0);
        log::warn!("every score of the batch is zero: nothing to learn from");
        return Ok(Proposal::skip("every score of the batch is zero: nothing to learn from"));
    }
    let trainer = Trainer::open()?;
    for (name, value) in trainer.train(&lessons.turns.into(), terms, settings.optimizer)?.iter() {
        metrics::gauge(&format!("policy/{name}"), value);
    }
    Ok(trainer.checkpoint()?.into())
}

/// The turns that can be asked about, and the questions; what came after a turn is forgotten with the step.
fn questions(batch: &Batch) -> Result<(Vec<Sample>, Vec<Question>)> {
    let (mut turns, mut questions) = (Vec::new(), Vec::new());
    for (&sample, receipt) in batch.handles().iter().zip(batch.record_ids()?) {
        let Some(next) = live::take_next(&receipt)? else { continue };
        let (conversation, answer) = (experience::messages(sample)?, experience::response_text(sample)?);
        turns.push(sample);
        questions.push(Question { conversation, answer, next });
    }
    Ok((turns, questions))
}

/// Score and hint → both; a hint alone → score 0; a score alone → the base on the turn itself as an anchor; neither →
/// the turn teaches nothing.
fn lessons(turns: &[Sample], questions: &[Question], judged: &[Judged]) -> Result<Lessons> {
    let mut lessons = Lessons::default();
    for ((&turn, question), judged) in turns.iter().zip(questions).zip(judged) {
        let mut context = None;
        if let Some(hint) = judged.hints.first() {
            context = match teacher::context(turn, &question.conversation, hint) {
                Ok(context) => context,
                Err(refusal) => {
                    log::warn!("a hint is left out: {refusal:?}");
                    None
                }
            };
            lessons.unplaced += usize::from(context.is_none());
        }
        if context.is_none() && judged.score.is_none() {
            continue;
        }
        lessons.hinted += usize::from(context.is_some());
        lessons.turns.push(turn);
        lessons.scores.push(judged.score.map_or(0.0, f64::from));
        lessons.contexts.push(context.unwrap_or(turn));
    }
    Ok(lessons)
}

/// The terms that have a factor and a signal.
fn terms(lessons: &Lessons, settings: &Settings) -> Vec<Term> {
    let mut terms = Vec::new();
    if settings.rl_weight > 0.0 && lessons.scores.iter().any(|&score| score != 0.0) {
        let ppo = PolicyGradient::new(Weight::Ppo(settings.bounds), lessons.scores.clone()).to_recomputed();
        terms.push(Term { factor: settings.rl_weight, what: ppo.into() });
    }
    if settings.distill_weight > 0.0 {
        let distillation = TopKDistillation {
            teacher: Policy::Base,
            contexts: lessons.contexts.clone(),
            advantage_max: settings.advantage_max,
            bounds: settings.bounds,
        };
        terms.push(Term { factor: settings.distill_weight, what: distillation.into() });
    }
    terms
}

fn report(batch: &Batch, judged: &[Judged], lessons: &Lessons, failed: usize) {
    let given = |score| judged.iter().filter(|turn| turn.score == Some(score)).count() as f64;
    let numbers = [
        ("turns", batch.len() as f64),
        ("turns_learned_from", lessons.turns.len() as f64),
        ("turns_hinted", lessons.hinted as f64),
        ("hints_unplaced", lessons.unplaced as f64),
        ("score_mean", maths::mean(&lessons.scores)),
        ("scored_good", given(1)),
        ("scored_bad", given(-1)),
        ("scored_neutral", given(0)),
        ("judge_requests_failed", failed as f64),
    ];
    for (name, value) in numbers {
        metrics::gauge(name, value);
    }
}
