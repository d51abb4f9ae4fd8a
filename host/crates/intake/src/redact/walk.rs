//! Every string of a JSON value, and the values of fields whose names say that they are secret.

use std::borrow::Cow;

use serde_json::{Map, Number, Value};

use super::assignment::{Written, is_secret};
use super::names::{Secrecy, is_secret_of_numbers, secrecy};
use super::patterns::NAMED_SECRET;
use super::{Counts, Redactor};

/// JSON written into a string (arguments of a call, say) is read up to this size when it has escapes.
const NESTED_BYTES_MAX: usize = 4 << 20;
/// JSON in JSON in JSON.
const NESTED_LEVELS_MAX: usize = 4;
/// Words before the secret of an authorization field.
const SCHEMES: [&str; 4] = ["bearer ", "basic ", "token ", "digest "];

/// Bytes of all texts of a value, names of fields included: what looking at it costs.
pub fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(text_bytes).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + text_bytes(value)).sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}

impl Redactor {
    /// Takes the secrets out of every string of a value, and says what it took.
    pub fn redact_json(&self, value: &mut Value) -> Counts {
        let mut counts = Counts::default();
        if self.enabled {
            Walk { redactor: self, counts: &mut counts, levels: 0 }.value(value, None);
        }
        counts
    }
}

struct Walk<'a> {
    redactor: &'a Redactor,
    counts: &'a mut Counts,
    /// Strings that this value was read out of.
    levels: usize,
}

impl Walk<'_> {
    /// `name` is that of the nearest field around the value.
    fn value(&mut self, value: &mut Value, name: Option<&str>) {
        match value {
            Value::String(text) => {
                if let Some(redacted) = self.text(text, name) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item, name)),
            Value::Object(fields) => self.fields(fields),
            Value::Number(number) if name.is_some_and(|name| self.redactor.names && named_number(name, number)) => {
                self.counts.add(NAMED_SECRET, 1);
                *value = Value::String(format!("[redacted:{NAMED_SECRET}]"));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn fields(&mut self, fields: &mut Map<String, Value>) {
        let mut renamed = Vec::new();
        for (name, value) in fields.iter_mut() {
            self.value(value, Some(name));
            let (Cow::Owned(redacted), counts) = self.redactor.redact_text(name) else { continue };
            self.counts.merge(&counts);
            renamed.push((name.clone(), redacted));
        }
        for (name, redacted) in renamed {
            let Some(value) = fields.remove(&name) else { continue };
            // Two keys of the same kind are still two fields.
            let taken = (2..).map(|n| format!("{redacted} {n}"));
            let free = std::iter::once(redacted.clone()).chain(taken).find(|name| !fields.contains_key(name));
            fields.insert(free.unwrap_or(redacted), value);
        }
    }

    /// The text without its secrets; `None`: it has none.
    fn text(&mut self, text: &str, name: Option<&str>) -> Option<String> {
        let (redacted, counts) = self.redactor.redact_text(text);
        // A kind that is known tells more than the field's name, if nothing of the value is left.
        let whole = redacted.starts_with("[redacted:") && redacted.find(']') == redacted.len().checked_sub(1);
        let named = name.filter(|_| self.redactor.names && !whole).and_then(|name| named_secret(name, text));
        if let Some(named) = named {
            self.counts.add(NAMED_SECRET, 1);
            return Some(named);
        }
        if let Some(nested) = self.nested(&redacted) {
            self.counts.merge(&counts);
            return Some(nested);
        }
        self.counts.merge(&counts);
        match redacted {
            Cow::Borrowed(_) => None,
            Cow::Owned(redacted) => Some(redacted),
        }
    }

    /// JSON in a string may spell a secret with escapes, or hold JSON with another secret, which only its reader sees.
    fn nested(&mut self, text: &str) -> Option<String> {
        let json = text.trim_start().starts_with(['{', '[', '"']) && text.len() <= NESTED_BYTES_MAX;
        if !json || self.levels >= NESTED_LEVELS_MAX || !text.contains('\\') {
            return None;
        }
        let mut value: Value = serde_json::from_str(text).ok()?;
        let mut counts = Counts::default();
        Walk { redactor: self.redactor, counts: &mut counts, levels: self.levels + 1 }.value(&mut value, None);
        if counts.is_empty() {
            return None;
        }
        let written = serde_json::to_string(&value).ok()?;
        // Written anew it has fewer escapes and blanks: the next look at it must find nothing more.
        let (redacted, more) = self.redactor.redact_text(&written);
        counts.merge(&more);
        self.counts.merge(&counts);
        Some(redacted.into_owned())
    }
}

/// A number whose name says that it is secret; what has a fraction is a score or a share.
fn named_number(name: &str, number: &Number) -> bool {
    let whole = number.as_f64().is_some_and(|number| number.fract() == 0.0);
    whole
        && is_secret_of_numbers(name)
        && !name.contains("[redacted:")
        && is_secret(Secrecy::Sure, Written::Field, &number.to_string())
}

/// The value of a field whose name says that it is secret. Fields hold descriptions and types as well, so that the
/// value has a say, too.
fn named_secret(name: &str, text: &str) -> Option<String> {
    let secrecy = secrecy(name);
    // The kind that stands in the place of a secret is no part of the name.
    if secrecy == Secrecy::None || name.contains("[redacted:") {
        return None;
    }
    let lower = text.get(..8).unwrap_or_default().to_ascii_lowercase();
    let scheme = SCHEMES.iter().find(|scheme| lower.starts_with(*scheme)).map_or(0, |scheme| scheme.len());
    let (scheme, value) = text.split_at_checked(scheme)?;
    // After a scheme there is nothing but the secret.
    let secrecy = if scheme.is_empty() { secrecy } else { Secrecy::Sure };
    is_secret(secrecy, Written::Field, value).then(|| format!("{scheme}[redacted:{NAMED_SECRET}]"))
}
