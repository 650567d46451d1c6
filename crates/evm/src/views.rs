//! A stored block as JSON, the way a node answers.
//!
//! Views are made of the consensus bytes and the facts: ids and senders are taken from the facts, nothing is hashed or recovered again. The
//! overlay goes over each object at the end. A view is cheap to make: bytes are decoded when a method needs them.

use alloy_consensus::Header;
use alloy_primitives::B256;

use bytes::Bytes;
use cairn_core::{Height, StoredBlock};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::canonical::{Body, b256, decode_header, in_list};
use crate::filter::LogFilter;
use crate::json::Json;
use crate::overlay::Overlay;
use crate::receipts::{Log, Outcome, Receipt, Receipts};
use crate::roots::Roots;
use crate::schedule::ForkSchedule;
use crate::tx::Tx;
use crate::tx::described::ZEROS;
use crate::{EvmError, rlp, traces, tx, withdrawals};

pub(crate) mod fields;
mod logs;
pub(crate) mod sink;

use fields::{BlockContext, LogContext, ReceiptContext};
pub use logs::LogPlace;
use sink::{Field, Sink, TextSink};

/// A block read from a store, as JSON and as raw bytes.
///
/// Which parts a method needs is said with it (facts are always there); it answers [`EvmError::PartMissing`] where one was not read.
/// [`cairn_core::Parts::EXTRAS`] should go with every part whose JSON is asked for: without it an answer lacks what the node had beyond
/// consensus.
#[derive(Debug, Clone)]
pub struct BlockView {
    stored: StoredBlock,
    header: Option<Header>,
    overlay: Overlay,
    blob_gas_price: Option<u128>,
}

impl BlockView {
    /// Takes whichever parts are there. `schedule` prices blobs in receipts; without it the price is there only where the node gave it.
    pub fn decode(stored: StoredBlock, schedule: Option<&ForkSchedule>) -> Result<Self, EvmError> {
        let height = stored.facts.height;
        let header = match &stored.header[..] {
            [] => None,
            bytes => Some(decode_header(bytes, || format!("block {height}: header"))?),
        };
        let overlay = Overlay::decode(height, &stored.extras)?;
        let blob_gas_price = header
            .as_ref()
            .zip(schedule)
            .and_then(|(header, schedule)| schedule.blob_base_fee(header.excess_blob_gas?, header.timestamp));
        Ok(BlockView { stored, header, overlay, blob_gas_price })
    }

    /// What it was made of.
    pub fn stored(&self) -> &StoredBlock {
        &self.stored
    }

    /// The decoded header. Needs the header.
    pub fn header(&self) -> Result<&Header, EvmError> {
        self.header.as_ref().ok_or(self.missing("header"))
    }

    /// The block as `eth_getBlockBy…` answers, with whole transactions or their hashes. Needs header, transactions and body.
    pub fn block_json(&self, full_transactions: bool) -> Result<Json, EvmError> {
        let body = self.body()?;
        let listed = body.transactions.len();
        let transactions = if full_transactions {
            (0..listed).map(|index| self.transaction(&body, index)).collect::<Result<_, _>>()?
        } else {
            self.facts_of_all()?.iter().take(listed).map(|facts| facts.id.to_string().into()).collect()
        };
        let mut object = self.block_object(&body)?;
        self.overlay.block.apply(&mut object);
        object.insert("transactions".into(), Value::Array(transactions));
        Ok(Json(Value::Object(object)))
    }

    /// The header as the `newHeads` subscription sends it: without size, uncles, withdrawals and transactions. Needs the header.
    pub fn header_json(&self) -> Result<Json, EvmError> {
        let mut object = Map::new();
        fields::header(self.header()?, self.id(), &mut object);
        self.overlay.block.apply(&mut object);
        for name in ["size", "uncles", "withdrawals"] {
            object.shift_remove(name);
        }
        Ok(Json(Value::Object(object)))
    }

    /// The fields of the block, derived, without its transactions.
    pub(crate) fn block_object(&self, body: &Body<'_>) -> Result<Map<String, Value>, EvmError> {
        let mut object = Map::new();
        block_fields(self.header()?, self.id(), self.stored.header.len(), body, &mut object)?;
        Ok(object)
    }

