//! A recipe's word on a request before it is answered: its export `requests`, if the operator grants it.
//! The recipe has 10 milliseconds of its own and the request waits a little longer for a thread; a fault or a late
//! answer leaves the request as it was and is counted. After repeated faults the recipe is not asked for a while.

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
pub async fn transform(scenario: &Scenario, caller: &Caller, request: &mut ChatRequest, body: &mut Map<String, Value>) {
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
    let outcome = match tokio::time::timeout(WAIT_MAX, now.recipe.transform_request(call, view)).await {
        Ok(ended) => {
            scenario.heard_request(ended.result.as_ref().map(drop));
            match ended.result {
                Ok(None) => "unchanged",
                Ok(Some(messages)) => {
                    body.insert("messages".to_owned(), json!(messages));
                    request.messages = messages;
                    "changed"
                }
                Err(fault) => {
                    tracing::warn!(scenario = %scenario.key.1, %fault, "recipe.transform_request");
                    "failed"
                }
            }
        }
        Err(_) => "late",
    };
    metrics::counter!("reef_requests_transformed_total", "outcome" => outcome).increment(1);
}
