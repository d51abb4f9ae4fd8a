//! What the text of an answer must match: a format, a call, either, or anything whose calls are those of strict
//! functions. A format alone is compiled as it came; calls become a grammar in the form in which this model's answers
//! are read again. Arguments follow the function's schema as far as it can be compiled: where it cannot, those of a
//! strict function are refused and any other function gets any JSON object.

use reef_dialects::{Ask, Dialect, Format, Tool, ToolChoice};
use reef_engine::{CallFormat, Constraint, Engine, Guide, WHITE_SPACE};
use serde_json::{Value, json};

use super::prompt::{functions, variables};
use super::{ProviderError, refusal, refused};

/// Functions whose schemas are compiled together; with more, only those of strict ones are.
const SCHEMAS_MAX: usize = 64;
/// Calls of one answer that has to call, so that a model that repeats itself comes to an end.
const CALLS_MAX: usize = 8;

/// What the engine says when no token fits a constraint any more.
const DEAD_END: &str = "constrained text cannot go on";

/// How a model writes a call: before the function's name, between it and the arguments, after them, between calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Form {
    open: &'static str,
    middle: &'static str,
    close: &'static str,
    between: &'static str,
}

const HERMES: Form =
    Form { open: "<tool_call>\n{\"name\": ", middle: ", \"arguments\": ", close: "}\n</tool_call>", between: "\n" };
const LLAMA_3: Form = Form { open: "{\"name\": ", middle: ", \"parameters\": ", close: "}", between: "; " };

/// The guide of an answer; none if it is free. Blocks while it is compiled.
pub(super) fn guide(engine: &Engine, ask: &Ask, dialect: Dialect) -> Result<Option<Guide>, ProviderError> {
    let must_call = matches!(ask.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
    let (thinks, form) = (engine.opens_reasoning(&variables(ask)), form_of(engine));
    let callable: Vec<&Tool> = functions(ask).filter(|tool| is_choice(ask, tool)).collect();
    let strict = form.is_some() && callable.iter().any(|tool| tool.strict);
    if ask.format == Format::Text && !must_call && !strict {
        return Ok(None);
    }
    if must_call && (callable.is_empty() || form.is_none()) {
        return Err(cannot_call(&callable));
    }
    let format = if must_call { None } else { schema(&ask.format) };
    let field = format_field(dialect);
    // Compiled first by itself: it tells exactly what is wrong, and bounds what the grammar costs.
    let alone = format.as_ref().map(|format| engine.guide(&Constraint::JsonSchema(format.clone()))).transpose();
    let alone = alone.map_err(|error| refusal("invalid_request", field, format!("{field}: {error}")))?;
    let form = form.filter(|_| !callable.is_empty());
    if format.is_some() && form.is_some_and(|form| form.open.starts_with('{')) {
        let reason = "this model writes calls as plain JSON, so an answer in a format cannot be told from a call";
        return Err(refusal("invalid_request", field, format!("{field}: {reason}; send it without tools")));
    }
    let calls = form.map(|form| calls(engine, form, &callable)).transpose()?;
    if !thinks && calls.is_none() {
        return Ok(alone);
    }
    let many = ask.parallel_calls != Some(false) && !matches!(ask.tool_choice, ToolChoice::Named(_));
    let body = match &format {
        Some(schema) => Body::Format(schema),
        None if must_call => Body::Calls,
        None => Body::Free,
    };
    let grammar = grammar(thinks, body, calls.as_ref(), many);
    engine.guide(&Constraint::Lark(grammar)).map(Some).map_err(|error| refused(error, dialect))
}

fn is_choice(ask: &Ask, tool: &Tool) -> bool {
    !matches!(&ask.tool_choice, ToolChoice::Named(name) if *name != tool.name)
}

fn cannot_call(callable: &[&Tool]) -> ProviderError {
    let reason = if callable.is_empty() {
        "the chosen tool is no function, and this model can call nothing else"
    } else {
        "this model writes calls in a form that cannot be enforced"
    };
    refusal("invalid_request", "tool_choice", format!("tool_choice: {reason}; use \"auto\""))
}

/// Where the dialect asks for a format.
fn format_field(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Chat | Dialect::Completions => "response_format",
        Dialect::Messages => "output_config.format",
        Dialect::Responses => "text.format",
    }
}

