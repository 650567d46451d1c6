//! Flow blocks in rows: collections, execution results, scripts by hash, and what transactions say; put together again byte for byte.

use crate::support::pg;

use std::sync::Arc;

use bytes::Bytes;
use cairn_backends::postgres::raw::{LookupFault, PartitionSizes, Repaired};
use cairn_backends::postgres::{PgPool, PgRawOptions, PgRawStore};
use cairn_core::{BlockLayout, ChainId, Height, HeightRange, Parts, RawBlock, SystemClock, TxId};
use cairn_flow::proto::{CollectionGuarantee, TransactionResult};
use cairn_flow::{BlockParts, FlowLayout, Network, assemble};
use cairn_flow_node::{Behaviour, Draft, Generator, GeneratorOptions, Ledger};
use cairn_store::layout::{TxBytes, cut, rebuild_body, rebuild_receipts};
use cairn_store::suite::blocks::as_stored;
use cairn_store::{
    AppendBatch, MemoryPayloads, PurgeProgress, RawDump, RawFiller, RawReader, RawWriter, Rollback,
    StoreInfo, TxPlace,
};
use proptest::prelude::*;

const INLINE_MAX_BYTES: u64 = 200;

fn info() -> StoreInfo {
    StoreInfo { uuid: [7; 16], chain_id: ChainId(747), chain_config: Default::default() }
}

fn options(db: &pg::TestDb) -> PgRawOptions {
    PgRawOptions {
        layout: Arc::new(FlowLayout::new(Network::Emulator)),
        partitions: PartitionSizes::all(20),
        payload_inline_max_bytes: INLINE_MAX_BYTES,
        ..PgRawOptions::with(db.options())
    }
}

fn batch(blocks: &[RawBlock]) -> AppendBatch {
    AppendBatch { blocks: blocks.to_vec(), ..AppendBatch::default() }
}

