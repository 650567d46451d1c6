//! REST over a generated Flow chain: the same paths, in Flow's own words, and what its ledger knows.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use axum::http::StatusCode;
use cairn_api::rest::RestChain;
use cairn_core::{BlockRef, RawBlock, TxId};
use cairn_explorer::processors::flow::node::{ScriptAnswer, ScriptNode};
use cairn_explorer::processors::{Settings, flow_catalog, flow_processors};
use cairn_flow::proto::Account;
use cairn_flow::{BlockParts, FlowAddress, Network, assemble};
use cairn_flow_node::ledger::{FlowTx, Ledger};
use cairn_flow_node::{Behaviour, Generator, GeneratorOptions};
use cairn_pipeline::derive::processor::AskError;
use serde_json::{Value, json};

use super::endpoints::Document;
use super::world::{World, limits};

pub const NETWORK: Network = Network::Emulator;
/// The first height of the chain, and how many blocks it has: of every age.
pub const ROOT: u64 = 1_000;
const BLOCKS: u64 = 170;
/// Its last one.
pub const TIP: u64 = ROOT + BLOCKS - 1;

pub struct Flow {
    pub world: World,
    pub ledger: Ledger,
}

pub fn generator() -> Generator {
    let generator = Generator::new(GeneratorOptions::new(5), Behaviour::default());
    generator.grow(BLOCKS);
    generator
}

/// The blocks that a generator has made, and its ledger.
pub fn chain(generator: &Generator) -> (Vec<RawBlock>, Ledger) {
    let state = generator.state();
    let state = state.lock().expect("not poisoned");
    let blocks = state.chain.blocks().map(|served| {
        let parts = BlockParts {
            block: served.block.clone(),
            transactions: served.transactions.iter().map(|tx| tx.transaction.clone()).collect(),
            results: served.transactions.iter().map(|tx| tx.result.clone()).collect(),
            execution_result: served.execution_result.clone(),
        };
        assemble(&parts).expect("is whole")
    });
    (blocks.collect(), state.ledger.clone())
}

impl Flow {
    pub async fn new() -> Flow {
        Flow::from_height(ROOT).await
    }

    /// An archive that begins at a height in the middle of the chain.
    pub async fn from_height(height: u64) -> Flow {
        let (mut blocks, ledger) = chain(&generator());
        blocks.retain(|block| block.facts.height.get() >= height);
        let flow = Flow::of(blocks, ledger).await;
        let settings = Settings { network: Some(NETWORK), ..Settings::default() };
        flow.world.derive_by(flow_processors(&settings)).await;
        flow
    }

    /// Before any worker has begun.
    pub async fn underived() -> Flow {
        Flow::grown(&generator()).await
    }

    /// Of what a generator has made, before any worker has begun.
    pub async fn grown(generator: &Generator) -> Flow {
        let (blocks, ledger) = chain(generator);
        Flow::of(blocks, ledger).await
    }

    async fn of(blocks: Vec<RawBlock>, ledger: Ledger) -> Flow {
        let catalog = flow_catalog().expect("tables");
        let kind = RestChain::Flow(NETWORK);
        let world = World::of(kind, NETWORK.chain_number(), catalog, blocks, limits()).await;
        Flow { world, ledger }
    }

    /// All transactions with their heights and places, in order.
    pub fn transactions(&self) -> Vec<(u64, usize, FlowTx)> {
        let of_block = |(height, txs): (&u64, &Vec<FlowTx>)| {
            txs.iter().enumerate().map(|(index, tx)| (*height, index, tx.clone())).collect::<Vec<_>>()
        };
        self.ledger.transactions.iter().flat_map(of_block).collect()
    }

    /// A user's transaction.
    pub fn one(&self, fits: impl Fn(&FlowTx) -> bool) -> (u64, usize, FlowTx) {
        self.transactions().into_iter().find(|(_, _, tx)| !tx.is_system && fits(tx)).expect("there is one")
    }
}

pub fn hex32(id: &[u8; 32]) -> String {
    TxId(*id).to_string()
}

fn texts<'v>(rows: &'v [Value], field: &str) -> Vec<&'v str> {
    rows.iter().map(|row| row[field].as_str().expect("text")).collect()
}

