//! What cairn serves against what the node said.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::scenario::Scenario;
use crate::diff::{Difference, differences};
use crate::rpc::{Answer, Rpc, call, hex, quantity};

/// Fields that cairn always serves, as newer nodes do. Older nodes leave them out.
const ALWAYS_SERVED: [&str; 5] = [".blockTimestamp", ".removed", ".v", ".yParity", ".effectiveGasPrice"];

/// Why a difference is right; `None` where it is none.
fn reason(difference: &Difference) -> Option<&'static str> {
    let empty = |side: &Option<Value>| {
        side.as_ref().is_none_or(|value| match value {
            Value::Null => true,
            Value::String(text) => text.is_empty() || text == "0x",
            Value::Array(list) => list.is_empty(),
            _ => false,
        })
    };
    if empty(&difference.left) && empty(&difference.right) {
        return Some("absent, null and empty mean the same where nodes use them so");
    }
    let is_always_served = ALWAYS_SERVED.iter().any(|name| difference.path.ends_with(name));
    (difference.left.is_none() && is_always_served).then_some("cairn serves this where a node leaves it out")
}

/// Every block, receipt and log that the node has.
pub async fn with_node(scenario: &Scenario, rpc: &Rpc) -> Result<()> {
    let mut logs = Vec::new();
    for (height, block) in scenario.blocks() {
        let number = hex(*height);
        let served = text(rpc, "eth_getBlockByNumber", json!([number, true])).await?;
        same("eth_getBlockByNumber", *height, &block.value, &result(&served)?)?;
        same_digits(block.text.get(), &served)?;

        let transactions = block.value["transactions"].as_array().cloned().unwrap_or_default();
        let mut receipts = Vec::new();
        for (index, transaction) in transactions.iter().enumerate() {
            let hash = transaction["hash"].as_str().context("a transaction without a hash")?;
            let served = text(rpc, "eth_getTransactionReceipt", json!([hash])).await?;
            let receipt = result(&served)?;
            let Some(said) = scenario.receipt(hash) else {
                ensure!(
                    receipt.is_null(),
                    "block {height}: {hash} has no receipt, but cairn serves {receipt}"
                );
                continue;
            };
            same("eth_getTransactionReceipt", *height, &serde_json::from_str(&said)?, &receipt)?;
            same_digits(&said, &served)?;
            ensure!(
                quantity(&receipt["transactionIndex"])? == index as u64,
                "block {height}: {hash} stands at {index}, served is {}",
                receipt["transactionIndex"]
            );
            receipts.push(receipt);
        }
        let whole = receipts.len() == transactions.len();
        match rpc.ask(&call("eth_getBlockReceipts", json!([number]))).await? {
            Answer::Result(served) if whole => {
                ensure!(
                    served == json!(receipts),
                    "block {height}: eth_getBlockReceipts is not its receipts"
                );
            }
            Answer::Error { message, .. } if !whole => {
                let missing = transactions.iter().filter_map(|one| one["hash"].as_str());
                let named = missing
                    .filter(|hash| scenario.receipt(hash).is_none())
                    .all(|hash| message.contains(hash));
                ensure!(named, "block {height}: the error doesn't name the missing receipt: {message}");
            }
            answer => bail!("block {height}: eth_getBlockReceipts: {answer:?}"),
        }
        let mut counted = 0;
        for receipt in &receipts {
            for log in receipt["logs"].as_array().context("logs")? {
                ensure!(
                    quantity(&log["logIndex"])? == counted || !whole,
                    "block {height}: log {counted} is served at {}",
                    log["logIndex"]
                );
                counted += 1;
                logs.push((whole, log.clone()));
            }
        }
        let range = json!([{"fromBlock": number, "toBlock": number}]);
        match rpc.ask(&call("eth_getLogs", range)).await? {
            Answer::Result(served) if whole => {
                let of_block: Vec<&Value> =
                    receipts.iter().flat_map(|one| one["logs"].as_array()).flatten().collect();
                ensure!(served == json!(of_block), "block {height}: eth_getLogs is not its receipts' logs");
            }
            Answer::Error { .. } if !whole => {}
            answer => bail!("block {height}: eth_getLogs: {answer:?}"),
        }
    }
    Ok(())
}

