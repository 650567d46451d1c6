//! The store of payloads.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::check::{holds, same};
use super::{Case, PayloadsFactory, TestPayloads, payload_cases};
use crate::suite::{CaseResult, Failure};
use crate::{PayloadError, PayloadHash, PayloadRef, PutOutcome};

type Factory = Arc<dyn PayloadsFactory>;

pub(super) fn cases() -> Vec<Case<dyn PayloadsFactory>> {
    payload_cases!["store":
        what_was_put_is_read_back,
        bodies_of_any_length,
        o04_what_is_there_with_the_same_content_is_a_success,
        a_body_with_another_hash_is_not_sent,
        what_is_there_with_another_content_is_damage,
        a_read_checks_hash_and_length,
        o03_a_missing_object_is_named,
        generations_are_apart,
        deleting_twice_is_a_success,
        listings_are_ordered_and_paged,
        foreign_objects_are_counted_and_left_alone,
        many_at_once,
        a_place_has_one_owner,
    ]
}

impl From<PayloadError> for Failure {
    #[track_caller]
    fn from(error: PayloadError) -> Self {
        Failure::new(format!("unexpected error: {error}"))
    }
}

fn object(body: &[u8], generation: u64) -> PayloadRef {
    PayloadRef { hash: PayloadHash::of(body), generation }
}

fn refused<T: std::fmt::Debug>(
    what: &str,
    answer: Result<T, PayloadError>,
    expected: impl Fn(&PayloadError) -> bool,
) -> CaseResult<String> {
    match answer {
        Err(error) if expected(&error) => Ok(error.to_string()),
        other => Err(Failure::new(format!("{what}: answered {other:?}"))),
    }
}

fn is_damaged(error: &PayloadError) -> bool {
    matches!(error, PayloadError::Damaged { .. })
}

async fn what_was_put_is_read_back(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let body = Bytes::from_static(b"a payload \0 with \xff any bytes");
    let object = object(&body, 1);
    same("the first put", store.put(object, body.clone()).await?, PutOutcome::Written)?;
    same("the body", store.get(object, Some(body.len() as u64)).await?, body.clone())?;
    same("the body, length unknown", store.get(object, None).await?, body.clone())?;
    same("the size", store.size(object).await?, Some(body.len() as u64))
}

async fn bodies_of_any_length(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    for len in [0, 1, 8_192, 8_193, 1 << 20, 3 << 20] {
        let body: Bytes = (0..len).map(|n: usize| (n * 31 % 251) as u8).collect();
        let object = object(&body, 1);
        store.put(object, body.clone()).await?;
        holds(
            store.get(object, Some(len as u64)).await? == body,
            format!("{len} bytes came back otherwise"),
        )?;
    }
    Ok(())
}

async fn o04_what_is_there_with_the_same_content_is_a_success(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let body = Bytes::from_static(b"twice");
    let object = object(&body, 3);
    same("the first put", store.put(object, body.clone()).await?, PutOutcome::Written)?;
    same("the second put", store.put(object, body.clone()).await?, PutOutcome::Present)?;
    same("the body", store.get(object, None).await?, body)
}

async fn a_body_with_another_hash_is_not_sent(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let object = object(b"one", 1);
    refused("another body", store.put(object, Bytes::from_static(b"two")).await, |error| {
        matches!(error, PayloadError::Invalid(_))
    })?;
    same("the size", store.size(object).await?, None)
}

async fn what_is_there_with_another_content_is_damage(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    for (what, found) in [("longer", &b"something else"[..]), ("of the same length", b"wxyz")] {
        let body = Bytes::from_static(b"what");
        let object = object(&body, found.len() as u64);
        store.insert_unchecked(&object.key(), Bytes::copy_from_slice(found)).await?;
        let message = refused(what, store.put(object, body).await, is_damaged)?;
        holds(message.contains(&object.key()), format!("the key is not named: {message}"))?;
    }
    Ok(())
}

async fn a_read_checks_hash_and_length(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let body = Bytes::from_static(b"whole");
    let object = object(&body, 1);
    store.put(object, body).await?;
    refused("another length", store.get(object, Some(6)).await, is_damaged)?;
    for damage in [&b"whol"[..], b"whole!", b"Whole", b""] {
        store.insert_unchecked(&object.key(), Bytes::copy_from_slice(damage)).await?;
        refused("damage", store.get(object, None).await, is_damaged)?;
        let message = refused("damage, length known", store.get(object, Some(5)).await, is_damaged)?;
        holds(message.contains(&object.key()), format!("the key is not named: {message}"))?;
    }
    Ok(())
}