/// A block whose transactions have whatever a transaction may have. `fork` tells blocks of one height apart.
fn block(height: u64, fork: u8, parent_fork: u8) -> RawBlock {
    let mut draft = Draft::new(height, &[3, 0, 4][..(height % 4).min(3) as usize], (height % 3) as u32);
    // A collection without a transaction is no block that a node gives.
    let is_in = |guarantee: &CollectionGuarantee| {
        draft.transactions.iter().any(|(_, result)| result.collection_id == guarantee.collection_id)
    };
    draft.block.collection_guarantees =
        draft.block.collection_guarantees.iter().filter(|of| is_in(of)).cloned().collect();
    let id = |height: u64, fork: u8| {
        let mut id = vec![height as u8; 32];
        id[0] = fork;
        Bytes::from(id)
    };
    draft.block.id = id(height, fork);
    draft.block.parent_id = id(height.wrapping_sub(1), parent_fork);
    let shared = "transaction(a: Int, b: String) { prepare(signer: auth(Storage) &Account) {} }";
    for (index, (tx, result)) in draft.transactions.iter_mut().enumerate() {
        result.block_id = id(height, fork);
        if result.collection_id.iter().all(|byte| *byte == 0) {
            continue;
        }
        tx.script = match index % 5 {
            0 | 1 => shared.into(),
            2 => Bytes::from_static(&[0xff, 0xfe, 0]),
            3 => "has a \0 in it".into(),
            _ => Bytes::new(),
        };
        tx.arguments = (0..index % 4).map(|n| format!(r#"{{"type":"Int","value":"{n}"}}"#).into()).collect();
        if index == 1 {
            tx.arguments.push(vec![b'x'; 2 * INLINE_MAX_BYTES as usize].into());
        }
        tx.authorizers = (0..index % 3).map(|n| Bytes::from(vec![n as u8 + 1; 8])).collect();
        if index == 2 {
            result.status_code = 1;
            result.error_message = "[Error Code: 1101] \0 panic".into();
        }
        result.computation_usage = 100 + index as u64;
        // Ids come from the transaction's bytes, and a result names its own.
        let tx_id = cairn_flow::id::transaction_id(tx);
        *result =
            TransactionResult { transaction_id: Bytes::copy_from_slice(tx_id.as_bytes()), ..result.clone() };
        for event in &mut result.events {
            event.transaction_id = result.transaction_id.clone();
        }
    }
    draft.name_collections();
    match draft.execution_result.as_mut().filter(|_| height % 5 != 4) {
        Some(result) => {
            result.chunks.retain(|chunk| chunk.number_of_transactions > 0);
            result.block_id = id(height, fork);
            result.previous_result_id = vec![height as u8; 20 * (height % 20) as usize].into();
        }
        None => draft.execution_result = None,
    }
    assemble(&draft.parts()).expect("is whole")
}

fn chain(to: u64) -> Vec<RawBlock> {
    (0..to).map(|height| block(height, 0, 0)).collect()
}

async fn number(pool: &PgPool, query: &str) -> i64 {
    let row = pool.get().await.expect("connects").query_one(query, &[]).await.expect("answers");
    row.try_get(0).expect("a number")
}

async fn begun(options: PgRawOptions) -> PgRawStore {
    let store = PgRawStore::open(options, None).await.expect("opens");
    store.init(info()).await.expect("init");
    store
}

async fn assert_reads(store: &PgRawStore, blocks: &[RawBlock]) {
    let snapshot = store.snapshot().await.expect("reads");
    for block in blocks {
        let height = block.facts.height;
        let found = snapshot.block(height, Parts::all()).await.expect("reads").expect("is there");
        assert_eq!(found, as_stored(block, Parts::all()), "{height}");
        for parts in [Parts::HEADER, Parts::BODY, Parts::RECEIPTS, Parts::EXTRAS, Parts::TRANSACTIONS] {
            let found = snapshot.block(height, parts).await.expect("reads").expect("is there");
            assert_eq!(found, as_stored(block, parts), "{height} {parts:?}");
        }
    }
}

#[tokio::test]
async fn flow_blocks_stand_in_their_tables_and_come_back() {
    let Some(db) = pg::database().await else { return };
    let store = begun(options(&db)).await;
    let blocks = chain(45);
    let fence = store.acquire().await.expect("acquire").fence;
    for part in blocks.chunks(10) {
        store.append(fence, batch(part)).await.expect("appends");
        // An answer that was lost.
        store.append(fence, batch(part)).await.expect("is the same");
    }
    assert_reads(&store, &blocks).await;
    let pool = store.pool();
    let txs: usize = blocks.iter().map(|block| block.transactions.len()).sum();
    assert_eq!(number(pool, "SELECT count(*) FROM raw.transactions").await, txs as i64);
    let collections = "SELECT count(*) FROM raw.collections WHERE (block_height, collection_index, transaction_count, id) IN ";
    let ids: Vec<_> = blocks[3].transactions.iter().map(|tx| tx.id).collect();
    let named = |txs: &[cairn_core::TxId]| hex::encode(cairn_flow::id::collection_id(txs));
    let third = format!(
        "{collections} ((3, 0, 3, '\\x{}'::bytea), (3, 1, 4, '\\x{}'::bytea))",
        named(&ids[..3]),
        named(&ids[3..7])
    );
    assert_eq!(number(pool, &third).await, 2);
    assert_eq!(number(pool, "SELECT count(*) FROM raw.collections WHERE block_height = 4").await, 0);
    // One without, of five.
    assert_eq!(number(pool, "SELECT count(*) FROM raw.execution_results").await, 36);
    let elsewhere = "SELECT count(*) FROM raw.blocks b LEFT JOIN raw.execution_results r ON r.block_height = b.height \
                     AND r.block_id = b.id WHERE (b.extras IS NOT NULL) OR (r.id IS NULL) <> (b.height % 5 = 4)";
    assert_eq!(number(pool, elsewhere).await, 0, "extras stand once");
    // The shared one and that of the system; two can't be text, and the empty one is not there.
    assert_eq!(number(pool, "SELECT count(*) FROM raw.scripts").await, 2);
    let named = "SELECT count(*) FROM raw.transactions t JOIN raw.scripts s ON s.script_hash = t.script_hash \
                 WHERE s.script_hash <> sha256(convert_to(s.script_text, 'UTF8')) OR position(convert_to('signer', 'UTF8') IN t.body) > 0";
    assert_eq!(number(pool, named).await, 0, "a script stands once");
    let second = "SELECT count(*) FROM raw.transactions WHERE block_height = 3 AND transaction_index = 2 AND script_hash IS NULL \
                  AND arguments = ARRAY[convert_to('{\"type\":\"Int\",\"value\":\"0\"}', 'UTF8'), convert_to('{\"type\":\"Int\",\"value\":\"1\"}', 'UTF8')] \
                  AND proposer = '\\x0000000000000009' AND payer = proposer AND authorizers = '{\"\\\\x0101010101010101\",\"\\\\x0202020202020202\"}' \
                  AND status = 0 AND error LIKE '[Error Code: 1101]%panic' AND computation = 102";
    assert_eq!(number(pool, second).await, 1);
    // The same as where blocks stay whole.
    let Some(other) = pg::database().await else { return };
    let whole =
        begun(PgRawOptions { partitions: PartitionSizes::all(20), ..PgRawOptions::with(other.options()) })
            .await;
    let fence = whole.acquire().await.expect("acquire").fence;
    whole.append(fence, batch(&blocks)).await.expect("appends");
    let dump = whole.dump().await.expect("dumps");
    assert_eq!(store.dump().await.expect("dumps").first_difference(&dump), None);
}

#[tokio::test]
async fn a_block_that_leaves_the_chain_takes_its_rows_along_and_stays_readable() {
    let Some(db) = pg::database().await else { return };
    let payloads = Arc::new(MemoryPayloads::new(Arc::new(SystemClock)));
    let store = PgRawStore::open_with_payloads(options(&db), None, payloads).await.expect("opens");
    store.init(info()).await.expect("init");
    let blocks = chain(34);
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(&blocks)).await.expect("appends");
    assert_reads(&store, &blocks).await;
    let pool = store.pool();
    let scripts = number(pool, "SELECT count(*) FROM raw.scripts").await;
    assert!(
        number(pool, "SELECT count(*) FROM raw.execution_results WHERE payload_ref IS NOT NULL").await > 0
    );
    assert!(
        number(
            pool,
            "SELECT count(*) FROM raw.transactions WHERE arguments IS NULL AND payload_ref IS NOT NULL"
        )
        .await
            > 0
    );
    let common = blocks[25].block_ref();
    let rollback = Rollback { common, max_depth: 100, decided_at_ms: 1 };
    let entry = store.rollback(fence, rollback).await.expect("rolls back");
    while store.purge_step(fence, 3).await.expect("purges") != PurgeProgress::Done {}
    for table in ["collections", "execution_results", "transactions", "events"] {
        let left = format!("SELECT count(*) FROM raw.{table} WHERE block_height > 25");
        assert_eq!(number(pool, &left).await, 0, "{table}");
    }
    assert_eq!(number(pool, "SELECT count(*) FROM raw.scripts").await, scripts);
    assert!(number(pool, "SELECT count(*) FROM raw.orphan_collections").await > 0);
    assert!(number(pool, "SELECT count(*) FROM raw.orphan_execution_results").await > 0);
    for block in &blocks[26..] {
        let found =
            store.snapshot().await.expect("reads").orphan(entry.id, block.facts.id, Parts::all()).await;
        assert_eq!(found.expect("reads").expect("is there"), as_stored(block, Parts::all()));
    }
    let mut fork: Vec<RawBlock> = vec![block(26, 9, 0)];
    fork.extend((27..60).map(|height| block(height, 9, 9)));
    store.append(fence, batch(&fork)).await.expect("appends");
    assert_reads(&store, &[&blocks[..26], &fork[..]].concat()).await;
    while store.prune_orphans(fence, 10, 4).await.expect("prunes") > 0 {}
    for table in ["orphan_collections", "orphan_execution_results", "orphan_transactions"] {
        assert_eq!(number(pool, &format!("SELECT count(*) FROM raw.{table}")).await, 0, "{table}");
    }
}

#[tokio::test]
async fn filled_blocks_have_their_rows_and_repair_puts_lost_ones_again() {
    let Some(db) = pg::database().await else { return };
    let store = begun(options(&db)).await;
    let blocks = chain(30);
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(&blocks[..10])).await.expect("appends");
    let lease = store.claim_range("w", 60_000, 30, Height(30)).await.expect("claims").expect("a range");
    assert_eq!(lease.range, HeightRange::new(Height(10), Height(30)));
    store.fill(&lease, blocks[10..].to_vec(), 60_000).await.expect("fills");
    store.append(fence, batch(&blocks[10..])).await.expect("passes over what is filled");
    assert_reads(&store, &blocks).await;
    for statement in [
        "DELETE FROM raw.scripts",
        "DELETE FROM raw.execution_results WHERE block_height = 12",
        "DELETE FROM raw.collections WHERE block_height = 13",
        "UPDATE raw.transactions SET arguments = NULL WHERE block_height = 11",
    ] {
        db.sql(statement).await;
    }
    let snapshot = store.snapshot().await.expect("reads");
    assert!(snapshot.block(Height(12), Parts::EXTRAS).await.is_err());
    assert!(snapshot.block(Height(11), Parts::BODY).await.is_err());
    drop(snapshot);
    for block in &blocks {
        store.repair_block(block.clone()).await.expect("repairs");
    }
    assert_reads(&store, &blocks).await;
    let third = "SELECT count(*) FROM raw.collections WHERE block_height = 13";
    assert_eq!(number(store.pool(), third).await, 1);
}

