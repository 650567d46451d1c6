//! The receipts file: read through once, kept as bytes by block.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::path::Path;

use alloy_primitives::hex;
use bytes::{Buf, Bytes};
use cairn_core::{BlockId, Height, HeightRange};
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, SeqAccess, Visitor};

use super::open_file;
use super::spool::{BUFFER_BYTES, Offsets, OffsetsWriter, SharedFile, Spooler, is_gzip};
use crate::{Result, SourceError};

/// The most that one block's entry in a receipts file may take as JSON, in bytes.
pub const MAX_RECEIPTS_JSON_BYTES: u64 = 512 << 20;

/// The receipts of one block.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BlockReceipts {
    /// The block's height.
    pub number: u64,
    /// The block's id, where the file says it.
    #[serde(default)]
    pub hash: Option<BlockId>,
    receipts: Packed,
}

impl BlockReceipts {
    /// The receipts, in order: EIP-2718 bytes with bloom.
    pub fn receipts(&self) -> Vec<Bytes> {
        unpack(Bytes::copy_from_slice(&self.receipts.0))
    }
}

/// Each receipt's length (u32, little-endian) and bytes, one behind the other: no more memory than the JSON takes, however small they are.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Packed(Vec<u8>);

fn unpack(mut packed: Bytes) -> Vec<Bytes> {
    let mut receipts = Vec::new();
    while let Ok(length) = packed.try_get_u32_le() {
        receipts.push(packed.split_to((length as usize).min(packed.len())));
    }
    receipts
}

impl<'de> Deserialize<'de> for Packed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Packed;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of receipts in hex")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Packed, S::Error> {
                let mut packed = Vec::new();
                while list.next_element_seed(AppendHex(&mut packed))?.is_some() {}
                Ok(Packed(packed))
            }
        }
        from.deserialize_seq(List)
    }
}

/// Appends a hex string's bytes with their length before them.
struct AppendHex<'a>(&'a mut Vec<u8>);

impl<'de> DeserializeSeed<'de> for AppendHex<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_str(self)
    }
}

impl Visitor<'_> for AppendHex<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a receipt in hex")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        let digits = text.strip_prefix("0x").ok_or_else(|| E::custom("a receipt without 0x"))?;
        let length = digits.len() / 2;
        if length == 0 {
            return Err(E::custom("an empty receipt"));
        }
        let length_field = u32::try_from(length).map_err(E::custom)?;
        self.0.extend_from_slice(&length_field.to_le_bytes());
        let start = self.0.len();
        self.0.resize(start + length, 0);
        hex::decode_to_slice(digits, &mut self.0[start..])
            .map_err(|error| E::custom(format_args!("a receipt that is not hex: {error}")))
    }
}

/// Reads through a receipts file, JSON `[{"number", "hash", "receipts"}]`. `name` is the file's, for errors. Keys of an entry that
/// aren't known are ignored.
///
/// Memory: about what one entry takes as JSON, at most [`MAX_RECEIPTS_JSON_BYTES`].
pub fn scan_receipts<R: Read>(
    name: &str,
    reader: R,
    on_block: impl FnMut(BlockReceipts) -> Result<()>,
) -> Result<()> {
    let since_entry = Cell::new(0);
    let metered = Metered { reader, since_entry: &since_entry };
    let reader = BufReader::with_capacity(BUFFER_BYTES, metered);
    let mut json = serde_json::Deserializer::from_reader(reader);
    let mut entries = Entries { on_block, refused: None, last: None, since_entry: &since_entry };
    let outcome = json.deserialize_seq(&mut entries).and_then(|()| json.end());
    match (entries.refused, outcome) {
        (Some(refused), _) => Err(refused),
        (None, Ok(())) => Ok(()),
        (None, Err(error)) => {
            let after = match entries.last {
                Some(number) => format!(" after the receipts of block {number}"),
                None => String::new(),
            };
            Err(SourceError::File(format!(
                "{name}: not a list of {{number, hash, receipts}}{after}: {error}"
            )))
        }
    }
}

struct Entries<'a, F> {
    on_block: F,
    /// What `on_block` said, which serde's error would flatten.
    refused: Option<SourceError>,
    last: Option<u64>,
    since_entry: &'a Cell<u64>,
}

