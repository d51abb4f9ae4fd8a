//! How values become columns: JSON bodies under zstd, token columns as little-endian binary.
//! Every reader checks lengths and bounds, because a damaged file is outside data.

use std::cell::RefCell;
use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zstd::bulk::{Compressor, Decompressor};

use crate::error::{Fault, StoreError, damaged, invalid};

/// Bytes of one body before compression; twice the largest default request.
pub(crate) const BODY_BYTES_MAX: usize = 128 << 20;
/// Bodies up to this size are packed on the async thread: moving them costs more than packing.
const INLINE_BYTES_MAX: usize = 256 << 10;
/// Levels of lists and objects that serde_json reads back; what is deeper would be stored and never read.
const NESTING_MAX: usize = 127;
/// zstd level: bodies are packed on the path of every request.
const ZSTD_LEVEL: i32 = 1;

/// A packed body and its length before packing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    pub(crate) raw_bytes: i64,
}

/// Packs a value; `what` names it in the refusal.
pub(crate) async fn pack<T: Serialize>(value: &T, what: &str) -> Result<Body, Fault> {
    let raw = serde_json::to_vec(value).map_err(|e| invalid(format!("{what} is no JSON: {e}")))?;
    if raw.len() > BODY_BYTES_MAX {
        return Err(invalid(format!("{what} has {} bytes; the limit is {BODY_BYTES_MAX}", raw.len())));
    }
    let raw_bytes = i64::try_from(raw.len()).map_err(|e| invalid(e.to_string()))?;
    let (depth, packed) = heavy(raw.len(), move || (nesting(&raw), compress(&raw))).await?;
    readable(depth, what)?;
    let bytes = packed.map_err(|e| invalid(format!("{what} cannot be compressed: {e}")))?;
    Ok(Body { bytes, raw_bytes })
}

/// Unpacks a body; `what` names it when it is damaged.
pub(crate) async fn unpack<T>(bytes: Vec<u8>, raw_bytes: i64, what: &str) -> Result<T, Fault>
where
    T: DeserializeOwned + Send + 'static,
{
    let size = usize::try_from(raw_bytes).ok().filter(|size| *size <= BODY_BYTES_MAX);
    let size = size.ok_or_else(|| damaged(what, format!("impossible size {raw_bytes}")))?;
    let read = move || -> Result<T, String> {
        let raw = decompress(&bytes, size).map_err(|e| e.to_string())?;
        serde_json::from_slice(&raw).map_err(|e| e.to_string())
    };
    heavy(size, read).await?.map_err(|e| damaged(what, e))
}

thread_local! {
    /// Making a context costs more than packing a small body, so each thread keeps its own.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn compress(raw: &[u8]) -> std::io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| {
        let compressor = kept.take().map_or_else(|| Compressor::new(ZSTD_LEVEL), Ok)?;
        kept.insert(compressor).compress(raw)
    })
}

fn decompress(bytes: &[u8], size: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| {
        let decompressor = kept.take().map_or_else(Decompressor::new, Ok)?;
        kept.insert(decompressor).decompress(bytes, size)
    })
}

/// Runs work in place when it is small, else where it blocks no request.
async fn heavy<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    // The task is only lost when the runtime stops.
    tokio::task::spawn_blocking(work).await.map_err(|_| Fault::Refused(StoreError::Closed))
}

/// Text of a value that is small and always valid JSON.
pub(crate) fn to_text<T: Serialize>(value: &T) -> Result<String, Fault> {
    let text = serde_json::to_string(value).map_err(|e| invalid(format!("not representable as JSON: {e}")))?;
    readable(nesting(text.as_bytes()), "a value")?;
    Ok(text)
}

fn readable(depth: usize, what: &str) -> Result<(), Fault> {
    if depth <= NESTING_MAX {
        return Ok(());
    }
    Err(invalid(format!("{what} is nested {depth} levels deep; the limit is {NESTING_MAX}: send it flatter")))
}

/// Deepest level of lists and objects in valid JSON.
fn nesting(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut in_text, mut escaped) = (false, false);
    for byte in json {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = in_text,
            b'"' => in_text = !in_text,
            b'[' | b'{' if !in_text => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_text => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Reads such a text back.
pub(crate) fn from_text<T: DeserializeOwned>(text: &str, what: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|e| damaged(what, e))
}

/// A small number that is stored with 64 bits.
pub(crate) fn number(stored: i64, what: &str) -> Result<u32, Fault> {
    u32::try_from(stored).map_err(|e| damaged(what, e))
}

