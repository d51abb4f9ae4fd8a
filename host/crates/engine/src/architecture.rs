//! Which architecture a checkpoint holds and what its sizes are, from GGUF metadata or a `config.json`.
//! `checkpoint.rs` asks once. Llama, Qwen2 and Qwen3 are one network with optional biases and head norms; whatever
//! else changes the arithmetic (other scalings, sliding windows, experts) is refused by name.

use std::path::Path;

use serde_json::Value as Json;

use crate::checkpoint::{corrupt, unsupported};
use crate::error::EngineError;
use crate::gguf::Header;
use crate::model::{Architecture, ModelConfig};

/// Bounds of every size in a model's shape: generous, and products stay inside i64.
const SIZE_MAX: i64 = 1 << 21;
/// Blocks of a model.
const LAYERS_MAX: i64 = 1024;
/// What is read, for messages.
const SUPPORTED: &str = "'llama', 'qwen2' and 'qwen3' are supported";

/// The shape of the model in a GGUF file; `factors` are those of its rotations, if it has any.
pub(crate) fn of_gguf(path: &Path, header: &Header, factors: Vec<f64>) -> Result<ModelConfig, EngineError> {
    let name = header.text("general.architecture").unwrap_or("none");
    let architecture = Architecture::parse(name)
        .ok_or_else(|| unsupported(path, format!("its architecture is '{name}'; {SUPPORTED}")))?;
    if header.text(&format!("{name}.rope.scaling.type")).is_some_and(|kind| kind != "none") {
        return Err(unsupported(path, "it has a rope scaling; plain models and those of Llama 3 are supported"));
    }
    let allowed = |tensor: &str| {
        let qkv = ["attn_q.bias", "attn_k.bias", "attn_v.bias"].iter().any(|end| tensor.ends_with(end));
        !tensor.ends_with(".bias") || (qkv && architecture == Architecture::Qwen2)
    };
    if let Some(bias) = header.tensors.keys().find(|tensor| !allowed(tensor)) {
        return Err(unsupported(
            path,
            format!("it has '{}', a bias that this architecture has not", bias.escape_default()),
        ));
    }
    let int = |key: &str| header.int(&format!("{name}.{key}"));
    let need =
        |key: &str| int(key).ok_or_else(|| corrupt(path, format!("metadata '{name}.{key}' is missing or no number")));
    let (width, heads) = (need("embedding_length")?, need("attention.head_count")?);
    let vocabulary = header.tensors.get("token_embd.weight").and_then(|entry| entry.shape.first()).copied();
    let config = ModelConfig {
        name: name_of(path),
        architecture,
        vocabulary: vocabulary.ok_or_else(|| corrupt(path, "tensor 'token_embd.weight' is missing"))?,
        hidden_size: width,
        layers: bounded_layers(need("block_count")?)
            .ok_or_else(|| corrupt(path, format!("metadata '{name}.block_count' is out of range")))?,
        heads,
        heads_kv: int("attention.head_count_kv").unwrap_or(heads),
        head_width: int("attention.key_length").or_else(|| width.checked_div(heads)).unwrap_or(0),
        ffn_width: need("feed_forward_length")?,
        context_length: usize::try_from(need("context_length")?).unwrap_or(0),
        rope_base: header.float(&format!("{name}.rope.freq_base")).unwrap_or(10_000.0),
        rope_factors: factors,
        norm_eps: header
            .float(&format!("{name}.attention.layer_norm_rms_epsilon"))
            .ok_or_else(|| corrupt(path, format!("metadata '{name}.attention.layer_norm_rms_epsilon' is missing")))?,
        tied: !header.tensors.contains_key("output.weight"),
    };
    if int("rope.dimension_count").is_some_and(|width| width != config.head_width) {
        return Err(unsupported(
            path,
            "it rotates a part of each head only; models that rotate whole heads are supported",
        ));
    }
    check(config).map_err(|problem| corrupt(path, problem))
}

