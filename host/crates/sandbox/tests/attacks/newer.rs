//! Guests of `reef:recipe@0.2.0`: as in `guest.rs`, with signatures and layouts taken from the WIT.

use std::collections::BTreeMap;
use std::path::Path;

use reef_sandbox::{Grants, Recipe, Sandbox, SandboxError};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::abi::{AbiVariant, WasmType};
use wit_parser::{Function, PackageId, Resolve};

use crate::guest::{BUMP, DATA_AT, Data};
use crate::wit_value::{Layout, V, bare, case, f, l, n, ok, t};

const STRATEGY: &str = "strategy";

/// A guest of the newer generation. By default it trains on samples 0 and 1, skips, and promotes.
pub struct Newer {
    resolve: Resolve,
    package: PackageId,
    pub data: Data,
    /// What `describe` answers.
    pub manifest: Manifest,
    imports: Vec<(&'static str, &'static str)>,
    /// Bodies by interface and function.
    bodies: BTreeMap<(&'static str, &'static str), String>,
}

/// The parts of a manifest that tests change.
pub struct Manifest {
    pub surface: u32,
    pub config: Vec<V>,
    pub capabilities: Vec<&'static str>,
}

impl Newer {
    fn empty() -> Self {
        let mut resolve = Resolve::default();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../wit/recipe/0.2.0");
        let (package, _) = resolve.push_dir(&folder).expect("the WIT is readable");
        let manifest = Manifest { surface: 0, config: vec![], capabilities: vec![] };
        Self { resolve, package, data: Data::default(), manifest, imports: vec![], bodies: BTreeMap::new() }
    }

    pub fn good() -> Self {
        let retired = f([n(2), t("stale")]);
        Self::empty()
            .answering(STRATEGY, "select-samples", ok(f([case(1, l([n(0), n(1)])), l([retired])])))
            .answering(STRATEGY, "propose-update", ok(case(3, t("warm-up"))))
            .answering(STRATEGY, "evaluate", ok(f([bare(0), t("good"), l([f([t("score"), n(0.5)])])])))
    }

    /// A verifier whose `check` does this.
    pub fn verifier(body: &str) -> Self {
        Self::empty().doing("verification", "check", body)
    }

    /// A verifier that always answers this.
    pub fn verifying(answer: V) -> Self {
        Self::empty().answering("verification", "check", answer)
    }

    /// The export answers with this value.
    pub fn answering(mut self, interface: &'static str, function: &'static str, value: V) -> Self {
        let at = self.put_result(interface, function, &value);
        self.bodies.insert((interface, function), format!("i32.const {at}"));
        self
    }

    /// The export does this.
    pub fn doing(mut self, interface: &'static str, function: &'static str, body: &str) -> Self {
        self.bodies.insert((interface, function), body.to_owned());
        self
    }

    /// Puts a result of the function into the data; its address.
    pub fn put_result(&mut self, interface: &str, function: &str, value: &V) -> u32 {
        let ty = self.function(interface, function).result.expect("a result");
        Layout::new(&self.resolve).put(&mut self.data, &ty, value)
    }

    /// Adds an import, callable as `$function`, and asks for its capability.
    pub fn importing(mut self, interface: &'static str, function: &'static str) -> Self {
        self.imports.push((interface, function));
        if !self.manifest.capabilities.contains(&interface) {
            self.manifest.capabilities.push(interface);
        }
        self
    }

    fn function(&self, interface: &str, function: &str) -> Function {
        let interface = self.resolve.packages[self.package].interfaces[interface];
        self.resolve.interfaces[interface].functions[function].clone()
    }

    fn signature(&self, variant: AbiVariant, interface: &str, function: &str) -> String {
        let signature = self.resolve.wasm_signature(variant, &self.function(interface, function));
        let names = |types: &[WasmType]| types.iter().map(|ty| core(*ty)).collect::<Vec<_>>().join(" ");
        format!("(param {}) (result {})", names(&signature.params), names(&signature.results))
    }

    fn describe(&mut self) {
        if self.bodies.contains_key(&(STRATEGY, "describe")) {
            return;
        }
        let manifest = f([
            t("probe"),
            t("2.0.0"),
            bare(self.manifest.surface),
            n(0),
            l([]),
            l(std::mem::take(&mut self.manifest.config)),
            l(self.manifest.capabilities.iter().map(|name| t(name))),
            n(0),
            n(5),
        ]);
        let at = self.put_result(STRATEGY, "describe", &manifest);
        self.bodies.insert((STRATEGY, "describe"), format!("i32.const {at}"));
    }

    pub fn bytes(mut self) -> Vec<u8> {
        if self.bodies.keys().any(|(interface, _)| *interface == STRATEGY) {
            self.describe();
        }
        let mut text = String::from("(module\n");
        for (interface, function) in &self.imports {
            let signature = self.signature(AbiVariant::GuestImport, interface, function);
            text +=
                &format!("(import \"reef:recipe/{interface}@0.2.0\" \"{function}\" (func ${function} {signature}))\n");
        }
        let data: String = self.data.bytes().iter().map(|byte| format!("\\{byte:02x}")).collect();
        text += &format!(
            "(memory (export \"memory\") 8) (global $bump (mut i32) (i32.const 262144)) (data (i32.const {DATA_AT}) \"{data}\")
             (func (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32) {BUMP})\n"
        );
        for ((interface, function), body) in &self.bodies {
            let signature = self.signature(AbiVariant::GuestExport, interface, function);
            text += &format!("(func (export \"reef:recipe/{interface}@0.2.0#{function}\") {signature} {body})\n");
        }
        text += ")";
        self.component(&wat::parse_str(&text).expect("the guest's text is valid"))
    }

    fn component(mut self, module: &[u8]) -> Vec<u8> {
        let interfaces: std::collections::BTreeSet<_> = self.bodies.keys().map(|(interface, _)| *interface).collect();
        let mut world = String::from("package test:newer; world guest {\n");
        for (interface, _) in &self.imports {
            world += &format!("import reef:recipe/{interface}@0.2.0;\n");
        }
        for interface in interfaces {
            world += &format!("export reef:recipe/{interface}@0.2.0;\n");
        }
        world += "}";
        // An interface may be imported once.
        let world = dedup_lines(&world);
        let package = self.resolve.push_str("guest.wit", &world).expect("valid WIT");
        let world = self.resolve.select_world(&[package], Some("guest")).expect("the world exists");
        let mut module = module.to_vec();
        embed_component_metadata(&mut module, &self.resolve, world, StringEncoding::UTF8).expect("metadata");
        ComponentEncoder::default().module(&module).expect("module").validate(true).encode().expect("component")
    }
}

fn dedup_lines(text: &str) -> String {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.dedup();
    lines.join("\n")
}

fn core(ty: WasmType) -> &'static str {
    match ty {
        WasmType::I32 | WasmType::Pointer | WasmType::Length => "i32",
        WasmType::I64 | WasmType::PointerOrI64 => "i64",
        WasmType::F32 => "f32",
        WasmType::F64 => "f64",
    }
}

pub async fn load_newer(sandbox: &Sandbox, guest: Newer) -> Result<Recipe, SandboxError> {
    sandbox.load(guest.bytes(), &Grants::all()).await
}
