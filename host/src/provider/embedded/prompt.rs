//! What is to be continued, as token ids.
//! A conversation goes through the model's template; text and ids of completions go as they are. Tools that another
//! provider would host are not told to the model: it could only call them in vain.

use std::collections::HashMap;

use reef_dialects::{Ask, Dialect, Input, Part, Role, Tool, ToolChoice, Turn};
use reef_engine::{ChatCall, ChatTurn, Conversation, Engine, Variables};
use serde_json::{Value, json};

use super::{ProviderError, conversation, refusal, refused};

/// The field of chat completions in which other servers of open models take variables of the template.
pub(super) const TEMPLATE_VARIABLES: &str = "chat_template_kwargs";

/// Token ids of the prompt. Blocks while it is tokenised.
pub(super) fn render(engine: &Engine, ask: &Ask, dialect: Dialect) -> Result<Vec<u32>, ProviderError> {
    let rendered = match &ask.input {
        Input::Tokens(ids) => return known(engine, ids, dialect),
        Input::Text(text) => engine.encode_prompt(text),
        Input::Turns(turns) => {
            let read = Read::new(engine, ask, turns, dialect)?;
            engine
                .render_turns(read.conversation())
                .and_then(|prompt| Ok([prompt, engine.encode_prompt(&read.begun)?].concat()))
        }
    };
    rendered.map_err(|error| refused(error, dialect))
}

/// How many tokens the prompt has, also of one that does not fit. Blocks while it is tokenised.
pub(super) fn count(engine: &Engine, ask: &Ask, dialect: Dialect) -> Result<usize, ProviderError> {
    let Input::Turns(turns) = &ask.input else { return render(engine, ask, dialect).map(|prompt| prompt.len()) };
    let read = Read::new(engine, ask, turns, dialect)?;
    let counted = engine.count_turns(read.conversation()).and_then(|turns| Ok(turns + engine.count(&read.begun)?));
    counted.map_err(|error| refused(error, dialect))
}

/// Ids that the client has chosen.
fn known(engine: &Engine, ids: &[u32], dialect: Dialect) -> Result<Vec<u32>, ProviderError> {
    let vocabulary = engine.info().vocabulary;
    match ids.iter().find(|id| **id as usize >= vocabulary) {
        None => Ok(ids.to_vec()),
        Some(id) => {
            let field = conversation(dialect);
            Err(refusal(
                "invalid_request",
                field,
                format!("{field}: token {id} is outside the vocabulary of {vocabulary}"),
            ))
        }
    }
}

/// A conversation as the template reads it, and what the answer goes on from.
struct Read {
    turns: Vec<ChatTurn>,
    tools: Vec<Value>,
    variables: Variables,
    begun: String,
}

impl Read {
    fn new(engine: &Engine, ask: &Ask, turns: &[Turn], dialect: Dialect) -> Result<Self, ProviderError> {
        let (turns, begun) = begun(turns, dialect);
        let variables = variables(ask);
        if !begun.is_empty() && engine.opens_reasoning(&variables) {
            let message = "this model thinks before it answers, so its answer cannot be begun for it; end with a turn of the user";
            return Err(refusal("invalid_request", conversation(dialect), message));
        }
        let tools = functions(ask).map(definition).collect();
        Ok(Self { turns: chat_turns(turns, dialect)?, tools, variables, begun })
    }

    fn conversation(&self) -> Conversation<'_> {
        Conversation { turns: &self.turns, tools: &self.tools, variables: &self.variables }
    }
}

/// The turns before the answer, and its beginning: in the messages dialect an assistant's text that comes last is what
/// the answer goes on from.
fn begun(turns: &[Turn], dialect: Dialect) -> (&[Turn], String) {
    let whole = (turns, String::new());
    let (Dialect::Messages, Some((last, before))) = (dialect, turns.split_last()) else { return whole };
    let texts = last.parts.iter().map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None });
    match texts.collect::<Option<String>>() {
        Some(text) if last.role == Role::Assistant && !before.is_empty() => (before, text),
        _ => whole,
    }
}

/// What the model's template reads besides the conversation. Templates of models that may think ask for
/// `enable_thinking`; no effort at all means that they shall not.
pub(super) fn variables(ask: &Ask) -> Variables {
    let given = ask.unknown.get(TEMPLATE_VARIABLES).and_then(Value::as_object);
    let mut variables = given.cloned().unwrap_or_default();
    if ask.effort() == Some("none") && !variables.contains_key("enable_thinking") {
        variables.insert("enable_thinking".to_owned(), json!(false));
    }
    variables
}

/// The functions that the model may call.
pub(super) fn functions(ask: &Ask) -> impl Iterator<Item = &Tool> {
    let may_call = ask.tool_choice != ToolChoice::None;
    ask.tools.iter().filter(move |tool| may_call && tool.hosted.is_none())
}

fn definition(tool: &Tool) -> Value {
    let mut function = json!({ "name": tool.name, "parameters": tool.parameters });
    if let Some(description) = &tool.description {
        function["description"] = json!(description);
    }
    json!({ "type": "function", "function": function })
}

