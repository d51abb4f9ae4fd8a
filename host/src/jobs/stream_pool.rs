//! The pool that a recipe would have seen at a moment of the recorded stream, with a bookkeeping of its own.
//! The backtest feeds it with reports in the order of their arrival and takes batches from it, as the store does for the
//! learner. At most `pool_max` samples are in memory; of everything else it keeps ids only. It reads no store.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use reef_core::{AssemblyError, RecordId, ReleaseId, Report, Sample};
use reef_sandbox::PoolSample;
use reef_store::Unusable;

/// What a sample must fulfil at a moment of the stream.
#[derive(Debug, Default)]
pub struct Moment {
    /// The head and its ancestors by content, newest first.
    pub lineage: Vec<ReleaseId>,
    /// Largest lag of a usable sample.
    pub max_staleness: u32,
}

/// The imagined pool.
#[derive(Debug)]
pub struct StreamPool {
    pool_max: usize,
    moment: Moment,
    front: Arc<Vec<PoolSample>>,
    /// Reports that wait for a place, in order.
    waiting: VecDeque<RecordId>,
    /// Records of samples that wait, with the report that claims them.
    claimed: HashMap<RecordId, RecordId>,
    /// Records that a batch has trained on.
    trained: HashSet<RecordId>,
    refused: BTreeMap<String, u64>,
    unassembled: Vec<(RecordId, AssemblyError)>,
}

impl StreamPool {
    /// An empty pool that shows at most `pool_max` samples.
    pub fn new(pool_max: u32) -> Self {
        Self {
            pool_max: pool_max.max(1) as usize,
            moment: Moment::default(),
            front: Arc::default(),
            waiting: VecDeque::new(),
            claimed: HashMap::new(),
            trained: HashSet::new(),
            refused: BTreeMap::new(),
            unassembled: Vec::new(),
        }
    }

    /// Reports since the last call whose turns do not form one trajectory.
    pub fn unassembled(&mut self) -> Vec<(RecordId, AssemblyError)> {
        std::mem::take(&mut self.unassembled)
    }

    /// What a selection sees now, oldest first.
    pub fn samples(&self) -> Arc<Vec<PoolSample>> {
        Arc::clone(&self.front)
    }

    /// How many samples were refused or retired, by the kind of reason: its text up to the first `:`.
    pub fn refused(&self) -> &BTreeMap<String, u64> {
        &self.refused
    }

    /// Another release serves from here on: lags grow, and samples expire.
    pub fn advance(&mut self, moment: Moment) {
        self.moment = moment;
        let front = std::mem::take(&mut self.front);
        let kept = Arc::try_unwrap(front).unwrap_or_else(|shared| shared.as_ref().clone());
        let kept = kept.into_iter().filter_map(|pooled| self.place(pooled.sample)).collect();
        self.front = Arc::new(kept);
    }

    /// A report arrives; `fenced`: its prompt is the one of a held-out task.
    pub fn arrive(&mut self, report: &Report, formed: Option<Result<Sample, Unusable>>, fenced: bool) {
        if let Some(old) = &report.amends {
            self.amend(old, &report.id);
        }
        let sample = match formed {
            None => return,
            Some(Err(why)) => {
                self.unassembled.extend(why.assembly.map(|error| (report.id.clone(), error)));
                return self.refuse(&why.reason);
            }
            Some(Ok(sample)) => sample,
        };
        if let Some(record) = sample.records.iter().find(|record| self.trained.contains(record)) {
            return self.refuse(&format!("record trained already: record {record}"));
        }
        if let Some(record) = sample.records.iter().find(|record| self.claimed.contains_key(record)) {
            return self.refuse(&format!("record graded already: record {record}"));
        }
        if fenced {
            return self.refuse("prompt of a held-out task");
        }
        self.claimed.extend(sample.records.iter().map(|record| (record.clone(), sample.report.clone())));
        if self.waiting.is_empty() && self.front.len() < self.pool_max {
            let placed = self.place(sample);
            Arc::make_mut(&mut self.front).extend(placed);
        } else {
            self.waiting.push_back(sample.report);
        }
    }

    /// Reports that have a place now; their samples are to be given to `fill`.
    pub fn wanted(&mut self) -> Vec<RecordId> {
        let room = self.pool_max.saturating_sub(self.front.len()).min(self.waiting.len());
        self.waiting.drain(..room).collect()
    }

    /// Samples of `wanted`, in its order.
    pub fn fill(&mut self, samples: Vec<Sample>) {
        for sample in samples {
            let placed = self.place(sample);
            Arc::make_mut(&mut self.front).extend(placed);
        }
    }

    /// The recipe sets samples aside.
    pub fn retire(&mut self, retired: &[(RecordId, String)]) {
        for (report, reason) in retired {
            self.remove(report);
            self.refuse(reason);
        }
    }

    /// A batch is trained on.
    pub fn consume(&mut self, batch: &[RecordId]) {
        let batch: HashSet<&RecordId> = batch.iter().collect();
        for pooled in self.front.iter().filter(|pooled| batch.contains(&pooled.sample.report)) {
            self.trained.extend(pooled.sample.records.iter().cloned());
            pooled.sample.records.iter().for_each(|record| drop(self.claimed.remove(record)));
        }
        Arc::make_mut(&mut self.front).retain(|pooled| !batch.contains(&pooled.sample.report));
    }

