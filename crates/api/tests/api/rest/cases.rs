//! Field cases of lists, by number.

use alloy_primitives::{Address, U256};
use cairn_core::{BlockId, Height};
use cairn_explorer::tables::transfers::{EventPlace, FtTransfer, Parties};
use cairn_store::RawReader;
use cairn_store::derived::{
    ChunkCommit, ClaimRequest, Coordinator, DerivedWriter, ReadMark, ReorgApplier, TableRows, WorkerLease,
};
use serde_json::Value;

use super::world::{TOKEN, World, moved, transfer};
use crate::support::made;

fn place_of(row: &Value) -> (u64, u64, u64) {
    let height = row["block_height"].as_str().expect("a height").parse().expect("a number");
    (height, row["event_index"].as_u64().expect("index"), row["sub_index"].as_u64().expect("index"))
}

#[tokio::test(start_paused = true)]
async fn a01_pages_of_a_list_with_ties_show_every_row_once_in_both_directions() {
    // Seven transfers at one time in two blocks.
    let one = made::block_at(
        1,
        1_000,
        BlockId::default(),
        0,
        &[vec![moved(1, 2, 1), moved(1, 2, 2)], vec![moved(1, 2, 3), moved(1, 2, 4)]],
    );
    let two = made::block_at(
        2,
        1_000,
        one.facts.id,
        0,
        &[vec![moved(1, 2, 5)], vec![moved(1, 2, 6), moved(1, 2, 7)]],
    );
    let world = World::new(vec![one, two]).await;
    world.derive().await;
    for path in [
        format!("/v1/tokens/{TOKEN}/transfers?limit=3"),
        format!("/v1/accounts/{}/transfers?limit=3", Address::repeat_byte(1)),
        format!("/v1/accounts/{}/transfers?limit=3&token={TOKEN}", Address::repeat_byte(2)),
    ] {
        let (up, sizes) = world.pages(&format!("{path}&order=asc")).await;
        assert_eq!(sizes, [3, 3, 1], "{path}");
        let amounts: Vec<_> = up.iter().map(|row| row["amount"].as_str().expect("text").to_owned()).collect();
        assert_eq!(amounts, ["1", "2", "3", "4", "5", "6", "7"]);
        assert!(up.windows(2).all(|pair| place_of(&pair[0]) < place_of(&pair[1])));
        let (mut down, sizes) = world.pages(&format!("{path}&order=desc")).await;
        assert_eq!(sizes, [3, 3, 1], "{path}");
        down.reverse();
        assert_eq!(down, up);
    }
}

#[tokio::test(start_paused = true)]
async fn e27_a_self_transfer_is_one_row_of_a_history_and_mints_and_burns_are_flagged() {
    let logs = vec![moved(7, 7, 5), moved(0, 7, 1), moved(7, 0, 1), moved(7, 9, 0)];
    let world = World::new(vec![made::block(0, BlockId::default(), 0, &[logs])]).await;
    world.derive().await;
    let (rows, sizes) =
        world.pages(&format!("/v1/accounts/{}/transfers?limit=2&order=asc", Address::repeat_byte(7))).await;
    assert_eq!(sizes, [2, 2]);
    let said: Vec<_> = rows
        .iter()
        .map(|row| {
            let direction = row["direction"].as_str().expect("a word");
            (direction, row["amount"].as_str().expect("text"), row["is_mint"] == true, row["is_burn"] == true)
        })
        .collect();
    assert_eq!(
        said,
        [
            ("self", "5", false, false),
            ("in", "1", true, false),
            ("out", "1", false, true),
            ("out", "0", false, false)
        ]
    );
    // The zero address is nobody.
    let zero = world.ok(&format!("/v1/accounts/{}", Address::ZERO)).await;
    assert_eq!(zero["data"]["stats"], Value::Null);
}

async fn claim(world: &World) -> WorkerLease {
    let request = ClaimRequest {
        service: "token_worker".into(),
        version: 1,
        owner: "test".into(),
        ttl_ms: 60_000,
        range_heights: 1,
        first: Height(1),
        limit_exclusive: Height(8),
        stop_exclusive: None,
        in_order: false,
    };
    world.app.claim(&request).await.expect("claims").expect("a range")
}

