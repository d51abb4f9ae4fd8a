//! A model on disk: a GGUF file or a Hugging Face folder, behind one set of names and one layout.
//! `Model::load` asks for tensors by their Hugging Face names, the tokenizer for its data. Shapes are checked,
//! everything becomes f32, and GGUF's row order of q and k is turned back.

use std::path::{Path, PathBuf};

use memmap2::Mmap;
use reef_core::sha256_hex;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use tch::Tensor;

use crate::error::EngineError;
use crate::frozen::map_file;
use crate::gguf::Header;
use crate::model::ModelConfig;
use crate::quant::{Quant, SUPPORTED};

/// Bounds of every size in a model's shape: generous, and products stay inside i64.
const SIZE_MAX: i64 = 1 << 21;
/// Blocks of a model.
const LAYERS_MAX: i64 = 1024;
/// Weight files of a folder.
const SHARDS_MAX: usize = 256;

/// Where the bytes are.
#[derive(Debug)]
pub(crate) enum Source {
    /// One file.
    Gguf {
        /// Its header.
        header: Box<Header>,
        /// Its bytes.
        file: Mmap,
    },
    /// `config.json` and safetensors files.
    Folder {
        /// The configuration.
        config: Json,
        /// The weight files, by name.
        files: Vec<(PathBuf, Mmap)>,
    },
}

/// A model on disk.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    path: PathBuf,
    config: ModelConfig,
    source: Source,
}

impl Checkpoint {
    /// Opens a `.gguf` file or a folder and reads the shape of the model.
    pub fn open(path: &Path) -> Result<Self, EngineError> {
        let metadata = std::fs::metadata(path).map_err(|source| EngineError::Io { path: path.to_owned(), source })?;
        let (config, source) = if metadata.is_dir() { open_folder(path)? } else { open_gguf(path)? };
        check(&config).map_err(|problem| corrupt(path, problem))?;
        Ok(Self { path: path.to_owned(), config, source })
    }

    /// The shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The bytes.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 of the weights, hex: of the file, or of the hashes of a folder's files in order.
    pub fn sha256(&self) -> String {
        match &self.source {
            Source::Gguf { file, .. } => sha256_hex(file),
            Source::Folder { files, .. } => match files.as_slice() {
                [(_, only)] => sha256_hex(only),
                many => sha256_hex(many.iter().map(|(_, file)| sha256_hex(file)).collect::<String>().as_bytes()),
            },
        }
    }

    /// The tensor with this Hugging Face name, f32, of exactly this shape.
    pub fn tensor(&self, name: &str, shape: &[i64]) -> Result<Tensor, EngineError> {
        match &self.source {
            Source::Gguf { header, file } => self.tensor_gguf(header, file, name, shape),
            Source::Folder { files, .. } => self.tensor_folder(files, name, shape),
        }
    }

    fn tensor_gguf(&self, header: &Header, file: &[u8], name: &str, shape: &[i64]) -> Result<Tensor, EngineError> {
        let gguf_name = gguf_name(name);
        let entry = header
            .tensors
            .get(&gguf_name)
            .ok_or_else(|| corrupt(&self.path, format!("tensor '{gguf_name}' is missing")))?;
        if entry.shape != shape {
            return Err(corrupt(
                &self.path,
                format!("tensor '{gguf_name}' has shape {:?}, the model needs {shape:?}", entry.shape),
            ));
        }
        let bytes = file.get(entry.bytes.clone()).unwrap_or_default();
        let values = entry.quant.decode(bytes).ok_or_else(|| {
            unsupported(
                &self.path,
                format!(
                    "tensor '{gguf_name}' is stored as {:?}; {SUPPORTED} are read, so convert the file to one of these",
                    entry.quant
                ),
            )
        })?;
        let tensor = Tensor::f_from_slice(&values)?.f_view(shape)?;
        let heads = match name {
            _ if name.ends_with("q_proj.weight") => self.config.heads,
            _ if name.ends_with("k_proj.weight") => self.config.heads_kv,
            _ => return Ok(tensor),
        };
        // GGUF interleaves the two halves of each head's rows for its rotation by pairs.
        let (half, width) = (self.config.head_width / 2, self.config.hidden_size);
        Ok(tensor.f_view([heads, half, 2, width])?.f_transpose(1, 2)?.f_reshape(shape)?)
    }

    fn tensor_folder(&self, files: &[(PathBuf, Mmap)], name: &str, shape: &[i64]) -> Result<Tensor, EngineError> {
        for (path, bytes) in files {
            let file = SafeTensors::deserialize(bytes).map_err(|e| corrupt(path, e.to_string()))?;
            let Ok(view) = file.tensor(name) else { continue };
            let found: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
            if found != shape {
                return Err(corrupt(path, format!("tensor '{name}' has shape {found:?}, the model needs {shape:?}")));
            }
            let quant = match view.dtype() {
                Dtype::F32 => Quant::F32,
                Dtype::F16 => Quant::F16,
                Dtype::BF16 => Quant::Bf16,
                other => {
                    return Err(unsupported(
                        path,
                        format!("tensor '{name}' is stored as {other:?}; F32, F16 and BF16 are read"),
                    ));
                }
            };
            return Ok(Tensor::f_from_slice(&quant.decode(view.data()).unwrap_or_default())?.f_view(shape)?);
        }
        Err(corrupt(&self.path, format!("tensor '{name}' is missing")))
    }
}

