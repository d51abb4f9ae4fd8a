//! Capability `log`: lines of a recipe, escaped, bounded and tagged, handed to `tracing`.

use crate::Capability;
use crate::call_state::CallState;
use crate::text::clean;

/// Characters of one line.
const LINE_CHARS_MAX: usize = 4_000;
/// Characters of the place that a line names.
const CONTEXT_CHARS_MAX: usize = 200;

/// How important a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// Bytes left and bytes lost.
#[derive(Debug)]
pub(crate) struct LogBudget {
    left: u64,
    pub(crate) dropped_bytes: u64,
}

impl LogBudget {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { left: bytes_max, dropped_bytes: 0 }
    }

    /// The line to write, or nothing when it does not fit.
    fn admit(&mut self, context: &str, message: &str) -> Option<String> {
        let mut line = clean(message, LINE_CHARS_MAX);
        if !context.is_empty() {
            line = format!("{}: {line}", clean(context, CONTEXT_CHARS_MAX));
        }
        let bytes = line.len() as u64;
        if bytes > self.left {
            self.drop_line(context, message);
            return None;
        }
        self.left -= bytes;
        let cut = message.chars().skip(LINE_CHARS_MAX).map(char::len_utf8).sum::<usize>();
        self.dropped_bytes = self.dropped_bytes.saturating_add(cut as u64);
        Some(line)
    }

    fn drop_line(&mut self, context: &str, message: &str) {
        let bytes = context.len().saturating_add(message.len());
        self.dropped_bytes = self.dropped_bytes.saturating_add(bytes as u64);
    }
}

impl CallState {
    /// `context`: where in the recipe; may be empty.
    pub(crate) fn log_line(&mut self, level: Level, context: &str, message: &str) {
        if self.admit(Capability::Log, &(context, message)).is_err() {
            self.log.drop_line(context, message);
            return;
        }
        let Some(line) = self.log.admit(context, message) else { return };
        let (tenant, scenario, recipe) = (&self.context.tenant, &self.context.scenario, &self.label);
        // A `tracing` event has its level fixed where it is written.
        macro_rules! emit {
            ($level:ident) => {
                tracing::event!(target: "reef::recipe", tracing::Level::$level, tenant = %tenant, scenario = %scenario, recipe = %recipe, "{line}")
            };
        }
        match level {
            Level::Trace => emit!(TRACE),
            Level::Debug => emit!(DEBUG),
            Level::Info => emit!(INFO),
            Level::Warn => emit!(WARN),
            Level::Error => emit!(ERROR),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_escaped_and_the_rest_is_counted() {
        let mut budget = LogBudget::new(26);
        assert_eq!(budget.admit("", "a\u{1b}[2J\nb").as_deref(), Some("a\\u{1b}[2J\\nb"));
        assert_eq!(budget.admit("", "this line is much too long"), None);
        assert_eq!(budget.dropped_bytes, 26);
        assert_eq!(budget.admit("m\r", "x").as_deref(), Some("m\\r: x"));
        let mut long = LogBudget::new(1 << 20);
        assert!(long.admit("", &"x".repeat(LINE_CHARS_MAX + 5)).is_some());
        assert_eq!(long.dropped_bytes, 5);
    }
}
