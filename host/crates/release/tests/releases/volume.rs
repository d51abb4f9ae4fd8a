//! A long chain; the times are printed, not judged.

use std::time::Instant;

use crate::fixture::{Fixture, name, noise, tenant};

const RELEASES: usize = 1_000;
/// Bytes of each adapter.
const ADAPTER_BYTES: usize = 20_000;

#[test]
fn a_thousand_releases_are_written_listed_and_verified() {
    let fixture = Fixture::new();
    let begun = Instant::now();
    let mut slowest = 0.0_f64;
    let mut head = fixture.release("spell", None, &noise(0, ADAPTER_BYTES));
    for step in 1..RELEASES {
        let write = Instant::now();
        head = fixture.release("spell", Some(&head), &noise(step as u64, ADAPTER_BYTES));
        slowest = slowest.max(write.elapsed().as_secs_f64() * 1e3);
    }
    let written = begun.elapsed();
    let begun = Instant::now();
    let log = fixture.repo.log(&tenant(), &name("spell"), usize::MAX).expect("log");
    let listed = begun.elapsed();
    let begun = Instant::now();
    let page = fixture.repo.log(&tenant(), &name("spell"), 20).expect("log");
    let paged = begun.elapsed();
    let begun = Instant::now();
    fixture.repo.verify(&head.release_id).expect("intact");
    let verified = begun.elapsed();
    println!(
        "{RELEASES} releases: write + advance {:.1} ms each (slowest {slowest:.1} ms), log of all {listed:?}, of 20 {paged:?}, verify {verified:?}",
        written.as_secs_f64() * 1e3 / RELEASES as f64
    );
    assert_eq!((log.len(), page.len()), (RELEASES, 20));
    assert!(log.windows(2).all(|pair| pair[0].manifest.parent.as_ref() == Some(&pair[1].release_id)));
    fixture.fsck_is_clean();
}
