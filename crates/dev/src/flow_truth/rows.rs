//! Rows as text: those that a database has and those that the ledger demands, and the first place in which they differ.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};

use alloy_primitives::hex;
use anyhow::{Context, Result, bail, ensure};
use cairn_store::derived::TableDef;

/// A field: digits, `true` or `false`, hex, text, or nothing.
pub type Cell = Option<String>;

/// The field of what isn't null and is not the ledger's to say.
pub const GIVEN: &str = "(anything but null)";

/// A number.
pub fn number(number: impl Display) -> Cell {
    Some(number.to_string())
}

/// Bytes.
pub fn bytes(bytes: impl AsRef<[u8]>) -> Cell {
    Some(hex::encode(bytes))
}

/// Text.
pub fn text(text: impl Into<String>) -> Cell {
    Some(text.into())
}

/// A truth value.
pub fn boolean(is: bool) -> Cell {
    Some(is.to_string())
}

/// The rows of a table as they stand in a database.
#[derive(Clone)]
pub struct Rows {
    pub def: &'static TableDef,
    pub rows: Vec<Vec<Cell>>,
}

/// One of them, by the names of its columns.
#[derive(Clone, Copy)]
pub struct Row<'r> {
    def: &'static TableDef,
    cells: &'r [Cell],
}

impl Rows {
    /// Each.
    pub fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        self.rows.iter().map(|cells| Row { def: self.def, cells })
    }

    /// Those of contracts of accounts: contracts of the EVM have no name.
    pub fn of_accounts(&self) -> impl Iterator<Item = Row<'_>> {
        let has_name = |row: &Row<'_>| row.cell("contract_name").is_ok_and(|name| name != text(""));
        self.iter().filter(has_name)
    }
}

fn place(def: &TableDef, column: &str) -> Result<usize> {
    let at = def.columns.iter().position(|one| one.name == column);
    at.with_context(|| format!("{} has no column {column}", def.name))
}

impl Row<'_> {
    /// A field.
    pub fn cell(&self, column: &str) -> Result<Cell> {
        let at = place(self.def, column)?;
        self.cells.get(at).cloned().with_context(|| format!("{}: a row is too short", self.def.name))
    }

    /// A field that is never null.
    pub fn said(&self, column: &str) -> Result<String> {
        self.cell(column)?.with_context(|| format!("{}.{column} is null", self.def.name))
    }

    /// A number.
    pub fn number<N: std::str::FromStr>(&self, column: &str) -> Result<N> {
        let digits = self.said(column)?;
        digits.parse().ok().with_context(|| format!("{}.{column}: {digits} is no such number", self.def.name))
    }
}

