//! Law 6: whether a block agrees with itself. Pure and CPU-heavy: recovering a sender takes some 30 µs, everything else about 5 µs a
//! transaction. Callers on an async runtime run it where it may block.

use alloy_consensus::Header;
use alloy_primitives::{B256, Bloom, keccak256};
use alloy_trie::root::ordered_trie_root_encoded;
use cairn_core::{RawBlock, TxFacts};

use crate::canonical::{Body, timestamp_ms};
use crate::overlay::Overlay;
use crate::receipts::{Outcome, Receipts};
use crate::{ChainProfile, CheckFailure, Checks, tx};

/// Where the senders in a block's facts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendersAre {
    /// From somebody else: they are recovered and compared.
    Claimed,
    /// Recovered from the signatures by [`crate::from_consensus`] in this process a moment ago: not done twice.
    RecoveredHere,
}

/// Checks a block whose facts, or their source, are not trusted: see [`check_block_with`].
pub fn check_block(block: &RawBlock, profile: &ChainProfile) -> Result<Checks, CheckFailure> {
    check_block_with(block, profile, SendersAre::Claimed)
}

/// Checks that a block's facts, header, transactions, senders, receipts, withdrawals and ommers agree.
///
/// Returns what was not verified, to be stored in the block's facts: the checks that `profile` relaxes, and those that transactions of
/// unknown type made impossible. Bytes that can't be decoded fail the check that is made of them. The bloom is compared last, so that
/// [`CheckFailure::is_bloom_only`] says that everything else holds.
pub fn check_block_with(
    block: &RawBlock,
    profile: &ChainProfile,
    senders: SendersAre,
) -> Result<Checks, CheckFailure> {
    let height = block.facts.height;
    let fail = |check, part: &str, error: &dyn std::fmt::Display| CheckFailure {
        check,
        height,
        message: format!("the {part} is malformed: {error}"),
    };
    let header: Header = alloy_rlp::decode_exact(&block.header)
        .map_err(|error| fail(Checks::HEADER_HASH, "header", &error))?;
    let body = Body::decode(&block.body).map_err(|error| fail(Checks::TRANSACTIONS_ROOT, "body", &error))?;
    let receipts = Receipts::decode(&block.receipts)
        .map_err(|error| fail(Checks::RECEIPTS_ROOT, "receipts list", &error))?;
    let overlay = Overlay::decode(height, &block.extras)
        .map_err(|error| fail(Checks::TRANSACTIONS_ROOT, "overlay", &error))?;
    let in_roots = body.in_roots(overlay.injected);
    let mut check = Check {
        height: height.get(),
        header: &header,
        block,
        profile,
        in_roots,
        unverified: Checks::empty(),
    };
    check.header_hash()?;
    check.counts(&body, &receipts)?;
    check.transactions(&body, senders)?;
    check.ommers(&body)?;
    check.withdrawals(&body)?;
    let bloom = check.receipts(&body, &receipts)?;
    check.bloom(&bloom)?;
    Ok(check.unverified)
}

struct Check<'a> {
    height: u64,
    header: &'a Header,
    block: &'a RawBlock,
    profile: &'a ChainProfile,
    /// How many of the transactions the header's roots cover: all but those that the chain injected.
    in_roots: usize,
    unverified: Checks,
}

