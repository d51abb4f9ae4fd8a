//! The handle of the embedded engine: load once, clone freely.
//! Handlers and jobs call it from any thread; requests go to the scheduler's thread through a bounded queue,
//! text goes through the tokenizer on the caller's thread. It keeps no request state of its own.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use reef_core::Message;
use reef_cpu::Network;
use tch::Tensor;
use tokio::sync::mpsc::Receiver;

#[cfg(test)]
use crate::adapter::Lora;
use crate::adapter::{Adapter, PAIRS};
use crate::chat::{ChatTemplate, Conversation, Variables, counted};
use crate::checkpoint::{Checkpoint, unsupported};
use crate::compute::Compute;
use crate::error::EngineError;
use crate::guide::{Constraint, Guide, Vocabulary};
use crate::lora_config::LoraConfig;
use crate::model::{Model, ModelConfig};
use crate::network::{self, ServedWeights};
use crate::peft::PeftFiles;
use crate::queue::Queue;
use crate::scheduler::{self, Event, Job, Request};
use crate::tokenizer::Tokenizer;
use crate::tool_calls::{AnswerParser, CallFormat};

/// Rows of a decode step that are accepted as `batch_max`.
const BATCH_MAX: usize = 256;

/// How the engine is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// A `.gguf` file or a Hugging Face folder.
    pub model: PathBuf,
    /// Threads of tensor operations; 0 = one per core.
    pub threads: usize,
    /// Requests that decode together.
    pub batch_max: usize,
    /// Tokens of prompt and answer together; the model may allow less.
    pub context_max: usize,
    /// Requests of one tenant that wait.
    pub queue_max: usize,
    /// Tenants that there are. With several, the last free row is for one that has none.
    pub tenants: usize,
    /// What the served copy of the base model is stored in.
    pub weights: ServedWeights,
    /// Bytes of keys and values; one full context always has room.
    pub cache_bytes_max: usize,
    /// How fresh adapters are made.
    pub lora: LoraConfig,
    /// How training computes.
    pub training: Compute,
}

/// What was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name that requests use: the file's name without its ending, or the folder's.
    pub name: String,
    /// Architecture, e.g. `llama`.
    pub architecture: String,
    /// SHA-256 of the weights, 64 hex digits.
    pub sha256: String,
    /// Tokens of prompt and answer together.
    pub context_length: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Parameters.
    pub parameters: u64,
}

/// What serving has done and is doing. Tokens and steps are totals since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Requests that hold a row.
    pub active: usize,
    /// Requests that wait for one.
    pub queued: usize,
    /// Prompt tokens of admitted requests, shared prefixes included.
    pub prompt_tokens: u64,
    /// Sampled tokens.
    pub output_tokens: u64,
    /// Forward passes.
    pub steps: u64,
    /// Pages of the cache of keys and values (16 tokens each): all, those in use, and of these those that are kept
    /// for prompts with the same beginning.
    pub pages_max: usize,
    /// See `pages_max`.
    pub pages_used: usize,
    /// See `pages_max`.
    pub pages_kept: usize,
}

/// Live counters of serving; the trainer looks here before each micro-batch.
#[derive(Debug, Default)]
pub struct ServingLoad {
    pub(crate) active: AtomicUsize,
    pub(crate) queued: AtomicUsize,
    pub(crate) prompt_tokens: AtomicU64,
    pub(crate) output_tokens: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) pages_max: AtomicUsize,
    pub(crate) pages_used: AtomicUsize,
    pub(crate) pages_kept: AtomicUsize,
}

impl ServingLoad {
    /// Requests that run or wait.
    pub fn active(&self) -> usize {
        self.active.load(Ordering::Relaxed) + self.queued.load(Ordering::Relaxed)
    }
}

