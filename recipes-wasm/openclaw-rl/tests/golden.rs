//! The published numbers of the algorithm and the rules of votes and hints, through pure functions.

use reef_recipe::Message;
use reef_recipe_openclaw_rl::judge::{boxed, hints_of, plurality};
use reef_recipe_openclaw_rl::loss::{distill, ppo};
use reef_recipe_openclaw_rl::teacher::{hinted, spliced};

const BOUNDS: (f64, f64) = (0.8, 1.28);

fn close(found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < tolerance, "{found} is not {wanted}");
    }
}

#[test]
fn the_clipped_surrogate() {
    let cases = [(1.5, 1.0, -1.28), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (1.1, 1.0, -1.1)];
    for (ratio, advantage, wanted) in cases {
        close(&[ppo(ratio, advantage, BOUNDS)], &[wanted], 1e-12);
    }
}

#[test]
fn one_token_distilled_over_its_alternatives() {
    let (old, teacher) = ([-0.3, -1.8, -2.6, -4.0], [-0.9, -0.7, -2.6, -6.0]);
    let token = distill(&old, &old, &teacher, 1.0, BOUNDS);
    close(&token.weights, &[0.741777839, 0.165513008, 0.074369788, 0.018339364], 1e-8);
    close(&token.advantages, &[-0.445066704, 0.165513008, 0.0, -0.018339364], 1e-8);
    close(&[token.loss], &[0.297893060], 1e-8);
}

#[test]
fn a_distilled_token_is_clipped_and_its_log_ratio_bounded() {
    let (old, teacher) = ([-1.0], [0.0]);
    // One alternative weighs 1, and its advantage is 1: the gain ends at the upper bound.
    close(&[distill(&[-0.5], &old, &teacher, 1.0, BOUNDS).loss], &[-1.28], 1e-12);
    let sunk = distill(&[0.0], &[-1e4], &[-1e5], 1.0, BOUNDS).loss;
    close(&[sunk / 20f64.exp()], &[1.0], 1e-12);
}

#[test]
fn the_last_box_of_a_vote_counts() {
    for (vote, wanted) in [
        ("\\boxed{1}", Some(1)),
        ("first \\boxed{1}, no: \\boxed{-1}.", Some(-1)),
        ("\\boxed{ 0 }", Some(0)),
        ("\\boxed{1} or \\boxed{good}", Some(1)),
        ("\\boxed{1", None),
        ("\\boxed{2}", None),
        ("1", None),
        ("", None),
    ] {
        assert_eq!(boxed(vote), wanted, "{vote}");
    }
}

#[test]
fn the_score_is_what_most_valid_votes_say() {
    let votes = |scores: &[i8]| scores.iter().map(|score| format!("\\boxed{{{score}}}")).collect::<Vec<_>>();
    assert_eq!(plurality(&votes(&[1, 1, -1])), Some(1));
    assert_eq!(plurality(&votes(&[1, -1, 0])), Some(0));
    assert_eq!(plurality(&votes(&[1, 1, -1, -1])), Some(0));
    assert_eq!(plurality(&votes(&[-1])), Some(-1));
    assert_eq!(plurality(&["\\boxed{-1}", "no idea", ""]), Some(-1));
    assert_eq!(plurality(&["no idea"]), None);
    assert_eq!(plurality(&[""; 0]), None);
}

#[test]
fn hints_of_positive_votes_come_shortest_first_and_once() {
    let vote = |hint: &str, score: i8| format!("[HINT_START] {hint} [HINT_END] \\boxed{{{score}}}");
    let votes = [
        vote("write plain sentences, no list", 1),
        vote("be brief, please", 1),
        vote("be brief, please", 1),
        vote("too short", 1),
        vote("a hint that was voted down", -1),
        vote("say the result in the first line", 1),
        vote("a fourth hint, longer than all of the others", 1),
        "[HINT_START] a hint without an end \\boxed{1}".to_owned(),
        "no hint at all \\boxed{1}".to_owned(),
    ];
    let wanted = ["be brief, please", "write plain sentences, no list", "say the result in the first line"];
    assert_eq!(hints_of(&votes), wanted);
    assert!(hints_of(&[vote("0123456789", 1)]).is_empty() && hints_of(&[vote("0123456789a", 1)]).len() == 1);
}

#[test]
fn the_hint_goes_to_the_last_user_message() {
    let conversation =
        [Message::user("one"), Message::assistant("two"), Message::user("three"), Message::assistant("four")];
    let with = hinted(&conversation, "be brief").expect("a user spoke");
    let contents: Vec<&str> = with.iter().map(|message| message.content.as_str()).collect();
    assert_eq!(contents, ["one", "two", "three\n\n[Hint]\nbe brief", "four"]);
    assert_eq!(hinted(&[Message::system("rules")], "be brief"), None);
}

#[test]
fn what_differs_between_two_renderings_is_set_into_the_recorded_tokens() {
    // The recorded prompt begins with more than the messages say: the list of tools.
    assert_eq!(spliced(&[9, 9, 1, 2, 3], &[1, 2, 3], &[1, 2, 7, 8, 3]), Some(vec![9, 9, 1, 2, 7, 8, 3]));
    assert_eq!(spliced(&[1, 2, 3], &[1, 2, 3], &[1, 2, 7, 3]), Some(vec![1, 2, 7, 3]));
    // A merged token at the seam is exchanged with the rest.
    assert_eq!(spliced(&[9, 1, 20, 3], &[1, 20, 3], &[1, 2, 7, 3]), Some(vec![9, 1, 2, 7, 3]));
    assert_eq!(spliced(&[1, 2, 4], &[1, 2, 3], &[1, 2, 7, 3]), None);
    assert_eq!(spliced(&[3], &[1, 2, 3], &[1, 7, 2, 3]), None);
}
