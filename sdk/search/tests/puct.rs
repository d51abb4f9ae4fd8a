//! The priorities of states: the published example, and what it depends on.

use reef_search::{State, priorities};

fn state(value: f64, visits: u64, best_child: Option<f64>) -> State {
    State { value, is_seed: false, visits, best_child }
}

fn example() -> [State; 4] {
    let seed = State { is_seed: true, ..state(0.0, 3, Some(2.4)) };
    [seed, state(2.0, 1, Some(2.4)), state(2.4, 0, None), state(1.0, 0, None)]
}

#[test]
fn the_published_example() {
    let found = priorities(&example(), 4, 1.0);
    for (priority, (prior, score)) in
        found.iter().zip([(0.1, 2.478262), (0.3, 2.869574), (0.4, 3.652198), (0.2, 1.626099)])
    {
        assert!((priority.prior - prior).abs() < 1e-12 && (priority.score - score).abs() < 1e-6, "{priority:?}");
    }
    assert_eq!(found.iter().map(|priority| priority.expected).collect::<Vec<_>>(), [2.4, 2.4, 2.4, 1.0]);
}

#[test]
fn the_scale_of_values_leaves_seeds_out_once_something_was_found() {
    let far = State { value: -100.0, ..example()[0] };
    let moved = [far, example()[1], example()[2], example()[3]];
    assert_eq!(priorities(&moved, 4, 1.0)[2], priorities(&example(), 4, 1.0)[2]);
    let seeds = [far, State { value: 0.0, is_seed: true, ..state(0.0, 0, None) }];
    assert!(priorities(&seeds, 0, 1.0)[1].score > 60.0, "among seeds alone their own spread counts");
}

#[test]
fn equal_values_still_explore_and_the_older_ranks_first() {
    let found = priorities(&[state(1.0, 0, None), state(1.0, 0, None)], 0, 1.0);
    assert!(found[0].score > found[1].score && found[0].score > 1.0);
}

#[test]
fn without_exploration_only_what_is_expected_counts() {
    let found = priorities(&example(), 4, 0.0);
    assert!(found.iter().all(|priority| priority.score == priority.expected));
    assert!(priorities(&[], 0, 1.0).is_empty());
}

#[test]
fn a_visited_state_whose_children_all_failed_is_worth_its_own_value() {
    assert_eq!(priorities(&[state(2.0, 5, None)], 5, 1.0)[0].expected, 2.0);
}