#[tokio::test(start_paused = true)]
async fn every_path_answers_on_flow_as_its_document_says() {
    let flow = Flow::new().await;
    let world = &flow.world;
    let document = Document::read(world).await;
    let first = |page: &Value, field: &str| page["data"][0][field].as_str().expect("text").to_owned();
    let token = first(&world.ok("/v1/tokens?limit=1").await, "identifier");
    assert!(token.starts_with("A.") && token.split('.').count() == 3, "{token}");
    let collection = first(&world.ok("/v1/nft-collections?limit=1").await, "identifier");
    let item = first(&world.ok(&format!("/v1/nft-collections/{collection}/items")).await, "id");
    let owner = first(&world.ok(&format!("/v1/nft-collections/{collection}/owners")).await, "address");
    let holder = first(&world.ok(&format!("/v1/tokens/{token}/holders")).await, "address");
    let contract = world.ok("/v1/contracts").await;
    let (creator, contract) = (first(&contract, "creator"), first(&contract, "identifier"));
    let (height, _, tx) = flow.one(|tx| tx.event_types.len() > 2);
    let (_, _, failed) = flow.one(|tx| tx.is_failed);
    let (tx, failed) = (hex32(&tx.id), hex32(&failed.id));
    let mut accounts = flow.ledger.accounts.all_at(TIP);
    let keyed = accounts.find(|(_, account)| account.created_height.is_some() && !account.keys.is_empty());
    let keyed = keyed.expect("an account with keys").0.to_string();
    let evm = flow.ledger.evm_transactions.values().flatten().next().expect("an EVM transaction");
    let (evm, sender) = (evm.hash, evm.from);
    let log = flow
        .ledger
        .evm_transactions
        .values()
        .flatten()
        .flat_map(|tx| &tx.logs)
        .next()
        .expect("a log")
        .address;
    for path in [
        "/v1/status".into(),
        "/v1/blocks?limit=3".into(),
        format!("/v1/blocks/{height}"),
        format!("/v1/blocks/{height}/transactions"),
        "/v1/transactions?limit=200".into(),
        format!("/v1/transactions/{tx}?events=true"),
        format!("/v1/transactions/{failed}"),
        format!("/v1/transactions/{tx}/events?limit=1"),
        format!("/v1/transactions/{tx}/raw"),
        format!("/v1/transactions/{tx}/transfers"),
        format!("/v1/transactions/{evm}"),
        format!("/v1/accounts/{holder}"),
        format!("/v1/accounts/{holder}/transactions"),
        format!("/v1/accounts/{holder}/transfers"),
        format!("/v1/accounts/{holder}/transfers?token={token}"),
        format!("/v1/accounts/{owner}/nft-transfers"),
        format!("/v1/accounts/{holder}/holdings"),
        format!("/v1/accounts/{owner}/nfts"),
        format!("/v1/accounts/{creator}/contracts"),
        format!("/v1/accounts/{log}"),
        format!("/v1/accounts/{sender}/transactions"),
        "/v1/tokens?sort=address".into(),
        format!("/v1/tokens/{token}"),
        format!("/v1/tokens/{token}/holders"),
        format!("/v1/tokens/{token}/transfers"),
        "/v1/nft-collections?sort=address".into(),
        format!("/v1/nft-collections/{collection}"),
        format!("/v1/nft-collections/{collection}/items"),
        format!("/v1/nft-collections/{collection}/items/{item}"),
        format!("/v1/nft-collections/{collection}/owners"),
        format!("/v1/nft-collections/{collection}/transfers?item={item}"),
        "/v1/contracts".into(),
        format!("/v1/contracts/{contract}"),
        format!("/v1/accounts/{keyed}/keys?order=asc"),
        format!("/v1/contracts/{contract}/versions"),
        format!("/v1/contracts/{contract}/transactions?limit=3"),
        "/v1/flow/evm/blocks?limit=3".into(),
        "/v1/flow/evm/absences?limit=3".into(),
        "/v1/flow/evm/splits?limit=3".into(),
        format!("/v1/logs?address={log}"),
        "/v1/stats/daily".into(),
        format!("/v1/search?q={height}"),
        format!("/v1/search?q={tx}"),
        format!("/v1/search?q={evm}"),
        format!("/v1/search?q={token}"),
        format!("/v1/search?q={holder}"),
    ] {
        let reply = world.get(&path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.text);
        document.check(&path, &reply);
        assert!(reply.json["data"].as_array().is_none_or(|rows| !rows.is_empty()), "{path}: {}", reply.text);
        assert_eq!(reply.json["meta"]["data_watermark"]["height"], TIP.to_string(), "{path}");
    }
    let status = world.ok("/v1/status").await;
    assert_eq!(status["data"]["chain"], "flow-emulator");
}

