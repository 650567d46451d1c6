//! Archives that begin in the middle of a chain: what is summed up there lacks what was before, and every answer says from where it counts (law 2).

use alloy_primitives::{Address, B256, Bytes, Log, LogData, U256, keccak256};
use cairn_core::{BlockId, RawBlock};
use cairn_explorer::processors::{Settings, evm_processors};
use serde_json::{Value, json};

use super::endpoints::Document;
use super::flow::{Flow, ROOT, TIP};
use super::world::{TOKEN, World, moved};
use crate::support::made;

/// 100 are minted to 1 at block 3; 1 gives 40 to 3 at block 12, and 2, who has none that anybody minted here, gives 1 to 1 at block 15.
fn chain(first: u64) -> Vec<RawBlock> {
    let mut blocks = made::chain(0, 20, BlockId::default(), 0, |height| match height {
        3 => vec![vec![moved(0, 1, 100), moved(0, 2, 5)]],
        12 => vec![vec![moved(1, 3, 40)]],
        15 => vec![vec![moved(2, 1, 1)]],
        _ => Vec::new(),
    });
    blocks.drain(..first as usize);
    blocks
}

fn balances(page: &Value) -> Vec<(String, String)> {
    let text = |row: &Value, field: &str| row[field].as_str().expect("text").to_owned();
    let rows = page["data"].as_array().expect("rows").iter();
    rows.map(|row| (text(row, "address"), text(row, "balance"))).collect()
}

