//! A reader of the app store: whatever it sees must be one fork, whole, up to exactly a checkpoint, at every moment of a reorg too.

use std::collections::{BTreeMap, BTreeSet};

use cairn_core::{BlockRef, Height, HeightRange};
use cairn_source::evm::synthetic::{ForkId, SyntheticChain};
use cairn_store::StoreError;
use cairn_store::derived::{
    Change, DerivedCheckpoint, DerivedReader, DerivedSnapshot, Key, LeaseFilter, LoggedError, Row, Scan,
    Severity, Table, TableDef, U256, Value,
};

use super::DerivedSide;
use super::processors::{self, ASKS, MARKS, NAMES, SENDERS, SERVICES, TOTALS, TXS};

/// The tables as they are right for one fork.
struct Right {
    txs: Vec<Row>,
    marks: Vec<Row>,
    senders: BTreeMap<Key, Row>,
    totals: Option<Row>,
}

/// Blocks that a mapper can never process.
type Holes = BTreeSet<(&'static str, Height)>;

fn right(chain: &SyntheticChain, fork: ForkId, heights: HeightRange, holes: &Holes) -> Result<Right, String> {
    let text = |error: StoreError| error.to_string();
    let (senders_table, totals_table) =
        (Table::new(&SENDERS).map_err(text)?, Table::new(&TOTALS).map_err(text)?);
    let mut right = Right { txs: Vec::new(), marks: Vec::new(), senders: BTreeMap::new(), totals: None };
    let mut last_sender = Value::Null;
    for height in heights.iter() {
        let block = chain.block(fork, height);
        // Where there is a hole there are no rows of its mapper, and what is made of them goes on without.
        if !holes.contains(&("mark_worker", height)) {
            right.marks.push(processors::mark_row(block.block_ref()));
        }
        let mut new = 0;
        let transactions = block.transactions.iter().enumerate();
        for (index, tx) in transactions.filter(|_| !holes.contains(&("tx_worker", height))) {
            right.txs.push(processors::tx_row(height, index, tx.id.as_bytes(), &tx.sender));
            let key = Key(vec![Value::bytes(&tx.sender)]);
            let change = Change(vec![
                Some(key.0[0].clone()),
                Some(Value::Int(1)),
                Some(Value::sum(U256::MAX)),
                Some(Value::height(height)),
                Some(Value::bytes(tx.id.as_bytes())),
                Some(std::mem::replace(&mut last_sender, key.0[0].clone())),
                None,
            ]);
            let old = right.senders.get(&key);
            new += i64::from(old.is_none());
            let row = change.apply(&senders_table, old, height).map_err(text)?;
            right.senders.insert(key, row);
        }
        let change = Change(vec![
            Some(Value::text("all")),
            Some(Value::Int(1)),
            Some(Value::Int(new)),
            Some(last_sender.clone()),
            None,
        ]);
        right.totals = Some(change.apply(&totals_table, right.totals.as_ref(), height).map_err(text)?);
    }
    Ok(right)
}

/// Every row of a table, by pages of a few rows.
async fn all(
    snapshot: &dyn DerivedSnapshot,
    def: &'static TableDef,
    index: Option<&'static str>,
) -> Result<Vec<Row>, StoreError> {
    let mut rows = Vec::new();
    let mut scan = Scan { index, ..Scan::new(def.name, 7) };
    loop {
        let page = snapshot.scan(&scan).await?;
        rows.extend(page.rows);
        match page.more {
            Some(place) => scan.lower = std::ops::Bound::Excluded(place),
            None => return Ok(rows),
        }
    }
}

/// The fork that a checkpoint stands on, and what it covers; `None` before its first block.
fn place(
    chain: &SyntheticChain,
    forks: &[ForkId],
    first: Height,
    checkpoint: &DerivedCheckpoint,
) -> Result<Option<(ForkId, HeightRange)>, String> {
    let Some(last) = checkpoint.last().filter(|last| last.height >= first) else { return Ok(None) };
    let fork = forks.iter().find(|fork| chain.block_ref(**fork, last.height) == last);
    let fork =
        fork.ok_or_else(|| format!("{}: checkpoint {last} is a block of no fork", checkpoint.service))?;
    Ok(Some((*fork, HeightRange::inclusive(first, last.height))))
}

/// Takes one look. `first` is the archive's first height. The error says what was wrong.
pub async fn look(
    app: &dyn DerivedReader,
    chain: &SyntheticChain,
    forks: &[ForkId],
    first: Height,
    holes: &Holes,
) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let snapshot = match app.snapshot().await {
        Ok(snapshot) => snapshot,
        // Nothing was adopted yet.
        Err(StoreError::Invalid(_)) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    let snapshot = &*snapshot;
    let next = |service: &str| snapshot.checkpoint(service).map(|checkpoint| checkpoint.next);
    for service in &SERVICES[1..] {
        if let (Some(upstream), Some(own)) = (next("tx_worker"), next(service))
            && own > upstream
        {
            return Err(format!("{service} is at {own}, its upstream at {upstream}"));
        }
    }
    let differ = |what: &str, at: &HeightRange, ours: &dyn std::fmt::Debug, theirs: &dyn std::fmt::Debug| {
        let forks = snapshot.forks();
        Err(format!(
            "{what} at {at} (applied {}, begun {}) are\n  {ours:?}\nnot\n  {theirs:?}",
            forks.applied.id, forks.begun.id
        ))
    };
    for service in ["tx_worker", "mark_worker", "sender_worker"] {
        let Some(checkpoint) = snapshot.checkpoint(service) else { continue };
        let (range, right) = match place(chain, forks, first, checkpoint)? {
            Some((fork, range)) => (range, right(chain, fork, range, holes)?),
            None => {
                let empty = HeightRange::new(first, first);
                (empty, right(chain, ForkId::MAIN, empty, holes)?)
            }
        };
        // The holes are named, all of them and no others, in the very snapshot that lacks their rows.
        let named = snapshot
            .quarantined(&[service], HeightRange::new(Height::ZERO, Height(u64::MAX)), 100)
            .await
            .map_err(text)?;
        let named: Vec<Height> = named.lowest.iter().map(|block| block.height).collect();
        let there = holes.iter().filter(|(mapper, height)| *mapper == service && range.contains(*height));
        let there: Vec<Height> = there.map(|(_, height)| *height).collect();
        if named != there {
            return differ("quarantined blocks", &range, &named, &there);
        }
        match service {
            "tx_worker" => {
                let rows = all(snapshot, &TXS, None).await.map_err(text)?;
                if rows != right.txs {
                    return differ("txs", &range, &rows, &right.txs);
                }
                let by_sender = all(snapshot, &TXS, Some("by_sender")).await.map_err(text)?;
                let mut sorted = right.txs.clone();
                sorted.sort_by_key(|row| (row.0[3].clone(), row.0[0].clone(), row.0[1].clone()));
                if by_sender != sorted {
                    return differ("txs by sender", &range, &by_sender, &sorted);
                }
            }
            "mark_worker" => {
                let rows = all(snapshot, &MARKS, None).await.map_err(text)?;
                if rows != right.marks {
                    return differ("marks", &range, &rows, &right.marks);
                }
            }
            _ => {
                let rows = all(snapshot, &SENDERS, None).await.map_err(text)?;
                let senders: Vec<Row> = right.senders.values().cloned().collect();
                if rows != senders {
                    return differ("senders", &range, &rows, &senders);
                }
                let keys: Vec<Key> = right.senders.keys().cloned().collect();
                let found = snapshot.rows(SENDERS.name, &keys).await.map_err(text)?;
                if found.into_iter().flatten().collect::<Vec<_>>() != senders {
                    return Err(format!("senders by key at {range} are not those of the scan"));
                }
                let totals = all(snapshot, &TOTALS, None).await.map_err(text)?;
                if totals.first() != right.totals.as_ref() {
                    return differ("totals", &range, &totals, &right.totals);
                }
                match all(snapshot, &SENDERS, Some("by_txs")).await {
                    Ok(rows) => {
                        let mut sorted = senders;
                        sorted.sort_by_key(|row| (row.0[1].clone(), row.0[0].clone()));
                        if rows != sorted {
                            return differ("senders by txs", &range, &rows, &sorted);
                        }
                    }
                    Err(StoreError::NotYet { .. }) if !snapshot.forks().is_settled() => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
        }
    }
    newest_names(snapshot).await.map(drop)
}

/// Answers of name by sender: in any snapshot, each is the newest of those that were asked about it, whatever was replaced and taken back. Returns all asks.
async fn newest_names(snapshot: &dyn DerivedSnapshot) -> Result<Vec<Row>, String> {
    let text = |error: StoreError| error.to_string();
    let asks = all(snapshot, &ASKS, None).await.map_err(text)?;
    let names = all(snapshot, &NAMES, None).await.map_err(text)?;
    let mut newest: BTreeMap<Value, Row> = BTreeMap::new();
    for ask in asks.iter().filter(|ask| !ask.0[2].is_null()) {
        let row = Row(vec![ask.0[0].clone(), ask.0[2].clone(), ask.0[3].clone()]);
        let is_newer = newest.get(&row.0[0]).is_none_or(|other| other.0[2] < row.0[2]);
        if is_newer {
            newest.insert(row.0[0].clone(), row);
        }
    }
    let newest: Vec<Row> = newest.into_values().collect();
    if names == newest {
        return Ok(asks);
    }
    let forks = snapshot.forks();
    Err(format!(
        "names (applied {}, begun {}) are\n  {names:?}\nnot the newest answers\n  {newest:?}",
        forks.applied.id, forks.begun.id
    ))
}

/// At the end: answers to every question and no others, each of a block of the chain, an entry for every odd block and for every one that could not be processed, leases without gaps, none dead.
pub async fn look_at_the_end(
    derived: &DerivedSide,
    chain: &SyntheticChain,
    fork: ForkId,
    heights: HeightRange,
) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let (errors, has_bugs, holes) = (derived.errors(), derived.has_bugs(), &derived.plan.incurable);
    let snapshot = derived.app.snapshot().await.map_err(text)?;
    let right = right(chain, fork, heights, holes)?;
    let asks = newest_names(&*snapshot).await?;
    let asked: BTreeSet<Key> = asks.iter().map(|ask| Key(ask.0[..2].to_vec())).collect();
    let questions: BTreeSet<Key> = right.txs.iter().map(processors::question).collect();
    if let Some(key) = questions.symmetric_difference(&asked).next() {
        return Err(format!("{key:?} was asked, or ought to have been; not both"));
    }
    for ask in &asks {
        let at = ask.0[3].as_height().filter(|height| heights.contains(*height));
        let name = at.map(|height| processors::name(chain.block_ref(fork, height)));
        if name.is_none_or(|name| !ask.0[2].is_null() && ask.0[2] != name) {
            return Err(format!("{ask:?} was answered at a block that isn't there"));
        }
    }
    let logged = errors.list(&super::every_error()).await.map_err(text)?;
    // Law 7: nothing is left of dead forks.
    let is_there = |at: BlockRef| heights.contains(at.height) && chain.block_ref(fork, at.height) == at;
    for LoggedError { error, .. } in &logged {
        if !is_there(BlockRef { height: error.height, id: error.block_id }) {
            return Err(format!("the error log has an entry of a dead fork: {error:?}"));
        }
    }
    for height in heights.iter() {
        let block = chain.block_ref(fork, height);
        // What ended a range is logged too; what was odd stands there once.
        let entries = logged
            .iter()
            .filter(|entry| entry.error.block_id == block.id && entry.error.severity == Severity::Warn);
        let entries = entries.count();
        let is_hole = |mapper: &'static str| holes.contains(&(mapper, height));
        if entries != usize::from(processors::is_odd(block) && !has_bugs && !is_hole("tx_worker")) {
            return Err(format!("block {block} has {entries} entries in the error log"));
        }
        for mapper in ["tx_worker", "mark_worker"] {
            let of_block = logged.iter().filter(|entry| {
                let error = &entry.error;
                (error.block_id, error.severity, error.service.as_str())
                    == (block.id, Severity::Fatal, mapper)
                    && error.message.contains("incurable")
            });
            let named = of_block.count();
            if named != usize::from(is_hole(mapper)) {
                return Err(format!("{mapper}: block {block} is named {named} times in the error log"));
            }
        }
    }
    let filter = LeaseFilter { limit: 100_000, ..LeaseFilter::default() };
    for lease in snapshot.leases(&filter).await.map_err(text)? {
        // One that was given back at the end is FAILED and due.
        if lease.is_dead() || lease.done_to != heights.end().min(lease.range.end()).max(lease.range.start()) {
            return Err(format!("in the end lease {lease:?} is not done"));
        }
    }
    Ok(())
}
