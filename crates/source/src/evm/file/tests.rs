use std::io::{Cursor, Write};
use std::path::PathBuf;

use alloy_consensus::{EMPTY_OMMER_ROOT_HASH, EMPTY_ROOT_HASH, Header};
use alloy_primitives::B256;
use cairn_core::LinkedRef;
use cairn_evm::{ChainProfile, SendersAre, check_block_with};
use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// The public suite's folder; `None` where it isn't on this machine (a failure in CI).
fn suite() -> Option<PathBuf> {
    let shared = std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../../shared".into(), PathBuf::from);
    let dir = shared.join("conformance/execution-apis");
    if dir.join("chain.rlp").is_file() {
        return Some(dir);
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} is not there", dir.display());
    println!(
        "not run: {} is not there; it is the folder `tests` of github.com/ethereum/execution-apis",
        dir.display()
    );
    None
}

fn suite_options(dir: &Path) -> FileSourceOptions {
    FileSourceOptions {
        receipts: Some(dir.join("receipts.json.gz")),
        genesis: Some(dir.join("genesis.json")),
        ..FileSourceOptions::new(dir.join("chain.rlp"))
    }
}

/// Every block, asked for as an ingester does.
async fn all(source: &ChainFile) -> Result<Vec<RawBlock>> {
    let mut blocks = Vec::new();
    let mut rest = source.heights();
    while !rest.is_empty() {
        let got = source.blocks(rest).await?;
        assert!(!got.is_empty(), "at least one block while some are left");
        rest = HeightRange::new(Height(rest.start().get() + got.len() as u64), rest.end());
        blocks.extend(got);
    }
    Ok(blocks)
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(bytes).expect("memory");
    out.finish().expect("memory")
}

/// Blocks without transactions from height `first` on, each with its own RLP.
fn empty_blocks(first: u64, count: u64) -> Vec<Vec<u8>> {
    let mut parent_hash = B256::repeat_byte(9);
    (0..count)
        .map(|at| {
            let number = first + at;
            let header = Header {
                number,
                parent_hash,
                ommers_hash: EMPTY_OMMER_ROOT_HASH,
                transactions_root: EMPTY_ROOT_HASH,
                receipts_root: EMPTY_ROOT_HASH,
                ..Header::default()
            };
            let header = alloy_rlp::encode(&header);
            parent_hash = keccak256(&header);
            let payload = [&header[..], &[0xc0, 0xc0]].concat();
            let mut block = Vec::new();
            alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut block);
            block.extend_from_slice(&payload);
            block
        })
        .collect()
}

struct Dir(TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().expect("a directory"))
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    fn chain(&self, bytes: impl AsRef<[u8]>) -> FileSourceOptions {
        FileSourceOptions {
            chain_id: Some(ChainId(7)),
            ..FileSourceOptions::new(self.file("chain.rlp", bytes))
        }
    }
}

