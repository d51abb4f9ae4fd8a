//! The crate as its callers see it: what is taken out and what stays, kinds of calls, sessions.

mod calls;
mod config;
mod ordinary;
mod records;
mod secrets;
mod sessions;
