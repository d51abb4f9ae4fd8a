//! The network on libtorch, f32, differentiable, in reading order: shape, weights, forward.
//! The trainer calls `hidden_train`; `reef_cpu` serves the same weights in its own forms, and tests compare the
//! two. q and k are in the layout of Hugging Face (rotation by halves), whatever the file has.
//!
//! Legend: `b` rows, `t` positions, `n` tokens of a step over all requests, `d` model width, `h` query heads,
//! `g` key-value heads, `q` query heads per key-value head, `c` width of one head, `l` cached positions, `v` vocabulary.

use tch::{Device, Kind, Tensor};

use crate::adapter::{LayerLora, Lora, Pair};
use crate::checkpoint::Checkpoint;
use crate::error::EngineError;
use crate::frozen::Frozen;

/// A family of networks; they differ in biases and norms only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama, SmolLM2: neither.
    Llama,
    /// Qwen2: q, k and v have biases.
    Qwen2,
    /// Qwen3: each head of q and k is normed.
    Qwen3,
}

impl Architecture {
    /// By the name that model files use.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Llama, Self::Qwen2, Self::Qwen3].into_iter().find(|known| known.name() == name)
    }

    /// The name that model files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }
}

/// Numbers that define the network.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Name of the model, for people.
    pub name: String,
    /// Family.
    pub architecture: Architecture,
    /// Tokens of the vocabulary.
    pub vocabulary: i64,
    /// Model width.
    pub hidden_size: i64,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: i64,
    /// Key-value heads; divides `heads`.
    pub heads_kv: i64,
    /// Width of one head; even.
    pub head_width: i64,
    /// Width of the feed-forward part.
    pub ffn_width: i64,
    /// Positions: what the model was trained for, or less where the operator says so.
    pub context_length: usize,
    /// Base of the rotary frequencies.
    pub rope_base: f64,
    /// Divisors of the frequencies, one per pair of a head; empty: all 1.
    pub rope_factors: Vec<f64>,
    /// Epsilon of the norms.
    pub norm_eps: f64,
    /// The output projection is the embedding.
    pub tied: bool,
}

impl ModelConfig {
    /// `[input, output]` widths of q, k, v, o, gate, up, down.
    pub fn linear_shapes(&self) -> [[i64; 2]; 7] {
        let (queries, keys) = (self.heads * self.head_width, self.heads_kv * self.head_width);
        let (width, ffn) = (self.hidden_size, self.ffn_width);
        [[width, queries], [width, keys], [width, keys], [queries, width], [width, ffn], [width, ffn], [ffn, width]]
    }

    /// Parameters, tied ones once.
    pub fn parameters(&self) -> u64 {
        let linear: i64 = self.linear_shapes().iter().map(|[input, output]| input * output).sum();
        let [[_, queries], [_, keys], ..] = self.linear_shapes();
        let extra = match self.architecture {
            Architecture::Llama => 0,
            Architecture::Qwen2 => queries + 2 * keys,
            Architecture::Qwen3 => 2 * self.head_width,
        };
        let block = linear + 2 * self.hidden_size + extra;
        let tables = if self.tied { 1 } else { 2 };
        (self.vocabulary * self.hidden_size * tables + block * self.layers as i64 + self.hidden_size).unsigned_abs()
    }

    /// Radians per position of each pair of a head.
    pub fn rotations(&self) -> Vec<f64> {
        let factor = |pair: usize| self.rope_factors.get(pair).copied().unwrap_or(1.0);
        let half = self.head_width.unsigned_abs() as usize / 2;
        (0..half).map(|pair| self.rope_base.powf(-(pair as f64) / half as f64) / factor(pair)).collect()
    }
}

/// Weights of one block; projections that read the same input are one matrix.
#[derive(Debug)]
struct Layer {
    attention_norm: Frozen,
    /// `[(h + 2g)·c, d]`: q, then k, then v.
    qkv: Frozen,
    /// `[(h + 2g)·c]` (Qwen2).
    qkv_bias: Option<Frozen>,
    /// `[c]` each: norms of the heads of q and of k (Qwen3).
    head_norms: Option<[Frozen; 2]>,
    /// `[d, h·c]`.
    o: Frozen,
    ffn_norm: Frozen,
    /// `[2·ffn, d]`: gate, then up.
    gate_up: Frozen,
    /// `[d, ffn]`.
    down: Frozen,
}

