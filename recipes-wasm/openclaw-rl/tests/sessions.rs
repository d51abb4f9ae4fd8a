//! Which request answers which turn.

use reef_recipe::{Exchange, Message};
use reef_recipe_openclaw_rl::sessions::{Completed, Next, Sessions, cut};

const OPEN_MAX: usize = 4;

fn turn(id: &str, messages: &[Message], answer: &str) -> Exchange {
    Exchange {
        id: id.to_owned(),
        release: "0".repeat(40),
        at_ms: 0.0,
        session: None,
        tags: vec![],
        messages: messages.to_vec(),
        answer: answer.to_owned(),
        tools: true,
        prompt_tokens: 1,
        answer_tokens: 1,
    }
}

fn named(name: &str, exchange: Exchange) -> Exchange {
    Exchange { session: Some(name.to_owned()), ..exchange }
}

/// The conversation `texts`: user, assistant, user, …
fn talk(texts: &[&str]) -> Vec<Message> {
    let message =
        |(index, text): (usize, &&str)| if index % 2 == 0 { Message::user(*text) } else { Message::assistant(*text) };
    texts.iter().enumerate().map(message).collect()
}

fn completed(receipt: &str, from_user: bool, text: &str) -> Option<Completed> {
    Some(Completed { receipt: receipt.to_owned(), next: Next { from_user, text: text.to_owned() } })
}

fn open(sessions: &Sessions) -> Vec<&str> {
    sessions.open().iter().map(|session| session.receipt.as_str()).collect()
}

#[test]
fn a_request_that_goes_on_from_the_answer_completes_the_turn_before() {
    let mut sessions = Sessions::default();
    assert_eq!(sessions.follow(&turn("a", &talk(&["hi"]), "hello "), OPEN_MAX), None);
    // The client sends the answer back without the blank at its end.
    let next = sessions.follow(&turn("b", &talk(&["hi", "hello", "be nice"]), "sorry"), OPEN_MAX);
    assert_eq!(next, completed("a", true, "be nice"));
    let mut messages = talk(&["hi", "hello", "be nice", "sorry"]);
    let tool = |text: &str| Message { role: "tool".into(), content: text.into() };
    messages.extend([tool("42"), tool("43")]);
    assert_eq!(sessions.follow(&turn("c", &messages, "done"), OPEN_MAX), completed("b", false, "42\n43"));
    assert_eq!(open(&sessions), ["c"]);
}

#[test]
fn other_requests_are_other_sessions() {
    for other in [
        talk(&["hi", "hello"]),
        talk(&["hi", "something else", "be nice"]),
        talk(&["ho", "hello", "be nice"]),
        vec![Message::user("hi"), Message::user("hello"), Message::user("be nice")],
    ] {
        let mut sessions = Sessions::default();
        sessions.follow(&turn("a", &talk(&["hi"]), "hello"), OPEN_MAX);
        assert_eq!(sessions.follow(&turn("b", &other, "?"), OPEN_MAX), None, "{other:?}");
        assert_eq!(open(&sessions), ["a", "b"]);
    }
}

#[test]
fn a_repeated_request_takes_the_place_of_the_first() {
    let mut sessions = Sessions::default();
    sessions.follow(&turn("a", &talk(&["hi"]), "hello"), OPEN_MAX);
    assert_eq!(sessions.follow(&turn("again", &talk(&["hi"]), "good day"), OPEN_MAX), None);
    assert_eq!(open(&sessions), ["again"]);
    let from_the_first = turn("b", &talk(&["hi", "hello", "be nice"]), "sorry");
    assert_eq!(sessions.clone().follow(&from_the_first, OPEN_MAX), None);
    let from_the_second = turn("b", &talk(&["hi", "good day", "be nice"]), "sorry");
    assert_eq!(sessions.follow(&from_the_second, OPEN_MAX), completed("again", true, "be nice"));
}