    /// The sample with its lag, or nothing if it has expired.
    fn place(&mut self, sample: Sample) -> Option<PoolSample> {
        match self.moment.lineage.iter().position(|release| *release == sample.release) {
            Some(lag) => Some(PoolSample { lag: u32::try_from(lag).unwrap_or(u32::MAX), sample }),
            None => {
                sample.records.iter().for_each(|record| drop(self.claimed.remove(record)));
                let max = self.moment.max_staleness;
                self.refuse(&format!("expired: sampled more than {max} releases ago or by another lineage"));
                None
            }
        }
    }

    fn amend(&mut self, old: &RecordId, by: &RecordId) {
        if self.remove(old) {
            self.refuse(&format!("amended by report: {by}"));
        }
    }

    /// Takes a report out of the pool; false if it is not there.
    fn remove(&mut self, report: &RecordId) -> bool {
        let found = self.front.iter().any(|pooled| pooled.sample.report == *report)
            || self.waiting.iter().any(|waiting| waiting == report);
        if found {
            self.claimed.retain(|_, by| by != report);
            self.waiting.retain(|waiting| waiting != report);
            Arc::make_mut(&mut self.front).retain(|pooled| pooled.sample.report != *report);
        }
        found
    }

    fn refuse(&mut self, reason: &str) {
        let kind = reason.split(':').next().unwrap_or(reason).to_owned();
        *self.refused.entry(kind).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use reef_core::Trajectory;
    use serde_json::Map;

    use super::*;

    fn id(text: &str) -> RecordId {
        RecordId::parse(text).expect("id")
    }

    fn release(n: u32) -> ReleaseId {
        ReleaseId::parse(format!("{n:040x}")).expect("id")
    }

    fn report(name: &str, amends: Option<&str>) -> Report {
        Report {
            id: id(name),
            created_at_ms: 0,
            score: Some(1.0),
            feedback: None,
            references: vec![id("r")],
            metadata: Map::new(),
            amends: amends.map(id),
            traceparent: None,
        }
    }

    fn sample(name: &str, record: &str, by: u32) -> Sample {
        let trajectory = Trajectory {
            tokens: vec![1, 2],
            prompt_length: 1,
            mask: vec![1],
            logprobs: vec![-0.5],
            turns: Vec::new(),
            alternatives: reef_core::Alternatives::default(),
        };
        Sample {
            report: id(name),
            records: vec![id(record)],
            score: Some(1.0),
            metadata: Map::new(),
            trajectory,
            temperature: 1.0,
            release: release(by),
            release_sequence: by,
            prompt_key: String::new(),
            sequence: 0,
        }
    }

    fn pool(pool_max: u32) -> StreamPool {
        let mut pool = StreamPool::new(pool_max);
        pool.advance(Moment { lineage: vec![release(0)], max_staleness: 1 });
        pool
    }

    fn arrive(pool: &mut StreamPool, name: &str, record: &str) {
        pool.arrive(&report(name, None), Some(Ok(sample(name, record, 0))), false);
    }

    fn shown(pool: &StreamPool) -> Vec<(String, u32)> {
        pool.samples().iter().map(|pooled| (pooled.sample.report.to_string(), pooled.lag)).collect()
    }

    fn at(name: &str, lag: u32) -> (String, u32) {
        (name.to_owned(), lag)
    }

    #[test]
    fn a_record_counts_once_and_an_amendment_replaces() {
        let mut pool = pool(8);
        arrive(&mut pool, "a", "r1");
        arrive(&mut pool, "b", "r1");
        pool.arrive(&report("c", Some("a")), Some(Ok(sample("c", "r1", 0))), false);
        assert_eq!(shown(&pool), [at("c", 0)], "the amendment takes the record over");
        pool.consume(&[id("c")]);
        arrive(&mut pool, "d", "r1");
        pool.arrive(&report("e", None), Some(Err("capture off: record r9".to_owned().into())), false);
        pool.arrive(&report("f", None), Some(Ok(sample("f", "r2", 0))), true);
        assert!(shown(&pool).is_empty());
        let kinds: Vec<&str> = pool.refused().keys().map(String::as_str).collect();
        assert_eq!(
            kinds,
            [
                "amended by report",
                "capture off",
                "prompt of a held-out task",
                "record graded already",
                "record trained already"
            ]
        );
    }

    #[test]
    fn lags_grow_with_the_head_and_what_is_too_old_expires() {
        let mut pool = pool(8);
        arrive(&mut pool, "a", "r1");
        pool.advance(Moment { lineage: vec![release(1), release(0)], max_staleness: 1 });
        pool.arrive(&report("b", None), Some(Ok(sample("b", "r2", 1))), false);
        assert_eq!(shown(&pool), [at("a", 1), at("b", 0)]);
        pool.advance(Moment { lineage: vec![release(2), release(1)], max_staleness: 1 });
        assert_eq!((shown(&pool), pool.refused()["expired"]), (vec![at("b", 1)], 1));
    }

    #[test]
    fn a_full_pool_keeps_the_rest_as_ids_in_order() {
        let mut pool = pool(2);
        for n in 0..5 {
            arrive(&mut pool, &format!("g{n}"), &format!("r{n}"));
        }
        assert_eq!(shown(&pool), [at("g0", 0), at("g1", 0)]);
        pool.consume(&[id("g0"), id("g1")]);
        let wanted = pool.wanted();
        assert_eq!(wanted, [id("g2"), id("g3")]);
        pool.fill(vec![sample("g2", "r2", 0), sample("g3", "r3", 0)]);
        pool.retire(&[(id("g2"), "too easy: 1".to_owned())]);
        assert_eq!((shown(&pool), pool.refused()["too easy"]), (vec![at("g3", 0)], 1));
        assert_eq!(pool.wanted(), [id("g4")]);
    }
}
