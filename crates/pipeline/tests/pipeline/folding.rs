//! State that depends on state: what a block does follows from what the blocks before it left, and is the same however they are cut into chunks.

use crate::support;

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_core::{Height, HeightRange, StoredBlock};
use cairn_pipeline::derive::processor::{
    Changes, FoldBlock, FoldState, Folder, ProcessError, Processor, ServiceInfo,
};
use cairn_pipeline::derive::replay::{Deviation, Replay, Slice};
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

/// Folds blocks on from where the replay stands, in chunks of so many.
fn replay_on(replay: &mut Replay, blocks: &[StoredBlock], chunk: usize, finalized: Height) {
    // The store has events of later blocks too.
    let events: Vec<Row> = blocks.iter().map(|block| mark(block.facts.block_ref())).collect();
    let at = replay.next().get() as usize;
    for blocks in blocks[at..].chunks(chunk) {
        let heights = HeightRange::new(replay.next(), blocks[blocks.len() - 1].facts.height.next());
        let of_chunk = events[heights.start().get() as usize..heights.end().get() as usize].to_vec();
        let input = ChunkInput::fold(&LinkWorker, blocks.to_vec(), vec![of_chunk]).unwrap();
        let (mut found, mut asked) = (BTreeMap::new(), 0);
        loop {
            let before = replay.next();
            let wanted = replay.fold(heights, &input, &found, finalized).unwrap();
            if wanted.is_empty() {
                break;
            }
            assert_eq!(replay.next(), before, "nothing is folded while something is wanted");
            assert!(
                wanted.iter().all(|lookup| lookup.table == MARKS.name),
                "its own state it has: {wanted:?}"
            );
            found.extend(wanted.into_iter().map(|lookup| {
                let rows = look(&Rows::new(), &events, &lookup);
                (lookup, rows)
            }));
            asked += 1;
        }
        assert!(asked <= 2, "{asked} times for a chunk of {chunk}");
    }
}

fn table_of(rows: &Rows, table: &'static str) -> Vec<Row> {
    rows.iter().filter(|((name, _), _)| *name == table).map(|(_, row)| row.clone()).collect()
}

/// What differs, of both tables.
fn differences(replay: &Replay, stored: &Rows) -> Vec<(Key, Deviation)> {
    let of = |table: &'static TableDef| {
        let stored = table_of(stored, table.name);
        let (compared, found) = replay.differences(table.name, None, None, &stored).unwrap();
        assert!(compared >= stored.len() as u64);
        found.into_iter().map(|found| (found.key, found.deviation))
    };
    of(&SLOTS).chain(of(&LINKS)).collect()
}

#[test]
fn a_replay_looks_at_the_state_that_it_made_itself() {
    let chain = tiny(5);
    let (main, other) = (chain_of(&chain, MAIN, 60), chain_of(&chain, fork(&chain, 40, 1), 70));
    for chunk in [1, 7, 61] {
        let folder: Arc<dyn Folder> = Arc::new(LinkWorker);
        let mut replay = Replay::new(folder, &catalog(), Slice::ALL, 0, Height(0), usize::MAX).unwrap();
        replay_on(&mut replay, &main, chunk, Height(20));
        let stored = right(&main);
        assert_eq!(differences(&replay, &stored), [], "chunks of {chunk}");

        // Wrong state is found, and nothing that a later block made of it is right because it is stored.
        let mut wrong = stored.clone();
        let first = wrong.iter_mut().find(|((table, _), _)| *table == LINKS.name).unwrap();
        let (key, was) = (first.0.1.clone(), first.1.0[2].clone());
        first.1.0[2] = Value::Bool(was == Value::Bool(false));
        let columns = vec![("is_last", Value::Bool(was == Value::Bool(false)), was)];
        assert_eq!(differences(&replay, &wrong), [(key, Deviation::Columns(columns))]);

        // A reorg is taken back, chunks or not.
        assert!(replay.roll_back(Height(41)) && replay.next() == Height(41));
        assert_eq!(differences(&replay, &right(&main[..41])), [], "chunks of {chunk}");
        replay_on(&mut replay, &other, chunk, Height(20));
        assert_eq!(differences(&replay, &right(&other)), [], "chunks of {chunk}");
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
