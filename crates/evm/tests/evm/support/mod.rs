//! The public Ethereum RPC test suite, read as blocks and as questions with answers.
use std::io::Read;
use std::path::PathBuf;

use bytes::Bytes;
use cairn_evm::ConsensusBlock;
use serde_json::Value;

/// The suite's folder; `None`, with a word on where to get it, where it isn't on this machine (a failure in CI).
pub fn suite() -> Option<PathBuf> {
    let shared = std::env::var_os("CAIRN_SHARED").map_or_else(|| "../../../shared".into(), PathBuf::from);
    let folder = shared.join("conformance/execution-apis");
    if folder.join("chain.rlp").is_file() {
        return Some(folder);
    }
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{} has no test suite", folder.display());
    println!(
        "not run: {} is not there; it is the folder `tests` of github.com/ethereum/execution-apis",
        folder.display()
    );
    None
}

/// The suite's blocks 1 to 54.
pub fn chain(suite: &std::path::Path) -> Vec<ConsensusBlock> {
    let chain: Bytes = std::fs::read(suite.join("chain.rlp")).unwrap().into();
    let mut json = String::new();
    let file = std::fs::File::open(suite.join("receipts.json.gz")).unwrap();
    flate2::read::GzDecoder::new(file).read_to_string(&mut json).unwrap();
    let receipts: Value = serde_json::from_str(&json).unwrap();
    let unhex = |text: &Value| -> Bytes {
        hex::decode(text.as_str().unwrap().trim_start_matches("0x")).unwrap().into()
    };
    let mut blocks = Vec::new();
    let mut rest = &chain[..];
    while !rest.is_empty() {
        let start = rest;
        let head = alloy_rlp::Header::decode(&mut rest).unwrap();
        rest = &rest[head.payload_length..];
        let block = chain.slice_ref(&start[..start.len() - rest.len()]);
        let number = blocks.len() as u64 + 1;
        let of_block = receipts.as_array().unwrap().iter().find(|entry| match &entry["number"] {
            Value::Number(n) => n.as_u64() == Some(number),
            Value::String(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16) == Ok(number),
            _ => false,
        });
        let of_block = of_block.unwrap()["receipts"].as_array().unwrap().iter().map(unhex).collect();
        blocks.push(ConsensusBlock::from_block_rlp(&block, of_block).unwrap());
    }
    blocks
}

/// One case of the suite.
pub struct Case {
    pub name: String,
    pub params: Vec<Value>,
    pub result: Option<Value>,
}

/// The cases of a method.
pub fn cases(suite: &std::path::Path, method: &str) -> Vec<Case> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(suite.join(method)).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let line = |mark: &str| -> Value {
            serde_json::from_str(text.lines().find_map(|line| line.strip_prefix(mark)).unwrap()).unwrap()
        };
        let mut answer = line("<< ");
        cases.push(Case {
            name: path.display().to_string(),
            params: line(">> ")["params"].as_array().cloned().unwrap_or_default(),
            result: answer.get_mut("result").map(Value::take),
        });
    }
    assert!(!cases.is_empty());
    cases
}

/// Compares whole JSON and names the first field that differs.
pub fn assert_same(what: &str, ours: &Value, theirs: &Value) {
    if let (Value::Object(a), Value::Object(b)) = (ours, theirs) {
        for name in a.keys().chain(b.keys()) {
            if a.get(name) != b.get(name) {
                let short = |value: Option<&Value>| {
                    value.map_or("nothing".into(), |value| {
                        let text = value.to_string();
                        text.chars().take(300).collect::<String>()
                    })
                };
                panic!("{what}: field `{name}`: ours {}, theirs {}", short(a.get(name)), short(b.get(name)));
            }
        }
    }
    assert!(ours == theirs, "{what}: {ours} is not {theirs}");
}
