//! Every path over a small synthetic chain; and every answer against the document that is served.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use cairn_core::{Height, Parts};
use cairn_evm::DecodedBlock;
use cairn_store::RawReader;
use serde_json::{Value, json};

use super::world::{BLOCKS, Reply, World, synthetic};

/// The document, in which every object may have exactly the members that it names.
pub struct Document {
    paths: Value,
    components: Value,
}

impl Document {
    pub async fn read(world: &World) -> Document {
        let mut document = world.ok("/v1/openapi.json").await;
        close(&mut document["components"]["schemas"]);
        Document { paths: document["paths"].take(), components: document["components"].take() }
    }

    /// The template of a path.
    pub fn template(&self, path: &str) -> &str {
        let path = path.split('?').next().unwrap_or(path);
        let fits = |template: &str| {
            let (a, b): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
            a.len() == b.len() && a.iter().zip(&b).all(|(a, b)| a == b || a.starts_with('{'))
        };
        let all = self.paths.as_object().expect("paths");
        let exact = all.keys().find(|template| *template == path);
        exact.or_else(|| all.keys().find(|template| fits(template))).unwrap_or_else(|| panic!("{path}"))
    }

    /// Demands that an answer is as the document says.
    pub fn check(&self, path: &str, reply: &Reply) {
        let template = self.template(path);
        let status = reply.status.as_str();
        let content = &self.paths[template]["get"]["responses"][status]["content"][reply.content_type()];
        assert!(content.is_object(), "{path}: {status} {} is not documented", reply.content_type());
        let schema = json!({ "allOf": [content["schema"]], "components": self.components });
        let validator = jsonschema::validator_for(&schema).expect("a schema");
        let errors: Vec<_> = validator
            .iter_errors(&reply.json)
            .map(|error| format!("{} {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{path}: {errors:?}\n{}", reply.text);
    }
}

/// Allows no further members in objects that aren't parts of others.
fn close(schemas: &mut Value) {
    let within_parts: BTreeSet<&str> = ["Problem", "Extra"].into();
    for (name, schema) in schemas.as_object_mut().expect("schemas") {
        if schema.get("properties").is_some() && !within_parts.contains(name.as_str()) {
            schema["additionalProperties"] = false.into();
        }
    }
}

async fn filled() -> World {
    let world = World::new(synthetic(BLOCKS)).await;
    world.derive().await;
    world
}

fn first(page: &Value, field: &str) -> String {
    match &page["data"][0][field] {
        Value::String(text) => text.clone(),
        other => panic!("{field} is {other} in {page}"),
    }
}

/// A path of every kind that has an answer.
async fn paths(world: &World) -> Vec<String> {
    let token = first(&world.ok("/v1/tokens?limit=1").await, "address");
    let collection = first(&world.ok("/v1/nft-collections?limit=1").await, "address");
    let item = first(&world.ok(&format!("/v1/nft-collections/{collection}/items")).await, "id");
    let nft_owner = first(&world.ok(&format!("/v1/nft-collections/{collection}/owners")).await, "address");
    let holder = first(&world.ok(&format!("/v1/tokens/{token}/holders")).await, "address");
    let contract = world.ok("/v1/contracts").await;
    let (creator, contract) = (first(&contract, "creator"), first(&contract, "address"));
    let transfer = world.ok(&format!("/v1/tokens/{token}/transfers")).await;
    let tx = first(&transfer, "transaction_id");
    let log = world.ok(&format!("/v1/logs?address={token}")).await;
    let topic = log["data"][0]["topics"][0].as_str().expect("a topic").to_owned();
    let block = first(&world.ok("/v1/blocks").await, "id");
    vec![
        "/v1/status".into(),
        "/v1/blocks".into(),
        "/v1/blocks?order=asc&limit=3".into(),
        "/v1/blocks/7".into(),
        format!("/v1/blocks/{block}"),
        format!("/v1/blocks/{block}/transactions"),
        "/v1/transactions?limit=200".into(),
        format!("/v1/transactions/{tx}"),
        format!("/v1/transactions/{tx}?events=true"),
        format!("/v1/transactions/{tx}/events?limit=1"),
        format!("/v1/transactions/{tx}/raw"),
        format!("/v1/transactions/{tx}/transfers"),
        format!("/v1/accounts/{holder}"),
        format!("/v1/accounts/{contract}"),
        format!("/v1/accounts/{holder}/transactions"),
        format!("/v1/accounts/{holder}/transfers"),
        format!("/v1/accounts/{nft_owner}/nft-transfers"),
        format!("/v1/accounts/{holder}/holdings"),
        format!("/v1/accounts/{nft_owner}/nfts"),
        format!("/v1/accounts/{creator}/contracts"),
        "/v1/tokens".into(),
        "/v1/tokens?sort=address".into(),
        format!("/v1/tokens/{token}"),
        format!("/v1/tokens/{token}/holders"),
        format!("/v1/tokens/{token}/transfers"),
        "/v1/nft-collections".into(),
        "/v1/nft-collections?sort=address".into(),
        format!("/v1/nft-collections/{collection}"),
        format!("/v1/nft-collections/{collection}/items"),
        format!("/v1/nft-collections/{collection}/items/{item}"),
        format!("/v1/nft-collections/{collection}/items/{item}/owners"),
        format!("/v1/nft-collections/{collection}/owners"),
        format!("/v1/nft-collections/{collection}/transfers"),
        format!("/v1/nft-collections/{collection}/transfers?item={item}"),
        "/v1/contracts".into(),
        format!("/v1/contracts/{contract}"),
        format!("/v1/contracts/{contract}/code"),
        format!("/v1/contracts/{token}/transactions?limit=3"),
        format!("/v1/logs?address={token}&topic0={topic}&from=1&to=30"),
        format!("/v1/logs?topic0={topic}&order=asc"),
        "/v1/stats/daily".into(),
        "/v1/stats/daily?from=2000-01-01&to=2100-01-01&order=asc".into(),
        "/v1/search?q=7".into(),
        format!("/v1/search?q={block}"),
        format!("/v1/search?q={tx}"),
        format!("/v1/search?q={token}"),
        "/v1/search?q=coin".into(),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_path_answers_as_its_document_says() {
    let world = filled().await;
    let document = Document::read(&world).await;
    let mut seen = BTreeSet::new();
    for path in paths(&world).await {
        let reply = world.get(&path).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.text);
        document.check(&path, &reply);
        assert!(reply.json["meta"]["data_watermark"]["height"].is_string(), "{path}");
        seen.insert(document.template(&path).to_owned());
        if let Some(next) = reply.json["page"]["next"].as_str() {
            let more = format!("{path}{}cursor={next}", if path.contains('?') { '&' } else { '?' });
            document.check(&path, &world.get(&more).await);
        }
    }
    let all: BTreeSet<String> = document.paths.as_object().expect("paths").keys().cloned().collect();
    let missed: Vec<_> = all.difference(&seen).collect();
    // Those of Flow alone are asked in flow.rs; here no worker fills their tables.
    let of_flow = [
        "/v1/accounts/{address}/keys",
        "/v1/contracts/{address}/versions",
        "/v1/flow/evm/absences",
        "/v1/flow/evm/blocks",
        "/v1/flow/evm/gaps",
        "/v1/flow/evm/splits",
    ];
    let mut wanted = vec!["/v1/blocks/stream"];
    wanted.extend(of_flow);
    wanted.sort_unstable();
    assert_eq!(missed, wanted);
    for path in of_flow {
        let path = path.replace("{address}", &"ab".repeat(20));
        let reply = world.get(&path).await;
        assert_eq!((reply.status.as_u16(), reply.code()), (501, "worker-not-enabled"), "{path}");
        document.check(&path, &reply);
    }
    for (path, status) in [
        ("/v1/blocks/1000", 404),
        ("/v1/blocks/x", 400),
        ("/v1/transactions?cursor=x", 400),
        ("/v1/accounts/x", 400),
    ] {
        let reply = world.get(path).await;
        assert_eq!(reply.status.as_u16(), status);
        document.check(path, &reply);
    }
}

#[tokio::test(start_paused = true)]
async fn lists_have_what_the_chain_has() {
    let world = filled().await;
    let snapshot = world.store.snapshot().await.expect("snapshot");
    let (mut ids, mut logs, mut per_block) = (Vec::new(), Vec::new(), Vec::new());
    let parts = Parts::all() - Parts::TRACES;
    for height in 0..BLOCKS {
        let stored = snapshot.block(Height(height), parts).await.expect("reads").expect("a block");
        let block = DecodedBlock::decode(&stored).expect("decodes");
        per_block.push(block.transactions.len());
        ids.extend(block.transactions.iter().map(|tx| tx.id.to_string()));
        logs.extend(block.logs().map(|(_, log)| (height, log.clone())));
    }
    let (rows, _) = world.pages("/v1/transactions?order=asc&limit=7").await;
    let listed: Vec<_> = rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect();
    assert_eq!(listed, ids);
    let (mut down, _) = world.pages("/v1/transactions?limit=7").await;
    down.reverse();
    assert_eq!(down, rows);
    let (blocks, _) = world.pages("/v1/blocks?limit=7").await;
    assert_eq!(blocks.len() as u64, BLOCKS);
    for (height, count) in per_block.iter().enumerate() {
        let page = world.pages(&format!("/v1/blocks/{height}/transactions?limit=2")).await;
        assert_eq!(page.0.len(), *count);
        assert_eq!(blocks[blocks.len() - 1 - height]["transaction_count"], count.to_string());
    }
    // Logs by each of their terms.
    for (height, log) in logs.iter().step_by(17) {
        let mut terms = vec![format!("address={}", log.address)];
        terms.extend(log.topics.iter().enumerate().map(|(n, topic)| format!("topic{n}={topic}")));
        for query in [terms[0].clone(), terms[terms.len() - 1].clone(), terms.join("&")] {
            let (found, _) =
                world.pages(&format!("/v1/logs?limit=50&{query}&from={height}&to={height}")).await;
            let it = found.iter().find(|row| row["log_index"] == log.log_index).expect("the log");
            assert_eq!(it["data"], format!("0x{}", hex::encode(&log.data)));
            assert_eq!(it["topics"].as_array().map(Vec::len), Some(log.topics.len()));
        }
    }
    // A transaction by itself equals its row, and its events those of the block.
    for row in rows.iter().step_by(11) {
        let id = row["id"].as_str().expect("an id");
        let one = world.ok(&format!("/v1/transactions/{id}?events=true")).await;
        for field in [
            "id",
            "status",
            "from",
            "to",
            "contract_address",
            "nonce",
            "value",
            "gas_used",
            "effective_gas_price",
            "type",
        ] {
            assert_eq!(one["data"][field], row[field], "{field} of {id}");
        }
        assert_eq!(one["data"]["block"]["height"], row["block_height"]);
        let (events, _) = world.pages(&format!("/v1/transactions/{id}/events?limit=1")).await;
        assert_eq!(one["data"]["events"], Value::Array(events));
        let raw = world.ok(&format!("/v1/transactions/{id}/raw")).await;
        assert!(raw["data"]["transaction"].as_str().is_some_and(|bytes| bytes.len() > 100));
    }
}

#[tokio::test(start_paused = true)]
async fn search_finds_names_by_their_beginning_in_any_case() {
    let world = filled().await;
    let all = world.ok("/v1/search?q=coin").await;
    assert!(all["data"].as_array().is_some_and(|found| found.len() > 3), "{all}");
    let upper = world.ok("/v1/search?q=COIN").await;
    assert_eq!(upper["data"], all["data"]);
    // Names are kept cleaned, and what is searched for is cleaned alike.
    let name = all["data"][0]["name"].as_str().expect("a name");
    for (from, to) in [(" ", "%09"), (" ", "%E2%80%8B%20"), ("", "%20%20")] {
        let odd = match from {
            "" => format!("{to}{}", name.replace(' ', "%20")),
            _ => name.replace(from, to),
        };
        let found = world.ok(&format!("/v1/search?q={odd}")).await;
        assert!(
            found["data"].as_array().expect("a list").iter().any(|one| one["name"] == name),
            "{odd}: {found}"
        );
    }
    assert_eq!(world.ok("/v1/search?q=%00").await["data"].as_array().map(Vec::len), Some(0));
    assert_eq!(world.ok("/v1/search?q=xyz").await["data"].as_array().map(Vec::len), Some(0));
    let number = world.ok("/v1/search?q=12").await;
    assert_eq!(
        (number["data"][0]["kind"].as_str(), number["data"][0]["height"].as_str()),
        (Some("block"), Some("12"))
    );
}

#[tokio::test(start_paused = true)]
async fn the_page_about_the_document_needs_nothing_else() {
    let world = filled().await;
    let page = world.get("/v1/docs").await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.text.contains("GET /v1/tokens/{address}/holders") && page.text.contains("id=\"reorged\""));
    for outside in ["http://", "https://", "<script", "src=", "@import"] {
        assert!(!page.text.contains(outside), "{outside}");
    }
}
