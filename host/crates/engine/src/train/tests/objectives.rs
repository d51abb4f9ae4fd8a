//! Sums of objectives, penalties, recomputed ratios and the moving average.

use super::super::fixture::alone;
use super::super::{EMA_FILE, KlPenalty, RatioSource};
use super::*;
use crate::lora_config::LoraConfig;

fn with_kl(weight: Weight, samples: &[Sample], coefficient: f32, reference: Policy) -> PolicyGradient {
    PolicyGradient { kl: Some(KlPenalty { coefficient, reference }), ..gradient_of(weight, samples) }
}

fn with_entropy(weight: Weight, samples: &[Sample], entropy: f32) -> PolicyGradient {
    PolicyGradient { entropy, ..gradient_of(weight, samples) }
}

fn scaled(factor: f32, gradient: PolicyGradient) -> Term {
    Term { factor, ..gradient.into() }
}

/// A sum that uses every feature.
pub(super) fn everything(samples: &[Sample]) -> Vec<Term> {
    let ppo = Weight::Ppo { low: 0.8, high: 1.28 };
    let recomputed = PolicyGradient { old: RatioSource::Recomputed, ..with_entropy(ppo, samples, 0.01) };
    vec![
        recomputed.into(),
        scaled(0.5, with_kl(Weight::Truncated(2.0), samples, 0.1, Policy::Base)),
        scaled(-0.25, with_kl(Weight::Ratio, samples, 0.2, Policy::Ema)),
        Term { factor: 0.1, objective: Objective::Nll },
    ]
}

/// A trainer two steps away from its start and from its moving average.
fn moved(model: &Arc<Model>, samples: &[Sample]) -> Trainer {
    let mut trainer = trainer_over(model, Some(&stepped(model)));
    for rate in [0.5, 0.25] {
        trainer.train(&refs(samples), &objective(Weight::Reinforce, samples), &ADAM).expect("step");
        trainer.update_ema(rate).expect("average");
    }
    trainer
}

fn gradient(trainer: &mut Trainer, samples: &[Sample], terms: &[Term]) -> (Vec<f32>, f64) {
    let metrics = trainer.forward_backward(&refs(samples), terms).expect("pass");
    let gradient = trainer.gradient.flat();
    // Back to a gradient of 0 without a step.
    trainer.gradient.clear().expect("cleared");
    (gradient, metrics["loss"])
}

#[test]
fn a_sum_of_terms_has_the_sum_of_their_gradients_and_losses() {
    let (model, samples) = (tiny_model(), samples());
    let mut trainer = moved(&model, &samples);
    let terms = everything(&samples);
    let (whole, loss) = gradient(&mut trainer, &samples, &terms);
    let mut sum = vec![0.0f64; whole.len()];
    let mut losses = 0.0;
    for term in &terms {
        let alone = Term { factor: 1.0, objective: term.objective.clone() };
        let (part, loss) = gradient(&mut trainer, &samples, &[alone]);
        assert!(part.iter().any(|g| *g != 0.0));
        sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += f64::from(term.factor) * f64::from(part));
        losses += f64::from(term.factor) * loss;
    }
    let largest = sum.iter().fold(0.0f64, |most, g| most.max(g.abs()));
    let apart = sum.iter().zip(&whole).fold(0.0f64, |most, (sum, whole)| most.max((sum - f64::from(*whole)).abs()));
    assert!(apart < 1e-6 * largest.max(1.0) && apart < 1e-5 * largest, "{apart} of {largest}");
    assert!((losses - loss).abs() < 1e-6 * losses.abs().max(1.0), "{losses} and {loss}");
}

