//! Verifiers that the operator installed, and how to write one: a verifier is a component of its own that
//! grades an answer and imports nothing.

use alloc::string::String;
use alloc::vec::Vec;

use crate::host::{self, Host};
use crate::{Outcome, Result};

/// Names of the verifiers.
pub fn verifiers() -> Result<Vec<String>> {
    host::call(Host::verifiers)
}

/// What a verifier makes of an answer. `task`: JSON that the verifier understands.
pub fn check(verifier: &str, task: &str, answer: &str) -> Result<Outcome> {
    host::call(|host| Host::check_answer(host, verifier, task, answer))
}

/// Grades answers. The only input is the task and the answer: the same pair always has the same outcome.
pub trait Verifier {
    /// `task`: JSON.
    ///
    /// # Errors
    /// One sentence: why the task makes no sense.
    fn check(task: &str, answer: &str) -> Result<Outcome, String>;
}

impl Outcome {
    /// The answer is right: score 1.
    pub fn pass(detail: impl Into<String>) -> Self {
        Self { score: 1.0, passed: true, detail: detail.into() }
    }

    /// The answer is wrong: score 0.
    pub fn fail(detail: impl Into<String>) -> Self {
        Self { score: 0.0, passed: false, detail: detail.into() }
    }
}

/// Makes the type a verifier component: `reef_recipe::export_verifier!(MyVerifier);`, once in a `cdylib` that
/// exports no recipe.
///
/// ```
/// use reef_recipe::prelude::*;
///
/// struct Exact;
///
/// impl Verifier for Exact {
///     fn check(task: &str, answer: &str) -> Result<Outcome, String> {
///         let wanted = reef_recipe::json::text(task).ok_or("the task is not a JSON string")?;
///         Ok(if answer.trim() == wanted { Outcome::pass("equal") } else { Outcome::fail("different") })
///     }
/// }
///
/// reef_recipe::export_verifier!(Exact);
/// ```
#[macro_export]
macro_rules! export_verifier {
    ($verifier:ty) => {
        const _: fn(&str, &str) -> $crate::Result<$crate::Outcome, $crate::__String> =
            <$verifier as $crate::Verifier>::check;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::verifier::exports::reef::recipe::verification::Guest;

            struct Component;

            impl Guest for Component {
                fn check(
                    task: $crate::__String,
                    answer: $crate::__String,
                ) -> $crate::Result<$crate::Outcome, $crate::__String> {
                    <$verifier as $crate::Verifier>::check(&task, &answer)
                }
            }

    $crate::bindings::verifier::export!(Component with_types_in $crate::bindings::verifier);
        };
    };
}
