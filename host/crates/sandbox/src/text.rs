//! Guest text made fit for people and log files: bounded, on one line, nothing invisible.

/// Escapes control, bidirectional and zero-width characters and keeps at most `chars_max` characters, then `…`.
pub(crate) fn clean(text: &str, chars_max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(chars_max.saturating_mul(4)));
    for (count, c) in text.chars().enumerate() {
        if count == chars_max {
            out.push('…');
            break;
        }
        if is_hidden(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Is it `^[a-z][a-z0-9_/]{0,63}$`, the rule of metric and measurement names?
pub(crate) fn is_metric_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'/'))
}

/// Is it the name of a model binding or a verifier: 1 to 64 letters, digits, `_` and `-`?
pub(crate) fn is_binding_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_escapes_and_line_breaks_become_visible() {
        assert_eq!(clean("a\u{1b}[31mb\r\nc\u{202e}d", 100), "a\\u{1b}[31mb\\r\\nc\\u{202e}d");
        assert_eq!(clean("größe", 100), "größe");
        assert_eq!(clean("abcdef", 3), "abc…");
        assert_eq!(clean("abc", 3), "abc");
    }

    #[test]
    fn metric_names_follow_their_rule() {
        assert!(is_metric_name("loss/value_1"));
        assert!(is_binding_name("judge-2") && !is_binding_name("../x") && !is_binding_name(""));
        for bad in ["", "1a", "A", "a b", "a.b", "../x", &"a".repeat(65)] {
            assert!(!is_metric_name(bad), "{bad}");
        }
    }
}