#[test]
fn the_gradient_is_the_slope_of_the_loss() {
    // AdamW's first step moves every parameter by lr against the sign of its gradient, so the loss falls by
    // lr·‖g‖₁ to first order. Without the moments of the step before, the next step is a first step again.
    let (model, samples) = (tiny_model(), samples());
    let files = without(&moved(&model, &samples).checkpoint().expect("files"), &[TRAINER_STATE_FILE]);
    let plain = gradient_of(Weight::Reinforce, &samples);
    let only = |penalised: PolicyGradient| {
        let advantages = vec![0.0; penalised.advantages.len()];
        PolicyGradient { advantages, ..penalised }
    };
    let cases: [Vec<Term>; 7] = [
        vec![plain.clone().into()],
        nll().to_vec(),
        vec![only(with_kl(Weight::Reinforce, &samples, 2.0, Policy::Base)).into()],
        vec![only(with_kl(Weight::Reinforce, &samples, 2.0, Policy::Ema)).into()],
        vec![only(with_entropy(Weight::Reinforce, &samples, 0.5)).into()],
        vec![
            PolicyGradient {
                old: RatioSource::Recomputed,
                weight: Weight::Ppo { low: 0.01, high: 99.0 },
                ..plain.clone()
            }
            .into(),
        ],
        vec![
            scaled(0.5, with_kl(Weight::Reinforce, &samples, 0.3, Policy::Base)),
            scaled(2.0, with_entropy(Weight::Reinforce, &samples, 0.05)),
            Term { factor: 0.5, objective: Objective::Nll },
        ],
    ];
    let small = Optimizer { learning_rate: 1e-5, weight_decay: 0.0, gradient_norm_max: 0.0, ..ADAM };
    for (case, terms) in cases.into_iter().enumerate() {
        let mut trainer = trainer_over(&model, Some(&files));
        let first = trainer.forward_backward(&refs(&samples), &terms).expect("pass");
        let l1: f64 = trainer.gradient.flat().iter().map(|g| f64::from(g.abs())).sum();
        trainer.optimizer_step(&small).expect("step");
        let second = trainer.forward_backward(&refs(&samples), &terms).expect("pass");
        let (fell, predicted) = (first["loss"] - second["loss"], 1e-5 * l1);
        assert!((fell - predicted).abs() < 0.05 * predicted, "case {case}: fell {fell}, predicted {predicted}");
    }
}

#[test]
fn a_recomputed_ratio_compares_with_the_adapter_at_open() {
    let (model, samples) = (tiny_model(), samples());
    let recomputed = |weight| PolicyGradient { old: RatioSource::Recomputed, ..gradient_of(weight, &samples) };
    // At open every ratio is exactly 1, whatever was recorded.
    let mut fresh = trainer_over(&model, Some(&stepped(&model)));
    let plain = gradient(&mut fresh, &samples, &objective(Weight::Reinforce, &samples)).0;
    assert!(plain == gradient(&mut fresh, &samples, &[recomputed(Weight::Ratio).into()]).0);
    // Later it is the same as if the adapter at open had recorded the samples.
    let mut relabelled = samples.clone();
    record(&mut fresh, &mut relabelled);
    fresh.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect("step");
    for weight in [Weight::Ratio, Weight::Ppo { low: 0.9, high: 1.1 }, Weight::Masked { low: 0.9, high: 1.1 }] {
        let terms = [recomputed(weight).into()];
        let of_start = fresh.forward_backward(&refs(&samples), &terms).expect("pass");
        assert!(of_start["logprob_abs_diff"] > 0.1, "the metric still speaks of what was recorded: {of_start:?}");
        fresh.gradient.clear().expect("cleared");
        let of_start = gradient(&mut fresh, &samples, &terms);
        assert!(of_start == gradient(&mut fresh, &relabelled, &objective(weight, &samples)), "{weight:?}");
    }
}

