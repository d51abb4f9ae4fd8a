//! Arguments of training calls are refused before the trainer sees them.

use super::calls::{CANDIDATES_MAX, TRAINERS_MAX};
use super::*;
use crate::FaultKind;
use crate::call::testing;
use crate::call_state::CallState;

/// Counts the calls that reach it, and keeps what it was given last.
#[derive(Default)]
struct Probe {
    calls: u32,
    column: usize,
    metric: f64,
    terms: std::sync::Arc<std::sync::Mutex<Vec<Term>>>,
}

impl Probe {
    fn measured(&mut self) -> Result<Measured, TrainingError> {
        self.calls += 1;
        Ok(BTreeMap::from([("loss".to_owned(), self.metric)]))
    }
}

impl Training for Probe {
    fn open(&mut self) -> Result<u32, TrainingError> {
        self.calls += 1;
        Ok(self.calls)
    }
    fn derive(&mut self, item: u32, _: Option<Vec<u32>>, _: Option<Vec<u32>>) -> Result<u32, TrainingError> {
        self.calls += 1;
        assert!(item < 4, "derived samples start from samples of the call");
        Ok(if self.column == 99 { 0 } else { 100 + self.calls })
    }
    fn forward(&mut self, _: u32, _: Policy, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        self.calls += 1;
        Ok(vec![0.0; self.column])
    }
    fn train(&mut self, _: u32, _: &[u32], terms: Vec<Term>, _: Optimizer) -> Result<Measured, TrainingError> {
        *self.terms.lock().expect("not poisoned") = terms;
        self.measured()
    }
    fn forward_backward(&mut self, _: u32, _: &[u32], _: Vec<Term>) -> Result<Measured, TrainingError> {
        self.measured()
    }
    fn backward(&mut self, _: u32, _: &[u32], _: Vec<f32>) -> Result<Measured, TrainingError> {
        self.measured()
    }
    fn optimizer_step(&mut self, _: u32, _: Optimizer) -> Result<Measured, TrainingError> {
        self.measured()
    }
    fn update_ema(&mut self, _: u32, _: f64) -> Result<(), TrainingError> {
        Err(TrainingError::Unsupported("update-ema".to_owned()))
    }
    fn values(&mut self, _: u32, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        panic!("a bug of the host")
    }
    fn fit_values(&mut self, _: u32, _: &[u32], _: Vec<f32>, _: f64, _: u32) -> Result<Measured, TrainingError> {
        self.measured()
    }
    fn checkpoint(&mut self, _: u32) -> Result<u32, TrainingError> {
        Ok(77)
    }
}

/// Samples 0 to 3 with responses of 1, 2, 3 and 4 tokens; 0, 2 and 3 are in the batch.
async fn state(column: usize, metric: f64) -> (CallState, u32) {
    with(Probe { column, metric, ..Probe::default() }).await
}

async fn with(probe: Probe) -> (CallState, u32) {
    let mut state = testing::state(4, vec![0, 2, 3]);
    state.training = TrainingHost::new(Some(Box::new(probe)));
    let trainer = state.open().await.expect("opened");
    (state, trainer)
}

fn adamw() -> Optimizer {
    Optimizer {
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        gradient_norm_max: 1.0,
    }
}

fn plain() -> PolicyGradient {
    PolicyGradient {
        weight: Weight::Ratio,
        old: RatioSource::Rollout,
        advantages: Vec::new(),
        reduction: Reduction::TokenSum,
        kl: None,
        entropy: 0.0,
        score_centering: false,
    }
}

fn term(objective: Draft) -> Vec<DraftTerm> {
    vec![DraftTerm { factor: 1.0, objective }]
}

fn gradient(weight: Weight, advantages: Vec<f32>) -> Vec<DraftTerm> {
    term(Draft::PolicyGradient(PolicyGradient { weight, ..plain() }, Advantages::PerToken(advantages)))
}

fn distillation() -> Distillation {
    Distillation {
        teacher: Policy::Base,
        contexts: vec![],
        divergence: Divergence { kind: DivergenceKind::Forward, beta: 0.0 },
        support: Support::Exact,
        importance: Importance::Off,
        weights: vec![],
        skip: 0,
    }
}

fn told<T: std::fmt::Debug>(answer: Result<T, TrainingRefusal>) -> String {
    answer.expect_err("refused").to_string()
}

#[tokio::test]
async fn handles_are_checked() {
    let (mut state, trainer) = state(4, 0.0).await;
    let unknown = state.forward(trainer + 1, Policy::Base, vec![0]).await;
    assert_eq!(unknown, Err(TrainingRefusal::UnknownTrainer(trainer + 1)));
    assert_eq!(state.forward(trainer, Policy::Base, vec![1]).await, Err(TrainingRefusal::UnknownSample(1)));
    assert!(told(state.forward(trainer, Policy::Base, vec![0, 0]).await).contains("sample 0 is named twice"));
    assert!(told(state.forward(trainer, Policy::Base, vec![]).await).contains("no samples"));
    assert!(told(state.forward(trainer, Policy::Named("../x".into()), vec![0]).await).contains("no name"));
    assert_eq!(state.forward(trainer, Policy::Base, vec![0, 2]).await.expect("1 + 3 tokens").len(), 4);
}

