//! The suite of payload stores on every kind of object storage: memory, a local directory, S3 and Google's protocol on a small server of our own, and a real
//! S3 server where `CAIRN_TEST_S3_URL` names one: `http://ACCESS_KEY:SECRET_KEY@HOST:PORT/BUCKET`.

use crate::support::s3_mock;
use crate::support::s3_real;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use cairn_backends::objects::{ObjectPayloads, ObjectsConfig, RetryPolicy};
use cairn_store::suite_payload::{PayloadsFactory, TestPayloads, run_store};
use cairn_store::{
    ListedPayload, OffloadOptions, PayloadError, PayloadPage, PayloadRef, PayloadStore, PutOutcome,
};
use s3_mock::S3Mock;

fn quick() -> RetryPolicy {
    RetryPolicy { first_pause_ms: 1, max_pause_ms: 4, ..RetryPolicy::default() }
}

#[derive(Debug)]
enum Door {
    Library(Arc<dyn object_store::ObjectStore>),
    Mock(Arc<S3Mock>),
}

/// A store, and a second door to its place: without checks, by the bare library.
#[derive(Debug)]
struct Checked {
    payloads: ObjectPayloads,
    door: Door,
    prefix: String,
    _dir: Option<tempfile::TempDir>,
}

#[async_trait]
impl PayloadStore for Checked {
    async fn claim(&self, owner: &str) -> Result<(), PayloadError> {
        self.payloads.claim(owner).await
    }
    async fn put(&self, object: PayloadRef, body: bytes::Bytes) -> Result<PutOutcome, PayloadError> {
        self.payloads.put(object, body).await
    }
    async fn get(&self, object: PayloadRef, size_bytes: Option<u64>) -> Result<bytes::Bytes, PayloadError> {
        self.payloads.get(object, size_bytes).await
    }
    async fn size(&self, object: PayloadRef) -> Result<Option<u64>, PayloadError> {
        self.payloads.size(object).await
    }
    async fn delete(&self, object: PayloadRef) -> Result<(), PayloadError> {
        self.payloads.delete(object).await
    }
    async fn list(&self, after: Option<&str>, limit: usize) -> Result<PayloadPage, PayloadError> {
        self.payloads.list(after, limit).await
    }
}

#[async_trait]
impl TestPayloads for Checked {
    async fn insert_unchecked(&self, key: &str, body: bytes::Bytes) -> Result<(), PayloadError> {
        let key = format!("{}/{key}", self.prefix);
        match &self.door {
            Door::Mock(mock) => mock.insert(&key, body),
            Door::Library(store) => {
                let path = object_store::path::Path::from(key);
                let put = object_store::ObjectStoreExt::put(store, &path, body.into()).await;
                put.map_err(|error| PayloadError::Invalid(error.to_string()))?;
            }
        }
        Ok(())
    }
}

struct Directories;

