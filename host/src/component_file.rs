//! Files that somebody names: components, and what belongs to them. Read only when they are plain and of bounded size,
//! so that a pipe is not waited for and a device does not fill the memory.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use reef_sandbox::{Grants, Recipe, Sandbox, SandboxError};
use rustix::fs::{Mode, OFlags, open};

use crate::config::Config;
use crate::error::StartError;
use crate::lab::told_fault;

/// The recipe that ships, where `make recipes` puts it.
pub const DEFAULT_RECIPE: &str = "target/wasm32-wasip2/recipe/reef_recipe_sao.wasm";

/// The bytes of a plain file with at most `bytes_max` of them.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, StartError> {
    let shown = path.display();
    let refuse = |told: String| StartError::Recipe(format!("{shown} {told}"));
    let unreadable = |error: io::Error| refuse(unreadable(path, &error));
    // Without `NONBLOCK` a pipe would be waited for. The open file is looked at: its name may lead elsewhere by then.
    let opened = open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
    let file = File::from(opened.map_err(|error| unreadable(error.into()))?);
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(refuse("is a folder, a pipe or a device; name a plain file".to_owned()));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len().min(bytes_max)).unwrap_or_default());
    (&file).take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > bytes_max {
        return Err(refuse(format!(
            "has more than {bytes_max} bytes, the most that are read; check that it is the right file, or raise sandbox.component_bytes_max for a component"
        )));
    }
    Ok(bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    let remedy = match error.kind() {
        ErrorKind::NotFound if path == Path::new(DEFAULT_RECIPE) => "build it with 'make recipes'",
        ErrorKind::NotFound => "check the path",
        ErrorKind::PermissionDenied => "check the permissions of the file and of its folders",
        _ => "check the file and its disk",
    };
    format!("cannot be read: {error}; {remedy}")
}

/// The same on a thread that may wait for a disk.
pub async fn read_async(path: &Path, bytes_max: u64) -> Result<Vec<u8>, StartError> {
    let path = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || read(&path, bytes_max)).await;
    reading.map_err(|error| StartError::Other(format!("reading a file was interrupted: {error}")))?
}

/// Reads and loads a component. Its bytes come along: the file may hold others by then.
pub async fn load(sandbox: &Sandbox, path: &Path, config: &Config) -> Result<(Recipe, Vec<u8>), StartError> {
    let bytes = read_async(path, config.sandbox.component_bytes_max).await?;
    let grants = config.recipes.grants.clone().unwrap_or_else(Grants::all);
    let loaded = sandbox.load(bytes.clone(), &grants).await.map_err(|error| {
        let told = match &error {
            SandboxError::Describe(fault) => format!("the recipe's describe failed: {}", told_fault(fault)),
            other => other.to_string(),
        };
        StartError::Recipe(format!("{}: {told}", path.display()))
    });
    Ok((loaded?, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(path: &Path) -> String {
        read(path, 4).expect_err("refused").to_string()
    }

    #[test]
    fn only_plain_files_of_bounded_size_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("my.wasm");
        std::fs::write(&file, b"1234").expect("written");
        assert_eq!(read(&file, 4).expect("read"), b"1234");
        std::fs::write(&file, b"12345").expect("written");
        assert!(refusal(&file).contains("more than 4 bytes"));
        for path in [folder.path(), Path::new("/dev/zero")] {
            let told = refusal(path);
            assert!(told.contains(&path.display().to_string()) && told.contains("plain file"), "{told}");
        }
    }

    #[test]
    fn the_remedy_fits_the_reason() {
        assert!(refusal(Path::new("/nowhere.wasm")).ends_with("; check the path"));
        let told = |path: &str, kind: ErrorKind| unreadable(Path::new(path), &kind.into());
        assert!(told(DEFAULT_RECIPE, ErrorKind::NotFound).contains("make recipes"));
        assert!(told("my.wasm", ErrorKind::PermissionDenied).contains("permissions"));
    }
}
