//! Writing the file: signing on several threads, linking and writing on one.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};

use alloy_primitives::keccak256;

use super::PresignOptions;
use crate::evm::synthetic::assemble::{Contents, HeaderWords, Seal, contents, header, withdrawals};
use crate::evm::synthetic::traffic::{PreparedTx, Traffic, fails};
use crate::{Result, SourceError};

pub(super) const MAGIC: &[u8; 8] = b"cairnps1";
/// Blocks whose parts are larger are not ours.
pub(super) const MAX_PART_BYTES: u32 = 256 << 20;

const FAILED_PERCENT: u64 = 2;
const GENESIS_TIMESTAMP_S: u64 = 1_700_000_000;
const BLOCK_TIME_S: u64 = 12;
const WITHDRAWALS_PER_BLOCK: u64 = 4;
/// Signed blocks that wait for the writer, per thread.
const WAITING_BLOCKS: usize = 4;

/// A block but for its header.
struct Signed {
    contents: Contents,
    packed: Vec<u8>,
    unpacked_bytes: u32,
}

/// Signs and writes. `progress` hears how many transactions are done, once a block.
///
/// Takes about 50 s per million transactions and thread; the file has some 220 bytes a transaction. Bounded memory: a few blocks a thread.
pub fn presign(
    path: &Path,
    options: &PresignOptions,
    threads: usize,
    progress: impl FnMut(u64),
) -> Result<()> {
    let part = path.with_extension("part");
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        SourceError::File(format!("can't {what} the presigned chain {}: {error}", path.display()))
    };
    let file = File::create(&part).map_err(|error| failed("create", &error))?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    write_all(&mut out, options, threads.max(1), progress).map_err(|error| failed("write", &error))?;
    let file = out.into_inner().map_err(|error| failed("write", &error.into_error()))?;
    file.sync_all().and_then(|()| std::fs::rename(&part, path)).map_err(|error| failed("finish", &error))
}

fn write_all(
    out: &mut impl Write,
    options: &PresignOptions,
    threads: usize,
    mut progress: impl FnMut(u64),
) -> std::io::Result<()> {
    let about = serde_json::to_vec(options)?;
    out.write_all(MAGIC)?;
    out.write_all(&(about.len() as u32).to_le_bytes())?;
    out.write_all(&about)?;
    let mut at = (MAGIC.len() + 4 + about.len()) as u64;
    let blocks = options.blocks();
    let mut offsets = Vec::with_capacity(blocks as usize * 8);
    let traffic = options.traffic();
    std::thread::scope(|scope| {
        let signers: Vec<Receiver<std::io::Result<Signed>>> = (0..threads as u64)
            .map(|thread| {
                let (to_writer, signed) = sync_channel(WAITING_BLOCKS);
                let traffic = &traffic;
                scope.spawn(move || {
                    let mine = (thread..blocks).step_by(threads);
                    for block in mine.map(|height| sign_block(options, traffic, height)) {
                        // The writer is gone after an error of its own.
                        if to_writer.send(block).is_err() {
                            break;
                        }
                    }
                });
                signed
            })
            .collect();
        let mut parent: Option<Seal> = None;
        for height in 0..blocks {
            let signer = &signers[(height % threads as u64) as usize];
            let signed =
                signer.recv().map_err(|_| std::io::Error::other("a signing thread ended early"))??;
            let words = HeaderWords {
                seed: options.seed,
                fork_salt: 0,
                gas_limit: (u64::from(options.txs_per_block) * 500_000).max(30_000_000),
                timestamp_s: GENESIS_TIMESTAMP_S + height * BLOCK_TIME_S,
            };
            let header = header(height, parent.as_ref(), &signed.contents, &words);
            let encoded = alloy_rlp::encode(&header);
            offsets.extend(at.to_le_bytes());
            for length in [encoded.len() as u32, signed.packed.len() as u32, signed.unpacked_bytes] {
                out.write_all(&length.to_le_bytes())?;
            }
            out.write_all(&encoded)?;
            out.write_all(&signed.packed)?;
            at += 12 + (encoded.len() + signed.packed.len()) as u64;
            let next_tx = parent.map_or(0, |parent| parent.next_tx) + signed.contents.facts.len() as u64;
            parent = Some(Seal {
                id: keccak256(&encoded),
                next_tx,
                base_fee_wei: header.base_fee_per_gas.unwrap_or_default(),
                gas_used: header.gas_used,
            });
            progress(next_tx);
        }
        Ok::<_, std::io::Error>(())
    })?;
    out.write_all(&offsets)?;
    out.write_all(&blocks.to_le_bytes())?;
    out.write_all(&at.to_le_bytes())?;
    out.write_all(MAGIC)?;
    out.flush()
}

fn sign_block(options: &PresignOptions, traffic: &Traffic, height: u64) -> std::io::Result<Signed> {
    let count = u64::from(options.txs_per_block.max(1));
    let txs = match height.checked_sub(1) {
        Some(before) => before * count..(before + 1) * count,
        None => 0..0,
    };
    let txs: Vec<(PreparedTx, bool)> = txs
        .map(|g| {
            let tx = traffic.sign(options.seed, g);
            let succeeds = !fails(options.seed, g, &tx, FAILED_PERCENT);
            (tx, succeeds)
        })
        .collect();
    let contents = contents(&txs, &withdrawals(options.seed, height, WITHDRAWALS_PER_BLOCK));
    let mut unpacked = Vec::new();
    let parts = std::iter::once(&contents.body).chain(&contents.consensus_receipts);
    for part in parts {
        unpacked.extend((part.len() as u32).to_le_bytes());
        unpacked.extend(part);
    }
    let packed = zstd::bulk::compress(&unpacked, 1)?;
    Ok(Signed { contents, packed, unpacked_bytes: unpacked.len() as u32 })
}
