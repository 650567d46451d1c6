//! Field cases O01 to O04, and what else goes wrong between here and a bucket, on a small S3 that misbehaves when told to.

use crate::support::s3_mock;
use crate::support::s3_real;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_backends::objects::{ObjectPayloads, ObjectsConfig, RetryPolicy};
use cairn_core::{ErrorKind, SystemClock};
use cairn_store::{
    CollectOptions, MemoryRegistry, OffloadOptions, PayloadError, PayloadHash, PayloadRef, PayloadState,
    PayloadStore, PutOutcome, check_live, collect_orphans, offload,
};
use s3_mock::{Fault, S3Mock};

fn quick() -> RetryPolicy {
    RetryPolicy {
        max_tries: 6,
        missing_tries: 4,
        first_pause_ms: 1,
        max_pause_ms: 4,
        try_timeout_ms: 300,
        ..RetryPolicy::default()
    }
}

fn config(mock: &S3Mock) -> ObjectsConfig {
    let mut config = ObjectsConfig::new("s3://bucket/p".parse().unwrap());
    config.options = s3_real::options(&mock.endpoint, "k", "hush");
    config.retry = quick();
    config
}

async fn bucket() -> (S3Mock, ObjectPayloads) {
    let mock = S3Mock::start().await;
    let store = ObjectPayloads::open(config(&mock)).unwrap();
    (mock, store)
}

fn named(body: &[u8], generation: u64) -> PayloadRef {
    PayloadRef { hash: PayloadHash::of(body), generation }
}

fn body(text: &str) -> (PayloadRef, Bytes) {
    (named(text.as_bytes(), 1), Bytes::copy_from_slice(text.as_bytes()))
}

#[tokio::test]
async fn o01_a_200_with_an_error_inside_is_an_error_and_is_retried() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body("o01");
    mock.fail("PUT", "payloads/", [Fault::OkWithError("SlowDown"), Fault::OkWithError("InternalError")]);
    assert_eq!(store.put(object, bytes.clone()).await.unwrap(), PutOutcome::Written);
    assert_eq!(mock.count("PUT", "payloads/"), 3);
    assert_eq!(store.get(object, Some(3)).await.unwrap(), bytes);

    mock.fail("DELETE", "payloads/", [Fault::OkWithError("SlowDown")]);
    store.delete(object).await.unwrap();
    assert_eq!(store.size(object).await.unwrap(), None, "it was not deleted by the first answer");
}

#[tokio::test]
async fn o01_the_completion_of_an_upload_in_parts_is_checked_and_retried() {
    let mock = S3Mock::start().await;
    // No try is given up for being slow: it is 17 MiB, and the machine may have other things to do.
    let retry = RetryPolicy { try_timeout_ms: 30_000, ..quick() };
    let config = ObjectsConfig { multipart_from_bytes: 1 << 20, retry, ..config(&mock) };
    let store = ObjectPayloads::open(config).unwrap();
    let bytes: Bytes = (0..17 << 20).map(|n: u32| (n >> 3) as u8).collect();
    let object = named(&bytes, 1);
    mock.fail("POST", "uploadId", [Fault::OkWithError("SlowDown"), Fault::OkWithError("InternalError")]);
    assert_eq!(store.put(object, bytes.clone()).await.unwrap(), PutOutcome::Written);
    assert_eq!(mock.count("PUT", "partNumber"), 9, "three parts, three times");
    assert_eq!(mock.uploads_left(), 0, "the failed uploads were aborted");
    assert!(store.get(object, Some(bytes.len() as u64)).await.unwrap() == bytes);

    // Done, and the answer lost: the next try finds it.
    store.delete(object).await.unwrap();
    mock.fail("POST", "uploadId", [Fault::DoneThenError]);
    assert_eq!(store.put(object, bytes).await.unwrap(), PutOutcome::Present);
}

