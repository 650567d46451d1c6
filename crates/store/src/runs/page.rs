//! The encoding of a page. Persisted: a change needs a new version byte.
//!
//! ```text
//!  0       version, 1
//!  1       kind (RunKind)
//!  2..6    CRC-32 of bytes 0..2 and 6.., big-endian like every number of the header
//!  6..10   how many entries, at least 1
//! 10..18   base height: no entry's height is below it
//! 18..34   first entry: key, position
//! 34..50   last entry: key, position
//! 50..52   how many restarts
//! 52..     entries, grouped by key; every number a LEB128 varint:
//!          key − the key before (0 for the first group), then for each position of the group
//!            distance << 1 | (1 where another position of the same group follows)
//!            transaction index, for TxId only
//! end       restarts of 18 bytes: an entry's key and position, and where the next one begins, counted from the page's
//!           start; its highest bit says that the next one belongs to the same group
//! ```
//!
//! The distance is the height less the base height for a group's first position, and for the others the height less the one before;
//! less 1 more where the kind has no transaction index, since heights can't repeat there. A group that is cut by a page's
//! end goes on in the next page as a new group with the same key. Restarts, one for about every [`RESTART_BYTES`] of entries, let a
//! reader who looks for one key begin near it.

use bytes::Bytes;
use cairn_core::{Height, IndexKey};

use super::{Entry, MAX_HEIGHT, MAX_TXS_PER_BLOCK, Position, RunKind, StoredPage, TX_INDEX_BITS, corrupt};
use crate::Result;

/// The encoding that this program writes.
pub const PAGE_VERSION: u8 = 1;

pub(super) const HEADER_BYTES: usize = 52;

/// How many bytes of entries lie between restarts, about.
pub(super) const RESTART_BYTES: usize = 512;

/// The bytes of one restart.
pub(super) const RESTART_ENTRY_BYTES: usize = 18;

/// In a restart's offset: the next entry has the same key.
const IN_GROUP: u16 = 1 << 15;

/// The longest varint of a 64-bit number.
pub(super) const MAX_VARINT_BYTES: usize = 10;

/// A page whose checksum and header hold.
#[derive(Debug, Clone)]
pub struct Page {
    /// Which index it belongs to.
    pub kind: RunKind,
    /// Its first entry, which is its address.
    pub first: Entry,
    /// Its last entry.
    pub last: Entry,
    /// How many entries it has.
    pub entries: u32,
    base: u64,
    /// Where the entries end and the restarts begin.
    entries_end: usize,
    data: Bytes,
}

/// A place in a page at which reading can begin: after `entry`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restart {
    pub(super) entry: Entry,
    pub(super) next_at: usize,
    pub(super) in_group: bool,
}

impl Restart {
    fn read(page: &[u8], at: usize) -> Restart {
        let offset = be_u16(page, at + 16);
        Restart {
            entry: Entry { key: be_u64(page, at), position: be_u64(page, at + 8) },
            next_at: usize::from(offset & !IN_GROUP),
            in_group: offset & IN_GROUP != 0,
        }
    }

    fn write(&self, page: &mut Vec<u8>) {
        page.extend_from_slice(&self.entry.place());
        let flag = if self.in_group { IN_GROUP } else { 0 };
        page.extend_from_slice(&(self.next_at as u16 | flag).to_be_bytes());
    }
}

