//! From bytes to a recipe that can be called. Every refusal names what is wrong, and imports are judged before
//! any guest code runs: what a component imports it must be granted and must ask for in its manifest.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use reef_core::CallReport;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, Linker};

use crate::call::{Call, Context};
use crate::call_state::CallState;
use crate::compile::{compile, foreign_code};
use crate::engine::{Sandbox, Shared};
use crate::generation::{self, Export, Generation, LinkError, Linked, Returned};
use crate::hooks::Exports;
use crate::lanes::Lane;
use crate::limits::{MEMORIES_MAX, PAGE_BYTES};
use crate::run::{Ended, run};
use crate::text::clean;
use crate::verify::Verifier;
use crate::wasi;
use crate::{Capability, Fault, FaultKind, Grants, Manifest, SandboxError};

/// First bytes of every WASM file.
const MAGIC: &[u8] = b"\0asm";
/// Version and layer of a component.
const COMPONENT_LAYER: &[u8] = &[0x0d, 0, 1, 0];
/// Version and layer of a core module.
const MODULE_LAYER: &[u8] = &[1, 0, 0, 0];
/// Characters of an import's name and of a compiler's message that an error repeats.
const TOLD_CHARS_MAX: usize = 400;
/// Takes the slots in which recipes describe themselves, so that loading takes no more of them than a tenant may.
/// No real tenant has this name.
const LOADING_TENANT: &str = "reef.loading";

/// A recipe that is ready to be called. Clones share the compiled code.
#[derive(Clone)]
pub struct Recipe(Arc<Loaded>);

struct Loaded {
    sandbox: Sandbox,
    linked: Arc<dyn Linked>,
    generation: Generation,
    imports: BTreeSet<Capability>,
    exports: Exports,
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

    /// Checks, compiles and links a verifier, which imports nothing.
    pub async fn load_verifier(&self, bytes: Vec<u8>) -> Result<Verifier, SandboxError> {
        let sandbox = self.clone();
        let loading = self.0.handle().spawn(async move { load_verifier(sandbox, bytes).await });
        loading.await.unwrap_or_else(|error| Err(SandboxError::Invalid(format!("loading it broke down: {error}"))))
    }
}

impl Recipe {
    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// True while nobody else holds this recipe.
    pub fn is_idle(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// SHA-256 of the component, 64 hex digits.
    pub fn digest(&self) -> &str {
        &self.0.digest
    }

    /// `name@version#sha256:…`, the recipe's name in steps and releases.
    pub fn label(&self) -> String {
        format!("{}@{}#sha256:{}", self.0.manifest.name, self.0.manifest.version, self.0.digest)
    }

    /// Version of the interface that it is built for.
    pub fn generation(&self) -> &'static str {
        self.0.generation.version()
    }

    /// Capabilities that the component imports.
    pub fn imports(&self) -> BTreeSet<Capability> {
        self.0.imports.clone()
    }

    /// Optional exports that may be called.
    pub fn exports(&self) -> Exports {
        self.0.exports
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.0.sandbox.0
    }

