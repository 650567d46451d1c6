//! Applying the raw store's reorg log: every verb is one transaction, and so holds the gate.

use std::collections::BTreeMap;

use async_trait::async_trait;
use cairn_core::Height;
use cairn_store::derived::answers;
use cairn_store::derived::rules::{self, LeaseFate};
use cairn_store::derived::{
    ApplyProgress, ForkMark, ForkState, Key, ReorgApplier, Row, TableClass, WorkerLease,
};
use cairn_store::{ReorgEntry, ReorgMark, Result, StoreError};
use rusqlite::{Connection, OptionalExtension, params};

use super::tables::TableSql;
use super::{SqliteDerived, Write, checkpoints, db, leases, number, quarantined, rebuilds, rows, sql};

/// Where the store stands, and the entry at which it began.
pub(super) struct Forks {
    pub(super) state: ForkState,
    pub(super) base_id: u64,
}

/// `None` before `adopt`.
pub(super) fn find(conn: &Connection) -> Result<Option<Forks>> {
    conn.prepare_cached(
        "SELECT raw_uuid, base_id, applied_id, applied_digest, begun_id, begun_digest FROM fork_state",
    )
    .and_then(|mut statement| {
        let forks = statement.query_row([], |row| {
            let mark = |at: usize| -> rusqlite::Result<ReorgMark> {
                Ok(ReorgMark { id: row.get::<_, i64>(at)?.unsigned_abs(), digest: row.get(at + 1)? })
            };
            let state = ForkState { raw_uuid: row.get(0)?, applied: mark(2)?, begun: mark(4)? };
            Ok(Forks { state, base_id: row.get::<_, i64>(1)?.unsigned_abs() })
        });
        forks.optional()
    })
    .map_err(db)
}

pub(super) fn read(conn: &Connection) -> Result<Forks> {
    find(conn)?.ok_or_else(|| StoreError::Invalid("the app store follows no raw store yet; adopt one".into()))
}

/// The entries with a number above this one, ascending.
pub(super) fn marks_after(conn: &Connection, id: u64) -> Result<Vec<ForkMark>> {
    conn.prepare_cached("SELECT id, first_orphan FROM reorgs_applied WHERE id > ?1 ORDER BY id")
        .and_then(|mut statement| {
            let mark = |row: &rusqlite::Row<'_>| {
                let (id, first_orphan): (i64, i64) = (row.get(0)?, row.get(1)?);
                Ok(ForkMark { id: id.unsigned_abs(), first_orphan: Height(first_orphan.unsigned_abs()) })
            };
            statement.query_map([number(id)], mark)?.collect()
        })
        .map_err(db)
}

/// The first height that the entry under way takes away; `None` where none is.
pub(super) fn applying(conn: &Connection, forks: &Forks) -> Result<Option<Height>> {
    if forks.state.is_settled() {
        return Ok(None);
    }
    match marks_after(conn, forks.state.applied.id)?.last() {
        Some(mark) => Ok(Some(mark.first_orphan)),
        None => Err(StoreError::Corrupt {
            place: "reorgs_applied".into(),
            what: format!("reorg {} was begun and is not there", forks.state.begun.id),
        }),
    }
}

fn write_state(conn: &Connection, forks: &Forks) -> Result<()> {
    let state = &forks.state;
    conn.prepare_cached("INSERT OR REPLACE INTO fork_state VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6)")
        .and_then(|mut statement| {
            statement.execute(params![
                state.raw_uuid,
                number(forks.base_id),
                number(state.applied.id),
                state.applied.digest,
                number(state.begun.id),
                state.begun.digest,
            ])
        })
        .map_err(db)?;
    Ok(())
}

/// Raises the height below which a table's undo rows may be missing.
pub(super) fn raise_undo_floor(conn: &Connection, table: &str, floor: Height) -> Result<()> {
    conn.prepare_cached(
        "UPDATE table_definitions SET undo_floor = max(undo_floor, ?2) WHERE table_name = ?1",
    )
    .and_then(|mut statement| statement.execute(params![table, sql(floor)]))
    .map_err(db)?;
    Ok(())
}

/// All undo rows of one key, ascending.
pub(super) fn undo_of(conn: &Connection, table: &TableSql, key: &[u8]) -> Result<UndoOfKey> {
    Ok(undo_from(conn, table, key, Height::ZERO, usize::MAX)?.unwrap_or_default())
}

