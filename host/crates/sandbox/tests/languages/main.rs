//! The recipe best-of in Rust, C, TypeScript and Python in the real sandbox: on the inputs of `sdk/tests/best-of.json`
//! each decides, trains, remembers and measures what that file says, and so the same as the others; twice, with the
//! same fuel. sao, a recipe that ships, is compared likewise. The components come from `make guests` and
//! `make languages`.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod sao;
#[cfg(test)]
mod trainer;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;
    use std::time::Instant;

    use reef_sandbox::{Grants, Recipe, Sandbox, SandboxConfig};
    use tempfile::TempDir;
    use wit_component::{DecodedWasm, decode};

    use crate::calls::{Seen, agrees, described, run};
    use crate::golden::{Golden, Refusal};
    use crate::sao;

    /// Language, component below `target`, and what makes it.
    const COMPONENTS: [(&str, &str, &str); 4] = [
        ("rust", "wasm32-wasip2/recipe/examples/best_of.wasm", "make guests"),
        ("c", "languages/best-of-c.wasm", "make languages"),
        ("js", "languages/best-of-js.wasm", "make languages"),
        ("python", "languages/best-of-python.wasm", "make languages"),
    ];
    /// The same of sao.
    const SAO: [(&str, &str, &str); 3] = [
        ("rust", "wasm32-wasip2/recipe/reef_recipe_sao.wasm", "make recipes"),
        ("js", "languages/sao-js.wasm", "make languages"),
        ("python", "languages/sao-python.wasm", "make languages"),
    ];
    /// Bytes of memory of a guest with an interpreter.
    const MEMORY_BYTES_MAX: u64 = 256 << 20;
    /// Milliseconds of anything here that is bounded by fuel or by bytes already: a busy machine is no fault.
    const MS_MAX: u64 = 3_600_000;

    fn component(place: &str, command: &str) -> Vec<u8> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../target").join(place);
        fs::read(&path).unwrap_or_else(|error| panic!("{} cannot be read ({error}); run `{command}`", path.display()))
    }

    /// Sandboxes that share what they compiled.
    fn sandbox(cache: &TempDir, host_calls_max: u32) -> Sandbox {
        let config = SandboxConfig {
            memory_bytes_max: MEMORY_BYTES_MAX,
            calls_concurrent_max: 2,
            wall_select_ms: MS_MAX,
            wall_propose_ms: MS_MAX,
            wall_evaluate_ms: MS_MAX,
            compile_ms_max: MS_MAX,
            cache_dir: Some(cache.path().to_path_buf()),
            host_calls_max,
            ..SandboxConfig::default()
        };
        Sandbox::new(config).expect("the sandbox starts")
    }

    async fn load(sandbox: &Sandbox, language: &str, bytes: Vec<u8>) -> Recipe {
        sandbox.load(bytes, &Grants::all()).await.unwrap_or_else(|error| panic!("the recipe in {language}: {error}"))
    }

    #[tokio::test]
    async fn best_of_decides_trains_and_remembers_the_same_in_every_language() {
        let golden = Golden::read();
        let mut seen_by: BTreeMap<&str, Vec<Seen>> = BTreeMap::new();
        for (language, place, command) in COMPONENTS {
            let cache = tempfile::tempdir().expect("a folder");
            let bytes = component(place, command);
            let started = Instant::now();
            let usual = load(&sandbox(&cache, SandboxConfig::default().host_calls_max), language, bytes.clone()).await;
            println!("{language}: {} bytes, loaded in {} ms", bytes.len(), started.elapsed().as_millis());
            assert_eq!(described(&usual), golden.describe, "{language}");
            let strict = load(&sandbox(&cache, 1), language, bytes).await;
            for case in &golden.cases {
                let recipe = if matches!(case.refusal, Some(Refusal::SecondHostCall)) { &strict } else { &usual };
                let (first, cost) = run(recipe, case).await;
                let (second, again) = run(recipe, case).await;
                agrees(language, case, &usual, &first);
                assert_eq!(first, second, "{language}: {}: two runs differ", case.name);
                assert_eq!(cost.fuel, again.fuel, "{language}: {}: two runs take different fuel", case.name);
                println!("  fuel {:>11}, {:>7} us: {}", cost.fuel, cost.guest_us.min(again.guest_us), case.name);
                seen_by.entry(language).or_default().push(first);
            }
        }
        for (language, seen) in &seen_by {
            for (case, (seen, wanted)) in golden.cases.iter().zip(seen.iter().zip(&seen_by["rust"])) {
                assert_eq!(seen, wanted, "{language} and rust differ: {}", case.name);
            }
        }
    }

    #[tokio::test]
    async fn sao_decides_trains_and_remembers_the_same_in_every_language() {
        let mut rust: Option<(_, Vec<(String, serde_json::Value)>)> = None;
        for (language, place, command) in SAO {
            let cache = tempfile::tempdir().expect("a folder");
            let sandbox = sandbox(&cache, SandboxConfig::default().host_calls_max);
            let recipe = load(&sandbox, language, component(place, command)).await;
            let (manifest, seen) = (described(&recipe), sao::seen(&recipe).await);
            let (wanted_manifest, wanted) = rust.get_or_insert_with(|| (manifest.clone(), seen.clone()));
            assert_eq!(&manifest, wanted_manifest, "{language}");
            assert_eq!(seen.len(), wanted.len());
            for (seen, wanted) in seen.iter().zip(wanted.iter()) {
                assert_eq!(seen, wanted, "{language} and rust differ");
            }
        }
        // What is compared happens: every kind of answer is among the calls.
        let answers: Vec<String> =
            rust.into_iter().flat_map(|(_, seen)| seen).map(|(_, told)| told["answer"].to_string()).collect();
        for wanted in [
            "Train(",
            "Wait(",
            "Weights(900)",
            "critic warm-up",
            "every advantage",
            "gradient of the batch",
            "lost",
            "no held-out task",
            "references 2 records",
            "no score",
            "beyond",
            "releases ago",
        ] {
            assert!(answers.iter().any(|answer| answer.contains(wanted)), "no call is answered with '{wanted}'");
        }
        assert!(answers.iter().all(|answer| !answer.contains("\"Err\"")), "a call failed");
    }

    #[test]
    fn no_language_imports_anything_but_the_interface_of_recipes() {
        for (language, place, command) in COMPONENTS.into_iter().chain(SAO) {
            let decoded = decode(&component(place, command)).expect("a component");
            let DecodedWasm::Component(resolve, world) = decoded else { panic!("{language}: it is a WIT package") };
            let imports: Vec<_> = resolve.worlds[world].imports.keys().map(|key| resolve.name_world_key(key)).collect();
            assert!(!imports.is_empty(), "{language} imports nothing, so it cannot do anything");
            for import in imports {
                assert!(
                    import.starts_with("reef:recipe/") && import.ends_with("@0.2.0"),
                    "{language} imports {import}"
                );
            }
        }
    }
}
