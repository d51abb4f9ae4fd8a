//! Generations of the interface: which one a component is built for, and how it is linked and called.
//! Loading and running see a component through [`Linked`] only; each generation is a module that translates between
//! the types generated from its WIT and the crate's own. Such a module decides nothing.

mod v0_1;
mod v0_2;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use reef_core::Message;
use wasmtime::Store;
use wasmtime::component::{Component, Linker};

use crate::call_state::CallState;
use crate::hooks::{Exchange, Exports, RequestView};
use crate::raw;
use crate::traffic::Bytes;
use crate::verify::Check;
use crate::{Capability, SandboxError};

/// Package of the interface.
const PACKAGE: &str = "reef:recipe/";
/// Every generation, oldest first.
const ALL: [Generation; 2] = [Generation::V0_1, Generation::V0_2];
/// Interfaces that hold types and are no capability.
const TYPES: &str = "types";

/// A version of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Generation {
    V0_1,
    V0_2,
}

/// An export of a component and what it is given.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Export {
    Describe,
    SelectSamples,
    ProposeUpdate,
    /// With the candidate's handle.
    Evaluate(u32),
    Migrate {
        from_version: String,
        entries: raw::Entries,
    },
    Ingest(Vec<Exchange>),
    TransformRequest(RequestView),
    /// Of a verifier.
    Check {
        task: String,
        answer: String,
    },
}

/// What an export returned, not yet validated.
pub(crate) enum Returned {
    Manifest(raw::Manifest),
    Selection(raw::Answer<raw::Selection>),
    Proposal(raw::Answer<raw::Proposal>),
    Verdict(raw::Answer<raw::Verdict>),
    Migrated(raw::Answer<raw::Entries>),
    Judgements(raw::Answer<Vec<raw::Judgement>>),
    Transformed(raw::Replacement),
    Checked(Result<Check, String>),
}

/// Where a call failed.
pub(crate) enum Broken {
    Instantiation(wasmtime::Error),
    Guest(wasmtime::Error),
    /// The component has no such export.
    Missing,
}

/// A call on its way.
pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Result<Returned, Broken>> + Send + 'a>>;

/// A component with its imports linked, ready to be instantiated.
pub(crate) trait Linked: Send + Sync {
    /// Optional exports that the component has.
    fn exports(&self) -> Exports;

    /// Instantiates it in the store and calls one export with the store's call.
    fn call<'a>(&'a self, store: &'a mut Store<CallState>, export: Export) -> Running<'a>;
}

impl Generation {
    pub(crate) fn version(self) -> &'static str {
        match self {
            Self::V0_1 => "0.1.0",
            Self::V0_2 => "0.2.0",
        }
    }

    /// What a manifest of this generation may ask for.
    pub(crate) fn capabilities(self) -> &'static [Capability] {
        match self {
            Self::V0_1 => &v0_1::CAPABILITIES,
            Self::V0_2 => &Capability::ALL,
        }
    }

    /// The capability behind an import of this generation; `None` inside for interfaces that hold types only.
    pub(crate) fn import(self, interface: &str) -> Option<Option<Capability>> {
        if interface == TYPES {
            return Some(None);
        }
        let capability = Capability::parse(interface).filter(|capability| *capability != Capability::Requests)?;
        self.capabilities().contains(&capability).then_some(Some(capability))
    }

    /// Do capabilities answer while a recipe of this generation describes itself?
    pub(crate) fn describes_alone(self) -> bool {
        self >= Self::V0_2
    }

    /// Links exactly these capabilities, which are all granted.
    pub(crate) fn link(
        self,
        linker: Linker<CallState>,
        component: &Component,
        capabilities: &BTreeSet<Capability>,
    ) -> Result<Arc<dyn Linked>, LinkError> {
        match self {
            Self::V0_1 => v0_1::link(linker, component, capabilities),
            Self::V0_2 => v0_2::link(linker, component, capabilities),
        }
    }
}

/// Why a component does not link.
pub(crate) enum LinkError {
    Invalid(wasmtime::Error),
    Export(wasmtime::Error),
}

/// Links a verifier, which imports nothing.
pub(crate) fn link_verifier(linker: &Linker<CallState>, component: &Component) -> Result<Arc<dyn Linked>, LinkError> {
    v0_2::link_verifier(linker, component)
}

/// Versions that this host knows, for people.
pub(crate) fn known() -> String {
    ALL.map(Generation::version).join(" and ")
}

