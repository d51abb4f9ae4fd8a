//! The published numbers of the loss, through its definition in the SDK: the forward divergence over the whole
//! vocabulary, corrected per sequence.

use reef_recipe::Divergence;
use reef_recipe::distillation::{log_softmax, sample_loss, sequence_importance, token_importance};

fn close(found: &[f64], wanted: &[f64], tolerance: f64) {
    assert_eq!(found.len(), wanted.len());
    for (found, wanted) in found.iter().zip(wanted) {
        assert!((found - wanted).abs() < tolerance, "{found} is not {wanted}");
    }
}

#[test]
fn the_divergence_and_its_gradient() {
    let (student, teacher) = (log_softmax(&[1.0, 0.0, -1.0, 0.5]), log_softmax(&[0.2, 0.8, -0.5, 0.0]));
    close(&[Divergence::FORWARD.of(&teacher, &student)], &[0.246522726], 1e-9);
    let gradient = Divergence::FORWARD.gradient(&teacher, &student);
    close(&gradient, &[0.232295, -0.266027, -0.055875, 0.089606], 1e-6);
}

#[test]
fn one_importance_for_the_whole_sequence() {
    let (now, then) = ([-1.0, -0.2, -3.0], [-1.3, -0.1, -5.0]);
    close(&token_importance(&now, &then, 2.0), &[1.349859, 0.904837, 2.0], 1e-6);
    close(&[sequence_importance(&now, &then, &[1, 1, 1], 2.0)], &[1.418232], 1e-6);
}

#[test]
fn a_sample_is_its_importance_times_the_mean_divergence_after_the_skipped_tokens() {
    let importance = [1.5; 4];
    close(&[sample_loss(&[9.0, 0.2, 7.0, 0.4], &importance, &[1, 1, 0, 1], 1)], &[0.45], 1e-12);
}
