//! The references: payloads and their registry in memory. They define what the traits mean.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::Clock;
use tokio::sync::Notify;

use super::object::FOLDER;
use crate::{
    ListedPayload, LivePage, MarkedDead, PayloadContent, PayloadCursor, PayloadError, PayloadPage,
    PayloadRef, PayloadRegistry, PayloadRow, PayloadState, PayloadStore, PutOutcome, Reservation, Result,
    StoreError,
};

/// Payloads in memory. Clones share them.
#[derive(Debug, Clone)]
pub struct MemoryPayloads {
    clock: Arc<dyn Clock>,
    objects: Arc<Mutex<BTreeMap<String, (Bytes, u64)>>>,
    owner: Arc<Mutex<Option<String>>>,
}

impl MemoryPayloads {
    /// An empty store. `clock` dates the objects.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        MemoryPayloads { clock, objects: Arc::default(), owner: Arc::default() }
    }

    /// Every key, in order.
    pub fn keys(&self) -> Vec<String> {
        self.objects().keys().cloned().collect()
    }

    /// Writes whatever bytes under whatever key: damage and foreign objects, for tests.
    pub fn insert_unchecked(&self, key: impl Into<String>, body: Bytes) {
        let now_ms = self.clock.now_ms();
        self.objects().insert(key.into(), (body, now_ms));
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, (Bytes, u64)>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl PayloadStore for MemoryPayloads {
    async fn claim(&self, owner: &str) -> Result<(), PayloadError> {
        if owner.is_empty() {
            return Err(PayloadError::Invalid("an owner without a name".into()));
        }
        let mut stored = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        let found = stored.get_or_insert_with(|| owner.to_owned()).clone();
        if found == owner {
            return Ok(());
        }
        Err(PayloadError::OtherOwner { place: "memory".into(), found, owner: owner.to_owned() })
    }

    async fn put(&self, object: PayloadRef, body: Bytes) -> Result<PutOutcome, PayloadError> {
        if PayloadError::check(object, None, &body).is_err() {
            return Err(PayloadError::Invalid(format!("the body for {object} has another hash")));
        }
        let now_ms = self.clock.now_ms();
        let mut objects = self.objects();
        match objects.get(&object.key()) {
            Some((stored, _)) => {
                PayloadError::check(object, Some(body.len() as u64), stored)?;
                Ok(PutOutcome::Present)
            }
            None => {
                objects.insert(object.key(), (body, now_ms));
                Ok(PutOutcome::Written)
            }
        }
    }

    async fn get(&self, object: PayloadRef, size_bytes: Option<u64>) -> Result<Bytes, PayloadError> {
        let body = self.objects().get(&object.key()).map(|(body, _)| body.clone());
        let body = body.ok_or(PayloadError::Missing { object, tries: 1 })?;
        PayloadError::check(object, size_bytes, &body)?;
        Ok(body)
    }

    async fn size(&self, object: PayloadRef) -> Result<Option<u64>, PayloadError> {
        Ok(self.objects().get(&object.key()).map(|(body, _)| body.len() as u64))
    }

    async fn delete(&self, object: PayloadRef) -> Result<(), PayloadError> {
        self.objects().remove(&object.key());
        Ok(())
    }

    async fn list(&self, after: Option<&str>, limit: usize) -> Result<PayloadPage, PayloadError> {
        if limit == 0 {
            return Err(PayloadError::Invalid("a listing needs a limit of at least 1".into()));
        }
        let objects = self.objects();
        let mut page = PayloadPage::default();
        let mut keys = objects.iter().filter(|(key, _)| {
            key.starts_with(&format!("{FOLDER}/")) && after.is_none_or(|after| key.as_str() > after)
        });
        let mut last = None;
        for (key, (body, modified_at_ms)) in keys.by_ref().take(limit) {
            match key.parse() {
                Ok(object) => page.objects.push(ListedPayload {
                    object,
                    size_bytes: body.len() as u64,
                    modified_at_ms: *modified_at_ms,
                }),
                Err(_) => page.foreign += 1,
            }
            last = Some(key.clone());
        }
        page.next = keys.next().and(last);
        Ok(page)
    }
}

#[derive(Debug, Clone, Copy)]
struct Row {
    state: PayloadState,
    size_bytes: u64,
    changed_at_ms: u64,
    /// The transaction that made it live and isn't over yet.
    locked_by: Option<u64>,
}

#[derive(Debug, Default)]
struct State {
    rows: BTreeMap<PayloadRef, Row>,
    /// Rows of other tables that refer to payloads, by a number that stands for the place.
    references: BTreeMap<u64, PayloadRef>,
    last_generation: u64,
    last_transaction: u64,
}

impl State {
    fn is_referred_to(&self, object: PayloadRef) -> bool {
        self.references.values().any(|referred| *referred == object)
    }

    fn usable(&self, hash: crate::PayloadHash) -> Option<(PayloadRef, Row)> {
        let all = PayloadRef { hash, generation: 0 }..=PayloadRef { hash, generation: u64::MAX };
        let mut usable = self.rows.range(all).filter(|(_, row)| row.state != PayloadState::Deleting);
        usable.next().map(|(object, row)| (*object, *row))
    }
}

#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    unlocked: Notify,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repeats `step` until it doesn't meet another's lock, waiting for the end of a transaction each time.
    async fn when_unlocked<T>(&self, mut step: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let mut unlocked = pin!(self.unlocked.notified());
            // From here on no wake-up is lost.
            unlocked.as_mut().enable();
            if let Some(done) = step(&mut self.state()) {
                return done;
            }
            unlocked.await;
        }
    }
}

