//! The suites of payloads are worth what they catch: the references with one bug each, and every bug has to fail a case.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::SystemClock;
use cairn_store::suite_payload::{
    PayloadsFactory, RegistryFactory, TestPayloads, TestRegistry, TestTransaction, run_registry, run_store,
};
use cairn_store::{
    LivePage, MarkedDead, MemoryPayloads, MemoryRegistry, MemoryTransaction, PayloadContent, PayloadCursor,
    PayloadError, PayloadPage, PayloadRef, PayloadRegistry, PayloadRow, PayloadStore, PutOutcome,
    Reservation, Result,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    ReservesInAnyOrder,
    ReservesAsLive,
    ReservesAsDead,
    ReserveIgnoresTheLength,
    MakeLiveLosesNothing,
    MakeLiveDoesNothing,
    MakeLiveLosesEverything,
    CommitForgets,
    RollbackCommits,
    MarkDeadIgnoresTheGrace,
    MarkDeadEndsEarly,
    MarkDeadDoesNothing,
    BeginDeleteIgnoresTheGrace,
    BeginDeleteHidesOne,
    DeletingIgnoresTheLimit,
    DeletingIsEmpty,
    FinishForgets,
    AdoptsNothing,
    AdoptAnswersEverything,
    LiveIgnoresTheLimit,
    LiveEndsEarly,
}

use Bug::*;

const REGISTRY_BUGS: [Bug; 21] = [
    ReservesInAnyOrder,
    ReservesAsLive,
    ReservesAsDead,
    ReserveIgnoresTheLength,
    MakeLiveLosesNothing,
    MakeLiveDoesNothing,
    MakeLiveLosesEverything,
    CommitForgets,
    RollbackCommits,
    MarkDeadIgnoresTheGrace,
    MarkDeadEndsEarly,
    MarkDeadDoesNothing,
    BeginDeleteIgnoresTheGrace,
    BeginDeleteHidesOne,
    DeletingIgnoresTheLimit,
    DeletingIsEmpty,
    FinishForgets,
    AdoptsNothing,
    AdoptAnswersEverything,
    LiveIgnoresTheLimit,
    LiveEndsEarly,
];

struct Buggy {
    inner: MemoryRegistry,
    bug: Bug,
}

struct BuggyTransaction {
    inner: Option<MemoryTransaction>,
    bug: Bug,
}

#[async_trait]
impl PayloadRegistry for Buggy {
    async fn reserve(&self, contents: &[PayloadContent]) -> Result<Vec<Reservation>> {
        let mut contents = contents.to_vec();
        if self.bug == ReserveIgnoresTheLength {
            for content in &mut contents {
                let rows = self.inner.rows();
                let row = rows.iter().find(|row| row.object.hash == content.hash);
                content.size_bytes = row.map_or(content.size_bytes, |row| row.size_bytes);
            }
        }
        let mut reserved = self.inner.reserve(&contents).await?;
        match self.bug {
            ReservesInAnyOrder => reserved.sort_by_key(|reserved| reserved.object),
            ReservesAsLive => reserved.iter_mut().for_each(|reserved| reserved.live = true),
            ReservesAsDead => reserved.iter_mut().for_each(|reserved| reserved.live = false),
            _ => {}
        }
        Ok(reserved)
    }

    async fn mark_dead(&self, grace_ms: u64, after: PayloadCursor, limit: usize) -> Result<MarkedDead> {
        let grace_ms = if self.bug == MarkDeadIgnoresTheGrace { 0 } else { grace_ms };
        if self.bug == MarkDeadDoesNothing {
            return Ok(MarkedDead { dead: 0, next: None });
        }
        let mut step = self.inner.mark_dead(grace_ms, after, limit).await?;
        if self.bug == MarkDeadEndsEarly {
            step.next = None;
        }
        Ok(step)
    }

    async fn begin_delete(&self, grace_ms: u64, limit: usize) -> Result<Vec<PayloadRow>> {
        let grace_ms = if self.bug == BeginDeleteIgnoresTheGrace { 0 } else { grace_ms };
        let mut rows = self.inner.begin_delete(grace_ms, limit).await?;
        if self.bug == BeginDeleteHidesOne {
            rows.pop();
        }
        Ok(rows)
    }

