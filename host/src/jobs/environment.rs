//! Where steps run: recorded with each, because another build or machine may round differently.

use std::collections::BTreeMap;

use reef_engine::{Engine, LoraConfig};
use reef_sandbox::{SandboxConfig, Verifiers};
use reef_store::Environment;
use serde_json::json;

/// What a step of this process says of where it ran. `share`: of wall time while requests run.
pub fn environment(
    engine: &Engine,
    lora: LoraConfig,
    share: f64,
    sandbox: &SandboxConfig,
    verifiers: &Verifiers,
) -> Environment {
    Environment {
        reef: env!("CARGO_PKG_VERSION").to_owned(),
        wasmtime: env!("REEF_WASMTIME_VERSION").to_owned(),
        machine: machine(),
        model: engine.info().sha256.clone(),
        context: engine.info().context_length as u64,
        threads: engine.threads() as u64,
        workers: 1,
        share,
        lora: json!(lora),
        sandbox: json!(sandbox),
        policies: BTreeMap::new(),
        verifiers: verifiers.iter().map(|(name, verifier)| (name.clone(), verifier.digest().to_owned())).collect(),
    }
}

/// Processor and operating system.
fn machine() -> String {
    let described = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = described.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let processor = model.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{processor}, {}", std::env::consts::OS)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_runtime_s_version_is_known() {
        let version = env!("REEF_WASMTIME_VERSION");
        assert!(version.split('.').count() == 3 && version.starts_with(|c: char| c.is_ascii_digit()), "{version}");
        assert!(!super::machine().is_empty());
    }
}
