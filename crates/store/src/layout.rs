//! How a block's bytes are cut into rows, and put together again. A store knows no chain: the chain's codec says by
//! [`BlockLayout`] which bytes belong to which transaction and event, and a store with rows keeps them there; what lies between is the
//! **skeleton**, which stays with the block. Cutting loses nothing: [`rebuild_body`] and [`rebuild_receipts`] give back the same bytes.
//!
//! # The layout's bytes
//!
//! Persisted. A version byte, 1, then LEB128 varints: for each transaction the skeleton's bytes before its own ones in the body; then for each
//! transaction the skeleton's bytes before its receipt, and for each of its events the receipt's own bytes before it. What follows the last
//! event of a receipt, and the last slice of a part, is whatever is left.
//!
//! Version 2 is that of blocks whose transactions have parts: after a transaction's number of skeleton bytes in the body comes how many parts it has,
//! and for each of them twice the number of the transaction's own bytes before it, plus 1 where the part is an argument.

use std::borrow::Cow;

pub use cairn_core::{
    BlockLayout, Collection, EventSlice, EvmLookup, PartKind, Slices, TxDetails, TxPart, TxSlice, Uncut,
};

use cairn_core::RawBlock;

use crate::StoreError;

/// The encoding of blocks whose transactions have no parts.
const LAYOUT_VERSION: u8 = 1;
/// That of the others.
const LAYOUT_VERSION_PARTS: u8 = 2;

/// A block in pieces that borrow from it.
#[derive(Debug)]
pub struct Cut<'a> {
    /// One for each transaction.
    pub transactions: Vec<CutTx<'a>>,
    /// One for each event.
    pub events: Vec<CutEvent<'a>>,
    /// The body's bytes that belong to no transaction.
    pub body_skeleton: Vec<u8>,
    /// The receipts' bytes that belong to no transaction.
    pub receipts_skeleton: Vec<u8>,
    /// How the pieces fit together.
    pub layout: Vec<u8>,
}

/// A transaction's pieces.
#[derive(Debug)]
pub struct CutTx<'a> {
    /// Its bytes in the body, without its parts.
    pub body: Cow<'a, [u8]>,
    /// The program that it runs.
    pub script: Option<&'a [u8]>,
    /// The program's arguments.
    pub arguments: Vec<&'a [u8]>,
    /// Its receipt without its events.
    pub result: Vec<u8>,
    /// How many events it has.
    pub event_count: u32,
}

/// An event's piece.
#[derive(Debug)]
pub struct CutEvent<'a> {
    /// Its transaction's index in the block.
    pub tx_index: u32,
    /// Its own index, by the chain's protocol.
    pub index: u32,
    /// Its bytes.
    pub payload: &'a [u8],
}

/// Cuts a block. `None` where the slices don't fit it: out of bounds, overlapping, out of order, of another number of transactions, or events whose
/// indexes don't follow each other within a transaction ([`EventSlice::may_follow`]).
pub fn cut<'a>(block: &'a RawBlock, slices: &Slices) -> Option<Cut<'a>> {
    if slices.transactions.len() != block.transactions.len() {
        return None;
    }
    let (body, receipts) = (&block.body[..], &block.receipts[..]);
    let with_parts = !slices.parts.is_empty();
    let mut layout = vec![if with_parts { LAYOUT_VERSION_PARTS } else { LAYOUT_VERSION }];
    let (mut body_skeleton, mut at) = (Vec::new(), 0);
    let mut parts = slices.parts.iter().peekable();
    let mut bodies = Vec::with_capacity(slices.transactions.len());
    for (index, tx) in (0u32..).zip(&slices.transactions) {
        let gap = body.get(at..tx.body.start)?;
        put_varint(&mut layout, gap.len());
        body_skeleton.extend_from_slice(gap);
        let of_tx = std::iter::from_fn(|| parts.next_if(|part| part.tx_index == index)).collect::<Vec<_>>();
        let body = cut_body(body, tx.body.clone(), &of_tx, with_parts.then_some(&mut layout))?;
        bodies.push(body);
        at = tx.body.end;
    }
    body_skeleton.extend_from_slice(body.get(at..)?);
    // Parts that belong to no transaction, or out of order.
    if parts.next().is_some() {
        return None;
    }

    let (mut receipts_skeleton, mut at) = (Vec::new(), 0);
    let mut events = slices.events.iter().peekable();
    let mut cut_events = Vec::with_capacity(slices.events.len());
    let mut transactions = Vec::with_capacity(slices.transactions.len());
    for ((index, tx), own) in (0u32..).zip(&slices.transactions).zip(bodies) {
        let gap = receipts.get(at..tx.receipt.start)?;
        put_varint(&mut layout, gap.len());
        receipts_skeleton.extend_from_slice(gap);
        let (mut result, mut inner, mut event_count) = (Vec::new(), tx.receipt.start, 0);
        let mut last_index = None;
        while let Some(event) = events.next_if(|event| event.tx_index == index) {
            let follows = last_index.is_none_or(|last| EventSlice::may_follow(last, event.index.into()));
            if event.range.end > tx.receipt.end || !follows {
                return None;
            }
            last_index = Some(event.index.into());
            let before = receipts.get(inner..event.range.start)?;
            put_varint(&mut layout, before.len());
            result.extend_from_slice(before);
            let payload = receipts.get(event.range.clone())?;
            cut_events.push(CutEvent { tx_index: index, index: event.index, payload });
            inner = event.range.end;
            event_count += 1;
        }
        result.extend_from_slice(receipts.get(inner..tx.receipt.end)?);
        at = tx.receipt.end;
        transactions.push(CutTx { result, event_count, ..own });
    }
    receipts_skeleton.extend_from_slice(receipts.get(at..)?);
    // Events that belong to no transaction, or out of order.
    if events.next().is_some() {
        return None;
    }
    Some(Cut { transactions, events: cut_events, body_skeleton, receipts_skeleton, layout })
}

