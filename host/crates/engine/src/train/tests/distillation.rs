//! Objectives with a teacher or with recorded alternatives, through the whole trainer.

use reef_core::Alternatives;

use super::super::{Distillation, Divergence, Importance, RatioSource, Support, TopKDistillation};
use super::*;

const JSD: Divergence = Divergence::JensenShannon { beta: 0.5 };

fn distillation(divergence: Divergence, support: Support) -> Distillation {
    Distillation {
        teacher: Policy::Base,
        prompts: Vec::new(),
        divergence,
        support,
        importance: Importance::Off,
        weights: Vec::new(),
        skip: 0,
    }
}

fn distill(distillation: Distillation) -> [Term; 1] {
    [Objective::Distill(distillation).into()]
}

/// A prompt for the teacher of each sample; together they are more than one pass of the teacher.
fn prompts(samples: &[Sample]) -> Vec<Vec<u32>> {
    let prompt = |n: usize| (0..20 + 7 * (n as u32 % 9)).map(|t| (13 * n as u32 + 5 * t) % 50).collect();
    (0..samples.len()).map(prompt).collect()
}

fn after(prompts: &[Vec<u32>], samples: &[Sample]) -> Vec<Sample> {
    let change = |(prompt, sample): (&Vec<u32>, &Sample)| {
        let mut changed = sample.clone();
        let response = &sample.trajectory.tokens[sample.trajectory.prompt_length..];
        changed.trajectory.tokens = [prompt.as_slice(), response].concat();
        changed.trajectory.prompt_length = prompt.len();
        changed
    };
    prompts.iter().zip(samples).map(change).collect()
}

fn parts<'a>(column: &'a [f32], samples: &'a [Sample]) -> impl Iterator<Item = &'a [f32]> {
    let mut rest = column;
    samples.iter().map(move |sample| {
        let (part, after) = rest.split_at(sample.trajectory.mask.len());
        rest = after;
        part
    })
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    let largest = a.iter().fold(0.0f32, |most, number| most.max(number.abs()));
    assert!(a.len() == b.len() && largest > 0.0);
    a.iter().zip(b).fold(0.0f32, |most, (a, b)| most.max((a - b).abs())) / largest
}

/// dL/d(log π) of the reverse estimate with weights, a skipped start and the weights of off-policy tokens, from
/// `forward` alone.
fn by_hand(trainer: &mut Trainer, samples: &[Sample], what: &Distillation) -> Vec<f32> {
    let logp = trainer.forward(Policy::Current, &refs(samples)).expect("student");
    let logt = trainer.forward(what.teacher, &refs(&after(&what.prompts, samples))).expect("teacher");
    let mut gradients = Vec::new();
    for (index, sample) in samples.iter().enumerate() {
        let (logp, logt) = (parts(&logp, samples).nth(index), parts(&logt, samples).nth(index));
        let (logp, logt) = (logp.expect("own"), logt.expect("own"));
        let counts = |at: usize| at >= what.skip && sample.trajectory.mask[at] == 1;
        let capped = |at: usize, cap: f32| (logp[at] - sample.trajectory.logprobs[at]).exp().min(cap);
        let counted: Vec<usize> = (0..logp.len()).filter(|at| counts(*at)).collect();
        let weight = |at: usize| match what.importance {
            Importance::Off => 1.0,
            Importance::Token(cap) => capped(at, cap),
            Importance::Sequence(cap) => counted.iter().map(|at| capped(*at, cap)).sum::<f32>() / counted.len() as f32,
        };
        let share = what.weights[index] / (samples.len() * counted.len().max(1)) as f32;
        let slope = |at: usize| if counts(at) { share * weight(at) * (logp[at] - logt[at]) } else { 0.0 };
        gradients.extend((0..logp.len()).map(slope));
    }
    gradients
}

