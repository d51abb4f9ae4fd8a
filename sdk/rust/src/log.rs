//! Log lines, tagged by the host with tenant, scenario and recipe. Bytes over the budget of the call are
//! dropped and counted.

use crate::bindings::reef::recipe::log::Level;
use crate::host::{self, Host};

fn write(level: Level, message: &str) {
    // Nothing a recipe could do about a log that cannot be written.
    let _ = host::call(|host| Host::log(host, level, message));
}

/// Detail for the author of a recipe.
pub fn debug(message: &str) {
    write(Level::Debug, message);
}

/// What happened.
pub fn info(message: &str) {
    write(Level::Info, message);
}

/// What somebody should look at.
pub fn warn(message: &str) {
    write(Level::Warn, message);
}

/// What went wrong.
pub fn error(message: &str) {
    write(Level::Error, message);
}
