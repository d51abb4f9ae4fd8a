//! Adapter files in the format of `peft`: adapter_config.json and adapter_model.safetensors.
//! The trainer writes them into a candidate, the engine reads them from a release. What is read is bounded,
//! finite and of exactly the model's shapes, or it is refused.

use std::collections::{HashMap, HashSet};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use crate::adapter::{Lora, PAIRS, Pair, PlainLayer, PlainPair, scale};
use crate::error::EngineError;
use crate::lora_config::RANK_MAX;
use crate::model::ModelConfig;
use crate::quant::Quant;

/// File with the hyperparameters.
pub const CONFIG_FILE: &str = "adapter_config.json";
/// File with the matrices.
pub const WEIGHTS_FILE: &str = "adapter_model.safetensors";

/// Modules of one block, in the order of `LayerLora::pairs`.
pub const MODULES: [&str; PAIRS] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
/// Bytes of a configuration.
const CONFIG_BYTES_MAX: usize = 65_536;

/// The fields of adapter_config.json that matter here; others are ignored.
#[derive(Debug, Serialize, Deserialize)]
struct PeftConfig {
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    #[serde(default)]
    bias: Option<String>,
    lora_alpha: f64,
    peft_type: String,
    r: i64,
    #[serde(default)]
    target_modules: TargetModules,
    #[serde(default)]
    task_type: Option<String>,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    use_rslora: bool,
    /// Other scales and ranks of single modules: read so that they are refused.
    #[serde(default, skip_serializing)]
    alpha_pattern: serde_json::Map<String, serde_json::Value>,
    #[serde(default, skip_serializing)]
    rank_pattern: serde_json::Map<String, serde_json::Value>,
    #[serde(default, skip_serializing)]
    fan_in_fan_out: bool,
}

impl PeftConfig {
    /// Rank, alpha, and whether the root of the rank divides.
    fn scaling(&self) -> (i64, f64, bool) {
        (self.r, self.lora_alpha, self.use_rslora)
    }
}

/// Which layers carry a pair: their names, or a pattern, which the tensors answer for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum TargetModules {
    Names(Vec<String>),
    Pattern(String),
}

impl Default for TargetModules {
    fn default() -> Self {
        Self::Pattern(String::new())
    }
}

impl TargetModules {
    /// May this module carry a pair?
    fn allow(&self, module: &str) -> bool {
        match self {
            Self::Names(names) => names.iter().any(|name| module == name || module.ends_with(&format!(".{name}"))),
            Self::Pattern(_) => true,
        }
    }
}

fn refused(problem: impl Into<String>) -> EngineError {
    EngineError::Adapter(problem.into())
}

fn tensor_name(layer: usize, module: &str, factor: &str) -> String {
    format!("base_model.model.model.layers.{layer}.{module}.lora_{factor}.weight")
}

impl Lora {
    /// The adapter as files: name and bytes. Equal adapters give equal bytes.
    pub fn to_files(&self) -> Result<Vec<(String, Vec<u8>)>, EngineError> {
        let config = PeftConfig {
            base_model_name_or_path: Some(self.base_model.clone()),
            bias: Some("none".to_owned()),
            lora_alpha: self.alpha,
            peft_type: "LORA".to_owned(),
            r: self.rank,
            target_modules: TargetModules::Names(self.target_modules()),
            task_type: Some("CAUSAL_LM".to_owned()),
            use_dora: false,
            use_rslora: self.rslora,
            alpha_pattern: serde_json::Map::new(),
            rank_pattern: serde_json::Map::new(),
            fan_in_fan_out: false,
        };
        let config = serde_json::to_vec_pretty(&config).map_err(|e| refused(e.to_string()))?;
        let mut matrices = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            for (module, pair) in MODULES.iter().zip(layer.pairs()).filter(|(_, pair)| !pair.is_none()) {
                for (factor, tensor) in [("A", &pair.a), ("B", &pair.b)] {
                    let (rows, columns) = tensor.size2()?;
                    let mut bytes = vec![0u8; tensor.numel() * size_of::<f32>()];
                    tensor
                        .f_detach()?
                        .f_to_device(Device::Cpu)?
                        .f_contiguous()?
                        .f_copy_data_u8(&mut bytes, tensor.numel())?;
                    matrices.push((
                        tensor_name(index, module, factor),
                        [rows, columns].map(|size| size.unsigned_abs() as usize),
                        bytes,
                    ));
                }
            }
        }
        let mut views = Vec::with_capacity(matrices.len());
        for (name, shape, bytes) in &matrices {
            views.push((name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).map_err(|e| refused(e.to_string()))?));
        }
        let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let weights = safetensors::serialize(views, Some(metadata)).map_err(|e| refused(e.to_string()))?;
        Ok(vec![(CONFIG_FILE.to_owned(), config), (WEIGHTS_FILE.to_owned(), weights)])
    }

    /// Names of the layers that carry a pair.
    fn target_modules(&self) -> Vec<String> {
        let carried = self.layers.first().map(|layer| layer.pairs().map(|pair| !pair.is_none())).unwrap_or_default();
        let names = MODULES.iter().zip(carried).filter(|(_, carried)| *carried);
        names.filter_map(|(module, _)| module.rsplit('.').next()).map(str::to_owned).collect()
    }

    /// Reads an adapter for this model; files with other names are ignored.
    pub fn from_files(model: &ModelConfig, files: &[(String, Vec<u8>)]) -> Result<Self, EngineError> {
        let read = PeftFiles::open(model, files)?;
        Self::build(read.config.scaling(), model, |layer, pair, [input, output]| {
            let PlainPair { rank, a, b } = read.pair(layer, pair, [input, output])?;
            if rank == 0 {
                return Pair::none([input, output]);
            }
            let matrix = |values: &[f32], shape: [i64; 2]| Tensor::f_from_slice(values)?.f_view(shape);
            Ok(Pair { a: matrix(&a, [rank as i64, input])?, b: matrix(&b, [output, rank as i64])? })
        })
    }
}

