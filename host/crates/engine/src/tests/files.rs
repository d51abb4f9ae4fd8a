//! Model and adapter files: what is read, and what is refused.

use reef_cpu::{Span, Workspace};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value as Json, json};

use super::*;
use crate::error::EngineError;
use crate::model::{Architecture, ModelConfig};

/// A folder of this test, empty.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("reef-engine-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("folder");
    folder
}

fn refusal(path: &Path, bytes: &[u8]) -> EngineError {
    std::fs::write(path, bytes).expect("written");
    Engine::load(config(path.to_owned())).expect_err("refused")
}

fn find(bytes: &[u8], part: &[u8]) -> usize {
    bytes.windows(part.len()).position(|window| window == part).expect("present")
}

#[test]
fn an_adapter_survives_its_files() {
    let files = lora(5).to_files().expect("files");
    let again = engine().adapter_from_files(&files).expect("read");
    let request = |adapter| Request { weights: Weights::Adapter(adapter), ..greedy(chat("Say hello."), 8) };
    assert_eq!(ids(&run(request(again))), ids(&run(request(adapter(5)))));
}

#[test]
fn damaged_model_files_are_refused_with_a_sentence() {
    let folder = folder("damaged");
    let missing = Engine::load(config(folder.join("missing.gguf"))).expect_err("missing").to_string();
    assert!(missing.contains("missing.gguf") && missing.contains("--model"), "{missing}");
    let whole = std::fs::read(model_path()).expect("model");
    for bytes in [&whole[..0], &whole[..4096], &whole[..50_000_000], b"hello, I am not a model"] {
        let problem = refusal(&folder.join("model.gguf"), bytes);
        assert!(matches!(problem, EngineError::Corrupt { .. } | EngineError::Io { .. }), "{problem}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

#[test]
fn unsupported_model_files_are_refused_with_a_remedy() {
    let folder = folder("unsupported");
    let whole = std::fs::read(model_path()).expect("model");
    let mut other = whole.clone();
    let at = find(&other, b"llama");
    other[at..at + 5].copy_from_slice(b"mamba");
    let problem = refusal(&folder.join("model.gguf"), &other).to_string();
    assert!(problem.contains("'mamba'") && problem.contains("'llama', 'qwen2' and 'qwen3' are supported"), "{problem}");
    // The type code stands behind the name, the number of dimensions and two sizes.
    let mut other = whole;
    let name = b"token_embd.weight";
    let at = find(&other, name) + name.len() + 4 + 16;
    other[at] = 19;
    let problem = refusal(&folder.join("model.gguf"), &other).to_string();
    assert!(problem.contains("token_embd.weight") && problem.contains("Q4_K"), "{problem}");
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Names and shapes of a model of two small blocks.
fn small_tensors(architecture: Architecture) -> Vec<(String, Vec<usize>)> {
    let base = engine().shape().clone();
    let model = ModelConfig { hidden_size: 8, ffn_width: 16, head_width: 4, heads: 2, heads_kv: 1, ..base };
    let mut tensors =
        vec![("model.embed_tokens.weight".to_owned(), vec![8, 8]), ("model.norm.weight".to_owned(), vec![8])];
    let modules = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let modules = modules.into_iter().chain(["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]);
    for (module, [input, output]) in modules.zip(model.linear_shapes()) {
        for layer in 0..2 {
            tensors.push((format!("model.layers.{layer}.{module}.weight"), vec![output as usize, input as usize]));
        }
    }
    for layer in 0..2 {
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push((format!("model.layers.{layer}.{norm}.weight"), vec![8]));
        }
        let more: &[(&str, usize)] = match architecture {
            Architecture::Llama => &[],
            Architecture::Qwen2 => &[("q_proj.bias", 8), ("k_proj.bias", 4), ("v_proj.bias", 4)],
            Architecture::Qwen3 => &[("q_norm.weight", 4), ("k_norm.weight", 4)],
        };
        for (name, size) in more {
            tensors.push((format!("model.layers.{layer}.self_attn.{name}"), vec![*size]));
        }
    }
    tensors
}

/// A Hugging Face folder with that model: bf16, two weight files.
fn write_folder(folder: &Path, config: &Json, architecture: Architecture) {
    let write = |name: &str, json: &Json| std::fs::write(folder.join(name), json.to_string()).expect("written");
    write("config.json", config);
    let letters = ["a", "b", "c", "Ġ", "Ċ", "ab", "<|im_start|>", "<|im_end|>"];
    let vocabulary: serde_json::Map<_, _> =
        letters.iter().enumerate().map(|(id, token)| ((*token).to_owned(), id.into())).collect();
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    write(
        "tokenizer.json",
        &json!({
            "version": "1.0",
            "added_tokens": [{ "id": 6, "content": "<|im_start|>" }, { "id": 7, "content": "<|im_end|>" }],
            "decoder": byte_level,
            "pre_tokenizer": byte_level,
            "model": { "type": "BPE", "vocab": vocabulary, "merges": ["a b"] },
        }),
    );
    let template = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}\n<|im_start|>";
    write("tokenizer_config.json", &json!({ "chat_template": template, "eos_token": "<|im_end|>" }));
    let tensors = small_tensors(architecture);
    for (shard, part) in tensors.chunks(tensors.len() / 2 + 1).enumerate() {
        let bytes: Vec<Vec<u8>> = part
            .iter()
            .map(|(_, shape)| {
                let values = (0..shape.iter().product::<usize>()).map(|i| half::bf16::from_f32((i as f32 * 0.7).sin()));
                values.flat_map(half::bf16::to_le_bytes).collect()
            })
            .collect();
        let views = part
            .iter()
            .zip(&bytes)
            .map(|((name, shape), bytes)| (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).expect("view")));
        let file = safetensors::serialize(views, None).expect("file");
        std::fs::write(folder.join(format!("model-{shard}.safetensors")), file).expect("written");
    }
}

fn small_config(architecture: Architecture) -> Json {
    json!({
        "model_type": architecture.name(), "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "vocab_size": 8,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "eos_token_id": 7,
    })
}

#[test]
fn every_architecture_serves_what_it_trains() {
    for (architecture, rope) in [
        (Architecture::Llama, json!(null)),
        (Architecture::Qwen2, json!(null)),
        (Architecture::Qwen3, json!(null)),
        (
            Architecture::Llama,
            json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 16 }),
        ),
    ] {
        let folder = folder(&format!("{}-{}", architecture.name(), rope.is_null()));
        let mut json = small_config(architecture);
        json["rope_scaling"] = rope;
        write_folder(&folder, &json, architecture);
        let own = Engine::load(config(folder.clone())).expect("loaded");
        assert_eq!(own.info().architecture, architecture.name());
        let tokens: Vec<u32> = (0..40).map(|i| i * 5 % 7).collect();
        let (mut work, pages) = (Workspace::new(2).expect("threads"), own.network().pages(9));
        let mut held: Vec<_> = (0..3).map(|_| pages.take().expect("a page")).collect();
        let span = Span { tokens: &tokens, start: 0, pages: &mut held, adapter: None, logits: true };
        let mut served = Vec::new();
        own.network().step(&mut work, &mut [span], &mut served).expect("step");
        let wanted = own.prompt_logits(&tokens).expect("logits");
        let worst = served.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(
            worst < 1e-4 && served.iter().any(|logit| logit.abs() > 0.01),
            "{architecture:?}: {served:?} {wanted:?}"
        );
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}

#[test]
fn a_hugging_face_folder_serves() {
    let folder = folder("folder");
    let mut json = small_config(Architecture::Llama);
    write_folder(&folder, &json, Architecture::Llama);
    let own = Engine::load(config(folder.clone())).expect("loaded");
    assert_eq!((own.info().context_length, own.info().vocabulary), (64, 8));
    let message = Message { role: "user".to_owned(), content: "  ab c<|im_end|> ".to_owned() };
    // As in Jinja with trimmed blocks: the newline after a block is none.
    assert_eq!(own.render_chat(&[message]).expect("rendered"), [6, 5, 3, 2, 7, 6]);
    assert!(!collect(own.generate(greedy(vec![6, 5, 3, 2, 7, 6], 5)).expect("queued")).0.is_empty());
    json["rope_scaling"] = json!({ "rope_type": "yarn", "factor": 2.0 });
    std::fs::write(folder.join("config.json"), json.to_string()).expect("written");
    assert!(Engine::load(config(folder.clone())).expect_err("scaled").to_string().contains("rope scaling"));
    std::fs::remove_dir_all(&folder).expect("removed");
}