/// A key's undo rows, each with its height.
type UndoOfKey = Vec<(Height, Option<Row>)>;

/// The undo rows of one key from a height on, ascending; `None`: they are more than `max_rows`.
pub(super) fn undo_from(
    conn: &Connection,
    table: &TableSql,
    key: &[u8],
    from: Height,
    max_rows: usize,
) -> Result<Option<UndoOfKey>> {
    let undo: Vec<(i64, Option<Vec<u8>>)> = conn
        .prepare_cached(
            "SELECT height, before_row FROM state_undo INDEXED BY state_undo_row \
             WHERE table_name = ?1 AND row_key = ?2 AND height >= ?3 ORDER BY height LIMIT ?4",
        )
        .and_then(|mut statement| {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let limit = number((max_rows as u64).saturating_add(1));
            statement.query_map(params![table.table.name(), key, sql(from), limit], row)?.collect()
        })
        .map_err(db)?;
    if undo.len() > max_rows {
        return Ok(None);
    }
    let decoded = undo.into_iter().map(|(height, before)| {
        let before = before.map(|bytes| decode_row(table, &bytes)).transpose()?;
        Ok((Height(height.unsigned_abs()), before))
    });
    decoded.collect::<Result<_>>().map(Some)
}

/// Deletes undo rows below a height, lowest first: at most `max_rows`. Returns how many.
pub(super) fn prune_undo(conn: &Connection, below: Height, max_rows: usize) -> Result<u64> {
    let doomed: Vec<(i64, String, Vec<u8>)> = conn
        .prepare_cached(
            "SELECT height, table_name, row_key FROM state_undo WHERE height < ?1 \
             ORDER BY height, table_name, row_key LIMIT ?2",
        )
        .and_then(|mut statement| {
            let bounds = [sql(below), number(max_rows as u64)];
            statement.query_map(bounds, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
        })
        .map_err(db)?;
    let mut delete = conn
        .prepare_cached("DELETE FROM state_undo WHERE height = ?1 AND table_name = ?2 AND row_key = ?3")
        .map_err(db)?;
    let mut floors: BTreeMap<&str, i64> = BTreeMap::new();
    for (height, table, key) in &doomed {
        delete.execute(params![height, table, key]).map_err(db)?;
        floors.insert(table, *height);
    }
    for (table, height) in floors {
        raise_undo_floor(conn, table, Height(height.unsigned_abs()).next())?;
    }
    Ok(doomed.len() as u64)
}

impl Write<'_> {
    fn begin_apply(&self, entry: &ReorgEntry) -> Result<()> {
        let mut forks = read(self.tx)?;
        if rules::demand_next(&forks.state, entry)? {
            return Ok(());
        }
        forks.state.begun = ReorgMark { id: entry.id, digest: entry.digest };
        self.tx
            .execute(
                "INSERT INTO reorgs_applied (id, digest, first_orphan, common_id, begun_at) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![
                    number(entry.id),
                    entry.digest,
                    sql(entry.first_orphan()),
                    entry.common.id.0,
                    number(self.now_ms)
                ],
            )
            .map_err(db)?;
        for checkpoint in checkpoints::all(self.tx)? {
            // Before any lease is deleted.
            let lowest = leases::lowest(self.tx, &checkpoint.service)?;
            if let Some(clamped) = rules::clamp(&checkpoint, lowest, entry.common, self.now_ms) {
                checkpoints::write(self.tx, &clamped)?;
            }
        }
        for lease in leases::above(self.tx, entry.common.height)? {
            match rules::fate(&lease, entry.common) {
                LeaseFate::Keep => {}
                LeaseFate::Delete => leases::delete(self.tx, lease.id)?,
                LeaseFate::Reopen { done_to, last_id } => {
                    leases::give_back(self.tx, WorkerLease { done_to, last_id, ..lease }, self.now_ms)?;
                }
            }
        }
        quarantined::forget_above(self.tx, entry.common.height)?;
        rebuilds::clamp(self.tx, entry.common)?;
        write_state(self.tx, &forks)
    }

    /// Demands that this entry is under way; the first height that it takes away.
    fn demand_begun(&self, entry_id: u64) -> Result<(Forks, Height)> {
        let forks = read(self.tx)?;
        let applied = forks.state.applied.id;
        if entry_id != applied + 1 {
            return Err(StoreError::Applied { applied, asked: entry_id });
        }
        let first_orphan = applying(self.tx, &forks)?.ok_or_else(|| {
            StoreError::Invalid(format!("reorg {entry_id} has not been begun; begin to apply it first"))
        })?;
        self.demand_undo(first_orphan)?;
        Ok((forks, first_orphan))
    }

    /// Demands that every change of state, and every answer that took another's place, from this height on has its undo row.
    fn demand_undo(&self, first_orphan: Height) -> Result<()> {
        let lost: Option<(String, i64)> = self
            .tx
            .prepare_cached(
                "SELECT table_name, undo_floor FROM table_definitions WHERE undo_floor > ?1 ORDER BY table_name LIMIT 1",
            )
            .and_then(|mut statement| {
                statement.query_row([sql(first_orphan)], |row| Ok((row.get(0)?, row.get(1)?))).optional()
            })
            .map_err(db)?;
        let Some((table, floor)) = lost else { return Ok(()) };
        Err(StoreError::Corrupt {
            place: format!("table {table}, heights {first_orphan} to {}", floor - 1),
            what: "rows were changed there, and their undo rows are gone: the reorg reaches below finality. Reset the \
                   service that writes the table"
                .into(),
        })
    }

    fn apply_step(&self, entry_id: u64, first_orphan: Height, max_rows: usize) -> Result<ApplyProgress> {
        // `first_orphan` is the height after a block's.
        let above = first_orphan.saturating_sub(1);
        let mut left = self.restore(entry_id, first_orphan, max_rows)?;
        if left > 0 && self.any_undo(first_orphan)? {
            // A late answer to an old question came between two steps, and lies below one whose key was passed already: that one is restored, not deleted.
            self.set_restored(entry_id, "", &[])?;
            return Ok(ApplyProgress::More);
        }
        // Answers that are above once all undo rows are gone have replaced none.
        for table in self.tables.all() {
            if left == 0 {
                break;
            }
            if matches!(table.table.def().class, TableClass::Events { .. } | TableClass::Answers) {
                left = left.saturating_sub(rows::delete_above(self.tx, table, above, left)?);
            }
        }
        Ok(if self.is_clean(first_orphan)? { ApplyProgress::Done } else { ApplyProgress::More })
    }

    /// Restores rows of state and answers in the order of their keys, so that each page of a table is written about once: the first undo row of a key
    /// at or above `first_orphan` says what it was at the common block, and the others of that key go with it. The place where a step
    /// ends is kept for the next one. Meanwhile only an answer from below these heights leaves an undo row there (step 3 of a commit), maybe of a key that was
    /// passed. Returns how many of `max_rows` are left: none as long as there may be more.
    fn restore(&self, entry_id: u64, first_orphan: Height, max_rows: usize) -> Result<usize> {
        let restored: (String, Vec<u8>) = self
            .tx
            .prepare_cached("SELECT restored_table, restored_key FROM reorgs_applied WHERE id = ?1")
            .and_then(|mut statement| {
                statement.query_row([number(entry_id)], |row| Ok((row.get(0)?, row.get(1)?)))
            })
            .map_err(db)?;
        let mut undo: Vec<(String, Vec<u8>, i64)> = self
            .tx
            .prepare_cached(
                "SELECT table_name, row_key, height FROM state_undo INDEXED BY state_undo_row \
                 WHERE (table_name, row_key) > (?1, ?2) AND height >= ?3 ORDER BY table_name, row_key, height LIMIT ?4",
            )
            .and_then(|mut statement| {
                let bounds = params![restored.0, restored.1, sql(first_orphan), number(max_rows as u64)];
                statement.query_map(bounds, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect()
            })
            .map_err(db)?;
        // The first of each key is its lowest.
        undo.dedup_by(|later, first| later.0 == first.0 && later.1 == first.1);
        let mut find = self
            .tx
            .prepare_cached(
                "SELECT before_row FROM state_undo WHERE height = ?1 AND table_name = ?2 AND row_key = ?3",
            )
            .map_err(db)?;
        let mut delete = self
            .tx
            .prepare_cached("DELETE FROM state_undo WHERE table_name = ?1 AND row_key = ?2 AND height >= ?3")
            .map_err(db)?;
        let mut left = max_rows;
        let mut last = (String::new(), Vec::new());
        for (name, key, height) in undo {
            if left == 0 {
                break;
            }
            let before: Option<Vec<u8>> =
                find.query_row(params![height, name, key], |row| row.get(0)).map_err(db)?;
            let table = self.tables.get(&name)?;
            let mut before = before.map(|bytes| decode_row(table, &bytes)).transpose()?;
            if table.table.def().class == TableClass::Answers {
                before = answers::below(&table.table, before, first_orphan)?;
            }
            rows::restore(self.tx, table, &Key::decode(&key)?, before.as_ref())?;
            left = left.saturating_sub(delete.execute(params![name, key, sql(first_orphan)]).map_err(db)?);
            last = (name, key);
        }
        self.set_restored(entry_id, &last.0, &last.1)?;
        Ok(left)
    }

    /// Keeps the place where the next step goes on.
    fn set_restored(&self, entry_id: u64, table: &str, key: &[u8]) -> Result<()> {
        self.tx
            .prepare_cached("UPDATE reorgs_applied SET restored_table = ?2, restored_key = ?3 WHERE id = ?1")
            .and_then(|mut statement| statement.execute(params![number(entry_id), table, key]))
            .map_err(db)?;
        Ok(())
    }

    /// Whether nothing is left to undo.
    fn is_clean(&self, first_orphan: Height) -> Result<bool> {
        for table in self.tables.all() {
            if matches!(table.table.def().class, TableClass::Events { .. } | TableClass::Answers)
                && rows::any_above(self.tx, table, first_orphan.saturating_sub(1))?
            {
                return Ok(false);
            }
        }
        Ok(!self.any_undo(first_orphan)?)
    }

    /// Whether there are undo rows at or above a height.
    fn any_undo(&self, first_orphan: Height) -> Result<bool> {
        self.tx
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM state_undo WHERE height >= ?1)")
            .and_then(|mut statement| statement.query_row([sql(first_orphan)], |row| row.get(0)))
            .map_err(db)
    }
}

