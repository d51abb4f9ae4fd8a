//! Capability `config`: the recipe's own configuration, checked against its manifest before the call.

use crate::bindings::reef::recipe::config::Host;
use crate::call_state::CallState;
use crate::{Capability, FaultKind};

impl Host for CallState {
    fn get(&mut self, key: String) -> Option<String> {
        // The interface has no error to answer with, and a silent `none` would be a wrong value.
        if let Err(told) = self.admit(Capability::Config) {
            self.cut(FaultKind::HostLimit(Capability::Config), &told);
            return None;
        }
        let declared = self.manifest.as_ref()?.config.iter().find(|declared| declared.name == key)?;
        Some(self.config.get(&key).unwrap_or(&declared.default).to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::call::testing;

    #[test]
    fn the_operators_value_wins_over_the_default_and_unknown_keys_are_none() {
        let mut state = testing::state(0, vec![]);
        state.manifest = Some(Arc::new(testing::manifest()));
        assert_eq!(Host::get(&mut state, "batch".into()), Some("32".into()));
        state.config.insert("batch".into(), json!(8));
        state.config.insert("secret".into(), json!("s"));
        assert_eq!(Host::get(&mut state, "batch".into()), Some("8".into()));
        assert_eq!(Host::get(&mut state, "secret".into()), None);
    }

    #[test]
    fn a_flood_ends_the_call() {
        let mut state = testing::state(0, vec![]);
        state.host_calls_max = 1;
        assert_eq!(Host::get(&mut state, "a".into()), None);
        assert!(state.cut_off.is_none());
        assert_eq!(Host::get(&mut state, "a".into()), None);
        assert_eq!(state.cut_off.expect("cut off").kind, FaultKind::HostLimit(Capability::Config));
    }
}
