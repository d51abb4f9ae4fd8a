//! One serving step, prepared once and used by every layer: which token goes where.
//! `Model::step` makes a plan from its segments. A plan knows positions, cache slots, masks and which adapter
//! changes which tokens; it computes attention over the cache and adds the adapters' deltas.
//!
//! Legend: as in `model.rs`.

use std::sync::Arc;

use tch::Tensor;

use crate::adapter::{Adapter, Fused, FusedLayer};
use crate::error::EngineError;
use crate::kv::KvCache;
use crate::model::ModelConfig;

/// New tokens of one request in one step.
#[derive(Debug)]
pub(crate) struct Segment<'a> {
    /// Its row of the cache.
    pub row: usize,
    /// Positions already cached.
    pub start: usize,
    /// At least one.
    pub tokens: &'a [u32],
    /// Its adapter.
    pub adapter: Option<&'a Arc<Adapter>>,
}

/// A segment with its own attention call.
#[derive(Debug)]
struct Alone {
    row: i64,
    offset: i64,
    count: i64,
    start: i64,
    /// `[count, start + count]`; `None`: plain causal.
    mask: Option<Tensor>,
}

/// Tokens that one adapter changes.
#[derive(Debug)]
struct Group<'a> {
    adapter: &'a Arc<Adapter>,
    /// Their indices; `None`: all tokens.
    picked: Option<Tensor>,
}

/// A step. See the module.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Tokens n.
    pub count: i64,
    /// `[n]`, int64.
    pub tokens: Tensor,
    /// `[n]`, int64.
    pub positions: Tensor,
    /// `[n]`: index of each token into the flattened `[rows · l]` of the cache.
    slots: Tensor,
    /// The first segments, which share one attention call.
    together: i64,
    /// Longest of them, their new token included.
    longest: i64,
    /// `[together, 1, 1, longest]`; `None`: all are equally long.
    mask: Option<Tensor>,
    alone: Vec<Alone>,
    groups: Vec<Group<'a>>,
    /// Index of the last token of each segment; `None`: every token is one.
    last: Option<Tensor>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(config: &ModelConfig, segments: &[Segment<'a>], cache: &KvCache) -> Result<Self, EngineError> {
        let together =
            segments.iter().enumerate().take_while(|(index, s)| s.row == *index && s.tokens.len() == 1).count();
        let (mut tokens, mut positions, mut slots, mut last) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut alone = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let end = segment.start + segment.tokens.len();
            if segment.tokens.is_empty() || end > cache.length() || end > config.context_length {
                return Err(EngineError::ContextExceeded {
                    prompt: end,
                    max: cache.length().min(config.context_length),
                });
            }
            if index >= together {
                alone.push(Alone::new(segment, tokens.len())?);
            }
            tokens.extend(segment.tokens.iter().map(|id| i64::from(*id)));
            positions.extend(segment.start as i64..end as i64);
            let row_start = (segment.row * cache.length()) as i64;
            slots.extend((segment.start..end).map(|position| row_start + position as i64));
            last.push(tokens.len() as i64 - 1);
        }
        let lengths: Vec<usize> = segments.iter().take(together).map(|segment| segment.start + 1).collect();
        Ok(Self {
            count: tokens.len() as i64,
            last: if last.len() == tokens.len() { None } else { Some(Tensor::f_from_slice(&last)?) },
            tokens: Tensor::f_from_slice(&tokens)?,
            positions: Tensor::f_from_slice(&positions)?,
            slots: Tensor::f_from_slice(&slots)?,
            together: together as i64,
            longest: lengths.iter().max().copied().unwrap_or(0) as i64,
            mask: ragged_mask(&lengths)?,
            alone,
            groups: groups(segments)?,
        })
    }

    /// Writes the new keys (or values) `[n, g·c]` into one layer's cache `[rows, l, g·c]`.
    pub(crate) fn write(&self, cache: &Tensor, new: &Tensor) -> Result<(), EngineError> {
        let width = new.size2()?.1;
        let _ = cache.f_view([-1, width])?.f_index_copy_(0, &self.slots, new)?;
        Ok(())
    }

    /// Attention of the new queries `[n, h, c]` over the cache: `[n, h·c]`.
    pub(crate) fn attend(
        &self,
        config: &ModelConfig,
        q_nhc: &Tensor,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<Tensor, EngineError> {
        let (h, g, c) = (config.heads, config.heads_kv, config.head_width);
        let mut parts = Vec::with_capacity(1 + self.alone.len());
        if self.together > 0 {
            let rows = |cache: &Tensor| {
                cache
                    .f_narrow(0, 0, self.together)?
                    .f_narrow(1, 0, self.longest)?
                    .f_view([self.together, self.longest, g, c])?
                    .f_transpose(1, 2)
            };
            // The query heads of one key-value head stand where a sequence would: no key is repeated.
            let q = q_nhc.f_narrow(0, 0, self.together)?.f_view([self.together, g, h / g, c])?;
            let mixed = Tensor::f_scaled_dot_product_attention(
                &q,
                &rows(keys)?,
                &rows(values)?,
                self.mask.as_ref(),
                0.0,
                false,
                None,
                false,
            )?;
            parts.push(mixed.f_reshape([self.together, h * c])?);
        }
        for part in &self.alone {
            let row = |cache: &Tensor| {
                let length = part.start + part.count;
                cache.f_narrow(0, part.row, 1)?.f_narrow(1, 0, length)?.f_view([1, length, g, c])?.f_transpose(1, 2)
            };
            let q = q_nhc.f_narrow(0, part.offset, part.count)?.f_transpose(0, 1)?.f_unsqueeze(0)?;
            let mixed = Tensor::f_scaled_dot_product_attention(
                &q,
                &row(keys)?,
                &row(values)?,
                part.mask.as_ref(),
                0.0,
                part.mask.is_none(),
                None,
                h != g,
            )?;
            parts.push(mixed.f_transpose(1, 2)?.f_reshape([part.count, h * c])?);
        }
        match (parts.pop(), parts.is_empty()) {
            (Some(only), true) => Ok(only),
            (Some(last), false) => {
                parts.push(last);
                Ok(Tensor::f_cat(&parts, 0)?)
            }
            (None, _) => Err(EngineError::Invalid("a step needs at least one token".to_owned())),
        }
    }

    /// Adds each adapter's delta of `x` to `y`, for the tokens that carry it.
    pub(crate) fn add_deltas(
        &self,
        y: &mut Tensor,
        x: &Tensor,
        layer: usize,
        pick: fn(&FusedLayer) -> &Fused,
    ) -> Result<(), EngineError> {
        for group in &self.groups {
            let fused = pick(group.adapter.layer(layer)?);
            match &group.picked {
                None => fused.add_to(y, x)?,
                Some(picked) => {
                    let _ = y.f_index_add_(0, picked, &fused.delta(&x.f_index_select(0, picked)?)?)?;
                }
            }
        }
        Ok(())
    }

    /// The rows of `x`, `[n, d]`, that end a segment.
    pub(crate) fn last_of_each(&self, x: Tensor) -> Result<Tensor, EngineError> {
        match &self.last {
            Some(last) => Ok(x.f_index_select(0, last)?),
            None => Ok(x),
        }
    }
}

