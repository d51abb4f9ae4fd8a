//! Tensors and files that several threads read and nobody writes.
//! The model, the prepared adapters and the mapped model file are built from these: tch marks tensors as not
//! shareable, because they can be written in place.
#![expect(
    unsafe_code,
    reason = "sharing tensors between threads and mapping files need it; each block says why it is sound"
)]

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;
use tch::Tensor;

use crate::error::EngineError;

/// A tensor without gradient that is never written again.
#[derive(Debug)]
pub struct Frozen(Tensor);

// SAFETY: libtorch counts references atomically and reads of a tensor that nobody writes need no lock. A
// `Frozen` gives out `&Tensor` only; in-place operations of tch need `&mut` or an own handle, and no code of
// this crate makes one from a frozen tensor.
unsafe impl Sync for Frozen {}

impl Frozen {
    /// Takes a tensor and cuts it off from gradients.
    pub fn new(tensor: Tensor) -> Result<Self, EngineError> {
        Ok(Self(tensor.f_detach()?.f_contiguous()?))
    }
}

impl Deref for Frozen {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        &self.0
    }
}

/// Maps a file into memory, read-only.
pub(crate) fn map_file(path: &Path) -> Result<Mmap, EngineError> {
    let failed = |source| EngineError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    // SAFETY: the mapping is private and read-only and lives only while the model loads. A file that another
    // process shortens meanwhile ends this process; model files are replaced, not edited in place.
    unsafe { Mmap::map(&file) }.map_err(failed)
}