/// An adapter's files for a model, read pair by pair.
pub(crate) struct PeftFiles<'a> {
    model: &'a ModelConfig,
    config: PeftConfig,
    weights: SafeTensors<'a>,
}

impl<'a> PeftFiles<'a> {
    /// Checks what can be checked before a matrix is read.
    pub fn open(model: &'a ModelConfig, files: &'a [(String, Vec<u8>)]) -> Result<Self, EngineError> {
        let file = |name: &str| {
            let found = files.iter().find(|(known, _)| known == name);
            found.map(|(_, bytes)| bytes.as_slice()).ok_or_else(|| refused(format!("file {name} is missing")))
        };
        let config = read_config(file(CONFIG_FILE)?)?;
        let weights =
            SafeTensors::deserialize(file(WEIGHTS_FILE)?).map_err(|e| refused(format!("{WEIGHTS_FILE}: {e}")))?;
        let read = Self { model, config, weights };
        read.check_names()?;
        Ok(read)
    }

    /// Every tensor is a factor of a layer that this model has, and a layer that has one has it in all blocks.
    fn check_names(&self) -> Result<(), EngineError> {
        let blocks = self.model.layers;
        let names: HashSet<&str> = self.weights.names().into_iter().collect();
        let wanted: HashSet<String> = MODULES
            .iter()
            .filter(|module| self.config.target_modules.allow(module))
            .filter(|module| (0..blocks).any(|block| names.contains(tensor_name(block, module, "A").as_str())))
            .flat_map(|module| (0..blocks).flat_map(move |block| ["A", "B"].map(|f| tensor_name(block, module, f))))
            .collect();
        if let Some(name) = wanted.iter().find(|name| !names.contains(name.as_str())) {
            return Err(refused(format!(
                "{WEIGHTS_FILE}: tensor {name} is missing; a layer that carries a pair does so in all {blocks} blocks"
            )));
        }
        match names.into_iter().find(|name| !wanted.contains(*name)) {
            None if wanted.is_empty() => Err(refused(format!("{WEIGHTS_FILE} holds no tensors"))),
            None => Ok(()),
            Some(name) => {
                let name: String = name.escape_debug().take(128).collect();
                Err(refused(format!(
                    "{WEIGHTS_FILE}: tensor {name} is no factor of this model's {blocks} blocks, or its layer is none of target_modules"
                )))
            }
        }
    }

    /// What B · A is multiplied with.
    pub fn scale(&self) -> f32 {
        scale(self.config.scaling()) as f32
    }

