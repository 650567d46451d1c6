//! The canonical dump.

use async_trait::async_trait;
use cairn_store::derived::{DerivedDump, DerivedDumpBuilder};
use cairn_store::{Dump, Result};
use futures::pin_mut;

use super::PgDerived;
use super::lease::{CHECKPOINT_COLUMNS, checkpoint_of};
use super::quarantined;
use crate::postgres::Isolation;

#[async_trait]
impl DerivedDump for PgDerived {
    async fn dump(&self) -> Result<Dump> {
        let mut conn = self.shared.read.begin(Isolation::Snapshot).await?;
        conn.batch("SET LOCAL statement_timeout = 0").await?;
        let mut dump = DerivedDumpBuilder::new();
        let sql = format!("SELECT {CHECKPOINT_COLUMNS} FROM app.indexing_checkpoints");
        for row in &conn.query(&sql, &[]).await? {
            dump.checkpoint(&checkpoint_of(row)?);
        }
        for row in &conn.query(quarantined::ALL, &[]).await? {
            let block = quarantined::block_of(row)?;
            dump.quarantined(&block.service, block.height);
        }
        for table in self.shared.tables.iter().filter(|table| DerivedDumpBuilder::is_dumped(&table.table)) {
            let rows = conn.query_stream(&table.all, &[]).await?;
            pin_mut!(rows);
            while let Some(row) = conn.next_row(&mut rows).await? {
                dump.row(&table.table, &table.read(&row, 0)?);
            }
        }
        conn.rollback().await?;
        Ok(dump.finish())
    }
}
