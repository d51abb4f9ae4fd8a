//! The verifiers that the operator installed: components that check answers, by the names that recipes use.
//! Their bytes are kept with the recipes', so that a replay checks with the code that checked then.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use reef_sandbox::{Sandbox, Verifier, Verifiers};

use crate::component_file;
use crate::config::Config;
use crate::error::StartError;
use crate::recipe_files;

/// Characters of a name.
const NAME_CHARS_MAX: usize = 64;

/// Is this a name that a recipe can ask for?
pub fn check_name(name: &str) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_.".contains(c);
    if !name.is_empty() && name.len() <= NAME_CHARS_MAX && name.chars().all(plain) {
        return Ok(());
    }
    Err(format!(
        "recipes.verifiers: '{}' is no name; use 1 to {NAME_CHARS_MAX} of a-z, 0-9, '-', '_' and '.'",
        name.escape_debug()
    ))
}

/// Loads every verifier; `keep`: the data folder of a server, where its bytes stay.
pub async fn load(sandbox: &Sandbox, keep: Option<&Path>, config: &Config) -> Result<Verifiers, StartError> {
    let mut verifiers = BTreeMap::new();
    for (name, path) in &config.recipes.verifiers {
        let shown = path.display();
        let refuse = |problem: String| StartError::Recipe(format!("the verifier '{name}' ({shown}): {problem}"));
        let bytes = component_file::read_async(path, config.sandbox.component_bytes_max).await?;
        let verifier = one(sandbox, bytes.clone()).await.map_err(refuse)?;
        if let Some(data) = keep {
            recipe_files::keep_verifier(data, bytes, verifier.digest()).await?;
        }
        verifiers.insert(name.clone(), verifier);
    }
    Ok(Arc::new(verifiers))
}

/// The verifiers of a recorded step, from the data folder.
pub async fn recorded(
    sandbox: &Sandbox,
    data: &Path,
    digests: &BTreeMap<String, String>,
) -> Result<Verifiers, StartError> {
    let mut verifiers = BTreeMap::new();
    for (name, digest) in digests {
        let bytes = recipe_files::read(data, digest)?;
        let refuse = |problem| StartError::Recipe(format!("the verifier '{name}' of the step: {problem}"));
        verifiers.insert(name.clone(), one(sandbox, bytes).await.map_err(refuse)?);
    }
    Ok(Arc::new(verifiers))
}

async fn one(sandbox: &Sandbox, bytes: Vec<u8>) -> Result<Verifier, String> {
    sandbox.load_verifier(bytes).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        for name in ["exact-match", "v1.2_b", "a"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "Exact", "a b", "../x", "é", &"a".repeat(65)] {
            assert!(check_name(name).is_err_and(|told| told.contains("is no name")), "{name}");
        }
    }
}
