//! What an odd node serves: a file of `cases/odd-nodes`, or one real block of `fixtures/evm-real`.
//!
//! Blocks and receipts are kept as text, so that the node says them with the digits and the order that the file has.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::rpc::{quantity, text};

/// Chain ids of the real blocks, by folder.
const REAL_CHAINS: &[(&str, u64)] = &[
    ("arbitrum", 42161),
    ("cronos", 25),
    ("ethereum", 1),
    ("hyperliquid", 999),
    ("polygon", 137),
    ("stable-testnet", 2201),
    ("tempo-mainnet", 4217),
    ("tempoModerato", 42431),
];

/// A small chain, and what its node does differently.
pub struct Scenario {
    /// For people: the file's name, or `CHAIN/HEIGHT`.
    pub name: String,
    /// The chain.
    pub chain_id: u64,
    /// Arguments of `cairn run` that the scenario asks for.
    pub arguments: Vec<String>,
    blocks: BTreeMap<u64, Block>,
    overrides: Vec<Override>,
    /// Receipts by transaction, of those that say theirs.
    receipts: BTreeMap<String, String>,
}

/// A block as the node says it.
pub struct Block {
    /// The whole block.
    pub text: Box<RawValue>,
    /// The same, parsed.
    pub value: Value,
    /// What `eth_getBlockReceipts` says.
    pub receipts: Box<RawValue>,
    /// What `debug_traceBlockByHash` says, where the node has traces.
    pub traces: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct File {
    chain_id: u64,
    args: Vec<String>,
    overrides: Vec<Override>,
    blocks: Vec<FileBlock>,
}

#[derive(Deserialize)]
struct FileBlock {
    block: Box<RawValue>,
    receipts: Box<RawValue>,
    #[serde(default)]
    all_receipts: Vec<Box<RawValue>>,
    #[serde(default)]
    traces: Option<Box<RawValue>>,
}

/// What the node says in place of the truth.
#[derive(Deserialize)]
pub struct Override {
    method: String,
    #[serde(default)]
    param: Option<Vec<Value>>,
    /// Counted over all HTTP requests, from 1; the end is exclusive.
    #[serde(default)]
    calls: Option<(u64, u64)>,
    #[serde(default)]
    http: Option<Http>,
    #[serde(default)]
    pub error: Option<Box<RawValue>>,
    #[serde(default)]
    pub result: Option<Box<RawValue>>,
}

/// An HTTP answer.
#[derive(Deserialize)]
pub struct Http {
    pub status: u16,
    #[serde(rename = "type", default = "plain")]
    pub content_type: String,
    pub body: String,
}

fn plain() -> String {
    "text/plain".to_owned()
}

impl Block {
    /// The block with hashes in place of transactions.
    pub fn with_hashes_alone(&self) -> String {
        let mut fields: serde_json::Map<String, Value> = self.value.as_object().cloned().unwrap_or_default();
        let transactions = fields.get("transactions").and_then(Value::as_array).cloned().unwrap_or_default();
        let hashes: Vec<Value> = transactions.iter().map(|one| one["hash"].clone()).collect();
        fields.insert("transactions".to_owned(), json!(hashes));
        Value::Object(fields).to_string()
    }
}

impl Scenario {
    /// All of `cases/odd-nodes` and `fixtures/evm-real` below the shared folder.
    pub fn all(shared: &Path) -> Result<Vec<Scenario>> {
        let mut found = Vec::new();
        for file in entries(&shared.join("cases/odd-nodes"))? {
            if file.extension().is_some_and(|extension| extension == "json") {
                found.push(Scenario::of_file(&file).with_context(|| file.display().to_string())?);
            }
        }
        for chain in entries(&shared.join("fixtures/evm-real"))? {
            if !chain.is_dir() {
                continue;
            }
            for block in entries(&chain)? {
                found.push(Scenario::of_real_block(&block).with_context(|| block.display().to_string())?);
            }
        }
        Ok(found)
    }

    fn of_file(path: &Path) -> Result<Scenario> {
        let file: File = serde_json::from_str(&fs::read_to_string(path)?)?;
        let name = path.file_stem().context("a file without a name")?.to_string_lossy().into_owned();
        let mut scenario = Scenario {
            name,
            chain_id: file.chain_id,
            arguments: file.args,
            blocks: BTreeMap::new(),
            overrides: file.overrides,
            receipts: BTreeMap::new(),
        };
        for block in file.blocks {
            for receipt in block.all_receipts {
                scenario.keep_receipt(&receipt)?;
            }
            scenario.keep_block(block.block, block.receipts, block.traces)?;
        }
        ensure!(!scenario.blocks.is_empty(), "a scenario without blocks");
        Ok(scenario)
    }

