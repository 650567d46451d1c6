//! Receipts: the stored form, and the consensus form made from it.
//!
//! Stored: an RLP list with one list per receipt, `[type, outcome, cumulative gas, logs, rest…]`, empty where the node has no receipt. The outcome is the status (0 or 1), the
//! 32 bytes of a state root (before Byzantium), or an empty list where the node said neither. `logs` is consensus RLP. `rest` are
//! items after the logs that some chains add to a type of theirs. The bloom is not stored: it is derived from the logs.

use alloy_primitives::{Bloom, BloomInput};
use alloy_rlp::{Decodable, Encodable, Error, Result};

use crate::rlp::{self, Item, Items};

/// The most topics that a log can have: the EVM has LOG0 to LOG4.
pub(crate) const MAX_TOPICS: usize = 4;

/// How a receipt says that its transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    /// EIP-658: success or not.
    Status(bool),
    /// The state root after the transaction.
    Root(&'a [u8; 32]),
    /// The node gave neither.
    Unknown,
    /// The node has no receipt. The others of its fields say nothing.
    Missing,
}

impl<'a> Outcome<'a> {
    fn decode(item: Item<'a>) -> Result<Self> {
        if item.list {
            return if item.payload.is_empty() { Ok(Outcome::Unknown) } else { Err(Error::UnexpectedList) };
        }
        match item.payload {
            [] => Ok(Outcome::Status(false)),
            [1] => Ok(Outcome::Status(true)),
            root => match root.try_into() {
                Ok(root) => Ok(Outcome::Root(root)),
                Err(_) => Err(Error::Custom("a receipt's status is 0, 1 or a state root of 32 bytes")),
            },
        }
    }

    /// As RLP. An unknown outcome is an empty list, which no consensus encoding has.
    fn encode(self, out: &mut Vec<u8>) {
        match self {
            Outcome::Status(ok) => ok.encode(out),
            Outcome::Root(root) => root.encode(out),
            Outcome::Unknown | Outcome::Missing => rlp::list_header(0, out),
        }
    }

    pub fn status(self) -> cairn_core::TxStatus {
        match self {
            Outcome::Status(true) => cairn_core::TxStatus::Ok,
            Outcome::Status(false) => cairn_core::TxStatus::Failed,
            Outcome::Root(_) | Outcome::Unknown | Outcome::Missing => cairn_core::TxStatus::Unknown,
        }
    }
}

/// A receipt, borrowed from its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receipt<'a> {
    /// The EIP-2718 type; 0 for a legacy transaction.
    pub ty: u8,
    pub outcome: Outcome<'a>,
    pub cumulative_gas: u64,
    /// The logs' RLP items, without the header of their list.
    pub logs: &'a [u8],
    /// RLP items after the logs.
    pub rest: &'a [u8],
}

impl<'a> Receipt<'a> {
    /// In place of one that the node doesn't have. `cumulative_gas` is that of the receipt before it.
    const fn missing(cumulative_gas: u64) -> Self {
        Receipt { ty: 0, outcome: Outcome::Missing, cumulative_gas, logs: &[], rest: &[] }
    }

    /// From the stored form. The logs are only delimited, not decoded.
    pub fn decode_stored(item: Item<'a>) -> Result<Self> {
        let mut items = item.items()?;
        let mut ty = items.required()?.raw;
        let ty = u8::decode(&mut ty)?;
        Receipt::decode_after_type(ty, items, false)
    }

    /// From EIP-2718 bytes with a bloom, which is dropped. Everything in it is decoded once, so that bad bytes are found here.
    pub fn decode_consensus(bytes: &'a [u8]) -> Result<Self> {
        let (ty, list) = match bytes.first() {
            Some(&first) if first >= alloy_rlp::EMPTY_LIST_CODE => (0, bytes),
            Some(&first) if (1..0x80).contains(&first) => (first, &bytes[1..]),
            Some(_) => return Err(Error::Custom("neither a list nor a transaction type of 0x01 to 0x7f")),
            None => return Err(Error::InputTooShort),
        };
        let receipt = Receipt::decode_after_type(ty, rlp::list(list)?, true)?;
        if receipt.outcome == Outcome::Unknown {
            return Err(Error::UnexpectedList);
        }
        receipt.logs().try_for_each(|log| log.map(drop))?;
        Items(receipt.rest).try_for_each(|item| item.map(drop))?;
        Ok(receipt)
    }

