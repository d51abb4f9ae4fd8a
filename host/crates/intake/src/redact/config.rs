//! What an operator can set about redaction, and what is wrong with it in words.

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use super::patterns::BUILT_IN;

/// Patterns of one configuration.
const PATTERNS_MAX: usize = 64;
/// Bytes of one pattern.
const PATTERN_BYTES_MAX: usize = 4096;
/// Bytes that one pattern may take when it is compiled.
const COMPILED_BYTES_MAX: usize = 1 << 20;
/// Characters of a pattern's name.
const NAME_CHARS_MAX: usize = 40;

/// The section `redaction` of the configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RedactionConfig {
    /// Off: what was said is stored as it was said, keys included.
    pub enabled: bool,
    /// Secrets of one's own, beside those that are known everywhere.
    pub patterns: Vec<OperatorPattern>,
    /// Built-in kinds that are stored as they are, e.g. `jwt`.
    pub keep: Vec<String>,
}

/// A pattern of the operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OperatorPattern {
    /// Stands in the text instead of the secret: `[redacted:name]`.
    pub name: String,
    /// Its first group is the secret, or the whole match if it has none.
    pub regex: String,
}

impl Default for RedactionConfig {
    fn default() -> Self {
        Self { enabled: true, patterns: Vec::new(), keep: Vec::new() }
    }
}

/// Why the section cannot be used; names the entry and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Too many patterns.
    #[error("redaction.patterns has {0} entries; use at most {PATTERNS_MAX}, one pattern may hold alternatives: a|b")]
    TooMany(usize),
    /// A name that cannot stand in the text.
    #[error(
        "redaction.patterns[{0}].name '{1}' is not valid; use 1 to {NAME_CHARS_MAX} of a-z, 0-9 and '-', starting with a letter"
    )]
    Name(usize, String),
    /// A name that stands for something else already.
    #[error("redaction.patterns[{0}].name '{1}' is taken; choose another name, so that what was redacted can be told")]
    Taken(usize, String),
    /// A pattern that cannot be compiled, or not within bounds.
    #[error("redaction.patterns '{0}': the regex cannot be used: {1}")]
    Regex(String, String),
    /// A pattern that matches where nothing stands.
    #[error("redaction.patterns '{0}': the regex also matches an empty text; make it need at least one character")]
    Empty(String),
    /// A kept kind that there is not.
    #[error("redaction.keep names '{0}', which is no built-in kind; use one of {1}")]
    Keep(String, String),
    /// The patterns together are too large.
    #[error("redaction.patterns are too large together: {0}; shorten them or use fewer repetitions like {{1,500}}")]
    Together(String),
}

impl RedactionConfig {
    /// The operator's patterns, compiled within bounds.
    pub(super) fn compile(&self) -> Result<Vec<(String, Regex)>, ConfigError> {
        if self.patterns.len() > PATTERNS_MAX {
            return Err(ConfigError::TooMany(self.patterns.len()));
        }
        let mut compiled: Vec<(String, Regex)> = Vec::with_capacity(self.patterns.len());
        for (index, OperatorPattern { name, regex }) in self.patterns.iter().enumerate() {
            let shown: String = name.chars().take(NAME_CHARS_MAX).flat_map(char::escape_default).collect();
            if !is_name(name) {
                return Err(ConfigError::Name(index, shown));
            }
            if BUILT_IN.iter().any(|known| known.kind == name) || compiled.iter().any(|(taken, _)| taken == name) {
                return Err(ConfigError::Taken(index, shown));
            }
            compiled.push((name.clone(), compile(name, regex)?));
        }
        Ok(compiled)
    }

    /// Refuses kinds that are not built in.
    pub(super) fn check_keep(&self) -> Result<(), ConfigError> {
        let mut known: Vec<&str> = BUILT_IN.iter().map(|built_in| built_in.kind).collect();
        known.dedup();
        match self.keep.iter().find(|kind| !known.contains(&kind.as_str())) {
            None => Ok(()),
            Some(unknown) => {
                let shown = unknown.chars().take(NAME_CHARS_MAX).flat_map(char::escape_default).collect();
                Err(ConfigError::Keep(shown, known.join(", ")))
            }
        }
    }
}

/// Lower-case words with `-`, the form of all kinds.
pub(super) fn is_name(name: &str) -> bool {
    name.len() <= NAME_CHARS_MAX
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

fn compile(name: &str, regex: &str) -> Result<Regex, ConfigError> {
    let refuse = |reason: String| ConfigError::Regex(name.to_owned(), reason);
    if regex.len() > PATTERN_BYTES_MAX {
        return Err(refuse(format!("it has {} bytes; use at most {PATTERN_BYTES_MAX}", regex.len())));
    }
    let built = RegexBuilder::new(regex).size_limit(COMPILED_BYTES_MAX).dfa_size_limit(COMPILED_BYTES_MAX).build();
    let compiled = built.map_err(|error| match error {
        regex::Error::CompiledTooBig(limit) => {
            refuse(format!("it needs more than {limit} bytes; use fewer or shorter repetitions"))
        }
        // The message of a syntax error points at the place, over several lines.
        other => refuse(other.to_string()),
    })?;
    if compiled.is_match("") {
        return Err(ConfigError::Empty(name.to_owned()));
    }
    Ok(compiled)
}
