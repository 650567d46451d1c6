//! Heights and half-open ranges of them.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Serialize};

/// A block's place in its chain, counted from 0 at genesis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Height(pub u64);

impl Height {
    /// The genesis height.
    pub const ZERO: Height = Height(0);
    /// The highest height that a chain is believed to have. Stores keep signed 64-bit numbers; twice this fits, so sums with a height don't overflow.
    pub const MAX: Height = Height((1 << 62) - 1);

    /// A height from outside: a node, a file, an operator.
    pub const fn believable(n: u64) -> Result<Height, ImpossibleHeight> {
        if n > Height::MAX.0 { Err(ImpossibleHeight(n)) } else { Ok(Height(n)) }
    }

    /// The plain number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The next height. There is none above `u64::MAX`, the end of ranges without an end.
    pub const fn next(self) -> Height {
        Height(self.0.saturating_add(1))
    }

    /// The height before, or `None` at genesis.
    pub const fn prev(self) -> Option<Height> {
        match self.0 {
            0 => None,
            n => Some(Height(n - 1)),
        }
    }

    /// This height less `heights`, stopping at genesis.
    pub const fn saturating_sub(self, heights: u64) -> Height {
        Height(self.0.saturating_sub(heights))
    }

    /// How many heights lie between `earlier` and this one; 0 where `earlier` is not earlier.
    pub const fn since(self, earlier: Height) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Height {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<u64> for Height {
    fn from(n: u64) -> Self {
        Height(n)
    }
}

impl Add<u64> for Height {
    type Output = Height;
    fn add(self, heights: u64) -> Height {
        Height(self.0.saturating_add(heights))
    }
}

impl Sub<u64> for Height {
    type Output = Height;
    fn sub(self, heights: u64) -> Height {
        Height(self.0 - heights)
    }
}

/// A number above [`Height::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("height {0}, which no chain has; the highest that cairn takes is {max}", max = Height::MAX)]
pub struct ImpossibleHeight(pub u64);

/// A half-open range of heights: `start_inclusive..end_exclusive`. Never reversed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HeightRange {
    start: Height,
    end: Height,
}

impl HeightRange {
    /// The range `[start_inclusive, end_exclusive)`; empty where the end is not above the start.
    pub fn new(start_inclusive: Height, end_exclusive: Height) -> Self {
        HeightRange { start: start_inclusive, end: end_exclusive.max(start_inclusive) }
    }

    /// The range that holds both ends.
    pub fn inclusive(first: Height, last: Height) -> Self {
        HeightRange::new(first, last.next())
    }

    /// The range that holds one height.
    pub fn one(height: Height) -> Self {
        HeightRange::new(height, height.next())
    }

    /// The first height.
    pub const fn start(self) -> Height {
        self.start
    }

    /// The height after the last one.
    pub const fn end(self) -> Height {
        self.end
    }

    /// The last height, or `None` where the range is empty.
    pub fn last(self) -> Option<Height> {
        if self.is_empty() { None } else { self.end.prev() }
    }

    /// How many heights it holds.
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether it holds none.
    pub const fn is_empty(self) -> bool {
        self.end.0 == self.start.0
    }

    /// Whether `height` lies in it.
    pub fn contains(self, height: Height) -> bool {
        self.start <= height && height < self.end
    }

    /// What both ranges hold.
    pub fn intersect(self, other: HeightRange) -> HeightRange {
        HeightRange::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// Its heights in order.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Height> + ExactSizeIterator {
        // A range of more than `u32::MAX` heights is never walked one by one on the platforms we run on.
        let (start, len) = (self.start.0, self.len() as usize);
        (0..len).map(move |i| Height(start + i as u64))
    }

    /// Cuts it into pieces of at most `heights`, in order.
    pub fn chunks(self, heights: u64) -> impl Iterator<Item = HeightRange> {
        let step = heights.max(1);
        let mut at = self.start;
        std::iter::from_fn(move || {
            if at >= self.end {
                return None;
            }
            let piece = HeightRange::new(at, Height(at.0.saturating_add(step)).min(self.end));
            at = piece.end;
            Some(piece)
        })
    }
}

impl fmt::Display for HeightRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_half_open_and_never_reversed() {
        let r = HeightRange::new(Height(3), Height(6));
        assert_eq!(r.len(), 3);
        assert_eq!(r.last(), Some(Height(5)));
        assert!(r.contains(Height(3)) && !r.contains(Height(6)));
        assert!(HeightRange::new(Height(6), Height(3)).is_empty());
        assert_eq!(HeightRange::new(Height(6), Height(3)).last(), None);
    }

    #[test]
    fn heights_that_no_chain_has_are_refused_and_overflow_nothing() {
        assert_eq!(Height::believable(Height::MAX.get()), Ok(Height::MAX));
        for n in [Height::MAX.get() + 1, 1 << 63, u64::MAX - 1, u64::MAX] {
            let error = Height::believable(n).expect_err("no chain has it").to_string();
            assert!(error.contains(&n.to_string()) && error.contains("no chain has"), "{error}");
        }
        let top = Height(u64::MAX);
        assert_eq!((top.next(), top + 7), (top, top));
        assert_eq!(HeightRange::inclusive(Height(u64::MAX - 1), top).len(), 1);
    }

    #[test]
    fn chunks_cover_the_range_once() {
        let r = HeightRange::new(Height(1), Height(11));
        let pieces: Vec<_> = r.chunks(4).collect();
        assert_eq!(pieces.iter().map(|p| p.len()).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(pieces.iter().flat_map(|p| p.iter()).collect::<Vec<_>>(), r.iter().collect::<Vec<_>>());
    }
}
