//! The registry crate against a registry that lies, against a real one, and its shelf on a real disk.

mod evil;
mod lies;
mod places;
mod real;
mod server;
mod shelf;
mod signatures;
mod site;
