//! Many at once: writers, the committer, the reaper, whoever applies reorgs, and readers.

use std::sync::Arc;

use cairn_core::{Height, HeightRange};

use super::raw::Raw;
use super::subject::{Subject, TTL_MS};
use super::tables::{ASKER, MAPPER, MOVES, NAMES, map};
use super::{Case, CaseResult, DerivedFactory, Failure, TestDerived};
use crate::StoreError;
use crate::derived::lease::{ClaimRequest, LeaseEnd, LeaseStatus, WorkerLease};
use crate::derived::row::Row;
use crate::derived::value::Value;
use crate::derived::writer::{ApplyProgress, ChunkCommit, TableRows};
use crate::suite::check::{holds, same};

pub(super) fn cases() -> Vec<Case> {
    case_list!("racing":
        p02_writers_in_opposite_orders_dont_fail,
        workers_and_the_committer_at_once,
        claims_leave_no_gap_while_reorgs_are_applied,
        readers_see_whole_commits,
    )
}

fn joined<T>(task: std::result::Result<T, tokio::task::JoinError>) -> CaseResult<T> {
    task.map_err(|panic| Failure::new(panic.to_string()))
}

/// A commit of the next chunk of a lease on a chain that doesn't fork.
fn chunk(raw: &Raw, lease: &WorkerLease, to: Height) -> ChunkCommit {
    let chunk = HeightRange::new(lease.done_to, to.min(lease.range.end()));
    let blocks = raw.blocks(chunk);
    ChunkCommit {
        chunk,
        parent_id: Some(raw.below(chunk.start())),
        last_id: blocks.last().map(|block| block.id),
        read: crate::derived::fork::ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
        folded_at: None,
        rows: if lease.service == MAPPER { map(&blocks) } else { Vec::new() },
        states: Vec::new(),
        replaces: Vec::new(),
        corrections: Vec::new(),
        quarantined: Vec::new(),
        finalized: Height(0),
        ttl_ms: TTL_MS,
    }
}

async fn p02_writers_in_opposite_orders_dont_fail(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let rounds = factory.rounds_of_writers();
    let subject = Subject::new(&factory, Raw::with(2 * rounds, 1)).await?;
    let mut tasks = Vec::new();
    for worker in 0..2_u64 {
        let (store, raw) = (subject.store.clone(), subject.raw.clone());
        let request = ClaimRequest { range_heights: 1, ..subject.request(ASKER) };
        tasks.push(tokio::spawn(async move {
            for round in 0..rounds {
                let Some(lease) = store.claim(&request).await? else { break };
                let mut answers: Vec<Row> = (0..500_u64)
                    .map(|n| {
                        let address = Value::bytes(&n.to_be_bytes());
                        Row(vec![address, Value::text(format!("{worker} {round}")), Value::Int(0)])
                    })
                    .collect();
                if worker == 1 {
                    answers.reverse();
                }
                let rows = vec![TableRows { table: NAMES.name, rows: answers }];
                let commit = ChunkCommit { rows, ..chunk(&raw, &lease, lease.range.end()) };
                store.commit_chunk(&lease, commit).await?;
            }
            Ok::<(), StoreError>(())
        }));
    }
    for task in tasks {
        joined(task.await)??;
    }
    let names = subject.all(NAMES.name).await?;
    same("how many answers", names.len(), 500)?;
    let last = |row: &Row| row.0[1].as_text().is_some_and(|name| name.ends_with(&format!(" {}", rounds - 1)));
    holds(names.iter().all(last), "an answer of an early round is left")?;
    let mixed = names.iter().any(|row| row.0[1] != names[0].0[1]);
    holds(!mixed, "two commits are mixed")?;
    subject.store.repair_checkpoints().await?;
    same("the checkpoint", subject.checkpoint(ASKER).await?.next, Height(2 * rounds))
}