#[tokio::test(start_paused = true)]
async fn lists_of_transactions_are_those_of_the_blocks() {
    let flow = Flow::new().await;
    let wanted: Vec<String> = flow.transactions().iter().map(|(_, _, tx)| hex32(&tx.id)).collect();
    let (rows, _) = flow.world.pages("/v1/transactions?order=asc&limit=7").await;
    assert_eq!(texts(&rows, "id"), wanted);
    let (mut down, _) = flow.world.pages("/v1/transactions?limit=9").await;
    down.reverse();
    assert_eq!(down, rows);
    for ((height, index, tx), row) in flow.transactions().iter().zip(&rows) {
        assert_eq!(row["block_height"], height.to_string());
        assert_eq!(row["transaction_index"], *index);
        assert_eq!(row["is_system"], tx.is_system);
        assert_eq!(row["status"], if tx.is_failed { "failed" } else { "ok" });
        assert_eq!(row["event_count"], tx.event_types.len().to_string());
        let payer = row["from"].as_str().unwrap_or("0x0000000000000000");
        assert_eq!(payer, tx.payer.to_string());
    }
    for (height, txs) in flow.ledger.transactions.iter().step_by(17) {
        let (rows, _) = flow.world.pages(&format!("/v1/blocks/{height}/transactions?limit=2")).await;
        assert_eq!(texts(&rows, "id"), txs.iter().map(|tx| hex32(&tx.id)).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_says_who_took_part_and_what_it_did() {
    let flow = Flow::new().await;
    for (height, index, tx) in flow.transactions().into_iter().filter(|(_, _, tx)| !tx.is_system).step_by(5) {
        let id = hex32(&tx.id);
        let answer = flow.world.ok(&format!("/v1/transactions/{id}?events=true")).await;
        let data = &answer["data"];
        assert_eq!((data["id"].as_str(), &data["transaction_index"]), (Some(id.as_str()), &json!(index)));
        assert_eq!(data["block"]["height"], height.to_string());
        let said = &data["flow"];
        assert_eq!(said["payer"], tx.payer.to_string());
        assert_eq!(said["proposer"]["address"], tx.proposer.to_string());
        let authorizers: Vec<String> = tx.authorizers.iter().map(ToString::to_string).collect();
        assert_eq!(said["authorizers"], json!(authorizers));
        assert_eq!(said["computation_used"], tx.computation.to_string());
        assert_eq!(said["repeats"], Value::Null);
        assert!(said["script"].as_str().is_some_and(|script| script.contains("transaction")), "{said}");
        assert_eq!(said["error_message"].is_string(), tx.is_failed);
        let events = data["events"].as_array().expect("events");
        assert_eq!(events.len(), tx.event_types.len());
        assert!(events.iter().all(|event| event["fields"].is_object() != event["problem"].is_string()));
        let (paged, _) = flow.world.pages(&format!("/v1/transactions/{id}/events?limit=2")).await;
        assert_eq!(&paged, events);
        let raw = flow.world.ok(&format!("/v1/transactions/{id}/raw")).await;
        let bytes = hex::decode(&raw["data"]["transaction"].as_str().expect("hex")[2..]).expect("hex");
        let message =
            <cairn_flow::proto::Transaction as prost::Message>::decode(&bytes[..]).expect("a message");
        assert_eq!(cairn_flow::id::transaction_id(&message).0, tx.id);
    }
}

#[tokio::test(start_paused = true)]
async fn f04_the_id_of_a_system_transaction_is_answered_with_what_it_is() {
    let flow = Flow::new().await;
    let in_tip = flow.ledger.transactions[&TIP].iter().rfind(|tx| tx.is_system).expect("one").id;
    let all = flow.transactions();
    let heights: Vec<u64> =
        all.iter().filter(|(_, _, tx)| tx.id == in_tip).map(|(height, _, _)| *height).collect();
    assert!(heights.len() > 20, "it stands in many blocks: {heights:?}");
    let id = hex32(&in_tip);
    let answer = flow.world.ok(&format!("/v1/transactions/{id}")).await;
    let repeats = &answer["data"]["flow"]["repeats"];
    assert_eq!(answer["data"]["block"]["height"], TIP.to_string());
    assert_eq!(repeats["first_height"], heights[0].to_string());
    assert_eq!(repeats["is_in_newest_block"], true);
    assert!(repeats["note"].as_str().is_some_and(|note| note.contains("height")), "{repeats}");
    // Each of them can be asked for, with all that belongs to it.
    for height in heights.iter().step_by(11) {
        let one = flow.world.ok(&format!("/v1/transactions/{id}?height={height}&events=true")).await;
        assert_eq!(one["data"]["block"]["height"], height.to_string());
        // What is said of the id is the same whichever block is meant.
        assert_eq!(&one["data"]["flow"]["repeats"], repeats, "at height {height}");
        let (events, _) = flow.world.pages(&format!("/v1/transactions/{id}/events?height={height}")).await;
        assert_eq!(one["data"]["events"], Value::Array(events));
        let raw = flow.world.ok(&format!("/v1/transactions/{id}/raw?height={height}")).await;
        assert_eq!(raw["data"]["block"]["height"], height.to_string());
        flow.world.ok(&format!("/v1/transactions/{id}/transfers?height={height}")).await;
    }
    flow.world.problem(&format!("/v1/transactions/{id}?height={}", TIP + 1), 404, "above-head").await;
    flow.world.problem(&format!("/v1/transactions/{id}?height=1"), 404, "below-archive").await;
    let (_, _, tx) = flow.one(|_| true);
    let elsewhere = format!("/v1/transactions/{}?height={TIP}", hex32(&tx.id));
    flow.world.problem(&elsewhere, 404, "not-found").await;
}

#[tokio::test(start_paused = true)]
async fn an_evm_hash_finds_the_flow_transaction_around_it() {
    let flow = Flow::new().await;
    let all: Vec<_> = flow.ledger.evm_transactions.values().flatten().collect();
    assert!(all.len() > 10);
    for evm in all {
        let wanted = hex32(&flow.ledger.transactions[&evm.height][evm.flow_tx_index].id);
        let hash = hex::encode_upper(evm.hash);
        let answer = flow.world.ok(&format!("/v1/transactions/{hash}")).await;
        assert_eq!(answer["data"]["id"], wanted);
        assert_eq!(answer["data"]["block"]["height"], evm.height.to_string());
        let hashes = answer["data"]["flow"]["evm_transactions"].as_array().expect("a list");
        assert!(hashes.contains(&json!(format!("{}", evm.hash))), "{hashes:?}");
        let found = flow.world.ok(&format!("/v1/search?q=0x{hash}")).await;
        assert_eq!(found["data"][0]["id"], wanted);
    }
    flow.world.problem(&format!("/v1/transactions/{}", "ab".repeat(32)), 404, "not-found").await;
}

#[tokio::test(start_paused = true)]
async fn p09_flow_names_are_read_in_any_spelling() {
    let flow = Flow::new().await;
    let ((token, holder), balance) = flow.ledger.balances(TIP).into_iter().next().expect("a balance");
    let (address, bare) = (holder.to_string(), holder.bare());
    let short = format!("0x{}", bare.trim_start_matches('0'));
    let mut answers = Vec::new();
    for spelling in [&address, &bare, &short, &bare.to_uppercase(), &format!("0X{}", bare.to_uppercase())] {
        answers.push(flow.world.get(&format!("/v1/accounts/{spelling}/holdings")).await.text);
    }
    assert!(answers[0].contains(&format!("\"balance\":\"{balance}\"")), "{}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let account = token.address.bare();
    let mut answers = Vec::new();
    for spelling in [
        format!("A.{account}.{}", token.name),
        format!("A.{}.{}", account.to_uppercase(), token.name),
        format!("A.0x{account}.{}", token.name),
        format!("A.{}.{}", account.trim_start_matches('0'), token.name),
        format!("A.{account}.{}.Vault", token.name),
    ] {
        answers.push(flow.world.get(&format!("/v1/tokens/{spelling}")).await.text);
    }
    assert!(answers[0].contains(&format!("\"identifier\":\"A.{account}.{}\"", token.name)), "{}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    for path in [
        "/v1/accounts/xyz".to_owned(),
        "/v1/accounts/0x".to_owned(),
        format!("/v1/accounts/{}", "a".repeat(17)),
        format!("/v1/accounts/{account}/transfers?token={account}"),
        format!("/v1/tokens/{account}"),
        "/v1/tokens/A.1".to_owned(),
        "/v1/tokens/A.1.2".to_owned(),
        format!("/v1/transactions/{account}"),
        format!("/v1/transactions/{}?height=-1", "ab".repeat(32)),
    ] {
        flow.world.problem(&path, 400, "invalid-parameter").await;
    }
    flow.world.problem("/v1/tokens/A.1.Nothing", 404, "not-found").await;
}

#[tokio::test(start_paused = true)]
async fn holdings_items_and_accounts_are_those_of_the_ledger() {
    let flow = Flow::new().await;
    let world = &flow.world;
    let items = flow.ledger.items_at(TIP);
    assert!(items.len() > 10);
    for ((collection, id), item) in items {
        let path =
            format!("/v1/nft-collections/A.{}.{}/items/{id}", collection.address.bare(), collection.name);
        let answer = world.ok(&path).await;
        let said = &answer["data"]["item"];
        assert_eq!(said["is_burned"], item.is_burn_told, "{path}: {item:?}");
        assert_eq!(said["owner"], json!(item.told_owner.map(|owner| owner.to_string())), "{path}: {item:?}");
    }
    let (mut accounts, mut in_doubt) = (0, 0);
    for (address, account) in
        flow.ledger.accounts.all_at(TIP).filter(|(_, account)| account.created_height.is_some())
    {
        let answer = world.ok(&format!("/v1/accounts/{address}")).await;
        let said = &answer["data"]["flow"];
        assert_eq!(said["created_height"], json!(account.created_height.map(|height| height.to_string())));
        let keys = said["keys"].as_array().expect("keys");
        assert_eq!(keys.len(), account.keys.len());
        for (shown, key) in keys.iter().zip(&account.keys) {
            let is_known = shown["is_revoked"] == key.revoked.is_some();
            // One was revoked by its bytes, which others have too: then neither answer would be right.
            let mut same = account.keys.iter().filter(|other| other.public_key == key.public_key);
            let is_open = same.any(|other| other.is_in_doubt) && shown["is_revoked"].is_null();
            assert!(is_known && !key.is_in_doubt || is_open, "{address}: {key:?} {shown}");
            in_doubt += usize::from(is_open);
        }
        let (changes, _) = world.pages(&format!("/v1/accounts/{address}/keys?limit=2&order=asc")).await;
        let of = |change: &str| changes.iter().filter(|row| row["change"] == change).count();
        assert_eq!(of("added"), account.keys.len(), "{address}");
        assert_eq!(of("revoked"), account.keys.iter().filter(|key| key.revoked.is_some()).count());
        let there: Vec<_> = said["contracts"]
            .as_array()
            .expect("contracts")
            .iter()
            .filter(|it| it["is_removed"] == false)
            .collect();
        let names: Vec<_> = there.iter().map(|it| it["name"].as_str().expect("a name")).collect();
        assert_eq!(names, account.contracts.keys().map(String::as_str).collect::<Vec<_>>(), "{address}");
        for it in said["contracts"].as_array().expect("contracts") {
            let identifier = it["identifier"].as_str().expect("a contract");
            let (versions, _) = world.pages(&format!("/v1/contracts/{identifier}/versions?limit=1")).await;
            let set = versions.iter().filter(|row| row["change"] != "removed").count();
            assert_eq!(it["version_count"], set.to_string(), "{identifier}");
            assert_eq!(versions[0]["code_hash"], it["code_hash"]);
        }
        accounts += 1;
    }
    assert!(accounts > 1 && in_doubt > 1, "{accounts} accounts, {in_doubt} keys in doubt");
}

#[tokio::test(start_paused = true)]
async fn a_block_has_its_collections_and_seals() {
    let flow = Flow::new().await;
    let (mut collections, mut seals) = (0, 0);
    for height in (ROOT..=TIP).step_by(9) {
        let by_height = flow.world.ok(&format!("/v1/blocks/{height}")).await;
        let data = &by_height["data"];
        assert_eq!(data["evm"], Value::Null);
        let id = data["id"].as_str().expect("an id").trim_start_matches("0x").to_uppercase();
        assert_eq!(flow.world.ok(&format!("/v1/blocks/{id}")).await["data"], *data);
        assert!(
            data["flow"]["unverified"].as_array().is_some_and(|checks| checks.contains(&json!("block-id")))
        );
        assert!(data["flow"]["execution_result"].is_object(), "{data}");
        collections += data["flow"]["collections"].as_array().expect("a list").len();
        seals += data["flow"]["seals"].as_array().expect("a list").len();
    }
    assert!(collections > 5 && seals > 5, "{collections} collections, {seals} seals");
}

#[tokio::test(start_paused = true)]
async fn f17_every_place_of_an_id_is_listed_and_each_can_be_asked_for() {
    let options = GeneratorOptions { is_odd: true, ..GeneratorOptions::new(5) };
    let generator = Generator::new(options, Behaviour::default());
    generator.grow(BLOCKS);
    let flow = Flow::grown(&generator).await;
    let settings = Settings { network: Some(NETWORK), ..Settings::default() };
    flow.world.derive_by(flow_processors(&settings)).await;
    let mut places: BTreeMap<[u8; 32], Vec<(u64, usize)>> = BTreeMap::new();
    for (height, index, tx) in flow.transactions().iter().filter(|(_, _, tx)| !tx.is_system) {
        places.entry(tx.id).or_default().push((*height, *index));
    }
    places.retain(|_, places| places.len() > 1);
    assert!(places.values().any(|places| places[0].0 == places[1].0), "one twice in a block");
    assert!(places.values().any(|places| places[0].0 != places[1].0), "one in two blocks");
    for (id, places) in &places {
        let id = hex32(id);
        let answer = flow.world.ok(&format!("/v1/transactions/{id}")).await;
        let listed: Vec<Value> = places
            .iter()
            .map(|(height, index)| json!({"block_height": height.to_string(), "transaction_index": index}))
            .collect();
        let repeats = &answer["data"]["flow"]["repeats"];
        assert_eq!(repeats["places"], Value::Array(listed));
        assert_eq!(repeats["has_more_places"], false);
        for (height, index) in places {
            let tx = &flow.ledger.transactions[height][*index];
            let of = format!("height={height}&index={index}");
            let one = flow.world.ok(&format!("/v1/transactions/{id}?{of}&events=true")).await["data"].clone();
            assert_eq!(one["block"]["height"], height.to_string());
            assert_eq!(one["transaction_index"], json!(index));
            assert_eq!(one["flow"]["error_message"].is_string(), tx.is_failed);
            assert_eq!(one["events"].as_array().expect("events").len(), tx.event_types.len());
            assert_eq!(one["fee"].is_null(), !tx.is_fee_told);
            let (transfers, _) = flow.world.pages(&format!("/v1/transactions/{id}/transfers?{of}")).await;
            assert!(!tx.is_failed || transfers.is_empty());
            flow.world.ok(&format!("/v1/transactions/{id}/raw?{of}")).await;
        }
        let nowhere = format!("/v1/transactions/{id}?height={}&index=99", places[0].0);
        flow.world.problem(&nowhere, 404, "not-found").await;
        // Without a height, the place is one of the block that is answered by default.
        let default = &answer["data"];
        let of = format!("index={}", default["transaction_index"]);
        let again = flow.world.ok(&format!("/v1/transactions/{id}?{of}")).await["data"].clone();
        assert_eq!(&again, default);
        flow.world.problem(&format!("/v1/transactions/{id}?index=99"), 404, "not-found").await;
    }
}

/// A node that knows of accounts what the ledger does.
struct Knowing(Ledger);

#[async_trait]
impl ScriptNode for Knowing {
    async fn execute(&self, _: &str, _: Vec<Vec<u8>>, _: BlockRef) -> Result<ScriptAnswer, AskError> {
        Ok(ScriptAnswer::Failed("no script".into()))
    }

    async fn account(&self, address: FlowAddress, at: BlockRef) -> Result<Option<Account>, AskError> {
        Ok(self.0.account(&address.0, at.height.get()))
    }
}

#[tokio::test(start_paused = true)]
async fn f19_an_account_is_what_it_was_before_the_archive_and_what_happened_since() {
    let (mut blocks, ledger) = chain(&generator());
    let from = ROOT + 100;
    blocks.retain(|block| block.facts.height.get() >= from);
    let flow = Flow::of(blocks, ledger).await;
    let settings = Settings {
        network: Some(NETWORK),
        scripts: Some(Arc::new(Knowing(flow.ledger.clone()))),
        ..Settings::default()
    };
    flow.world.derive_by(flow_processors(&settings)).await;
    let balances = flow.ledger.balances(TIP);
    let mut based = 0;
    for (address, account) in flow.ledger.accounts.all_at(TIP) {
        let said = flow.world.ok(&format!("/v1/accounts/{address}")).await["data"]["flow"].clone();
        let was_here = flow.ledger.account(&address.0, from - 1).is_some();
        if said["base"].is_null() && was_here {
            // Nothing named it since.
            assert_eq!(said["balance"], Value::Null, "{address}");
            continue;
        }
        based += u32::from(was_here);
        let has = balances.get(&(flow.ledger.flow_token(), *address)).copied().unwrap_or(0);
        assert_eq!(said["balance"], has.to_string(), "{address}");
        assert_eq!(said["key_count"], account.keys.len().to_string(), "{address}");
        assert_eq!(said["contract_count"], account.contracts.len().to_string(), "{address}");
        let contracts = said["contracts"].as_array().expect("contracts");
        let there = contracts.iter().filter(|contract| contract["is_removed"] == false);
        let names: Vec<&str> = there.map(|contract| contract["name"].as_str().expect("text")).collect();
        assert_eq!(names, account.contracts.keys().collect::<Vec<_>>(), "{address}");
        for key in said["keys"].as_array().expect("keys") {
            let index: usize = key["index"].as_str().expect("text").parse().expect("a number");
            let of_ledger = &account.keys[index];
            assert_eq!(key["public_key"], format!("0x{}", hex::encode(&of_ledger.public_key)), "{address}");
            if !of_ledger.is_in_doubt {
                assert_eq!(key["is_revoked"], of_ledger.revoked.is_some(), "{address} {index}");
            }
        }
    }
    assert!(based > 3, "{based}");

    // By a public key that an account had before, and by one that was added since.
    let is_found = async |address: &FlowAddress, public_key: &[u8]| {
        for spelling in [hex::encode(public_key), format!("0x{}", hex::encode_upper(public_key))] {
            let found = flow.world.ok(&format!("/v1/search?q={spelling}")).await["data"].clone();
            let found = found.as_array().expect("a list").clone();
            let is_it = |one: &Value| one["kind"] == "account-key" && one["address"] == address.to_string();
            assert!(found.iter().any(is_it), "{address}: {found:?}");
        }
    };
    for (address, account) in flow.ledger.accounts.all_at(TIP) {
        let is_new = account.created_height.is_some_and(|height| height >= from);
        let said = flow.world.ok(&format!("/v1/accounts/{address}")).await["data"]["flow"]["base"].clone();
        if let Some(key) = account.keys.first()
            && (is_new || !said.is_null())
        {
            is_found(address, &key.public_key).await;
        }
    }
    let nobody = flow.world.ok(&format!("/v1/search?q={}", "ab".repeat(64))).await;
    assert_eq!(nobody["data"], json!([]));
}
