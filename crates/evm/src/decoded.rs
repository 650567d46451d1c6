//! A stored block as typed values: what derived tables are made of.
//!
//! Nothing is hashed, recovered or checked again: ids, senders and statuses are those of the facts. Bytes are cheap slices of the
//! stored ones. It is tolerant: of a transaction whose type isn't known (E05), or that the chain injected, what is known is given and
//! the rest is `None`; what a node's JSON had beyond consensus (extras) goes before what is derived.

use alloy_consensus::{Header, Transaction as _, Typed2718};
use alloy_primitives::{Address, B256, U256};
use bytes::Bytes;
use cairn_core::{BlockFacts, Height, StoredBlock, TxId, TxStatus};
use serde_json::{Map, Value};

use crate::EvmError;
use crate::canonical::{Body, decode_header};
use crate::json::quantity;
use crate::overlay::{Overlay, Patch};
use crate::receipts::{Outcome, Receipt, Receipts};
use crate::roots::Roots;
use crate::tx::{self, Tx, TxEnvelope};
use crate::views::gas_before;

/// Whom a transaction calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    /// Its type isn't known and nothing says, or the body was not read.
    Unknown,
    /// Nobody: it creates a contract (E09).
    Create,
    /// This account.
    Call(Address),
}

impl Recipient {
    /// The account that is called.
    pub fn address(self) -> Option<Address> {
        match self {
            Recipient::Call(address) => Some(address),
            Recipient::Unknown | Recipient::Create => None,
        }
    }
}

/// A log with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedLog {
    /// Its place among the block's logs, from 0: `logIndex` of the JSON-RPC.
    pub log_index: u32,
    /// Who logged.
    pub address: Address,
    /// Up to four topics.
    pub topics: Vec<B256>,
    /// The data.
    pub data: Bytes,
}

/// What a receipt says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedReceipt {
    /// The node has no receipt: gas is 0 here, and what else it would say is not known either.
    pub is_missing: bool,
    /// Gas that this transaction used.
    pub gas_used: u64,
    /// Gas that the block used up to and with this transaction.
    pub cumulative_gas_used: u64,
    /// Wei per gas that were paid; `None` where neither the node nor the transaction says (E07), or where the header or the body was
    /// not read.
    pub effective_gas_price: Option<u128>,
    /// Blob gas, of a blob transaction.
    pub blob_gas_used: Option<u64>,
    /// Wei per blob gas, where the node said.
    pub blob_gas_price: Option<u128>,
    /// Wei paid for the data on the chain below, where the node said (OP stack, Scroll).
    pub l1_fee: Option<U256>,
    /// The address that the node names, or that follows from sender and nonce. Also of a failed creation, as nodes answer (E09).
    pub contract_address: Option<Address>,
    /// The logs in order.
    pub logs: Vec<DecodedLog>,
}

/// A transaction with its receipt.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedTx {
    /// Its place in the block, from 0.
    pub index: u32,
    /// Its hash.
    pub id: TxId,
    /// Who sent it; `None` where nobody says.
    pub sender: Option<Address>,
    /// How it ended; three-valued (E08).
    pub status: TxStatus,
    /// Whether the chain injected it outside the header's roots (E10). Needs the body and the extras.
    pub is_injected: bool,
    /// The EIP-2718 type, 0 for legacy; `None` where nothing says.
    pub ty: Option<u64>,
    /// The sender's nonce.
    pub nonce: Option<u64>,
    /// Whom it calls.
    pub to: Recipient,
    /// Wei.
    pub value: Option<U256>,
    /// Call data or init code.
    pub input: Option<Bytes>,
    /// The most gas that it may use.
    pub gas_limit: Option<u64>,
    /// Wei per gas that it offers, where it offers one price.
    pub gas_price: Option<u128>,
    /// EIP-1559: the most wei per gas.
    pub max_fee_per_gas: Option<u128>,
    /// EIP-1559: the most wei per gas for the block's maker.
    pub max_priority_fee_per_gas: Option<u128>,
    /// EIP-4844: the most wei per blob gas.
    pub max_fee_per_blob_gas: Option<u128>,
    /// The whole transaction with its signature, where its type is known and the body was read. Its `signature_hash` is what was
    /// signed.
    pub known: Option<TxEnvelope>,
    /// The receipt.
    pub receipt: DecodedReceipt,
}

/// A block as typed values.
#[derive(Debug, Clone, PartialEq)]
pub struct DecodedBlock {
    /// Height, id, parent and time.
    pub facts: BlockFacts,
    /// `None` where it was not read.
    pub header: Option<Header>,
    /// All transactions, the injected ones included.
    pub transactions: Vec<DecodedTx>,
}

