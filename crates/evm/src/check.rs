//! Law 6: whether a block agrees with itself. Pure and CPU-heavy: recovering a sender takes some 30 µs, everything else about 5 µs a
//! transaction. Callers on an async runtime run it where it may block.

use alloy_consensus::Header;
use alloy_primitives::{B256, Bloom, keccak256};
use alloy_trie::root::ordered_trie_root_encoded;
use cairn_core::{RawBlock, TxFacts};

use crate::canonical::{Body, timestamp_ms};
use crate::overlay::Overlay;
use crate::receipts::{Outcome, Receipts};
use crate::roots::Roots;
use crate::tx::{self, Sender, Tx};
use crate::{ChainProfile, CheckFailure, Checks};

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
/// Returns what was not verified, to be stored in the block's facts: the checks that `profile` relaxes, those that transactions of
/// unknown type or without a receipt made impossible, and what single transactions lack. Bytes that can't be decoded fail the check that is made of them. The bloom is compared last, so that
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
    let mut check = Check {
        height: height.get(),
        header: &header,
        block,
        profile,
        roots: Roots::of(&body, &overlay),
        unverified: Checks::empty(),
    };
    if overlay.has_other_positions() {
        check.unverified |= Checks::POSITIONS;
    }
    check.header_hash()?;
    check.counts(&body, &receipts)?;
    check.transactions(&body, senders)?;
    check.ommers(&body)?;
    check.withdrawals(&body)?;
    let bloom = check.receipts(&body, &receipts)?;
    check.bloom(bloom.as_ref())?;
    Ok(check.unverified)
}

