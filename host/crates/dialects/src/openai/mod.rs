//! What chat completions and completions have in common: the sampling fields, the frame of a stream and its reading.
//! Both dialects call it, nobody else. What a choice holds is the dialects' own matter.

mod chunks;
mod frames;
mod request;
#[cfg(test)]
pub(crate) mod samples;

pub(crate) use chunks::{Chunks, Content, token_ids};
pub(crate) use frames::{Frames, error_frames, finish_name, finite, ids_of, set, stop_reason, usage};
pub(crate) use request::{CHOICES_MAX, read_common, write_common};
