//! Which table has which columns, and the rows of blocks in each, sorted by its key.

use bytes::Bytes;
use cairn_core::{Collection, EvmLookup, RawBlock, TxDetails, TxId};
use cairn_store::PayloadRef;

use super::{Block, EventPiece, Piece, Rows, TxPiece};
use crate::postgres::CopyBuf;
use crate::postgres::copy::without_nul;
use crate::postgres::raw::head::sql;

/// The tables that blocks' rows go to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Table {
    Blocks,
    Transactions,
    Events,
    Collections,
    ExecutionResults,
    BlockLookup,
    TxLookup,
    EvmLookup,
}

impl Table {
    /// The order after transactions, which come first: blocks are cut while they are sent.
    pub(super) const AFTER_TRANSACTIONS: [Table; 7] = [
        Table::Events,
        Table::Collections,
        Table::ExecutionResults,
        Table::BlockLookup,
        Table::TxLookup,
        Table::EvmLookup,
        Table::Blocks,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Table::Blocks => "blocks",
            Table::Transactions => "transactions",
            Table::Events => "events",
            Table::Collections => "collections",
            Table::ExecutionResults => "execution_results",
            Table::BlockLookup => "block_lookup",
            Table::TxLookup => "tx_lookup",
            Table::EvmLookup => "evm_lookup",
        }
    }

    /// In the order in which rows have them.
    pub(super) const fn columns(self, with_details: bool, with_result_refs: bool) -> &'static str {
        match self {
            Table::Blocks => {
                "height, timestamp_ms, tx_count, event_count, unverified, body_bytes, receipts_bytes, \
                 extras_bytes, traces_bytes, id, parent_id, header, body, receipts, layout, extras, traces, \
                 body_payload_ref, receipts_payload_ref, extras_payload_ref, traces_payload_ref"
            }
            Table::Transactions => match (with_details, with_result_refs) {
                (true, true) => {
                    "block_height, transaction_index, event_count, status, id, sender, body, result, \
                     payload_hash, payload_ref, script_hash, arguments, proposer, payer, authorizers, error, computation, \
                     result_payload_ref"
                }
                (true, false) => {
                    "block_height, transaction_index, event_count, status, id, sender, body, result, \
                     payload_hash, payload_ref, script_hash, arguments, proposer, payer, authorizers, error, computation"
                }
                (false, true) => {
                    "block_height, transaction_index, event_count, status, id, sender, body, result, \
                     payload_hash, payload_ref, result_payload_ref"
                }
                (false, false) => {
                    "block_height, transaction_index, event_count, status, id, sender, body, result, \
                     payload_hash, payload_ref"
                }
            },
            Table::Collections => "block_height, collection_index, transaction_count, id",
            Table::ExecutionResults => "block_height, id, block_id, payload, payload_hash, payload_ref",
            Table::Events => {
                "block_height, event_index, transaction_index, transaction_id, payload, payload_hash, payload_ref"
            }
            Table::BlockLookup => "height, timestamp_ms, id",
            Table::TxLookup => "block_height, tx_index, timestamp_ms, id, block_id",
            Table::EvmLookup => "height, evm_index, evm_hash, tx_id",
        }
    }

    /// Sends the rows of these blocks, sorted by the table's key: neighbours land on the same page of its index, and ascending heights at its end.
    /// `false` where nobody listens.
    pub(super) fn rows(self, rows: &mut Rows<'_>, blocks: &[Block<'_>], objects: &[PayloadRef]) -> bool {
        match self {
            Table::Blocks => blocks.iter().all(|block| {
                block_row(rows.buf(), block, objects);
                rows.send_full()
            }),
            Table::Transactions => blocks.iter().all(|block| {
                transaction_rows(rows.buf(), block, objects);
                rows.send_full()
            }),
            Table::Events => blocks.iter().all(|block| {
                event_rows(rows.buf(), block, objects);
                rows.send_full()
            }),
            Table::Collections => blocks.iter().all(|block| {
                collection_rows(rows.buf(), block);
                rows.send_full()
            }),
            Table::ExecutionResults => blocks.iter().all(|block| {
                execution_result_row(rows.buf(), block, objects);
                rows.send_full()
            }),
            Table::BlockLookup => {
                block_lookup_rows(rows.buf(), blocks);
                rows.send_full()
            }
            Table::TxLookup => {
                tx_lookup_rows(rows.buf(), blocks);
                rows.send_full()
            }
            Table::EvmLookup => {
                evm_lookup_rows(rows.buf(), blocks);
                rows.send_full()
            }
        }
    }
}

fn block_row(rows: &mut CopyBuf, Block { block, parts, .. }: &Block<'_>, objects: &[PayloadRef]) {
    let facts = &block.facts;
    let row = rows.row(21);
    row.i64(sql(facts.height))
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
        .bytea(&block.header);
    inline_opt(row, parts.body.as_ref());
    inline_opt(row, parts.receipts.as_ref());
    row.bytea_opt(parts.layout.as_deref());
    inline_opt(row, parts.extras.as_ref());
    inline_opt(row, parts.traces.as_ref());
    for part in [&parts.body, &parts.receipts, &parts.extras, &parts.traces] {
        key(row, part.as_ref(), objects);
    }
}

pub(super) fn transaction_rows(
    rows: &mut CopyBuf,
    Block { block, parts, with_details, with_result_refs }: &Block<'_>,
    objects: &[PayloadRef],
) {
    let height = sql(block.facts.height);
    for index in by_id(block) {
        let facts = &block.transactions[index];
        let piece = parts.pieces.as_ref().and_then(|pieces| pieces.transactions.get(index));
        let columns: i16 = if *with_details { 17 } else { 10 };
        let row = rows.row(columns + i16::from(*with_result_refs));
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
                inline(row, &piece.result);
                reference(row, &piece.body, objects)
            }
        };
        if *with_details {
            let details = parts.pieces.as_ref().and_then(|pieces| pieces.details.get(index));
            detail_columns(row, piece, details);
        }
        if *with_result_refs {
            key(row, piece.map(|piece| &piece.result), objects);
        }
    }
}

