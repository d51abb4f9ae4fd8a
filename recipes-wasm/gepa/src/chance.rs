//! The draws of the search: one stream of random numbers that is part of the archive, and minibatches that go through
//! the training tasks epoch by epoch. Pure; equal seeds make equal draws.

use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

use serde::{Deserialize, Serialize};

/// SplitMix64 (Steele, Lea, Flood 2014): its whole state is one number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chance(u64);

impl Chance {
    /// A stream of its own for each seed.
    pub fn new(seed: u32) -> Self {
        Self(seed.into())
    }

    /// A number below `bound`; 0 of nothing.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        // The high half of the product; its bias is below bound/2⁶⁴.
        ((u128::from(mixed) * bound as u128) >> 64) as usize
    }

    /// A random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// Where the walk through the training tasks is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epoch {
    order: Vec<String>,
    at: usize,
    /// How often each task was in an epoch.
    seen: BTreeMap<String, u32>,
}

impl Epoch {
    /// The next `size` tasks. At the end of an epoch, and when the tasks are others than before, they are shuffled
    /// anew and padded to whole minibatches with those that were seen least.
    pub fn next(&mut self, tasks: &[String], size: usize, chance: &mut Chance) -> Vec<String> {
        let known = |task: &String| tasks.contains(task);
        let current = self.order.iter().all(known) && tasks.iter().all(|task| self.order.contains(task));
        if !current || self.at + size > self.order.len() {
            self.begin(tasks, size.max(1), chance);
        }
        let batch: Vec<String> = self.order.iter().skip(self.at).take(size).cloned().collect();
        self.at += size;
        batch
    }

    fn begin(&mut self, tasks: &[String], size: usize, chance: &mut Chance) {
        self.order = tasks.to_vec();
        self.at = 0;
        chance.shuffle(&mut self.order);
        self.seen.retain(|task, _| tasks.contains(task));
        for task in tasks {
            *self.seen.entry(task.clone()).or_default() += 1;
        }
        while !self.order.is_empty() && !self.order.len().is_multiple_of(size) {
            let Some((task, times)) = self.seen.iter_mut().min_by_key(|(_, times)| **times) else { break };
            *times += 1;
            self.order.push(task.clone());
        }
    }
}
