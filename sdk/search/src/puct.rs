//! The priority of a state (arXiv 2601.16175): how good its children were, and how much is left to find there.
//! Pure and deterministic; the archive calls it on all of its states at once.

/// Smallest scale of values: keeps the exploration alive when all values agree.
const SCALE_MIN: f64 = 1e-6;

/// What the priority of a state depends on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct State {
    /// Its own value; larger is better.
    pub value: f64,
    /// A starting point: it is no measure of what the search found.
    pub is_seed: bool,
    /// n: visits of the state and its descendants.
    pub visits: u64,
    /// m: the best value among its children so far.
    pub best_child: Option<f64>,
}

/// The parts of a priority.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Priority {
    /// Q: the best child's value once visited, else the own value.
    pub expected: f64,
    /// P = (N − rank)/Σ(N − rank), rank 0 = best value.
    pub prior: f64,
    /// Q + c·scale·P·√(1 + T)/(1 + n).
    pub score: f64,
}

/// The priorities of all states of an archive, in their order. `visits`: T, over the whole archive. `exploration`: c.
pub fn priorities(states: &[State], visits: u64, exploration: f64) -> Vec<Priority> {
    let scale = scale(states);
    let count = states.len();
    let total = (count * (count + 1)) as f64 / 2.0;
    let mut priorities = vec![Priority { expected: 0.0, prior: 0.0, score: 0.0 }; count];
    for (rank, index) in by_value(states).into_iter().enumerate() {
        let (Some(state), Some(priority)) = (states.get(index), priorities.get_mut(index)) else { continue };
        let expected = if state.visits > 0 { state.best_child.unwrap_or(state.value) } else { state.value };
        let prior = (count - rank) as f64 / total;
        let bonus = exploration * scale * prior * (1.0 + visits as f64).sqrt() / (1.0 + state.visits as f64);
        *priority = Priority { expected, prior, score: expected + bonus };
    }
    priorities
}

/// Indices, best value first; the older of two equal ones first.
fn by_value(states: &[State]) -> Vec<usize> {
    let mut order: Vec<(usize, f64)> = states.iter().map(|state| state.value).enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    order.into_iter().map(|(index, _)| index).collect()
}

/// max − min of the values that the search found; of the seeds while it has found none.
fn scale(states: &[State]) -> f64 {
    let found: Vec<f64> = states.iter().filter(|state| !state.is_seed).map(|state| state.value).collect();
    let values = if found.is_empty() { states.iter().map(|state| state.value).collect() } else { found };
    let (low, high) =
        values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &value| (low.min(value), high.max(value)));
    (high - low).max(SCALE_MIN)
}