    /// How many transactions it has, those included that the chain injected without listing them in the body.
    pub fn tx_count(&self) -> usize {
        self.stored.facts.tx_count as usize
    }

    /// How many transactions its body lists: what `eth_getBlockTransactionCount…` answers. Needs the body.
    pub fn listed_tx_count(&self) -> Result<usize, EvmError> {
        Ok(self.body()?.transactions.len())
    }

    /// A transaction as `eth_getTransaction…` answers; an error at or beyond [`BlockView::tx_count`]. Needs header, transactions, body.
    ///
    /// One that the chain injected without listing it is served as far as its receipt says (needs receipts then), with zeros elsewhere, as
    /// such chains' own nodes do.
    pub fn tx_json(&self, index: usize) -> Result<Json, EvmError> {
        self.transaction(&self.body()?, index).map(Json)
    }

    fn transaction(&self, body: &Body<'_>, index: usize) -> Result<Value, EvmError> {
        let facts = self.facts_of(index)?;
        let block = self.context()?;
        if index >= body.transactions.len() {
            return self.injected_transaction(&block, index);
        }
        let patch = self.overlay.txs.get(&(index as u32));
        if let Some(json) = patch.and_then(|patch| patch.json.as_ref()) {
            let mut object = json.clone();
            complete_opaque(&block, index, &mut object);
            return Ok(Value::Object(object));
        }
        let mut object = Map::new();
        match self.known(body, index)? {
            Some(known) => {
                fields::transaction(&block, index, &known, b256(&facts.id.0), &facts.sender, &mut object);
            }
            None => {
                fields::place(&block, index, &mut object);
                object.put("hash", Field::Data(&facts.id.0));
                if let Some(bytes) = body.transaction(index) {
                    object.put("type", Field::Number(u64::from(tx::type_of(bytes))));
                }
            }
        }
        if let Some(patch) = patch {
            patch.apply(&mut object);
        }
        Ok(Value::Object(object))
    }

    fn injected_transaction(&self, block: &BlockContext, index: usize) -> Result<Value, EvmError> {
        let receipts = self.receipts()?;
        let receipt = self.receipt_at(&receipts, index)?;
        let facts = self.facts_of(index)?;
        let patch = self.overlay.receipts.get(&(index as u32));
        let said = |name: &str| patch.and_then(|patch| patch.set.get(name)).cloned();
        let zero_address = Field::Data(&[0; 20]).into_value();
        let from =
            Field::data_or_null(Some(&facts.sender[..]).filter(|sender| !sender.is_empty())).into_value();
        let mut object = Map::new();
        fields::place(block, index, &mut object);
        object.put("hash", Field::Data(&facts.id.0));
        object.put("type", Field::Number(u64::from(receipt.ty)));
        object.put("from", Field::Json(said("from").unwrap_or(from)));
        object.put("to", Field::Json(said("to").unwrap_or(zero_address)));
        for name in ZEROS {
            object.put(name, Field::Number(0));
        }
        object.put("input", Field::Data(&[]));
        Ok(Value::Object(object))
    }

    /// A receipt as `eth_getTransactionReceipt` answers, `None` where the node has none; an error at or beyond [`BlockView::tx_count`]. Needs
    /// header, transactions, body and receipts.
    pub fn receipt_json(&self, index: usize) -> Result<Option<Json>, EvmError> {
        let receipts = self.receipts()?;
        if self.receipt_at(&receipts, index)?.outcome == Outcome::Missing {
            return Ok(None);
        }
        let mut logs_before = 0;
        for receipt in &receipts.list[..index] {
            logs_before += receipt.log_count().map_err(|error| self.malformed("receipts", error))?;
        }
        self.receipt(&self.body()?, &receipts, index, logs_before).map(|(receipt, _)| Some(Json(receipt)))
    }

    /// All receipts as `eth_getBlockReceipts` answers; an error where one is missing. Needs header, transactions, body and receipts.
    pub fn receipts_json(&self) -> Result<Vec<Json>, EvmError> {
        let (body, receipts) = (self.body()?, self.receipts_of_all()?);
        let mut log_index = 0;
        let one = |index| {
            let (json, logs) = self.receipt(&body, &receipts, index, log_index)?;
            log_index += logs;
            Ok(Json(json))
        };
        (0..receipts.list.len()).map(one).collect()
    }

