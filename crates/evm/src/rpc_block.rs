//! A block from a node's JSON (`eth_getBlockBy…` with whole transactions, and its receipts).
//!
//! Lossless by construction: the canonical bytes are built from the JSON, the view is derived from them by the code that serves it, and whatever
//! the node's objects have otherwise goes into the overlay. For an ordinary node that is nothing.
//!
//! Absent, null and empty mean the same where nodes use them so; hashes and roots decide whether that is right.
//!
//! What is not kept, because it is served in one form whatever a node says: the letter case of hex and leading zeros of quantities;
//! `transactions: null`; `blockTimestamp`, `to: null`, `v` and `yParity` of transactions and `effectiveGasPrice` of receipts, where a node leaves them out;
//! `removed` of logs; nulls for the `chainId` of transactions before EIP-155 and the `status` of receipts that have a `root`.

use std::collections::HashMap;

use alloy_consensus::Header;
use alloy_primitives::{Address, B256};
use bytes::Bytes;
use cairn_core::{BlockFacts, BlockId, BlockRef, Height, LinkedRef, RawBlock, TxFacts, TxId, TxStatus};
use serde_json::{Map, Value};

use crate::canonical::{Body, count, in_list, timestamp_ms};
use crate::overlay::diff::{self, Conflict, Diff, NODE_TRANSACTION_INDEX};
use crate::overlay::{Overlay, Patch};
use crate::receipts::{Receipt, Receipts};
use crate::roots::{self, Roots, Signs};
use crate::terms::TermSet;
use crate::tx::Tx;
use crate::views::fields::{self, BlockContext, LogContext, ReceiptContext};
use crate::views::sink::{Field, Sink};
use crate::{ChainProfile, CheckFailure, Checks, EvmError, json, rlp, views};

mod header;
pub(crate) mod object;
mod receipt;
mod transaction;

use header::NodeHeader;
use object::{Object, Place};

/// What a source fetched beside a block and its receipts, because the block's JSON doesn't hold it.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// EIP-2718 bytes by transaction index, of types that this version doesn't know (`eth_getRawTransactionByHash`, `debug_getRawTransaction`): with
    /// them the transactions root can be checked.
    pub raw_transactions: Vec<(usize, Bytes)>,
    /// The ommers' objects (`eth_getUncleByBlockHashAndIndex`), in any order: a block's JSON names only their hashes. Without them
    /// a block with ommers is refused, unless [`Checks::OMMERS_HASH`] is relaxed.
    pub ommers: Vec<Value>,
}

/// Builds a block from a node's JSON, for a source that has nothing to add: see [`from_rpc_with`].
pub fn from_rpc(block: Value, receipts: Vec<Value>, profile: &ChainProfile) -> Result<RawBlock, EvmError> {
    from_rpc_with(block, receipts, Beside::default(), profile)
}

