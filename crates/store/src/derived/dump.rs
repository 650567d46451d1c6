//! The lines of a derived store's dump, the same for every backend.

use cairn_core::Height;

use super::fork::DerivedCheckpoint;
use super::row::Row;
use super::table::{Table, TableClass};
use crate::Dump;

/// Makes a dump. Rows and checkpoints may come in any order.
///
/// ```text
/// checkpoint/SERVICE = HEIGHT ID|none       the height after the last complete one
/// quarantined/SERVICE/HEIGHT                a block that the service could not process
/// TABLE/KEY,KEY = column value column value
/// ```
#[derive(Debug, Default)]
pub struct DerivedDumpBuilder {
    lines: Vec<String>,
}

impl DerivedDumpBuilder {
    /// Begins.
    pub fn new() -> DerivedDumpBuilder {
        DerivedDumpBuilder::default()
    }

    /// Whether rows of this table are in dumps: those of answers say what a node was asked, and those of content outlive the blocks
    /// that named them.
    pub fn is_dumped(table: &Table) -> bool {
        matches!(table.def().class, TableClass::Events { .. } | TableClass::State)
    }

    /// A row; left out where its table isn't dumped.
    pub fn row(&mut self, table: &Table, row: &Row) {
        if !DerivedDumpBuilder::is_dumped(table) {
            return;
        }
        let key: Vec<String> = table.key_of(row).0.iter().map(ToString::to_string).collect();
        let fields: Vec<String> = table
            .def()
            .columns
            .iter()
            .zip(&row.0)
            .map(|(column, value)| format!("{} {value}", column.name))
            .collect();
        self.lines.push(format!("{}/{} = {}", table.name(), key.join(","), fields.join(" ")));
    }

    /// A checkpoint.
    pub fn checkpoint(&mut self, checkpoint: &DerivedCheckpoint) {
        let id = checkpoint.last_id.map_or_else(|| "none".to_owned(), |id| id.to_string());
        self.lines.push(format!("checkpoint/{} = {} {id}", checkpoint.service, checkpoint.next));
    }

    /// A block that a service could not process.
    pub fn quarantined(&mut self, service: &str, height: Height) {
        self.lines.push(format!("quarantined/{service}/{height}"));
    }

    /// The dump.
    pub fn finish(mut self) -> Dump {
        self.lines.sort_unstable();
        Dump { lines: self.lines }
    }
}