impl Page {
    /// Checks the checksum, the header and the address.
    pub fn open(kind: RunKind, stored: StoredPage) -> Result<Page> {
        let data = stored.data;
        if data.len() < HEADER_BYTES {
            return Err(corrupt(format!("a page of {} bytes is shorter than its header", data.len())));
        }
        if data[0] != PAGE_VERSION {
            return Err(corrupt(format!("page version {} is unknown", data[0])));
        }
        if data[1] != kind as u8 {
            return Err(corrupt(format!("a page of kind {} where {kind:?} was expected", data[1])));
        }
        if checksum(&data).to_be_bytes() != data[2..6] {
            return Err(corrupt("a page's checksum does not match its bytes"));
        }
        let restarts = usize::from(be_u16(&data, 50)) * RESTART_ENTRY_BYTES;
        let entries_end = data.len().checked_sub(restarts).filter(|end| *end > HEADER_BYTES);
        let entries_end = entries_end.ok_or_else(|| corrupt("a page is shorter than its restarts"))?;
        let entry = |at: usize| Entry { key: be_u64(&data, at), position: be_u64(&data, at + 8) };
        let page = Page {
            kind,
            first: entry(18),
            last: entry(34),
            entries: be_u32(&data, 6),
            base: be_u64(&data, 10),
            entries_end,
            data,
        };
        if page.first.place() != stored.place {
            return Err(corrupt("a page stands under another page's address"));
        }
        if page.entries == 0 || page.last < page.first {
            return Err(corrupt("a page's header contradicts itself"));
        }
        Ok(page)
    }

    /// Reads its entries from the start.
    pub fn reader(&self) -> PageReader {
        PageReader {
            page: self.clone(),
            at: HEADER_BYTES,
            left: Some(self.entries),
            restart_at: self.entries_end,
            key: self.first.key,
            position: 0,
            in_group: false,
        }
    }

    /// The last restart at or below `entry`.
    fn restart_before(&self, entry: Entry) -> Option<Restart> {
        let restart = |n: usize| Restart::read(&self.data, self.entries_end + n * RESTART_ENTRY_BYTES);
        let (mut low, mut high) = (0, (self.data.len() - self.entries_end) / RESTART_ENTRY_BYTES);
        while low < high {
            let middle = low.midpoint(high);
            if restart(middle).entry <= entry { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1).map(restart)
    }

    /// Adds up to `limit` positions of `key` within `from..=to` to `out`, ascending.
    pub fn positions(
        &self,
        key: IndexKey,
        from: Position,
        to: Position,
        limit: usize,
        out: &mut Vec<Position>,
    ) -> Result<()> {
        let most = out.len().saturating_add(limit);
        let target = Entry { key, position: from };
        let mut reader = self.reader();
        if let Some(restart) = self.restart_before(target) {
            if restart.entry == target && from <= to {
                out.push(from);
            }
            reader.begin_at(restart);
        }
        while out.len() < most
            && let Some(entry) = reader.next_entry()?
        {
            if entry.key > key || (entry.key == key && entry.position > to) {
                break;
            }
            if entry.key == key && entry.position >= from {
                out.push(entry.position);
            }
        }
        Ok(())
    }
}

/// Reads a page's entries in order, and checks that they are in order.
#[derive(Debug, Clone)]
pub struct PageReader {
    page: Page,
    at: usize,
    /// How many entries follow; unknown after a restart.
    left: Option<u32>,
    /// The next restart, which is checked when it is reached.
    restart_at: usize,
    key: IndexKey,
    position: Position,
    in_group: bool,
}

impl PageReader {
    /// The next entry; `None` at the end.
    pub fn next_entry(&mut self) -> Result<Option<Entry>> {
        let is_first = self.left == Some(self.page.entries);
        if self.at >= self.page.entries_end || self.left == Some(0) {
            let is_whole = self.at == self.page.entries_end && self.left.is_none_or(|left| left == 0);
            if self.in_group || !is_whole {
                return Err(corrupt("a page holds more or less than its header says"));
            }
            return Ok(None);
        }
        if self.left.is_some() {
            self.check_restart()?;
        }
        let kind = self.page.kind;
        let before = if self.in_group { Some(self.position) } else { None };
        if !self.in_group {
            let step = self.varint()?;
            if is_first != (step == 0) {
                return Err(corrupt("a page's keys are not ascending"));
            }
            self.key = self.key.checked_add(step).ok_or_else(|| corrupt("a page's key overflows"))?;
        }
        let head = self.varint()?;
        self.in_group = head & 1 == 1;
        let base = match before {
            None => self.page.base,
            Some(before) if kind == RunKind::TxId => kind.height_of(before).get(),
            Some(before) => before + 1,
        };
        let height = base.checked_add(head >> 1).filter(|height| *height <= MAX_HEIGHT);
        let height = height.ok_or_else(|| corrupt("a page's height is out of range"))?;
        self.position = match kind {
            RunKind::TxId => {
                let index = self.varint()?;
                if index >= u64::from(MAX_TXS_PER_BLOCK) {
                    return Err(corrupt("a page's transaction index is out of range"));
                }
                height << TX_INDEX_BITS | index
            }
            RunKind::BlockId | RunKind::LogTerm => height,
        };
        if before.is_some_and(|before| self.position <= before) {
            return Err(corrupt("a page's positions are not ascending"));
        }
        let entry = Entry { key: self.key, position: self.position };
        if is_first && entry != self.page.first {
            return Err(corrupt("a page's first entry is not the one in its header"));
        }
        self.left = self.left.map(|left| left - 1);
        if self.at >= self.page.entries_end && entry != self.page.last {
            return Err(corrupt("a page's last entry is not the one in its header"));
        }
        Ok(Some(entry))
    }