/// Builds a block from a node's JSON: `block` with whole transactions, one receipt a transaction in any order.
///
/// The hashes and heights that a node gives in an object have to be those of its block and its transaction. Positions are counted here; other
/// ones of the node are kept beside. A transaction of known type has to hash to its hash, unless [`Checks::TRANSACTIONS_ROOT`] is relaxed: then it is
/// kept as it came. What no root covers needs [`Checks::EXTRA_RECEIPTS`] relaxed, a transaction without a receipt [`Checks::MISSING_RECEIPTS`].
/// Senders are the node's; they, the roots and the bloom are [`crate::check`]'s.
pub fn from_rpc_with(
    block: Value,
    receipts: Vec<Value>,
    beside: Beside,
    profile: &ChainProfile,
) -> Result<RawBlock, EvmError> {
    let NodeHeader { header, id, rlp: header_rlp } = header::read(&block, "block", profile)?;
    let height = header.number;
    let Value::Object(mut block) = block else {
        return Err(EvmError::malformed(format!("block {height}"), "it is no object"));
    };
    let transactions = match block.remove("transactions") {
        Some(Value::Array(transactions)) => transactions,
        None | Some(Value::Null) => Vec::new(),
        Some(_) => {
            return Err(EvmError::malformed(
                format!("block {height}"),
                "field `transactions`: it is no list",
            ));
        }
    };
    let mut build = Build {
        context: views::block_context(&header, id),
        profile,
        receipts: NodeReceipts::new(height, receipts)?,
        listed: transactions.len(),
        facts: Vec::with_capacity(transactions.len()),
        transactions_rlp: Vec::new(),
        receipts_rlp: Vec::new(),
        scratch: Vec::new(),
        terms: TermSet::default(),
        gas_before: 0,
        log_count: 0,
        overlay: Overlay::default(),
        missing: 0,
        signs: Vec::new(),
        refused: None,
    };
    let mut raw = vec![None; transactions.len()];
    for (index, bytes) in beside.raw_transactions {
        if let Some(slot) = raw.get_mut(index) {
            *slot = Some(bytes);
        }
    }
    for (index, (transaction, raw)) in transactions.into_iter().zip(raw).enumerate() {
        build.transaction(index, transaction, raw.as_deref())?;
    }
    build.extra_receipts()?;

    let object = Object { map: &block, place: Place { height: Some(height), what: "block", index: None } };
    let ommers_rlp = ommers(object, beside.ommers, profile, &mut build.overlay)?;
    let withdrawals_rlp = withdrawals(object, &header)?;
    let mut body = Vec::with_capacity(build.transactions_rlp.len() + ommers_rlp.len() + 64);
    rlp::list_header(build.transactions_rlp.len(), &mut body);
    body.extend_from_slice(&std::mem::take(&mut build.transactions_rlp));
    body.extend_from_slice(&ommers_rlp);
    body.extend_from_slice(&withdrawals_rlp);
    let body = in_list(body);

    let decoded =
        Body::decode(&body).map_err(|error| EvmError::malformed(format!("block {height}: body"), error))?;
    let receipts = in_list(build.receipts_rlp.split_off(0));
    build.place(&header, &decoded, &receipts)?;
    let mut diff = Diff::new(&block, &diff::BLOCK);
    views::block_fields(&header, id, header_rlp.len(), &decoded, &mut diff)?;
    build.overlay.block =
        diff.finish(&[]).map_err(|conflict| at_odds(Checks::HEADER_HASH, object.place, *conflict))?;

    Ok(RawBlock {
        facts: BlockFacts {
            height: Height(height),
            id: BlockId(id.0),
            parent_id: BlockId(header.parent_hash.0),
            timestamp_ms: timestamp_ms(&header)?,
            tx_count: count(height, "transactions", build.facts.len())?,
            log_count: build.log_count.saturating_add(build.missing),
            unverified: 0,
        },
        extras: build.overlay.encode(Height(height))?,
        transactions: build.facts,
        header: header_rlp.into(),
        body,
        receipts,
        traces: None,
        log_terms: build.terms.keys(),
    })
}

/// Height, hash and parent of a header, or of a block, as a node gives it; the hash is recomputed unless that is relaxed.
pub fn linked_ref_from_rpc(header_json: &Value, profile: &ChainProfile) -> Result<LinkedRef, EvmError> {
    let NodeHeader { header, id, .. } = header::read(header_json, "block", profile)?;
    Ok(LinkedRef {
        block: BlockRef { height: Height(header.number), id: BlockId(id.0) },
        parent_id: BlockId(header.parent_hash.0),
    })
}

/// A node's field that is not what it has to be.
fn at_odds(check: Checks, place: Place, conflict: Conflict) -> EvmError {
    let Conflict { name, ours, theirs } = conflict;
    let message = format!("{}: `{name}` is {theirs}, expected {ours}", Place { height: None, ..place });
    CheckFailure::new(check, place.height.unwrap_or_default(), message).into()
}

/// The receipts, to be found by their transaction's hash. Each is taken once.
struct NodeReceipts {
    count: usize,
    by_tx: HashMap<B256, (usize, Value)>,
}

impl NodeReceipts {
    fn new(height: u64, receipts: Vec<Value>) -> Result<Self, EvmError> {
        let count = receipts.len();
        let mut by_tx = HashMap::with_capacity(count);
        for (index, receipt) in receipts.into_iter().enumerate() {
            let place = Place { height: Some(height), what: "receipt", index: Some(index) };
            let hash = Object::new(&receipt, place)?.b256("transactionHash")?;
            if by_tx.insert(hash, (index, receipt)).is_some() {
                let message = format!("transaction {hash} has two receipts");
                return Err(CheckFailure::new(Checks::RECEIPTS_ROOT, height, message).into());
            }
        }
        Ok(NodeReceipts { count, by_tx })
    }

    fn take(&mut self, hash: B256) -> Option<Value> {
        self.by_tx.remove(&hash).map(|(_, receipt)| receipt)
    }

