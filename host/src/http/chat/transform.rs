//! A recipe's word on a request before it is answered: its export `requests`, if the operator grants it.
//! The recipe has 10 milliseconds of its own and the request waits a little longer for a thread; a fault or a late
//! answer leaves the request as it was and is counted. After repeated faults the recipe is not asked for a while.

use std::sync::Arc;
use std::time::Duration;

use reef_sandbox::{Call, RequestView};
use serde_json::{Map, Value, json};

use super::request::ChatRequest;
use crate::http::caller::Caller;
use crate::jobs::run_step::context_outside;
use crate::scenarios::Scenario;

/// How long a request waits for the recipe, queues included.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Changes the messages of the request, and of the body that is recorded.
pub async fn transform(
    scenario: &Arc<Scenario>,
    caller: &Caller,
    request: &mut ChatRequest,
    body: &mut Map<String, Value>,
) {
    let Some(now) = scenario.recipe().filter(|now| now.recipe.exports().requests) else { return };
    if !scenario.hears_requests() {
        metrics::counter!("reef_requests_transformed_total", "outcome" => "quarantined").increment(1);
        return;
    }
    let view = RequestView {
        messages: request.messages.clone(),
        session: caller.session.clone(),
        tags: caller.tags.iter().map(|(tag, value)| (tag.to_string(), value.clone())).collect(),
    };
    let config = scenario.recipe_config(&now.config);
    let call = Call { config, ..Call::new(context_outside(scenario)) };
    let (asked, recipe) = (Arc::clone(scenario), now.recipe);
    // It goes on when the request does not wait any more: how it ends is remembered either way.
    let hearing = tokio::spawn(async move {
        let ended = recipe.transform_request(call, view).await.result;
        asked.heard_request(ended.as_ref().map(drop));
        ended
    });
    let outcome = match tokio::time::timeout(WAIT_MAX, hearing).await {
        Ok(Ok(Ok(None))) => "unchanged",
        Ok(Ok(Ok(Some(messages)))) => {
            body.insert("messages".to_owned(), json!(messages));
            request.messages = messages;
            "changed"
        }
        Ok(Ok(Err(fault))) => {
            tracing::warn!(scenario = %scenario.key.1, %fault, "recipe.transform_request");
            "failed"
        }
        Ok(Err(_)) => "failed",
        Err(_) => "late",
    };
    metrics::counter!("reef_requests_transformed_total", "outcome" => outcome).increment(1);
}
