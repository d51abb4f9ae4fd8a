//! Text to token ids and back.
//! The engine's handle encodes, the scheduler asks for the bytes of sampled tokens. Control tokens are kept
//! apart from the text tokenizer: no text ever encodes to one. GGUF vocabularies are brought into the JSON
//! form of the `tokenizers` crate by hand, because their pre-tokenizer has only a name.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde_json::{Value as Json, json};
use tokenizers::NormalizerWrapper;

use crate::checkpoint::{Checkpoint, Source, corrupt, read_json, unsupported};
use crate::control::Control;
use crate::error::EngineError;
use crate::gguf::{Header, Value};

/// ggml's token types of control tokens, and of tokens that only a template writes and that are text all the same.
const CONTROL: i128 = 3;
const USER_DEFINED: i128 = 4;
/// Control tokens that end an answer in the models that have them.
const END_SPELLINGS: [&str; 5] = ["<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>"];
/// How text is cut before it is encoded, by the names that GGUF files use: Llama 3's rule, and Qwen's, which takes
/// digits one by one.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Composing characters makes a text at most three times shorter in bytes: nine of Hangul letters become three.
const NFC_SHORTENS_MAX: usize = 4;
/// Bytes of a token in a text that says something, behind a normaliser of which nothing is known.
const UNKNOWN_BYTES_EACH: usize = 64;

/// A byte-level BPE tokenizer.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    /// Plain text only: it knows no added tokens.
    text: tokenizers::Tokenizer,
    control: Control,
    /// What each token stands for; control tokens stand for nothing.
    bytes: Vec<Box<[u8]>>,
    /// Bytes of the longest token.
    longest: usize,
    /// Bytes that are a token: the others may be left out of what text encodes to.
    single: [bool; 256],
    /// Tokens that end an answer.
    eos: Vec<u32>,
    /// Spelling of the first token of a text, for templates.
    pub bos_text: String,
    /// Spelling of the end token, for templates.
    pub eos_text: String,
}

/// What both kinds of model files give.
struct Parts {
    json: Json,
    /// Spelling and id.
    control: BTreeMap<String, u32>,
    /// Those of them that are shown, such as `<think>`.
    shown: Vec<u32>,
    eos: Vec<u32>,
    bos_text: String,
    eos_text: String,
}