/// Token ids as bytes.
pub(crate) fn ids_to_bytes(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

/// Token ids from bytes.
pub(crate) fn ids_from_bytes(bytes: &[u8]) -> Result<Vec<u32>, Fault> {
    Ok(words(bytes)?.map(u32::from_le_bytes).collect())
}

/// Log-probs as bytes, bit for bit.
pub(crate) fn floats_to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Log-probs from bytes.
pub(crate) fn floats_from_bytes(bytes: &[u8]) -> Result<Vec<f32>, Fault> {
    Ok(words(bytes)?.map(f32::from_le_bytes).collect())
}

fn words(bytes: &[u8]) -> Result<impl Iterator<Item = [u8; 4]>, Fault> {
    let (words, rest) = bytes.as_chunks::<4>();
    if rest.is_empty() {
        Ok(words.iter().copied())
    } else {
        Err(damaged("token column", format!("{} bytes are not a multiple of 4", bytes.len())))
    }
}

/// A number in JSON, which has no word for values that are not finite.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Number {
    Finite(f64),
    Other(NotFinite),
}

/// A value that is not finite, as Rust writes it.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct NotFinite(f64);

impl TryFrom<String> for NotFinite {
    type Error = std::num::ParseFloatError;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl From<NotFinite> for String {
    fn from(value: NotFinite) -> Self {
        value.0.to_string()
    }
}

impl Number {
    pub(crate) fn of(value: f64) -> Self {
        if value.is_finite() { Self::Finite(value) } else { Self::Other(NotFinite(value)) }
    }

    pub(crate) fn get(&self) -> f64 {
        match self {
            Self::Finite(value) | Self::Other(NotFinite(value)) => *value,
        }
    }
}

/// Metrics as text, without loss.
pub(crate) fn metrics_to_text(metrics: &BTreeMap<String, f64>) -> Result<String, Fault> {
    to_text(&metrics.iter().map(|(name, value)| (name, Number::of(*value))).collect::<BTreeMap<_, _>>())
}

/// Metrics from text.
pub(crate) fn metrics_from_text(text: &str) -> Result<BTreeMap<String, f64>, Fault> {
    let stored: BTreeMap<String, Number> = from_text(text, "metrics")?;
    Ok(stored.into_iter().map(|(name, value)| (name, value.get())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_columns_return_bit_for_bit() {
        let values = [-0.0_f32, f32::NEG_INFINITY, -1.5e-38, f32::MIN_POSITIVE];
        let back = floats_from_bytes(&floats_to_bytes(&values)).expect("read");
        assert_eq!(back.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), values.map(f32::to_bits));
        assert_eq!(ids_from_bytes(&ids_to_bytes(&[0, 7, u32::MAX])).expect("read"), [0, 7, u32::MAX]);
        assert!(ids_from_bytes(&[1, 2, 3]).is_err());
    }

    #[test]
    fn metrics_that_are_not_finite_survive() {
        let metrics =
            BTreeMap::from([("a".to_owned(), f64::NAN), ("b".to_owned(), f64::NEG_INFINITY), ("c".to_owned(), 0.1)]);
        let back = metrics_from_text(&metrics_to_text(&metrics).expect("text")).expect("read");
        assert!(back["a"].is_nan());
        assert_eq!((back["b"], back["c"]), (f64::NEG_INFINITY, 0.1));
    }

    #[test]
    fn nesting_counts_levels_outside_texts() {
        assert_eq!(nesting(br#"{"a":[1,{"b":"[[[{\"[[\\"}],"c":[[]]}"#), 3);
        assert_eq!(nesting(b"7"), 0);
    }

    #[tokio::test]
    async fn the_deepest_value_that_is_stored_is_read_back() {
        let nested = |levels| (1..levels).fold(serde_json::json!([]), |inner, _| serde_json::json!([inner]));
        let body = pack(&nested(NESTING_MAX), "value").await.expect("packed");
        assert_eq!(
            unpack::<serde_json::Value>(body.bytes, body.raw_bytes, "value").await.expect("read"),
            nested(NESTING_MAX)
        );
        assert!(pack(&nested(NESTING_MAX + 1), "value").await.is_err());
        assert!(to_text(&nested(NESTING_MAX + 1)).is_err());
        let deeper = nested(NESTING_MAX + 1).to_string();
        assert!(serde_json::from_str::<serde_json::Value>(&deeper).is_err(), "the limit is where reading ends");
    }

    #[tokio::test]
    async fn bodies_over_the_inline_size_return_whole() {
        let text = "ü".repeat(INLINE_BYTES_MAX);
        let body = pack(&text, "text").await.expect("packed");
        assert!(body.bytes.len() < text.len() / 100);
        assert_eq!(unpack::<String>(body.bytes.clone(), body.raw_bytes, "text").await.expect("read"), text);
        assert!(unpack::<String>(body.bytes, 3, "text").await.is_err(), "a wrong size is damage, not a short text");
    }
}
