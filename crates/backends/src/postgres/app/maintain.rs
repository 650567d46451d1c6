//! Partitions, indexes that were put off (`indexes.rs`), resets, and rows that ought not to be.

use async_trait::async_trait;
use cairn_core::{Height, HeightRange};
use cairn_store::derived::{
    DerivedMaintenance, Key, LeaseStatus, Rebuild, RebuildRequest, TableClass, TakenBack, rules,
};
use cairn_store::{Result, StoreError};
use futures::FutureExt;

use super::apply::{by_index, delete_from_top, delete_keys, demand_whole_catalog};
use super::coordinate::unknown_service;
use super::fault::Fault;
use super::lease::{LEASE_COLUMNS, column, lease_of};
use super::tx::{Gate, Tx};
use super::{PgDerived, Shared, indexes, int, int_of, quarantined, rebuilds};

type Faulty<T> = std::result::Result<T, Fault>;

#[async_trait]
impl DerivedMaintenance for PgDerived {
    async fn maintain(&self, tip: Height) -> Result<()> {
        self.ensure_partitions(HeightRange::one(tip)).await
    }

    async fn build_indexes(&self, final_to: Height) -> Result<bool> {
        indexes::build(&self.shared, final_to).await
    }

    async fn begin_rebuild(&self, request: &RebuildRequest) -> Result<Vec<Rebuild>> {
        self.shared.rerun(|| rebuilds::begin(&self.shared, request).boxed()).await
    }

    async fn reset_step(&self, service: &str, max_rows: usize) -> Result<bool> {
        if max_rows == 0 {
            return Err(StoreError::Invalid(
                "reset_step: max_rows is 0; nothing would ever be deleted".into(),
            ));
        }
        self.shared.rerun(|| reset(&self.shared, service, max_rows).boxed()).await
    }

    async fn take_back_step(
        &self,
        service: &str,
        from: Height,
        max_rows: usize,
    ) -> Result<Option<TakenBack>> {
        self.shared.rerun(|| take_back(&self.shared, service, from, max_rows).boxed()).await
    }

    async fn prune_undo(&self, finalized: Height, max_rows: usize) -> Result<u64> {
        self.shared.rerun(|| prune(&self.shared, finalized, max_rows).boxed()).await
    }

    async fn delete_rows(&self, table: &'static str, keys: &[Key]) -> Result<u64> {
        self.shared.rerun(|| delete(&self.shared, table, keys).boxed()).await
    }
}

/// The checkpoint went first, so that nobody sees what is left; leases go last.
async fn reset(shared: &Shared, service: &str, max_rows: usize) -> Faulty<bool> {
    let tx = shared.begin(Gate::Exclusive).await?;
    let rebuild = rebuilds::find(&tx, service).await?.filter(|rebuild| rebuild.is_clearing);
    let Some(rebuild) = rebuild else { return Ok(false) };
    // What this program doesn't know of would stay.
    demand_whole_catalog(&tx).await?;
    // An older program knows nothing of rebuilds, and may have registered it.
    tx.execute("DELETE FROM app.indexing_checkpoints WHERE service_name = $1", &[&service]).await?;
    by_index(&tx).await?;
    let mut left = max_rows as u64;
    for table in shared.tables.iter().filter(|table| table.table.def().service == service) {
        if left == 0 {
            break;
        }
        let height = table.height.as_deref();
        let deleted = match (table.table.def().class, height) {
            (TableClass::Events { .. }, Some(height)) => {
                tx.execute(&delete_from_top(&table.name, height), &[&0_i64, &int_of(left)]).await?
            }
            _ => {
                let some = format!(
                    "DELETE FROM {0} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {0} LIMIT $1))",
                    table.name
                );
                tx.execute(&some, &[&int_of(left)]).await?
            }
        };
        left = left.saturating_sub(deleted);
        if left == 0 {
            break;
        }
        let undo = "DELETE FROM app.state_undo WHERE ctid = ANY (ARRAY(
             SELECT ctid FROM app.state_undo WHERE table_name = $1 LIMIT $2))";
        let deleted = tx.execute(undo, &[&table.table.name(), &int_of(left)]).await?;
        left = left.saturating_sub(deleted);
    }
    if left > 0 {
        left = left.saturating_sub(quarantined::forget_some(&tx, service, left).await?);
    }
    if left > 0 {
        left = left.saturating_sub(delete_leases(&tx, service, left).await?);
    }
    rebuilds::stepped(&tx, rebuild, left == 0).await?;
    tx.commit("reset_step").await?;
    Ok(left == 0)
}

async fn delete_leases(tx: &Tx<'_>, service: &str, limit: u64) -> Faulty<u64> {
    let sql = "DELETE FROM app.worker_leases WHERE id = ANY (ARRAY(
         SELECT id FROM app.worker_leases WHERE worker_type = $1 ORDER BY id LIMIT $2))";
    tx.execute(sql, &[&service, &int_of(limit)]).await
}

