//! Reading the file back as a source.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use alloy_consensus::Header;
use alloy_primitives::keccak256;
use async_trait::async_trait;
use bytes::{Buf, Bytes};
use cairn_core::{BlockId, BlockRef, ChainId, Height, HeightRange, LinkedRef, RawBlock};
use cairn_evm::{ConsensusBlock, from_consensus};
use futures::{StreamExt, TryStreamExt, stream};

use super::PresignOptions;
use super::file::{MAGIC, MAX_PART_BYTES};
use crate::verify::Offload;
use crate::{ChainSource, Heads, Result, SourceError};

/// What one call gives at most, as it lies in the file.
const MAX_CALL_BYTES: u64 = 8 << 20;

/// A file of signed transactions as a source whose whole chain is final.
///
/// Trusts nothing of the file: ids are hashed and senders recovered for each block, on `parallelism` threads; its blocks can be checked with
/// [`cairn_evm::SendersAre::RecoveredHere`]. In memory are 8 bytes a block and what the running calls hold: at most 8 MiB of packed blocks each, and
/// `parallelism` blocks being unpacked.
#[derive(Debug)]
pub struct PresignedSource {
    file: Arc<OpenFile>,
    /// Blocks above it are not given.
    head: Height,
    parallelism: usize,
    offload: Offload,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    made_from: PresignOptions,
    file: Mutex<File>,
    /// Where each block's frame begins, and where the last one ends.
    offsets: Vec<u64>,
}

/// A block as it lies in the file.
struct Frame {
    height: Height,
    header: Bytes,
    packed: Bytes,
    unpacked_bytes: usize,
}

impl PresignedSource {
    /// Opens a file that [`super::presign`] made.
    pub fn open(path: &Path) -> Result<PresignedSource> {
        let file = OpenFile::open(path)?;
        let blocks = file.offsets.len() as u64 - 1;
        Ok(PresignedSource {
            file: Arc::new(file),
            head: Height(blocks - 1),
            parallelism: std::thread::available_parallelism().map_or(1, |threads| threads.get()),
            offload: Offload::Blocking,
        })
    }

    /// The same chain cut after `head`.
    pub fn up_to(self, head: Height) -> PresignedSource {
        PresignedSource { head: self.head.min(head), ..self }
    }

    /// How many blocks of one call are unpacked and decoded at a time.
    pub fn with_parallelism(self, blocks: usize) -> PresignedSource {
        PresignedSource { parallelism: blocks.max(1), ..self }
    }

    /// What the file was made from.
    pub fn made_from(&self) -> &PresignOptions {
        &self.file.made_from
    }

    /// The newest block's height.
    pub fn head(&self) -> Height {
        self.head
    }

    async fn frames(&self, range: HeightRange) -> Result<Vec<Frame>> {
        let file = Arc::clone(&self.file);
        self.offload.run("presigned chain", move || file.frames(range)).await?
    }

    async fn header(&self, height: Height) -> Result<Option<LinkedRef>> {
        if height > self.head {
            return Ok(None);
        }
        let frames = self.frames(HeightRange::one(height)).await?;
        let Some(frame) = frames.first() else { return Ok(None) };
        let header: Header = alloy_rlp::decode_exact(&frame.header)
            .map_err(|error| self.file.broken(format!("header {height}: {error}")))?;
        let id = BlockId(keccak256(&frame.header).0);
        Ok(Some(LinkedRef { block: BlockRef { height, id }, parent_id: BlockId(header.parent_hash.0) }))
    }
}

impl OpenFile {
    fn open(path: &Path) -> Result<OpenFile> {
        let broken = |message: String| broken(path, message);
        let io = |error: std::io::Error| broken(error.to_string());
        let mut file = File::open(path).map_err(io)?;
        let total = file.metadata().map_err(io)?.len();
        let mut head = [0; 12];
        file.read_exact(&mut head).map_err(io)?;
        if head[..8] != MAGIC[..] {
            return Err(broken("it doesn't begin as one".into()));
        }
        let mut about = vec![0; (&head[8..]).get_u32_le().min(1 << 16) as usize];
        file.read_exact(&mut about).map_err(io)?;
        let made_from: PresignOptions =
            serde_json::from_slice(&about).map_err(|error| broken(error.to_string()))?;

        let mut tail = [0; 24];
        file.seek(SeekFrom::End(-24)).and_then(|_| file.read_exact(&mut tail)).map_err(io)?;
        let mut fields = &tail[..];
        let (blocks, list_at) = (fields.get_u64_le(), fields.get_u64_le());
        if fields != &MAGIC[..] || blocks != made_from.blocks() {
            return Err(broken("it doesn't end as one: it was cut off".into()));
        }
        if blocks.checked_mul(8).and_then(|bytes| bytes.checked_add(list_at)) != total.checked_sub(24) {
            return Err(broken(format!("a list of {blocks} offsets doesn't lie at {list_at}")));
        }
        let mut list = vec![0; (blocks * 8) as usize];
        file.seek(SeekFrom::Start(list_at)).and_then(|_| file.read_exact(&mut list)).map_err(io)?;
        let mut offsets: Vec<u64> = list.chunks_exact(8).map(|mut bytes| bytes.get_u64_le()).collect();
        offsets.push(list_at);
        let grows = offsets.windows(2).all(|pair| {
            pair[1]
                .checked_sub(pair[0])
                .is_some_and(|bytes| (12..=u64::from(MAX_PART_BYTES)).contains(&bytes))
        });
        if !grows || offsets.first() != Some(&((12 + about.len()) as u64)) {
            return Err(broken("its offsets are not in order".into()));
        }
        Ok(OpenFile { path: path.to_owned(), made_from, file: Mutex::new(file), offsets })
    }

