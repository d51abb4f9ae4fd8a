//! Serving and training on the real model: files, model, scheduler, trainer.
//! One engine is loaded for all tests; the model file is the one that scripts/setup.sh provides.

mod files;
mod model;
mod serving;
mod sharing;
mod training;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use reef_core::{Message, Sampling};
use tch::Tensor;
use tokio::sync::mpsc::Receiver;

use crate::adapter::{Adapter, Lora};
use crate::engine::{Engine, EngineConfig};
use crate::lora_config::LoraConfig;
use crate::network::ServedWeights;
use crate::scheduler::{Event, Finish, FinishReason, Request, Token, Weights};

pub(crate) fn model_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.deps/models/smollm2-135m-instruct-q4_1.gguf")
}

fn config(model: PathBuf) -> EngineConfig {
    EngineConfig {
        training: crate::Compute::default(),
        model,
        threads: 2,
        batch_max: 8,
        context_max: 512,
        queue_max: 64,
        tenants: 1,
        lora: LoraConfig::default(),
        weights: ServedWeights::File,
        cache_bytes_max: 256 << 20,
    }
}

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| Engine::load(config(model_path())).expect("run scripts/setup.sh to get the model"))
}

/// An adapter that changes answers.
fn adapter(seed: u64) -> Arc<Adapter> {
    engine().adapter(&lora(seed)).expect("adapter")
}

/// Some B are random too: they borrow the A of another seed.
fn lora(seed: u64) -> Lora {
    let init = |seed| {
        Lora::init(engine().shape(), &LoraConfig { rank: 4, alpha: 8.0, seed, ..LoraConfig::default() }).expect("init")
    };
    let (mut lora, other) = (init(seed), init(seed + 100));
    for (layer, other) in lora.layers.iter_mut().zip(&other.layers) {
        layer.o.b = (&other.q.a * 8.0).tr().contiguous();
        layer.q.b = (&other.o.a * 8.0).tr().contiguous();
        layer.down.b = (&other.gate.a * 8.0).tr().contiguous();
    }
    lora
}

fn chat(text: &str) -> Vec<u32> {
    engine().render_chat(&[Message { role: "user".to_owned(), content: text.to_owned() }]).expect("rendered")
}

fn greedy(prompt: Vec<u32>, tokens_max: u32) -> Request {
    let sampling = Sampling { temperature: 0.0, top_p: 1.0, top_k: 0, seed: 0 };
    Request::new("default", prompt, Weights::Base, sampling, tokens_max)
}

fn collect(mut events: Receiver<Event>) -> (Vec<Token>, Finish) {
    let mut tokens = Vec::new();
    loop {
        match events.blocking_recv().expect("an end event") {
            Event::Token(token) => tokens.push(token),
            Event::Done(finish) => return (tokens, finish),
            Event::Failed(message) => panic!("{message}"),
        }
    }
}

fn run(request: Request) -> (Vec<Token>, Finish) {
    collect(engine().generate(request).expect("queued"))
}

/// All at once.
fn run_together(requests: Vec<Request>) -> Vec<Vec<u32>> {
    let started: Vec<_> = requests.into_iter().map(|request| engine().generate(request).expect("queued")).collect();
    started.into_iter().map(|events| ids(&collect(events))).collect()
}

fn ids(answer: &(Vec<Token>, Finish)) -> Vec<u32> {
    answer.0.iter().map(|token| token.id).collect()
}

fn text(answer: &(Vec<Token>, Finish)) -> String {
    answer.0.iter().map(|token| token.text.as_str()).chain([answer.1.text.as_str()]).collect()
}

fn difference(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).abs().max().double_value(&[])
}
