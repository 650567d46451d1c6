//! Merging runs that stand side by side, in steps, and cutting a run short.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use cairn_core::{Height, HeightRange};

use super::{BuiltRun, Entry, PageSource, PageWriter, RunCursor, RunKind, StoredPage};
use crate::{Result, StoreError};

/// What one step of a merge made.
#[derive(Debug)]
pub struct MergeStep {
    /// The next pages of the result.
    pub pages: Vec<StoredPage>,
    /// How many entries they hold.
    pub entries: u64,
    /// Whether the result is complete with them.
    pub finished: bool,
}

/// Merges on: writes the entries above `after` (the last entry of the last page written; `None` at the start), until about `max_bytes`
/// were read or written. Keeps nothing between steps, so that a merge goes on after a restart where it stood. Memory: one page
/// for each input, and the pages of this step.
pub fn merge_step(
    kind: RunKind,
    base: Height,
    inputs: &[&dyn PageSource],
    after: Option<Entry>,
    max_bytes: u64,
) -> Result<MergeStep> {
    let mut cursors: Vec<RunCursor<'_>> =
        inputs.iter().map(|source| RunCursor::new(kind, *source, after)).collect();
    let mut heads = BinaryHeap::with_capacity(cursors.len());
    for (input, cursor) in cursors.iter_mut().enumerate() {
        heads.extend(cursor.next_entry()?.map(|entry| Reverse((entry, input))));
    }

    let mut writer = PageWriter::new(kind, base);
    let (mut pages, mut entries, mut bytes) = (Vec::new(), 0, 0);
    while let Some(mut head) = heads.peek_mut() {
        let Reverse((entry, input)) = *head;
        match cursors[input].next_entry()? {
            Some(next) => *head = Reverse((next, input)),
            None => drop(PeekMut::pop(head)),
        }
        let waiting = u64::from(writer.waiting());
        if let Some(page) = writer.push(entry)? {
            bytes += page.data.len() as u64;
            entries += waiting;
            pages.push(page);
            if bytes >= max_bytes {
                // The entry that opened the next page is read again by the next step.
                return Ok(MergeStep { pages, entries, finished: false });
            }
        }
    }
    entries += u64::from(writer.waiting());
    pages.extend(writer.finish());
    Ok(MergeStep { pages, entries, finished: true })
}

/// A copy of a small run without the entries at or above `end`, which lies inside `heights`.
pub fn truncate(
    kind: RunKind,
    heights: HeightRange,
    source: &dyn PageSource,
    end: Height,
) -> Result<BuiltRun> {
    if !heights.contains(end) {
        return Err(StoreError::Invalid(format!("a run over {heights} can't be cut at {end}")));
    }
    let limit = kind.first_position(end);
    let mut cursor = RunCursor::new(kind, source, None);
    let mut writer = PageWriter::new(kind, heights.start());
    let (mut pages, mut entries) = (Vec::new(), 0);
    while let Some(entry) = cursor.next_entry()? {
        if entry.position < limit {
            pages.extend(writer.push(entry)?);
            entries += 1;
        }
    }
    pages.extend(writer.finish());
    Ok(BuiltRun { kind, heights: HeightRange::new(heights.start(), end), entries, pages })
}
