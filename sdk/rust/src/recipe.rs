//! The trait that a recipe implements, and the macro that makes a component of it.

use crate::{Batch, Candidate, Context, Failure, Manifest, Pool, Proposal, Selection, Verdict};

/// A decision of a recipe, or why the call is given up: then the step fails and nothing is consumed.
pub type Result<T, E = Failure> = core::result::Result<T, E>;

/// A learning strategy: three decisions and a description.
///
/// Every call starts in a fresh sandbox. What must survive goes through [`crate::state`]; the time and the
/// seed are in the context, and there is no other clock or source of randomness.
pub trait Recipe {
    /// Says what the recipe is and what it asks for. Constant.
    fn describe() -> Manifest;

    /// Decides what to learn from now. `pool`: unconsumed samples, oldest first.
    fn select(ctx: &Context, pool: &Pool) -> Result<Selection>;

    /// Learns from the selected samples, in their order, and proposes the outcome.
    fn propose(ctx: &Context, batch: &Batch) -> Result<Proposal>;

    /// Judges the candidate. Without an opinion of its own a recipe leaves it to the operator's gate.
    fn evaluate(ctx: &Context, candidate: Candidate) -> Result<Verdict> {
        let _ = (ctx, candidate);
        Ok(Verdict::promote("the recipe leaves the decision to the operator's gate"))
    }
}

/// Makes the type a component's recipe: `reef_recipe::export!(MyRecipe);`, once in a `cdylib`.
///
/// Natively it only checks that the type is a [`Recipe`].
#[macro_export]
macro_rules! export {
    ($recipe:ty) => {
        const _: fn() -> $crate::Manifest = <$recipe as $crate::Recipe>::describe;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::Recipe as _;
            use $crate::bindings::exports::reef::recipe::strategy::Guest;

            struct Component;

            impl Guest for Component {
                fn describe() -> $crate::Manifest {
                    $crate::log_panics();
                    <$recipe>::describe()
                }
                fn select_samples(
                    ctx: $crate::Context,
                    pool: $crate::bindings::Handles,
                ) -> $crate::Result<$crate::Selection> {
                    $crate::log_panics();
                    <$recipe>::select(&ctx, &pool.into())
                }
                fn propose_update(
                    ctx: $crate::Context,
                    batch: $crate::bindings::Handles,
                ) -> $crate::Result<$crate::Proposal> {
                    $crate::log_panics();
                    <$recipe>::propose(&ctx, &batch.into())
                }
                fn evaluate(ctx: $crate::Context, subject: u32) -> $crate::Result<$crate::Verdict> {
                    $crate::log_panics();
                    <$recipe>::evaluate(&ctx, subject.into())
                }
            }

    $crate::bindings::export!(Component with_types_in $crate::bindings);
        };
    };
}