    /// Those that no transaction took, in the order of the places that they claim.
    fn left(&mut self) -> Vec<(B256, Value)> {
        let mut left: Vec<_> = std::mem::take(&mut self.by_tx).into_iter().collect();
        let claimed = |receipt: &Value| receipt.get("transactionIndex").and_then(json::quantity);
        left.sort_by_cached_key(|(_, (index, receipt))| (claimed(receipt), *index));
        left.into_iter().map(|(hash, (_, receipt))| (hash, receipt)).collect()
    }
}

/// A block as it grows, transaction by transaction.
struct Build<'a> {
    context: BlockContext,
    profile: &'a ChainProfile,
    receipts: NodeReceipts,
    /// How many transactions the body lists.
    listed: usize,
    facts: Vec<TxFacts>,
    transactions_rlp: Vec<u8>,
    receipts_rlp: Vec<u8>,
    scratch: Vec<u8>,
    terms: TermSet,
    gas_before: u64,
    log_count: u32,
    overlay: Overlay,
    /// Transactions without a receipt. Each counts as a log, so that searches for logs come to the block.
    missing: u32,
    /// Of the body's transactions: what may say that the chain added them.
    signs: Vec<Signs>,
    /// Why the first transaction that is not decoded isn't.
    refused: Option<EvmError>,
}

