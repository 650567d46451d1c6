//! Writers and collectors at the same time, on the backend's own concurrency.

use std::sync::Arc;

use super::check::*;
use super::{Case, RegistryFactory, payload_cases};
use crate::suite::{CaseResult, Failure};
use crate::{MemoryPayloads, PayloadState, PayloadStore};

type Factory = Arc<dyn RegistryFactory>;

pub(super) fn cases() -> Vec<Case<dyn RegistryFactory>> {
    payload_cases!["races":
        two_writers_of_the_same_content_share_an_object,
        writers_with_the_same_contents_in_other_orders_do_not_deadlock,
        a_writer_overtaken_by_the_collector_takes_the_next_generation,
        writers_and_collectors_together_lose_nothing,
    ]
}

async fn two_writers_of_the_same_content_share_an_object(factory: Factory) -> CaseResult {
    let (registry, store) = (factory.registry().await?, memory_payloads());
    for round in 0..20 {
        let (first, second) = ([(2 * round, body(round))], [(2 * round + 1, body(round))]);
        let (one, two) = tokio::join!(write(&store, &*registry, &first), write(&store, &*registry, &second));
        one?;
        two?;
        let references = registry.references().await?;
        same("the shared object", references.get(&(2 * round)), references.get(&(2 * round + 1)))?;
    }
    same("objects", store.keys().len(), 20)?;
    consistent(&store, &*registry).await
}

async fn writers_with_the_same_contents_in_other_orders_do_not_deadlock(factory: Factory) -> CaseResult {
    let (registry, store) = (factory.registry().await?, memory_payloads());
    let mut tasks = Vec::new();
    for writer in 0..4u64 {
        let (registry, store) = (registry.clone(), store.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..10 {
                let mut batch: Vec<_> = (0..12).map(|n| (writer * 1_000 + round * 12 + n, body(n))).collect();
                batch.rotate_left(((writer * 3 + round) % 12) as usize);
                if writer % 2 == 0 {
                    batch.reverse();
                }
                write(&store, &*registry, &batch).await?;
            }
            Ok::<(), crate::StoreError>(())
        }));
    }
    for task in tasks {
        task.await.map_err(|error| Failure::new(error.to_string()))??;
    }
    same("objects", store.keys().len(), 12)?;
    same("references", registry.references().await?.len(), 4 * 120)?;
    consistent(&store, &*registry).await
}

async fn a_writer_overtaken_by_the_collector_takes_the_next_generation(factory: Factory) -> CaseResult {
    // The collector runs to its end between the writer's reservation and its transaction: once before the upload, once after it.
    for uploaded in [false, true] {
        let (registry, store) = (factory.registry().await?, memory_payloads());
        let object = reserve(&*registry, 1).await?;
        let put = async || -> CaseResult {
            store.put(object, body(1)).await.map_err(crate::StoreError::from)?;
            Ok(())
        };
        if uploaded {
            put().await?;
        }
        collect(&store, &*registry).await?;
        if !uploaded {
            put().await?;
        }
        let mut tx = registry.begin().await?;
        same("lost", tx.make_live(&[object]).await?, vec![object])?;
        drop(tx);
        write(&store, &*registry, &[(1, body(1))]).await?;
        consistent(&store, &*registry).await?;
        // What arrived too late is found by the listing.
        collect(&store, &*registry).await?;
        consistent(&store, &*registry).await?;
        same("objects", store.keys().len(), 1)?;
    }
    Ok(())
}

async fn writers_and_collectors_together_lose_nothing(factory: Factory) -> CaseResult {
    const CONTENTS: u64 = 5;
    let (registry, store) = (factory.registry().await?, memory_payloads());
    let mut tasks = Vec::new();
    for writer in 0..3u64 {
        let (registry, store): (_, MemoryPayloads) = (registry.clone(), store.clone());
        tasks.push(tokio::spawn(async move {
            for round in 0..25 {
                let batch: Vec<_> = (0..3)
                    .map(|n| (writer * 10 + n, body((round * 7 + writer * 3 + n * 2) % CONTENTS)))
                    .collect();
                write(&store, &*registry, &batch).await?;
                if round % 3 == writer % 3 {
                    forget(&*registry, writer * 10).await?;
                }
                if round % 4 == 0 {
                    pause().await;
                }
            }
            Ok::<(), Failure>(())
        }));
    }
    for _ in 0..2 {
        let (registry, store) = (registry.clone(), store.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..30 {
                collect(&store, &*registry).await?;
            }
            Ok(())
        }));
    }
    for task in tasks {
        task.await.map_err(|error| Failure::new(error.to_string()))??;
    }
    consistent(&store, &*registry).await?;
    // With everybody gone the collector leaves exactly what is needed.
    for _ in 0..3 {
        collect(&store, &*registry).await?;
    }
    consistent(&store, &*registry).await?;
    let rows = registry.rows().await?;
    holds(rows.iter().all(|row| row.state == PayloadState::Live), format!("rows left: {rows:?}"))?;
    let keys: Vec<String> = rows.iter().map(|row| row.object.key()).collect();
    let mut stored = store.keys();
    stored.sort_unstable();
    let mut expected = keys;
    expected.sort_unstable();
    same("objects", stored, expected)
}
