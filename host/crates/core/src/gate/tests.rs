//! The gates as an operator sees them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn scored(scores: &[f64]) -> Vec<Measurement> {
    scores.iter().copied().map(Measurement::of).collect()
}

fn decide(gate: Gate, candidate: &[f64], incumbent: &[f64]) -> GateDecision {
    gate_decision(gate, &scored(candidate), &scored(incumbent))
}

fn failed() -> Measurement {
    Measurement::Failed("the engine stopped".to_owned())
}

const SUPERIOR: Gate = Gate::Superiority { delta: 0.0, alpha: 0.05, minimum: 5, early_stop: false };
const PROVEN: Gate = Gate::NonInferiority { margin: 0.1, alpha: Some(0.05), minimum: Some(10), early_stop: false };

#[test]
fn a_gate_that_says_more_than_it_does_is_refused() {
    for kind in ["always", "score-comparison"] {
        let gate = |more: serde_json::Value| {
            let mut text = json!({ "kind": kind });
            text.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            serde_json::from_value::<Gate>(text)
        };
        assert_eq!(serde_json::to_value(gate(json!({})).expect("a gate")).expect("JSON"), json!({ "kind": kind }));
        for more in [json!({ "minimum": 0.9 }), json!({ "early_stop": true })] {
            assert!(gate(more).is_err(), "{kind}");
        }
    }
}

#[test]
fn means_are_compared_by_the_gates_without_alpha() {
    let min = Gate::MinImprovement { delta: 0.1 };
    assert!(decide(min, &[1.0, 1.0], &[0.5, 1.0]).pass);
    assert!(!decide(min, &[0.5, 1.0], &[0.5, 1.0]).pass);
    assert!(decide(min, &[0.6], &[0.5]).pass, "exactly delta, in decimals");
    assert!(decide(Gate::non_inferiority(0.05), &[0.5], &[0.54]).pass);
    assert!(!decide(Gate::non_inferiority(0.05), &[0.4], &[0.54]).pass);
    assert!(decide(Gate::ScoreComparison {}, &[0.5, 0.6], &[0.5, 0.5]).pass);
    assert!(
        !decide(Gate::ScoreComparison {}, &[0.1, 0.2, 0.3], &[0.3, 0.1, 0.2]).pass,
        "the same scores in another order"
    );
    assert!(!decide(Gate::ScoreComparison {}, &[0.4], &[0.5]).pass);
    let told = decide(min, &[0.6], &[0.5]).reason;
    assert_eq!(told, "held-out 0.5000 → 0.6000 on 1 tasks; gate min-improvement 0.1");
}

#[test]
fn a_floor_asks_the_candidate_only() {
    let floor = Gate::Floor { minimum: 0.5 };
    assert!(gate_decision(floor, &scored(&[0.4, 0.6]), &[]).pass);
    let refused = gate_decision(floor, &scored(&[0.4, 0.5]), &[]);
    assert!(!refused.pass && !refused.undecided);
    assert_eq!(refused.reason, "held-out 0.4500 on 2 tasks; gate floor 0.5");
    assert_eq!(refused.evidence.expect("numbers").incumbent, None);
    assert!(!gate_decision(floor, &[], &[]).pass, "nothing measured reaches no floor");
    assert!(!floor.compares() && floor.measures() && !Gate::Always {}.measures());
}

#[test]
fn superiority_needs_more_wins_than_chance_gives() {
    let incumbent = [0.0; 10];
    let passed = decide(SUPERIOR, &[1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0], &incumbent);
    assert!(passed.pass, "{}", passed.reason);
    assert!(passed.reason.contains("p 3.12e-2 at alpha 0.05 by the exact sign-flip test; gate superiority 0"));
    let evidence = passed.evidence.expect("numbers");
    assert_eq!((evidence.tasks, evidence.failed, evidence.difference), (10, 0, Some(0.5)));
    assert_eq!(evidence.test, Some(Tested { method: Method::SignFlipExact, p: 1.0 / 32.0, alpha: 0.05 }));
    let interval = evidence.interval.expect("an interval");
    assert!(interval.low < 0.5 && interval.high > 0.5 && interval.level == 0.9);
    let four = decide(SUPERIOR, &[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], &incumbent);
    assert!(!four.pass && !four.undecided, "p is 1/16 although the mean rises by 0.4");
    let delta = Gate::Superiority { delta: 0.1, alpha: 0.05, minimum: 10, early_stop: false };
    let more = decide(delta, &[1.0; 10], &incumbent);
    assert_eq!(more.evidence.and_then(|numbers| numbers.test).expect("a test").method, Method::Betting);
    assert!(more.pass, "{}", more.reason);
}