#[async_trait]
impl PayloadsFactory for Directories {
    async fn payloads(&self) -> Result<Arc<dyn TestPayloads>, PayloadError> {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let place = dir.path().join("made/on/demand");
        let config = ObjectsConfig::new(format!("file://{}", place.display()).parse()?);
        let payloads = ObjectPayloads::open(ObjectsConfig { retry: quick(), ..config })?;
        let door = object_store::local::LocalFileSystem::new_with_prefix(&place).expect("opens");
        let door = Door::Library(Arc::new(door));
        Ok(Arc::new(Checked { payloads, door, prefix: String::new(), _dir: Some(dir) }))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_conform() {
    let report = run_store(Arc::new(Directories), std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}

/// A bucket by the S3 or the Google protocol; each store has a prefix of its own.
struct Buckets {
    config: ObjectsConfig,
    stores: AtomicU64,
    mock: Option<Arc<S3Mock>>,
}

impl Buckets {
    fn new(config: ObjectsConfig, mock: Option<&Arc<S3Mock>>) -> Self {
        Buckets { config, stores: AtomicU64::new(0), mock: mock.cloned() }
    }
}

#[async_trait]
impl PayloadsFactory for Buckets {
    async fn payloads(&self) -> Result<Arc<dyn TestPayloads>, PayloadError> {
        let number = self.stores.fetch_add(1, Ordering::Relaxed);
        let base = self.config.location.to_string();
        let url = format!("{}/{}-{number}", base.trim_end_matches('/'), std::process::id());
        let config = ObjectsConfig { location: url.parse()?, retry: quick(), ..self.config.clone() };
        let prefix = url.splitn(4, '/').nth(3).unwrap_or_default().to_owned();
        let door = match &self.mock {
            Some(mock) => Door::Mock(mock.clone()),
            None => {
                let mut builder =
                    object_store::aws::AmazonS3Builder::new().with_url(&url).with_allow_http(true);
                for (name, value) in &config.options {
                    builder = builder.with_config(name.parse().expect("parses"), value);
                }
                // The bare library's own client takes the process's TLS provider; another test may have set it.
                let _ = rustls::crypto::ring::default_provider().install_default();
                Door::Library(Arc::new(builder.build().expect("builds")))
            }
        };
        let payloads = ObjectPayloads::open(config)?;
        Ok(Arc::new(Checked { payloads, door, prefix, _dir: None }))
    }
}

fn mock_config(mock: &S3Mock) -> ObjectsConfig {
    let mut config = ObjectsConfig::new("s3://bucket/some/prefix".parse().expect("parses"));
    config.options = s3_real::options(&mock.endpoint, "k", "s");
    config
}

async fn conforms(config: ObjectsConfig, mock: Option<&Arc<S3Mock>>) {
    let factory = Arc::new(Buckets::new(config, mock));
    let report = run_store(factory, std::env::var("CAIRN_CASE").ok().as_deref()).await;
    assert!(report.is_complete(), "{report}");
}

fn in_parts_and_read_back(config: ObjectsConfig) -> ObjectsConfig {
    ObjectsConfig { multipart_from_bytes: 1 << 20, read_back: true, ..config }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_s3_protocol_conforms() {
    let mock = Arc::new(S3Mock::start().await);
    conforms(mock_config(&mock), Some(&mock)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_s3_protocol_conforms_in_parts_and_reading_back() {
    let mock = Arc::new(S3Mock::start().await);
    conforms(in_parts_and_read_back(mock_config(&mock)), Some(&mock)).await;
    assert!(mock.count("POST", "uploads") > 0, "no upload was in parts");
    assert_eq!(mock.uploads_left(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_google_protocol_conforms() {
    let mock = Arc::new(S3Mock::start().await);
    let mut config = ObjectsConfig::new("gs://bucket/some/prefix".parse().expect("parses"));
    let account = format!(
        r#"{{"gcs_base_url":"{}","disable_oauth":true,"client_email":"","private_key":"","private_key_id":""}}"#,
        mock.endpoint
    );
    config.options.insert("service_account_key".into(), account);
    conforms(config, Some(&mock)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_s3_server_conforms() {
    let Some(config) = s3_real::config() else { return };
    conforms(config.clone(), None).await;
    let location = format!("{}parts", config.location).parse().expect("parses");
    conforms(in_parts_and_read_back(ObjectsConfig { location, ..config }), None).await;
}

#[tokio::test]
async fn a_real_s3_server_refuses_a_wrong_key() {
    let Some(mut config) = s3_real::config() else { return };
    config.options.insert("secret_access_key".into(), "wrong".into());
    let store = ObjectPayloads::open(config).expect("opens");
    let error = store.claim("anybody").await.unwrap_err();
    assert!(matches!(error, PayloadError::Refused(_)), "{error:?}");
    assert!(error.to_string().contains("credentials"), "{error}");
}

#[tokio::test]
async fn memory_is_for_tests() {
    let store = ObjectPayloads::open(ObjectsConfig::new("memory:".parse().expect("parses"))).expect("opens");
    let registry = cairn_store::MemoryRegistry::new(Arc::new(cairn_core::SystemClock));
    let bodies = [b"one", b"two", b"one"].map(|body| bytes::Bytes::from_static(body));
    let objects =
        cairn_store::offload(&store, &registry, &bodies, OffloadOptions::default()).await.expect("is done");
    assert_eq!(objects[0], objects[2]);
    assert_eq!(store.get(objects[1], Some(3)).await.expect("is done"), "two");
    let listed: Vec<ListedPayload> = store.list(None, 10).await.expect("is done").objects;
    assert_eq!(listed.len(), 2);
}
