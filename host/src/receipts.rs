//! Receipts that a client may already have seen while their record is still being written.
//! The exchange registers one before the first byte; a report waits here, for a bounded time, until the
//! record is durable. So a receipt is valid from the moment the client sees it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use reef_core::RecordId;
use tokio::sync::watch;

use crate::scenarios::ScenarioKey;

type Key = (ScenarioKey, RecordId);

/// All exchanges whose record is not durable yet.
#[derive(Debug, Clone, Default)]
pub struct Receipts(Arc<Mutex<HashMap<Key, watch::Receiver<()>>>>);

/// One of them; settled when dropped.
#[derive(Debug)]
pub struct InFlight {
    receipts: Receipts,
    key: Key,
    done: Option<watch::Sender<()>>,
}

impl Receipts {
    /// Announces a receipt.
    pub fn register(&self, scenario: &ScenarioKey, receipt: &RecordId) -> InFlight {
        let (done, waiting) = watch::channel(());
        let key = (scenario.clone(), receipt.clone());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), waiting);
        InFlight { receipts: self.clone(), key, done: Some(done) }
    }

    /// Waits until the records of these receipts are written, at most `patience` in all. False: some are not yet.
    pub async fn wait(&self, scenario: &ScenarioKey, receipts: &[RecordId], patience: Duration) -> bool {
        let waiting: Vec<watch::Receiver<()>> = {
            let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            receipts.iter().filter_map(|receipt| open.get(&(scenario.clone(), receipt.clone())).cloned()).collect()
        };
        let all = async {
            for mut receiver in waiting {
                // An error means that the sender is gone: settled.
                let _ = receiver.changed().await;
            }
        };
        tokio::time::timeout(patience, all).await.is_ok()
    }

    /// Waits until the records of this scenario that are being produced now are written, at most `patience` in all; how
    /// many are not.
    pub async fn wait_scenario(&self, scenario: &ScenarioKey, patience: Duration) -> usize {
        let open = || -> HashSet<RecordId> {
            let open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            open.keys().filter(|(key, _)| key == scenario).map(|(_, receipt)| receipt.clone()).collect()
        };
        let now = open();
        self.wait(scenario, &now.iter().cloned().collect::<Vec<_>>(), patience).await;
        now.intersection(&open()).count()
    }

    /// Waits until no record is being written any more, at most `patience`.
    pub async fn wait_all(&self, patience: Duration) -> bool {
        let open = || self.0.lock().unwrap_or_else(PoisonError::into_inner).values().next().cloned();
        let all = async {
            while let Some(mut receiver) = open() {
                // An error means that the sender is gone: settled.
                let _ = receiver.changed().await;
            }
        };
        tokio::time::timeout(patience, all).await.is_ok()
    }
}

impl InFlight {
    /// The record is durable, or will never be.
    pub fn settle(&self) {
        self.receipts.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        if let Some(done) = &self.done {
            done.send_replace(());
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.settle();
        self.done = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reef_core::{ScenarioName, TenantId};

    #[tokio::test]
    async fn a_report_waits_for_the_record_it_names() {
        let receipts = Receipts::default();
        let key = (TenantId::parse("t").expect("tenant"), ScenarioName::parse("s").expect("name"));
        let id = RecordId::fresh();
        let in_flight = receipts.register(&key, &id);
        let waiter = {
            let (receipts, key, id) = (receipts.clone(), key.clone(), id.clone());
            tokio::spawn(async move { receipts.wait(&key, &[id], Duration::from_secs(30)).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(in_flight);
        assert!(waiter.await.expect("released"));
        assert!(receipts.wait(&key, &[id], Duration::from_secs(30)).await);
        assert!(receipts.wait_all(Duration::from_secs(30)).await);
    }
}
