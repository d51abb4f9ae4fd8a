//! From bytes to a recipe that can be called. Every refusal names what is wrong, and imports are judged before
//! any guest code runs: what a component imports it must be granted and must ask for in its manifest.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use wasmtime::component::{Component, HasSelf, Linker};

use crate::bindings::WeightRecipePre;
use crate::bindings::reef::recipe;
use crate::call::{Call, Context};
use crate::call_state::CallState;
use crate::capability::{PACKAGE, VERSION};
use crate::compile::{compile, foreign_code};
use crate::engine::{Sandbox, Shared};
use crate::lanes::Lane;
use crate::limits::{MEMORIES_MAX, PAGE_BYTES};
use crate::run::{Export, Returned, run};
use crate::text::clean;
use crate::{Cancel, Capability, Fault, FaultKind, Grants, Manifest, SandboxError};

/// First bytes of every WASM file.
const MAGIC: &[u8] = b"\0asm";
/// Version and layer of a component.
const COMPONENT_LAYER: &[u8] = &[0x0d, 0, 1, 0];
/// Version and layer of a core module.
const MODULE_LAYER: &[u8] = &[1, 0, 0, 0];
/// Characters of an import's name and of a compiler's message that an error repeats.
const TOLD_CHARS_MAX: usize = 400;

/// A recipe that is ready to be called. Clones share the compiled code.
#[derive(Clone)]
pub struct Recipe(Arc<Loaded>);

struct Loaded {
    sandbox: Sandbox,
    pre: WeightRecipePre<CallState>,
    imports: BTreeSet<Capability>,
    manifest: Arc<Manifest>,
    digest: String,
}

impl Sandbox {
    /// Checks, compiles, links and asks the recipe to describe itself.
    pub async fn load(&self, bytes: Vec<u8>, grants: &Grants) -> Result<Recipe, SandboxError> {
        let (sandbox, grants) = (self.clone(), grants.clone());
        let loading = self.0.handle().spawn(async move { load(sandbox, bytes, grants).await });
        loading.await.unwrap_or_else(|error| Err(SandboxError::Invalid(format!("loading it broke down: {error}"))))
    }
}

impl Recipe {
    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// SHA-256 of the component, 64 hex digits.
    pub fn digest(&self) -> &str {
        &self.0.digest
    }

    /// `name@version#sha256:…`, the recipe's name in steps and releases.
    pub fn label(&self) -> String {
        format!("{}@{}#sha256:{}", self.0.manifest.name, self.0.manifest.version, self.0.digest)
    }

    /// Does the component import this capability?
    pub fn imports(&self, capability: Capability) -> bool {
        self.0.imports.contains(&capability)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.sandbox.0
    }

    pub(crate) fn pre(&self) -> WeightRecipePre<CallState> {
        self.0.pre.clone()
    }

    pub(crate) fn manifest_shared(&self) -> Arc<Manifest> {
        Arc::clone(&self.0.manifest)
    }
}

async fn load(sandbox: Sandbox, bytes: Vec<u8>, grants: Grants) -> Result<Recipe, SandboxError> {
    check_header(&bytes, sandbox.0.config().component_bytes_max)?;
    let digest = reef_core::sha256_hex(&bytes);
    let component = compile(&sandbox.0, bytes).await?;
    let wanted = imports(&sandbox.0, &component)?;
    if let Some(capability) = wanted.capabilities.iter().find(|capability| !grants.contains(**capability)) {
        return Err(SandboxError::NotGranted(*capability));
    }
    check_memory(&sandbox.0, &component)?;
    let pre = link(&sandbox.0, &component, &wanted)?;
    let manifest = describe(&sandbox.0, &pre, &digest).await?;
    if let Some(capability) = wanted.capabilities.difference(&manifest.capabilities).next() {
        return Err(SandboxError::NotAsked(*capability));
    }
    if let Some(capability) = manifest.capabilities.difference(&grants.0).next() {
        return Err(SandboxError::NotGranted(*capability));
    }
    let loaded = Loaded { sandbox, pre, imports: wanted.capabilities, manifest: Arc::new(manifest), digest };
    Ok(Recipe(Arc::new(loaded)))
}

fn check_header(bytes: &[u8], bytes_max: u64) -> Result<(), SandboxError> {
    if bytes.len() as u64 > bytes_max {
        return Err(SandboxError::TooLarge { bytes: bytes.len() as u64, bytes_max });
    }
    let told = match bytes.strip_prefix(MAGIC) {
        None if bytes.is_empty() => "the file is empty".to_owned(),
        None => foreign_code(bytes).unwrap_or_else(|| format!(
            "it starts with '{}' instead of a WASM header",
            clean(&String::from_utf8_lossy(bytes.get(..8).unwrap_or(bytes)), 8)
        )),
        Some(rest) if rest.starts_with(COMPONENT_LAYER) => return Ok(()),
        Some(rest) if rest.starts_with(MODULE_LAYER) => {
            "it is a core module; build it for wasm32-wasip2, or wrap it with `wasm-tools component new`".to_owned()
        }
        Some(_) => "its WASM version is unknown or the file is cut off".to_owned(),
    };
    Err(SandboxError::NotAComponent(told))
}