/// Which of the rows are below 0, and why they may be.
fn reasons(page: &Value) -> Vec<Value> {
    let rows = page["data"].as_array().expect("rows").iter();
    rows.filter(|row| row["balance"].as_str().expect("text").starts_with('-'))
        .map(|row| row["below_zero"].clone())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn an_archive_of_evm_from_the_middle_says_from_where_it_counts() {
    let name = |byte: u8| format!("0x{}", hex::encode(Address::repeat_byte(byte)));
    let pairs = |of: &[(u8, &str)]| -> Vec<(String, String)> {
        of.iter().map(|(byte, balance)| (name(*byte), (*balance).to_owned())).collect()
    };
    let paths = [
        format!("/v1/tokens/{TOKEN}/holders"),
        format!("/v1/tokens/{TOKEN}"),
        "/v1/tokens".to_owned(),
        format!("/v1/accounts/{}", name(3)),
        format!("/v1/accounts/{}/holdings", name(3)),
        format!("/v1/accounts/{}/nfts", name(3)),
        format!("/v1/accounts/{}/transactions", name(3)),
        "/v1/nft-collections".to_owned(),
        format!("/v1/nft-collections/{TOKEN}/items"),
        format!("/v1/nft-collections/{TOKEN}/owners"),
        "/v1/stats/daily".to_owned(),
        "/v1/blocks".to_owned(),
        "/v1/status".to_owned(),
    ];
    // From the chain's first block on, sums are whole, and nothing else is said. From block 1 on, they aren't known to be.
    for (first, says, holders) in [
        (0, Value::Null, pairs(&[(1, "61"), (3, "40"), (2, "4")])),
        (1, json!("1"), pairs(&[(1, "61"), (3, "40"), (2, "4")])),
        (10, json!("10"), pairs(&[(3, "40"), (2, "-1"), (1, "-39")])),
        (13, json!("13"), pairs(&[(1, "1"), (2, "-1")])),
    ] {
        let world = World::new(chain(first)).await;
        world.derive_by(evm_processors(&Settings::default())).await;
        let document = Document::read(&world).await;
        for path in &paths {
            let reply = world.get(path).await;
            document.check(path, &reply);
            assert_eq!(reply.json["meta"]["counts_from_height"], says, "{path} from {first}");
        }
        let shown = world.ok(&paths[0]).await;
        assert_eq!(balances(&shown), holders, "from {first}");
        assert!(reasons(&shown).iter().all(|reason| *reason == json!("archive-begins-later")));
        // Page by page, over the gap at 0.
        let path = format!("{}?limit=1", paths[0]);
        let (rows, _) = world.pages(&path).await;
        assert_eq!(balances(&json!({ "data": rows })), holders, "from {first}, page by page");
        // What an account owes stands among its holdings.
        for (holder, balance) in holders {
            let page = world.ok(&format!("/v1/accounts/{holder}/holdings")).await;
            assert_eq!(page["data"][0]["balance"], balance, "{holder} from {first}");
        }
    }
    let world = World::new(Vec::new()).await;
    assert_eq!(world.ok("/v1/blocks").await["meta"]["counts_from_height"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn a_balance_below_zero_is_shown_with_what_may_explain_it() {
    // 2 gives away what nobody gave it, of a token and of a collection, though the archive has the chain's first block.
    let item = |from: u8, to: u8, id: u64| {
        let word = |byte: u8| Address::repeat_byte(byte).into_word();
        let topics = vec![
            keccak256("Transfer(address,address,uint256)"),
            word(from),
            word(to),
            B256::from(U256::from(id)),
        ];
        Log { address: TOKEN, data: LogData::new_unchecked(topics, Bytes::new()) }
    };
    let blocks = made::chain(0, 3, BlockId::default(), 0, |height| match height {
        1 => vec![vec![moved(2, 1, 7), moved(3, 0, 5), item(2, 1, 9)]],
        _ => Vec::new(),
    });
    let world = World::new(blocks).await;
    world.derive_by(evm_processors(&Settings::default())).await;
    let document = Document::read(&world).await;
    let two = format!("0x{}", hex::encode(Address::repeat_byte(2)));
    for (path, balance) in [
        (format!("/v1/accounts/{two}/holdings"), "-7"),
        (format!("/v1/accounts/{two}/nfts"), "-1"),
        (format!("/v1/tokens/{TOKEN}/holders"), "-7"),
        (format!("/v1/nft-collections/{TOKEN}/owners"), "-1"),
        (format!("/v1/nft-collections/{TOKEN}/items/9/owners"), "-1"),
    ] {
        let reply = world.get(&path).await;
        document.check(&path, &reply);
        let rows = reply.json["data"].as_array().expect("rows");
        let owed = rows.iter().find(|row| row["balance"] == balance).expect(&path);
        assert_eq!(owed["below_zero"], "untold-by-events", "{path}");
        assert!(rows.iter().all(|row| row["balance"] != "0"), "{path}: {}", reply.text);
        let above = rows.iter().filter(|row| !row["balance"].as_str().expect("text").starts_with('-'));
        assert!(above.clone().all(|row| row["below_zero"].is_null()), "{path}");
    }
    let token = world.ok(&format!("/v1/tokens/{TOKEN}")).await;
    assert_eq!(token["meta"]["wrapped_tokens"], json!([format!("0x{:040x}", 1_337)]), "whose deposits count");
    assert_eq!(world.ok("/v1/blocks").await["meta"]["wrapped_tokens"], Value::Null, "no balances");
    assert_eq!(token["data"]["net_minted"], "-5");
    assert_eq!(token["data"]["below_zero"], "untold-by-events");
    assert_eq!(token["data"]["holder_count"], "1", "who owes holds nothing");
}

#[tokio::test(start_paused = true)]
async fn an_archive_of_flow_from_the_middle_says_from_where_it_counts_and_what_it_does_not_know() {
    let first = ROOT + 85;
    let flow = Flow::from_height(first).await;
    let world = &flow.world;
    let document = Document::read(world).await;

    let (before, now) = (flow.ledger.balances(first - 1), flow.ledger.balances(TIP));
    let (mut shown, mut differ) = (0, 0);
    for (token, holder) in now.keys() {
        let path = format!("/v1/accounts/{holder}/holdings");
        let reply = world.get(&path).await;
        document.check(&path, &reply);
        assert_eq!(reply.json["meta"]["counts_from_height"], first.to_string());
        let identifier = format!("A.{}.{}", token.address.bare(), token.name);
        let at = |of: &std::collections::BTreeMap<_, u64>| {
            i128::from(of.get(&(token.clone(), *holder)).copied().unwrap_or_default())
        };
        let rows = reply.json["data"].as_array().expect("rows");
        let balance = rows.iter().find(|row| row["identifier"] == identifier.as_str());
        let Some(balance) = balance.and_then(|row| row["balance"].as_str()) else {
            assert_eq!(at(&now), at(&before), "{identifier} of {holder} is not shown");
            continue;
        };
        assert_eq!(balance, (at(&now) - at(&before)).to_string(), "{identifier} of {holder}");
        shown += 1;
        differ += usize::from(at(&before) > 0);
    }
    assert!(shown > 5 && differ > 0, "{shown} balances, {differ} of them from before");

    let (mut known, mut unknown) = (0, 0);
    for (address, account) in flow.ledger.accounts.all_at(TIP) {
        let path = format!("/v1/accounts/{address}");
        let reply = world.get(&path).await;
        document.check(&path, &reply);
        let said = &reply.json["data"]["flow"];
        let is_seen = account.created_height.is_some_and(|height| height >= first);
        let counts = if is_seen {
            known += 1;
            [json!(account.keys.len().to_string()), json!(account.contracts.len().to_string())]
        } else {
            unknown += 1;
            [Value::Null, Value::Null]
        };
        assert_eq!([&said["key_count"], &said["contract_count"]], [&counts[0], &counts[1]], "{address}");
        assert_eq!(said["created_height"].is_null(), !is_seen, "{address}");
        assert_eq!(reply.json["meta"]["counts_from_height"], first.to_string());
    }
    assert!(known > 0 && unknown > 1, "{known} accounts created here, {unknown} before");
}
