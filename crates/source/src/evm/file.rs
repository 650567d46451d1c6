//! A chain from files: geth's `chain.rlp` (blocks in RLP, one after the other), a file with their receipts, and the chain's genesis.
//!
//! | file | form |
//! | --- | --- |
//! | chain | `geth export`: whole blocks in RLP, in order, from genesis or any later block; plain or gzip |
//! | receipts | JSON `[{"number": 1, "hash": "0x…", "receipts": ["0x…"]}]`, in order, each receipt in EIP-2718 with its bloom; plain or gzip |
//! | genesis | geth's `genesis.json`; block 0 is made from it where the chain file begins with block 1 |
//!
//! **Limits.** Memory does not grow with the files: one pass over each at [`ChainFile::open`] writes what is needed to find a block later
//! into temporary files without a name (they are gone when the source is): 8 bytes a block for each file, the receipts as bytes (half of their
//! JSON), and the unpacked chain where it is gzip. These take at most [`FileSourceOptions::max_spool_bytes`] in [`FileSourceOptions::spool_dir`].
//! A block takes at most [`MAX_BLOCK_BYTES`], its receipts' JSON at most [`MAX_RECEIPTS_JSON_BYTES`]. A plain chain file must not change while
//! it is open.
//!
//! **What is checked here** is what finding blocks depends on: RLP's form, heights without a gap, each block's link to the one before, receipts
//! for every block with transactions, under the right hash and in the right number. Roots and signatures are for [`crate::verify`]; senders
//! are recovered here, so that it may be told [`cairn_evm::SendersAre::RecoveredHere`].
//!
//! Answers are deterministic, and every head is the last block. A call that is dropped changes nothing.

mod blocks;
mod receipts;
mod spool;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alloy_primitives::keccak256;
use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_evm::{ConsensusBlock, ForkSchedule, chain_config_json, from_consensus, genesis_block};
use futures::{StreamExt, stream};

use self::blocks::{BlockFile, Place};
use self::receipts::{Entry, ReceiptSpool};
use self::spool::Spooler;
use crate::verify::Offload;
use crate::{ChainSource, Heads, Result, SourceError};

pub use self::blocks::{BlockPlace, MAX_BLOCK_BYTES, MAX_HEADER_BYTES, scan_blocks};
pub use self::receipts::{BlockReceipts, MAX_RECEIPTS_JSON_BYTES, scan_receipts};

/// What one call of [`ChainSource::blocks`] reads at most, in bytes, unless one block alone takes more.
const MAX_CALL_BYTES: u64 = 8 << 20;

/// How many heights are best asked for in one call.
const PREFERRED_HEIGHTS: u64 = 128;

/// What a [`ChainFile`] is made from.
#[derive(Debug, Clone)]
pub struct FileSourceOptions {
    /// The blocks.
    pub chain: PathBuf,
    /// Their receipts. Without them only blocks without transactions can be read.
    pub receipts: Option<PathBuf>,
    /// The chain's genesis.
    pub genesis: Option<PathBuf>,
    /// The chain's id, where there is no genesis to say it; with one, both must agree.
    pub chain_id: Option<ChainId>,
    /// Whether the file's last block is safe and finalised, as in a file that was made from a settled chain. Otherwise nothing is.
    pub finalized_is_tip: bool,
    /// Where temporary files go; `None`: the system's place. On many machines that is memory: name a disk for large files.
    pub spool_dir: Option<PathBuf>,
    /// The most that the temporary files may take together, in bytes.
    pub max_spool_bytes: u64,
    /// How many blocks of one call are decoded at a time.
    pub parallelism: usize,
    /// Where reading and decoding run.
    pub offload: Offload,
}

impl FileSourceOptions {
    /// The chain alone, with the defaults for the rest: final, temporary files up to 256 GiB in the system's place.
    pub fn new(chain: impl Into<PathBuf>) -> FileSourceOptions {
        FileSourceOptions {
            chain: chain.into(),
            receipts: None,
            genesis: None,
            chain_id: None,
            finalized_is_tip: true,
            spool_dir: None,
            max_spool_bytes: 256 << 30,
            parallelism: std::thread::available_parallelism().map_or(1, |threads| threads.get()),
            offload: Offload::Blocking,
        }
    }
}

/// A chain file as a source.
#[derive(Debug)]
pub struct ChainFile {
    files: Arc<Files>,
    finalized_is_tip: bool,
    parallelism: usize,
    offload: Offload,
}

#[derive(Debug)]
struct Files {
    chain_id: ChainId,
    chain_config: Option<Bytes>,
    /// Block 0, where it is made from the genesis file.
    genesis: Option<ConsensusBlock>,
    blocks: BlockFile,
    receipts: Option<ReceiptSpool>,
}

/// One block on its way to be decoded.
struct Found {
    place: String,
    block: Bytes,
    receipts: Vec<Bytes>,
}

