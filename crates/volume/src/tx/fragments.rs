//! Which parts of a block: a bit for each fragment.

use std::ops::Range;

use crate::limits::VOLUME_BLOCK_BYTES;

/// A set of fragments of one block: at most 256, because none is smaller than 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fragments([u64; 4]);

/// How long a fragment is: 2 to this power. Marks are noted very often, and a division takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grain(u32);

impl Grain {
    /// Fragments of so many bytes: a power of two from 16 to 4096.
    pub(crate) fn new(bytes: u32) -> Self {
        assert!(crate::state::is_fragment(bytes), "fragments of {bytes} bytes");
        Self(bytes.trailing_zeros())
    }

    fn bytes(self) -> usize {
        1 << self.0
    }

    /// The fragment that begins at this byte, or the first after it.
    fn at_or_after(self, byte: usize) -> usize {
        (byte + self.bytes() - 1) >> self.0
    }

    /// The fragments that some bytes of a block lie in.
    pub(crate) fn touched(self, bytes: Range<usize>) -> Fragments {
        assert!(bytes.end <= VOLUME_BLOCK_BYTES, "bytes {bytes:?} of a block");
        if bytes.is_empty() {
            return Fragments::default();
        }
        Fragments::of(bytes.start >> self.0..self.at_or_after(bytes.end))
    }

    /// Those of them of which only a part is among the bytes.
    pub(crate) fn in_part(self, bytes: Range<usize>) -> Fragments {
        if (bytes.start | bytes.end).is_multiple_of(self.bytes()) {
            return Fragments::default();
        }
        let whole = Fragments::of(self.at_or_after(bytes.start)..bytes.end >> self.0);
        self.touched(bytes).without(whole)
    }

    /// The bytes of the fragments, in stretches.
    pub(crate) fn bytes_of(self, fragments: Fragments) -> impl Iterator<Item = Range<usize>> {
        let count = VOLUME_BLOCK_BYTES >> self.0;
        let mut next = 0;
        std::iter::from_fn(move || {
            let first = (next..count).find(|&at| fragments.has(at))?;
            let end = (first..count).find(|&at| !fragments.has(at)).unwrap_or(count);
            next = end;
            Some(first << self.0..end << self.0)
        })
    }
}

impl Fragments {
    /// Everything.
    pub(crate) const ALL: Self = Self([u64::MAX; 4]);

    /// Most ranges lie in one word.
    fn of(range: Range<usize>) -> Self {
        let mut words = [0; 4];
        if range.is_empty() {
            return Self(words);
        }
        let touched = range.start / 64..=(range.end - 1) / 64;
        for (word, bits) in touched.clone().zip(&mut words[touched]) {
            let first = range.start.saturating_sub(64 * word);
            let past = (range.end - 64 * word).min(64);
            *bits = u64::MAX << first & u64::MAX >> (64 - past);
        }
        Self(words)
    }

    fn has(self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn map(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|at| of(self.0[at], other.0[at])))
    }

    /// Those that are in both.
    pub(crate) fn and(self, other: Self) -> Self {
        self.map(other, |a, b| a & b)
    }

    /// Those that are in either.
    pub(crate) fn or(self, other: Self) -> Self {
        self.map(other, |a, b| a | b)
    }

    fn without(self, other: Self) -> Self {
        self.map(other, |a, b| a & !b)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_touch_the_fragments_that_they_lie_in_and_no_others() {
        for bytes in [16, 64, 4096] {
            let grain = Grain::new(bytes);
            for range in [0..1, 0..4096, 15..17, 16..32, 100..100, 4095..4096, 60..200] {
                let touched = grain.touched(range.clone());
                let len = bytes as usize;
                let by_hand =
                    (0..4096 / len).filter(|at| range.start < (at + 1) * len && range.end > at * len);
                let by_hand: Vec<usize> = if range.is_empty() { Vec::new() } else { by_hand.collect() };
                let found: Vec<usize> = (0..4096 / len).filter(|&at| touched.has(at)).collect();
                assert_eq!(found, by_hand, "{range:?} at {bytes}");
                let part = by_hand.iter().filter(|&&at| range.start > at * len || range.end < (at + 1) * len);
                let in_part = grain.in_part(range.clone());
                let found: Vec<usize> = (0..4096 / len).filter(|&at| in_part.has(at)).collect();
                assert_eq!(found, part.copied().collect::<Vec<_>>(), "{range:?} at {bytes}");
            }
        }
        let grain = Grain::new(16);
        let two = grain.touched(0..40).or(grain.touched(4090..4096));
        assert_eq!(grain.bytes_of(two).collect::<Vec<_>>(), [0..48, 4080..4096]);
    }
}
