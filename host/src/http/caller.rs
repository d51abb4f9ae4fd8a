//! What the headers of a request say: who, which scenario, which tags, which trace.
//! Every handler starts from a `Caller`; malformed headers are refused here with their name.

use std::collections::BTreeMap;
use std::net::IpAddr;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use reef_core::{DecidedBy, Release, ReleaseId, ScenarioName, Tag, TenantId};
use reef_dialects::Dialect;
use reef_intake::{CALL_HEADERS, SESSION_HEADERS, named_session};
use reef_store::{ROLLOUT_TAG, ROLLOUT_UNIT_TAG};
use std::sync::Arc;

use super::error::ApiError;
use crate::auth::{Auth, Principal};
use crate::config::Scope;
use crate::episodes::{Pass, Passes};
use crate::provider::anthropic_headers;
use crate::scenarios::{Scenario, ScenarioError, Scenarios};

/// Bytes of one tag or session value.
const TAG_VALUE_BYTES_MAX: usize = 512;
/// Tags of one request.
const TAGS_MAX: usize = 32;
/// Tag of a record: the release of the routing policy that chose its model.
pub const POLICY_TAG: &str = "routing-policy";
/// Tag of a record: the number of the policy's rule, and the model that was asked under it.
pub const ROUTE_TAG: &str = "routing-rule";

/// The authenticated sender of a request and what its headers ask for.
#[derive(Debug, Clone)]
pub struct Caller {
    principal: Principal,
    /// `x-reef-scenario`, checked.
    pub scenario: Option<ScenarioName>,
    /// `x-reef-tag-*`.
    pub tags: BTreeMap<Tag, String>,
    /// Session identity.
    pub session: Option<String>,
    /// Headers in which a harness says that a call is not the conversation itself.
    pub harness: BTreeMap<&'static str, String>,
    /// False for `x-reef-capture: off`, and for calls beside the conversation.
    pub capture: bool,
    /// `x-reef-release-id`.
    pub release: Option<ReleaseId>,
    /// W3C `traceparent`.
    pub traceparent: Option<String>,
    /// `x-request-id`, the client's or ours.
    pub request_id: Option<String>,
    /// `anthropic-version` and `anthropic-beta`.
    pub anthropic: Vec<(HeaderName, HeaderValue)>,
}

impl Caller {
    /// A request that leaves no record: of an episode, whose pass names the weights, or of a token that may evaluate.
    pub fn unrecorded(
        headers: &HeaderMap,
        (auth, passes): (&Auth, &Passes),
        scenario: ScenarioName,
    ) -> Result<(Self, Option<Arc<Pass>>), ApiError> {
        let pass = token(headers)?.and_then(|token| passes.find(token));
        let (principal, release) = match &pass {
            Some(pass) => (Principal::episode(&pass.scenario), Some(pass.release.clone())),
            None => {
                let caller = Self::read(headers, auth)?;
                caller.require(Scope::Evaluate)?;
                (caller.principal, caller.release)
            }
        };
        let caller = Self {
            principal,
            scenario: Some(scenario),
            tags: BTreeMap::new(),
            session: None,
            harness: BTreeMap::new(),
            capture: false,
            release,
            traceparent: None,
            request_id: None,
            anthropic: anthropic_headers(headers),
        };
        Ok((caller, pass))
    }

    /// Whose data.
    pub fn tenant(&self) -> &TenantId {
        &self.principal.tenant
    }

    /// Who decides what this request asks for.
    pub fn person(&self) -> DecidedBy {
        DecidedBy::Person { name: self.principal.name.clone() }
    }

    /// Refuses unless the token has the scope.
    pub fn require(&self, scope: Scope) -> Result<(), ApiError> {
        if self.principal.may(scope) {
            return Ok(());
        }
        let scope = serde_json::to_value(scope).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
        Err(ApiError::new(
            StatusCode::FORBIDDEN,
            "scope_missing",
            format!("this token lacks the scope '{scope}'; add it under auth.tokens"),
        ))
    }

    /// The scenario of this request: the header, else the token's default.
    pub fn scenario(&self) -> Result<ScenarioName, ApiError> {
        let name = self.scenario.clone().or_else(|| self.principal.default_scenario.clone());
        let name = name.ok_or_else(|| {
            ApiError::invalid(
                "x-reef-scenario",
                "name the scenario in the header x-reef-scenario; this token has no default",
            )
        })?;
        self.check_sees(&name)?;
        Ok(name)
    }

    /// The scenario of a path, for a caller with the scope.
    pub async fn open(&self, scenarios: &Scenarios, scope: Scope, name: &str) -> Result<Arc<Scenario>, ApiError> {
        self.require(scope)?;
        let name = ScenarioName::parse(name)?;
        self.check_sees(&name)?;
        Ok(scenarios.get(self.tenant(), &name).await?)
    }

    /// Scenarios out of a token's reach look absent.
    pub fn check_sees(&self, name: &ScenarioName) -> Result<(), ApiError> {
        if self.principal.sees(name) {
            return Ok(());
        }
        Err(ApiError::not_found(format!("scenario '{name}' does not exist")))
    }

    /// Is this scenario within the token's reach?
    pub fn sees(&self, name: &ScenarioName) -> bool {
        self.principal.sees(name)
    }

    /// The release of a scenario in this token's reach that a new one may begin with.
    pub async fn beginning(&self, scenarios: &Scenarios, release: &ReleaseId) -> Result<Release, ApiError> {
        let found = scenarios.beginning(self.tenant(), release).await?;
        if self.sees(&found.manifest.scenario) {
            return Ok(found);
        }
        Err(ScenarioError::UnknownRelease(release.clone()).into())
    }

