//! `GET /openapi.json`: every route, as the document beside this file describes them.

use std::sync::LazyLock;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// The document; written as YAML because people edit it.
const DOCUMENT: &str = include_str!("openapi.yaml");

/// As it is sent: read once.
static SENT: LazyLock<Result<String, String>> = LazyLock::new(|| {
    let mut document: Value = serde_yaml_ng::from_str(DOCUMENT).map_err(|error| error.to_string())?;
    if let Some(info) = document.get_mut("info").and_then(Value::as_object_mut) {
        info.insert("version".to_owned(), json!(env!("CARGO_PKG_VERSION")));
    }
    Ok(document.to_string())
});

/// The document with this program's version.
pub async fn show() -> Response {
    match &*SENT {
        Ok(text) => {
            let json = HeaderValue::from_static("application/json");
            ([(header::CONTENT_TYPE, json)], text.as_str()).into_response()
        }
        Err(problem) => super::error::ApiError::internal("the document cannot be read", problem).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::SENT;

    const METHODS: [&str; 4] = ["get", "post", "put", "delete"];

    fn document() -> Value {
        serde_json::from_str(SENT.as_ref().expect("it is YAML")).expect("it is JSON")
    }

    /// `METHOD path` of every route in the router's source. Nested routers stand in `let` blocks named as here.
    fn routes() -> BTreeSet<String> {
        let source = include_str!("mod.rs");
        let body = source.split_once("pub fn router(").expect("the router").1;
        let body = body.split_once(".fallback(").expect("its end").0;
        let mut prefix = "";
        let mut found = BTreeSet::new();
        for line in body.lines().map(str::trim) {
            prefix = match line {
                "let scenario = Router::new()" => "/reef/scenarios/{scenario}",
                "let harness = Router::new()" => "/reef/harness",
                "Router::new()" => "",
                _ => prefix,
            };
            let Some(rest) = line.strip_prefix(".route(") else { continue };
            let (path, handlers) = rest.split_once(", ").expect("a path and handlers");
            let path = match path {
                "Dialect::Chat.path()" => "/v1/chat/completions",
                "Dialect::Completions.path()" => "/v1/completions",
                "Dialect::Messages.path()" => "/v1/messages",
                "Dialect::Responses.path()" => "/v1/responses",
                "unrecorded::COUNT_TOKENS" => "/v1/messages/count_tokens",
                "unrecorded::EMBEDDINGS" => "/v1/embeddings",
                "\"/\"" => "",
                literal => literal.trim_matches('"'),
            };
            for method in METHODS.iter().filter(|method| handlers.contains(&format!("{method}("))) {
                found.insert(format!("{method} {prefix}{path}").replace("{scenario}", "{s}"));
            }
        }
        found
    }

    #[test]
    fn it_names_every_route_and_no_other() {
        let document = document();
        let paths = document["paths"].as_object().expect("paths");
        let described = paths.iter().flat_map(|(path, operations)| {
            let methods =
                operations.as_object().expect("operations").keys().filter(|key| METHODS.contains(&key.as_str()));
            methods.map(move |method| format!("{method} {path}"))
        });
        assert_eq!(described.collect::<BTreeSet<_>>(), routes());
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_operation_is_explained() {
        fn check(value: &Value, document: &Value) {
            match value {
                Value::Object(fields) => {
                    if let Some(Value::String(to)) = fields.get("$ref") {
                        let place = to.strip_prefix('#').expect("a place in the document");
                        assert!(document.pointer(place).is_some(), "{to} leads nowhere");
                    }
                    fields.values().for_each(|field| check(field, document));
                }
                Value::Array(items) => items.iter().for_each(|item| check(item, document)),
                _ => {}
            }
        }
        let document = document();
        check(&document, &document);
        for (path, operations) in document["paths"].as_object().expect("paths") {
            for (_, operation) in
                operations.as_object().expect("operations").iter().filter(|(key, _)| *key != "parameters")
            {
                let told = operation["summary"].as_str().is_some_and(|summary| !summary.is_empty());
                assert!(told && operation["tags"].is_array() && operation["responses"].is_object(), "{path}");
            }
        }
    }
}
