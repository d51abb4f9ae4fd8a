//! Compiled components on disk, and the only place that loads compiled code.
//! The folder belongs to this user alone; each file's name says which component and compiler it is for and carries
//! a keyed digest of its content, checked on the very file that is then mapped, so that no byte runs that this host
//! did not write. Whatever is not as it should be is passed over with a warning, and the component compiled anew.

use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use hmac::{Hmac, Mac};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use sha2::Sha256;
use tempfile::TempDir;
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::SandboxConfig;

/// Ending of a file of compiled code.
const ENDING: &str = ".cwasm";
/// Where random bytes come from.
const RANDOM: &str = "/dev/urandom";
/// Name of the file with the key of the digests.
const KEY_NAME: &str = "key";
/// Bytes of the key.
const KEY_BYTES: usize = 32;
/// Start of the names of folders in which code is made.
const WORK_PREFIX: &str = ".compile-";
/// Seconds after which such a folder was left behind by a host that was killed.
const WORK_SECONDS_MAX: u64 = 24 * 3600;
/// Bytes read at once for a digest.
const CHUNK_BYTES: usize = 256 * 1024;
/// Permissions that make a file or folder unfit: others could have written it.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Permissions that make a key unfit: others could read it.
const OPEN_TO_OTHERS: u32 = 0o077;

/// Compiled code in a folder of its own, which is removed with it.
pub(crate) struct Artefact {
    folder: TempDir,
    path: PathBuf,
}

impl Artefact {
    /// A place for code that somebody writes to [`Self::path`]; below `parent`, open to nobody else.
    pub(crate) fn place(parent: Option<&Path>) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(WORK_PREFIX);
        let folder = match parent {
            Some(parent) => builder.tempdir_in(parent)?,
            None => builder.tempdir()?,
        };
        Ok(Self { path: folder.path().join("code"), folder })
    }

    pub(crate) fn write(parent: &Path, code: &[u8]) -> io::Result<Self> {
        let artefact = Self::place(Some(parent))?;
        File::create_new(&artefact.path)?.write_all(code)?;
        Ok(artefact)
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The code, mapped from its file, which may be removed then.
    pub(crate) fn component(&self, engine: &Engine) -> wasmtime::Result<Component> {
        map(engine, &File::open(&self.path)?)
    }
}

/// Maps the code in a file that this process, or a compiler that it started, wrote in a folder of this user.
#[expect(unsafe_code, reason = "loading compiled code runs it; the callers know where it comes from")]
fn map(engine: &Engine, file: &File) -> wasmtime::Result<Component> {
    // The file that is open, whatever its name stands for by now.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // SAFETY: both callers pass a file in a folder that only this user can write, with content that this host's own
    // compiler made: just now, or earlier and proven by a digest under a key that only this user has. Files are
    // replaced and removed but never written again, so the mapping keeps its content.
    unsafe { Component::deserialize_file(engine, path) }
}

/// The folder of compiled components.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    key: [u8; KEY_BYTES],
    compiler: String,
    entries_max: usize,
    bytes_max: u64,
    warned: AtomicBool,
}

impl Cache {
    /// The cache that the configuration asks for; none, after a warning, when its folder is not fit for it.
    pub(crate) fn open(config: &SandboxConfig, engine: &Engine) -> Option<Self> {
        let folder = config.cache_dir.clone()?;
        let opened = prepare(&folder).and_then(|()| key(&folder));
        match opened {
            Ok(key) => Some(Self {
                folder,
                key,
                compiler: compiler(engine),
                entries_max: config.cache_entries_max as usize,
                bytes_max: config.cache_bytes_max,
                warned: AtomicBool::new(false),
            }),
            Err(error) => {
                tracing::warn!(
                    "compiled recipes are not kept, so every start compiles them anew: {}: {error}",
                    folder.display()
                );
                None
            }
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// What the code of this component is called, without its digest.
    pub(crate) fn name(&self, component: &[u8]) -> String {
        format!("{}-{}", reef_core::sha256_hex(component), self.compiler)
    }

    /// The code of this name, if it is there and is what this host wrote.
    pub(crate) fn load(&self, engine: &Engine, name: &str) -> Option<Component> {
        if let Err(error) = fit(&fs::symlink_metadata(&self.folder).ok()?, WRITABLE_BY_OTHERS) {
            self.warn(&self.folder, &error);
            return None;
        }
        let kept = self.kept().into_iter().find(|kept| kept.name == name)?;
        match self.open_kept(&kept).and_then(|file| map(engine, &file).map_err(io::Error::other)) {
            Ok(component) => Some(component),
            Err(error) => {
                self.warn(&kept.path, &error);
                // It would be refused every time; if it cannot be removed either, compiling goes on.
                let _ = fs::remove_file(&kept.path);
                None
            }
        }
    }

    /// Keeps a copy of the code under this name, and room for others.
    pub(crate) fn keep(&self, name: &str, artefact: &Artefact) {
        if let Err(error) = self.adopt(name, artefact) {
            self.warn(&self.folder, &error);
        }
        let mut kept = self.kept();
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.used));
        let mut bytes = 0u64;
        for (place, old) in kept.iter().enumerate() {
            bytes = bytes.saturating_add(old.bytes);
            if place >= self.entries_max || bytes > self.bytes_max {
                // Another host that shares the folder may have been faster.
                let _ = fs::remove_file(&old.path);
            }
        }
    }

