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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cairn_core::{BlockFacts, BlockId, ChainId, Parts, RawBlock, TxFacts, TxId};

    use super::*;
    use crate::suite::blocks::as_stored;
    use crate::{PendingPurge, StoreInfo};

    fn block(height: u64) -> StoredBlock {
        let facts = BlockFacts {
            height: Height(height),
            id: BlockId([height as u8; 32]),
            parent_id: BlockId([0xaa; 32]),
            timestamp_ms: 7_000,
            tx_count: 1,
            log_count: 2,
            unverified: 3,
        };
        let tx =
            TxFacts { id: TxId([0xbb; 32]), sender: Bytes::from_static(&[1, 2]), status: TxStatus::Unknown };
        let block = RawBlock {
            facts,
            transactions: vec![tx],
            header: Bytes::from_static(b"head"),
            body: Bytes::from(vec![5; 33]),
            receipts: Bytes::new(),
            extras: Bytes::from(vec![6; 32]),
            traces: None,
            log_terms: vec![],
        };
        as_stored(&block, Parts::all())
    }

    fn head() -> HeadRow {
        let mut head =
            HeadRow::new(StoreInfo { uuid: [9; 16], chain_id: ChainId(5), chain_config: Bytes::new() });
        head.first = Some(Height(3));
        head.tip = Some(block(4).facts.block_ref());
        head
    }

    #[test]
    fn the_lines_are_as_documented() {
        let mut dump = DumpBuilder::new(&head());
        for height in [7, 3, 6, 9] {
            dump.block(&block(height));
        }
        dump.index_entry(RunKind::TxId, 0xab, Height(3), 2);
        dump.index_entry(RunKind::LogTerm, 0xcd, Height(3), 0);
        dump.index_entry(RunKind::BlockId, u64::MAX, Height(3), 0);
        let lines = dump.finish().lines;
        assert!(lines.is_sorted());
        let id = |byte: &str| format!("0x{}", byte.repeat(32));
        let expected = [
            format!(
                "block/00000000000000000003 = id {} parent {} time_ms 7000 txs 1 logs 2 unverified 3",
                id("03"),
                id("aa")
            ),
            format!("block/00000000000000000003/body = 33 sha256 {}", hex::encode(Sha256::digest([5; 33]))),
            format!("block/00000000000000000003/extras = 32 hex {}", "06".repeat(32)),
            "block/00000000000000000003/header = 4 hex 68656164".into(),
            "block/00000000000000000003/receipts = 0 hex ".into(),
            "block/00000000000000000003/traces = none".into(),
            format!(
                "block/00000000000000000003/tx/0000000000 = id {} sender 2 hex 0102 status unknown",
                id("bb")
            ),
        ];
        assert_eq!(lines[..7], expected);
        let rest: Vec<&String> = lines.iter().filter(|line| !line.starts_with("block/")).collect();
        assert_eq!(
            rest,
            [
                "filled/00000000000000000006 = to 00000000000000000007",
                "filled/00000000000000000009 = to 00000000000000000009",
                "head/chain = 5",
                "head/finalized = none",
                "head/first = 00000000000000000003",
                &format!("head/tip = 00000000000000000004 {}", id("04")),
                "index/block-id/ffffffffffffffff = 00000000000000000003",
                "index/log-term/00000000000000cd = 00000000000000000003",
                "index/tx-id/00000000000000ab = 00000000000000000003 0000000002",
            ]
        );
    }

    #[test]
    fn what_waits_for_a_purge_is_left_out() {
        let mut head = head();
        let clean = DumpBuilder::new(&head).finish();
        let orphans = HeightRange::new(Height(5), Height(7));
        head.pending_purge = Some(PendingPurge { reorg_id: 1, orphans });
        let mut dump = DumpBuilder::new(&head);
        dump.block(&block(5));
        dump.index_entry(RunKind::LogTerm, 1, Height(6), 0);
        assert_eq!(dump.finish(), clean);
    }

    #[test]
    fn the_first_difference_names_both_sides() {
        let (head, mut dump) = (head(), DumpBuilder::new(&head()));
        dump.index_entry(RunKind::LogTerm, 1, Height(3), 0);
        let (short, long) = (DumpBuilder::new(&head).finish(), dump.finish());
        assert_eq!(short.first_difference(&short), None);
        let line = "index/log-term/0000000000000001 = 00000000000000000003".to_owned();
        assert_eq!(short.first_difference(&long), Some(("(no line)".into(), line)));
    }
}
