//! Fetching a range of heights ahead of the commits, in order, within the byte budget.
//!
//! Ordering: pieces come out in height order, whatever order the source answers in. Back-pressure: a new piece is
//! asked for only when its expected size fits the budget; what was fetched counts until it is committed. Before any block was seen
//! nothing can be expected, so the first one is fetched alone. Shutdown: dropping the
//! future drops every request in flight.

use std::sync::Arc;

use cairn_core::{Height, HeightRange, RawBlock};
use cairn_source::{ChainSource, SourceError};
use futures::StreamExt;
use futures::stream::FuturesOrdered;
use tokio::sync::mpsc;

use crate::budget::{ByteBudget, Reservation};

/// Blocks of one piece, in order, and why there are no more if there are none.
#[derive(Debug)]
pub struct Piece {
    /// Linked blocks from the piece's start.
    pub blocks: Vec<RawBlock>,
    /// What they take of the budget until this is dropped.
    pub reservation: Reservation,
    /// How the piece ended.
    pub end: PieceEnd,
}

/// How a piece ended.
#[derive(Debug)]
pub enum PieceEnd {
    /// All its heights are there.
    Whole,
    /// The source doesn't have this height yet.
    NotYet(Height),
    /// The source failed at this height, after the blocks that are there.
    Failed(Height, SourceError),
}

/// Fetches `range` and sends its pieces in order until the range is whole, a height is not there yet, the source fails, or the
/// receiver is gone.
pub async fn fetch_in_order(
    source: Arc<dyn ChainSource>,
    range: HeightRange,
    in_flight_limit: usize,
    budget: ByteBudget,
    pieces: mpsc::UnboundedSender<Piece>,
) {
    let mut next = range.start();
    let mut in_flight = FuturesOrdered::new();
    loop {
        let expected_bytes = budget.expected_block_bytes();
        let limit = if expected_bytes.is_some() { in_flight_limit.max(1) } else { 1 };
        let may_start = next < range.end() && in_flight.len() < limit;
        if !may_start && in_flight.is_empty() {
            return;
        }
        let heights = if expected_bytes.is_some() { source.preferred_heights().max(1) } else { 1 };
        let expected_bytes = expected_bytes.unwrap_or_default().saturating_mul(heights);
        tokio::select! {
            biased;
            Some(piece) = in_flight.next() => {
                let piece: Piece = piece;
                budget.learn(piece.blocks.iter().map(RawBlock::size_bytes));
                let whole = matches!(piece.end, PieceEnd::Whole);
                if pieces.send(piece).is_err() || !whole {
                    return;
                }
            }
            reservation = budget.reserve(expected_bytes), if may_start => {
                let piece = HeightRange::new(next, Height(next.get().saturating_add(heights)).min(range.end()));
                next = piece.end();
                in_flight.push_back(fetch_piece(source.clone(), piece, reservation));
            }
        }
    }
}

async fn fetch_piece(
    source: Arc<dyn ChainSource>,
    range: HeightRange,
    mut reservation: Reservation,
) -> Piece {
    let mut blocks: Vec<RawBlock> = Vec::new();
    let mut at = range.start();
    let end = loop {
        if at >= range.end() {
            break PieceEnd::Whole;
        }
        match source.blocks(HeightRange::new(at, range.end())).await {
            Ok(more) if more.is_empty() => break PieceEnd::NotYet(at),
            Ok(more) => {
                at = at + more.len() as u64;
                blocks.extend(more);
            }
            Err(error) => break PieceEnd::Failed(at, error),
        }
    };
    reservation.resize(blocks.iter().map(RawBlock::size_bytes).sum());
    Piece { blocks, reservation, end }
}