    async fn deleting(&self, after: PayloadCursor, limit: usize) -> Result<Vec<PayloadRow>> {
        match self.bug {
            DeletingIgnoresTheLimit => self.inner.deleting(after, usize::MAX).await,
            DeletingIsEmpty => Ok(Vec::new()),
            _ => self.inner.deleting(after, limit).await,
        }
    }

    async fn finish_delete(&self, objects: &[PayloadRef]) -> Result<()> {
        if self.bug == FinishForgets { Ok(()) } else { self.inner.finish_delete(objects).await }
    }

    async fn adopt(&self, objects: &[(PayloadRef, u64)]) -> Result<Vec<PayloadRef>> {
        match self.bug {
            AdoptsNothing => Ok(Vec::new()),
            AdoptAnswersEverything => {
                self.inner.adopt(objects).await?;
                Ok(objects.iter().map(|(object, _)| *object).collect())
            }
            _ => self.inner.adopt(objects).await,
        }
    }

    async fn live(&self, after: PayloadCursor, limit: usize) -> Result<LivePage> {
        let limit = if self.bug == LiveIgnoresTheLimit { usize::MAX } else { limit };
        let mut page = self.inner.live(after, limit).await?;
        if self.bug == LiveEndsEarly {
            page.next = None;
        }
        Ok(page)
    }
}

#[async_trait]
impl TestRegistry for Buggy {
    async fn begin(&self) -> Result<Box<dyn TestTransaction>> {
        let inner = Some(self.inner.begin());
        Ok(Box::new(BuggyTransaction { inner, bug: self.bug }))
    }

    async fn references(&self) -> Result<BTreeMap<u64, PayloadRef>> {
        TestRegistry::references(&self.inner).await
    }

    async fn rows(&self) -> Result<Vec<PayloadRow>> {
        TestRegistry::rows(&self.inner).await
    }
}

impl BuggyTransaction {
    fn inner(&mut self) -> &mut MemoryTransaction {
        self.inner.as_mut().expect("the store is open")
    }
}

#[async_trait]
impl TestTransaction for BuggyTransaction {
    async fn make_live(&mut self, objects: &[PayloadRef]) -> Result<Vec<PayloadRef>> {
        if self.bug == MakeLiveDoesNothing {
            return Ok(Vec::new());
        }
        let lost = self.inner().make_live(objects).await;
        match self.bug {
            MakeLiveLosesNothing => Ok(Vec::new()),
            MakeLiveLosesEverything if !lost.is_empty() => Ok(objects.to_vec()),
            _ => Ok(lost),
        }
    }

    async fn refer(&mut self, place: u64, object: PayloadRef) -> Result<()> {
        self.inner().refer(place, object);
        Ok(())
    }

    async fn forget(&mut self, place: u64) -> Result<()> {
        self.inner().forget(place);
        Ok(())
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        let inner = self.inner.take().expect("the store is open");
        if self.bug != CommitForgets {
            inner.commit();
        }
        Ok(())
    }
}

impl Drop for BuggyTransaction {
    fn drop(&mut self) {
        if self.bug == RollbackCommits
            && let Some(inner) = self.inner.take()
        {
            inner.commit();
        }
    }
}