async fn workers_and_the_committer_at_once(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(90, 1)).await?;
    let mut workers = Vec::new();
    for worker in 0..3_u64 {
        let (store, raw) = (subject.store.clone(), subject.raw.clone());
        let request = ClaimRequest {
            range_heights: 4 + worker,
            limit_exclusive: Height(90),
            stop_exclusive: Some(Height(90)),
            ..subject.request(MAPPER)
        };
        workers.push(tokio::spawn(async move {
            while let Some(mut lease) = store.claim(&request).await? {
                while lease.status == LeaseStatus::Active {
                    let to = lease.done_to + (1 + worker);
                    lease = store.commit_chunk(&lease, chunk(&raw, &lease, to)).await?.lease;
                }
            }
            Ok::<(), StoreError>(())
        }));
    }
    let store = subject.store.clone();
    let committer = tokio::spawn(async move {
        loop {
            let repairs = store.repair_checkpoints().await?;
            if !repairs.alarms.is_empty() {
                return Err(StoreError::Invalid(format!("alarms: {repairs:?}")));
            }
            store.reap(10).await?;
            if store.snapshot().await?.checkpoint(MAPPER).is_some_and(|one| one.next >= Height(90)) {
                return Ok::<(), StoreError>(());
            }
            tokio::task::yield_now().await;
        }
    });
    for task in workers {
        joined(task.await)??;
    }
    joined(committer.await)??;
    same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn claims_leave_no_gap_while_reorgs_are_applied(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let mut subject = Subject::new(&factory, Raw::with(40, 1)).await?;
    subject.index(MAPPER, 10, 10).await?;
    for (salt, common) in [17, 8, 12, 3, 25].into_iter().enumerate() {
        let mut tasks = Vec::new();
        for worker in 0..3_u64 {
            let store = subject.store.clone();
            let request = ClaimRequest {
                range_heights: 3 + worker,
                owner: format!("worker {worker}"),
                ..subject.request(MAPPER)
            };
            tasks.push(tokio::spawn(async move {
                for _ in 0..6 {
                    let Some(lease) = store.claim(&request).await? else { continue };
                    // It may have been taken by the reorg in between.
                    match store.end(&lease, LeaseEnd::Released).await {
                        Ok(()) | Err(StoreError::Fenced { .. }) => {}
                        Err(error) => return Err(error),
                    }
                    tokio::task::yield_now().await;
                }
                Ok(())
            }));
        }
        let entry = subject.raw.fork(common);
        subject.raw.grow(40, salt as u8 + 2);
        let store: Arc<dyn TestDerived> = subject.store.clone();
        tasks.push(tokio::spawn(async move {
            store.begin_apply(&entry).await?;
            while store.apply_step(entry.id, 5).await? == ApplyProgress::More {
                tokio::task::yield_now().await;
            }
            store.finish_apply(entry.id).await.map(|_| ())
        }));
        for task in tasks {
            joined(task.await)??;
        }
        same("gaps", subject.store.lease_gaps(10).await?, Vec::new())?;
        let mut leases = subject.leases().await?;
        leases.retain(|lease| lease.service == MAPPER);
        leases.sort_by_key(|lease| lease.range.start());
        let overlap = leases.windows(2).any(|pair| pair[0].range.end() > pair[1].range.start());
        holds(!overlap, format!("leases overlap: {leases:?}"))?;
    }
    subject.index_all(10, 10).await?;
    subject.dumps_as_its_chain().await
}

async fn readers_see_whole_commits(factory: Arc<dyn DerivedFactory>) -> CaseResult {
    let subject = Subject::new(&factory, Raw::with(60, 1)).await?;
    let (store, raw) = (subject.store.clone(), subject.raw.clone());
    let request =
        ClaimRequest { range_heights: 60, stop_exclusive: Some(Height(60)), ..subject.request(MAPPER) };
    let writer = tokio::spawn(async move {
        let Some(mut lease) = store.claim(&request).await? else { return Ok(()) };
        while lease.status == LeaseStatus::Active {
            let to = lease.done_to + 1;
            lease = store.commit_chunk(&lease, chunk(&raw, &lease, to)).await?.lease;
            tokio::task::yield_now().await;
        }
        Ok::<(), StoreError>(())
    });
    loop {
        let is_done = writer.is_finished();
        let snapshot = subject.snapshot().await?;
        let next = snapshot.checkpoint(MAPPER).map_or(Height(0), |checkpoint| checkpoint.next);
        let blocks = subject.raw.blocks(HeightRange::new(Height(0), next));
        let mut expected = map(&blocks).pop().map(|part| part.rows).unwrap_or_default();
        expected.sort();
        same(
            &format!("the rows below {next}"),
            super::subject::all(&*snapshot, MOVES.name).await?,
            expected,
        )?;
        if is_done {
            break;
        }
        tokio::task::yield_now().await;
    }
    joined(writer.await)??;
    same("the checkpoint", subject.checkpoint(MAPPER).await?.next, Height(60))
}
