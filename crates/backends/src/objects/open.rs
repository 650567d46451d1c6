//! From a URL to a store.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cairn_store::PayloadError;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::{ObjectStore, RetryConfig};
use url::Url;

use super::http::Connector;
use super::retry::RetryPolicy;

/// Where objects are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A local directory.
    Directory(PathBuf),
    /// S3 or what speaks its protocol.
    S3 {
        /// The bucket.
        bucket: String,
        /// What all keys begin with, without slashes around it; empty for the whole bucket.
        prefix: String,
    },
    /// Google Cloud Storage.
    Gcs {
        /// The bucket.
        bucket: String,
        /// As for S3.
        prefix: String,
    },
    /// The memory of this process.
    Memory,
}

impl FromStr for Location {
    type Err = PayloadError;

    fn from_str(text: &str) -> Result<Self, PayloadError> {
        let invalid = |why: &str| {
            PayloadError::Invalid(format!(
                "the URL of object storage {why}; use a directory, file:///dir, s3://bucket/prefix or gs://bucket/prefix"
            ))
        };
        if text == "memory:" {
            return Ok(Location::Memory);
        }
        if text.is_empty() {
            return Err(invalid("is empty"));
        }
        // A path, as long as it doesn't look like a URL.
        if !text.contains("://") && !text.starts_with("file:") {
            return Ok(Location::Directory(PathBuf::from(text)));
        }
        let url = Url::parse(text).map_err(|error| invalid(&format!("can't be read ({error})")))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid("holds credentials, which belong into the environment"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("has a query or fragment, which means nothing here"));
        }
        let scheme = url.scheme();
        if scheme == "file" {
            let path = url.to_file_path().map_err(|()| invalid("names no local directory"))?;
            return Ok(Location::Directory(path));
        }
        let bucket = url.host_str().filter(|host| !host.is_empty()).map(str::to_owned);
        let bucket = bucket.filter(|_| url.port().is_none()).ok_or_else(|| invalid("names no bucket"))?;
        let prefix = object_store::path::Path::from_url_path(url.path())
            .map_err(|error| invalid(&format!("has a bad prefix ({error})")))?
            .to_string();
        match scheme {
            "s3" | "s3a" => Ok(Location::S3 { bucket, prefix }),
            "gs" => Ok(Location::Gcs { bucket, prefix }),
            _ => Err(invalid(&format!("has the unknown scheme {scheme:?}"))),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Directory(path) => path.display().fmt(f),
            Location::S3 { bucket, prefix } => write!(f, "s3://{bucket}/{prefix}"),
            Location::Gcs { bucket, prefix } => write!(f, "gs://{bucket}/{prefix}"),
            Location::Memory => f.write_str("memory:"),
        }
    }
}

/// Where and how objects are kept.
#[derive(Clone)]
pub struct ObjectsConfig {
    /// Where.
    pub location: Location,
    /// Options of the crate `object_store` by name (`endpoint`, `region`, `access_key_id`, …), over those from the environment.
    pub options: BTreeMap<String, String>,
    /// How tries are bounded.
    pub retry: RetryPolicy,
    /// The longest object that is written or read, in bytes.
    pub max_object_bytes: u64,
    /// From this length on, an object is uploaded in parts of 8 MiB.
    pub multipart_from_bytes: u64,
    /// After each write, read the object back and compare, instead of asking for its length. S3 checks the content itself by the signed hash.
    pub read_back: bool,
}

impl fmt::Debug for ObjectsConfig {
    // The options may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectsConfig")
            .field("location", &self.location)
            .field("options", &self.options.keys())
            .field("retry", &self.retry)
            .finish_non_exhaustive()
    }
}

impl ObjectsConfig {
    /// The defaults at a location.
    pub fn new(location: Location) -> Self {
        ObjectsConfig {
            location,
            options: BTreeMap::new(),
            retry: RetryPolicy::default(),
            max_object_bytes: 256 << 20,
            multipart_from_bytes: 64 << 20,
            read_back: false,
        }
    }

    /// Opens the store: no request is sent, so credentials are not checked yet. Answers the prefix of all keys too.
    pub(super) fn open(&self) -> Result<(Arc<dyn ObjectStore>, String), PayloadError> {
        let refused =
            |error: &dyn fmt::Display| PayloadError::Refused(format!("can't use {}: {error}", self.location));
        let answer_timeout = Duration::from_millis(self.retry.answer_timeout_ms);
        Ok(match &self.location {
            Location::Memory => (Arc::new(InMemory::new()), String::new()),
            Location::Directory(path) => {
                std::fs::create_dir_all(path).map_err(|error| refused(&error))?;
                let store = LocalFileSystem::new_with_prefix(path).map_err(|error| refused(&error))?;
                (Arc::new(store.with_fsync(true)), String::new())
            }
            Location::S3 { bucket, prefix } => {
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
                for (name, value) in &self.options {
                    let key: AmazonS3ConfigKey = name.parse().map_err(|error| refused(&error))?;
                    builder = builder.with_config(key, value);
                }
                let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
                let plain = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
                let store = builder
                    .with_allow_http(plain)
                    .with_retry(no_retries())
                    // One at a time anyway, and not all that speak S3 know how to delete in bulk.
                    .with_disable_bulk_delete(true)
                    .with_http_connector(Connector { with_tls: !plain, answer_timeout })
                    .build()
                    .map_err(|error| refused(&error))?;
                (Arc::new(store), prefix.clone())
            }
            Location::Gcs { bucket, prefix } => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
                for (name, value) in &self.options {
                    let key: GoogleConfigKey = name.parse().map_err(|error| refused(&error))?;
                    builder = builder.with_config(key, value);
                }
                let store = builder
                    .with_retry(no_retries())
                    .with_http_connector(Connector { with_tls: true, answer_timeout })
                    .build()
                    .map_err(|error| refused(&error))?;
                (Arc::new(store), prefix.clone())
            }
        })
    }
}

/// Retries have one place: [`RetryPolicy`].
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_and_paths() {
        let s3 = |bucket: &str, prefix: &str| Location::S3 { bucket: bucket.into(), prefix: prefix.into() };
        for (text, expected) in [
            ("/var/lib/cairn", Location::Directory("/var/lib/cairn".into())),
            ("data/payloads", Location::Directory("data/payloads".into())),
            ("file:///var/lib/cairn", Location::Directory("/var/lib/cairn".into())),
            ("file:///with%20blank", Location::Directory("/with blank".into())),
            ("s3://bucket", s3("bucket", "")),
            ("s3://bucket/", s3("bucket", "")),
            ("s3://bucket/a/b/", s3("bucket", "a/b")),
            ("gs://bucket/a", Location::Gcs { bucket: "bucket".into(), prefix: "a".into() }),
            ("memory:", Location::Memory),
        ] {
            assert_eq!(text.parse::<Location>().unwrap(), expected, "{text}");
        }
        for text in
            ["", "s3://", "ftp://host/x", "s3://k:secret@bucket/x", "s3://bucket?region=x", "s3://b:80/x"]
        {
            let error = text.parse::<Location>().unwrap_err().to_string();
            assert!(error.contains("s3://bucket/prefix"), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn options_are_checked_and_not_shown() {
        let mut config = ObjectsConfig::new("s3://bucket".parse().unwrap());
        config.options.insert("secret_access_key".into(), "hush".into());
        assert!(!format!("{config:?}").contains("hush"));
        config.options.insert("no_such_option".into(), "1".into());
        let error = config.open().unwrap_err().to_string();
        assert!(error.contains("no_such_option"), "{error}");
    }
}
