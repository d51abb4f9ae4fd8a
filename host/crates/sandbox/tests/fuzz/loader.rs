//! Mutated components against the loader. What loads is also called, because a guest that a mutation made is as good
//! as any other hostile guest.

use std::path::Path;

use reef_sandbox::{Grants, Sandbox, SandboxConfig, SandboxError};

use crate::guest::*;
use crate::mutation::mutated;
use crate::newer::Newer;
use crate::rounds::rounds;
use crate::rules;
use crate::wit_value::{bare, f, l, n, ok, t};

/// Bytes of a component of the corpus that is mutated; larger ones take too long to compile again and again.
const SEED_BYTES_MAX: usize = 128 * 1024;

/// Components of both generations: those that shipped, and guests of tests with every kind of import and export.
pub fn seeds() -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/corpus/0.1.0");
    let mut seeds: Vec<Vec<u8>> = std::fs::read_dir(corpus)
        .expect("the corpus")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "wasm"))
        .map(|path| std::fs::read(path).expect("readable"))
        .filter(|bytes| bytes.len() <= SEED_BYTES_MAX)
        .collect();
    seeds.sort();
    seeds.push(Guest::good().bytes());
    let logging = Guest::good()
        .importing("log", "log", "(param i32 i32 i32)")
        .importing("experience", "scores", "(param i32 i32 i32)")
        .selecting_after("(call $log (i32.const 2) (i32.const 4096) (i32.const 3))");
    seeds.push(logging.bytes());
    seeds.push(Newer::good().bytes());
    let mut many = Newer::good()
        .importing("training", "open")
        .importing("models", "chat")
        .importing("state", "keys")
        .answering("live", "ingest", ok(l([])))
        .answering("migration", "migrate", ok(l([])))
        .answering("requests", "transform-request", bare(0));
    many.manifest.config = vec![f([t("batch"), bare(0), t("8"), bare(0), bare(0), t("rows")])];
    seeds.push(many.bytes());
    seeds.push(Newer::verifying(ok(f([n(1), n(1), t("fine")]))).bytes());
    seeds
}

/// Loads it as a recipe and as a verifier, and calls what loads.
pub async fn check(sandbox: &Sandbox, input: &[u8]) -> Result<(), String> {
    match sandbox.load(input.to_vec(), &Grants::all()).await {
        Ok(recipe) => {
            rules::manifest(recipe.manifest())?;
            rules::outcome(&recipe.select_samples(call()).await, rules::selection)?;
            rules::outcome(&recipe.evaluate(call(), 0).await, rules::verdict)?;
        }
        Err(error) => rules::refusal(&error)?,
    }
    match sandbox.load_verifier(input.to_vec()).await {
        Ok(_) | Err(SandboxError::MissingExport(_)) => Ok(()),
        Err(error) => rules::refusal(&error),
    }
}

pub fn quick() -> SandboxConfig {
    SandboxConfig { fuel_select: 1_000_000, fuel_propose: 1_000_000, fuel_evaluate: 1_000_000, ..small() }
}

/// Loading mutated components of both generations → a recipe that can be called, or a typed error; the sandbox still
/// works afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutated_components_load_or_are_refused() {
    let (sandbox, seeds) = (sandbox(quick()), seeds());
    for seed in &seeds {
        check(&sandbox, seed).await.expect("seeds are fine");
    }
    let make = |random: &mut crate::rounds::Random| {
        let (seed, other) = (random.below(seeds.len()), random.below(seeds.len()));
        mutated(random, &seeds[seed], &seeds[other])
    };
    rounds("loader", make, async |input| check(&sandbox, input).await).await;
    still_works(&sandbox).await;
}
