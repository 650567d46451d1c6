//! Blocks as rows: checked, cut and compressed outside of any transaction, sent by binary COPY.
//!
//! What rows are made of is settled before the transaction begins. The rows' bytes are put together on a thread that may block, one table ahead of
//! the one that the server is taking: so the batch is never in memory a second time as a whole, and the server seldom waits.

use std::sync::Arc;

use bytes::Bytes;
use cairn_core::HeightRange;
use cairn_core::{BlockRef, EvmLookup, Height, IndexKey, RawBlock, Slices};
use cairn_store::layout::{self, Cut};
use cairn_store::runs::{BuiltRun, RunBuilder, RunKind};
use cairn_store::{PayloadRef, Result, StoreError, check_batch};
use tokio::sync::mpsc::{Receiver, Sender};

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
    pub(super) async fn write(self: &Arc<Self>, tx: &Tx, stored: &[Height]) -> Result<()> {
        self.send(tx, stored, true).await
    }

    /// Writes all blocks and their lookups, but no index entries: repair.
    pub(super) async fn write_rows(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        self.send(tx, &[], false).await
    }

    async fn send(self: &Arc<Self>, tx: &Tx, stored: &[Height], with_runs: bool) -> Result<()> {
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        let (batch, stored) = (self.clone(), stored.to_vec());
        let making = tokio::task::spawn_blocking(move || batch.make(&stored, with_runs, &sender));
        let sent = self.receive(tx, receiver).await;
        // After an error too: the thread, which ends at its next table, holds the batch.
        let made =
            making.await.map_err(|error| StoreError::Database(format!("the rows were not made: {error}")));
        sent?;
        made?
    }

    async fn receive(&self, tx: &Tx, mut receiver: Receiver<Made>) -> Result<()> {
        while let Some(made) = receiver.recv().await {
            match made {
                Made::Rows(table, rows) => {
                    tx.copy_heights(table.name(), table.columns(), self.heights(), rows).await?;
                }
                Made::Run(run) => runs::insert_run(tx, &run, 0).await?,
            }
        }
        Ok(())
    }

    fn make(&self, stored: &[Height], with_runs: bool, sender: &Sender<Made>) -> Result<()> {
        let is_new = |encoded: &&EncodedBlock| stored.binary_search(&encoded.block.facts.height).is_err();
        let new: Vec<&EncodedBlock> = self.blocks.iter().filter(is_new).collect();
        for table in Table::IN_ORDER {
            let rows = table.rows(&new, &self.objects);
            // Nobody listens where the transaction has failed.
            if !rows.is_empty() && sender.blocking_send(Made::Rows(table, rows)).is_err() {
                return Ok(());
            }
        }
        // A run for each stretch of new blocks, so that no height is ever in two runs.
        let stretches = new.chunk_by(|a, b| a.block.facts.height.next() == b.block.facts.height);
        for stretch in stretches.filter(|_| with_runs) {
            if let Some(run) = build_run(stretch)?
                && sender.blocking_send(Made::Run(run)).is_err()
            {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// What goes to the server next.
enum Made {
    Rows(Table, CopyBuf),
    Run(BuiltRun),
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

/// The tables that blocks' rows go to.
#[derive(Debug, Clone, Copy)]
enum Table {
    Blocks,
    Transactions,
    Events,
    BlockLookup,
    TxLookup,
    EvmLookup,
}

impl Table {
    const IN_ORDER: [Table; 6] = [
        Table::Blocks,
        Table::Transactions,
        Table::Events,
        Table::BlockLookup,
        Table::TxLookup,
        Table::EvmLookup,
    ];

    const fn name(self) -> &'static str {
        match self {
            Table::Blocks => "blocks",
            Table::Transactions => "transactions",
            Table::Events => "events",
            Table::BlockLookup => "block_lookup",
            Table::TxLookup => "tx_lookup",
            Table::EvmLookup => "evm_lookup",
        }
    }

    /// In the order in which rows have them.
    const fn columns(self) -> &'static str {
        match self {
            Table::Blocks => {
                "height, timestamp_ms, tx_count, event_count, unverified, body_bytes, receipts_bytes, \
                 extras_bytes, traces_bytes, id, parent_id, header, body, receipts, layout, extras, traces"
            }
            Table::Transactions => {
                "block_height, transaction_index, event_count, status, id, sender, body, result, \
                 payload_hash, payload_ref"
            }
            Table::Events => {
                "block_height, event_index, transaction_index, transaction_id, payload, payload_hash, payload_ref"
            }
            Table::BlockLookup => "height, timestamp_ms, id",
            Table::TxLookup => "block_height, tx_index, timestamp_ms, id, block_id",
            Table::EvmLookup => "height, evm_index, evm_hash, tx_id",
        }
    }

    /// The rows of these blocks, sorted by the table's key: neighbours land on the same page of its index, and ascending heights at its end.
    fn rows(self, blocks: &[&EncodedBlock], objects: &[PayloadRef]) -> CopyBuf {
        let mut rows = CopyBuf::new();
        match self {
            Table::Blocks => blocks.iter().for_each(|encoded| block_row(&mut rows, encoded)),
            Table::Transactions => {
                blocks.iter().for_each(|encoded| transaction_rows(&mut rows, encoded, objects));
            }
            Table::Events => blocks.iter().for_each(|encoded| event_rows(&mut rows, encoded, objects)),
            Table::BlockLookup => block_lookup_rows(&mut rows, blocks),
            Table::TxLookup => tx_lookup_rows(&mut rows, blocks),
            Table::EvmLookup => evm_lookup_rows(&mut rows, blocks),
        }
        rows
    }
}

fn block_row(rows: &mut CopyBuf, encoded: &EncodedBlock) {
    let block = &encoded.block;
    let facts = &block.facts;
    rows.row(17)
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

fn transaction_rows(rows: &mut CopyBuf, encoded: &EncodedBlock, objects: &[PayloadRef]) {
    let block = &encoded.block;
    let height = sql(block.facts.height);
    let mut order: Vec<usize> = (0..block.transactions.len()).collect();
    order.sort_unstable_by_key(|index| (block.transactions[*index].id, *index));
    for index in order {
        let facts = &block.transactions[index];
        let piece = encoded.pieces.as_ref().and_then(|pieces| pieces.transactions.get(index));
        let row = rows.row(10);
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

fn event_rows(rows: &mut CopyBuf, encoded: &EncodedBlock, objects: &[PayloadRef]) {
    let Some(pieces) = &encoded.pieces else { return };
    let block = &encoded.block;
    let id = |event: &EventPiece| {
        block.transactions.get(event.tx_index as usize).map(|tx| tx.id).unwrap_or_default()
    };
    let mut order: Vec<usize> = (0..pieces.events.len()).collect();
    order.sort_unstable_by_key(|index| (id(&pieces.events[*index]), *index));
    for index in order {
        let event = &pieces.events[index];
        let row = rows.row(7);
        row.i64(sql(block.facts.height)).i64(index as i64).i64(i64::from(event.tx_index)).bytea(&id(event).0);
        inline(row, &event.payload);
        reference(row, &event.payload, objects);
    }
}

fn block_lookup_rows(rows: &mut CopyBuf, blocks: &[&EncodedBlock]) {
    let mut ids: Vec<&RawBlock> = blocks.iter().map(|encoded| &encoded.block).collect();
    ids.sort_unstable_by_key(|block| block.facts.id);
    for block in ids {
        rows.row(3)
            .i64(sql(block.facts.height))
            .i64(block.facts.timestamp_ms as i64)
            .bytea(&block.facts.id.0);
    }
}

fn tx_lookup_rows(rows: &mut CopyBuf, blocks: &[&EncodedBlock]) {
    let mut txs: Vec<(&[u8; 32], &RawBlock, usize)> = blocks
        .iter()
        .flat_map(|encoded| {
            let block = &encoded.block;
            block.transactions.iter().enumerate().map(move |(index, tx)| (&tx.id.0, block, index))
        })
        .collect();
    txs.sort_unstable_by_key(|(id, block, index)| (*id, block.facts.height, *index));
    for (id, block, index) in txs {
        rows.row(5)
            .i64(sql(block.facts.height))
            .i64(index as i64)
            .i64(block.facts.timestamp_ms as i64)
            .bytea(id)
            .bytea(&block.facts.id.0);
    }
}

fn evm_lookup_rows(rows: &mut CopyBuf, blocks: &[&EncodedBlock]) {
    let mut evm: Vec<(&EvmLookup, &RawBlock)> = blocks
        .iter()
        .filter_map(|encoded| Some((encoded.pieces.as_ref()?, &encoded.block)))
        .flat_map(|(pieces, block)| pieces.evm_lookups.iter().map(move |lookup| (lookup, block)))
        .collect();
    evm.sort_unstable_by_key(|(lookup, block)| (lookup.evm_hash, block.facts.height, lookup.evm_index));
    for (lookup, block) in evm {
        let tx = block.transactions.get(lookup.tx_index as usize).map(|tx| tx.id).unwrap_or_default();
        rows.row(4)
            .i64(sql(block.facts.height))
            .i64(i64::from(lookup.evm_index))
            .bytea(&lookup.evm_hash)
            .bytea(&tx.0);
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
