//! AdamW with decoupled weight decay (arXiv 1711.05101, algorithm 2) and clipping by the global gradient norm.
//! The trainer uses one for the adapter and one for the critic. Parameters are updated in place, without
//! a graph; the moments belong to the checkpoint.

use serde::{Deserialize, Serialize};
use tch::{Tensor, no_grad};

use crate::error::EngineError;

/// Below it, the step of a parameter whose second moment is 0 in f32 could be 0/0 or far too long.
const EPSILON_MIN: f64 = 1e-20;

/// What one optimizer step is done with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// Step size, in [0, 1].
    pub learning_rate: f64,
    /// Decay of the first moment, in [0, 1).
    pub beta1: f64,
    /// Decay of the second moment, in [0, 1).
    pub beta2: f64,
    /// Added to the root of the second moment, at least 1e-20.
    pub epsilon: f64,
    /// In [0, 1]. Decoupled: parameters shrink by learning_rate·weight_decay a step.
    pub weight_decay: f64,
    /// The global L2 norm of the gradient is clipped to this; 0 = off.
    pub gradient_norm_max: f64,
}

impl Optimizer {
    /// Refuses values outside the ranges above.
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        let unit = |x: f64| (0.0..=1.0).contains(&x);
        let decay = |x: f64| (0.0..1.0).contains(&x);
        let fields = [
            ("learning_rate", self.learning_rate, unit(self.learning_rate)),
            ("beta1", self.beta1, decay(self.beta1)),
            ("beta2", self.beta2, decay(self.beta2)),
            ("epsilon", self.epsilon, self.epsilon.is_finite() && self.epsilon >= EPSILON_MIN),
            ("weight_decay", self.weight_decay, unit(self.weight_decay)),
            (
                "gradient_norm_max",
                self.gradient_norm_max,
                self.gradient_norm_max.is_finite() && self.gradient_norm_max >= 0.0,
            ),
        ];
        match fields.iter().find(|(_, _, valid)| !valid) {
            None => Ok(()),
            Some((name, value, _)) => Err(EngineError::Invalid(format!("optimizer: {name} {value} is out of range"))),
        }
    }
}

/// Moments of a fixed list of parameters.
#[derive(Debug)]
pub(crate) struct AdamW {
    /// Steps taken.
    pub(super) steps: i64,
    /// First moment of each parameter, in its shape.
    pub(super) first: Vec<Tensor>,
    /// Second moment of each parameter, in its shape.
    pub(super) second: Vec<Tensor>,
}

impl AdamW {
    /// Zero moments for `parameters`.
    pub(crate) fn new(parameters: &[Tensor]) -> Result<Self, EngineError> {
        let zeros = || parameters.iter().map(|p| p.f_detach()?.f_zeros_like()).collect::<Result<Vec<_>, _>>();
        Ok(Self { steps: 0, first: zeros()?, second: zeros()? })
    }

    /// Updates `parameters` from their accumulated gradients, whose global norm is `gradient_norm`.
    /// A parameter without a gradient stays as it is.
    pub(crate) fn step(
        &mut self,
        parameters: &[Tensor],
        gradient_norm: f64,
        how: &Optimizer,
    ) -> Result<(), EngineError> {
        self.steps += 1;
        // Exponents beyond i32 have a bias correction of exactly 1 anyway.
        let steps = i32::try_from(self.steps).unwrap_or(i32::MAX);
        let rate = how.learning_rate / (1.0 - how.beta1.powi(steps));
        let second_root = (1.0 - how.beta2.powi(steps)).sqrt();
        let clip = clip_factor(gradient_norm, how.gradient_norm_max);
        no_grad(|| {
            let moments = self.first.iter_mut().zip(&mut self.second);
            for (parameter, (first, second)) in parameters.iter().zip(moments) {
                let gradient = parameter.f_grad()?;
                if !gradient.defined() {
                    continue;
                }
                let gradient = gradient.f_mul_scalar(clip)?;
                let mut parameter = parameter.shallow_clone();
                let _ = parameter.f_mul_scalar_(1.0 - how.learning_rate * how.weight_decay)?;
                let _ = first.f_mul_scalar_(how.beta1)?.f_add_(&gradient.f_mul_scalar(1.0 - how.beta1)?)?;
                let _ =
                    second.f_mul_scalar_(how.beta2)?.f_add_(&gradient.f_square()?.f_mul_scalar_(1.0 - how.beta2)?)?;
                let denominator = second.f_sqrt()?.f_div_scalar_(second_root)?.f_add_scalar_(how.epsilon)?;
                let _ = parameter.f_sub_(&first.f_div(&denominator)?.f_mul_scalar_(rate)?)?;
            }
            Ok(())
        })
    }
}

