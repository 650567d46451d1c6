//! A process dies after each step of the protocol; the next ones go on.

use std::sync::Arc;

use super::check::*;
use super::{Case, RegistryFactory, TestRegistry, payload_cases};
use crate::suite::CaseResult;
use crate::{MemoryPayloads, PayloadState, PayloadStore};

type Factory = Arc<dyn RegistryFactory>;

pub(super) fn cases() -> Vec<Case<dyn RegistryFactory>> {
    payload_cases!["crash":
        o04_a_writer_dies_after_each_step,
        o04_a_collector_dies_after_each_step,
        o04_the_second_of_three_uploads_fails,
        o04_the_database_is_older_than_the_bucket,
    ]
}

/// The steps of a writer before it dies.
async fn write_partly(store: &MemoryPayloads, registry: &dyn TestRegistry, steps: u32) -> CaseResult {
    if steps == 0 {
        return Ok(());
    }
    let object = reserve(registry, 1).await?;
    if steps == 1 {
        return Ok(());
    }
    store.put(object, body(1)).await.map_err(crate::StoreError::from)?;
    if steps == 2 {
        return Ok(());
    }
    let mut tx = registry.begin().await?;
    same("lost", tx.make_live(&[object]).await?, vec![])?;
    if steps == 3 {
        return Ok(());
    }
    tx.refer(1, object).await?;
    if steps == 4 {
        return Ok(());
    }
    Ok(tx.commit().await?)
}

async fn o04_a_writer_dies_after_each_step(factory: Factory) -> CaseResult {
    for steps in 0..=5 {
        for retried in [true, false] {
            let (registry, store) = (factory.registry().await?, memory_payloads());
            write_partly(&store, &*registry, steps).await?;
            consistent(&store, &*registry).await?;
            if retried {
                write(&store, &*registry, &[(1, body(1))]).await?;
                consistent(&store, &*registry).await?;
            }
            for _ in 0..3 {
                collect(&store, &*registry).await?;
                consistent(&store, &*registry).await?;
            }
            let what = format!("died after {steps} steps, retried {retried}");
            let expected = usize::from(retried || steps == 5);
            same(&format!("{what}: references"), registry.references().await?.len(), expected)?;
            same(&format!("{what}: objects"), store.keys().len(), expected)?;
            same(&format!("{what}: rows"), registry.rows().await?.len(), expected)?;
        }
    }
    Ok(())
}

async fn o04_a_collector_dies_after_each_step(factory: Factory) -> CaseResult {
    for steps in 1..=4 {
        for written_again in [true, false] {
            let (registry, store) = (factory.registry().await?, memory_payloads());
            write(&store, &*registry, &[(1, body(1))]).await?;
            forget(&*registry, 1).await?;
            same("marked dead", mark_all_dead(&*registry).await?, 1)?;
            if steps >= 2 {
                let begun = begin_delete_all(&*registry).await?;
                same("begun", begun.len(), 1)?;
                if steps >= 3 {
                    store.delete(begun[0]).await.map_err(crate::StoreError::from)?;
                }
                if steps >= 4 {
                    registry.finish_delete(&begun).await?;
                }
            }
            if written_again {
                write(&store, &*registry, &[(2, body(1))]).await?;
                consistent(&store, &*registry).await?;
            }
            for _ in 0..3 {
                collect(&store, &*registry).await?;
                consistent(&store, &*registry).await?;
            }
            let what = format!("died after {steps} steps, written again {written_again}");
            let expected = usize::from(written_again);
            same(&format!("{what}: objects"), store.keys().len(), expected)?;
            same(&format!("{what}: rows"), registry.rows().await?.len(), expected)?;
        }
    }
    Ok(())
}

async fn o04_the_second_of_three_uploads_fails(factory: Factory) -> CaseResult {
    let (registry, store) = (factory.registry().await?, memory_payloads());
    let batch: Vec<(u64, bytes::Bytes)> = (1..=3).map(|seed| (seed, body(seed))).collect();
    // Something else lies under the second one's key: the upload can't be verified.
    let second = reserve(&*registry, 2).await?;
    store.insert_unchecked(second.key(), bytes::Bytes::from_static(b"something else"));
    let failed = write(&store, &*registry, &batch).await;
    holds(failed.is_err(), "a batch was committed though an upload could not be verified")?;
    same("references", registry.references().await?.len(), 0)?;
    store.delete(second).await.map_err(crate::StoreError::from)?;
    write(&store, &*registry, &batch).await?;
    consistent(&store, &*registry).await?;
    same("references", registry.references().await?.len(), 3)?;
    same("objects", store.keys().len(), 3)
}

async fn o04_the_database_is_older_than_the_bucket(factory: Factory) -> CaseResult {
    let store = memory_payloads();
    let newer = factory.registry().await?;
    for seed in 0..5 {
        write(&store, &*newer, &[(seed, body(seed))]).await?;
    }
    // An empty database, as if restored from before the first write; one content is written again before anybody collects.
    let older = factory.registry().await?;
    write(&store, &*older, &[(4, body(4))]).await?;
    consistent(&store, &*older).await?;
    for _ in 0..3 {
        collect(&store, &*older).await?;
        consistent(&store, &*older).await?;
    }
    same("objects", store.keys().len(), 1)?;
    write(&store, &*older, &[(1, body(1))]).await?;
    consistent(&store, &*older).await?;
    let live = older.rows().await?.iter().filter(|row| row.state == PayloadState::Live).count();
    same("live rows", live, 2)
}
