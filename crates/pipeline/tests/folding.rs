//! State that depends on state: what a block does follows from what the blocks before it left, and is the same however they are cut into chunks.
#![allow(clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::{Height, HeightRange, StoredBlock};
use cairn_pipeline::derive::processor::{
    Changes, FoldBlock, FoldState, Folder, ProcessError, Processor, ServiceInfo,
};
use cairn_pipeline::derive::state::{ChunkInput, ChunkState, Found, Lookup};
use cairn_pipeline::derive::{DeriveError, DeriveOptions};
use cairn_source::evm::synthetic::{ForkId, SyntheticChain};
use cairn_store::derived::{Key, Row, TableDef, Value};

use support::derive::{ALL_SLOTS, Derived, LINKS, LinkWorker, MARKS, SLOTS, catalog, mark, marks, slot};
use support::{MAIN, fork, tiny};

type Rows = BTreeMap<(&'static str, Key), Row>;
/// What undoes a block: its height and the row, and what that was before it.
type Undo = BTreeMap<(Height, &'static str, Key), Option<Row>>;

/// What the store has for a lookup.
fn look(rows: &Rows, events: &[Row], lookup: &Lookup) -> Found {
    let catalog = catalog();
    let table = catalog.table(lookup.table).unwrap();
    let columns = table.index_columns(lookup.index).unwrap();
    let fits = |row: &&Row| columns.iter().zip(&lookup.prefix).all(|(&at, value)| row.0[at] == *value);
    let of_table = rows.iter().filter(|((name, _), _)| *name == lookup.table).map(|(_, row)| row);
    let events = events.iter().filter(|_| lookup.table == MARKS.name);
    let mut rows: Vec<Row> = of_table.chain(events).filter(fits).cloned().collect();
    let is_whole = rows.len() <= lookup.limit;
    rows.truncate(lookup.limit);
    Found { rows, is_whole }
}

/// Folds blocks in chunks of so many; says how many rounds the longest chunk took.
fn fold(blocks: &[StoredBlock], chunk: usize, finalized: Height) -> (Rows, Undo, usize) {
    let (mut rows, mut undo, mut most) = (Rows::new(), Undo::new(), 0);
    let events: Vec<Row> = blocks.iter().map(|block| mark(block.facts.block_ref())).collect();
    for (at, blocks) in blocks.chunks(chunk).enumerate() {
        let of_chunk = events[at * chunk..][..blocks.len()].to_vec();
        let seen = &events[..at * chunk + blocks.len()];
        let input = ChunkInput::fold(&LinkWorker, blocks.to_vec(), vec![of_chunk]).unwrap();
        let mut state = ChunkState::new(&LinkWorker, &catalog(), finalized).unwrap();
        let mut missing = state.touched_by(&input).unwrap();
        for round in 1.. {
            for (table, key) in missing.places {
                let row = rows.get(&(table, key.clone())).cloned();
                state.give(table, key, row);
            }
            for lookup in missing.lookups {
                let found = look(&rows, seen, &lookup);
                state.give_found(lookup, found);
            }
            let mut worked = state.clone();
            let (errors, more) = worked.run(&LinkWorker, &input).unwrap();
            assert_eq!(errors, []);
            if !more.is_empty() {
                missing = more;
                continue;
            }
            most = most.max(round);
            for of_table in worked.into_rows() {
                let table = catalog().table(of_table.table).unwrap().clone();
                for changed in of_table.rows {
                    let key = table.key_of(&changed.row);
                    for (height, before) in changed.undo {
                        assert!(undo.insert((height, table.name(), key.clone()), before).is_none());
                    }
                    rows.insert((table.name(), key), changed.row);
                }
            }
            break;
        }
    }
    (rows, undo, most)
}

/// What is right, by hand.
fn right(blocks: &[StoredBlock]) -> Rows {
    let mut slots: BTreeMap<i64, (i64, Value, u64)> = BTreeMap::new();
    let mut links: BTreeMap<Vec<u8>, [Value; 7]> = BTreeMap::new();
    for (at, block) in blocks.iter().enumerate() {
        let (id, height) = (block.facts.id.as_bytes(), block.facts.height.get());
        let slot = slot(id);
        if !slots.contains_key(&slot) {
            let all = slots.entry(ALL_SLOTS).or_insert((0, Value::Null, 0));
            *all = (all.0 + 1, Value::Null, height);
        }
        let of_slot = slots.entry(slot).or_insert((0, Value::Null, 0));
        let before = std::mem::replace(&mut of_slot.1, Value::bytes(id));
        (of_slot.0, of_slot.2) = (of_slot.0 + 1, height);
        if let Value::Bytes(before) = &before {
            let link = links.get_mut(&before[..]).unwrap();
            (link[2], link[6]) = (Value::Bool(false), Value::uint(height));
        }
        let link = [
            Value::bytes(id),
            Value::Int(slot),
            Value::Bool(true),
            before,
            // Once the one before is not the last, it alone is.
            Value::Int(1),
            Value::Bool(at > 0),
            Value::uint(height),
        ];
        links.insert(id.to_vec(), link);
    }
    let slots = slots.into_iter().map(|(slot, (blocks, last, height))| {
        let row = Row(vec![Value::Int(slot), Value::Int(blocks), last, Value::uint(height)]);
        ((SLOTS.name, Key(vec![Value::Int(slot)])), row)
    });
    let links =
        links.into_values().map(|link| ((LINKS.name, Key(vec![link[0].clone()])), Row(link.to_vec())));
    slots.chain(links).collect()
}

fn chain_of(chain: &SyntheticChain, fork: ForkId, last: u64) -> Vec<StoredBlock> {
    let heights = HeightRange::inclusive(Height(0), Height(last));
    heights.iter().map(|height| (*chain.block(fork, height)).clone().into()).collect()
}

#[test]
fn every_cut_into_chunks_leaves_the_same_state_and_the_same_way_back() {
    for seed in 0..8 {
        let blocks = chain_of(&tiny(seed), MAIN, 60);
        let finalized = Height(20);
        let (rows, undo, _) = fold(&blocks, 1, finalized);
        assert_eq!(rows, right(&blocks));
        assert!(undo.keys().all(|(height, ..)| *height >= finalized));
        for chunk in [2, 7, 25, blocks.len()] {
            let (again, undo_again, rounds) = fold(&blocks, chunk, finalized);
            assert_eq!(again, rows, "chunks of {chunk}");
            assert_eq!(undo_again, undo, "chunks of {chunk}");
            assert!(rounds <= 4, "{rounds} rounds in a chunk of {chunk}");
        }
        // Going back block by block passes through every state there was.
        let mut state = rows.clone();
        for height in (finalized.get()..=60).rev() {
            for ((_, table, key), before) in undo
                .range((Height(height), "", Key(Vec::new()))..)
                .take_while(|((at, ..), _)| at.get() == height)
            {
                match before {
                    Some(row) => state.insert((table, key.clone()), row.clone()),
                    None => state.remove(&(*table, key.clone())),
                };
            }
            assert_eq!(state, right(&blocks[..height as usize]), "before {height}");
        }
    }
}

struct Foreign;

impl Folder for Foreign {
    fn service(&self) -> &'static ServiceInfo {
        LinkWorker.service()
    }
    fn reads(&self) -> &'static [&'static TableDef] {
        LinkWorker.reads()
    }
    fn fold(&self, _block: &FoldBlock<'_>, _changes: &mut Changes) -> Result<(), ProcessError> {
        Ok(())
    }
    fn looks_at_state(&self) -> bool {
        true
    }

    fn fold_with_state(&self, _block: &FoldBlock<'_>, state: &mut FoldState<'_>) -> Result<(), ProcessError> {
        state.row(&support::derive::COUNTS, Key(vec![Value::text("all")]));
        Ok(())
    }
}

