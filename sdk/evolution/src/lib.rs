//! What the recipes that evolve an agent's harness share: a model's answer as edits of the tree, untrusted text in a
//! prompt, model calls within a budget, paired episodes with a sign test, and small memories in the state.
//! The recipes of the surface `harness` call it; it calls the SDK. A model that it asks can change two text fields of
//! the kinds that the operator lists, and so can never widen what the tree may do.
#![cfg_attr(target_arch = "wasm32", no_std)]
#![deny(missing_docs)]

pub mod attempts;
pub mod calls;
pub mod edits;
pub mod memory;
pub mod stop;
pub mod traces;
pub mod trials;
pub mod untrusted;

pub use calls::Calls;
pub use edits::{Edits, Kinds};
pub use serde_json as json;
pub use stop::Stop;