impl Check<'_> {
    /// Whether to run `check`; notes where not.
    fn runs(&mut self, check: Checks) -> bool {
        if self.profile.relaxes(check) {
            self.unverified |= check;
            return false;
        }
        true
    }

    fn fail(&self, check: Checks, message: impl Into<String>) -> CheckFailure {
        CheckFailure::new(check, self.height, message)
    }

    fn equal(&self, check: Checks, what: &str, header: B256, computed: B256) -> Result<(), CheckFailure> {
        if header == computed {
            return Ok(());
        }
        Err(self.fail(check, format!("{what} in the header is {header}, computed {computed}")))
    }

    fn header_hash(&mut self) -> Result<(), CheckFailure> {
        let facts = &self.block.facts;
        let check = Checks::HEADER_HASH;
        if self.runs(check) {
            let computed = keccak256(&self.block.header);
            if computed.0 != facts.id.0 {
                return Err(
                    self.fail(check, format!("the id is {}, the header hashes to {computed}", facts.id))
                );
            }
        }
        if self.header.number != self.height {
            return Err(self.fail(check, format!("number in the header is {}", self.header.number)));
        }
        if self.header.parent_hash.0 != facts.parent_id.0 {
            let message = format!(
                "parentHash in the header is {}, in the facts {}",
                self.header.parent_hash, facts.parent_id
            );
            return Err(self.fail(check, message));
        }
        let time_ms = timestamp_ms(self.header).map_err(|error| self.fail(check, error.to_string()))?;
        if time_ms != facts.timestamp_ms {
            let message =
                format!("timestamp in the header is {time_ms} ms, in the facts {} ms", facts.timestamp_ms);
            return Err(self.fail(check, message));
        }
        Ok(())
    }

    /// Each transaction has facts and a receipt; what is beyond the body is allowed by the profile.
    fn counts(&mut self, body: &Body<'_>, receipts: &Receipts<'_>) -> Result<(), CheckFailure> {
        let facts = &self.block.facts;
        let (listed, known, left) =
            (body.transactions.len(), self.block.transactions.len(), receipts.list.len());
        if facts.tx_count as usize != known {
            let message = format!("tx_count in the facts is {}, there are facts of {known}", facts.tx_count);
            return Err(self.fail(Checks::TRANSACTIONS_ROOT, message));
        }
        if known < listed || left != known {
            let message = format!("{listed} transactions in the body, facts of {known}, {left} receipts");
            return Err(self.fail(Checks::RECEIPTS_ROOT, message));
        }
        let injected = known - self.in_roots;
        if injected > 0 {
            if !self.profile.allows_extra_receipts() {
                let message = format!("{injected} of {left} receipts belong to no transaction of the body");
                return Err(self.fail(Checks::EXTRA_RECEIPTS, message));
            }
            self.unverified |= Checks::EXTRA_RECEIPTS;
        }
        Ok(())
    }

    fn transactions(&mut self, body: &Body<'_>, senders: SendersAre) -> Result<(), CheckFailure> {
        let check = Checks::TRANSACTIONS_ROOT;
        let bytes: Vec<Option<&[u8]>> = (0..self.in_roots).map(|index| body.transaction(index)).collect();
        if bytes
            .iter()
            .any(|bytes| bytes.is_none_or(|bytes| u64::from(tx::type_of(bytes)) > tx::NEWEST_KNOWN_TYPE))
        {
            self.unverified |= Checks::UNKNOWN_TX_TYPE;
        }
        if self.runs(check) {
            match bytes.iter().copied().collect::<Option<Vec<&[u8]>>>() {
                Some(all) => {
                    let computed = ordered_trie_root_encoded(&all);
                    self.equal(check, "transactionsRoot", self.header.transactions_root, computed)?;
                }
                None => self.unverified |= check,
            }
            for (index, (bytes, facts)) in bytes.iter().zip(&self.block.transactions).enumerate() {
                let Some(bytes) = bytes else { continue };
                let computed = keccak256(bytes);
                if computed.0 != facts.id.0 {
                    let message =
                        format!("transaction {index} has id {}, its bytes hash to {computed}", facts.id);
                    return Err(self.fail(check, message));
                }
            }
        }
        if self.runs(Checks::SENDERS) && senders == SendersAre::Claimed {
            for (index, (bytes, facts)) in bytes.iter().zip(&self.block.transactions).enumerate() {
                if let Some(bytes) = bytes {
                    self.sender(index, bytes, facts)?;
                }
            }
        }
        Ok(())
    }

    fn sender(&self, index: usize, bytes: &[u8], facts: &TxFacts) -> Result<(), CheckFailure> {
        let known = tx::decode(bytes).map_err(|error| {
            self.fail(Checks::TRANSACTIONS_ROOT, format!("transaction {index} is malformed: {error}"))
        })?;
        let Some(known) = known else { return Ok(()) };
        let sender = tx::recover_sender(&known);
        if sender.as_ref().is_some_and(|sender| sender.as_slice() == &facts.sender[..]) {
            return Ok(());
        }
        let computed = sender
            .map_or("no sender".to_owned(), |sender| format!("0x{}", alloy_primitives::hex::encode(sender)));
        let claimed = alloy_primitives::hex::encode_prefixed(&facts.sender);
        Err(self.fail(
            Checks::SENDERS,
            format!("transaction {index} ({}): from is {claimed}, its signature gives {computed}", facts.id),
        ))
    }

    fn ommers(&mut self, body: &Body<'_>) -> Result<(), CheckFailure> {
        if self.runs(Checks::OMMERS_HASH) {
            let computed = keccak256(body.ommers_raw);
            self.equal(Checks::OMMERS_HASH, "sha3Uncles", self.header.ommers_hash, computed)?;
        }
        Ok(())
    }

    fn withdrawals(&mut self, body: &Body<'_>) -> Result<(), CheckFailure> {
        let check = Checks::WITHDRAWALS_ROOT;
        if !self.runs(check) {
            return Ok(());
        }
        match (self.header.withdrawals_root, &body.withdrawals) {
            (Some(root), Some(list)) => {
                let items: Vec<&[u8]> = list.iter().map(|item| item.raw).collect();
                self.equal(check, "withdrawalsRoot", root, ordered_trie_root_encoded(&items))
            }
            (Some(root), None) => Err(self.fail(
                check,
                format!("withdrawalsRoot in the header is {root}, the body has no withdrawals"),
            )),
            (None, Some(list)) => Err(self.fail(
                check,
                format!("the header has no withdrawalsRoot, the body has {} withdrawals", list.len()),
            )),
            (None, None) => Ok(()),
        }
    }

    /// Compares the receipts with the header and the facts, and returns the bloom of all logs.
    fn receipts(&mut self, body: &Body<'_>, receipts: &Receipts<'_>) -> Result<Bloom, CheckFailure> {
        let check = Checks::RECEIPTS_ROOT;
        let height = self.height;
        let malformed = |index: usize, error: alloy_rlp::Error| {
            CheckFailure::new(check, height, format!("receipt {index} is malformed: {error}"))
        };
        let runs = !self.profile.relaxes(check);
        let mut encoded: Vec<Vec<u8>> = Vec::with_capacity(self.in_roots);
        let mut block_bloom = Bloom::ZERO;
        let mut log_count: u64 = 0;
        let mut unknown_types = false;
        for (index, (receipt, facts)) in receipts.list.iter().zip(&self.block.transactions).enumerate() {
            let bloom = receipt.bloom().map_err(|error| malformed(index, error))?;
            log_count += u64::from(receipt.log_count().map_err(|error| malformed(index, error))?);
            if receipt.outcome.status() != facts.status {
                let message = format!(
                    "transaction {index}: status in the facts is {:?}, in its receipt {:?}",
                    facts.status,
                    receipt.outcome.status()
                );
                return Err(self.fail(check, message));
            }
            if index >= self.in_roots {
                continue;
            }
            block_bloom.accrue_bloom(&bloom);
            if runs {
                // The transactions root covers the body's type; what a receipt says of itself must not decide what it is held to.
                let ty = body.transaction(index).map(tx::type_of);
                if let Some(ty) = ty.filter(|ty| *ty != receipt.ty) {
                    let message =
                        format!("transaction {index} has type {ty}, its receipt type {}", receipt.ty);
                    return Err(self.fail(check, message));
                }
                unknown_types |= ty.is_none_or(|ty| u64::from(ty) > tx::NEWEST_KNOWN_TYPE);
                if receipt.outcome == Outcome::Unknown {
                    return Err(self.fail(check, format!("receipt {index} has neither status nor root")));
                }
                let mut bytes = Vec::new();
                receipt.encode_consensus(&bloom, &mut bytes);
                encoded.push(bytes);
            }
        }
        if log_count != u64::from(self.block.facts.log_count) {
            let message = format!(
                "log_count in the facts is {}, the receipts have {log_count} logs",
                self.block.facts.log_count
            );
            return Err(self.fail(check, message));
        }
        if self.runs(check) {
            let computed = ordered_trie_root_encoded(&encoded);
            if computed != self.header.receipts_root && unknown_types {
                // A type's receipt may have items that only its own chain knows.
                self.unverified |= check;
            } else {
                self.equal(check, "receiptsRoot", self.header.receipts_root, computed)?;
                self.gas_used(&receipts.list[..self.in_roots])?;
            }
        }
        Ok(block_bloom)
    }

    /// The last cumulative gas is the header's, until EIP-7778 counts the block's gas another way (such headers have an access list hash).
    fn gas_used(&self, receipts: &[crate::receipts::Receipt<'_>]) -> Result<(), CheckFailure> {
        if self.header.block_access_list_hash.is_some() {
            return Ok(());
        }
        let cumulative = receipts.last().map_or(0, |receipt| receipt.cumulative_gas);
        if cumulative == self.header.gas_used {
            return Ok(());
        }
        let message = format!(
            "gasUsed in the header is {}, the last cumulativeGasUsed {cumulative}",
            self.header.gas_used
        );
        Err(self.fail(Checks::RECEIPTS_ROOT, message))
    }

    fn bloom(&mut self, logs: &Bloom) -> Result<(), CheckFailure> {
        if !self.runs(Checks::BLOOM) || self.header.logs_bloom == *logs {
            return Ok(());
        }
        let message = format!(
            "logsBloom in the header has {} bits set, the bloom of the {} logs {}, {} of them the same",
            bits(&self.header.logs_bloom),
            self.block.facts.log_count,
            bits(logs),
            bits(&(self.header.logs_bloom & *logs))
        );
        Err(self.fail(Checks::BLOOM, message))
    }
}

fn bits(bloom: &Bloom) -> u32 {
    bloom.data().iter().map(|byte| byte.count_ones()).sum()
}
