//! Keys and values of past tokens, in pages of 16 positions that requests share.
//! The scheduler takes pages for a request and keeps finished ones in its prefix cache; `attention.rs` reads them.
//! A page goes back to the free ones when its last holder drops it; a page that is shared is never written.

use std::sync::{Arc, Mutex, PoisonError};

use crate::matrix::TILE;

/// Positions of a page.
pub const PAGE: usize = TILE;

/// Where pages come from.
#[derive(Debug, Clone)]
pub struct Pages(Arc<Store>);

#[derive(Debug)]
struct Store {
    shape: Shape,
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    free: Vec<Box<[f32]>>,
}

/// Numbers of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub layers: usize,
    pub heads_kv: usize,
    pub head_width: usize,
}

impl Shape {
    /// Numbers of the keys (or values) of one head of one layer.
    fn block(self) -> usize {
        self.head_width.next_multiple_of(TILE) * PAGE
    }

    fn numbers(self) -> usize {
        self.layers * self.heads_kv * 2 * self.block()
    }
}

/// Keys and values of 16 positions in all layers.
#[derive(Debug)]
pub struct Page {
    store: Arc<Store>,
    /// For each layer and head: keys `[c][16 positions]`, then values `[tile of c][16 positions][16]`.
    numbers: Box<[f32]>,
}

impl Pages {
    pub(crate) fn new(shape: Shape, max: usize) -> Self {
        Self(Arc::new(Store { shape, max, state: Mutex::default() }))
    }

    /// A page to write, if one is free.
    pub fn take(&self) -> Option<Arc<Page>> {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.taken >= self.0.max {
            return None;
        }
        state.taken += 1;
        let numbers = state.free.pop();
        drop(state);
        let numbers = numbers.unwrap_or_else(|| vec![0.0; self.0.shape.numbers()].into_boxed_slice());
        Some(Arc::new(Page { store: Arc::clone(&self.0), numbers }))
    }

    /// Pages that can be taken now.
    pub fn free(&self) -> usize {
        self.0.max - self.0.state.lock().unwrap_or_else(PoisonError::into_inner).taken
    }

    /// Pages in all.
    pub fn max(&self) -> usize {
        self.0.max
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> usize {
        self.0.shape.numbers() * size_of::<f32>()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let mut state = self.store.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.taken -= 1;
        state.free.push(std::mem::take(&mut self.numbers));
    }
}

impl Page {
    fn start(&self, layer: usize, head: usize) -> usize {
        let shape = self.store.shape;
        (layer * shape.heads_kv + head) * 2 * shape.block()
    }

    /// `[c][16]`.
    pub(crate) fn keys(&self, layer: usize, head: usize) -> &[f32] {
        &self.numbers[self.start(layer, head)..][..self.store.shape.head_width * PAGE]
    }

    /// `[16 positions][16]`: columns `tile · 16` and on of the values.
    pub(crate) fn values(&self, layer: usize, head: usize, tile: usize) -> &[f32] {
        &self.numbers[self.start(layer, head) + self.store.shape.block() + tile * PAGE * TILE..][..PAGE * TILE]
    }

    /// Writes one position of one layer; `key` and `value` hold all heads, one after the other.
    pub(crate) fn write(&mut self, layer: usize, position: usize, key: &[f32], value: &[f32]) {
        let shape = self.store.shape;
        let width = shape.head_width;
        for head in 0..shape.heads_kv {
            let start = self.start(layer, head);
            let (keys, values) = self.numbers[start..][..2 * shape.block()].split_at_mut(shape.block());
            for (index, number) in key[head * width..][..width].iter().enumerate() {
                keys[index * PAGE + position] = *number;
            }
            for (tile, numbers) in value[head * width..][..width].chunks(TILE).enumerate() {
                values[(tile * PAGE + position) * TILE..][..numbers.len()].copy_from_slice(numbers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_bounded_and_come_back() {
        let pages = Pages::new(Shape { layers: 2, heads_kv: 1, head_width: 8 }, 3);
        let mut taken: Vec<Arc<Page>> = (0..3).map_while(|_| pages.take()).collect();
        assert_eq!((taken.len(), pages.free(), pages.take().is_none()), (3, 0, true));
        let shared = Arc::clone(&taken[0]);
        assert!(Arc::get_mut(&mut taken[0]).is_none());
        drop(taken);
        assert_eq!(pages.free(), 2);
        drop(shared);
        assert_eq!(pages.free(), 3);
    }

    #[test]
    fn what_is_written_is_read() {
        let pages = Pages::new(Shape { layers: 2, heads_kv: 2, head_width: 24 }, 1);
        let mut page = pages.take().expect("free");
        let key: Vec<f32> = (0..48).map(|i| i as f32).collect();
        let value: Vec<f32> = (0..48).map(|i| -(i as f32)).collect();
        Arc::get_mut(&mut page).expect("own").write(1, 5, &key, &value);
        assert_eq!(page.keys(1, 1)[3 * PAGE + 5], 27.0);
        assert_eq!(page.values(1, 1, 1)[5 * TILE + 7], -47.0);
        assert!(page.keys(0, 1).iter().all(|number| *number == 0.0));
    }
}
