//! The published numbers of the loss, through its definition in the SDK, and what teachers read, through the recipe's
//! pure functions.

use reef_recipe::Divergence;
use reef_recipe::distillation::{log_softmax, renormalised, token_importance, top_k, with_tail};
use reef_recipe_sdpo::context::{Templates, sibling, without_thoughts};

fn close(found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < tolerance, "{found} is not {wanted}");
    }
}

fn student() -> Vec<f64> {
    log_softmax(&[1.0, 0.0, -1.0, 0.5])
}

fn teacher() -> Vec<f64> {
    log_softmax(&[0.2, 0.8, -0.5, 0.0])
}

#[test]
fn the_divergence_and_its_gradient() {
    let jsd = |beta| Divergence::jensen_shannon(beta).of(&teacher(), &student());
    close(&[jsd(0.5), jsd(0.3)], &[0.057412289, 0.049263442], 1e-8);
    let gradient = Divergence::jensen_shannon(0.5).gradient(&teacher(), &student());
    close(&gradient, &[0.052423, -0.054649, -0.013517, 0.015743], 1e-6);
}

#[test]
fn the_students_likeliest_ids_and_a_tail() {
    let ids = top_k(&student(), 2);
    assert_eq!(ids, [0, 3]);
    let jsd = |teacher: &[f64], student: &[f64]| Divergence::jensen_shannon(0.5).of(teacher, student);
    close(&[jsd(&with_tail(&teacher(), &ids), &with_tail(&student(), &ids))], &[0.056718767], 1e-8);
    close(&[jsd(&renormalised(&teacher(), &ids), &renormalised(&student(), &ids))], &[0.002720671], 1e-8);
}

#[test]
fn one_importance_for_every_token() {
    close(&token_importance(&[-1.0, -0.2, -3.0], &[-1.3, -0.1, -5.0], 2.0), &[1.349859, 0.904837, 2.0], 1e-6);
}

#[test]
fn the_first_other_success_is_the_solution() {
    let solutions = [None, Some("a".to_owned()), None, Some("b".to_owned())];
    let of = |own| sibling(&solutions, own);
    assert_eq!([of(0), of(1), of(2), of(3)], [Some("a"), Some("b"), Some("a"), Some("a")]);
    assert_eq!(sibling(&[Some("alone".to_owned()), None], 0), None);
    assert_eq!(sibling(&[], 0), None);
}

#[test]
fn a_teacher_reads_the_solution_the_feedback_or_both_and_then_the_task() {
    let told = Templates::default();
    assert_eq!(told.context(None, None), None);
    let solution = told.context(Some("7"), None).expect("a solution");
    assert_eq!(solution, "A correct answer to this: <solution>7</solution>\n\nNow answer the original request.");
    let both = told.context(Some("7"), Some("8 is wrong")).expect("both");
    let (at, then) = (both.find("<solution>7<"), both.find("<feedback>8 is wrong<"));
    assert!(at.is_some() && at < then, "{both}");
    let feedback = told.context(None, Some("8 is wrong")).expect("feedback");
    assert!(!feedback.contains("solution") && feedback.ends_with("Now answer the original request."));
}

#[test]
fn reasoning_is_taken_out_of_a_solution() {
    for (answer, said) in [
        (" 7\n", "7"),
        ("<think>3 + 4</think>\n7", "7"),
        ("3 + 4</think>7", "7"),
        ("so <think>a</think>7<think>b</think>!", "so 7!"),
        ("<think>3 + 4 is", ""),
        ("a</think>b<think>c", "b"),
        ("", ""),
    ] {
        assert_eq!(without_thoughts(answer), said, "{answer:?}");
    }
}
