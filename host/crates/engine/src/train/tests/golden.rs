//! Losses and gradients of every objective against PyTorch: `golden/objectives.json`, written by the script beside it.

use std::collections::BTreeMap;

use serde_json::Value;
use tch::{Device, Kind, Tensor};

use super::super::accumulate::{Pass, References, accumulate_micro_batch};
use super::super::batch::{Batch, Bounds, Columns};
use super::super::passes::Passes;
use super::super::plan::{Plan, PlannedTerm};
use super::super::policies::Policies;
use super::super::tally::Tally;
use super::super::{Distillation, Divergence, Importance, KlPenalty, Support, TopKDistillation, TrainControl};
use super::*;
use crate::adapter::Lora;
use crate::frozen::Frozen;
use crate::lora_config::LoraConfig;

const GOLDEN: &str = include_str!("../../../golden/objectives.json");

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    numbers(value).into_iter().map(|number| number as f32).collect()
}

fn ids(value: &Value) -> Vec<u32> {
    numbers(value).into_iter().map(|number| number as u32).collect()
}

/// Log-softmax of each row of `v` logits.
fn log_softmax(logits: &[f64], v: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        let total = row.iter().map(|logit| logit.exp()).sum::<f64>().ln();
        row.iter().map(|logit| logit - total).collect::<Vec<_>>()
    };
    logits.chunks(v).flat_map(row).collect()
}

/// The samples of the batch; a prompt of one token each.
fn golden_samples(golden: &Value) -> Vec<Sample> {
    let (v, k) = (golden["vocabulary"].as_u64().expect("v") as usize, golden["k"].as_u64().expect("k") as usize);
    let (sampled, mask) = (ids(&golden["sampled"]), ids(&golden["mask"]));
    let rollout = log_softmax(&numbers(&golden["rollout"]), v);
    let alternatives = ids(&golden["alternatives"]);
    let mut start = 0;
    let mut samples = Vec::new();
    for (sequence, length) in ids(&golden["lengths"]).into_iter().enumerate() {
        let own = start..start + length as usize;
        start = own.end;
        let logq = |token: usize, id: u32| rollout[token * v + id as usize] as f32;
        let tokens: Vec<u32> = [0].into_iter().chain(sampled[own.clone()].iter().copied()).collect();
        let mut sample = sample(sequence as i64, &tokens, length as usize);
        sample.trajectory.mask = mask[own.clone()].iter().map(|m| *m as u8).collect();
        sample.trajectory.logprobs = own.clone().map(|token| logq(token, sampled[token])).collect();
        let kept: Vec<(usize, u32)> =
            own.flat_map(|token| alternatives[token * k..][..k].iter().map(move |id| (token, *id))).collect();
        sample.trajectory.alternatives = reef_core::Alternatives {
            k: k as u32,
            ids: kept.iter().map(|(_, id)| *id).collect(),
            logprobs: kept.iter().map(|(token, id)| logq(*token, *id)).collect(),
        };
        samples.push(sample);
    }
    samples
}

fn term(case: &Value, advantages: &[f32]) -> Term {
    let number = |name: &str| case[name].as_f64().expect("a number") as f32;
    let ppo = Weight::Ppo { low: 0.8, high: 1.28 };
    match case["objective"].as_str().expect("a name") {
        "nll" => Objective::Nll.into(),
        "distill" => Objective::Distill(Distillation {
            teacher: Policy::Base,
            prompts: Vec::new(),
            divergence: match case["divergence"].as_str().expect("a name") {
                "forward" => Divergence::Forward,
                "reverse" => Divergence::Reverse,
                _ => Divergence::JensenShannon { beta: number("beta") },
            },
            support: match case["support"].as_str().expect("a name") {
                "exact" => Support::Exact,
                "top-k-renormalised" => Support::TopKRenormalised(3),
                "top-k-tail" => Support::TopKTail(3),
                _ => Support::Sampled,
            },
            importance: match case["importance"].as_str().expect("a name") {
                "off" => Importance::Off,
                "token" => Importance::Token(number("cap")),
                _ => Importance::Sequence(number("cap")),
            },
            weights: floats(&case["weights"]),
            skip: number("skip") as usize,
        })
        .into(),
        "distill-top-k" => Objective::DistillTopK(TopKDistillation {
            teacher: Policy::Base,
            prompts: Vec::new(),
            advantage_max: number("advantage_max"),
            bounds: (0.8, 1.28),
        })
        .into(),
        _ => PolicyGradient {
            kl: Some(KlPenalty { coefficient: number("kl"), reference: Policy::Base })
                .filter(|kl| kl.coefficient != 0.0),
            entropy: number("entropy"),
            score_centering: case["score_centering"].as_bool().expect("a flag"),
            ..PolicyGradient::new(
                match case["weight"].as_str().expect("a name") {
                    "reinforce" => Weight::Reinforce,
                    "ratio" => Weight::Ratio,
                    "truncated" => Weight::Truncated(1.2),
                    "masked" => Weight::Masked { low: 0.7, high: 1.4 },
                    _ => ppo,
                },
                advantages.to_vec(),
                match case["reduction"].as_str().expect("a name") {
                    "token-sum" => Reduction::TokenSum,
                    "sample-token-mean" => Reduction::SampleTokenMean,
                    _ => Reduction::GlobalTokenMean,
                },
            )
        }
        .into(),
    }
}

