//! Blocks as rows: encoded outside of any transaction, sent by binary COPY.

use bytes::Bytes;
use cairn_core::HeightRange;
use cairn_core::{BlockRef, EvmLookup, Height, IndexKey, RawBlock, Slices};
use cairn_store::layout::{self, Cut};
use cairn_store::runs::{BuiltRun, RunBuilder, RunKind};
use cairn_store::{PayloadRef, Result, check_batch};

use super::head::sql;
use super::pack::Packer;
use super::tx::Tx;
use super::{Shared, runs};
use crate::postgres::CopyBuf;

/// A batch as its rows will be.
pub(super) struct EncodedBatch {
    pub(super) blocks: Vec<EncodedBlock>,
    /// Bytes that are too long for a row, in the order of their rows.
    large: Vec<Bytes>,
    /// The objects that hold them, once they were uploaded.
    objects: Vec<PayloadRef>,
}

/// A block with what its rows are made of.
pub(super) struct EncodedBlock {
    pub(super) block: RawBlock,
    /// `None` where its bytes can't be cut.
    pieces: Option<Pieces>,
    /// Packed: whole, or the skeletons.
    body: Option<Vec<u8>>,
    receipts: Option<Vec<u8>>,
    layout: Option<Vec<u8>>,
    extras: Option<Vec<u8>>,
    traces: Option<Vec<u8>>,
}

struct Pieces {
    transactions: Vec<TxPiece>,
    events: Vec<EventPiece>,
    evm_lookups: Vec<EvmLookup>,
}

struct TxPiece {
    body: Piece,
    result: Vec<u8>,
    event_count: u32,
}

struct EventPiece {
    tx_index: u32,
    payload: Piece,
}

/// Bytes of a row: in it, or the batch's so-manieth object.
enum Piece {
    Inline(Bytes),
    Object(usize),
}

impl EncodedBatch {
    /// Checks, cuts and compresses: all that needs no database. Bytes of more than `inline_max_bytes` are set apart where it is given.
    pub(super) fn new(batch: Vec<RawBlock>, shared: &Shared) -> Result<Self> {
        check_batch(&batch)?;
        let options = &shared.options;
        let inline_max = shared.payloads.as_ref().map(|_| options.payload_inline_max_bytes);
        let mut packer = Packer::new(options.compression_level)?;
        let mut large = Vec::new();
        let mut blocks = Vec::with_capacity(batch.len());
        for block in batch {
            let slices = options.layout.slices(&block);
            blocks.push(EncodedBlock::new(block, slices, &mut packer, inline_max, &mut large)?);
        }
        Ok(EncodedBatch { blocks, large, objects: Vec::new() })
    }

    pub(super) fn first(&self) -> &RawBlock {
        // `check_batch` refuses an empty one.
        &self.blocks[0].block
    }

    pub(super) fn last(&self) -> BlockRef {
        self.blocks[self.blocks.len() - 1].block.block_ref()
    }

    pub(super) fn heights(&self) -> HeightRange {
        HeightRange::inclusive(self.first().facts.height, self.last().height)
    }

    /// The batch's own block at a height.
    pub(super) fn at(&self, height: Height) -> Option<BlockRef> {
        let at = height.get().checked_sub(self.first().facts.height.get())?;
        self.blocks.get(usize::try_from(at).ok()?).map(|encoded| encoded.block.block_ref())
    }

    /// What has to be in object storage before the rows are written.
    pub(super) fn large(&self) -> &[Bytes] {
        &self.large
    }

    /// Says where the large bytes are.
    pub(super) fn set_objects(&mut self, objects: Vec<PayloadRef>) {
        self.objects = objects;
    }

    /// The objects that its rows refer to.
    pub(super) fn objects(&self) -> &[PayloadRef] {
        &self.objects
    }

