//! Requests in the shapes that harnesses send them, and what each is for.

use reef_intake::{CallKind, call_of};
use serde_json::{Value, json};

fn kind(headers: &[(&str, &str)], tag: Option<&str>, body: &Value) -> String {
    let header = |name: &str| headers.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    let call = call_of(tag, header, body.as_object().expect("an object"));
    assert!(!call.reason.is_empty());
    assert_eq!(call.is_main(), call.kind == CallKind::Main);
    call.kind.to_string()
}

fn of(body: &Value) -> String {
    kind(&[], None, body)
}

fn tool() -> Value {
    json!([{ "name": "Bash", "description": "Runs a command", "input_schema": { "type": "object" } }])
}

fn claude(system: &str, messages: Value, tools: Value) -> Value {
    json!({ "model": "m", "max_tokens": 32000, "stream": true, "tools": tools, "messages": messages, "system": [
        { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.257; cc_entrypoint=cli;" },
        { "type": "text", "text": system, "cache_control": { "type": "ephemeral" } }] })
}

#[test]
fn claude_code_is_told_apart_from_its_side_calls() {
    let own = "You are Claude Code, Anthropic's official CLI for Claude.";
    let user = |text: &str| json!([{ "role": "user", "content": [{ "type": "text", "text": "<system-reminder>..." }, { "type": "text", "text": text }] }]);
    assert_eq!(of(&claude(own, user("fix the tests"), tool())), "main");
    let naming =
        "You are naming a coding session so the user can pick it out of a long list of sessions. The title is a name";
    assert_eq!(of(&claude(naming, user("<session>fix the tests</session>"), json!([]))), "title");
    let compact = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- Do NOT use Read\n\nYour task is to create a detailed summary of the conversation so far, paying close attention";
    assert_eq!(of(&claude(own, user(compact), tool())), "compaction");
    assert_eq!(
        of(&claude(
            own,
            user("[SUGGESTION MODE: Suggest what the user might naturally type next into Claude Code.]"),
            tool()
        )),
        "suggestion"
    );
    assert_eq!(
        of(&claude(
            "You are an assistant for performing a web search tool use",
            user("Perform a web search for the query: x"),
            tool()
        )),
        "web search"
    );
    assert_eq!(
        of(&claude(
            "You are an agent for Claude Code, Anthropic's official CLI for Claude. Given the user's message",
            user("find it"),
            tool()
        )),
        "sub-agent"
    );
    let agent = [("x-claude-code-session-id", "s"), ("x-claude-code-agent-id", "a1")];
    assert_eq!(kind(&agent, None, &claude("You review code.", user("review"), tool())), "sub-agent");
    assert_eq!(
        kind(&agent, None, &claude("You review code.", user(compact), tool())),
        "compaction",
        "of the sub-agent"
    );
    let probe = json!({ "model": "m", "max_tokens": 1, "messages": [{ "role": "user", "content": "quota" }] });
    assert_eq!(of(&probe), "probe");
}

#[test]
fn pi_is_told_apart_from_its_side_calls() {
    let chat = |system: &str, user: &str, tools: Value| {
        json!({ "model": "m", "stream": true, "max_completion_tokens": 8192, "tools": tools,
        "messages": [{ "role": "developer", "content": system }, { "role": "user", "content": [{ "type": "text", "text": user }] }] })
    };
    let tools = json!([{ "type": "function", "function": { "name": "bash", "parameters": {} } }]);
    let own =
        "You are a coding assistant running inside pi, a coding agent harness. Help users inspect files, run commands";
    assert_eq!(of(&chat(own, "hello", tools.clone())), "main");
    let summary = "You are a context summarization assistant. Your task is to read a conversation between a user and an AI assistant, then";
    assert_eq!(of(&chat(summary, "<conversation>\n[User]: hi\n</conversation>", json!(null))), "compaction");
    assert_eq!(
        of(&chat("You are helping a user file a bug report about pi, the coding agent they", "x", json!(null))),
        "bug report"
    );
}

#[test]
fn codex_is_told_apart_from_its_side_calls() {
    let items = |last: &str| {
        json!({ "model": "m", "instructions": "You are Codex, a coding agent based on GPT-5.", "stream": true, "store": false,
        "tools": [{ "type": "function", "name": "shell" }, { "type": "web_search" }], "prompt_cache_key": "019a0000-0000-7000-8000-000000000000",
        "input": [{ "type": "message", "role": "developer", "content": [{ "type": "input_text", "text": "<permissions>" }] },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "fix it" }] },
            { "type": "function_call", "name": "shell", "arguments": "{}", "call_id": "c1" }, { "type": "function_call_output", "call_id": "c1", "output": "ok" },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": last }] }] })
    };
    assert_eq!(of(&items("and now?")), "main");
    assert_eq!(
        of(&items(
            "You are performing a CONTEXT CHECKPOINT COMPACTION. Create a handoff summary for another LLM that will resume the task."
        )),
        "compaction"
    );
    for (value, expected) in [
        ("review", "sub-agent"),
        ("collab_spawn", "sub-agent"),
        ("compact", "compaction"),
        ("memory_consolidation", "memory"),
    ] {
        assert_eq!(kind(&[("x-openai-subagent", value)], None, &items("go")), expected);
    }
    assert_eq!(kind(&[("x-openai-memgen-request", "true")], None, &items("go")), "memory");
    assert_eq!(kind(&[("x-codex-parent-thread-id", "t0")], None, &items("go")), "sub-agent");
}

#[test]
fn opencode_is_told_apart_from_its_side_calls() {
    let chat = |system: &str, tools: Value| {
        json!({ "model": "m", "tools": tools, "messages": [{ "role": "system", "content": system },
        { "role": "user", "content": "Generate a title for this conversation:\n" }, { "role": "user", "content": "fix the tests" }] })
    };
    let tools = json!([{ "type": "function", "function": { "name": "bash", "parameters": {} } }]);
    assert_eq!(
        of(&chat("You are a title generator. You output ONLY a thread title. Nothing else.\n\n<task>", json!([]))),
        "title"
    );
    assert_eq!(
        of(&chat(
            "You are a context summarization agent. You are given a conversation between a user and an agent.",
            json!([])
        )),
        "compaction"
    );
    assert_eq!(
        of(&chat(
            "You are opencode, an interactive CLI tool that helps users with software engineering tasks.",
            tools.clone()
        )),
        "main"
    );
    assert_eq!(kind(&[("x-parent-session-id", "ses_1")], None, &chat("You are opencode,", tools.clone())), "sub-agent");
    assert_eq!(
        of(&chat(
            "You are a file search specialist. You excel at thoroughly navigating and exploring codebases.",
            tools
        )),
        "sub-agent"
    );
}

#[test]
fn what_nobody_names_is_the_conversation() {
    let user = |text: &str| json!({ "model": "m", "messages": [{ "role": "user", "content": text }] });
    for body in [
        user("Generate a title for this conversation"),
        user("Please quote: You are performing a CONTEXT CHECKPOINT COMPACTION."),
        user("Your task is to create a detailed summary of this article"),
        json!({ "model": "m", "max_tokens": 1, "messages": [{ "role": "user", "content": "Is 7 prime? yes or no" }] }),
        json!({ "model": "m", "max_tokens": 1, "messages": [{ "role": "user", "content": "quota" }, { "role": "assistant", "content": "?" }, { "role": "user", "content": "quota" }] }),
        json!({ "model": "m", "messages": [{ "role": "system", "content": "You are a helpful assistant for a book shop. Titles of books are in italics in every chat." }, { "role": "user", "content": "hi" }] }),
        json!({ "model": "m", "prompt": "Once upon a time" }),
        json!({ "messages": 5, "system": 7, "tools": "x", "input": { "a": 1 } }),
        json!({}),
    ] {
        assert_eq!(of(&body), "main", "{body}");
    }
    let title = "Generate a concise title of at most five words for the following chat. Reply with the title only.";
    let body = |tools: Value| json!({ "model": "m", "tools": tools, "messages": [{ "role": "system", "content": title }, { "role": "user", "content": "hi" }] });
    assert_eq!(of(&body(json!([]))), "title");
    assert_eq!(of(&body(tool())), "main", "it may do more than name the chat");
}

#[test]
fn the_clients_own_word_comes_first() {
    let body = json!({ "messages": [{ "role": "system", "content": "You are a title generator. You output ONLY a thread title." }, { "role": "user", "content": "x" }] });
    for (tag, expected) in [
        ("main", "main"),
        ("Title", "title"),
        ("compact", "compaction"),
        ("subagent", "sub-agent"),
        ("other: critic", "critic"),
        ("other", "other"),
    ] {
        assert_eq!(kind(&[], Some(tag), &body), expected);
    }
    assert_eq!(kind(&[], Some("  "), &body), "title", "an empty tag says nothing");
    assert_eq!(kind(&[], Some("experiment-7"), &body), "title", "the client's own words decide nothing");
    assert_eq!(kind(&[], Some(&format!("other:{}", "x".repeat(500))), &body).len(), 64);
}