impl DecodedTx {
    /// The contract that it created: none where it failed (E09), or calls an account, whatever address a node names.
    pub fn created_contract(&self) -> Option<Address> {
        let creates = !matches!(self.to, Recipient::Call(_)) && self.status != TxStatus::Failed;
        self.receipt.contract_address.filter(|_| creates)
    }
}

impl DecodedBlock {
    /// Decodes the parts that are there. Transactions and receipts have to be; without the body only receipts and logs are known of
    /// the transactions; without the extras an answer lacks what the node had beyond consensus; without the header there is no price
    /// of a dynamic-fee transaction.
    pub fn decode(stored: &StoredBlock) -> Result<DecodedBlock, EvmError> {
        let height = stored.facts.height;
        let count = stored.facts.tx_count as usize;
        if stored.transactions.len() < count {
            return Err(EvmError::PartMissing { height, part: "transactions" });
        }
        if stored.receipts.is_empty() {
            return Err(EvmError::PartMissing { height, part: "receipts" });
        }
        let malformed =
            |part: &str, error: String| EvmError::malformed(format!("block {height}: {part}"), error);
        let header = match &stored.header[..] {
            [] => None,
            bytes => Some(decode_header(bytes, || format!("block {height}: header"))?),
        };
        let body = match &stored.body[..] {
            [] => None,
            bytes => Some(Body::decode(bytes).map_err(|error| malformed("body", error.to_string()))?),
        };
        let overlay = Overlay::decode(height, &stored.extras)?;
        let receipts =
            Receipts::decode(&stored.receipts).map_err(|error| malformed("receipts", error.to_string()))?;
        if receipts.list.len() != count {
            let what = format!("{} receipts of {count} transactions", receipts.list.len());
            return Err(malformed("receipts", what));
        }

        let roots = body.as_ref().map(|body| Roots::of(body, &overlay));
        let mut log_index = 0;
        let mut transactions = Vec::with_capacity(count);
        for (at, receipt) in receipts.list.iter().enumerate() {
            let index = at as u32;
            let facts = &stored.transactions[at];
            let sender = Address::try_from(&facts.sender[..]).ok();
            let decoded = match body.as_ref().and_then(|body| body.transaction(at)) {
                Some(bytes) => {
                    Tx::decode(bytes).map_err(|error| malformed(&format!("transaction {index}"), error))?
                }
                None => None,
            };
            let of_node = overlay.txs.get(&index).and_then(|patch| patch.json.as_ref());
            let (known, of_chain) = match &decoded {
                Some(Tx::Ethereum(known)) => (Some(known), None),
                Some(Tx::Described(described)) => (None, Some(described.object())),
                None => (None, None),
            };
            let is_read = body.is_some();
            let raw_type = body.as_ref().and_then(|body| body.transaction(at)).map(tx::type_of);
            let tx = Said { known, json: of_chain.or(of_node), is_read };
            let base_fee = header.as_ref().map(|header| header.base_fee_per_gas);
            let receipt = Source {
                stored,
                receipt,
                gas_before: gas_before(&receipts, at),
                patch: overlay.receipts.get(&index),
                sender,
                base_fee,
            }
            .decode(&tx, &mut log_index)
            .map_err(|error| malformed(&format!("receipt {index}"), error.to_string()))?;
            transactions.push(DecodedTx {
                index,
                id: facts.id,
                sender,
                status: facts.status,
                is_injected: roots.as_ref().is_some_and(|roots| !roots.cover_tx(at)),
                ty: tx
                    .known
                    .map(|known| u64::from(known.ty()))
                    .or(raw_type.map(u64::from))
                    .or_else(|| tx.number("type"))
                    .or_else(|| Some(u64::from(receipts.list[at].ty)).filter(|ty| *ty != 0 || !is_read)),
                nonce: tx.known.map(|known| known.nonce()).or_else(|| tx.number("nonce")),
                to: tx.recipient(),
                value: tx.known.map(|known| known.value()).or_else(|| tx.quantity("value")),
                input: tx.known.map(|known| known.input().0.clone()).or_else(|| tx.data("input")),
                gas_limit: tx.known.map(|known| known.gas_limit()).or_else(|| tx.number("gas")),
                gas_price: match tx.known {
                    Some(known) => known.gas_price(),
                    None => tx.wide("gasPrice"),
                },
                max_fee_per_gas: match tx.known {
                    Some(known) => Some(known.max_fee_per_gas()).filter(|_| known.is_dynamic_fee()),
                    None => tx.wide("maxFeePerGas"),
                },
                max_priority_fee_per_gas: match tx.known {
                    Some(known) => known.max_priority_fee_per_gas(),
                    None => tx.wide("maxPriorityFeePerGas"),
                },
                max_fee_per_blob_gas: match tx.known {
                    Some(known) => known.max_fee_per_blob_gas(),
                    None => tx.wide("maxFeePerBlobGas"),
                },
                receipt,
                known: known.cloned(),
            });
        }
        Ok(DecodedBlock { facts: stored.facts, header, transactions })
    }

