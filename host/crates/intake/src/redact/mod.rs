//! Redaction: secrets are taken out of everything that is stored, before it is stored.
//! One automaton of all patterns asks whether there is anything at all, and where there is, a second one which of them
//! it is; only those look for the place. What is taken out leaves its kind behind, `[redacted:github-token]`, and
//! texts that have none are not copied. It is a guard against accidents, not against a person who hides a key on
//! purpose: a key cut in two, or encoded, is not found, and nothing looks into requests that bring token ids.

mod assignment;
mod config;
mod counts;
mod labels;
mod names;
mod patterns;
mod records;
mod values;
mod walk;

use std::borrow::Cow;
use std::ops::Range;

use regex::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};

pub use self::config::{ConfigError, OperatorPattern, RedactionConfig};
pub use self::counts::Counts;
use self::patterns::{BUILT_IN, Before, Check, NAMED_SECRET};
pub use self::records::{Found, REDACTED_TAG};
use self::values::{is_mixed, is_placeholder, is_random, is_token_placeholder};
pub use self::walk::text_bytes;

/// Bytes that the automaton of all patterns may take; it is built as texts need it, and forgotten beyond that.
const AUTOMATON_BYTES_MAX: usize = 8 << 20;
/// Bytes of all patterns together when they are compiled.
const SET_BYTES_MAX: usize = 32 << 20;
/// What was taken out can lay bare the beginning of something else: then the text is looked at again.
const ROUNDS_MAX: usize = 8;

/// A kind of secret and how to find it.
#[derive(Debug)]
struct Rule {
    kind: Cow<'static, str>,
    regex: Regex,
    before: Before,
    check: Check,
}

/// Kinds that are looked for together.
#[derive(Debug)]
struct Group {
    /// Is there anything? `None`: the set is asked at once.
    any: Option<Regex>,
    set: RegexSet,
    rules: Vec<Rule>,
}

/// Finds secrets and takes them out. Made once; used by all requests at the same time.
#[derive(Debug)]
pub struct Redactor {
    enabled: bool,
    groups: Vec<Group>,
    names: bool,
}

impl Redactor {
    /// Compiles the built-in patterns and the operator's.
    pub fn new(config: &RedactionConfig) -> Result<Self, ConfigError> {
        config.check_keep()?;
        let own = config.compile()?;
        let kept = |kind: &str| config.keep.iter().any(|kept| kept == kind);
        let mut rules = Vec::with_capacity(BUILT_IN.len());
        for built_in in BUILT_IN.iter().filter(|built_in| !kept(built_in.kind)) {
            let regex =
                Regex::new(&ascii(&built_in.whole())).map_err(|error| ConfigError::Together(error.to_string()))?;
            let (before, check) = (built_in.before, built_in.check);
            rules.push(Rule { kind: Cow::Borrowed(built_in.kind), regex, before, check });
        }
        // Names like `key` stand in many texts that hold no secret; these do not trouble the rest. The operator's
        // patterns may be slow, and may name their groups alike.
        let (names, issued) = rules.into_iter().partition(|rule: &Rule| rule.check == Check::Assignment);
        let rule =
            |(name, regex)| Rule { kind: Cow::Owned(name), regex, before: Before::Anything, check: Check::Shape };
        let own = own.into_iter().map(rule);
        let groups = [Group::new(issued, true)?, Group::new(names, false)?, Group::new(own.collect(), false)?];
        let groups = groups.into_iter().filter(|group| !group.rules.is_empty()).collect();
        Ok(Self { enabled: config.enabled, groups, names: !kept(NAMED_SECRET) })
    }

    /// The text without its secrets, and what was taken out.
    pub fn redact_text<'a>(&self, text: &'a str) -> (Cow<'a, str>, Counts) {
        let (mut text, mut counts) = (Cow::Borrowed(text), Counts::default());
        for _ in 0..ROUNDS_MAX {
            let spans = self.spans(&text);
            if spans.is_empty() {
                break;
            }
            text = Cow::Owned(replace(&text, &spans, &mut counts));
        }
        (text, counts)
    }

    /// The kind of the first secret of a text, e.g. of an id, which can be refused but not changed; `None`: it has none.
    pub fn secret_kind(&self, text: &str) -> Option<&str> {
        self.spans(text).first().map(|(_, kind)| *kind)
    }

    /// Where secrets stand, in order and apart from each other.
    fn spans(&self, text: &str) -> Vec<(Range<usize>, &str)> {
        if !self.enabled {
            return Vec::new();
        }
        let mut spans = Vec::new();
        self.groups.iter().for_each(|group| group.find(text, &mut spans));
        spans.retain(|(range, _)| !labels::is_inside_label(text, range));
        merged(spans)
    }
}