#[tokio::test]
async fn columns_must_cover_every_response_token_with_finite_numbers() {
    let (mut state, trainer) = state(0, 0.0).await;
    let short = state.train(trainer, vec![0, 2], gradient(Weight::Ratio, vec![1.0; 3]), adamw()).await;
    assert!(told(short).contains("3 numbers for 4 response tokens"));
    let nan = gradient(Weight::Ratio, vec![1.0, 1.0, f32::NAN, 1.0]);
    assert!(told(state.train(trainer, vec![0, 2], nan, adamw()).await).contains("advantages: number 2 is not finite"));
    let returns = state.fit_values(trainer, vec![2], vec![f32::INFINITY; 3], (0.1, 1)).await;
    assert!(told(returns).contains("returns: number 0"));
    assert!(told(state.backward(trainer, vec![2], vec![0.0; 2]).await).contains("2 numbers for 3 response tokens"));
    assert!(told(state.backward(trainer, vec![2], vec![f32::NAN; 3]).await).contains("gradients: number 0"));
    assert!(state.backward(trainer, vec![2], vec![0.5; 3]).await.is_ok());
}

#[tokio::test]
async fn advantages_per_sample_are_spread_over_its_tokens() {
    let probe = Probe::default();
    let terms = std::sync::Arc::clone(&probe.terms);
    let (mut state, trainer) = with(probe).await;
    let per_sample = |values: Vec<f32>| term(Draft::PolicyGradient(plain(), Advantages::PerSample(values)));
    state.train(trainer, vec![2, 0], per_sample(vec![2.0, -1.0]), adamw()).await.expect("trained");
    match &terms.lock().expect("not poisoned")[..] {
        [Term { objective: Objective::PolicyGradient(given), .. }] => {
            assert_eq!(given.advantages, [2.0, 2.0, 2.0, -1.0]);
        }
        other => panic!("{other:?}"),
    }
    let short = state.train(trainer, vec![2, 0], per_sample(vec![2.0]), adamw()).await;
    assert!(told(short).contains("1 numbers for 2 samples"));
}

#[tokio::test]
async fn optimizer_and_weight_stay_in_range() {
    let (mut state, trainer) = state(0, 0.5).await;
    let wrong = [
        ("learning-rate", Optimizer { learning_rate: f64::NAN, ..adamw() }),
        ("beta1", Optimizer { beta1: 1.0, ..adamw() }),
        ("epsilon", Optimizer { epsilon: 0.0, ..adamw() }),
        ("gradient-norm-max", Optimizer { gradient_norm_max: -1.0, ..adamw() }),
    ];
    for (name, how) in wrong {
        assert!(told(state.train(trainer, vec![0], term(Draft::Nll), how).await).starts_with(name));
        assert!(told(state.optimizer_step(trainer, how).await).starts_with(name));
    }
    for (low, high) in [(1.0, 1.0), (-0.1, 1.0), (0.5, f32::INFINITY)] {
        let weight = Weight::Masked(Bounds { low, high });
        assert!(told(state.train(trainer, vec![0], gradient(weight, vec![1.0]), adamw()).await).starts_with("bounds."));
    }
    let fits = gradient(Weight::Masked(Bounds { low: 0.5, high: 2.0 }), vec![1.0]);
    assert_eq!(state.train(trainer, vec![0], fits, adamw()).await.expect("trained")["loss"], 0.5);
    assert!(told(state.update_ema(trainer, 1.5).await).starts_with("rate"));
    assert_eq!(told(state.update_ema(trainer, 0.5).await), "update-ema");
}

