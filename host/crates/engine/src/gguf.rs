//! Reads the header of a GGUF file: metadata and the directory of tensors.
//! `checkpoint.rs` asks it for values and for the bytes of a tensor. Every count, length and offset is
//! checked against the file before anything is allocated, so a damaged file is an error and never a panic.
//!
//! Format: ggml-org/ggml, docs/gguf.md, versions 2 and 3, little-endian.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::quant::Quant;

/// Metadata entries and tensors a file may have; real ones have some tens and some hundreds.
const ENTRIES_MAX: u64 = 65_536;
/// Items of one metadata array; vocabularies and merges have up to some hundred thousand.
const ITEMS_MAX: u64 = 2_097_152;
/// Bytes of one string; the longest are chat templates.
const STRING_BYTES_MAX: u64 = 1_048_576;
/// Dimensions of a tensor.
const DIMENSIONS_MAX: u32 = 4;
/// Alignment of tensor data when the file names none, bytes.
const ALIGNMENT_DEFAULT: u64 = 32;

/// A metadata value; numbers are widened.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
}

/// Where a tensor lies.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TensorEntry {
    /// Sizes, outermost first (the file has them innermost first).
    pub shape: Vec<i64>,
    pub quant: Quant,
    /// Bytes of the file.
    pub bytes: Range<usize>,
}

/// A parsed header.
#[derive(Debug)]
pub(crate) struct Header {
    pub metadata: BTreeMap<String, Value>,
    pub tensors: BTreeMap<String, TensorEntry>,
}

impl Header {
    /// Parses the header of `file`. The error says what is wrong, and where.
    pub fn parse(file: &[u8]) -> Result<Self, String> {
        let mut reader = Reader { file, at: 0 };
        if reader.take(4)? != b"GGUF" {
            return Err("it does not start with 'GGUF'".to_owned());
        }
        let version = reader.u32()?;
        if !matches!(version, 2 | 3) {
            return Err(format!("GGUF version {version} is unknown; versions 2 and 3 are"));
        }
        let tensor_count = reader.count("tensors", ENTRIES_MAX)?;
        let metadata_count = reader.count("metadata entries", ENTRIES_MAX)?;
        let mut metadata = BTreeMap::new();
        for _ in 0..metadata_count {
            let key = reader.string()?;
            let kind = reader.u32()?;
            let value = reader.value(kind, true).map_err(|problem| format!("metadata '{key}': {problem}"))?;
            metadata.insert(key, value);
        }
        let entries = (0..tensor_count).map(|_| reader.tensor()).collect::<Result<Vec<_>, _>>()?;
        let tensors = place(entries, data_start(&metadata, reader.at)?, file.len())?;
        Ok(Self { metadata, tensors })
    }

    /// A text value.
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// An integer.
    pub fn int(&self, key: &str) -> Option<i64> {
        match self.metadata.get(key) {
            Some(Value::Int(value)) => i64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A number.
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.metadata.get(key) {
            Some(Value::Float(value)) => Some(*value),
            Some(Value::Int(value)) => Some(*value as f64),
            _ => None,
        }
    }

    /// A list.
    pub fn list(&self, key: &str) -> Option<&[Value]> {
        match self.metadata.get(key) {
            Some(Value::List(items)) => Some(items),
            _ => None,
        }
    }
}

/// A directory entry before its bytes are known: name, shape, encoding, offset into the data.
type Unplaced = (String, Vec<i64>, Quant, u64);

/// First byte of the tensor data: the end of the directory, aligned.
fn data_start(metadata: &BTreeMap<String, Value>, header_end: usize) -> Result<u64, String> {
    let alignment = match metadata.get("general.alignment") {
        None => ALIGNMENT_DEFAULT,
        Some(Value::Int(value)) => u64::try_from(*value)
            .ok()
            .filter(|a| a.is_power_of_two())
            .ok_or("general.alignment is not a power of two")?,
        Some(_) => return Err("general.alignment is not a number".to_owned()),
    };
    (header_end as u64).checked_next_multiple_of(alignment).ok_or_else(|| "general.alignment is too large".to_owned())
}

fn place(entries: Vec<Unplaced>, data_start: u64, file_bytes: usize) -> Result<BTreeMap<String, TensorEntry>, String> {
    let mut tensors = BTreeMap::new();
    for (name, shape, quant, offset) in entries {
        let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(u64::try_from(*size).ok()?));
        let bytes = elements.and_then(|elements| quant.bytes(elements));
        let bytes = bytes.ok_or_else(|| format!("tensor '{name}': shape {shape:?} does not fit {quant:?}"))?;
        let start = data_start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(bytes));
        match (start, end) {
            (Some(start), Some(end)) if end <= file_bytes as u64 => {
                tensors.insert(name, TensorEntry { shape, quant, bytes: start as usize..end as usize });
            }
            _ => return Err(format!("tensor '{name}' ends behind the file's {file_bytes} bytes")),
        }
    }
    Ok(tensors)
}

struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: u64) -> Result<&'a [u8], String> {
        let end = usize::try_from(bytes).ok().and_then(|bytes| self.at.checked_add(bytes));
        let slice = end
            .and_then(|end| self.file.get(self.at..end))
            .ok_or_else(|| format!("it ends at byte {} inside the header", self.file.len()))?;
        self.at += slice.len();
        Ok(slice)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let slice = self.take(N as u64)?;
        slice.try_into().map_err(|_| "it ends inside the header".to_owned())
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn count(&mut self, what: &str, max: u64) -> Result<u64, String> {
        let count = self.u64()?;
        // Every entry takes at least one byte, so a count above the rest of the file is a lie.
        if count > max || count > (self.file.len() - self.at) as u64 {
            return Err(format!("it claims {count} {what}"));
        }
        Ok(count)
    }

    fn string(&mut self) -> Result<String, String> {
        let length = self.count("bytes of text", STRING_BYTES_MAX)?;
        String::from_utf8(self.take(length)?.to_vec()).map_err(|_| "a text is not UTF-8".to_owned())
    }

    /// `lists`: lists are allowed here; they do not nest.
    fn value(&mut self, kind: u32, lists: bool) -> Result<Value, String> {
        Ok(match kind {
            0 => Value::Int(u8::from_le_bytes(self.array()?).into()),
            1 => Value::Int(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Int(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(u8::from_le_bytes(self.array()?) != 0),
            8 => Value::Text(self.string()?),
            9 if lists => {
                let kind = self.u32()?;
                let count = self.count("list items", ITEMS_MAX)?;
                Value::List((0..count).map(|_| self.value(kind, false)).collect::<Result<_, _>>()?)
            }
            10 => Value::Int(self.u64()?.into()),
            11 => Value::Int(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("value type {kind} is unknown")),
        })
    }

    fn tensor(&mut self) -> Result<Unplaced, String> {
        let name = self.string()?;
        let dimensions = self.u32()?;
        if dimensions == 0 || dimensions > DIMENSIONS_MAX {
            return Err(format!("tensor '{name}' has {dimensions} dimensions"));
        }
        let mut shape = (0..dimensions).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        let shape = shape
            .into_iter()
            .map(i64::try_from)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| format!("tensor '{name}' is too large"))?;
        let quant = Quant::from_code(self.u32()?);
        Ok((name, shape, quant, self.u64()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &mut Vec<u8>, value: &str) {
        bytes.extend((value.len() as u64).to_le_bytes());
        bytes.extend(value.as_bytes());
    }

    /// One metadata list of texts, one text, one F32 tensor of 2 × 4.
    fn sample() -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        text(&mut bytes, "general.architecture");
        bytes.extend(8u32.to_le_bytes());
        text(&mut bytes, "llama");
        text(&mut bytes, "tokens");
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(8u32.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        text(&mut bytes, "a");
        text(&mut bytes, "b");
        text(&mut bytes, "weight");
        bytes.extend(2u32.to_le_bytes());
        bytes.extend(4u64.to_le_bytes());
        bytes.extend(2u64.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(32) + 32, 0);
        bytes
    }

    #[test]
    fn a_header_is_read() {
        let header = Header::parse(&sample()).expect("valid");
        assert_eq!(header.text("general.architecture"), Some("llama"));
        assert_eq!(header.list("tokens").map(<[_]>::len), Some(2));
        let tensor = &header.tensors["weight"];
        assert_eq!((tensor.shape.as_slice(), tensor.bytes.len()), ([2, 4].as_slice(), 32));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let bytes = sample();
        for length in 0..bytes.len() {
            assert!(Header::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn no_single_changed_byte_panics() {
        let bytes = sample();
        for at in 0..bytes.len() {
            for value in [0, 1, 9, 0x7f, 0x80, 0xff] {
                let mut mutated = bytes.clone();
                mutated[at] = value;
                let _ = Header::parse(&mutated);
            }
        }
    }

    #[test]
    fn absurd_counts_are_refused_and_told() {
        for (at, what) in [(8, "tensors"), (16, "metadata entries"), (24, "bytes of text")] {
            let mut mutated = sample();
            mutated[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
            let problem = Header::parse(&mutated).expect_err("absurd");
            assert!(problem.contains(what), "{problem}");
        }
    }

    #[test]
    fn other_files_are_refused_by_their_first_bytes() {
        assert!(Header::parse(b"PK\x03\x04 and more").expect_err("zip").contains("GGUF"));
        let mut mutated = sample();
        mutated[4] = 9;
        assert!(Header::parse(&mutated).expect_err("version").contains("version 9"));
    }
}