    /// Its height.
    pub fn height(&self) -> Height {
        self.facts.height
    }

    /// Every log with its transaction, in order.
    pub fn logs(&self) -> impl Iterator<Item = (&DecodedTx, &DecodedLog)> {
        self.transactions.iter().flat_map(|tx| tx.receipt.logs.iter().map(move |log| (tx, log)))
    }
}

/// What is said of a transaction: by its bytes, else by its node's JSON.
struct Said<'a> {
    known: Option<&'a TxEnvelope>,
    /// Of one that isn't Ethereum's.
    json: Option<&'a Map<String, Value>>,
    is_read: bool,
}

impl Said<'_> {
    fn quantity(&self, name: &str) -> Option<U256> {
        quantity(self.json?.get(name)?)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.quantity(name)?.try_into().ok()
    }

    fn wide(&self, name: &str) -> Option<u128> {
        self.quantity(name)?.try_into().ok()
    }

    fn data(&self, name: &str) -> Option<Bytes> {
        let text = self.json?.get(name)?.as_str()?;
        alloy_primitives::hex::decode(text).ok().map(Bytes::from)
    }

    fn recipient(&self) -> Recipient {
        if let Some(known) = self.known {
            return known.to().map_or(Recipient::Create, Recipient::Call);
        }
        match self.json.filter(|_| self.is_read).map(|json| json.get("to")) {
            None => Recipient::Unknown,
            Some(None | Some(Value::Null)) => Recipient::Create,
            Some(Some(to)) if to.as_str() == Some("") => Recipient::Create,
            Some(Some(to)) => address(to).map_or(Recipient::Unknown, Recipient::Call),
        }
    }
}

/// What a receipt is decoded from.
struct Source<'a, 'b> {
    stored: &'a StoredBlock,
    receipt: &'a Receipt<'b>,
    gas_before: u64,
    patch: Option<&'a Patch>,
    sender: Option<Address>,
    /// `None` where the header was not read; inside, `None` before London.
    base_fee: Option<Option<u64>>,
}

impl Source<'_, '_> {
    fn said(&self, name: &str) -> Option<&Value> {
        self.patch.and_then(|patch| patch.set.get(name))
    }

    fn decode(&self, tx: &Said<'_>, log_index: &mut u32) -> alloy_rlp::Result<DecodedReceipt> {
        let mut logs = Vec::new();
        for log in self.receipt.logs() {
            let log = log?;
            logs.push(DecodedLog {
                log_index: *log_index,
                address: Address::new(*log.address),
                topics: log.topics().map(|topic| B256::new(*topic)).collect(),
                data: self.stored.receipts.slice_ref(log.data),
            });
            *log_index += 1;
        }
        let derived_gas = self.receipt.cumulative_gas.saturating_sub(self.gas_before);
        let price = self.said("effectiveGasPrice").and_then(wide);
        let created = tx
            .known
            .filter(|known| TxEnvelope::is_create(known))
            .zip(self.sender)
            .map(|(known, sender)| sender.create(known.nonce()));
        let is_missing = self.receipt.outcome == Outcome::Missing;
        Ok(DecodedReceipt {
            is_missing,
            gas_used: self
                .said("gasUsed")
                .and_then(|gas| quantity(gas)?.try_into().ok())
                .unwrap_or(derived_gas),
            cumulative_gas_used: self.receipt.cumulative_gas,
            effective_gas_price: price.or_else(|| self.price(tx)).filter(|_| !is_missing),
            blob_gas_used: tx.known.and_then(|known| known.blob_gas_used()),
            blob_gas_price: self.said("blobGasPrice").and_then(wide),
            l1_fee: self.said("l1Fee").and_then(quantity),
            contract_address: self
                .said("contractAddress")
                .and_then(address)
                .or(created)
                .filter(|_| !is_missing),
            logs,
        })
    }

    /// The price that follows from the transaction.
    fn price(&self, tx: &Said<'_>) -> Option<u128> {
        match tx.known {
            Some(known) if known.is_dynamic_fee() => Some(known.effective_gas_price(self.base_fee?)),
            Some(known) => known.gas_price(),
            None => tx.wide("gasPrice"),
        }
    }
}

fn wide(value: &Value) -> Option<u128> {
    quantity(value)?.try_into().ok()
}

fn address(value: &Value) -> Option<Address> {
    value.as_str()?.parse().ok()
}