fn chat_turns(turns: &[Turn], dialect: Dialect) -> Result<Vec<ChatTurn>, ProviderError> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut rendered = Vec::with_capacity(turns.len());
    for turn in turns {
        let mut said = ChatTurn { role: role(turn.role).to_owned(), ..ChatTurn::default() };
        for part in &turn.parts {
            match part {
                Part::Text(text) => said.content.push_str(text),
                Part::Reasoning { text, .. } if text.is_empty() => {}
                Part::Reasoning { text, .. } => said.reasoning.get_or_insert_default().push_str(text),
                Part::Call { id, name, arguments } => {
                    names.insert(id, name);
                    let (id, name, arguments) = (id.clone(), name.clone(), arguments.clone());
                    said.calls.push(ChatCall { id, name, arguments });
                }
                Part::Result { id, text, .. } => rendered.push(result(id, text, names.get(id.as_str()).copied())),
                Part::Other { kind, .. } => return Err(not_text(kind, dialect)),
            }
        }
        if turn.role != Role::Tool || !said.content.is_empty() {
            rendered.push(said);
        }
    }
    Ok(rendered)
}

/// A result that names no call is told as it is.
fn result(id: &str, text: &str, function: Option<&str>) -> ChatTurn {
    ChatTurn {
        role: role(Role::Tool).to_owned(),
        content: text.to_owned(),
        answers: (!id.is_empty()).then(|| id.to_owned()),
        name: function.map(str::to_owned),
        ..ChatTurn::default()
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

fn not_text(kind: &str, dialect: Dialect) -> ProviderError {
    let (kind, field): (String, _) = (kind.escape_debug().take(64).collect(), conversation(dialect));
    let message = format!("{field}: parts of type '{kind}' are not supported by this model; send text");
    refusal("invalid_request", field, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(role: Role, parts: Vec<Part>) -> Turn {
        Turn { role, parts }
    }

    #[test]
    fn calls_and_their_results_are_turns_and_results_name_their_function() {
        let call =
            |id: &str, name: &str| Part::Call { id: id.to_owned(), name: name.to_owned(), arguments: "{}".to_owned() };
        let result = |id: &str| Part::Result { id: id.to_owned(), text: format!("of {id}"), failed: false };
        let turns = [
            turn(Role::User, vec![Part::Text("a".to_owned()), Part::Text("b".to_owned())]),
            turn(Role::Assistant, vec![Part::Text("so".to_owned()), call("1", "f"), call("2", "g")]),
            turn(Role::Tool, vec![result("2"), result("1"), result("")]),
        ];
        let rendered = chat_turns(&turns, Dialect::Chat).expect("turns");
        let roles: Vec<&str> = rendered.iter().map(|turn| turn.role.as_str()).collect();
        assert_eq!(roles, ["user", "assistant", "tool", "tool", "tool"]);
        assert_eq!((rendered[0].content.as_str(), rendered[1].calls.len()), ("ab", 2));
        let named: Vec<_> = rendered[2..].iter().map(|turn| (turn.answers.as_deref(), turn.name.as_deref())).collect();
        assert_eq!(named, [(Some("2"), Some("g")), (Some("1"), Some("f")), (None, None)]);
    }

    #[test]
    fn an_answer_that_the_client_began_is_no_turn_of_its_own() {
        let user = turn(Role::User, vec![Part::Text("Count".to_owned())]);
        let begins = turn(Role::Assistant, vec![Part::Text("1, ".to_owned()), Part::Text("2,".to_owned())]);
        let turns = [user.clone(), begins.clone()];
        assert_eq!(begun(&turns, Dialect::Messages), (&turns[..1], "1, 2,".to_owned()));
        assert_eq!(begun(&turns, Dialect::Chat), (&turns[..], String::new()));
        let turns = [begins, user];
        assert_eq!(begun(&turns, Dialect::Messages), (&turns[..], String::new()));
    }

    #[test]
    fn what_is_no_text_is_refused_with_its_type_and_field() {
        let image = Part::Other { kind: "input_image".to_owned(), value: Value::Null };
        let refused = chat_turns(&[turn(Role::User, vec![image])], Dialect::Responses).expect_err("refused");
        let ProviderError::Refused { status, message, param, .. } = refused else { panic!("{refused:?}") };
        assert!(status == 400 && message.contains("input_image") && param.as_deref() == Some("input"));
    }

    #[test]
    fn hosted_tools_are_not_told() {
        let tool = |name: &str, hosted: Option<Value>| Tool {
            name: name.to_owned(),
            description: None,
            parameters: json!({}),
            strict: false,
            hosted,
        };
        let mut ask = Ask::new("m", Input::Text("x".to_owned()));
        ask.tools = vec![tool("web_search", Some(json!({ "type": "web_search" }))), tool("f", None)];
        assert_eq!(functions(&ask).map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["f"]);
        ask.tool_choice = ToolChoice::None;
        assert_eq!(functions(&ask).count(), 0);
    }
}
