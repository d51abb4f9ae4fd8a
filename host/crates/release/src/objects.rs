//! Git objects: written durably, read within bounds and checked against their names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use gix::ObjectId;
use gix::bstr::BString;
use gix::objs::tree::EntryKind;
use gix::objs::{Kind, TreeRef};
use gix::prelude::Write;

use crate::ReleaseError;
use crate::disk::{create_folders, sync};
use crate::error::{chain, git};

/// Bytes of a tree or commit object.
pub const NODE_BYTES_MAX: u64 = 16 << 20;
/// Depth of folders; a path of 255 bytes has fewer.
const FOLDERS_MAX: usize = 128;

/// Files and folders of one release that are looked at; a few small trees can name each other a billion times over.
const ENTRIES_MAX: usize = 100_000;

/// Why an object cannot be had.
#[derive(Debug)]
pub enum Damage {
    /// It is absent.
    Missing,
    /// It is there and wrong; says how.
    Broken(String),
    /// The disk does not give it; it may be whole.
    Unreadable(ReleaseError),
}

/// Reads one object of at most `bytes_max` and checks that its bytes have its name.
pub fn get(repo: &gix::Repository, id: ObjectId, kind: Kind, bytes_max: u64) -> Result<Vec<u8>, Damage> {
    let unreadable = |error: gix::Error| match git("read objects of", repo.path())(error) {
        ReleaseError::Git { cause, .. } => Damage::Broken(format!("git object {id} cannot be read: {cause}")),
        other => Damage::Unreadable(other),
    };
    let header = repo.try_find_header(id).map_err(unreadable)?.ok_or(Damage::Missing)?;
    if header.kind() != kind || header.size() > bytes_max {
        return Err(Damage::Broken(format!(
            "git object {id} is a {} of {} bytes, expected a {kind} of at most {bytes_max}",
            header.kind(),
            header.size()
        )));
    }
    let found = repo.find_object(id).map_err(unreadable)?.detach().data;
    match gix::objs::compute_hash(repo.object_hash(), kind, &found) {
        Ok(hash) if hash == id => Ok(found),
        _ => Err(Damage::Broken(format!("git object {id} has other bytes than its name says"))),
    }
}

/// Blobs by path.
pub type Files = BTreeMap<String, ObjectId>;

/// All files below a tree, by path.
pub fn files(repo: &gix::Repository, tree: ObjectId) -> Result<Files, Damage> {
    let mut found = (BTreeMap::new(), 0);
    collect(repo, tree, "", &mut found)?;
    Ok(found.0)
}

fn collect(repo: &gix::Repository, tree: ObjectId, folder: &str, found: &mut (Files, usize)) -> Result<(), Damage> {
    if folder.matches('/').count() > FOLDERS_MAX {
        return Err(Damage::Broken(format!("its folders are nested deeper than {FOLDERS_MAX}")));
    }
    let bytes = get(repo, tree, Kind::Tree, NODE_BYTES_MAX)?;
    let decoded = TreeRef::from_bytes(&bytes, repo.object_hash()).map_err(|error| Damage::Broken(chain(&error)))?;
    for entry in decoded.entries {
        found.1 += 1;
        if found.1 > ENTRIES_MAX {
            return Err(Damage::Broken(format!("it has more than {ENTRIES_MAX} files and folders")));
        }
        let path = format!("{folder}{}", entry.filename);
        match entry.mode.kind() {
            EntryKind::Tree => collect(repo, entry.oid.to_owned(), &format!("{path}/"), found)?,
            EntryKind::Blob => {
                found.0.insert(path, entry.oid.to_owned());
            }
            _ => return Err(Damage::Broken(format!("file {path} is neither a plain file nor a folder"))),
        }
    }
    Ok(())
}

/// Writes objects; `finish` makes them durable, each file and folder once.
pub struct Writer<'r> {
    repo: &'r gix::Repository,
    written: BTreeSet<PathBuf>,
}

impl<'r> Writer<'r> {
    /// Nothing written yet.
    pub fn new(repo: &'r gix::Repository) -> Self {
        Self { repo, written: BTreeSet::new() }
    }

    /// Writes an object unless it is there. A power cut can leave a name with other bytes, so they are compared.
    pub fn put(&mut self, kind: Kind, bytes: &[u8]) -> Result<ObjectId, ReleaseError> {
        let id = gix::objs::compute_hash(self.repo.object_hash(), kind, bytes).map_err(self.failed())?;
        let hex = id.to_string();
        let (folder, name) = hex.split_at(2);
        let folder = self.repo.path().join("objects").join(folder);
        if !self.repo.find_object(id).is_ok_and(|found| found.kind == kind && found.data == bytes) {
            create_folders(&folder)?;
            self.repo.objects.write_buf_with_known_id(kind, bytes, id).map_err(self.failed())?;
        }
        self.written.insert(folder.join(name));
        self.written.insert(folder);
        Ok(id)
    }

    /// Writes a tree or commit.
    pub fn put_object(&mut self, object: &dyn gix::objs::WriteTo) -> Result<ObjectId, ReleaseError> {
        let mut bytes = Vec::new();
        object.write_to(&mut bytes).map_err(crate::error::disk("encode an object for", self.repo.path()))?;
        self.put(object.kind(), &bytes)
    }

    /// Writes the trees that hold `files` (path and blob).
    pub fn put_tree(&mut self, files: &[(String, ObjectId)]) -> Result<ObjectId, ReleaseError> {
        let repo = self.repo;
        let empty = gix::objs::Tree::empty();
        let mut editor = gix::objs::tree::Editor::new(empty, &repo.objects, repo.object_hash());
        for (path, blob) in files {
            editor.upsert(path.split('/').map(BString::from), EntryKind::Blob, *blob).map_err(self.failed())?;
        }
        editor.write(|tree| self.put_object(tree))
    }

    /// Flushes everything written. Objects that are in a pack have no file of their own and are durable.
    pub fn finish(self) -> Result<(), ReleaseError> {
        self.written.iter().filter(|path| path.exists()).try_for_each(|path| sync(path))
    }

    fn failed(&self) -> impl FnOnce(gix::Error) -> ReleaseError + use<> {
        let path: &Path = self.repo.path();
        let path = path.to_owned();
        move |error| git("write objects in", &path)(error)
    }
}
