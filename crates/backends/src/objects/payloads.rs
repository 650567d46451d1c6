//! Payloads as objects.

use async_trait::async_trait;
use bytes::Bytes;
use cairn_store::{
    ListedPayload, PayloadError, PayloadHash, PayloadPage, PayloadRef, PayloadStore, PutOutcome,
};

use super::client::{Created, Objects, Read};
use super::error::{Class, ObjectError};
use super::open::ObjectsConfig;

/// How often an object is read whose content isn't its own, before that is believed: a proxy may have cut it.
const DAMAGED_READS: u32 = 3;

const FOLDER: &str = "payloads";

/// The key of the note that says whose payloads these are; beside the folder, so that no listing shows it.
const OWNER_KEY: &str = "payloads-owner";

/// The longest owner's name, in bytes.
const MAX_OWNER_BYTES: u64 = 256;

/// A store of payloads in object storage.
#[derive(Debug)]
pub struct ObjectPayloads {
    objects: Objects,
}

impl ObjectPayloads {
    /// Opens it. No request is sent yet: wrong credentials show at the first call.
    pub fn open(config: ObjectsConfig) -> Result<Self, PayloadError> {
        Ok(ObjectPayloads { objects: Objects::open(config)? })
    }

    /// The client.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Reads and checks an object that exists.
    async fn read(&self, object: PayloadRef, size_bytes: Option<u64>) -> Result<Bytes, PayloadError> {
        let limit_bytes = self.objects.max_object_bytes;
        let mut reads = 0;
        loop {
            reads += 1;
            let max_bytes = size_bytes.unwrap_or(limit_bytes).min(limit_bytes);
            let read = self.objects.read(&object.key(), max_bytes).await;
            let read = read.map_err(|error| named(object, error))?;
            let checked = match read {
                Read::Whole(body) => PayloadError::check(object, size_bytes, &body).map(|()| body),
                Read::TooLong(found) if size_bytes.is_some_and(|size| size <= limit_bytes) => {
                    let expected = size_bytes.unwrap_or_default();
                    let what = format!("it has {found} bytes instead of {expected}");
                    Err(PayloadError::Damaged { object, what })
                }
                Read::TooLong(found) => {
                    Err(PayloadError::TooLarge { object, size_bytes: found, limit_bytes })
                }
            };
            match checked {
                Err(PayloadError::Damaged { .. }) if reads < DAMAGED_READS => {}
                checked => return checked,
            }
        }
    }
}

#[async_trait]
impl PayloadStore for ObjectPayloads {
    async fn claim(&self, owner: &str) -> Result<(), PayloadError> {
        if owner.is_empty() || owner.len() as u64 > MAX_OWNER_BYTES {
            let why = format!("an owner's name has 1 to {MAX_OWNER_BYTES} bytes");
            return Err(PayloadError::Invalid(why));
        }
        let body = Bytes::copy_from_slice(owner.as_bytes());
        self.objects.create(OWNER_KEY, body).await.map_err(|error| unnamed(&error))?;
        // Read back also where it is new: without conditional writes another owner may have been quicker.
        let found = match self.objects.read(OWNER_KEY, MAX_OWNER_BYTES).await {
            Ok(Read::Whole(found)) => String::from_utf8_lossy(&found).into_owned(),
            Ok(Read::TooLong(len)) => format!("something else, of {len} bytes"),
            Err(error) => return Err(unnamed(&error)),
        };
        if found == owner {
            return Ok(());
        }
        let place = format!("{} (object {OWNER_KEY})", self.objects.location());
        Err(PayloadError::OtherOwner { place, found, owner: owner.to_owned() })
    }

    async fn put(&self, object: PayloadRef, body: Bytes) -> Result<PutOutcome, PayloadError> {
        let (size_bytes, limit_bytes) = (body.len() as u64, self.objects.max_object_bytes);
        if size_bytes > limit_bytes {
            return Err(PayloadError::TooLarge { object, size_bytes, limit_bytes });
        }
        let found = PayloadHash::of(&body);
        if found != object.hash {
            return Err(PayloadError::Invalid(format!("the body for {object} has the hash {found}")));
        }
        let key = object.key();
        let created = self.objects.create(&key, body).await.map_err(|error| named(object, error))?;
        match created {
            Created::New if !self.objects.read_back => {
                let stored = self.objects.head_existing(&key).await.map_err(|error| named(object, error))?;
                if stored != size_bytes {
                    let what = format!("it has {stored} bytes instead of the {size_bytes} just written");
                    return Err(PayloadError::Damaged { object, what });
                }
                Ok(PutOutcome::Written)
            }
            Created::New => self.read(object, Some(size_bytes)).await.map(|_| PutOutcome::Written),
            Created::Existed => self.read(object, Some(size_bytes)).await.map(|_| PutOutcome::Present),
        }
    }

    async fn get(&self, object: PayloadRef, size_bytes: Option<u64>) -> Result<Bytes, PayloadError> {
        self.read(object, size_bytes).await
    }

    async fn size(&self, object: PayloadRef) -> Result<Option<u64>, PayloadError> {
        self.objects.head(&object.key()).await.map_err(|error| named(object, error))
    }

    async fn delete(&self, object: PayloadRef) -> Result<(), PayloadError> {
        self.objects.delete(&object.key()).await.map_err(|error| named(object, error))
    }

    async fn list(&self, after: Option<&str>, limit: usize) -> Result<PayloadPage, PayloadError> {
        if limit == 0 {
            return Err(PayloadError::Invalid("a listing needs a limit of at least 1".into()));
        }
        // One more than asked for says whether there is a next page.
        let listed = self.objects.list(FOLDER, after, limit.saturating_add(1)).await;
        let listed = listed.map_err(|error| unnamed(&error))?;
        let mut page = PayloadPage::default();
        if listed.len() > limit {
            page.next = listed.get(limit - 1).map(|(key, _)| key.clone());
        }
        for (key, meta) in listed.into_iter().take(limit) {
            match key.parse() {
                Ok(object) => page.objects.push(ListedPayload {
                    object,
                    size_bytes: meta.size,
                    modified_at_ms: u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0),
                }),
                Err(_) => page.foreign += 1,
            }
        }
        Ok(page)
    }
}

fn named(object: PayloadRef, error: ObjectError) -> PayloadError {
    match error.class {
        Class::NotFound => PayloadError::Missing { object, tries: error.tries },
        _ => unnamed(&error),
    }
}

fn unnamed(error: &ObjectError) -> PayloadError {
    match error.class {
        Class::Transient => PayloadError::Unavailable(error.to_string()),
        Class::NotFound | Class::Exists | Class::Refused => PayloadError::Refused(error.to_string()),
    }
}
