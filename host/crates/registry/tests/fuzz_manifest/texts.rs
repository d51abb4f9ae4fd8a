//! Manifests, configs, references, signatures and lock files from a mutator: each ends in a value or a typed error.
//! Seeded: `REEF_FUZZ_SEED` repeats a run, `REEF_FUZZ_SECONDS` (default 2) lengthens it.

use std::time::{Duration, Instant};

use rand::rngs::ChaCha12Rng;
use rand::{RngExt, SeedableRng};
use reef_registry::{Digest, Lock, MANIFEST_BYTES_MAX, Manifest, PublicKey, Reference, RegistryError, Signature};

/// Bytes of the component that manifests may declare.
const COMPONENT_BYTES_MAX: u64 = 1 << 20;
/// Changes of one input.
const CHANGES_MAX: usize = 8;
/// Inputs between two looks at the clock.
const ROUND: usize = 200;

/// A point of the curve (RFC 8032, the first test vector): most digits are none.
const PUBLIC_KEY: &str = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";

/// Valid texts of every kind; pieces of one end up in another.
fn corpus() -> Vec<Vec<u8>> {
    let digest = Digest::of(b"x");
    let blob = |media_type: &str| format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":1}}"#);
    let (config, layer) = (blob("application/vnd.wasm.config.v0+json"), blob("application/wasm"));
    let plain = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{config},"layers":[{layer}]}}"#
    );
    let rich = format!(
        r#"{{"schemaVersion":2,"artifactType":"application/vnd.wasm.config.v0+json","config":{config},"layers":[{layer}],"annotations":{{"org.opencontainers.image.title":"sao","dev.reef.recipe.signature":"ed25519 0123456789abcdef {}"}},"subject":{layer}}}"#,
        "0".repeat(128)
    );
    let described = format!(
        r#"{{"created":"1970-01-01T00:00:00Z","architecture":"wasm","os":"wasip2","layerDigests":["{digest}"],"component":{{"exports":["a:b/c@0.1.0"],"imports":[]}}}}"#
    );
    let deep = format!("{}{}", r#"{"config":"#.repeat(200), "[".repeat(200));
    let signature = format!("ed25519 0123456789abcdef {}", "a".repeat(128));
    let reference = format!("r.example.com:5000/team/sao:1.0.0@{digest}");
    let lock = format!("# comment\nr.example.com/sao:1 {digest}\nr.example.com/sao:2 {digest}\n");
    let key = format!("-----BEGIN REEF RECIPE PUBLIC KEY-----\n{PUBLIC_KEY}\n-----END REEF RECIPE PUBLIC KEY-----\n");
    [plain, rich, described, deep, signature, reference, lock, key].map(String::into_bytes).to_vec()
}

/// Changes an input in place.
fn mutate(input: &mut Vec<u8>, corpus: &[Vec<u8>], random: &mut ChaCha12Rng) {
    const WORDS: [&str; 12] = [
        "null",
        "-1",
        "18446744073709551616",
        "1e999",
        "\"\\ud800\"",
        "{}",
        "[]",
        "\u{0}",
        "sha256:",
        "\u{feff}",
        "\"size\":",
        "\n",
    ];
    for _ in 0..random.random_range(1..=CHANGES_MAX) {
        let at = random.random_range(0..=input.len());
        let end = random.random_range(at..=input.len());
        match random.random_range(0..6) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 => drop(input.splice(at..at, WORDS[random.random_range(0..WORDS.len())].bytes())),
            3 => {
                let other = &corpus[random.random_range(0..corpus.len())];
                let from = random.random_range(0..=other.len());
                let to = random.random_range(from..=other.len());
                drop(input.splice(at..end, other[from..to].iter().copied()));
            }
            4 => {
                if let Some(byte) = input.get_mut(at) {
                    *byte ^= 1 << random.random_range(0..8);
                }
            }
            _ => {
                let copy = input[at..end].to_vec();
                drop(input.splice(at..at, copy));
            }
        }
    }
}

/// What every error has to be: a bounded line without control characters.
fn check<T>(outcome: Result<T, RegistryError>) -> bool {
    if let Err(error) = &outcome {
        let text = error.to_string();
        assert!(text.len() < 8192, "an error of {} bytes", text.len());
        assert!(!text.chars().any(char::is_control), "control characters in {text:?}");
    }
    outcome.is_ok()
}

/// Gives the input to everything that reads foreign text; says how much was accepted.
fn feed(input: &[u8], lock: &std::path::Path) -> usize {
    let reference = Reference::parse("r.example.com/team/sao:1.0.0", None).expect("valid");
    let read = Manifest::read(input, &reference, COMPONENT_BYTES_MAX);
    if let Ok(manifest) = &read {
        assert!(manifest.component.size <= COMPONENT_BYTES_MAX && input.len() as u64 <= MANIFEST_BYTES_MAX);
        let written = manifest.write().expect("what was read can be written");
        assert_eq!(*manifest, Manifest::read(&written, &reference, COMPONENT_BYTES_MAX).expect("and read again"));
    }
    let mut accepted = usize::from(check(read));
    let component = Manifest {
        config: reef_registry::Blob::of(b"x"),
        component: reef_registry::Blob::of(b"x"),
        annotations: [].into(),
    };
    accepted += usize::from(check(component.check_config(input, &reference)));
    let text = String::from_utf8_lossy(input);
    let named = Reference::parse(&text, Some("r.example.com/team"));
    if let Ok(reference) = &named {
        assert_eq!(Reference::parse(&reference.to_string(), None).expect("reads what it writes"), *reference);
    }
    accepted += usize::from(check(named));
    accepted += usize::from(check(text.parse::<Signature>())) + usize::from(check(text.parse::<PublicKey>()));
    std::fs::write(lock, input).expect("written");
    accepted + usize::from(check(Lock::read(lock)))
}

#[test]
fn every_mutated_text_of_a_registry_ends_in_a_value_or_a_typed_error() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let fresh =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    let seed = number("REEF_FUZZ_SEED").unwrap_or(fresh);
    let limit = Duration::from_secs(number("REEF_FUZZ_SECONDS").unwrap_or(2));
    println!("REEF_FUZZ_SEED={seed}");
    let folder = tempfile::tempdir().expect("a folder");
    let lock = folder.path().join("recipes.lock");
    let (corpus, mut random) = (corpus(), ChaCha12Rng::seed_from_u64(seed));
    let accepted: Vec<_> = corpus.iter().map(|text| feed(text, &lock)).collect();
    assert_eq!(
        accepted.iter().filter(|count| **count > 0).count(),
        corpus.len() - 1,
        "all but the deep one are valid: {accepted:?}"
    );
    let (started, mut inputs, mut taken) = (Instant::now(), 0_u64, 0_usize);
    loop {
        for _ in 0..ROUND {
            let mut input = corpus[random.random_range(0..corpus.len())].clone();
            mutate(&mut input, &corpus, &mut random);
            taken += feed(&input, &lock);
            inputs += 1;
        }
        if started.elapsed() >= limit {
            break;
        }
    }
    println!("{inputs} inputs, {taken} accepted");
    assert!(taken > 0, "the mutator never made a valid text: it tests nothing");
}