    fn decode_after_type(ty: u8, mut items: Items<'a>, with_bloom: bool) -> Result<Self> {
        let outcome = Outcome::decode(items.required()?)?;
        let mut gas = items.required()?.raw;
        let cumulative_gas = u64::decode(&mut gas)?;
        if with_bloom && items.required()?.string()?.len() != 256 {
            return Err(Error::Custom("a bloom has 256 bytes"));
        }
        let logs = items.required()?.items()?.rest();
        Ok(Receipt { ty, outcome, cumulative_gas, logs, rest: items.rest() })
    }

    /// Its logs in order.
    pub fn logs(&self) -> impl Iterator<Item = Result<Log<'a>>> + use<'a> {
        Items(self.logs).map(|item| Log::decode(item?))
    }

    /// The same, each as it is stored.
    pub fn raw_logs(&self) -> impl Iterator<Item = Result<&'a [u8]>> + use<'a> {
        Items(self.logs).map(|item| Ok(item?.raw))
    }

    /// How many logs it has, without looking into them.
    pub fn log_count(&self) -> Result<u32> {
        let mut count = 0;
        for item in Items(self.logs) {
            item?;
            count += 1;
        }
        Ok(count)
    }

    /// The bloom of its logs.
    pub fn bloom(&self) -> Result<Bloom> {
        let mut bloom = Bloom::ZERO;
        for log in self.logs() {
            let log = log?;
            bloom.accrue(BloomInput::Raw(log.address));
            for topic in log.topics() {
                bloom.accrue(BloomInput::Raw(topic));
            }
        }
        Ok(bloom)
    }

    /// Appends the stored form.
    pub fn encode_stored(&self, out: &mut Vec<u8>) {
        let mut head = Vec::with_capacity(48);
        self.ty.encode(&mut head);
        self.outcome.encode(&mut head);
        self.cumulative_gas.encode(&mut head);
        self.encode_after(&head, out);
    }

    /// Appends the EIP-2718 form with `bloom`.
    pub fn encode_consensus(&self, bloom: &Bloom, out: &mut Vec<u8>) {
        out.reserve(self.logs.len() + self.rest.len() + 330);
        if self.ty != 0 {
            out.push(self.ty);
        }
        let mut head = Vec::with_capacity(320);
        self.outcome.encode(&mut head);
        self.cumulative_gas.encode(&mut head);
        bloom.encode(&mut head);
        self.encode_after(&head, out);
    }

    /// Appends the list of what is encoded in `head`, the logs and the rest.
    fn encode_after(&self, head: &[u8], out: &mut Vec<u8>) {
        let logs = alloy_rlp::Header { list: true, payload_length: self.logs.len() };
        rlp::list_header(head.len() + logs.length_with_payload() + self.rest.len(), out);
        out.extend_from_slice(head);
        logs.encode(out);
        out.extend_from_slice(self.logs);
        out.extend_from_slice(self.rest);
    }
}

/// A log, borrowed from its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log<'a> {
    pub address: &'a [u8; 20],
    topics: [Option<&'a [u8; 32]>; MAX_TOPICS],
    pub data: &'a [u8],
}

impl<'a> Log<'a> {
    /// From what [`Receipt::raw_logs`] gave.
    pub(crate) fn decode_raw(raw: &'a [u8]) -> Result<Self> {
        Log::decode(Items(raw).required()?)
    }

    fn decode(item: Item<'a>) -> Result<Self> {
        let mut items = item.items()?;
        let address = items.required()?.string()?;
        let address = address.try_into().map_err(|_| Error::Custom("a log's address has 20 bytes"))?;
        let mut topics = [None; MAX_TOPICS];
        for (at, topic) in items.required()?.items()?.enumerate() {
            let slot = topics.get_mut(at).ok_or(Error::Custom("a log has at most 4 topics"))?;
            let topic = topic?.string()?;
            *slot = Some(topic.try_into().map_err(|_| Error::Custom("a topic has 32 bytes"))?);
        }
        let data = items.required()?.string()?;
        if !items.rest().is_empty() {
            return Err(Error::Custom("a log has three items"));
        }
        Ok(Log { address, topics, data })
    }

    /// Its topics in order.
    pub fn topics(&self) -> impl Iterator<Item = &'a [u8; 32]> + use<'a> {
        self.topics.into_iter().flatten()
    }
}

/// A block's receipts, borrowed from their stored form. Their logs are only delimited.
#[derive(Debug, Clone)]
pub(crate) struct Receipts<'a> {
    pub list: Vec<Receipt<'a>>,
}