fn invalid(error: &wasmtime::Error) -> SandboxError {
    SandboxError::Invalid(clean(&format!("{error:#}"), TOLD_CHARS_MAX))
}

/// What a component imports.
struct Wanted {
    capabilities: BTreeSet<Capability>,
    wasi: bool,
}

fn imports(shared: &Shared, component: &Component) -> Result<Wanted, SandboxError> {
    let mut wanted = Wanted { capabilities: BTreeSet::new(), wasi: false };
    for (name, _) in component.component_type().imports(shared.engine()) {
        let interface = name
            .strip_prefix(PACKAGE)
            .and_then(|rest| rest.strip_prefix('/'))
            .and_then(|rest| rest.strip_suffix(VERSION))
            .and_then(|rest| rest.strip_suffix('@'));
        match interface {
            Some("types") => {}
            Some(known) if Capability::parse(known).is_some() => wanted.capabilities.extend(Capability::parse(known)),
            _ if name.starts_with("wasi:") && shared.config().wasi_stub => wanted.wasi = true,
            _ if name.starts_with("wasi:") => {
                return Err(SandboxError::WasiImport { import: clean(name, TOLD_CHARS_MAX) });
            }
            _ => return Err(SandboxError::UnknownImport { import: clean(name, TOLD_CHARS_MAX) }),
        }
    }
    Ok(wanted)
}

/// Refuses components that could never be instantiated within the budget.
fn check_memory(shared: &Shared, component: &Component) -> Result<(), SandboxError> {
    let Some(required) = component.resources_required() else {
        return Err(SandboxError::Invalid(
            "it imports core modules or components, so its needs are unknown".to_owned(),
        ));
    };
    let bytes_max = shared.config().memory_bytes_max;
    let bytes = required.max_initial_memory_size.unwrap_or(0).saturating_mul(PAGE_BYTES);
    if bytes > bytes_max {
        return Err(SandboxError::Invalid(format!(
            "it declares {bytes} bytes of memory and at most {bytes_max} are allowed; raise sandbox.memory_bytes_max"
        )));
    }
    if required.num_memories as usize > MEMORIES_MAX {
        return Err(SandboxError::Invalid(format!(
            "it has {} memories and at most {MEMORIES_MAX} are allowed",
            required.num_memories
        )));
    }
    Ok(())
}

/// Links exactly the capabilities that are imported, which are all granted.
fn link(shared: &Shared, component: &Component, wanted: &Wanted) -> Result<WeightRecipePre<CallState>, SandboxError> {
    type Own = HasSelf<CallState>;
    let mut linker: Linker<CallState> = Linker::new(shared.engine());
    for capability in &wanted.capabilities {
        let linked = match capability {
            Capability::Experience => recipe::experience::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Training => recipe::training::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Models => recipe::models::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::State => recipe::state::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Config => recipe::config::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Log => recipe::log::add_to_linker::<_, Own>(&mut linker, |state| state),
            Capability::Metrics => recipe::metrics::add_to_linker::<_, Own>(&mut linker, |state| state),
        };
        linked.map_err(|error| invalid(&error))?;
    }
    if wanted.wasi {
        wasmtime_wasi::p2::add_to_linker_async(&mut linker).map_err(|error| invalid(&error))?;
    }
    let pre = linker.instantiate_pre(component).map_err(|error| invalid(&error))?;
    WeightRecipePre::new(pre).map_err(|error| SandboxError::MissingExport(clean(&format!("{error:#}"), TOLD_CHARS_MAX)))
}

/// Calls `describe` with nothing to work on: whatever it calls answers with an error or with nothing.
async fn describe(shared: &Arc<Shared>, pre: &WeightRecipePre<CallState>, digest: &str) -> Result<Manifest, SandboxError> {
    let nowhere = Context {
        tenant: String::new(),
        scenario: String::new(),
        step: 0,
        now_ms: 0,
        seed: 0,
        head: String::new(),
        max_staleness: 0,
    };
    let call = Call {
        context: nowhere,
        samples: Arc::default(),
        batch: Vec::new(),
        config: serde_json::Map::new(),
        state: Default::default(),
        training: None,
        models: None,
        cancel: Cancel::new(),
    };
    let state = CallState::new(call, shared.config(), digest.into(), None);
    let (lanes, own) = (shared.lanes(), (Arc::clone(shared), pre.clone()));
    // Loading is not urgent, and what a recipe does here nobody has seen before.
    let described = lanes.run(Lane::Slow, async move { run(&own.0, &own.1, state, Export::Describe).await.result });
    let broken = |error| Err(Fault::new(FaultKind::HostBug, format!("it ended without an answer: {error}")));
    match described.await.unwrap_or_else(broken) {
        Ok(Returned::Manifest(raw)) => Manifest::from_guest(raw),
        Ok(_) => {
            Err(SandboxError::Describe(Fault::new(FaultKind::HostBug, "the answer of another function came back")))
        }
        Err(fault) => Err(SandboxError::Describe(fault)),
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Recipe").field(&self.label()).finish()
    }
}
