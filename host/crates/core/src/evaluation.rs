//! Held-out tasks, and how an answer is graded.

use serde::{Deserialize, Serialize};

/// One chat message as the template reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text.
    pub content: String,
}

/// How the host grades an answer against the wanted one; both trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grader {
    /// 1 if equal, else 0.
    Exact,
    /// Similarity in [0, 1], 1 iff equal: 2·LCS/(|a|+|b|) over characters.
    Similarity,
}

/// A prompt that measures and never trains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldOutTask {
    /// The prompt.
    pub messages: Vec<Message>,
    /// The wanted answer.
    pub answer: String,
    /// How to grade.
    pub grader: Grader,
}

/// Characters of an answer that grading looks at; the LCS is quadratic.
const GRADED_CHARS_MAX: usize = 2_000;

impl Grader {
    /// Score in [0, 1].
    pub fn grade(self, answer: &str, wanted: &str) -> f64 {
        let (answer, wanted) = (answer.trim(), wanted.trim());
        match self {
            Self::Exact => f64::from(u8::from(answer == wanted)),
            Self::Similarity => similarity(answer, wanted),
        }
    }
}

fn similarity(a: &str, b: &str) -> f64 {
    let a: Vec<char> = a.chars().take(GRADED_CHARS_MAX).collect();
    let b: Vec<char> = b.chars().take(GRADED_CHARS_MAX).collect();
    if a.is_empty() && b.is_empty() {
        return 1.0;
    }
    // One row of the longest-common-subsequence table at a time.
    let mut row = vec![0usize; b.len() + 1];
    for x in &a {
        let mut diagonal = 0;
        let mut left = 0;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let above = *cell;
            *cell = if x == y { diagonal + 1 } else { above.max(left) };
            diagonal = above;
            left = *cell;
        }
    }
    2.0 * row.last().copied().unwrap_or(0) as f64 / (a.len() + b.len()) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarity_is_one_only_for_equal_texts() {
        let grade = |a: &str, b: &str| Grader::Similarity.grade(a, b);
        assert_eq!(grade(" apple\n", "apple"), 1.0);
        assert_eq!(grade("", "apple"), 0.0);
        assert!((grade("appel", "apple") - 0.8).abs() < 1e-12);
        assert!(grade("The word is apple", "apple") < 0.5);
    }
}
