//! Looking keys up in one run, and intersecting the terms of a log query.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use cairn_core::{Height, HeightRange, IndexKey};

use super::{Entry, Page, PageSource, Position, RunKind, corrupt};
use crate::Result;

/// Looks keys up in one run. Remembers the page that it read last, so that ascending keys which share a page read it once.
pub struct Lookup<'a> {
    kind: RunKind,
    source: &'a dyn PageSource,
    last: RefCell<Option<Page>>,
}

impl<'a> Lookup<'a> {
    /// Looks into the run behind `source`.
    pub fn new(kind: RunKind, source: &'a dyn PageSource) -> Self {
        Lookup { kind, source, last: RefCell::new(None) }
    }

    /// Up to `limit` positions of `key` within `from..=to`, ascending.
    pub fn positions(
        &self,
        key: IndexKey,
        from: Position,
        to: Position,
        limit: usize,
    ) -> Result<Vec<Position>> {
        let mut postings = Postings::new(key, to);
        let mut found = Vec::new();
        let mut at = from;
        while found.len() < limit
            && let Some(position) = postings.seek(self, at)?
        {
            found.push(position);
            at = position + 1;
        }
        Ok(found)
    }

    /// The page in which `entry` would stand.
    fn at_or_before(&self, entry: Entry) -> Result<Option<Page>> {
        // The next page begins above the last entry of this one, so between its ends no other page can be meant.
        let known = self.last.borrow().clone().filter(|page| page.first <= entry && entry <= page.last);
        if known.is_some() {
            return Ok(known);
        }
        self.keep(self.source.at_or_before(entry.place())?)
    }

    fn after(&self, entry: Entry) -> Result<Option<Page>> {
        self.keep(self.source.after(entry.place())?)
    }

    fn keep(&self, stored: Option<super::StoredPage>) -> Result<Option<Page>> {
        let page = stored.map(|stored| Page::open(self.kind, stored)).transpose()?;
        if page.is_some() {
            self.last.replace(page.clone());
        }
        Ok(page)
    }
}

/// The positions of one key, read page by page and only where they are asked for.
struct Postings {
    key: IndexKey,
    /// The highest position that counts.
    to: Position,
    /// What was read last, ascending.
    buffer: Vec<Position>,
    at: usize,
    /// Whether nothing follows the buffer.
    ended: bool,
    /// How many positions are read at once: few after a leap, more and more while they are read one after the other.
    at_once: usize,
}

/// The fewest and the most positions that are read at once.
const AT_ONCE: (usize, usize) = (16, 4_096);

/// Who asks for a position not further on than this reads one after the other.
const NEAR: Position = 256;

impl Postings {
    fn new(key: IndexKey, to: Position) -> Self {
        Postings { key, to, buffer: Vec::new(), at: 0, ended: false, at_once: AT_ONCE.0 }
    }

    /// The lowest position that is not below `from`. Calls must come with a growing `from`.
    fn seek(&mut self, run: &Lookup<'_>, from: Position) -> Result<Option<Position>> {
        if self.buffer.last().is_none_or(|last| *last < from) {
            if self.ended || from > self.to {
                return Ok(None);
            }
            self.load(run, from)?;
        }
        self.at += self.buffer[self.at..].partition_point(|position| *position < from);
        Ok(self.buffer.get(self.at).copied())
    }

    fn load(&mut self, run: &Lookup<'_>, from: Position) -> Result<()> {
        let is_near = self.buffer.last().is_some_and(|last| from - last <= NEAR);
        self.at_once = if is_near { (self.at_once * 4).min(AT_ONCE.1) } else { AT_ONCE.0 };
        self.buffer.clear();
        self.at = 0;
        let target = Entry { key: self.key, position: from };
        let next = match run.at_or_before(target)? {
            Some(page) => {
                if target <= page.last {
                    self.read(&page, from)?;
                }
                self.ended = self.is_past(page.last) && self.buffer.len() < self.at_once;
                if self.ended || !self.buffer.is_empty() {
                    return Ok(());
                }
                run.after(page.first)?
            }
            None => run.after(target)?,
        };
        match next {
            Some(page) if page.first <= target => return Err(corrupt("two pages of a run overlap")),
            Some(page) if !self.is_past(page.first) => {
                self.read(&page, from)?;
                self.ended = self.is_past(page.last) && self.buffer.len() < self.at_once;
            }
            _ => self.ended = true,
        }
        Ok(())
    }

    fn read(&mut self, page: &Page, from: Position) -> Result<()> {
        page.positions(self.key, from, self.to, self.at_once, &mut self.buffer)
    }

    /// Whether nothing that counts can follow `entry`.
    fn is_past(&self, entry: Entry) -> bool {
        entry > Entry { key: self.key, position: self.to }
    }
}

/// The union of a group's terms.
struct Group {
    postings: Vec<Postings>,
    /// The next position of each term that has one, lowest first; empty before the first seek.
    heads: BinaryHeap<Reverse<(Position, usize)>>,
    started: bool,
}

impl Group {
    fn new(terms: &[IndexKey], to: Position) -> Self {
        // Sorted, so that terms which share a page are looked up one after the other.
        let mut terms = terms.to_vec();
        terms.sort_unstable();
        terms.dedup();
        let postings = terms.into_iter().map(|term| Postings::new(term, to)).collect();
        Group { postings, heads: BinaryHeap::new(), started: false }
    }

    fn seek(&mut self, run: &Lookup<'_>, from: Position) -> Result<Option<Position>> {
        if !self.started {
            self.started = true;
            for (term, postings) in self.postings.iter_mut().enumerate() {
                self.heads.extend(postings.seek(run, from)?.map(|position| Reverse((position, term))));
            }
        }
        while let Some(Reverse((position, term))) = self.heads.peek().copied() {
            if position >= from {
                return Ok(Some(position));
            }
            self.heads.pop();
            self.heads.extend(self.postings[term].seek(run, from)?.map(|next| Reverse((next, term))));
        }
        Ok(None)
    }
}

/// Up to `limit` heights in `range`, ascending, at which every group has one of its terms. `source` is a run of
/// [`RunKind::LogTerm`]; at least one group is given.
///
/// Groups leap over each other: each is only asked for its next height at or above the highest that another one has reached. So the cost
/// is that of the rarest group's heights and one page for each in the others; not the width of the range, nor the number of a common
/// term's heights. Groups of few terms are asked first, and where one has none in this run the others are not read.
pub fn candidates(
    source: &dyn PageSource,
    groups: &[Vec<IndexKey>],
    range: HeightRange,
    limit: usize,
) -> Result<Vec<Height>> {
    let kind = RunKind::LogTerm;
    let run = Lookup::new(kind, source);
    let Some(last) = range.last() else { return Ok(Vec::new()) };
    let to = kind.first_position(last);
    let mut groups: Vec<Group> = groups.iter().map(|terms| Group::new(terms, to)).collect();
    groups.sort_by_key(|group| group.postings.len());

    let mut found = Vec::new();
    let mut at = kind.first_position(range.start());
    while found.len() < limit && !groups.is_empty() {
        // How many groups in a row have a term exactly at `at`.
        let mut agreed = 0;
        let mut turn = 0;
        while agreed < groups.len() {
            match groups[turn].seek(&run, at)? {
                None => return Ok(found),
                Some(position) if position == at => agreed += 1,
                Some(position) => {
                    at = position;
                    agreed = 1;
                }
            }
            turn = (turn + 1) % groups.len();
        }
        found.push(kind.height_of(at));
        at += 1;
    }
    Ok(found)
}
