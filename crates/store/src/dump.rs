//! The canonical dump: what two stores that hold the same chain have in common, byte for byte.
//!
//! # Lines
//!
//! Each line is `name = value`; a name is a path. Heights have 20 digits, indexes 10, keys 16 hex digits, ids `0x` and 64, so that
//! sorting lines as text sorts them by number. A byte part is written `LENGTH hex BYTES` up to 32 bytes and
//! `LENGTH sha256 DIGEST` above; an absent one `none`.
//!
//! ```text
//! block/HEIGHT = id ID parent ID time_ms N txs N logs N unverified N
//! block/HEIGHT/header = PART           and body, receipts, extras, traces
//! block/HEIGHT/tx/INDEX = id ID sender PART status failed|ok|unknown
//! filled/HEIGHT = to HEIGHT            an unbroken run of rows above the tip: first and last height
//! head/chain = N                       and first = HEIGHT|none, tip and finalized = HEIGHT ID|none
//! index/block-id/KEY = HEIGHT          and index/log-term/KEY
//! index/tx-id/KEY = HEIGHT INDEX
//! ```
//!
//! Rows and entries whose heights wait for a purge are orphans already (see [`PendingPurge`](crate::PendingPurge)) and are left out;
//! everything else is in, also what lies above the head or below the first height, so that an entry that outlived its row shows.
//! The same entry stored twice makes two lines.

use std::fmt::Write as _;

use async_trait::async_trait;
use cairn_core::{BlockRef, Height, HeightRange, IndexKey, StoredBlock, TxStatus};
use sha2::{Digest, Sha256};

use crate::runs::RunKind;
use crate::{HeadRow, Result};

/// Byte parts up to this length are written out; longer ones by their digest.
const HEX_BYTES: usize = 32;

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
    /// Everything that it holds, filled ranges above the head included; made with [`DumpBuilder`].
    async fn dump(&self) -> Result<Dump>;
}

/// Makes the lines of a dump, the same for every backend. Rows and entries may come in any order.
#[derive(Debug)]
pub struct DumpBuilder {
    lines: Vec<String>,
    /// The heights that are orphans already.
    orphans: HeightRange,
    tip: Option<Height>,
    above_tip: Vec<Height>,
}

impl DumpBuilder {
    /// Begins with the head row's marks.
    pub fn new(head: &HeadRow) -> Self {
        let place = |mark: Option<BlockRef>| {
            mark.map_or_else(|| "none".to_owned(), |block| format!("{:020} {}", block.height.get(), block.id))
        };
        let first = head.first.map_or_else(|| "none".to_owned(), |first| format!("{:020}", first.get()));
        DumpBuilder {
            lines: vec![
                format!("head/chain = {}", head.info.chain_id),
                format!("head/first = {first}"),
                format!("head/tip = {}", place(head.tip)),
                format!("head/finalized = {}", place(head.finalized)),
            ],
            orphans: head
                .pending_purge
                .map_or(HeightRange::new(Height::ZERO, Height::ZERO), |purge| purge.orphans),
            tip: head.tip.map(|tip| tip.height),
            above_tip: Vec::new(),
        }
    }

    /// A block that was read with all its parts.
    pub fn block(&mut self, block: &StoredBlock) {
        let facts = &block.facts;
        if self.orphans.contains(facts.height) {
            return;
        }
        if self.tip.is_none_or(|tip| facts.height > tip) {
            self.above_tip.push(facts.height);
        }
        let name = format!("block/{:020}", facts.height.get());
        self.lines.push(format!(
            "{name} = id {} parent {} time_ms {} txs {} logs {} unverified {}",
            facts.id, facts.parent_id, facts.timestamp_ms, facts.tx_count, facts.log_count, facts.unverified
        ));
        for (part, bytes) in [
            ("header", Some(&block.header)),
            ("body", Some(&block.body)),
            ("receipts", Some(&block.receipts)),
            ("extras", Some(&block.extras)),
            ("traces", block.traces.as_ref()),
        ] {
            let value = bytes.map_or_else(|| "none".to_owned(), |bytes| part_value(bytes));
            self.lines.push(format!("{name}/{part} = {value}"));
        }
        for (index, tx) in block.transactions.iter().enumerate() {
            let status = match tx.status {
                TxStatus::Failed => "failed",
                TxStatus::Ok => "ok",
                TxStatus::Unknown => "unknown",
            };
            self.lines.push(format!(
                "{name}/tx/{index:010} = id {} sender {} status {status}",
                tx.id,
                part_value(&tx.sender)
            ));
        }
    }

    /// An index entry; `tx_index` is written for transactions only. Not bounded by the head: every entry that is stored.
    pub fn index_entry(&mut self, kind: RunKind, key: IndexKey, height: Height, tx_index: u32) {
        if self.orphans.contains(height) {
            return;
        }
        let (kind_name, index) = match kind {
            RunKind::BlockId => ("block-id", String::new()),
            RunKind::TxId => ("tx-id", format!(" {tx_index:010}")),
            RunKind::LogTerm => ("log-term", String::new()),
        };
        self.lines.push(format!("index/{kind_name}/{key:016x} = {:020}{index}", height.get()));
    }

    /// Sorts and hands out the lines.
    pub fn finish(mut self) -> Dump {
        self.above_tip.sort_unstable();
        for run in self.above_tip.chunk_by(|a, b| a.next() == *b) {
            let (first, last) = (run[0], run[run.len() - 1]);
            self.lines.push(format!("filled/{:020} = to {:020}", first.get(), last.get()));
        }
        self.lines.sort_unstable();
        Dump { lines: self.lines }
    }
}

fn part_value(bytes: &[u8]) -> String {
    let mut value = bytes.len().to_string();
    // Writing to a string can't fail.
    let _ = if bytes.len() <= HEX_BYTES {
        write!(value, " hex {}", hex::encode(bytes))
    } else {
        write!(value, " sha256 {}", hex::encode(Sha256::digest(bytes)))
    };
    value
}