    fn adopt(&self, name: &str, artefact: &Artefact) -> io::Result<()> {
        let mut file = File::open(artefact.path())?;
        file.set_permissions(Permissions::from_mode(0o600))?;
        let digest = hex(&self.digest(name, &mut file)?.finalize().into_bytes());
        // A link beside it, so that the artefact can still be opened under its own name.
        match fs::hard_link(artefact.path(), self.folder.join(format!("{name}-{digest}{ENDING}"))) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    fn digest(&self, name: &str, file: &mut File) -> io::Result<Hmac<Sha256>> {
        let mut digest = Hmac::<Sha256>::new_from_slice(&self.key).map_err(io::Error::other)?;
        digest.update(name.as_bytes());
        digest.update(&[0]);
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let read = file.read(&mut chunk)?;
            match chunk.get(..read) {
                Some(bytes) if read > 0 => digest.update(bytes),
                _ => return Ok(digest),
            }
        }
    }

    /// Opens a file and proves it.
    fn open_kept(&self, kept: &Kept) -> io::Result<File> {
        let mut file = open_regular(&kept.path, WRITABLE_BY_OTHERS)?;
        let digest = self.digest(&kept.name, &mut file)?;
        digest
            .verify_slice(&kept.digest)
            .map_err(|_| io::Error::other("its content is not what this host wrote; it is compiled anew"))?;
        // What is used is kept; a time that cannot be set only makes it go earlier.
        let _ = file.set_modified(SystemTime::now());
        Ok(file)
    }

    fn kept(&self) -> Vec<Kept> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        entries.filter_map(|entry| Kept::of(&entry.ok()?)).collect()
    }

    fn warn(&self, path: &Path, error: &io::Error) {
        if !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!("the cache of compiled recipes is passed over: {}: {error}", path.display());
        }
    }
}

/// A file of the folder.
struct Kept {
    path: PathBuf,
    name: String,
    digest: Vec<u8>,
    bytes: u64,
    used: SystemTime,
}

impl Kept {
    fn of(entry: &fs::DirEntry) -> Option<Self> {
        let file_name = entry.file_name();
        let (name, digest) = file_name.to_str()?.strip_suffix(ENDING)?.rsplit_once('-')?;
        // Not followed when it is a link.
        let metadata = entry.metadata().ok()?;
        Some(Self {
            path: entry.path(),
            name: name.to_owned(),
            digest: unhex(digest)?,
            bytes: metadata.len(),
            used: metadata.modified().ok()?,
        })
    }
}

/// Names what makes compiled code fit for this program and this machine.
fn compiler(engine: &Engine) -> String {
    let mut hasher = DefaultHasher::new();
    engine.precompile_compatibility_hash().hash(&mut hasher);
    format!("{:016x}-{}", hasher.finish(), env!("CARGO_PKG_VERSION"))
}

fn prepare(folder: &Path) -> io::Result<()> {
    if !folder.exists() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let metadata = fs::symlink_metadata(folder)?;
    if !metadata.is_dir() {
        return Err(io::Error::other("it is a link or a file; give a folder of its own in sandbox.cache_dir"));
    }
    fit(&metadata, WRITABLE_BY_OTHERS)?;
    for entry in fs::read_dir(folder)?.flatten() {
        let age = entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|made| made.elapsed().ok());
        let left = age.is_some_and(|age| age.as_secs() > WORK_SECONDS_MAX);
        if left && entry.file_name().to_string_lossy().starts_with(WORK_PREFIX) {
            // Only space is lost when it stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Refuses what another user could have made or changed.
fn fit(metadata: &fs::Metadata, forbidden: u32) -> io::Result<()> {
    let (owner, own) = (metadata.uid(), geteuid().as_raw());
    if owner != own {
        return Err(io::Error::other(format!("it belongs to user {owner} and not to this one, {own}")));
    }
    let mode = metadata.mode() & 0o777;
    if mode & forbidden != 0 {
        return Err(io::Error::other(format!(
            "others have access to it (mode {mode:o}); take it from them with chmod"
        )));
    }
    Ok(())
}

/// Opens a file that is no link and nothing else, and fit.
fn open_regular(path: &Path, forbidden: u32) -> io::Result<File> {
    let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    fit(&metadata, forbidden)?;
    Ok(file)
}

/// The key of the folder, made at first use.
fn key(folder: &Path) -> io::Result<[u8; KEY_BYTES]> {
    let path = folder.join(KEY_NAME);
    if fs::symlink_metadata(&path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let mut fresh = [0; KEY_BYTES];
        File::open(RANDOM)?.read_exact(&mut fresh)?;
        // Made complete beside it and then named: of two hosts that start at once, one wins and both read its key.
        let draft = tempfile::Builder::new().prefix(".key-").tempfile_in(folder)?;
        draft.as_file().write_all(&fresh)?;
        match draft.persist_noclobber(&path) {
            Err(error) if error.error.kind() != io::ErrorKind::AlreadyExists => return Err(error.error),
            _ => {}
        }
    }
    let refused = |error| io::Error::other(format!("its file '{KEY_NAME}': {error}"));
    let mut bytes = Vec::new();
    open_regular(&path, OPEN_TO_OTHERS)
        .and_then(|file| file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes))
        .map_err(refused)?;
    let count = bytes.len();
    bytes
        .try_into()
        .map_err(|_| refused(io::Error::other(format!("it has {count} bytes instead of {KEY_BYTES}; remove it"))))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    let digits = digits?;
    let pairs = digits.chunks_exact(2);
    pairs
        .remainder()
        .is_empty()
        .then(|| pairs.map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect())
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
