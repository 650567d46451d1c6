//! The file and the source over it.

use cairn_core::{Height, HeightRange};
use cairn_evm::{ChainProfile, Checks, SendersAre, check_block};

use super::*;
use crate::ChainSource;
use crate::verify::{Verified, VerifyOptions};

fn small() -> PresignOptions {
    PresignOptions { txs_per_block: 20, signers: 20, ..PresignOptions::new(3, 390) }
}

#[tokio::test]
async fn what_was_signed_is_read_back_and_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chain");
    let mut heard = 0;
    let source = presigned(&path, &small(), 2, |done| heard = done).unwrap();
    assert_eq!((heard, source.head()), (400, Height(20)));
    let source = Verified::new(
        source,
        VerifyOptions { senders: SendersAre::RecoveredHere, ..VerifyOptions::default() },
    );
    let heads = source.heads().await.unwrap();
    let mut at = Height(0);
    let (mut logs, mut txs) = (0, 0);
    while at <= heads.latest.block.height {
        let blocks = source.blocks(HeightRange::new(at, at + 7)).await.unwrap();
        for block in &blocks {
            assert_eq!(check_block(block, &ChainProfile::default()), Ok(Checks::empty()));
            assert_eq!(source.linked_ref(block.facts.height).await.unwrap(), Some(block.facts.linked_ref()));
            logs += block.facts.log_count;
            txs += block.facts.tx_count;
        }
        at = blocks.last().unwrap().facts.height.next();
    }
    assert_eq!(txs, 400);
    assert!((1.6..2.3).contains(&(f64::from(logs) / f64::from(txs))), "{logs} logs");
    assert_eq!(source.linked_ref(Height(21)).await.unwrap(), None);
    assert!(source.blocks(HeightRange::new(Height(21), Height(30))).await.unwrap().is_empty());
}

#[test]
fn the_file_is_the_same_however_many_threads_sign() {
    let dir = tempfile::tempdir().unwrap();
    let write = |threads: usize| {
        let path = dir.path().join(threads.to_string());
        presign(&path, &small(), threads, |_| ()).unwrap();
        std::fs::read(path).unwrap()
    };
    assert_eq!(write(1), write(3));
}

#[test]
fn a_file_of_other_options_or_a_broken_one_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chain");
    let mut signed = 0;
    let mut make = |options: &PresignOptions| {
        let before = signed;
        presigned(&path, options, 2, |_| signed += 1).unwrap();
        signed > before
    };
    let other = PresignOptions { seed: 4, ..small() };
    assert!(make(&small()) && !make(&small()) && make(&other) && !make(&other));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    assert!(PresignedSource::open(&path).unwrap_err().to_string().contains("make it again"));
    assert!(presigned(&path, &other, 2, |_| ()).is_ok());
}

#[tokio::test]
async fn a_damaged_file_never_passes_for_another_chain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chain");
    presign(&path, &small(), 2, |_| ()).unwrap();
    let all = HeightRange::new(Height(0), Height(21));
    let good = PresignedSource::open(&path).unwrap().blocks(all).await.unwrap();
    let whole = std::fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..whole.len()).step_by(997) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x41;
        std::fs::write(&path, &bytes).unwrap();
        let Ok(source) = PresignedSource::open(&path) else {
            refused += 1;
            continue;
        };
        let source =
            Verified::new(source, VerifyOptions { bloom_retry_pause_ms: 0, ..VerifyOptions::default() });
        let Ok(blocks) = source.blocks(all).await else {
            refused += 1;
            continue;
        };
        // A damaged header that still decodes is another header: the next block doesn't link to it. Blooms of receipts are not read.
        let differs = blocks.iter().zip(&good).position(|(read, good)| read != good);
        assert!(differs.is_none_or(|differs| differs + 1 == blocks.len()), "byte {at}");
        refused += u32::from(blocks.len() < good.len());
    }
    assert!(refused > 10, "{refused}");
}
