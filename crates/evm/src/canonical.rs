//! How a block's bytes are kept, and how blocks come in as consensus has them.
//!
//! | part | bytes |
//! | --- | --- |
//! | header | consensus RLP; its keccak is the block's id |
//! | body | RLP list `[transactions, ommers, withdrawals?]`, exactly as in the block: a legacy transaction is a list, a typed one a byte string |
//! | receipts | RLP list of receipts without bloom, see [`crate::terms`] and the receipts module |
//! | extras | JSON overlay ([`crate::overlay`]); no bytes where there is nothing to keep |
//! | traces | JSON array ([`crate::traces`]) |
//!
//! A transaction whose consensus bytes are not known (unknown type, from a node that gives JSON only) is an empty byte string in the body, its
//! JSON is in the extras. Transactions that the chain injected without listing them in the body (state sync) have facts and a receipt,
//! but no item in the body: they come after the body's ones. A transaction without a receipt has an empty
//! list in its place, and counts as a log.

use alloy_consensus::Header;
use alloy_primitives::{B256, keccak256};
use bytes::Bytes;
use cairn_core::{BlockFacts, BlockId, Height, RawBlock, TxFacts, TxId};

use crate::receipts::Receipt;
use crate::rlp::{self, Item};
use crate::terms::TermSet;
use crate::tx::{Sender, Tx};
use crate::{CheckFailure, Checks, EvmError};

/// A block as a chain file or a peer gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsensusBlock {
    /// The header's RLP.
    pub header: Bytes,
    /// RLP list `[transactions, ommers, withdrawals?]`.
    pub body: Bytes,
    /// The receipts in order, each EIP-2718 bytes with its bloom.
    pub receipts: Vec<Bytes>,
}

impl ConsensusBlock {
    /// From the RLP of a whole block, `[header, transactions, ommers, withdrawals?]` (geth's export, `debug_getRawBlock`).
    pub fn from_block_rlp(block: &Bytes, receipts: Vec<Bytes>) -> Result<Self, EvmError> {
        let malformed = |error| EvmError::malformed("the block's RLP", error);
        let mut items = rlp::list(block).map_err(malformed)?;
        let header = items.required().map_err(malformed)?;
        let mut body = Vec::with_capacity(items.rest().len() + 9);
        rlp::list_header(items.rest().len(), &mut body);
        body.extend_from_slice(items.rest());
        Ok(ConsensusBlock { header: block.slice_ref(header.raw), body: body.into(), receipts })
    }
}

/// A block's body, borrowed from its bytes. Transactions are only delimited.
#[derive(Debug, Clone)]
pub(crate) struct Body<'a> {
    pub transactions: Vec<Item<'a>>,
    /// Headers; or 32-byte hashes where the node didn't give the headers and the check was relaxed.
    pub ommers: Vec<Item<'a>>,
    /// The ommers' list with its RLP header.
    pub ommers_raw: &'a [u8],
    pub withdrawals: Option<Vec<Item<'a>>>,
    /// Everything in the body's list, without the list's header.
    pub payload: &'a [u8],
    /// The part of it after the transactions.
    pub after_transactions: &'a [u8],
}

impl<'a> Body<'a> {
    pub fn decode(bytes: &'a [u8]) -> alloy_rlp::Result<Self> {
        let mut items = rlp::list(bytes)?;
        let payload = items.rest();
        let transactions = items.required()?.items()?.collect::<Result<_, _>>()?;
        let after_transactions = items.rest();
        let ommers_item = items.required()?;
        let ommers = ommers_item.items()?.collect::<Result<_, _>>()?;
        let withdrawals = match items.next() {
            Some(list) => Some(list?.items()?.collect::<Result<_, _>>()?),
            None => None,
        };
        if !items.rest().is_empty() {
            return Err(alloy_rlp::Error::Custom("a body has two or three lists"));
        }
        Ok(Body {
            transactions,
            ommers,
            ommers_raw: ommers_item.raw,
            withdrawals,
            payload,
            after_transactions,
        })
    }

    /// The EIP-2718 bytes of a transaction; `None` where they are not known.
    pub fn transaction(&self, index: usize) -> Option<&'a [u8]> {
        self.transactions.get(index).and_then(|item| transaction_bytes(*item))
    }
}

/// The EIP-2718 bytes of a body's item; `None` where they are not known.
pub(crate) fn transaction_bytes(item: Item<'_>) -> Option<&[u8]> {
    match item {
        Item { list: true, raw, .. } => Some(raw),
        Item { payload: [], .. } => None,
        Item { payload, .. } => Some(payload),
    }
}

