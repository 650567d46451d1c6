//! Stopping at any point: what was committed is there, what was not is not, and whoever comes next goes on from the store alone.

use std::future::Future;
use std::sync::Arc;

use super::raw::Raw;
use super::subject::Subject;
use super::tables::{ASKER, FOLDER, MAPPER};
use super::{Case, CaseResult, DerivedFactory, Failure};
use crate::derived::lease::{ClaimRequest, LeaseStatus};
use crate::derived::writer::ApplyProgress;
use crate::suite::beside::beside;
use crate::suite::check::holds;
use crate::{Result, StoreError};

pub(super) fn cases() -> Vec<Case> {
    case_list!("restart":
        i01_a_crash_before_any_verb_loses_and_doubles_nothing,
        an_answer_lost_after_any_verb_is_settled_from_the_store,
        a_restart_after_every_verb_changes_nothing,
    )
}

/// When the process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Crash {
    /// Before the verb changed anything.
    Before,
    /// After it did, before the answer came.
    After,
}

/// A process that does everything there is to do, and may die on the way.
struct Process {
    subject: Subject,
    crash: Crash,
    /// How many verbs it lives for.
    verbs_left: usize,
}

impl Process {
    /// Runs a verb; `None`: the process died of it.
    async fn verb<T>(&mut self, run: impl Future<Output = Result<T>>) -> CaseResult<Option<T>> {
        if self.verbs_left > 0 {
            self.verbs_left -= 1;
            return Ok(Some(run.await?));
        }
        if self.crash == Crash::After {
            run.await?;
        }
        Ok(None)
    }

    /// Everything from the start of a process to the raw tip; `None`: it died.
    async fn run(&mut self) -> CaseResult<Option<()>> {
        let store = self.subject.store.clone();
        let (uuid, newest) = (self.subject.raw.uuid, self.subject.raw.newest());
        let Some(forks) = self.verb(store.adopt(uuid, newest)).await? else { return Ok(None) };
        for service in [MAPPER, FOLDER, ASKER] {
            let registered = self.verb(store.register(service, cairn_core::Height(0))).await?;
            if registered.is_none() {
                return Ok(None);
            }
        }
        if self.verb(store.release_all()).await?.is_none() {
            return Ok(None);
        }
        let entries = self.subject.raw.reorgs.clone();
        for entry in entries.iter().filter(|entry| entry.id > forks.applied.id) {
            if self.verb(store.begin_apply(entry)).await?.is_none() {
                return Ok(None);
            }
            loop {
                match self.verb(store.apply_step(entry.id, 6)).await? {
                    None => return Ok(None),
                    Some(ApplyProgress::More) => {}
                    Some(ApplyProgress::Done) => break,
                }
            }
            if self.verb(store.finish_apply(entry.id)).await?.is_none() {
                return Ok(None);
            }
        }
        for service in [MAPPER, FOLDER, ASKER] {
            if self.index(service).await?.is_none() {
                return Ok(None);
            }
            if self.verb(store.repair_checkpoints()).await?.is_none() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    }

    async fn index(&mut self, service: &str) -> CaseResult<Option<()>> {
        let store = self.subject.store.clone();
        let limit = self.subject.limit(service).await?;
        let request = ClaimRequest {
            range_heights: 5,
            limit_exclusive: limit,
            stop_exclusive: Some(limit),
            ..self.subject.request(service)
        };
        loop {
            let Some(claimed) = self.verb(store.claim(&request)).await? else { return Ok(None) };
            let Some(mut lease) = claimed else { return Ok(Some(())) };
            while lease.status == LeaseStatus::Active {
                let to = (lease.done_to + 3).min(lease.range.end());
                let commit = self.subject.chunk(&lease, to.get()).await?;
                let Some(committed) = self.verb(store.commit_chunk(&lease, commit)).await? else {
                    return Ok(None);
                };
                lease = committed.lease;
            }
        }
    }
}

/// A chain is indexed, forks, and is indexed again, by processes of which one dies at its `at`th verb (or each, where `every`). Whether any did.
async fn live(factory: &Arc<dyn DerivedFactory>, crash: Crash, at: usize, every: bool) -> CaseResult<bool> {
    let mut has_died = false;
    let subject = Subject::bare(factory, Raw::with(9, 1)).await?;
    let mut process = Process { subject, crash, verbs_left: at };
    for phase in 0..3 {
        match phase {
            1 => {
                process.subject.raw.fork(6);
                process.subject.raw.grow(11, 2);
            }
            2 => {
                process.subject.raw.fork(8);
                process.subject.raw.fork(4);
                process.subject.raw.grow(12, 1);
            }
            _ => {}
        }
        let mut deaths = 0;
        while process.run().await?.is_none() {
            has_died = true;
            deaths += 1;
            holds(deaths < 500, "the processes get nowhere")?;
            process.subject.reopen().await?;
            // A process that dies at each of its verbs would never get past the first: each lives a little longer.
            process.verbs_left = if every { at + deaths } else { usize::MAX };
        }
        process.subject.dumps_as_its_chain().await?;
        if every {
            process.verbs_left = at;
            process.subject.reopen().await?;
        }
    }
    Ok(has_died)
}

async fn at_any_verb(factory: Arc<dyn DerivedFactory>, crash: Crash) -> CaseResult {
    let (at_once, mut at) = (factory.at_once(), 0);
    while at < 1_000 {
        let end = at + at_once as u64;
        let died = beside(at_once, at..end, |at| {
            let factory = factory.clone();
            async move {
                let died = live(&factory, crash, at as usize, false).await;
                died.map_err(|failure| Failure::new(format!("a crash {crash:?} verb {at}: {failure}")))
            }
        });
        if let Some(done) = died.await?.iter().position(|died| !died) {
            let verbs = at + done as u64;
            return holds(verbs > 40, format!("it was done after {verbs} verbs"));
        }
        at = end;
    }
    Err(StoreError::Invalid("the process is never done".into()).into())
}

async fn i01_a_crash_before_any_verb_loses_and_doubles_nothing(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    at_any_verb(factory, Crash::Before).await
}

async fn an_answer_lost_after_any_verb_is_settled_from_the_store(
    factory: Arc<dyn DerivedFactory>,
) -> CaseResult {
    at_any_verb(factory, Crash::After).await
}

async fn a_restart_after_every_verb_changes_nothing(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    for crash in [Crash::Before, Crash::After] {
        holds(live(&factory, crash, 1, true).await?, "no process died")?;
    }
    Ok(())
}