/// A loaded model that serves. Dropping the last handle ends its thread after the running requests.
#[derive(Debug, Clone)]
pub struct Engine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    info: ModelInfo,
    config: EngineConfig,
    shape: ModelConfig,
    network: Arc<Network>,
    /// The weights that train, read when something trains first.
    model: OnceLock<Arc<Model>>,
    tokenizer: Arc<Tokenizer>,
    vocabulary: OnceLock<Vocabulary>,
    template: ChatTemplate,
    load: Arc<ServingLoad>,
    queue: Arc<Queue>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Engine {
    /// Loads the model and starts the scheduler's thread. Blocks for about a second per 300 million parameters.
    pub fn load(mut config: EngineConfig) -> Result<Self, EngineError> {
        if config.threads == 0 {
            config.threads = std::thread::available_parallelism().map_or(1, usize::from);
        }
        config.batch_max = config.batch_max.clamp(1, BATCH_MAX);
        if std::env::var_os("OMP_WAIT_POLICY").is_none() {
            // The library reads it when the process starts, so it is too late to set it here.
            tracing::warn!(
                "OMP_WAIT_POLICY is not set: tensor threads spin and slow each other down many times over; start the process with OMP_WAIT_POLICY=passive"
            );
        }
        let checkpoint = Checkpoint::open(&config.model)?;
        let (tokenizer, template) = (Arc::new(Tokenizer::load(&checkpoint)?), ChatTemplate::load(&checkpoint)?);
        let mut shape = checkpoint.config().clone();
        shape.context_length = shape.context_length.min(config.context_max.max(2));
        let network = Arc::new(network::load(&checkpoint, &shape, config.weights)?);
        let info = ModelInfo {
            name: served_name(&config.model),
            architecture: shape.architecture.name().to_owned(),
            sha256: checkpoint.sha256(),
            context_length: shape.context_length,
            vocabulary: usize::try_from(shape.vocabulary).unwrap_or(0),
            parameters: shape.parameters(),
        };
        let load = Arc::new(ServingLoad::default());
        let queue = scheduler::start(&config, &network, &tokenizer, &load)?;
        tracing::info!(
            model.name = info.name,
            model.architecture = info.architecture,
            model.parameters = info.parameters,
            model.sha256 = info.sha256,
            model.served_bytes = network.bytes(),
            engine.threads = config.threads,
            "model loaded"
        );
        let (model, vocabulary) = (OnceLock::new(), OnceLock::new());
        let inner = Inner { info, config, shape, network, model, tokenizer, vocabulary, template, load, queue };
        Ok(Self(Arc::new(inner)))
    }

    /// What was loaded.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// How fresh adapters are made.
    pub fn lora(&self) -> LoraConfig {
        self.0.config.lora
    }

    /// Where the base model was read from.
    pub(crate) fn model_path(&self) -> &Path {
        &self.0.config.model
    }

    /// Threads of tensor operations.
    pub fn threads(&self) -> usize {
        self.0.config.threads
    }

    /// Token ids of a conversation, ready for the assistant's answer.
    ///
    /// Control tokens come from the model's template only: a message that spells one stays text. Fails if the
    /// tokens leave no room for an answer, early if the text is far too long.
    pub fn render_chat(&self, messages: &[Message]) -> Result<Vec<u32>, EngineError> {
        self.0.template.render(messages, &self.0.tokenizer, self.0.info.context_length)
    }

    /// The same for turns that call tools and answer them.
    pub fn render_turns(&self, conversation: Conversation<'_>) -> Result<Vec<u32>, EngineError> {
        self.0.template.render_turns(conversation, &self.0.tokenizer, self.0.info.context_length)
    }

    /// Tokens that `render_turns` would make if the context had no end; of a very long text, what its beginning lets
    /// one expect.
    pub fn count_turns(&self, conversation: Conversation<'_>) -> Result<usize, EngineError> {
        self.0.template.count_turns(conversation, &self.0.tokenizer)
    }

    /// Takes answers apart into text, reasoning and calls, as this model writes them after a prompt with these
    /// variables; calls only where there are `tools`.
    pub fn answer_parser(&self, tools: bool, variables: &Variables) -> AnswerParser {
        AnswerParser::new(self.call_format(), tools, self.opens_reasoning(variables))
    }

    /// How this model writes calls.
    pub fn call_format(&self) -> CallFormat {
        self.0.template.call_format()
    }

    /// Do answers begin inside of the model's reasoning, because the prompt opens it?
    pub fn opens_reasoning(&self, variables: &Variables) -> bool {
        self.0.template.opens_reasoning(variables)
    }

    /// Compiles what an answer must match. Blocks for milliseconds, the first time for a quarter of a second.
    pub fn guide(&self, constraint: &Constraint) -> Result<Guide, EngineError> {
        let vocabulary = match self.0.vocabulary.get() {
            Some(vocabulary) => vocabulary,
            None => {
                let made = Vocabulary::new(&self.0.tokenizer, self.0.info.vocabulary)?;
                self.0.vocabulary.get_or_init(|| made)
            }
        };
        Guide::new(vocabulary, constraint)
    }

    /// Token ids of plain text that is to be continued. Text that cannot fit is refused before it is tokenised.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let (fewest, max) = (self.0.tokenizer.fewest(text), self.0.info.context_length);
        if fewest >= max { Err(EngineError::ContextExceeded { prompt: fewest, max }) } else { self.encode(text) }
    }

    /// Tokens of plain text; of a very long one, what its beginning lets one expect.
    pub fn count(&self, text: &str) -> Result<usize, EngineError> {
        counted(text, |part| Ok(self.encode(part)?.len()))
    }

    /// Requests of one tenant that may wait.
    pub fn queue_max(&self) -> usize {
        self.0.queue.max()
    }

    /// Token ids of plain text, without control tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        self.0.tokenizer.encode(text)
    }

    /// Text of token ids; control tokens have none, bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> Result<String, EngineError> {
        self.0.tokenizer.decode(ids)
    }

    /// Bytes that one token stands for, perhaps a part of a character; none for control tokens and unknown ids.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.0.tokenizer.bytes(id).to_vec()
    }

    /// Queues a request and returns its events: tokens, then `Done` or `Failed`. Never blocks.
    ///
    /// Dropping the receiver cancels the request within one decode step. Fails if the request is invalid, if
    /// the prompt leaves no room for an answer, or if `queue_max` requests wait already.
    pub fn generate(&self, request: Request) -> Result<Receiver<Event>, EngineError> {
        let (job, events) = Job::new(request, &self.0.info)?;
        scheduler::submit(&self.0.queue, job, &self.0.load)?;
        Ok(events)
    }

    /// Logits of the base model after the last token of `prompt`, one per token of the vocabulary, for comparison
    /// with other implementations. Runs the training forward on the caller's thread, beside serving.
    pub fn prompt_logits(&self, prompt: &[u32]) -> Result<Vec<f32>, EngineError> {
        scheduler::check_prompt(prompt, &self.0.info)?;
        let ids: Vec<i64> = prompt.iter().map(|id| i64::from(*id)).collect();
        tch::no_grad(|| {
            let model = self.model()?;
            let hidden_btd = model.hidden_train(&Tensor::f_from_slice(&ids)?.f_unsqueeze(0)?, None)?;
            let logits_v = model.logits(&hidden_btd.f_select(1, -1)?)?.f_to_device(tch::Device::Cpu)?;
            let mut values = vec![0f32; logits_v.numel()];
            logits_v.f_copy_data(&mut values, logits_v.numel())?;
            Ok(values)
        })
    }

    /// An adapter from its files in PEFT format (`adapter_config.json`, `adapter_model.safetensors`).
    pub fn adapter_from_files(&self, files: &[(String, Vec<u8>)]) -> Result<Arc<Adapter>, EngineError> {
        let read = PeftFiles::open(&self.0.shape, files)?;
        Ok(Arc::new(Adapter::new(&self.0.network, read.scale(), read.layers())?))
    }

    /// How much an adapter changes the model: the Frobenius norm of each delta, by block and `MODULES`.
    pub fn adapter_norms(&self, files: &[(String, Vec<u8>)]) -> Result<Vec<[f64; PAIRS]>, EngineError> {
        PeftFiles::open(&self.0.shape, files)?.norms()
    }

    /// An adapter that requests can carry: a copy of `lora`.
    #[cfg(test)]
    pub(crate) fn adapter(&self, lora: &Lora) -> Result<Arc<Adapter>, EngineError> {
        Ok(Arc::new(Adapter::new(&self.0.network, lora.scale() as f32, lora.plain())?))
    }

    /// The network that serves.
    #[cfg(test)]
    pub(crate) fn network(&self) -> &Network {
        &self.0.network
    }

    /// What serving does now and has done.
    pub fn stats(&self) -> EngineStats {
        let load = &self.0.load;
        EngineStats {
            active: load.active.load(Ordering::Relaxed),
            queued: load.queued.load(Ordering::Relaxed),
            prompt_tokens: load.prompt_tokens.load(Ordering::Relaxed),
            output_tokens: load.output_tokens.load(Ordering::Relaxed),
            steps: load.steps.load(Ordering::Relaxed),
            pages_max: load.pages_max.load(Ordering::Relaxed),
            pages_used: load.pages_used.load(Ordering::Relaxed),
            pages_kept: load.pages_kept.load(Ordering::Relaxed),
        }
    }

    /// The shape of the model.
    pub fn shape(&self) -> &ModelConfig {
        &self.0.shape
    }

    /// The base model for training: read when it is first asked for, then shared.
    pub fn model(&self) -> Result<Arc<Model>, EngineError> {
        if let Some(model) = self.0.model.get() {
            return Ok(Arc::clone(model));
        }
        // The file may have been replaced since: the weights that train must be those that serve.
        let checkpoint = Checkpoint::open(&self.0.config.model)?;
        if checkpoint.sha256() != self.0.info.sha256 {
            let problem = "it was replaced while the server ran; restart the server to serve and train the new one";
            return Err(unsupported(&self.0.config.model, problem));
        }
        let compute = self.0.config.training;
        let read = Arc::new(Model::load(&checkpoint, self.0.shape.clone(), compute)?);
        tracing::info!(device = ?read.device(), precision = %compute.precision, "the weights that train are read");
        Ok(Arc::clone(self.0.model.get_or_init(|| read)))
    }

    /// Live counters of serving, shared.
    pub fn serving(&self) -> Arc<ServingLoad> {
        Arc::clone(&self.0.load)
    }
}

/// The file's name without its ending, or the folder's name.
fn served_name(model: &Path) -> String {
    let name = if model.is_dir() { model.file_name() } else { model.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
