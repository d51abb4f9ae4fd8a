//! Verified: nobody grades the answers but a verifier of the operator's. The recipe reads each conversation, takes the
//! text in quotes of the last request as what was wanted, and lets the verifier compare it with the answer.
#![no_std]
use reef_recipe::prelude::*;
use reef_recipe::{experience, json, tokens, verify};

struct Verified;

const BATCH_SIZE: Key<u32> = Key::count("batch_size", 4, "answers per step").within(2.0, 512.0);
const LEARNING_RATE: Key<f64> = Key::number("learning_rate", 5e-4, "learning rate of the adapter");
const VERIFIER: Key<&str> = Key::text("verifier", "exact-match", "verifier that grades; its task is a JSON string");

impl Recipe for Verified {
    fn describe() -> Manifest {
        use Capability::{Experience, Metrics, Tokens, Training, Verify};
        Manifest::weights("verified", "0.1.0")
            .asks(&[Experience, Tokens, Verify, Training, Metrics])
            .key(BATCH_SIZE)
            .key(LEARNING_RATE)
            .key(VERIFIER)
    }

    fn select(_: &Context, pool: &Pool) -> Result<Selection> {
        let (mut usable, mut retired) = (Vec::new(), Vec::new());
        for &sample in pool.handles() {
            match wanted(sample)? {
                Some(_) => usable.push(sample),
                None => retired.push(Retirement::new(sample, "nothing in quotes to compare with")),
            }
        }
        metrics::gauge("verified/unusable", experience::unusable()?.len() as f64);
        Ok(Pool::from(usable).first(BATCH_SIZE.get()?).retire(retired))
    }

    fn propose(_: &Context, batch: &Batch) -> Result<Proposal> {
        let verifier = VERIFIER.get()?;
        let (mut scores, mut length) = (Vec::new(), 0);
        for &sample in batch.handles() {
            let answer = experience::response_text(sample)?;
            length += tokens::encode(&answer)?.len();
            let task = json::quoted(&wanted(sample)?.unwrap_or_default());
            scores.push(verify::check(&verifier, &task, &answer)?.score);
        }
        metrics::gauge("verified/tokens", length as f64);
        let mean = maths::mean(&scores);
        metrics::gauge("verified/score", mean);
        let advantages: Vec<f64> = scores.iter().map(|score| score - mean).collect();
        let trainer = Trainer::open()?;
        trainer.train(
            batch,
            PolicyGradient::new(Weight::Reinforce, advantages),
            Optimizer::adamw(LEARNING_RATE.get()?),
        )?;
        Ok(trainer.checkpoint()?.into())
    }

    fn evaluate(_: &Context, _: Candidate) -> Result<Verdict> {
        Ok(Verdict::promote("left to the operator's gate"))
    }
}

/// The text between the last two quotes of the conversation's last message.
fn wanted(sample: Sample) -> Result<Option<String>> {
    let messages = experience::messages(sample)?;
    let mut parts = messages.last().map(|message| message.content.rsplit('"')).into_iter().flatten();
    let (_after, wanted, before) = (parts.next(), parts.next(), parts.next());
    Ok(before.and(wanted).map(String::from))
}

reef_recipe::export!(Verified);
