//! The cache of keys and values of all running requests, one row each.
//! The scheduler reserves rows, moves them and forgets them; `Model::step` writes. Rows share one tensor, so
//! that a decode step reads all of them as one view; it grows in blocks with the longest row.

use tch::{Device, Kind, Tensor};

use crate::error::EngineError;
use crate::model::ModelConfig;

/// Positions by which the cache grows.
const LENGTH_STEP: usize = 128;

/// Keys and values, each `[layers, rows, positions, heads_kv · head_width]`, zero where nothing was written.
#[derive(Debug)]
pub(crate) struct KvCache {
    layers: i64,
    width: i64,
    rows: usize,
    length: usize,
    keys: Tensor,
    values: Tensor,
}

impl KvCache {
    /// An empty cache.
    pub fn new(config: &ModelConfig) -> Result<Self, EngineError> {
        let (layers, width) = (config.layers as i64, config.kv_width());
        let empty = || Tensor::f_zeros([layers, 0, 0, width], (Kind::Float, Device::Cpu));
        Ok(Self { layers, width, rows: 0, length: 0, keys: empty()?, values: empty()? })
    }

    /// Positions of a row.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Makes room for `rows` rows of `length` positions; what is cached stays.
    pub fn reserve(&mut self, rows: usize, length: usize) -> Result<(), EngineError> {
        if rows <= self.rows && length <= self.length {
            return Ok(());
        }
        let rows_new = rows.max(self.rows).next_power_of_two();
        let length_new = length.max(self.length).next_multiple_of(LENGTH_STEP);
        let grown = |old: &Tensor| {
            let new = Tensor::f_zeros(
                [self.layers, rows_new as i64, length_new as i64, self.width],
                (Kind::Float, Device::Cpu),
            )?;
            if self.rows > 0 && self.length > 0 {
                new.f_narrow(1, 0, self.rows as i64)?.f_narrow(2, 0, self.length as i64)?.f_copy_(old)?;
            }
            Ok::<_, EngineError>(new)
        };
        let (keys, values) = (grown(&self.keys)?, grown(&self.values)?);
        (self.keys, self.values, self.rows, self.length) = (keys, values, rows_new, length_new);
        Ok(())
    }

    /// Copies the first `length` positions of row `from` to row `to`.
    pub fn copy_row(&mut self, from: usize, to: usize, length: usize) -> Result<(), EngineError> {
        let part = |cache: &Tensor, row: usize| cache.f_narrow(1, row as i64, 1)?.f_narrow(2, 0, length as i64);
        for cache in [&self.keys, &self.values] {
            part(cache, to)?.f_copy_(&part(cache, from)?)?;
        }
        Ok(())
    }

    /// Zeroes the first `length` positions of a row, as far as they exist.
    pub fn zero_row(&mut self, row: usize, length: usize) -> Result<(), EngineError> {
        let length = length.min(self.length);
        if row < self.rows && length > 0 {
            for cache in [&self.keys, &self.values] {
                let _ = cache.f_narrow(1, row as i64, 1)?.f_narrow(2, 0, length as i64)?.f_zero_()?;
            }
        }
        Ok(())
    }

    /// Keys and values of one layer, each `[rows, positions, heads_kv · head_width]`; views.
    pub fn layer(&self, index: usize) -> Result<(Tensor, Tensor), EngineError> {
        Ok((self.keys.f_get(index as i64)?, self.values.f_get(index as i64)?))
    }

    /// Gives all memory back.
    pub fn clear(&mut self) -> Result<(), EngineError> {
        let empty = || Tensor::f_zeros([self.layers, 0, 0, self.width], (Kind::Float, Device::Cpu));
        (self.keys, self.values, self.rows, self.length) = (empty()?, empty()?, 0, 0);
        Ok(())
    }
}
