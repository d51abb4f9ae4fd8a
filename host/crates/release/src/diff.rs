//! What changed between two releases: files, and within safetensors the norm of each tensor's change.
//! `reef release diff` shows it. Files of equal hashes are not read; others are held in memory one pair at a time.

use std::collections::{BTreeMap, BTreeSet};

use half::{bf16, f16};
use reef_core::{Release, ReleaseId};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::Serialize;

use crate::ReleaseError;
use crate::manifest::FileEntry;
use crate::names::is_lfs;
use crate::repo::ReleaseRepo;

/// Two releases and how their files differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReleaseDiff {
    /// The earlier, or whichever was named first.
    pub before: Release,
    /// The other.
    pub after: Release,
    /// Files that differ, by path.
    pub files: Vec<FileChange>,
}

/// Size and hash of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    /// SHA-256.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// A file that differs. One of the two sides is absent when it was added or removed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FileChange {
    /// Relative path.
    pub path: String,
    /// As it was.
    pub before: Option<FileFacts>,
    /// As it is.
    pub after: Option<FileFacts>,
    /// Tensors of a safetensors file, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensors: Option<Tensors>,
}

/// How the tensors of a file differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tensors {
    /// Read on both sides.
    Read {
        /// Tensors of equal type, shape and bytes.
        unchanged: u64,
        /// The others.
        changed: Vec<TensorChange>,
    },
    /// Why the file does not read.
    Unread(String),
}

/// A tensor that differs. Norms are Frobenius norms; they are absent for tensors that are not floating-point.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TensorChange {
    /// Its name.
    pub name: String,
    /// Type and shape as it was, e.g. `F32 [16, 576]`; absent when it was added.
    pub before: Option<String>,
    /// Type and shape as it is; absent when it was removed.
    pub after: Option<String>,
    /// Norm as it was.
    pub norm_before: Option<f64>,
    /// Norm as it is.
    pub norm_after: Option<f64>,
    /// Norm of the difference, for equal shapes. A tensor that is absent counts as zero.
    pub norm_change: Option<f64>,
}

impl ReleaseRepo {
    /// Compares the files of two releases.
    ///
    /// Errors: `NotFound`, `Corrupt`, `Disk`, `Git`.
    pub fn diff(&self, before: &ReleaseId, after: &ReleaseId) -> Result<ReleaseDiff, ReleaseError> {
        let mut diff = self.changed_files(before, after)?;
        for change in diff.files.iter_mut().filter(|change| is_lfs(&change.path)) {
            let path = change.path.as_str();
            let read = |id, side: &Option<FileFacts>| side.as_ref().map(|_| self.file(id, path)).transpose();
            change.tensors = Some(tensors(&read(before, &change.before)?, &read(after, &change.after)?));
        }
        Ok(diff)
    }

    /// The same by the manifests alone: nothing is said of tensors, and objects that are gone are not missed.
    ///
    /// Errors: `NotFound`, `Corrupt`, `Disk`, `Git`.
    pub fn changed_files(&self, before: &ReleaseId, after: &ReleaseId) -> Result<ReleaseDiff, ReleaseError> {
        let repo = self.git()?;
        let (old, new) = (self.opened(&repo, before)?.stored, self.opened(&repo, after)?.stored);
        let by_path = |files: &[FileEntry]| -> BTreeMap<String, FileEntry> {
            files.iter().map(|entry| (entry.path.clone(), entry.clone())).collect()
        };
        let (had, has) = (by_path(&old.files), by_path(&new.files));
        let paths: BTreeSet<&String> = had.keys().chain(has.keys()).collect();
        let mut files = Vec::new();
        for path in paths.into_iter().filter(|path| had.get(*path) != has.get(*path)) {
            let facts = |side: &BTreeMap<String, FileEntry>| {
                side.get(path).map(|entry| FileFacts { sha256: entry.sha256.clone(), size: entry.size })
            };
            files.push(FileChange { path: path.clone(), before: facts(&had), after: facts(&has), tensors: None });
        }
        Ok(ReleaseDiff { before: old.release(before)?, after: new.release(after)?, files })
    }
}

fn tensors(before: &Option<Vec<u8>>, after: &Option<Vec<u8>>) -> Tensors {
    let read = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(SafeTensors::deserialize).transpose().err();
    for (side, bytes) in [("before", before), ("after", after)] {
        if let Some(error) = read(bytes) {
            return Tensors::Unread(format!("the file {side} is no safetensors file: {error}"));
        }
    }
    let (before, after) = (views(before), views(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let (mut unchanged, mut changed) = (0, Vec::new());
    for name in names {
        match (before.get(name), after.get(name)) {
            (Some(was), Some(is)) if same(was, is) => unchanged += 1,
            (was, is) => changed.push(change(name, was, is)),
        }
    }
    Tensors::Read { unchanged, changed }
}

fn views(bytes: &Option<Vec<u8>>) -> BTreeMap<String, TensorView<'_>> {
    let read = bytes.as_deref().and_then(|bytes| SafeTensors::deserialize(bytes).ok());
    read.map(|file| file.tensors().into_iter().collect()).unwrap_or_default()
}

fn same(was: &TensorView<'_>, is: &TensorView<'_>) -> bool {
    (was.dtype(), was.shape(), was.data()) == (is.dtype(), is.shape(), is.data())
}

fn change(name: &str, was: Option<&TensorView<'_>>, is: Option<&TensorView<'_>>) -> TensorChange {
    let shown = |view: &TensorView<'_>| format!("{:?} {:?}", view.dtype(), view.shape());
    let (old, new) = (was.map(values), is.map(values));
    let norm_change = match (&old, &new) {
        (Some(Some(old)), Some(Some(new))) => {
            let fits = was.map(TensorView::shape) == is.map(TensorView::shape);
            fits.then(|| norm(old.iter().zip(new).map(|(old, new)| new - old)))
        }
        (Some(Some(only)), None) | (None, Some(Some(only))) => Some(norm(only.iter().copied())),
        _ => None,
    };
    let whole = |values: Option<Option<Vec<f64>>>| values.flatten().map(|values| norm(values.into_iter()));
    TensorChange {
        name: name.to_owned(),
        before: was.map(shown),
        after: is.map(shown),
        norm_before: whole(old),
        norm_after: whole(new),
        norm_change,
    }
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// The numbers of a floating-point tensor.
fn values(view: &TensorView<'_>) -> Option<Vec<f64>> {
    let data = view.data();
    match view.dtype() {
        Dtype::F64 => Some(data.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()),
        Dtype::F32 => Some(data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes).into()).collect()),
        Dtype::F16 => Some(data.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).into()).collect()),
        Dtype::BF16 => Some(data.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).into()).collect()),
        _ => None,
    }
}