/// The same answers of two archives.
pub async fn of_two(scenario: &Scenario, first: &Rpc, second: &Rpc) -> Result<()> {
    for height in scenario.blocks().keys() {
        let number = hex(*height);
        let asked = [
            ("eth_getBlockByNumber", json!([number, true])),
            ("eth_getBlockReceipts", json!([number])),
            ("eth_getLogs", json!([{"fromBlock": number, "toBlock": number}])),
        ];
        for (method, params) in asked {
            let (one, two) =
                (text(first, method, params.clone()).await?, text(second, method, params).await?);
            ensure!(one == two, "block {height}: {method} differs: {}", first_difference(&one, &two));
        }
    }
    Ok(())
}

fn first_difference(one: &str, two: &str) -> String {
    let parsed = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
    match differences(&parsed(one), &parsed(two)).first() {
        Some(difference) => format!("{difference:?}"),
        None => "in digits or order alone".to_owned(),
    }
}

async fn text(rpc: &Rpc, method: &str, params: Value) -> Result<String> {
    rpc.post_text(json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()).await
}

fn result(answer: &str) -> Result<Value> {
    let answer: Value = serde_json::from_str(answer)?;
    ensure!(answer.get("error").is_none(), "{answer}");
    Ok(answer["result"].clone())
}

/// The node's positions, which cairn keeps beside its own, in the place of cairn's.
fn with_positions_of_node(served: &Value) -> Value {
    match served {
        Value::Array(list) => list.iter().map(with_positions_of_node).collect(),
        Value::Object(fields) => {
            let mut fields: serde_json::Map<String, Value> =
                fields.iter().map(|(name, value)| (name.clone(), with_positions_of_node(value))).collect();
            for (ours, theirs) in [("logIndex", "nodeLogIndex"), ("transactionIndex", "nodeTransactionIndex")]
            {
                if let Some(position) = fields.remove(theirs) {
                    fields.insert(ours.to_owned(), position);
                }
            }
            Value::Object(fields)
        }
        other => other.clone(),
    }
}

fn same(method: &str, height: u64, said: &Value, served: &Value) -> Result<()> {
    let wrong: Vec<Difference> = differences(said, &with_positions_of_node(served))
        .into_iter()
        .filter(|difference| reason(difference).is_none())
        .collect();
    ensure!(wrong.is_empty(), "block {height}: {method}: node (left) and cairn (right) differ: {wrong:?}");
    Ok(())
}

/// Numbers that a parser would round are served with the digits that the node said.
fn same_digits(said: &str, served: &str) -> Result<()> {
    for number in long_numbers(said) {
        ensure!(served.contains(number), "the number {number} is served with other digits");
    }
    Ok(())
}

/// Numbers outside strings that have more digits than 64 bits hold.
fn long_numbers(text: &str) -> Vec<&str> {
    const SAFE_DIGITS: usize = 15;
    let outside_strings = text.split('"').step_by(2);
    outside_strings
        .flat_map(|part| part.split(|c: char| !(c.is_ascii_digit() || "+-.eE".contains(c))))
        .filter(|number| number.len() > SAFE_DIGITS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_where_it_stands_outside_strings() {
        let text =
            r#"{"a":58750003716598360000001,"b":"58750003716598360000002","c":[1,-1.000000000000000001e5]}"#;
        assert_eq!(long_numbers(text), ["58750003716598360000001", "-1.000000000000000001e5"]);
    }

    #[test]
    fn a_difference_needs_a_reason() {
        let places = |l, r| differences(&l, &r).iter().filter(|d| reason(d).is_none()).count();
        assert_eq!(places(json!({"withdrawals": []}), json!({})), 0);
        assert_eq!(places(json!({"logs": [{"data": ""}]}), json!({"logs": [{"data": "0x"}]})), 0);
        assert_eq!(places(json!({"data": "0x01"}), json!({"data": "0x"})), 1);
        let served = json!([{"logIndex": "0x2", "nodeLogIndex": "0x0"}]);
        assert_eq!(with_positions_of_node(&served), json!([{"logIndex": "0x0"}]));
    }
}
