//! Collection of objects that nothing needs, behind `cairn payloads gc`; and the check that what is needed is there.
//!
//! Any number of collectors may run at once, and any of them may die anywhere: each step is a verb of its own, and the next run goes on. Dropping
//! a run's future is safe. Memory is bounded by the page.

use std::fmt;

use cairn_core::{Clock, ErrorKind};
use futures::{StreamExt, stream};

use crate::{
    ListedPayload, PayloadError, PayloadRef, PayloadRegistry, PayloadRow, PayloadState, PayloadStore, Result,
    StoreError,
};

/// How to collect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectOptions {
    /// How long an object stays after nothing needs it any more (default a day), once as live and once as dead. For objects without a row,
    /// how old they have to be.
    pub grace_ms: u64,
    /// The longest lease in force: the grace has to be longer.
    pub longest_lease_ms: u64,
    /// Rows and objects in one step.
    pub page: usize,
    /// Deletions at once.
    pub max_deletes: usize,
    /// Look for objects without rows by listing the whole store: one request for each thousand objects.
    pub list: bool,
}

impl Default for CollectOptions {
    fn default() -> Self {
        CollectOptions {
            grace_ms: 24 * 3_600_000,
            longest_lease_ms: 3_600_000,
            page: 500,
            max_deletes: 8,
            list: true,
        }
    }
}

/// What a collection did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Objects that an earlier collection had begun to delete.
    pub finished: u64,
    /// Rows that became dead: their objects go when the grace is over.
    pub marked_dead: u64,
    /// Dead rows that something referred to after all; they are live again. More than 0 says that a writer or an operator went past the protocol.
    pub revived: u64,
    /// Dead objects that were deleted.
    pub deleted: u64,
    /// Objects without a row that were deleted.
    pub orphans: u64,
    /// Bytes of all objects that were deleted.
    pub freed_bytes: u64,
    /// Objects listed.
    pub listed: u64,
    /// Objects listed below `payloads/` that are no payloads; left alone.
    pub foreign: u64,
    /// Deletions that the object store refused; their rows stay, and the next run tries again.
    pub failed: u64,
    /// Why the first of these failed.
    pub first_failure: Option<String>,
}

impl fmt::Display for Collected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} deleted, {} orphans deleted, {} deletions finished, {} bytes freed; {} marked dead, {} live again; {} listed, {} foreign",
            self.deleted,
            self.orphans,
            self.finished,
            self.freed_bytes,
            self.marked_dead,
            self.revived,
            self.listed,
            self.foreign
        )?;
        match &self.first_failure {
            Some(why) => write!(f, "; {} could not be deleted: {why}", self.failed),
            None => Ok(()),
        }
    }
}

/// Collects what nothing needs: finishes what was begun, marks dead, deletes what has been dead for the grace time, and what the listing finds without a row. A
/// refused deletion is counted and the rest goes on; an error of the database, or an object store that is away, ends the run. `clock` is only held against the
/// ages of objects without rows. `owner` is the database's uuid: nothing is touched where the place is another's ([`PayloadStore::claim`]).
pub async fn collect_orphans(
    store: &dyn PayloadStore,
    registry: &dyn PayloadRegistry,
    owner: &str,
    clock: &dyn Clock,
    options: CollectOptions,
) -> Result<Collected> {
    if options.grace_ms <= options.longest_lease_ms {
        return Err(StoreError::Invalid(format!(
            "the grace time of payload collection ({} ms) has to be longer than the longest lease ({} ms)",
            options.grace_ms, options.longest_lease_ms
        )));
    }
    if options.page == 0 || options.max_deletes == 0 {
        return Err(StoreError::Invalid(
            "payload collection needs a page and a number of deletions at once of at least 1".into(),
        ));
    }
    store.claim(owner).await?;
    let mut run = Run { store, registry, options, done: Collected::default() };
    run.finish_begun().await?;
    run.mark_dead().await?;
    run.delete_dead().await?;
    if options.list {
        run.delete_orphans(clock.now_ms()).await?;
    }
    Ok(run.done)
}

struct Run<'a> {
    store: &'a dyn PayloadStore,
    registry: &'a dyn PayloadRegistry,
    options: CollectOptions,
    done: Collected,
}

