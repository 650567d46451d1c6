//! Numbers from a seed.

use alloy_primitives::{Address, B256, U256};

/// A stream of numbers that follows from its words alone.
///
/// SplitMix64 (Steele, Lea, Flood 2014) rather than a generator of a library: what it gives is part of what a synthetic
/// chain *is*, so it must not change with a library's version or with the machine.
#[derive(Debug, Clone)]
pub(crate) struct Draw(u64);

impl Draw {
    /// The stream of these words.
    pub(crate) fn of(words: &[u64]) -> Draw {
        let mut state = 0x6361_6972_6e5f_7331; // "cairn_s1"
        for word in words {
            state = mix(state ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        Draw(state)
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; 0 where `end` is 0. The bias of the multiplication is far below anything that matters here.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// A number between the two, both included.
    pub(crate) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most.saturating_sub(least).saturating_add(1))
    }

    /// True once in `times` on average; never where `times` is 0.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }

    /// A number below `end` whose logarithm is uniform: Zipf's law with exponent 1, in integers.
    pub(crate) fn log_uniform(&mut self, end: u64) -> u64 {
        let octaves = u64::from(u64::BITS - end.leading_zeros());
        loop {
            let octave = self.below(octaves);
            let at = (1 << octave) - 1 + self.below(1 << octave);
            if at < end || end == 0 {
                return at.min(end);
            }
        }
    }

    /// 32 bytes.
    pub(crate) fn word(&mut self) -> B256 {
        let mut bytes = [0; 32];
        for chunk in bytes.chunks_exact_mut(8) {
            chunk.copy_from_slice(&self.next().to_be_bytes());
        }
        B256::new(bytes)
    }

    /// An address.
    pub(crate) fn address(&mut self) -> Address {
        Address::from_word(self.word())
    }

    /// An amount of up to `digits` decimal digits: small ones are as common as large ones.
    pub(crate) fn amount(&mut self, digits: u32) -> U256 {
        let zeros = self.below(u64::from(digits.min(60)));
        U256::from(self.between(1, 9_999)) * U256::from(10u64).pow(U256::from(zeros))
    }
}

/// One number out of words, where a whole stream is not needed.
pub(crate) fn hash_words(words: &[u64]) -> u64 {
    Draw::of(words).next()
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_give_the_same_numbers_on_every_machine() {
        let mut draw = Draw::of(&[7, 1]);
        assert_eq!([draw.next(), draw.next()], [GOLDEN[0], GOLDEN[1]]);
        assert_ne!(hash_words(&[7, 1]), hash_words(&[1, 7]));
    }

    const GOLDEN: [u64; 2] = [5_915_934_341_367_144_367, 7_150_916_482_930_501_729];

    #[test]
    fn bounds_hold_and_low_numbers_are_the_common_ones() {
        let mut draw = Draw::of(&[3]);
        let mut low = 0;
        for _ in 0..4_000 {
            assert!(draw.below(10) < 10);
            assert!((5..=9).contains(&draw.between(5, 9)));
            let at = draw.log_uniform(1_000);
            assert!(at < 1_000);
            low += u32::from(at < 31);
        }
        // 31 of 1,000 numbers are half of the octaves.
        assert!((1_700..2_500).contains(&low), "{low}");
        assert_eq!(draw.below(0), 0);
        assert_eq!(draw.log_uniform(1), 0);
    }
}
