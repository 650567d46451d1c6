//! The terms by which logs are found. Persisted by stores: these functions never change.

use std::collections::HashSet;

use alloy_primitives::keccak256;
use cairn_core::IndexKey;

use crate::EvmError;
use crate::receipts::{Outcome, Receipts};

/// Which place of a log a term stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TermSlot {
    /// Who logged: 20 bytes.
    Address,
    /// The topic at this position, 0 to 3: 32 bytes.
    Topic(u8),
}

impl TermSlot {
    const fn byte(self) -> u8 {
        match self {
            TermSlot::Address => 0,
            TermSlot::Topic(position) => position.saturating_add(1),
        }
    }
}

/// The key of a term: the first eight bytes, big-endian, of `keccak256(slot ‖ value)`, where the slot is one byte: 0 for the address,
/// 1 + position for a topic. Hashed, so that addresses with a common prefix and small numbers spread evenly.
pub fn log_term(slot: TermSlot, value: &[u8]) -> IndexKey {
    let mut input = [0u8; 33];
    let length = value.len().min(32);
    input[0] = slot.byte();
    input[1..=length].copy_from_slice(&value[..length]);
    let hash = keccak256(&input[..=length]);
    let mut key = [0; 8];
    key.copy_from_slice(&hash[..8]);
    IndexKey::from_be_bytes(key)
}

/// The key of blocks of which not all logs are known: a search for any term has to find them. Persisted, as the others.
pub(crate) fn unknown_logs_term() -> IndexKey {
    log_term(TermSlot::Topic(u8::MAX), &[])
}

/// Collects the terms of one block's logs. Most logs of a block share addresses and first topics, so each value is hashed once.
#[derive(Debug, Default)]
pub(crate) struct TermSet {
    seen: HashSet<(TermSlot, [u8; 32])>,
    lacks_logs: bool,
}

impl TermSet {
    /// Adds the terms of a log.
    pub fn add<'t>(&mut self, address: &[u8; 20], topics: impl Iterator<Item = &'t [u8; 32]>) {
        let mut padded = [0; 32];
        padded[..20].copy_from_slice(address);
        self.seen.insert((TermSlot::Address, padded));
        for (position, topic) in (0u8..).zip(topics) {
            self.seen.insert((TermSlot::Topic(position), *topic));
        }
    }

    /// Notes that not all logs of the block are known.
    pub fn lack_logs(&mut self) {
        self.lacks_logs = true;
    }

    /// The keys, sorted, without repeats.
    pub fn keys(self) -> Vec<IndexKey> {
        let key = |(slot, value): (TermSlot, [u8; 32])| {
            log_term(slot, if slot == TermSlot::Address { &value[..20] } else { &value })
        };
        let mut keys: Vec<_> = self.seen.into_iter().map(key).collect();
        keys.extend(self.lacks_logs.then(unknown_logs_term));
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

/// The terms of a block's receipts in their stored form: sorted, without repeats.
pub fn log_terms_of_receipts(receipts: &[u8]) -> Result<Vec<IndexKey>, EvmError> {
    let place = || "the block's receipts";
    let mut terms = TermSet::default();
    for receipt in Receipts::decode(receipts).map_err(|e| EvmError::malformed(place(), e))?.list {
        if receipt.outcome == Outcome::Missing {
            terms.lack_logs();
        }
        for log in receipt.logs() {
            let log = log.map_err(|e| EvmError::malformed(place(), e))?;
            terms.add(log.address, log.topics());
        }
    }
    Ok(terms.keys())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_what_stores_hold() {
        // Persisted: a change of these values makes every stored index unreadable.
        let spelled_out = keccak256([&[0u8][..], &[0x11; 20]].concat());
        assert_eq!(log_term(TermSlot::Address, &[0x11; 20]).to_be_bytes(), spelled_out[..8]);
        assert_eq!(log_term(TermSlot::Address, &[0x11; 20]), GOLDEN_ADDRESS);
        assert_eq!(log_term(TermSlot::Topic(0), &[0x22; 32]), GOLDEN_TOPIC_0);
        assert_ne!(log_term(TermSlot::Topic(1), &[0x22; 32]), GOLDEN_TOPIC_0);
    }

    const GOLDEN_ADDRESS: u64 = 9_063_876_484_113_784_455;
    const GOLDEN_TOPIC_0: u64 = 4_648_765_386_852_964_114;
}
