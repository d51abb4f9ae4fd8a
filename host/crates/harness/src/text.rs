//! What every text of a tree must be: UTF-8 without a byte order mark, lines that end with LF, bounded, and free of
//! keys. The entries call it for each of their texts; nothing here changes a text.

use crate::error::Problem;

/// Bytes of one text; agent programs put it into a prompt, or read it as a file.
pub const TEXT_BYTES_MAX: usize = 256 << 10;

/// A key that services give out: how it starts and how many characters follow at least.
struct KeyForm {
    start: &'static str,
    rest_chars_min: usize,
}

const KEY_FORMS: [KeyForm; 14] = [
    KeyForm { start: "sk-", rest_chars_min: 20 },
    KeyForm { start: "ghp_", rest_chars_min: 30 },
    KeyForm { start: "gho_", rest_chars_min: 30 },
    KeyForm { start: "ghs_", rest_chars_min: 30 },
    KeyForm { start: "github_pat_", rest_chars_min: 30 },
    KeyForm { start: "glpat-", rest_chars_min: 16 },
    KeyForm { start: "xoxb-", rest_chars_min: 16 },
    KeyForm { start: "xoxp-", rest_chars_min: 16 },
    KeyForm { start: "AKIA", rest_chars_min: 16 },
    KeyForm { start: "AIza", rest_chars_min: 30 },
    KeyForm { start: "hf_", rest_chars_min: 30 },
    KeyForm { start: "npm_", rest_chars_min: 30 },
    KeyForm { start: "pypi-", rest_chars_min: 40 },
    KeyForm { start: "eyJ", rest_chars_min: 60 },
];

/// The text in these bytes, if it follows every rule.
pub fn decode(bytes: &[u8]) -> Result<&str, Problem> {
    if bytes.len() > TEXT_BYTES_MAX {
        return Err(Problem::TooLong { bytes: bytes.len(), most: TEXT_BYTES_MAX });
    }
    let text = std::str::from_utf8(bytes).map_err(|error| Problem::NotUtf8 { at: error.valid_up_to() })?;
    check(text)?;
    Ok(text)
}

/// The same for a text that came as a string.
pub fn check(text: &str) -> Result<(), Problem> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(Problem::TooLong { bytes: text.len(), most: TEXT_BYTES_MAX });
    }
    if text.starts_with('\u{feff}') {
        return Err(Problem::ByteOrderMark);
    }
    let bad = text.char_indices().find(|(_, c)| c.is_control() && *c != '\n' && *c != '\t');
    if let Some((at, c)) = bad {
        return Err(Problem::Control { code: u32::from(c), at });
    }
    match key_start(text) {
        Some(start) => Err(Problem::Credential { start }),
        None => Ok(()),
    }
}

/// The same for a text on one line.
pub fn check_line(text: &str) -> Result<(), Problem> {
    check(text)?;
    let bad = |c: &char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    match text.char_indices().find(|(_, c)| bad(c)) {
        Some((at, c)) => Err(Problem::Control { code: u32::from(c), at }),
        None => Ok(()),
    }
}

/// How a literal key in the text starts, if there is one.
fn key_start(text: &str) -> Option<&'static str> {
    if text.contains("-----BEGIN ") && text.contains("PRIVATE KEY-----") {
        return Some("-----BEGIN");
    }
    KEY_FORMS.iter().find(|form| holds_key(text, form)).map(|form| form.start)
}

fn holds_key(text: &str, form: &KeyForm) -> bool {
    text.match_indices(form.start).any(|(at, _)| {
        let (before, after) = (text.get(..at).unwrap_or(""), text.get(at + form.start.len()..).unwrap_or(""));
        let inside_a_word = before.chars().next_back().is_some_and(|c| c.is_ascii_alphanumeric());
        let rest: Vec<char> =
            after.chars().take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect();
        !inside_a_word && rest.len() >= form.rest_chars_min && rest.iter().any(char::is_ascii_digit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_with_the_wrong_bytes_are_refused_with_the_place() {
        assert_eq!(decode(b"ok\xff"), Err(Problem::NotUtf8 { at: 2 }));
        assert_eq!(decode(b"\xef\xbb\xbfok"), Err(Problem::ByteOrderMark));
        assert_eq!(decode(b"a\r\nb"), Err(Problem::Control { code: 13, at: 1 }));
        assert_eq!(decode(b"a\0"), Err(Problem::Control { code: 0, at: 1 }));
        let long = vec![b'a'; TEXT_BYTES_MAX + 1];
        assert_eq!(decode(&long), Err(Problem::TooLong { bytes: long.len(), most: TEXT_BYTES_MAX }));
        assert_eq!(decode("{".repeat(1000).as_bytes()).map(str::len), Ok(1000));
        assert_eq!(check_line("one\ntwo"), Err(Problem::Control { code: 10, at: 3 }));
    }

    #[test]
    fn keys_are_found_and_words_are_not() {
        for key in
            ["sk-proj-Zq81kd02LsmQpPwe72hd", "see AKIAIOSFODNN7EXAMPLE.", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"]
        {
            assert!(matches!(check(key), Err(Problem::Credential { .. })), "{key}");
        }
        assert!(check("-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n").is_err());
        for word in
            ["task-1234567890123456789012345", "sk-learn", "use sk-something-that-is-only-words-here", "hf_ model"]
        {
            assert_eq!(check(word), Ok(()), "{word}");
        }
    }
}