/// A transaction's own bytes and its parts; as yet without a result.
fn cut_body<'a>(
    body: &'a [u8],
    range: std::ops::Range<usize>,
    parts: &[&TxPart],
    layout: Option<&mut Vec<u8>>,
) -> Option<CutTx<'a>> {
    let whole = body.get(range.clone())?;
    let mut tx = CutTx {
        body: Cow::Borrowed(whole),
        script: None,
        arguments: Vec::new(),
        result: Vec::new(),
        event_count: 0,
    };
    let Some(layout) = layout else { return Some(tx) };
    put_varint(layout, parts.len());
    if parts.is_empty() {
        return Some(tx);
    }
    let (mut own, mut at) = (Vec::new(), range.start);
    for part in parts {
        if part.range.end > range.end {
            return None;
        }
        let before = body.get(at..part.range.start)?;
        let bytes = body.get(part.range.clone())?;
        put_varint(layout, before.len() << 1 | usize::from(part.kind == PartKind::Argument));
        own.extend_from_slice(before);
        match part.kind {
            PartKind::Script if tx.script.is_some() => return None,
            PartKind::Script => tx.script = Some(bytes),
            PartKind::Argument => tx.arguments.push(bytes),
        }
        at = part.range.end;
    }
    own.extend_from_slice(body.get(at..range.end)?);
    tx.body = Cow::Owned(own);
    Some(tx)
}

/// What a transaction's body is made of.
#[derive(Debug, Clone, Copy, Default)]
pub struct TxBytes<'a> {
    /// Its own bytes.
    pub body: &'a [u8],
    /// The program that it runs.
    pub script: Option<&'a [u8]>,
    /// The program's arguments.
    pub arguments: &'a [&'a [u8]],
}

impl<'a> TxBytes<'a> {
    /// Of a transaction without parts.
    pub fn whole(body: &'a [u8]) -> Self {
        TxBytes { body, script: None, arguments: &[] }
    }
}

/// The body again, from its skeleton, the layout, and each transaction's bytes in order.
pub fn rebuild_body(skeleton: &[u8], layout: &[u8], bodies: &[TxBytes<'_>]) -> Result<Vec<u8>, StoreError> {
    let mut gaps = Gaps::open(layout)?;
    let mut skeleton = Skeleton(skeleton);
    let bytes = |tx: &TxBytes<'_>| {
        let parts: usize = tx.script.iter().chain(tx.arguments).map(|part| part.len()).sum();
        tx.body.len() + parts
    };
    let mut out = Vec::with_capacity(skeleton.0.len() + bodies.iter().map(bytes).sum::<usize>());
    for tx in bodies {
        out.extend_from_slice(skeleton.take(gaps.next()?)?);
        let mut own = Skeleton(tx.body);
        let (mut script, mut arguments) = (tx.script, tx.arguments.iter());
        for _ in 0..gaps.parts()? {
            let part = gaps.next()?;
            out.extend_from_slice(own.take(part >> 1)?);
            let bytes = if part & 1 == 1 { arguments.next().copied() } else { script.take() };
            out.extend_from_slice(bytes.ok_or_else(|| damaged("a part of a transaction is missing"))?);
        }
        if script.is_some() || arguments.next().is_some() {
            return Err(damaged("a transaction has more parts than it says"));
        }
        out.extend_from_slice(own.0);
    }
    out.extend_from_slice(skeleton.0);
    Ok(out)
}

