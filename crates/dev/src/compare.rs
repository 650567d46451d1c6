//! Every answer of a running cairn against the node's own: blocks, transactions, receipts, logs, raw bytes. Each answer is a
//! case. Differences are gathered by method and field, so that one cause is one line, with a count and the first example.
//!
//! Both servers must stand still at the same head. What a node doesn't serve is listed, and isn't a case.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use crate::diff::differences;
use crate::report::{Report, figure};
use crate::rpc::{Answer, Call, Rpc, call, hex, quantity, text};

/// Calls in one request: small answers, and those that may be large.
const SMALL_BATCH: usize = 100;
const LARGE_BATCH: usize = 10;
/// Addresses and topics that get a log query over the whole range.
const MAX_TERMS: usize = 200;

/// The path of a difference where only one side has a result.
const RESULT_OR_ERROR: &str = "(result or error)";

/// What to compare.
#[derive(Args)]
pub struct Options {
    /// The node's JSON-RPC over HTTP.
    #[arg(long)]
    pub node: String,
    /// Cairn's.
    #[arg(long)]
    pub cairn: String,
    /// First height; otherwise 0.
    #[arg(long)]
    pub from: Option<u64>,
    /// Last height; otherwise cairn's head.
    #[arg(long)]
    pub to: Option<u64>,
    /// Call traces too; cairn must have archived them.
    #[arg(long)]
    pub traces: bool,
}

/// Fields in which a node and cairn may differ, and why that is right.
#[derive(Clone, Copy)]
pub struct Allowed {
    /// The method.
    pub method: &'static str,
    /// Paths of the fields, as the differences name them.
    pub paths: &'static [&'static str],
    /// Whether they may with these parameters, where cairn says this.
    pub applies: fn(&Value, Option<&Value>) -> bool,
    /// For people.
    pub why: &'static str,
}

struct Seen {
    count: u64,
    example: String,
    allowed: Option<&'static str>,
}

/// A comparison under way.
pub struct Comparison<'a> {
    node: &'a Rpc,
    cairn: &'a Rpc,
    allowed: &'a [Allowed],
    traces: bool,
    passed: u64,
    failed: u64,
    differing: BTreeMap<(String, String), Seen>,
    not_served_by_node: BTreeMap<&'static str, u64>,
}

