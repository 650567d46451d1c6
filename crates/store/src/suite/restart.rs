//! Stopping at any point: what was committed is there, what was not is not, and the work goes on.

use std::sync::Arc;

use cairn_core::{Height, Parts, RawBlock};

use super::beside::beside;
use super::blocks::{as_stored, chain, fork};
use super::check::{Failure, same};
use super::leases::{TTL_MS, part};
use super::subject::{Frozen, Subject};
use super::{Case, CaseResult, StoreFactory};
use crate::{RangeEnd, RawLease};

pub(super) fn cases() -> Vec<Case> {
    case_list!("restart":
        i01_a_restart_at_any_point_loses_and_doubles_nothing,
        an_answer_lost_at_any_point_is_settled_by_asking_again,
        a_restart_after_every_single_step_changes_nothing,
        a_store_that_was_only_initialised_reopens_empty,
    )
}

/// How many steps the script has.
const STEPS: usize = 21;

/// The script: a fork comes and goes, ranges are filled and joined, orphans pruned.
struct Script {
    a: Vec<RawBlock>,
    b: Vec<RawBlock>,
    /// As the workers that filled them know them.
    leases: Vec<RawLease>,
}

impl Script {
    fn new() -> Self {
        let a = chain(0, 12, 0);
        let b = fork(&a, 8, 60, 1);
        Script { a, b, leases: Vec::new() }
    }

    /// What the store has to show in the end.
    fn end(&self) -> &[RawBlock] {
        &self.b[..35]
    }

    async fn step(&mut self, subject: &Subject, step: usize) -> CaseResult {
        let (a, b) = (&self.a, &self.b);
        match step {
            0 => drop(subject.append(&a[..5]).await?),
            1 => drop(subject.append(&a[5..]).await?),
            2 => drop(subject.finalize(&a[6]).await?),
            3 => drop(subject.roll_back(&a[8]).await?),
            4 | 5 => drop(subject.store.purge_step(subject.fence, 1).await?),
            6 => subject.purge(1).await?,
            7 => drop(subject.append(&b[9..12]).await?),
            8 | 9 => self.claim(subject).await?,
            10 => self.fill(subject, 1, 20, 30).await?,
            11 => self.fill(subject, 0, 12, 15).await?,
            12 | 16 => drop(subject.store.advance(subject.fence).await?),
            13 => subject.store.release(&self.leases[0], RangeEnd::Released).await?,
            14 => {
                self.leases.remove(0);
                self.claim(subject).await?;
                self.leases.rotate_right(1);
            }
            15 => self.fill(subject, 0, 15, 20).await?,
            17 => drop(subject.append(&b[30..35]).await?),
            18 => drop(subject.finalize(&b[30]).await?),
            19 => drop(subject.store.prune_orphans(subject.fence, 0, 2).await?),
            _ => subject.settle().await?,
        }
        Ok(())
    }

    async fn claim(&mut self, subject: &Subject) -> CaseResult {
        let lease = subject.store.claim_range("w", TTL_MS, 10, Height(30)).await?;
        self.leases.push(lease.ok_or_else(|| Failure::new("nothing to claim"))?);
        Ok(())
    }

    async fn fill(&self, subject: &Subject, lease: usize, from: u64, to: u64) -> CaseResult {
        subject.store.fill(&self.leases[lease], part(&self.b, from, to), TTL_MS).await?;
        Ok(())
    }

    /// Steps that may be asked for again when their answer was lost, and then change nothing.
    fn is_repeatable(step: usize) -> bool {
        matches!(step, 0..=3 | 6 | 7 | 10..=12 | 15..=18)
    }

    /// The orphans that can be read after `done` steps.
    async fn orphans_are_there(&self, subject: &Subject, done: usize) -> CaseResult {
        let snapshot = subject.snapshot().await?;
        for (at, block) in self.a.iter().enumerate() {
            let expected = match done {
                0..4 => false,
                4..20 => at >= 9,
                _ => at >= 11,
            };
            let found = snapshot.orphan(1, block.facts.id, Parts::all()).await?;
            same("an orphan", found, expected.then(|| as_stored(block, Parts::all())))?;
        }
        Ok(())
    }
}

/// Like [`Subject::is_still`], but for the fence, which every start raises.
async fn is_as(subject: &Subject, before: &mut Frozen) -> CaseResult {
    before.set_fence(subject.fence);
    subject.is_still(before).await
}

fn at(step: usize) -> impl Fn(Failure) -> Failure {
    move |failure| Failure::new(format!("stopped after {step} steps: {failure}"))
}

async fn i01_a_restart_at_any_point_loses_and_doubles_nothing(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let stops = 0..STEPS as u64 + 1;
    beside(factory.at_once(), stops, |stop| {
        let (factory, stop) = (factory.clone(), stop as usize);
        let run = async move {
            let (mut script, subject) = (Script::new(), Subject::new(&factory).await?);
            for step in 0..stop {
                script.step(&subject, step).await?;
            }
            let mut before = subject.freeze().await?;
            let subject = subject.restart().await?;
            is_as(&subject, &mut before).await?;
            script.orphans_are_there(&subject, stop).await?;
            for step in stop..STEPS {
                script.step(&subject, step).await?;
            }
            subject.shows(script.end()).await?;
            subject.dumps_as(script.end()).await
        };
        async move {
            let ended: CaseResult = run.await;
            ended.map_err(at(stop))
        }
    })
    .await?;
    Ok(())
}

async fn an_answer_lost_at_any_point_is_settled_by_asking_again(
    factory: Arc<dyn StoreFactory>,
) -> CaseResult {
    let stops: Vec<_> = (1..=STEPS).filter(|stop| Script::is_repeatable(stop - 1)).collect();
    beside(factory.at_once(), 0..stops.len() as u64, |number| {
        let (factory, stop) = (factory.clone(), stops[number as usize]);
        let run = async move {
            let (mut script, subject) = (Script::new(), Subject::new(&factory).await?);
            for step in 0..stop {
                script.step(&subject, step).await?;
            }
            // The process went down before it heard the answer.
            let mut before = subject.freeze().await?;
            let subject = subject.restart().await?;
            script.step(&subject, stop - 1).await?;
            is_as(&subject, &mut before).await?;
            for step in stop..STEPS {
                script.step(&subject, step).await?;
            }
            subject.shows(script.end()).await?;
            subject.dumps_as(script.end()).await
        };
        async move {
            let ended: CaseResult = run.await;
            ended.map_err(at(stop))
        }
    })
    .await?;
    Ok(())
}

async fn a_restart_after_every_single_step_changes_nothing(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let (mut script, mut subject) = (Script::new(), Subject::new(&factory).await?);
    for step in 0..STEPS {
        script.step(&subject, step).await.map_err(at(step))?;
        let mut before = subject.freeze().await?;
        subject = subject.restart().await?;
        is_as(&subject, &mut before).await.map_err(at(step + 1))?;
        script.orphans_are_there(&subject, step + 1).await.map_err(at(step + 1))?;
    }
    subject.shows(script.end()).await?;
    subject.dumps_as(script.end()).await
}

async fn a_store_that_was_only_initialised_reopens_empty(factory: Arc<dyn StoreFactory>) -> CaseResult {
    let subject = Subject::new(&factory).await?;
    let subject = subject.restart().await?;
    subject.shows(&[]).await?;
    let blocks = chain(3, 4, 0);
    subject.append(&blocks).await?;
    subject.restart().await?.shows(&blocks).await
}