impl Build<'_> {
    fn transaction(&mut self, index: usize, value: Value, raw: Option<&[u8]>) -> Result<(), EvmError> {
        let place = Place { height: Some(self.context.number), what: "transaction", index: Some(index) };
        let tx = transaction::read(Object::new(&value, place)?, raw, self.profile)?;
        if let Some(refused) = &tx.refused {
            if !self.profile.allows_extra_receipts() && !self.profile.relaxes(Checks::TRANSACTIONS_ROOT) {
                return Err(refused.clone());
            }
            self.refused.get_or_insert_with(|| refused.clone());
        }
        let Value::Object(mut json) = value else {
            return Err(EvmError::malformed(place.to_string(), "it is no object"));
        };
        self.signs.push(Signs {
            has_no_bytes: tx.refused.is_some(),
            is_free: json.get("gasPrice").and_then(json::quantity).is_some_and(|price| price.is_zero()),
            is_unsigned: tx.known.as_ref().is_some_and(Tx::is_unsigned),
        });
        let conflict = |conflict: Box<Conflict>| at_odds(Checks::TRANSACTIONS_ROOT, place, *conflict);
        let mut diff = Diff::new(&json, &diff::TRANSACTION);
        let patch = match &tx.known {
            Some(known) => {
                fields::transaction(&self.context, index, known, tx.id, &tx.sender, &mut diff);
                diff.finish(&[]).map_err(conflict)?
            }
            None => {
                fields::place(&self.context, index, &mut diff);
                let patch = diff.finish(&[]).map_err(conflict)?;
                if let Some(theirs) = patch.set.get(NODE_TRANSACTION_INDEX) {
                    json.insert(NODE_TRANSACTION_INDEX.to_owned(), theirs.clone());
                    json.put("transactionIndex", Field::Number(index as u64));
                }
                Patch { json: Some(json), ..Patch::default() }
            }
        };
        match &tx.bytes {
            Some(bytes) if bytes.first().is_some_and(|first| *first >= 0xc0) => {
                self.transactions_rlp.extend_from_slice(bytes);
            }
            bytes => rlp::string(bytes.as_deref().unwrap_or_default(), &mut self.transactions_rlp),
        }
        let known = tx.known.as_ref();
        let status = match self.receipts.take(tx.id) {
            Some(receipt) => {
                self.receipt(index, tx.id, &tx.sender, tx.ty, known, patch.json.as_ref(), receipt)?
            }
            None if self.profile.relaxes(Checks::MISSING_RECEIPTS) => {
                rlp::list_header(0, &mut self.receipts_rlp);
                self.terms.lack_logs();
                self.missing += 1;
                TxStatus::Unknown
            }
            None => {
                let message = format!(
                    "transaction {index} ({}) has no receipt; {} transactions, {} receipts. If the node has none for good, relax \
                     `missing-receipts`",
                    tx.id, self.listed, self.receipts.count
                );
                return Err(CheckFailure::new(Checks::MISSING_RECEIPTS, self.context.number, message).into());
            }
        };
        self.facts.push(TxFacts { id: TxId(tx.id.0), sender: tx.sender.into(), status });
        self.add(index, patch, |overlay| &mut overlay.txs);
        Ok(())
    }

    /// Receipts without a transaction in the body: of transactions that the chain injected.
    fn extra_receipts(&mut self) -> Result<(), EvmError> {
        for (hash, receipt) in self.receipts.left() {
            let index = self.facts.len();
            let place = Place { height: Some(self.context.number), what: "receipt", index: Some(index) };
            let sender = Object::new(&receipt, place)?.opt_address("from")?.map(Address::into_array);
            let sender = Bytes::copy_from_slice(sender.as_ref().map_or(&[], |sender| sender));
            let status = self.receipt(index, hash, &sender, 0, None, None, receipt)?;
            self.facts.push(TxFacts { id: TxId(hash.0), sender, status });
        }
        Ok(())
    }

    /// Finds out what the header's roots cover.
    fn place(&mut self, header: &Header, body: &Body<'_>, receipts: &[u8]) -> Result<(), EvmError> {
        let height = self.context.number;
        let allows = self.profile.allows_extra_receipts();
        if allows {
            let root =
                Some(header.transactions_root).filter(|_| !self.profile.relaxes(Checks::TRANSACTIONS_ROOT));
            let without_bytes = self.signs.iter().rev().take_while(|signs| signs.has_no_bytes).count();
            match roots::outside(body, &self.signs, root) {
                Some(outside) if outside.len() == without_bytes => self.overlay.injected = without_bytes,
                Some(outside) => self.overlay.outside = outside,
                // Without a root to decide, those in the middle are the chain's own and are kept as they came.
                None if root.is_none() => {}
                None => {
                    return Err(self.refused.clone().unwrap_or_else(|| {
                        EvmError::malformed(format!("block {height}"), "its transactions have no bytes")
                    }));
                }
            }
        }
        let roots = Roots::of(body, &self.overlay);
        let extra: Vec<usize> = (0..self.facts.len()).filter(|index| !roots.cover_tx(*index)).collect();
        if extra.is_empty() {
            return Ok(());
        }
        if !self.profile.relaxes(Checks::RECEIPTS_ROOT) {
            let receipts = Receipts::decode(receipts)
                .map_err(|error| EvmError::malformed(format!("block {height}: receipts"), error))?;
            self.overlay.covered = roots::covered_receipts(&receipts, &roots, header.receipts_root);
        }
        if self.overlay.covered.len() < extra.len() && !allows {
            let first = extra.iter().find(|index| !self.overlay.covered.contains(&(**index as u32)));
            let message = format!(
                "{} of {} receipts belong to no transaction of the body, the first of them to {}, and the receipts root doesn't cover \
                 them. If the chain adds transactions of its own, relax `extra-receipts`",
                extra.len(),
                self.receipts.count,
                first.map_or(String::new(), |index| self.facts[*index].id.to_string())
            );
            return Err(CheckFailure::new(Checks::EXTRA_RECEIPTS, height, message).into());
        }
        Ok(())
    }

    /// Appends a receipt and notes in what the node's differs from the view that will be made of it.
    #[allow(clippy::too_many_arguments)]
    fn receipt(
        &mut self,
        index: usize,
        hash: B256,
        sender: &[u8],
        tx_type: u8,
        tx: Option<&Tx>,
        json: Option<&Map<String, Value>>,
        receipt: Value,
    ) -> Result<TxStatus, EvmError> {
        let place = Place { height: Some(self.context.number), what: "receipt", index: Some(index) };
        let object = Object::new(&receipt, place)?;
        let start = self.receipts_rlp.len();
        receipt::encode(object, tx_type, tx.is_some(), &mut self.scratch, &mut self.receipts_rlp)?;

        let malformed = |error| EvmError::malformed(place.to_string(), error);
        let stored =
            rlp::exactly(&self.receipts_rlp[start..]).and_then(Receipt::decode_stored).map_err(malformed)?;
        let bloom = stored.bloom().map_err(malformed)?;
        let gas_before = self.gas_before;
        let context = ReceiptContext { index, hash, sender, tx, json, gas_before, bloom };
        let mut diff = Diff::new(object.map, &diff::RECEIPT);
        fields::receipt(&self.context, &context, &stored, &mut diff);
        let check = |conflict: &Conflict| {
            if conflict.name == "from" { Checks::SENDERS } else { Checks::RECEIPTS_ROOT }
        };
        let patch = diff.finish(&["logs"]).map_err(|conflict| at_odds(check(&conflict), place, *conflict))?;

        let mut log_patches = Vec::new();
        for (at, (log, node)) in stored.logs().zip(object.list("logs")?).enumerate() {
            let log = log.map_err(malformed)?;
            self.terms.add(log.address, log.topics());
            let node = receipt::log_object(node, place.height, at)?;
            let place =
                LogContext { tx_hash: hash, tx_index: index, log_index: self.log_count, removed: false };
            let mut diff = Diff::new(node.map, &diff::LOG);
            fields::log(&self.context, &place, &log, &mut diff);
            let at_odds = |conflict: Box<Conflict>| {
                let message = format!(
                    "log {at} of transaction {index}: `{}` is {}, expected {}",
                    conflict.name, conflict.theirs, conflict.ours
                );
                EvmError::from(CheckFailure::new(Checks::RECEIPTS_ROOT, self.context.number, message))
            };
            let patch = diff.finish(&[]).map_err(at_odds)?;
            if !patch.is_empty() {
                log_patches.push((self.log_count, patch));
            }
            self.log_count =
                self.log_count.checked_add(1).ok_or_else(|| node.wrong("logIndex", "too many logs"))?;
        }
        self.gas_before = stored.cumulative_gas;
        let status = stored.outcome.status();
        self.overlay.logs.extend(log_patches);
        self.add(index, patch, |overlay| &mut overlay.receipts);
        Ok(status)
    }

    fn add(
        &mut self,
        index: usize,
        patch: Patch,
        to: impl FnOnce(&mut Overlay) -> &mut std::collections::BTreeMap<u32, Patch>,
    ) {
        if !patch.is_empty() {
            to(&mut self.overlay).insert(index as u32, patch);
        }
    }
}

