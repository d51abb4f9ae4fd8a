//! Arguments of training calls are refused before the trainer sees them.

use super::wit::Host;
use super::*;
use crate::call::testing;

/// Counts the calls that reach it.
struct Probe {
    calls: u32,
    column: usize,
    metric: f64,
}

impl Training for Probe {
    fn open(&mut self) -> Result<u32, TrainingError> {
        self.calls += 1;
        Ok(self.calls)
    }
    fn forward(&mut self, _: u32, _: Policy, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        self.calls += 1;
        Ok(vec![0.0; self.column])
    }
    fn train(&mut self, _: u32, _: &[u32], _: Objective, _: Optimizer) -> Result<BTreeMap<String, f64>, TrainingError> {
        self.calls += 1;
        Ok(BTreeMap::from([("loss".to_owned(), self.metric)]))
    }
    fn values(&mut self, _: u32, _: &[u32]) -> Result<Vec<f32>, TrainingError> {
        panic!("a bug of the host")
    }
    fn fit_values(
        &mut self,
        _: u32,
        _: &[u32],
        _: Vec<f32>,
        _: f64,
        _: u32,
    ) -> Result<BTreeMap<String, f64>, TrainingError> {
        self.calls += 1;
        Ok(BTreeMap::new())
    }
    fn checkpoint(&mut self, _: u32) -> Result<u32, TrainingError> {
        Ok(77)
    }
}

/// Samples 0 to 3 with responses of 1, 2, 3 and 4 tokens; 0, 2 and 3 are in the batch.
async fn state(column: usize, metric: f64) -> (CallState, u32) {
    let mut state = testing::state(4, vec![0, 2, 3]);
    state.training = TrainingHost::new(Some(Box::new(Probe { calls: 0, column, metric })));
    let trainer = state.open().await.expect("opened");
    (state, trainer)
}

fn adamw() -> wit::Optimizer {
    wit::Optimizer {
        learning_rate: 1e-3,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        gradient_norm_max: 1.0,
    }
}

fn gradient(weight: wit::Weight, advantages: Vec<f32>) -> wit::Objective {
    wit::Objective::PolicyGradient(wit::PolicyGradient { weight, advantages, reduction: wit::Reduction::TokenSum })
}

fn told(error: wit::TrainingError) -> String {
    match error {
        wit::TrainingError::Invalid(told) | wit::TrainingError::Other(told) | wit::TrainingError::Budget(told) => told,
        other => format!("{other:?}"),
    }
}

#[tokio::test]
async fn handles_are_checked() {
    let (mut state, trainer) = state(4, 0.0).await;
    assert!(matches!(
        state.forward(trainer + 1, wit::Policy::Base, vec![0]).await,
        Err(wit::TrainingError::UnknownTrainer(_))
    ));
    assert!(matches!(
        state.forward(trainer, wit::Policy::Base, vec![1]).await,
        Err(wit::TrainingError::UnknownSample(1))
    ));
    assert!(
        told(state.forward(trainer, wit::Policy::Base, vec![0, 0]).await.expect_err("twice"))
            .contains("sample 0 is named twice")
    );
    assert!(told(state.forward(trainer, wit::Policy::Base, vec![]).await.expect_err("none")).contains("no samples"));
    assert_eq!(state.forward(trainer, wit::Policy::Base, vec![0, 2]).await.expect("1 + 3 tokens").len(), 4);
}

#[tokio::test]
async fn columns_must_cover_every_response_token_with_finite_numbers() {
    let (mut state, trainer) = state(0, 0.0).await;
    let short = state.train(trainer, vec![0, 2], gradient(wit::Weight::Ratio, vec![1.0; 3]), adamw()).await;
    assert!(told(short.expect_err("short")).contains("3 numbers for 4 response tokens"));
    let nan =
        state.train(trainer, vec![0, 2], gradient(wit::Weight::Ratio, vec![1.0, 1.0, f32::NAN, 1.0]), adamw()).await;
    assert!(told(nan.expect_err("nan")).contains("advantages: number 2 is not finite"));
    let returns = state
        .fit_values(trainer, vec![2], vec![f32::INFINITY; 3], wit::CriticOptimizer { learning_rate: 0.1, updates: 1 })
        .await;
    assert!(told(returns.expect_err("infinite")).contains("returns: number 0"));
}

#[tokio::test]
async fn optimizer_and_weight_stay_in_range() {
    let (mut state, trainer) = state(0, 0.5).await;
    let wrong = [
        ("learning-rate", wit::Optimizer { learning_rate: f64::NAN, ..adamw() }),
        ("beta1", wit::Optimizer { beta1: 1.0, ..adamw() }),
        ("epsilon", wit::Optimizer { epsilon: 0.0, ..adamw() }),
        ("gradient-norm-max", wit::Optimizer { gradient_norm_max: -1.0, ..adamw() }),
    ];
    for (name, how) in wrong {
        assert!(told(state.train(trainer, vec![0], wit::Objective::Nll, how).await.expect_err(name)).starts_with(name));
    }
    for (low, high) in [(1.0, 1.0), (-0.1, 1.0), (0.5, f32::INFINITY)] {
        let weight = wit::Weight::Masked(wit::Bounds { low, high });
        let refused = state.train(trainer, vec![0], gradient(weight, vec![1.0]), adamw()).await;
        assert!(told(refused.expect_err("bounds")).starts_with("bounds."));
    }
    let fits = state
        .train(trainer, vec![0], gradient(wit::Weight::Masked(wit::Bounds { low: 0.5, high: 2.0 }), vec![1.0]), adamw())
        .await;
    assert_eq!(fits.expect("trained")[0].value, 0.5);
}

#[tokio::test]
async fn wrong_answers_of_the_trainer_are_bugs_of_the_host() {
    let (mut short, trainer) = state(3, 0.0).await;
    assert!(short.forward(trainer, wit::Policy::Current, vec![0, 2]).await.is_err());
    assert_eq!(short.cut_off.expect("cut off").kind, FaultKind::HostBug);
    let (mut panics, trainer) = state(0, 0.0).await;
    assert!(told(panics.values(trainer, vec![0]).await.expect_err("panic")).contains("panicked"));
    assert_eq!(panics.cut_off.as_ref().expect("cut off").kind, FaultKind::HostBug);
    assert!(panics.training.worker.is_some());
    let (mut diverges, trainer) = state(0, f64::NAN).await;
    let diverged = diverges.train(trainer, vec![0], wit::Objective::Nll, adamw()).await;
    assert!(told(diverged.expect_err("nan")).contains("loss is NaN"));
}

#[tokio::test]
async fn trainers_and_checkpoints_are_limited() {
    let (mut state, trainer) = state(0, 0.0).await;
    for _ in 1..TRAINERS_MAX {
        state.open().await.expect("within the limit");
    }
    assert!(told(state.open().await.expect_err("too many")).contains("may open 4"));
    for _ in 0..CANDIDATES_MAX {
        assert_eq!(state.checkpoint(trainer).await.expect("within the limit"), 77);
    }
    assert!(told(state.checkpoint(trainer).await.expect_err("too many")).contains("8 checkpoints"));
}

#[tokio::test]
async fn a_call_without_training_says_so() {
    let mut state = testing::state(0, vec![]);
    assert!(told(state.open().await.expect_err("absent")).contains("not available"));
}