impl ChainFile {
    /// Reads through the files once and indexes them.
    pub async fn open(options: FileSourceOptions) -> Result<ChainFile> {
        let (finalized_is_tip, offload) = (options.finalized_is_tip, options.offload);
        let parallelism = options.parallelism.max(1);
        let name = options.chain.display().to_string();
        let files = offload.run(&name, move || Files::open(&options)).await??;
        Ok(ChainFile { files: Arc::new(files), finalized_is_tip, parallelism, offload })
    }

    /// The heights that it holds.
    pub fn heights(&self) -> HeightRange {
        self.files.heights()
    }

    /// The genesis file without its accounts, which a store keeps as its chain's configuration; `None` without a genesis file.
    pub fn chain_config(&self) -> Option<&Bytes> {
        self.files.chain_config.as_ref()
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Files) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let files = Arc::clone(&self.files);
        self.offload.run("chain file", move || work(&files)).await?
    }
}

#[async_trait]
impl ChainSource for ChainFile {
    async fn chain_id(&self) -> Result<ChainId> {
        Ok(self.files.chain_id)
    }

    async fn heads(&self) -> Result<Heads> {
        let latest = self.files.blocks.last();
        let settled = self.finalized_is_tip.then_some(latest.block);
        Ok(Heads { latest, safe: settled, finalized: settled })
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.run(move |files| files.linked_ref(height)).await
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let found = self.run(move |files| files.find(range)).await?;
        let mut decoding = stream::iter(found)
            .map(|found| async move {
                let place = found.place.clone();
                self.offload.run(&place, move || found.decode()).await?
            })
            .buffered(self.parallelism);
        let mut blocks = Vec::new();
        while let Some(block) = decoding.next().await {
            match block {
                Ok(block) => blocks.push(block),
                // What precedes it is good; it is met again as the first one of the next call.
                Err(_) if !blocks.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(blocks)
    }

    fn preferred_heights(&self) -> u64 {
        PREFERRED_HEIGHTS
    }

    fn bound_by(&self) -> String {
        format!("chain file {}: {} blocks decoded at a time", self.files.blocks.name(), self.parallelism)
    }
}

impl Files {
    fn open(options: &FileSourceOptions) -> Result<Files> {
        let (mut chain_config, mut genesis, mut chain_id) = (None, None, options.chain_id);
        if let Some(path) = &options.genesis {
            let invalid =
                |error: &dyn std::fmt::Display| SourceError::File(format!("{}: {error}", path.display()));
            let json = read_limited(path, cairn_evm::genesis::MAX_GENESIS_BYTES)?;
            let schedule = ForkSchedule::from_genesis_json(&json).map_err(|error| invalid(&error))?;
            chain_config = Some(chain_config_json(&json).map_err(|error| invalid(&error))?);
            if let Some(expected) = chain_id.filter(|id| *id != schedule.chain_id()) {
                let endpoint = path.display().to_string();
                return Err(SourceError::WrongChain { endpoint, found: schedule.chain_id(), expected });
            }
            chain_id = Some(schedule.chain_id());
            genesis = Some(genesis_block(&json).map_err(|error| invalid(&error))?);
        }
        let chain_id = chain_id.ok_or_else(|| {
            SourceError::File(format!(
                "{} doesn't say which chain it holds: give the genesis file or the chain id",
                options.chain.display()
            ))
        })?;
        let spooler = Spooler::new(options.spool_dir.clone(), options.max_spool_bytes);
        let blocks = BlockFile::open(&options.chain, &spooler)?;
        let genesis = match genesis {
            Some(genesis) => join_genesis(genesis, &blocks)?,
            None => None,
        };
        let receipts = match &options.receipts {
            Some(path) => Some(ReceiptSpool::read(path, blocks.heights(), &spooler)?),
            None => None,
        };
        tracing::info!(
            chain = blocks.name(), heights = %blocks.heights(), spooled_bytes = spooler.used_bytes(),
            "opened a chain file"
        );
        Ok(Files { chain_id, chain_config, genesis, blocks, receipts })
    }

    fn heights(&self) -> HeightRange {
        let range = self.blocks.heights();
        if self.genesis.is_some() { HeightRange::new(Height::ZERO, range.end()) } else { range }
    }

    fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        match &self.genesis {
            Some(genesis) if height == Height::ZERO => Ok(Some(genesis_ref(genesis))),
            _ => self.blocks.linked_ref(height),
        }
    }

    /// The blocks of the range that fit into one call, at least one.
    fn find(&self, range: HeightRange) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        let genesis = self.genesis.as_ref().filter(|_| range.contains(Height::ZERO));
        if let Some(genesis) = genesis {
            // As the chain file would hold it.
            let items = [&genesis.header[..], list_payload(&genesis.body)].concat();
            let mut block = Vec::with_capacity(items.len() + 9);
            alloy_rlp::Header { list: true, payload_length: items.len() }.encode(&mut block);
            block.extend_from_slice(&items);
            let place = "block 0, made from the genesis file".to_owned();
            found.push(Found { place, block: block.into(), receipts: Vec::new() });
        } else if !self.blocks.heights().contains(range.start()) {
            return Ok(found);
        }
        let in_file = self.blocks.heights().intersect(range);
        let in_call = in_file.chunks(PREFERRED_HEIGHTS).next().unwrap_or(in_file);
        let mut places = self.blocks.places(in_call)?;
        let entries = match &self.receipts {
            Some(spool) => spool.entries(in_call)?.into_iter().map(Some).collect(),
            None => vec![None; places.len()],
        };
        let mut bytes = 0;
        let fits = places
            .iter()
            .zip(&entries)
            .take_while(|(place, entry)| {
                bytes += place.bytes + entry.map_or(0, |entry: Entry| entry.end - entry.start);
                bytes <= MAX_CALL_BYTES
            })
            .count();
        places.truncate(fits.max(usize::from(found.is_empty())));
        for ((block, place), entry) in self.blocks.read(&places)?.into_iter().zip(&places).zip(entries) {
            match self.with_receipts(block, *place, entry) {
                Ok(block) => found.push(block),
                // What precedes it is good; it is met again as the first one of the next call.
                Err(_) if !found.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Joins a block with its receipts, if they can be those of this block.
    fn with_receipts(&self, block: Bytes, place: Place, entry: Option<Entry>) -> Result<Found> {
        let height = place.height;
        let place = self.blocks.describe(height, place.offset);
        let transactions = count_transactions(&block)
            .ok_or_else(|| SourceError::File(format!("{place} is not [header, transactions, ommers, …]")))?;
        let (Some(spool), Some(entry)) = (&self.receipts, entry) else {
            if transactions == 0 {
                return Ok(Found { place, block, receipts: Vec::new() });
            }
            return Err(SourceError::File(format!(
                "{place} has {transactions} transactions, and no receipts file was given"
            )));
        };
        let name = spool.name();
        match spool.get(entry)? {
            Some(stored) if stored.hash.is_some_and(|hash| Some(hash) != block_id(&block)) => {
                Err(SourceError::File(format!(
                    "{name} has the receipts of another block {height}, {}; {place} is {}",
                    stored.hash.unwrap_or_default(),
                    block_id(&block).unwrap_or_default()
                )))
            }
            Some(stored) if stored.receipts.len() == transactions => {
                Ok(Found { place, block, receipts: stored.receipts })
            }
            None if transactions == 0 => Ok(Found { place, block, receipts: Vec::new() }),
            None => Err(SourceError::File(format!(
                "{place} has {transactions} transactions, and {name} has no entry for it"
            ))),
            Some(stored) => Err(SourceError::File(format!(
                "{place} has {transactions} transactions, and {name} has {} receipts for it",
                stored.receipts.len()
            ))),
        }
    }
}

impl Found {
    fn decode(self) -> Result<RawBlock> {
        let invalid = |error: cairn_evm::EvmError| SourceError::File(format!("{}: {error}", self.place));
        let mut block = ConsensusBlock::from_block_rlp(&self.block, self.receipts).map_err(invalid)?;
        // A slice of all that was read: a copy lets go of it.
        block.header = Bytes::copy_from_slice(&block.header);
        from_consensus(&block).map_err(invalid)
    }
}

/// Block 0 where the file begins after it; checks that both are of one chain.
fn join_genesis(genesis: ConsensusBlock, blocks: &BlockFile) -> Result<Option<ConsensusBlock>> {
    let made = genesis_ref(&genesis).block.id;
    let first = blocks.first();
    let (what, theirs) = match first.block.height.get() {
        0 => ("begins with", first.block.id),
        1 => ("continues", first.parent_id),
        _ => return Ok(None),
    };
    if made != theirs {
        return Err(SourceError::File(format!(
            "the genesis file gives block 0 {made}, but {} {what} {theirs}: they are not of one chain",
            blocks.name()
        )));
    }
    Ok((first.block.height == Height(1)).then_some(genesis))
}

fn genesis_ref(genesis: &ConsensusBlock) -> LinkedRef {
    let id = BlockId(keccak256(&genesis.header).0);
    LinkedRef { block: BlockRef { height: Height::ZERO, id }, parent_id: BlockId::default() }
}

/// What a list holds, without the list's own header.
fn list_payload(list: &[u8]) -> &[u8] {
    let mut rest = list;
    alloy_rlp::Header::decode_bytes(&mut rest, true).unwrap_or_default()
}

fn block_id(block: &[u8]) -> Option<BlockId> {
    let header = blocks::next_item(&mut list_payload(block))?;
    Some(BlockId(keccak256(header).0))
}

fn count_transactions(block: &[u8]) -> Option<usize> {
    let mut rest = list_payload(block);
    blocks::next_item(&mut rest)?;
    let mut transactions = alloy_rlp::Header::decode_bytes(&mut rest, true).ok()?;
    let mut count = 0;
    while !transactions.is_empty() {
        blocks::next_item(&mut transactions)?;
        count += 1;
    }
    Some(count)
}

fn open_file(path: &Path) -> Result<File> {
    File::open(path).map_err(|error| SourceError::File(format!("{}: {error}", path.display())))
}

fn read_limited(path: &Path, limit: usize) -> Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    open_file(path)?
        .take(limit as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| SourceError::File(format!("{}: {error}", path.display())))?;
    Ok(bytes)
}
