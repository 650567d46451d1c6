//! Millions of transactions, signed once into a file and read back as a source: what the ingest benchmark runs on.
//!
//! The file has our own framing, little-endian, because nothing else is compact, seekable and carries receipts:
//!
//! ```text
//! "cairnps1"                                   8 bytes
//! u32 length, JSON of PresignOptions           what it was made from
//! per block: u32 header length, u32 packed length, u32 unpacked length, header RLP, zstd frame of:
//!     u32 body length, body RLP [transactions, ommers, withdrawals]
//!     per receipt: u32 length, EIP-2718 bytes with bloom
//! per block: u64 offset of its frame
//! u64 blocks, u64 offset of that list, "cairnps1"
//! ```
//!
//! It holds consensus bytes and nothing else: no ids, no senders, no facts. Whoever reads it has to derive and check everything, as with a
//! node. A file appears under its name only when it is whole.

mod file;
mod source;
#[cfg(test)]
mod tests;

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::actions::Mix;
use super::traffic::{Traffic, TrafficOptions};
use crate::Result;

pub use file::presign;
pub use source::PresignedSource;

/// What a file of signed transactions is made from. The same options give the same file, byte for byte, however many threads sign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PresignOptions {
    /// Everything follows from it.
    pub seed: u64,
    /// EIP-155.
    pub chain_id: u64,
    /// How many transactions, rounded up to whole blocks.
    pub transactions: u64,
    /// How many a block has; block 0 has none.
    pub txs_per_block: u32,
    /// How many accounts sign.
    pub signers: u32,
    /// How many addresses receive.
    pub accounts: u32,
}

impl PresignOptions {
    /// Blocks of 200 transactions, signed by 1,000 accounts and received by a million.
    pub fn new(seed: u64, transactions: u64) -> PresignOptions {
        PresignOptions {
            seed,
            chain_id: 1_337,
            transactions,
            txs_per_block: 200,
            signers: 1_000,
            accounts: 1_000_000,
        }
    }

    /// How many blocks that makes, genesis among them.
    pub fn blocks(&self) -> u64 {
        self.transactions.div_ceil(u64::from(self.txs_per_block.max(1))) + 1
    }

    /// The accounts and contracts, for filters: the first ERC-20 token is in a sixth of the logs, a rare contract in a handful.
    pub fn traffic(&self) -> Traffic {
        Traffic::new(TrafficOptions {
            seed: self.seed,
            chain_id: self.chain_id,
            signers: self.signers,
            accounts: self.accounts,
            mix: Mix::TokenHeavy,
            kept_transactions: 0,
        })
    }
}

/// Opens the file where it was made from these options, else makes it first; `progress` hears how many transactions are signed.
pub fn presigned(
    path: &Path,
    options: &PresignOptions,
    threads: usize,
    progress: impl FnMut(u64),
) -> Result<PresignedSource> {
    if path.exists() {
        match PresignedSource::open(path) {
            Ok(source) if source.made_from() == options => return Ok(source),
            Ok(_) => tracing::info!(path = %path.display(), "made from other options: making it again"),
            Err(error) => tracing::warn!(%error, "making it again"),
        }
    }
    presign(path, options, threads, progress)?;
    PresignedSource::open(path)
}
