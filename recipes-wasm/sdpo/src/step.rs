//! One step: who of each group succeeded, what the teacher of each answer reads, and one update on all of them.
//! An answer whose teacher knows no more than the student weighs nothing, but stays in the mean.

use reef_recipe::prelude::*;

use crate::context::{Feedback, sibling, without_thoughts};
use crate::settings::{FEEDBACK, Settings};

/// One answer and its teacher.
struct Row {
    /// The sample whose prompt the teacher reads; the answer's own where it reads no more.
    context: Sample,
    active: bool,
}

/// One answer of a group.
#[derive(Clone, Copy)]
struct Answer {
    sample: Sample,
    score: f64,
    /// Tokens of the response.
    tokens: u32,
}

/// Learns from the batch: a candidate, or a skip with its reason.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Proposal> {
    let (scores, lengths) = (batch.scores()?, batch.response_lengths()?);
    let answers = batch.handles().iter().zip(&scores).zip(lengths);
    let answers: Vec<Answer> = answers.map(|((&sample, &score), tokens)| Answer { sample, score, tokens }).collect();
    let (mut rows, mut unsolved) = (Vec::new(), 0.0);
    for group in settings.grid.cut(&answers)? {
        if group.iter().all(|answer| answer.score < settings.success) {
            unsolved += 1.0;
        }
        rows.extend(group_rows(group, settings)?);
    }
    let weights: Vec<f64> = rows.iter().map(|row| f64::from(u8::from(row.active))).collect();
    report(batch, &scores, &weights, settings)?;
    metrics::gauge("groups_without_success", unsolved);
    if rows.iter().all(|row| !row.active) {
        log::warn!("no answer of the batch has a teacher that knows more: nothing to learn from");
        return Ok(Proposal::skip(
            "no answer of the batch has a sibling that succeeded or feedback: nothing to learn from",
        ));
    }
    let contexts: Vec<Sample> = rows.iter().map(|row| row.context).collect();
    let trainer = Trainer::open()?;
    trainer.update_ema(settings.teacher_update_rate)?;
    let loss = Distillation::new(Policy::Ema, settings.divergence)
        .reading(&contexts.into())
        .over(settings.support)
        .importance(settings.importance)
        .weighted(&weights);
    trainer.learn(batch, loss, settings.optimizer)
}

/// The teachers of one group; all answers are to one prompt.
fn group_rows(group: &[Answer], settings: &Settings) -> Result<Vec<Row>> {
    let mut solutions = Vec::new();
    for answer in group {
        solutions.push(solution(answer, settings)?);
    }
    let contexts =
        group.iter().enumerate().map(|(own, answer)| known(answer.sample, sibling(&solutions, own), settings));
    let contexts: Vec<Option<String>> = contexts.collect::<Result<_>>()?;
    // One reading of the request serves the group, and is not needed when nobody has more to read.
    let request = match group.first().filter(|_| contexts.iter().any(Option::is_some)) {
        Some(first) => teacher::Request::of(first.sample)?.inspect_err(|reason| untaught(reason)).ok(),
        None => None,
    };
    let rows = group.iter().zip(contexts).map(|(answer, context)| {
        let teacher = match (&request, context) {
            (Some(request), Some(context)) => reading(*answer, request, &context, settings)?,
            _ => None,
        };
        Ok(Row { context: teacher.unwrap_or(answer.sample), active: teacher.is_some() })
    });
    rows.collect()
}

/// What an answer that succeeded says, without its reasoning; nothing is no solution.
fn solution(answer: &Answer, settings: &Settings) -> Result<Option<String>> {
    if answer.score < settings.success {
        return Ok(None);
    }
    Ok(Some(without_thoughts(&experience::response_text(answer.sample)?)).filter(|text| !text.is_empty()))
}

/// What the teacher of an answer reads beside the request.
fn known(sample: Sample, solution: Option<&str>, settings: &Settings) -> Result<Option<String>> {
    let wanted = match settings.feedback {
        Feedback::Never => false,
        Feedback::WithoutSolution => solution.is_none(),
        Feedback::Always => true,
    };
    // Feedback that the host does not give out is as good as none.
    let feedback = if wanted { FEEDBACK.of(sample).unwrap_or_default() } else { None };
    let feedback = feedback.filter(|text| !text.trim().is_empty());
    Ok(settings.templates.context(solution, feedback.as_deref()))
}

/// The sample whose prompt holds the context, unless it cannot be made or is too long.
fn reading(answer: Answer, request: &teacher::Request, context: &str, settings: &Settings) -> Result<Option<Sample>> {
    let prompt = match request.with(context)? {
        Ok(prompt) => prompt,
        Err(reason) => {
            untaught(&reason);
            return Ok(None);
        }
    };
    let (tokens, most) = (prompt.len() + answer.tokens as usize, settings.max_teacher_tokens);
    if tokens > most as usize {
        untaught(&format!("its teacher would read {tokens} tokens, max_teacher_tokens is {most}"));
        return Ok(None);
    }
    Trainer::derive(answer.sample, Some(&prompt), None).map(Some)
}

fn untaught(reason: &str) {
    log::warn!("an answer has no teacher: {reason}");
}

fn report(batch: &Batch, scores: &[f64], weights: &[f64], settings: &Settings) -> Result<()> {
    let lags: Vec<f64> = batch.lags()?.into_iter().map(f64::from).collect();
    let solved: Vec<f64> = scores.iter().map(|&score| f64::from(u8::from(score >= settings.success))).collect();
    let numbers = [
        ("reward_mean", maths::mean(scores)),
        ("reward_max", maths::max(scores)),
        ("success_share", maths::mean(&solved)),
        ("active_share", maths::mean(weights)),
        ("lag_mean", maths::mean(&lags)),
        ("lag_max", maths::max(&lags)),
    ];
    for (name, value) in numbers {
        metrics::gauge(name, value);
    }
    Ok(())
}
