//! Events that were recorded on Flow's networks, served in blocks by an access node, taken by the real binary and answered by REST.
//!
//! What was recorded are events, not whole blocks; each recorded transaction's stand in one transaction of a block of its own. They are in the
//! folder `fixtures/flow` of `CAIRN_SHARED`.

use crate::support;

use std::collections::BTreeMap;
use std::path::PathBuf;

use cairn_flow::Network;
use cairn_flow::id::transaction_id;
use cairn_flow::proto::Event;
use cairn_flow_node::{Behaviour, Chain, Draft, FlowNode};
use serde_json::Value;
use support::*;

/// Above every height at which a network began anew; below that nodes of today have nothing.
fn root_of(network: Network) -> u64 {
    network.sporks().last().map_or(500, |spork| spork.root_height + 500)
}

/// `None`, with a word on what is missing, where the folder is not there.
fn recorded() -> Option<Vec<Value>> {
    let shared =
        std::env::var_os("CAIRN_SHARED").map_or_else(|| PathBuf::from("../../../shared"), PathBuf::from);
    let file = shared.join("fixtures/flow/events.jsoncdc.json");
    let Ok(text) = std::fs::read(&file) else {
        let message =
            format!("not run: {} is not there; see CONTRIBUTING.md on CAIRN_SHARED", file.display());
        assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{message}");
        println!("{message}");
        return None;
    };
    let list: Value = serde_json::from_slice(&text).expect("JSON");
    Some(list.as_array().expect("a list").clone())
}

/// A recorded transaction as it is served: its stand-in's id, and the events by type and payload.
struct Served {
    id: String,
    events: Vec<(String, Value)>,
}

/// Blocks from the root up, each with one recorded transaction; empty ones around them.
fn chain_of(network: Network, recorded: &[Value]) -> (Chain, Vec<Served>) {
    let mut transactions: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for (number, event) in recorded.iter().enumerate() {
        let id = event["transaction_id"].as_str().filter(|id| !id.is_empty());
        transactions
            .entry(id.map_or_else(|| format!("alone {number}"), str::to_owned))
            .or_default()
            .push(event);
    }
    let root = root_of(network);
    let (mut chain, mut served) = (Chain::empty(network, root), Vec::new());
    let mut height = root;
    chain.push(&Draft::new(height, &[], 0));
    for events in transactions.values() {
        height += 1;
        let mut draft = Draft::new(height, &[1], events.len() as u32);
        let (transaction, result) = &mut draft.transactions[0];
        let id = hex::encode(transaction_id(transaction).as_bytes());
        let mut told = Vec::new();
        for (event, recorded) in result.events.iter_mut().zip(events) {
            let name = recorded["type"].as_str().expect("text").split(' ').next().unwrap_or_default();
            let payload = recorded["payload"].as_str().expect("text");
            *event = Event { r#type: name.to_owned(), payload: payload.to_owned().into(), ..event.clone() };
            told.push((name.to_owned(), serde_json::from_str(payload).expect("JSON")));
        }
        chain.push(&draft);
        served.push(Served { id, events: told });
    }
    chain.push(&Draft::new(height + 1, &[], 0));
    (chain, served)
}

/// A value in JSON-CDC as REST shows it, read by the words of the format alone.
fn plain(value: &Value) -> Value {
    let inner = &value["value"];
    match value["type"].as_str().expect("a kind") {
        "Optional" if inner.is_null() => Value::Null,
        "Optional" => plain(inner),
        "Address" => inner.as_str().expect("text").trim_start_matches("0x").into(),
        "Array" => inner.as_array().expect("a list").iter().map(plain).collect(),
        "Struct" | "Enum" => {
            let fields = inner["fields"].as_array().expect("a list").iter();
            let field = |of: &Value| (of["name"].as_str().expect("text").to_owned(), plain(&of["value"]));
            Value::Object(fields.map(field).collect())
        }
        "String" | "UFix64" | "Int" | "UInt8" | "UInt16" | "UInt64" => inner.clone(),
        other => panic!("the file has a {other} now: say how it should look"),
    }
}

/// A field of an event in JSON-CDC.
fn field<'v>(event: &'v Value, name: &str) -> &'v Value {
    let fields = event["value"]["fields"].as_array().expect("fields");
    &fields.iter().find(|field| field["name"] == name).unwrap_or(&Value::Null)["value"]["value"]
}

