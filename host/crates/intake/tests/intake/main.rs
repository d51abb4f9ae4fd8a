//! The crate as its callers see it: what is taken out and what stays, kinds of calls, sessions.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod config;
#[cfg(test)]
mod contexts;
#[cfg(test)]
mod ordinary;
#[cfg(test)]
mod records;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod sessions;