    /// Goes on after a restart's entry.
    fn begin_at(&mut self, restart: Restart) {
        self.at = restart.next_at;
        self.left = None;
        self.key = restart.entry.key;
        self.position = restart.entry.position;
        self.in_group = restart.in_group;
    }

    /// Who reads a page from its start finds out whether its restarts say the truth.
    fn check_restart(&mut self) -> Result<()> {
        if self.restart_at == self.page.data.len() {
            return Ok(());
        }
        let restart = Restart::read(&self.page.data, self.restart_at);
        if self.at < restart.next_at {
            return Ok(());
        }
        let entry = Entry { key: self.key, position: self.position };
        let reached = Restart { entry, next_at: self.at, in_group: self.in_group };
        if self.at == HEADER_BYTES || restart != reached {
            return Err(corrupt("a page's restarts contradict its entries"));
        }
        self.restart_at += RESTART_ENTRY_BYTES;
        Ok(())
    }

    /// The page that is read.
    pub fn page(&self) -> &Page {
        &self.page
    }

    fn varint(&mut self) -> Result<u64> {
        let bytes = self.page.data.get(self.at..self.page.entries_end).unwrap_or_default();
        let mut value = 0_u64;
        for (i, byte) in bytes.iter().enumerate().take(MAX_VARINT_BYTES) {
            // The tenth byte has room for one bit.
            if i == MAX_VARINT_BYTES - 1 && *byte > 1 {
                break;
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte & 0x80 == 0 {
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(corrupt("a page ends inside a number, or a number is too long"))
    }
}

/// What a writer knows of a page when it closes it.
pub(super) struct PageHeader {
    pub(super) kind: RunKind,
    pub(super) entries: u32,
    pub(super) base: Height,
    pub(super) first: Entry,
    pub(super) last: Entry,
}

/// Puts the header in front of `body`, in which [`HEADER_BYTES`] were left free, and the restarts behind it.
pub(super) fn seal(header: &PageHeader, mut body: Vec<u8>, restarts: &[Restart]) -> StoredPage {
    for restart in restarts {
        restart.write(&mut body);
    }
    body[0] = PAGE_VERSION;
    body[1] = header.kind as u8;
    body[6..10].copy_from_slice(&header.entries.to_be_bytes());
    body[10..18].copy_from_slice(&header.base.get().to_be_bytes());
    body[18..34].copy_from_slice(&header.first.place());
    body[34..50].copy_from_slice(&header.last.place());
    body[50..52].copy_from_slice(&(restarts.len() as u16).to_be_bytes());
    let sum = checksum(&body);
    body[2..6].copy_from_slice(&sum.to_be_bytes());
    StoredPage { place: header.first.place(), data: body.into() }
}

pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn checksum(page: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&page[..2]);
    hasher.update(&page[6..]);
    hasher.finalize()
}

fn be_u64(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(out)
}

fn be_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be_u32(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(out)
}