async fn refusal(options: FileSourceOptions) -> String {
    match ChainFile::open(options).await {
        Ok(source) => all(&source).await.expect_err("refused").to_string(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn a_file_with_a_height_that_no_chain_has_is_refused() {
    let dir = Dir::new();
    for height in [u64::MAX, u64::MAX - 1, 1 << 63] {
        let said = refusal(dir.chain(empty_blocks(height, 1).concat())).await;
        assert!(said.contains(&height.to_string()) && said.contains("no chain has"), "{said}");
    }
}

#[tokio::test]
async fn the_suites_chain_comes_whole_with_its_genesis() {
    let Some(dir) = suite() else { return };
    let source = ChainFile::open(suite_options(&dir)).await.expect("opens");
    assert_eq!(source.chain_id().await.expect("known"), ChainId(3_503_995_874_084_926));
    assert_eq!(source.heights(), HeightRange::new(Height(0), Height(55)));
    let config = source.chain_config().expect("from the genesis file");
    assert!(ForkSchedule::from_genesis_json(config).is_ok());
    assert!(!config.windows(7).any(|word| word == b"\"alloc\""));

    let blocks = all(&source).await.expect("whole");
    assert_eq!(blocks.len(), 55);
    assert_eq!(blocks.iter().map(|block| block.transactions.len()).sum::<usize>(), 249);
    assert_eq!(blocks.iter().map(|block| block.facts.log_count).sum::<u32>(), 383);
    for block in &blocks {
        let checked = check_block_with(block, &ChainProfile::default(), SendersAre::RecoveredHere);
        assert!(checked.is_ok_and(|relaxed| relaxed.is_empty()), "block {}", block.facts.height);
        let linked = source.linked_ref(block.facts.height).await.expect("a header");
        assert_eq!(linked, Some(block.facts.linked_ref()));
    }
    assert!(blocks.windows(2).all(|pair| pair[1].facts.parent_id == pair[0].facts.id));
    let heads = source.heads().await.expect("heads");
    assert_eq!(heads.latest.block, blocks[54].block_ref());
    assert_eq!(heads.safe, Some(heads.latest.block));
    assert_eq!(heads.finalized, Some(heads.latest.block));

    // Block 2 alone takes more than one call gives.
    assert_eq!(source.blocks(HeightRange::new(Height(2), Height(9))).await.expect("there").len(), 1);
    // Outside of it there is nothing yet.
    assert!(source.blocks(HeightRange::new(Height(55), Height(60))).await.expect("no failure").is_empty());
    assert_eq!(source.linked_ref(Height(55)).await.expect("no failure"), None);
}

#[tokio::test]
async fn gzip_and_a_genesis_in_the_chain_make_no_difference() {
    let Some(suite) = suite() else { return };
    let expected = all(&ChainFile::open(suite_options(&suite)).await.expect("opens")).await.expect("whole");

    let dir = Dir::new();
    let chain = std::fs::read(suite.join("chain.rlp")).expect("there");
    let with_genesis = {
        let genesis =
            genesis_block(&std::fs::read(suite.join("genesis.json")).expect("there")).expect("good");
        let payload = [&genesis.header[..], list_payload(&genesis.body)].concat();
        let mut block = Vec::new();
        alloy_rlp::Header { list: true, payload_length: payload.len() }.encode(&mut block);
        [&block[..], &payload, &chain].concat()
    };
    let mut packed_receipts = Vec::new();
    let mut reader =
        flate2::read::MultiGzDecoder::new(open_file(&suite.join("receipts.json.gz")).expect("there"));
    std::io::copy(&mut reader, &mut packed_receipts).expect("gzip");
    // A file of two gzip members is one file.
    let (front, back) = chain.split_at(chain.len() / 2);
    for (chain, receipts) in [
        (with_genesis.clone(), std::fs::read(suite.join("receipts.json.gz")).expect("there")),
        ([gzip(front), gzip(back)].concat(), packed_receipts.clone()),
        (gzip(&with_genesis), packed_receipts),
    ] {
        let source = ChainFile::open(FileSourceOptions {
            receipts: Some(dir.file("receipts.json", receipts)),
            chain: dir.file("chain.rlp", chain),
            spool_dir: Some(dir.0.path().to_owned()),
            parallelism: 1,
            ..suite_options(&suite)
        });
        assert_eq!(all(&source.await.expect("opens")).await.expect("whole"), expected);
    }
    // Temporary files have no name.
    assert_eq!(std::fs::read_dir(dir.0.path()).expect("a directory").count(), 2);

    // Without a genesis file it begins where the chain file does.
    let from_1 = FileSourceOptions { genesis: None, chain_id: Some(ChainId(1)), ..suite_options(&suite) };
    let source =
        ChainFile::open(FileSourceOptions { finalized_is_tip: false, ..from_1 }).await.expect("opens");
    assert_eq!(all(&source).await.expect("whole"), expected[1..]);
    assert!(source.blocks(HeightRange::new(Height(0), Height(9))).await.expect("no failure").is_empty());
    let heads = source.heads().await.expect("heads");
    assert_eq!((heads.safe, heads.finalized), (None, None));
    assert_eq!(source.chain_config(), None);
}

#[tokio::test]
async fn a_chain_may_begin_in_the_middle_and_be_long() {
    let dir = Dir::new();
    let chain = empty_blocks(1_000_000, 1000);
    let source = ChainFile::open(dir.chain(chain.concat())).await.expect("opens");
    assert_eq!(source.heights(), HeightRange::new(Height(1_000_000), Height(1_001_000)));
    let blocks = all(&source).await.expect("whole");
    assert_eq!(blocks.len(), 1000);
    assert_eq!(blocks[999].facts.linked_ref(), source.heads().await.expect("heads").latest);
    let wanted = HeightRange::new(Height(1_000_500), Height(1_000_503));
    assert_eq!(source.blocks(wanted).await.expect("there"), blocks[500..503]);
    // Before its start there is nothing, also where the rest of the range is there.
    assert!(
        source
            .blocks(HeightRange::new(Height(999_999), Height(1_000_003)))
            .await
            .expect("no failure")
            .is_empty()
    );
}

#[tokio::test]
async fn a_damaged_chain_file_is_refused_with_block_and_byte() {
    let dir = Dir::new();
    let blocks = empty_blocks(5, 4);
    let (chain, one) = (blocks.concat(), blocks[0].len());
    let refused = async |bytes: &[u8]| refusal(dir.chain(bytes)).await;

    for cut in [1, 2, 3, one / 2, one - 1] {
        let message = refused(&chain[..2 * one + cut]).await;
        assert!(message.contains(&format!("block 7 at byte {}", 2 * one)), "{message}");
        assert!(message.contains("cut off"), "{message}");
    }
    let message = refused(&[&chain[..one], &[0x80]].concat()).await;
    assert!(message.contains(&format!("block 6 at byte {one}")) && message.contains("0x80"), "{message}");
    let message = refused(&[&blocks[0][..], &blocks[2]].concat()).await;
    assert!(message.contains(&format!("block 6 at byte {one}")) && message.contains("number 7"), "{message}");
    let message = refused(&[&blocks[0][..], &blocks[0]].concat()).await;
    assert!(message.contains("number 5"), "{message}");
    let message = refused(&[&blocks[0][..], &empty_blocks(6, 1)[0]].concat()).await;
    assert!(message.contains("its parent is"), "{message}");
    let message = refused(&[0xc1, 0xc0]).await;
    assert!(message.contains("the first block at byte 0") && message.contains("number"), "{message}");
    // A length that nobody has memory for.
    let message = refused(&[0xff; 100]).await;
    assert!(message.contains("cut off"), "{message}");
    let message = refused(&[0xf8, 0x01, 0xc0]).await;
    assert!(message.contains("shortest form"), "{message}");
    assert!(refused(&[]).await.contains("holds no block"));
    assert!(refused(&gzip(&chain)[..40]).await.contains("damaged gzip"));
    assert!(refused(&gzip(&[])).await.contains("holds no block"));

    // What a body holds is seen when the block is read: the ones before it are given first.
    let mut damaged = chain.clone();
    let last = damaged.len() - 1;
    damaged[last] = 0xc1;
    let source = ChainFile::open(dir.chain(&damaged)).await.expect("opens");
    let got = source.blocks(source.heights()).await.expect("a prefix");
    assert_eq!(got.len(), 3);
    let message = source.blocks(HeightRange::one(Height(8))).await.expect_err("damaged").to_string();
    assert!(message.contains(&format!("block 8 at byte {}", 3 * one)), "{message}");
}

#[tokio::test]
async fn what_does_not_belong_together_is_refused() {
    let Some(suite) = suite() else { return };
    let dir = Dir::new();
    let options = || suite_options(&suite);

    let mut genesis: Value =
        serde_json::from_slice(&std::fs::read(suite.join("genesis.json")).expect("there")).expect("JSON");
    genesis["timestamp"] = json!("0x1");
    let wrong = FileSourceOptions { genesis: Some(dir.file("g.json", genesis.to_string())), ..options() };
    assert!(refusal(wrong).await.contains("not of one chain"));
    let wrong = FileSourceOptions { genesis: Some(dir.file("g.json", "{}")), ..options() };
    assert!(refusal(wrong).await.contains("g.json"));
    let wrong = FileSourceOptions { chain_id: Some(ChainId(1)), ..options() };
    assert!(matches!(ChainFile::open(wrong).await, Err(SourceError::WrongChain { .. })));
    let wrong = FileSourceOptions { genesis: None, ..options() };
    assert!(refusal(wrong).await.contains("genesis file or the chain id"));
    let wrong = FileSourceOptions { chain: dir.0.path().join("nowhere.rlp"), ..options() };
    assert!(refusal(wrong).await.contains("nowhere.rlp"));
    let wrong = FileSourceOptions { max_spool_bytes: 100_000, ..options() };
    assert!(refusal(wrong).await.contains("more than 100000 bytes"));

    let wrong = FileSourceOptions { receipts: None, ..options() };
    let message = refusal(wrong).await;
    assert!(message.contains("block 1 at byte 0") && message.contains("no receipts file"), "{message}");

    let mut receipts: Vec<Value> = serde_json::from_reader(flate2::read::MultiGzDecoder::new(
        open_file(&suite.join("receipts.json.gz")).expect("there"),
    ))
    .expect("JSON");
    // Block 2's take 21 MB and are not needed here.
    receipts.remove(1);
    let with = |receipts: &[Value]| FileSourceOptions {
        receipts: Some(dir.file("receipts.json", Value::from(receipts).to_string())),
        ..options()
    };
    let message = refusal(with(&receipts)).await;
    assert!(message.contains("block 2 at byte") && message.contains("no entry for it"), "{message}");
    let message = refusal(with(&[])).await;
    assert!(message.contains("block 1 at byte 0") && message.contains("no entry for it"), "{message}");

    let changed = |change: fn(&mut Value)| {
        let mut receipts = receipts.clone();
        change(&mut receipts[0]);
        with(&receipts)
    };
    let message = refusal(changed(|entry| entry["hash"] = json!(B256::ZERO))).await;
    assert!(message.contains("another block 1"), "{message}");
    let message = refusal(changed(|entry| entry["receipts"] = json!([]))).await;
    assert!(message.contains("0 receipts for it"), "{message}");
    let message = refusal(changed(|entry| entry["receipts"][0] = json!("0x0"))).await;
    assert!(message.contains("empty receipt"), "{message}");
    let message = refusal(changed(|entry| entry["receipts"][0] = json!("0xzz"))).await;
    assert!(message.contains("not hex"), "{message}");
    let message = refusal(changed(|entry| entry["receipts"][0] = json!("0x00"))).await;
    assert!(message.contains("block 1: receipt 0"), "{message}");
    let message = refusal(changed(|entry| entry["number"] = json!(9))).await;
    assert!(message.contains("have to be in order"), "{message}");
    // The hash may be left out.
    let source = ChainFile::open(changed(|entry| entry["hash"] = Value::Null)).await.expect("opens");
    assert_eq!(source.blocks(HeightRange::new(Height(0), Height(2))).await.expect("there").len(), 2);
}

#[test]
fn a_receipts_file_that_is_none_says_where_it_ends_to_be_one() {
    let refused = |json: &str| {
        let mut seen = Vec::new();
        let error = scan_receipts("r.json", json.as_bytes(), |entry| {
            seen.push((entry.number, entry.receipts().len()));
            Ok(())
        });
        (seen, error.map_err(|error| error.to_string()))
    };
    assert_eq!(refused("[]"), (vec![], Ok(())));
    assert_eq!(
        refused(r#" [ {"number":1,"receipts":["0x01","0x0203"],"x":[]}, {"number":4,"receipts":[]} ] "#),
        (vec![(1, 2), (4, 0)], Ok(()))
    );
    for (json, seen, message) in [
        ("", 0, "EOF"),
        ("{}", 0, "expected"),
        (r#"[{"number":1,"receipts":[]}"#, 1, "after the receipts of block 1"),
        (r#"[{"number":1,"receipts":[]}] []"#, 1, "trailing"),
        (r#"[{"number":-1,"receipts":[]}]"#, 0, "u64"),
        (r#"[{"receipts":[]}]"#, 0, "number"),
        (r#"[{"number":1}]"#, 0, "receipts"),
        (r#"[{"number":1,"receipts":[5]}]"#, 0, "hex"),
        (r#"[{"number":1,"receipts":["01"]}]"#, 0, "0x"),
    ] {
        let (entries, outcome) = refused(json);
        assert_eq!(entries.len(), seen, "{json}");
        assert!(outcome.is_err_and(|error| error.contains(message)), "{json}");
    }
    let deep = format!(r#"[{{"number":1,"x":{}"#, "[".repeat(100_000));
    assert!(refused(&deep).1.is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_a_chain_or_a_clear_error(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let mut total = 0;
        let outcome = scan_blocks("c", Cursor::new(&bytes), |place| {
            total += place.bytes;
            Ok(())
        });
        prop_assert!(total <= bytes.len() as u64);
        if let Err(error) = outcome {
            prop_assert!(error.to_string().len() < 500);
        }
    }

    /// One byte changed anywhere: the chain is refused, or only a body (which is skipped) or the last header differs.
    #[test]
    fn one_wrong_byte_never_breaks_a_link(at in 0usize..4 * 500, byte in any::<u8>()) {
        let mut chain = empty_blocks(5, 4).concat();
        let at = at % chain.len();
        chain[at] = byte;
        let mut seen: Vec<LinkedRef> = Vec::new();
        let mut end = 0;
        let outcome = scan_blocks("c", Cursor::new(&chain), |place| {
            seen.push(place.linked);
            end = place.offset + place.bytes;
            Ok(())
        });
        prop_assert!(seen.windows(2).all(|pair| pair[1].parent_id == pair[0].block.id));
        prop_assert!(outcome.is_err() || end == chain.len() as u64);
    }

    #[test]
    fn any_text_is_a_list_of_receipts_or_a_clear_error(text in "[\\[\\]{}\",:0-9a-fx numberhashreceipts]{0,300}") {
        let _ = scan_receipts("r", text.as_bytes(), |_| Ok(()));
    }
}
