//! Log lines, tagged by the host with tenant, scenario and recipe. Bytes over the budget of the call are
//! dropped and counted. The macros name the module they are called from, or the context they are given:
//! `log::info!("{} samples", batch.len())`, `log::warn!(context: "critic", "no signal")`.

pub use crate::bindings::reef::recipe::log::Level;
use crate::host::{self, Host};

/// Writes a line. `context`: where in the recipe; may be empty.
pub fn write(level: Level, context: &str, message: &str) {
    // Nothing a recipe could do about a log that cannot be written.
    let _ = host::call(|host| Host::log(host, level, context, message));
}

/// A line of a level: with a context, or with the module of the caller.
#[doc(hidden)]
#[macro_export]
macro_rules! __log {
    ($level:ident, context: $context:expr, $($message:tt)+) => {
        $crate::log::write($crate::log::Level::$level, $context, &$crate::__format!($($message)+))
    };
    ($level:ident, $($message:tt)+) => {
        $crate::log::write($crate::log::Level::$level, ::core::module_path!(), &$crate::__format!($($message)+))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_trace {
    ($($message:tt)+) => { $crate::__log!(Trace, $($message)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_debug {
    ($($message:tt)+) => { $crate::__log!(Debug, $($message)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_info {
    ($($message:tt)+) => { $crate::__log!(Info, $($message)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_warn {
    ($($message:tt)+) => { $crate::__log!(Warn, $($message)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_error {
    ($($message:tt)+) => { $crate::__log!(Error, $($message)+) };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __log_critical {
    ($($message:tt)+) => { $crate::__log!(Critical, $($message)+) };
}

/// What must be looked at now.
pub use crate::__log_critical as critical;
/// Detail for the author of a recipe.
pub use crate::__log_debug as debug;
/// What went wrong.
pub use crate::__log_error as error;
/// What happened.
pub use crate::__log_info as info;
/// Every turn of a loop.
pub use crate::__log_trace as trace;
/// What somebody should look at.
pub use crate::__log_warn as warn;
