//! A long chain; the times are printed, not judged.

use std::time::Instant;

use crate::fixture::{Fixture, name, noise, tenant};

const RELEASES: usize = 1_000;
/// Releases at each end whose times are compared.
const SAMPLE: usize = 100;
/// Bytes of each adapter.
const ADAPTER_BYTES: usize = 20_000;

#[test]
fn a_thousand_releases_are_written_listed_and_verified() {
    let fixture = Fixture::new();
    let mut head = fixture.release("spell", None, &noise(0, ADAPTER_BYTES));
    let mut write_ms = Vec::new();
    for step in 1..RELEASES {
        let begun = Instant::now();
        head = fixture.release("spell", Some(&head), &noise(step as u64, ADAPTER_BYTES));
        write_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
    let (early, late) = (mean(&write_ms[..SAMPLE]), mean(&write_ms[write_ms.len() - SAMPLE..]));
    write_ms.sort_by(f64::total_cmp);
    let median = write_ms[write_ms.len() / 2];
    let begun = Instant::now();
    let log = fixture.repo.log(&tenant(), &name("spell"), usize::MAX).expect("log");
    let listed = begun.elapsed();
    let begun = Instant::now();
    let page = fixture.repo.log(&tenant(), &name("spell"), 20).expect("log");
    let paged = begun.elapsed();
    let begun = Instant::now();
    fixture.repo.check(&head.release_id).expect("intact");
    let verified = begun.elapsed();
    println!(
        "{RELEASES} releases: write + advance {median:.1} ms (first {SAMPLE}: {early:.1} ms, last {SAMPLE}: {late:.1} ms), \
         log of all {listed:?}, log of 20 {paged:?}, verify {verified:?}"
    );
    assert_eq!((log.len(), page.len()), (RELEASES, 20));
    assert!(log.windows(2).all(|pair| pair[0].manifest.parent.as_ref() == Some(&pair[1].release_id)));
    fixture.fsck_is_clean();
}