    /// The pairs of each block.
    pub fn layers(&self) -> impl Iterator<Item = Result<PlainLayer, EngineError>> + '_ {
        let shapes = self.model.linear_shapes();
        (0..self.model.layers).map(move |layer| {
            let mut index = 0;
            let [q, k, v, o, gate, up, down] = shapes.map(|shape| {
                index += 1;
                self.pair(layer, index - 1, shape)
            });
            Ok([q?, k?, v?, o?, gate?, up?, down?])
        })
    }

    /// Frobenius norm of each pair's delta, scale · B · A, without computing it: ‖BA‖² = ⟨BᵀB, AAᵀ⟩.
    pub fn norms(&self) -> Result<Vec<[f64; PAIRS]>, EngineError> {
        let scale = f64::from(self.scale());
        let norm = |PlainPair { rank, a, b }: &PlainPair| {
            let input = a.len() / rank.max(&1);
            let mut squared = 0.0;
            for i in 0..*rank {
                for j in 0..*rank {
                    let (first, second) = (&a[i * input..][..input], &a[j * input..][..input]);
                    let rows = b.chunks_exact(*rank);
                    squared += dot(first.iter().zip(second)) * dot(rows.map(|row| (&row[i], &row[j])));
                }
            }
            scale * squared.max(0.0).sqrt()
        };
        self.layers().map(|layer| Ok(layer?.each_ref().map(norm))).collect()
    }

    fn pair(&self, layer: usize, pair: usize, [input, output]: [i64; 2]) -> Result<PlainPair, EngineError> {
        let module = MODULES.get(pair).copied().unwrap_or_default();
        let read = |factor, shape| read_matrix(&self.weights, &tensor_name(layer, module, factor), shape);
        if self.weights.tensor(&tensor_name(layer, module, "A")).is_err() {
            return Ok(PlainPair { rank: 0, a: Vec::new(), b: Vec::new() });
        }
        let rank = self.config.r;
        Ok(PlainPair {
            rank: usize::try_from(rank).unwrap_or(0),
            a: read("A", [rank, input])?,
            b: read("B", [output, rank])?,
        })
    }
}

fn dot<'a>(pairs: impl Iterator<Item = (&'a f32, &'a f32)>) -> f64 {
    pairs.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

fn read_config(bytes: &[u8]) -> Result<PeftConfig, EngineError> {
    if bytes.len() > CONFIG_BYTES_MAX {
        return Err(refused(format!("{CONFIG_FILE} has {} bytes; at most {CONFIG_BYTES_MAX}", bytes.len())));
    }
    let config: PeftConfig = serde_json::from_slice(bytes).map_err(|e| refused(format!("{CONFIG_FILE}: {e}")))?;
    if config.peft_type != "LORA"
        || config.use_dora
        || config.fan_in_fan_out
        || !config.alpha_pattern.is_empty()
        || !config.rank_pattern.is_empty()
        || config.bias.as_deref().is_some_and(|bias| bias != "none")
    {
        return Err(refused(format!(
            "{CONFIG_FILE}: plain or rank-stabilised LoRA without biases, of one rank and alpha, is supported"
        )));
    }
    if !(1..=RANK_MAX).contains(&config.r) || !config.lora_alpha.is_finite() || config.lora_alpha <= 0.0 {
        return Err(refused(format!(
            "{CONFIG_FILE}: rank {} and alpha {} are out of range",
            config.r, config.lora_alpha
        )));
    }
    Ok(config)
}