async fn take_back(
    shared: &Shared,
    service: &str,
    from: Height,
    max_rows: usize,
) -> Faulty<Option<TakenBack>> {
    const BELOW: &str = "SELECT to_height FROM app.worker_leases
         WHERE worker_type = $1 AND kind = 'index' AND from_height < $2 ORDER BY from_height DESC LIMIT 1";
    let lowest = format!(
        "SELECT {LEASE_COLUMNS} FROM app.worker_leases
         WHERE worker_type = $1 AND kind = 'index' AND from_height >= $2 ORDER BY from_height LIMIT 1 FOR UPDATE"
    );
    let tx = shared.begin(Gate::Exclusive).await?;
    let Some(checkpoint) = tx.checkpoint(service, false).await? else {
        return Err(unknown_service(service).into());
    };
    let defs = shared.tables.iter().map(|table| table.table.def());
    rules::demand_take_back(defs, &checkpoint, from, max_rows)?;
    // What this program doesn't know of would stay.
    demand_whole_catalog(&tx).await?;
    let lease = tx.query_opt(&lowest, &[&service, &int(from)]).await?;
    let Some(lease) = lease.as_ref().map(lease_of).transpose()? else { return Ok(None) };
    let below = tx.query_opt(BELOW, &[&service, &int(lease.range.start())]).await?;
    let below: Option<i64> = below.map(|row| column(&row, 0)).transpose()?;
    let below = below.map(|to| Height(to.unsigned_abs()));
    let heights = rules::heights_taken_back(&checkpoint, below, &lease);
    by_index(&tx).await?;
    let (mut left, mut rows) = (max_rows as u64, 0);
    for table in shared.tables.iter().filter(|table| table.table.def().service == service) {
        let (TableClass::Events { .. }, Some(height)) = (table.table.def().class, &table.height) else {
            continue;
        };
        if left == 0 {
            break;
        }
        // Whole blocks, as `delete_from_top` does it.
        let delete = format!(
            "DELETE FROM {0} WHERE {height} >= $1 AND {height} < $2 AND {height} >= coalesce(
                 (SELECT {height} FROM {0} WHERE {height} >= $1 AND {height} < $2 ORDER BY {height} DESC OFFSET $3 LIMIT 1), $1)",
            table.name
        );
        let ends: [crate::postgres::pool::Param<'_>; 3] =
            [&int(heights.start()), &int(heights.end()), &int_of(left)];
        let deleted = tx.execute(&delete, &ends).await?;
        rows += deleted;
        left = left.saturating_sub(deleted);
    }
    let is_whole = left > 0;
    if is_whole {
        quarantined::forget(&tx, service, heights).await?;
        tx.execute("DELETE FROM app.worker_leases WHERE id = $1", &[&int_of(lease.id)]).await?;
    } else {
        let mut lease = rules::taken_back(lease);
        lease.status = LeaseStatus::Failed;
        lease.next_try_at_ms = tx.now_ms;
        lease.fence = tx.next_fence().await?;
        tx.write_lease(&lease).await?;
    }
    tx.commit("take_back_step").await?;
    Ok(Some(TakenBack { heights, rows, is_whole }))
}

async fn prune(shared: &Shared, finalized: Height, max_rows: usize) -> Faulty<u64> {
    const PRUNE: &str = "DELETE FROM app.state_undo WHERE ctid = ANY (ARRAY(SELECT ctid FROM app.state_undo
         WHERE height < $1 ORDER BY height LIMIT $2 FOR UPDATE SKIP LOCKED))";
    const FLOOR: &str = "UPDATE app.indexing_checkpoints SET undo_floor = $1 WHERE undo_floor < $1";
    let tx = shared.begin(Gate::Exclusive).await?;
    tx.execute(FLOOR, &[&int(finalized)]).await?;
    let pruned = tx.execute(PRUNE, &[&int(finalized), &int_of(max_rows as u64)]).await?;
    tx.commit("prune_undo").await?;
    Ok(pruned)
}

async fn delete(shared: &Shared, table: &str, keys: &[Key]) -> Faulty<u64> {
    let table = shared.table(table)?;
    let mut sorted = keys.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let tx = shared.begin(Gate::Shared).await?;
    let deleted = delete_keys(&tx, table, &sorted).await?;
    let encoded: Vec<bytes::Bytes> = sorted.iter().map(Key::encode).collect();
    let encoded: Vec<&[u8]> = encoded.iter().map(|key| key.as_ref()).collect();
    let undo = "DELETE FROM app.state_undo WHERE table_name = $1 AND key = ANY ($2)";
    tx.execute(undo, &[&table.table.name(), &encoded]).await?;
    tx.commit("delete_rows").await?;
    Ok(deleted)
}
