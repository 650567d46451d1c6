//! Blocks that were replaced and of which not all is made again that hangs on them: what a repair that was killed, or refused, leaves to the next one.
//!
//! The error log has an entry for each from before it is replaced until its index entries are right and its rows are asked for. The two databases share no transaction, and an open
//! gap isn't enough to go by: of what a repair put in its blocks, nodes give the same now, whether or not anything was made of it. A reorg takes a block's entry with it.

use std::collections::BTreeMap;

use cairn_core::{BlockRef, Height};
use cairn_store::StoreError;
use cairn_store::derived::{ErrorFilter, ErrorLog, NewError, Severity};

use crate::stores::RawStore;

/// The name in the error log of who replaces blocks.
pub const REPAIR_SERVICE: &str = "repair";

/// What it says there.
const REPLACED: &str = "a node gives more of this block than was stored: it is replaced, and what is made of it is not made again yet; the next repair sees to that and closes this";

/// Entries that are read at once.
const PAGE_ENTRIES: usize = 1_000;

/// Says that a block is being replaced; or, with what was written, that it was. That is an entry of its own, which no repair holds that looked before: so none
/// closes it that found the block as it was.
pub(super) async fn note(
    store: &dyn RawStore,
    block: BlockRef,
    written: Option<Written>,
) -> Result<(), StoreError> {
    let message = match written {
        None => REPLACED.to_owned(),
        Some(Written { events, bytes }) => {
            format!("{REPLACED} ({events} events more, {bytes} bytes of results in all)")
        }
    };
    let entry = NewError {
        service: REPAIR_SERVICE.into(),
        height: block.height,
        block_id: block.id,
        transaction_id: String::new(),
        severity: Severity::Warn,
        message,
        raw_data: Vec::new(),
        raw_ref: Some(format!("raw:{}", block.height)),
    };
    ErrorLog::record(store, &[entry]).await.map(drop)
}

/// What took a block's place.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    /// Events that were not stored before.
    pub events: u32,
    /// The bytes of all its results.
    pub bytes: usize,
}

/// The blocks of which something is left to do.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// The numbers of their entries.
    entries: BTreeMap<Height, Vec<u64>>,
}

impl Left {
    /// Reads them.
    pub async fn of(store: &dyn RawStore) -> Result<Left, StoreError> {
        let mut filter = ErrorFilter {
            service: Some(REPAIR_SERVICE.into()),
            limit: PAGE_ENTRIES,
            ..ErrorFilter::default()
        };
        let mut left = Left::default();
        loop {
            let page = ErrorLog::list(store, &filter).await?;
            let next = page.last().map(|logged| logged.id).filter(|_| page.len() == PAGE_ENTRIES);
            for logged in page {
                left.entries.entry(logged.error.height).or_default().push(logged.id);
            }
            match next {
                Some(id) => filter.after_id = id,
                None => return Ok(left),
            }
        }
    }

    /// Their heights, ascending.
    pub fn heights(&self) -> impl Iterator<Item = Height> + use<'_> {
        self.entries.keys().copied()
    }

    /// Closes the entries of those of which nothing is left to do.
    pub async fn close(
        &self,
        store: &dyn RawStore,
        is_done: impl Fn(Height) -> bool,
    ) -> Result<(), StoreError> {
        let done = self.entries.iter().filter(|(height, _)| is_done(**height));
        let ids: Vec<u64> = done.flat_map(|(_, ids)| ids).copied().collect();
        match ids.is_empty() {
            true => Ok(()),
            false => ErrorLog::resolve(store, &ids).await.map(drop),
        }
    }
}
