//! The chain file: finding blocks in it.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use alloy_primitives::keccak256;
use bytes::Bytes;
use cairn_core::{BlockId, BlockRef, Height, HeightRange, LinkedRef};

use super::spool::{Offsets, OffsetsWriter, SharedFile, Spooler, is_gzip, unpack};
use super::{list_payload, open_file};
use crate::{Result, SourceError};

/// The most that one block's RLP may take, in bytes.
pub const MAX_BLOCK_BYTES: u64 = 256 << 20;

/// The most that one header may take, in bytes. Ethereum's take about 700; chains with long seals some thousands.
pub const MAX_HEADER_BYTES: u64 = 64 << 10;

/// How much is read ahead while headers are looked for. Small, so that of large bodies little is read.
const SCAN_BUFFER_BYTES: usize = 16 << 10;

/// Where the number stands in a header.
const NUMBER_INDEX: usize = 8;

/// A block in a chain file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockPlace {
    /// What its header says.
    pub linked: LinkedRef,
    /// Where it begins in the (unpacked) file, in bytes.
    pub offset: u64,
    /// What it takes there, in bytes.
    pub bytes: u64,
}

/// A block of which only the place is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub height: Height,
    pub offset: u64,
    pub bytes: u64,
}

/// Reads through a chain file, header by header, and says where each block is. `name` is the file's, for errors.
///
/// Fails at the first block that is malformed, cut off, over a limit, or doesn't follow the one before: one higher, and with it as
/// its parent. Memory: one header. Bodies are skipped, and not looked into.
pub fn scan_blocks<R: Read + Seek>(
    name: &str,
    reader: R,
    mut on_block: impl FnMut(&BlockPlace) -> Result<()>,
) -> Result<()> {
    let io = |error: std::io::Error| SourceError::File(format!("{name}: {error}"));
    let mut reader = BufReader::with_capacity(SCAN_BUFFER_BYTES, reader);
    let end = reader.seek(SeekFrom::End(0)).map_err(io)?;
    reader.seek(SeekFrom::Start(0)).map_err(io)?;
    let mut offset = 0;
    let mut before: Option<LinkedRef> = None;
    let mut header = Vec::new();
    while offset < end {
        // The height that it should have is the best name that a block has which can't be read.
        let which = match before {
            Some(before) => format!("block {}", before.block.height.next()),
            None => "the first block".to_owned(),
        };
        let broken =
            |problem: String| SourceError::File(format!("{name}: {which} at byte {offset} {problem}"));
        let block = ListHead::read(&mut reader, end - offset, MAX_BLOCK_BYTES).map_err(&broken)?;
        let head = ListHead::read(&mut reader, block.payload_bytes, MAX_HEADER_BYTES)
            .map_err(|problem| broken(format!("has a header that {problem}")))?;
        header.clear();
        header.extend_from_slice(&head.raw[..head.raw_bytes]);
        (&mut reader).take(head.payload_bytes).read_to_end(&mut header).map_err(io)?;
        let (parent_id, height) = parse_header(&header)
            .ok_or_else(|| broken("has a header without a parent hash and a number".to_owned()))?;
        let height = Height::believable(height).map_err(|error| broken(format!("has {error}")))?;
        let linked = LinkedRef { block: BlockRef { height, id: BlockId(keccak256(&header).0) }, parent_id };
        if let Some(before) = before {
            if height != before.block.height.next() {
                return Err(broken(format!(
                    "has the number {height}; a chain file has no gaps and no forks"
                )));
            }
            if parent_id != before.block.id {
                return Err(broken(format!(
                    "doesn't follow the one before: its parent is {parent_id}, that one is {}",
                    before.block.id
                )));
            }
        }
        let bytes = block.raw_bytes as u64 + block.payload_bytes;
        on_block(&BlockPlace { linked, offset, bytes })?;
        let rest = block.payload_bytes - header.len() as u64;
        // At most MAX_BLOCK_BYTES, so the conversion is exact.
        reader.seek_relative(rest as i64).map_err(io)?;
        offset += bytes;
        before = Some(linked);
    }
    Ok(())
}

/// The beginning of an RLP list.
struct ListHead {
    raw: [u8; 9],
    raw_bytes: usize,
    payload_bytes: u64,
}

impl ListHead {
    /// Reads one off; the list must lie within `room` bytes and take at most `limit`. What is wrong with it comes back as text that continues
    /// a sentence.
    fn read(reader: &mut impl Read, room: u64, limit: u64) -> std::result::Result<ListHead, String> {
        let mut raw = [0; 9];
        let mut take = |into: &mut [u8], used: usize| {
            if (used + into.len()) as u64 > room {
                return Err("is cut off".to_owned());
            }
            reader.read_exact(into).map_err(|error| format!("can't be read: {error}"))
        };
        take(&mut raw[..1], 0)?;
        let (raw_bytes, payload_bytes) = match raw[0] {
            0xc0..=0xf7 => (1, u64::from(raw[0] - 0xc0)),
            0xf8.. => {
                let width = usize::from(raw[0] - 0xf7);
                take(&mut raw[1..=width], 1)?;
                let length = raw[1..=width].iter().fold(0, |length, byte| length << 8 | u64::from(*byte));
                if raw[1] == 0 || length < 56 {
                    return Err("is malformed: the length of its list is not in the shortest form".to_owned());
                }
                (1 + width, length)
            }
            other => return Err(format!("is malformed: byte {other:#04x} doesn't begin an RLP list")),
        };
        let whole = (raw_bytes as u64).saturating_add(payload_bytes);
        if whole > room {
            return Err(format!("is cut off: its RLP takes {whole} bytes, {room} are there"));
        }
        if whole > limit {
            return Err(format!("takes {whole} bytes, over the limit of {limit}"));
        }
        Ok(ListHead { raw, raw_bytes, payload_bytes })
    }
}