#[tokio::test]
async fn every_number_of_a_term_is_checked_by_name() {
    let (mut state, trainer) = state(0, 0.5).await;
    let ratio = |gradient: PolicyGradient| term(Draft::PolicyGradient(gradient, Advantages::PerSample(vec![1.0])));
    let kl = |coefficient, reference| Some(KlPenalty { coefficient, reference });
    let top_k = TopKDistillation {
        teacher: Policy::Base,
        contexts: vec![],
        advantage_max: 1.0,
        bounds: Bounds { low: 0.5, high: 2.0 },
    };
    let half = Divergence { kind: DivergenceKind::JensenShannon, beta: 1.0 };
    let wrong: [(&str, Vec<DraftTerm>); 13] = [
        ("terms: 0", vec![]),
        ("terms: 9", vec![DraftTerm { factor: 1.0, objective: Draft::Nll }; 9]),
        ("factor", vec![DraftTerm { factor: f32::NAN, objective: Draft::Nll }]),
        ("kl.coefficient", ratio(PolicyGradient { kl: kl(-1.0, Policy::Base), ..plain() })),
        ("kl.reference", ratio(PolicyGradient { kl: kl(1.0, Policy::Named(String::new())), ..plain() })),
        ("entropy", ratio(PolicyGradient { entropy: f32::INFINITY, ..plain() })),
        ("score-centering", ratio(PolicyGradient { score_centering: true, ..plain() })),
        ("contexts", term(Draft::Distill(Distillation { contexts: vec![0, 2], ..distillation() }))),
        ("weights", term(Draft::Distill(Distillation { weights: vec![f32::NAN], ..distillation() }))),
        ("beta", term(Draft::Distill(Distillation { divergence: half, ..distillation() }))),
        ("support", term(Draft::Distill(Distillation { support: Support::TopKTail(0), ..distillation() }))),
        ("importance", term(Draft::Distill(Distillation { importance: Importance::Token(0.0), ..distillation() }))),
        ("distill-top-k", term(Draft::DistillTopK(top_k))),
    ];
    for (name, terms) in wrong {
        let refused = told(state.forward_backward(trainer, vec![0], terms).await);
        assert!(refused.starts_with(name), "{name}: {refused}");
    }
    let forged = term(Draft::Distill(Distillation { contexts: vec![1], ..distillation() }));
    assert_eq!(state.forward_backward(trainer, vec![0], forged).await, Err(TrainingRefusal::UnknownSample(1)));
    let good = term(Draft::Distill(Distillation { contexts: vec![2], weights: vec![0.5], ..distillation() }));
    assert!(state.forward_backward(trainer, vec![0], good).await.is_ok());
}

#[tokio::test]
async fn derived_samples_count_by_their_own_length() {
    let (mut state, trainer) = state(5, 0.5).await;
    let derived = state.derive(0, None, Some(vec![7; 5])).await.expect("derived");
    assert_eq!(state.forward(trainer, Policy::Current, vec![derived]).await.expect("5 tokens").len(), 5);
    assert!(told(state.backward(trainer, vec![derived], vec![0.0; 1]).await).contains("1 numbers for 5"));
    let again = state.derive(derived, Some(vec![1]), None).await.expect("derived from a derived one");
    assert_eq!(state.response_lengths(&[again, derived, 0]).expect("lengths"), [5, 5, 1]);
    assert_eq!(state.prompt_lengths(&[again]).expect("lengths"), [1]);
    assert_eq!(state.derive(1, None, None).await, Err(TrainingRefusal::UnknownSample(1)));
    assert!(told(state.derive(0, Some(vec![]), None).await).starts_with("prompt: 0 tokens"));
    assert!(told(state.derive(0, None, Some(vec![0; 32_769])).await).starts_with("response: 32769 tokens"));
    for _ in 2..256 {
        state.derive(0, None, None).await.expect("within the limit");
    }
    assert!(told(state.derive(0, None, None).await).contains("may derive 256"));
}

#[tokio::test]
async fn wrong_answers_of_the_trainer_are_bugs_of_the_host() {
    let (mut short, trainer) = state(3, 0.0).await;
    assert!(short.forward(trainer, Policy::Current, vec![0, 2]).await.is_err());
    assert_eq!(short.cut_off.expect("cut off").kind, FaultKind::HostBug);
    let (mut panics, trainer) = state(0, 0.0).await;
    assert!(told(panics.values(trainer, vec![0]).await).contains("panicked"));
    assert_eq!(panics.cut_off.as_ref().expect("cut off").kind, FaultKind::HostBug);
    assert!(panics.training.worker.is_some());
    let (mut diverges, trainer) = state(0, f64::NAN).await;
    assert!(told(diverges.train(trainer, vec![0], term(Draft::Nll), adamw()).await).contains("loss is NaN"));
    let (mut reuses, _) = state(99, 0.0).await;
    assert!(told(reuses.derive(0, None, None).await).contains("item 0 a second time"));
    assert_eq!(reuses.cut_off.expect("cut off").kind, FaultKind::HostBug);
}

#[tokio::test]
async fn trainers_and_checkpoints_are_limited() {
    let (mut state, trainer) = state(0, 0.0).await;
    for _ in 1..TRAINERS_MAX {
        state.open().await.expect("within the limit");
    }
    assert!(told(state.open().await).contains("may open 4"));
    for _ in 0..CANDIDATES_MAX {
        assert_eq!(state.checkpoint(trainer).await.expect("within the limit"), 77);
    }
    assert!(told(state.checkpoint(trainer).await).contains("8 checkpoints"));
}

#[tokio::test]
async fn a_call_without_training_says_so() {
    let mut state = testing::state(0, vec![]);
    assert!(told(state.open().await).contains("not available"));
}