#[test]
fn the_metrics_of_penalties_are_means_over_action_tokens() {
    let (model, samples) = (tiny_model(), samples());
    let mut trainer = moved(&model, &samples);
    let now = trainer.forward(Policy::Current, &refs(&samples)).expect("log-probs");
    let action: Vec<bool> = samples.iter().flat_map(|s| s.trajectory.mask.iter().map(|&m| m == 1)).collect();
    for reference in [Policy::Base, Policy::Ema] {
        let other = trainer.forward(reference, &refs(&samples)).expect("log-probs");
        let k3 = |(now, other): (&f32, &f32)| {
            (f64::from(*other) - f64::from(*now)).exp_m1() - f64::from(*other) + f64::from(*now)
        };
        let each = now.iter().zip(&other).map(k3).zip(&action).filter(|(_, action)| **action).map(|(k3, _)| k3);
        let want = each.clone().sum::<f64>() / each.count() as f64;
        let terms = [with_kl(Weight::Reinforce, &samples, 0.1, reference).into()];
        let metrics = trainer.forward_backward(&refs(&samples), &terms).expect("pass");
        assert!(want > 0.0 && (metrics["kl"] / want - 1.0).abs() < 1e-3, "{reference:?}: {want}, {metrics:?}");
        assert!(!metrics.contains_key("entropy_exact"));
    }
    // A vocabulary of 50 has at most ln 50 nats; a bonus raises them.
    let bonus = PolicyGradient {
        advantages: vec![0.0; response_tokens(&samples)],
        ..with_entropy(Weight::Reinforce, &samples, 1.0)
    };
    let terms = [bonus.into()];
    let first = trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
    let second = trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
    assert!(second["entropy_exact"] > first["entropy_exact"] && first["entropy_exact"] > 0.0, "{first:?} {second:?}");
    assert!(second["entropy_exact"] <= 50f64.ln() && !first.contains_key("kl"));
}

#[test]
fn a_penalty_on_a_policy_that_is_the_adapter_itself_is_zero_and_skips_the_step() {
    let (mut trainer, samples) = (trainer_over(&tiny_model(), None), samples());
    let penalty = PolicyGradient {
        advantages: vec![0.0; response_tokens(&samples)],
        ..with_kl(Weight::Reinforce, &samples, 1.0, Policy::Ema)
    };
    let before = trainer.checkpoint().expect("files");
    let metrics = trainer.train(&refs(&samples), &[penalty.into()], &ADAM).expect("skipped");
    assert_eq!((metrics["kl"], metrics["skipped"]), (0.0, 1.0));
    assert!(before == trainer.checkpoint().expect("files"));
}

#[test]
fn wrong_terms_are_refused_with_their_field() {
    let (mut trainer, samples) = (trainer_over(&tiny_model(), None), samples());
    let good = gradient_of(Weight::Ratio, &samples);
    let cases: [(&str, Vec<Term>); 7] = [
        ("terms: 0 of them", Vec::new()),
        ("terms: 17 of them", vec![Objective::Nll.into(); 17]),
        ("terms[1].factor", vec![good.clone().into(), scaled(f32::NAN, good.clone())]),
        ("terms[0].entropy", vec![with_entropy(Weight::Ratio, &samples, f32::INFINITY).into()]),
        ("terms[0].kl.coefficient", vec![with_kl(Weight::Ratio, &samples, f32::NAN, Policy::Base).into()]),
        ("terms[0].kl.reference", vec![with_kl(Weight::Ratio, &samples, 1.0, Policy::Current).into()]),
        ("terms[0]: weight", vec![gradient_of(Weight::Truncated(-1.0), &samples).into()]),
    ];
    for (name, terms) in cases {
        let refusal = trainer.forward_backward(&refs(&samples), &terms).expect_err("refused").to_string();
        assert!(refusal.contains(name), "{name}: {refusal}");
    }
}