/// A frozen model, shared by serving and training.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    /// `[v, d]`.
    embedding: Frozen,
    layers: Vec<Layer>,
    norm: Frozen,
    /// `[v, d]`; `None`: the embedding.
    head: Option<Frozen>,
    /// `[context_length, c]`.
    rope_cos: Frozen,
    /// `[context_length, c]`, the first half negated: rotation by halves is then x·cos + roll(x, c/2)·sin.
    rope_sin: Frozen,
}

impl Model {
    /// Reads and fuses the weights; `config` is the checkpoint's, perhaps with fewer positions.
    pub(crate) fn load(checkpoint: &Checkpoint, config: ModelConfig) -> Result<Self, EngineError> {
        let layers =
            (0..config.layers).map(|index| Layer::load(checkpoint, &config, index)).collect::<Result<_, _>>()?;
        let table = [config.vocabulary, config.hidden_size];
        let head = if config.tied { None } else { Some(Frozen::new(checkpoint.tensor("lm_head.weight", &table)?)?) };
        let (rope_cos, rope_sin) = rope_tables(&config)?;
        Ok(Self {
            embedding: Frozen::new(checkpoint.tensor("model.embed_tokens.weight", &table)?)?,
            norm: Frozen::new(checkpoint.tensor("model.norm.weight", &[config.hidden_size])?)?,
            layers,
            head,
            rope_cos: Frozen::new(rope_cos)?,
            rope_sin: Frozen::new(rope_sin)?,
            config,
        })
    }

    /// Random weights of a small shape, for tests of code that needs some model.
    #[cfg(test)]
    pub(crate) fn random(config: ModelConfig, seed: u64) -> Self {
        use rand::{RngExt, SeedableRng, rngs::ChaCha12Rng};
        let mut generator = ChaCha12Rng::seed_from_u64(seed);
        let mut draw = |shape: &[i64]| {
            let count: i64 = shape.iter().product();
            let values: Vec<f32> = (0..count).map(|_| (generator.random::<f32>() - 0.5) * 0.5).collect();
            Frozen::new(Tensor::from_slice(&values).view(shape)).expect("tensor")
        };
        let ones = || Frozen::new(Tensor::ones([config.hidden_size], (Kind::Float, Device::Cpu))).expect("tensor");
        let [[d, queries], [_, keys], _, _, [_, ffn], ..] = config.linear_shapes();
        let mut layer = |_| Layer {
            attention_norm: ones(),
            qkv: draw(&[queries + 2 * keys, d]),
            qkv_bias: None,
            head_norms: None,
            o: draw(&[d, queries]),
            ffn_norm: ones(),
            gate_up: draw(&[2 * ffn, d]),
            down: draw(&[d, ffn]),
        };
        let layers = (0..config.layers).map(&mut layer).collect();
        let (rope_cos, rope_sin) = rope_tables(&config).expect("tables");
        Self {
            embedding: draw(&[config.vocabulary, d]),
            layers,
            norm: ones(),
            head: None,
            rope_cos: Frozen::new(rope_cos).expect("tensor"),
            rope_sin: Frozen::new(rope_sin).expect("tensor"),
            config,
        }
    }

    /// The same with another embedding, which is the head too.
    #[cfg(test)]
    pub(crate) fn with_embedding(self, embedding: Frozen) -> Self {
        Self { embedding, ..self }
    }

    /// The shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Hidden states after the final norm, `[b, t, d]`, of right-padded `tokens_bt` (int64). Causal, without a
    /// cache, differentiable through the tensors of `adapter`. What stands on padding is meaningless.
    pub fn hidden_train(&self, tokens_bt: &Tensor, adapter: Option<&Lora>) -> Result<Tensor, EngineError> {
        let (_, t) = tokens_bt.size2()?;
        let max = self.config.context_length;
        if t > max as i64 {
            return Err(EngineError::ContextExceeded { prompt: t.unsigned_abs() as usize, max });
        }
        let rope = Rope {
            cos: self.rope_cos.f_narrow(0, 0, t)?.f_unsqueeze(1)?,
            sin: self.rope_sin.f_narrow(0, 0, t)?.f_unsqueeze(1)?,
        };
        let scale = adapter.map_or(0.0, Lora::scale);
        let mut x_btd = Tensor::f_embedding(&self.embedding, tokens_bt, -1, false, false)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let lora = match adapter {
                Some(adapter) => Some(
                    adapter
                        .layers
                        .get(index)
                        .ok_or_else(|| EngineError::Adapter(format!("it has no layer {index}")))?,
                ),
                None => None,
            };
            x_btd = layer.forward_train(&self.config, &rope, &x_btd, lora.map(|lora| (lora, scale)))?;
        }
        rms_norm(&x_btd, &self.norm, self.config.norm_eps)
    }

    /// Logits `[.., v]` of hidden states `[.., d]`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, EngineError> {
        linear(hidden, self.head.as_deref().unwrap_or(&self.embedding))
    }
}