/// All tables of a database.
pub struct Tables(pub BTreeMap<&'static str, Rows>);

impl Tables {
    /// One of them.
    pub fn rows(&self, def: &TableDef) -> Result<&Rows> {
        self.0.get(def.name).with_context(|| format!("{} was not read", def.name))
    }
}

impl Tables {
    /// The names of those without a row.
    pub fn empty(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().filter(|(_, rows)| rows.rows.is_empty()).map(|(name, _)| *name)
    }
}

/// The rows that a table has to have.
pub struct Expected {
    def: &'static TableDef,
    key: Vec<usize>,
    /// A column that is summed over rows with one key.
    summed: Option<usize>,
    left_out: Vec<usize>,
    rows: BTreeMap<Vec<Cell>, Vec<Cell>>,
}

impl Expected {
    /// Of this table, by its own key.
    pub fn of(def: &'static TableDef) -> Result<Expected> {
        let key = def.key.iter().map(|name| place(def, name)).collect::<Result<_>>()?;
        Ok(Expected { def, key, summed: None, left_out: Vec::new(), rows: BTreeMap::new() })
    }

    /// Of this table by everything but the column that is summed and those that are left out.
    pub fn summed(def: &'static TableDef, summed: &str, left_out: &[&str]) -> Result<Expected> {
        let summed = place(def, summed)?;
        let left_out: Vec<usize> = left_out.iter().map(|name| place(def, name)).collect::<Result<_>>()?;
        let key = (0..def.columns.len()).filter(|at| *at != summed && !left_out.contains(at)).collect();
        Ok(Expected { def, key, summed: Some(summed), left_out, rows: BTreeMap::new() })
    }

    /// One more row, with a field for each column.
    pub fn add(&mut self, row: Vec<Cell>) -> Result<()> {
        let columns = self.def.columns.len();
        ensure!(row.len() == columns, "{}: {} fields of {columns}", self.def.name, row.len());
        let (key, summed) = (self.key.clone(), self.summed);
        add(self.def, &mut self.rows, &key, summed, row)
    }

    /// Whether a row with this key is there already.
    pub fn has(&self, key: &[Cell]) -> bool {
        self.rows.contains_key(key)
    }

    /// As a table that is right: for tests of the comparison itself.
    #[cfg(test)]
    pub fn as_rows(&self) -> Rows {
        let cell = |cell: &Cell| cell.clone().map(|text| if text == GIVEN { "00".to_owned() } else { text });
        let mut rows: Vec<Vec<Cell>> = self.rows.values().map(|row| row.iter().map(cell).collect()).collect();
        for row in &mut rows {
            self.left_out.iter().for_each(|at| row[*at] = number(0));
        }
        Rows { def: self.def, rows }
    }

    /// Fails with the first difference; else how many rows were compared.
    pub fn same(&self, found: &Rows) -> Result<usize> {
        let name = self.def.name;
        let mut rows = BTreeMap::new();
        for row in &found.rows {
            add(self.def, &mut rows, &self.key, self.summed, row.clone())?;
        }
        for (key, wanted) in &self.rows {
            let Some(row) = rows.get(key) else {
                bail!("{name} lacks the row {}", self.shown(wanted));
            };
            let differ = |at: &usize| match (&wanted[*at], &row[*at]) {
                (Some(wanted), found) if wanted == GIVEN => found.is_none(),
                (wanted, found) => wanted != found,
            };
            let compared = (0..wanted.len()).filter(|at| !self.left_out.contains(at));
            if let Some(at) = compared.into_iter().find(|at| differ(at)) {
                bail!(
                    "{name}: {} is {} where it has to be {}, in the row {}",
                    self.def.columns[at].name,
                    shown(&row[at]),
                    shown(&wanted[at]),
                    self.shown(row)
                );
            }
        }
        if let Some((_, row)) = rows.iter().find(|(key, _)| !self.rows.contains_key(*key)) {
            bail!("{name} has a row too many: {}", self.shown(row));
        }
        Ok(self.rows.len())
    }

    fn shown(&self, row: &[Cell]) -> String {
        shown_row(self.def, row, &self.left_out)
    }
}

fn shown_row(def: &TableDef, row: &[Cell], left_out: &[usize]) -> String {
    let mut text = String::new();
    for (at, (column, cell)) in def.columns.iter().zip(row).enumerate() {
        if !left_out.contains(&at) {
            // Writing into a string can't fail.
            let _ = write!(text, "{}{}={}", if at > 0 { " " } else { "" }, column.name, shown(cell));
        }
    }
    text
}

fn add(
    def: &TableDef,
    rows: &mut BTreeMap<Vec<Cell>, Vec<Cell>>,
    key: &[usize],
    summed: Option<usize>,
    row: Vec<Cell>,
) -> Result<()> {
    let of: Vec<Cell> = key.iter().map(|at| row[*at].clone()).collect();
    let Some(before) = rows.get_mut(&of) else {
        rows.insert(of, row);
        return Ok(());
    };
    let Some(at) = summed else { bail!("{} has twice the row {}", def.name, shown_row(def, &row, &[])) };
    let amount = |cell: &Cell| cell.as_deref().and_then(|digits| digits.parse::<u128>().ok());
    let both = amount(&before[at]).zip(amount(&row[at])).and_then(|(a, b)| a.checked_add(b));
    let sum = both.with_context(|| format!("{}: {of:?} has what is no amount", def.name))?;
    before[at] = number(sum);
    Ok(())
}

/// A field for people: cut where it is long.
fn shown(cell: &Cell) -> String {
    match cell {
        None => "null".to_owned(),
        Some(text) if text.chars().count() > 80 => {
            format!("{:?}… ({} characters)", text.chars().take(60).collect::<String>(), text.chars().count())
        }
        Some(text) if text.is_empty() || text.contains(|c: char| !c.is_ascii_graphic()) => {
            format!("{text:?}")
        }
        Some(text) => text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_explorer::tables::flow::contracts::ACCOUNT_CONTRACTS;
    use cairn_explorer::tables::transfers::FT_TRANSFERS;

    fn contract(name: &str, versions: u32) -> Vec<Cell> {
        let mut row = vec![bytes([1; 8]), text(name), bytes([2; 32]), number(versions), boolean(false)];
        row.extend([number(3), number(4)]);
        row
    }

    #[test]
    fn a_difference_names_table_column_and_row() {
        let mut expected = Expected::of(&ACCOUNT_CONTRACTS).expect("its columns");
        expected.add(contract("A", 2)).expect("is a row");
        let mut found = Rows { def: &ACCOUNT_CONTRACTS, rows: vec![contract("A", 2)] };
        assert_eq!(expected.same(&found).expect("is the same"), 1);
        let said = |found: &Rows| expected.same(found).expect_err("differs").to_string();
        found.rows[0] = contract("A", 5);
        let message = said(&found);
        assert!(
            message.starts_with("account_contracts: version_count is 5 where it has to be 2"),
            "{message}"
        );
        assert!(message.contains("address=0101010101010101 contract_name=A"), "{message}");
        found.rows[0] = contract("B", 2);
        assert!(said(&found).starts_with("account_contracts lacks the row address=01"), "{}", said(&found));
        found.rows = vec![contract("A", 2), contract("B", 2)];
        assert!(said(&found).starts_with("account_contracts has a row too many"), "{}", said(&found));
        found.rows = vec![contract("A", 2), contract("A", 2)];
        assert!(said(&found).starts_with("account_contracts has twice the row"), "{}", said(&found));
    }

    #[test]
    fn rows_of_one_movement_are_summed() {
        let row = |sub: u32, amount: u64| {
            let mut row = vec![number(1), bytes([1; 32]), number(0), number(sub), number(0), number(9)];
            row.extend([bytes([3; 8]), text("T"), None, bytes([4; 8]), number(amount), text("k")]);
            row.extend([boolean(true), boolean(false), boolean(true)]);
            row
        };
        let mut expected = Expected::summed(&FT_TRANSFERS, "amount", &["sub_index"]).expect("its columns");
        expected.add(row(0, 7)).expect("is a row");
        let same = |rows: Vec<Vec<Cell>>| expected.same(&Rows { def: &FT_TRANSFERS, rows });
        assert_eq!(same(vec![row(0, 3), row(1, 4)]).expect("sums up"), 1);
        let message = same(vec![row(0, 3), row(1, 5)]).expect_err("is too much").to_string();
        assert!(message.starts_with("ft_transfers: amount is 8 where it has to be 7"), "{message}");
    }
}
