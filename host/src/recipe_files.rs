//! Components by digest: `recipes/<sha256>.wasm` in the data folder, so that a step of long ago finds its code.
//! The server writes what it loads; replays read. A file is whole or absent, and is checked before it is believed.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use reef_core::sha256_hex;
use reef_sandbox::Recipe;
use reef_store::{KeptRecipe, Store};

use crate::clock::now_ms;
use crate::error::StartError;

/// The folder of the components.
fn folder(data: &Path) -> PathBuf {
    data.join("recipes")
}

/// Keeps the component that was loaded from `path`.
pub async fn keep(store: &Store, data: &Path, path: &Path, recipe: &Recipe) -> Result<(), StartError> {
    let (data, path, digest) = (data.to_owned(), path.to_owned(), recipe.digest().to_owned());
    note(store, recipe, move || copy(&data, &path, &digest)).await
}

/// Keeps a component whose bytes are at hand.
pub async fn keep_bytes(store: &Store, data: &Path, bytes: Vec<u8>, recipe: &Recipe) -> Result<(), StartError> {
    let (data, digest) = (data.to_owned(), recipe.digest().to_owned());
    note(store, recipe, move || put(&data, &bytes, &digest)).await
}

/// Keeps a verifier; only the steps that used it name it.
pub async fn keep_verifier(data: &Path, bytes: Vec<u8>, digest: &str) -> Result<(), StartError> {
    let (data, digest) = (data.to_owned(), digest.to_owned());
    written(move || put(&data, &bytes, &digest)).await.map(drop)
}

/// Bytes first, then the row: what the store names is there.
async fn note(
    store: &Store,
    recipe: &Recipe,
    keep: impl FnOnce() -> Result<usize, StartError> + Send + 'static,
) -> Result<(), StartError> {
    let bytes = written(keep).await?;
    let manifest = recipe.manifest();
    let row = KeptRecipe {
        digest: recipe.digest().to_owned(),
        name: manifest.name.clone(),
        version: manifest.version.clone(),
        generation: recipe.generation().to_owned(),
        bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
        first_loaded_ms: now_ms(),
    };
    Ok(store.keep_recipe(row).await?)
}

async fn written(keep: impl FnOnce() -> Result<usize, StartError> + Send + 'static) -> Result<usize, StartError> {
    let written = tokio::task::spawn_blocking(keep).await;
    written.map_err(|error| StartError::Other(format!("keeping the component was interrupted: {error}")))?
}

/// The bytes of a component that was kept.
pub fn read(data: &Path, digest: &str) -> Result<Vec<u8>, StartError> {
    let path = folder(data).join(format!("{digest}.wasm"));
    let shown = path.display();
    let bytes = fs::read(&path).map_err(|error| {
        StartError::Recipe(format!(
            "the component {shown} cannot be read: {error}; a server keeps there what it loads, so put the component that made the step there again"
        ))
    })?;
    if sha256_hex(&bytes) != digest {
        return Err(StartError::Recipe(format!("{shown} is damaged: its bytes have another SHA-256; replace it")));
    }
    Ok(bytes)
}

fn copy(data: &Path, path: &Path, digest: &str) -> Result<usize, StartError> {
    let bytes = fs::read(path)
        .map_err(|error| StartError::Recipe(format!("the component {} cannot be read: {error}", path.display())))?;
    if sha256_hex(&bytes) != digest {
        let shown = path.display();
        return Err(StartError::Recipe(format!("{shown} changed while it was loaded; start again")));
    }
    put(data, &bytes, digest)
}

fn put(data: &Path, bytes: &[u8], digest: &str) -> Result<usize, StartError> {
    let target = folder(data).join(format!("{digest}.wasm"));
    write(&target, bytes).map_err(|error| {
        let shown = target.display();
        StartError::Data(format!("the component {shown} cannot be written: {error}; check the folder and its space"))
    })?;
    Ok(bytes.len())
}

/// Writes the file whole and durable, or not at all.
fn write(target: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = target.parent().ok_or(ErrorKind::InvalidInput)?;
    if fs::read(target).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".tmp-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(target).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_component_is_kept_whole_and_a_damaged_one_is_refused() {
        let data = tempfile::tempdir().expect("folder");
        let source = data.path().join("my.wasm");
        fs::write(&source, b"component").expect("written");
        let digest = sha256_hex(b"component");
        assert!(read(data.path(), &digest).expect_err("absent").to_string().contains(&digest));
        for _ in 0..2 {
            assert_eq!(copy(data.path(), &source, &digest).expect("kept"), 9);
            assert_eq!(read(data.path(), &digest).expect("read"), b"component");
        }
        assert_eq!(fs::read_dir(folder(data.path())).expect("list").count(), 1, "no temporary file is left");
        fs::write(folder(data.path()).join(format!("{digest}.wasm")), b"componenT").expect("damaged");
        assert!(read(data.path(), &digest).expect_err("damaged").to_string().contains("SHA-256"));
        assert!(copy(data.path(), &source, &sha256_hex(b"other")).is_err(), "the file is not what was loaded");
    }
}