pub(crate) fn corrupt(path: &Path, problem: impl Into<String>) -> EngineError {
    EngineError::Corrupt { path: path.to_owned(), problem: problem.into() }
}

pub(crate) fn unsupported(path: &Path, problem: impl Into<String>) -> EngineError {
    EngineError::Unsupported { path: path.to_owned(), problem: problem.into() }
}

/// The file of a folder as JSON.
pub(crate) fn read_json(path: &Path) -> Result<Json, EngineError> {
    let text = std::fs::read(path).map_err(|source| EngineError::Io { path: path.to_owned(), source })?;
    serde_json::from_slice(&text).map_err(|e| corrupt(path, e.to_string()))
}

/// The name of a file without `.gguf`, or of a folder.
fn name_of(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    name.strip_suffix(".gguf").map_or(name.clone(), str::to_owned)
}

fn gguf_name(name: &str) -> String {
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    let mut gguf = name.replace("model.layers.", "blk.");
    for (theirs, ours) in [
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ] {
        gguf = gguf.replace(theirs, ours);
    }
    gguf
}

fn open_gguf(path: &Path) -> Result<(ModelConfig, Source), EngineError> {
    let file = map_file(path)?;
    let header = Header::parse(&file).map_err(|problem| corrupt(path, problem))?;
    let architecture = header.text("general.architecture").unwrap_or("none");
    if architecture != "llama" {
        return Err(unsupported(path, format!("its architecture is '{architecture}'; 'llama' is supported")));
    }
    if header.tensors.contains_key("rope_freqs.weight") || header.metadata.contains_key("llama.rope.scaling.type") {
        return Err(unsupported(path, "it scales its rotary frequencies; models without rope scaling are supported"));
    }
    let int = |key: &str| header.int(&format!("llama.{key}"));
    let need =
        |key: &str| int(key).ok_or_else(|| corrupt(path, format!("metadata 'llama.{key}' is missing or no number")));
    let (width, heads) = (need("embedding_length")?, need("attention.head_count")?);
    let vocabulary = header.tensors.get("token_embd.weight").and_then(|entry| entry.shape.first()).copied();
    let config = ModelConfig {
        name: name_of(path),
        vocabulary: vocabulary.ok_or_else(|| corrupt(path, "tensor 'token_embd.weight' is missing"))?,
        hidden_size: width,
        layers: bounded_layers(need("block_count")?)
            .ok_or_else(|| corrupt(path, "metadata 'llama.block_count' is out of range"))?,
        heads,
        heads_kv: int("attention.head_count_kv").unwrap_or(heads),
        head_width: int("attention.key_length").or_else(|| width.checked_div(heads)).unwrap_or(0),
        ffn_width: need("feed_forward_length")?,
        context_length: usize::try_from(need("context_length")?).unwrap_or(0),
        rope_base: header.float("llama.rope.freq_base").unwrap_or(10_000.0),
        norm_eps: header
            .float("llama.attention.layer_norm_rms_epsilon")
            .ok_or_else(|| corrupt(path, "metadata 'llama.attention.layer_norm_rms_epsilon' is missing"))?,
        tied: !header.tensors.contains_key("output.weight"),
    };
    Ok((config, Source::Gguf { header: Box::new(header), file }))
}

fn open_folder(path: &Path) -> Result<(ModelConfig, Source), EngineError> {
    let config_path = path.join("config.json");
    let json = read_json(&config_path)?;
    let model_type = json.get("model_type").and_then(Json::as_str).unwrap_or("none");
    if model_type != "llama" {
        return Err(unsupported(path, format!("its model_type is '{model_type}'; 'llama' is supported")));
    }
    let rope = json.get("rope_parameters").or_else(|| json.get("rope_scaling")).filter(|value| !value.is_null());
    let scaling = rope
        .and_then(|rope| rope.get("rope_type").or_else(|| rope.get("type")))
        .and_then(Json::as_str)
        .unwrap_or("default");
    let flag = |key: &str| json.get(key).and_then(Json::as_bool).unwrap_or(false);
    if scaling != "default" || flag("attention_bias") || flag("mlp_bias") {
        return Err(unsupported(path, "it has rope scaling or biases; plain Llama models are supported"));
    }
    let int = |key: &str| json.get(key).and_then(Json::as_i64);
    let need = |key: &str| int(key).ok_or_else(|| corrupt(&config_path, format!("'{key}' is missing or no number")));
    let float = |key: &str| json.get(key).and_then(Json::as_f64);
    let (width, heads) = (need("hidden_size")?, need("num_attention_heads")?);
    let config = ModelConfig {
        name: name_of(path),
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
        norm_eps: float("rms_norm_eps").unwrap_or(1e-6),
        tied: flag("tie_word_embeddings"),
    };
    Ok((config, Source::Folder { config: json, files: weight_files(path)? }))
}

fn weight_files(folder: &Path) -> Result<Vec<(PathBuf, Mmap)>, EngineError> {
    let failed = |source| EngineError::Io { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") && paths.len() < SHARDS_MAX {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        return Err(corrupt(folder, "it holds no .safetensors file"));
    }
    paths.into_iter().map(|path| map_file(&path).map(|file| (path, file))).collect()
}

fn bounded_layers(layers: i64) -> Option<usize> {
    if (1..=LAYERS_MAX).contains(&layers) { usize::try_from(layers).ok() } else { None }
}

/// Sizes are positive, bounded and fit together.
fn check(config: &ModelConfig) -> Result<(), String> {
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
    Ok(())
}
