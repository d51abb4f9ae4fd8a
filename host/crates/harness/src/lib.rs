//! An agent's harness as data: a typed tree of prompts, rules, skills, tools and settings, mutations that change it,
//! the rules that admit them, and adapters that render it as the files of each agent program, with an install script.
//! The binary's handlers and jobs call it. It is pure: no network, no clock, no file; adapters are part of the build.
#![deny(missing_docs)]

mod adapter;
mod admission;
mod diff;
mod document;
mod entry;
mod error;
mod files;
mod install;
mod leakage;
mod mutation;
mod name;
mod render;
#[cfg(test)]
mod samples;
mod text;
mod tree;

pub use adapter::{
    Adapter, AdapterError, Adapters, Audit, AuditMethod, Expansion, Form, Install, Place, Run, Session, SettingsFile,
    Template,
};
pub use admission::{Capability, CapabilityKind, FormatContract, Policy, Refusal, Rules, admit, capabilities};
pub use diff::{Diff, FileChange, FileDiff, Hunk, Line, LineChange};
pub use document::Format;
pub use entry::{Body, Code, Command, Config, Entry, Hook, Mcp, Skill, Subagent, Text};
pub use error::{Problem, TreeError};
pub use files::TreeFile;
pub use install::{InstalledRelease, Requirement, RequirementKind, install_script};
pub use leakage::{ANSWER_CHARS_MIN, Corpus, CorpusError, Exempt, Leak, RUN_WORDS, WORDS_MIN};
pub use mutation::{Applied, Change, MUTATIONS_MAX, Mutation, MutationError, read_mutations};
pub use name::{EntryKind, EntryName, ID_CHARS_MAX};
pub use render::{Binding, Client, LeftOut, RenderError, RenderedFile, Rendering, Started, render};
pub use text::TEXT_BYTES_MAX;
pub use tree::{ENTRIES_MAX, TREE_BYTES_MAX, Tree};