#[test]
fn proven_non_inferiority_needs_enough_tasks_and_says_how_many() {
    let few = decide(PROVEN, &[0.5; 20], &[0.5; 20]);
    assert!(!few.pass && !few.undecided && few.reason.ends_with("with equal scores this margin needs 34 tasks"));
    assert!(decide(PROVEN, &[0.5; 34], &[0.5; 34]).pass);
    assert!(decide(Gate::non_inferiority(0.1), &[0.5; 20], &[0.5; 20]).pass, "the means alone see no fall");
    let fewer = decide(PROVEN, &[1.0; 9], &[0.0; 9]);
    assert!(!fewer.pass && !fewer.undecided && fewer.reason.contains("needs 10 scored tasks: add held-out tasks"));
    let worse = decide(PROVEN, &[0.3; 60], &[0.5; 60]);
    assert!(!worse.pass && worse.evidence.and_then(|numbers| numbers.test).expect("a test").p == 1.0);
}

#[test]
fn without_tasks_only_gates_that_want_no_proof_pass() {
    let early = Gate::Superiority { delta: 0.0, alpha: 0.05, minimum: 6, early_stop: true };
    for (gate, pass) in [
        (Gate::Always {}, true),
        (Gate::non_inferiority(0.0), true),
        (Gate::MinImprovement { delta: 0.0 }, false),
        (Gate::ScoreComparison {}, false),
        (Gate::Floor { minimum: 0.0 }, false),
        (PROVEN, false),
        (SUPERIOR, false),
        (early, false),
    ] {
        let decision = decide(gate, &[], &[]);
        assert_eq!((decision.pass, decision.undecided), (pass, false), "{gate}");
    }
}

#[test]
fn a_failure_is_no_zero_and_too_many_leave_it_undecided() {
    let gate = Gate::non_inferiority(0.0);
    let (mut candidate, incumbent) = (scored(&[1.0; 20]), scored(&[1.0; 20]));
    candidate[0] = failed();
    candidate[1] = Measurement::Scored(f64::NAN);
    let decision = gate_decision(gate, &candidate, &incumbent);
    assert!(decision.pass && decision.reason.contains("on 18 tasks, 2 failed and left out"), "{}", decision.reason);
    candidate[2] = Measurement::Scored(1.5);
    for gate in [gate, Gate::Floor { minimum: 0.0 }, Gate::ScoreComparison {}, SUPERIOR, PROVEN] {
        let decision = gate_decision(gate, &candidate, &incumbent);
        assert!(!decision.pass && decision.undecided, "{gate}");
        let told = "undecided: evaluation failed: 3 of 20 tasks could not be scored (the engine stopped)";
        assert_eq!(decision.reason, told);
        assert_eq!(decision.evidence.expect("numbers").failed, 3);
    }
    let all = vec![failed(); 3];
    let nothing = gate_decision(gate, &all, &all);
    assert!(nothing.undecided);
    let text = serde_json::to_string(&nothing).expect("numbers that are numbers");
    assert_eq!(serde_json::from_str::<GateDecision>(&text).expect("read back"), nothing);
    let unpaired = gate_decision(gate, &scored(&[1.0]), &[]);
    assert!(unpaired.undecided && !unpaired.pass, "unpaired scores are a fault");
    let short = gate_decision(
        Gate::NonInferiority { margin: 0.1, alpha: Some(0.05), minimum: Some(20), early_stop: false },
        &[vec![failed()], scored(&[1.0; 19])].concat(),
        &scored(&[0.0; 20]),
    );
    assert!(short.undecided && short.reason.contains("needs 20 scored tasks"), "{}", short.reason);
}

#[test]
fn grades_outside_the_range_are_failures() {
    for grade in [f64::NAN, f64::INFINITY, -0.001, 1.001] {
        assert!(matches!(Measurement::of(grade), Measurement::Failed(_)), "{grade}");
        assert_eq!(Measurement::Scored(grade).score(), None);
    }
    assert_eq!((Measurement::of(0.0).score(), Measurement::of(1.0).score()), (Some(0.0), Some(1.0)));
}

