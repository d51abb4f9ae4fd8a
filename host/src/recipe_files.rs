//! Components by digest: `recipes/<sha256>.wasm` in the data folder, so that a step of long ago finds its code.
//! The server writes what it loads; replays read. A file is whole or absent, and is checked before it is believed.

use std::path::{Path, PathBuf};

use reef_registry::{Digest, Shelf};
use reef_sandbox::Recipe;
use reef_store::{KeptRecipe, Store};

use crate::clock::now_ms;
use crate::error::StartError;

/// The folder of the components.
fn folder(data: &Path) -> PathBuf {
    data.join("recipes")
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
    let folder = folder(data);
    let refuse =
        |problem: String| StartError::Recipe(format!("the component {digest} in {}: {problem}", folder.display()));
    let digest = Digest::from_hex(digest).ok_or_else(|| refuse("that is no SHA-256".to_owned()))?;
    match Shelf::to_read(&folder).get(&digest) {
        Ok(Some(bytes)) => Ok(bytes),
        Ok(None) => Err(refuse("it is not there; put the file that the server loaded there again".to_owned())),
        Err(error) => Err(refuse(error.to_string())),
    }
}

fn put(data: &Path, bytes: &[u8], digest: &str) -> Result<usize, StartError> {
    let kept = Shelf::new(&folder(data)).and_then(|shelf| shelf.put(bytes));
    let kept = kept.map_err(|error| StartError::Data(format!("the component {digest} cannot be kept: {error}")))?;
    debug_assert_eq!(kept.hex(), digest);
    Ok(bytes.len())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use reef_core::sha256_hex;

    use super::*;

    #[test]
    fn a_component_is_kept_whole_and_a_damaged_one_is_refused() {
        let data = tempfile::tempdir().expect("folder");
        let digest = sha256_hex(b"component");
        assert!(read(data.path(), &digest).expect_err("absent").to_string().contains(&digest));
        assert!(!folder(data.path()).exists(), "reading makes nothing");
        for _ in 0..2 {
            assert_eq!(put(data.path(), b"component", &digest).expect("kept"), 9);
            assert_eq!(read(data.path(), &digest).expect("read"), b"component");
        }
        assert_eq!(fs::read_dir(folder(data.path())).expect("list").count(), 1, "no temporary file is left");
        fs::write(folder(data.path()).join(format!("{digest}.wasm")), b"componenT").expect("damaged");
        assert!(read(data.path(), &digest).expect_err("damaged").to_string().contains("damaged"));
        assert!(read(data.path(), "../../etc/passwd").expect_err("no digest").to_string().contains("no SHA-256"));
    }
}