impl Tokenizer {
    /// From the file's metadata, or from tokenizer.json.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, EngineError> {
        let path = checkpoint.path();
        let parts = match checkpoint.source() {
            Source::Gguf { header, .. } => parts_of_gguf(path, header)?,
            Source::Folder { config, .. } => parts_of_folder(path, config)?,
        };
        let vocabulary = usize::try_from(checkpoint.config().vocabulary).unwrap_or(0);
        if parts.eos.is_empty() || parts.eos.iter().any(|id| *id as usize >= vocabulary) {
            return Err(corrupt(path, "it names no end-of-text token of its vocabulary"));
        }
        let text: tokenizers::Tokenizer =
            serde_json::from_value(parts.json).map_err(|e| corrupt(path, format!("its tokenizer: {e}")))?;
        let mut bytes = token_bytes(&text, &parts.control, vocabulary).map_err(|problem| corrupt(path, problem))?;
        for (spelling, id) in parts.control.iter().filter(|(_, id)| parts.shown.contains(id)) {
            if let Some(bytes) = bytes.get_mut(*id as usize) {
                *bytes = spelling.as_bytes().into();
            }
        }
        let control = Control::new(&parts.control).map_err(|e| corrupt(path, format!("its control tokens: {e}")))?;
        Ok(Self {
            longest: bytes.iter().map(|token| token.len()).max().unwrap_or(0).max(1),
            single: single_bytes(&bytes),
            text,
            control,
            bytes,
            eos: parts.eos,
            bos_text: parts.bos_text,
            eos_text: parts.eos_text,
        })
    }

    /// Ids of plain text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        let encoding = self
            .text
            .encode_fast(text, false)
            .map_err(|e| EngineError::Invalid(format!("the text cannot be tokenised: {e}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of ids.
    pub fn decode(&self, ids: &[u32]) -> Result<String, EngineError> {
        let mut bytes = Vec::new();
        for id in ids {
            let token = self
                .bytes
                .get(*id as usize)
                .ok_or_else(|| EngineError::Invalid(format!("token {id} is not in the vocabulary")))?;
            bytes.extend_from_slice(token);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Bytes of one token; none for control tokens and unknown ids.
    pub fn bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], |bytes| bytes)
    }

    /// Does this token end an answer?
    pub fn is_eos(&self, id: u32) -> bool {
        self.eos.contains(&id)
    }

    /// The control tokens.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// A number of tokens that `text` is certain to have at least, without tokenising it. Behind a normaliser that may
    /// shorten it as it likes nothing is certain: there it is what no text that says something falls short of.
    pub fn fewest(&self, text: &str) -> usize {
        let shortened = match self.text.get_normalizer() {
            None => 1,
            Some(NormalizerWrapper::NFC(_)) => NFC_SHORTENS_MAX,
            Some(_) => return text.len() / UNKNOWN_BYTES_EACH,
        };
        let kept = text.bytes().filter(|byte| self.single.get(usize::from(*byte)) == Some(&true)).count();
        kept.div_ceil(self.longest * shortened)
    }
}

fn parts_of_gguf(path: &Path, header: &Header) -> Result<Parts, EngineError> {
    let model = header.text("tokenizer.ggml.model").unwrap_or("none");
    if model != "gpt2" {
        return Err(unsupported(path, format!("its tokenizer is '{model}'; byte-level BPE ('gpt2') is supported")));
    }
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let pre = header.text("tokenizer.ggml.pre").unwrap_or("gpt-2");
    // Llama 3 takes a word that is a token as it is; Qwen composes characters first.
    let whole_words = matches!(pre, "llama-bpe" | "llama3");
    let normalizer = if pre == "qwen2" { json!({ "type": "NFC" }) } else { Json::Null };
    let pre_tokenizer = match pre {
        "smollm" => {
            json!({ "type": "Sequence", "pretokenizers": [{ "type": "Digits", "individual_digits": true }, byte_level] })
        }
        "gpt-2" => byte_level,
        "llama-bpe" | "llama3" => split_by(LLAMA_3),
        "qwen2" => split_by(QWEN_2),
        other => {
            return Err(unsupported(
                path,
                format!(
                    "its pre-tokenizer is '{other}'; 'smollm', 'gpt-2', 'llama-bpe' and 'qwen2' are supported, or use the Hugging Face folder of this model"
                ),
            ));
        }
    };
    let list =
        |key: &str| header.list(key).ok_or_else(|| corrupt(path, format!("metadata '{key}' is missing or no list")));
    let tokens = texts(list("tokenizer.ggml.tokens")?).ok_or_else(|| corrupt(path, "a token is no text"))?;
    let kinds = header.list("tokenizer.ggml.token_type").unwrap_or_default();
    let of_kind = |wanted: i128| {
        let found = tokens.iter().zip(kinds).enumerate().filter(move |(_, (_, kind))| **kind == Value::Int(wanted));
        found.map(|(id, (token, _))| ((*token).to_owned(), id as u32)).collect::<BTreeMap<_, _>>()
    };
    let (mut control, shown) = (of_kind(CONTROL), of_kind(USER_DEFINED));
    let shown_ids = shown.values().copied().collect();
    control.extend(shown);
    let merges = texts(list("tokenizer.ggml.merges")?).ok_or_else(|| corrupt(path, "a merge is no text"))?;
    let merges: Option<Vec<_>> = merges.into_iter().map(|merge| merge.split_once(' ')).collect();
    let merges = merges.ok_or_else(|| corrupt(path, "a merge is no pair of tokens"))?;
    // Control tokens are no words: text that spells one is encoded from its letters.
    let words = tokens.iter().enumerate().filter(|(_, token)| !control.contains_key(**token));
    let vocabulary: HashMap<&str, usize> = words.map(|(id, token)| (*token, id)).collect();
    let id = |key: &str| header.int(key).and_then(|id| u32::try_from(id).ok());
    let spelling = |id: Option<u32>| id.and_then(|id| tokens.get(id as usize)).copied().unwrap_or_default().to_owned();
    let eos = id("tokenizer.ggml.eos_token_id");
    // A chat model may end a turn, or a call, otherwise than a text.
    let others = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"].into_iter().filter_map(id);
    let spelled = END_SPELLINGS.into_iter().filter_map(|spelling| control.get(spelling).copied());
    let mut ends: Vec<u32> = Vec::new();
    for end in eos.into_iter().chain(others).chain(spelled) {
        if !ends.contains(&end) {
            ends.push(end);
        }
    }
    Ok(Parts {
        json: json!({
            "version": "1.0",
            "added_tokens": [],
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "decoder": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
            "model": { "type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": whole_words },
        }),
        control,
        shown: shown_ids,
        eos: ends,
        bos_text: spelling(id("tokenizer.ggml.bos_token_id")),
        eos_text: spelling(eos),
    })
}

/// A pre-tokenizer that cuts by a pattern before it maps bytes to letters.
fn split_by(pattern: &str) -> Json {
    json!({ "type": "Sequence", "pretokenizers": [
        { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false },
        { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false },
    ] })
}

fn parts_of_folder(folder: &Path, config: &Json) -> Result<Parts, EngineError> {
    let path = folder.join("tokenizer.json");
    let mut json = read_json(&path)?;
    let byte_level = json.get("decoder").is_some_and(|decoder| decoder.to_string().contains("\"ByteLevel\""));
    if !byte_level {
        return Err(unsupported(&path, "its decoder is not ByteLevel; byte-level BPE is supported"));
    }
    let (mut control, mut shown) = (BTreeMap::new(), Vec::new());
    for token in json.get("added_tokens").and_then(Json::as_array).into_iter().flatten() {
        let (content, id) = (token.get("content").and_then(Json::as_str), token.get("id").and_then(Json::as_u64));
        if let (Some(content), Some(Ok(id))) = (content, id.map(u32::try_from)) {
            control.insert(content.to_owned(), id);
            if token.get("special").and_then(Json::as_bool) == Some(false) {
                shown.push(id);
            }
        }
    }
    if let Some(object) = json.as_object_mut() {
        object.insert("added_tokens".to_owned(), json!([]));
        object.insert("post_processor".to_owned(), Json::Null);
        object.insert("padding".to_owned(), Json::Null);
        object.insert("truncation".to_owned(), Json::Null);
    }
    let generation = read_json(&folder.join("generation_config.json")).unwrap_or(Json::Null);
    let settings = read_json(&folder.join("tokenizer_config.json")).unwrap_or(Json::Null);
    let spelling = |key: &str| {
        let value = settings.get(key);
        value
            .and_then(|v| v.as_str().or_else(|| v.get("content").and_then(Json::as_str)))
            .unwrap_or_default()
            .to_owned()
    };
    let eos_text = spelling("eos_token");
    let mut eos: Vec<u32> =
        [&generation, config].into_iter().find_map(|json| json.get("eos_token_id").map(ids)).unwrap_or_default();
    eos.extend(control.get(&eos_text).filter(|id| !eos.contains(id)).copied().into_iter().collect::<Vec<_>>());
    Ok(Parts { json, control, shown, eos, bos_text: spelling("bos_token"), eos_text })
}

fn texts(list: &[Value]) -> Option<Vec<&str>> {
    list.iter().map(|value| if let Value::Text(text) = value { Some(text.as_str()) } else { None }).collect()
}

/// One id or a list of ids.
fn ids(value: &Json) -> Vec<u32> {
    let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    list.iter().filter_map(Json::as_u64).filter_map(|id| u32::try_from(id).ok()).collect()
}

/// What each token stands for, by id.
fn token_bytes(
    text: &tokenizers::Tokenizer,
    control: &BTreeMap<String, u32>,
    vocabulary: usize,
) -> Result<Vec<Box<[u8]>>, String> {
    let bytes_of = byte_of_char();
    let mut table = vec![Box::<[u8]>::default(); vocabulary];
    for (token, id) in text.get_vocab(false) {
        if control.values().any(|control| *control == id) {
            continue;
        }
        let slot = table
            .get_mut(id as usize)
            .ok_or_else(|| format!("its token {id} is outside the vocabulary of {vocabulary}"))?;
        // A token that is not in the byte alphabet is stored as it reads.
        let bytes: Option<Vec<u8>> = token.chars().map(|c| bytes_of.get(&c).copied()).collect();
        *slot = bytes.unwrap_or_else(|| token.into_bytes()).into_boxed_slice();
    }
    Ok(table)
}

/// Which bytes have a token of their own.
fn single_bytes(tokens: &[Box<[u8]>]) -> [bool; 256] {
    let mut single = [false; 256];
    for token in tokens {
        if let [byte] = **token
            && let Some(known) = single.get_mut(usize::from(byte))
        {
            *known = true;
        }
    }
    single
}

/// The byte alphabet of GPT-2: printable Latin-1 stands for itself, the other bytes for U+0100 and up, in order.
fn byte_of_char() -> HashMap<char, u8> {
    let itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100u32;
    let mut table = HashMap::new();
    for byte in 0..=u8::MAX {
        if itself(byte) {
            table.insert(char::from(byte), byte);
        } else {
            table.extend(char::from_u32(next).map(|c| (c, byte)));
            next += 1;
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_covers_every_byte_once() {
        let table = byte_of_char();
        assert_eq!(table.len(), 256);
        assert_eq!((table[&'Ġ'], table[&'Ċ'], table[&'a']), (b' ', b'\n', b'a'));
    }
}
