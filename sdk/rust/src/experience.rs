//! What is known of one sample beside its columns: its turns, texts and tags, and the alternatives that the
//! sampler kept. One call a sample; whole columns are methods of [`crate::Samples`].

use alloc::string::String;
use alloc::vec::Vec;

pub use crate::bindings::reef::recipe::experience::{Alternatives, AssemblyFailure, Turn, UnusableReport};
use crate::host::{self, Host};
use crate::{Message, Result, Sample};

/// Token ids of the prompt.
pub fn prompt_tokens(sample: Sample) -> Result<Vec<u32>> {
    host::call(|host| Host::prompt_tokens(host, sample))
}

/// The most likely alternatives of every response token; `Manifest::top_k` asks the sampler to keep them.
pub fn top_k(sample: Sample) -> Result<Alternatives> {
    host::call(|host| Host::top_k(host, sample))
}

/// The records that the trajectory was assembled from, in order.
pub fn turns(sample: Sample) -> Result<Vec<Turn>> {
    host::call(|host| Host::turns(host, sample))
}

/// The conversation of the first record's prompt.
pub fn messages(sample: Sample) -> Result<Vec<Message>> {
    host::call(|host| Host::messages(host, sample))
}

/// Text of the response, observations included.
pub fn response_text(sample: Sample) -> Result<String> {
    host::call(|host| Host::response_text(host, sample))
}

/// Tags of the last inference record.
pub fn tags(sample: Sample) -> Result<Vec<(String, String)>> {
    host::call(|host| Host::tags(host, sample))
}

/// Session of the last inference record.
pub fn session(sample: Sample) -> Result<Option<String>> {
    host::call(|host| Host::session(host, sample))
}

/// Reports that could not be assembled since the last selection. Empty outside `select`.
pub fn unusable() -> Result<Vec<UnusableReport>> {
    host::call(Host::unusable)
}
