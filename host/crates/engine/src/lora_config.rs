//! The shape of fresh adapters: rank, scale, start values, and which linear layers carry a pair.
//! The host's configuration holds one; `Lora::init` makes an adapter of it. Names are those of `peft`.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use crate::adapter::PAIRS;

/// Largest rank that is accepted: above it an adapter is no longer small against its model.
pub const RANK_MAX: i64 = 256;

/// The linear layers of a block, in the order of `LayerLora::pairs`.
const NAMES: [&str; PAIRS] = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];

/// How fresh adapters are made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraConfig {
    /// Rank r, in 1..=256.
    pub rank: i64,
    /// The delta is scaled by alpha / rank.
    pub alpha: f64,
    /// The delta is scaled by alpha / √rank instead (Kalajdzievski 2023, eq. 4).
    pub rslora: bool,
    /// The linear layers that carry a pair.
    pub targets: Targets,
    /// Seed of the start values.
    pub seed: u64,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self { rank: 16, alpha: 32.0, rslora: false, targets: Targets::ALL, seed: 0 }
    }
}

impl LoraConfig {
    /// What cannot be used, as a sentence.
    pub fn check(&self) -> Result<(), String> {
        let Self { rank, alpha, .. } = self;
        if !(1..=RANK_MAX).contains(rank) || !alpha.is_finite() || *alpha <= 0.0 {
            return Err(format!("rank {rank} and alpha {alpha}; use a rank from 1 to {RANK_MAX} and an alpha over 0"));
        }
        if self.targets == Targets(0) {
            return Err(format!("no targets; name at least one of {}", NAMES.join(", ")));
        }
        Ok(())
    }
}

/// A set of the linear layers of a block; written as the list of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Targets(u8);

impl Targets {
    /// All seven.
    pub const ALL: Self = Self((1 << PAIRS) - 1);

    /// Those of these names; the first that is not known.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut set = 0;
        for name in names {
            let place = NAMES.iter().position(|known| *known == name).ok_or_else(|| {
                let shown: String = name.escape_debug().take(64).collect();
                format!("unknown target '{shown}'; use some of {}", NAMES.join(", "))
            })?;
            set |= 1 << place;
        }
        Ok(Self(set))
    }

    /// Is the layer at this place of `LayerLora::pairs` one of them?
    pub(crate) fn has(self, pair: usize) -> bool {
        self.0 >> pair & 1 == 1
    }

    fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().enumerate().filter(move |(pair, _)| self.has(*pair)).map(|(_, name)| name)
    }
}

impl Serialize for Targets {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.names())
    }
}

impl<'de> Deserialize<'de> for Targets {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(from)?;
        Self::of(names.iter().map(String::as_str)).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json, to_value};

    use super::*;

    #[test]
    fn targets_are_read_and_written_by_name() {
        let config: LoraConfig = from_value(json!({ "targets": ["v_proj", "q_proj"] })).expect("known names");
        assert!(config.targets.has(0) && config.targets.has(2) && !config.targets.has(1));
        assert_eq!(to_value(config).expect("JSON")["targets"], json!(["q_proj", "v_proj"]));
        assert_eq!(to_value(LoraConfig::default()).expect("JSON")["targets"], json!(NAMES));
        let refused = from_value::<LoraConfig>(json!({ "targets": ["query"] })).expect_err("unknown").to_string();
        assert!(refused.contains("'query'") && refused.contains("q_proj"), "{refused}");
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        let check = |fields| from_value::<LoraConfig>(fields).expect("fields").check();
        assert!(check(json!({})).is_ok());
        assert!(check(json!({ "rank": 0 })).is_err_and(|problem| problem.contains("rank 0")));
        assert!(check(json!({ "alpha": -1.0 })).is_err());
        assert!(check(json!({ "targets": [] })).is_err_and(|problem| problem.contains("q_proj")));
    }
}
