//! Constrained decoding: which tokens may come next so that the text stays in a JSON schema or grammar.
//! The handle compiles a `Guide` per request, the scheduler asks it before each draw and tells it the token.
//! Everything a client sends is bounded: its size and nesting, the work of compiling it, the work of each step.
//! The same constraint and tokens always give the same masks.

mod check;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::{Value as Json, json};

use crate::error::EngineError;
use crate::tokenizer::Tokenizer;

/// White space between the parts of JSON, as a regular expression: a space, or a new line and its indentation. JSON
/// allows more, and small models get lost in it.
pub const WHITE_SPACE: &str = r"(\x20|\x0A[\x20\x09]{0,32})";
/// Longer tokens are never allowed: the library has no room for them.
const TOKEN_BYTES_MAX: usize = 1_000;
/// What compiling a constraint and taking a step may cost. Measured speeds of the library: 50 thousand units of
/// lexer fuel a millisecond when compiling and 14 thousand in a step, 20 thousand items a millisecond, and
/// 1 to 2 kB per lexer state.
const LIMITS: ParserLimits = ParserLimits {
    max_items_in_row: 2_000,
    initial_lexer_fuel: 1_000_000,
    step_lexer_fuel: 200_000,
    step_max_items: 50_000,
    max_lexer_states: 20_000,
    max_grammar_size: 100_000,
    precompute_large_lexemes: false,
    verbose_errors: false,
};

/// What the text of an answer must match, to its end.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON of a schema: objects' properties come in the order of the schema. `format`s that are not known are
    /// ignored, keywords that are not supported are refused.
    JsonSchema(Json),
    /// A regular expression, in the syntax of the `regex` crate.
    Regex(String),
    /// A grammar in the Lark syntax of llguidance.
    Lark(String),
}

/// The tokens of a model in the form that constraints need. Made once.
pub(crate) struct Vocabulary {
    factory: ParserFactory,
    /// Bit set of the tokens that a mask may hold: those that stand for text, and end tokens.
    usable: Vec<u32>,
    eos: Vec<u32>,
}

impl std::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocabulary").field("words", &self.usable.len()).field("eos", &self.eos).finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// The first `tokens` ids, as many as the model has logits. Takes about a quarter of a second.
    pub fn new(tokenizer: &Tokenizer, tokens: usize) -> Result<Self, EngineError> {
        let ids = 0..u32::try_from(tokens).unwrap_or(u32::MAX);
        let eos: Vec<u32> = ids.clone().filter(|id| tokenizer.is_eos(*id)).collect();
        Self::of(ids.map(|id| tokenizer.bytes(id).to_vec()).collect(), eos)
    }

    /// From what each token stands for; control tokens stand for nothing.
    fn of(mut tokens: Vec<Vec<u8>>, eos: Vec<u32>) -> Result<Self, EngineError> {
        let broken =
            |problem: String| EngineError::Invalid(format!("the model's tokens cannot be constrained: {problem}"));
        let Some(first) = eos.first().copied() else {
            return Err(broken("none of them ends an answer".to_owned()));
        };
        for (id, token) in tokens.iter_mut().enumerate() {
            if token.len() > TOKEN_BYTES_MAX || eos.iter().any(|eos| *eos as usize == id) {
                token.clear();
            }
        }
        let mut usable = vec![0u32; tokens.len().div_ceil(32)];
        let texts = tokens.iter().enumerate().filter(|(_, token)| !token.is_empty()).map(|(id, _)| id);
        for id in texts.chain(eos.iter().map(|id| *id as usize)) {
            if let Some(word) = usable.get_mut(id / 32) {
                *word |= 1 << (id % 32);
            }
        }
        let size = u32::try_from(tokens.len()).map_err(|e| broken(e.to_string()))?;
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &tokens).with_eos_tokens(&eos);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        let mut factory = ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
            .map_err(|e| broken(sentence(&e.to_string())))?;
        factory.quiet();
        *factory.limits_mut() = LIMITS;
        Ok(Self { factory, usable, eos })
    }
}

/// One answer's place in its constraint.
pub struct Guide {
    matcher: Matcher,
    usable: Vec<u32>,
    eos: Vec<u32>,
    ended: bool,
}