    /// A receipt, and how many logs it has.
    fn receipt(
        &self,
        body: &Body<'_>,
        receipts: &Receipts<'_>,
        index: usize,
        logs_before: u32,
    ) -> Result<(Value, u32), EvmError> {
        let facts = self.facts_of(index)?;
        let receipt = self.receipt_at(receipts, index)?;
        let block = self.context()?;
        let known = if index < body.transactions.len() { self.known(body, index)? } else { None };
        let at = index as u32;
        let hash = b256(&facts.id.0);
        let context = ReceiptContext {
            index,
            hash,
            sender: &facts.sender,
            tx: known.as_ref(),
            json: self.overlay.txs.get(&at).and_then(|patch| patch.json.as_ref()),
            gas_before: gas_before(receipts, index),
            bloom: receipt.bloom().map_err(|error| self.malformed("receipts", error))?,
        };
        let mut object = Map::new();
        fields::receipt(&block, &context, receipt, &mut object);
        if let Some(patch) = self.overlay.receipts.get(&at) {
            patch.apply(&mut object);
        }
        let mut logs = Vec::new();
        for log in receipt.logs() {
            let log = log.map_err(|error| self.malformed("receipts", error))?;
            let log_index = logs_before + logs.len() as u32;
            let place = LogContext { tx_hash: hash, tx_index: index, log_index, removed: false };
            logs.push(Value::Object(self.log_object(&block, &place, &log)));
        }
        let count = logs.len() as u32;
        object.insert("logs".into(), Value::Array(logs));
        Ok((Value::Object(object), count))
    }

    fn log_object(&self, block: &BlockContext, place: &LogContext, log: &Log<'_>) -> Map<String, Value> {
        let mut object = Map::new();
        fields::log(block, place, log, &mut object);
        if let Some(patch) = self.overlay.logs.get(&place.log_index) {
            patch.apply(&mut object);
        }
        object
    }

    /// The logs that match `filter`, in order, each as JSON text. `removed` says whether a reorg took them away. Needs transactions and
    /// receipts; with extras also what the node had beyond consensus.
    pub fn logs(&self, filter: &LogFilter, removed: bool) -> Result<Vec<Box<RawValue>>, EvmError> {
        let mut logs = Vec::new();
        self.each_log(filter, removed, &mut Vec::new(), |text| {
            let raw =
                String::from_utf8(std::mem::take(text)).map_err(|error| self.malformed("extras", error))?;
            logs.push(RawValue::from_string(raw).map_err(|error| self.malformed("extras", error))?);
            Ok(())
        })?;
        Ok(logs)
    }

    /// Appends what [`BlockView::logs`] returns to `out`, with a comma after each log, and returns how many there were: for answers of
    /// megabytes, which should be written once.
    pub fn write_logs(
        &self,
        filter: &LogFilter,
        removed: bool,
        out: &mut Vec<u8>,
    ) -> Result<usize, EvmError> {
        let mut count = 0;
        self.each_log(filter, removed, out, |out| {
            out.push(b',');
            count += 1;
            Ok(())
        })?;
        Ok(count)
    }

    /// How many logs match `filter`. Needs receipts.
    pub fn count_logs(&self, filter: &LogFilter) -> Result<usize, EvmError> {
        let mut count = 0;
        for receipt in self.receipts_of_all()?.list {
            for log in receipt.logs() {
                count +=
                    usize::from(matches(filter, &log.map_err(|error| self.malformed("receipts", error))?));
            }
        }
        Ok(count)
    }

    /// Everything that a log needs of its block is in the facts: no header.
    fn log_block(&self) -> BlockContext {
        let facts = &self.stored.facts;
        BlockContext {
            id: self.id(),
            number: facts.height.get(),
            timestamp: facts.timestamp_ms / 1000,
            base_fee: None,
            blob_gas_price: None,
        }
    }

