//! The Llama architecture on libtorch, f32, in reading order: shape, weights, training forward, serving forward.
//! The scheduler calls `step` for several requests at once, the trainer calls `hidden_train`; both read the
//! same frozen weights. q and k are in the layout of Hugging Face (rotation by halves), whatever the file has.
//!
//! Legend: `b` rows, `t` positions, `n` tokens of a step over all requests, `d` model width, `h` query heads,
//! `g` key-value heads, `q` query heads per key-value head, `c` width of one head, `l` cached positions, `v` vocabulary.

use tch::{Device, Kind, Tensor};

use crate::adapter::{Fused, FusedLayer, LayerLora, Lora, Pair};
use crate::checkpoint::Checkpoint;
use crate::error::EngineError;
use crate::frozen::Frozen;
use crate::kv::KvCache;
use crate::plan::{Plan, Segment};

/// Numbers that define the network.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Name of the model, for people.
    pub name: String,
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

    /// Width of one position of keys (or of values).
    pub(crate) fn kv_width(&self) -> i64 {
        self.heads_kv * self.head_width
    }
}

/// Weights of one block; projections that read the same input are one matrix.
#[derive(Debug)]
struct Layer {
    attention_norm: Frozen,
    /// `[(h + 2g)·c, d]`: q, then k, then v.
    qkv: Frozen,
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
    /// Reads and fuses the weights; positions from `context_max` on are cut off.
    pub(crate) fn load(checkpoint: &Checkpoint, context_max: usize) -> Result<Self, EngineError> {
        let mut config = checkpoint.config().clone();
        config.context_length = config.context_length.min(context_max);
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

    /// The shape.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Parameters, tied ones once.
    pub fn parameters(&self) -> u64 {
        let linear: i64 = self.config.linear_shapes().iter().map(|[input, output]| input * output).sum();
        let block = linear + 2 * self.config.hidden_size;
        let tables = if self.config.tied { 1 } else { 2 };
        (self.config.vocabulary * self.config.hidden_size * tables
            + block * self.config.layers as i64
            + self.config.hidden_size)
            .unsigned_abs()
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

    /// Runs the new tokens of several requests in one forward, writes their keys and values into `cache`, and
    /// returns the logits `[segments, v]` after the last token of each segment.
    ///
    /// The cache must have room (`KvCache::reserve`). One-token segments that come first, on rows 0, 1, 2, …,
    /// share one attention call; the others get one each.
    pub(crate) fn step(&self, segments: &[Segment<'_>], cache: &mut KvCache) -> Result<Tensor, EngineError> {
        let plan = Plan::new(&self.config, segments, cache)?;
        let rope = Rope {
            cos: self.rope_cos.f_index_select(0, &plan.positions)?.f_unsqueeze(1)?,
            sin: self.rope_sin.f_index_select(0, &plan.positions)?.f_unsqueeze(1)?,
        };
        let mut x_nd = Tensor::f_embedding(&self.embedding, &plan.tokens, -1, false, false)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let (keys, values) = cache.layer(index)?;
            x_nd = layer.step(&Step { config: &self.config, plan: &plan, rope: &rope, index }, x_nd, keys, values)?;
        }
        self.logits(&rms_norm(&plan.last_of_each(x_nd)?, &self.norm, self.config.norm_eps)?)
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
    let (width, half) = (config.head_width, config.head_width / 2);
    let positions = Tensor::f_arange(config.context_length as i64, (Kind::Double, Device::Cpu))?;
    let exponents: Vec<f64> = (0..half).map(|i| config.rope_base.powf(-2.0 * i as f64 / width as f64)).collect();
    let angles = positions.f_outer(&Tensor::f_from_slice(&exponents)?)?;
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

/// (alpha / rank) · B · A · x for each pair, side by side.
fn lora_delta(x: &Tensor, pairs: &[&Pair], scale: f64) -> Result<Tensor, EngineError> {
    let rank = pairs.first().map_or(0, |pair| pair.a.size().first().copied().unwrap_or(0));
    let a: Vec<&Tensor> = pairs.iter().map(|pair| &pair.a).collect();
    let low = x.f_linear(&Tensor::f_cat(&a, 0)?, None::<&Tensor>)?.f_mul_scalar(scale)?;
    let mut deltas = Vec::with_capacity(pairs.len());
    for (index, pair) in pairs.iter().enumerate() {
        deltas.push(low.f_narrow(-1, index as i64 * rank, rank)?.f_linear(&pair.b, None::<&Tensor>)?);
    }
    Ok(Tensor::f_cat(&deltas, -1)?)
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
        Ok(Self {
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
            match lora {
                Some((lora, scale)) => Ok(y.f_add(&lora_delta(x, &pairs(lora), scale)?)?),
                None => Ok::<_, EngineError>(y),
            }
        };
        let normed_btd = rms_norm(x_btd, &self.attention_norm, config.norm_eps)?;
        let qkv = adapted(&normed_btd, &self.qkv, &|l| vec![&l.q, &l.k, &l.v])?;
        let qk = rope.rotate(&qkv.f_narrow(-1, 0, (h + g) * c)?.f_view([b, t, h + g, c])?, c)?;
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

    /// One block of a serving step. `keys` and `values`: this layer's cache, `[rows, l, g·c]`.
    fn step(&self, step: &Step<'_>, mut x_nd: Tensor, keys: Tensor, values: Tensor) -> Result<Tensor, EngineError> {
        let Step { config, plan, rope, index } = *step;
        let (h, g, c, n) = (config.heads, config.heads_kv, config.head_width, plan.count);
        let adapted = |x: &Tensor, weight: &Tensor, pick: fn(&FusedLayer) -> &Fused| {
            let mut y = linear(x, weight)?;
            plan.add_deltas(&mut y, x, index, pick)?;
            Ok::<_, EngineError>(y)
        };
        let qkv = adapted(&rms_norm(&x_nd, &self.attention_norm, config.norm_eps)?, &self.qkv, |layer| &layer.qkv)?;
        let qk = rope.rotate(&qkv.f_narrow(1, 0, (h + g) * c)?.f_view([n, h + g, c])?, c)?;
        plan.write(&keys, &qk.f_narrow(1, h, g)?.f_reshape([n, g * c])?)?;
        plan.write(&values, &qkv.f_narrow(1, (h + g) * c, g * c)?)?;
        let mixed_nd = plan.attend(config, &qk.f_narrow(1, 0, h)?, &keys, &values)?;
        let _ = x_nd.f_add_(&adapted(&mixed_nd, &self.o, |layer| &layer.o)?)?;
        let gate_up =
            adapted(&rms_norm(&x_nd, &self.ffn_norm, config.norm_eps)?, &self.gate_up, |layer| &layer.gate_up)?;
        let _ = x_nd.f_add_(&adapted(&gated(&gate_up, config.ffn_width)?, &self.down, |layer| &layer.down)?)?;
        Ok(x_nd)
    }
}

/// What the blocks of one serving step share, and which block it is.
#[derive(Clone, Copy)]
struct Step<'a> {
    config: &'a ModelConfig,
    plan: &'a Plan<'a>,
    rope: &'a Rope,
    index: usize,
}
