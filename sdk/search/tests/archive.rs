//! What an archive keeps, whom it blocks, and how it counts.

use reef_search::{Archive, CONSTRUCTION_BYTES_MAX, Expansion, NodeId, STATES_MAX, SearchError};

#[expect(clippy::expect_used, reason = "a test that cannot start has failed")]
fn archive(values: &[f64]) -> Archive {
    Archive::new(values.iter().enumerate().map(|(index, value)| (format!("seed {index}"), *value)).collect())
        .expect("starts")
}

fn expansion(parent: NodeId, children: &[(&str, f64)], failures: u64) -> Expansion {
    let children = children.iter().map(|(text, value)| ((*text).to_owned(), *value)).collect();
    Expansion { parent, children, failures }
}

fn counts(archive: &Archive) -> Vec<(NodeId, u64, Option<f64>)> {
    archive.nodes().iter().map(|node| (node.id, node.visits, node.best_child)).collect()
}

#[test]
fn the_best_two_new_children_are_kept_and_the_best_of_all_is_remembered() {
    let mut archive = archive(&[1.0]);
    let children = [("seed 0", 9.0), ("a", 2.0), ("b", 3.0), ("b", 3.0), ("c", 1.0), ("d", f64::NAN)];
    archive.update(vec![expansion(0, &children, 0)]).expect("updates");
    let kept: Vec<_> = archive.nodes().iter().map(|node| (node.construction.as_str(), node.parent)).collect();
    assert_eq!(kept, [("seed 0", None), ("b", Some(0)), ("a", Some(0))]);
    // The construction that was known already counts as what can be reached from here.
    assert_eq!(counts(&archive), [(0, 1, Some(9.0)), (1, 0, None), (2, 0, None)]);
    assert_eq!(archive.best().map(|node| node.id), Some(1));
}

#[test]
fn visits_are_of_the_whole_lineage_and_failures_count_each() {
    let mut archive = archive(&[1.0, 1.0]);
    archive.update(vec![expansion(0, &[("a", 2.0)], 0)]).expect("updates");
    archive.update(vec![expansion(2, &[("b", 1.5)], 2), expansion(1, &[], 3)]).expect("updates");
    assert_eq!(counts(&archive), [(0, 4, Some(2.0)), (1, 3, None), (2, 3, Some(1.5)), (3, 0, None)]);
    assert_eq!(archive.visits(), 7);
    archive.update(vec![expansion(2, &[("worse", 0.5)], 0)]).expect("updates");
    assert_eq!(archive.node(2).and_then(|node| node.best_child), Some(1.5));
}

#[test]
fn a_pick_blocks_its_ancestors_and_descendants_and_nobody_else() {
    let mut archive = archive(&[1.0, 0.0]);
    archive.update(vec![expansion(0, &[("a", 5.0), ("b", 4.0)], 0)]).expect("updates");
    archive.update(vec![expansion(2, &[("a1", 6.0)], 0)]).expect("updates");
    // 4 is built on 2, which is built on 0; 3 is a sibling of 2; 1 is another seed.
    let picked = archive.select(10, 0.0);
    assert_eq!(picked, [4, 3, 1]);
    assert_eq!(archive.select(2, 0.0), [4, 3]);
}

#[test]
fn of_equal_priorities_the_better_value_and_then_the_older_goes_first() {
    let mut archive = archive(&[1.0, 2.0, 2.0, 0.0]);
    assert_eq!(archive.select(4, 0.0), [1, 2, 0, 3]);
    archive.update(vec![expansion(3, &[("a", 2.0)], 0)]).expect("updates");
    // Seed 3 may now be expected to give 2 as well, and is itself worth 0.
    assert_eq!(archive.select(5, 0.0), [1, 2, 4, 0]);
}

#[test]
fn an_unknown_parent_changes_nothing() {
    let mut archive = archive(&[1.0]);
    let before = archive.clone();
    let refused = archive.update(vec![expansion(0, &[("a", 2.0)], 0), expansion(7, &[("b", 2.0)], 0)]);
    assert!(matches!(refused, Err(SearchError::UnknownState(7))), "{refused:?}");
    assert_eq!(archive, before);
}

#[test]
fn beyond_the_bound_the_worst_leave_seeds_stay_and_lineages_close_up() {
    let mut archive = archive(&[-5.0]);
    // A chain in which every second state is bad, so that those are the ones that leave.
    let mut parent = 0;
    for index in 0..=STATES_MAX as u64 {
        let value = if index % 2 == 0 { 0.001 * index as f64 - 2.0 } else { index as f64 };
        archive.update(vec![expansion(parent, &[(&format!("state {index}"), value)], 0)]).expect("updates");
        parent = index + 1;
    }
    assert_eq!(archive.nodes().len(), STATES_MAX);
    assert!(archive.node(0).is_some_and(|seed| seed.parent.is_none()), "the worst of all is a seed");
    assert!(archive.node(1).is_none() && archive.node(3).is_none());
    assert_eq!(archive.node(2).and_then(|node| node.parent), Some(0));
    assert_eq!(archive.node(4).and_then(|node| node.parent), Some(2));
    assert_eq!(archive.select(10, 1.0).len(), 1, "all are one lineage");
    assert_eq!(archive.node(0).map(|seed| seed.visits), Some(STATES_MAX as u64 + 1));
}

#[test]
fn a_step_may_build_on_a_state_that_leaves_at_its_end() {
    let seeds: Vec<f64> = vec![0.0; STATES_MAX - 1];
    let mut archive = archive(&seeds);
    archive.update(vec![expansion(0, &[("weak", 0.5)], 0)]).expect("updates");
    let weak = STATES_MAX as u64 - 1;
    archive.update(vec![expansion(0, &[("strong", 2.0)], 0), expansion(weak, &[("child", 1.0)], 0)]).expect("updates");
    assert_eq!(archive.nodes().len(), STATES_MAX);
    assert_eq!(archive.best().map(|node| node.construction.as_str()), Some("strong"));
    assert!(archive.node(weak).is_none());
}

#[test]
fn seeds_that_no_archive_can_hold_are_refused_by_name() {
    let told = |seeds: Vec<(String, f64)>| Archive::new(seeds).expect_err("refused").to_string();
    assert!(told(vec![]).contains("0 seeds"));
    assert!(told(vec![("a".into(), 0.0); STATES_MAX + 1]).contains("1001 seeds"));
    assert!(told(vec![("a".into(), f64::NAN)]).contains("state 0"));
    assert!(told(vec![("a".into(), 0.0), ("a".into(), 1.0)]).contains("same construction"));
    assert!(told(vec![("a".repeat(CONSTRUCTION_BYTES_MAX + 1), 0.0)]).contains("65537 bytes"));
}