#[test]
fn the_reverse_estimate_equals_a_gradient_written_by_the_caller() {
    let (model, mut samples) = (tiny_model(), samples());
    record(&mut trainer_over(&model, None), &mut samples);
    let files = stepped(&model);
    for importance in [Importance::Off, Importance::Token(1.1), Importance::Sequence(1.1)] {
        let what = Distillation {
            prompts: prompts(&samples),
            importance,
            weights: (0..samples.len()).map(|n| n as f32 % 3.0).collect(),
            skip: 2,
            ..distillation(Divergence::Reverse, Support::Sampled)
        };
        let (mut host, mut caller) = (trainer_over(&model, Some(&files)), trainer_over(&model, Some(&files)));
        let gradients = by_hand(&mut caller, &samples, &what);
        assert!(gradients.iter().any(|gradient| *gradient != 0.0));
        caller.backward(&refs(&samples), &gradients).expect("pass");
        host.forward_backward(&refs(&samples), &distill(what)).expect("pass");
        let apart = apart(&caller.gradient.flat(), &host.gradient.flat());
        assert!(apart < 1e-5, "{importance:?}: {apart}");
    }
}

#[test]
fn the_gradient_of_every_divergence_is_the_slope_of_the_loss() {
    // As for the other objectives: AdamW's first step lowers the loss by lr·‖g‖₁ to first order.
    let (model, samples) = (tiny_model(), samples());
    let files = without(&stepped(&model), &[TRAINER_STATE_FILE]);
    let small = Optimizer { learning_rate: 4e-6, weight_decay: 0.0, gradient_norm_max: 0.0, ..ADAM };
    // A support of K ids jumps where the student changes its mind about the K-th; the golden numbers have its slope.
    for divergence in [Divergence::Forward, Divergence::Reverse, JSD] {
        let what = Distillation { prompts: prompts(&samples), skip: 1, ..distillation(divergence, Support::Exact) };
        let terms = distill(what);
        let mut trainer = trainer_over(&model, Some(&files));
        let first = trainer.forward_backward(&refs(&samples), &terms).expect("pass");
        let l1: f64 = trainer.gradient.flat().iter().map(|g| f64::from(g.abs())).sum();
        trainer.optimizer_step(&small).expect("step");
        let second = trainer.forward_backward(&refs(&samples), &terms).expect("pass");
        let (fell, predicted) = (first["loss"] - second["loss"], 4e-6 * l1);
        assert!((fell - predicted).abs() < 0.05 * predicted, "{divergence:?}: fell {fell}, predicted {predicted}");
    }
}

#[test]
fn a_student_comes_closer_to_the_teacher_that_reads_more() {
    for divergence in [Divergence::Forward, Divergence::Reverse, JSD] {
        let (mut trainer, samples) = (trainer_over(&tiny_model(), None), samples());
        let teacher = Distillation {
            teacher: Policy::Ema,
            prompts: prompts(&samples),
            ..distillation(divergence, Support::Exact)
        };
        let terms = distill(teacher);
        let first = trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
        assert!(first["divergence"] > 0.0 && first["loss"] > 0.0, "{first:?}");
        let mut last = first.clone();
        for _ in 0..8 {
            last = trainer.train(&refs(&samples), &terms, &ADAM).expect("step");
        }
        assert!(last["loss"] < 0.7 * first["loss"], "{divergence:?}: {first:?} → {last:?}");
    }
}

#[test]
fn the_order_of_items_prompts_and_weights_changes_no_bit() {
    let (model, samples) = (tiny_model(), samples());
    let step = |reversed: bool| {
        let mut samples = samples.clone();
        let mut what = Distillation {
            prompts: prompts(&samples),
            weights: (0..samples.len()).map(|n| 1.0 + n as f32).collect(),
            importance: Importance::Sequence(2.0),
            ..distillation(JSD, Support::TopKTail(8))
        };
        if reversed {
            samples.reverse();
            what.prompts.reverse();
            what.weights.reverse();
        }
        let mut trainer = trainer_over(&model, Some(&stepped(&model)));
        let metrics = trainer.train(&refs(&samples), &distill(what), &ADAM).expect("step");
        (metrics, trainer.checkpoint().expect("files"))
    };
    assert!(step(false) == step(true));
}

