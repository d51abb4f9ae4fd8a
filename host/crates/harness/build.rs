//! Makes the folders under `harness-adapters/` a part of the build: a list of their files, so that a new adapter needs
//! no code.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn sorted(folder: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> Result<&str, Box<dyn Error>> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| format!("{}: its name is not UTF-8", path.display()).into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../../harness-adapters");
    println!("cargo::rerun-if-changed={}", root.display());
    let mut code = "/// Name of the folder, then name and text of each file.\npub const EMBEDDED: &[(&str, &[(&str, &str)])] = &[\n".to_owned();
    for folder in sorted(&root)?.into_iter().filter(|path| path.is_dir()) {
        writeln!(code, "({:?}, &[", name(&folder)?)?;
        for file in sorted(&folder)? {
            writeln!(code, "({:?}, include_str!({:?})),", name(&file)?, file)?;
        }
        writeln!(code, "]),")?;
    }
    writeln!(code, "];")?;
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("embedded.rs"), code)?;
    Ok(())
}
