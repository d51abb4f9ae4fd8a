//! `manifest.json`: who made a release, why, and the SHA-256 of each of its files.

use std::collections::BTreeSet;

use reef_core::{
    ContentId, Release, ReleaseId, ReleaseManifest, ReleaseOrigin, ScenarioName, Surface, TenantId, sha256_hex,
};
use serde::{Deserialize, Serialize};

use crate::names::{check_path, is_lfs};
use crate::{ReleaseError, ReleaseFile};

/// Files of one release; a harness tree has dozens.
const FILES_MAX: usize = 10_000;
/// Bytes of one file that git itself holds: prompts, skills, settings. Larger ones belong in `*.safetensors`.
const PLAIN_BYTES_MAX: u64 = 256 << 20;
/// Bytes of all files of one release together; they are held in memory.
const RELEASE_BYTES_MAX: u64 = 8 << 30;
/// Bytes of `manifest.json`: `FILES_MAX` entries with the longest paths fit.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Start of the line of a commit message that names the content.
pub const CONTENT_ID: &str = "content-id: ";
/// Hex digits of a commit that an error shows.
const SHORT_ID_CHARS: usize = 12;

/// One payload file. The fields are in alphabetical order, so that its JSON is canonical.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Relative path.
    pub path: String,
    /// Of the content, also where git holds only a pointer: 64 hex digits.
    pub sha256: String,
    /// Bytes.
    pub size: u64,
}

/// What the commit holds as `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredManifest {
    /// The caller's part.
    #[serde(flatten)]
    pub manifest: ReleaseManifest,
    /// Sorted by path, each path once.
    pub files: Vec<FileEntry>,
}

impl StoredManifest {
    /// Checks the manifest and measures the files.
    pub fn describe(manifest: &ReleaseManifest, files: &[ReleaseFile]) -> Result<Self, ReleaseError> {
        if let Some((name, _)) = manifest.metrics.iter().find(|(_, value)| !value.is_finite()) {
            return Err(ReleaseError::Manifest { problem: format!("metric '{name}' is not a finite number") });
        }
        let scores = manifest.evaluation.iter().flat_map(|measured| [measured.candidate, measured.incumbent]).flatten();
        if !scores.into_iter().all(f64::is_finite) {
            return Err(ReleaseError::Manifest {
                problem: "a score of the evaluation is not a finite number".to_owned(),
            });
        }
        if manifest.created_at_ms < 0 {
            return Err(ReleaseError::Manifest { problem: "created_at_ms is before 1970".to_owned() });
        }
        let mut files: Vec<FileEntry> = files.iter().map(FileEntry::of).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let stored = Self { manifest: manifest.clone(), files };
        stored.check_files()?;
        Ok(stored)
    }

    /// JSON with one field per line, so that `git diff` of two releases is readable.
    pub fn encode(&self) -> Result<Vec<u8>, ReleaseError> {
        let mut text =
            serde_json::to_vec_pretty(self).map_err(|error| ReleaseError::Manifest { problem: error.to_string() })?;
        text.push(b'\n');
        let (found, max) = (text.len() as u64, MANIFEST_BYTES_MAX);
        if found > max {
            return Err(ReleaseError::TooLarge { what: "manifest.json (bytes)".to_owned(), found, max });
        }
        Ok(text)
    }

    /// Reads what `encode` wrote. The text may come from a repository that somebody pushed to: nothing is trusted.
    pub fn decode(text: &[u8]) -> Result<Self, String> {
        let stored: Self = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        stored.check_files().map_err(|error| error.to_string())?;
        Ok(stored)
    }