async fn commit(world: &World, lease: &WorkerLease) {
    let height = lease.range.start();
    let snapshot = world.store.snapshot().await.expect("snapshot");
    let linked = snapshot.linked_ref(height).await.expect("reads").expect("a block");
    let address = |byte: u8| Some(Address::repeat_byte(byte).to_vec().into());
    let row = FtTransfer {
        place: EventPlace {
            block_height: height.get(),
            transaction_id: vec![height.get() as u8; 32].into(),
            event_index: 0,
            sub_index: 0,
            transaction_index: 0,
            block_timestamp_ms: 12_000,
        },
        parties: Parties {
            contract_address: TOKEN.to_vec().into(),
            contract_name: String::new(),
            from_address: address(1),
            to_address: address(2),
            is_mint: false,
            is_burn: false,
        },
        amount: U256::from(height.get()),
        kind: "erc20".into(),
        affects_balance: true,
    };
    let commit = ChunkCommit {
        chunk: lease.range,
        parent_id: Some(linked.parent_id),
        last_id: Some(linked.block.id),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: None,
        rows: vec![TableRows { table: "ft_transfers", rows: vec![row.to_row()] }],
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(0),
        ttl_ms: 60_000,
    };
    world.app.commit_chunk(lease, commit).await.expect("commits");
}