    /// Appends each matching log's text to `out` and calls `each` after it.
    fn each_log(
        &self,
        filter: &LogFilter,
        removed: bool,
        out: &mut Vec<u8>,
        mut each: impl FnMut(&mut Vec<u8>) -> Result<(), EvmError>,
    ) -> Result<(), EvmError> {
        let block = self.log_block();
        let mut log_index = 0;
        for (tx_index, receipt) in self.receipts_of_all()?.list.iter().enumerate() {
            for log in receipt.logs() {
                let log = log.map_err(|error| self.malformed("receipts", error))?;
                let this = log_index;
                log_index += 1;
                if !matches(filter, &log) {
                    continue;
                }
                self.write_log(&block, (tx_index, this), removed, &log, out)?;
                each(out)?;
            }
        }
        Ok(())
    }

    fn write_log(
        &self,
        block: &BlockContext,
        (tx_index, log_index): (usize, u32),
        removed: bool,
        log: &Log<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), EvmError> {
        let tx_hash = b256(&self.facts_of(tx_index)?.id.0);
        let place = LogContext { tx_hash, tx_index, log_index, removed };
        out.reserve(LOG_TEXT_BYTES + log.data.len() * 2);
        if self.overlay.logs.contains_key(&log_index) {
            let object = Json(Value::Object(self.log_object(block, &place, log)));
            serde_json::to_writer(&mut *out, &object).map_err(|error| self.malformed("extras", error))?;
        } else {
            let mut sink = TextSink::new(out);
            fields::log(block, &place, log, &mut sink);
            sink.finish();
        }
        Ok(())
    }

    /// How many ommers (uncles) it has. Needs the body.
    pub fn ommer_count(&self) -> Result<usize, EvmError> {
        Ok(self.body()?.ommers.len())
    }

    /// An ommer as `eth_getUncleBy…` answers: a block without transactions. `None` beyond the last one, and where only its hash is known.
    /// Needs the body.
    pub fn ommer_json(&self, index: usize) -> Result<Option<Json>, EvmError> {
        let body = self.body()?;
        let Some(item) = body.ommers.get(index).filter(|item| item.list) else { return Ok(None) };
        let header =
            decode_header(item.raw, || format!("block {}: ommer {index}", self.stored.facts.height))?;
        let mut object = Map::new();
        ommer_fields(&header, item.raw, &mut object);
        if let Some(patch) = self.overlay.ommers.get(&(index as u32)) {
            patch.apply(&mut object);
        }
        Ok(Some(Json(Value::Object(object))))
    }

    /// What `debug_traceBlockBy…` with the `callTracer` answers: `[{txHash, result}…]`. `None` where no traces are archived. As text, because
    /// call frames nest deeper than JSON parsers like.
    pub fn traces_json(&self) -> Result<Option<Box<RawValue>>, EvmError> {
        self.stored.traces.as_deref().map(|bytes| traces::all(self.stored.facts.height, bytes)).transpose()
    }

    /// What `debug_traceTransaction` answers. `None` where no traces are archived, or not of this transaction.
    pub fn trace_json(&self, index: usize) -> Result<Option<Box<RawValue>>, EvmError> {
        match self.stored.traces.as_deref() {
            Some(bytes) => traces::one(self.stored.facts.height, bytes, index),
            None => Ok(None),
        }
    }

    /// The block's RLP, `[header, transactions, ommers, withdrawals?]`, as `debug_getRawBlock` answers, with the transactions that the transactions
    /// root covers. Needs header and body.
    pub fn raw_block(&self) -> Result<Bytes, EvmError> {
        let body = self.body()?;
        let roots = Roots::of(&body, &self.overlay);
        let mut transactions = Vec::with_capacity(body.payload.len());
        for (index, item) in body.transactions.iter().enumerate().filter(|(index, _)| roots.cover_tx(*index))
        {
            self.bytes_of(&body, index)?;
            transactions.extend_from_slice(item.raw);
        }
        let header = self.raw_header()?;
        let transactions = in_list(transactions);
        let mut block = Vec::with_capacity(header.len() + body.payload.len() + 9);
        rlp::list_header(header.len() + transactions.len() + body.after_transactions.len(), &mut block);
        block.extend_from_slice(&header);
        block.extend_from_slice(&transactions);
        block.extend_from_slice(body.after_transactions);
        Ok(block.into())
    }

