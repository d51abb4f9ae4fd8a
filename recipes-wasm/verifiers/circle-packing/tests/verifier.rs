//! The packings whose sums are known, the rules one by one, and what is no answer.

use reef_recipe::Verifier;
use reef_verifier_circle_packing::{Circle, CirclePacking, TOLERANCE, check, parse, write};

/// The tolerance at which the known sums were computed.
const STRICT: f64 = 1e-12;

fn grid(side: usize, r: f64) -> impl Iterator<Item = Circle> {
    (0..side * side).map(move |i| Circle { x: r * (2 * (i % side) + 1) as f64, y: r * (2 * (i / side) + 1) as f64, r })
}

/// A circle in the middle, rings of 8 and 16, and one left at the origin; radii shrunk pair by pair in order.
fn rings() -> Vec<Circle> {
    let ring = |count: usize, radius: f64| {
        (0..count).map(move |i| {
            let angle = 2.0 * std::f64::consts::PI * i as f64 / count as f64;
            (0.5 + radius * angle.cos(), 0.5 + radius * angle.sin())
        })
    };
    let centres = [(0.5, 0.5)].into_iter().chain(ring(8, 0.3)).chain(ring(16, 0.7)).chain([(0.0, 0.0)]);
    let inside = centres.map(|(x, y)| (x.clamp(0.01, 0.99), y.clamp(0.01, 0.99)));
    let mut circles: Vec<Circle> =
        inside.map(|(x, y)| Circle { x, y, r: x.min(y).min(1.0 - x).min(1.0 - y) }).collect();
    for i in 0..circles.len() {
        for j in i + 1..circles.len() {
            let (a, b) = (circles[i], circles[j]);
            let (distance, sum) = (a.gap(&b) + (a.r + b.r), a.r + b.r);
            if sum > distance {
                circles[i].r *= distance / sum;
                circles[j].r *= distance / sum;
            }
        }
    }
    circles
}

fn close(found: Result<f64, String>, wanted: f64, within: f64) {
    assert!(found.as_ref().is_ok_and(|sum| (sum - wanted).abs() < within), "{found:?} is not {wanted}");
}

#[test]
fn the_sums_of_known_packings() {
    close(check(&rings(), STRICT), 0.9597642169962064, 1e-12);
    let gap = |r: f64, x: f64, y: f64| Circle { x, y, r: r * (2f64.sqrt() - 1.0) };
    let mut five: Vec<Circle> = grid(5, 0.1).collect();
    five.push(gap(0.1, 0.2, 0.2));
    close(check(&five, STRICT), 2.5414213562373105, 1e-12);
    close(check(&grid(6, 1.0 / 12.0).take(32).collect::<Vec<_>>(), STRICT), 2.6666666667, 1e-9);
    five.extend([(0.4, 0.2), (0.6, 0.2), (0.8, 0.2), (0.2, 0.4), (0.4, 0.4), (0.6, 0.4)].map(|(x, y)| gap(0.1, x, y)));
    close(check(&five, STRICT), 2.789949493661168, 1e-12);
}

#[test]
fn every_rule_that_is_broken_is_named() {
    let circle = |x, y, r| Circle { x, y, r };
    for (circles, told) in [
        (vec![circle(0.5, 0.5, f64::NAN)], "circle 0 has a coordinate or radius that is not finite"),
        (vec![circle(f64::INFINITY, 0.5, 0.1)], "not finite"),
        (vec![circle(0.5, 0.5, -0.1)], "the radius -0.1"),
        (vec![circle(0.1, 0.5, 0.2)], "circle 0 reaches 1.000e-1 over a side"),
        (vec![circle(0.9, 0.5, 0.2)], "over a side"),
        (vec![circle(0.5, 0.1, 0.2)], "over a side"),
        (vec![circle(0.5, 0.9, 0.2)], "over a side"),
        (vec![circle(0.2, 0.5, 0.2), circle(0.8, 0.5, 0.1), circle(0.5, 0.5, 0.2)], "circles 0 and 2 overlap"),
    ] {
        let refused = check(&circles, TOLERANCE).expect_err(told);
        assert!(refused.contains(told), "{refused}");
    }
}

#[test]
fn the_tolerance_is_what_is_forgiven_and_nothing_more() {
    let touching = |over: f64| [Circle { x: 0.25, y: 0.5, r: 0.25 }, Circle { x: 0.75 - over, y: 0.5, r: 0.25 }];
    assert!(check(&touching(0.9e-6), TOLERANCE).is_ok() && check(&touching(1.1e-6), TOLERANCE).is_err());
    assert!(check(&touching(0.9e-6), STRICT).is_err() && check(&touching(0.0), 0.0).is_ok());
    let wall = |over: f64| [Circle { x: 0.25 - over, y: 0.5, r: 0.25 }];
    assert!(check(&wall(0.9e-6), TOLERANCE).is_ok() && check(&wall(1.1e-6), TOLERANCE).is_err());
}

#[test]
fn circles_are_written_and_read_bit_for_bit() {
    let circles = rings();
    assert_eq!(parse(&write(&circles)).as_deref(), Ok(circles.as_slice()));
    assert_eq!(write(&[]), "[]");
}

#[test]
fn an_answer_is_nothing_but_the_list() {
    for bad in ["", "circles", "[[0.5,0.5,0.1]] done", "```[[0.5,0.5,0.1]]```", "[0.5,0.5,0.1]", "[[0.5,0.5,inf]]"] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    let refused = parse("[[0.5,0.5,0.1],[0.1,0.1]]").expect_err("two numbers");
    assert_eq!(refused, "circle 1 has 2 numbers instead of x, y and radius");
}

#[test]
fn the_task_is_the_number_of_circles_and_the_score_their_sum() {
    let graded = CirclePacking::check("2", " [[0.25,0.25,0.25],[0.75,0.75,0.25]] ").expect("a task");
    assert_eq!((graded.score, graded.passed, graded.detail.as_str()), (0.5, true, "radii sum to 0.5000000000"));
    for (answer, told) in [
        ("[[0.5,0.5,0.5]]", "1 circles instead of 2"),
        ("[[0.5,0.5,0.5],[0.5,0.5,0.5]]", "overlap"),
        ("nothing", "not a JSON list"),
    ] {
        let graded = CirclePacking::check("2", answer).expect("a task");
        assert!(graded.score == 0.0 && !graded.passed && graded.detail.contains(told), "{graded:?}");
    }
    for task in ["", "0", "2.5", "-1", "1001", "\"26\"", "[26]"] {
        assert!(CirclePacking::check(task, "[]").is_err(), "{task}");
    }
}
