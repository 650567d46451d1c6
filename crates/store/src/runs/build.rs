//! Making runs: sorted entries into pages, and a batch of blocks into its three runs.

use cairn_core::{Height, HeightRange, IndexKey};

use super::page::{
    HEADER_BYTES, MAX_VARINT_BYTES, PageHeader, RESTART_BYTES, RESTART_ENTRY_BYTES, Restart, put_varint, seal,
};
use super::{Entry, PAGE_MAX_BYTES, RunKind, StoredPage};
use crate::{Result, StoreError};

/// An entry adds at most a key, a distance, a transaction index, and a restart.
const ENTRY_MAX_BYTES: usize = 3 * MAX_VARINT_BYTES + RESTART_ENTRY_BYTES;

/// Turns ascending entries into pages, one page in memory at a time.
#[derive(Debug)]
pub struct PageWriter {
    kind: RunKind,
    base: Height,
    body: Vec<u8>,
    restarts: Vec<Restart>,
    entries: u32,
    first: Entry,
    last: Option<Entry>,
    /// Where the newest position begins in `body`: its lowest bit says whether another one follows.
    newest_at: usize,
}

impl PageWriter {
    /// `base` is the first height of the run.
    pub fn new(kind: RunKind, base: Height) -> Self {
        PageWriter {
            kind,
            base,
            body: Vec::new(),
            restarts: Vec::new(),
            entries: 0,
            first: Entry { key: 0, position: 0 },
            last: None,
            newest_at: 0,
        }
    }

    /// Adds an entry above all before. Returns a page when one is full.
    pub fn push(&mut self, entry: Entry) -> Result<Option<StoredPage>> {
        if self.last.is_some_and(|last| entry <= last) {
            return Err(StoreError::Invalid("index entries must be ascending and without repeats".into()));
        }
        let height = self.kind.height_of(entry.position);
        if height < self.base {
            return Err(StoreError::Invalid(format!(
                "index entry at height {height} lies below its run, which begins at {}",
                self.base
            )));
        }
        let used = self.body.len() + self.restarts.len() * RESTART_ENTRY_BYTES;
        let full = if used + ENTRY_MAX_BYTES > PAGE_MAX_BYTES { self.finish() } else { None };
        let before = if self.entries > 0 { self.last } else { None };
        if let Some(before) = before {
            let next_at = self.body.len();
            if next_at >= self.restarts.last().map_or(HEADER_BYTES, |restart| restart.next_at) + RESTART_BYTES
            {
                self.restarts.push(Restart { entry: before, next_at, in_group: before.key == entry.key });
            }
        }
        if before.is_none() {
            self.first = entry;
            self.body.reserve_exact(PAGE_MAX_BYTES);
            self.body.resize(HEADER_BYTES, 0);
        }
        let distance = match before {
            Some(before) if before.key == entry.key => {
                self.body[self.newest_at] |= 1;
                let step = height.get() - self.kind.height_of(before.position).get();
                if self.kind == RunKind::TxId { step } else { step - 1 }
            }
            before => {
                put_varint(&mut self.body, before.map_or(0, |before| entry.key - before.key));
                height.get() - self.base.get()
            }
        };
        self.newest_at = self.body.len();
        put_varint(&mut self.body, distance << 1);
        if self.kind == RunKind::TxId {
            put_varint(&mut self.body, u64::from(self.kind.tx_index_of(entry.position)));
        }
        self.entries += 1;
        self.last = Some(entry);
        Ok(full)
    }

    /// The last page; `None` where nothing is left. More entries may follow.
    pub fn finish(&mut self) -> Option<StoredPage> {
        let last = self.last.filter(|_| self.entries > 0)?;
        let header =
            PageHeader { kind: self.kind, entries: self.entries, base: self.base, first: self.first, last };
        self.entries = 0;
        let page = seal(&header, std::mem::take(&mut self.body), &self.restarts);
        self.restarts.clear();
        Some(page)
    }

    /// How many entries wait for their page.
    pub fn waiting(&self) -> u32 {
        self.entries
    }
}

/// A run whose pages are all in memory.
#[derive(Debug, Clone)]
pub struct BuiltRun {
    /// Which index.
    pub kind: RunKind,
    /// The heights that it covers, also those without an entry.
    pub heights: HeightRange,
    /// How many entries it has.
    pub entries: u64,
    /// Its pages in order; none where there is no entry.
    pub pages: Vec<StoredPage>,
}

impl BuiltRun {
    /// The bytes of its pages.
    pub fn bytes(&self) -> u64 {
        self.pages.iter().map(|page| page.data.len() as u64).sum()
    }
}

/// Collects the entries of a batch in any order and makes a run of them.
#[derive(Debug)]
pub struct RunBuilder {
    kind: RunKind,
    heights: HeightRange,
    entries: Vec<Entry>,
}

impl RunBuilder {
    /// A run over `heights`.
    pub fn new(kind: RunKind, heights: HeightRange) -> Self {
        RunBuilder { kind, heights, entries: Vec::new() }
    }

    /// Adds an entry; `tx_index` counts for [`RunKind::TxId`] only. A repeated entry is kept once.
    pub fn push(&mut self, key: IndexKey, height: Height, tx_index: u32) -> Result<()> {
        if !self.heights.contains(height) {
            return Err(StoreError::Invalid(format!(
                "index entry at height {height} lies outside its run {}",
                self.heights
            )));
        }
        self.entries.push(Entry { key, position: self.kind.position(height, tx_index)? });
        Ok(())
    }

    /// Sorts and encodes.
    pub fn finish(mut self) -> Result<BuiltRun> {
        self.entries.sort_unstable();
        self.entries.dedup();
        let mut writer = PageWriter::new(self.kind, self.heights.start());
        let mut pages = Vec::new();
        for entry in &self.entries {
            pages.extend(writer.push(*entry)?);
        }
        pages.extend(writer.finish());
        Ok(BuiltRun { kind: self.kind, heights: self.heights, entries: self.entries.len() as u64, pages })
    }
}