    /// The header's RLP, as `debug_getRawHeader` answers. Needs the header.
    pub fn raw_header(&self) -> Result<Bytes, EvmError> {
        if self.stored.header.is_empty() {
            Err(self.missing("header"))
        } else {
            Ok(self.stored.header.clone())
        }
    }

    /// A transaction's EIP-2718 bytes, as `debug_getRawTransaction` answers; an error beyond the last one. Needs the body.
    pub fn raw_transaction(&self, index: usize) -> Result<Bytes, EvmError> {
        let body = self.body()?;
        if index >= self.tx_count() {
            return Err(self.no_such("transaction", index, self.tx_count()));
        }
        Ok(self.stored.body.slice_ref(self.bytes_of(&body, index)?))
    }

    /// The receipts' EIP-2718 bytes with bloom, as `debug_getRawReceipts` answers: those that the receipts root covers; an error where one is
    /// missing. Needs body and receipts.
    pub fn raw_receipts(&self) -> Result<Vec<Bytes>, EvmError> {
        let roots = Roots::of(&self.body()?, &self.overlay);
        let receipts = self.receipts_of_all()?.list;
        let covered = receipts.iter().enumerate().filter(|(index, _)| roots.cover_receipt(*index));
        covered.map(|(_, receipt)| self.raw_receipt_of(receipt)).collect()
    }

    /// One of them by its transaction's index; `None` where the receipts root doesn't cover it, or it is missing. Needs body and receipts.
    pub fn raw_receipt(&self, index: usize) -> Result<Option<Bytes>, EvmError> {
        let covered = Roots::of(&self.body()?, &self.overlay).cover_receipt(index);
        let receipts = self.receipts()?.list;
        let receipt = receipts.get(index).filter(|receipt| covered && receipt.outcome != Outcome::Missing);
        receipt.map(|receipt| self.raw_receipt_of(receipt)).transpose()
    }

    fn raw_receipt_of(&self, receipt: &Receipt<'_>) -> Result<Bytes, EvmError> {
        let bloom = receipt.bloom().map_err(|error| self.malformed("receipts", error))?;
        let mut bytes = Vec::new();
        receipt.encode_consensus(&bloom, &mut bytes);
        Ok(bytes.into())
    }

    fn id(&self) -> B256 {
        b256(&self.stored.facts.id.0)
    }

    fn context(&self) -> Result<BlockContext, EvmError> {
        Ok(BlockContext { blob_gas_price: self.blob_gas_price, ..block_context(self.header()?, self.id()) })
    }

    fn body(&self) -> Result<Body<'_>, EvmError> {
        if self.stored.body.is_empty() {
            return Err(self.missing("body"));
        }
        Body::decode(&self.stored.body).map_err(|error| self.malformed("body", error))
    }

    fn receipts(&self) -> Result<Receipts<'_>, EvmError> {
        if self.stored.receipts.is_empty() {
            return Err(self.missing("receipts"));
        }
        Receipts::decode(&self.stored.receipts).map_err(|error| self.malformed("receipts", error))
    }

    /// The receipts, of which none is missing.
    fn receipts_of_all(&self) -> Result<Receipts<'_>, EvmError> {
        let receipts = self.receipts()?;
        match receipts.list.iter().position(|receipt| receipt.outcome == Outcome::Missing) {
            None => Ok(receipts),
            Some(index) => Err(EvmError::ReceiptMissing {
                height: self.stored.facts.height,
                index,
                id: self.stored.transactions.get(index).map(|facts| facts.id),
            }),
        }
    }

    fn receipt_at<'a, 'b>(
        &self,
        receipts: &'a Receipts<'b>,
        index: usize,
    ) -> Result<&'a Receipt<'b>, EvmError> {
        receipts.list.get(index).ok_or_else(|| self.no_such("receipt", index, receipts.list.len()))
    }

    fn facts_of_all(&self) -> Result<&[cairn_core::TxFacts], EvmError> {
        if self.stored.transactions.len() < self.tx_count() {
            return Err(self.missing("transactions"));
        }
        Ok(&self.stored.transactions)
    }

    fn facts_of(&self, index: usize) -> Result<&cairn_core::TxFacts, EvmError> {
        self.facts_of_all()?.get(index).ok_or_else(|| self.no_such("transaction", index, self.tx_count()))
    }

    fn known(&self, body: &Body<'_>, index: usize) -> Result<Option<Tx>, EvmError> {
        match body.transaction(index) {
            Some(bytes) => {
                Tx::decode(bytes).map_err(|error| self.malformed(&format!("transaction {index}"), error))
            }
            None => Ok(None),
        }
    }

    fn bytes_of<'a>(&self, body: &Body<'a>, index: usize) -> Result<&'a [u8], EvmError> {
        let height = self.stored.facts.height;
        body.transaction(index).ok_or(EvmError::BytesUnknown { height, index: index as u32 })
    }

    fn missing(&self, part: &'static str) -> EvmError {
        EvmError::PartMissing { height: self.stored.facts.height, part }
    }

    fn no_such(&self, what: &'static str, index: usize, count: usize) -> EvmError {
        EvmError::NoSuchItem { height: self.stored.facts.height, what, index, count }
    }

    fn malformed(&self, part: &str, error: impl ToString) -> EvmError {
        malformed(self.stored.facts.height, part, error)
    }
}