/// Decodes a header's RLP, which has to be nothing else.
pub(crate) fn decode_header(bytes: &[u8], place: impl Fn() -> String) -> Result<Header, EvmError> {
    alloy_rlp::decode_exact(bytes).map_err(|error| EvmError::malformed(place(), error))
}

/// Seconds of a header as the milliseconds of the facts.
pub(crate) fn timestamp_ms(header: &Header) -> Result<u64, EvmError> {
    header.timestamp.checked_mul(1000).ok_or_else(|| {
        EvmError::malformed(
            format!("block {}: timestamp", header.number),
            format!("{} s is out of range", header.timestamp),
        )
    })
}

/// A count as the facts have it.
pub(crate) fn count(height: u64, what: &str, count: usize) -> Result<u32, EvmError> {
    u32::try_from(count)
        .map_err(|_| EvmError::malformed(format!("block {height}: {what}"), format!("{count} are too many")))
}

/// Builds a block from consensus bytes: decodes everything once, computes ids, recovers the senders of known transaction types, derives
/// facts and log terms. Roots are not compared with the header: that is [`crate::check`]'s, with [`crate::SendersAre::RecoveredHere`].
///
/// A transaction of unknown type gets its hash from its bytes and an empty sender; one without a signature gets an empty sender.
pub fn from_consensus(block: &ConsensusBlock) -> Result<RawBlock, EvmError> {
    let header = decode_header(&block.header, || "the block's header".into())?;
    let height = header.number;
    let body = Body::decode(&block.body)
        .map_err(|error| EvmError::malformed(format!("block {height}: body"), error))?;
    for (index, ommer) in body.ommers.iter().enumerate() {
        decode_header(ommer.raw, || format!("block {height}: ommer {index}"))?;
    }
    crate::withdrawals::decode(height, &body)?;
    if body.transactions.len() != block.receipts.len() {
        let (transactions, receipts) = (body.transactions.len(), block.receipts.len());
        let message = format!("{transactions} transactions but {receipts} receipts");
        return Err(CheckFailure::new(Checks::RECEIPTS_ROOT, height, message).into());
    }

    let mut transactions = Vec::with_capacity(body.transactions.len());
    let mut receipts = Vec::with_capacity(block.receipts.iter().map(Bytes::len).sum());
    let mut terms = TermSet::default();
    let mut log_count = 0;
    for (index, (item, receipt)) in body.transactions.iter().zip(&block.receipts).enumerate() {
        let place = || format!("block {height}: transaction {index}");
        let bytes =
            transaction_bytes(*item).ok_or_else(|| EvmError::malformed(place(), "it has no bytes"))?;
        let known = Tx::decode(bytes).map_err(|error| EvmError::malformed(place(), error))?;
        let sender = match known.as_ref().map(Tx::sender) {
            Some(Sender::Proven(sender)) => Bytes::copy_from_slice(sender.as_slice()),
            Some(Sender::None) => {
                let message = format!("transaction {index}: its signature gives no sender");
                return Err(CheckFailure::new(Checks::SENDERS, height, message).into());
            }
            Some(Sender::Unsigned) | None => Bytes::new(),
        };

        let receipt = Receipt::decode_consensus(receipt)
            .map_err(|error| EvmError::malformed(format!("block {height}: receipt {index}"), error))?;
        for log in receipt.logs() {
            let log =
                log.map_err(|error| EvmError::malformed(format!("block {height}: receipt {index}"), error))?;
            terms.add(log.address, log.topics());
            log_count += 1;
        }
        receipt.encode_stored(&mut receipts);
        transactions.push(TxFacts { id: TxId(keccak256(bytes).0), sender, status: receipt.outcome.status() });
    }

    Ok(RawBlock {
        facts: BlockFacts {
            height: Height(height),
            id: BlockId(keccak256(&block.header).0),
            parent_id: BlockId(header.parent_hash.0),
            timestamp_ms: timestamp_ms(&header)?,
            tx_count: count(height, "transactions", transactions.len())?,
            log_count: count(height, "logs", log_count)?,
            unverified: 0,
        },
        transactions,
        header: block.header.clone(),
        body: block.body.clone(),
        receipts: in_list(receipts),
        extras: Bytes::new(),
        traces: None,
        log_terms: terms.keys(),
    })
}

/// Puts encoded items into a list.
pub(crate) fn in_list(items: Vec<u8>) -> Bytes {
    let mut list = Vec::with_capacity(items.len() + 9);
    rlp::list_header(items.len(), &mut list);
    list.extend_from_slice(&items);
    list.into()
}

/// A core id as an alloy hash.
pub(crate) fn b256(id: &[u8; 32]) -> B256 {
    B256::new(*id)
}
