//! What a recipe may export beside its strategy, each as a trait and a macro of its own. A component that does
//! not call the macro does not have the export, and the host does not ask for it.

use alloc::string::String;
use alloc::vec::Vec;

pub use crate::bindings::live::exports::reef::recipe::live::{Exchange, Judgement};
pub use crate::bindings::migration::exports::reef::recipe::migration::StateEntry;
pub use crate::bindings::requests::exports::reef::recipe::requests::Request;
use crate::state::Stored;
use crate::{Context, Message, Result};

/// Carries the state of an older version over when a recipe is upgraded; [`export_migration!`](crate::export_migration)
/// exports it.
pub trait Migration {
    /// `from_version`: version of the recipe that wrote the state. Returns the whole new state, each key once. No
    /// capability answers during this call. A failure leaves the old recipe in use.
    fn migrate(from_version: &str, entries: Vec<StateEntry>) -> Result<Vec<StateEntry>>;
}

/// Follows live sessions instead of waiting for reports; [`export_live!`](crate::export_live) exports it.
pub trait Live {
    /// Called after exchanges were recorded, oldest first, each once. State written here is kept.
    fn ingest(ctx: &Context, exchanges: &[Exchange]) -> Result<Vec<Judgement>>;
}

/// Changes requests before they are answered; [`export_requests!`](crate::export_requests) exports it. It has 10
/// milliseconds, and works only if the operator grants `requests`.
pub trait Requests {
    /// The messages to answer instead; none = unchanged.
    fn transform(request: &Request) -> Option<Vec<Message>>;
}

impl StateEntry {
    /// A key with its value.
    pub fn new(key: impl Into<String>, value: &impl Stored) -> Self {
        Self { key: key.into(), value: value.to_bytes() }
    }

    /// The value, if it is of this type.
    pub fn read<T: Stored>(&self) -> Option<T> {
        T::from_bytes(&self.value)
    }
}

impl Judgement {
    /// A finite score for a recorded exchange, without metadata.
    pub fn new(receipt: impl Into<String>, score: f64) -> Self {
        Self { receipt: receipt.into(), score, metadata: String::from("{}") }
    }
}

/// Exports [`Migration`]: `reef_recipe::export_migration!(MyRecipe);`, beside [`export!`](crate::export).
#[macro_export]
macro_rules! export_migration {
    ($recipe:ty) => {
        const _: fn(&str, $crate::__Vec<$crate::StateEntry>) -> $crate::Result<$crate::__Vec<$crate::StateEntry>> =
            <$recipe as $crate::Migration>::migrate;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::migration::exports::reef::recipe::migration::Guest;

            struct Component;

            impl Guest for Component {
                fn migrate(
                    from_version: $crate::__String,
                    entries: $crate::__Vec<$crate::StateEntry>,
                ) -> $crate::Result<$crate::__Vec<$crate::StateEntry>> {
                    $crate::log_panics();
                    <$recipe as $crate::Migration>::migrate(&from_version, entries)
                }
            }

    $crate::bindings::migration::export!(Component with_types_in $crate::bindings::migration);
        };
    };
}

/// Exports [`Live`]: `reef_recipe::export_live!(MyRecipe);`, beside [`export!`](crate::export).
#[macro_export]
macro_rules! export_live {
    ($recipe:ty) => {
        const _: fn(&$crate::Context, &[$crate::Exchange]) -> $crate::Result<$crate::__Vec<$crate::Judgement>> =
            <$recipe as $crate::Live>::ingest;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::live::exports::reef::recipe::live::Guest;

            struct Component;

            impl Guest for Component {
                fn ingest(
                    ctx: $crate::Context,
                    exchanges: $crate::__Vec<$crate::Exchange>,
                ) -> $crate::Result<$crate::__Vec<$crate::Judgement>> {
                    $crate::log_panics();
                    <$recipe as $crate::Live>::ingest(&ctx, &exchanges)
                }
            }

    $crate::bindings::live::export!(Component with_types_in $crate::bindings::live);
        };
    };
}

/// Exports [`Requests`]: `reef_recipe::export_requests!(MyRecipe);`, beside [`export!`](crate::export).
#[macro_export]
macro_rules! export_requests {
    ($recipe:ty) => {
        const _: fn(&$crate::Request) -> Option<$crate::__Vec<$crate::Message>> =
            <$recipe as $crate::Requests>::transform;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::requests::exports::reef::recipe::requests::Guest;

            struct Component;

            impl Guest for Component {
                fn transform_request(request: $crate::Request) -> Option<$crate::__Vec<$crate::Message>> {
                    $crate::log_panics();
                    <$recipe as $crate::Requests>::transform(&request)
                }
            }

    $crate::bindings::requests::export!(Component with_types_in $crate::bindings::requests);
        };
    };
}