/// A model whose logits are its hidden states.
fn logits_model(v: i64) -> Arc<Model> {
    let tiny = tiny_model();
    let config = crate::model::ModelConfig {
        hidden_size: v,
        vocabulary: v,
        heads: 1,
        heads_kv: 1,
        head_width: v,
        ..tiny.config().clone()
    };
    let identity = Frozen::new(Tensor::eye(v, (Kind::Float, Device::Cpu))).expect("identity");
    Arc::new(Model::random(config, 3).with_embedding(identity))
}

#[test]
fn every_objective_has_the_loss_and_the_gradient_that_pytorch_finds() {
    let golden: Value = serde_json::from_str(GOLDEN).expect("JSON");
    let v = golden["vocabulary"].as_i64().expect("v");
    let samples = golden_samples(&golden);
    let model = logits_model(v);
    let bounds = Bounds { vocabulary: v, context: 64, device: Device::Cpu, micro_batch_tokens: 256 };
    let items = refs(&samples);
    let batch = Batch::new(&items, bounds).expect("valid");
    let columns = Columns::new(&batch.rows, bounds).expect("columns");
    // Tokens of the file in row order, and their logits.
    let order: Vec<f32> = (0..batch.response_tokens).map(|token| token as f32).collect();
    let order: Vec<usize> = batch.to_rows(&order, "order").expect("fits").into_iter().map(|at| at as usize).collect();
    let rows = |numbers: Vec<f64>| {
        let row = |at: &usize| numbers[at * v as usize..][..v as usize].iter().map(|number| *number as f32);
        let numbers: Vec<f32> = order.iter().flat_map(row).collect();
        Tensor::from_slice(&numbers).view([-1, v])
    };
    let (student, teacher_nv) = (numbers(&golden["student"]), rows(numbers(&golden["teacher"])));
    let logt_n =
        teacher_nv.log_softmax(1, Kind::Float).gather(1, &columns.targets_n.unsqueeze(1), false).squeeze_dim(1);
    let lora = Lora::init(model.config(), &LoraConfig { rank: 1, alpha: 1.0, seed: 1, ..LoraConfig::default() })
        .expect("adapter");
    let policies = Policies::new(lora, None).expect("policies");
    let (serving, control) = (Arc::new(ServingLoad::default()), TrainControl::default());
    let passes = Passes { model, serving, threads: 1, control, release: None, place: (0, 1) };

    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for case in golden["cases"].as_array().expect("cases") {
        let terms = [term(case, &floats(&golden["advantages"]))];
        let plan = Plan::new(&batch, &terms).expect("planned");
        let hidden_nd = rows(student.clone()).set_requires_grad(true);
        let pass = Pass { passes: &passes, policies: &policies, columns: &columns, hidden_nd };
        let teachers = plan.terms.iter().filter_map(PlannedTerm::teacher);
        let references = References {
            start: None,
            penalties: vec![(Policy::Base, logt_n.shallow_clone())],
            teachers: teachers.map(|teacher| (teacher, teacher_nv.shallow_clone())).collect(),
        };
        let mut tally = Tally::new(Device::Cpu).expect("sums");
        let logp_n = accumulate_micro_batch(&pass, &plan, &references, &mut tally).expect("pass");
        assert_eq!(logp_n.size(), [batch.response_tokens as i64]);
        let loss = tally.metrics(&plan, 1.0, false).expect("metrics")["loss"];
        let gradient = Vec::<f32>::try_from(pass.hidden_nd.grad().flatten(0, -1)).expect("f32");
        for precision in ["f64", "f32"] {
            let want = case[precision]["loss"].as_f64().expect("a loss");
            assert!((loss - want).abs() < 2e-6 * want.abs().max(0.5), "{case}: {loss} is not {want}");
            let want = Vec::<f32>::try_from(rows(numbers(&case[precision]["gradient"])).flatten(0, -1)).expect("f32");
            let apart = gradient.iter().zip(&want).fold(0.0f32, |most, (got, want)| most.max((got - want).abs()));
            let largest = want.iter().fold(0.0f32, |most, want| most.max(want.abs()));
            assert!(largest > 0.0 && apart < 3e-6 * largest.max(0.5), "{case}: gradients are {apart} apart");
        }
        *seen.entry(case["objective"].as_str().expect("a name").to_owned()).or_default() += 1;
    }
    assert_eq!(seen.len(), 4, "{seen:?}");
    assert!(golden_samples(&golden).iter().any(|sample| sample.trajectory.mask.iter().all(|mask| *mask == 0)));
}