fn read_matrix(weights: &SafeTensors<'_>, name: &str, shape: [i64; 2]) -> Result<Vec<f32>, EngineError> {
    let view = weights.tensor(name).map_err(|_| refused(format!("tensor {name} is missing")))?;
    let found: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
    if found != shape {
        return Err(refused(format!("tensor {name} has shape {found:?}, this model needs {shape:?}")));
    }
    let quant = match view.dtype() {
        Dtype::F32 => Quant::F32,
        Dtype::F16 => Quant::F16,
        Dtype::BF16 => Quant::Bf16,
        other => return Err(refused(format!("tensor {name} is stored as {other:?}; F32, F16 and BF16 are read"))),
    };
    let values = quant.decode(view.data()).unwrap_or_default();
    if values.iter().any(|value| !value.is_finite()) {
        return Err(refused(format!("tensor {name} holds a value that is not finite")));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lora_config::{LoraConfig, Targets};

    fn model() -> ModelConfig {
        ModelConfig {
            name: "tiny".to_owned(),
            vocabulary: 32,
            hidden_size: 8,
            layers: 2,
            heads: 2,
            heads_kv: 1,
            head_width: 4,
            ffn_width: 16,
            context_length: 32,
            rope_base: 10_000.0,
            rope_factors: Vec::new(),
            architecture: crate::model::Architecture::Llama,
            norm_eps: 1e-5,
            tied: true,
        }
    }

    fn files() -> Vec<(String, Vec<u8>)> {
        let lora =
            Lora::init(&model(), &LoraConfig { rank: 2, alpha: 4.0, seed: 7, ..LoraConfig::default() }).expect("init");
        lora.to_files().expect("files")
    }

    #[test]
    fn files_round_trip_bit_for_bit() {
        let again = Lora::from_files(&model(), &files()).expect("read").to_files().expect("files");
        assert_eq!(again, files());
    }

    #[test]
    fn layers_without_a_pair_stay_without_one_and_the_root_of_the_rank_is_kept() {
        let targets = Targets::of(["v_proj", "q_proj"]).expect("known");
        let config = LoraConfig { rank: 4, alpha: 8.0, rslora: true, targets, seed: 7 };
        let files = Lora::init(&model(), &config).expect("init").to_files().expect("files");
        let read = Lora::from_files(&model(), &files).expect("read");
        assert_eq!((read.parameters().len(), read.scale(), read.target_modules().len()), (2 * 2 * 2, 4.0, 2));
        assert_eq!(read.to_files().expect("files"), files);
        let with = |fields: serde_json::Value| {
            let mut config: serde_json::Value = serde_json::from_slice(&files[0].1).expect("JSON");
            let fields = fields.as_object().expect("fields").clone();
            config.as_object_mut().expect("fields").extend(fields);
            let config = (CONFIG_FILE.to_owned(), serde_json::to_vec(&config).expect("bytes"));
            Lora::from_files(&model(), &[config, files[1].clone()])
        };
        assert!(with(serde_json::json!({ "target_modules": ".*(q|v)_proj" })).is_ok());
        assert!(
            with(serde_json::json!({ "target_modules": ["q_proj"] })).is_err_and(|p| p.to_string().contains("v_proj"))
        );
        assert!(with(serde_json::json!({ "lora_alpha": 0 })).is_err());
        let half = half_of_a_pair(&files[1].1);
        let problem = Lora::from_files(&model(), &[files[0].clone(), (WEIGHTS_FILE.to_owned(), half)]);
        assert!(problem.is_err_and(|problem| problem.to_string().contains("missing")));
    }

    /// The same tensors without one of their second factors.
    fn half_of_a_pair(bytes: &[u8]) -> Vec<u8> {
        let tensors = SafeTensors::deserialize(bytes).expect("safetensors");
        let gone = tensor_name(0, MODULES[0], "B");
        let left = tensors.tensors().into_iter().filter(|(name, _)| *name != gone);
        safetensors::serialize(left, None).expect("bytes")
    }

    #[test]
    fn another_model_is_refused_by_shape() {
        let other = ModelConfig { ffn_width: 12, ..model() };
        let problem = Lora::from_files(&other, &files()).expect_err("shape").to_string();
        assert!(problem.contains("gate_proj") && problem.contains("shape"), "{problem}");
        let other = ModelConfig { layers: 3, ..model() };
        assert!(Lora::from_files(&other, &files()).is_err());
    }

    #[test]
    fn damaged_files_are_refused() {
        for (index, (name, bytes)) in files().into_iter().enumerate() {
            for length in [0, 1, bytes.len() / 2, bytes.len() - 1] {
                let mut damaged = files();
                damaged[index].1.truncate(length);
                assert!(Lora::from_files(&model(), &damaged).is_err(), "{name} cut to {length}");
            }
            assert!(Lora::from_files(&model(), &files()[index..=index]).is_err());
        }
    }

    #[test]
    fn norms_are_those_of_the_products() {
        let mut lora =
            Lora::init(&model(), &LoraConfig { rank: 2, alpha: 4.0, seed: 7, ..LoraConfig::default() }).expect("init");
        for (index, layer) in lora.layers.iter_mut().enumerate() {
            layer.down.b = layer.down.b.full_like(0.5 + index as f64);
        }
        let (files, config) = (lora.to_files().expect("files"), model());
        let norms = PeftFiles::open(&config, &files).expect("read").norms().expect("norms");
        for (layer, norms) in lora.layers.iter().zip(norms) {
            for (pair, norm) in layer.pairs().into_iter().zip(norms) {
                let wanted = (pair.b.matmul(&pair.a) * lora.scale()).norm().double_value(&[]);
                assert!((norm - wanted).abs() < 1e-5 * (1.0 + wanted), "{norm} {wanted}");
            }
        }
    }

    #[test]
    fn values_that_are_not_finite_are_refused() {
        let mut damaged = files();
        let weights = &mut damaged[1].1;
        let end = weights.len();
        weights[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(Lora::from_files(&model(), &damaged).expect_err("NaN").to_string().contains("finite"));
    }
}
