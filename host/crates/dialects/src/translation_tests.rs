//! Every dialect with every other one: a body that a client sends in one reaches an upstream of another unchanged in all
//! that both can say, and what the upstream answers reaches the client so.

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use crate::answers::{answer, envelope, json_value, reply, sent};
use crate::ask::{Ask, Format, Input, Part, Refusal, Role, Tool, ToolChoice, Turn};
use crate::image::Image;
use crate::reply::{Event, Frame, Reply};
use crate::{chat, completions, messages, responses};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dialect {
    Chat,
    Messages,
    Responses,
}

use Dialect::{Chat, Messages, Responses};

const DIALECTS: [Dialect; 3] = [Chat, Messages, Responses];

/// Frames of an answer, and the events that they are read as.
macro_rules! through {
    ($dialect:ident, $ask:expr, $events:expr, $seed:expr) => {{
        let mut writer = $dialect::Writer::new($ask, envelope());
        let mut frames: Vec<Frame> = $events.iter().flat_map(|event| writer.push(event)).collect();
        frames.extend(writer.close());
        let mut reader = $dialect::Reader::new();
        let sent = sent(&frames, $seed);
        let mut events: Vec<Event> = sent.iter().flat_map(|event| reader.push(event).expect("read")).collect();
        events.extend(reader.finish().expect("a whole answer"));
        events
    }};
}

impl Dialect {
    fn parse(self, body: &Value) -> Result<Ask, Refusal> {
        let body = body.as_object().expect("an object");
        match self {
            Chat => chat::parse(body),
            Messages => messages::parse(body),
            Responses => responses::parse(body),
        }
    }

    fn write(self, ask: &Ask, same_dialect: bool) -> Result<Value, Refusal> {
        match self {
            Chat => chat::write(ask, "up", same_dialect),
            Messages => messages::write(ask, "up", same_dialect),
            Responses => responses::write(ask, "up", same_dialect),
        }
    }

    /// The events of an answer after they were a stream of this dialect.
    fn stream(self, events: &[Event], seed: u64) -> Vec<Event> {
        let mut ask = Ask::new("m", Input::Turns(Vec::new()));
        ask.stream = true;
        ask.include_usage = true;
        match self {
            Chat => through!(chat, &ask, events, seed),
            Messages => through!(messages, &ask, events, seed),
            Responses => through!(responses, &ask, events, seed),
        }
    }

    /// What is left of an ask when this dialect says it.
    fn say(self, ask: &mut Ask) {
        match self {
            Chat => {
                without_failures(ask);
                turns(ask).iter_mut().for_each(arrange);
            }
            Responses => {
                without_failures(ask);
                (ask.stop, ask.top_k) = (Vec::new(), None);
            }
            Messages => {
                ask.logprobs = None;
                match &mut ask.format {
                    format @ Format::Json => *format = Format::Text,
                    Format::Schema { name, strict, .. } => (*name, *strict) = ("output".to_owned(), true),
                    Format::Text => {}
                }
                if ask.tool_choice == ToolChoice::None {
                    ask.parallel_calls = None;
                }
                join_system(ask);
                let unsigned = |part: &Part| matches!(part, Part::Reasoning { signature: None, .. });
                turns(ask).iter_mut().for_each(|turn| turn.parts.retain(|part| !unsigned(part)));
            }
        }
    }

    /// A part as this dialect sends it.
    fn image(self, image: &Image) -> Part {
        let (kind, value) = match self {
            Chat => ("image_url", json!({ "type": "image_url", "image_url": { "url": image.url() } })),
            Messages => ("image", image.to_messages()),
            Responses => ("input_image", image.to_responses()),
        };
        Part::Other { kind: kind.to_owned(), value }
    }
}

fn turns(ask: &mut Ask) -> &mut Vec<Turn> {
    match &mut ask.input {
        Input::Turns(turns) => turns,
        other => panic!("{other:?}"),
    }
}