/// Whether blocks of this layout have parts of transactions elsewhere.
pub fn has_parts(layout: &[u8]) -> bool {
    layout.first() == Some(&LAYOUT_VERSION_PARTS)
}

/// The receipts again, from their skeleton, the layout, each transaction's result and number of events, and each event's bytes, all in order.
pub fn rebuild_receipts(
    skeleton: &[u8],
    layout: &[u8],
    results: &[(&[u8], u32)],
    events: &[&[u8]],
) -> Result<Vec<u8>, StoreError> {
    let mut gaps = Gaps::open(layout)?;
    for _ in results {
        gaps.next()?;
        for _ in 0..gaps.parts()? {
            gaps.next()?;
        }
    }
    let mut skeleton = Skeleton(skeleton);
    let mut events = events.iter();
    let mut out = Vec::new();
    for (result, event_count) in results {
        out.extend_from_slice(skeleton.take(gaps.next()?)?);
        let mut result = Skeleton(result);
        for _ in 0..*event_count {
            out.extend_from_slice(result.take(gaps.next()?)?);
            out.extend_from_slice(events.next().ok_or_else(|| damaged("an event is missing"))?);
        }
        out.extend_from_slice(result.0);
    }
    out.extend_from_slice(skeleton.0);
    if events.next().is_some() {
        return Err(damaged("there are more events than its transactions have"));
    }
    Ok(out)
}

fn damaged(what: &str) -> StoreError {
    StoreError::Corrupt { place: "a block's layout".into(), what: what.into() }
}

/// Bytes that are taken from the front.
struct Skeleton<'a>(&'a [u8]);

impl<'a> Skeleton<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], StoreError> {
        let (taken, rest) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| damaged("it asks for more bytes than there are"))?;
        self.0 = rest;
        Ok(taken)
    }
}

struct Gaps<'a> {
    rest: &'a [u8],
    has_parts: bool,
}

impl<'a> Gaps<'a> {
    fn open(layout: &'a [u8]) -> Result<Self, StoreError> {
        match layout.split_first() {
            Some((&LAYOUT_VERSION, rest)) => Ok(Gaps { rest, has_parts: false }),
            Some((&LAYOUT_VERSION_PARTS, rest)) => Ok(Gaps { rest, has_parts: true }),
            Some((version, _)) => Err(damaged(&format!("its version {version} is unknown"))),
            None => Err(damaged("it is empty")),
        }
    }

    /// How many parts the transaction has that comes next.
    fn parts(&mut self) -> Result<usize, StoreError> {
        if self.has_parts { self.next() } else { Ok(0) }
    }

