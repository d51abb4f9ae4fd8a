//! The embedded engine: a Llama-family model on libtorch that serves many requests at once and trains LoRA
//! adapters over the same frozen weights.
//! The binary's handlers call `Engine`, its training job calls `train`; both share one `Model`. Nothing here
//! knows HTTP, records, releases or recipes.
#![deny(missing_docs)]

mod adapter;
mod batch;
mod chat;
mod checkpoint;
mod control;
mod engine;
mod error;
mod frozen;
mod gguf;
mod kv;
mod model;
mod peft;
mod plan;
mod quant;
mod sampler;
mod scheduler;
#[cfg(test)]
mod tests;
mod text;
mod tokenizer;
pub mod train;

pub use adapter::{Adapter, LayerLora, Lora, LoraConfig, Pair};
pub use chat::MESSAGES_MAX;
pub use engine::{Engine, EngineConfig, EngineStats, ModelInfo, ServingLoad};
pub use error::EngineError;
pub use frozen::Frozen;
pub use model::{Model, ModelConfig};
pub use scheduler::{Event, Finish, FinishReason, Request, Token, Weights};
