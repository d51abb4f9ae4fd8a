//! A checkpoint becomes the network that serves: weights as the file has them, or in fewer bits.
//! `Engine::load` calls it once; `reef_cpu` runs it. The weights that train are the values of the same file.

use reef_cpu::{Block, Linear, Matrix, Network, NetworkConfig, Rows};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{Checkpoint, corrupt};
use crate::error::EngineError;
use crate::model::{Architecture, ModelConfig};

/// Columns of a group of weights that share a scale.
const GROUP: i64 = 32;

/// What the served copy of the base model is stored in. Adapters are f32 beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServedWeights {
    /// As the file has them.
    #[default]
    File,
    /// 8 bits a weight, symmetric, a scale per 32.
    Int8,
    /// 4 bits a weight, a scale and an offset per 32.
    Int4,
}

impl ServedWeights {
    fn of(self, rows: Rows, columns: i64) -> Rows {
        // Weights that have few bits already stay what they are.
        let bits = match (self, &rows) {
            (Self::File, _) | (_, Rows::Groups(_)) => return rows,
            (Self::Int8, _) => 8,
            (Self::Int4, _) => 4,
        };
        if columns % GROUP == 0 { rows.quantised(bits) } else { rows }
    }
}

/// Reads and packs the weights; positions are those of `config`.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    weights: ServedWeights,
) -> Result<Network, EngineError> {
    let read = Reader { checkpoint, config, weights };
    let table = [config.hidden_size, config.vocabulary];
    let head = if config.tied { None } else { Some(read.matrix("lm_head", table)?) };
    let blocks = (0..config.layers).map(|index| read.block(index)).collect::<Result<_, _>>()?;
    let size = |number: i64| usize::try_from(number).unwrap_or(0);
    let sizes = NetworkConfig {
        width: size(config.hidden_size),
        heads: size(config.heads),
        heads_kv: size(config.heads_kv),
        head_width: size(config.head_width),
        ffn_width: size(config.ffn_width),
        norm_eps: config.norm_eps as f32,
        rotations: config.rotations(),
        context: config.context_length,
    };
    let norm = read.vector("model.norm.weight", config.hidden_size)?;
    Network::new(sizes, read.matrix("model.embed_tokens", table)?, blocks, norm, head)
        .map_err(|problem| corrupt(checkpoint.path(), problem))
}

struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    weights: ServedWeights,
}

impl Reader<'_> {
    fn block(&self, index: usize) -> Result<Block, EngineError> {
        let ModelConfig { architecture, hidden_size, head_width, .. } = *self.config;
        let [q, k, v, o, gate, up, down] = self.config.linear_shapes();
        let name = |name: &str| format!("model.layers.{index}.{name}");
        let attention = |part: &str| name(&format!("self_attn.{part}_proj"));
        let qkv = [("q", q), ("k", k), ("v", v)];
        let mut bias = None;
        if architecture == Architecture::Qwen2 {
            let parts = qkv.map(|(part, [_, rows])| self.vector(&format!("{}.bias", attention(part)), rows));
            let [q, k, v] = parts;
            bias = Some([q?, k?, v?].concat());
        }
        let head_norm = |part: &str| match architecture {
            Architecture::Qwen3 => self.vector(&name(&format!("self_attn.{part}_norm.weight")), head_width).map(Some),
            Architecture::Llama | Architecture::Qwen2 => Ok(None),
        };
        let ffn = |part: &str| name(&format!("mlp.{part}_proj"));
        Ok(Block {
            attention_norm: self.vector(&name("input_layernorm.weight"), hidden_size)?,
            qkv: self.linear(&qkv.map(|(part, shape)| (attention(part), shape)), bias)?,
            query_norm: head_norm("q")?,
            key_norm: head_norm("k")?,
            o: self.linear(&[(attention("o"), o)], None)?,
            ffn_norm: self.vector(&name("post_attention_layernorm.weight"), hidden_size)?,
            gate_up: self.linear(&[(ffn("gate"), gate), (ffn("up"), up)], None)?,
            down: self.linear(&[(ffn("down"), down)], None)?,
        })
    }

    /// Projections of the same input, with their `[input, output]` widths.
    fn linear(&self, parts: &[(String, [i64; 2])], bias: Option<Vec<f32>>) -> Result<Linear, EngineError> {
        let parts = parts.iter().map(|(name, shape)| self.matrix(name, *shape)).collect::<Result<_, _>>()?;
        Linear::new(parts, bias).ok_or_else(|| self.misfit("linear layers of one input"))
    }

    fn matrix(&self, name: &str, [input, output]: [i64; 2]) -> Result<Matrix, EngineError> {
        let rows = self.weights.of(self.checkpoint.rows(&format!("{name}.weight"), &[output, input])?, input);
        let size = |number: i64| usize::try_from(number).unwrap_or(0);
        Matrix::pack(&rows, size(output), size(input)).ok_or_else(|| self.misfit(name))
    }

    fn vector(&self, name: &str, length: i64) -> Result<Vec<f32>, EngineError> {
        Ok(self.checkpoint.rows(name, &[length])?.values())
    }

    fn misfit(&self, what: &str) -> EngineError {
        corrupt(self.checkpoint.path(), format!("the numbers of {what} do not fit their shape"))
    }
}
