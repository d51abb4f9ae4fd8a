//! `NAME=value`, `name: "value"`, `--name=value`: values that their names give away, in environment dumps, settings,
//! code and headers. The value is read by hand, because quotes decide where it ends; the name says how it must look.

use std::ops::Range;

use regex::Regex;

use super::names::{NAME_BYTES_MAX, Secrecy, secrecy};
use super::values::{is_mixed, is_placeholder, is_plain, is_random};

/// Bytes of a value; what goes on longer is no secret but a document.
const VALUE_BYTES_MAX: usize = 4096;
/// Bytes of the shortest value that is taken out.
const VALUE_BYTES_MIN: usize = 4;
/// Bytes of a password without quotes whose name is not written like a variable's.
const BARE_BYTES_MIN: usize = 6;
/// Bytes of letters alone that are no word.
const PHRASE_BYTES_MIN: usize = 16;

/// Where a value stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Written {
    /// `NAME=value`, the name in capitals, nothing around the sign.
    Variable,
    /// In quotes.
    Quoted,
    /// The value of a field of a JSON object.
    Field,
    /// Anything else.
    Bare,
}

/// Where the secrets of all assignments stand; `sign` finds keyword and sign of each.
pub(super) fn secrets(text: &str, sign: &Regex, mut found: impl FnMut(Range<usize>)) {
    // What lies inside a bare value is not looked at again, so that no text costs more than its length.
    let mut seen = 0;
    for keyword in sign.find_iter(text).map(|keyword| keyword.range()) {
        if keyword.start < seen {
            continue;
        }
        let Some(name) = name(text, &keyword) else { continue };
        let secrecy = secrecy(name);
        if secrecy == Secrecy::None {
            continue;
        }
        let Some((range, quoted)) = value(text, keyword.end) else { continue };
        if !quoted {
            seen = range.end;
        }
        let written = written(name, text.get(keyword).unwrap_or_default(), quoted);
        if text.get(range.clone()).is_some_and(|value| is_secret(secrecy, written, value)) {
            found(range);
        }
    }
}

fn written(name: &str, sign: &str, quoted: bool) -> Written {
    let tight = sign.ends_with('=') && !sign.contains(char::is_whitespace);
    let capitals = !name.bytes().any(|b| b.is_ascii_lowercase()) && !name.contains('-');
    match (quoted, tight && capitals) {
        (_, true) => Written::Variable,
        (true, false) => Written::Quoted,
        (false, false) => Written::Bare,
    }
}

/// Is the value of a name that says so much, written so, a secret?
pub(super) fn is_secret(secrecy: Secrecy, written: Written, value: &str) -> bool {
    let whole = !value.contains(char::is_whitespace) && (VALUE_BYTES_MIN..=VALUE_BYTES_MAX).contains(&value.len());
    if !whole || is_placeholder(value) {
        return false;
    }
    let code = value.contains(['(', '[', '{']) || value.contains("::") || value.contains("->");
    match (secrecy, written) {
        (Secrecy::None, _) => false,
        (Secrecy::Sure, Written::Variable | Written::Field) => true,
        (Secrecy::Sure, Written::Quoted) => {
            is_mixed(value) || (value.len() >= PHRASE_BYTES_MIN && !value.contains(['.', '_', '/']))
        }
        (Secrecy::Sure, Written::Bare) => value.len() >= BARE_BYTES_MIN && !code && is_mixed(value) && !is_path(value),
        (Secrecy::Likely, Written::Variable) => !is_plain(value) && !code,
        (Secrecy::Likely, _) | (Secrecy::Guess, Written::Variable) => !code && is_random(value),
        (Secrecy::Guess, _) => false,
    }
}

/// `settings.DB2_PASSWORD`, `./key2.pem`, `lib/auth2/token`: words with signs between them.
fn is_path(value: &str) -> bool {
    !is_random(value)
        && value.contains(['.', '/', '_'])
        && !value.contains(['!', '@', '#', '$', '%', '^', '&', '*', '+'])
}

