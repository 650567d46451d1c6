//! What is demanded of a chain's blocks: the checks of law 6, and the named relaxations for chains that can't meet one.

use std::fmt;

use crate::EvmError;

bitflags::bitflags! {
    /// The checks of a block. As stored in a block's facts: those that were relaxed for it or were impossible.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Checks: u32 {
        /// The header's bytes hash to the block's id.
        const HEADER_HASH = 1;
        /// The transactions give the header's transactions root, and each hashes to its id.
        const TRANSACTIONS_ROOT = 1 << 1;
        /// The receipts give the header's receipts root.
        const RECEIPTS_ROOT = 1 << 2;
        /// The senders are those that the signatures give.
        const SENDERS = 1 << 3;
        /// The logs give the header's bloom.
        const BLOOM = 1 << 4;
        /// The withdrawals give the header's withdrawals root (EIP-4895).
        const WITHDRAWALS_ROOT = 1 << 5;
        /// The ommers give the header's ommers hash.
        const OMMERS_HASH = 1 << 6;
        /// Every receipt belongs to a transaction of the body. Relaxed: a chain that injects transactions (state sync).
        const EXTRA_RECEIPTS = 1 << 7;
        /// Set where a block holds a transaction of a type that this version doesn't know. Can't be relaxed: it is always allowed.
        const UNKNOWN_TX_TYPE = 1 << 8;
        /// Set where the node numbers transactions or logs otherwise than by their place in the block. Can't be relaxed: it is always allowed.
        const POSITIONS = 1 << 9;
        /// Set where a transaction has no signature, so that its sender is the node's word. Can't be relaxed: it is always allowed.
        const UNSIGNED_TX = 1 << 10;
        /// Every transaction of the body has a receipt. Relaxed: its outcome and its logs are unknown.
        const MISSING_RECEIPTS = 1 << 11;
        /// Set where call traces were asked for, and the node did not give all of them. Can't be relaxed: it is always allowed.
        const MISSING_TRACES = 1 << 12;
    }
}

/// Each check's configured name.
const NAMES: [(Checks, &str); 13] = [
    (Checks::HEADER_HASH, "header-hash"),
    (Checks::TRANSACTIONS_ROOT, "transactions-root"),
    (Checks::RECEIPTS_ROOT, "receipts-root"),
    (Checks::SENDERS, "senders"),
    (Checks::BLOOM, "bloom"),
    (Checks::WITHDRAWALS_ROOT, "withdrawals-root"),
    (Checks::OMMERS_HASH, "ommers-hash"),
    (Checks::EXTRA_RECEIPTS, "extra-receipts"),
    (Checks::UNKNOWN_TX_TYPE, "unknown-tx-type"),
    (Checks::POSITIONS, "positions"),
    (Checks::UNSIGNED_TX, "unsigned-tx"),
    (Checks::MISSING_RECEIPTS, "missing-receipts"),
    (Checks::MISSING_TRACES, "missing-traces"),
];

/// What is only noted: it is always allowed.
const NOTED: Checks =
    Checks::UNKNOWN_TX_TYPE.union(Checks::POSITIONS).union(Checks::UNSIGNED_TX).union(Checks::MISSING_TRACES);

impl Checks {
    /// Those of its bits that are only noted, because they can't be relaxed.
    pub fn noted(self) -> Checks {
        self & NOTED
    }

    /// The configured names of its bits, in bit order.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        NAMES.into_iter().filter(move |(check, _)| self.contains(*check)).map(|(_, name)| name)
    }

    /// From the bits of [`cairn_core::BlockFacts::unverified`]; bits that this version doesn't know are dropped.
    pub fn of_facts(unverified: u32) -> Checks {
        Checks::from_bits_truncate(unverified)
    }
}

impl fmt::Display for Checks {
    /// The names, separated by commas; `none` for no check.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (at, name) in self.names().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            f.write_str(name)?;
        }
        Ok(())
    }
}

/// What is demanded of a chain. The default relaxes nothing: Ethereum's own rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChainProfile {
    /// The checks that are not run; each is recorded with every block that it was not run on.
    pub relaxed: Checks,
}

impl ChainProfile {
    /// The profile that relaxes these checks.
    pub const fn relaxing(relaxed: Checks) -> Self {
        ChainProfile { relaxed }
    }

    /// Reads names separated by commas, as `header-hash,receipts-root`; blanks around a name and empty names are ignored.
    pub fn parse_relaxations(text: &str) -> Result<Checks, EvmError> {
        let mut relaxed = Checks::empty();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let known = NAMES.iter().filter(|(check, _)| !NOTED.contains(*check));
            match known.clone().find(|(_, candidate)| *candidate == name) {
                Some((check, _)) => relaxed |= *check,
                None => {
                    let known = known.map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
                    return Err(EvmError::UnknownCheck { name: name.into(), known });
                }
            }
        }
        Ok(relaxed)
    }

    /// Whether `check` is not to be run.
    pub const fn relaxes(&self, check: Checks) -> bool {
        self.relaxed.contains(check)
    }

    /// Whether receipts without a transaction in the body are allowed.
    pub const fn allows_extra_receipts(&self) -> bool {
        self.relaxes(Checks::EXTRA_RECEIPTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relaxations_are_read_and_written_by_name() {
        let relaxed = ChainProfile::parse_relaxations(" receipts-root, header-hash,").unwrap();
        assert_eq!(relaxed, Checks::HEADER_HASH | Checks::RECEIPTS_ROOT);
        assert_eq!(relaxed.to_string(), "header-hash,receipts-root");
        assert_eq!(ChainProfile::parse_relaxations("").unwrap(), Checks::empty());
        assert_eq!(Checks::empty().to_string(), "none");
    }

    #[test]
    fn a_relaxation_that_does_not_exist_is_refused_with_the_names_that_do() {
        let error = ChainProfile::parse_relaxations("header_hash").unwrap_err().to_string();
        assert!(
            error.contains("`header_hash`") && error.contains("header-hash, transactions-root"),
            "{error}"
        );
        assert!(NOTED.names().all(|name| ChainProfile::parse_relaxations(name).is_err()));
    }

    #[test]
    fn every_check_has_one_name() {
        assert_eq!(Checks::all().names().count(), Checks::all().iter().count());
    }
}
