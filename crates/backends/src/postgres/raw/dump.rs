//! The canonical dump.

use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{Height, HeightRange, Parts};
use cairn_store::runs::{RunCursor, RunKind};
use cairn_store::{Dump, DumpBuilder, RawDump, Result};
use futures::pin_mut;
use tokio::runtime::Handle;

use super::head::{self, get_array, get_height, get_u32};
use super::read::{self, Which};
use super::runs::{RunPages, live_runs};
use super::view::View;
use super::{PgRawStore, blocking};

/// How many blocks are read at a time.
const AT_ONCE: u64 = 256;

#[async_trait]
impl RawDump for PgRawStore {
    async fn dump(&self) -> Result<Dump> {
        // For people and tests: this view lasts as long as it takes.
        let view = View::begin(&self.shared.pool, None).await?;
        let head = head::read(&*view.conn().await?).await?;
        let discard = head.discard.unwrap_or(HeightRange::new(Height::ZERO, Height::ZERO));
        let mut dump = DumpBuilder::new(&head.row);
        {
            let conn = view.conn().await?;
            let all = HeightRange::new(Height::ZERO, Height(u64::MAX));
            let heights = read::stored_heights(&conn, all).await?;
            for heights in heights.chunks(AT_ONCE as usize) {
                let which = Which::Heights(heights.iter().map(|height| head::sql(*height)).collect());
                let rows = read::read(&conn, &which, Parts::all()).await?;
                for block in rows.put_together(&self.shared).await? {
                    if !discard.contains(block.facts.height) {
                        dump.block(&block);
                    }
                }
            }
            // Rows of a fill that was given up are deleted with their lookups.
            for (kind, query) in [
                (RunKind::BlockId, "SELECT height, 0::bigint, id FROM raw.block_lookup"),
                (RunKind::TxId, "SELECT block_height, tx_index, id FROM raw.tx_lookup"),
            ] {
                let rows = conn.query_stream(query, &[]).await?;
                pin_mut!(rows);
                while let Some(row) = conn.next_row(&mut rows).await? {
                    let (height, index) = (get_height(&row, 0)?, get_u32(&row, 1)?);
                    let key = cairn_core::TxId(get_array(&row, 2)?).index_key();
                    if !discard.contains(height) {
                        dump.index_entry(kind, key, height, index);
                    }
                }
            }
        }
        let runs = live_runs(&*view.conn().await?).await?;
        let runtime = Handle::current();
        blocking(move || {
            for run in runs {
                let pages = RunPages::new(Arc::clone(&view), runtime.clone(), run.id);
                let mut cursor = RunCursor::new(run.kind, run.heights, &pages, None);
                while let Some(entry) = cursor.next_entry()? {
                    let position = entry.position;
                    dump.index_entry(run.kind, entry.key, run.kind.height_of(position), 0);
                }
            }
            Ok(dump.finish())
        })
        .await
    }
}