/// What a gradient of this norm is multiplied with; never above 1.
fn clip_factor(norm: f64, norm_max: f64) -> f64 {
    if norm_max > 0.0 && norm > norm_max { norm_max / norm } else { 1.0 }
}

/// Global L2 norm of the accumulated gradients, in f64.
pub(crate) fn gradient_norm(parameters: &[Tensor]) -> Result<f64, EngineError> {
    let mut squares = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        let gradient = parameter.f_grad()?;
        if gradient.defined() {
            squares.push(gradient.f_square()?.f_sum(tch::Kind::Double)?);
        }
    }
    if squares.is_empty() {
        return Ok(0.0);
    }
    // All of them at once: a device is waited for a single time.
    Ok(Vec::<f64>::try_from(Tensor::f_stack(&squares, 0)?)?.iter().sum::<f64>().sqrt())
}

/// Forgets the accumulated gradients.
pub(crate) fn zero_gradients(parameters: &[Tensor]) -> Result<(), EngineError> {
    for parameter in parameters {
        let mut gradient = parameter.f_grad()?;
        if gradient.defined() {
            let _ = gradient.f_detach_()?.f_zero_()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOW: Optimizer = Optimizer {
        learning_rate: 0.1,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.01,
        gradient_norm_max: 0.0,
    };

    fn with_gradient(parameter: &Tensor, gradient: &[f32]) -> f64 {
        let parameters = [parameter.shallow_clone()];
        zero_gradients(&parameters).expect("zeroed");
        (parameter * Tensor::from_slice(gradient)).sum(tch::Kind::Float).backward();
        gradient_norm(&parameters).expect("norm")
    }

    fn run(how: &Optimizer, gradients: &[[f32; 2]]) -> Vec<f32> {
        let parameter = Tensor::from_slice(&[1.0f32, -2.0]).set_requires_grad(true);
        let mut adam = AdamW::new(&[parameter.shallow_clone()]).expect("moments");
        for gradient in gradients {
            let norm = with_gradient(&parameter, gradient);
            adam.step(&[parameter.shallow_clone()], norm, how).expect("step");
        }
        Vec::<f32>::try_from(parameter.detach()).expect("f32")
    }

    /// The same update in plain f64, written from the algorithm.
    fn reference(how: &Optimizer, gradients: &[[f32; 2]]) -> [f64; 2] {
        let (mut p, mut m, mut v) = ([1.0, -2.0], [0.0; 2], [0.0; 2]);
        for (t, gradient) in (1..).zip(gradients) {
            for i in 0..2 {
                let g = f64::from(gradient[i]);
                m[i] = how.beta1 * m[i] + (1.0 - how.beta1) * g;
                v[i] = how.beta2 * v[i] + (1.0 - how.beta2) * g * g;
                let (m_hat, v_hat): (f64, f64) = (m[i] / (1.0 - how.beta1.powi(t)), v[i] / (1.0 - how.beta2.powi(t)));
                p[i] = p[i] * (1.0 - how.learning_rate * how.weight_decay)
                    - how.learning_rate * m_hat / (v_hat.sqrt() + how.epsilon);
            }
        }
        p
    }

    fn close(got: &[f32], want: &[f64]) {
        for (got, want) in got.iter().zip(want) {
            assert!((f64::from(*got) - want).abs() < 1e-6, "{got} is not {want}");
        }
    }

    #[test]
    fn the_first_step_moves_by_the_learning_rate_against_the_sign() {
        // p·(1 − 0.001) − 0.1·sign(g): bias correction cancels the moments of the first step.
        close(&run(&HOW, &[[0.5, -3.0]]), &[0.899, -1.898]);
    }

    #[test]
    fn three_steps_equal_the_algorithm() {
        let gradients = [[0.5, -3.0], [-0.2, 1.0], [0.05, -4.0]];
        close(&run(&HOW, &gradients), &reference(&HOW, &gradients));
    }

    #[test]
    fn clipping_scales_the_whole_gradient_to_the_norm() {
        let clipped = Optimizer { gradient_norm_max: 1.0, ..HOW };
        let got = run(&clipped, &[[3.0, 4.0], [0.3, 0.4]]);
        // Norm 5 becomes 1; norm 0.5 stays.
        close(&got, &reference(&HOW, &[[0.6, 0.8], [0.3, 0.4]]));
    }

    #[test]
    fn out_of_range_settings_are_named() {
        let refusal = Optimizer { beta2: 1.0, ..HOW }.check().expect_err("refused").to_string();
        assert!(refusal.contains("beta2"), "{refusal}");
        assert!(Optimizer { learning_rate: f64::NAN, ..HOW }.check().is_err());
        assert!(Optimizer { learning_rate: 1.5, ..HOW }.check().is_err());
        assert!(Optimizer { epsilon: 1e-50, ..HOW }.check().is_err(), "it is 0 in f32");
        assert!(HOW.check().is_ok());
    }
}
