//! One operation on one repository: retries, redirects and log-in, with the rules of where things may go.
//! Credentials and tokens go to the registry itself and to the token service that the operator named, to nobody else;
//! redirects keep the scheme, and a plain registry may send nobody elsewhere. Only reading is retried.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use hyper::{Method, StatusCode};
use serde::Deserialize;

use crate::challenge::{self, Challenge};
use crate::config::{Access, RegistryConfig};
use crate::error::shown;
use crate::origin::{Address, Origin, encoded, names};
use crate::transport::{Answer, Ask, Fault, Transport};
use crate::{Reference, RegistryError};

/// Times that a reading request is sent.
const ATTEMPTS_MAX: u32 = 3;
/// Wait before the second attempt; doubled before each further one.
const BACKOFF: Duration = Duration::from_millis(200);
/// Redirects of one request.
const REDIRECTS_MAX: usize = 5;
/// Times that one operation logs in (a token may expire once).
const LOGINS_MAX: u8 = 2;
/// Bytes of the answer of a token service.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;
/// Bytes of a message with which a registry refuses.
const MESSAGE_BYTES_MAX: u64 = 8 * 1024;

/// What a session may do in its repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    Pull,
    Push,
}

/// Something to read.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) path: String,
    pub(crate) accept: &'static str,
    pub(crate) bytes_max: u64,
    /// Verb and object, for messages.
    pub(crate) doing: &'a str,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Vec<u8>,
}

