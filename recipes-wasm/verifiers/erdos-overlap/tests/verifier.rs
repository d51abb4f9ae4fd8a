//! The bounds that are known, and what is no step function.

use reef_recipe::Verifier;
use reef_verifier_erdos_overlap::{ErdosOverlap, overlap};

#[test]
fn the_bounds_of_known_functions() {
    for (values, bound) in [
        (vec![0.5; 200], 0.5),
        (vec![0.0, 1.0, 1.0, 0.0], 0.5),
        (vec![0.25, 0.75, 0.75, 0.25], 0.40625),
        (vec![0.3, 0.7, 0.9, 0.9, 0.7, 0.3, 0.1, 0.1], 0.5775),
        (vec![0.5, 1.0, 1.0, 0.5, 0.0, 0.0], 0.75),
        (vec![0.8; 200], 0.5),
    ] {
        let found = overlap(&values).expect("a function");
        assert!((found - bound).abs() < 1e-9, "{found} is not {bound}");
    }
}

#[test]
fn a_function_is_rescaled_to_the_mean_of_one_half_and_must_then_fit() {
    assert_eq!(overlap(&[0.125, 0.375, 0.375, 0.125]), overlap(&[0.25, 0.75, 0.75, 0.25]));
    let refused = overlap(&[1.0, 0.0, 0.0, 0.0]).expect_err("2 is too large");
    assert!(refused.contains("value 0, multiplied so that the mean is 1/2, is 2"), "{refused}");
}

#[test]
fn what_is_no_function_is_refused_with_the_reason() {
    for (values, told) in [
        (vec![], "no values"),
        (vec![0.0; 4], "all values are 0"),
        (vec![0.5, -0.1], "value 1 is -0.1"),
        (vec![0.5, 1.1], "value 1 is 1.1"),
        (vec![f64::NAN], "value 0 is NaN"),
        (vec![f64::INFINITY], "value 0 is inf"),
    ] {
        let refused = overlap(&values).expect_err(told);
        assert!(refused.contains(told), "{refused}");
    }
}

#[test]
fn the_task_bounds_the_number_of_values_and_a_smaller_overlap_scores_higher() {
    let flat = ErdosOverlap::check("4", "[0.5, 0.5]").expect("a task");
    let better = ErdosOverlap::check("4", "[0.25,0.75,0.75,0.25]").expect("a task");
    assert!(flat.passed && better.passed && better.score > flat.score);
    assert!((better.score - 1.0 / (1e-8 + 0.40625)).abs() < 1e-9);
    assert_eq!(better.detail, "overlap at most 0.4062500000");
    for (answer, told) in
        [("[0.5,0.5,0.5,0.5,0.5]", "5 values"), ("0.5", "not a JSON list"), ("[2]", "must be in [0, 1]")]
    {
        let graded = ErdosOverlap::check("4", answer).expect("a task");
        assert!(graded.score == 0.0 && !graded.passed && graded.detail.contains(told), "{graded:?}");
    }
    for task in ["", "0", "1.5", "5000", "null"] {
        assert!(ErdosOverlap::check(task, "[]").is_err(), "{task}");
    }
}
