//! What an upstream says when it does not answer, told to whom it concerns.
//! A request at fault is the client's matter; a key, an account or a server at fault is the operator's. Texts from
//! outside are cut, and the key's value never leaves, whoever repeats it; what is said of a key goes to the log alone.

use std::collections::BTreeSet;
use std::fmt;

use reef_dialects::{OVERFLOW, is_overflow};
use reqwest::StatusCode;
use serde_json::Value;

use super::ProviderError;

/// Characters of an upstream's sentence that are repeated, and of its codes and parameters.
const SENTENCE_CHARS_MAX: usize = 500;
const NAME_CHARS_MAX: usize = 64;
/// A shorter key would be found in ordinary words.
const KEY_CHARS_MIN: usize = 6;
/// Code of a refusal that only the server's operator can end.
pub const ACCOUNT_REFUSED: &str = "provider_account_refused";
/// Stands for a key.
const REDACTED: &str = "[redacted]";

/// An upstream's key. It shows itself to nobody.
#[derive(Clone, Default)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Keeps `key`.
    pub fn new(key: String) -> Self {
        Self(key)
    }

    /// The text without the key.
    pub fn redacted(&self, text: String) -> String {
        if self.0.len() < KEY_CHARS_MIN || !text.contains(&self.0) { text } else { text.replace(&self.0, REDACTED) }
    }

    /// The text without words that hold a part of the key, or a key that is masked already.
    fn without_parts(&self, text: &str) -> String {
        let parts = |bytes: &[u8]| bytes.windows(KEY_CHARS_MIN).map(<[u8]>::to_vec).collect::<BTreeSet<_>>();
        let key = parts(self.0.as_bytes());
        let told = |word: &str| word.contains('*') || !key.is_disjoint(&parts(word.as_bytes()));
        let words: Vec<&str> = text.split(' ').map(|word| if told(word) { REDACTED } else { word }).collect();
        words.join(" ")
    }

    /// The text without the key, cut.
    pub fn shown(&self, text: &str, chars_max: usize) -> String {
        let text = self.redacted(text.to_owned());
        let plain = |char: char| if char.is_control() { ' ' } else { char };
        text.trim().chars().take(chars_max).map(plain).collect()
    }

    /// A sentence of a reader about the upstream, without the key.
    pub fn broken(&self, provider: &str, sentence: &str) -> ProviderError {
        let told = self.shown(sentence, SENTENCE_CHARS_MAX);
        ProviderError::Broken(format!("the answer of provider '{provider}' is not usable: {told}"))
    }
}

/// An answer that is not a success.
#[derive(Debug)]
pub struct Failure<'a> {
    /// The provider's name.
    pub provider: &'a str,
    /// Its key.
    pub secret: &'a Secret,
    /// The status.
    pub status: StatusCode,
    /// Seconds of `Retry-After`.
    pub retry_after_s: Option<u32>,
    /// What could be read of the body.
    pub body: &'a [u8],
}

impl Failure<'_> {
    /// Whom it concerns.
    pub fn error(&self) -> ProviderError {
        let (provider, status) = (self.provider, self.status.as_u16());
        let body: Option<Value> = serde_json::from_slice(self.body).ok();
        let told = body.as_ref().map_or_else(String::new, |body| self.sentence(body));
        let told =
            if told.is_empty() { self.status.canonical_reason().unwrap_or("no reason").to_owned() } else { told };
        match status {
            300..400 => ProviderError::Broken(format!(
                "provider '{provider}' redirects to another address ({status}), which is not followed; \
                 its operator must correct providers.{provider}.url"
            )),
            // Not the client's token but the server's key or account; such sentences often hold a part of the key.
            401..=403 => {
                let told = self.secret.without_parts(&told);
                tracing::warn!(provider, upstream.status = status, told, "the provider does not accept the key");
                // 502 without a time to wait: the same request fails until somebody corrects it.
                ProviderError::Refused {
                    status: StatusCode::BAD_GATEWAY.as_u16(),
                    code: ACCOUNT_REFUSED.to_owned(),
                    message: format!(
                        "provider '{provider}' does not accept this server's key or account; its operator must correct it"
                    ),
                    param: None,
                    retry_after_s: None,
                }
            }
            400..500 => ProviderError::Refused {
                status,
                code: Some(OVERFLOW.to_owned())
                    .filter(|_| is_overflow(&told))
                    .or(self.name(body.as_ref(), "code"))
                    .or(self.name(body.as_ref(), "type"))
                    .unwrap_or_else(default_code),
                message: told,
                param: self.name(body.as_ref(), "param"),
                retry_after_s: self.retry_after_s,
            },
            _ => ProviderError::Unavailable(format!("provider '{provider}' failed ({status}: {told}); try again")),
        }
    }

    /// The sentence of a JSON error, in whichever shape; a page of HTML has none.
    fn sentence(&self, body: &Value) -> String {
        let places = ["/error/message", "/message", "/detail", "/error"];
        let found = places.iter().find_map(|place| body.pointer(place).and_then(Value::as_str));
        found.map_or_else(String::new, |text| self.secret.shown(text, SENTENCE_CHARS_MAX))
    }

    fn name(&self, body: Option<&Value>, field: &str) -> Option<String> {
        let value = body?.pointer(&format!("/error/{field}"))?.as_str()?;
        Some(self.secret.shown(value, NAME_CHARS_MAX)).filter(|name| !name.is_empty())
    }
}

