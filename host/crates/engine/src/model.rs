//! The network on libtorch, differentiable, in reading order: shape, weights, forward.
//! The trainer calls `hidden`; `reef_cpu` serves the same weights in its own forms, and tests compare the
//! two. q and k are in the layout of Hugging Face (rotation by halves), whatever the file has.
//!
//! Legend: `b` rows, `t` positions of a row, `p` of the beginning that rows share and `s` of the rest, `n` = p + b·s,
//! `d` model width, `h` query heads, `g` key-value heads, `c` width of one head, `v` vocabulary.

mod recompute;
mod rope;

use tch::{Device, Kind, Tensor};

pub(crate) use self::recompute::Kept;
use self::rope::{Rope, rope_tables};
use crate::adapter::{LayerLora, Lora, Pair};
use crate::checkpoint::Checkpoint;
use crate::compute::Compute;
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
    compute: Compute,
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
    pub(crate) fn load(checkpoint: &Checkpoint, config: ModelConfig, compute: Compute) -> Result<Self, EngineError> {
        let device = compute.device.ready()?;
        let source = Source { checkpoint, device, kind: compute.precision.kind() };
        let layers = (0..config.layers).map(|index| Layer::load(&source, &config, index)).collect::<Result<_, _>>()?;
        let table = [config.vocabulary, config.hidden_size];
        let head = if config.tied { None } else { Some(Frozen::new(source.matrix("lm_head.weight", &table)?)?) };
        let (rope_cos, rope_sin) = rope_tables(&config)?;
        Ok(Self {
            embedding: Frozen::new(source.matrix("model.embed_tokens.weight", &table)?)?,
            norm: Frozen::new(source.tensor("model.norm.weight", &[config.hidden_size])?)?,
            layers,
            head,
            rope_cos: Frozen::new(rope_cos.f_to_device(device)?)?,
            rope_sin: Frozen::new(rope_sin.f_to_device(device)?)?,
            config,
            compute,
        })
    }

    /// Where it computes.
    pub fn device(&self) -> Device {
        self.embedding.device()
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
            compute: Compute::default(),
        }
    }

    /// The same, computed otherwise.
    #[cfg(test)]
    pub(crate) fn computing(self, compute: Compute) -> Self {
        Self { compute, ..self }
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

    /// How it computes.
    pub(crate) fn compute(&self) -> Compute {
        self.compute
    }

    /// Hidden states after the final norm, `[b, t, d]`, of right-padded `tokens_bt` (int64), see `hidden`.
    pub fn hidden_train(&self, tokens_bt: &Tensor, adapter: Option<&Lora>) -> Result<Tensor, EngineError> {
        let (b, t) = tokens_bt.size2()?;
        let none = Tensor::f_zeros([0], (Kind::Int64, self.device()))?;
        let sequences = Sequences { prefix_p: none, rest_bs: tokens_bt.f_to_device(self.device())? };
        Ok(self.hidden(&sequences, adapter)?.f_view([b, t, self.config.hidden_size])?)
    }

    /// Hidden states after the final norm, `[n, d]`: those of the shared beginning, then those of the rests, row by
    /// row. Causal, without a cache, differentiable through the tensors of `adapter`. What stands on padding is
    /// meaningless.
    pub fn hidden(&self, sequences: &Sequences, adapter: Option<&Lora>) -> Result<Tensor, EngineError> {
        let (spans, rope, mut x_nd) = self.enter(sequences)?;
        for index in 0..self.layers.len() {
            x_nd = self.block(index, (&spans, &rope), &x_nd, adapter)?;
        }
        rms_norm(&x_nd, &self.norm, self.config.norm_eps)
    }

    /// How the positions lie and turn, and what enters the first block, `[n, d]`.
    fn enter(&self, sequences: &Sequences) -> Result<(Spans, Rope, Tensor), EngineError> {
        let spans = sequences.spans()?;
        let max = self.config.context_length;
        if spans.p + spans.s > max as i64 {
            return Err(EngineError::ContextExceeded { prompt: (spans.p + spans.s).unsigned_abs() as usize, max });
        }
        let rope = Rope { cos: spans.of_positions(&self.rope_cos)?, sin: spans.of_positions(&self.rope_sin)? };
        let tokens_n = Tensor::f_cat(&[sequences.prefix_p.shallow_clone(), sequences.rest_bs.f_flatten(0, 1)?], 0)?;
        let x_nd = Tensor::f_embedding(&self.embedding, &tokens_n, -1, false, false)?.f_to_kind(Kind::Float)?;
        Ok((spans, rope, x_nd))
    }

    /// What leaves a block.
    fn block(
        &self,
        index: usize,
        places: (&Spans, &Rope),
        x_nd: &Tensor,
        adapter: Option<&Lora>,
    ) -> Result<Tensor, EngineError> {
        let missing = || EngineError::Adapter(format!("it has no layer {index}"));
        let layer = self.layers.get(index).ok_or_else(missing)?;
        let lora = match adapter {
            Some(adapter) => Some((adapter.layers.get(index).ok_or_else(missing)?, adapter.scale())),
            None => None,
        };
        layer.forward(&self.config, places, x_nd, lora)
    }

    /// Logits `[.., v]` of hidden states `[.., d]`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, EngineError> {
        linear(hidden, self.head.as_deref().unwrap_or(&self.embedding))
    }
}

