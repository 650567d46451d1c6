//! Objects by key, with retries.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions};

use cairn_store::PayloadError;

use super::error::{Class, ObjectError};
use super::http::Seen;
use super::open::{Location, ObjectsConfig};
use super::retry::Retry;

/// The parts of an upload in parts.
const PART_BYTES: usize = 8 << 20;

/// What an upload found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Created {
    /// The object is new.
    New,
    /// There already was one: perhaps this call's own earlier try, whose answer was lost.
    Existed,
}

/// What a read found.
#[derive(Debug)]
pub(super) enum Read {
    /// The whole object.
    Whole(Bytes),
    /// It has this many bytes, more than allowed, and was not read.
    TooLong(u64),
}

/// A page of a listing: key and description, in the order of keys.
pub(super) type Page = Vec<(String, ObjectMeta)>;

/// A client of object storage.
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    location: Location,
    prefix: String,
    pub(super) max_object_bytes: u64,
    multipart_from_bytes: u64,
    pub(super) read_back: bool,
    retry: Retry,
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects({})", self.location)
    }
}

impl Objects {
    /// Opens the store. No request is sent yet.
    pub fn open(config: ObjectsConfig) -> Result<Self, PayloadError> {
        let (store, prefix) = config.open()?;
        Ok(Objects {
            store,
            location: config.location,
            prefix,
            max_object_bytes: config.max_object_bytes,
            multipart_from_bytes: config.multipart_from_bytes,
            read_back: config.read_back,
            retry: Retry::new(config.retry),
        })
    }

    /// Where the objects are.
    pub fn location(&self) -> &Location {
        &self.location
    }

    fn path(&self, key: &str) -> Path {
        if self.prefix.is_empty() { Path::from(key) } else { Path::from(format!("{}/{key}", self.prefix)) }
    }

    fn key_of(&self, path: &Path) -> String {
        let key = path.as_ref();
        let below = key.strip_prefix(&self.prefix).unwrap_or(key);
        below.trim_start_matches('/').to_owned()
    }

    /// Creates an object, and leaves one that is there alone.
    pub(super) async fn create(&self, key: &str, body: Bytes) -> Result<Created, ObjectError> {
        if body.len() as u64 >= self.multipart_from_bytes {
            return self.create_in_parts(key, body).await;
        }
        let path = self.path(key);
        let created = self
            .retry
            .run("PUT", key, false, || {
                let options = PutOptions::from(PutMode::Create);
                self.store.put_opts(&path, body.clone().into(), options)
            })
            .await;
        match created {
            Ok(_) => Ok(Created::New),
            Err(error) if error.class == Class::Exists => Ok(Created::Existed),
            // The store knows no conditional writes: look first. Two writers of one key write the same bytes.
            Err(error) if error.status == Some(501) || error.code.as_deref() == Some("NotImplemented") => {
                if self.head(key).await?.is_some() {
                    return Ok(Created::Existed);
                }
                self.retry.run("PUT", key, false, || self.store.put(&path, body.clone().into())).await?;
                Ok(Created::New)
            }
            Err(error) => Err(error),
        }
    }

