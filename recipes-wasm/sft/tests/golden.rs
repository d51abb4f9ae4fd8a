//! What a chat template does to a demonstration, through the recipe's pure function.

use reef_recipe::Failure;
use reef_recipe_sft::answer::answer;

// A template in the manner of ChatML: 1 and 2 open and end a turn, 3 is a line break, 10 the user, 11 the assistant.
const ASKED: [u32; 8] = [1, 10, 50, 2, 3, 1, 11, 3];
const CLOSING: [u32; 5] = [2, 3, 1, 11, 3];

fn answered(text: &[u32]) -> Vec<u32> {
    [&ASKED, text, &CLOSING].concat()
}

#[test]
fn an_answer_is_its_text_and_the_token_that_ends_the_turn() {
    assert_eq!(answer(&ASKED, &answered(&[60, 61]), &CLOSING), Ok(vec![60, 61, 2]));
}

#[test]
fn an_answer_that_repeats_the_closing_is_cut_at_the_last_one() {
    let text = [60, 2, 3, 1, 11, 3];
    assert_eq!(answer(&ASKED, &answered(&text), &CLOSING), Ok([&text[..], &[2]].concat()));
}

#[test]
fn a_template_without_a_prompt_for_the_answer_ends_it_all_the_same() {
    assert_eq!(answer(&[7, 50, 8], &[7, 50, 8, 60, 9], &[9]), Ok(vec![60, 9]));
}

#[test]
fn a_prompt_that_is_no_prefix_of_the_whole_is_an_error() {
    let changed = [1, 10, 51, 2, 3, 1, 11, 3, 60, 2, 3, 1, 11, 3];
    let failure = answer(&ASKED, &changed, &CLOSING).expect_err("no prefix");
    assert!(matches!(&failure, Failure::Other(reason) if reason.contains("prefix")), "{failure:?}");
    assert!(answer(&ASKED, &ASKED[..4], &CLOSING).is_err());
}

#[test]
fn a_template_that_does_not_end_the_turn_is_an_error() {
    let failure = answer(&ASKED, &answered(&[60]), &[]).expect_err("no end");
    assert!(matches!(&failure, Failure::Other(reason) if reason.contains("does not end")), "{failure:?}");
    assert!(answer(&ASKED, &[&ASKED[..], &[60, 2]].concat(), &CLOSING).is_err());
}
