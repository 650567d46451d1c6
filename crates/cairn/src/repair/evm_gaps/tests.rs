//! Which gaps one repair comes to.

use alloy_primitives::B256;
use cairn_core::BlockId;
use cairn_explorer::names::EVM_CHAIN_WORKER;
use cairn_explorer::tables::flow::evm::{EVM_BLOCKS, EVM_GAPS, EvmBlockRow, evm_gap};
use cairn_store::ReorgMark;
use cairn_store::derived::{
    ChunkCommit, ClaimRequest, FoldedAt, ReadMark, Row, StateRow, StateRows, TableRows, Value,
};

use super::*;
use crate::chain::settings::{ChainKind, FlowNetwork};

mod cut_off;

/// The first Flow block, and how many there are.
const FIRST: u64 = 100;
const HEIGHTS: u64 = 60;

fn evm_block(block_height: u64, evm_height: u64) -> Row {
    let row = EvmBlockRow {
        block_height,
        evm_height,
        evm_hash: B256::ZERO,
        evm_parent_hash: B256::ZERO,
        transaction_id: vec![1; 32].into(),
        transaction_index: 0,
        block_timestamp_ms: 0,
        evm_timestamp_s: 0,
        gas_used: 0,
        transaction_count: 0,
    };
    row.to_row()
}

/// A gap of one EVM block.
fn gap(evm_height: u64, seen_at: u64) -> StateRow {
    let mut values: Vec<Value> =
        evm_gap("gap", evm_height, evm_height, seen_at).0.into_iter().flatten().collect();
    values.push(Value::uint(seen_at));
    StateRow { row: Row(values), undo: vec![(Height(seen_at), None)] }
}

/// Lets a worker have made all heights, with these rows.
async fn done(app: &dyn AppStore, service: &str, rows: Vec<TableRows>, states: Vec<StateRows>) {
    app.register(service, Height(FIRST)).await.expect("registers");
    let is_folder = !states.is_empty();
    let request = ClaimRequest {
        service: service.into(),
        version: 1,
        owner: "test".into(),
        ttl_ms: 60_000,
        // A range is cut at a multiple of it.
        range_heights: FIRST + HEIGHTS,
        first: Height(FIRST),
        limit_exclusive: Height(FIRST + HEIGHTS),
        stop_exclusive: None,
        in_order: is_folder,
    };
    let lease = app.claim(&request).await.expect("claims").expect("a range");
    let commit = ChunkCommit {
        chunk: HeightRange::new(lease.range.start(), Height(FIRST + HEIGHTS)),
        parent_id: Some(BlockId([1; 32])),
        last_id: Some(BlockId([2; 32])),
        read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: is_folder.then_some(FoldedAt::applied(0)),
        rows,
        states,
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(0),
        ttl_ms: 60_000,
    };
    app.commit_chunk(&lease, commit).await.expect("commits");
}

#[tokio::test]
async fn f04_a_repair_comes_to_some_open_gaps_within_bounds_and_later_ones_to_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config { data_dir: dir.path().into(), ..Config::default() };
    config.chain.kind = Some(ChainKind::Flow);
    config.chain.network = Some(FlowNetwork::from(Network::Emulator));
    let app = derive::open_for_command(&config).await.expect("opens");
    let processors = derive::processors(&config, derive::Asked::default(), None).expect("workers");
    let find = async |range: Option<HeightRange>, gaps: usize, blocks: u64| {
        find::find(&*app, &processors, range, Bounds { gaps, blocks }).await.expect("looks")
    };
    let nothing = find(None, 10, 1_000).await;
    assert_eq!((nothing.gaps, nothing.report), (Vec::new(), Report::default()), "nothing is derived yet");

    // Each tenth Flow block has an EVM block, of which every second is missing. The first one has turned up.
    app.adopt([7; 16], ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
    let mut blocks: Vec<Row> = (0..6).map(|place| evm_block(FIRST + 10 * place, 2 * place)).collect();
    blocks.push(evm_block(FIRST + 3, 1));
    done(&*app, EVM_WORKER, vec![TableRows { table: EVM_BLOCKS.name, rows: blocks }], Vec::new()).await;
    let gaps = (0..5).map(|place| gap(2 * place + 1, FIRST + 10 * (place + 1))).collect();
    done(&*app, EVM_CHAIN_WORKER, Vec::new(), vec![StateRows { table: EVM_GAPS.name, rows: gaps }]).await;

    let all = find(None, 10, 1_000).await;
    let told: Vec<_> = all.gaps.iter().map(|gap| (gap.from_evm_height, gap.blocks)).collect();
    let range = |from: u64, to: u64| HeightRange::inclusive(Height(from), Height(to));
    assert_eq!(
        told,
        [(3, range(110, 120)), (5, range(120, 130)), (7, range(130, 140)), (9, range(140, 150))]
    );
    assert_eq!(all.report.gaps_open, Some(4));
    assert!(all.report.notes.kept()[0].contains("EVM blocks 1 to 1 have turned up"), "{:?}", all.report);

    let mut seen = BTreeSet::new();
    for _ in 0..200 {
        let some = find(None, 2, 1_000).await;
        assert_eq!(some.gaps.len(), 2);
        assert!(some.report.notes.kept().iter().any(|note| note.contains("more gaps")), "{:?}", some.report);
        seen.extend(some.gaps.iter().map(|gap| gap.from_evm_height));
    }
    assert_eq!(seen, BTreeSet::from([3, 5, 7, 9]));
    let mut seen = BTreeSet::new();
    for _ in 0..200 {
        let part = find(Some(range(112, 115)), 10, 4).await;
        assert_eq!((part.gaps.len(), part.gaps[0].from_evm_height, part.gaps[0].blocks.len()), (1, 3, 4));
        seen.extend(part.gaps[0].blocks.iter());
    }
    assert_eq!(seen.len(), 11, "all of its blocks come to their turn");

    // Somebody has read none of these blocks yet, or reads them now.
    app.register("token_worker", Height(FIRST)).await.expect("registers");
    let waiting = find(None, 10, 1_000).await;
    assert_eq!((waiting.gaps.len(), waiting.report.notes.count()), (0, 5));
    assert!(
        waiting.report.to_string().contains("are asked for when token_worker has made"),
        "{}",
        waiting.report
    );
}
