//! The shelf on a real disk: damage, links, modes, limits, many writers.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::thread;

use reef_registry::{Digest, RegistryError, Shelf, ShelfLimits};
use tempfile::TempDir;

fn shelf(folder: &TempDir) -> Shelf {
    Shelf::new(&folder.path().join("data/recipes")).expect("a shelf")
}

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn a_shelf_gives_back_what_it_got_and_nobody_else_reads_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let shelf = shelf(&folder);
    let digest = shelf.put(b"code").expect("kept");
    assert_eq!(digest, Digest::of(b"code"));
    assert_eq!(shelf.put(b"code").expect("again"), digest);
    assert_eq!(shelf.get(&digest).expect("read"), Some(b"code".to_vec()));
    assert_eq!(shelf.get(&Digest::of(b"other")).expect("absent"), None);
    assert_eq!((mode(&folder.path().join("data/recipes")), mode(&shelf.path(&digest))), (0o700, 0o600));
    let again = Shelf::new(&folder.path().join("data/recipes")).expect("reopened");
    assert_eq!(again.list().expect("listed").iter().map(|s| (s.digest, s.size)).collect::<Vec<_>>(), [(digest, 4)]);
}

#[test]
fn damage_is_found_by_every_get_and_mended_by_a_put() {
    let folder = tempfile::tempdir().expect("a folder");
    let shelf = shelf(&folder);
    let digest = shelf.put(b"code").expect("kept");
    for damage in [&b"Code"[..], b"", b"cod", b"code and more"] {
        fs::write(shelf.path(&digest), damage).expect("damaged");
        let refusal = shelf.get(&digest).expect_err("damaged").to_string();
        assert!(refusal.contains("is damaged") && refusal.contains("get the recipe again"), "{refusal}");
        shelf.put(b"code").expect("mended");
        assert_eq!(shelf.get(&digest).expect("read"), Some(b"code".to_vec()));
    }
}

#[test]
fn links_are_never_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let outside = folder.path().join("outside");
    fs::write(&outside, b"code").expect("written");
    let shelf = shelf(&folder);
    let path = shelf.path(&Digest::of(b"code"));
    symlink(&outside, &path).expect("a link");
    assert!(shelf.get(&Digest::of(b"code")).expect_err("a link").to_string().contains("link"));
    shelf.put(b"code").expect("replaces the link itself");
    assert!(fs::symlink_metadata(&path).expect("there").is_file());
    fs::remove_file(&path).expect("removed");
    fs::hard_link(&outside, &path).expect("a second name");
    assert!(shelf.get(&Digest::of(b"code")).expect_err("a second name").to_string().contains("hard link"));
    fs::remove_file(&path).expect("removed");
    symlink("/nowhere/at/all", &path).expect("a link to nothing");
    assert!(shelf.get(&Digest::of(b"code")).is_err());

    let alias = folder.path().join("alias");
    symlink(folder.path().join("data/recipes"), &alias).expect("a link");
    assert!(Shelf::new(&alias).expect_err("a link").to_string().contains("link"));
    assert_eq!(fs::read(&outside).expect("untouched"), b"code");
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let open = folder.path().join("open");
    fs::create_dir(&open).expect("made");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("chmod");
    assert!(Shelf::new(&open).expect_err("open to all").to_string().contains("chmod 700"));
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("chmod");
    Shelf::new(&open).expect("taken over");
    assert_eq!(mode(&open), 0o700);
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("written");
    assert!(Shelf::new(&file).is_err());
}

#[test]
fn limits_hold_and_removing_makes_room() {
    let folder = tempfile::tempdir().expect("a folder");
    let limits = ShelfLimits { file_bytes_max: 8, total_bytes_max: 16, files_max: 3 };
    let shelf = Shelf::with_limits(&folder.path().join("recipes"), limits).expect("a shelf");
    assert!(matches!(shelf.put(&[0; 9]), Err(RegistryError::TooLarge { bytes_max: 8, .. })));
    let first = shelf.put(&[1; 8]).expect("kept");
    let second = shelf.put(&[2; 8]).expect("kept");
    assert!(shelf.put(&[3]).expect_err("17 bytes").to_string().contains("the shelf is full"));
    assert_eq!(shelf.put(&[1; 8]).expect("is there already"), first);
    assert!(shelf.remove(&first).expect("removed") && !shelf.remove(&first).expect("gone"));
    let small = [shelf.put(&[4]).expect("kept"), shelf.put(&[5]).expect("kept")];
    assert!(shelf.put(&[6]).expect_err("a fourth").to_string().contains("at most 3"));
    let removed = shelf.retain(&BTreeSet::from(small)).expect("retained");
    assert_eq!(removed.iter().map(|shelved| shelved.digest).collect::<Vec<_>>(), [second]);
    // A file that grew behind our back is not read to its end.
    fs::write(shelf.path(&small[0]), vec![0; 1 << 20]).expect("grown");
    assert!(matches!(shelf.get(&small[0]), Err(RegistryError::TooLarge { .. })));
}

#[test]
fn many_writers_of_the_same_recipes_leave_whole_files_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let shelf = shelf(&folder);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for recipe in 0..20_u8 {
                    let digest = shelf.put(&vec![recipe; 10_000]).expect("kept");
                    assert_eq!(shelf.get(&digest).expect("whole").expect("there").len(), 10_000);
                }
            });
        }
    });
    assert_eq!(shelf.list().expect("listed").len(), 20);
    let names = fs::read_dir(folder.path().join("data/recipes")).expect("listed").count();
    assert_eq!(names, 20, "no unfinished file stays");
}