struct Check<'a> {
    height: u64,
    header: &'a Header,
    block: &'a RawBlock,
    profile: &'a ChainProfile,
    roots: Roots,
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
        let uncovered = |index: &usize| !self.roots.cover_tx(*index) || !self.roots.cover_receipt(*index);
        let extra = (0..known).filter(uncovered).count();
        let unproven = (0..known).filter(|index| !self.roots.cover_receipt(*index)).count();
        if unproven > 0 && !self.profile.allows_extra_receipts() {
            let message = format!("{unproven} of {left} receipts belong to no transaction of the body");
            return Err(self.fail(Checks::EXTRA_RECEIPTS, message));
        }
        if extra > 0 {
            self.unverified |= Checks::EXTRA_RECEIPTS;
        }
        Ok(())
    }

    fn transactions(&mut self, body: &Body<'_>, senders: SendersAre) -> Result<(), CheckFailure> {
        let check = Checks::TRANSACTIONS_ROOT;
        let covered: Vec<usize> =
            (0..body.transactions.len()).filter(|index| self.roots.cover_tx(*index)).collect();
        let bytes: Vec<Option<&[u8]>> = covered.iter().map(|index| body.transaction(*index)).collect();
        if self.runs(check) {
            match bytes.iter().copied().collect::<Option<Vec<&[u8]>>>() {
                Some(all) => {
                    let computed = ordered_trie_root_encoded(&all);
                    self.equal(check, "transactionsRoot", self.header.transactions_root, computed)?;
                }
                None => self.unverified |= check,
            }
        }
        let compares = self.runs(Checks::SENDERS) && senders == SendersAre::Claimed;
        for (index, bytes) in covered.into_iter().zip(bytes) {
            let Some(bytes) = bytes else {
                self.unverified |= Checks::UNKNOWN_TX_TYPE;
                continue;
            };
            let facts = &self.block.transactions[index];
            let computed = keccak256(bytes);
            if !self.profile.relaxes(check) && computed.0 != facts.id.0 {
                let message =
                    format!("transaction {index} has id {}, its bytes hash to {computed}", facts.id);
                return Err(self.fail(check, message));
            }
            // Of others that are not compared there is nothing to note.
            if compares || facts.sender.is_empty() || !tx::is_ethereums(tx::type_of(bytes)) {
                self.sender(index, bytes, facts, compares)?;
            }
        }
        Ok(())
    }

    /// Notes what the transaction's bytes don't say of its sender, and compares what they say.
    fn sender(
        &mut self,
        index: usize,
        bytes: &[u8],
        facts: &TxFacts,
        compares: bool,
    ) -> Result<(), CheckFailure> {
        let known = Tx::decode(bytes).map_err(|error| {
            self.fail(Checks::TRANSACTIONS_ROOT, format!("transaction {index} is malformed: {error}"))
        })?;
        let Some(known) = known else {
            self.unverified |= Checks::UNKNOWN_TX_TYPE;
            return Ok(());
        };
        if known.is_unsigned() {
            self.unverified |= Checks::UNSIGNED_TX;
            return Ok(());
        }
        if !compares {
            return Ok(());
        }
        let computed = match known.sender() {
            Sender::Proven(sender) if sender.as_slice() == &facts.sender[..] => return Ok(()),
            // Another chain may use the type with another sender, and nothing in the bytes says which.
            Sender::Proven(_) if known.has_fixed_sender() => {
                self.unverified |= Checks::UNSIGNED_TX;
                return Ok(());
            }
            Sender::Proven(sender) => alloy_primitives::hex::encode_prefixed(sender),
            Sender::Unsigned | Sender::None => "no sender".to_owned(),
        };
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

    /// Compares the receipts with the header and the facts, and returns the bloom of all logs. `None`: not all logs are known.
    fn receipts(&mut self, body: &Body<'_>, receipts: &Receipts<'_>) -> Result<Option<Bloom>, CheckFailure> {
        let check = Checks::RECEIPTS_ROOT;
        let height = self.height;
        let malformed = |index: usize, error: alloy_rlp::Error| {
            CheckFailure::new(check, height, format!("receipt {index} is malformed: {error}"))
        };
        let runs = !self.profile.relaxes(check);
        let mut encoded: Vec<Vec<u8>> = Vec::with_capacity(receipts.list.len());
        let mut block_bloom = Bloom::ZERO;
        let mut log_count: u64 = 0;
        let unknown_types = self.unverified.contains(Checks::UNKNOWN_TX_TYPE);
        let mut gas_used = 0;
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
            if receipt.outcome == Outcome::Missing {
                if !self.profile.relaxes(Checks::MISSING_RECEIPTS) {
                    let message = format!("transaction {index} ({}) has no receipt", facts.id);
                    return Err(self.fail(Checks::MISSING_RECEIPTS, message));
                }
                self.unverified |= Checks::MISSING_RECEIPTS;
                log_count += 1;
                continue;
            }
            if !self.roots.cover_receipt(index) {
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
                if self.roots.cover_tx(index) {
                    gas_used = receipt.cumulative_gas;
                }
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
        let is_whole = !self.unverified.contains(Checks::MISSING_RECEIPTS);
        if self.runs(check) {
            let computed = ordered_trie_root_encoded(&encoded);
            // A type's receipt may have items that only its own chain knows; a receipt that is missing is in the root or not.
            if computed != self.header.receipts_root && (unknown_types || !is_whole) {
                self.unverified |= check;
            } else {
                self.equal(check, "receiptsRoot", self.header.receipts_root, computed)?;
                self.gas_used(gas_used, is_whole)?;
            }
        }
        Ok((is_whole || !self.unverified.contains(check)).then_some(block_bloom))
    }

    /// The last cumulative gas is the header's, until EIP-7778 counts the block's gas another way (such headers have an access list hash).
    fn gas_used(&self, cumulative: u64, is_whole: bool) -> Result<(), CheckFailure> {
        if self.header.block_access_list_hash.is_some() || !is_whole || cumulative == self.header.gas_used {
            return Ok(());
        }
        let message = format!(
            "gasUsed in the header is {}, the last cumulativeGasUsed {cumulative}",
            self.header.gas_used
        );
        Err(self.fail(Checks::RECEIPTS_ROOT, message))
    }

    fn bloom(&mut self, logs: Option<&Bloom>) -> Result<(), CheckFailure> {
        if !self.runs(Checks::BLOOM) {
            return Ok(());
        }
        let Some(logs) = logs else {
            self.unverified |= Checks::BLOOM;
            return Ok(());
        };
        if self.header.logs_bloom == *logs {
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