/// The columns of a transaction that other chains don't have.
fn detail_columns(row: &mut CopyBuf, piece: Option<&TxPiece>, details: Option<&TxDetails>) {
    row.bytea_opt(piece.and_then(|piece| piece.script.as_ref()).map(|(hash, _)| &hash[..]));
    match piece.and_then(|piece| piece.arguments.as_ref()) {
        Some(arguments) => row.bytea_array(arguments),
        None => row.null(),
    };
    let Some(details) = details else {
        row.null().null().null().null().null();
        return;
    };
    row.bytea(&details.proposer)
        .bytea(&details.payer)
        .bytea_array(&details.authorizers)
        .text_opt(details.error.as_deref().map(without_nul).as_deref());
    // What the column can't hold is in the result alone.
    match i64::try_from(details.computation) {
        Ok(computation) => row.i64(computation),
        Err(_) => row.null(),
    };
}

fn collection_rows(rows: &mut CopyBuf, Block { block, parts, .. }: &Block<'_>) {
    let Some(pieces) = &parts.pieces else { return };
    let mut order: Vec<(usize, &Collection)> = pieces.collections.iter().enumerate().collect();
    order.sort_unstable_by_key(|(index, collection)| (collection.id, *index));
    for (index, collection) in order {
        rows.row(4)
            .i64(sql(block.facts.height))
            .i64(index as i64)
            .i64(i64::from(collection.tx_count))
            .bytea(&collection.id);
    }
}

fn execution_result_row(rows: &mut CopyBuf, Block { block, parts, .. }: &Block<'_>, objects: &[PayloadRef]) {
    let result = parts.pieces.as_ref().and_then(|pieces| pieces.execution_result.as_ref());
    let Some((id, payload)) = result else { return };
    let row = rows.row(6);
    row.i64(sql(block.facts.height)).bytea(id).bytea(&block.facts.id.0);
    inline(row, payload);
    reference(row, payload, objects);
}

/// The events of a block that was cut lie by transaction, and their indexes grow within one (`cairn_store::layout::cut`).
fn event_rows(rows: &mut CopyBuf, Block { block, parts, .. }: &Block<'_>, objects: &[PayloadRef]) {
    let Some(pieces) = &parts.pieces else { return };
    let mut rest = &pieces.events[..];
    let events_of: Vec<&[EventPiece]> = pieces
        .transactions
        .iter()
        .map(|tx| rest.split_off(..tx.event_count as usize).unwrap_or_default())
        .collect();
    let height = sql(block.facts.height);
    // The transaction before that has events, and the index after its last one's.
    let mut last: Option<(&TxId, i64)> = None;
    for tx_index in by_id(block) {
        let Some((events, first)) =
            events_of.get(tx_index).and_then(|events| Some((events, events.first()?)))
        else {
            continue;
        };
        let id = &block.transactions[tx_index].id;
        // A block may name a transaction twice; where indexes begin anew in it, the second one's follow the first one's.
        let shift = match last {
            Some((last_id, next)) if last_id == id => (next - i64::from(first.index)).max(0),
            _ => 0,
        };
        let mut next = 0;
        for event in *events {
            let index = shift + i64::from(event.index);
            let row = rows.row(7);
            row.i64(height).i64(index).i64(tx_index as i64).bytea(&id.0);
            inline(row, &event.payload);
            reference(row, &event.payload, objects);
            next = index + 1;
        }
        last = Some((id, next));
    }
}

/// The indexes of a block's transactions, by id.
fn by_id(block: &RawBlock) -> Vec<usize> {
    let mut order: Vec<usize> = (0..block.transactions.len()).collect();
    order.sort_unstable_by_key(|index| (block.transactions[*index].id, *index));
    order
}

fn block_lookup_rows(rows: &mut CopyBuf, blocks: &[Block<'_>]) {
    let mut ids: Vec<&RawBlock> = blocks.iter().map(|block| block.block).collect();
    ids.sort_unstable_by_key(|block| block.facts.id);
    for block in ids {
        rows.row(3)
            .i64(sql(block.facts.height))
            .i64(block.facts.timestamp_ms as i64)
            .bytea(&block.facts.id.0);
    }
}

fn tx_lookup_rows(rows: &mut CopyBuf, blocks: &[Block<'_>]) {
    let mut txs: Vec<(&[u8; 32], &RawBlock, usize)> = blocks
        .iter()
        .flat_map(|row| {
            let block = row.block;
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

fn evm_lookup_rows(rows: &mut CopyBuf, blocks: &[Block<'_>]) {
    let mut evm: Vec<(&EvmLookup, &RawBlock)> = blocks
        .iter()
        .filter_map(|Block { block, parts, .. }| Some((parts.pieces.as_ref()?, *block)))
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

fn inline_opt(row: &mut CopyBuf, piece: Option<&Piece>) {
    match piece {
        Some(piece) => inline(row, piece),
        None => {
            row.null();
        }
    }
}

/// The key of its object, where it has one.
fn key(row: &mut CopyBuf, piece: Option<&Piece>, objects: &[PayloadRef]) {
    let object = match piece {
        Some(Piece::Object(at)) => objects.get(*at),
        Some(Piece::Inline(_)) | None => None,
    };
    row.text_opt(object.map(PayloadRef::key).as_deref());
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