#[tokio::test]
async fn o01_an_upload_is_done_only_when_the_store_holds_it_whole() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body("said to be stored");
    mock.fail("PUT", "payloads/", [Fault::Lie]);
    let error = store.put(object, bytes.clone()).await.unwrap_err();
    assert!(matches!(error, PayloadError::Missing { tries: 4, .. }), "{error:?}");

    mock.fail("PUT", "payloads/", [Fault::StoreHalf]);
    let error = store.put(object, bytes.clone()).await.unwrap_err();
    assert!(matches!(error, PayloadError::Damaged { .. }), "{error:?}");
    assert!(error.to_string().contains("8 bytes instead of the 17"), "{error}");

    // With the same length, only reading it back tells.
    let store = ObjectPayloads::open(ObjectsConfig { read_back: true, ..config(&mock) }).unwrap();
    let (object, bytes) = body("read back");
    mock.fail("GET", "payloads/", [Fault::FlipByte, Fault::FlipByte, Fault::FlipByte]);
    let error = store.put(object, bytes).await.unwrap_err();
    assert!(matches!(error, PayloadError::Damaged { .. }), "{error:?}");
}

#[tokio::test]
async fn o02_429_and_503_are_retried() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body("o02");
    for method in ["PUT", "HEAD", "GET", "DELETE"] {
        mock.fail(
            method,
            "payloads/",
            [Fault::TooMany, Fault::Status(429, "SlowDown"), Fault::Status(503, "SlowDown")],
        );
    }
    // S3 says this with 400.
    mock.fail("GET", "list-type", [Fault::TooMany, Fault::Status(400, "RequestTimeout"), Fault::CutBody]);
    store.put(object, bytes.clone()).await.unwrap();
    assert_eq!(store.get(object, None).await.unwrap(), bytes);
    assert_eq!(store.list(None, 10).await.unwrap().objects.len(), 1);
    assert_eq!(mock.count("GET", "list-type"), 4);
    store.delete(object).await.unwrap();
    for method in ["PUT", "HEAD", "GET /", "DELETE"] {
        assert!(mock.count(method, "payloads/") >= 4, "{method}");
    }
}

#[tokio::test]
async fn o02_timeouts_and_bodies_cut_short_are_retried() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body(&"a longer body ".repeat(10_000));
    store.put(object, bytes.clone()).await.unwrap();
    mock.fail("GET", "payloads/", [Fault::Hang, Fault::CutBody, Fault::Status(500, "InternalError")]);
    assert_eq!(store.get(object, None).await.unwrap(), bytes);
    assert_eq!(mock.count("GET", "payloads/"), 4);
}