    /// Writes the blocks that are not among `stored` (ascending), with their lookups and index entries. One order of tables for all writers:
    /// blocks, transactions, events, lookups, runs; and of keys in each (P02).
    pub(super) async fn write(&self, tx: &Tx, stored: &[Height]) -> Result<()> {
        let is_new = |encoded: &&EncodedBlock| stored.binary_search(&encoded.block.facts.height).is_err();
        let new: Vec<&EncodedBlock> = self.blocks.iter().filter(is_new).collect();
        self.copy(tx, &new).await?;
        // A run for each stretch of new blocks, so that no height is ever in two runs.
        for stretch in new.chunk_by(|a, b| a.block.facts.height.next() == b.block.facts.height) {
            if let Some(run) = build_run(stretch)? {
                runs::insert_run(tx, &run, 0).await?;
            }
        }
        Ok(())
    }

    /// Writes all blocks and their lookups, but no index entries: repair.
    pub(super) async fn write_rows(&self, tx: &Tx) -> Result<()> {
        let all: Vec<&EncodedBlock> = self.blocks.iter().collect();
        self.copy(tx, &all).await
    }

    async fn copy(&self, tx: &Tx, blocks: &[&EncodedBlock]) -> Result<()> {
        let rows = Rows::of(blocks, &self.objects);
        tx.copy_in(COPY_BLOCKS, rows.blocks).await?;
        tx.copy_in(COPY_TRANSACTIONS, rows.transactions).await?;
        tx.copy_in(COPY_EVENTS, rows.events).await?;
        tx.copy_in(COPY_BLOCK_LOOKUP, rows.block_lookup).await?;
        tx.copy_in(COPY_TX_LOOKUP, rows.tx_lookup).await?;
        tx.copy_in(COPY_EVM_LOOKUP, rows.evm_lookup).await
    }
}

/// The run of log terms of these consecutive blocks.
fn build_run(blocks: &[&EncodedBlock]) -> Result<Option<BuiltRun>> {
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return Ok(None) };
    let heights = HeightRange::inclusive(first.block.facts.height, last.block.facts.height);
    let mut terms = RunBuilder::new(RunKind::LogTerm, heights);
    for encoded in blocks {
        let term_of = |term: &IndexKey| (*term, encoded.block.facts.height);
        for (term, height) in encoded.block.log_terms.iter().map(term_of) {
            terms.push(term, height, 0)?;
        }
    }
    terms.finish().map(Some)
}

impl EncodedBlock {
    fn new(
        block: RawBlock,
        slices: Option<Slices>,
        packer: &mut Packer,
        inline_max_bytes: Option<u64>,
        large: &mut Vec<Bytes>,
    ) -> Result<Self> {
        // What the index can't tell apart must not be stored, whatever this block has to be found by.
        RunKind::TxId.position(block.facts.height, block.facts.tx_count.saturating_sub(1))?;
        let cut = slices.as_ref().and_then(|slices| layout::cut(&block, slices));
        let mut pack = |bytes: &[u8]| if bytes.is_empty() { Ok(None) } else { packer.pack(bytes).map(Some) };
        let (body, receipts, layout) = match &cut {
            Some(cut) => (pack(&cut.body_skeleton)?, pack(&cut.receipts_skeleton)?, pack(&cut.layout)?),
            None => (pack(&block.body)?, pack(&block.receipts)?, None),
        };
        let extras = pack(&block.extras)?;
        let traces = block.traces.as_ref().map(|traces| packer.pack(traces)).transpose()?;
        let pieces = match (cut, slices) {
            (Some(cut), Some(slices)) => Some(pieces(&block, cut, slices, inline_max_bytes, large)),
            _ => None,
        };
        Ok(EncodedBlock { block, pieces, body, receipts, layout, extras, traces })
    }
}

