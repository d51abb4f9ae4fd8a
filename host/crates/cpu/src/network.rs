//! The transformer in reading order: sizes, weights, adapters, and one step over the new tokens of many requests.
//! The engine builds it from a checkpoint and its scheduler calls `step`. Llama, Qwen2 and Qwen3 differ in biases
//! and in norms of queries and keys only, which are optional here; heads rotate by halves (Hugging Face's layout).

use std::ops::Range;
use std::sync::Arc;

use crate::attention::{Heads, Reach, attend};
use crate::kv::{PAGE, Page, Pages, Shape};
use crate::linear::{Fate, Linear};
use crate::lora::{Factors, LowRank, deltas};
use crate::matrix::Matrix;
use crate::memory;
use crate::pool::{Pool, room};
use crate::product::Vectors;

/// Sizes and constants of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    /// Model width.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; divides `heads`.
    pub heads_kv: usize,
    /// Width of one head; even.
    pub head_width: usize,
    /// Width of the feed-forward part.
    pub ffn_width: usize,
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// Radians per position of each pair of a head, `head_width / 2` of them.
    pub rotations: Vec<f64>,
    /// Positions.
    pub context: usize,
}

/// Weights of one block.
#[derive(Debug)]
pub struct Block {
    /// Norm before the attention, `[width]`.
    pub attention_norm: Vec<f32>,
    /// q, k and v: three parts.
    pub qkv: Linear,
    /// Norm of each query head, `[head_width]` (Qwen3).
    pub query_norm: Option<Vec<f32>>,
    /// Norm of each key head.
    pub key_norm: Option<Vec<f32>>,
    /// Output of the attention.
    pub o: Linear,
    /// Norm before the feed-forward part.
    pub ffn_norm: Vec<f32>,
    /// gate and up: two parts.
    pub gate_up: Linear,
    /// Back to the model width.
    pub down: Linear,
}

impl Block {
    fn linears(&self) -> [&Linear; 4] {
        [&self.qkv, &self.o, &self.gate_up, &self.down]
    }
}

/// A network. Immutable: threads share it.
#[derive(Debug)]
pub struct Network {
    config: NetworkConfig,
    /// `[vocabulary, width]`; also the output projection where `head` is absent.
    embedding: Arc<Linear>,
    blocks: Vec<Block>,
    norm: Vec<f32>,
    head: Arc<Linear>,
    /// cos and sin of each position and pair.
    rope: Vec<(f32, f32)>,
}

/// An adapter in the form that serves.
#[derive(Debug)]
pub struct Adapter(Vec<[LowRank; 4]>);

/// Memory and threads of one caller of `Network::step`.
#[derive(Debug)]
pub struct Workspace {
    pool: Pool,
    x: Vec<f32>,
    normed: Vec<f32>,
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    hidden: Vec<f32>,
    low: Vec<f32>,
}

/// New tokens of one request in one step.
#[derive(Debug)]
pub struct Span<'a> {
    /// At least one.
    pub tokens: &'a [u32],
    /// Positions that are in the pages already.
    pub start: usize,
    /// Pages for all positions; those that the new tokens write must be this request's alone.
    pub pages: &'a mut [Arc<Page>],
    /// Deltas of this request.
    pub adapter: Option<&'a Adapter>,
    /// Logits after the last token are wanted.
    pub logits: bool,
}

/// A step that cannot run; a mistake of the caller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// A token outside of the vocabulary.
    #[error("token {0} is outside of the vocabulary")]
    Token(u32),
    /// More positions than the context has, or than there are pages for.
    #[error("position {0} has no place")]
    Position(usize),
    /// A page that is to be written has other holders.
    #[error("a page that is to be written is shared")]
    Shared,
}

impl Workspace {
    /// With `threads` threads, the caller's included.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let empty = Vec::new;
        let pool = Pool::new(threads)?;
        let (x, normed, qkv, mixed) = (empty(), empty(), empty(), empty());
        Ok(Self { pool, x, normed, qkv, mixed, hidden: empty(), low: empty() })
    }
}

