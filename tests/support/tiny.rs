//! A model of two blocks with random weights and a token for every byte: it answers and learns in milliseconds and says
//! nothing. For tests that start a server many times and do not read what it writes.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// The name that clients ask for: that of its folder.
pub const TINY: &str = "tiny";
const HIDDEN: usize = 32;
const BLOCKS: usize = 2;
const HEADS: usize = 4;
const HEADS_KV: usize = 2;
const FFN: usize = 64;
const BYTES: usize = 256;
const CONTEXT: usize = 2_048;
const BEGIN: &str = "<|im_start|>";
const END: &str = "<|im_end|>";

/// Writes the model as a Hugging Face folder; its path.
pub fn tiny_model(within: &Path) -> std::path::PathBuf {
    let folder = within.join(TINY);
    fs::create_dir_all(&folder).expect("a folder");
    let write = |name: &str, json: Value| fs::write(folder.join(name), json.to_string()).expect("written");
    let vocabulary = BYTES + 2;
    write(
        "config.json",
        json!({
            "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": BLOCKS,
            "num_attention_heads": HEADS, "num_key_value_heads": HEADS_KV, "max_position_embeddings": CONTEXT,
            "vocab_size": vocabulary, "rms_norm_eps": 1e-5, "rope_theta": 10_000.0, "tie_word_embeddings": true,
            "eos_token_id": BYTES + 1,
        }),
    );
    let letters: Map<String, Value> =
        (0..=u8::MAX).map(|byte| (letter(byte).to_string(), u32::from(byte).into())).collect();
    let mut words = letters;
    words.extend([(BEGIN.to_owned(), json!(BYTES)), (END.to_owned(), json!(BYTES + 1))]);
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    write(
        "tokenizer.json",
        json!({
            "version": "1.0", "decoder": byte_level, "pre_tokenizer": byte_level,
            "added_tokens": [{ "id": BYTES, "content": BEGIN }, { "id": BYTES + 1, "content": END }],
            "model": { "type": "BPE", "vocab": words, "merges": [] },
        }),
    );
    let template = format!(
        "{{% for m in messages %}}{BEGIN}{{{{ m.role }}}}:{{{{ m.content }}}}{END}{{% endfor %}}{BEGIN}assistant:"
    );
    write("tokenizer_config.json", json!({ "chat_template": template, "eos_token": END }));
    fs::write(folder.join("model.safetensors"), weights(&tensors(vocabulary))).expect("written");
    folder
}

/// Names and shapes.
fn tensors(vocabulary: usize) -> Vec<(String, Vec<usize>)> {
    let keys = HIDDEN / HEADS * HEADS_KV;
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![vocabulary, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for block in 0..BLOCKS {
        let parts = [
            ("self_attn.q_proj", vec![HIDDEN, HIDDEN]),
            ("self_attn.k_proj", vec![keys, HIDDEN]),
            ("self_attn.v_proj", vec![keys, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, HIDDEN]),
            ("mlp.gate_proj", vec![FFN, HIDDEN]),
            ("mlp.up_proj", vec![FFN, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, FFN]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
        ];
        tensors.extend(parts.map(|(name, shape)| (format!("model.layers.{block}.{name}.weight"), shape)));
    }
    tensors
}

/// A safetensors file: the length of its header, the header, and f32 values; those of norms are 1, the rest drawn.
fn weights(tensors: &[(String, Vec<usize>)]) -> Vec<u8> {
    let (mut header, mut values, mut state) = (Map::new(), Vec::new(), 1_u32);
    for (name, shape) in tensors {
        let begin = values.len();
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let drawn = f64::from(state >> 8) / f64::from(1_u32 << 24) - 0.5;
            let value = if shape.len() == 1 { 1.0 } else { drawn as f32 };
            values.extend(value.to_le_bytes());
        }
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, values.len()] }));
    }
    let header = Value::Object(header).to_string();
    let length = u64::try_from(header.len()).expect("small").to_le_bytes();
    [length.as_slice(), header.as_bytes(), &values].concat()
}

/// How byte-level tokenizers write a byte: printable ones as they are, the rest from U+0100 on, in order.
fn letter(byte: u8) -> char {
    let shown = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if shown(byte) {
        return char::from(byte);
    }
    let hidden = (0..byte).filter(|other| !shown(*other)).count();
    char::from_u32(256 + u32::try_from(hidden).expect("small")).expect("a letter")
}