/// The cut's pieces as handles on the block's own bytes; those that are too long are set apart.
fn pieces(
    block: &RawBlock,
    cut: Cut<'_>,
    slices: Slices,
    inline_max_bytes: Option<u64>,
    large: &mut Vec<Bytes>,
) -> Pieces {
    let mut piece = |whole: &Bytes, part: &[u8]| {
        let bytes = whole.slice_ref(part);
        if inline_max_bytes.is_some_and(|max| bytes.len() as u64 > max) {
            large.push(bytes);
            Piece::Object(large.len() - 1)
        } else {
            Piece::Inline(bytes)
        }
    };
    let transactions = cut
        .transactions
        .into_iter()
        .map(|tx| TxPiece {
            body: piece(&block.body, tx.body),
            result: tx.result,
            event_count: tx.event_count,
        })
        .collect();
    let events = cut
        .events
        .into_iter()
        .map(|event| EventPiece { tx_index: event.tx_index, payload: piece(&block.receipts, event.payload) })
        .collect();
    Pieces { transactions, events, evm_lookups: slices.evm_lookups }
}

const COPY_BLOCKS: &str = "COPY raw.blocks (height, timestamp_ms, tx_count, event_count, unverified, body_bytes, \
    receipts_bytes, extras_bytes, traces_bytes, id, parent_id, header, body, receipts, layout, extras, traces) \
    FROM STDIN (FORMAT binary)";
const COPY_TRANSACTIONS: &str = "COPY raw.transactions (block_height, transaction_index, event_count, status, id, \
    sender, body, result, payload_hash, payload_ref) FROM STDIN (FORMAT binary)";
const COPY_EVENTS: &str = "COPY raw.events (block_height, event_index, transaction_index, transaction_id, payload, \
    payload_hash, payload_ref) FROM STDIN (FORMAT binary)";
const COPY_BLOCK_LOOKUP: &str = "COPY raw.block_lookup (height, timestamp_ms, id) FROM STDIN (FORMAT binary)";
const COPY_TX_LOOKUP: &str =
    "COPY raw.tx_lookup (block_height, tx_index, timestamp_ms, id, block_id) FROM STDIN (FORMAT binary)";
const COPY_EVM_LOOKUP: &str =
    "COPY raw.evm_lookup (height, evm_index, evm_hash, tx_id) FROM STDIN (FORMAT binary)";

/// The rows of some blocks, by table.
struct Rows {
    blocks: CopyBuf,
    transactions: CopyBuf,
    events: CopyBuf,
    block_lookup: CopyBuf,
    tx_lookup: CopyBuf,
    evm_lookup: CopyBuf,
}

impl Rows {
    fn of(blocks: &[&EncodedBlock], objects: &[PayloadRef]) -> Rows {
        let mut rows = Rows {
            blocks: CopyBuf::new(),
            transactions: CopyBuf::new(),
            events: CopyBuf::new(),
            block_lookup: CopyBuf::new(),
            tx_lookup: CopyBuf::new(),
            evm_lookup: CopyBuf::new(),
        };
        for encoded in blocks {
            rows.block(encoded);
            rows.transactions(encoded, objects);
            rows.events(encoded, objects);
        }
        rows.lookups(blocks);
        rows
    }

    fn block(&mut self, encoded: &EncodedBlock) {
        let block = &encoded.block;
        let facts = &block.facts;
        self.blocks
            .row(17)
            .i64(sql(facts.height))
            .i64(facts.timestamp_ms as i64)
            .i64(i64::from(facts.tx_count))
            .i64(i64::from(facts.log_count))
            .i64(i64::from(facts.unverified))
            .i64(block.body.len() as i64)
            .i64(block.receipts.len() as i64)
            .i64(block.extras.len() as i64)
            .i64(block.traces.as_ref().map_or(0, Bytes::len) as i64)
            .bytea(&facts.id.0)
            .bytea(&facts.parent_id.0)
            .bytea(&block.header)
            .bytea_opt(encoded.body.as_deref())
            .bytea_opt(encoded.receipts.as_deref())
            .bytea_opt(encoded.layout.as_deref())
            .bytea_opt(encoded.extras.as_deref())
            .bytea_opt(encoded.traces.as_deref());
    }