/// By the rule of `chat`: reasoning, then text, then calls; reasoning that nobody signed is one text.
fn arrange(turn: &mut Turn) {
    if turn.role != Role::Assistant {
        return;
    }
    turn.parts.sort_by_key(|part| match part {
        Part::Reasoning { .. } => 0,
        Part::Call { .. } => 2,
        _ => 1,
    });
    let signed = |part: &Part| matches!(part, Part::Reasoning { signature: Some(_), .. });
    if !turn.parts.iter().any(signed) {
        turn.parts.dedup_by(|later, earlier| match (later, earlier) {
            (Part::Reasoning { text: more, .. }, Part::Reasoning { text, .. }) => {
                text.push_str(more);
                true
            }
            _ => false,
        });
    }
}

fn without_failures(ask: &mut Ask) {
    for part in turns(ask).iter_mut().flat_map(|turn| &mut turn.parts) {
        if let Part::Result { failed, .. } = part {
            *failed = false;
        }
    }
}

/// By the rule of `messages`: all system turns are one at the beginning.
fn join_system(ask: &mut Ask) {
    let turns = turns(ask);
    let system: Vec<Turn> = turns.extract_if(.., |turn| turn.role == Role::System).collect();
    let text = |turn: &Turn| -> String {
        let texts = turn.parts.iter().map(|part| match part {
            Part::Text(text) => text.as_str(),
            other => panic!("{other:?}"),
        });
        texts.collect()
    };
    match system.as_slice() {
        [] => {}
        [only] => turns.insert(0, only.clone()),
        several => {
            let text = several.iter().map(text).collect::<Vec<_>>().join("\n\n");
            turns.insert(0, Turn { role: Role::System, parts: vec![Part::Text(text)] });
        }
    }
}

/// What must not change. A turn that says nothing is none, and what the model says in one go is one turn.
#[derive(Debug, PartialEq)]
struct Kept {
    turns: Vec<Turn>,
    tools: Vec<Tool>,
    tool_choice: ToolChoice,
    parallel_calls: Option<bool>,
    format: Format,
    sampling: (Option<f32>, Option<f32>, Option<u32>),
    tokens_max: Option<u32>,
    stop: Vec<String>,
    logprobs: Option<u32>,
    effort: Option<String>,
    stream: bool,
}

fn merged(turns: Vec<Turn>) -> Vec<Turn> {
    let mut merged: Vec<Turn> = Vec::new();
    for turn in turns {
        match merged.last_mut() {
            _ if turn.parts.is_empty() => {}
            Some(last) if last.role == Role::Assistant && turn.role == Role::Assistant => last.parts.extend(turn.parts),
            _ => merged.push(turn),
        }
    }
    merged
}

fn kept(mut ask: Ask) -> Kept {
    for part in turns(&mut ask).iter_mut().flat_map(|turn| &mut turn.parts) {
        if let Part::Other { kind, value } = part {
            let image = Image::of(kind, value).expect("an image");
            *part = Messages.image(&image);
        }
    }
    let turns = merged(std::mem::take(turns(&mut ask)));
    Kept {
        turns,
        effort: ask.effort().map(str::to_owned),
        tools: ask.tools,
        tool_choice: ask.tool_choice,
        parallel_calls: ask.parallel_calls,
        format: ask.format,
        sampling: (ask.temperature, ask.top_p, ask.top_k),
        tokens_max: ask.tokens_max,
        stop: ask.stop,
        logprobs: ask.logprobs,
        stream: ask.stream,
    }
}