/// Rotation factors of some positions, `[positions, 1, c]`: broadcast over heads.
#[derive(Debug)]
pub(crate) struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Rotates `x`, `[.., heads, c]`, whose positions match `cos` and `sin`.
    fn rotate(&self, x: &Tensor, head_width: i64) -> Result<Tensor, EngineError> {
        let turned = x.f_roll([head_width / 2], [-1])?.f_mul(&self.sin)?;
        Ok(turned.f_addcmul(x, &self.cos)?)
    }
}

/// (cos, signed sin), each `[context_length, c]`; angles in f64.
fn rope_tables(config: &ModelConfig) -> Result<(Tensor, Tensor), EngineError> {
    let positions = Tensor::f_arange(config.context_length as i64, (Kind::Double, Device::Cpu))?;
    let angles = positions.f_outer(&Tensor::f_from_slice(&config.rotations())?)?;
    let (cos, sin) = (angles.f_cos()?.f_to_kind(Kind::Float)?, angles.f_sin()?.f_to_kind(Kind::Float)?);
    Ok((Tensor::f_cat(&[&cos, &cos], 1)?, Tensor::f_cat(&[&sin.f_neg()?, &sin], 1)?))
}

/// x · Wᵀ of a frozen weight, through oneDNN: libtorch's own choice for f32 is MKL, which is half as fast on
/// processors of other makers (measured on AMD, one to 512 rows, forward and backward).
fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor, EngineError> {
    if !tch::utils::has_mkldnn() {
        return Ok(x.f_linear(weight, None::<&Tensor>)?);
    }
    Ok(x.f_to_mkldnn(None)?.f_mkldnn_linear(weight, None::<&Tensor>)?.f_to_dense(None, false)?)
}

fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor, EngineError> {
    Ok(x.f_rms_norm(weight.size(), Some(weight), eps)?)
}

/// silu(gate) · up of `[.., 2·ffn]`.
fn gated(gate_up: &Tensor, ffn_width: i64) -> Result<Tensor, EngineError> {
    let gate = gate_up.f_narrow(-1, 0, ffn_width)?.f_silu()?;
    Ok(gate.f_mul(&gate_up.f_narrow(-1, ffn_width, ffn_width)?)?)
}

/// scale · B · A · x for each pair, side by side; none if no layer carries one.
fn lora_delta(x: &Tensor, pairs: &[&Pair], scale: f64) -> Result<Option<Tensor>, EngineError> {
    if pairs.iter().all(|pair| pair.is_none()) {
        return Ok(None);
    }
    let a: Vec<&Tensor> = pairs.iter().map(|pair| &pair.a).collect();
    let low = x.f_linear(&Tensor::f_cat(&a, 0)?, None::<&Tensor>)?.f_mul_scalar(scale)?;
    let (mut deltas, mut start) = (Vec::with_capacity(pairs.len()), 0);
    for pair in pairs {
        let (rank, _) = pair.a.size2()?;
        deltas.push(low.f_narrow(-1, start, rank)?.f_linear(&pair.b, None::<&Tensor>)?);
        start += rank;
    }
    Ok(Some(Tensor::f_cat(&deltas, -1)?))
}

