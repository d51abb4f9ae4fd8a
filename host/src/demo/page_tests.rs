//! The page from made-up data in the server's shapes.

use std::time::Duration;

use reef_core::{RecordId, StepOutcome};

use super::*;
use crate::demo::course::{Example, Scored};
use crate::demo::families::{self, Graded};
use crate::demo::scripted;

/// A lesson that went well, with one rejected step and hostile texts.
fn course(family: usize, steps: u32) -> Course {
    let families = families::all();
    let mut course = Course::new(&families[family], 7);
    let scenario = course.scenario.clone();
    let chain: Vec<_> = (0..=steps).map(|sequence| scripted::release(&scenario, sequence)).collect();
    let mut listed = Vec::new();
    for number in 1..=steps {
        let progress = f64::from(number) / f64::from(steps);
        let batch: Vec<RecordId> =
            (0..32).map(|i| RecordId::parse(format!("report-{number}-{i}")).expect("id")).collect();
        for (index, report) in batch.iter().enumerate() {
            let exact = (index as f64) < 32.0 * progress * progress;
            let graded = Graded { reward: if exact { 1.0 } else { 0.2 + 0.25 * progress }, exact };
            let release = chain[number.saturating_sub(2) as usize].release_id.to_string();
            course.score(Scored { report: report.to_string(), graded, release, tokens: 4 });
        }
        let outcome = if number == 3 {
            StepOutcome::Rejected {
                reason: "held-out 0.5700 → 0.4100 on 24 tasks; gate non-inferiority 0.1".to_owned(),
            }
        } else {
            StepOutcome::Released {
                release: chain[number as usize].release_id.clone(),
                reason: "held-out 0.41 → 0.57 <script>alert(1)</script>".to_owned(),
            }
        };
        listed.push(scripted::step(number, chain[number as usize - 1].release_id.clone(), batch, outcome));
    }
    let releases = chain.into_iter().filter(|release| release.manifest.sequence != 3);
    let status = |sequence: u32| Some(if sequence == steps { "served" } else { "retained" }.to_owned());
    let releases =
        releases.map(|release| ListedRelease { status: status(release.manifest.sequence), release }).collect();
    course.before = Some((0..100).map(|i| i < 4).collect());
    course.after = Some((0..100).map(|i| i < 93).collect());
    course.examples = vec![
        Example {
            prompt: "Repeat this word and nothing else: maple".to_owned(),
            wanted: "maple".to_owned(),
            before: "<b>The word is \"maple\"</b> & more".to_owned(),
            after: Some("maple".to_owned()),
        },
        Example {
            prompt: "Repeat this word and nothing else: stone".to_owned(),
            wanted: "stone".to_owned(),
            before: "Sure! {{families}}".to_owned(),
            after: None,
        },
    ];
    assert!(course.learn_history(listed, releases));
    course.head_sequence = steps;
    course.elapsed = Duration::from_secs(173);
    course
}

fn heading() -> Heading {
    Heading { seed: 7, server: "http://127.0.0.1:8420/?a=1&b=<i>".to_owned() }
}

#[test]
fn texts_from_the_server_are_escaped_and_never_taken_for_a_template() {
    let page = render(&heading(), &[course(0, 8)]);
    assert!(!page.contains("<script>") && !page.contains("<b>") && !page.contains("=<i>"));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && page.contains("&amp; more"));
    assert_eq!(page.matches("Sure! {{families}}").count(), 1);
    assert_eq!(page.matches("{{").count(), 1);
}

#[test]
fn the_page_stands_alone() {
    let page = render(&heading(), &[course(0, 8)]);
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    for outside in ["src=", "href=", "@import", "url(", "<link", "<script"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("width=device-width"));
}

#[test]
fn curve_chain_and_steps_show_what_happened() {
    let course = course(0, 8);
    let page = render(&heading(), std::slice::from_ref(&course));
    assert!(page.contains("4 % → 93 %") && page.contains("+89.0 points on 100 held-out prompts"));
    assert_eq!(page.matches("<polyline").count(), 2);
    assert_eq!(page.matches("class=\"dot exact\"").count(), 8);
    assert_eq!(page.matches("class=\"held\"").count(), 2);
    assert!(page.contains("the base model") && page.contains("rejected: held-out 0.5700 → 0.4100"));
    assert!(page.contains(&course.releases[1].release.release_id.as_str()[..10]));
    assert!(
        page.contains("0.410 → 0.570")
            && page.contains("2.5e-5")
            && page.contains("<td>128</td><td>2.2</td><td>1.50</td><td>0.062</td>"),
        "{page}"
    );
    assert!(page.contains("complete."));
}

#[test]
fn the_lag_is_counted_in_releases() {
    let course = course(0, 8);
    assert_eq!(course.steps[0].lag, Some(0.0));
    assert_eq!(course.steps[1].lag, Some(1.0));
    // Release 3 does not exist, so what stands on it has no lag.
    assert_eq!(course.steps[3].lag, None);
}

#[test]
fn a_page_before_anything_happened_says_so() {
    let families = families::all();
    let waiting: Vec<Course> = families.iter().map(|family| Course::new(family, 1)).collect();
    let page = render(&heading(), &waiting);
    assert!(page.contains("waits for its turn") && page.contains("still running, 0 of 3 families done"));
}

/// For looking at the page in a browser: set `REEF_DEMO_PAGE` to a path and run this test.
#[test]
fn a_sample_page_is_written_on_request() {
    let Some(path) = std::env::var_os("REEF_DEMO_PAGE") else { return };
    let families = families::all();
    let courses = [course(0, 8), course(1, 26), Course::new(&families[2], 7)];
    std::fs::write(path, render(&heading(), &courses)).expect("written");
}
