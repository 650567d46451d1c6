//! What a table of answers has under one key: the answer that was asked at the highest block, and those whose place it took as long as a reorg may
//! bring them back.
//!
//! An answer that is asked at block `h` leaves in the undo table, under `h`, the answer of the next lower block: so the undo rows of a key, with the row
//! itself, are all that was answered, by height. The first has no undo row. What a reorg leaves is the highest of those below its first orphan; which one
//! that is doesn't depend on the order in which they were written, so a late answer to an old question takes its place below a newer one.

use std::collections::BTreeMap;

use cairn_core::Height;

use super::row::{Key, Row};
use super::rules::key_text;
use super::table::Table;
use crate::{Result, StoreError};

/// The answers of one key, by the block that was asked at.
#[derive(Debug, Default)]
pub struct Answers {
    by_height: BTreeMap<Height, Row>,
    /// The newest as it is stored.
    stored: Option<Height>,
    /// Heights of undo rows, and of the answers in them.
    undo: BTreeMap<Height, Height>,
    /// Heights of answers that aren't stored yet.
    laid: Vec<Height>,
}

/// What has to be written for one key.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AnswerChange {
    /// The row, where it is another than before.
    pub row: Option<Row>,
    /// Undo rows that are new or others: `(height, the row before)`.
    pub undo: Vec<(Height, Row)>,
    /// Below this height, which is 0 in most cases, finality left an answer that replaced another without an undo row.
    pub undo_floor: Height,
}

impl Answers {
    /// What is stored of a key: its row and its undo rows, each with its height.
    pub fn new(
        table: &Table,
        row: Option<Row>,
        undo: impl IntoIterator<Item = (Height, Option<Row>)>,
    ) -> Result<Answers> {
        let mut answers = Answers::default();
        if let Some(row) = row {
            let height = asked_at(table, &row)?;
            answers.stored = Some(height);
            answers.by_height.insert(height, row);
        }
        for (height, before) in undo {
            let Some(before) = before else { continue };
            let asked = asked_at(table, &before)?;
            if asked >= height || answers.stored.is_none_or(|stored| height > stored) {
                return Err(damaged(table, &table.key_of(&before), height));
            }
            answers.undo.insert(height, asked);
            answers.by_height.insert(asked, before);
        }
        Ok(answers)
    }

    /// Lays an answer in its place by height; one that was asked at the same block is replaced.
    pub fn lay(&mut self, height: Height, row: Row) {
        if self.by_height.get(&height) != Some(&row) {
            self.by_height.insert(height, row);
            self.laid.push(height);
        }
    }

    /// What has to be written. Nothing below `finalized` is ever undone, so no undo row is kept there.
    pub fn change(self, finalized: Height) -> AnswerChange {
        let is_new = |height: &Height| self.laid.contains(height);
        let mut change = AnswerChange::default();
        let mut below: Option<(Height, &Row)> = None;
        for (&height, row) in &self.by_height {
            if let Some((lower, before)) = below
                && (self.undo.get(&height) != Some(&lower) || is_new(&lower))
            {
                if height >= finalized {
                    change.undo.push((height, before.clone()));
                } else {
                    change.undo_floor = height.next();
                }
            }
            below = Some((height, row));
        }
        if let Some((newest, row)) = below
            && (self.stored != Some(newest) || is_new(&newest))
        {
            change.row = Some(row.clone());
        }
        change
    }
}

/// The height at which a row of answers was asked.
pub fn asked_at(table: &Table, row: &Row) -> Result<Height> {
    let height = table.height_column().and_then(|at| row.0.get(at)?.as_height());
    height.ok_or_else(|| StoreError::Corrupt {
        place: format!("table {}", table.name()),
        what: "an answer that doesn't say at which height it was asked".into(),
    })
}

/// What is left of a row that was asked at or above `first_orphan`: the answer in the lowest of its undo rows from there on, if there is one, unless that was
/// asked there too.
pub fn below(table: &Table, before: Option<Row>, first_orphan: Height) -> Result<Option<Row>> {
    match before {
        Some(row) if asked_at(table, &row)? < first_orphan => Ok(Some(row)),
        _ => Ok(None),
    }
}

fn damaged(table: &Table, key: &Key, height: Height) -> StoreError {
    StoreError::Corrupt {
        place: format!("table {}, key {}", table.name(), key_text(key)),
        what: format!("the undo row of height {height} doesn't fit between the answers that are there"),
    }
}

