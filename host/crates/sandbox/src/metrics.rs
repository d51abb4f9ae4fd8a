//! Capability `metrics`: named numbers that are stored with the step.

use std::collections::BTreeMap;

use crate::Capability;
use crate::call_state::CallState;
use crate::text::is_metric_name;

/// Names per call.
const NAMES_MAX: usize = 64;

/// The gauges of one call.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) values: BTreeMap<String, f64>,
    /// Gauges that broke a rule, came too often, or came while none is kept.
    pub(crate) ignored: u32,
}

impl Gauges {
    fn set(&mut self, name: String, value: f64) {
        let known = self.values.contains_key(&name);
        if !is_metric_name(&name) || !value.is_finite() || (!known && self.values.len() >= NAMES_MAX) {
            self.ignore();
            return;
        }
        self.values.insert(name, value);
    }

    fn ignore(&mut self) {
        self.ignored = self.ignored.saturating_add(1);
    }
}

impl CallState {
    pub(crate) fn gauge(&mut self, name: String, value: f64) {
        if self.admit(Capability::Metrics, &(&name, value)).is_ok() {
            self.gauges.set(name, value);
        } else {
            self.gauges.ignore();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::testing;

    #[test]
    fn gauges_over_the_budget_and_of_a_sealed_call_are_counted_too() {
        let mut state = testing::state(0, vec![]);
        state.host_calls_max = 1;
        state.gauge("kept".into(), 1.0);
        state.gauge("too_often".into(), 1.0);
        assert_eq!((state.gauges.ignored, state.gauges.values.len()), (1, 1));
        let mut state = testing::state(0, vec![]);
        state.sealed = Some("migrate");
        state.gauge("sealed".into(), 1.0);
        assert_eq!((state.gauges.ignored, state.gauges.values.len()), (1, 0));
    }

    #[test]
    fn bad_names_values_and_too_many_gauges_are_ignored_and_counted() {
        let mut gauges = Gauges::default();
        gauges.set("loss".into(), f64::NAN);
        gauges.set("../loss".into(), 1.0);
        for index in 0..NAMES_MAX {
            gauges.set(format!("m{index}"), 1.0);
        }
        gauges.set("one_more".into(), 1.0);
        gauges.set("m0".into(), 2.0);
        assert_eq!((gauges.ignored, gauges.values.len(), gauges.values["m0"]), (3, NAMES_MAX, 2.0));
    }
}