#[test]
fn samples_of_weight_zero_stay_in_the_mean_and_a_batch_of_them_is_skipped() {
    let (model, samples) = (tiny_model(), samples());
    let loss = |samples: &[Sample], weights: &[f32]| {
        let mut trainer = trainer_over(&model, Some(&stepped(&model)));
        let weights = weights.to_vec();
        let what = Distillation { weights, ..distillation(Divergence::Forward, Support::Exact) };
        trainer.forward_backward(&refs(samples), &distill(what)).expect("pass")
    };
    let (both, alone) = (loss(&samples[1..3], &[1.0, 0.0]), loss(&samples[1..2], &[1.0]));
    assert!((2.0 * both["loss"] / alone["loss"] - 1.0).abs() < 1e-5, "{both:?} {alone:?}");
    assert!((both["divergence"] / alone["divergence"] - 1.0).abs() < 1e-5, "{both:?} {alone:?}");
    assert_eq!(loss(&samples[1..3], &[0.0, 0.0])["skipped"], 1.0);
}

/// One-token samples with three alternatives, recorded by `trainer`.
fn with_alternatives(trainer: &mut Trainer) -> Vec<Sample> {
    let tokens = |n: u32| (0..12 + n).map(|t| (7 * n + 3 * t) % 50).collect::<Vec<_>>();
    let mut samples: Vec<Sample> = (0..4).map(|n| sample(i64::from(n), &tokens(n), 1)).collect();
    for (n, sample) in samples.iter_mut().enumerate() {
        sample.temperature = if n % 2 == 0 { 1.0 } else { 0.7 };
        sample.trajectory.alternatives =
            Alternatives { k: 3, ids: vec![n as u32, 20 + n as u32, 40 + n as u32], logprobs: vec![0.0; 3] };
    }
    record(trainer, &mut samples);
    let each = answered(&samples);
    let logp = trainer.forward(Policy::Current, &refs(&each)).expect("log-probs");
    for (sample, logp) in samples.iter_mut().zip(logp.chunks(3)) {
        sample.trajectory.alternatives.logprobs = logp.to_vec();
    }
    samples
}

/// Each sample answered with each of its alternatives.
fn answered(samples: &[Sample]) -> Vec<Sample> {
    let each = |sample: &Sample| {
        let answer = |id: &u32| {
            let mut other = sample.clone();
            *other.trajectory.tokens.last_mut().expect("a response") = *id;
            other
        };
        sample.trajectory.alternatives.ids.iter().map(answer).collect::<Vec<_>>()
    };
    samples.iter().flat_map(each).collect()
}

#[test]
fn distillation_over_alternatives_equals_a_gradient_written_by_the_caller() {
    let model = tiny_model();
    let samples = with_alternatives(&mut trainer_over(&model, None));
    let files = stepped(&model);
    let (mut host, mut caller) = (trainer_over(&model, Some(&files)), trainer_over(&model, Some(&files)));
    let each = answered(&samples);
    let logt = caller.forward(Policy::Base, &refs(&after(&prompts_of_each(&samples), &each))).expect("teacher");
    let logp = caller.forward(Policy::Current, &refs(&each)).expect("student");
    let mut gradients = Vec::new();
    for (n, sample) in samples.iter().enumerate() {
        let logq = &sample.trajectory.alternatives.logprobs;
        let total: f32 = logq.iter().map(|logq| logq.exp()).sum();
        for (k, logq) in logq.iter().enumerate() {
            let advantage = (logt[3 * n + k] - logq).clamp(-0.5, 0.5) * logq.exp() / total;
            let ratio = (logp[3 * n + k] - logq).exp();
            let plain = -ratio * advantage >= -ratio.clamp(0.9, 1.1) * advantage;
            gradients.push(if plain { -ratio * advantage / samples.len() as f32 } else { 0.0 });
        }
    }
    caller.backward(&refs(&each), &gradients).expect("pass");
    let what =
        TopKDistillation { teacher: Policy::Base, prompts: prompts(&samples), advantage_max: 0.5, bounds: (0.9, 1.1) };
    host.forward_backward(&refs(&samples), &[Objective::DistillTopK(what).into()]).expect("pass");
    let apart = apart(&caller.gradient.flat(), &host.gradient.flat());
    assert!(apart < 1e-5, "{apart}");
}

