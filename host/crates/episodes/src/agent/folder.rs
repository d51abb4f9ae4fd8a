//! The working folder as the agent's file tools see it: nothing outside of it can be named, and links are not followed,
//! neither at the end of a path nor on the way. The kernel resolves each path beneath the folder (`openat2`), so that a
//! program that changes the folder meanwhile cannot lead a tool astray.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, mkdirat, open, openat2};
use rustix::io::Errno;

/// Bytes of a file that a tool reads.
pub const READ_BYTES_MAX: usize = 1 << 20;
/// Bytes of a file that a tool writes.
pub const WRITE_BYTES_MAX: usize = 1 << 20;
/// Files that one search looks into.
const FILES_MAX: usize = 2_000;
/// Folders within each other that a search enters.
const DEPTH_MAX: usize = 12;

/// Files by path, with their text where they are text; and whether those are all that there are.
pub type Walked = (Vec<(String, Option<String>)>, bool);

/// An open working folder.
#[derive(Debug)]
pub struct Folder {
    root: OwnedFd,
    /// Where it is, here and inside a cage: a model often repeats it.
    names: Vec<PathBuf>,
}

impl Folder {
    /// Opens the folder. `known_as`: what else it is called.
    pub fn open(path: &Path, known_as: &str) -> std::io::Result<Self> {
        let root = open(path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())?;
        Ok(Self { root, names: vec![path.to_owned(), PathBuf::from(known_as)] })
    }

    /// The text of a file.
    pub fn read(&self, path: &str) -> Result<String, String> {
        let relative = self.relative(path)?;
        let mut bytes = Vec::new();
        let file = self.file(&relative, OFlags::RDONLY).map_err(|error| told(path, error))?;
        let most = READ_BYTES_MAX as u64;
        file.take(most + 1).read_to_end(&mut bytes).map_err(|error| format!("{path}: {error}"))?;
        if bytes.len() > READ_BYTES_MAX {
            return Err(format!("{path}: it has more than {READ_BYTES_MAX} bytes; look at a part of it with exec"));
        }
        String::from_utf8(bytes).map_err(|_| format!("{path}: it is not text"))
    }

    /// Writes a file, and the folders above it.
    pub fn write(&self, path: &str, text: &str) -> Result<(), String> {
        if text.len() > WRITE_BYTES_MAX {
            return Err(format!("{path}: {} bytes are over the limit of {WRITE_BYTES_MAX}", text.len()));
        }
        let relative = self.relative(path)?;
        let mut above = PathBuf::new();
        for part in relative.parent().into_iter().flat_map(Path::components) {
            let folder = self.folder(&above).map_err(|error| told(path, error))?;
            match mkdirat(&folder, part.as_os_str(), Mode::from(0o755)) {
                Ok(()) | Err(Errno::EXIST) => above.push(part),
                Err(error) => return Err(told(path, error)),
            }
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let mut file = self.file(&relative, flags).map_err(|error| told(path, error))?;
        file.write_all(text.as_bytes()).map_err(|error| format!("{path}: {error}"))
    }

    /// The files under a path, in order.
    pub fn walk(&self, path: &str) -> Result<Walked, String> {
        let start = self.relative(path)?;
        let (mut files, mut open) = (Vec::new(), vec![start]);
        while let Some(at) = open.pop() {
            let entries = self.entries(&at).map_err(|error| told(&at.display().to_string(), error))?;
            for (name, kind) in entries {
                let inner = at.join(name);
                match kind {
                    FileType::Directory if inner.components().count() <= DEPTH_MAX => open.push(inner),
                    FileType::RegularFile => files.push(inner),
                    _ => {}
                }
            }
            if files.len() > FILES_MAX {
                break;
            }
        }
        files.sort();
        let complete = files.len() <= FILES_MAX;
        let shown = |path: PathBuf| (path.display().to_string(), self.read(&path.display().to_string()).ok());
        Ok((files.into_iter().take(FILES_MAX).map(shown).collect(), complete))
    }

    fn entries(&self, path: &Path) -> Result<Vec<(String, FileType)>, Errno> {
        let folder = self.folder(path)?;
        let mut found = Vec::new();
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                found.push((name, entry.file_type()));
            }
        }
        Ok(found)
    }

    fn folder(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.beneath(path, OFlags::DIRECTORY | OFlags::RDONLY)
    }

    /// A plain file. One that is a pipe or a device is neither waited for nor used.
    fn file(&self, path: &Path, flags: OFlags) -> Result<File, Errno> {
        let file = File::from(self.beneath(path, flags | OFlags::NONBLOCK)?);
        let plain = file.metadata().is_ok_and(|found| found.is_file());
        if plain { Ok(file) } else { Err(Errno::ISDIR) }
    }

    fn beneath(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mode = if flags.contains(OFlags::CREATE) { Mode::from(0o644) } else { Mode::empty() };
        openat2(&self.root, path, flags | OFlags::CLOEXEC, mode, resolve)
    }

    /// The path as seen from the folder. An absolute one must name the folder itself.
    fn relative(&self, path: &str) -> Result<PathBuf, String> {
        if path.contains('\0') {
            return Err("the path holds a NUL".to_owned());
        }
        let given = Path::new(path);
        let inside = self.names.iter().find_map(|name| given.strip_prefix(name).ok()).unwrap_or(given);
        let mut plain = PathBuf::new();
        for part in inside.components() {
            match part {
                Component::Normal(part) => plain.push(part),
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                    return Err(format!("{path}: it is outside of the working folder; name a path within it"));
                }
            }
        }
        Ok(plain)
    }
}

