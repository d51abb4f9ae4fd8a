//! The JSON that crosses the boundary as text: configuration values, report fields, small tasks, and answers that are
//! lists of numbers. Objects are not read here.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

/// A finite number, or `None`.
pub fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    // Rust also parses `inf`, `nan` and `+1`, which JSON does not know.
    let starts_as_number = text.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let number: f64 = text.parse().ok()?;
    (starts_as_number && number.is_finite()).then_some(number)
}

/// A list of finite numbers, or `None`.
pub fn numbers(text: &str) -> Option<Vec<f64>> {
    let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
    if inner.trim().is_empty() { Some(Vec::new()) } else { inner.split(',').map(number).collect() }
}

/// A list of lists of finite numbers, or `None`.
pub fn rows(text: &str) -> Option<Vec<Vec<f64>>> {
    let mut rest = text.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    let mut rows = Vec::new();
    while !rest.is_empty() {
        let (row, after) = rest.split_at_checked(rest.find(']')? + 1)?;
        rows.push(numbers(row)?);
        rest = after.trim_start();
        if !rest.is_empty() {
            // A comma that nothing follows is no list.
            rest = rest.strip_prefix(',')?.trim_start();
            rest.starts_with('[').then_some(())?;
        }
    }
    Some(rows)
}

/// The content of a string literal, or `None`.
pub fn text(literal: &str) -> Option<String> {
    let inner = literal.trim().strip_prefix('"')?.strip_suffix('"')?;
    let mut characters = inner.chars();
    let mut out = String::with_capacity(inner.len());
    while let Some(character) = characters.next() {
        match character {
            '"' => return None,
            '\\' => out.push(escape(&mut characters)?),
            plain => out.push(plain),
        }
    }
    Some(out)
}

/// The character that an escape stands for, without its backslash.
fn escape(characters: &mut core::str::Chars<'_>) -> Option<char> {
    match characters.next()? {
        'n' => Some('\n'),
        't' => Some('\t'),
        'r' => Some('\r'),
        'b' => Some('\u{8}'),
        'f' => Some('\u{c}'),
        'u' => code_point(characters),
        literal @ ('"' | '\\' | '/') => Some(literal),
        _ => None,
    }
}

/// Four hex digits, or two such escapes that are a surrogate pair.
fn code_point(characters: &mut core::str::Chars<'_>) -> Option<char> {
    let high = hex4(characters)?;
    if !(0xd800..0xdc00).contains(&high) {
        return char::from_u32(high);
    }
    let low = match (characters.next()?, characters.next()?) {
        ('\\', 'u') => hex4(characters)?,
        _ => return None,
    };
    (0xdc00..0xe000).contains(&low).then(|| 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)).and_then(char::from_u32)
}

fn hex4(characters: &mut core::str::Chars<'_>) -> Option<u32> {
    let mut value = 0;
    for _ in 0..4 {
        value = value * 16 + characters.next()?.to_digit(16)?;
    }
    Some(value)
}

/// A string literal.
pub fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                out.push('\\');
                out.push(character);
            }
            control if control < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            plain => out.push(plain),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoting_and_reading_are_inverse() {
        for content in ["", "plain", "a\"b\\c", "line\nbreak\u{1}", "ü 🐚"] {
            assert_eq!(text(&quoted(content)).as_deref(), Some(content));
        }
    }

    #[test]
    fn escapes_are_read_as_json_defines_them() {
        assert_eq!(text(r#""\u0041\/\ud83d\udc1a""#).as_deref(), Some("A/🐚"));
        for bad in ["plain", "\"", r#""a"b""#, r#""\x""#, r#""\ud83d""#, r#""\u12""#] {
            assert_eq!(text(bad), None, "{bad}");
        }
    }

    #[test]
    fn lists_of_numbers_are_read_whole_or_not_at_all() {
        assert_eq!(numbers(" [1, -2.5e-1 ,3]\n"), Some(alloc::vec![1.0, -0.25, 3.0]));
        assert_eq!(numbers("[ ]"), Some(Vec::new()));
        for bad in ["", "1", "[1", "1]", "[1,]", "[,1]", "[1 2]", "[nan]", "[[1]]", "[\"1\"]", "[1]]"] {
            assert_eq!(numbers(bad), None, "{bad}");
        }
        assert_eq!(rows("[ [1,2] , [] ,[3] ]"), Some(alloc::vec![alloc::vec![1.0, 2.0], Vec::new(), alloc::vec![3.0]]));
        assert_eq!(rows("[]"), Some(Vec::new()));
        for bad in ["", "[1]", "[[1],]", "[[1][2]]", "[,[1]]", "[[1]", "[[1]] x", "[[[1]]]", "[[1],2]"] {
            assert_eq!(rows(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_finite_json_numbers_are_numbers() {
        assert_eq!(number(" -1.5e-3 "), Some(-0.0015));
        for bad in ["nan", "inf", "-inf", "+1", "1e999", "\"1\"", ""] {
            assert_eq!(number(bad), None, "{bad}");
        }
    }
}
