//! Names: which reference a scenario has, and which paths a release may hold.

use gix::bstr::ByteSlice;
use reef_core::{ReleaseId, ScenarioName, Surface, TenantId};

use crate::ReleaseError;

/// Bytes of a path; the limit of a single name on common file systems.
const PATH_BYTES_MAX: usize = 255;
/// Characters of an offending path that an error repeats.
const SHOWN_CHARS_MAX: usize = 80;
/// Written by Reef itself.
pub const MANIFEST: &str = "manifest.json";
/// Written by Reef itself, when releases are signed.
pub const SIGNATURE: &str = "release.sig";
/// Written by Reef itself.
pub const ATTRIBUTES: &str = ".gitattributes";
/// Files by which a release could reconfigure the git of whoever clones it.
const GIT_CONTROL_FILES: [&str; 3] = [ATTRIBUTES, ".gitmodules", ".lfsconfig"];

/// One chain of a scenario.
pub type Chain<'a> = (&'a TenantId, &'a ScenarioName, Surface);

/// `refs/heads/<tenant>/<scenario>`: the head of the weights of a scenario; with `@<surface>` at its end, that of
/// another surface.
///
/// ':' becomes '+', and a name that git refuses at its end gets '='; no scenario name holds one of these
/// signs, so two chains never share a branch.
pub fn branch((tenant, scenario, surface): Chain<'_>) -> String {
    let scenario = scenario.as_str();
    let end = if scenario.ends_with('.') || scenario.ends_with(".lock") { "=" } else { "" };
    let mut name = format!("refs/heads/{tenant}/{}{end}", scenario.replace(':', "+"));
    if surface != Surface::Weights {
        name.push('@');
        name.push_str(surface.as_str());
    }
    name
}

/// `refs/reef/releases/<commit>`: keeps a release from git's garbage collection, head or not.
pub fn retaining(release: &ReleaseId) -> String {
    format!("{RETAINED}{release}")
}

/// `refs/remotes/<remote>/<branch>`: the newest verified release that a remote is known to have.
pub fn remote_branch(remote: &str, chain: Chain<'_>) -> String {
    branch(chain).replacen(HEADS, &format!("{REMOTES}{remote}/"), 1)
}

/// `refs/reef/quarantine/<remote>/<branch>`: what a remote gave and nobody has verified.
pub fn quarantine(remote: &str, chain: Chain<'_>) -> String {
    branch(chain).replacen(HEADS, &format!("{QUARANTINE}{remote}/"), 1)
}

/// Start of the names of `branch`.
pub const HEADS: &str = "refs/heads/";
/// Start of the names of `remote_branch`.
pub const REMOTES: &str = "refs/remotes/";
/// Start of the names of `quarantine`.
pub const QUARANTINE: &str = "refs/reef/quarantine/";
/// Start of the names of `retaining`.
pub const RETAINED: &str = "refs/reef/releases/";

/// Is the file stored as a Git LFS object? The rule of `ATTRIBUTES_TEXT`.
pub fn is_lfs(path: &str) -> bool {
    path.ends_with(".safetensors")
}

/// Content of `.gitattributes`.
pub const ATTRIBUTES_TEXT: &[u8] = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n";

/// Escaped and shortened, for an error.
pub fn shown(path: &str) -> String {
    path.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_default).collect()
}

/// Refuses paths that leave the tree, that git or a common file system cannot hold, or that control git.
pub fn check_path(path: &str) -> Result<(), ReleaseError> {
    let refused = |rule: String| Err(ReleaseError::Path { shown: shown(path), rule });
    if path.is_empty() || path.len() > PATH_BYTES_MAX {
        return refused(format!("a path has 1 to {PATH_BYTES_MAX} bytes"));
    }
    if path.chars().any(char::is_control) {
        return refused("a path has no control characters".to_owned());
    }
    if let Some(own) = [MANIFEST, SIGNATURE].into_iter().find(|own| path.eq_ignore_ascii_case(own)) {
        return refused(format!("{own} is written by Reef"));
    }
    for name in path.split('/') {
        if name.is_empty() || name == "." || name == ".." {
            return refused("a path is relative, without empty names, '.' or '..'".to_owned());
        }
        if GIT_CONTROL_FILES.iter().any(|control| name.eq_ignore_ascii_case(control)) {
            return refused(format!("a release may not bring its own {name}"));
        }
        if let Err(error) = gix::validate::path::component(name.as_bytes().as_bstr(), None, Default::default()) {
            return refused(error.to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn branch_of(scenario: &str, surface: Surface) -> String {
        branch((&TenantId::parse("acme").expect("tenant"), &ScenarioName::parse(scenario).expect("scenario"), surface))
    }

    #[test]
    fn ordinary_names_are_their_own_branches() {
        assert_eq!(branch_of("spell-v1.2", Surface::Weights), "refs/heads/acme/spell-v1.2");
        assert_eq!(branch_of("team:spell", Surface::Weights), "refs/heads/acme/team+spell");
        assert_eq!(branch_of("team:spell", Surface::Harness), "refs/heads/acme/team+spell@harness");
    }

    #[test]
    fn every_chain_has_a_valid_branch_of_its_own() {
        let alphabet = ["a", "A", ".", ":", "-", "_", ".lock", "lock", "9"];
        let mut seen = std::collections::BTreeMap::new();
        for first in alphabet {
            for second in alphabet {
                for third in alphabet {
                    let Ok(name) = ScenarioName::parse(format!("s{first}{second}{third}")) else { continue };
                    for surface in [Surface::Weights, Surface::Harness] {
                        let branch = branch_of(name.as_str(), surface);
                        assert!(gix::refs::FullName::try_from(branch.as_str()).is_ok(), "{branch}");
                        let chain = (name.clone(), surface);
                        let other = seen.insert(branch, chain.clone());
                        assert!(other.as_ref().is_none_or(|other| *other == chain), "{other:?} and {chain:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn hostile_paths_are_refused_with_the_rule() {
        let long = "a".repeat(256);
        let hostile = [
            "",
            "/etc/passwd",
            "..",
            "../a",
            "a/../b",
            "a//b",
            "a/",
            "./a",
            ".git/config",
            "a/.GIT/hooks/x",
            "git~1/x",
            "a\\b",
            "a\0b",
            "a\nb",
            "manifest.json",
            "Manifest.JSON",
            "release.SIG",
            ".gitattributes",
            "a/.gitattributes",
            ".gitmodules",
            ".lfsconfig",
            "con",
            "a:b",
            "trailing.",
            &long,
        ];
        for path in hostile {
            let refusal = check_path(path).expect_err(path).to_string();
            assert!(refusal.starts_with("release file '") && refusal.ends_with("; rename the file"), "{refusal}");
        }
        for path in ["a", "skills/spell/SKILL.md", ".gitignore", "adapter.safetensors", "ü/ß.md", "sub/manifest.json"]
        {
            check_path(path).expect(path);
        }
    }
}