/// A row from the undo table, which has to be one of its table.
pub(super) fn decode_row(table: &TableSql, bytes: &[u8]) -> Result<Row> {
    let row = Row::decode(bytes)?;
    table.table.check(&row).map_err(|error| StoreError::Corrupt {
        place: format!("undo rows of table {}", table.table.name()),
        what: error.to_string(),
    })?;
    Ok(row)
}

#[async_trait]
impl ReorgApplier for SqliteDerived {
    async fn adopt(&self, raw_uuid: [u8; 16], newest: ReorgMark) -> Result<ForkState> {
        self.write("adopt", move |write| {
            if let Some(forks) = find(write.tx)? {
                rules::demand_raw(&forks.state, raw_uuid, newest)?;
                return Ok(forks.state);
            }
            let state = ForkState { raw_uuid, applied: newest, begun: newest };
            write_state(write.tx, &Forks { state, base_id: newest.id })?;
            Ok(state)
        })
        .await
    }

    async fn forks(&self) -> Result<Option<ForkState>> {
        self.read(|conn| Ok(find(conn)?.map(|forks| forks.state))).await
    }

    async fn begin_apply(&self, entry: &ReorgEntry) -> Result<()> {
        let entry = entry.clone();
        self.write("begin_apply", move |write| write.begin_apply(&entry)).await
    }

    async fn apply_step(&self, entry_id: u64, max_rows: usize) -> Result<ApplyProgress> {
        self.write("apply_step", move |write| {
            let (_, first_orphan) = write.demand_begun(entry_id)?;
            if max_rows == 0 {
                return Err(StoreError::Invalid(
                    "apply_step: max_rows is 0; nothing would ever be undone".into(),
                ));
            }
            write.apply_step(entry_id, first_orphan, max_rows)
        })
        .await
    }

    async fn finish_apply(&self, entry_id: u64) -> Result<ForkState> {
        self.write("finish_apply", move |write| {
            let (mut forks, first_orphan) = write.demand_begun(entry_id)?;
            if !write.is_clean(first_orphan)? {
                return Err(StoreError::Invalid(format!(
                    "reorg {entry_id} can't be finished: rows are left at height {first_orphan} or above"
                )));
            }
            forks.state.applied = forks.state.begun;
            write_state(write.tx, &forks)?;
            write
                .tx
                .execute(
                    "UPDATE reorgs_applied SET applied_at = ?2 WHERE id = ?1",
                    [number(entry_id), number(write.now_ms)],
                )
                .map_err(db)?;
            Ok(forks.state)
        })
        .await
    }
}