#[async_trait]
impl RegistryFactory for Bug {
    async fn registry(&self) -> Result<Arc<dyn TestRegistry>> {
        Ok(Arc::new(Buggy { inner: MemoryRegistry::new(Arc::new(SystemClock)), bug: *self }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_of_a_registry_fails_a_case() {
    let runs = REGISTRY_BUGS.map(|bug| tokio::spawn(run_registry(Arc::new(bug), None)));
    for (bug, run) in REGISTRY_BUGS.iter().zip(runs) {
        assert!(!run.await.unwrap().failed.is_empty(), "{bug:?} was not noticed");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StoreBug {
    PutIsUnchecked,
    PutOverwrites,
    PutSaysWritten,
    GetIsUnchecked,
    GetIgnoresTheLength,
    DeletesNothing,
    SizeIsZero,
    ListIgnoresTheLimit,
    ListIgnoresAfter,
    ListEndsEarly,
    ListHidesForeign,
    GenerationsAreOne,
    EverybodyOwns,
}

use StoreBug::*;

const STORE_BUGS: [StoreBug; 13] = [
    PutIsUnchecked,
    PutOverwrites,
    PutSaysWritten,
    GetIsUnchecked,
    GetIgnoresTheLength,
    DeletesNothing,
    SizeIsZero,
    ListIgnoresTheLimit,
    ListIgnoresAfter,
    ListEndsEarly,
    ListHidesForeign,
    GenerationsAreOne,
    EverybodyOwns,
];

#[derive(Debug)]
struct BuggyPayloads {
    inner: MemoryPayloads,
    bug: StoreBug,
}

impl BuggyPayloads {
    fn name(&self, object: PayloadRef) -> PayloadRef {
        if self.bug == GenerationsAreOne { PayloadRef { generation: 1, ..object } } else { object }
    }
}

#[async_trait]
impl PayloadStore for BuggyPayloads {
    async fn claim(&self, owner: &str) -> Result<(), PayloadError> {
        if self.bug == EverybodyOwns { Ok(()) } else { self.inner.claim(owner).await }
    }

    async fn put(&self, object: PayloadRef, body: Bytes) -> Result<PutOutcome, PayloadError> {
        let object = self.name(object);
        match self.bug {
            PutIsUnchecked => {
                self.inner.insert_unchecked(object.key(), body);
                Ok(PutOutcome::Written)
            }
            PutOverwrites => {
                PayloadError::check(object, None, &body)
                    .map_err(|error| PayloadError::Invalid(error.to_string()))?;
                let there = self.inner.size(object).await?.is_some();
                self.inner.insert_unchecked(object.key(), body);
                Ok(if there { PutOutcome::Present } else { PutOutcome::Written })
            }
            PutSaysWritten => self.inner.put(object, body).await.map(|_| PutOutcome::Written),
            _ => self.inner.put(object, body).await,
        }
    }

    async fn get(&self, object: PayloadRef, size_bytes: Option<u64>) -> Result<Bytes, PayloadError> {
        let size_bytes = size_bytes.filter(|_| self.bug != GetIgnoresTheLength);
        match self.inner.get(self.name(object), size_bytes).await {
            Err(PayloadError::Damaged { .. }) if self.bug == GetIsUnchecked => Ok(Bytes::new()),
            answer => answer,
        }
    }

    async fn size(&self, object: PayloadRef) -> Result<Option<u64>, PayloadError> {
        if self.bug == SizeIsZero { Ok(Some(0)) } else { self.inner.size(self.name(object)).await }
    }

    async fn delete(&self, object: PayloadRef) -> Result<(), PayloadError> {
        if self.bug == DeletesNothing { Ok(()) } else { self.inner.delete(self.name(object)).await }
    }

    async fn list(&self, after: Option<&str>, limit: usize) -> Result<PayloadPage, PayloadError> {
        let mut page = match self.bug {
            ListIgnoresTheLimit if limit > 0 => self.inner.list(after, usize::MAX).await?,
            ListIgnoresAfter => {
                let mut page = self.inner.list(None, limit).await?;
                // So that a walk ends.
                page.next = page.next.filter(|_| after.is_none());
                page
            }
            _ => self.inner.list(after, limit).await?,
        };
        match self.bug {
            ListEndsEarly => page.next = None,
            ListHidesForeign => page.foreign = 0,
            _ => {}
        }
        Ok(page)
    }
}

#[async_trait]
impl TestPayloads for BuggyPayloads {
    async fn insert_unchecked(&self, key: &str, body: Bytes) -> Result<(), PayloadError> {
        self.inner.insert_unchecked(key, body);
        Ok(())
    }
}

#[async_trait]
impl PayloadsFactory for StoreBug {
    async fn payloads(&self) -> Result<Arc<dyn TestPayloads>, PayloadError> {
        Ok(Arc::new(BuggyPayloads { inner: MemoryPayloads::new(Arc::new(SystemClock)), bug: *self }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bug_of_a_store_fails_a_case() {
    let runs = STORE_BUGS.map(|bug| tokio::spawn(run_store(Arc::new(bug), None)));
    for (bug, run) in STORE_BUGS.iter().zip(runs) {
        assert!(!run.await.unwrap().failed.is_empty(), "{bug:?} was not noticed");
    }
}
