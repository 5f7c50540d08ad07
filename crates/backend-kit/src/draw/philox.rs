//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).

/// The random words of all tokens at one position.
pub(crate) struct Words {
    key: [u32; 2],
    position: u32,
    /// The block that was made last, and for which ids: neighbours share one.
    block: (u32, [u32; 4]),
}

impl Words {
    pub(crate) fn new(seed: u64, position: u32) -> Self {
        let key = [seed as u32, (seed >> 32) as u32];
        Words { key, position, block: (0, philox([0, position, 0, 0], key)) }
    }

    /// The word of one token.
    pub(crate) fn get(&mut self, id: u32) -> u32 {
        if self.block.0 != id / 4 {
            self.block = (id / 4, philox([id / 4, self.position, 0, 0], self.key));
        }
        self.block.1[(id % 4) as usize]
    }
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [c0, c1, c2, c3] = counter;
        let a = u64::from(c0) * 0xD251_1F53;
        let b = u64::from(c2) * 0xCD9E_8D57;
        counter =
            [(b >> 32) as u32 ^ c1 ^ key[0], b as u32, (a >> 32) as u32 ^ c3 ^ key[1], a as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_do_not_depend_on_what_was_asked_before() {
        let fresh = |id| Words::new(7, 3).get(id);
        let mut words = Words::new(7, 3);
        for id in [0, 1, 5, 4, 0, 262_143, 3] {
            assert_eq!(words.get(id), fresh(id));
        }
        assert_eq!(fresh(5), philox([1, 3, 0, 0], [7, 0])[1]);
    }

    /// From the known-answer file of the Random123 library.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