impl std::fmt::Debug for Guide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guide").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Guide {
    /// Compiles `constraint`: milliseconds, and under a second for the worst that the limits let pass.
    pub(crate) fn new(vocabulary: &Vocabulary, constraint: &Constraint) -> Result<Self, EngineError> {
        let refuse = |problem: &str| EngineError::Invalid(format!("{}: {problem}", name(constraint)));
        let grammar = match constraint {
            Constraint::JsonObject => TopLevelGrammar::from_json_schema(spaced(json!({ "type": "object" }))),
            Constraint::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(spaced(check::schema(schema).map_err(|problem| refuse(&problem))?))
            }
            Constraint::Regex(text) => {
                check::text(text, false).map_err(|problem| refuse(&problem))?;
                TopLevelGrammar::from_regex(text)
            }
            Constraint::Lark(text) => {
                check::text(text, true).map_err(|problem| refuse(&problem))?;
                TopLevelGrammar::from_lark(text.clone())
            }
        };
        let parser = vocabulary.factory.create_parser(grammar);
        let matcher = Matcher::new(parser);
        if let Some(problem) = matcher.get_error() {
            return Err(refuse(&format!("it cannot be compiled: {}", sentence(&problem))));
        }
        let (usable, eos) = (vocabulary.usable.clone(), vocabulary.eos.clone());
        let mut guide = Self { matcher, usable, eos, ended: false };
        // A schema that only refers to itself, for example.
        let mut first = vec![0; guide.words()];
        guide.mask(&mut first).map_err(|_| refuse("it allows no answer"))?;
        Ok(guide)
    }

    /// A second answer in the same constraint, at the same place.
    pub fn duplicate(&self) -> Self {
        let (usable, eos) = (self.usable.clone(), self.eos.clone());
        Self { matcher: self.matcher.deep_clone(), usable, eos, ended: self.ended }
    }

    /// Words of a mask: 32 tokens each, the lowest bit first.
    pub(crate) fn words(&self) -> usize {
        self.usable.len()
    }

    /// Sets `allowed`, `words` of them, to the tokens that may come next; end tokens are among them
    /// when the text may end here, and alone when it must.
    pub(crate) fn mask(&mut self, allowed: &mut [u32]) -> Result<(), EngineError> {
        let mask = self.matcher.compute_mask_or_eos().map_err(failed)?;
        allowed.fill(0);
        for (word, (mask, usable)) in allowed.iter_mut().zip(mask.as_slice().iter().zip(&self.usable)) {
            *word = mask & usable;
        }
        if allowed.iter().all(|word| *word == 0) {
            return Err(EngineError::Invalid("no token of the model can continue the constrained text".to_owned()));
        }
        Ok(())
    }

    /// Takes the token that was drawn; fails if the mask does not hold it.
    pub(crate) fn take(&mut self, token: u32) -> Result<(), EngineError> {
        if self.eos.contains(&token) {
            if self.matcher.is_stopped() || self.matcher.is_accepting().map_err(failed)? {
                self.ended = true;
                return Ok(());
            }
            return Err(EngineError::Invalid("the constrained text cannot end here".to_owned()));
        }
        let usable = self.usable.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1);
        if !usable || self.ended() {
            return Err(EngineError::Invalid(format!("token {token} cannot continue the constrained text")));
        }
        self.matcher.consume_token(token).map_err(failed)
    }

    /// Is the text complete, so that only an end token may follow?
    pub(crate) fn ended(&self) -> bool {
        self.ended || self.matcher.is_stopped()
    }
}

/// A schema with our rule for white space instead of one that it brings.
fn spaced(mut schema: Json) -> Json {
    let options =
        JsonCompileOptions { whitespace_pattern: Some(WHITE_SPACE.to_owned()), ..JsonCompileOptions::default() };
    if schema.is_object() {
        options.apply_to(&mut schema);
    }
    schema
}

fn name(constraint: &Constraint) -> &'static str {
    match constraint {
        Constraint::JsonObject => "JSON object",
        Constraint::JsonSchema(_) => "JSON schema",
        Constraint::Regex(_) => "regular expression",
        Constraint::Lark(_) => "grammar",
    }
}

fn failed(error: impl std::fmt::Display) -> EngineError {
    EngineError::Invalid(format!("the constrained text cannot go on: {}", sentence(&error.to_string())))
}

/// The first line of a message, short. What a panic says is for nobody.
fn sentence(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    if line.starts_with("panic") {
        return "it is too complex".to_owned();
    }
    line.chars().take(300).collect()
}