#[test]
fn an_early_stop_settles_on_the_first_pairs_and_decides_the_same() {
    let gate = Gate::Superiority { delta: 0.0, alpha: 0.05, minimum: 6, early_stop: true };
    let (wins, losses) = (scored(&[1.0; 40]), scored(&[0.0; 40]));
    assert!(!gate.is_settled(&wins[..5], &losses[..5]) && gate.is_settled(&wins[..32], &losses[..32]));
    assert!(!SUPERIOR.is_settled(&wins, &losses), "without early stop every task is measured");
    let accepted = gate_decision(gate, &wins[..32], &losses[..32]);
    assert!(accepted.pass && accepted.reason.contains("early stop"), "{}", accepted.reason);
    let strict = Gate::Superiority { delta: 0.0, alpha: 0.05, minimum: 39, early_stop: true };
    assert!(strict.is_settled(&losses[..32], &wins[..32]), "a loser need not be measured to the end");
    let refused = gate_decision(strict, &losses[..32], &wins[..32]);
    assert!(!refused.pass && !refused.undecided && !refused.reason.contains("needs 39"), "{}", refused.reason);
    let ties = gate_decision(gate, &wins, &wins);
    assert!(!gate.is_settled(&wins, &wins) && !ties.pass && !ties.undecided);
}

#[test]
fn gates_out_of_range_are_named() {
    for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(Gate::non_inferiority(bad).check().expect_err("refused").contains("gate.margin"));
        assert!(Gate::Floor { minimum: bad }.check().expect_err("refused").contains("gate.minimum"));
        assert!(!decide(Gate::MinImprovement { delta: bad }, &[1.0], &[0.0]).pass);
    }
    assert!(Gate::MinImprovement { delta: 1.0 }.check().is_ok() && Gate::Always {}.check().is_ok());
    let test = |alpha, minimum, early_stop| Gate::NonInferiority { margin: 0.1, alpha, minimum, early_stop };
    let wanted = |delta, alpha, minimum| Gate::Superiority { delta, alpha, minimum, early_stop: false };
    for (gate, field) in [
        (test(Some(0.05), None, false), "gate.minimum"),
        (test(None, Some(5), false), "gate.alpha"),
        (test(None, None, true), "gate.early_stop"),
        (test(Some(0.0), Some(50), false), "gate.alpha"),
        (test(Some(0.6), Some(50), false), "gate.alpha"),
        (test(Some(f64::NAN), Some(50), false), "gate.alpha"),
        (wanted(0.0, 0.05, 4), "gate.minimum is 4; use 5 to 10000"),
        (wanted(0.2, 0.05, 6), "gate.minimum is 6; use 7 to 10000"),
        (wanted(0.0, 0.05, 10_001), "gate.minimum"),
        (wanted(1.0, 0.05, 50), "gate.delta"),
        (wanted(0.9999, 0.05, 50), "gate.delta"),
    ] {
        let problem = gate.check().expect_err("refused");
        assert!(problem.contains(field), "{problem}");
    }
    assert_eq!((SUPERIOR.check(), PROVEN.check()), (Ok(()), Ok(())));
}

#[test]
fn what_earlier_versions_wrote_is_read_and_what_is_new_survives_the_way_back() {
    for (text, gate) in [
        (json!({ "kind": "always" }), Gate::Always {}),
        (json!({ "kind": "min-improvement", "delta": 0.1 }), Gate::MinImprovement { delta: 0.1 }),
        (json!({ "kind": "non-inferiority", "margin": 0.05 }), Gate::non_inferiority(0.05)),
        (json!({ "kind": "score-comparison" }), Gate::ScoreComparison {}),
        (json!({ "kind": "floor", "minimum": 0.5 }), Gate::Floor { minimum: 0.5 }),
    ] {
        assert_eq!(serde_json::from_value::<Gate>(text.clone()).expect("read"), gate);
        assert_eq!(serde_json::to_value(gate).expect("written"), text, "an earlier version can read it");
    }
    let short = json!({ "kind": "superiority", "alpha": 0.05, "minimum": 5 });
    assert_eq!(serde_json::from_value::<Gate>(short).expect("read"), SUPERIOR);
    let back = serde_json::from_value::<Gate>(serde_json::to_value(PROVEN).expect("written"));
    assert_eq!(back.expect("read"), PROVEN);
    for bad in [json!({ "kind": "superiority", "alpha": 0.05 }), json!({ "kind": "floor", "minimum": 0.5, "n": 1 })] {
        assert!(serde_json::from_value::<Gate>(bad.clone()).is_err(), "{bad}");
    }
    let old: GateDecision = serde_json::from_value(json!({ "pass": true, "reason": "gate always" })).expect("read");
    assert_eq!(old, GateDecision::plain(true, "gate always"));
    let new = decide(PROVEN, &[0.5; 34], &[0.5; 34]);
    let text = serde_json::to_string(&new).expect("written");
    assert_eq!(serde_json::from_str::<GateDecision>(&text).expect("read"), new);
}

