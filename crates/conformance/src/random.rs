//! Seeded numbers, the same on every machine.

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// About normal: the sum of four uniform numbers, variance 1.
    pub(crate) fn normal(&mut self) -> f32 {
        let uniform = (0..4).map(|_| (self.bits() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>();
        (uniform - 2.0) * 1.732_050_8
    }

    /// Many, times `scale`.
    pub(crate) fn normals(&mut self, n: usize, scale: f32) -> Vec<f32> {
        (0..n).map(|_| self.normal() * scale).collect()
    }

    /// Indices below `limit`.
    pub(crate) fn indices(&mut self, n: usize, limit: usize) -> Vec<i32> {
        (0..n).map(|_| self.below(limit) as i32).collect()
    }
}