#[test]
fn recorded_events_come_back_through_the_binary_as_they_were_recorded() {
    let Some(recorded) = recorded() else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let (mut events, mut movements, mut items, mut executions) = (0, 0, 0, 0);
    for network in [Network::Mainnet, Network::Testnet, Network::Emulator] {
        let of_network: Vec<Value> = recorded
            .iter()
            .filter(|event| {
                let name = event["network"].as_str().expect("text");
                let on = match name.split(' ').next() {
                    Some("flow-testnet") => Network::Testnet,
                    Some("flow-emulator") => Network::Emulator,
                    _ => Network::Mainnet,
                };
                on == network
            })
            .cloned()
            .collect();
        assert!(!of_network.is_empty(), "nothing was recorded on {}", network.chain_id());
        let (chain, served) = chain_of(network, &of_network);
        let node = runtime.block_on(FlowNode::start(chain, Behaviour::default())).expect("serves");

        let dir = tempfile::tempdir().expect("dir");
        let mut command = cairn(dir.path());
        command.args([
            "run",
            "--data",
            "archive",
            "--exit-after-head",
            "--from",
            &root_of(network).to_string(),
        ]);
        command.args(["--network", network.chain_id()]).env("CAIRN_DERIVE__ASK_NODE", "false");
        command.env("CAIRN_SERVE__LISTEN", "127.0.0.1:0");
        command.env("CAIRN_CHAIN__ACCESS", format!("[{{url=\"{}\", requests_per_s=0}}]", node.url));
        end_of(&mut command).well();
        verify_clean(dir.path(), "archive");

        let mut service = Service::start(cairn(dir.path()).args(["serve", "--data", "archive"]));
        service.until("REST answers", |service| service.get("/v1/status").0 == 200);
        let data = |path: &str| -> Value {
            let (code, text) = service.get(path);
            assert_eq!(code, 200, "{path}: {text}");
            let answer: Value = serde_json::from_str(&text).expect("JSON");
            answer["data"].clone()
        };
        for Served { id, events: told } in &served {
            let answered = data(&format!("/v1/transactions/{id}/events"));
            let answered = answered.as_array().expect("a list");
            assert_eq!(answered.len(), told.len(), "{id}");
            let moved = data(&format!("/v1/transactions/{id}/transfers")).to_string();
            for ((name, payload), event) in told.iter().zip(answered) {
                events += 1;
                assert_eq!(event["type"].as_str(), Some(&**name), "{event}");
                assert!(event["problem"].is_null(), "{event}");
                // Each field whole, and no other: lists byte by byte, numbers digit by digit.
                let fields = payload["value"]["fields"].as_array().expect("fields").iter();
                let fields =
                    fields.map(|of| (of["name"].as_str().expect("text").to_owned(), plain(&of["value"])));
                assert_eq!(event["fields"], Value::Object(fields.collect()), "{name}");
                let party = ["from", "to"].map(|name| field(payload, name)["value"].as_str());
                let party = party.into_iter().flatten().next();
                let is_fee = told.iter().any(|(name, fees)| {
                    name.ends_with(".FeesDeducted") && field(fees, "amount") == field(payload, "amount")
                });
                let is_token = name.contains(".FungibleToken.") || name.contains(".Tokens");
                if let Some(party) = party.filter(|_| is_token && !is_fee) {
                    movements += 1;
                    let units = field(payload, "amount").as_str().expect("text").replace('.', "");
                    assert!(
                        moved.contains(party) && moved.contains(units.trim_start_matches('0')),
                        "{name}: {moved}"
                    );
                }
                if name.contains(".NonFungibleToken.") {
                    items += 1;
                    let owner = field(payload, "to")["value"].as_str().expect("text");
                    let owned = data(&format!("/v1/accounts/{owner}/nfts")).to_string();
                    assert!(owned.contains(field(payload, "id").as_str().expect("text")), "{owned}");
                }
                if name.ends_with(".EVM.TransactionExecuted") {
                    executions += 1;
                    let bytes = field(payload, "hash").as_array().expect("bytes");
                    let bytes = bytes.iter().map(|byte| byte["value"].as_str().expect("text").parse::<u8>());
                    let hash = hex::encode(bytes.collect::<Result<Vec<_>, _>>().expect("bytes"));
                    let around = data(&format!("/v1/transactions/0x{hash}"));
                    assert!(around.to_string().contains(&**id), "{around}");
                }
            }
        }
        service.stop();
    }
    assert_eq!(events, recorded.len());
    assert!(movements >= 4 && items >= 1 && executions >= 1, "{movements} {items} {executions}");
}