    /// Creates a long object in parts. A try that fails is aborted and begun again from the first part, having looked whether its completion took effect after all.
    async fn create_in_parts(&self, key: &str, body: Bytes) -> Result<Created, ObjectError> {
        let path = self.path(key);
        let upload = async || {
            match self.store.head(&path).await {
                Ok(_) => return Ok(Created::Existed),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
            let mut upload = self.store.put_multipart(&path).await?;
            let sent = async {
                for begin in (0..body.len()).step_by(PART_BYTES) {
                    let end = body.len().min(begin + PART_BYTES);
                    upload.put_part(body.slice(begin..end).into()).await?;
                }
                upload.complete().await
            }
            .await;
            match sent {
                Ok(_) => Ok(Created::New),
                Err(error) => {
                    // Its parts cost money until they are gone; a rule of the bucket should remove what this leaves behind.
                    if let Err(abort) = upload.abort().await {
                        tracing::warn!(key, %abort, "the parts of a failed upload could not be removed");
                    }
                    Err(error)
                }
            }
        };
        self.retry.run("PUT in parts", key, false, upload).await
    }

    /// An object of at most `max_bytes`. The caller knows that it exists.
    pub(super) async fn read(&self, key: &str, max_bytes: u64) -> Result<Read, ObjectError> {
        let path = self.path(key);
        let read = async || {
            let found = self.store.get_opts(&path, GetOptions::default()).await?;
            let size = found.meta.size;
            if size > max_bytes {
                return Ok(Read::TooLong(size));
            }
            found.bytes().await.map(Read::Whole)
        };
        self.retry.run("GET", key, true, read).await
    }

    /// The object's length, `None` where it isn't found.
    pub(super) async fn head(&self, key: &str) -> Result<Option<u64>, ObjectError> {
        let path = self.path(key);
        let head = async || Ok(self.store.head(&path).await?.size);
        absent_is_none(self.retry.run("HEAD", key, false, head).await)
    }

    /// The length of an object that was just written.
    pub(super) async fn head_existing(&self, key: &str) -> Result<u64, ObjectError> {
        let path = self.path(key);
        let head = async || Ok(self.store.head(&path).await?.size);
        self.retry.run("HEAD", key, true, head).await
    }

    /// Deletes an object, if it is there.
    pub(super) async fn delete(&self, key: &str) -> Result<(), ObjectError> {
        let path = self.path(key);
        let deleted = self.retry.run("DELETE", key, false, || self.store.delete(&path)).await;
        absent_is_none(deleted).map(|_| ())
    }

    /// At most `limit` objects below `folder` whose keys follow `after`, in the order of keys.
    pub(super) async fn list(
        &self,
        folder: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page, ObjectError> {
        let prefix = self.path(folder);
        let after_path = after.map(|after| self.path(after));
        let list = async || match self.location {
            Location::Directory(_) => self.walk(&prefix, after_path.as_ref(), limit).await,
            _ => {
                let listing = match &after_path {
                    Some(after) => self.store.list_with_offset(Some(&prefix), after),
                    None => self.store.list(Some(&prefix)),
                };
                listing.take(limit).try_collect().await
            }
        };
        let found: Vec<ObjectMeta> = self.retry.run("LIST", folder, false, list).await?;
        let page: Page = found.into_iter().map(|meta| (self.key_of(&meta.location), meta)).collect();
        let keys = after.into_iter().chain(page.iter().map(|(key, _)| key.as_str()));
        if !keys.is_sorted_by(|one, next| one < next) {
            let why = "the store doesn't list keys in order (such as an S3 directory bucket): it can't be collected";
            return Err(ObjectError::new("LIST", folder, Class::Refused, Seen::default(), why.to_owned()));
        }
        Ok(page)
    }

    /// A local directory's listing in the order of keys: the library's own comes in the file system's order.
    async fn walk(
        &self,
        prefix: &Path,
        after: Option<&Path>,
        limit: usize,
    ) -> object_store::Result<Vec<ObjectMeta>> {
        enum Entry {
            Folder(Path),
            Object(ObjectMeta),
        }
        let sort_key = |entry: &Entry| match entry {
            Entry::Folder(path) => format!("{path}/"),
            Entry::Object(meta) => meta.location.to_string(),
        };
        let mut found = Vec::new();
        let mut stack = vec![Entry::Folder(prefix.clone())];
        while let Some(entry) = stack.pop() {
            match entry {
                Entry::Object(meta) => {
                    if after.is_none_or(|after| meta.location.as_ref() > after.as_ref()) {
                        found.push(meta);
                        if found.len() >= limit {
                            break;
                        }
                    }
                }
                Entry::Folder(path) => {
                    let begin = format!("{path}/");
                    // All that lies in it comes before `after`.
                    if after.is_some_and(|after| {
                        begin.as_str() < after.as_ref() && !after.as_ref().starts_with(&begin)
                    }) {
                        continue;
                    }
                    let listed = self.store.list_with_delimiter(Some(&path)).await?;
                    let folders = listed.common_prefixes.into_iter().map(Entry::Folder);
                    let mut entries: Vec<Entry> =
                        folders.chain(listed.objects.into_iter().map(Entry::Object)).collect();
                    entries.sort_by_cached_key(sort_key);
                    stack.extend(entries.into_iter().rev());
                }
            }
        }
        Ok(found)
    }
}

/// "No such object" as an answer. "No such bucket" has another class and stays an error: a deletion there has deleted nothing.
#[expect(clippy::result_large_err, reason = "called once a request, which is a round trip")]
fn absent_is_none<T>(answer: Result<T, ObjectError>) -> Result<Option<T>, ObjectError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.class == Class::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
