//! The targets over random and damaged inputs, without nightly Rust: a seed is printed with each failure's input.

use std::io::Read;
use std::path::PathBuf;

use bytes::Bytes;
use cairn_core::StoredBlock;
use cairn_evm::{BlockView, ConsensusBlock, from_consensus};
use cairn_source::evm::file::scan_blocks;
use serde_json::{Value, json};

const ROUNDS: u64 = 20_000;
const MAX_INPUT_BYTES: usize = 40_000;

/// A small generator of bits; the targets need no better one.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

/// The public suite's blocks as the inputs of `rlp_block` and of `json_block`; none where the data isn't on this machine.
fn suite() -> Vec<(Vec<u8>, Vec<u8>)> {
    let shared = std::env::var_os("CAIRN_SHARED")
        .map_or_else(|| concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared").into(), PathBuf::from);
    let dir = shared.join("conformance/execution-apis");
    let Ok(chain) = std::fs::read(dir.join("chain.rlp")) else {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} is not there", dir.display());
        eprintln!("only random inputs: {} is not there", dir.display());
        return Vec::new();
    };
    let mut receipts = String::new();
    let packed = std::fs::File::open(dir.join("receipts.json.gz")).expect("beside chain.rlp");
    flate2::read::GzDecoder::new(packed).read_to_string(&mut receipts).expect("gzip");
    let receipts: Vec<Value> = serde_json::from_str(&receipts).expect("JSON");
    let mut seeds = Vec::new();
    scan_blocks("chain.rlp", std::io::Cursor::new(&chain), |place| {
        let block =
            Bytes::copy_from_slice(&chain[place.offset as usize..(place.offset + place.bytes) as usize]);
        let entry = &receipts[place.linked.block.height.get() as usize - 1];
        let receipts: Vec<Bytes> = entry["receipts"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|hex| {
                hex.as_str().and_then(|hex| alloy_primitives::hex::decode(hex).ok()).expect("hex").into()
            })
            .collect();
        if receipts.iter().map(Bytes::len).sum::<usize>() + block.len() < MAX_INPUT_BYTES {
            seeds.push((rlp_input(&block, &receipts), json_input(&block, receipts)));
        }
        Ok(())
    })
    .expect("a good chain");
    seeds
}

fn rlp_input(block: &Bytes, receipts: &[Bytes]) -> Vec<u8> {
    let mut input = Vec::new();
    for part in std::iter::once(block).chain(receipts) {
        input.extend_from_slice(&u16::try_from(part.len()).expect("short").to_le_bytes());
        input.extend_from_slice(part);
    }
    input
}

fn json_input(block: &Bytes, receipts: Vec<Bytes>) -> Vec<u8> {
    let raw = from_consensus(&ConsensusBlock::from_block_rlp(block, receipts).expect("good")).expect("good");
    let stored = StoredBlock {
        facts: raw.facts,
        transactions: raw.transactions,
        header: raw.header,
        body: raw.body,
        receipts: raw.receipts,
        extras: raw.extras,
        traces: None,
    };
    let view = BlockView::decode(stored, None).expect("good");
    json!({"block": view.block_json(true).expect("good"), "receipts": view.receipts_json().expect("good")})
        .to_string()
        .into_bytes()
}

/// Damages bytes in one to four places; `letters`: what is put there.
fn damage(draw: &mut Draw, input: &[u8], letters: &[u8]) -> Vec<u8> {
    let mut input = input.to_vec();
    for _ in 0..=draw.below(4) {
        let at = draw.below(input.len());
        let letter = letters[draw.below(letters.len())];
        match draw.below(6) {
            0 if !input.is_empty() => {
                input.remove(at);
            }
            1 => input.insert(at, letter),
            2 => input.truncate(at),
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = letter;
                }
            }
        }
    }
    input
}

fn run(target: fn(&[u8]), seeds: &[Vec<u8>], letters: &[u8]) {
    for seed in seeds {
        target(seed);
    }
    for seed in 1..=ROUNDS {
        let mut draw = Draw(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let random = seeds.is_empty() || draw.below(10) == 0;
        let input = if random {
            (0..draw.below(300)).map(|_| letters[draw.below(letters.len())]).collect()
        } else {
            let at = draw.below(seeds.len());
            damage(&mut draw, &seeds[at], letters)
        };
        if std::panic::catch_unwind(|| target(&input)).is_err() {
            panic!("round {seed}: {}", alloy_primitives::hex::encode(&input));
        }
    }
}

const JSON_LETTERS: &[u8] = b"[]{}\",:0123456789abcdefxX-.enul ";

#[test]
fn damaged_rlp() {
    let letters: Vec<u8> = (0..=255).chain([0x80, 0xc0, 0xc1, 0xf8, 0xf9, 0xff, 0xb8]).collect();
    let seeds: Vec<_> = suite().into_iter().map(|(rlp, _)| rlp).collect();
    run(cairn_fuzz::rlp_block, &seeds, &letters);
}

#[test]
fn damaged_json() {
    let seeds: Vec<_> = suite().into_iter().map(|(_, json)| json).collect();
    run(cairn_fuzz::json_block, &seeds, JSON_LETTERS);
}

#[test]
fn damaged_filters() {
    let topic = format!("0x{}", "ab".repeat(32));
    let address = format!("0x{}", "cd".repeat(20));
    let seeds = [
        json!({"fromBlock": "0x1", "toBlock": "latest", "address": [address, address], "topics": [null, [topic, null], topic]}),
        json!({"blockHash": topic, "address": address, "topics": []}),
        json!([{"blockHash": topic, "requireCanonical": true}, "0x5", [1, 2.5], "pending"]),
    ];
    let seeds: Vec<_> = seeds.iter().map(|seed| seed.to_string().into_bytes()).collect();
    run(cairn_fuzz::rpc_filter, &seeds, JSON_LETTERS);
}