fn prompts_of_each(samples: &[Sample]) -> Vec<Vec<u32>> {
    prompts(samples).into_iter().flat_map(|prompt| vec![prompt; 3]).collect()
}

#[test]
fn a_centred_score_equals_a_gradient_written_by_the_caller() {
    let model = tiny_model();
    let samples = with_alternatives(&mut trainer_over(&model, None));
    let files = stepped(&model);
    let (mut host, mut caller) = (trainer_over(&model, Some(&files)), trainer_over(&model, Some(&files)));
    let plain = gradient_of(Weight::Truncated(1.05), &samples);
    let advantages = plain.advantages.clone();
    let each = answered(&samples);
    let logp = caller.forward(Policy::Current, &refs(&each)).expect("student");
    let mut gradients = Vec::new();
    for (n, sample) in samples.iter().enumerate() {
        let q: Vec<f64> = sample.trajectory.alternatives.logprobs.iter().map(|q| f64::from(*q).exp()).collect();
        let p: Vec<f64> = logp[3 * n..][..3].iter().map(|p| f64::from(*p).exp()).collect();
        let rho = (1.0 - q.iter().sum::<f64>()).max(1e-6) / (1.0 - p.iter().sum::<f64>()).max(1e-6);
        let alpha = rho * (1.0 / rho).min(1.05);
        let share = f64::from(advantages[n]) / samples.len() as f64;
        let coefficient = |(q, p): (&f64, &f64)| (share * (q * (p / q).min(1.05) - alpha * p)) as f32;
        gradients.extend(q.iter().zip(&p).map(coefficient));
    }
    caller.forward_backward(&refs(&samples), &[plain.clone().into()]).expect("plain");
    let uncentred = caller.gradient.flat();
    caller.backward(&refs(&each), &gradients).expect("centre");
    let centred = PolicyGradient { score_centering: true, ..plain };
    host.forward_backward(&refs(&samples), &[centred.into()]).expect("pass");
    let host = host.gradient.flat();
    assert!(apart(&caller.gradient.flat(), &host) < 1e-5);
    assert!(apart(&uncentred, &host) > 1e-3, "the centre is something");
}