/// Interface and version of a name in the package of recipes.
pub(crate) fn interface(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(PACKAGE)?.split_once('@')
}

/// The one generation that all of these imports and exports belong to.
pub(crate) fn detect<'a>(names: impl Iterator<Item = &'a str>) -> Result<Generation, SandboxError> {
    let versions: BTreeSet<&str> = names.filter_map(interface).map(|(_, version)| version).collect();
    let mut each = versions.iter();
    let (Some(first), None) = (each.next(), each.next()) else {
        if versions.is_empty() {
            return Err(SandboxError::MissingExport("reef:recipe/strategy".to_owned()));
        }
        let versions: Vec<String> = versions.iter().map(|version| shown(version)).collect();
        return Err(SandboxError::Version(format!(
            "the component mixes the versions {} of reef:recipe, and all of it must be of one",
            versions.join(" and ")
        )));
    };
    ALL.into_iter().find(|generation| generation.version() == *first).ok_or_else(|| {
        SandboxError::Version(format!("the component is built for version {} of reef:recipe", shown(first)))
    })
}

fn shown(version: &str) -> String {
    crate::text::clean(version, 32)
}

impl Export {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Describe => "describe",
            Self::SelectSamples => "select-samples",
            Self::ProposeUpdate => "propose-update",
            Self::Evaluate(_) => "evaluate",
            Self::Migrate { .. } => "migrate",
            Self::Ingest(_) => "ingest",
            Self::TransformRequest(_) => "transform-request",
            Self::Check { .. } => "check",
        }
    }

    /// No capability answers during these.
    pub(crate) fn sealed(&self) -> bool {
        matches!(self, Self::Migrate { .. } | Self::TransformRequest(_))
    }
}

impl Bytes for Export {
    /// Beside the context and the batch, which come from the call.
    fn bytes(&self) -> u64 {
        match self {
            Self::Describe | Self::SelectSamples | Self::ProposeUpdate => 0,
            Self::Evaluate(candidate) => candidate.bytes(),
            Self::Migrate { from_version, entries } => (from_version, entries).bytes(),
            Self::Ingest(exchanges) => exchanges.bytes(),
            Self::TransformRequest(request) => request.bytes(),
            Self::Check { task, answer } => (task, answer).bytes(),
        }
    }
}

impl Bytes for Returned {
    fn bytes(&self) -> u64 {
        match self {
            Self::Manifest(raw) => raw.bytes(),
            Self::Selection(raw) => raw.bytes(),
            Self::Proposal(raw) => raw.bytes(),
            Self::Verdict(raw) => raw.bytes(),
            Self::Migrated(raw) => raw.bytes(),
            Self::Judgements(raw) => raw.bytes(),
            Self::Transformed(raw) => raw.bytes(),
            Self::Checked(Ok(check)) => check.bytes(),
            Self::Checked(Err(told)) => told.bytes(),
        }
    }
}

/// A message of either side.
fn message(role: String, content: String) -> Message {
    Message { role, content }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Result<Generation, String> {
        detect(names.iter().copied()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_component_belongs_to_one_known_version() {
        assert_eq!(found(&["reef:recipe/strategy@0.1.0", "wasi:io/poll@0.2.0"]), Ok(Generation::V0_1));
        assert_eq!(found(&["reef:recipe/log@0.2.0", "reef:recipe/strategy@0.2.0"]), Ok(Generation::V0_2));
        let mixed = found(&["reef:recipe/log@0.1.0", "reef:recipe/strategy@0.2.0"]).expect_err("mixed");
        assert!(mixed.contains("mixes the versions 0.1.0 and 0.2.0") && mixed.contains("knows 0.1.0 and 0.2.0"));
        let later = found(&["reef:recipe/strategy@0.9.0"]).expect_err("unknown");
        assert!(later.contains("version 0.9.0") && later.contains("knows 0.1.0 and 0.2.0"), "{later}");
        assert!(found(&[]).expect_err("nothing").contains("lacks an export"));
    }

    #[test]
    fn generations_import_what_they_know() {
        assert_eq!(Generation::V0_1.import("log"), Some(Some(Capability::Log)));
        assert_eq!(Generation::V0_1.import("tokens"), None);
        assert_eq!(Generation::V0_2.import("tokens"), Some(Some(Capability::Tokens)));
        assert_eq!(Generation::V0_2.import("types"), Some(None));
        assert_eq!(Generation::V0_2.import("requests"), None);
    }
}