/// The registry in memory, with the rows that refer to payloads beside it. Clones share them. Row locks are held by transactions as in a
/// database; a verb runs under one mutex, which is as good as locking its rows first and looking for references then.
#[derive(Debug, Clone)]
pub struct MemoryRegistry {
    shared: Arc<Shared>,
}

impl MemoryRegistry {
    /// An empty registry that judges ages by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared { clock, state: Mutex::default(), unlocked: Notify::new() };
        MemoryRegistry { shared: Arc::new(shared) }
    }

    /// Begins a writer's data transaction. Dropping it rolls it back.
    pub fn begin(&self) -> MemoryTransaction {
        let mut state = self.shared.state();
        state.last_transaction += 1;
        MemoryTransaction {
            shared: self.shared.clone(),
            id: state.last_transaction,
            locked: Vec::new(),
            references: Vec::new(),
        }
    }

    /// What rows of other tables refer to, as committed.
    pub fn references(&self) -> BTreeMap<u64, PayloadRef> {
        self.shared.state().references.clone()
    }

    /// Every row, as committed, in the order of (hash, generation).
    pub fn rows(&self) -> Vec<PayloadRow> {
        self.shared.state().rows.iter().map(|(object, row)| as_row(*object, row)).collect()
    }
}

fn as_row(object: PayloadRef, row: &Row) -> PayloadRow {
    PayloadRow { object, state: row.state, size_bytes: row.size_bytes }
}

fn follows(object: PayloadRef, after: PayloadCursor) -> bool {
    after.is_none_or(|after| object > after)
}

#[async_trait]
impl PayloadRegistry for MemoryRegistry {
    async fn reserve(&self, contents: &[PayloadContent]) -> Result<Vec<Reservation>> {
        let distinct: BTreeSet<_> = contents.iter().map(|content| content.hash).collect();
        if distinct.len() < contents.len() {
            return Err(StoreError::Invalid("the contents to reserve are not distinct".into()));
        }
        let now_ms = self.shared.clock.now_ms();
        self.shared
            .when_unlocked(|state| {
                let found: Vec<_> = contents.iter().map(|content| state.usable(content.hash)).collect();
                for (content, found) in contents.iter().zip(&found) {
                    let Some((object, row)) = found else { continue };
                    if row.locked_by.is_some() {
                        return None;
                    }
                    if row.size_bytes != content.size_bytes {
                        return Some(Err(StoreError::Corrupt {
                            place: format!("the row of payload {object}"),
                            what: format!(
                                "it states {} bytes, the content has {}",
                                row.size_bytes, content.size_bytes
                            ),
                        }));
                    }
                }
                let mut reserved = Vec::with_capacity(contents.len());
                for (content, found) in contents.iter().zip(found) {
                    let (object, row) = found.unwrap_or_else(|| {
                        state.last_generation += 1;
                        let object = PayloadRef { hash: content.hash, generation: state.last_generation };
                        let row = Row {
                            state: PayloadState::Dead,
                            size_bytes: content.size_bytes,
                            changed_at_ms: now_ms,
                            locked_by: None,
                        };
                        (object, row)
                    });
                    state.rows.insert(object, Row { changed_at_ms: now_ms, ..row });
                    reserved.push(Reservation { object, live: row.state == PayloadState::Live });
                }
                Some(Ok(reserved))
            })
            .await
    }

    async fn mark_dead(&self, grace_ms: u64, after: PayloadCursor, limit: usize) -> Result<MarkedDead> {
        let now_ms = self.shared.clock.now_ms();
        let mut state = self.shared.state();
        let looked_at: Vec<PayloadRef> = state
            .rows
            .iter()
            .filter(|(object, row)| {
                follows(**object, after)
                    && row.state == PayloadState::Live
                    && row.locked_by.is_none()
                    && row.changed_at_ms.saturating_add(grace_ms) <= now_ms
            })
            .map(|(object, _)| *object)
            .take(limit)
            .collect();
        let mut dead = 0;
        for object in &looked_at {
            if state.is_referred_to(*object) {
                continue;
            }
            if let Some(row) = state.rows.get_mut(object) {
                (row.state, row.changed_at_ms) = (PayloadState::Dead, now_ms);
                dead += 1;
            }
        }
        let next = if looked_at.len() < limit { None } else { looked_at.last().copied() };
        Ok(MarkedDead { dead, next })
    }