    pub(crate) fn linked(&self) -> Arc<dyn Linked> {
        Arc::clone(&self.0.linked)
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
    check_grants(&wanted.capabilities, &grants)?;
    check_memory(sandbox.0.config().memory_most(), &component)?;
    let linked = link(&sandbox.0, &component, &wanted)?;
    let manifest = describe(&sandbox.0, &linked, &digest, wanted.generation).await?;
    if let Some(capability) = wanted.capabilities.difference(&manifest.capabilities).next() {
        return Err(SandboxError::NotAsked(*capability));
    }
    check_grants(&manifest.capabilities, &grants)?;
    check_memory(sandbox.0.config().memory_most_of(&manifest.name), &component)?;
    let exports = linked.exports();
    let loaded = Loaded {
        sandbox,
        generation: wanted.generation,
        imports: wanted.capabilities,
        exports: Exports { requests: exports.requests && grants.contains(Capability::Requests), ..exports },
        linked,
        manifest: Arc::new(manifest),
        digest,
    };
    Ok(Recipe(Arc::new(loaded)))
}

async fn load_verifier(sandbox: Sandbox, bytes: Vec<u8>) -> Result<Verifier, SandboxError> {
    check_header(&bytes, sandbox.0.config().component_bytes_max)?;
    let digest = reef_core::sha256_hex(&bytes);
    let component = compile(&sandbox.0, bytes).await?;
    let imported = component.component_type();
    if let Some((name, _)) = imported.imports(sandbox.0.engine()).find(|(_, item)| !types_only(&sandbox.0, &item.ty)) {
        let shown = clean(name, TOLD_CHARS_MAX);
        return Err(SandboxError::Invalid(format!("a verifier imports nothing and this one imports '{shown}'")));
    }
    check_memory(sandbox.0.config().memory_bytes_max, &component)?;
    let linker = Linker::new(sandbox.0.engine());
    let linked = generation::link_verifier(&linker, &component).map_err(unlinked)?;
    Ok(Verifier::new(sandbox, linked, digest))
}

/// Everything must be provided by this host and granted by the operator.
fn check_grants(wanted: &BTreeSet<Capability>, grants: &Grants) -> Result<(), SandboxError> {
    match wanted.iter().find(|capability| !grants.contains(**capability)) {
        Some(capability) => Err(SandboxError::NotGranted(*capability)),
        None => Ok(()),
    }
}

fn check_header(bytes: &[u8], bytes_max: u64) -> Result<(), SandboxError> {
    if bytes.len() as u64 > bytes_max {
        return Err(SandboxError::TooLarge { bytes: bytes.len() as u64, bytes_max });
    }
    let told = match bytes.strip_prefix(MAGIC) {
        None if bytes.is_empty() => "the file is empty".to_owned(),
        None => foreign_code(bytes).unwrap_or_else(|| {
            format!(
                "it starts with '{}' instead of a WASM header",
                clean(&String::from_utf8_lossy(bytes.get(..8).unwrap_or(bytes)), 8)
            )
        }),
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
    generation: Generation,
    capabilities: BTreeSet<Capability>,
    wasi: bool,
}

fn imports(shared: &Shared, component: &Component) -> Result<Wanted, SandboxError> {
    let (component, engine) = (component.component_type(), shared.engine());
    let unknown = |name: &str| SandboxError::UnknownImport { import: clean(name, TOLD_CHARS_MAX) };
    let mut wasi = false;
    for (name, _) in component.imports(engine) {
        match name {
            _ if generation::interface(name).is_some() => {}
            _ if name.starts_with("wasi:") && shared.config().wasi_stub => wasi = true,
            _ if name.starts_with("wasi:") => {
                return Err(SandboxError::WasiImport { import: clean(name, TOLD_CHARS_MAX) });
            }
            _ => return Err(unknown(name)),
        }
    }
    let names = component.imports(engine).map(|(name, _)| name);
    let generation = generation::detect(names.chain(component.exports(engine).map(|(name, _)| name)))?;
    let mut capabilities = BTreeSet::new();
    for (name, item) in component.imports(engine) {
        let Some((interface, _)) = generation::interface(name) else { continue };
        let capability = generation.import(interface).ok_or_else(|| unknown(name))?;
        // A component may name the types of an interface that it does not call.
        if !types_only(shared, &item.ty) {
            capabilities.extend(capability);
        }
    }
    Ok(Wanted { generation, capabilities, wasi })
}

/// An instance from which nothing can be called.
fn types_only(shared: &Shared, item: &ComponentItem) -> bool {
    let ComponentItem::ComponentInstance(instance) = item else { return false };
    instance.exports(shared.engine()).all(|(_, item)| matches!(item.ty, ComponentItem::Type(_)))
}

/// Refuses components that could never be instantiated within so many bytes.
fn check_memory(bytes_max: u64, component: &Component) -> Result<(), SandboxError> {
    let Some(required) = component.resources_required() else {
        return Err(SandboxError::Invalid(
            "it imports core modules or components, so its needs are unknown".to_owned(),
        ));
    };
    let bytes = required.max_initial_memory_size.unwrap_or(0).saturating_mul(PAGE_BYTES);
    if bytes > bytes_max {
        return Err(SandboxError::Invalid(format!(
            "it declares {bytes} bytes of memory and at most {bytes_max} are allowed; raise sandbox.memory_bytes_max, or \
             that of the recipe in sandbox.overrides"
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
fn link(shared: &Shared, component: &Component, wanted: &Wanted) -> Result<Arc<dyn Linked>, SandboxError> {
    let mut linker: Linker<CallState> = Linker::new(shared.engine());
    if wanted.wasi {
        wasi::link(&mut linker).map_err(|error| invalid(&error))?;
    }
    wanted.generation.link(linker, component, &wanted.capabilities).map_err(unlinked)
}

fn unlinked(error: LinkError) -> SandboxError {
    match error {
        LinkError::Invalid(error) => invalid(&error),
        LinkError::Export(error) => SandboxError::MissingExport(clean(&format!("{error:#}"), TOLD_CHARS_MAX)),
    }
}

/// Calls `describe` with nothing to work on: whatever it calls answers with an error or with nothing.
async fn describe(
    shared: &Arc<Shared>,
    linked: &Arc<dyn Linked>,
    digest: &str,
    generation: Generation,
) -> Result<Manifest, SandboxError> {
    let nowhere = Context {
        tenant: LOADING_TENANT.to_owned(),
        scenario: String::new(),
        step: 0,
        now_ms: 0,
        seed: 0,
        head: String::new(),
        max_staleness: 0,
    };
    let mut state = CallState::new(Call::new(nowhere), shared.config().of_describe(), digest.into(), None);
    state.sealed = generation.describes_alone().then_some(Export::Describe.name());
    let mut permit = shared.admission().enter(LOADING_TENANT).await.map_err(SandboxError::Describe)?;
    let (meter, own) = (Arc::clone(&state.meter), (Arc::clone(shared), Arc::clone(linked)));
    permit.measure(Arc::clone(&meter));
    let described = async move {
        let Ended { result, report, .. } = run(&own.0, own.1.as_ref(), state, Export::Describe).await;
        permit.charge(report.fuel);
        (result, report)
    };
    // Loading is not urgent, and what a recipe does here nobody has seen before.
    let (result, mut report) = shared.lanes().run(Lane::Slow, meter, described).await.unwrap_or_else(|error| {
        let report = CallReport { function: Export::Describe.name().to_owned(), ..CallReport::default() };
        (Err(Fault::new(FaultKind::HostBug, format!("it ended without an answer: {error}"))), report)
    });
    shared.ended(&mut report, result.as_ref().err());
    match result {
        Ok(Returned::Manifest(raw)) => Manifest::from_guest(raw, generation.capabilities()),
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