fn told(path: &str, error: Errno) -> String {
    match error {
        Errno::LOOP | Errno::XDEV => format!("{path}: it is, or leads over, a link; links are not followed"),
        Errno::ISDIR | Errno::NXIO => format!("{path}: it is no plain file"),
        other => format!("{path}: {}", std::io::Error::from(other)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let place = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(place.path(), "/work").expect("opened");
        (place, folder)
    }

    #[test]
    fn files_are_written_and_read_by_any_of_the_folders_names() {
        let (place, folder) = folder();
        folder.write("a/b/c.txt", "text\n").expect("written");
        let absolute = place.path().join("a/b/c.txt").display().to_string();
        for path in ["a/b/c.txt", "./a/b/c.txt", "/work/a/b/c.txt", &absolute] {
            assert_eq!(folder.read(path), Ok("text\n".to_owned()), "{path}");
        }
        assert_eq!(folder.walk("a"), Ok((vec![("a/b/c.txt".to_owned(), Some("text\n".to_owned()))], true)));
    }

    #[test]
    fn nothing_outside_is_reached() {
        let (place, folder) = folder();
        let outside = tempfile::tempdir().expect("a folder");
        std::fs::write(outside.path().join("secret"), "s").expect("written");
        symlink(outside.path(), place.path().join("out")).expect("linked");
        symlink(outside.path().join("secret"), place.path().join("one")).expect("linked");
        symlink("/etc/passwd", place.path().join("new")).expect("linked");
        for path in ["/etc/passwd", "../x", "a/../../x", "out/secret", "one", "new", ".", "a\0b"] {
            assert!(folder.read(path).is_err(), "{path}");
            assert!(folder.write(path, "x").is_err(), "{path}");
        }
        assert_eq!(std::fs::read_to_string(outside.path().join("secret")).expect("read"), "s");
        assert!(folder.read("out/secret").expect_err("a link").contains("links are not followed"));
        assert!(folder.walk("out").is_err());
        assert_eq!(folder.walk("").expect("walked").0, []);
    }

    #[test]
    fn what_is_no_text_is_told_and_a_pipe_is_not_waited_for() {
        let (place, folder) = folder();
        std::fs::write(place.path().join("bytes"), [0xff, 0xfe]).expect("written");
        assert!(folder.read("bytes").expect_err("bytes").contains("not text"));
        let pipe = place.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).expect("a pipe");
        assert!(folder.read("pipe").expect_err("a pipe").contains("no plain file"));
        std::fs::write(place.path().join("big"), vec![b'a'; READ_BYTES_MAX + 1]).expect("written");
        assert!(folder.read("big").expect_err("big").contains("more than"));
        assert!(folder.write("big", &"a".repeat(WRITE_BYTES_MAX + 1)).is_err());
    }
}