/// ASCII classes and boundaries: Unicode ones would slow the automaton down on every text that is not ASCII.
fn ascii(pattern: &str) -> String {
    format!("(?-u:{pattern})")
}

impl Group {
    fn new(rules: Vec<Rule>, gated: bool) -> Result<Self, ConfigError> {
        let together = |error: regex::Error| ConfigError::Together(error.to_string());
        let patterns: Vec<&str> = rules.iter().map(|rule| rule.regex.as_str()).collect();
        let any = RegexBuilder::new(&patterns.join("|"))
            .size_limit(SET_BYTES_MAX)
            .dfa_size_limit(AUTOMATON_BYTES_MAX)
            .build();
        let set = RegexSetBuilder::new(&patterns).size_limit(SET_BYTES_MAX).dfa_size_limit(AUTOMATON_BYTES_MAX).build();
        Ok(Self { any: gated.then_some(any).transpose().map_err(together)?, set: set.map_err(together)?, rules })
    }

    fn find<'g>(&'g self, text: &str, spans: &mut Vec<(Range<usize>, &'g str)>) {
        if let [only] = self.rules.as_slice() {
            return only.find(text, spans);
        }
        if self.any.as_ref().is_none_or(|any| any.is_match(text)) {
            let found = self.set.matches(text);
            found.iter().filter_map(|index| self.rules.get(index)).for_each(|rule| rule.find(text, spans));
        }
    }
}

impl Rule {
    fn find<'r>(&'r self, text: &str, spans: &mut Vec<(Range<usize>, &'r str)>) {
        let mut found = |range: Range<usize>| {
            if !range.is_empty() {
                spans.push((range, self.kind.as_ref()));
            }
        };
        if self.check == Check::Assignment {
            return assignment::secrets(text, &self.regex, found);
        }
        for captures in self.regex.captures_iter(text) {
            let secret = captures.iter().skip(1).flatten().next().or_else(|| captures.get(0));
            if let Some(secret) = secret.filter(|secret| self.holds(text, &secret.range())) {
                found(secret.range());
            }
        }
    }

    fn holds(&self, text: &str, range: &Range<usize>) -> bool {
        let secret = text.get(range.clone()).unwrap_or_default();
        match self.check {
            // The operator's own patterns have the last word, but what was taken out stays as it is.
            Check::Shape => !secret.contains("[redacted:"),
            Check::Token => self.stands_alone(text, range) && !is_token_placeholder(secret),
            Check::Random => self.stands_alone(text, range) && is_random(secret) && !is_token_placeholder(secret),
            Check::Value | Check::Assignment => !is_placeholder(secret),
            Check::Mixed => is_mixed(secret) && !is_placeholder(secret),
        }
    }

    /// Is no part of something longer, like a picture in base64?
    fn stands_alone(&self, text: &str, range: &Range<usize>) -> bool {
        let part = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'-';
        // The pattern itself sees to the rest of what may stand before it.
        let before = range.start.checked_sub(1).and_then(|at| text.as_bytes().get(at));
        let joined = self.before == Before::Word && before == Some(&b'-');
        !joined && !text.as_bytes().get(range.end).is_some_and(part)
    }
}

/// Spans in order; those that overlap become one, which the more particular kind names.
fn merged(mut spans: Vec<(Range<usize>, &str)>) -> Vec<(Range<usize>, &str)> {
    // Stable: of spans that begin together the kind that was looked for first comes first.
    spans.sort_by_key(|(range, _)| range.start);
    let mut merged: Vec<(Range<usize>, &str)> = Vec::with_capacity(spans.len());
    for (range, kind) in spans {
        match merged.last_mut() {
            Some((last, _)) if range.start < last.end => last.end = last.end.max(range.end),
            _ => merged.push((range, kind)),
        }
    }
    merged
}

fn replace(text: &str, spans: &[(Range<usize>, &str)], counts: &mut Counts) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut from = 0;
    for (range, kind) in spans {
        replaced.push_str(text.get(from..range.start).unwrap_or_default());
        replaced.push_str("[redacted:");
        replaced.push_str(kind);
        replaced.push(']');
        counts.add(kind, 1);
        from = range.end;
    }
    replaced.push_str(text.get(from..).unwrap_or_default());
    replaced
}