impl<'de, F: FnMut(BlockReceipts) -> Result<()>> Visitor<'de> for &mut Entries<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of blocks' receipts")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        while let Some(entry) = list.next_element::<BlockReceipts>()? {
            self.last = Some(entry.number);
            self.since_entry.set(0);
            if let Err(error) = (self.on_block)(entry) {
                self.refused = Some(error);
                return Err(S::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

/// Counts what is read for one entry.
struct Metered<'a, R> {
    reader: R,
    since_entry: &'a Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.since_entry.get() > MAX_RECEIPTS_JSON_BYTES {
            return Err(io::Error::other(format!(
                "one block's receipts take more than {MAX_RECEIPTS_JSON_BYTES} bytes"
            )));
        }
        let read = self.reader.read(into)?;
        self.since_entry.set(self.since_entry.get() + read as u64);
        Ok(read)
    }
}

/// A block's place in the spooled receipts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub start: u64,
    pub end: u64,
}

/// An entry read back.
#[derive(Debug)]
pub(super) struct StoredReceipts {
    pub hash: Option<BlockId>,
    pub receipts: Vec<Bytes>,
}

/// The receipts of a chain file's blocks.
#[derive(Debug)]
pub(super) struct ReceiptSpool {
    name: String,
    file: SharedFile,
    first: Height,
    /// Where each block's entry begins, and where the last one ends. One that is as long as nothing is not there.
    offsets: Offsets,
}

impl ReceiptSpool {
    /// Reads a receipts file through and keeps what belongs to `heights`.
    pub fn read(path: &Path, heights: HeightRange, spooler: &Spooler) -> Result<ReceiptSpool> {
        let name = path.display().to_string();
        let mut file = open_file(path)?;
        let reader: Box<dyn Read> = if is_gzip(path, &mut file)? {
            Box::new(MultiGzDecoder::new(BufReader::with_capacity(BUFFER_BYTES, file)))
        } else {
            Box::new(file)
        };
        let mut out = spooler.create()?;
        let mut offsets = OffsetsWriter::new(spooler)?;
        let mut before = None;
        scan_receipts(&name, reader, |entry| {
            if let Some(before) = before.replace(entry.number)
                && entry.number <= before
            {
                return Err(SourceError::File(format!(
                    "{name}: the receipts of block {} come after those of block {before}; they have to be in order",
                    entry.number
                )));
            }
            if !heights.contains(Height(entry.number)) {
                return Ok(());
            }
            // The file may leave out blocks: those have an entry of no bytes.
            let index = Height(entry.number).since(heights.start());
            while offsets.count() <= index {
                offsets.push(out.position())?;
            }
            match entry.hash {
                Some(hash) => {
                    out.write(&[1])?;
                    out.write(hash.as_bytes())?;
                }
                None => out.write(&[0])?,
            }
            out.write(&entry.receipts.0)
        })?;
        while offsets.count() <= heights.len() {
            offsets.push(out.position())?;
        }
        let file = SharedFile::new(format!("the receipts of {name}"), out.finish()?);
        Ok(ReceiptSpool { name, file, first: heights.start(), offsets: offsets.finish()? })
    }

    /// The file's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where the entries of `range` are.
    pub fn entries(&self, range: HeightRange) -> Result<Vec<Entry>> {
        let offsets = self.offsets.get(range.start().since(self.first), range.len() + 1)?;
        Ok(offsets.windows(2).map(|pair| Entry { start: pair[0], end: pair[1] }).collect())
    }

    /// The entry; `None` where the file has none for this block.
    pub fn get(&self, entry: Entry) -> Result<Option<StoredReceipts>> {
        let mut bytes = Bytes::from(self.file.read(entry.start, (entry.end - entry.start) as usize)?);
        let hash = match bytes.try_get_u8() {
            Err(_) => return Ok(None),
            Ok(0) => None,
            Ok(_) => {
                let mut hash = [0; 32];
                bytes
                    .try_copy_to_slice(&mut hash)
                    .map_err(|error| SourceError::File(format!("{}: {error}", self.file.name())))?;
                Some(BlockId(hash))
            }
        };
        Ok(Some(StoredReceipts { hash, receipts: unpack(bytes) }))
    }
}
