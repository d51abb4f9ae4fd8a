//! A repository in a temporary folder, manifests and files to fill it, and the git client without the user's settings.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use reef_core::{Release, ReleaseId, ReleaseManifest, ReleaseOrigin, ScenarioName, Surface, TenantId, sha256_hex};
use reef_release::{ReleaseFile, ReleaseRepo};
use tempfile::TempDir;

pub struct Fixture {
    pub folder: TempDir,
    pub repo: ReleaseRepo,
}

impl Fixture {
    pub fn new() -> Self {
        let folder = TempDir::new().expect("temporary folder");
        let repo = ReleaseRepo::open(&folder.path().join("releases.git")).expect("a new repository");
        Self { folder, repo }
    }

    pub fn path(&self) -> PathBuf {
        self.folder.path().join("releases.git")
    }

    /// A copy of `base` as the first release and the head of another scenario.
    pub fn fork(&self, base: &Release, scenario: &str) -> Release {
        let fork = self.repo.fork(&base.release_id, &name(scenario), 1_760_000_000_000).expect("written");
        self.repo.advance(&tenant(), &name(scenario), None, &fork.release_id).expect("advanced");
        fork
    }

    /// Writes a release with an adapter of these bytes and makes it the head.
    pub fn release(&self, scenario: &str, parent: Option<&Release>, adapter: &[u8]) -> Release {
        let written = self.repo.write(&manifest(scenario, parent), &adapter_files(adapter)).expect("written");
        let expected = parent.map(|parent| &parent.release_id);
        self.repo.advance(&tenant(), &name(scenario), expected, &written.release_id).expect("advanced");
        written
    }

    /// Where the LFS object of these bytes lies.
    pub fn object(&self, bytes: &[u8]) -> PathBuf {
        let sha256 = sha256_hex(bytes);
        self.path().join("lfs/objects").join(&sha256[..2]).join(&sha256[2..4]).join(sha256)
    }

    /// Runs git in the repository and gives what it printed.
    pub fn git(&self, arguments: &[&str]) -> String {
        git(&self.path(), arguments)
    }

    /// Makes a tree of a listing as `git ls-tree` prints it.
    pub fn mktree(&self, listing: &str) -> String {
        let path = self.folder.path().join("tree");
        std::fs::write(&path, listing).expect("listing");
        let mut command = Command::new("git");
        command.arg("mktree").current_dir(self.path()).stdin(std::fs::File::open(path).expect("listing"));
        String::from_utf8(command.output().expect("mktree").stdout).expect("text").trim().to_owned()
    }

    /// The commit of a release with some files exchanged for other blobs, as somebody with a git client makes it.
    pub fn recommit(&self, release: &Release, blobs: &[(&str, &str)]) -> String {
        let mut listing = self.git(&["ls-tree", release.release_id.as_str()]);
        for (path, blob) in blobs {
            let id = self.git(&["rev-parse", blob]);
            listing = listing
                .lines()
                .filter(|line| !line.ends_with(&format!("\t{path}")))
                .map(|line| format!("{line}\n"))
                .collect();
            listing.push_str(&format!("100644 blob {}\t{path}\n", id.trim()));
        }
        let tree = self.mktree(&listing);
        let message = format!("content-id: {}", release.content_id);
        self.git(&["commit-tree", "-m", &message, &tree]).trim().to_owned()
    }

    pub fn fsck_is_clean(&self) {
        let printed = self.git(&["fsck", "--full", "--strict", "--no-dangling"]);
        // A repository without any branch yet is in order; git only remarks on it.
        let complaints: Vec<&str> =
            printed.lines().filter(|line| !line.starts_with("notice: HEAD points to an unborn branch")).collect();
        assert!(complaints.is_empty(), "git fsck: {complaints:?}");
    }
}

pub fn tenant() -> TenantId {
    TenantId::parse("acme").expect("tenant")
}

pub fn name(scenario: &str) -> ScenarioName {
    ScenarioName::parse(scenario).expect("scenario")
}

pub fn manifest(scenario: &str, parent: Option<&Release>) -> ReleaseManifest {
    let sequence = parent.map_or(0, |parent| parent.manifest.sequence + 1);
    ReleaseManifest {
        tenant: tenant(),
        scenario: name(scenario),
        surface: Surface::Weights,
        sequence,
        parent: parent.map(|parent| parent.release_id.clone()),
        origin: if sequence == 0 { ReleaseOrigin::Base } else { ReleaseOrigin::Step { step: sequence } },
        base_model: sha256_hex(b"base"),
        recipe: Some("sao@0.1.0".to_owned()),
        seed: Some(7),
        records: None,
        metrics: BTreeMap::from([("held_out".to_owned(), 0.1 + 0.2), ("reward".to_owned(), -1e-9)]),
        evaluation: None,
        decision: None,
        created_at_ms: 1_750_000_000_123 + i64::from(sequence) * 1_000,
    }
}

pub fn file(path: &str, bytes: &[u8]) -> ReleaseFile {
    ReleaseFile { path: path.to_owned(), bytes: bytes.to_vec() }
}

pub fn adapter_files(adapter: &[u8]) -> Vec<ReleaseFile> {
    vec![file("adapter.safetensors", adapter), file("adapter.json", b"{\"rank\":16}")]
}

/// Bytes that do not compress, different for each seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(step).take(length).collect()
}

/// Runs a git command with an empty home; fails the test if git fails.
pub fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = try_git(folder, folder, arguments);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "git {arguments:?}: {stdout}{stderr}");
    format!("{stdout}{stderr}")
}

pub fn try_git(folder: &Path, home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("git");
    command.current_dir(folder).env("HOME", home).env("GIT_CONFIG_NOSYSTEM", "1").env_remove("XDG_CONFIG_HOME");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "x").env(format!("GIT_{who}_EMAIL"), "x");
    }
    command.args(arguments).output().expect("the git client is installed")
}

pub fn release_id(text: &str) -> ReleaseId {
    ReleaseId::parse(text).expect("release id")
}