/// A header's parent and number.
fn parse_header(header: &[u8]) -> Option<(BlockId, u64)> {
    let mut rest = list_payload(header);
    let mut string = || alloy_rlp::Header::decode_bytes(&mut rest, false).ok();
    let parent = BlockId(string()?.try_into().ok()?);
    for _ in 1..NUMBER_INDEX {
        string()?;
    }
    let number = alloy_rlp::decode_exact::<u64>(alloy_rlp::encode(string()?)).ok()?;
    Some((parent, number))
}

/// Takes an RLP item off, with its own header.
pub(super) fn next_item<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let start = *rest;
    let mut after = start;
    let header = alloy_rlp::Header::decode(&mut after).ok()?;
    let end = start.len() - after.len() + header.payload_length;
    let item = start.get(..end)?;
    *rest = &start[end..];
    Some(item)
}

/// A chain file with its index.
#[derive(Debug)]
pub(super) struct BlockFile {
    file: SharedFile,
    /// Where each block begins, and where the last one ends.
    offsets: Offsets,
    first: LinkedRef,
    last: LinkedRef,
}

impl BlockFile {
    pub fn open(path: &Path, spooler: &Spooler) -> Result<BlockFile> {
        let name = path.display().to_string();
        let mut file = open_file(path)?;
        if is_gzip(path, &mut file)? {
            file = unpack(path, file, spooler)?;
        }
        Self::index(name, file, spooler)
    }

    fn index(name: String, file: File, spooler: &Spooler) -> Result<BlockFile> {
        let mut offsets = OffsetsWriter::new(spooler)?;
        let mut ends = None;
        let mut end = 0;
        scan_blocks(&name, &file, |place| {
            let (first, _) = ends.unwrap_or((place.linked, place.linked));
            ends = Some((first, place.linked));
            end = place.offset + place.bytes;
            offsets.push(place.offset)
        })?;
        let Some((first, last)) = ends else {
            return Err(SourceError::File(format!("{name} holds no block")));
        };
        offsets.push(end)?;
        Ok(BlockFile { file: SharedFile::new(name, file), offsets: offsets.finish()?, first, last })
    }

    pub fn name(&self) -> &str {
        self.file.name()
    }

    pub fn first(&self) -> LinkedRef {
        self.first
    }

    pub fn last(&self) -> LinkedRef {
        self.last
    }

    pub fn heights(&self) -> HeightRange {
        HeightRange::inclusive(self.first.block.height, self.last.block.height)
    }

    /// A block's name in errors.
    pub fn describe(&self, height: Height, offset: u64) -> String {
        format!("{}: block {height} at byte {offset}", self.name())
    }

    /// The places of a range that the file holds.
    pub fn places(&self, range: HeightRange) -> Result<Vec<Place>> {
        let range = range.intersect(self.heights());
        if range.is_empty() {
            return Ok(Vec::new());
        }
        let offsets = self.offsets.get(range.start().since(self.first.block.height), range.len() + 1)?;
        Ok(range
            .iter()
            .zip(offsets.windows(2))
            .map(|(height, pair)| Place { height, offset: pair[0], bytes: pair[1] - pair[0] })
            .collect())
    }

    /// The RLP of blocks that lie one behind the other.
    pub fn read(&self, places: &[Place]) -> Result<Vec<Bytes>> {
        let Some(first) = places.first() else { return Ok(Vec::new()) };
        let length = places.iter().map(|place| place.bytes as usize).sum();
        let mut bytes = Bytes::from(self.file.read(first.offset, length)?);
        Ok(places.iter().map(|place| bytes.split_to(place.bytes as usize)).collect())
    }

    /// What the header at `height` says; `None` where the file doesn't hold it.
    pub fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        let places = self.places(HeightRange::one(height))?;
        let Some(place) = places.first() else { return Ok(None) };
        // A block's own list header, and the header's.
        let length = place.bytes.min(MAX_HEADER_BYTES + 9) as usize;
        let bytes = self.file.read(place.offset, length)?;
        let changed = || {
            SourceError::File(format!(
                "{} is no longer what it was: the file was changed while it was open",
                self.describe(height, place.offset)
            ))
        };
        let mut rest = &bytes[..];
        ListHead::read(&mut rest, place.bytes, MAX_BLOCK_BYTES).map_err(|_| changed())?;
        let header = next_item(&mut rest).ok_or_else(changed)?;
        let (parent_id, number) = parse_header(header).ok_or_else(changed)?;
        if number != height.get() {
            return Err(changed());
        }
        Ok(Some(LinkedRef { block: BlockRef { height, id: BlockId(keccak256(header).0) }, parent_id }))
    }
}