/// Blocks of a made-up chain in which EVM transactions stand.
fn generated(blocks: u64, is_odd: bool) -> (Vec<RawBlock>, Ledger) {
    let options = GeneratorOptions { is_odd, ..GeneratorOptions::new(5) };
    let generator = Generator::new(options, Behaviour::default());
    generator.grow(blocks);
    let state = generator.state();
    let state = state.lock().expect("not poisoned");
    let raw = state.chain.blocks().map(|served| {
        let parts = BlockParts {
            block: served.block.clone(),
            transactions: served.transactions.iter().map(|tx| tx.transaction.clone()).collect(),
            results: served.transactions.iter().map(|tx| tx.result.clone()).collect(),
            execution_result: served.execution_result.clone(),
        };
        assemble(&parts).expect("is whole")
    });
    (raw.collect(), state.ledger.clone())
}

#[tokio::test]
async fn f04_evm_hashes_are_looked_up_and_their_lookups_mended_both_ways() {
    let Some(db) = pg::database().await else { return };
    let store = begun(PgRawOptions { partitions: PartitionSizes::all(2_000), ..options(&db) }).await;
    let (blocks, ledger) = generated(150, false);
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(&blocks)).await.expect("appends");
    let all = HeightRange::new(blocks[0].facts.height, Height(5_000));
    let evm: Vec<_> = ledger.evm_transactions.values().flatten().collect();
    assert!(evm.len() > 10, "{}", evm.len());
    let place = |height: u64, index: usize| TxPlace { height: Height(height), index: index as u32 };
    let find = async |hash: [u8; 32], range: HeightRange| {
        let snapshot = store.snapshot().await.expect("reads");
        snapshot.find_evm(hash, range).await.expect("reads").expect("this store has such lookups")
    };
    let assert_all_found = async || {
        for tx in &evm {
            assert_eq!(find(tx.hash.0, all).await, [place(tx.height, tx.flow_tx_index)]);
        }
    };
    assert_all_found().await;
    let (first, last) = (evm[0], evm[evm.len() - 1]);
    assert_eq!(find([0xab; 32], all).await, []);
    assert_eq!(find(last.hash.0, HeightRange::one(Height(last.height - 1))).await, []);
    assert_eq!(store.repair_lookups(all).await.expect("repairs"), Repaired::default());
    assert_eq!(store.repair_evm_lookups(all).await.expect("repairs"), Repaired::default());

    // Whose transaction is gone: passed over, and removed by what looks at rows alone.
    let hex = |bytes: &[u8]| format!("decode('{}', 'hex')", hex::encode(bytes));
    db.sql(&format!(
        "INSERT INTO raw.evm_lookup (height, evm_index, evm_hash, tx_id) VALUES ({}, 99, {}, {})",
        first.height,
        hex(&[0xab; 32]),
        hex(&[0xcd; 32])
    ))
    .await;
    assert_eq!(find([0xab; 32], all).await, []);
    let repaired = store.repair_lookups(all).await.expect("repairs");
    assert_eq!((repaired.lookups_removed, repaired.lookups_written), (1, 0));

    // Lost, of another transaction that is there, and invented in a block without any.
    let other = &ledger.transactions[&last.height].iter().rfind(|tx| tx.is_system).expect("one").id;
    let without = blocks.iter().map(|block| block.facts.height.get());
    let without = without.into_iter().find(|height| !ledger.evm_transactions.contains_key(height));
    let without = without.expect("a block without EVM transactions");
    let there = ledger.transactions[&without][0].id;
    db.sql(&format!(
        "DELETE FROM raw.evm_lookup WHERE evm_hash = {};
         UPDATE raw.evm_lookup SET tx_id = {} WHERE evm_hash = {};
         INSERT INTO raw.evm_lookup (height, evm_index, evm_hash, tx_id) VALUES ({without}, 0, {}, {})",
        hex(&first.hash.0),
        hex(other),
        hex(&last.hash.0),
        hex(&[0xef; 32]),
        hex(&there)
    ))
    .await;
    assert_eq!(find(first.hash.0, all).await, []);
    // What stands in rows alone says nothing against these.
    assert_eq!(store.repair_lookups(all).await.expect("repairs"), Repaired::default());
    // They are named, and named again: an audit changes nothing.
    let fault = |height, missing, strange| LookupFault { height: Height(height), missing, strange };
    let mut faults = vec![fault(first.height, 1, 0), fault(last.height, 1, 1), fault(without, 0, 1)];
    faults.sort_by_key(|fault| fault.height);
    for _ in 0..2 {
        assert_eq!(store.audit_evm_lookups(all, 100).await.expect("looks"), faults);
    }
    let one = HeightRange::one(Height(last.height));
    assert_eq!(store.audit_evm_lookups(one, 100).await.expect("looks"), [fault(last.height, 1, 1)]);
    let repaired = store.repair_evm_lookups(all).await.expect("repairs");
    assert_eq!((repaired.lookups_removed, repaired.lookups_written), (2, 2));
    assert_eq!(store.repair_evm_lookups(all).await.expect("repairs"), Repaired::default());
    assert_eq!(store.audit_evm_lookups(all, 100).await.expect("looks"), []);
    assert_all_found().await;
    assert_eq!(find([0xef; 32], all).await, []);
    // A block that is written again has its lookups again.
    db.sql("DELETE FROM raw.evm_lookup").await;
    let at = blocks.iter().find(|block| block.facts.height.get() == last.height).expect("the block");
    store.repair_block(at.clone()).await.expect("repairs");
    assert_eq!(find(last.hash.0, all).await, [place(last.height, last.flow_tx_index)]);
}