impl<'a> Comparison<'a> {
    /// Nothing compared yet.
    fn new(node: &'a Rpc, cairn: &'a Rpc, allowed: &'a [Allowed], traces: bool) -> Comparison<'a> {
        let (differing, not_served_by_node) = (BTreeMap::new(), BTreeMap::new());
        Comparison { node, cairn, allowed, traces, passed: 0, failed: 0, differing, not_served_by_node }
    }

    /// Asks both the same, in batches, and compares each answer; gives the node's answers.
    async fn pairs(&mut self, calls: &[Call], batch: usize) -> Result<Vec<Answer>> {
        let mut answers = Vec::with_capacity(calls.len());
        for calls in calls.chunks(batch) {
            let (theirs, ours) = futures::try_join!(self.node.ask_all(calls), self.cairn.ask_all(calls))?;
            for ((call, theirs), ours) in calls.iter().zip(theirs).zip(ours) {
                self.judge(call, &theirs, &ours);
                answers.push(theirs);
            }
        }
        Ok(answers)
    }

    /// One call whose answer must be there on both sides.
    async fn pair(&mut self, call: Call) -> Result<Value> {
        let method = call.method;
        match self.pairs(&[call], 1).await?.remove(0) {
            Answer::Result(result) => Ok(result),
            error => bail!("the node: {method}: {error:?}"),
        }
    }

    fn judge(&mut self, call: &Call, theirs: &Answer, ours: &Answer) {
        if theirs.is_method_missing() {
            *self.not_served_by_node.entry(call.method).or_default() += 1;
            return;
        }
        let found = match (theirs, ours) {
            (Answer::Result(theirs), Answer::Result(ours)) => differences(theirs, ours),
            // Of an error, the code counts; words are each server's own.
            (Answer::Error { code: theirs, .. }, Answer::Error { code: ours, .. }) => {
                differences(&json!({"error": {"code": theirs}}), &json!({"error": {"code": ours}}))
            }
            (theirs, ours) => {
                let example = format!("node {}, cairn {}", short(theirs), short(ours));
                if self.note(call, RESULT_OR_ERROR, None, example) {
                    self.passed += 1
                } else {
                    self.failed += 1
                }
                return;
            }
        };
        let mut wrong = false;
        for difference in found {
            let example = format!(
                "node {}, cairn {}",
                brief(difference.left.as_ref()),
                brief(difference.right.as_ref())
            );
            wrong |= !self.note(call, &difference.path, difference.right.as_ref(), example);
        }
        if wrong { self.failed += 1 } else { self.passed += 1 }
    }

    /// Records a difference; says whether it is one of the allowed.
    fn note(&mut self, call: &Call, path: &str, ours: Option<&Value>, example: String) -> bool {
        let fits = |a: &&Allowed| {
            a.method == call.method && a.paths.contains(&path) && (a.applies)(&call.params, ours)
        };
        let allowed = self.allowed.iter().find(fits).map(|a| a.why);
        let seen = self.differing.entry((call.method.to_owned(), path.to_owned())).or_insert_with(|| Seen {
            count: 0,
            example: format!("{} {}: {example}", call.method, cut(&call.params.to_string(), 200)),
            allowed,
        });
        seen.count += 1;
        allowed.is_some()
    }

    /// All answers about the blocks `from..=to`.
    pub async fn range(&mut self, from: u64, to: u64) -> Result<()> {
        let mut addresses = BTreeSet::new();
        let mut topics: [BTreeSet<String>; 4] = Default::default();
        for height in from..=to {
            for log in self.block(height).await? {
                addresses.insert(text(&log["address"])?);
                for (position, topic) in log["topics"].as_array().context("topics")?.iter().enumerate() {
                    topics.get_mut(position).context("more than four topics")?.insert(text(topic)?);
                }
            }
        }
        self.logs(from, to, &addresses, &topics).await
    }

    /// One block and all that is in it; gives its logs.
    async fn block(&mut self, height: u64) -> Result<Vec<Value>> {
        let number = hex(height);
        let block = self.pair(call("eth_getBlockByNumber", json!([number, false]))).await?;
        if block.is_null() {
            bail!("the node has no block {height}");
        }
        let hash = &block["hash"];
        let transactions = block["transactions"].as_array().context("transactions")?;
        let ommers = block["uncles"].as_array().context("uncles")?;

        let mut calls = vec![
            call("eth_getBlockByNumber", json!([number, true])),
            call("eth_getBlockByHash", json!([hash, false])),
            call("eth_getBlockByHash", json!([hash, true])),
            call("eth_getBlockReceipts", json!([hash])),
            call("eth_getBlockTransactionCountByNumber", json!([number])),
            call("eth_getBlockTransactionCountByHash", json!([hash])),
            call("eth_getUncleCountByBlockNumber", json!([number])),
            call("eth_getUncleCountByBlockHash", json!([hash])),
            call("debug_getRawHeader", json!([number])),
            call("debug_getRawBlock", json!([number])),
            call("debug_getRawReceipts", json!([number])),
            // One past the last.
            call("eth_getTransactionByBlockNumberAndIndex", json!([number, hex(transactions.len() as u64)])),
        ];
        for index in 0..ommers.len() as u64 {
            calls.push(call("eth_getUncleByBlockNumberAndIndex", json!([number, hex(index)])));
            calls.push(call("eth_getUncleByBlockHashAndIndex", json!([hash, hex(index)])));
        }
        if self.traces {
            let tracer = json!({"tracer": "callTracer"});
            calls.push(call("debug_traceBlockByNumber", json!([number, tracer])));
            calls.push(call("debug_traceBlockByHash", json!([hash, tracer])));
            calls.extend(
                transactions.iter().map(|hash| call("debug_traceTransaction", json!([hash, tracer]))),
            );
        }
        self.pairs(&calls, LARGE_BATCH).await?;

        let mut calls = Vec::with_capacity(transactions.len() * 5);
        for (index, transaction) in transactions.iter().enumerate() {
            let index = hex(index as u64);
            calls.push(call("eth_getTransactionByHash", json!([transaction])));
            calls.push(call("eth_getTransactionReceipt", json!([transaction])));
            calls.push(call("eth_getTransactionByBlockNumberAndIndex", json!([number, index])));
            calls.push(call("eth_getTransactionByBlockHashAndIndex", json!([hash, index])));
            calls.push(call("debug_getRawTransaction", json!([transaction])));
        }
        self.pairs(&calls, SMALL_BATCH).await?;

        // Logs both ways are the receipts' logs, on both servers.
        let receipts = self.pair(call("eth_getBlockReceipts", json!([number]))).await?;
        let mut of_receipts = Vec::new();
        for receipt in receipts.as_array().context("receipts")? {
            of_receipts.extend(receipt["logs"].as_array().context("logs")?.iter().cloned());
        }
        let calls = [
            call("eth_getLogs", json!([{"fromBlock": number, "toBlock": number}])),
            call("eth_getLogs", json!([{"blockHash": hash}])),
        ];
        for answer in self.pairs(&calls, 1).await? {
            let Answer::Result(Value::Array(logs)) = answer else {
                bail!("block {height}: the node has no logs: {}", short(&answer))
            };
            if logs.len() != of_receipts.len() {
                bail!("block {height}: the node's logs are not its receipts' logs");
            }
        }
        Ok(of_receipts)
    }

    /// Filters over the whole range: none, each address, each topic by position, and combinations.
    async fn logs(
        &mut self,
        from: u64,
        to: u64,
        addresses: &BTreeSet<String>,
        topics: &[BTreeSet<String>; 4],
    ) -> Result<()> {
        let mut filters = vec![json!({})];
        filters.extend(addresses.iter().take(MAX_TERMS).map(|address| json!({"address": address})));
        for (position, topics) in topics.iter().enumerate() {
            let prefix = vec![Value::Null; position];
            for topic in topics.iter().take(MAX_TERMS) {
                let mut wanted = prefix.clone();
                wanted.push(json!(topic));
                filters.push(json!({"topics": wanted}));
            }
            let some: Vec<&String> = topics.iter().take(3).collect();
            if !some.is_empty() {
                let mut wanted = prefix.clone();
                wanted.push(json!(some));
                filters.push(json!({"topics": wanted}));
                filters.push(json!({"topics": wanted, "address": addresses}));
            }
        }
        for address in addresses.iter().take(20) {
            for topic in topics[0].iter().take(20) {
                filters.push(json!({"address": [address], "topics": [topic]}));
            }
        }
        for empty in [json!([]), json!([null]), json!([[], []]), json!([null, null, null, null])] {
            filters.push(json!({"topics": empty}));
        }
        for filter in filters {
            let theirs = all_logs(self.node, &filter, from, to).await?;
            let ours = all_logs(self.cairn, &filter, from, to).await?;
            self.judge(&call("eth_getLogs", filter), &Answer::Result(theirs), &Answer::Result(ours));
        }
        Ok(())
    }

    /// What is about the chain as a whole: heads, fees, identity, and things that don't exist.
    pub async fn chain(&mut self) -> Result<()> {
        let unknown = "0x00000000000000000000000000000000000000000000000000000000deadbeef";
        let mut calls = vec![
            call("eth_blockNumber", json!([])),
            call("eth_chainId", json!([])),
            call("net_version", json!([])),
            call("eth_syncing", json!([])),
            call("eth_getBlockByHash", json!([unknown, false])),
            call("eth_getTransactionByHash", json!([unknown])),
            call("eth_getTransactionReceipt", json!([unknown])),
            call("eth_getBlockReceipts", json!([unknown])),
            call("eth_getBlockByNumber", json!(["0x7fffffff", false])),
            call("eth_feeHistory", json!(["0x5", "latest", [10, 50, 90]])),
            call("eth_feeHistory", json!(["0x1", "earliest", []])),
        ];
        for tag in ["earliest", "latest", "safe", "finalized"] {
            calls.push(call("eth_getBlockByNumber", json!([tag, false])));
            calls.push(call("eth_getBlockReceipts", json!([tag])));
        }
        self.pairs(&calls, LARGE_BATCH).await.map(drop)
    }

    /// Prints what differs, and hands its counts over.
    pub fn finish(self, report: &mut Report) {
        for (method, count) in &self.not_served_by_node {
            println!("the node doesn't serve {method}: {count} calls not compared");
        }
        for ((method, path), seen) in &self.differing {
            match seen.allowed {
                Some(why) => println!(
                    "differs, rightly: {method} {path}, {} times: {why}; first: {}",
                    seen.count, seen.example
                ),
                None => {
                    println!("FAIL differs: {method} {path}, {} times; first: {}", seen.count, seen.example)
                }
            }
        }
        println!(
            "compared {} answers: {} equal, {} different",
            self.passed + self.failed,
            self.passed,
            self.failed
        );
        report.add(self.passed, self.failed);
    }
}

/// Logs of a range, following the server's hints to a smaller one where it has a limit. A hint must make headway and stay
/// inside what was asked.
pub async fn all_logs(rpc: &Rpc, filter: &Value, from: u64, to: u64) -> Result<Value> {
    let mut logs = Vec::new();
    let (mut next, mut until) = (from, to);
    while next <= to {
        let mut filter = filter.clone();
        filter["fromBlock"] = json!(hex(next));
        filter["toBlock"] = json!(hex(until));
        match rpc.ask(&call("eth_getLogs", json!([filter]))).await? {
            Answer::Result(Value::Array(mut some)) => {
                logs.append(&mut some);
                next = until + 1;
                until = to;
            }
            Answer::Error { code: -32005, message, .. } => {
                let (low, high) = hint(&message)
                    .with_context(|| format!("a limit without a range that works: {message}"))?;
                if low != next || high < low || high >= until {
                    bail!("{}: asked {next}..={until}, told to try {low}..={high}", rpc.url());
                }
                until = high;
            }
            other => bail!("{}: eth_getLogs {filter}: {}", rpc.url(), short(&other)),
        }
    }
    Ok(Value::Array(logs))
}

/// The range in "… Try with this block range [0xA, 0xB]."
fn hint(message: &str) -> Option<(u64, u64)> {
    let (low, high) = message.split_once("this block range [")?.1.split_once(']')?.0.split_once(", ")?;
    Some((quantity(&json!(low)).ok()?, quantity(&json!(high)).ok()?))
}

fn cut(text: &str, length: usize) -> String {
    match text.char_indices().nth(length) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

fn brief(value: Option<&Value>) -> String {
    value.map_or("nothing".to_owned(), |value| cut(&value.to_string(), 160))
}

fn short(answer: &Answer) -> String {
    cut(&format!("{answer:?}"), 240)
}

/// Compares everything, and prints what differs.
pub async fn everything(
    node: &Rpc,
    cairn: &Rpc,
    from: u64,
    to: u64,
    allowed: &[Allowed],
    traces: bool,
    report: &mut Report,
) -> Result<()> {
    let mut comparison = Comparison::new(node, cairn, allowed, traces);
    comparison.chain().await?;
    comparison.range(from, to).await?;
    comparison.finish(report);
    Ok(())
}

/// `cairn-dev compare`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let (node, cairn) = (Rpc::new(&options.node)?, Rpc::new(&options.cairn)?);
    let to = match options.to {
        Some(to) => to,
        None => cairn.head().await?.context("cairn has no block yet")?.0,
    };
    let mut report = Report::default();
    everything(&node, &cairn, options.from.unwrap_or(0), to, &[], options.traces, &mut report).await?;
    figure("compared_blocks", to + 1 - options.from.unwrap_or(0), "blocks");
    Ok(report.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_a_limit_is_read() {
        assert_eq!(
            hint("query exceeds max results 10000. Try with this block range [0x1, 0xff]."),
            Some((1, 255))
        );
        assert_eq!(hint("too many results"), None);
    }
}
