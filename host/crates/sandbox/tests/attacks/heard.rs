//! What the sandbox writes to its log, caught for tests. One listener serves the whole process and keeps little.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, Once, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Lines that are kept.
const LINES_MAX: usize = 1_000;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LISTEN: Once = Once::new();

/// Keeps lines of recipes of this tenant, and lines about the pool.
pub const TENANT: &str = "overheard";

struct Listener;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("reef")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < LINES_MAX && (line.0.contains(TENANT) || line.0.contains("pool of instances")) {
            lines.push(line.0);
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// From now on lines are kept.
pub fn listen() {
    LISTEN.call_once(|| tracing::subscriber::set_global_default(Listener).expect("the only listener"));
}

/// Lines that contain this text.
pub fn lines(text: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    lines.iter().filter(|line| line.contains(text)).cloned().collect()
}