#[tokio::test]
async fn o02_an_answer_that_does_not_begin_is_given_up_long_before_a_try_is() {
    let mock = S3Mock::start().await;
    let mut config = config(&mock);
    config.retry = RetryPolicy { try_timeout_ms: 60_000, answer_timeout_ms: 300, ..quick() };
    let store = ObjectPayloads::open(config).unwrap();
    let (object, bytes) = body("silent");
    mock.fail("PUT", "payloads/", [Fault::Hang, Fault::Hang]);
    mock.fail("GET", "payloads/", [Fault::Hang]);
    let begun = Instant::now();
    store.put(object, bytes.clone()).await.unwrap();
    assert_eq!(store.get(object, None).await.unwrap(), bytes);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn o02_tries_are_bounded_and_the_error_names_key_and_request() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body("never");
    mock.fail("PUT", "payloads/", vec![Fault::TooMany; 100]);
    let error = store.put(object, bytes.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error:?}");
    let text = error.to_string();
    for part in [&object.key(), "429", "TooManyRequests", "REQ-HEADER-7", "after 6 tries", "mock says"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    assert!(!text.contains("hush"), "{text}");
    assert_eq!(mock.count("PUT", "payloads/"), 6);

    // And by time.
    let mut config = config(&mock);
    config.retry = RetryPolicy { max_tries: u32::MAX, total_ms: 700, ..quick() };
    let store = ObjectPayloads::open(config).unwrap();
    mock.fail("GET", "payloads/", vec![Fault::Hang; 100]);
    let begun = Instant::now();
    let error = store.get(object, None).await.unwrap_err();
    assert!(begun.elapsed() < Duration::from_millis(1_500), "{:?}", begun.elapsed());
    assert!(error.to_string().contains("no answer within"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Retry);
}

#[tokio::test]
async fn o03_a_key_that_should_exist_is_asked_for_again() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body("late");
    store.put(object, bytes.clone()).await.unwrap();
    mock.fail("GET", "payloads/", [Fault::Status(404, "NoSuchKey"), Fault::Status(404, "NoSuchKey")]);
    assert_eq!(store.get(object, Some(4)).await.unwrap(), bytes);
    assert_eq!(mock.count("GET", "payloads/"), 3);

    // Just after a write too.
    let (object, bytes) = body("later");
    mock.fail("HEAD", "payloads/", [Fault::Status(404, "NoSuchKey"), Fault::Status(404, "NoSuchKey")]);
    assert_eq!(store.put(object, bytes).await.unwrap(), PutOutcome::Written);
}

#[tokio::test]
async fn o03_a_permanent_miss_is_an_alarm_that_names_the_block() {
    let (mock, store) = bucket().await;
    let (object, _) = body("lost");
    let error = store.get(object, None).await.unwrap_err();
    assert!(matches!(error, PayloadError::Missing { tries: 4, .. }), "{error:?}");
    assert_eq!(mock.count("GET", "payloads/"), 4);
    let alarm = error.at("block 4711 (0xabcd), event 3");
    assert_eq!(alarm.kind(), ErrorKind::Halt);
    let text = alarm.to_string();
    assert!(text.contains("block 4711") && text.contains(&object.key()), "{text}");
}

#[tokio::test]
async fn o04_a_put_that_timed_out_after_the_server_stored_it_is_a_success() {
    for fault in [Fault::DoneThenHang, Fault::DoneThenError] {
        let (mock, store) = bucket().await;
        let (object, bytes) = body("mine");
        mock.fail("PUT", "payloads/", [fault]);
        // The second try meets its own object as "already exists", reads it, and finds its content.
        assert_eq!(store.put(object, bytes).await.unwrap(), PutOutcome::Present);
        assert_eq!(mock.count("PUT", "payloads/"), 2);
    }
}

#[tokio::test]
async fn o04_the_second_of_three_uploads_fails_and_nothing_is_committed() {
    let (mock, store) = bucket().await;
    let registry = MemoryRegistry::new(Arc::new(SystemClock));
    let bodies = ["first", "second", "third"].map(|text| Bytes::copy_from_slice(text.as_bytes()));
    let second = PayloadHash::of(b"second").to_string();
    mock.fail("PUT", second.leak(), vec![Fault::Status(403, "AccessDenied")]);
    let options = OffloadOptions { max_uploads: 1 };
    let error = offload(&store, &registry, &bodies, options).await.unwrap_err();
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    assert!(registry.rows().iter().all(|row| row.state == PayloadState::Dead), "{:?}", registry.rows());

    // The same batch again: the first one's object is found, nothing is there twice.
    let objects = offload(&store, &registry, &bodies, options).await.unwrap();
    let mut tx = registry.begin();
    assert_eq!(tx.make_live(&objects).await, vec![]);
    for (place, object) in objects.iter().enumerate() {
        tx.refer(place as u64, *object);
    }
    tx.commit();
    assert_eq!(mock.keys().len(), 3);
    assert_eq!(check_live(&store, &registry, 2, 10).await.unwrap(), (3, vec![]));
}

fn soon() -> CollectOptions {
    CollectOptions { grace_ms: 1, longest_lease_ms: 0, page: 2, max_deletes: 2, list: true }
}

#[tokio::test]
async fn o04_what_a_crash_leaves_is_collected_and_what_is_needed_stays() {
    let (mock, store) = bucket().await;
    let registry = MemoryRegistry::new(Arc::new(SystemClock));
    let bodies = ["a", "b", "c", "d"].map(|text| Bytes::copy_from_slice(text.as_bytes()));
    let objects = offload(&store, &registry, &bodies, OffloadOptions::default()).await.unwrap();
    // Two of them are committed; then the process dies.
    let mut tx = registry.begin();
    tx.make_live(&objects[..2]).await;
    tx.refer(0, objects[0]);
    tx.refer(1, objects[1]);
    tx.commit();
    // And two objects without a row, such as a late upload, and one that is nobody's business.
    for generation in [70, 71] {
        mock.insert(&format!("p/{}", named(b"stray", generation)), Bytes::from_static(b"stray"));
    }
    mock.insert("p/payloads/README", Bytes::from_static(b"hello"));
    mock.insert("other/payloads/x", Bytes::from_static(b"of somebody else"));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let done = collect_orphans(&store, &registry, "db", &SystemClock, soon()).await.unwrap();
    assert_eq!((done.deleted, done.orphans, done.foreign, done.failed), (2, 2, 1, 0), "{done}");
    assert_eq!(done.freed_bytes, 2 + 10);
    let left = mock.keys();
    assert_eq!(left.len(), 5, "{left:?}");
    for object in &objects[..2] {
        assert!(store.get(*object, Some(1)).await.is_ok());
    }
    let again = collect_orphans(&store, &registry, "db", &SystemClock, soon()).await.unwrap();
    assert_eq!((again.deleted, again.orphans, again.finished), (0, 0, 0), "{again}");
}

#[tokio::test]
async fn o04_a_grace_shorter_than_the_longest_lease_is_refused() {
    let (mock, store) = bucket().await;
    let registry = MemoryRegistry::new(Arc::new(SystemClock));
    let options = CollectOptions { grace_ms: 1_000, longest_lease_ms: 1_000, ..CollectOptions::default() };
    let error = collect_orphans(&store, &registry, "db", &SystemClock, options).await.unwrap_err();
    assert!(error.to_string().contains("longer than the longest lease"), "{error}");
    assert_eq!(mock.count("", ""), 0, "nothing was asked");
}

#[tokio::test]
async fn a_deletion_that_fails_keeps_its_row_and_the_others_go_on() {
    let (mock, store) = bucket().await;
    let registry = MemoryRegistry::new(Arc::new(SystemClock));
    let bodies = ["a", "b", "c"].map(|text| Bytes::copy_from_slice(text.as_bytes()));
    let objects = offload(&store, &registry, &bodies, OffloadOptions::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let held = objects[1].hash.to_string();
    mock.fail("DELETE", held.leak(), vec![Fault::Status(403, "ObjectLocked"); 1]);
    let done = collect_orphans(&store, &registry, "db", &SystemClock, soon()).await.unwrap();
    assert_eq!((done.deleted, done.failed), (2, 1), "{done}");
    assert!(done.to_string().contains("ObjectLocked"), "{done}");
    assert_eq!(registry.rows().len(), 1);
    let done = collect_orphans(&store, &registry, "db", &SystemClock, soon()).await.unwrap();
    assert_eq!((done.finished, done.failed), (1, 0), "{done}");
    assert_eq!(registry.rows(), vec![]);

    // An object store that is away ends the run, and loses nothing.
    offload(&store, &registry, &bodies, OffloadOptions::default()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    mock.fail("DELETE", "payloads/", vec![Fault::Status(503, "SlowDown"); 12]);
    let error = collect_orphans(&store, &registry, "db", &SystemClock, soon()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
    collect_orphans(&store, &registry, "db", &SystemClock, soon()).await.unwrap();
    collect_orphans(&store, &registry, "db", &SystemClock, soon()).await.unwrap();
    assert_eq!(registry.rows(), vec![]);
}

#[tokio::test]
async fn another_databases_bucket_is_left_alone() {
    let (mock, store) = bucket().await;
    let registry = MemoryRegistry::new(Arc::new(SystemClock));
    offload(&store, &registry, &[Bytes::from_static(b"x")], OffloadOptions::default()).await.unwrap();
    store.claim("production").await.unwrap();
    let staging = MemoryRegistry::new(Arc::new(SystemClock));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let error = collect_orphans(&store, &staging, "staging", &SystemClock, soon()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Halt);
    assert!(error.to_string().contains("production"), "{error}");
    assert_eq!(mock.count("DELETE", ""), 0);
}

#[tokio::test]
async fn what_no_retry_mends_is_said_at_once() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body("refused");
    for (status, code) in [(403, "AccessDenied"), (401, "InvalidToken"), (400, "InvalidArgument")] {
        let before = mock.count("PUT", "payloads/");
        mock.fail("PUT", "payloads/", [Fault::Status(status, code)]);
        let error = store.put(object, bytes.clone()).await.unwrap_err();
        assert!(matches!(error, PayloadError::Refused(_)), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Halt);
        assert!(error.to_string().contains(code), "{error}");
        assert_eq!(mock.count("PUT", "payloads/"), before + 1);
    }
    // A bucket that isn't there is no missing object, and a deletion there deletes nothing.
    let mut other = config(&mock);
    other.location = "s3://no-bucket/p".parse().unwrap();
    let store = ObjectPayloads::open(other).unwrap();
    for error in [
        store.put(object, bytes.clone()).await.unwrap_err(),
        store.get(object, None).await.unwrap_err(),
        store.delete(object).await.unwrap_err(),
    ] {
        assert!(matches!(&error, PayloadError::Refused(why) if why.contains("NoSuchBucket")), "{error:?}");
    }
    // Nobody listens.
    let mut away = config(&mock);
    away.options.insert("endpoint".into(), "http://127.0.0.1:1".into());
    let error = ObjectPayloads::open(away).unwrap().get(object, None).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Retry);
    assert!(error.to_string().contains("after 6 tries"), "{error}");
}

#[tokio::test]
async fn damage_on_the_way_is_read_again_and_damage_in_the_store_is_named() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body("content");
    store.put(object, bytes.clone()).await.unwrap();
    mock.fail("GET", "payloads/", [Fault::FlipByte]);
    assert_eq!(store.get(object, None).await.unwrap(), bytes);
    mock.insert(&format!("p/{object}"), Bytes::from_static(b"Content"));
    let error = store.get(object, None).await.unwrap_err();
    assert!(matches!(error, PayloadError::Damaged { .. }), "{error:?}");
    assert_eq!(error.kind(), ErrorKind::Halt);
}

#[tokio::test]
async fn a_store_without_conditional_writes_is_looked_at_first() {
    let (mock, store) = bucket().await;
    let (object, bytes) = body("plain");
    mock.fail("PUT", "payloads/", [Fault::Status(501, "NotImplemented")]);
    assert_eq!(store.put(object, bytes.clone()).await.unwrap(), PutOutcome::Written);
    mock.fail("PUT", "payloads/", [Fault::Status(501, "NotImplemented")]);
    assert_eq!(store.put(object, bytes).await.unwrap(), PutOutcome::Present);
    assert_eq!(mock.count("PUT", "payloads/"), 3, "the second time nothing was written");
}

#[tokio::test]
async fn lengths_have_a_limit_in_both_directions() {
    let mock = S3Mock::start().await;
    let store = ObjectPayloads::open(ObjectsConfig { max_object_bytes: 10, ..config(&mock) }).unwrap();
    let (object, bytes) = body("eleven byte");
    let too_large = |error: &PayloadError| {
        matches!(error, PayloadError::TooLarge { size_bytes: 11, limit_bytes: 10, .. })
    };
    let error = store.put(object, bytes.clone()).await.unwrap_err();
    assert!(too_large(&error) && error.kind() == ErrorKind::GiveUp, "{error:?}");
    mock.insert(&format!("p/{object}"), bytes);
    let error = store.get(object, None).await.unwrap_err();
    assert!(too_large(&error), "{error:?}");
    let error = store.get(object, Some(11)).await.unwrap_err();
    assert!(too_large(&error), "{error:?}");
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"x").unwrap();
    let place = file.join("below");
    let error =
        ObjectPayloads::open(ObjectsConfig::new(place.to_str().unwrap().parse().unwrap())).unwrap_err();
    assert!(matches!(error, PayloadError::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("below"), "{error}");
}
