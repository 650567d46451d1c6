//! Blocks as rows: cut, compressed and sent by binary COPY.
//!
//! The rows are made on a thread that may block, a few pieces ahead of what the server is taking: it cuts and compresses a block when its first
//! row is due. So the server seldom waits, and the batch is never in memory a second time as a whole. Where bytes go to object storage, and where
//! transactions have scripts, the whole batch is cut before its transaction begins, since objects and scripts come before rows.

mod table;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cairn_core::HeightRange;
use cairn_core::{
    BlockLayout, BlockRef, Collection, EvmLookup, Height, IndexKey, PartKind, RawBlock, Slices, TxDetails,
};
use cairn_store::layout::{self, Cut};
use cairn_store::runs::{BuiltRun, RunBuilder, RunKind};
use cairn_store::{PayloadRef, Result, StoreError, check_batch};
use tokio::sync::mpsc::{Receiver, Sender};

use super::pack::Packer;
use super::scripts::{ScriptHash, script_hash};
use super::tx::Tx;
use super::{Shared, runs};
use crate::postgres::CopyBuf;
use table::{Table, transaction_rows};

/// How many pieces of rows are ready at most while the server takes another one.
const PIECES_AHEAD: usize = 16;

/// A batch as its rows will be.
pub(super) struct EncodedBatch {
    pub(super) blocks: Vec<EncodedBlock>,
    layout: Arc<dyn BlockLayout>,
    compression_level: i32,
    /// Bytes that are too long for a row.
    large: Vec<Bytes>,
    /// The objects that hold them, once they were uploaded.
    objects: Vec<PayloadRef>,
    /// Whether a transaction's result is among them: seldom, so that the rows of all others need no column for it.
    has_large_results: bool,
}

/// A block with what its rows are made of.
pub(super) struct EncodedBlock {
    pub(super) block: RawBlock,
    /// Made when the first row needs it.
    parts: OnceLock<BlockParts>,
}

/// What a block's rows are made of.
struct BlockParts {
    /// `None` where its bytes can't be cut.
    pieces: Option<Pieces>,
    /// Packed: whole, or the skeletons.
    body: Option<Piece>,
    receipts: Option<Piece>,
    layout: Option<Vec<u8>>,
    extras: Option<Piece>,
    traces: Option<Piece>,
}

struct Pieces {
    transactions: Vec<TxPiece>,
    events: Vec<EventPiece>,
    evm_lookups: Vec<EvmLookup>,
    /// One for each transaction, or none.
    details: Vec<TxDetails>,
    collections: Vec<Collection>,
    /// The extras, where they are such a result, and its name.
    execution_result: Option<([u8; 32], Piece)>,
}

struct TxPiece {
    body: Piece,
    script: Option<(ScriptHash, Bytes)>,
    /// `None` where they stayed in the body.
    arguments: Option<Vec<Bytes>>,
    result: Piece,
    event_count: u32,
}

struct EventPiece {
    index: u32,
    payload: Piece,
}

/// Bytes of a row: in it, or the batch's so-manieth object.
enum Piece {
    Inline(Bytes),
    Object(usize),
}

/// Sets bytes apart that are too long for a row.
struct Apart<'a> {
    inline_max_bytes: Option<u64>,
    large: &'a mut Vec<Bytes>,
}

impl Apart<'_> {
    fn piece(&mut self, bytes: Bytes) -> Piece {
        if self.inline_max_bytes.is_some_and(|max| bytes.len() as u64 > max) {
            self.large.push(bytes);
            Piece::Object(self.large.len() - 1)
        } else {
            Piece::Inline(bytes)
        }
    }

    fn packed(&mut self, bytes: Option<Vec<u8>>) -> Option<Piece> {
        bytes.map(|bytes| self.piece(bytes.into()))
    }
}

