//! The one error of this crate, split by what a caller can do about it.

use std::path::PathBuf;

/// Why the engine refuses or fails.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A file of the model cannot be read.
    #[error("model file {path}: {source}; check the path given with --model and its permissions")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of the model is damaged, or not what its name says.
    #[error("model file {path} is damaged: {problem}; download it again")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        problem: String,
    },
    /// The model is intact and this engine has no code for it.
    #[error("model {path} is not supported: {problem}")]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// What is not supported, and what is.
        problem: String,
    },
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Adapter or trainer files that do not fit this model.
    #[error("adapter: {0}")]
    Adapter(String),
    /// The prompt leaves no room for an answer.
    #[error(
        "this model's maximum context length is {max} tokens, the answer included; the prompt has at least {prompt}; shorten it"
    )]
    ContextExceeded {
        /// Tokens of the prompt, at least: text that is far too long is not counted out.
        prompt: usize,
        /// Tokens of the context.
        max: usize,
    },
    /// The queue is full.
    #[error("{queued} requests are waiting and the queue holds no more; try again in a moment")]
    Overloaded {
        /// Requests that wait.
        queued: usize,
    },
    /// A process that trains with this one failed, or is out of reach.
    #[error("training worker {rank}: {problem}")]
    Worker {
        /// Which one; 0 is the process that owns the step.
        rank: usize,
        /// What happened, and what helps.
        problem: String,
    },
    /// A device cannot be computed on.
    #[error("device {device}: {problem}")]
    Device {
        /// As it is configured.
        device: String,
        /// What is missing, and what helps.
        problem: String,
    },
    /// The caller ended a long operation.
    #[error("cancelled")]
    Cancelled,
    /// A thread of the engine has ended.
    #[error("the engine has stopped; restart the server")]
    Stopped,
    /// libtorch refused an operation.
    #[error("a tensor operation failed: {0}")]
    Tensor(#[from] tch::TchError),
}
