//! What a teacher reads: the request, with something added that the student did not see when it answered.
//! The added text is somebody else's: it is only ever read by a teacher that gives log-probs for the student's own
//! tokens, never generated from, and the host spells control tokens in it as text.
//! The teacher's prompt is the recorded one with the same tokens changed that the added text changes in the
//! rendering of the conversation, so that what else is in the recorded prompt, e.g. tools, stays.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::{Field, Message, Result, Sample, experience, tokens};

/// Report field: the answer that should have been given. The host gives out at most 64 KiB of a field.
pub const DEMONSTRATION: Field<&'static str> =
    Field::new("demonstration", "a good answer to the recorded request").required();

/// The demonstration of a report, or why the sample is of no use.
///
/// # Errors
/// None of its own: a field that the host does not give out is a reason.
pub fn demonstration(sample: Sample) -> Result<Result<String, String>> {
    Ok(match DEMONSTRATION.of(sample) {
        Err(refusal) => Err(format!("its demonstration cannot be read: {}", refusal.message())),
        Ok(Some(text)) if !text.trim().is_empty() => Ok(text),
        Ok(_) => Err("its report has no demonstration".to_owned()),
    })
}

/// The recorded request of a sample, for a teacher to read with more in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    messages: Vec<Message>,
    /// The rendering of the messages.
    asked: Vec<u32>,
    /// The prompt that the engine was given.
    recorded: Vec<u32>,
}

impl Request {
    /// The request of the sample, or why a teacher cannot be given more than it. Equal prompts make equal requests.
    ///
    /// # Errors
    /// The host's refusal, if it is not about this conversation.
    pub fn of(sample: Sample) -> Result<Result<Self, String>> {
        let messages = experience::messages(sample)?;
        if messages.is_empty() {
            return Ok(Err("its request is no conversation that a text can be added to".to_owned()));
        }
        let recorded = experience::prompt_tokens(sample)?;
        Ok(match tokens::try_render(&messages)? {
            Ok(asked) => Ok(Self { messages, asked, recorded }),
            Err(reason) => Err(format!("its conversation has no ids: {reason}")),
        })
    }

    /// Ids of the recorded prompt with `added` at the end of the last user message, or why there are none.
    ///
    /// # Errors
    /// The host's refusal, if it is not about the added text.
    pub fn with(&self, added: &str) -> Result<Result<Vec<u32>, String>> {
        let told = match tokens::try_render(&adding(self.messages.clone(), added))? {
            Ok(told) => told,
            Err(reason) => return Ok(Err(format!("what its teacher reads has no ids: {reason}"))),
        };
        let changed = changed_alike(&self.recorded, &self.asked, &told);
        Ok(changed.ok_or_else(|| "its recorded prompt is not a rendering of its conversation".to_owned()))
    }
}

/// The conversation with a text at the end of its last user message, or as a user's message when there is none.
pub fn adding(mut messages: Vec<Message>, text: &str) -> Vec<Message> {
    match messages.iter_mut().rev().find(|message| message.role == "user") {
        Some(last) => last.content = format!("{}\n\n{text}", last.content),
        None => messages.push(Message::user(text)),
    }
    messages
}