impl Adapter {
    /// From the factors of q, k, v, o, gate, up, down of each block, one block at a time. `None` if they do not fit
    /// the network.
    pub fn new<E>(
        network: &Network,
        layers: impl IntoIterator<Item = Result<[Option<Factors>; 7], E>>,
    ) -> Result<Option<Self>, E> {
        let mut served = Vec::with_capacity(network.blocks.len());
        for factors in layers {
            match network.low_ranks(&factors?) {
                Some(layer) => served.push(layer),
                None => return Ok(None),
            }
        }
        if served.len() != network.blocks.len() {
            return Ok(None);
        }
        memory::use_huge_pages(served.iter().flatten().flat_map(LowRank::memory));
        Ok(Some(Self(served)))
    }
}

impl Network {
    /// From its parts; `head` is the output projection where it is not the embedding. `Err` names what does not fit.
    pub fn new(
        config: NetworkConfig,
        embedding: Matrix,
        blocks: Vec<Block>,
        norm: Vec<f32>,
        head: Option<Matrix>,
    ) -> Result<Self, &'static str> {
        check(&config, &blocks)?;
        let linear = |matrix: Matrix| Linear::new(vec![matrix], None).filter(|l| l.columns() == config.width);
        let embedding = Arc::new(linear(embedding).ok_or("the embedding has another width than the model")?);
        let head = match head {
            Some(head) => Arc::new(linear(head).ok_or("the output projection has another width than the model")?),
            None => Arc::clone(&embedding),
        };
        if norm.len() != config.width || head.rows() != embedding.rows() {
            return Err("the last norm or the output projection has another width than the model");
        }
        let angles = (0..config.context).flat_map(|position| config.rotations.iter().map(move |r| position as f64 * r));
        let rope = angles.map(|angle| (angle.cos() as f32, angle.sin() as f32)).collect();
        let network = Self { config, embedding, blocks, norm, head, rope };
        memory::use_huge_pages(network.matrices().flat_map(Matrix::memory));
        Ok(network)
    }

    fn low_ranks(&self, factors: &[Option<Factors>; 7]) -> Option<[LowRank; 4]> {
        let c = &self.config;
        let (queries, keys) = (c.heads * c.head_width, c.heads_kv * c.head_width);
        let [q, k, v, o, gate, up, down] = factors.each_ref().map(Option::as_ref);
        Some([
            LowRank::new(&[q, k, v], c.width, &[queries, keys, keys])?,
            LowRank::new(&[o], queries, &[c.width])?,
            LowRank::new(&[gate, up], c.width, &[c.ffn_width, c.ffn_width])?,
            LowRank::new(&[down], c.ffn_width, &[c.width])?,
        ])
    }

    /// Sizes.
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Tokens of the vocabulary.
    pub fn vocabulary(&self) -> usize {
        self.embedding.rows()
    }

    /// Bytes of the weights that a step of one token reads.
    pub fn bytes(&self) -> usize {
        let blocks = self.blocks.iter().flat_map(Block::linears);
        blocks.chain([&*self.head]).flat_map(Linear::parts).map(Matrix::bytes).sum()
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let blocks = self.blocks.iter().flat_map(Block::linears);
        blocks.chain([&*self.embedding, &*self.head]).flat_map(Linear::parts)
    }

    /// At most `max` pages for this network.
    pub fn pages(&self, max: usize) -> Pages {
        let NetworkConfig { heads_kv, head_width, .. } = self.config;
        Pages::new(Shape { layers: self.blocks.len(), heads_kv, head_width }, max)
    }

    /// Runs the new tokens, writes their keys and values, and the logits `[spans that want them, vocabulary]`.
    pub fn step(&self, work: &mut Workspace, spans: &mut [Span<'_>], logits: &mut Vec<f32>) -> Result<(), StepError> {
        self.check_spans(spans)?;
        let tokens: usize = spans.iter().map(|span| span.tokens.len()).sum();
        let width = self.config.width;
        let mut x = std::mem::take(&mut work.x);
        let ids: Vec<u32> = spans.iter().flat_map(|span| span.tokens).copied().collect();
        let table = &self.embedding.parts()[0];
        work.pool.rows(&mut room(&mut x, tokens * width)[..], width, &|token, row| table.row(ids[token] as usize, row));
        for layer in 0..self.blocks.len() {
            self.block(layer, work, spans, &mut x[..tokens * width])?;
        }
        self.logits(work, spans, &x, logits);
        work.x = x;
        Ok(())
    }

    fn check_spans(&self, spans: &mut [Span<'_>]) -> Result<(), StepError> {
        for span in spans {
            let end = span.start + span.tokens.len();
            if span.tokens.is_empty() || end > self.config.context || end.div_ceil(PAGE) > span.pages.len() {
                return Err(StepError::Position(end));
            }
            if let Some(token) = span.tokens.iter().find(|token| **token as usize >= self.vocabulary()) {
                return Err(StepError::Token(*token));
            }
            let written = &mut span.pages[span.start / PAGE..end.div_ceil(PAGE)];
            if written.iter_mut().any(|page| Arc::get_mut(page).is_none()) {
                return Err(StepError::Shared);
            }
        }
        Ok(())
    }

    fn block(
        &self,
        layer: usize,
        work: &mut Workspace,
        spans: &mut [Span<'_>],
        x: &mut [f32],
    ) -> Result<(), StepError> {
        let NetworkConfig { width, heads, heads_kv, head_width, ffn_width, norm_eps, .. } = self.config;
        let block = &self.blocks[layer];
        let tokens = x.len() / width;
        let adapted = |index: usize| adapted(spans, layer, index);
        let (of_qkv, of_o, of_gate_up, of_down) = (adapted(0), adapted(1), adapted(2), adapted(3));
        let Workspace { pool, normed, qkv, mixed, hidden, low, .. } = work;
        let normed = &mut room(normed, tokens * width)[..];
        let wide = block.qkv.rows();
        let qkv = &mut room(qkv, tokens * wide)[..];

        norm(pool, x, &block.attention_norm, norm_eps, normed);
        let input = Vectors::new(normed, tokens, width, width);
        let added = deltas(pool, &of_qkv, input, low);
        block.qkv.apply(pool, input, &added, (qkv, Fate::Store));
        self.rotate(pool, block, spans, qkv);
        write(spans, layer, qkv, (heads * head_width, heads_kv * head_width))?;
        let reaches = reaches(spans);
        let mixed = &mut room(mixed, tokens * heads * head_width)[..];
        let sizes = Heads { layer, queries: heads, keys: heads_kv, width: head_width };
        attend(pool, sizes, &reaches, (qkv, wide), mixed);
        let input = Vectors::new(mixed, tokens, heads * head_width, heads * head_width);
        let added = deltas(pool, &of_o, input, low);
        block.o.apply(pool, input, &added, (x, Fate::Add));

        norm(pool, x, &block.ffn_norm, norm_eps, normed);
        let input = Vectors::new(normed, tokens, width, width);
        let hidden = &mut room(hidden, tokens * ffn_width)[..];
        let added = deltas(pool, &of_gate_up, input, low);
        block.gate_up.apply(pool, input, &added, (hidden, Fate::Gate));
        let input = Vectors::new(hidden, tokens, ffn_width, ffn_width);
        let added = deltas(pool, &of_down, input, low);
        block.down.apply(pool, input, &added, (x, Fate::Add));
        Ok(())
    }

    /// Norms (Qwen3) and rotates the queries and keys of each token, in place.
    fn rotate(&self, pool: &mut Pool, block: &Block, spans: &[Span<'_>], qkv: &mut [f32]) {
        let NetworkConfig { heads, heads_kv, head_width, norm_eps, .. } = self.config;
        let half = head_width / 2;
        let positions: Vec<usize> = spans.iter().flat_map(|span| span.start..span.start + span.tokens.len()).collect();
        pool.rows(qkv, block.qkv.rows(), &|token, row| {
            let rope = &self.rope[positions[token] * half..][..half];
            for (head, numbers) in row.chunks_exact_mut(head_width).take(heads + heads_kv).enumerate() {
                let weights = if head < heads { &block.query_norm } else { &block.key_norm };
                if let Some(weights) = weights {
                    let factor = inverse_rms(numbers, norm_eps);
                    numbers.iter_mut().zip(weights).for_each(|(number, weight)| *number = *number * factor * weight);
                }
                let (first, second) = numbers.split_at_mut(half);
                for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(rope) {
                    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                }
            }
        });
    }

    fn logits(&self, work: &mut Workspace, spans: &[Span<'_>], x: &[f32], logits: &mut Vec<f32>) {
        let width = self.config.width;
        let mut rows = Vec::new();
        let mut end = 0;
        for span in spans {
            end += span.tokens.len();
            if span.logits {
                rows.extend_from_slice(&x[(end - 1) * width..end * width]);
            }
        }
        let count = rows.len() / width;
        logits.resize(count * self.vocabulary(), 0.0);
        if count == 0 {
            return;
        }
        let normed = &mut room(&mut work.normed, rows.len())[..];
        norm(&mut work.pool, &rows, &self.norm, self.config.norm_eps, normed);
        let input = Vectors::new(normed, count, width, width);
        self.head.apply(&mut work.pool, input, &[], (logits, Fate::Store));
    }
}

/// Do all sizes fit together?
fn check(config: &NetworkConfig, blocks: &[Block]) -> Result<(), &'static str> {
    let NetworkConfig { width, heads, heads_kv, head_width, ffn_width, .. } = *config;
    let (queries, keys) = (heads * head_width, heads_kv * head_width);
    if heads_kv == 0 || !heads.is_multiple_of(heads_kv) || !head_width.is_multiple_of(2) {
        return Err("the heads do not fit together");
    }
    if config.rotations.len() != head_width / 2 {
        return Err("there must be one rotation for each pair of a head");
    }
    let rows = |linear: &Linear| linear.parts().iter().map(Matrix::rows).collect::<Vec<_>>();
    for block in blocks {
        let norms = [&block.attention_norm, &block.ffn_norm].iter().all(|norm| norm.len() == width);
        let heads = [&block.query_norm, &block.key_norm].into_iter().flatten().all(|norm| norm.len() == head_width);
        let outputs = rows(&block.qkv) == [queries, keys, keys]
            && rows(&block.o) == [width]
            && rows(&block.gate_up) == [ffn_width, ffn_width]
            && rows(&block.down) == [width];
        let inputs = [&block.qkv, &block.o, &block.gate_up, &block.down].map(Linear::columns);
        if !(norms && heads && outputs && inputs == [width, queries, width, ffn_width]) {
            return Err("the weights of a block have other sizes than the model");
        }
    }
    Ok(())
}

/// Which tokens of the step have which factors of linear layer `index` of block `layer`.
fn adapted<'a>(spans: &[Span<'a>], layer: usize, index: usize) -> Vec<(Range<usize>, &'a LowRank)> {
    let mut found: Vec<(Range<usize>, &LowRank)> = Vec::new();
    let mut first = 0;
    for span in spans {
        let tokens = first..first + span.tokens.len();
        first = tokens.end;
        let Some(factors) = span.adapter.and_then(|adapter| adapter.0.get(layer)).map(|layer| &layer[index]) else {
            continue;
        };
        match found.last_mut() {
            Some((before, same)) if before.end == tokens.start && std::ptr::eq(*same, factors) => {
                before.end = tokens.end
            }
            _ => found.push((tokens, factors)),
        }
    }
    found
}

/// Writes the keys and values of a layer into the pages.
fn write(spans: &mut [Span<'_>], layer: usize, qkv: &[f32], (queries, keys): (usize, usize)) -> Result<(), StepError> {
    let mut rows = qkv.chunks_exact(queries + 2 * keys);
    for span in spans {
        for (position, row) in (span.start..span.start + span.tokens.len()).zip(&mut rows) {
            let (key, value) = row[queries..].split_at(keys);
            let page = Arc::get_mut(&mut span.pages[position / PAGE]).ok_or(StepError::Shared)?;
            page.write(layer, position % PAGE, key, value);
        }
    }
    Ok(())
}

fn reaches<'a>(spans: &'a [Span<'_>]) -> Vec<Reach<'a>> {
    let mut first = 0;
    let reach = |span: &'a Span<'_>| {
        first += span.tokens.len();
        Reach { first: first - span.tokens.len(), count: span.tokens.len(), start: span.start, pages: span.pages }
    };
    spans.iter().map(reach).collect()
}

/// out ← x / rms(x) · weights, row by row.
fn norm(pool: &mut Pool, x: &[f32], weights: &[f32], eps: f32, out: &mut [f32]) {
    let width = weights.len();
    pool.rows(&mut out[..x.len()], width, &|row, out| {
        let x = &x[row * width..][..width];
        let factor = inverse_rms(x, eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weights) {
            *out = x * factor * weight;
        }
    });
}

/// 1 / √(mean of squares + eps), in eight sums.
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let (eights, rest) = x.as_chunks::<8>();
    let mut sums = [0f32; 8];
    for eight in eights {
        sums.iter_mut().zip(eight).for_each(|(sum, x)| *sum += x * x);
    }
    let total = sums.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>();
    1.0 / (total / x.len() as f32 + eps).sqrt()
}