/// The whole name around the keyword, whose beginning lies before it.
fn name<'a>(text: &'a str, keyword: &Range<usize>) -> Option<&'a str> {
    let is_name = |b: &&u8| b.is_ascii_alphanumeric() || b"_.-".contains(b);
    let before = text.as_bytes().get(keyword.start.saturating_sub(NAME_BYTES_MAX)..keyword.start)?;
    let start = keyword.start - before.iter().rev().take_while(is_name).count();
    let start = (start + escape_tail(text.as_bytes(), start)).min(keyword.start);
    let length = text.as_bytes().get(start..keyword.end)?.iter().take_while(is_name).count();
    text.get(start..start + length.min(2 * NAME_BYTES_MAX)).map(|name| name.trim_start_matches('-'))
}

/// Bytes from `at` on that end an escape or a colour which begins before: the `n` of a written-out line break.
fn escape_tail(text: &[u8], at: usize) -> usize {
    let rest = text.get(at..).unwrap_or_default();
    let hexadecimal = |count: usize| rest.iter().skip(1).take(count).filter(|b| b.is_ascii_hexdigit()).count() == count;
    let before = at.checked_sub(1).and_then(|before| text.get(before));
    match (before, rest.first()) {
        (Some(b'\\'), Some(b'u')) if hexadecimal(4) => 5,
        (Some(b'\\'), Some(b'x')) if hexadecimal(2) => 3,
        (Some(b'\\'), Some(b'a' | b'b' | b'e' | b'f' | b'n' | b'r' | b't' | b'v')) => 1,
        (Some(b'%'), Some(b'0'..=b'9')) => 2,
        (Some(before @ (b'[' | b';')), _) => {
            let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
            let ends = rest.get(digits).is_some_and(|b| b"mK".contains(b)) && (digits > 0 || *before == b'[');
            if ends { digits + 1 } else { 0 }
        }
        _ => 0,
    }
}

/// Bytes of a terminal's colour at the beginning of a text, also where its escape is spelled out.
fn colour(text: &str) -> usize {
    let bare = text.trim_start_matches('\\');
    let spelled = ["u001b[", "u001B[", "x1b[", "x1B[", "033[", "e["].iter().find_map(|start| bare.strip_prefix(start));
    let spelled = spelled.filter(|_| bare.len() < text.len());
    let Some(rest) = text.strip_prefix("\x1b[").or(spelled) else { return 0 };
    let number = rest.bytes().take_while(|b| b.is_ascii_digit() || *b == b';').count();
    rest.get(number..).filter(|rest| rest.starts_with(['m', 'K'])).map_or(0, |_| text.len() - rest.len() + number + 1)
}

/// The value after the sign, without its quotes, and whether it has any.
fn value(text: &str, from: usize) -> Option<(Range<usize>, bool)> {
    let rest = text.get(from..)?;
    let start = from + rest.bytes().take_while(|b| *b == b' ' || *b == b'\t').take(16).count();
    let start = start + colour(text.get(start..)?);
    let rest = text.get(start..)?;
    let escapes = rest.bytes().take_while(|b| *b == b'\\').count();
    let quote = rest.as_bytes().get(escapes).copied().filter(|b| b"\"'`".contains(b));
    if let Some(quote) = quote {
        let start = start + escapes + 1;
        let window = text.as_bytes().get(start..)?;
        let length = window.iter().take(VALUE_BYTES_MAX + 1).position(|b| *b == quote || *b == b'\n')?;
        // The escapes of the closing quote are not part of the value.
        let length = length - window.get(..length)?.iter().rev().take(escapes).take_while(|b| **b == b'\\').count();
        return Some((start..start + length, true));
    }
    let ends = |c: char| c.is_whitespace() || "\"'`,;&<>|)}]\\\x1b".contains(c);
    Some((start..start + rest.find(ends).unwrap_or(rest.len()), false))
}
