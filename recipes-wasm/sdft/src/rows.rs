//! What the teacher reads, and one step: the moving average takes a step towards the student, then the student one
//! towards the moving average that has read the demonstrations.

use reef_recipe::prelude::*;

use crate::settings::Settings;

/// Ids of the prompt with the demonstration in it, or why the sample can never be learned from.
pub(crate) fn teacher_prompt(sample: Sample, settings: &Settings) -> Result<Result<Vec<u32>, String>> {
    let demonstration = match teacher::demonstration(sample)? {
        Ok(text) => text,
        Err(reason) => return Ok(Err(reason)),
    };
    let request = match teacher::Request::of(sample)? {
        Ok(request) => request,
        Err(reason) => return Ok(Err(reason)),
    };
    let prompt = match request.with(&settings.context(&demonstration))? {
        Ok(prompt) => prompt,
        Err(reason) => return Ok(Err(reason)),
    };
    let answer: u32 = Samples::from(vec![sample]).response_lengths()?.iter().sum();
    let (tokens, most) = (prompt.len() + answer as usize, settings.max_teacher_tokens);
    Ok(match tokens <= most as usize {
        true => Ok(prompt),
        false => Err(format!("its teacher would read {tokens} tokens, max_teacher_tokens is {most}")),
    })
}

/// Learns from the batch: a candidate, or a skip with its reason.
pub(crate) fn propose(batch: &Batch, settings: &Settings) -> Result<Proposal> {
    let mut contexts = Vec::new();
    for &sample in batch.handles() {
        let prompt = teacher_prompt(sample, settings)?.map_err(Failure::other)?;
        contexts.push(Trainer::derive(sample, Some(&prompt), None)?);
    }
    report(batch, &contexts)?;
    let trainer = Trainer::open()?;
    trainer.update_ema(settings.teacher_update_rate)?;
    let loss = Distillation::new(Policy::Ema, Divergence::FORWARD)
        .reading(&contexts.into())
        .importance(settings.importance)
        .skipping(settings.skip);
    trainer.learn(batch, loss, settings.optimizer)
}

fn report(batch: &Batch, contexts: &[Sample]) -> Result<()> {
    let numbers = |column: Vec<u32>| column.into_iter().map(f64::from).collect::<Vec<f64>>();
    let (lags, teacher) = (numbers(batch.lags()?), numbers(Samples::from(contexts.to_vec()).prompt_lengths()?));
    let student = numbers(batch.prompt_lengths()?);
    metrics::gauge("lag_mean", maths::mean(&lags));
    metrics::gauge("lag_max", maths::max(&lags));
    metrics::gauge("context_tokens_mean", maths::mean(&teacher) - maths::mean(&student));
    Ok(())
}
