//! Merging runs that stand side by side, in steps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use cairn_core::{Height, HeightRange};

use super::{Entry, PageSource, PageWriter, RunCursor, RunKind, StoredPage};
use crate::Result;

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

/// Merges on runs of these heights: writes the entries above `after` (the last entry of the last page written; `None` at the start), until about `max_bytes`
/// were read or written. Keeps nothing between steps, so that a merge goes on after a restart where it stood. Memory: one page
/// for each input, and the pages of this step.
pub fn merge_step(
    kind: RunKind,
    base: Height,
    inputs: &[(HeightRange, &dyn PageSource)],
    after: Option<Entry>,
    max_bytes: u64,
) -> Result<MergeStep> {
    let mut cursors: Vec<RunCursor<'_>> =
        inputs.iter().map(|(heights, source)| RunCursor::new(kind, *heights, *source, after)).collect();
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
