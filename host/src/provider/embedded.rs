//! The embedded engine as a provider: an `Ask` becomes engine requests, and their tokens the events of an answer.
//! The inference routes call it. What the engine cannot honour is refused by name before a slot is used; dropping the
//! receiver of the answer frees its slots within one decode step.

mod answer;
mod constraint;
mod prompt;
mod words;

use std::sync::Arc;

use reef_core::{RecordId, Sampling, sha256_hex};
use reef_dialects::{Ask, Dialect};
use reef_engine::{Adjustments, Engine, EngineError, Guide, Request, Weights};
use tokio::sync::mpsc;
use tracing::Instrument;

use self::answer::{HEARD_MAX, Speakers};
use super::{Answering, ProviderError};

/// Tokens of a completion whose length nobody named; what OpenAI's route has.
const COMPLETION_TOKENS: usize = 16;

/// Who asks, and what answers.
#[derive(Debug)]
pub struct Terms {
    /// Names the fields in refusals.
    pub dialect: Dialect,
    /// Requests of different tenants take turns.
    pub tenant: String,
    /// The weights, kept to the end of the answer.
    pub weights: Weights,
    /// Alternatives of each token that are kept with the record.
    pub recorded: u32,
    /// Names the calls of the answer, and seeds the sampling where the client gives no seed.
    pub receipt: RecordId,
}

/// An answer on its way.
#[derive(Debug)]
pub struct EmbeddedAnswer {
    /// Ids of the prompt.
    pub prompt: Vec<u32>,
    /// The sampling of the first choice; each choice after it has the next seed.
    pub sampling: Sampling,
    /// The events.
    pub answering: Answering,
}

/// Would `ask` be answered? Nothing is started.
pub async fn check(engine: &Engine, ask: &Arc<Ask>, dialect: Dialect) -> Result<(), ProviderError> {
    refuse_unknown(ask, dialect)?;
    refuse_impossible(engine, ask)?;
    let (prompt, _) = prepare(engine, ask, dialect).await?;
    tokens_max(engine, ask, prompt.len(), dialect).map(drop)
}

/// Renders, admits and starts an answer.
pub async fn ask(engine: &Engine, ask: &Arc<Ask>, terms: Terms) -> Result<EmbeddedAnswer, ProviderError> {
    refuse_unknown(ask, terms.dialect)?;
    refuse_impossible(engine, ask)?;
    let (prompt, guide) = prepare(engine, ask, terms.dialect).await?;
    let tokens_max = tokens_max(engine, ask, prompt.len(), terms.dialect)?;
    let digest = sha256_hex(terms.receipt.as_str().as_bytes());
    let sampling = sampling(ask, fresh_seed(&digest));
    let mut choices = Vec::new();
    for number in 0..ask.n {
        let sampling = Sampling { seed: sampling.seed.wrapping_add(u64::from(number)), ..sampling };
        let request = Request {
            stop: ask.stop.clone(),
            top_logprobs: ask.logprobs.unwrap_or(0).max(terms.recorded),
            adjustments: adjustments(ask),
            guide: guide.as_ref().map(Guide::duplicate),
            ..Request::new(&terms.tenant, prompt.clone(), terms.weights.clone(), sampling, tokens_max)
        };
        choices.push(engine.generate(request).map_err(|error| refused(error, terms.dialect))?);
    }
    let (sender, heard) = mpsc::channel(HEARD_MAX);
    let speakers =
        Speakers::new(engine, (ask, terms.dialect), (prompt.clone(), digest.get(..12).unwrap_or_default()), choices)
            .recording(terms.recorded);
    tokio::spawn(speakers.run(sender).in_current_span());
    Ok(EmbeddedAnswer { prompt, sampling, answering: Answering { heard } })
}

/// Tokens of the prompt that `ask` would have.
pub async fn count(engine: &Engine, ask: &Arc<Ask>, dialect: Dialect) -> Result<usize, ProviderError> {
    refuse_unknown(ask, dialect)?;
    let (render, asked) = (engine.clone(), Arc::clone(ask));
    blocking(move || prompt::count(&render, &asked, dialect)).await
}

async fn prepare(
    engine: &Engine,
    ask: &Arc<Ask>,
    dialect: Dialect,
) -> Result<(Vec<u32>, Option<Guide>), ProviderError> {
    let (engine, ask) = (engine.clone(), Arc::clone(ask));
    blocking(move || Ok((prompt::render(&engine, &ask, dialect)?, constraint::guide(&engine, &ask, dialect)?))).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ProviderError> + Send + 'static,
) -> Result<T, ProviderError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ProviderError::Broken(format!("the prompt could not be rendered: {error}"))))
}

