//! A small generator of pseudo-random numbers, so that one seed names one course of the demo.
//! Families draw their words and the driver its sampling seeds from it; nothing here is secret.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Equal seeds give equal sequences.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: usize) -> usize {
        // The high half of the product is uniform up to a bias of bound / 2^64.
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// Puts the items in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        assert_eq!([random.bits(), random.bits()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let mut items: Vec<usize> = (0..100).collect();
        Random::new(7).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn draws_stay_below_their_bound() {
        let mut random = Random::new(3);
        assert!((0..1000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(0), 0);
    }
}
