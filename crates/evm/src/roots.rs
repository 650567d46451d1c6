//! Which of a block's transactions and receipts the header's roots cover.
//!
//! Some chains add transactions of their own that a root doesn't cover, or that only one of them covers. A node doesn't say which: when a block is
//! built, a few placements are tried, and the root decides. What no root covers is the node's word, so it needs `extra-receipts` relaxed.

use alloy_primitives::B256;
use alloy_trie::root::ordered_trie_root_encoded;

use crate::canonical::Body;
use crate::overlay::Overlay;
use crate::receipts::{Outcome, Receipts};

/// What the roots cover of a block.
#[derive(Debug, Clone)]
pub(crate) struct Roots {
    /// By the body's transactions.
    covers: Vec<bool>,
    /// Receipts that are covered in spite of that.
    covered_receipts: Vec<u32>,
}

impl Roots {
    pub fn of(body: &Body<'_>, overlay: &Overlay) -> Roots {
        let count = body.transactions.len();
        let without_bytes = (0..count).rev().take_while(|index| body.transaction(*index).is_none()).count();
        let in_front = count - overlay.injected.min(without_bytes);
        let covers =
            (0..count).map(|index| index < in_front && !overlay.outside.contains(&(index as u32))).collect();
        Roots { covers, covered_receipts: overlay.covered.clone() }
    }

    /// Whether the transactions root covers the transaction.
    pub fn cover_tx(&self, index: usize) -> bool {
        self.covers.get(index).copied().unwrap_or(false)
    }

    /// Whether the receipts root covers the transaction's receipt.
    pub fn cover_receipt(&self, index: usize) -> bool {
        self.cover_tx(index) || self.covered_receipts.contains(&(index as u32))
    }
}

/// What of a transaction may say that the chain added it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Signs {
    /// It doesn't hash to its id.
    pub has_no_bytes: bool,
    /// Its gas price is 0.
    pub is_free: bool,
    /// It has no signature.
    pub is_unsigned: bool,
}

/// Finds the transactions of the body outside the roots: those without bytes, and others by what the root says. `None`: no placement gives
/// the root, and those without bytes are not all at the end.
pub(crate) fn outside(body: &Body<'_>, signs: &[Signs], root: Option<B256>) -> Option<Vec<u32>> {
    let count = signs.len();
    let trailing = signs.iter().rev().take_while(|signs| signs.has_no_bytes).count();
    let by = |sign: &dyn Fn(usize, &Signs) -> bool| {
        let is_outside = |(index, signs): &(usize, &Signs)| signs.has_no_bytes || sign(*index, signs);
        signs.iter().enumerate().filter(is_outside).map(|(index, _)| index as u32).collect::<Vec<u32>>()
    };
    let without_bytes = by(&|_, _| false);
    let is_at_end = without_bytes.len() == trailing;
    let Some(root) = root else { return is_at_end.then_some(without_bytes) };
    let placements = [
        without_bytes.clone(),
        by(&|_, signs| signs.is_free),
        by(&|_, signs| signs.is_unsigned),
        by(&|_, signs| signs.is_free || signs.is_unsigned),
        by(&|index, _| index == 0),
        by(&|index, _| index + 1 == count),
    ];
    let root_without = |outside: &[u32]| {
        let covered = (0..count).filter(|index| !outside.contains(&(*index as u32)));
        let bytes = covered.map(|index| body.transaction(index)).collect::<Option<Vec<&[u8]>>>()?;
        Some(ordered_trie_root_encoded(&bytes))
    };
    let found = placements.iter().find(|outside| root_without(outside).is_none_or(|found| found == root));
    found.cloned().or_else(|| is_at_end.then_some(without_bytes))
}

/// Finds the receipts that the root covers beside those of the transactions in `roots`: all others, those of the body, those of none, or none.
pub(crate) fn covered_receipts(receipts: &Receipts<'_>, roots: &Roots, root: B256) -> Vec<u32> {
    let listed = roots.covers.len();
    let others: Vec<u32> =
        (0..receipts.list.len()).filter(|index| !roots.cover_tx(*index)).map(|index| index as u32).collect();
    let of_body = |index: &u32| (*index as usize) < listed;
    let placements: [Vec<u32>; 4] = [
        Vec::new(),
        others.clone(),
        others.iter().copied().filter(of_body).collect(),
        others.iter().copied().filter(|index| !of_body(index)).collect(),
    ];
    let gives_root = |covered: &Vec<u32>| {
        let roots = Roots { covered_receipts: covered.clone(), ..roots.clone() };
        receipts_root(receipts, &roots) == Some(root)
    };
    placements.into_iter().find(gives_root).unwrap_or_default()
}

/// The root of the receipts that `roots` covers. `None`: one of them can't be encoded.
fn receipts_root(receipts: &Receipts<'_>, roots: &Roots) -> Option<B256> {
    let covered = receipts.list.iter().enumerate().filter(|(index, _)| roots.cover_receipt(*index));
    let encoded = covered.map(|(_, receipt)| {
        let bloom = receipt
            .bloom()
            .ok()
            .filter(|_| matches!(receipt.outcome, Outcome::Status(_) | Outcome::Root(_)))?;
        let mut bytes = Vec::new();
        receipt.encode_consensus(&bloom, &mut bytes);
        Some(bytes)
    });
    encoded.collect::<Option<Vec<_>>>().map(|encoded| ordered_trie_root_encoded(&encoded))
}