/// The JSON text of a log without its data, in bytes: enough for four topics.
const LOG_TEXT_BYTES: usize = 800;

fn malformed(height: Height, part: &str, error: impl ToString) -> EvmError {
    EvmError::malformed(format!("block {height}: {part}"), error)
}

fn matches(filter: &LogFilter, log: &Log<'_>) -> bool {
    filter.matches(log.address.into(), log.topics().map(Into::into))
}

/// The cumulative gas before the transaction at `index`.
pub(crate) fn gas_before(receipts: &Receipts<'_>, index: usize) -> u64 {
    index
        .checked_sub(1)
        .and_then(|before| receipts.list.get(before))
        .map_or(0, |receipt| receipt.cumulative_gas)
}

/// The context of a block, without the price of blobs.
pub(crate) fn block_context(header: &Header, id: B256) -> BlockContext {
    BlockContext {
        id,
        number: header.number,
        timestamp: header.timestamp,
        base_fee: header.base_fee_per_gas,
        blob_gas_price: None,
    }
}

/// The fields of a block but for its transactions.
pub(crate) fn block_fields(
    header: &Header,
    id: B256,
    header_bytes: usize,
    body: &Body<'_>,
    sink: &mut impl Sink,
) -> Result<(), EvmError> {
    fields::header(header, id, sink);
    let payload_length = header_bytes + body.payload.len();
    let size = alloy_rlp::Header { list: true, payload_length }.length_with_payload();
    sink.put("size", Field::Number(size as u64));
    let uncles: Vec<B256> = body.ommers.iter().map(|item| ommer_hash(*item)).collect();
    sink.put("uncles", Field::Hashes(&uncles));
    if let Some(list) = withdrawals::decode(header.number, body)? {
        sink.put("withdrawals", Field::Json(fields::withdrawals(&list)));
    }
    Ok(())
}

fn ommer_hash(item: rlp::Item<'_>) -> B256 {
    match (item.list, B256::try_from(item.payload)) {
        (false, Ok(hash)) => hash,
        _ => alloy_primitives::keccak256(item.raw),
    }
}

/// The fields of an ommer: a block of its header alone.
pub(crate) fn ommer_fields(header: &Header, raw: &[u8], sink: &mut impl Sink) {
    fields::header(header, alloy_primitives::keccak256(raw), sink);
    let payload_length = raw.len() + 2;
    let size = alloy_rlp::Header { list: true, payload_length }.length_with_payload();
    sink.put("size", Field::Number(size as u64));
    sink.put("uncles", Field::Hashes(&[]));
}

/// Says where a transaction stands whose node's JSON is served as it came, where the node didn't say.
fn complete_opaque(block: &BlockContext, index: usize, object: &mut Map<String, Value>) {
    let mut place = Map::new();
    fields::place(block, index, &mut place);
    for (name, value) in place {
        let slot = object.entry(name).or_insert(Value::Null);
        if slot.is_null() {
            *slot = value;
        }
    }
}