    async fn begin_delete(&self, grace_ms: u64, limit: usize) -> Result<Vec<PayloadRow>> {
        let now_ms = self.shared.clock.now_ms();
        let mut state = self.shared.state();
        let old: Vec<PayloadRef> = state
            .rows
            .iter()
            .filter(|(_, row)| {
                row.state == PayloadState::Dead
                    && row.locked_by.is_none()
                    && row.changed_at_ms.saturating_add(grace_ms) <= now_ms
            })
            .map(|(object, _)| *object)
            .take(limit)
            .collect();
        let mut changed = Vec::with_capacity(old.len());
        for object in old {
            let to = if state.is_referred_to(object) { PayloadState::Live } else { PayloadState::Deleting };
            if let Some(row) = state.rows.get_mut(&object) {
                (row.state, row.changed_at_ms) = (to, now_ms);
                changed.push(as_row(object, row));
            }
        }
        Ok(changed)
    }

    async fn deleting(&self, after: PayloadCursor, limit: usize) -> Result<Vec<PayloadRow>> {
        let state = self.shared.state();
        let deleting = state
            .rows
            .iter()
            .filter(|(object, row)| follows(**object, after) && row.state == PayloadState::Deleting);
        Ok(deleting.map(|(object, row)| as_row(*object, row)).take(limit).collect())
    }

    async fn finish_delete(&self, objects: &[PayloadRef]) -> Result<()> {
        let mut state = self.shared.state();
        for object in objects {
            if state.rows.get(object).is_some_and(|row| row.state == PayloadState::Deleting) {
                state.rows.remove(object);
            }
        }
        Ok(())
    }

    async fn adopt(&self, objects: &[(PayloadRef, u64)]) -> Result<Vec<PayloadRef>> {
        let now_ms = self.shared.clock.now_ms();
        let mut state = self.shared.state();
        let mut adopted = Vec::new();
        for (object, size_bytes) in objects {
            if state.rows.contains_key(object) {
                continue;
            }
            let row = Row {
                state: PayloadState::Deleting,
                size_bytes: *size_bytes,
                changed_at_ms: now_ms,
                locked_by: None,
            };
            state.rows.insert(*object, row);
            state.last_generation = state.last_generation.max(object.generation);
            adopted.push(*object);
        }
        Ok(adopted)
    }

    async fn live(&self, after: PayloadCursor, limit: usize) -> Result<LivePage> {
        let state = self.shared.state();
        let live = state
            .rows
            .iter()
            .filter(|(object, row)| follows(**object, after) && row.state == PayloadState::Live);
        let rows: Vec<PayloadRow> = live.map(|(object, row)| as_row(*object, row)).take(limit).collect();
        let next = if rows.len() < limit { None } else { rows.last().map(|row| row.object) };
        Ok(LivePage { rows, next })
    }
}

/// A writer's data transaction on the registry in memory: nothing of it is seen before the commit, and the rows that it made live are locked until its end.
#[derive(Debug)]
pub struct MemoryTransaction {
    shared: Arc<Shared>,
    id: u64,
    locked: Vec<PayloadRef>,
    references: Vec<(u64, Option<PayloadRef>)>,
}

impl MemoryTransaction {
    /// Locks the rows of `objects`, waiting for other transactions, and makes them live at the commit. Answers those that are lost: deleting,
    /// or gone.
    pub async fn make_live(&mut self, objects: &[PayloadRef]) -> Vec<PayloadRef> {
        let mut objects = objects.to_vec();
        objects.sort_unstable();
        objects.dedup();
        let mut lost = Vec::new();
        for object in objects {
            let id = self.id;
            let locked = self
                .shared
                .clone()
                .when_unlocked(|state| match state.rows.get_mut(&object) {
                    Some(row) if row.state == PayloadState::Deleting => Some(false),
                    Some(row) if row.locked_by.is_some_and(|by| by != id) => None,
                    Some(row) => {
                        row.locked_by = Some(id);
                        Some(true)
                    }
                    None => Some(false),
                })
                .await;
            if locked {
                self.locked.push(object);
            } else {
                lost.push(object);
            }
        }
        lost
    }

    /// Writes the row at `place`, which refers to `object`.
    pub fn refer(&mut self, place: u64, object: PayloadRef) {
        self.references.push((place, Some(object)));
    }

    /// Deletes the row at `place`.
    pub fn forget(&mut self, place: u64) {
        self.references.push((place, None));
    }

    /// Commits.
    pub fn commit(mut self) {
        let now_ms = self.shared.clock.now_ms();
        let mut state = self.shared.state();
        for object in &self.locked {
            if let Some(row) = state.rows.get_mut(object) {
                (row.state, row.changed_at_ms) = (PayloadState::Live, now_ms);
            }
        }
        for (place, object) in std::mem::take(&mut self.references) {
            match object {
                Some(object) => state.references.insert(place, object),
                None => state.references.remove(&place),
            };
        }
        drop(state);
        // Dropping it unlocks its rows.
    }
}

impl Drop for MemoryTransaction {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        for object in &self.locked {
            if let Some(row) = state.rows.get_mut(object).filter(|row| row.locked_by == Some(self.id)) {
                row.locked_by = None;
            }
        }
        drop(state);
        self.shared.unlocked.notify_waiters();
    }
}
