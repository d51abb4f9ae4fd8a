//! Which models answer a request under the scenario's routing policy, and the next of them where one fails.
//! A model that the policy names and the server no longer has is an error, never another model. The next is asked only
//! while the client has heard nothing; each try is a record of its own that says policy, rule and model by tags that no
//! client can set.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::Response;
use reef_core::{ReleaseId, RouteFacts, Tag};
use reef_dialects::{Ask, Dialect, Input, Part};
use serde_json::{Map, Value};

use super::resolve::{Model, Resolved, parse};
use super::{Serving, attempt};
use crate::http::caller::{Caller, POLICY_TAG, ROUTE_TAG};
use crate::http::error::ApiError;
use crate::provider::Upstream;

/// What answers a request, in order.
#[derive(Debug)]
pub struct Route {
    policy: ReleaseId,
    /// From 1.
    rule: usize,
    /// Each with the provider that serves it; none: the embedded engine.
    models: Vec<(String, Option<Arc<Upstream>>)>,
}

/// The route of a request; none where no rule is about it, or where it names a release itself.
pub fn plan(serving: &Serving, resolved: &Resolved, (caller, ask): (&Caller, &Ask)) -> Result<Option<Route>, ApiError> {
    let Some(live) = resolved.scenario.policy().filter(|_| !resolved.pinned) else { return Ok(None) };
    let (tags, model) = (&caller.tags, ask.model.as_str());
    let facts = RouteFacts { tags, prompt_bytes: prompt_bytes(&ask.input), tools: !ask.tools.is_empty(), model };
    let Some((rule, found)) = live.policy.route(facts) else { return Ok(None) };
    let own = &resolved.scenario.key.1;
    let serves = |name: &String| match parse(serving, name)? {
        Model::Head => Ok((name.clone(), None)),
        Model::Alias(alias) if alias == *own => Ok((name.clone(), None)),
        Model::Upstream(upstream) => Ok((name.clone(), Some(upstream))),
        Model::Alias(_) | Model::Release(_) => Err(gone(name, rule)),
    };
    let models = found.models.iter().map(serves).collect::<Result<_, ApiError>>()?;
    Ok(Some(Route { policy: live.release.clone(), rule, models }))
}

fn gone(model: &str, rule: usize) -> ApiError {
    let shown: String = model.escape_default().take(200).collect();
    let told = format!(
        "rule {rule} of the routing policy names the model '{shown}', which this server does not have any more; roll the \
         policy back, or add the model under providers"
    );
    ApiError::new(StatusCode::NOT_FOUND, "model_not_found", told)
}

/// Bytes of all texts that the model would read, without those of tools that it may call.
fn prompt_bytes(input: &Input) -> u64 {
    let part = |part: &Part| match part {
        Part::Text(text) | Part::Reasoning { text, .. } | Part::Result { text, .. } => text.len(),
        Part::Call { arguments, .. } => arguments.len(),
        _ => 0,
    };
    let bytes = match input {
        Input::Turns(turns) => turns.iter().flat_map(|turn| &turn.parts).map(part).sum(),
        Input::Text(text) => text.len(),
        // Four bytes to a token, as texts have in the mean.
        Input::Tokens(tokens) => tokens.len().saturating_mul(4),
    };
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// Answers along the route.
pub async fn along(
    route: Route,
    serving: &Serving,
    (resolved, caller): (Resolved, Caller),
    (ask, body): (Ask, Map<String, Value>),
    (dialect, mut arrived): (Dialect, Instant),
) -> Result<Response, ApiError> {
    let mut answered = Err(ApiError::internal("the request was not routed", "a rule without models"));
    for (model, upstream) in route.models {
        let (mut caller, mut ask, mut body) = (caller.clone(), ask.clone(), body.clone());
        for (tag, value) in [(POLICY_TAG, route.policy.to_string()), (ROUTE_TAG, format!("{}:{model}", route.rule))] {
            if let Ok(tag) = Tag::parse(tag) {
                caller.tags.insert(tag, value);
            }
        }
        body.insert("model".to_owned(), Value::String(model.clone()));
        ask.model = model;
        let resolved = Resolved { upstream, ..resolved.clone() };
        answered = attempt((dialect, arrived), serving, (resolved, caller, true), (ask, body)).await;
        metrics::counter!("reef_routed_requests_total", "failed" => has_failed(&answered).to_string()).increment(1);
        if !has_failed(&answered) {
            break;
        }
        // What a provider took that failed is not this server's own time.
        arrived = Instant::now();
    }
    answered
}

/// Did the model fail, so that another may do better? A stream that began has not.
fn has_failed(answered: &Result<Response, ApiError>) -> bool {
    let status = match answered {
        Ok(response) => response.status(),
        Err(error) => error.status,
    };
    status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error()
}