#[test]
fn a_folder_that_names_a_foreign_table_is_told() {
    let blocks = chain_of(&tiny(1), MAIN, 2);
    let state = |folder: &dyn Folder| {
        let input = ChunkInput::fold(folder, blocks.clone(), vec![Vec::new()])?;
        ChunkState::new(folder, &catalog(), Height(0))?.run(folder, &input)
    };
    assert!(state(&LinkWorker).is_ok());
    assert!(matches!(state(&Foreign), Err(DeriveError::Invalid(what)) if what.contains("counts")));
}

#[tokio::test(start_paused = true)]
async fn state_that_follows_from_state_stands_through_reorgs() {
    let chain = tiny(5);
    let other = fork(&chain, 30, 1);
    for chunk_heights in [1, 2, 7] {
        let world = Derived::new(chain.clone(), 40).await;
        let links = || Processor::Folder(Arc::new(LinkWorker) as Arc<dyn Folder>);
        let options = DeriveOptions { chunk_heights, apply_rows: 3, ..world.options() };
        let working = world.start(vec![marks(|_, _| Ok(())), links()], options);
        let found = async || -> Rows {
            let mut rows = Rows::new();
            for table in [&SLOTS, &LINKS] {
                for row in world.rows(table.name).await {
                    rows.insert((table.name, catalog().table(table.name).unwrap().key_of(&row)), row);
                }
            }
            rows
        };
        world.until_next("link_worker", 41).await;
        assert_eq!(found().await, right(&chain_of(&chain, MAIN, 40)), "chunks of {chunk_heights}");
        world.reorg(30, other, 45).await;
        world.until_next("link_worker", 46).await;
        assert_eq!(found().await, right(&chain_of(&chain, other, 45)), "chunks of {chunk_heights}");
        working.stop().await.unwrap();
    }
}
