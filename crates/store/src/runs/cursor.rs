//! Walking a run in order, one page in memory at a time.

use cairn_core::HeightRange;

use super::{Entry, Page, PageReader, Place, RunKind, StoredPage, corrupt};
use crate::Result;

/// The pages of one run, by address. Both verbs are one seek.
pub trait PageSource {
    /// The page with the highest address that is not above `place`.
    fn at_or_before(&self, place: Place) -> Result<Option<StoredPage>>;

    /// The page with the lowest address above `place`.
    fn after(&self, place: Place) -> Result<Option<StoredPage>>;
}

impl PageSource for Vec<StoredPage> {
    fn at_or_before(&self, place: Place) -> Result<Option<StoredPage>> {
        let above = self.partition_point(|page| page.place <= place);
        Ok(above.checked_sub(1).map(|at| self[at].clone()))
    }

    fn after(&self, place: Place) -> Result<Option<StoredPage>> {
        Ok(self.get(self.partition_point(|page| page.place <= place)).cloned())
    }
}

/// Reads the entries of a run in order.
pub struct RunCursor<'a> {
    kind: RunKind,
    /// Entries outside belong to heights that were cut off the run.
    heights: HeightRange,
    source: &'a dyn PageSource,
    reader: Option<PageReader>,
    /// Where the cursor has to be put before its first entry: the entry that it follows.
    begin: Option<Option<Entry>>,
}

impl<'a> RunCursor<'a> {
    /// Begins with the first entry above `after`, or with the very first. Entries outside `heights`, which the run covers, are
    /// passed over: a reorg cuts a run by lowering the end of its heights, and leaves its pages as they are.
    pub fn new(
        kind: RunKind,
        heights: HeightRange,
        source: &'a dyn PageSource,
        after: Option<Entry>,
    ) -> Self {
        RunCursor { kind, heights, source, reader: None, begin: Some(after) }
    }

    /// The next entry; `None` at the end of the run.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        if let Some(after) = self.begin.take() {
            return self.first_entry(after);
        }
        loop {
            let Some(reader) = &mut self.reader else { return Ok(None) };
            if let Some(entry) = reader.next_entry()? {
                if self.heights.contains(self.kind.height_of(entry.position)) {
                    return Ok(Some(entry));
                }
                continue;
            }
            let last = reader.page().last;
            let next = self.source.after(reader.page().first.place())?;
            self.open(next)?;
            if self.reader.as_ref().is_some_and(|reader| reader.page().first <= last) {
                return Err(corrupt("two pages of a run overlap"));
            }
        }
    }

    fn first_entry(&mut self, after: Option<Entry>) -> Result<Option<Entry>> {
        let place = after.map_or([0; 16], Entry::place);
        let first = match self.source.at_or_before(place)? {
            Some(page) => Some(page),
            None => self.source.after(place)?,
        };
        self.open(first)?;
        while let Some(entry) = self.next_entry()? {
            if after.is_none_or(|after| entry > after) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    fn open(&mut self, page: Option<StoredPage>) -> Result<()> {
        self.reader = page.map(|page| Page::open(self.kind, page)).transpose()?.map(|page| page.reader());
        Ok(())
    }
}
