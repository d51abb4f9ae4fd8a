//! How good a session was: four grades of a model, weighted. Pure.

use reef_evolution::edits::object;
use reef_recipe::prelude::*;

/// Name and weight of each grade.
const GRADES: [(&str, f64); 4] =
    [("task_completion", 0.55), ("response_quality", 0.30), ("efficiency", 0.05), ("tool_usage", 0.10)];

/// What the model that grades is told.
pub fn instruction() -> String {
    let names: Vec<String> = GRADES.iter().map(|(name, _)| format!("\"{name}\": 0.0")).collect();
    format!(
        "You grade a session of an AI agent by its summary. Answer with one JSON object and nothing else, each grade from 0 \
to 1: {{{}}}. {}",
        names.join(", "),
        reef_evolution::untrusted::WARNING
    )
}

/// The weighted mean of four grades, in the order task completion, response quality, efficiency, tool usage.
pub fn weighted(grades: [f64; 4]) -> f64 {
    GRADES.iter().zip(grades).map(|((_, weight), grade)| weight * grade).sum()
}

/// The weighted mean of an answer's grades; `None` unless it has all four, each from 0 to 1.
pub fn score(answer: &str) -> Option<f64> {
    let object = object(answer).ok()?;
    let grade = |name: &str| object.get(name)?.as_f64().filter(|grade| (0.0..=1.0).contains(grade));
    let [a, b, c, d] = GRADES.map(|(name, _)| grade(name));
    Some(weighted([a?, b?, c?, d?]))
}
