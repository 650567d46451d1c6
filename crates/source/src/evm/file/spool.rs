//! Temporary files: unpacked data, and lists of offsets.
//!
//! They have no name and vanish with the process. What they take together is counted and limited.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flate2::read::MultiGzDecoder;

use crate::{Result, SourceError};

/// How files are read and written at once.
pub(super) const BUFFER_BYTES: usize = 256 << 10;

/// Gives temporary files.
#[derive(Debug)]
pub(super) struct Spooler {
    dir: Option<PathBuf>,
    max_bytes: u64,
    used_bytes: Arc<AtomicU64>,
}

impl Spooler {
    pub fn new(dir: Option<PathBuf>, max_bytes: u64) -> Spooler {
        Spooler { dir, max_bytes, used_bytes: Arc::default() }
    }

    /// What the files take so far, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// A new file to be written from its start.
    pub fn create(&self) -> Result<SpoolWriter> {
        let file = match &self.dir {
            Some(dir) => tempfile::tempfile_in(dir),
            None => tempfile::tempfile(),
        };
        let file = file.map_err(|error| {
            let dir = self.dir.clone().unwrap_or_else(std::env::temp_dir);
            SourceError::File(format!("no temporary file can be made in {}: {error}", dir.display()))
        })?;
        let counted = Counted { file, used: Arc::clone(&self.used_bytes), max_bytes: self.max_bytes };
        Ok(SpoolWriter { out: BufWriter::with_capacity(BUFFER_BYTES, counted), at: 0 })
    }
}

/// A temporary file being written.
pub(super) struct SpoolWriter {
    out: BufWriter<Counted>,
    at: u64,
}

struct Counted {
    file: File,
    used: Arc<AtomicU64>,
    max_bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.used.load(Ordering::Relaxed).saturating_add(bytes.len() as u64) > self.max_bytes {
            return Err(io::Error::other(format!(
                "temporary files would take more than {} bytes: raise the limit, or unpack the files beforehand",
                self.max_bytes
            )));
        }
        let written = self.file.write(bytes)?;
        self.used.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl SpoolWriter {
    /// Where the next byte goes.
    pub fn position(&self) -> u64 {
        self.at
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| spool_error(&error))?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    pub fn finish(self) -> Result<File> {
        let counted = self.out.into_inner().map_err(|error| spool_error(error.error()))?;
        Ok(counted.file)
    }
}

fn spool_error(error: &io::Error) -> SourceError {
    SourceError::File(format!("writing a temporary file failed: {error}"))
}

/// A file that several tasks read, each at its own place.
#[derive(Debug)]
pub(super) struct SharedFile {
    name: String,
    file: Mutex<File>,
}

impl SharedFile {
    /// `name` is for people.
    pub fn new(name: impl Into<String>, file: File) -> SharedFile {
        SharedFile { name: name.into(), file: Mutex::new(file) }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Exactly `length` bytes from `offset` on.
    pub fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        let mut file = self.lock();
        file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut bytes)).map_err(|error| {
            SourceError::File(format!("{}: reading {length} bytes at byte {offset}: {error}", self.name))
        })?;
        Ok(bytes)
    }

    fn lock(&self) -> MutexGuard<'_, File> {
        // Every use begins with a seek, so that what a panic left behind doesn't matter.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A list of offsets, of any length, in a temporary file.
#[derive(Debug)]
pub(super) struct Offsets {
    file: SharedFile,
    count: u64,
}

/// The same while it grows.
pub(super) struct OffsetsWriter {
    out: SpoolWriter,
    count: u64,
}

impl OffsetsWriter {
    pub fn new(spooler: &Spooler) -> Result<OffsetsWriter> {
        Ok(OffsetsWriter { out: spooler.create()?, count: 0 })
    }

    pub fn push(&mut self, offset: u64) -> Result<()> {
        self.count += 1;
        self.out.write(&offset.to_le_bytes())
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn finish(self) -> Result<Offsets> {
        Ok(Offsets { file: SharedFile::new("the list of offsets", self.out.finish()?), count: self.count })
    }
}

impl Offsets {
    /// Offsets `first` to `first + count - 1`; fewer where the list ends.
    pub fn get(&self, first: u64, count: u64) -> Result<Vec<u64>> {
        let count = count.min(self.count.saturating_sub(first));
        let bytes = self.file.read(first * 8, (count * 8) as usize)?;
        Ok(bytes
            .chunks_exact(8)
            .map(|chunk| {
                let mut offset = [0; 8];
                offset.copy_from_slice(chunk);
                u64::from_le_bytes(offset)
            })
            .collect())
    }
}

/// Whether the file begins as gzip does; leaves it at its start.
pub(super) fn is_gzip(path: &Path, file: &mut File) -> Result<bool> {
    let error = |error: io::Error| SourceError::File(format!("{}: {error}", path.display()));
    let mut magic = [0; 2];
    let mut filled = 0;
    while filled < magic.len() {
        match file.read(&mut magic[filled..]).map_err(error)? {
            0 => break,
            read => filled += read,
        }
    }
    file.seek(SeekFrom::Start(0)).map_err(error)?;
    Ok(filled == 2 && magic == [0x1f, 0x8b])
}

/// Unpacks a gzip file of any number of members into a temporary file.
pub(super) fn unpack(path: &Path, file: File, spooler: &Spooler) -> Result<File> {
    let mut from = MultiGzDecoder::new(io::BufReader::with_capacity(BUFFER_BYTES, file));
    let mut to = spooler.create()?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                return Err(SourceError::File(format!(
                    "{} is damaged gzip: {error} (after {} unpacked bytes)",
                    path.display(),
                    to.position()
                )));
            }
        };
        to.write(&buffer[..read])?;
    }
    to.finish()
}
