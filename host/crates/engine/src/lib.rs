//! The embedded engine: a model that serves many requests at once (`reef_cpu`) and trains LoRA adapters over the
//! same frozen weights (libtorch).
//! The binary's handlers call `Engine`, its training job calls `train`; both read one checkpoint. Nothing here
//! knows HTTP, records, releases or recipes.
#![deny(missing_docs)]

mod adapter;
mod architecture;
mod batch;
mod chat;
mod checkpoint;
mod compute;
mod control;
mod device;
mod engine;
mod error;
mod frozen;
mod gguf;
mod guide;
mod lora_config;
mod model;
mod network;
mod peft;
mod prefix;
mod quant;
mod queue;
mod running;
mod sampler;
mod scheduler;
#[cfg(test)]
mod tests;
mod text;
mod tokenizer;
mod tool_calls;
pub mod train;

pub use adapter::{Adapter, LayerLora, Lora, Pair};
pub use chat::{ChatCall, ChatTurn, Conversation, MESSAGES_MAX, Variables};
pub use compute::{Compute, Precision};
pub use device::TrainingDevice;
pub use engine::{Engine, EngineConfig, EngineStats, ModelInfo, ServingLoad};
pub use error::EngineError;
pub use frozen::Frozen;
pub use guide::{Constraint, Guide, WHITE_SPACE};
pub use lora_config::{LoraConfig, Targets};
pub use model::{Architecture, Model, ModelConfig};
pub use network::ServedWeights;
pub use peft::MODULES;
pub use sampler::Adjustments;
pub use scheduler::{Event, Finish, FinishReason, Request, Token, Weights};
pub use tool_calls::{AnswerParser, AnswerPiece, CallFormat};
