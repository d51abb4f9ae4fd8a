//! Episodes on this server: what an operator sets, who may ask models from one, and how one is made of a tree and a task.
//! The crate `reef-episodes` plays them; the jobs of harness recipes and `reef harness run` ask for them here.

pub mod model;
pub mod passes;
pub mod plan;
pub mod section;
pub mod shop;

pub use passes::{Pass, Passes};
pub use section::{HarnessSection, ReleaseMode};
pub use shop::{Bench, Shop, Tried};