#[tokio::test]
async fn i06_lookups_of_evm_transactions_without_rows_are_taken_out_of_the_way_of_appends_and_fills() {
    let Some(db) = pg::database().await else { return };
    let store = begun(PgRawOptions { partitions: PartitionSizes::all(2_000), ..options(&db) }).await;
    let (blocks, ledger) = generated(150, false);
    let fence = store.acquire().await.expect("acquire").fence;
    let all = HeightRange::new(blocks[0].facts.height, Height(5_000));
    let (stored, coming) = blocks.split_at(100);
    let from = coming[0].facts.height;
    let count = "SELECT count(*) FROM raw.evm_lookup";
    store.append(fence, batch(&blocks)).await.expect("appends");
    let clean = number(store.pool(), count).await;
    let above = format!("SELECT count(*) FROM raw.evm_lookup WHERE height >= {from}");
    assert!(number(store.pool(), &above).await > 0, "some of them lie above the common block");
    db.sql(&format!("CREATE TABLE public.kept AS SELECT * FROM raw.evm_lookup WHERE height >= {from}")).await;
    let assert_is_whole = async || {
        assert_eq!(number(store.pool(), count).await, clean);
        assert_eq!(store.repair_lookups(all).await.expect("looks"), Repaired::default());
        assert_eq!(store.repair_lookups_above_head().await.expect("looks"), 0);
        assert_eq!(store.audit_evm_lookups(all, 100).await.expect("looks"), []);
    };
    let take_back = async || {
        let common = stored[stored.len() - 1].block_ref();
        store
            .rollback(fence, Rollback { common, max_depth: 100, decided_at_ms: 0 })
            .await
            .expect("rolls back");
        while store.purge_step(fence, 30).await.expect("purges") != PurgeProgress::Done {}
        db.sql("INSERT INTO raw.evm_lookup SELECT * FROM public.kept").await;
    };
    take_back().await;
    store.append(fence, batch(coming)).await.expect("appends");
    assert_is_whole().await;

    take_back().await;
    let stop = coming[coming.len() - 1].facts.height.next();
    let claimed = store.claim_range("w", 60_000, 1_000_000, stop).await.expect("claims");
    store.fill(&claimed.expect("a range"), coming.to_vec(), 60_000).await.expect("fills");
    store.advance(fence).await.expect("advances");
    assert_is_whole().await;

    // One that names a transaction that is there is nobody's to remove.
    take_back().await;
    let evm = ledger.evm_transactions.range(from.get()..).flat_map(|(_, of)| of).next().expect("one");
    let hash = hex::encode(evm.hash.0);
    db.sql(&format!(
        "UPDATE raw.evm_lookup SET tx_id = '\\xabcd' WHERE evm_hash = decode('{hash}', 'hex');
         INSERT INTO raw.transactions (block_height, transaction_index, event_count, status, id, sender)
         VALUES ({}, 999, 0, 1, '\\xabcd', '\\x00')",
        evm.height
    ))
    .await;
    let refused = store.append(fence, batch(coming)).await.expect_err("two transactions claim one place");
    assert!(refused.to_string().contains("evm_lookup_pkey"), "{refused}");
    let kept = format!("SELECT count(*) FROM raw.evm_lookup WHERE evm_hash = decode('{hash}', 'hex')");
    assert_eq!(number(store.pool(), &kept).await, 1);
}

