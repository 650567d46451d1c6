//! The canonical dump.

use async_trait::async_trait;
use cairn_core::{Height, HeightRange, Parts};
use cairn_store::runs::{RunCursor, RunKind};
use cairn_store::{Dump, DumpBuilder, RawDump, Result};

use super::index::{RunPages, live_runs};
use super::{SqliteStore, blocks, head};

#[async_trait]
impl RawDump for SqliteStore {
    async fn dump(&self) -> Result<Dump> {
        // For people and tests: this read transaction lasts as long as it takes.
        let (transaction, head) = self.shared.pool.begin(None, head::read).await?;
        transaction
            .run(move |from, _| {
                let mut dump = DumpBuilder::new(&head.row);
                for height in
                    blocks::stored_heights(&from.conn, HeightRange::new(Height::ZERO, Height(u64::MAX)))?
                {
                    if head.discard.is_some_and(|discard| discard.contains(height)) {
                        continue;
                    }
                    if let Some(block) = blocks::read(&from.conn, &from.unpacker, height, Parts::all())? {
                        dump.block(&block);
                    }
                }
                for kind in RunKind::ALL {
                    for run in live_runs(&from.conn, kind)? {
                        let pages = RunPages::new(&from.conn, run.id, None);
                        let mut cursor = RunCursor::new(kind, run.heights, &pages, None);
                        while let Some(entry) = cursor.next_entry()? {
                            let position = entry.position;
                            dump.index_entry(
                                kind,
                                entry.key,
                                kind.height_of(position),
                                kind.tx_index_of(position),
                            );
                        }
                    }
                }
                Ok(dump.finish())
            })
            .await
    }
}