impl Alone {
    fn new(segment: &Segment<'_>, offset: usize) -> Result<Self, EngineError> {
        let (start, count) = (segment.start, segment.tokens.len());
        let mask = if start == 0 {
            None
        } else {
            let row = |index: usize| {
                (0..start + count).map(move |position| if position <= start + index { 0.0 } else { f32::NEG_INFINITY })
            };
            let values: Vec<f32> = (0..count).flat_map(row).collect();
            Some(Tensor::f_from_slice(&values)?.f_view([count as i64, (start + count) as i64])?)
        };
        Ok(Self { row: segment.row as i64, offset: offset as i64, count: count as i64, start: start as i64, mask })
    }
}

/// −∞ behind the end of each row, if rows differ in length.
fn ragged_mask(lengths: &[usize]) -> Result<Option<Tensor>, EngineError> {
    let longest = lengths.iter().max().copied().unwrap_or(0);
    if lengths.iter().all(|length| *length == longest) {
        return Ok(None);
    }
    let row = |length: &usize| {
        let length = *length;
        (0..longest).map(move |position| if position < length { 0.0 } else { f32::NEG_INFINITY })
    };
    let values: Vec<f32> = lengths.iter().flat_map(row).collect();
    Ok(Some(Tensor::f_from_slice(&values)?.f_view([lengths.len() as i64, 1, 1, longest as i64])?))
}

fn groups<'a>(segments: &[Segment<'a>]) -> Result<Vec<Group<'a>>, EngineError> {
    let mut found: Vec<(&'a Arc<Adapter>, Vec<i64>)> = Vec::new();
    let mut offset = 0;
    for segment in segments {
        let indices = offset..offset + segment.tokens.len() as i64;
        offset = indices.end;
        let Some(adapter) = segment.adapter else { continue };
        match found.iter_mut().find(|(known, _)| Arc::ptr_eq(known, adapter)) {
            Some((_, picked)) => picked.extend(indices),
            None => found.push((adapter, indices.collect())),
        }
    }
    let group = |(adapter, picked): (&'a Arc<Adapter>, Vec<i64>)| {
        let picked = if picked.len() as i64 == offset { None } else { Some(Tensor::f_from_slice(&picked)?) };
        Ok(Group { adapter, picked })
    };
    found.into_iter().map(group).collect()
}