impl<'a> Receipts<'a> {
    /// Delimits the stored receipts.
    pub fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut list: Vec<Receipt<'a>> = Vec::new();
        for item in rlp::list(bytes)? {
            let item = item?;
            list.push(if item.list && item.payload.is_empty() {
                Receipt::missing(list.last().map_or(0, |before| before.cumulative_gas))
            } else {
                Receipt::decode_stored(item)?
            });
        }
        Ok(Receipts { list })
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::{Eip658Value, Receipt as AlloyReceipt, ReceiptEnvelope, ReceiptWithBloom};
    use alloy_eips::eip2718::Encodable2718;
    use alloy_primitives::{Address, B256, Bytes, Log as AlloyLog, LogData};
    use proptest::prelude::*;

    use super::*;

    fn any_log() -> impl Strategy<Value = AlloyLog> {
        let topics = prop::collection::vec(any::<[u8; 32]>().prop_map(B256::new), 0..=MAX_TOPICS);
        (any::<[u8; 20]>(), topics, prop::collection::vec(any::<u8>(), 0..80)).prop_map(
            |(address, topics, data)| AlloyLog {
                address: Address::new(address),
                data: LogData::new_unchecked(topics, Bytes::from(data)),
            },
        )
    }

    fn any_receipt() -> impl Strategy<Value = ReceiptEnvelope> {
        let status = prop_oneof![
            any::<bool>().prop_map(Eip658Value::Eip658),
            any::<[u8; 32]>().prop_map(|root| Eip658Value::PostState(B256::new(root))),
        ];
        let receipt = (status, any::<u64>(), prop::collection::vec(any_log(), 0..4)).prop_map(
            |(status, cumulative_gas_used, logs)| AlloyReceipt { status, cumulative_gas_used, logs },
        );
        (0..5u8, receipt).prop_map(|(ty, receipt)| {
            let receipt = ReceiptWithBloom::from(receipt);
            match ty {
                0 => ReceiptEnvelope::Legacy(receipt),
                1 => ReceiptEnvelope::Eip2930(receipt),
                2 => ReceiptEnvelope::Eip1559(receipt),
                3 => ReceiptEnvelope::Eip4844(receipt),
                _ => ReceiptEnvelope::Eip7702(receipt),
            }
        })
    }

    proptest! {
        #[test]
        fn receipts_lose_only_their_bloom_and_get_it_back(list in prop::collection::vec(any_receipt(), 0..4)) {
            let mut stored = Vec::new();
            for receipt in &list {
                Receipt::decode_consensus(&receipt.encoded_2718()).unwrap().encode_stored(&mut stored);
            }
            let stored = crate::canonical::in_list(stored);
            let decoded = Receipts::decode(&stored).unwrap().list;
            prop_assert_eq!(decoded.len(), list.len());
            for (ours, theirs) in decoded.iter().zip(&list) {
                let bloom = ours.bloom().unwrap();
                prop_assert_eq!(&bloom, theirs.logs_bloom());
                let mut bytes = Vec::new();
                ours.encode_consensus(&bloom, &mut bytes);
                prop_assert_eq!(bytes, theirs.encoded_2718());
                prop_assert_eq!(ours.log_count().unwrap() as usize, theirs.logs().len());
            }
        }

        #[test]
        fn bytes_that_are_no_receipt_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in any::<prop::sample::Index>(), receipt in any_receipt()) {
            let mut near = receipt.encoded_2718();
            let at = cut.index(near.len());
            near[at] ^= bytes.first().copied().unwrap_or(1);
            for bytes in [&bytes, &near] {
                if let Ok(receipt) = Receipt::decode_consensus(bytes) {
                    receipt.bloom().unwrap();
                }
                if let Ok(receipts) = Receipts::decode(bytes) {
                    receipts.list.iter().for_each(|receipt| assert!(receipt.log_count().is_ok() || receipt.bloom().is_err()));
                }
            }
        }
    }

    #[test]
    fn items_after_the_logs_are_kept() {
        // [status, gas, bloom, logs, depositNonce, depositReceiptVersion] of a type that only its own chain knows.
        let mut items = vec![0x01, 0x05];
        Bloom::ZERO.encode(&mut items);
        items.extend([0xc0, 0x2a, 0x01]);
        let mut bytes = vec![0x7e];
        rlp::list_header(items.len(), &mut bytes);
        bytes.extend(items);
        let receipt = Receipt::decode_consensus(&bytes).unwrap();
        assert_eq!((receipt.ty, receipt.rest), (0x7e, &[0x2a, 0x01][..]));
        let mut stored = Vec::new();
        receipt.encode_stored(&mut stored);
        let again = Receipt::decode_stored(rlp::exactly(&stored).unwrap()).unwrap();
        let mut encoded = Vec::new();
        again.encode_consensus(&Bloom::ZERO, &mut encoded);
        assert_eq!(encoded, bytes);
    }
}
