//! The parts of a request's body that tell what kind of call it is and which conversation it goes on with, in any of the
//! dialects that Reef serves. Lenient: what has another shape is not there, and nothing is copied.

use serde_json::{Map, Value};

/// A request's body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Body<'a>(pub(crate) &'a Map<String, Value>);

impl<'a> Body<'a> {
    /// Messages (chat, messages) or items (responses), system ones included.
    pub(crate) fn items(self) -> &'a [Value] {
        let list = |name: &str| self.0.get(name).and_then(Value::as_array).map(Vec::as_slice);
        list("messages").or_else(|| list("input")).unwrap_or_default()
    }

    /// The one text of a request without messages.
    pub(crate) fn text(self) -> Option<&'a str> {
        self.0.get("input").or_else(|| self.0.get("prompt")).and_then(Value::as_str)
    }

    /// What the operator says, in order.
    pub(crate) fn system(self) -> impl Iterator<Item = &'a str> {
        let fields = [self.0.get("system"), self.0.get("instructions")];
        let items = self.items().iter().filter(|item| is_system(item)).filter_map(|item| item.get("content"));
        fields.into_iter().flatten().chain(items).flat_map(texts)
    }

    /// The texts of the last message that a person sent; none if something else came after it.
    pub(crate) fn last_said(self) -> impl Iterator<Item = &'a str> {
        let last = self.items().last().filter(|item| role(item) == "user").and_then(|item| item.get("content"));
        last.into_iter().flat_map(texts).chain(self.text())
    }

    /// Messages that are not the operator's.
    pub(crate) fn said_count(self) -> usize {
        self.items().iter().filter(|item| !is_system(item)).count() + usize::from(self.text().is_some())
    }

    /// May the model call anything?
    pub(crate) fn has_tools(self) -> bool {
        self.0.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty())
    }

    /// Tokens of the answer.
    pub(crate) fn tokens_max(self) -> Option<u64> {
        ["max_tokens", "max_completion_tokens", "max_output_tokens"]
            .iter()
            .find_map(|name| self.0.get(*name).and_then(Value::as_u64))
    }
}

/// Who speaks; empty for items that are no messages.
pub(crate) fn role(item: &Value) -> &str {
    item.get("role").and_then(Value::as_str).unwrap_or_default()
}

/// Is it the operator's?
pub(crate) fn is_system(item: &Value) -> bool {
    matches!(role(item), "system" | "developer")
}

/// The texts of a content: a string, or parts of which some are text.
pub(crate) fn texts(content: &Value) -> impl Iterator<Item = &str> {
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = parts.iter().filter(|part| is_text(part)).filter_map(|part| part.get("text")?.as_str());
    content.as_str().into_iter().chain(texts)
}

/// A part that is text.
pub(crate) fn is_text(part: &Value) -> bool {
    let kind = part.get("type").and_then(Value::as_str);
    matches!(kind, None | Some("text" | "input_text" | "output_text"))
}