    fn broken(&self, message: String) -> SourceError {
        broken(&self.path, message)
    }

    /// The frames of the range that fit into one call, at least one.
    fn frames(&self, range: HeightRange) -> Result<Vec<Frame>> {
        let (first, mut end) = (range.start().0 as usize, range.end().0 as usize);
        end = end.min(self.offsets.len() - 1);
        if first >= end {
            return Ok(Vec::new());
        }
        let from = self.offsets[first];
        while end > first + 1 && self.offsets[end] - from > MAX_CALL_BYTES {
            end -= 1;
        }
        let mut bytes = vec![0; (self.offsets[end] - from) as usize];
        {
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            file.seek(SeekFrom::Start(from))
                .and_then(|_| file.read_exact(&mut bytes))
                .map_err(|error| self.broken(error.to_string()))?;
        }
        let bytes = Bytes::from(bytes);
        (first..end)
            .map(|at| {
                let (start, stop) =
                    ((self.offsets[at] - from) as usize, (self.offsets[at + 1] - from) as usize);
                let mut frame = bytes.slice(start..stop);
                let (header, packed, unpacked) = (frame.get_u32_le(), frame.get_u32_le(), frame.get_u32_le());
                if header as usize + packed as usize != frame.len() || unpacked > MAX_PART_BYTES {
                    return Err(self.broken(format!("the lengths of block {at} don't add up")));
                }
                let header = frame.split_to(header as usize);
                Ok(Frame {
                    height: Height(at as u64),
                    header,
                    packed: frame,
                    unpacked_bytes: unpacked as usize,
                })
            })
            .collect()
    }

    fn decode(&self, frame: Frame) -> Result<RawBlock> {
        let height = frame.height;
        let unpacked = zstd::bulk::decompress(&frame.packed, frame.unpacked_bytes)
            .map_err(|error| self.broken(format!("block {height}: {error}")))?;
        let mut rest = Bytes::from(unpacked);
        let mut part = || -> Option<Bytes> {
            let length = rest.try_get_u32_le().ok()? as usize;
            (length <= rest.len()).then(|| rest.split_to(length))
        };
        let body = part();
        let receipts: Vec<Bytes> = std::iter::from_fn(part).collect();
        let (Some(body), true) = (body, rest.is_empty()) else {
            return Err(self.broken(format!("block {height}: its parts don't add up")));
        };
        // Slices of all that was read and unpacked: copies let go of it.
        let (header, body) = (Bytes::copy_from_slice(&frame.header), Bytes::copy_from_slice(&body));
        from_consensus(&ConsensusBlock { header, body, receipts })
            .map_err(|error| self.broken(format!("block {height}: {error}")))
    }
}

fn broken(path: &Path, message: String) -> SourceError {
    SourceError::File(format!(
        "{} is no presigned chain ({message}); remove it and make it again",
        path.display()
    ))
}

#[async_trait]
impl ChainSource for PresignedSource {
    async fn chain_id(&self) -> Result<ChainId> {
        Ok(ChainId(self.file.made_from.chain_id))
    }

    async fn heads(&self) -> Result<Heads> {
        let latest = self.header(self.head).await?;
        let latest = latest.ok_or_else(|| self.file.broken(format!("block {} is not there", self.head)))?;
        Ok(Heads { latest, safe: Some(latest.block), finalized: Some(latest.block) })
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.header(height).await
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let range = range.intersect(HeightRange::inclusive(Height::ZERO, self.head));
        let frames = self.frames(range).await?;
        let decode = |frame: Frame| {
            let file = Arc::clone(&self.file);
            async move { self.offload.run("presigned chain", move || file.decode(frame)).await? }
        };
        stream::iter(frames).map(decode).buffered(self.parallelism).try_collect().await
    }

    fn preferred_heights(&self) -> u64 {
        32
    }

    fn bound_by(&self) -> String {
        format!("{}: unpacking and recovering senders", self.file.path.display())
    }
}
