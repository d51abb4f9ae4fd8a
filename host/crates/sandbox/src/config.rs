//! Capability `config`: the recipe's own configuration, checked against its manifest before the call.
//! It is an input of the call, so it also answers in functions during which no other capability does.

use crate::call_state::{CallState, Denied};
use crate::traffic::Bytes;
use crate::{Capability, FaultKind};

impl CallState {
    pub(crate) fn config_get(&mut self, key: &str) -> Option<String> {
        if !self.admit_config(&key) {
            return None;
        }
        let declared = self.manifest.as_ref()?.config.iter().find(|declared| declared.name == key)?;
        let value = self.config.get(key).unwrap_or(&declared.default).to_string();
        self.traffic.gave(value.bytes());
        Some(value)
    }

    /// Every declared key, sorted.
    pub(crate) fn config_get_all(&mut self) -> Vec<(String, String)> {
        if !self.admit_config(&()) {
            return Vec::new();
        }
        let Some(manifest) = &self.manifest else { return Vec::new() };
        let value = |name: &str, default: &serde_json::Value| self.config.get(name).unwrap_or(default).to_string();
        let mut all: Vec<_> =
            manifest.config.iter().map(|key| (key.name.clone(), value(&key.name, &key.default))).collect();
        all.sort_unstable();
        self.traffic.gave(all.bytes());
        all
    }

    /// Counts the call. After a flood a silent `none` would be a wrong value, so the call ends.
    fn admit_config(&mut self, arguments: &impl Bytes) -> bool {
        match self.admit(Capability::Config, arguments) {
            // The interface has no error to answer with: `none` would tell the guest that the key is not declared.
            Ok(()) | Err(Denied::Sealed(_)) => true,
            Err(Denied::Budget(told)) => {
                self.cut(FaultKind::HostLimit(Capability::Config), &told);
                false
            }
        }
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
        assert_eq!(state.config_get("batch"), Some("32".into()));
        state.config.insert("batch".into(), json!(8));
        state.config.insert("secret".into(), json!("s"));
        assert_eq!(state.config_get("batch"), Some("8".into()));
        assert_eq!(state.config_get("secret"), None);
        assert_eq!(state.config_get_all(), [("batch".to_owned(), "8".to_owned())]);
        state.sealed = Some("migrate");
        assert_eq!(state.config_get("batch"), Some("8".into()));
        assert_eq!(state.config_get_all(), [("batch".to_owned(), "8".to_owned())]);
        assert_eq!((state.host_calls()["config"], state.cut_off), (6, None));
    }

    #[test]
    fn a_flood_ends_the_call() {
        let mut state = testing::state(0, vec![]);
        state.host_calls_max = 1;
        assert_eq!(state.config_get("a"), None);
        assert!(state.cut_off.is_none());
        assert_eq!(state.config_get("a"), None);
        assert_eq!(state.cut_off.expect("cut off").kind, FaultKind::HostLimit(Capability::Config));
    }
}
