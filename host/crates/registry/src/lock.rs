//! The lock file (`recipes.lock`): which code a tag stood for when it was accepted. Whoever pulls by tag asks it; a tag
//! that moved is refused until somebody says `--update`. One line a tag, sorted, fit for version control.
//! It pins the component, not the manifest: a new signature on the same code is no move.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::files::{PlainFile, damaged, replace};
use crate::{Digest, Reference, RegistryError};

/// Bytes of a lock file; a line has about 150.
const LOCK_BYTES_MAX: u64 = 1024 * 1024;
const HEADER: &str =
    "# Which code each recipe stood for when it was accepted; `reef recipe pull --update` accepts a new one.\n";

/// The accepted digests, as read from one file.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    pins: BTreeMap<String, Digest>,
}

/// What a check found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checked {
    /// The tag stands for the code that was accepted.
    Same,
    /// The tag was never seen; [`Lock::accept`] pins it.
    New,
}

impl Lock {
    /// Reads the file; an absent one is empty.
    pub fn read(path: &Path) -> Result<Self, RegistryError> {
        let mut pins = BTreeMap::new();
        let text = PlainFile::open_if_there(path)?.map(|file| file.read_text(LOCK_BYTES_MAX)).transpose()?;
        for (index, line) in text.unwrap_or_default().lines().enumerate() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let pin = line.split_once(' ').and_then(|(name, digest)| {
                let reference = Reference::parse(name, None).ok()?;
                Some((key(&reference), digest.parse::<Digest>().ok()?))
            });
            let (name, digest) = pin.ok_or_else(|| {
                damaged(path, &format!("line {} is not 'host/name:version sha256:…'; correct or remove it", index + 1))
            })?;
            if pins.insert(name, digest).is_some() {
                return Err(damaged(path, &format!("line {} pins a recipe a second time; remove one", index + 1)));
            }
        }
        Ok(Self { path: path.to_path_buf(), pins })
    }

    /// The digest that is pinned for a reference.
    pub fn pinned(&self, reference: &Reference) -> Option<&Digest> {
        self.pins.get(&key(reference))
    }

    /// Refuses a component that is not the pinned one; `update` lets a moved tag through.
    pub fn check(&self, reference: &Reference, component: &Digest, update: bool) -> Result<Checked, RegistryError> {
        match self.pinned(reference) {
            None => Ok(Checked::New),
            Some(locked) if locked == component => Ok(Checked::Same),
            Some(_) if update => Ok(Checked::New),
            Some(locked) => Err(RegistryError::Moved {
                reference: key(reference),
                lock: self.path.clone(),
                locked: locked.to_string(),
                found: component.to_string(),
            }),
        }
    }

    /// Pins a component and writes the file; gives the digest that was pinned before.
    pub fn accept(&mut self, reference: &Reference, component: Digest) -> Result<Option<Digest>, RegistryError> {
        let before = self.pins.insert(key(reference), component);
        if before != Some(component) {
            self.write()?;
        }
        Ok(before)
    }

    fn write(&self) -> Result<(), RegistryError> {
        let lines: String = self.pins.iter().map(|(name, digest)| format!("{name} {digest}\n")).collect();
        replace(&self.path, format!("{HEADER}{lines}").as_bytes(), 0o644)
    }
}

/// The reference as the file names it. A digest in it pins itself, so it takes no part in the name.
fn key(reference: &Reference) -> String {
    match reference.tag() {
        Some(tag) => format!("{}/{}:{tag}", reference.host(), reference.repository()),
        None => format!("{}/{}", reference.host(), reference.repository()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn reference(text: &str) -> Reference {
        Reference::parse(text, None).expect("valid")
    }

    #[test]
    fn a_moved_tag_is_refused_until_it_is_accepted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("recipes.lock");
        let (sao, old, new) = (reference("r.example.com/sao:1"), Digest::of(b"old"), Digest::of(b"new"));
        let mut lock = Lock::read(&path).expect("absent is empty");
        assert_eq!(lock.check(&sao, &old, false).expect("never seen"), Checked::New);
        assert_eq!(lock.accept(&sao, old).expect("written"), None);

        let mut lock = Lock::read(&path).expect("read");
        assert_eq!(lock.check(&sao, &old, false).expect("the same"), Checked::Same);
        let refusal = lock.check(&sao, &new, false).expect_err("moved").to_string();
        for part in ["r.example.com/sao:1 moved", "--update", &old.to_string(), &new.to_string(), "recipes.lock"] {
            assert!(refusal.contains(part), "{part}: {refusal}");
        }
        assert_eq!(lock.check(&sao, &new, true).expect("allowed"), Checked::New);
        assert_eq!(lock.accept(&sao, new).expect("written"), Some(old));
        assert_eq!(Lock::read(&path).expect("read").pinned(&sao), Some(&new));
        assert_eq!(Lock::read(&path).expect("read").pinned(&reference("r.example.com/sao:2")), None);
    }

    #[test]
    fn a_damaged_lock_names_the_line_and_pins_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("recipes.lock");
        let good = format!("r.example.com/sao:1 {}\n", Digest::of(b"x"));
        for (text, part) in [
            (format!("{good}nonsense\n"), "line 2"),
            (good.replace("sha256:", "md5:"), "line 1"),
            (format!("{good}{good}"), "second time"),
        ] {
            fs::write(&path, text).expect("written");
            let refusal = Lock::read(&path).expect_err(part).to_string();
            assert!(refusal.contains(part), "{refusal}");
        }
        fs::remove_file(&path).expect("removed");
        std::os::unix::fs::symlink("/etc/passwd", &path).expect("a link");
        assert!(Lock::read(&path).expect_err("a link").to_string().contains("link"));
    }
}
