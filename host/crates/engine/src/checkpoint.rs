//! A model on disk: a GGUF file or a Hugging Face folder, behind one set of names and one layout.
//! `Model::load` asks for tensors as f32 by their Hugging Face names, `network.rs` for rows as they are stored, the
//! tokenizer for its data. Shapes are checked, and GGUF's row order of q and k is turned back.

use std::path::{Path, PathBuf};

use memmap2::Mmap;
use reef_core::sha256_hex;
use reef_cpu::Rows;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value as Json;
use tch::Tensor;

use crate::architecture;
use crate::error::EngineError;
use crate::frozen::map_file;
use crate::gguf::Header;
use crate::model::{Architecture, ModelConfig};
use crate::quant::{Quant, SUPPORTED};

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
        let (config, source) = if metadata.is_dir() {
            let json = read_json(&path.join("config.json"))?;
            (architecture::of_folder(path, &json)?, Source::Folder { config: json, files: weight_files(path)? })
        } else {
            let file = map_file(path)?;
            let header = Header::parse(&file).map_err(|problem| corrupt(path, problem))?;
            let factors = factors_of_gguf(path, &header, &file)?;
            (architecture::of_gguf(path, &header, factors)?, Source::Gguf { header: Box::new(header), file })
        };
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
        let (quant, bytes) = self.find(name, shape)?;
        let values = quant.decode(bytes).ok_or_else(|| self.unknown_encoding(name, quant))?;
        let tensor = Tensor::f_from_slice(&values)?.f_view(shape)?;
        let Some(heads) = self.interleaved_heads(name) else { return Ok(tensor) };
        let (half, width) = (self.config.head_width / 2, self.config.hidden_size);
        Ok(tensor.f_view([heads, half, 2, width])?.f_transpose(1, 2)?.f_reshape(shape)?)
    }

    /// The same as it is stored, for the kernels that serve.
    pub fn rows(&self, name: &str, shape: &[i64]) -> Result<Rows, EngineError> {
        let (quant, bytes) = self.find(name, shape)?;
        let rows = quant.rows(bytes).ok_or_else(|| self.unknown_encoding(name, quant))?;
        let Some(heads) = self.interleaved_heads(name) else { return Ok(rows) };
        let half = self.config.head_width / 2;
        let order: Vec<usize> = (0..heads)
            .flat_map(|head| (0..2).flat_map(move |part| (0..half).map(move |pair| (head * half + pair) * 2 + part)))
            .map(|row| row.unsigned_abs() as usize)
            .collect();
        Ok(rows.reordered(&order))
    }

    /// Heads of a tensor whose rows GGUF interleaves: the two halves of each head, for a rotation by pairs.
    fn interleaved_heads(&self, name: &str) -> Option<i64> {
        let interleaves = matches!(self.source, Source::Gguf { .. }) && self.config.architecture == Architecture::Llama;
        match name {
            _ if !interleaves => None,
            _ if name.ends_with("q_proj.weight") => Some(self.config.heads),
            _ if name.ends_with("k_proj.weight") => Some(self.config.heads_kv),
            _ => None,
        }
    }

    fn unknown_encoding(&self, name: &str, quant: Quant) -> EngineError {
        let name = match self.source {
            Source::Gguf { .. } => gguf_name(name),
            Source::Folder { .. } => name.to_owned(),
        };
        let problem = format!(
            "tensor '{name}' is stored as {quant:?}; {SUPPORTED} are read, so convert the file to one of these"
        );
        unsupported(&self.path, problem)
    }

    /// Encoding and bytes of a tensor.
    fn find(&self, name: &str, shape: &[i64]) -> Result<(Quant, &[u8]), EngineError> {
        match &self.source {
            Source::Gguf { header, file } => {
                let gguf_name = gguf_name(name);
                let entry = header.tensors.get(&gguf_name);
                let entry = entry.ok_or_else(|| corrupt(&self.path, format!("tensor '{gguf_name}' is missing")))?;
                fits(&entry.shape, shape, &gguf_name).map_err(|problem| corrupt(&self.path, problem))?;
                Ok((entry.quant, file.get(entry.bytes.clone()).unwrap_or_default()))
            }
            Source::Folder { files, .. } => {
                for (path, bytes) in files {
                    let file = SafeTensors::deserialize(bytes).map_err(|e| corrupt(path, e.to_string()))?;
                    let Ok(view) = file.tensor(name) else { continue };
                    let found: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
                    fits(&found, shape, name).map_err(|problem| corrupt(path, problem))?;
                    let quant = match view.dtype() {
                        Dtype::F32 => Quant::F32,
                        Dtype::F16 => Quant::F16,
                        Dtype::BF16 => Quant::Bf16,
                        other => {
                            let problem = format!("tensor '{name}' is stored as {other:?}; F32, F16 and BF16 are read");
                            return Err(unsupported(path, problem));
                        }
                    };
                    return Ok((quant, view.data()));
                }
                Err(corrupt(&self.path, format!("tensor '{name}' is missing")))
            }
        }
    }
}

fn fits(found: &[i64], wanted: &[i64], name: &str) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    Err(format!("tensor '{name}' has shape {found:?}, the model needs {wanted:?}"))
}

/// Factors of the rotations, where a GGUF file has them.
fn factors_of_gguf(path: &Path, header: &Header, file: &[u8]) -> Result<Vec<f64>, EngineError> {
    let Some(entry) = header.tensors.get("rope_freqs.weight") else { return Ok(Vec::new()) };
    let values = entry.quant.decode(file.get(entry.bytes.clone()).unwrap_or_default());
    let values = values.ok_or_else(|| unsupported(path, "tensor 'rope_freqs.weight' has an unknown encoding"))?;
    Ok(values.into_iter().map(f64::from).collect())
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
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
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