    fn of_real_block(folder: &Path) -> Result<Scenario> {
        let part = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let chain = folder.parent().and_then(part).context("a block without a chain")?;
        let height = part(folder).context("a block without a height")?;
        let Some((_, chain_id)) = REAL_CHAINS.iter().find(|(name, _)| *name == chain) else {
            bail!("no chain id is known for {chain}: add it to REAL_CHAINS");
        };
        let mut scenario = Scenario {
            name: format!("{chain}/{height}"),
            chain_id: *chain_id,
            arguments: Vec::new(),
            blocks: BTreeMap::new(),
            overrides: Vec::new(),
            receipts: BTreeMap::new(),
        };
        for file in entries(folder)? {
            if file.to_string_lossy().ends_with("-receipt.json") {
                scenario.keep_receipt(&result_of(&file)?)?;
            }
        }
        let (block, receipts) =
            (result_of(&folder.join("block.json"))?, result_of(&folder.join("receipts.json"))?);
        scenario.keep_block(block, receipts, None)?;
        Ok(scenario)
    }

    fn keep_block(
        &mut self,
        block: Box<RawValue>,
        receipts: Box<RawValue>,
        traces: Option<Box<RawValue>>,
    ) -> Result<()> {
        let value: Value = serde_json::from_str(block.get())?;
        let listed: Vec<Box<RawValue>> = serde_json::from_str(receipts.get())?;
        for receipt in &listed {
            self.keep_receipt(receipt)?;
        }
        let height = quantity(&value["number"])?;
        self.blocks.insert(height, Block { text: block, value, receipts, traces });
        Ok(())
    }

    fn keep_receipt(&mut self, receipt: &RawValue) -> Result<()> {
        let value: Value = serde_json::from_str(receipt.get())?;
        self.receipts.insert(text(&value["transactionHash"])?, receipt.get().to_owned());
        Ok(())
    }

    /// Its blocks, by height.
    pub fn blocks(&self) -> &BTreeMap<u64, Block> {
        &self.blocks
    }

    /// Its lowest height.
    pub fn bottom(&self) -> u64 {
        self.blocks.keys().next().copied().unwrap_or(0)
    }

    /// Its highest.
    pub fn top(&self) -> u64 {
        self.blocks.keys().next_back().copied().unwrap_or(0)
    }

    /// The receipt of a transaction, as the node says it.
    pub fn receipt(&self, hash: &str) -> Option<String> {
        self.receipts.get(hash).cloned()
    }

    /// The block that a parameter names: by number, tag, hash, or an object with one of them.
    pub fn block_at(&self, parameter: &Value) -> Option<&Block> {
        let named = match parameter {
            Value::Object(object) => {
                object.get("blockHash").or_else(|| object.get("blockNumber"))?.as_str()?
            }
            parameter => parameter.as_str()?,
        };
        match named {
            "latest" | "pending" | "finalized" | "safe" => self.blocks.get(&self.top()),
            hash if hash.len() == 66 => self.blocks.values().find(|block| block.value["hash"] == hash),
            number => self.blocks.get(&quantity(&json!(number)).ok()?),
        }
    }

    /// What the node says by HTTP in place of an answer to its `request`th request.
    pub fn http_override(&self, request: u64, batch: bool) -> Option<&Http> {
        let fits = |one: &&Override| {
            let kind = one.method == "*" || (one.method == "*batch*" && batch);
            kind && one.calls.is_none_or(|(from, to)| (from..to).contains(&request))
        };
        self.overrides.iter().filter(|one| one.http.is_some()).find(fits)?.http.as_ref()
    }

    /// What the node says in place of a result.
    pub fn rpc_override(&self, method: &str, first: Option<&Value>) -> Option<&Override> {
        self.overrides.iter().filter(|one| one.http.is_none() && one.method == method).find(|one| {
            one.param.as_ref().is_none_or(|listed| first.is_some_and(|first| listed.contains(first)))
        })
    }
}

/// What a folder has, in the order of names.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut paths = listed.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    paths.sort();
    Ok(paths)
}

/// The result in a file that holds it alone or a whole JSON-RPC answer.
fn result_of(path: &Path) -> Result<Box<RawValue>> {
    #[derive(Deserialize)]
    struct Whole {
        result: Box<RawValue>,
    }
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    // A list would be read as the fields of the answer.
    if text.trim_start().starts_with('{')
        && let Ok(whole) = serde_json::from_str::<Whole>(&text)
    {
        return Ok(whole.result);
    }
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}