async fn o03_a_missing_object_is_named(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let object = object(b"nowhere", 1);
    same("the size", store.size(object).await?, None)?;
    let error = store.get(object, None).await;
    let message = refused("missing", error.clone(), |error| matches!(error, PayloadError::Missing { .. }))?;
    holds(message.contains(&object.key()), format!("the key is not named: {message}"))?;
    if let Err(error) = error {
        let alarm = error.at("block 1200, event 7");
        same("what to do", alarm.kind(), cairn_core::ErrorKind::Halt)?;
        let text = alarm.to_string();
        holds(text.contains("block 1200, event 7"), format!("the block is not named: {text}"))?;
        holds(text.contains(&object.key()), format!("the key is not named: {text}"))?;
    }
    Ok(())
}

async fn generations_are_apart(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let body = Bytes::from_static(b"the same");
    let (old, new) = (object(&body, 1), object(&body, 2));
    store.put(old, body.clone()).await?;
    same("the second generation", store.put(new, body.clone()).await?, PutOutcome::Written)?;
    store.delete(old).await?;
    same("the old one", store.size(old).await?, None)?;
    same("the new one", store.get(new, None).await?, body)
}

async fn deleting_twice_is_a_success(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let body = Bytes::from_static(b"to be deleted");
    let object = object(&body, 1);
    store.delete(object).await?;
    store.put(object, body.clone()).await?;
    store.delete(object).await?;
    store.delete(object).await?;
    same("the size", store.size(object).await?, None)?;
    same("a new put", store.put(object, body).await?, PutOutcome::Written)
}

async fn listings_are_ordered_and_paged(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    same("an empty listing", store.list(None, 10).await?, Default::default())?;
    let mut expected = BTreeSet::new();
    for n in 0..23u64 {
        let body = Bytes::from(format!("body {}", n / 2));
        // Some contents in several generations, one of them of two digits.
        let object = object(&body, if n % 2 == 0 { 9 } else { 10 });
        store.put(object, body).await?;
        expected.insert(object.key());
    }
    for limit in [1, 5, 23, 100] {
        let (mut found, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = store.list(after.as_deref(), limit).await?;
            holds(page.objects.len() <= limit, "a page is longer than its limit")?;
            for listed in &page.objects {
                holds(listed.modified_at_ms > 1_000_000_000_000, "an object without a date")?;
                holds(listed.size_bytes >= 6, "an object without a length")?;
                found.push(listed.object.key());
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        same(&format!("keys by {limit}"), found, expected.iter().cloned().collect())?;
    }
    refused("no limit", store.list(None, 0).await, |error| matches!(error, PayloadError::Invalid(_)))?;
    Ok(())
}

async fn foreign_objects_are_counted_and_left_alone(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let body = Bytes::from_static(b"ours");
    let object = object(&body, 1);
    store.put(object, body).await?;
    for key in ["payloads/README", "payloads/aa/bb/notes.txt", "payloads-of-others/x", "segments/1"] {
        store.insert_unchecked(key, Bytes::from_static(b"x")).await?;
    }
    let (mut ours, mut foreign, mut after) = (Vec::new(), 0, None::<String>);
    loop {
        let page = store.list(after.as_deref(), 1).await?;
        ours.extend(page.objects.iter().map(|listed| listed.object));
        foreign += page.foreign;
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    same("ours", ours, vec![object])?;
    same("foreign", foreign, 2)
}

async fn many_at_once(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    let mut tasks = Vec::new();
    // Eight contents, each written by five at once.
    for n in 0..40u64 {
        let store: Arc<dyn TestPayloads> = store.clone();
        tasks.push(tokio::spawn(async move {
            let body = Bytes::from(format!("body {} {}", n % 8, "y".repeat(20_000)));
            let object = object(&body, 1);
            store.put(object, body.clone()).await?;
            store.get(object, Some(body.len() as u64)).await.map(|found| found == body)
        }));
    }
    for task in tasks {
        let whole = task.await.map_err(|error| Failure::new(error.to_string()))??;
        holds(whole, "another body came back")?;
    }
    same("objects", store.list(None, 100).await?.objects.len(), 8)
}

async fn a_place_has_one_owner(factory: Factory) -> CaseResult {
    let store = factory.payloads().await?;
    store.claim("one").await?;
    store.claim("one").await?;
    let message = refused(
        "another owner",
        store.claim("two").await,
        |error| matches!(error, PayloadError::OtherOwner { found, .. } if found == "one"),
    )?;
    holds(message.contains("one") && message.contains("two"), format!("not both are named: {message}"))?;
    refused("nobody", store.claim("").await, |error| matches!(error, PayloadError::Invalid(_)))?;
    same("what a listing shows of it", store.list(None, 10).await?, Default::default())
}