/// A stretch of a conversation: rules, a question, or an answer with the results of its calls.
fn stretch() -> impl Strategy<Value = Vec<Turn>> {
    let said = "[ -~\u{e9}\u{4e2d}\u{1F600}\n]{1,9}";
    let texts = prop::collection::vec(said.prop_map(Part::Text), 1..3);
    let image = select(vec!["https://example.org/a.png", "data:image/png;base64,AAAA"]);
    let image = image.prop_map(|url| Chat.image(&Image::of("input_image", &json!({ "image_url": url })).expect("one")));
    let question = (texts.clone(), prop::option::weighted(0.2, image)).prop_map(|(mut parts, image)| {
        parts.extend(image);
        vec![Turn { role: Role::User, parts }]
    });
    let rules = texts.clone().prop_map(|parts| vec![Turn { role: Role::System, parts }]);
    let reasoning =
        (said, prop::option::of("[a-z]{1,5}")).prop_map(|(text, signature)| Part::Reasoning { text, signature });
    let call = (select(vec!["{}", "{\"a\":1}", "{\"a\":\"cut"]), said, any::<bool>(), any::<bool>());
    let calls = prop::collection::vec(call, 0..3);
    let answer = (prop::option::of(reasoning), prop::option::of(said), calls, any::<bool>()).prop_map(
        |(reasoning, text, calls, reversed)| {
            let mut parts: Vec<Part> = reasoning.into_iter().chain(text.map(Part::Text)).collect();
            let mut results = Vec::new();
            for (number, (arguments, text, failed, answered)) in calls.into_iter().enumerate() {
                let (id, name) = (format!("call_{number}"), "f".to_owned());
                parts.push(Part::Call { id: id.clone(), name, arguments: arguments.to_owned() });
                let result = Part::Result { id, text, failed };
                results.extend(answered.then(|| Turn { role: Role::Tool, parts: vec![result] }));
            }
            if reversed {
                results.reverse();
            }
            std::iter::once(Turn { role: Role::Assistant, parts }).chain(results).collect()
        },
    );
    prop_oneof![rules, question, answer]
}

fn tool(name: &str) -> impl Strategy<Value = Tool> {
    let (name, description) = (name.to_owned(), prop::option::of("[a-z ]{1,9}"));
    (description, any::<bool>()).prop_map(move |(description, strict)| {
        let parameters = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
        Tool { name: name.clone(), description, parameters, strict, hosted: None }
    })
}

prop_compose! {
    fn tools()(
        tools in prop::option::of((tool("f"), tool("g"))),
        choice in select(vec![ToolChoice::Auto, ToolChoice::None, ToolChoice::Required, ToolChoice::Named("g".to_owned())]),
        parallel in any::<Option<bool>>(),
    ) -> (Vec<Tool>, ToolChoice, Option<bool>) {
        match tools {
            None => (Vec::new(), ToolChoice::Auto, None),
            Some((f, g)) => (vec![f, g], choice, parallel),
        }
    }
}

prop_compose! {
    /// What every dialect has a field for, and some that two of them have.
    fn ask()(
        stretches in prop::collection::vec(stretch(), 0..6),
        (tools, tool_choice, parallel_calls) in tools(),
        format in select(vec![Format::Text, Format::Json, Format::Schema {
            name: "answer".to_owned(), schema: json!({ "type": "object" }), strict: false }]),
        (temperature, top_p, top_k) in (prop::option::of(0_f32..=1.0), prop::option::of(0.1_f32..=1.0), any::<Option<u16>>()),
        stop in prop::collection::vec("[a-z]{1,4}", 0..3),
        (tokens_max, logprobs) in (1_u32..=u32::MAX, prop::option::of(1_u32..=20)),
        effort in prop::option::of(select(vec!["none", "low", "medium", "high", "xhigh", "max"])),
        stream in any::<bool>(),
    ) -> Ask {
        let mut turns = merged(stretches.concat());
        turns.push(Turn { role: Role::User, parts: vec![Part::Text("and?".to_owned())] });
        Ask {
            tools, tool_choice, parallel_calls, format, temperature, top_p, stop, logprobs, stream,
            top_k: top_k.map(u32::from).filter(|k| *k > 0),
            tokens_max: Some(tokens_max),
            reasoning: effort.map(Value::from),
            ..Ask::new("m", Input::Turns(turns))
        }
    }
}

/// The ask as it would come from this dialect's client.
fn localised(mut ask: Ask, client: Dialect) -> Ask {
    for part in turns(&mut ask).iter_mut().flat_map(|turn| &mut turn.parts) {
        if let Part::Other { kind, value } = part {
            *part = client.image(&Image::of(kind, value).expect("an image"));
        }
    }
    if client != Chat {
        ask.reasoning = ask.reasoning.map(|effort| json!({ "effort": effort }));
    }
    ask
}