impl Run<'_> {
    async fn finish_begun(&mut self) -> Result<()> {
        let mut after = None;
        loop {
            let rows = self.registry.deleting(after, self.options.page).await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = Some(last.object);
            self.done.finished += self.delete(&rows).await?;
        }
    }

    async fn mark_dead(&mut self) -> Result<()> {
        let mut after = None;
        loop {
            let step = self.registry.mark_dead(self.options.grace_ms, after, self.options.page).await?;
            self.done.marked_dead += step.dead;
            match step.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn delete_dead(&mut self) -> Result<()> {
        loop {
            let mut rows = self.registry.begin_delete(self.options.grace_ms, self.options.page).await?;
            if rows.is_empty() {
                return Ok(());
            }
            let all = rows.len();
            rows.retain(|row| row.state == PayloadState::Deleting);
            self.done.revived += (all - rows.len()) as u64;
            self.done.deleted += self.delete(&rows).await?;
        }
    }

    async fn delete_orphans(&mut self, now_ms: u64) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = self.store.list(after.as_deref(), self.options.page).await?;
            self.done.listed += page.objects.len() as u64;
            self.done.foreign += page.foreign;
            let old: Vec<(PayloadRef, u64)> = page
                .objects
                .iter()
                .filter(|listed| self.is_old(listed, now_ms))
                .map(|listed| (listed.object, listed.size_bytes))
                .collect();
            if !old.is_empty() {
                let adopted = self.registry.adopt(&old).await?;
                let rows: Vec<PayloadRow> = old
                    .into_iter()
                    .filter(|(object, _)| adopted.contains(object))
                    .map(|(object, size_bytes)| PayloadRow {
                        object,
                        state: PayloadState::Deleting,
                        size_bytes,
                    })
                    .collect();
                self.done.orphans += self.delete(&rows).await?;
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn is_old(&self, listed: &ListedPayload, now_ms: u64) -> bool {
        listed.modified_at_ms.saturating_add(self.options.grace_ms) <= now_ms
    }

    /// Deletes objects whose rows are deleting, then the rows; answers how many.
    async fn delete(&mut self, rows: &[PayloadRow]) -> Result<u64> {
        let store = self.store;
        let ended: Vec<(PayloadRow, Result<(), PayloadError>)> = stream::iter(rows.to_vec())
            .map(|row| async move { (row, store.delete(row.object).await) })
            .buffered(self.options.max_deletes)
            .collect()
            .await;
        let mut gone = Vec::new();
        let mut away = None;
        for (row, answer) in ended {
            match answer {
                Ok(()) => {
                    gone.push(row.object);
                    self.done.freed_bytes += row.size_bytes;
                }
                Err(error) if error.kind() == ErrorKind::Retry => away = Some(error),
                Err(error) => {
                    self.done.failed += 1;
                    self.done.first_failure.get_or_insert_with(|| format!("{}: {error}", row.object));
                }
            }
        }
        if !gone.is_empty() {
            self.registry.finish_delete(&gone).await?;
        }
        match away {
            Some(error) => Err(error.into()),
            None => Ok(gone.len() as u64),
        }
    }
}

/// A live row whose object isn't as the row says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// The row.
    pub row: PayloadRow,
    /// The length of the object that is there; `None` where there is none.
    pub found_bytes: Option<u64>,
}

/// Asks the object store for every object that is live, and answers the first `limit` that are missing or have another length, in the order of
/// (hash, generation), and how many were asked for. Content is checked by reading, not here.
pub async fn check_live(
    store: &dyn PayloadStore,
    registry: &dyn PayloadRegistry,
    page: usize,
    limit: usize,
) -> Result<(u64, Vec<Missing>)> {
    const AT_ONCE: usize = 8;
    let (mut after, mut asked, mut missing) = (None, 0, Vec::new());
    loop {
        let rows = registry.live(after, page.max(1)).await?;
        let mut answers = stream::iter(rows.rows)
            .map(|row| async move { (row, store.size(row.object).await) })
            .buffered(AT_ONCE);
        while let Some((row, answer)) = answers.next().await {
            let found_bytes = answer?;
            asked += 1;
            if found_bytes != Some(row.size_bytes) {
                missing.push(Missing { row, found_bytes });
                if missing.len() >= limit {
                    return Ok((asked, missing));
                }
            }
        }
        match rows.next {
            Some(next) => after = Some(next),
            None => return Ok((asked, missing)),
        }
    }
}
