//! The forward pass of a frozen decoder-only transformer on CPU cores: low-bit weights, paged KV cache, LoRA deltas.
//! The engine loads a checkpoint into a `Network` and calls `Network::step` for the tokens of many requests at
//! once. An answer never depends on which other requests are in the batch: every sum has one order.
#![deny(missing_docs)]

mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod integer;
mod kv;
mod linear;
mod lora;
mod matrix;
mod memory;
mod network;
mod pool;
mod product;
#[cfg(test)]
mod tests;

pub use kv::{PAGE, Page, Pages};
pub use linear::Linear;
pub use lora::Factors;
pub use matrix::{Groups, Matrix, Rows, TILE};
pub use network::{Adapter, Block, Network, NetworkConfig, Span, StepError, Workspace};
pub use product::{exp_of, largest};
