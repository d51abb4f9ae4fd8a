//! Why a sandbox does not start or a recipe does not load, each as a sentence for the operator.

use crate::{Capability, Fault};

/// Refusals before a recipe is ready. Nothing of the recipe stays behind.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SandboxError {
    /// The configuration or the machine does not allow a sandbox.
    #[error("the sandbox cannot start: {0}")]
    Start(String),
    /// The file is larger than the limit.
    #[error(
        "the recipe has {bytes} bytes and at most {bytes_max} are allowed; raise sandbox.component_bytes_max or build a smaller component"
    )]
    TooLarge {
        /// Bytes given.
        bytes: u64,
        /// Bytes allowed.
        bytes_max: u64,
    },
    /// The bytes are something else.
    #[error("the recipe is not a WASM component: {0}")]
    NotAComponent(String),
    /// A component that is damaged, or that uses what this sandbox switches off.
    #[error("the recipe is not valid: {0}")]
    Invalid(String),
    /// An import that this host does not provide.
    #[error(
        "the recipe imports '{import}', which this host does not provide; a recipe may import only interfaces of reef:recipe, of {known}",
        known = crate::generation::known()
    )]
    UnknownImport {
        /// Name in the component.
        import: String,
    },
    /// A WASI import.
    #[error(
        "the recipe imports '{import}' and gets no system interface; build it without WASI, or set sandbox.wasi_stub: true to give it an empty one"
    )]
    WasiImport {
        /// Name in the component.
        import: String,
    },
    /// An import that the manifest is silent about.
    #[error(
        "the recipe imports '{0}' but its manifest does not ask for it; add \"{0}\" to the manifest's capabilities"
    )]
    NotAsked(Capability),
    /// A capability that the operator withholds.
    #[error(
        "the recipe needs '{0}' and the operator does not grant it; add it to recipes.grants or use another recipe"
    )]
    NotGranted(Capability),
    /// A version of the interface that this host does not know, or several of them.
    #[error("{0}; this host knows {known}", known = crate::generation::known())]
    Version(String),
    /// A missing export; says which.
    #[error("the component lacks an export: {0}")]
    MissingExport(String),
    /// Compilation took too long or the compiler is busy.
    #[error(
        "compiling the recipe took longer than {ms_max} ms; raise sandbox.compile_ms_max or build a smaller component"
    )]
    CompileTimeout {
        /// Milliseconds allowed.
        ms_max: u64,
    },
    /// The first call failed.
    #[error("the recipe's describe failed: {0}")]
    Describe(Fault),
    /// The manifest breaks a rule.
    #[error("the recipe's manifest: {field} {problem}")]
    Manifest {
        /// The field.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
}
