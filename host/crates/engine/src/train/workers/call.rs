//! What the first rank tells the others to do, as a frame: a header in JSON, then the bytes of files.
//! Numbers come back bit for bit. What is sent was checked by the first rank; the others check it again as they do it.

use std::borrow::Cow;

use reef_core::{ReleaseId, Sample};
use serde::{Deserialize, Serialize};

use super::super::objective::Term;
use super::super::optimizer::Optimizer;
use crate::error::EngineError;
use crate::lora_config::LoraConfig;

/// Names and bytes of files.
pub(super) type Files = Vec<(String, Vec<u8>)>;

/// A call that all ranks make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in super::super) enum Call {
    /// Join the group of NCCL with this id.
    Group { id: Vec<u8> },
    /// Open a trainer on the files.
    Open { trainer: u32, fresh: LoraConfig, release: Option<ReleaseId> },
    /// Add a policy from the files.
    Policy { trainer: u32 },
    /// `Trainer::train`, with an optimizer, or `Trainer::forward_backward`.
    Terms { trainer: u32, items: Vec<Sample>, terms: Vec<Term>, optimizer: Option<Optimizer> },
    /// `Trainer::backward`
    Backward { trainer: u32, items: Vec<Sample>, gradients: Vec<f32> },
    /// `Trainer::optimizer_step`
    Step { trainer: u32, optimizer: Optimizer },
    /// `Trainer::update_ema`
    Ema { trainer: u32, rate: f64 },
    /// Forget the trainer; nothing is answered.
    Close { trainer: u32 },
}

/// The header of a frame.
#[derive(Debug, Serialize, Deserialize)]
struct Header<'a> {
    call: Cow<'a, Call>,
    /// Names and lengths of the files that follow.
    files: Vec<(String, usize)>,
}

/// Copies of the items without what no trainer reads.
pub(in super::super) fn bare(items: &[&Sample]) -> Vec<Sample> {
    let bare = |sample: &&Sample| Sample { metadata: serde_json::Map::new(), ..(*sample).clone() };
    items.iter().map(bare).collect()
}

/// Length of the header, and the header.
pub(super) fn encode(call: &Call, files: &[(String, Vec<u8>)]) -> Result<([u8; 8], Vec<u8>), EngineError> {
    let files = files.iter().map(|(name, bytes)| (name.clone(), bytes.len())).collect();
    let header = serde_json::to_vec(&Header { call: Cow::Borrowed(call), files })
        .map_err(|error| EngineError::Invalid(format!("a call cannot be told to the workers: {error}")))?;
    Ok(((header.len() as u64).to_le_bytes(), header))
}

/// The call and the files of a frame; what is wrong with it.
pub(super) fn decode(frame: &[u8]) -> Result<(Call, Files), String> {
    let short = || "a call is shorter than it says".to_owned();
    let (length, rest) = frame.split_first_chunk::<8>().ok_or_else(short)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| short())?;
    let (header, mut rest) = rest.split_at_checked(length).ok_or_else(short)?;
    let header: Header<'_> =
        serde_json::from_slice(header).map_err(|error| format!("a call is unreadable: {error}"))?;
    let mut files = Vec::with_capacity(header.files.len());
    for (name, length) in header.files {
        let (bytes, after) = rest.split_at_checked(length).ok_or_else(short)?;
        files.push((name, bytes.to_vec()));
        rest = after;
    }
    Ok((header.call.into_owned(), files))
}

#[cfg(test)]
mod tests {
    use super::super::super::fixture::sample;
    use super::super::super::objective::{Objective, PolicyGradient};
    use super::super::super::{Reduction, Weight};
    use super::*;

    #[test]
    fn a_call_comes_back_bit_for_bit_with_its_files() {
        let numbers = vec![0.1f32, -0.0, f32::MIN_POSITIVE, 1.0e-45, f32::MAX, -3.333_333_3, 16_777_217.0];
        let mut item = sample(1, &[1, 2, 3], 2);
        item.metadata.insert("secret".to_owned(), "text".into());
        let mut wild = item.clone();
        wild.trajectory.logprobs = numbers[..2].to_vec();
        let gradient =
            PolicyGradient::new(Weight::Masked { low: 0.7, high: 6.1 }, numbers.clone(), Reduction::TokenSum);
        let optimizer = Optimizer {
            learning_rate: 4e-5,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 1.0 / 3.0,
            gradient_norm_max: 1.0,
        };
        let terms = vec![gradient.into(), Objective::Nll.into()];
        let calls = [
            Call::Terms { trainer: 3, items: bare(&[&item, &wild]), terms, optimizer: Some(optimizer) },
            Call::Backward { trainer: 0, items: bare(&[&wild]), gradients: numbers },
            Call::Ema { trainer: 1, rate: 0.1 + 0.2 },
        ];
        let files = vec![("a".to_owned(), vec![0, 255]), ("b".to_owned(), Vec::new()), ("c".to_owned(), vec![7])];
        for call in calls {
            let (length, header) = encode(&call, &files).expect("told");
            assert!(!String::from_utf8_lossy(&header).contains("secret"));
            let frame = [&length[..], &header, &[0, 255, 7]].concat();
            assert_eq!(decode(&frame), Ok((call, files.clone())));
            for cut in [0, 7, 8, frame.len() - 1] {
                assert!(decode(&frame[..cut]).is_err(), "cut to {cut}");
            }
        }
        assert!(decode(&u64::MAX.to_le_bytes()).is_err());
    }
}