/// Answers whose undo rows are gone can't be brought back: finality has passed them, and the reorg reaches below it.
pub fn lost_undo(table: &Table, first_orphan: Height) -> StoreError {
    StoreError::Corrupt {
        place: format!("table {}, heights from {first_orphan} on", table.name()),
        what: "answers were replaced there, and their undo rows are gone: the reorg reaches below finality. Reset the service that \
               writes the table"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{ASKED_AT_HEIGHT, TableClass, TableDef, column};
    use super::super::value::{ColumnType, Value};
    use super::*;

    static NAMES: TableDef = TableDef {
        name: "names",
        service: "asker",
        class: TableClass::Answers,
        columns: &[
            column("address", ColumnType::Int),
            column("name", ColumnType::Text),
            column(ASKED_AT_HEIGHT, ColumnType::Int),
        ],
        key: &["address"],
        indexes: &[],
    };

    fn row(height: u64, name: &str) -> Row {
        Row(vec![Value::Int(1), Value::text(name), Value::height(Height(height))])
    }

    fn undo(height: u64, before: u64) -> (Height, Option<Row>) {
        (Height(height), Some(row(before, "old")))
    }

    /// What is written when the row `stored` with these undo rows meets these answers.
    fn laid(
        stored: Option<u64>,
        undo: Vec<(Height, Option<Row>)>,
        new: &[u64],
        finalized: u64,
    ) -> (Option<u64>, Vec<(u64, u64)>) {
        let table = Table::new(&NAMES).expect("right");
        let mut answers = Answers::new(&table, stored.map(|at| row(at, "old")), undo).expect("fits");
        new.iter().for_each(|at| answers.lay(Height(*at), row(*at, "new")));
        let change = answers.change(Height(finalized));
        let asked = |row: &Row| asked_at(&table, row).expect("has a height").get();
        (change.row.as_ref().map(asked), change.undo.iter().map(|(at, row)| (at.get(), asked(row))).collect())
    }

    #[test]
    fn a_newer_answer_leaves_the_older_one_and_the_first_leaves_nothing() {
        assert_eq!(laid(None, vec![], &[20], 0), (Some(20), vec![]));
        assert_eq!(laid(Some(20), vec![], &[25], 0), (Some(25), vec![(25, 20)]));
        assert_eq!(laid(Some(25), vec![undo(25, 20)], &[30], 0), (Some(30), vec![(30, 25)]));
        assert_eq!(laid(None, vec![], &[25, 20, 30], 0), (Some(30), vec![(25, 20), (30, 25)]));
    }

    #[test]
    fn a_late_answer_takes_its_place_below() {
        assert_eq!(laid(Some(25), vec![], &[20], 0), (None, vec![(25, 20)]));
        assert_eq!(laid(Some(30), vec![undo(30, 20)], &[25], 0), (None, vec![(25, 20), (30, 25)]));
        assert_eq!(laid(Some(30), vec![undo(30, 20)], &[10], 0), (None, vec![(20, 10)]));
    }

    #[test]
    fn an_answer_of_the_same_block_replaces_there() {
        assert_eq!(laid(Some(25), vec![undo(25, 20)], &[25], 0), (Some(25), vec![]));
        assert_eq!(laid(Some(25), vec![undo(25, 20)], &[20], 0), (None, vec![(25, 20)]));
    }

    #[test]
    fn nothing_is_kept_below_finality() {
        assert_eq!(laid(Some(20), vec![], &[25], 26), (Some(25), vec![]));
        assert_eq!(laid(Some(20), vec![], &[25], 25), (Some(25), vec![(25, 20)]));
        assert_eq!(laid(Some(20), vec![], &[22, 25], 24), (Some(25), vec![(25, 22)]));
    }

    #[test]
    fn where_finality_left_no_undo_row_is_known() {
        let table = Table::new(&NAMES).expect("right");
        let floor = |new: u64, finalized| {
            let mut answers = Answers::new(&table, Some(row(20, "old")), None).expect("fits");
            answers.lay(Height(new), row(new, "new"));
            answers.change(Height(finalized)).undo_floor
        };
        assert_eq!(floor(25, 26), Height(26));
        assert_eq!(floor(25, 25), Height(0));
        assert_eq!(floor(20, 26), Height(0));
    }

    #[test]
    fn the_same_answer_again_writes_nothing() {
        let table = Table::new(&NAMES).expect("right");
        let mut answers = Answers::new(&table, Some(row(25, "a")), vec![undo(25, 20)]).expect("fits");
        answers.lay(Height(25), row(25, "a"));
        assert_eq!(answers.change(Height(0)), AnswerChange::default());
    }

    #[test]
    fn what_is_left_is_the_highest_below_the_orphans() {
        let table = Table::new(&NAMES).expect("right");
        let below = |before: Option<u64>, orphan| {
            below(&table, before.map(|at| row(at, "old")), Height(orphan)).expect("has a height")
        };
        assert_eq!(below(Some(20), 21), Some(row(20, "old")));
        assert_eq!(below(Some(20), 20), None);
        assert_eq!(below(None, 20), None);
    }

    #[test]
    fn an_undo_row_that_fits_nowhere_is_damage() {
        let table = Table::new(&NAMES).expect("right");
        let fits = |stored: Option<u64>, undo| {
            Answers::new(&table, stored.map(|at| row(at, "old")), vec![undo]).is_ok()
        };
        assert!(fits(Some(25), undo(25, 20)));
        assert!(!fits(Some(25), undo(26, 20)), "an answer above the newest");
        assert!(!fits(Some(25), undo(25, 25)), "it undoes itself");
        assert!(!fits(None, undo(25, 20)), "undo rows of no row");
    }
}