#[test]
fn the_moving_average_follows_the_adapter_and_is_stored_once_used() {
    let (model, samples) = (tiny_model(), samples());
    let mut trainer = trainer_over(&model, Some(&stepped(&model)));
    let at_open = trainer.forward(Policy::Current, &refs(&samples)).expect("log-probs");
    trainer.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect("step");
    let ema = |trainer: &mut Trainer| trainer.forward(Policy::Ema, &refs(&samples)).expect("log-probs");
    assert_eq!(ema(&mut trainer), at_open);
    assert!(trainer.checkpoint().expect("files").iter().all(|(name, _)| name != EMA_FILE), "never updated");

    trainer.update_ema(0.0).expect("pinned");
    assert_eq!(ema(&mut trainer), at_open);
    assert!(trainer.checkpoint().expect("files").iter().any(|(name, _)| name == EMA_FILE));
    trainer.update_ema(0.5).expect("half way");
    let now = trainer.forward(Policy::Current, &refs(&samples)).expect("log-probs");
    let half_way = ema(&mut trainer);
    assert!(half_way != at_open && half_way != now);
    let parameters = |lora: Option<&crate::adapter::Lora>| -> Vec<f32> {
        let tensors = lora.expect("adapter").parameters().into_iter().map(|p| p.detach().flatten(0, -1));
        Vec::<f32>::try_from(tch::Tensor::cat(&tensors.collect::<Vec<_>>(), 0)).expect("f32")
    };
    let start = parameters(Some(&trainer.policies.start));
    let current = parameters(trainer.policies.adapter(Policy::Current).expect("known"));
    let average = parameters(trainer.policies.adapter(Policy::Ema).expect("known"));
    for ((average, start), current) in average.iter().zip(&start).zip(&current) {
        assert_eq!(*average, 0.5 * start + 0.5 * current);
    }
    trainer.update_ema(1.0).expect("all the way");
    assert_eq!(ema(&mut trainer), now);

    let before = trainer.checkpoint().expect("files");
    for rate in [-0.1, 1.1, f64::NAN] {
        assert!(trainer.update_ema(rate).expect_err("refused").to_string().contains("rate"));
    }
    assert!(before == trainer.checkpoint().expect("files"));
}

#[test]
fn resuming_with_a_moving_average_equals_not_stopping() {
    let (model, samples) = (tiny_model(), samples());
    let step = |trainer: &mut Trainer| {
        let penalised = [with_kl(Weight::Ratio, &samples, 0.5, Policy::Ema).into()];
        trainer.train(&refs(&samples), &penalised, &ADAM).expect("step");
        trainer.update_ema(0.1).expect("average");
    };
    let mut straight = moved(&model, &samples);
    step(&mut straight);
    let files = straight.checkpoint().expect("files");
    let mut resumed = trainer_over(&model, Some(&files));
    assert!(files == resumed.checkpoint().expect("files"), "a checkpoint reads back to itself");
    step(&mut straight);
    step(&mut resumed);
    assert!(straight.checkpoint().expect("files") == resumed.checkpoint().expect("files"));

    // Damage is named, and so is the average of an adapter of another shape.
    let mut damaged = files.clone();
    let ema = damaged.iter_mut().find(|(name, _)| name == EMA_FILE).expect("stored");
    ema.1.truncate(ema.1.len() - 1);
    let opened = open(&model, Arc::new(ServingLoad::default()), Some(&damaged));
    assert!(opened.expect_err("refused").to_string().contains(EMA_FILE));
    let rank_2 = LoraConfig { rank: 2, alpha: 4.0, seed: 1, ..LoraConfig::default() };
    let average_only = without(&files, &[CONFIG_FILE, WEIGHTS_FILE, TRAINER_STATE_FILE, CRITIC_FILE]);
    let opened = Trainer::over(Arc::clone(&model), alone(Arc::default()), &rank_2, &average_only);
    assert!(opened.expect_err("refused").to_string().contains("ema.safetensors: parameter.00000"));
}

#[test]
fn a_sample_without_recorded_log_probs_learns_by_nll() {
    let mut trainer = trainer_over(&tiny_model(), None);
    // The same sample with another response: equal length, equal report.
    let mut derived = [sample(0, &[5, 9, 11, 3, 42, 8], 2), sample(0, &[5, 9, 11, 3, 17, 30], 2)];
    for sample in &mut derived {
        sample.trajectory.logprobs.fill(0.0);
    }
    let before = trainer.forward(Policy::Current, &refs(&derived)).expect("log-probs");
    let metrics = trainer.train(&refs(&derived), &nll(), &ADAM).expect("step");
    assert!((metrics["loss"] + before.iter().map(|&logp| f64::from(logp)).sum::<f64>() / 4.0).abs() < 1e-5);
    assert_eq!(metrics["skipped"], 0.0);
    let after = trainer.forward(Policy::Current, &refs(&derived)).expect("log-probs");
    assert!(after.iter().sum::<f32>() > before.iter().sum::<f32>(), "{before:?} → {after:?}");
    let mut other = trainer_over(&tiny_model(), None);
    derived.reverse();
    assert_eq!(other.train(&refs(&derived), &nll(), &ADAM).expect("step"), metrics, "in any order");
}
