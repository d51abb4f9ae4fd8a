//! The loss of the recipe, through its definition in the SDK: the estimate of the reverse divergence from the
//! sampled token.

use reef_recipe::Divergence;
use reef_recipe::distillation::{gap, log_softmax, sample_loss};

#[test]
fn a_token_costs_what_the_student_finds_it_likelier_than_the_teacher() {
    assert!((gap(-1.420076, -0.746567) - 0.673509).abs() < 1e-9);
    assert_eq!(gap(-1.0, -1.0), 0.0);
}

#[test]
fn the_estimate_is_the_reverse_divergence_on_average() {
    let (student, teacher) = (log_softmax(&[1.0, 0.0, -1.0, 0.5]), log_softmax(&[0.2, 0.8, -0.5, 0.0]));
    let expected: f64 = student.iter().zip(&teacher).map(|(&p, &t)| p.exp() * gap(t, p)).sum();
    assert!((expected - 0.224875361).abs() < 1e-9, "{expected}");
}

#[test]
fn its_gradient_is_that_of_the_reverse_divergence_on_average() {
    let (student, teacher) = (log_softmax(&[1.0, 0.0, -1.0, 0.5]), log_softmax(&[0.2, 0.8, -0.5, 0.0]));
    let wanted = Divergence::REVERSE.gradient(&teacher, &student);
    for (logit, wanted) in wanted.into_iter().enumerate() {
        // d log p(y) / d logit = [y = logit] − p(logit).
        let slope = |y: usize| f64::from(u8::from(y == logit)) - student[logit].exp();
        let expected: f64 = (0..4).map(|y| student[y].exp() * gap(teacher[y], student[y]) * slope(y)).sum();
        assert!((expected - wanted).abs() < 1e-12, "{expected} is not {wanted}");
    }
}

#[test]
fn a_sample_is_the_mean_of_its_action_tokens() {
    let gaps = [0.5, 9.0, -0.1];
    assert!((sample_loss(&gaps, &[1.0; 3], &[1, 0, 1], 0) - 0.2).abs() < 1e-12);
}
