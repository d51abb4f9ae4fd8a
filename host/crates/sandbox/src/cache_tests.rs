//! The folder of compiled code: what is found again, and everything that is refused.

use std::os::unix::fs::{chown, symlink};

use super::*;
use crate::engine::settings;

const COMPONENT: &[u8] = b"(component (core module (func (export \"f\") (result i32) (i32.const 42))))";

struct Place {
    _root: TempDir,
    config: SandboxConfig,
    engine: Engine,
    code: Vec<u8>,
}

impl Place {
    fn new() -> Self {
        let root = TempDir::new().expect("a folder");
        let config = SandboxConfig { cache_dir: Some(root.path().join("compiled")), ..Default::default() };
        let engine = Engine::new(&settings()).expect("an engine");
        let code = engine.precompile_component(&wat::parse_bytes(COMPONENT).expect("text")).expect("compiles");
        Self { _root: root, config, engine, code }
    }

    fn folder(&self) -> PathBuf {
        self.config.cache_dir.clone().expect("set")
    }

    fn open(&self) -> Option<Cache> {
        Cache::open(&self.config, &self.engine)
    }

    fn filled(&self, component: &[u8]) -> (Cache, String) {
        let cache = self.open().expect("fit");
        let name = cache.name(component);
        cache.keep(&name, &Artefact::write(cache.folder(), &self.code).expect("written"));
        (cache, name)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<PathBuf> = fs::read_dir(self.folder())
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.to_string_lossy().ends_with(ENDING))
            .collect();
        files.sort();
        files
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").mode() & 0o777
}

#[test]
fn what_is_kept_is_found_again_by_another_host_and_is_private() {
    let place = Place::new();
    let (first, name) = place.filled(b"a");
    assert!(first.load(&place.engine, &name).is_some());
    assert!(first.load(&place.engine, &first.name(b"b")).is_none());
    let second = place.open().expect("fit");
    assert_eq!(second.name(b"a"), name);
    assert!(second.load(&place.engine, &name).is_some());
    assert_eq!((mode(&place.folder()), mode(&place.folder().join(KEY_NAME))), (0o700, 0o600));
    assert_eq!(mode(&place.files()[0]), 0o600);
    let left = fs::read_dir(place.folder()).expect("a folder").count();
    assert_eq!(left, 2, "the key and the code, and nothing of the work");
}

/// Each damage, and then nothing is loaded and the file is gone.
#[test]
fn damaged_and_foreign_code_is_refused_and_removed() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 6] = [
        ("cut off", |path| File::options().write(true).open(path).expect("open").set_len(1_000).expect("cut")),
        ("empty", |path| fs::write(path, b"").expect("written")),
        ("one bit", |path| {
            let mut bytes = fs::read(path).expect("read");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
            fs::write(path, bytes).expect("written");
        }),
        ("more", |path| {
            let mut bytes = fs::read(path).expect("read");
            bytes.push(0);
            fs::write(path, bytes).expect("written");
        }),
        ("writable by others", |path| fs::set_permissions(path, Permissions::from_mode(0o666)).expect("set")),
        ("a link", |path| {
            let target = path.with_extension("target");
            fs::rename(path, &target).expect("renamed");
            symlink(&target, path).expect("linked");
        }),
    ];
    for (what, damage) in damages {
        let place = Place::new();
        let (cache, name) = place.filled(b"a");
        damage(&place.files()[0]);
        assert!(cache.load(&place.engine, &name).is_none(), "{what}");
        assert!(place.files().is_empty(), "{what}");
        cache.keep(&name, &Artefact::write(cache.folder(), &place.code).expect("written"));
        assert!(cache.load(&place.engine, &name).is_some(), "{what}: compiled anew");
    }
}

#[test]
fn code_of_another_component_or_another_key_is_refused() {
    let place = Place::new();
    let (cache, name) = place.filled(b"a");
    let file = place.files()[0].clone();
    let other = cache.name(b"b");
    let renamed = file.to_string_lossy().replace(&name, &other);
    fs::rename(&file, &renamed).expect("renamed");
    assert!(cache.load(&place.engine, &other).is_none(), "good code under another component's name");

    let (_, name) = place.filled(b"a");
    fs::write(place.folder().join(KEY_NAME), [7; KEY_BYTES]).expect("written");
    assert!(place.open().expect("fit").load(&place.engine, &name).is_none(), "signed with another key");
}

#[test]
fn files_of_another_user_are_refused() {
    if !geteuid().is_root() {
        let config = SandboxConfig { cache_dir: Some("/usr".into()), ..Default::default() };
        assert!(Cache::open(&config, &Place::new().engine).is_none());
        return;
    }
    let place = Place::new();
    let (cache, name) = place.filled(b"a");
    chown(&place.files()[0], Some(12_345), None).expect("root may");
    assert!(cache.load(&place.engine, &name).is_none());
    let (cache, name) = place.filled(b"a");
    chown(place.folder(), Some(12_345), None).expect("root may");
    assert!(cache.load(&place.engine, &name).is_none() && place.open().is_none());
}

#[test]
fn an_unfit_folder_or_key_means_no_cache() {
    let place = Place::new();
    drop(place.filled(b"a"));
    let (folder, key) = (place.folder(), place.folder().join(KEY_NAME));
    let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    for open in [0o770, 0o702] {
        set(&folder, open);
        assert!(place.open().is_none(), "{open:o}");
    }
    set(&folder, 0o700);
    set(&key, 0o640);
    assert!(place.open().is_none(), "a key that others can read");
    set(&key, 0o600);
    assert!(place.open().is_some());
    fs::write(&key, b"short").expect("written");
    assert!(place.open().is_none(), "a key that is cut off");

    let elsewhere = Place::new();
    symlink(&folder, elsewhere.folder()).expect("linked");
    assert!(elsewhere.open().is_none(), "a link");
    let occupied = Place::new();
    fs::write(occupied.folder(), b"").expect("written");
    assert!(occupied.open().is_none(), "a file");
}

#[test]
fn the_least_recently_used_go_first() {
    let mut place = Place::new();
    place.config.cache_entries_max = 2;
    let (cache, a) = place.filled(b"a");
    let (_, b) = place.filled(b"b");
    let age = |name: &str, seconds| {
        let path = place.files().into_iter().find(|path| path.to_string_lossy().contains(name)).expect("there");
        let time = SystemTime::now() - std::time::Duration::from_secs(seconds);
        File::open(path).expect("open").set_modified(time).expect("set");
    };
    age(&a, 500);
    age(&b, 400);
    assert!(cache.load(&place.engine, &a).is_some(), "which makes it the younger one");
    let (_, c) = place.filled(b"c");
    assert!(cache.load(&place.engine, &b).is_none());
    assert!(cache.load(&place.engine, &a).is_some() && cache.load(&place.engine, &c).is_some());

    let mut tight = Place::new();
    tight.config.cache_bytes_max = tight.code.len() as u64 * 3 / 2;
    drop((tight.filled(b"a"), tight.filled(b"b")));
    assert_eq!(tight.files().len(), 1);
}

#[test]
fn a_mapped_component_outlives_its_file() {
    let place = Place::new();
    let (cache, name) = place.filled(b"a");
    let component = cache.load(&place.engine, &name).expect("there");
    fs::remove_dir_all(place.folder()).expect("removed");
    assert_eq!(component.serialize().expect("still there"), place.code);
}
