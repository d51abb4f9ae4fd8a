//! A flag that ends a call from outside. Clones share it; once set it stays set.

use std::sync::Arc;

use tokio::sync::watch;

/// Ends the calls and host calls that hold a clone of it.
#[derive(Debug, Clone)]
pub struct Cancel(Arc<watch::Sender<bool>>);

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Sets it.
    pub fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Is it set?
    pub fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Returns when it is set.
    pub async fn cancelled(&self) {
        // The sender lives in `self`, so waiting can only end with the flag set.
        let _ = self.0.subscribe().wait_for(|set| *set).await;
    }
}

impl Default for Cancel {
    fn default() -> Self {
        Self::new()
    }
}