#[test]
fn the_longest_of_several_sessions_goes_on() {
    let mut sessions = Sessions::default();
    sessions.follow(&turn("short", &talk(&["hi"]), "hello"), OPEN_MAX);
    let long = talk(&["hi", "hello", "more", "of it", "yes"]);
    sessions.follow(&turn("other", &long, "fine"), OPEN_MAX);
    sessions.follow(&turn("short", &talk(&["hi"]), "hello"), OPEN_MAX);
    let goes_on = talk(&["hi", "hello", "more", "of it", "yes", "fine", "and?"]);
    assert_eq!(sessions.follow(&turn("b", &goes_on, "!"), OPEN_MAX), completed("other", true, "and?"));
}

#[test]
fn a_name_tells_sessions_apart_that_say_the_same() {
    let mut sessions = Sessions::default();
    sessions.follow(&named("x", turn("x1", &talk(&["hi"]), "hello")), OPEN_MAX);
    let tagged = |exchange: Exchange| Exchange { tags: vec![("session".into(), "y".into())], ..exchange };
    sessions.follow(&tagged(turn("y1", &talk(&["hi"]), "hello")), OPEN_MAX);
    sessions.follow(&turn("none", &talk(&["hi"]), "hello"), OPEN_MAX);
    assert_eq!(open(&sessions), ["x1", "y1", "none"]);
    let next = talk(&["hi", "hello", "be nice"]);
    assert_eq!(sessions.follow(&tagged(turn("y2", &next, "?")), OPEN_MAX), completed("y1", true, "be nice"));
    assert_eq!(sessions.follow(&turn("none2", &next, "?"), OPEN_MAX), completed("none", true, "be nice"));
    // The session starts anew, e.g. with a shortened conversation: its last turn is not judged.
    assert_eq!(sessions.follow(&named("x", turn("x2", &talk(&["summary"]), "?")), OPEN_MAX), None);
    assert_eq!(open(&sessions), ["y2", "none2", "x2"]);
}

#[test]
fn silent_sessions_are_closed_and_so_are_those_over_the_bound() {
    let mut sessions = Sessions::default();
    for (index, at_ms) in [0.0, 1_000.0, 2_000.0].into_iter().enumerate() {
        let exchange = Exchange { at_ms, ..turn(&index.to_string(), &talk(&[&format!("talk {index}")]), "") };
        sessions.follow(&exchange, OPEN_MAX);
    }
    sessions.expire(2_000.0, 1_000.0);
    assert_eq!(open(&sessions), ["1", "2"]);
    sessions.follow(&turn("3", &talk(&["talk 3"]), ""), 2);
    assert_eq!(open(&sessions), ["2", "3"]);
}

#[test]
fn sessions_are_kept_byte_for_byte_and_other_bytes_are_refused() {
    let mut sessions = Sessions::default();
    sessions.follow(&named("x", turn("record-ü", &talk(&["hi"]), "hello")), OPEN_MAX);
    sessions.follow(&turn("b", &talk(&["hi"]), "hello"), OPEN_MAX);
    let bytes = sessions.to_bytes();
    assert_eq!(Sessions::from_bytes(&bytes), Some(sessions));
    for length in (1..bytes.len()).filter(|length| *length != 40 + "record-ü".len()) {
        assert_eq!(Sessions::from_bytes(&bytes[..length]), None, "{length}");
    }
    let next = Next { from_user: true, text: "ü".into() };
    assert_eq!(Next::from_bytes(&next.to_bytes()), Some(next));
    assert_eq!((Next::from_bytes(&[]), Next::from_bytes(&[1, 0xff])), (None, None));
}

#[test]
fn long_replies_are_cut_at_a_whole_character() {
    let mut sessions = Sessions::default();
    sessions.follow(&turn("a", &talk(&["hi"]), "hello"), OPEN_MAX);
    let long = format!("x{}", "ü".repeat(5_000));
    let found = sessions.follow(&turn("b", &talk(&["hi", "hello", &long]), "?"), OPEN_MAX).expect("completed");
    assert_eq!(found.next.text.len(), 2_047);
    assert_eq!((cut("abc", 9), cut("aü", 2), cut("", 0)), ("abc", "a", ""));
}
