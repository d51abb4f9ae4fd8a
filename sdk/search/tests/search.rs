//! The driver: determinism, resuming, failures, and that it finds what can be found.

use reef_search::{Node, Problem, Rollout, Search, SearchError, Settings};

/// Find 1,000 by changing a number a little; odd proposals are malformed and multiples of 10 invalid.
struct Number;

impl Problem for Number {
    fn propose(&mut self, parent: &Node, rollout: &Rollout) -> Result<String, String> {
        let number: i64 = parent.construction.parse().map_err(|error| format!("{error}"))?;
        let moved = number + (rollout.seed % 41) as i64 - 20;
        if moved % 2 == 0 { Ok(moved.to_string()) } else { Err("odd".into()) }
    }

    fn verify(&mut self, construction: &str) -> Result<f64, String> {
        let number: f64 = construction.parse().map_err(|error| format!("{error}"))?;
        if number % 10.0 == 0.0 && number != 1_000.0 {
            Err("a multiple of 10".into())
        } else {
            Ok(-(1_000.0 - number).abs())
        }
    }
}

fn settings(seed: u64) -> Settings {
    Settings { groups_per_step: 2, rollouts_per_group: 8, seed, ..Settings::default() }
}

#[expect(clippy::expect_used, reason = "a test that cannot start has failed")]
fn search(seed: u64) -> Search {
    Search::new(settings(seed), vec![("2".into(), -998.0), ("4".into(), -996.0)]).expect("starts")
}

#[expect(clippy::expect_used, reason = "a test that cannot go on has failed")]
fn run(search: &mut Search, steps: usize) {
    for _ in 0..steps {
        search.step(&mut Number).expect("steps");
    }
}

#[test]
fn it_finds_what_many_small_changes_lead_to() {
    let mut search = search(1);
    run(&mut search, 150);
    assert_eq!(search.archive().best().map(|node| (node.construction.as_str(), node.value)), Some(("1000", 0.0)));
}

#[test]
fn the_same_seed_is_the_same_search_and_another_seed_another() {
    let (mut first, mut again, mut other) = (search(1), search(1), search(2));
    for search in [&mut first, &mut again, &mut other] {
        run(search, 5);
    }
    assert_eq!(first, again);
    assert_ne!(first.archive(), other.archive());
}

#[test]
fn a_search_resumes_from_its_json_as_if_it_had_never_stopped() {
    let mut whole = search(3);
    run(&mut whole, 12);
    let mut part = search(3);
    run(&mut part, 5);
    let mut resumed = Search::from_json(&part.to_json().expect("writes")).expect("reads");
    assert_eq!((&resumed, resumed.next_step()), (&part, 5));
    run(&mut resumed, 7);
    assert_eq!(resumed, whole);
}

#[test]
fn failed_rollouts_are_told_and_count_a_visit() {
    let mut search = search(4);
    let report = search.step(&mut Number).expect("steps");
    assert_eq!((report.step, report.parents.as_slice(), search.next_step()), (0, &[1, 0][..], 1));
    assert!(!report.failures.is_empty() && report.failures.len() < 16, "{report:?}");
    assert!(report.failures.iter().all(|(_, reason)| reason == "odd" || reason == "a multiple of 10"));
    assert_eq!(search.archive().visits(), report.failures.len() as u64 + 2);
    assert!(report.best > -996.0);
}

#[test]
fn rollouts_carry_the_places_that_their_reports_need() {
    let search = search(5);
    let places: Vec<Rollout> = (0..2).flat_map(|group| search.rollouts(group, 2)).collect();
    assert_eq!(places.len(), 16);
    assert!(places.iter().all(|place| (place.groups_per_step, place.rollouts_per_group) == (2, 8)));
    let mut seeds: Vec<u64> = places.iter().map(|place| place.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 16, "every rollout has a seed of its own");
}

#[test]
fn a_value_that_is_no_number_is_a_failure() {
    struct NotANumber;
    impl Problem for NotANumber {
        fn propose(&mut self, _: &Node, rollout: &Rollout) -> Result<String, String> {
            Ok(rollout.seed.to_string())
        }
        fn verify(&mut self, _: &str) -> Result<f64, String> {
            Ok(f64::NAN)
        }
    }
    let mut search = search(6);
    assert_eq!(search.step(&mut NotANumber).expect("steps").failures.len(), 16);
    assert_eq!(search.archive().nodes().len(), 2);
}

#[test]
fn settings_out_of_range_and_damaged_searches_are_refused_by_name() {
    let told = |settings| Search::new(settings, vec![("2".into(), 0.0)]).expect_err("refused").to_string();
    assert!(told(Settings { groups_per_step: 0, ..settings(1) }).contains("groups_per_step is 0"));
    assert!(told(Settings { rollouts_per_group: 5_000, ..settings(1) }).contains("rollouts_per_group is 5000"));
    assert!(told(Settings { exploration: f64::NAN, ..settings(1) }).contains("exploration is NaN"));

    let mut search = search(7);
    run(&mut search, 2);
    let json = search.to_json().expect("writes");
    for (from, to, told) in [
        ("\"next_id\":", "\"next\":", "unknown field"),
        ("\"id\":1,", "\"id\":0,", "state 1"),
        ("\"parent\":1", "\"parent\":99", "parent"),
        ("\"groups_per_step\":2", "\"groups_per_step\":0", "groups_per_step"),
        ("\"construction\":\"4\"", "\"construction\":\"2\"", "same construction"),
    ] {
        assert!(json.contains(from), "{from} in {json}");
        let refused = Search::from_json(&json.replacen(from, to, 1)).expect_err(to);
        assert!(refused.to_string().contains(told), "{refused}");
    }
    assert!(matches!(Search::from_json("{"), Err(SearchError::Json(_))));
}