    fn check_files(&self) -> Result<(), ReleaseError> {
        let too_large = |what: &str, found, max| Err(ReleaseError::TooLarge { what: what.to_owned(), found, max });
        if self.files.len() > FILES_MAX {
            return too_large("the list of files (files)", self.files.len() as u64, FILES_MAX as u64);
        }
        let total = self.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size));
        if total > RELEASE_BYTES_MAX {
            return too_large("the release (bytes)", total, RELEASE_BYTES_MAX);
        }
        let refused = |path: &str, rule: &str| {
            Err(ReleaseError::Path { shown: crate::names::shown(path), rule: rule.to_owned() })
        };
        let mut seen = BTreeSet::new();
        let mut last = None;
        for file in &self.files {
            check_path(&file.path)?;
            if file.size > PLAIN_BYTES_MAX && !is_lfs(&file.path) {
                let what = format!("file {} (bytes)", crate::names::shown(&file.path));
                return too_large(&what, file.size, PLAIN_BYTES_MAX);
            }
            // It becomes a file name below `lfs/objects`.
            if ContentId::parse(file.sha256.as_str()).is_err() {
                return refused(&file.path, "its sha256 has 64 hex digits");
            }
            if last.is_some_and(|last| last >= file.path.as_str()) {
                return refused(&file.path, "each path occurs once, in order");
            }
            let mut folders = file.path.match_indices('/').filter_map(|(end, _)| file.path.get(..end));
            if folders.any(|folder| seen.contains(folder)) {
                return refused(&file.path, "one of its folders is also a file");
            }
            seen.insert(file.path.as_str());
            last = Some(file.path.as_str());
        }
        Ok(())
    }

    /// SHA-256 of the list of files as JSON without spaces: equal files, equal id, whatever release holds them.
    pub fn content_id(&self) -> Result<ContentId, ReleaseError> {
        id_of(&self.files)
    }

    /// The release as it is listed.
    pub fn release(&self, id: &ReleaseId) -> Result<Release, ReleaseError> {
        Ok(Release { release_id: id.clone(), content_id: self.content_id()?, manifest: self.manifest.clone() })
    }

    /// The release in an error: `release r7 of acme/spell (0123456789ab)`.
    pub fn label(&self, id: &ReleaseId) -> String {
        let short = id.as_str().get(..SHORT_ID_CHARS).unwrap_or_default();
        format!("release {} ({short})", self.place())
    }

    /// Message of the commit; its first line is what `git log --oneline` shows.
    pub fn commit_message(&self) -> Result<String, ReleaseError> {
        let origin = match &self.manifest.origin {
            ReleaseOrigin::Base => "base".to_owned(),
            ReleaseOrigin::Step { step } => format!("step {step}"),
            ReleaseOrigin::Rollback { to } => format!("rollback to {to}"),
            ReleaseOrigin::Promotion { step } => format!("promotion of step {step}"),
            ReleaseOrigin::Proposal { id } => format!("proposal {id}"),
            ReleaseOrigin::Acceptance { of } => format!("acceptance of {of}"),
        };
        Ok(format!("{}: {origin}\n\n{CONTENT_ID}{}\n", self.place(), self.content_id()?))
    }

    /// Is it a release of this scenario?
    pub fn is_of(&self, tenant: &TenantId, scenario: &ScenarioName) -> bool {
        (&self.manifest.tenant, &self.manifest.scenario) == (tenant, scenario)
    }

    fn place(&self) -> String {
        let ReleaseManifest { tenant, scenario, sequence, surface, .. } = &self.manifest;
        match surface {
            Surface::Weights => format!("r{sequence} of {tenant}/{scenario}"),
            other => format!("{} r{sequence} of {tenant}/{scenario}", other.as_str()),
        }
    }
}

/// The content id of a release with these files, in whatever order they come.
///
/// Errors: `Manifest`.
pub fn content_id(files: &[ReleaseFile]) -> Result<ContentId, ReleaseError> {
    let mut entries: Vec<FileEntry> = files.iter().map(FileEntry::of).collect();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    id_of(&entries)
}

fn id_of(sorted: &[FileEntry]) -> Result<ContentId, ReleaseError> {
    let problem = |error: String| ReleaseError::Manifest { problem: error };
    let list = serde_json::to_vec(sorted).map_err(|error| problem(error.to_string()))?;
    ContentId::parse(sha256_hex(&list)).map_err(|error| problem(error.to_string()))
}

impl FileEntry {
    fn of(file: &ReleaseFile) -> Self {
        Self { path: file.path.clone(), sha256: sha256_hex(&file.bytes), size: file.bytes.len() as u64 }
    }
}