fn heights(page: &Value) -> Vec<&str> {
    page["data"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| row["block_height"].as_str().expect("text"))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a04_a_list_ends_at_the_watermark_and_goes_on_with_the_old_cursor() {
    let world = World::new(made::chain(1, 7, BlockId::default(), 0, |_| vec![])).await;
    let head = world.store.snapshot().await.expect("snapshot").head().clone();
    world.app.adopt(head.info.uuid, head.newest_reorg).await.expect("adopts");
    let list = format!("/v1/tokens/{TOKEN}/transfers?order=asc");
    world.problem(&list, 501, "worker-not-enabled").await;
    world.app.register("token_worker", Height(1)).await.expect("registers");
    world.problem(&list, 503, "not-yet").await;
    let mut leases = Vec::new();
    for _ in 0..7 {
        leases.push(claim(&world).await);
    }
    for at in [0, 1, 2, 3, 4, 6] {
        commit(&world, &leases[at]).await;
    }
    let page = world.ok(&list).await;
    assert_eq!(heights(&page), ["1", "2", "3", "4", "5"]);
    assert_eq!(page["page"]["next"], Value::Null);
    assert_eq!(page["meta"]["data_watermark"]["height"], "5");
    assert_eq!(page["meta"]["required_workers"][0], "token_worker");
    let mark = world.ok("/v1/blocks/5").await;
    for name in ["height", "id", "timestamp_ms", "timestamp"] {
        assert_eq!(page["meta"]["data_watermark"][name], mark["data"][name]);
    }

    commit(&world, &leases[5]).await;
    world.app.repair_checkpoints().await.expect("repairs");
    let resume = page["page"]["resume"].as_str().expect("a cursor");
    let more = world.ok(&format!("{list}&cursor={resume}")).await;
    assert_eq!(heights(&more), ["6", "7"]);
    assert_eq!(more["meta"]["data_watermark"]["height"], "7");
    // Nothing new: the cursor stays good.
    let resume = more["page"]["resume"].as_str().expect("a cursor");
    let none = world.ok(&format!("{list}&cursor={resume}")).await;
    assert_eq!(heights(&none), Vec::<&str>::new());
    assert_eq!(none["page"]["resume"], resume);
}

#[tokio::test(start_paused = true)]
async fn a05_heights_amounts_and_times_beyond_2_53_are_exact_strings() {
    let height = (1 << 53) + 1;
    let log = transfer(TOKEN, Address::ZERO, Address::repeat_byte(9), U256::MAX);
    let twice = vec![log.clone(), log];
    let world =
        World::new(vec![made::block_at(height, 1_671_316_629, BlockId::default(), 0, &[twice])]).await;
    world.derive().await;
    let block = world.ok("/v1/blocks/9007199254740993").await;
    assert_eq!(block["data"]["height"], "9007199254740993");
    assert_eq!(block["data"]["timestamp_ms"], "1671316629000");
    assert_eq!(block["data"]["timestamp"], "2022-12-17T22:37:09Z");
    let list = world.ok(&format!("/v1/tokens/{TOKEN}/transfers")).await;
    assert_eq!(list["data"][0]["block_height"], "9007199254740993");
    assert_eq!(list["data"][0]["amount"], U256::MAX.to_string());
    let holders = world.ok(&format!("/v1/tokens/{TOKEN}/holders")).await;
    let twice = "231584178474632390847141970017375815706539969331281128078915168015826259279870";
    assert_eq!(holders["data"][0]["balance"], twice);
    // Small ones are strings too.
    assert_eq!(list["meta"]["chain_id"], "1337");
    assert!(list["page"]["limit"].is_u64());
}

#[tokio::test(start_paused = true)]
async fn a06_a_cursor_belongs_to_its_list_and_filters() {
    let world = World::new(made::chain(0, 5, BlockId::default(), 0, |_| vec![vec![moved(1, 2, 3)]])).await;
    world.derive().await;
    let list = format!("/v1/accounts/{}/transfers?limit=2", Address::repeat_byte(1));
    let page = world.ok(&list).await;
    let next = page["page"]["next"].as_str().expect("more");
    assert_eq!(heights(&world.ok(&format!("{list}&cursor={next}")).await), ["2", "1"]);
    // Another page size is the same list.
    let wider = format!("/v1/accounts/{}/transfers?limit=200", Address::repeat_byte(1));
    assert_eq!(heights(&world.ok(&format!("{wider}&cursor={next}")).await), ["2", "1", "0"]);
    let cut = &next[..next.len() - 3];
    for path in [
        format!("{list}&cursor={cut}"),
        format!("{list}&cursor="),
        format!("{list}&cursor=null"),
        format!("{list}&cursor={}", "A".repeat(5_000)),
        format!("{list}&order=asc&cursor={next}"),
        format!("{list}&token={TOKEN}&cursor={next}"),
        format!("/v1/accounts/{}/transfers?limit=2&cursor={next}", Address::repeat_byte(2)),
        format!("/v1/accounts/{}/nft-transfers?cursor={next}", Address::repeat_byte(1)),
        format!("/v1/tokens/{TOKEN}/transfers?cursor={next}"),
        format!("/v1/blocks?cursor={next}"),
        format!("/v1/transactions?cursor={next}"),
    ] {
        let problem = world.problem(&path, 400, "invalid-cursor").await;
        assert_eq!(problem["parameter"], "cursor");
    }
    for limit in ["0", "201", "-1", "4294967296", "1e2", "", "a"] {
        world.problem(&format!("/v1/blocks?limit={limit}"), 400, "invalid-parameter").await;
    }
}

#[tokio::test(start_paused = true)]
async fn p09_an_address_is_found_in_any_spelling() {
    let address: Address = "0x52908400098527886E0F7030069857D2E4169EE7".parse().expect("an address");
    let log = transfer(TOKEN, Address::ZERO, address, U256::from(5));
    let world = World::new(vec![made::block(0, BlockId::default(), 0, &[vec![log]])]).await;
    world.derive().await;
    let mut answers = Vec::new();
    for spelling in [
        "0x52908400098527886e0f7030069857d2e4169ee7",
        "0x52908400098527886E0F7030069857D2E4169EE7",
        "0X52908400098527886E0F7030069857D2E4169EE7",
        "52908400098527886e0f7030069857d2e4169ee7",
        "0x52908400098527886E0f7030069857d2e4169Ee7",
    ] {
        answers.push(world.get(&format!("/v1/accounts/{spelling}/holdings")).await.text);
    }
    assert!(answers[0].contains("\"balance\":\"5\""), "{}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]));
}