    fn read(headers: &HeaderMap, auth: &Auth) -> Result<Self, ApiError> {
        if auth.is_open() {
            refuse_foreign_page(headers)?;
        }
        let token = token(headers)?;
        let principal = auth.principal(token).cloned().ok_or_else(|| {
            ApiError::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "the bearer token is missing or unknown; send Authorization: Bearer <token>",
            )
        })?;
        let tags = tags(headers)?;
        Ok(Self {
            principal,
            scenario: text(headers, "x-reef-scenario")?.map(ScenarioName::parse).transpose()?,
            session: session(headers, &tags)?,
            harness: harness(headers)?,
            capture: capture(headers)?,
            // The published client says "artifact version" where the protocol now says release id.
            release: match text(headers, "x-reef-release-id")? {
                Some(id) => Some(ReleaseId::parse(id)?),
                None => text(headers, "x-reef-artifact-version")?.map(ReleaseId::parse).transpose()?,
            },
            traceparent: text(headers, "traceparent")?.map(str::to_owned),
            anthropic: anthropic_headers(headers),
            request_id: headers.get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned),
            tags,
        })
    }
}

/// Without tokens every web page that a local browser shows could speak to this server: by name (DNS rebinding)
/// or across origins. Programs send no origin and a loopback host.
fn refuse_foreign_page(headers: &HeaderMap) -> Result<(), ApiError> {
    let origin = text(headers, "origin")?.map(|origin| origin.split_once("://").map_or(origin, |(_, host)| host));
    for host in [text(headers, "host")?, origin].into_iter().flatten() {
        let name = host
            .rsplit_once(':')
            .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
            .map_or(host, |(name, _)| name);
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        if !(name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())) {
            let told = "a server without tokens answers local programs only; configure auth.tokens to serve others";
            return Err(ApiError::new(StatusCode::FORBIDDEN, "foreign_host", told));
        }
    }
    Ok(())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, ApiError> {
    // One of two scenarios would be the wrong one.
    if name.starts_with("x-reef-") && headers.get_all(name).iter().count() > 1 {
        return Err(ApiError::invalid(name, format!("the header {name} is there more than once; send it once")));
    }
    match headers.get(name) {
        None => Ok(None),
        Some(value) => match value.to_str() {
            Ok(text) => Ok(Some(text.trim()).filter(|t| !t.is_empty())),
            Err(_) => Err(ApiError::invalid(name, format!("the header {name} is not printable ASCII"))),
        },
    }
}

fn token(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    if headers.get_all(header::AUTHORIZATION).iter().count() > 1 {
        return Err(ApiError::invalid(
            "authorization",
            "the header Authorization is there more than once; send it once",
        ));
    }
    let Some(value) = text(headers, "authorization")? else { return text(headers, "x-api-key") };
    let (scheme, token) = value.split_once(' ').unwrap_or(("", value));
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Some(token.trim()));
    }
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "the header Authorization must be 'Bearer <token>'"))
}

fn tags(headers: &HeaderMap) -> Result<BTreeMap<Tag, String>, ApiError> {
    let mut tags = BTreeMap::new();
    for name in headers.keys() {
        if let Some(tag) = name.as_str().strip_prefix("x-reef-tag-") {
            if [ROLLOUT_TAG, ROLLOUT_UNIT_TAG, POLICY_TAG, ROUTE_TAG].contains(&tag) {
                let told = format!("the tag '{tag}' is given by the server; use another name");
                return Err(ApiError::invalid(name.as_str(), told));
            }
            let value = text(headers, name.as_str())?.unwrap_or_default();
            tags.insert(Tag::parse(tag)?, bounded(value)?);
        }
    }
    if tags.len() > TAGS_MAX {
        return Err(ApiError::invalid("x-reef-tag", format!("more than {TAGS_MAX} tags")));
    }
    Ok(tags)
}

fn session(headers: &HeaderMap, tags: &BTreeMap<Tag, String>) -> Result<Option<String>, ApiError> {
    for name in SESSION_HEADERS {
        text(headers, name)?;
    }
    let tag = tags.iter().find(|(tag, _)| tag.as_str() == "session").map(|(_, value)| value.as_str());
    let header = |name: &str| text(headers, name).ok().flatten();
    named_session(tag, header, None).map(|(session, _)| bounded(session)).transpose()
}

fn harness(headers: &HeaderMap) -> Result<BTreeMap<&'static str, String>, ApiError> {
    let mut said = BTreeMap::new();
    for name in CALL_HEADERS {
        if let Some(value) = text(headers, name)? {
            said.insert(name, bounded(value)?);
        }
    }
    Ok(said)
}

fn bounded(value: &str) -> Result<String, ApiError> {
    if value.len() > TAG_VALUE_BYTES_MAX {
        return Err(ApiError::invalid(
            "x-reef-tag",
            format!("a tag or session value is longer than {TAG_VALUE_BYTES_MAX} bytes"),
        ));
    }
    Ok(value.to_owned())
}

fn capture(headers: &HeaderMap) -> Result<bool, ApiError> {
    match text(headers, "x-reef-capture")? {
        None | Some("on") => Ok(true),
        Some("off") => Ok(false),
        Some(_) => Err(ApiError::invalid("x-reef-capture", "the header x-reef-capture is 'on' or 'off'")),
    }
}

impl<S> FromRequestParts<S> for Caller
where
    S: Send + Sync,
    Arc<Auth>: FromRef<S>,
{
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let auth = Arc::<Auth>::from_ref(state);
        Self::read(&parts.headers, &auth).map_err(|error| dialect_response(parts.uri.path(), error))
    }
}

/// An error in the shape of the route that was called.
pub fn dialect_response(path: &str, error: ApiError) -> Response {
    if path.starts_with("/v1/") { error.in_dialect(Dialect::of_path(path)) } else { error.into_response() }
}