/// The list of ommers, with its header.
fn ommers(
    block: Object<'_>,
    given: Vec<Value>,
    profile: &ChainProfile,
    overlay: &mut Overlay,
) -> Result<Vec<u8>, EvmError> {
    let hashes = block.list("uncles")?;
    let mut by_hash = HashMap::with_capacity(given.len());
    for ommer in given {
        let read = header::read(&ommer, "ommer", profile)?;
        by_hash.insert(read.id, (read, ommer));
    }
    let mut items = Vec::new();
    for (index, hash) in hashes.iter().enumerate() {
        let hash = B256::new(block.fixed_of("uncles", hash)?);
        match by_hash.remove(&hash) {
            Some((read, Value::Object(json))) => {
                let place = Place { what: "ommer", index: Some(index), ..block.place };
                let mut diff = Diff::new(&json, &diff::BLOCK);
                views::ommer_fields(&read.header, &read.rlp, &mut diff);
                let patch = diff
                    .finish(&["transactions"])
                    .map_err(|conflict| at_odds(Checks::OMMERS_HASH, place, *conflict))?;
                if !patch.is_empty() {
                    overlay.ommers.insert(index as u32, patch);
                }
                items.extend_from_slice(&read.rlp);
            }
            _ if profile.relaxes(Checks::OMMERS_HASH) => rlp::string(hash.as_slice(), &mut items),
            _ => {
                let message = format!(
                    "ommer {index} of {} ({hash}) was not given: ask the node for it (eth_getUncleByBlockHashAndIndex), or relax \
                     `ommers-hash`",
                    hashes.len()
                );
                let height = block.place.height.unwrap_or_default();
                return Err(CheckFailure::new(Checks::OMMERS_HASH, height, message).into());
            }
        }
    }
    let mut list = Vec::with_capacity(items.len() + 9);
    rlp::list_header(items.len(), &mut list);
    list.extend_from_slice(&items);
    Ok(list)
}

/// The list of withdrawals, with its header; nothing where the block has no such list. Where a node gives none, or an empty one, the header says
/// whether there is a list.
fn withdrawals(block: Object<'_>, header: &Header) -> Result<Vec<u8>, EvmError> {
    if block.list("withdrawals")?.is_empty() && header.withdrawals_root.is_none() {
        return Ok(Vec::new());
    }
    let read = |(index, value): (usize, &Value)| {
        let object = Object::new(value, Place { what: "withdrawal", index: Some(index), ..block.place })?;
        Ok(alloy_eips::eip4895::Withdrawal {
            index: object.u64("index")?,
            validator_index: object.u64("validatorIndex")?,
            address: Address::new(object.fixed("address")?),
            amount: object.u64("amount")?,
        })
    };
    let list =
        block.list("withdrawals")?.iter().enumerate().map(read).collect::<Result<Vec<_>, EvmError>>()?;
    Ok(alloy_rlp::encode(&list))
}