/// One operation on one repository.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    transport: &'a Transport,
    config: &'a RegistryConfig,
    reference: &'a Reference,
    right: Right,
    origin: Origin,
    authorization: Option<HeaderValue>,
    logins_left: u8,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        transport: &'a Transport,
        config: &'a RegistryConfig,
        reference: &'a Reference,
        right: Right,
    ) -> Self {
        let origin = Origin::of(reference.host(), &config.insecure_hosts);
        Self { transport, config, reference, right, origin, authorization: None, logins_left: LOGINS_MAX }
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// A path below the repository.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/v2/{}/{rest}", self.reference.repository())
    }

    /// Reads something; any status but 200 is an error.
    pub(crate) async fn get(&mut self, wanted: &Wanted<'_>) -> Result<Got, RegistryError> {
        let mut attempt = 1;
        loop {
            match self.get_once(wanted).await {
                Ok(got) => return Ok(got),
                Err(Fault::Passing(_)) if attempt < ATTEMPTS_MAX => {
                    tokio::time::sleep(BACKOFF * 2_u32.pow(attempt - 1)).await;
                    attempt += 1;
                }
                Err(fault) => return Err(self.error(fault, wanted.doing, wanted.bytes_max)),
            }
        }
    }

    async fn get_once(&mut self, wanted: &Wanted<'_>) -> Result<Got, Fault> {
        let mut at = self.origin.at(wanted.path.clone());
        let mut redirects = 0;
        loop {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(wanted.accept))]);
            let answer = self.ask(Method::GET, &at, headers, Bytes::new()).await?;
            let status = answer.status;
            if status == StatusCode::OK {
                let headers = answer.headers.clone();
                return Ok(Got { status, headers, bytes: answer.read(wanted.bytes_max).await? });
            }
            if !status.is_redirection() {
                return Err(self.refusal(answer, wanted.doing).await);
            }
            redirects += 1;
            if redirects > REDIRECTS_MAX {
                return Err(self.refused(format!(
                    "it sends us on more than {REDIRECTS_MAX} times; its operator has to mend that"
                )));
            }
            at = self.follow(&at.origin, &answer)?;
        }
    }

    /// Sends something to the registry itself, without retries and redirects; gives the answer of any status that is
    /// among `good`.
    pub(crate) async fn send(
        &mut self,
        method: Method,
        at: &Address,
        body: (&'static str, Bytes),
        good: &[StatusCode],
    ) -> Result<Got, RegistryError> {
        let doing = format!("{method} {}", shown(at.path.split('?').next().unwrap_or_default()));
        if at.origin != self.origin {
            return Err(self.foreign(&at.origin));
        }
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(body.0))]);
        let sent = async {
            let answer = self.ask(method, at, headers, body.1).await?;
            if !good.contains(&answer.status) {
                return Err(self.refusal(answer, &doing).await);
            }
            let (status, headers) = (answer.status, answer.headers.clone());
            Ok(Got { status, headers, bytes: Vec::new() })
        };
        let sent = sent.await;
        sent.map_err(|fault| self.error(fault, &doing, MESSAGE_BYTES_MAX))
    }

    /// Where an answer of the registry points; only the registry itself will do.
    pub(crate) fn location(&self, got: &Got) -> Result<Address, RegistryError> {
        let at = self.pointed(&self.origin, &got.headers)?;
        if at.origin == self.origin { Ok(at) } else { Err(self.foreign(&at.origin)) }
    }

    /// One request, repeated after a log-in when the registry itself asks for one.
    async fn ask(&mut self, method: Method, at: &Address, headers: HeaderMap, body: Bytes) -> Result<Answer, Fault> {
        let own = at.origin == self.origin;
        loop {
            let mut headers = headers.clone();
            if let Some(authorization) = self.authorization.as_ref().filter(|_| own) {
                headers.insert(AUTHORIZATION, authorization.clone());
            }
            let ask = Ask { method: method.clone(), at, headers, body: body.clone(), public_only: !own };
            let answer = self.transport.send(ask).await?;
            if answer.status != StatusCode::UNAUTHORIZED || !own || self.logins_left == 0 {
                return Ok(answer);
            }
            self.logins_left -= 1;
            let Some(challenge) = challenge::read(&answer.headers) else { return Ok(answer) };
            drop(answer);
            self.authorization = Some(self.log_in(challenge).await?);
        }
    }

    async fn log_in(&self, challenge: Challenge) -> Result<HeaderValue, Fault> {
        let access = self.access();
        let basic = access
            .login
            .as_ref()
            .map(|login| format!("Basic {}", STANDARD.encode(format!("{}:{}", login.user, login.password))));
        let Challenge::Bearer { realm, service } = challenge else {
            let basic =
                basic.ok_or_else(|| self.refused("it wants a user and a password; add a log-in for it".to_owned()))?;
            return self.secret(&basic);
        };
        let mut at = self.token_address(&realm, access.token_host.as_deref())?;
        if let Some(service) = service {
            at = at.with_parameter("service", &encoded(&service));
        }
        // The scope is ours, not the one of the challenge: a registry cannot ask for rights on other repositories.
        let actions = if self.right == Right::Push { "pull,push" } else { "pull" };
        at = at.with_parameter("scope", &encoded(&format!("repository:{}:{actions}", self.reference.repository())));
        let mut headers = HeaderMap::new();
        if let Some(basic) = basic {
            headers.insert(AUTHORIZATION, self.secret(&basic)?);
        }
        let ask = Ask { method: Method::GET, at: &at, headers, body: Bytes::new(), public_only: false };
        let answer = self.transport.send(ask).await?;
        if answer.status != StatusCode::OK {
            return Err(self.refusal(answer, "get a token").await);
        }
        let token = serde_json::from_slice::<Token>(&answer.read(TOKEN_BYTES_MAX).await?).ok();
        let token = token.and_then(|token| token.token.or(token.access_token)).filter(|token| !token.is_empty());
        let token =
            token.ok_or_else(|| self.refused("its token service gives no token; check the log-in".to_owned()))?;
        self.secret(&format!("Bearer {token}"))
    }

    /// The token service: on the registry's own origin, or on the host that the operator named.
    fn token_address(&self, realm: &str, token_host: Option<&str>) -> Result<Address, Fault> {
        let at = Address::resolve(realm, &self.origin)
            .map_err(|problem| self.refused(format!("its token service: {problem}")))?;
        let own = at.origin == self.origin;
        let named = token_host.map(|host| Origin::of(host, &self.config.insecure_hosts));
        if own || named.is_some_and(|named| named == at.origin) {
            return Ok(at);
        }
        Err(self.refused(format!(
            "it sends us to {} for a token; if you trust that host with the log-in, name it as the token host of this registry",
            at.origin
        )))
    }

    fn access(&self) -> Access {
        let exact = self.config.access.get(self.reference.host());
        let listed =
            || self.config.access.iter().find(|(host, _)| names(host, self.reference.host())).map(|(_, access)| access);
        exact.or_else(listed).cloned().unwrap_or_default()
    }

    fn secret(&self, text: &str) -> Result<HeaderValue, Fault> {
        let mut value = HeaderValue::from_str(text).map_err(|_| {
            self.refused("its token has characters that no header may have; nothing was sent".to_owned())
        })?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Where a redirect of `from` leads, if it may be followed.
    fn follow(&self, from: &Origin, answer: &Answer) -> Result<Address, Fault> {
        let next = self.pointed(from, &answer.headers).map_err(Fault::Final)?;
        let both_secure = next.origin.secure() && from.secure();
        if next.origin == *from || both_secure {
            return Ok(next);
        }
        Err(self.refused(format!(
            "it sends us to {}, which is not followed: only https to https, or the same host; let the registry serve its files itself",
            next.origin
        )))
    }

    fn pointed(&self, base: &Origin, headers: &HeaderMap) -> Result<Address, RegistryError> {
        let text = headers.get(LOCATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
        Address::resolve(text, base).map_err(|problem| RegistryError::Refused {
            origin: self.origin.to_string(),
            problem: format!("it sends us on, and {problem}; its operator has to mend that"),
        })
    }

    fn foreign(&self, origin: &Origin) -> RegistryError {
        RegistryError::Refused {
            origin: self.origin.to_string(),
            problem: format!(
                "it wants the upload at {origin}, which is another place; nothing was sent there: set the registry's external \
                 address (docker-registry: http.host)"
            ),
        }
    }

    fn refused(&self, problem: String) -> Fault {
        Fault::Final(RegistryError::Refused { origin: self.origin.to_string(), problem })
    }

    /// What an unwelcome status means.
    async fn refusal(&self, answer: Answer, doing: &str) -> Fault {
        let status = answer.status;
        if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
            return Fault::Passing(format!("it answers {status}"));
        }
        if status == StatusCode::NOT_FOUND {
            return Fault::Final(RegistryError::NotFound { reference: self.reference.to_string() });
        }
        let body = answer.read(MESSAGE_BYTES_MAX).await.unwrap_or_default();
        let said =
            serde_json::from_slice::<Refusals>(&body).ok().and_then(|refusals| refusals.errors.into_iter().next());
        let said =
            said.map(|said| format!(" ({})", shown(&format!("{}: {}", said.code, said.message)))).unwrap_or_default();
        let remedy = if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            "add or correct the log-in for this registry"
        } else {
            "ask its operator"
        };
        self.refused(format!("cannot {doing}: it answers {status}{said}; {remedy}"))
    }

    fn error(&self, fault: Fault, doing: &str, bytes_max: u64) -> RegistryError {
        match fault {
            Fault::Passing(cause) => RegistryError::Unreachable {
                origin: self.origin.to_string(),
                doing: doing.to_owned(),
                cause: shown(&cause),
            },
            Fault::TooLong(found) => RegistryError::TooLarge {
                what: format!("{}: an answer ({doing})", self.reference),
                found: format!("{found} bytes or more"),
                bytes_max,
            },
            Fault::Final(error) => error,
        }
    }
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct Refusals {
    errors: Vec<Said>,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}