fn measurement() -> impl Strategy<Value = Measurement> {
    prop_oneof![
        8 => (0_u32..=10).prop_map(|tenths| Measurement::Scored(f64::from(tenths) / 10.0)),
        1 => Just(failed()),
        1 => Just(Measurement::Scored(f64::NAN)),
    ]
}

fn gate() -> impl Strategy<Value = Gate> {
    let proof = (0.0_f64..0.9, 0.01_f64..0.3, 1_u32..60, any::<bool>());
    prop_oneof![
        Just(Gate::Always {}),
        Just(Gate::ScoreComparison {}),
        (0.0_f64..=1.0).prop_map(|minimum| Gate::Floor { minimum }),
        (0.0_f64..=1.0).prop_map(|delta| Gate::MinImprovement { delta }),
        (0.0_f64..=1.0).prop_map(Gate::non_inferiority),
        proof.clone().prop_map(|(margin, alpha, minimum, early_stop)| Gate::NonInferiority {
            margin,
            alpha: Some(alpha),
            minimum: Some(minimum),
            early_stop
        }),
        proof.prop_map(|(delta, alpha, minimum, early_stop)| Gate::Superiority { delta, alpha, minimum, early_stop }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_gate_passes_what_it_left_open_and_every_decision_can_be_stored(
        gate in gate(),
        pairs in proptest::collection::vec((measurement(), measurement()), 0..60),
    ) {
        let (candidate, incumbent): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let decision = gate_decision(gate, &candidate, &incumbent);
        prop_assert!(!decision.pass || !decision.undecided);
        let test = decision.evidence.as_ref().and_then(|numbers| numbers.test);
        prop_assert!(!decision.pass || test.is_none_or(|test| test.p <= test.alpha));
        let text = serde_json::to_string(&decision).expect("written");
        prop_assert_eq!(serde_json::from_str::<GateDecision>(&text).expect("read"), decision);
    }

    /// A gate that passes a candidate passes one that scores higher on a task.
    #[test]
    fn a_higher_score_never_turns_a_pass_into_a_refusal(
        gate in gate(),
        mut tenths in proptest::collection::vec((0_u32..=9, 0_u32..=10), 1..60),
        at in 0_usize..60,
    ) {
        // With early stop, an earlier end reads fewer tasks: decided is decided, whatever else was measured.
        let read = |tenths: &[(u32, u32)]| -> (Vec<f64>, Vec<f64>) {
            tenths.iter().map(|(new, old)| (f64::from(*new) / 10.0, f64::from(*old) / 10.0)).unzip()
        };
        let (new, old) = read(&tenths);
        let before = decide(gate, &new, &old);
        let at = at % tenths.len();
        tenths[at].0 += 1;
        let (new, old) = read(&tenths);
        let after = decide(gate, &new, &old);
        prop_assert!(!before.pass || after.pass, "{} then {}", before.reason, after.reason);
    }

    #[test]
    fn a_settled_comparison_stays_as_it_is(
        pairs in proptest::collection::vec((0_u32..=1, 0_u32..=1), 1..80),
        cut in 0_usize..80,
        minimum in 6_u32..20,
    ) {
        let gate = Gate::Superiority { delta: 0.0, alpha: 0.05, minimum, early_stop: true };
        let (new, old): (Vec<f64>, Vec<f64>) =
            pairs.iter().map(|(new, old)| (f64::from(*new), f64::from(*old))).unzip();
        let (new, old) = (scored(&new), scored(&old));
        let cut = cut % pairs.len();
        if gate.is_settled(&new[..cut], &old[..cut]) {
            let (first, all) = (gate_decision(gate, &new[..cut], &old[..cut]), gate_decision(gate, &new, &old));
            prop_assert!(gate.is_settled(&new, &old));
            prop_assert_eq!(first.pass, all.pass);
        }
    }
}
