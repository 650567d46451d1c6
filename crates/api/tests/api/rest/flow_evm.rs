//! EVM transactions inside Flow transactions: found by the store's lookup first, and shown with what they say.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use cairn_api::rest::{RestChain, RestState, router};
use cairn_core::{BlockId, Height, HeightRange, LinkedRef, Parts, StoredBlock, TxId};
use cairn_explorer::processors::{Settings, flow_processors};
use cairn_flow_node::{Behaviour, Generator, GeneratorOptions};
use cairn_store::memory::MemoryStore;
use cairn_store::{
    BlocksRead, Checkpoint, HeadRow, IndexFingerprint, LogQuery, RawLease, RawReader, RawSnapshot,
    ReorgEntry, Result, StoreSizes, TxPlace,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::endpoints::Document;
use super::flow::{Flow, NETWORK, hex32};
use super::world::{World, limits};

/// A store with lookups of EVM hashes, as PostgreSQL has them.
#[derive(Clone)]
struct WithLookups {
    store: MemoryStore,
    places: Arc<HashMap<[u8; 32], Vec<TxPlace>>>,
    /// Whether its log terms find anything.
    has_terms: bool,
}

#[async_trait]
impl RawReader for WithLookups {
    async fn snapshot(&self) -> Result<Arc<dyn RawSnapshot>> {
        Ok(Arc::new(At { of: self.clone(), at: self.store.snapshot().await? }))
    }
}

struct At {
    of: WithLookups,
    at: Arc<dyn RawSnapshot>,
}

#[async_trait]
impl RawSnapshot for At {
    fn head(&self) -> &HeadRow {
        self.at.head()
    }

    async fn block(&self, height: Height, parts: Parts) -> Result<Option<StoredBlock>> {
        self.at.block(height, parts).await
    }

    async fn blocks(&self, range: HeightRange, parts: Parts, max_bytes: u64) -> Result<BlocksRead> {
        self.at.blocks(range, parts, max_bytes).await
    }

    async fn blocks_at(&self, heights: &[Height], parts: Parts, max_bytes: u64) -> Result<Vec<StoredBlock>> {
        self.at.blocks_at(heights, parts, max_bytes).await
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.at.linked_ref(height).await
    }

    async fn find_block(&self, id: BlockId) -> Result<Option<Height>> {
        self.at.find_block(id).await
    }

    async fn find_tx(&self, id: TxId) -> Result<Option<TxPlace>> {
        self.at.find_tx(id).await
    }

    async fn find_evm(&self, evm_hash: [u8; 32], range: HeightRange) -> Result<Option<Vec<TxPlace>>> {
        let places = self.of.places.get(&evm_hash).cloned().unwrap_or_default();
        Ok(Some(places.into_iter().filter(|place| range.contains(place.height)).collect()))
    }

    async fn log_candidates(
        &self,
        range: HeightRange,
        query: &LogQuery,
        limit: usize,
    ) -> Result<Vec<Height>> {
        match self.of.has_terms {
            true => self.at.log_candidates(range, query, limit).await,
            false => Ok(Vec::new()),
        }
    }

    async fn reorgs(&self, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>> {
        self.at.reorgs(after_id, limit).await
    }

    async fn orphan(&self, reorg_id: u64, id: BlockId, parts: Parts) -> Result<Option<StoredBlock>> {
        self.at.orphan(reorg_id, id, parts).await
    }

    async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        self.at.checkpoints().await
    }

    async fn raw_leases(&self) -> Result<Vec<RawLease>> {
        self.at.raw_leases().await
    }

    async fn sizes(&self) -> Result<StoreSizes> {
        self.at.sizes().await
    }

    async fn index_fingerprints(&self, range: HeightRange) -> Result<Vec<IndexFingerprint>> {
        self.at.index_fingerprints(range).await
    }
}

/// The same world over a store with lookups.
fn with_lookups(world: &World, places: HashMap<[u8; 32], Vec<TxPlace>>, has_terms: bool) -> World {
    let raw = WithLookups { store: world.store.clone(), places: Arc::new(places), has_terms };
    let router: Router = router(RestState {
        chain: RestChain::Flow(NETWORK),
        raw: Arc::new(raw),
        app: Some(Arc::new(world.app.clone())),
        catalog: world.catalog.clone(),
        upstreams: BTreeMap::new(),
        workers: BTreeMap::new(),
        halts: Arc::new(Vec::new),
        wrapped_tokens: Arc::new(|_| Vec::new()),
        obstacle: Arc::new(|| None),
        search_term: cairn_explorer::processors::evm::token_metadata::search_term,
        limits: limits(),
        new_head: None,
        stop: CancellationToken::new(),
    })
    .expect("a document");
    World {
        store: world.store.clone(),
        app: world.app.clone(),
        catalog: world.catalog.clone(),
        halts: world.halts.clone(),
        obstacle: world.obstacle.clone(),
        router,
    }
}

#[tokio::test(start_paused = true)]
async fn the_lookup_of_an_evm_hash_comes_first_and_is_not_believed_where_its_row_is_gone() {
    let flow = Flow::new().await;
    let evm: Vec<_> = flow.ledger.evm_transactions.values().flatten().collect();
    let place = |n: usize| TxPlace { height: Height(evm[n].height), index: evm[n].flow_tx_index as u32 };
    let (first, last) = (evm[0], evm[evm.len() - 1]);
    let path = |hash: &[u8]| format!("/v1/transactions/{}", hex::encode(hash));
    let search = |hash: &[u8]| format!("/v1/search?q={}", hex::encode(hash));

    // Found by the lookup alone; one that isn't in it is not there.
    let places = HashMap::from([(first.hash.0, vec![place(0)])]);
    let alone = with_lookups(&flow.world, places, false);
    let answer = alone.ok(&path(first.hash.as_slice())).await;
    assert_eq!(answer, flow.world.ok(&path(first.hash.as_slice())).await);
    assert_eq!(answer["data"]["block"]["height"], first.height.to_string());
    assert_eq!(alone.ok(&search(first.hash.as_slice())).await["data"][0]["kind"], "transaction");
    alone.problem(&path(last.hash.as_slice()), 404, "not-found").await;
    // A Flow transaction's own id is found as ever.
    let id = hex32(&flow.ledger.transactions[&first.height][first.flow_tx_index].id);
    assert_eq!(alone.ok(&format!("/v1/transactions/{id}")).await["data"]["id"], id);

    // A lookup that names another block, or one that isn't stored, is passed over.
    let gone = TxPlace { height: Height(9_999), index: 0 };
    let places = HashMap::from([(last.hash.0, vec![place(0), gone]), (first.hash.0, vec![gone, place(0)])]);
    let damaged = with_lookups(&flow.world, places.clone(), true);
    for hash in [&first.hash, &last.hash] {
        let wanted = flow.world.ok(&path(hash.as_slice())).await;
        assert_eq!(damaged.ok(&path(hash.as_slice())).await, wanted);
    }
    let blind = with_lookups(&flow.world, places, false);
    blind.problem(&path(last.hash.as_slice()), 404, "not-found").await;
}

#[tokio::test(start_paused = true)]
async fn a_flow_transaction_says_what_its_evm_transactions_are() {
    let flow = Flow::new().await;
    let (mut failed, mut direct, mut created) = (0, 0, 0);
    for evm in flow.ledger.evm_transactions.values().flatten() {
        let hash = evm.hash.to_string();
        let answer = flow.world.ok(&format!("/v1/transactions/{hash}")).await;
        let list = answer["data"]["flow"]["evm"].as_array().expect("a list");
        let hashes: Vec<&Value> = list.iter().map(|it| &it["hash"]).collect();
        let names = answer["data"]["flow"]["evm_transactions"].as_array().expect("a list");
        assert_eq!(hashes, names.iter().collect::<Vec<_>>());
        let asked: Vec<_> = list.iter().filter(|it| it["is_asked"] == true).collect();
        assert_eq!(asked.len(), 1, "{list:?}");
        let said = asked[0];
        assert_eq!(said["hash"], hash);
        assert_eq!(said["problem"], Value::Null);
        assert_eq!(said["evm_transaction_index"], evm.index);
        assert_eq!(said["type"], evm.tx_type.to_string());
        assert_eq!(said["from"], evm.from.to_string().to_lowercase());
        assert_eq!(said["to"], json!(evm.to.map(|to| to.to_string().to_lowercase())));
        assert_eq!(said["nonce"], evm.nonce.to_string());
        assert_eq!(said["value"], evm.value.to_string());
        assert_eq!(said["gas_limit"], evm.gas_limit.to_string());
        assert_eq!(said["gas_used"], evm.gas_used.to_string());
        assert_eq!(said["gas_price"], evm.gas_price.to_string());
        assert_eq!(said["error_code"], evm.error_code);
        assert_eq!(said["status"], if evm.error_code == 0 { "ok" } else { "failed" });
        assert_eq!(said["error_message"].is_string(), evm.error_code != 0);
        let contract = evm.created.map(|created| created.to_string().to_lowercase());
        assert_eq!(said["contract_address"], json!(contract));
        assert_eq!(said["log_count"], evm.logs.len().to_string());
        assert_eq!(said["direct_call"].is_string(), evm.tx_type == 255);
        failed += u32::from(evm.error_code != 0);
        direct += u32::from(evm.tx_type == 255);
        created += u32::from(evm.created.is_some());
        // By the Flow transaction's own id nothing is what was asked for.
        let id = answer["data"]["id"].as_str().expect("an id");
        let answer = flow.world.ok(&format!("/v1/transactions/{id}?height={}", evm.height)).await;
        let list = answer["data"]["flow"]["evm"].as_array().expect("a list");
        assert!(list.iter().all(|it| it["is_asked"] == false));
    }
    assert!(failed > 0 && direct > 0 && created > 0, "{failed} failed, {direct} direct, {created} creations");
}

#[tokio::test(start_paused = true)]
async fn a_transaction_has_its_fee_tags_and_contracts_where_the_workers_have_come() {
    let flow = Flow::new().await;
    let (mut told, mut imports) = (0, 0);
    for (height, _, tx) in flow.transactions().into_iter().step_by(3) {
        let answer = flow.world.ok(&format!("/v1/transactions/{}?height={height}", hex32(&tx.id))).await;
        let data = &answer["data"];
        match (tx.is_fee_told, tx.is_system) {
            (true, _) => assert_eq!(data["fee"], tx.fee.to_string(), "{height}: {tx:?}"),
            (false, true) => assert_eq!(data["fee"], "0", "{height}: {tx:?}"),
            // Nobody says: it isn't known, unless it shows in what moved.
            (false, false) => assert_ne!(data["fee"], "0", "{height}: {tx:?}"),
        }
        told += u32::from(tx.is_fee_told);
        let tags = data["tags"].as_array().expect("tags");
        assert_eq!(tags.contains(&json!("system")), tx.is_system);
        assert_eq!(tags.contains(&json!("failed")), tx.is_failed);
        let contracts = data["contracts"].as_array().expect("contracts");
        for import in &tx.imports {
            let identifier = format!("A.{}.{}", import.address.bare(), import.name);
            let it = contracts.iter().find(|it| it["identifier"] == identifier).expect("it was touched");
            assert!(it["tags"].as_array().expect("tags").contains(&json!("import")));
            imports += 1;
        }
        let workers = answer["meta"]["required_workers"].as_array().expect("workers");
        assert_eq!(*workers, [json!("tx_metrics_worker"), json!("tx_contracts_worker")]);
    }
    assert!(told > 5 && imports > 5, "{told} fees, {imports} imports");
}

#[tokio::test(start_paused = true)]
async fn without_workers_a_transaction_is_answered_and_its_fee_is_not_known() {
    let flow = Flow::underived().await;
    let (_, _, tx) = flow.one(|tx| tx.is_fee_told);
    let answer = flow.world.ok(&format!("/v1/transactions/{}", hex32(&tx.id))).await;
    for field in ["fee", "tags", "contracts"] {
        assert_eq!(answer["data"][field], Value::Null, "{field}");
    }
    assert_eq!(answer["meta"]["required_workers"], json!([]));
    assert!(answer["meta"]["data_watermark"]["height"].is_string());
}

#[tokio::test(start_paused = true)]
async fn the_transactions_of_an_account_are_embedded() {
    let flow = Flow::new().await;
    let (all, _) = flow.world.pages("/v1/transactions?limit=200").await;
    let by_place = |height: &Value, index: &Value| {
        all.iter().find(|row| row["block_height"] == *height && row["transaction_index"] == *index)
    };
    let (_, _, tx) = flow.one(|_| true);
    let sender = flow.ledger.evm_transactions.values().flatten().next().expect("one").from.to_string();
    for address in [tx.payer.to_string(), sender] {
        let (rows, _) = flow.world.pages(&format!("/v1/accounts/{address}/transactions?limit=7")).await;
        assert!(!rows.is_empty());
        for row in &rows {
            let wanted = by_place(&row["block_height"], &row["transaction_index"]).expect("it is there");
            assert_eq!(row["transaction"], *wanted);
            assert_eq!(row["transaction_id"], wanted["id"]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_items_and_contracts_of_the_evm_side_are_answered_by_the_same_paths() {
    let made =
        GeneratorOptions { rlp_heights: 0, old_heights: 0, has_evm_tokens: true, ..GeneratorOptions::new(5) };
    let generator = Generator::new(made, Behaviour::default());
    generator.grow(80);
    let flow = Flow::grown(&generator).await;
    let name = |byte: u8| format!("0x{}", hex::encode([byte; 20]));
    let evm: Vec<_> = flow.ledger.evm_transactions.values().flatten().collect();
    let created = evm.iter().find_map(|evm| evm.created).expect("a creation").to_string().to_lowercase();
    let (token, single, many, party) = (name(0xe0), name(0xe2), name(0xe3), name(1));
    let lists = [
        format!("/v1/tokens/{token}/transfers"),
        format!("/v1/tokens/{token}/holders"),
        format!("/v1/accounts/{party}/transfers"),
        format!("/v1/accounts/{party}/nft-transfers"),
        format!("/v1/accounts/{party}/holdings"),
        format!("/v1/accounts/{party}/nfts"),
        format!("/v1/accounts/{party}/transactions"),
        format!("/v1/nft-collections/{single}/items"),
        format!("/v1/nft-collections/{many}/owners"),
        format!("/v1/nft-collections/{many}/transfers"),
        format!("/v1/contracts/{token}/transactions"),
    ];
    let things = [
        format!("/v1/tokens/{token}"),
        format!("/v1/nft-collections/{single}"),
        format!("/v1/nft-collections/{many}"),
        format!("/v1/contracts/{created}"),
    ];
    // What isn't derived is refused: it is neither empty nor not there.
    for path in lists.iter().chain(&things) {
        let reply = flow.world.get(path).await;
        assert!(["not-yet", "worker-not-enabled"].contains(&reply.code()), "{path}: {}", reply.text);
    }
    let settings = Settings { network: Some(NETWORK), ..Settings::default() };
    flow.world.derive_by(flow_processors(&settings)).await;
    let document = Document::read(&flow.world).await;
    for path in &lists {
        let reply = flow.world.get(path).await;
        document.check(path, &reply);
        assert!(!reply.json["data"].as_array().expect(path).is_empty(), "{path}");
    }
    for path in &things {
        document.check(path, &flow.world.get(path).await);
        flow.world.ok(path).await;
    }
    // Nobody is asked about the code of a contract of the EVM side, and that is said.
    flow.world.problem(&format!("/v1/contracts/{created}/code"), 501, "worker-not-enabled").await;

    // The transfers of a token are those that its logs say, and its balances their sums.
    let (rows, _) = flow.world.pages(&format!("/v1/tokens/{token}/transfers?limit=50")).await;
    let logs = evm.iter().flat_map(|evm| &evm.logs);
    let logged = logs.filter(|log| log.address.to_string().to_lowercase() == token && log.topics.len() == 3);
    assert_eq!(rows.len(), logged.count());
    let mut sums: BTreeMap<String, i128> = BTreeMap::new();
    for row in &rows {
        let amount: i128 = row["amount"].as_str().expect("text").parse().expect("a number");
        for (party, by) in [("from", -amount), ("to", amount)] {
            *sums.entry(row[party].as_str().expect("text").to_owned()).or_default() += by;
        }
    }
    sums.retain(|party, sum| *party != name(0) && *sum != 0);
    let (holders, _) = flow.world.pages(&format!("/v1/tokens/{token}/holders?limit=3")).await;
    let found: BTreeMap<String, i128> = holders
        .iter()
        .map(|row| {
            let text = |field: &str| row[field].as_str().expect("text").to_owned();
            (text("address"), text("balance").parse().expect("a number"))
        })
        .collect();
    assert_eq!(found, sums);
    // The list of tokens has both sides.
    let (tokens, _) = flow.world.pages("/v1/tokens?limit=50").await;
    let identifiers: Vec<&str> = tokens.iter().filter_map(|row| row["identifier"].as_str()).collect();
    assert!(identifiers.contains(&token.as_str()) && identifiers.iter().any(|it| it.starts_with("A.")));
}