/// Where weights come from and where they go.
struct Source<'a> {
    checkpoint: &'a Checkpoint,
    device: Device,
    /// Of matrices.
    kind: Kind,
}

impl Source<'_> {
    fn tensor(&self, name: &str, shape: &[i64]) -> Result<Tensor, EngineError> {
        Ok(self.checkpoint.tensor(name, shape)?.f_to_device(self.device)?)
    }

    fn matrix(&self, name: &str, shape: &[i64]) -> Result<Tensor, EngineError> {
        Ok(self.checkpoint.tensor(name, shape)?.f_to_kind(self.kind)?.f_to_device(self.device)?)
    }
}

/// Sequences that begin alike: their beginning once, and the rest of each, right-padded.
#[derive(Debug)]
pub struct Sequences {
    /// Ids, int64 `[p]`; p may be 0.
    pub prefix_p: Tensor,
    /// Ids, int64 `[b, s]`.
    pub rest_bs: Tensor,
}

impl Sequences {
    fn spans(&self) -> Result<Spans, EngineError> {
        let (b, s) = self.rest_bs.size2()?;
        let p = self.prefix_p.size1()?;
        // The rest of a row sees the whole beginning, and of itself what is not after it.
        let sees_sk = match p {
            0 => None,
            p => Some(Tensor::f_ones([s, p + s], (Kind::Bool, self.rest_bs.device()))?.f_tril(p)?),
        };
        Ok(Spans { p, b, s, sees_sk })
    }
}

/// How the positions of a pass lie side by side.
#[derive(Debug)]
struct Spans {
    p: i64,
    b: i64,
    s: i64,
    /// What each position of a rest attends to, bool `[s, p + s]`, where there is a shared beginning.
    sees_sk: Option<Tensor>,
}

impl Spans {
    /// Of a table by position `[positions, c]`, the rows `[n, 1, c]` of every position.
    fn of_positions(&self, table: &Tensor) -> Result<Tensor, EngineError> {
        let rest = table.f_narrow(0, self.p, self.s)?.f_repeat([self.b, 1])?;
        Ok(Tensor::f_cat(&[table.f_narrow(0, 0, self.p)?, rest], 0)?.f_unsqueeze(1)?)
    }

    /// Those of the shared beginning as one row, and those of the rests: `[1, heads, p, c]` and `[b, heads, s, c]`.
    fn cut(&self, x_nhc: &Tensor) -> Result<[Tensor; 2], EngineError> {
        let (_, heads, c) = x_nhc.size3()?;
        let rest = x_nhc.f_narrow(0, self.p, self.b * self.s)?.f_view([self.b, self.s, heads, c])?;
        let prefix = x_nhc.f_narrow(0, 0, self.p)?.f_unsqueeze(0)?;
        Ok([prefix.f_transpose(1, 2)?, rest.f_transpose(1, 2)?])
    }

    /// Keys or values of whole sequences, `[b, g, p + s, c]`.
    fn whole(&self, [prefix_1gpc, rest_bgsc]: &[Tensor; 2]) -> Result<Tensor, EngineError> {
        let (_, g, _, c) = rest_bgsc.size4()?;
        Ok(Tensor::f_cat(&[prefix_1gpc.f_expand([self.b, g, self.p, c], false)?, rest_bgsc.shallow_clone()], 2)?)
    }