proptest! {
    #[test]
    fn a_body_keeps_what_both_dialects_can_say(ask in ask(), client in select(&DIALECTS[..]), upstream in select(&DIALECTS[..])) {
        let mut ask = localised(ask, client);
        client.say(&mut ask);
        upstream.say(&mut ask);
        let parsed = client.parse(&client.write(&ask, true).expect("the client's body")).expect("parsed");
        prop_assert_eq!(kept(parsed.clone()), kept(ask.clone()));
        prop_assert_eq!(&parsed.unknown, &Map::new());
        let body = upstream.write(&parsed, client == upstream).expect("the upstream's body");
        let arrived = upstream.parse(&body).expect("arrived");
        prop_assert_eq!(kept(arrived.clone()), kept(ask));
        prop_assert_eq!((arrived.model.as_str(), arrived.unknown), ("up", Map::new()));
    }

    #[test]
    fn an_answer_comes_through(answer in answer(), client in select(&DIALECTS[..]), upstream in select(&DIALECTS[..]), seeds in any::<[u64; 3]>()) {
        let events = answer.events(seeds[0]);
        let arrived = client.stream(&upstream.stream(&events, seeds[1]), seeds[2]);
        prop_assert_eq!(comparable(reply(&arrived)), comparable(reply(&events)));
    }

    #[test]
    fn whatever_is_parsed_can_be_written_or_is_refused_by_name(
        value in json_value(), client in select(&DIALECTS[..]), upstream in select(&DIALECTS[..]),
    ) {
        let mut body = json!({ "model": "m", "max_tokens": 5 });
        body[if client == Responses { "input" } else { "messages" }] =
            json!([{ "role": "user", "content": "a" }, { "role": "assistant", "content": [value.clone()] }, value]);
        if client == Responses {
            body.as_object_mut().expect("an object").remove("max_tokens");
        }
        if let Ok(ask) = client.parse(&body) {
            for same_dialect in [client == upstream, false] {
                match upstream.write(&ask, same_dialect) {
                    Ok(body) => prop_assert!(body["model"] == "up"),
                    Err(refusal) => prop_assert!(!refusal.param.is_empty() && !refusal.message.is_empty()),
                }
            }
        }
    }
}

/// A call without arguments has an empty object in some dialects.
fn comparable(mut reply: Reply) -> Reply {
    for part in reply.choices.iter_mut().flat_map(|choice| &mut choice.parts) {
        if let Part::Call { arguments, .. } = part
            && arguments.is_empty()
        {
            *arguments = "{}".to_owned();
        }
    }
    reply
}

#[test]
fn a_prompt_goes_only_to_completions_and_a_conversation_never() {
    let prompt = json!({ "model": "m", "prompt": "once" });
    let ask = completions::parse(prompt.as_object().expect("an object")).expect("parsed");
    assert_eq!(completions::write(&ask, "up", true).expect("written")["prompt"], "once");
    for upstream in DIALECTS {
        assert_eq!(upstream.write(&ask, false).expect_err("refused").param, "prompt");
    }
    let ask = Ask::new("m", Input::Turns(vec![Turn { role: Role::User, parts: vec![Part::Text("hi".to_owned())] }]));
    assert_eq!(completions::write(&ask, "up", false).expect_err("refused").param, "messages");
}

#[test]
fn a_thinking_budget_is_an_effort_elsewhere() {
    let body = |thinking: Value| json!({ "model": "m", "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }], "thinking": thinking });
    let ask = |thinking: Value| Messages.parse(&body(thinking)).expect("parsed");
    let large = ask(json!({ "type": "enabled", "budget_tokens": 31_999 }));
    assert_eq!(Chat.write(&large, false).expect("written")["reasoning_effort"], "high");
    assert_eq!(Responses.write(&large, false).expect("written")["reasoning"], json!({ "effort": "high" }));
    let off = ask(json!({ "type": "disabled" }));
    assert_eq!(Chat.write(&off, false).expect("written")["reasoning_effort"], "none");
    let any = ask(json!({ "type": "adaptive" }));
    assert_eq!(Chat.write(&any, false).expect("written").get("reasoning_effort"), None);
    assert_eq!(Messages.write(&any, true).expect("written")["thinking"], json!({ "type": "adaptive" }));
}