/// The refusal of a format or of tools that the answer could not follow to its end; none for other failures.
pub(super) fn dead_end(ask: &Ask, dialect: Dialect, reason: &str) -> Option<ProviderError> {
    reason.contains(DEAD_END).then(|| {
        let field = if ask.format == Format::Text { "tools" } else { format_field(dialect) };
        refusal("invalid_request", field, format!("{field}: {reason}"))
    })
}

fn schema(format: &Format) -> Option<Value> {
    match format {
        Format::Text => None,
        Format::Json => Some(json!({ "type": "object" })),
        Format::Schema { schema, .. } => Some(schema.clone()),
    }
}

/// The form in which this model's answers are read again; none if it is not known.
fn form_of(engine: &Engine) -> Option<Form> {
    match engine.call_format() {
        CallFormat::Hermes => Some(HERMES),
        CallFormat::Llama3 => Some(LLAMA_3),
        CallFormat::None => None,
    }
}

/// Functions with the schemas of their arguments, and how they are called.
struct Calls {
    form: Form,
    functions: Vec<(String, Value)>,
}

fn calls(engine: &Engine, form: Form, callable: &[&Tool]) -> Result<Calls, ProviderError> {
    let few = callable.len() <= SCHEMAS_MAX;
    let arguments = |tool: &&Tool| {
        let any = json!({ "type": "object" });
        let Some(wanted) = arguments(&tool.parameters).filter(|_| few || tool.strict) else {
            return Ok((tool.name.clone(), any));
        };
        match engine.guide(&Constraint::JsonSchema(wanted.clone())) {
            Ok(_) => Ok((tool.name.clone(), wanted)),
            Err(_) if !tool.strict => Ok((tool.name.clone(), any)),
            Err(error) => {
                let name: String = tool.name.escape_debug().take(64).collect();
                Err(refusal("invalid_request", "tools", format!("tools: the parameters of '{name}': {error}")))
            }
        }
    };
    Ok(Calls { form, functions: callable.iter().map(arguments).collect::<Result<_, _>>()? })
}

/// The schema of a function's arguments, which are an object whether it says so or not.
fn arguments(parameters: &Value) -> Option<Value> {
    let mut wanted = parameters.as_object()?.clone();
    wanted.entry("type").or_insert_with(|| json!("object"));
    Some(Value::Object(wanted))
}

/// What the answer is beside its calls.
#[derive(Debug, Clone, Copy)]
enum Body<'a> {
    /// Nothing: it has to call.
    Calls,
    /// JSON of this schema, in the place of calls.
    Format(&'a Value),
    /// Any text, with calls in it.
    Free,
}

/// In the Lark syntax of llguidance.
fn grammar(thinks: bool, body: Body<'_>, calls: Option<&Calls>, many: bool) -> String {
    let mut rules = Vec::new();
    let start = if thinks { "think (/[ \\n]{1,8}/)? body" } else { "body" };
    rules.push(format!("start: {start}"));
    if thinks {
        rules.push("think[suffix=\"</think>\"]: /(?s:.*)/".to_owned());
    }
    match body {
        Body::Free => rules.extend(calls.iter().flat_map(|calls| free(calls.form, many))),
        Body::Format(schema) => {
            rules.push(format!("body: answer{}", calls.map_or("", |_| " | calls")));
            rules.push(format!("answer: {}", embedded(schema)));
        }
        Body::Calls => rules.push("body: calls".to_owned()),
    }
    if let Some(Calls { form, functions }) = calls {
        let more = format!(" ({} call){{0,{}}}", literal(form.between), CALLS_MAX - 1);
        rules.push(format!("calls: call{}", if many { more.as_str() } else { "" }));
        rules.push(format!("call: {} named", literal(form.open)));
        let names: Vec<String> = (0..functions.len()).map(|index| format!("named_{index}")).collect();
        rules.push(format!("named: {}", names.join(" | ")));
        for (index, (name, schema)) in functions.iter().enumerate() {
            let open = literal(&format!("{}{}", json!(name), form.middle));
            rules.push(format!("named_{index}: {open} arguments_{index} {}", literal(form.close)));
            rules.push(format!("arguments_{index}: {}", embedded(schema)));
        }
    }
    rules.join("\n")
}

