//! What the teacher of one answer reads beside the request: a sibling that succeeded, what the environment said of
//! the answer, both or nothing. Pure functions on texts.

use reef_recipe::prelude::*;

/// Where a model's reasoning begins and ends.
const THOUGHT: (&str, &str) = ("<think>", "</think>");

/// When the environment's feedback is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feedback {
    /// Never.
    Never,
    /// Only by the teacher of an answer that no sibling helps.
    WithoutSolution,
    /// Whenever there is any.
    Always,
}

/// The first sibling that succeeded, counted from 0: `solutions` has a text in the place of each answer that did.
/// An answer is no sibling of its own.
pub fn sibling(solutions: &[Option<String>], own: usize) -> Option<&str> {
    let others = solutions.iter().enumerate().filter(|&(index, _)| index != own);
    others.filter_map(|(_, solution)| solution.as_deref()).next()
}

/// The place of a solution in its template.
pub const SOLUTION: &str = "{solution}";
/// The place of feedback in its template.
pub const FEEDBACK: &str = "{feedback}";

/// The templates where none are set, in the order of `Templates`.
pub const TEMPLATES: [&str; 3] = [
    "A correct answer to this: <solution>{solution}</solution>",
    "What was said of an earlier attempt: <feedback>{feedback}</feedback>",
    "Now answer the original request.",
];

/// How a teacher is told what it knows.
#[derive(Debug, Clone)]
pub struct Templates {
    /// Of a sibling that succeeded.
    pub solution: String,
    /// Of what the environment said.
    pub feedback: String,
    /// What comes last; may be empty.
    pub closing: String,
}

impl Default for Templates {
    fn default() -> Self {
        let [solution, feedback, closing] = TEMPLATES.map(str::to_owned);
        Self { solution, feedback, closing }
    }
}

impl Templates {
    /// The text that is added to the request; `None` = the teacher knows no more than the student.
    pub fn context(&self, solution: Option<&str>, feedback: Option<&str>) -> Option<String> {
        let solution = solution.map(|text| self.solution.replace(SOLUTION, text));
        let feedback = feedback.map(|text| self.feedback.replace(FEEDBACK, text));
        let known: Vec<String> = solution.into_iter().chain(feedback).collect();
        if known.is_empty() {
            return None;
        }
        let closing = Some(self.closing.clone()).filter(|line| !line.is_empty());
        Some(known.into_iter().chain(closing).collect::<Vec<_>>().join("\n\n"))
    }
}

/// An answer without its reasoning, trimmed; reasoning that the prompt began or that never ended goes too.
pub fn without_thoughts(answer: &str) -> String {
    let (opening, closing) = THOUGHT;
    let mut rest = match answer.split_once(closing) {
        Some((before, after)) if !before.contains(opening) => after,
        _ => answer,
    };
    let mut said = String::new();
    while let Some((before, thought)) = rest.split_once(opening) {
        said.push_str(before);
        rest = thought.split_once(closing).map_or("", |(_, after)| after);
    }
    said.push_str(rest);
    said.trim().to_owned()
}