/// A field that nobody reads would be ignored, as would a word without a meaning.
fn refuse_unknown(ask: &Ask, dialect: Dialect) -> Result<(), ProviderError> {
    let for_template = |name: &str| dialect == Dialect::Chat && name == prompt::TEMPLATE_VARIABLES;
    let Some(name) = ask.unknown.keys().find(|name| !for_template(name)) else { return words::check(ask, dialect) };
    let shown: String = name.escape_debug().take(64).collect();
    let message = format!("the parameter '{shown}' is not known to this server; leave it out");
    Err(refusal("invalid_request", shown, message))
}

/// What no later try would make possible.
fn refuse_impossible(engine: &Engine, ask: &Ask) -> Result<(), ProviderError> {
    let (vocabulary, waiting) = (engine.info().vocabulary, engine.queue_max());
    if let Some((id, _)) = ask.logit_bias.iter().find(|(id, _)| *id as usize >= vocabulary) {
        let message = format!("logit_bias: token {id} is outside the vocabulary of {vocabulary}");
        return Err(refusal("invalid_request", "logit_bias", message));
    }
    if ask.n as usize > waiting {
        let message =
            format!("n: {} answers are more than may wait (engine.queue_max is {waiting}); ask for fewer", ask.n);
        return Err(refusal("invalid_request", "n", message));
    }
    Ok(())
}

fn sampling(ask: &Ask, fresh_seed: u64) -> Sampling {
    Sampling {
        temperature: ask.temperature.unwrap_or(1.0),
        top_p: ask.top_p.unwrap_or(1.0),
        top_k: ask.top_k.unwrap_or(0),
        seed: ask.seed.unwrap_or(fresh_seed),
    }
}

/// A part of the receipt's digest; recorded with the sampling.
fn fresh_seed(digest: &str) -> u64 {
    // 53 bits survive every JSON reader.
    digest.get(..13).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

fn adjustments(ask: &Ask) -> Adjustments {
    Adjustments {
        frequency_penalty: ask.frequency_penalty.unwrap_or(0.0),
        presence_penalty: ask.presence_penalty.unwrap_or(0.0),
        logit_bias: ask.logit_bias.clone(),
    }
}

fn tokens_max(engine: &Engine, ask: &Ask, prompt: usize, dialect: Dialect) -> Result<u32, ProviderError> {
    let context = engine.info().context_length;
    let room = context.saturating_sub(prompt);
    let default = if dialect == Dialect::Completions { COMPLETION_TOKENS.min(room) } else { room };
    let wanted = ask.tokens_max.map_or(default, |tokens| tokens as usize);
    if room == 0 || wanted > room {
        let field = if wanted > room && room > 0 { tokens_field(dialect) } else { conversation(dialect) };
        let message = format!(
            "{field}: this model's maximum context length is {context} tokens; the prompt takes {prompt} and the answer may take {wanted}; shorten either"
        );
        return Err(refusal("context_length_exceeded", field, message));
    }
    Ok(u32::try_from(wanted).unwrap_or(u32::MAX))
}

/// The field that bounds the answer.
fn tokens_field(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat | Dialect::Messages | Dialect::Completions => "max_tokens",
        Dialect::Responses => "max_output_tokens",
    }
}

/// The field that holds what is to be continued.
fn conversation(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat | Dialect::Messages => "messages",
        Dialect::Responses => "input",
        Dialect::Completions => "prompt",
    }
}

fn refusal(code: &str, param: impl Into<String>, message: impl Into<String>) -> ProviderError {
    let (code, message, param) = (code.to_owned(), message.into(), Some(param.into()));
    ProviderError::Refused { status: 400, code, message, param, retry_after_s: None }
}

/// What the engine refuses is the client's to change, unless the engine itself failed.
fn refused(error: EngineError, dialect: Dialect) -> ProviderError {
    let message = error.to_string();
    match error {
        EngineError::ContextExceeded { .. } => refusal("context_length_exceeded", conversation(dialect), message),
        EngineError::Overloaded { .. } => {
            let (code, param) = ("overloaded".to_owned(), None);
            ProviderError::Refused { status: 429, code, message, param, retry_after_s: None }
        }
        EngineError::Invalid(_) => {
            let (code, param) = ("invalid_request".to_owned(), None);
            ProviderError::Refused { status: 400, code, message, param, retry_after_s: None }
        }
        _ => ProviderError::Broken(message),
    }
}