    /// softmax(q kᵀ / √c) v over what is not after a position, `[n, h·c]`.
    fn attend(&self, q: &[Tensor; 2], k: &[Tensor; 2], v: &[Tensor; 2]) -> Result<Tensor, EngineError> {
        let mixed = |q: &Tensor, k: &Tensor, v: &Tensor, sees: Option<&Tensor>| {
            let shared_heads = q.size4()?.1 != k.size4()?.1;
            let causal = sees.is_none();
            let mixed = Tensor::f_scaled_dot_product_attention(q, k, v, sees, 0.0, causal, None::<f64>, shared_heads)?;
            Ok::<_, EngineError>(mixed.f_transpose(1, 2)?.f_flatten(2, 3)?.f_flatten(0, 1)?)
        };
        let ([q_prefix, q_rest], [k_prefix, k_rest], [v_prefix, v_rest]) = (q, k, v);
        if self.p == 0 {
            return mixed(q_rest, k_rest, v_rest, None);
        }
        let prefix = mixed(q_prefix, k_prefix, v_prefix, None)?;
        let rest = mixed(q_rest, &self.whole(k)?, &self.whole(v)?, self.sees_sk.as_ref())?;
        Ok(Tensor::f_cat(&[prefix, rest], 0)?)
    }
}

/// x · Wᵀ of a frozen weight, f32 whatever the weight is. In f32 through oneDNN: libtorch's own choice is MKL, which is
/// half as fast on processors of other makers (measured on AMD, one to 512 rows, forward and backward).
fn linear(x: &Tensor, weight: &Tensor) -> Result<Tensor, EngineError> {
    if weight.kind() != Kind::Float {
        return Ok(x.f_to_kind(weight.kind())?.f_linear(weight, None::<&Tensor>)?.f_to_kind(Kind::Float)?);
    }
    if x.device() != Device::Cpu || !tch::utils::has_mkldnn() {
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
    fn load(checkpoint: &Source<'_>, config: &ModelConfig, index: usize) -> Result<Self, EngineError> {
        let [q, k, v, o, gate, up, down] = config.linear_shapes();
        let norm = |name: &str| {
            Frozen::new(checkpoint.tensor(&format!("model.layers.{index}.{name}.weight"), &[config.hidden_size])?)
        };
        let linear = |name: &str, [input, output]: [i64; 2]| {
            checkpoint.matrix(&format!("model.layers.{index}.{name}.weight"), &[output, input])
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

    fn forward(
        &self,
        config: &ModelConfig,
        (spans, rope): (&Spans, &Rope),
        x_nd: &Tensor,
        lora: Option<(&LayerLora, f64)>,
    ) -> Result<Tensor, EngineError> {
        let (h, g, c) = (config.heads, config.heads_kv, config.head_width);
        let (n, _) = x_nd.size2()?;
        let adapted = |x: &Tensor, weight: &Tensor, pairs: &dyn Fn(&LayerLora) -> Vec<&Pair>| {
            let y = linear(x, weight)?;
            let delta = lora.map(|(lora, scale)| lora_delta(x, &pairs(lora), scale)).transpose()?.flatten();
            match delta {
                Some(delta) => Ok(y.f_add(&delta)?),
                None => Ok::<_, EngineError>(y),
            }
        };
        let normed_nd = rms_norm(x_nd, &self.attention_norm, config.norm_eps)?;
        let mut qkv = adapted(&normed_nd, &self.qkv, &|l| vec![&l.q, &l.k, &l.v])?;
        if let Some(bias) = &self.qkv_bias {
            qkv = qkv.f_add(bias)?;
        }
        let mut qk = qkv.f_narrow(-1, 0, (h + g) * c)?.f_view([n, h + g, c])?;
        if let Some([query, key]) = &self.head_norms {
            let queries = rms_norm(&qk.f_narrow(1, 0, h)?, query, config.norm_eps)?;
            qk = Tensor::f_cat(&[queries, rms_norm(&qk.f_narrow(1, h, g)?, key, config.norm_eps)?], 1)?;
        }
        let qk = rope.rotate(&qk, c)?;
        let (q, k) = (spans.cut(&qk.f_narrow(1, 0, h)?)?, spans.cut(&qk.f_narrow(1, h, g)?)?);
        let v = spans.cut(&qkv.f_narrow(-1, (h + g) * c, g * c)?.f_view([n, g, c])?)?;
        let x_nd = x_nd.f_add(&adapted(&spans.attend(&q, &k, &v)?, &self.o, &|l| vec![&l.o])?)?;
        let normed_nd = rms_norm(&x_nd, &self.ffn_norm, config.norm_eps)?;
        let gate_up = adapted(&normed_nd, &self.gate_up, &|l| vec![&l.gate, &l.up])?;
        Ok(x_nd.f_add(&adapted(&gated(&gate_up, config.ffn_width)?, &self.down, &|l| vec![&l.down])?)?)
    }
}
