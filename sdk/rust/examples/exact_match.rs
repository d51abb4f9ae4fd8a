//! A verifier: the answer must be the text that the task says, white space around it aside. The task is a JSON
//! string, e.g. `"42"`. A verifier is a component of its own and imports nothing.
#![no_std]
use reef_recipe::json;
use reef_recipe::prelude::*;

struct ExactMatch;

impl Verifier for ExactMatch {
    fn check(task: &str, answer: &str) -> Result<Outcome, String> {
        let wanted = json::text(task).ok_or("the task is not a JSON string")?;
        if answer.trim() == wanted.trim() {
            Ok(Outcome::pass("equal"))
        } else {
            Ok(Outcome::fail(format!("wanted {} characters, got {}", wanted.trim().len(), answer.trim().len())))
        }
    }
}

reef_recipe::export_verifier!(ExactMatch);