    fn next(&mut self) -> Result<usize, StoreError> {
        let mut value = 0usize;
        for shift in (0..usize::BITS).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or_else(|| damaged("it ends too early"))?;
            self.rest = rest;
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(damaged("a number in it is too long"))
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cairn_core::Height;
    use proptest::prelude::*;

    use super::*;
    use crate::suite::blocks::{anchor_parent, block};

    fn rebuilt(cut: &Cut<'_>) -> (Vec<u8>, Vec<u8>) {
        let bodies: Vec<TxBytes<'_>> = cut
            .transactions
            .iter()
            .map(|tx| TxBytes { body: &tx.body, script: tx.script, arguments: &tx.arguments })
            .collect();
        let results: Vec<(&[u8], u32)> =
            cut.transactions.iter().map(|tx| (&tx.result[..], tx.event_count)).collect();
        let events: Vec<&[u8]> = cut.events.iter().map(|event| event.payload).collect();
        (
            rebuild_body(&cut.body_skeleton, &cut.layout, &bodies).unwrap(),
            rebuild_receipts(&cut.receipts_skeleton, &cut.layout, &results, &events).unwrap(),
        )
    }

    /// A block of `counts.len()` transactions, each with so many events, and ascending slices at random distances.
    fn sliced(counts: &[u32], steps: &[u8], body: Vec<u8>, receipts: Vec<u8>) -> (RawBlock, Slices) {
        let mut steps = steps.iter().copied().cycle();
        let mut step = |at: usize, end: usize| (at + usize::from(steps.next().unwrap_or(0))).min(end);
        let mut raw = block(Height(1), anchor_parent(Height(1)), 0);
        let tx = cairn_core::TxFacts {
            id: Default::default(),
            sender: Bytes::new(),
            status: cairn_core::TxStatus::Ok,
        };
        raw.transactions = vec![tx; counts.len()];
        let mut slices = Slices::default();
        let (mut b, mut r) = (0, 0);
        for (index, count) in (0..).zip(counts) {
            let (body_start, receipt_start) = (step(b, body.len()), step(r, receipts.len()));
            b = step(body_start, body.len());
            r = receipt_start;
            for _ in 0..*count {
                let start = step(r, receipts.len());
                r = step(start, receipts.len());
                let event_index = slices.events.len() as u32;
                slices.events.push(EventSlice { tx_index: index, index: event_index, range: start..r });
            }
            r = step(r, receipts.len());
            slices.transactions.push(TxSlice { body: body_start..b, receipt: receipt_start..r });
        }
        raw.body = body.into();
        raw.receipts = receipts.into();
        (raw, slices)
    }

    proptest! {
        #[test]
        fn cutting_loses_nothing(
            counts in prop::collection::vec(0u32..4, 0..6),
            steps in prop::collection::vec(0u8..20, 1..20),
            body in prop::collection::vec(any::<u8>(), 0..200),
            receipts in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let (raw, slices) = sliced(&counts, &steps, body, receipts);
            let cut = cut(&raw, &slices).expect("fits");
            let (body, receipts) = rebuilt(&cut);
            prop_assert_eq!(&body[..], &raw.body[..]);
            prop_assert_eq!(&receipts[..], &raw.receipts[..]);
        }

        #[test]
        fn cutting_parts_out_loses_nothing(
            counts in prop::collection::vec(0u32..4, 1..6),
            steps in prop::collection::vec(0u8..20, 1..20),
            inner in prop::collection::vec((0u8..8, 0u8..8), 0..12),
            body in prop::collection::vec(any::<u8>(), 0..200),
            receipts in prop::collection::vec(any::<u8>(), 0..400),
        ) {
            let (raw, mut slices) = sliced(&counts, &steps, body, receipts);
            let mut inner = inner.into_iter().cycle();
            for (tx_index, tx) in (0u32..).zip(&slices.transactions) {
                let mut at = tx.body.start;
                for kind in [PartKind::Argument, PartKind::Script, PartKind::Argument].into_iter().skip(tx_index as usize % 4) {
                    let Some((gap, length)) = inner.next() else { break };
                    let start = (at + usize::from(gap)).min(tx.body.end);
                    at = (start + usize::from(length)).min(tx.body.end);
                    slices.parts.push(TxPart { tx_index, kind, range: start..at });
                }
            }
            let cut = cut(&raw, &slices).expect("fits");
            prop_assert_eq!(has_parts(&cut.layout), !slices.parts.is_empty());
            let (body, receipts) = rebuilt(&cut);
            prop_assert_eq!(&body[..], &raw.body[..]);
            prop_assert_eq!(&receipts[..], &raw.receipts[..]);
        }

        #[test]
        fn damage_is_an_error_or_other_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let part: &[u8] = &bytes;
            let parts = TxBytes { body: &bytes, script: Some(&bytes), arguments: &[part] };
            let _ = rebuild_body(&bytes, &bytes, &[TxBytes::whole(&bytes), parts]);
            let _ = rebuild_receipts(&bytes, &bytes, &[(&bytes, 3), (&bytes, 0)], &[&bytes]);
        }
    }

    #[test]
    fn slices_that_do_not_fit_are_refused() {
        let (raw, slices) = sliced(&[1, 1], &[2], vec![1; 40], vec![2; 40]);
        assert!(cut(&raw, &slices).is_some());
        let spoil: [fn(&mut Slices); 6] = [
            |s| s.transactions.truncate(1),
            |s| s.transactions[1].body = 0..3,
            |s| s.transactions[1].receipt.end = 99,
            |s| s.events[0].range = 39..40,
            |s| s.events.swap(0, 1),
            |s| s.events[1].tx_index = 7,
        ];
        for spoil in spoil {
            let mut bad = slices.clone();
            spoil(&mut bad);
            assert!(cut(&raw, &bad).is_none(), "{bad:?}");
        }
        let own = slices.transactions[1].body.clone();
        assert!(own.len() > 1, "{own:?}");
        let part = |kind, range| TxPart { tx_index: 1, kind, range };
        let script = part(PartKind::Script, own.start..own.end - 1);
        let fits = Slices { parts: vec![script.clone()], ..slices.clone() };
        assert!(cut(&raw, &fits).is_some());
        for parts in [
            vec![part(PartKind::Script, own.start - 1..own.end)],
            vec![part(PartKind::Script, own.start..own.end + 1)],
            vec![script.clone(), part(PartKind::Script, own.end - 1..own.end)],
            vec![script.clone(), part(PartKind::Argument, own.start..own.end)],
            vec![script.clone(), TxPart { tx_index: 0, ..script.clone() }],
            vec![TxPart { tx_index: 2, ..script.clone() }],
        ] {
            let bad = Slices { parts, ..slices.clone() };
            assert!(cut(&raw, &bad).is_none(), "{bad:?}");
        }
    }
}