#[test]
fn wrong_teachers_prompts_and_alternatives_are_refused_with_their_field() {
    let (mut trainer, samples) = (trainer_over(&tiny_model(), None), samples());
    let good = || Distillation { prompts: prompts(&samples), ..distillation(JSD, Support::Exact) };
    let replaced = |prompt: Vec<u32>| {
        let mut what = good();
        what.prompts[3] = prompt;
        what
    };
    let support = |support| distillation(Divergence::Forward, support);
    let cases: [(&str, Distillation); 10] = [
        ("terms[0].teacher", Distillation { teacher: Policy::Current, ..distillation(JSD, Support::Exact) }),
        ("terms[0].prompts: 1 of them for 25", Distillation { prompts: vec![vec![1]], ..good() }),
        ("terms[0].prompts[3]: it has no tokens", replaced(Vec::new())),
        ("terms[0].prompts[3]: token 50", replaced(vec![50])),
        ("terms[0].prompts[3]: its", replaced(vec![1; 256])),
        ("terms[0].weights: 2 of them", Distillation { weights: vec![1.0; 2], ..good() }),
        ("terms[0].weights: NaN", Distillation { weights: vec![f32::NAN; samples.len()], ..good() }),
        ("terms[0].divergence", distillation(Divergence::JensenShannon { beta: 1.0 }, Support::Exact)),
        ("terms[0].support", support(Support::TopKTail(0))),
        ("terms[0].importance", Distillation { importance: Importance::Token(0.0), ..good() }),
    ];
    let mut refused = |name: &str, terms: &[Term]| {
        let refusal = trainer.forward_backward(&refs(&samples), terms).expect_err("refused").to_string();
        assert!(refusal.contains(name), "{name}: {refusal}");
    };
    for (name, what) in cases {
        refused(name, &distill(what));
    }
    let top_k = |advantage_max, bounds| {
        let what = TopKDistillation { teacher: Policy::Base, prompts: Vec::new(), advantage_max, bounds };
        [Objective::DistillTopK(what).into()]
    };
    refused("terms[0].advantage_max", &top_k(0.0, (0.8, 1.2)));
    refused("terms[0].bounds", &top_k(1.0, (1.2, 0.8)));
    refused("items[0] has no recorded alternatives", &top_k(1.0, (0.8, 1.2)));
    let centred = |weight, old| [PolicyGradient { score_centering: true, old, ..gradient_of(weight, &samples) }.into()];
    refused("terms[0].score_centering: items[0]", &centred(Weight::Reinforce, RatioSource::Rollout));
    for (weight, old) in
        [(Weight::Ppo { low: 0.8, high: 1.2 }, RatioSource::Rollout), (Weight::Truncated(2.0), RatioSource::Recomputed)]
    {
        refused("terms[0].score_centering: it needs", &centred(weight, old));
    }
}

#[test]
fn an_added_release_teaches_as_its_own_trainer_speaks() {
    let (model, samples) = (tiny_model(), samples());
    let files = stepped(&model);
    let mut trainer = trainer_over(&model, None);
    let bare = without(&files, &[CONFIG_FILE, WEIGHTS_FILE]);
    let (base, release) = (trainer.add_policy(&bare).expect("base"), trainer.add_policy(&files).expect("release"));
    assert_eq!((base, release), (Policy::Added(0), Policy::Added(1)));
    let mut own = trainer_over(&model, Some(&files));
    let spoken = own.forward(Policy::Current, &refs(&samples)).expect("log-probs");
    assert_eq!(trainer.forward(release, &refs(&samples)).expect("log-probs"), spoken);
    let unadapted = trainer.forward(Policy::Base, &refs(&samples)).expect("log-probs");
    assert_eq!(trainer.forward(base, &refs(&samples)).expect("log-probs"), unadapted);
    // The adapter at open stays what it was while the trainer moves; so does what was added.
    let what = Distillation { teacher: release, ..distillation(Divergence::Forward, Support::Exact) };
    own.train(&refs(&samples), &objective(Weight::Reinforce, &samples), &ADAM).expect("step");
    assert_eq!(own.forward(Policy::Start, &refs(&samples)).expect("log-probs"), spoken);
    let first = trainer.train(&refs(&samples), &distill(what.clone()), &ADAM).expect("step");
    let second = trainer.train(&refs(&samples), &distill(what.clone()), &ADAM).expect("step");
    assert!(first["loss"] > second["loss"] && second["loss"] > 0.0, "{first:?} {second:?}");
    // Nobody else's name leads to the base model.
    let unknown = Policy::Added(2);
    assert!(trainer.forward(unknown, &refs(&samples)).is_err());
    assert!(trainer.forward_backward(&refs(&samples), &distill(Distillation { teacher: unknown, ..what })).is_err());
    assert!(trainer.add_policy(&without(&files, &[CONFIG_FILE])).is_err());
}
