//! What a registry asks for when it answers 401 (RFC 9110, `www-authenticate`), read strictly.
//! Whether the log-in goes there is the session's decision.

use hyper::HeaderMap;
use hyper::header::WWW_AUTHENTICATE;

/// Bytes of one challenge.
const CHALLENGE_BYTES_MAX: usize = 4096;

/// A challenge that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// User and password with each request.
    Basic,
    /// A token, to be fetched from `realm`.
    Bearer {
        /// Address of the token service.
        realm: String,
        /// Name that the token service knows the registry by.
        service: Option<String>,
    },
}

/// The first challenge that can be answered.
pub(crate) fn read(headers: &HeaderMap) -> Option<Challenge> {
    headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).find_map(read_one)
}

fn read_one(text: &str) -> Option<Challenge> {
    if text.len() > CHALLENGE_BYTES_MAX {
        return None;
    }
    let (scheme, mut rest) = text.trim().split_once(' ')?;
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let (mut realm, mut service) = (None, None);
    while let Some((name, value, tail)) = parameter(rest) {
        match name.to_ascii_lowercase().as_str() {
            "realm" => realm = Some(value),
            "service" => service = Some(value),
            _ => {}
        }
        rest = tail;
    }
    Some(Challenge::Bearer { realm: realm?, service })
}

/// One `name=value` or `name="value"`, and what follows it.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = text.trim_start_matches([',', ' ']).split_once('=')?;
    let Some(quoted) = rest.strip_prefix('"') else {
        let end = rest.find([',', ' ']).unwrap_or(rest.len());
        let (value, tail) = rest.split_at(end);
        return Some((name, value.to_owned(), tail));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return Some((name, value, quoted.get(index + 1..)?)),
            '\\' => value.push(characters.next()?.1),
            plain => value.push(plain),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn challenge(text: &'static str) -> Option<Challenge> {
        read(&HeaderMap::from_iter([(WWW_AUTHENTICATE, HeaderValue::from_static(text))]))
    }

    fn bearer(realm: &str, service: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer { realm: realm.to_owned(), service: service.map(str::to_owned) })
    }

    #[test]
    fn challenges_of_real_registries_are_read() {
        let hub = r#"Bearer realm="https://auth.example.com/token",service="registry.example.com",scope="a:b,c""#;
        assert_eq!(challenge(hub), bearer("https://auth.example.com/token", Some("registry.example.com")));
        assert_eq!(challenge(r#"bearer service=x, realm="a\"b""#), bearer("a\"b", Some("x")));
        assert_eq!(challenge(r#"Basic realm="Registry""#), Some(Challenge::Basic));
    }

    #[test]
    fn broken_challenges_are_none() {
        for text in [
            "",
            "Bearer",
            "Bearer x",
            r#"Bearer realm="open"#,
            "Bearer service=x",
            "Negotiate abc",
            r#"Bearer realm="\"#,
        ] {
            assert_eq!(challenge(text), None, "{text}");
        }
    }
}