    fn transactions(&mut self, encoded: &EncodedBlock, objects: &[PayloadRef]) {
        let block = &encoded.block;
        let height = sql(block.facts.height);
        for (index, facts) in block.transactions.iter().enumerate() {
            let piece = encoded.pieces.as_ref().and_then(|pieces| pieces.transactions.get(index));
            let row = self.transactions.row(10);
            row.i64(height)
                .i64(index as i64)
                .i64(piece.map_or(0, |piece| i64::from(piece.event_count)))
                .i16(facts.status as i16)
                .bytea(&facts.id.0)
                .bytea(&facts.sender);
            match piece {
                None => row.null().null().null().null(),
                Some(piece) => {
                    inline(row, &piece.body);
                    row.bytea(&piece.result);
                    reference(row, &piece.body, objects)
                }
            };
        }
    }

    fn events(&mut self, encoded: &EncodedBlock, objects: &[PayloadRef]) {
        let Some(pieces) = &encoded.pieces else { return };
        let block = &encoded.block;
        for (index, event) in pieces.events.iter().enumerate() {
            let id = block.transactions.get(event.tx_index as usize).map(|tx| tx.id).unwrap_or_default();
            let row = self.events.row(7);
            row.i64(sql(block.facts.height)).i64(index as i64).i64(i64::from(event.tx_index)).bytea(&id.0);
            inline(row, &event.payload);
            reference(row, &event.payload, objects);
        }
    }

    /// Sorted by their keys: neighbours land on the same pages of the index.
    fn lookups(&mut self, blocks: &[&EncodedBlock]) {
        let mut ids: Vec<&RawBlock> = blocks.iter().map(|encoded| &encoded.block).collect();
        ids.sort_unstable_by_key(|block| block.facts.id);
        for block in ids {
            self.block_lookup
                .row(3)
                .i64(sql(block.facts.height))
                .i64(block.facts.timestamp_ms as i64)
                .bytea(&block.facts.id.0);
        }

        let mut txs: Vec<(&[u8; 32], &RawBlock, usize)> = blocks
            .iter()
            .flat_map(|encoded| {
                let block = &encoded.block;
                block.transactions.iter().enumerate().map(move |(index, tx)| (&tx.id.0, block, index))
            })
            .collect();
        txs.sort_unstable_by_key(|(id, block, index)| (*id, block.facts.height, *index));
        for (id, block, index) in txs {
            self.tx_lookup
                .row(5)
                .i64(sql(block.facts.height))
                .i64(index as i64)
                .i64(block.facts.timestamp_ms as i64)
                .bytea(id)
                .bytea(&block.facts.id.0);
        }

        let mut evm: Vec<(&EvmLookup, &RawBlock)> = blocks
            .iter()
            .filter_map(|encoded| Some((encoded.pieces.as_ref()?, &encoded.block)))
            .flat_map(|(pieces, block)| pieces.evm_lookups.iter().map(move |lookup| (lookup, block)))
            .collect();
        evm.sort_unstable_by_key(|(lookup, block)| (lookup.evm_hash, block.facts.height, lookup.evm_index));
        for (lookup, block) in evm {
            let tx = block.transactions.get(lookup.tx_index as usize).map(|tx| tx.id).unwrap_or_default();
            self.evm_lookup
                .row(4)
                .i64(sql(block.facts.height))
                .i64(i64::from(lookup.evm_index))
                .bytea(&lookup.evm_hash)
                .bytea(&tx.0);
        }
    }
}

fn inline(row: &mut CopyBuf, piece: &Piece) {
    match piece {
        Piece::Inline(bytes) => row.bytea(bytes),
        Piece::Object(_) => row.null(),
    };
}

fn reference<'a>(row: &'a mut CopyBuf, piece: &Piece, objects: &[PayloadRef]) -> &'a mut CopyBuf {
    let object = match piece {
        Piece::Inline(_) => None,
        Piece::Object(at) => objects.get(*at),
    };
    match object {
        Some(object) => row.bytea(object.hash.as_bytes()).text(&object.key()),
        None => row.null().null(),
    }
}
