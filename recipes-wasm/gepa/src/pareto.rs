//! Which candidates are worth building on: the best of each validation task, without those that others make
//! superfluous (arXiv 2507.19457, algorithm 2). Pure functions on a table of scores.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use reef_recipe::maths;

/// The candidates with the best score on each task. `rows`: one row a candidate, one column a task; `None` where
/// nobody knows. A strictly better score replaces a front, an equal one joins it.
pub fn fronts(rows: &[Vec<Option<f64>>]) -> Vec<BTreeSet<usize>> {
    let tasks = rows.iter().map(Vec::len).max().unwrap_or(0);
    (0..tasks).map(|task| front(rows, task)).collect()
}

fn front(rows: &[Vec<Option<f64>>], task: usize) -> BTreeSet<usize> {
    let (mut best, mut holders) = (f64::NEG_INFINITY, BTreeSet::new());
    for (candidate, row) in rows.iter().enumerate() {
        let Some(score) = row.get(task).copied().flatten() else { continue };
        if score > best {
            best = score;
            holders.clear();
        }
        if score >= best {
            holders.insert(candidate);
        }
    }
    holders
}

/// Mean of the known scores of each row; −∞ of a row without any.
pub fn means(rows: &[Vec<Option<f64>>]) -> Vec<f64> {
    let mean = |row: &Vec<Option<f64>>| {
        let known: Vec<f64> = row.iter().copied().flatten().collect();
        if known.is_empty() { f64::NEG_INFINITY } else { maths::mean(&known) }
    };
    rows.iter().map(mean).collect()
}

/// The candidates that no others make superfluous, each with the number of fronts that it is in.
///
/// In the order of ascending means, a candidate goes when every front that holds it holds another one that has not
/// gone; after each that goes, the order is walked from its start again.
pub fn survivors(fronts: &[BTreeSet<usize>], means: &[f64]) -> Vec<(usize, usize)> {
    let mut left: Vec<usize> = fronts.iter().flatten().copied().collect::<BTreeSet<_>>().into_iter().collect();
    let mean = |candidate: &usize| means.get(*candidate).copied().unwrap_or(f64::NEG_INFINITY);
    left.sort_by(|a, b| mean(a).total_cmp(&mean(b)));
    let superfluous = |candidate: usize, left: &[usize]| {
        let mut own = fronts.iter().filter(|front| front.contains(&candidate));
        own.all(|front| front.iter().any(|other| *other != candidate && left.contains(other)))
    };
    while let Some(at) = left.iter().position(|&candidate| superfluous(candidate, &left)) {
        left.remove(at);
    }
    left.sort_unstable();
    let weight = |candidate: &usize| fronts.iter().filter(|front| front.contains(candidate)).count();
    left.iter().map(|candidate| (*candidate, weight(candidate))).collect()
}

/// The candidate that a number from 0 to the sum of all weights, exclusive, falls on.
pub fn pick(weighted: &[(usize, usize)], mut number: usize) -> Option<usize> {
    for &(candidate, weight) in weighted {
        if number < weight {
            return Some(candidate);
        }
        number -= weight;
    }
    None
}
