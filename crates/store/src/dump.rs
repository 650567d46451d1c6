//! The canonical dump: what two stores that hold the same chain have in common, byte for byte.

use async_trait::async_trait;

use crate::Result;

/// Sorted lines, each a name and a value. Leaves out clocks, serials, fences, uuids, the reorg log and the layout of
/// index runs (law 7); holds every block's facts and bytes, every lookup and every index entry, the first height, tip and finalised mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dump {
    /// The lines.
    pub lines: Vec<String>,
}

impl Dump {
    /// The first line in which two dumps differ, with both sides.
    pub fn first_difference(&self, other: &Dump) -> Option<(String, String)> {
        let longest = self.lines.len().max(other.lines.len());
        (0..longest).find_map(|i| {
            let line = |dump: &Dump| dump.lines.get(i).cloned().unwrap_or_else(|| "(no line)".into());
            let (ours, theirs) = (line(self), line(other));
            (ours != theirs).then_some((ours, theirs))
        })
    }
}

/// A store that can be dumped.
#[async_trait]
pub trait RawDump: Send + Sync {
    /// Everything that it holds, filled ranges above the head included.
    async fn dump(&self) -> Result<Dump>;
}