/// Text in which each beginning of a call begins a call. Where calls have no tag, what begins like one is one.
fn free(form: Form, many: bool) -> Vec<String> {
    let Some((tag, rest)) = form.open.split_once('>').map(|(tag, rest)| (format!("{tag}>"), rest)) else {
        return vec!["body: calls | /(?s:\\s*[^{\\s].*)/ | \"\"".to_owned()];
    };
    vec![
        format!("body: tagged{} /(?s:.*)/", if many { "*" } else { "?" }),
        format!("tagged: tag {} named", literal(rest)),
        format!("tag[suffix={}]: /(?s:.*)/", literal(&tag)),
    ]
}

/// Text as a grammar spells it.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

/// A schema in a grammar. It was compiled by itself before, so what is not known here is only an annotation.
fn embedded(schema: &Value) -> String {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        let options = json!({ "lenient": true, "whitespace_pattern": WHITE_SPACE });
        fields.insert("x-guidance".to_owned(), options);
    }
    format!("%json {schema}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> Calls {
        let functions = vec![("f".to_owned(), json!({ "type": "object" })), ("g\"h".to_owned(), json!({}))];
        Calls { form: HERMES, functions }
    }

    #[test]
    fn a_grammar_holds_each_function_with_its_own_schema() {
        let text = grammar(false, Body::Calls, Some(&two()), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(&lines[..3], ["start: body", "body: calls", "calls: call"]);
        assert_eq!(&lines[3..5], [r#"call: "<tool_call>\n{\"name\": " named"#, "named: named_0 | named_1"]);
        assert_eq!(lines[5], r#"named_0: "\"f\", \"arguments\": " arguments_0 "}\n</tool_call>""#);
        assert!(lines[6].starts_with("arguments_0: %json {") && lines[6].contains("\"lenient\":true"), "{}", lines[6]);
        assert!(lines[7].contains(r#"\"g\\\"h\""#), "{}", lines[7]);
    }

    #[test]
    fn several_calls_are_bounded_and_a_format_or_thoughts_stand_beside_them() {
        let text = grammar(true, Body::Format(&json!({ "type": "object" })), Some(&two()), true);
        assert!(text.starts_with("start: think (/[ \\n]{1,8}/)? body\nthink[suffix=\"</think>\"]: /(?s:.*)/\n"));
        assert!(text.contains("body: answer | calls\n") && text.contains("calls: call (\"\\n\" call){0,7}\n"));
    }

    #[test]
    fn free_text_holds_calls_behind_their_tag_or_is_one() {
        let text = grammar(false, Body::Free, Some(&two()), true);
        assert!(
            text.starts_with("start: body\nbody: tagged* /(?s:.*)/\ntagged: tag \"\\n{\\\"name\\\": \" named\n"),
            "{text}"
        );
        assert!(text.contains("tag[suffix=\"<tool_call>\"]: /(?s:.*)/\n"), "{text}");
        let plain = Calls { form: LLAMA_3, ..two() };
        assert!(grammar(false, Body::Free, Some(&plain), true).contains("body: calls | /(?s:\\s*[^{\\s].*)/ | \"\"\n"));
    }

    #[test]
    fn a_dead_end_is_told_as_the_fault_of_the_format_or_the_tools() {
        let reason = "the constrained text cannot go on: it is too complex";
        let mut ask = Ask::new("m", reef_dialects::Input::Text("x".to_owned()));
        let param = |ask: &Ask| dead_end(ask, Dialect::Responses, reason).and_then(|e| e.param().map(str::to_owned));
        assert_eq!(param(&ask).as_deref(), Some("tools"));
        ask.format = Format::Json;
        assert_eq!(param(&ask).as_deref(), Some("text.format"));
        assert_eq!(dead_end(&ask, Dialect::Chat, "out of memory"), None);
    }

    #[test]
    fn arguments_are_an_object() {
        assert_eq!(arguments(&json!({})), Some(json!({ "type": "object" })));
        assert_eq!(arguments(&Value::Null), None);
    }
}