/// The shape of the model of a Hugging Face folder.
pub(crate) fn of_folder(path: &Path, json: &Json) -> Result<ModelConfig, EngineError> {
    let config_path = path.join("config.json");
    let name = json.get("model_type").and_then(Json::as_str).unwrap_or("none");
    let architecture = Architecture::parse(name)
        .ok_or_else(|| unsupported(path, format!("its model_type is '{name}'; {SUPPORTED}")))?;
    let flag = |key: &str| json.get(key).and_then(Json::as_bool).unwrap_or(false);
    if let Some(key) = ["attention_bias", "mlp_bias", "use_sliding_window"].into_iter().find(|key| flag(key)) {
        return Err(unsupported(path, format!("it sets '{key}'; models without it are supported")));
    }
    let int = |key: &str| json.get(key).and_then(Json::as_i64);
    let need = |key: &str| int(key).ok_or_else(|| corrupt(&config_path, format!("'{key}' is missing or no number")));
    let float = |key: &str| json.get(key).and_then(Json::as_f64);
    let (width, heads) = (need("hidden_size")?, need("num_attention_heads")?);
    let rope = json.get("rope_parameters").or_else(|| json.get("rope_scaling")).filter(|value| !value.is_null());
    let config = ModelConfig {
        name: name_of(path),
        architecture,
        vocabulary: need("vocab_size")?,
        hidden_size: width,
        layers: bounded_layers(need("num_hidden_layers")?)
            .ok_or_else(|| corrupt(&config_path, "'num_hidden_layers' is out of range"))?,
        heads,
        heads_kv: int("num_key_value_heads").unwrap_or(heads),
        head_width: int("head_dim").or_else(|| width.checked_div(heads)).unwrap_or(0),
        ffn_width: need("intermediate_size")?,
        context_length: usize::try_from(need("max_position_embeddings")?).unwrap_or(0),
        rope_base: rope
            .and_then(|rope| rope.get("rope_theta"))
            .and_then(Json::as_f64)
            .or_else(|| float("rope_theta"))
            .unwrap_or(10_000.0),
        rope_factors: Vec::new(),
        norm_eps: float("rms_norm_eps").unwrap_or(1e-6),
        tied: flag("tie_word_embeddings"),
    };
    let mut config = check(config).map_err(|problem| corrupt(path, problem))?;
    if let Some(rope) = rope {
        config.rope_factors = factors_of_folder(path, rope, &config)?;
    }
    check(config).map_err(|problem| corrupt(path, problem))
}

/// The factors of Llama 3's scaling: slow rotations are slowed down further, fast ones are kept, those between
/// are mixed (Hugging Face transformers, modeling_rope_utils.py, `llama3`).
fn factors_of_folder(path: &Path, rope: &Json, config: &ModelConfig) -> Result<Vec<f64>, EngineError> {
    let kind = rope.get("rope_type").or_else(|| rope.get("type")).and_then(Json::as_str).unwrap_or("default");
    match kind {
        "default" => return Ok(Vec::new()),
        "llama3" => {}
        other => {
            let problem =
                format!("its rope scaling is '{}'; 'default' and 'llama3' are supported", other.escape_default());
            return Err(unsupported(path, problem));
        }
    }
    let number = |key: &str| {
        let found = rope.get(key).and_then(Json::as_f64).filter(|value| value.is_finite() && *value > 0.0);
        found.ok_or_else(|| corrupt(path, format!("rope scaling: '{key}' is missing or not positive")))
    };
    let (factor, low, high) = (number("factor")?, number("low_freq_factor")?, number("high_freq_factor")?);
    let original = number("original_max_position_embeddings")?;
    let of_rotation = |rotation: &f64| {
        let turns = original * rotation / std::f64::consts::TAU;
        if turns < low {
            factor
        } else if turns > high {
            1.0
        } else {
            let smooth = (turns - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    Ok(config.rotations().iter().map(of_rotation).collect())
}

/// The name of a file without `.gguf`, or of a folder.
fn name_of(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    name.strip_suffix(".gguf").map_or(name.clone(), str::to_owned)
}

fn bounded_layers(layers: i64) -> Option<usize> {
    if (1..=LAYERS_MAX).contains(&layers) { usize::try_from(layers).ok() } else { None }
}

/// Sizes are positive, bounded and fit together.
fn check(config: ModelConfig) -> Result<ModelConfig, String> {
    let sizes = [
        ("vocabulary", config.vocabulary),
        ("width", config.hidden_size),
        ("heads", config.heads),
        ("key-value heads", config.heads_kv),
        ("head width", config.head_width),
        ("feed-forward width", config.ffn_width),
        ("context", i64::try_from(config.context_length).unwrap_or(0)),
    ];
    if let Some((what, size)) = sizes.into_iter().find(|(_, size)| !(1..=SIZE_MAX).contains(size)) {
        return Err(format!("its {what} is {size}"));
    }
    if config.heads % config.heads_kv != 0 || config.head_width % 2 != 0 || config.heads * config.head_width > SIZE_MAX
    {
        return Err(format!(
            "{} heads of width {} over {} key-value heads do not fit together",
            config.heads, config.head_width, config.heads_kv
        ));
    }
    if !(config.norm_eps.is_finite() && config.norm_eps > 0.0 && config.rope_base.is_finite() && config.rope_base > 1.0)
    {
        return Err(format!("its norm epsilon is {} and its rotary base {}", config.norm_eps, config.rope_base));
    }
    let factors = &config.rope_factors;
    if !(factors.is_empty() || factors.len() as i64 == config.head_width / 2)
        || factors.iter().any(|factor| !(factor.is_finite() && *factor > 0.0))
    {
        return Err("its rotary factors do not fit its heads".to_owned());
    }
    Ok(config)
}