fn default_code() -> String {
    "provider_refused".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(status: u16, body: &str) -> ProviderError {
        let secret = Secret::new("sk-very-secret".to_owned());
        let status = StatusCode::from_u16(status).expect("a status");
        Failure { provider: "p", secret: &secret, status, retry_after_s: Some(7), body: body.as_bytes() }.error()
    }

    #[test]
    fn a_request_at_fault_is_told_in_the_upstreams_words() {
        let body = r#"{"error":{"message":"too long: sk-very-secret","type":"t","code":"context_length_exceeded","param":"messages"}}"#;
        assert_eq!(
            error(400, body),
            ProviderError::Refused {
                status: 400,
                code: "context_length_exceeded".to_owned(),
                message: "too long: [redacted]".to_owned(),
                param: Some("messages".to_owned()),
                retry_after_s: Some(7),
            }
        );
        let anthropic = error(429, r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}"#);
        assert_eq!((anthropic.status(), anthropic.code()), (429, "rate_limit_error"));
    }

    #[test]
    fn a_key_an_account_or_a_server_at_fault_is_not_the_clients_matter() {
        for status in [401, 402, 403, 500, 502, 503, 529] {
            let told = error(status, r#"{"error":{"message":"Incorrect key sk-very-secret"}}"#);
            assert_eq!(told.status(), if status < 500 { 502 } else { 503 }, "{told}");
            assert!(!told.to_string().contains("very-secret"), "{told}");
        }
        assert_eq!(error(302, "").status(), 502);
    }

    #[test]
    fn a_conversation_that_is_too_long_has_one_code_whoever_says_so() {
        for body in [
            r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 210000 tokens > 200000 maximum"}}"#,
            r#"{"error":{"code":400,"type":"BadRequestError","message":"This model's maximum context length is 10 tokens"}}"#,
        ] {
            assert_eq!(error(400, body).code(), OVERFLOW, "{body}");
        }
    }

    #[test]
    fn what_is_said_of_a_key_is_not_told_and_logged_without_its_parts() {
        for status in [401, 402, 403] {
            let told = error(status, r#"{"error":{"message":"Incorrect key sk-very*****cret, see our page"}}"#);
            assert!(!told.to_string().contains("Incorrect") && !told.to_string().contains("sk-very"), "{told}");
        }
        let secret = Secret::new("sk-very-secret".to_owned());
        let logged = secret.without_parts("key sk-very-se… or 'very-secret' or sk-***et is wrong: sk-v");
        assert_eq!(logged, "key [redacted] or [redacted] or [redacted] is wrong: sk-v");
        assert_eq!(Secret::default().without_parts("no key"), "no key");
    }

    #[test]
    fn pages_and_endless_texts_are_not_repeated() {
        let page = error(400, "<html><body>Bad Request</body></html>");
        assert_eq!(page.to_string(), "Bad Request");
        let long = error(400, &format!("{{\"error\":\"{}\"}}", "x".repeat(100_000)));
        assert_eq!(long.to_string().len(), SENTENCE_CHARS_MAX);
        assert_eq!(format!("{:?}", Secret::new("k".to_owned())), "Secret");
    }
}