/// `recorded` with the change made that turns `from` into `to`; `None` unless it ends as `from` does from the
/// change on.
pub fn changed_alike(recorded: &[u32], from: &[u32], to: &[u32]) -> Option<Vec<u32>> {
    let same = |pair: &(&u32, &u32)| pair.0 == pair.1;
    let start = from.iter().zip(to).take_while(same).count();
    let (old, new) = (from.get(start..)?, to.get(start..)?);
    let kept = old.iter().rev().zip(new.iter().rev()).take_while(same).count();
    let (inserted, end) = new.split_at_checked(new.len().checked_sub(kept)?)?;
    let (head, tail) = recorded.split_at_checked(recorded.len().checked_sub(old.len())?)?;
    (tail == old).then(|| [head, inserted, end].concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeHost, FakeSample};
    use alloc::vec;

    fn ask(sample: FakeSample, added: &str) -> Result<Result<String, String>> {
        ask_within(80, sample, added)
    }

    fn ask_within(context: usize, sample: FakeSample, added: &str) -> Result<Result<String, String>> {
        let mut host = FakeHost::default().sample(sample).context_length(context);
        let sample = host.pool().handles()[0];
        host.call(|| match Request::of(sample)? {
            Err(reason) => Ok(Err(reason)),
            Ok(request) => match request.with(added)? {
                Err(reason) => Ok(Err(reason)),
                Ok(ids) => tokens::decode(&ids).map(Ok),
            },
        })
    }

    #[test]
    fn the_text_joins_the_last_user_message() {
        let chat = [Message::system("s"), Message::user("a"), Message::assistant("b"), Message::user("c")];
        let told = adding(chat.to_vec(), "note");
        assert_eq!((told[1].content.as_str(), told[3].content.as_str()), ("a", "c\n\nnote"));
        assert_eq!(adding(vec![Message::system("s")], "note").last(), Some(&Message::user("note")));
    }

    #[test]
    fn a_teachers_prompt_is_the_rendering_of_what_it_reads() {
        let told = ask(FakeSample::scored(1.0).chat(&[Message::user("add 1 and 2")]), "it is 3").expect("asks");
        assert_eq!(told.as_deref(), Ok("user: add 1 and 2\n\nit is 3\nassistant: "));
    }

    #[test]
    fn what_the_conversation_does_not_show_stays_in_the_prompt() {
        let with_tools: Vec<u32> = "tools: t\nuser: hi\nassistant: ".bytes().map(u32::from).collect();
        let sample = FakeSample::scored(1.0).chat(&[Message::user("hi")]).prompt_tokens(&with_tools);
        let told = ask(sample, "note").expect("asks");
        assert_eq!(told.as_deref(), Ok("tools: t\nuser: hi\n\nnote\nassistant: "));
    }

    #[test]
    fn prompts_that_are_no_rendering_and_texts_that_are_too_long_are_reasons() {
        let raw = FakeSample::scored(1.0).chat(&[Message::user("hi")]).prompt_tokens(&[1, 2, 3]);
        assert!(ask(raw, "note").expect("asks").expect_err("raw").contains("not a rendering"));
        let none = FakeSample::scored(1.0).messages(&[]);
        assert!(ask(none, "note").expect("asks").expect_err("none").contains("no conversation"));
        let short = || FakeSample::scored(1.0).chat(&[Message::user("hi")]);
        assert!(ask(short(), &"x".repeat(80)).expect("asks").expect_err("long").contains("the context has 80"));
        let long = FakeSample::scored(1.0).chat(&[Message::user("y".repeat(80))]);
        assert!(ask(long, "note").expect("asks").expect_err("long").contains("the context has 80"));
        // Not even the shortest conversation fits: the host's problem, and no reason to give the sample up.
        assert!(ask_within(5, short(), "note").is_err());
    }

    #[test]
    fn a_change_may_replace_tokens_at_its_edges() {
        assert_eq!(changed_alike(&[9, 1, 2, 3], &[1, 2, 3], &[1, 7, 8, 3]), Some(vec![9, 1, 7, 8, 3]));
        assert_eq!(changed_alike(&[1, 2, 3], &[1, 2, 3], &[1, 2, 5, 3]), Some(vec![1, 2, 5, 3]));
        assert_eq!(changed_alike(&[1, 1], &[1, 1], &[1, 1, 1]), Some(vec![1, 1, 1]));
        assert_eq!(changed_alike(&[2, 4], &[1, 2, 3], &[1, 2, 5, 3]), None);
        assert_eq!(changed_alike(&[], &[1], &[2]), None);
    }

    /// Every sequence of ones and twos of up to three ids.
    fn sequences() -> Vec<Vec<u32>> {
        let of = |length: u32| (0..1u32 << length).map(move |bits| (0..length).map(|i| 1 + (bits >> i & 1)).collect());
        (0..4).flat_map(of).collect()
    }

    #[test]
    fn whatever_comes_before_the_conversation_stays_before_it() {
        for (before, from) in sequences().iter().flat_map(|a| sequences().into_iter().map(move |b| (a.clone(), b))) {
            for to in sequences() {
                let (recorded, wanted) = ([&before[..], &from].concat(), [&before[..], &to].concat());
                assert_eq!(changed_alike(&recorded, &from, &to), Some(wanted), "{before:?} {from:?} {to:?}");
            }
        }
    }

    #[test]
    fn a_demonstration_that_is_missing_or_blank_is_a_reason() {
        let read = |sample: FakeSample| {
            let mut host = FakeHost::default().sample(sample);
            let sample = host.pool().handles()[0];
            host.call(|| demonstration(sample)).expect("reads")
        };
        assert_eq!(read(FakeSample::unscored().field("demonstration", r#""3""#)), Ok("3".to_owned()));
        for bad in [FakeSample::unscored(), FakeSample::unscored().field("demonstration", r#"" \n""#)] {
            assert_eq!(read(bad), Err("its report has no demonstration".to_owned()));
        }
    }
}