/// Cut by its layout and put together again: body and receipts.
fn again(block: &RawBlock) -> (Vec<u8>, Vec<u8>) {
    let slices = FlowLayout::new(Network::Emulator).slices(block).expect("a Flow block can be cut");
    assert_eq!((slices.details.len(), slices.collections.len()), (block.transactions.len(), 1));
    let pieces = cut(block, &slices).expect("the slices fit");
    let bodies: Vec<TxBytes<'_>> = pieces
        .transactions
        .iter()
        .map(|tx| TxBytes { body: &tx.body, script: tx.script, arguments: &tx.arguments })
        .collect();
    let results: Vec<(&[u8], u32)> =
        pieces.transactions.iter().map(|tx| (&tx.result[..], tx.event_count)).collect();
    let events: Vec<&[u8]> = pieces.events.iter().map(|event| event.payload).collect();
    (
        rebuild_body(&pieces.body_skeleton, &pieces.layout, &bodies).expect("is rebuilt"),
        rebuild_receipts(&pieces.receipts_skeleton, &pieces.layout, &results, &events).expect("is rebuilt"),
    )
}

proptest! {
    #[test]
    fn whatever_a_flow_block_holds_is_cut_and_put_together_again(
        txs in prop::collection::vec(
            (
                prop::collection::vec(any::<u8>(), 0..60),
                prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..4),
                // What follows the message's own fields: nothing, the script once more, an argument, or a field from a newer node.
                0_usize..4,
            ),
            1..5,
        ),
        events in 0_u32..3,
    ) {
        let mut draft = Draft::new(7, &[txs.len()], events);
        for ((tx, result), (script, arguments, _)) in draft.transactions.iter_mut().zip(&txs) {
            tx.script = script.clone().into();
            tx.arguments = arguments.iter().cloned().map(Bytes::from).collect();
            // An old node's answer, which is taken at the order's word.
            result.transaction_id = Bytes::new();
            for event in &mut result.events {
                event.transaction_id = Bytes::new();
            }
        }
        let mut parts = draft.parts();
        for (message, (_, _, more)) in parts.transactions.iter_mut().zip(&txs) {
            let more: &[u8] = [&b""[..], b"\x0a\x02{}", b"\x12\x01x", b"\xea\x04\x03new"][*more];
            *message = [&message[..], more].concat().into();
        }
        draft.name_collections_of(&mut parts);
        let block = assemble(&parts).expect("is whole");
        let (body, receipts) = again(&block);
        prop_assert_eq!(body, block.body.to_vec());
        prop_assert_eq!(receipts, block.receipts.to_vec());
    }
}