impl Layer {
    fn load(checkpoint: &Checkpoint, config: &ModelConfig, index: usize) -> Result<Self, EngineError> {
        let [q, k, v, o, gate, up, down] = config.linear_shapes();
        let norm = |name: &str| {
            Frozen::new(checkpoint.tensor(&format!("model.layers.{index}.{name}.weight"), &[config.hidden_size])?)
        };
        let linear = |name: &str, [input, output]: [i64; 2]| {
            checkpoint.tensor(&format!("model.layers.{index}.{name}.weight"), &[output, input])
        };
        let fused = |parts: &[Tensor]| Frozen::new(Tensor::f_cat(parts, 0)?);
        let bias = |name: &str, [_, output]: [i64; 2]| {
            checkpoint.tensor(&format!("model.layers.{index}.self_attn.{name}.bias"), &[output])
        };
        let head_norm = |name: &str| {
            let name = format!("model.layers.{index}.self_attn.{name}.weight");
            Frozen::new(checkpoint.tensor(&name, &[config.head_width])?)
        };
        let architecture = config.architecture;
        Ok(Self {
            qkv_bias: match architecture {
                Architecture::Qwen2 => Some(fused(&[bias("q_proj", q)?, bias("k_proj", k)?, bias("v_proj", v)?])?),
                Architecture::Llama | Architecture::Qwen3 => None,
            },
            head_norms: match architecture {
                Architecture::Qwen3 => Some([head_norm("q_norm")?, head_norm("k_norm")?]),
                Architecture::Llama | Architecture::Qwen2 => None,
            },
            attention_norm: norm("input_layernorm")?,
            qkv: fused(&[
                linear("self_attn.q_proj", q)?,
                linear("self_attn.k_proj", k)?,
                linear("self_attn.v_proj", v)?,
            ])?,
            o: Frozen::new(linear("self_attn.o_proj", o)?)?,
            ffn_norm: norm("post_attention_layernorm")?,
            gate_up: fused(&[linear("mlp.gate_proj", gate)?, linear("mlp.up_proj", up)?])?,
            down: Frozen::new(linear("mlp.down_proj", down)?)?,
        })
    }

    fn forward_train(
        &self,
        config: &ModelConfig,
        rope: &Rope,
        x_btd: &Tensor,
        lora: Option<(&LayerLora, f64)>,
    ) -> Result<Tensor, EngineError> {
        let (h, g, c) = (config.heads, config.heads_kv, config.head_width);
        let (b, t, _) = x_btd.size3()?;
        let adapted = |x: &Tensor, weight: &Tensor, pairs: &dyn Fn(&LayerLora) -> Vec<&Pair>| {
            let y = linear(x, weight)?;
            let delta = lora.map(|(lora, scale)| lora_delta(x, &pairs(lora), scale)).transpose()?.flatten();
            match delta {
                Some(delta) => Ok(y.f_add(&delta)?),
                None => Ok::<_, EngineError>(y),
            }
        };
        let normed_btd = rms_norm(x_btd, &self.attention_norm, config.norm_eps)?;
        let mut qkv = adapted(&normed_btd, &self.qkv, &|l| vec![&l.q, &l.k, &l.v])?;
        if let Some(bias) = &self.qkv_bias {
            qkv = qkv.f_add(bias)?;
        }
        let mut qk = qkv.f_narrow(-1, 0, (h + g) * c)?.f_view([b, t, h + g, c])?;
        if let Some([query, key]) = &self.head_norms {
            let queries = rms_norm(&qk.f_narrow(2, 0, h)?, query, config.norm_eps)?;
            qk = Tensor::f_cat(&[queries, rms_norm(&qk.f_narrow(2, h, g)?, key, config.norm_eps)?], 2)?;
        }
        let qk = rope.rotate(&qk, c)?;
        let q_bhtc = qk.f_narrow(2, 0, h)?.f_transpose(1, 2)?;
        let k_bgtc = qk.f_narrow(2, h, g)?.f_transpose(1, 2)?;
        let v_bgtc = qkv.f_narrow(-1, (h + g) * c, g * c)?.f_view([b, t, g, c])?.f_transpose(1, 2)?;
        let mixed = Tensor::f_scaled_dot_product_attention(
            &q_bhtc,
            &k_bgtc,
            &v_bgtc,
            None::<&Tensor>,
            0.0,
            true,
            None,
            h != g,
        )?;
        let mixed_btd = mixed.f_transpose(1, 2)?.f_reshape([b, t, h * c])?;
        let x_btd = x_btd.f_add(&adapted(&mixed_btd, &self.o, &|l| vec![&l.o])?)?;
        let normed_btd = rms_norm(&x_btd, &self.ffn_norm, config.norm_eps)?;
        let gate_up = adapted(&normed_btd, &self.gate_up, &|l| vec![&l.gate, &l.up])?;
        Ok(x_btd.f_add(&adapted(&gated(&gate_up, config.ffn_width)?, &self.down, &|l| vec![&l.down])?)?)
    }
}