impl EncodedBatch {
    /// Checks a batch, which needs no database. Where there is object storage, bytes of more than `payload_inline_max_bytes` are set apart.
    pub(super) fn new(batch: Vec<RawBlock>, shared: &Shared) -> Result<Self> {
        check_batch(&batch)?;
        for block in &batch {
            // What the index can't tell apart must not be stored, whatever this block has to be found by.
            RunKind::TxId.position(block.facts.height, block.facts.tx_count.saturating_sub(1))?;
        }
        let options = &shared.options;
        let blocks = batch.into_iter().map(|block| EncodedBlock { block, parts: OnceLock::new() }).collect();
        let mut encoded = EncodedBatch {
            blocks,
            layout: options.layout.clone(),
            compression_level: options.compression_level,
            large: Vec::new(),
            objects: Vec::new(),
            has_large_results: false,
        };
        if shared.payloads.is_some() || encoded.has_scripts() {
            let mut packer = Packer::new(options.compression_level)?;
            let max = shared.payloads.as_ref().map(|_| options.payload_inline_max_bytes);
            for encoded_block in &encoded.blocks {
                encoded_block.parts(&*encoded.layout, &mut packer, max, &mut encoded.large)?;
            }
        }
        let parts = encoded.blocks.iter().filter_map(|block| block.parts.get()?.pieces.as_ref());
        encoded.has_large_results = parts
            .flat_map(|pieces| &pieces.transactions)
            .any(|transaction| matches!(transaction.result, Piece::Object(_)));
        Ok(encoded)
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

    fn has_scripts(&self) -> bool {
        self.layout.has_scripts()
    }

    /// The scripts of its transactions, which have to be stored before the rows are written.
    pub(super) fn scripts(&self) -> BTreeMap<ScriptHash, Bytes> {
        let parts = self.blocks.iter().filter_map(|block| block.parts.get()?.pieces.as_ref());
        let scripts = parts.flat_map(|pieces| pieces.transactions.iter().filter_map(|tx| tx.script.clone()));
        scripts.collect()
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
    /// transactions, events, collections, results, lookups, blocks, runs; and of keys in each (P02).
    pub(super) async fn write(self: &Arc<Self>, tx: &Tx, stored: &[Height]) -> Result<()> {
        self.send(tx, stored, true).await
    }

    /// Writes all blocks and their lookups, but no index entries: repair.
    pub(super) async fn write_rows(self: &Arc<Self>, tx: &Tx) -> Result<()> {
        self.send(tx, &[], false).await
    }

    async fn send(self: &Arc<Self>, tx: &Tx, stored: &[Height], with_runs: bool) -> Result<()> {
        let (sender, receiver) = tokio::sync::mpsc::channel(PIECES_AHEAD);
        let (batch, stored) = (self.clone(), stored.to_vec());
        let making = tokio::task::spawn_blocking(move || batch.make(&stored, with_runs, &sender));
        let sent = self.receive(tx, receiver).await;
        // After an error too: the thread, which ends at its next piece, holds the batch.
        let made =
            making.await.map_err(|error| StoreError::Database(format!("the rows were not made: {error}")))?;
        // What stopped the thread stopped the sending too, and is the better word.
        match (made, sent) {
            (Err(error), _) => Err(error),
            (Ok(_), sent) => sent,
        }
    }

    async fn receive(&self, tx: &Tx, mut receiver: Receiver<Made>) -> Result<()> {
        while let Some(made) = receiver.recv().await {
            match made {
                Made::Rows(table) => self.receive_rows(tx, table, &mut receiver).await?,
                Made::Run(run) => runs::insert_run(tx, &run, 0).await?,
                Made::Piece(_) | Made::End(_) => return Err(out_of_order()),
            }
        }
        Ok(())
    }

    /// One table's rows; where they end too early the statement fails, and the transaction with it.
    async fn receive_rows(&self, tx: &Tx, table: Table, receiver: &mut Receiver<Made>) -> Result<()> {
        let columns = table.columns(self.has_scripts(), self.has_large_results);
        let mut copy = tx.begin_copy_heights(table.name(), columns, self.heights()).await?;
        loop {
            match receiver.recv().await {
                Some(Made::Piece(piece)) => copy.send(piece).await?,
                Some(Made::End(rows)) => return copy.finish(rows).await,
                Some(Made::Rows(_) | Made::Run(_)) | None => return Err(out_of_order()),
            }
        }
    }

    fn make(&self, stored: &[Height], with_runs: bool, sender: &Sender<Made>) -> Result<()> {
        let is_new = |encoded: &&EncodedBlock| stored.binary_search(&encoded.block.facts.height).is_err();
        let new: Vec<&EncodedBlock> = self.blocks.iter().filter(is_new).collect();
        let mut packer = Packer::new(self.compression_level)?;
        let mut parts = Vec::with_capacity(new.len());
        let mut rows = Rows::new(Table::Transactions, sender);
        for encoded in &new {
            // Nothing is set apart here: where something may be, that was done already.
            let made = encoded.parts(&*self.layout, &mut packer, None, &mut Vec::new())?;
            parts.push(Block {
                block: &encoded.block,
                parts: made,
                with_details: self.has_scripts(),
                with_result_refs: self.has_large_results,
            });
            transaction_rows(rows.buf(), &parts[parts.len() - 1], &self.objects);
            if !rows.send_full() {
                return Ok(());
            }
        }
        if !rows.end() {
            return Ok(());
        }
        for table in Table::AFTER_TRANSACTIONS {
            let mut rows = Rows::new(table, sender);
            if !(table.rows(&mut rows, &parts, &self.objects) && rows.end()) {
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

fn out_of_order() -> StoreError {
    StoreError::Database("rows ended before their table did".into())
}

/// What goes to the server next.
enum Made {
    /// A table's rows begin.
    Rows(Table),
    /// Some of them.
    Piece(Bytes),
    /// They end; how many there were.
    End(u64),
    Run(BuiltRun),
}

/// The rows of one table on their way. What it answers `false` to found nobody who listens: the transaction has failed.
struct Rows<'a> {
    table: Table,
    buf: CopyBuf,
    begun: bool,
    sender: &'a Sender<Made>,
}

impl<'a> Rows<'a> {
    fn new(table: Table, sender: &'a Sender<Made>) -> Self {
        Rows { table, buf: CopyBuf::new(), begun: false, sender }
    }

    fn buf(&mut self) -> &mut CopyBuf {
        &mut self.buf
    }

    fn begin(&mut self) -> bool {
        let begun = self.begun || self.sender.blocking_send(Made::Rows(self.table)).is_ok();
        self.begun = true;
        begun
    }

    /// Sends what is full.
    fn send_full(&mut self) -> bool {
        while let Some(piece) = self.buf.take_full() {
            if !(self.begin() && self.sender.blocking_send(Made::Piece(piece)).is_ok()) {
                return false;
            }
        }
        true
    }

    /// Sends the rest; nothing where there was no row.
    fn end(mut self) -> bool {
        let rows = self.buf.rows();
        if rows == 0 {
            return true;
        }
        if !self.begin() {
            return false;
        }
        let mut pieces = self.buf.finish().into_iter();
        pieces.all(|piece| self.sender.blocking_send(Made::Piece(piece)).is_ok())
            && self.sender.blocking_send(Made::End(rows)).is_ok()
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

/// A block and what its rows are made of.
struct Block<'a> {
    block: &'a RawBlock,
    parts: &'a BlockParts,
    /// Whether rows of transactions have the columns of [`TxDetails`].
    with_details: bool,
    /// Whether they have the column for results that are elsewhere.
    with_result_refs: bool,
}

impl EncodedBlock {
    /// What its rows are made of, made now if it wasn't before.
    fn parts(
        &self,
        layout: &dyn BlockLayout,
        packer: &mut Packer,
        inline_max_bytes: Option<u64>,
        large: &mut Vec<Bytes>,
    ) -> Result<&BlockParts> {
        if let Some(parts) = self.parts.get() {
            return Ok(parts);
        }
        let parts =
            BlockParts::new(&self.block, layout.slices(&self.block), packer, inline_max_bytes, large)?;
        Ok(self.parts.get_or_init(|| parts))
    }
}

impl BlockParts {
    fn new(
        block: &RawBlock,
        mut slices: Option<Slices>,
        packer: &mut Packer,
        inline_max_bytes: Option<u64>,
        large: &mut Vec<Bytes>,
    ) -> Result<Self> {
        let whole = slices
            .as_mut()
            .map(|slices| keep_what_has_no_place(block, slices, inline_max_bytes))
            .unwrap_or_default();
        let cut = slices.as_ref().and_then(|slices| layout::cut(block, slices));
        let mut pack = |bytes: &[u8]| if bytes.is_empty() { Ok(None) } else { packer.pack(bytes).map(Some) };
        let (body, receipts, layout) = match &cut {
            Some(cut) => (pack(&cut.body_skeleton)?, pack(&cut.receipts_skeleton)?, pack(&cut.layout)?),
            None => (pack(&block.body)?, pack(&block.receipts)?, None),
        };
        let is_result =
            cut.is_some() && slices.as_ref().is_some_and(|slices| slices.execution_result.is_some());
        let extras = if is_result { None } else { pack(&block.extras)? };
        let traces = block.traces.as_ref().map(|traces| packer.pack(traces)).transpose()?;
        let mut apart = Apart { inline_max_bytes, large };
        let pieces = match (cut, slices) {
            (Some(cut), Some(slices)) => Some(pieces(block, cut, slices, &whole, &mut apart)),
            _ => None,
        };
        Ok(BlockParts {
            pieces,
            body: apart.packed(body),
            receipts: apart.packed(receipts),
            layout,
            extras: apart.packed(extras),
            traces: apart.packed(traces),
        })
    }
}

/// Leaves in the body what the columns can't take: scripts that are no text for PostgreSQL, and arguments that are too long for a row. Returns the
/// transactions whose arguments stay there.
fn keep_what_has_no_place(
    block: &RawBlock,
    slices: &mut Slices,
    inline_max_bytes: Option<u64>,
) -> BTreeSet<u32> {
    let mut argument_bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for part in slices.parts.iter().filter(|part| part.kind == PartKind::Argument) {
        *argument_bytes.entry(part.tx_index).or_default() += part.range.len() as u64;
    }
    argument_bytes.retain(|_, bytes| inline_max_bytes.is_some_and(|max| *bytes > max));
    let long: BTreeSet<u32> = argument_bytes.into_keys().collect();
    slices.parts.retain(|part| match part.kind {
        PartKind::Script => block
            .body
            .get(part.range.clone())
            .is_some_and(|bytes| std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0)),
        PartKind::Argument => !long.contains(&part.tx_index),
    });
    long
}

/// Cuts a text for people that is too long for a row, and says so at its end: the whole one is in the result.
fn cut_error(error: &mut String, inline_max_bytes: Option<u64>) {
    const MARK: &str = "…";
    let Some(max) =
        inline_max_bytes.and_then(|max| usize::try_from(max).ok()).filter(|max| error.len() > *max)
    else {
        return;
    };
    let mut end = max.saturating_sub(MARK.len());
    while !error.is_char_boundary(end) {
        end -= 1;
    }
    error.truncate(end);
    error.push_str(MARK);
}

/// The cut's pieces as handles on the block's own bytes; those that are too long are set apart.
fn pieces(
    block: &RawBlock,
    cut: Cut<'_>,
    slices: Slices,
    whole_arguments: &BTreeSet<u32>,
    apart: &mut Apart<'_>,
) -> Pieces {
    let has_arguments = |index| !slices.details.is_empty() && !whole_arguments.contains(&index);
    let transactions = (0u32..)
        .zip(cut.transactions)
        .map(|(index, tx)| TxPiece {
            body: match tx.body {
                Cow::Borrowed(part) => apart.piece(block.body.slice_ref(part)),
                Cow::Owned(own) => apart.piece(own.into()),
            },
            script: tx.script.map(|script| (script_hash(script), block.body.slice_ref(script))),
            arguments: has_arguments(index)
                .then(|| tx.arguments.iter().map(|argument| block.body.slice_ref(argument)).collect()),
            result: apart.piece(tx.result.into()),
            event_count: tx.event_count,
        })
        .collect();
    let events = cut
        .events
        .into_iter()
        .map(|event| EventPiece {
            index: event.index,
            payload: apart.piece(block.receipts.slice_ref(event.payload)),
        })
        .collect();
    let execution_result = slices.execution_result.map(|id| (id, apart.piece(block.extras.clone())));
    let mut details = slices.details;
    for error in details.iter_mut().filter_map(|details| details.error.as_mut()) {
        cut_error(error, apart.inline_max_bytes);
    }
    Pieces {
        transactions,
        events,
        evm_lookups: slices.evm_lookups,
        details,
        collections: slices.collections,
        execution_result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_too_long_for_a_row_is_cut_between_characters_and_marked() {
        let cut = |text: &str, max| {
            let mut text = text.to_owned();
            cut_error(&mut text, max);
            text
        };
        assert_eq!(cut("panic: out of gas", Some(17)), "panic: out of gas");
        assert_eq!(cut("panic: out of gas", Some(10)), "panic: …");
        assert_eq!(cut("\u{20ac}\u{20ac}\u{20ac}", Some(8)), "\u{20ac}…");
        assert_eq!(cut("panic", Some(0)), "…");
        assert_eq!(cut("panic: out of gas", None), "panic: out of gas");
    }
}
