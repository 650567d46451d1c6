//! The targets over random and damaged inputs, without nightly Rust: a seed is printed with each failure's input.

use std::io::Read;
use std::path::PathBuf;

use bytes::Bytes;
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
    let shared = std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../shared".into(), PathBuf::from);
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
    let view = BlockView::decode(raw.into(), None).expect("good");
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

#[test]
fn damaged_token_logs() {
    let letters: Vec<u8> = (0..=255).chain([0x00, 0x20, 0x40, 0x60, 0xff]).collect();
    let log = |topics: &[[u8; 32]], data: &[u8]| {
        let mut input = vec![topics.len() as u8];
        input.extend(topics.iter().flatten());
        input.extend(data);
        input
    };
    let word = |last: u8| {
        let mut word = [0; 32];
        word[31] = last;
        word
    };
    let words = |all: &[u8]| -> Vec<u8> { all.iter().flat_map(|last| word(*last)).collect() };
    use cairn_explorer::decode::evm::transfers::{
        CONSECUTIVE_TRANSFER, DEPOSIT, TRANSFER, TRANSFER_BATCH, TRANSFER_SINGLE,
    };
    let mut text = words(&[0x20, 5]);
    text.extend(b"Token");
    text.resize(96, 0);
    let seeds = [
        log(&[TRANSFER.0, word(1), word(2)], &words(&[3])),
        log(&[TRANSFER.0, word(1), word(2), word(3)], &[]),
        log(&[TRANSFER.0], &words(&[1, 2, 3])),
        log(&[TRANSFER_SINGLE.0, word(1), word(2), word(3)], &words(&[7, 1])),
        log(&[TRANSFER_BATCH.0, word(1), word(2), word(3)], &words(&[0x40, 0xa0, 2, 1, 2, 2, 5, 6])),
        log(&[CONSECUTIVE_TRANSFER.0, word(1), word(2), word(3)], &words(&[9])),
        log(&[DEPOSIT.0, word(1)], &words(&[9])),
        log(&[], &text),
    ];
    run(cairn_fuzz::token_log, &seeds, &letters);
}

#[test]
fn damaged_flow_blocks() {
    let letters: Vec<u8> = (0..=255).chain([0x0a, 0x12, 0x1a, 0x20, 0x22, 0x3a]).collect();
    let input = |draft: &cairn_flow_node::Draft| {
        let parts = draft.parts();
        let mut all = vec![parts.block, parts.execution_result.unwrap_or_default()];
        all.extend(
            parts
                .transactions
                .into_iter()
                .zip(parts.results)
                .flat_map(|(transaction, result)| [transaction, result]),
        );
        let mut input = Vec::new();
        for part in all {
            input.extend_from_slice(&u16::try_from(part.len()).expect("short").to_le_bytes());
            input.extend_from_slice(&part);
        }
        input
    };
    let drafts = [
        cairn_flow_node::Draft::new(20, &[1], 1),
        cairn_flow_node::Draft::new(21, &[2, 1], 2),
        cairn_flow_node::Draft::new(22, &[], 0),
    ];
    let seeds: Vec<_> = drafts.iter().map(input).collect();
    run(cairn_fuzz::flow_block, &seeds, &letters);
}

#[test]
fn damaged_cadence_values() {
    let field =
        |name: &str, kind: &str, value: Value| json!({"name": name, "value": {"type": kind, "value": value}});
    let bytes = |count: usize| json!(vec![json!({"type": "UInt8", "value": "7"}); count]);
    let seeds = [
        json!({"type": "UFix64", "value": "184467440737.09551615"}),
        json!({"type": "Int256", "value": "-57896044618658097711785492504343953926634992332820282019728792003956564819968"}),
        json!({"type": "Event", "value": {"id": "A.0000000000000001.EVM.TransactionExecuted", "fields": [
            field("hash", "Array", bytes(32)), field("index", "UInt16", json!("1")), field("type", "UInt8", json!("255")),
            field("payload", "Array", bytes(40)), field("errorCode", "UInt16", json!("0")), field("gasConsumed", "UInt64", json!("1")),
            field("contractAddress", "String", json!("0x")), field("blockHeight", "UInt64", json!("5"))]}}),
        json!({"type": "Dictionary", "value": [{"key": {"type": "Address", "value": "0x1"},
            "value": {"type": "Type", "value": {"staticType": {"kind": "Optional", "type": {"kind": "Int"}}}}}]}),
    ];
    let seeds: Vec<_> = seeds.iter().map(|seed| seed.to_string().into_bytes()).collect();
    run(cairn_fuzz::cadence_value, &seeds, JSON_LETTERS);
}
