//! Named numbers, stored with the step and exported as gauges.

use crate::host::{self, Host};

/// Names match `^[a-z][a-z0-9_/]{0,63}$` and values are finite, or the host ignores and counts them. At most
/// 64 names a call.
pub fn gauge(name: &str, value: f64) {
    // Nothing a recipe could do about a number that cannot be stored.
    let _ = host::call(|host| Host::gauge(host, name, value));
}