/// Transactions that stand in a block twice, and in two blocks; indexes that are left out behind service events.
#[tokio::test]
async fn f18_blocks_of_an_odd_chain_are_put_together_again_and_every_place_is_found() {
    let Some(db) = pg::database().await else { return };
    let store = begun(PgRawOptions { partitions: PartitionSizes::all(2_000), ..options(&db) }).await;
    let (blocks, ledger) = generated(120, true);
    let fence = store.acquire().await.expect("acquire").fence;
    store.append(fence, batch(&blocks)).await.expect("appends");
    let snapshot = store.snapshot().await.expect("reads");
    for block in &blocks {
        let read = snapshot.block(block.facts.height, Parts::all()).await.expect("reads");
        assert_eq!(read, Some(as_stored(block, Parts::all())));
    }
    let mut repeated = 0;
    for tx in ledger.transactions.values().flatten().filter(|tx| !tx.is_system) {
        let mut expected = Vec::new();
        for (height, transactions) in &ledger.transactions {
            let of_id = (0..).zip(transactions).filter(|(_, other)| other.id == tx.id);
            expected.extend(of_id.map(|(index, _)| TxPlace { height: Height(*height), index }));
        }
        let all = snapshot.head().range();
        assert_eq!(snapshot.places_of_tx(TxId(tx.id), all, 10).await.expect("reads"), expected);
        repeated += usize::from(expected.len() > 1);
    }
    assert!(repeated > 10, "{repeated}");
    let all = HeightRange::new(blocks[0].facts.height, Height(5_000));
    assert_eq!(store.repair_lookups(all).await.expect("repairs"), Repaired::default());
}
