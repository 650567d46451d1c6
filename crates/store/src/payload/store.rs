//! Where payloads are kept.

use std::fmt::Debug;

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::ErrorKind;

use crate::{PayloadHash, PayloadRef, StoreError};

/// What a put found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is new.
    Written,
    /// It was there, whole and with this content: an earlier try, or another writer of the same content.
    Present,
}

/// An object that a listing found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedPayload {
    /// Its name.
    pub object: PayloadRef,
    /// Its length, in bytes.
    pub size_bytes: u64,
    /// When it was written, by the object store's clock, in milliseconds since 1970.
    pub modified_at_ms: u64,
}

/// Part of a listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PayloadPage {
    /// Payloads, in the order of their keys.
    pub objects: Vec<ListedPayload>,
    /// Objects below `payloads/` whose keys are no payload's: counted, never touched.
    pub foreign: u64,
    /// Where the next page begins; `None` when this is the last one.
    pub next: Option<String>,
}

/// A store of payloads.
///
/// Objects are written once: two puts of one object carry the same bytes, so order doesn't matter and a repetition is harmless. A verb that
/// has succeeded is durable. Implementations retry what a retry may mend, within a number of tries and a time; an error is final for this call. Dropping a
/// call's future may leave it done or not done, or done later.
#[async_trait]
pub trait PayloadStore: Send + Sync + Debug {
    /// Makes the place `owner`'s (the uuid of the database whose rows refer to its payloads), or checks that it already is. Another owner's is
    /// [`PayloadError::OtherOwner`]: to each of two databases, the payloads of the other would be garbage. Writers call it once at start, the collector always.
    async fn claim(&self, owner: &str) -> Result<(), PayloadError>;

    /// Writes `body` as `object` and verifies that the store holds it whole. Another body than `object.hash` says is refused before anything is
    /// sent. An object that is there with this content is [`PutOutcome::Present`]; with another length or content, [`PayloadError::Damaged`].
    async fn put(&self, object: PayloadRef, body: Bytes) -> Result<PutOutcome, PayloadError>;

    /// The body, checked against the hash, and against `size_bytes` where the caller knows it. The caller says that the object exists: where it isn't found, it is asked for again, since some stores show
    /// an object late; then it is [`PayloadError::Missing`].
    async fn get(&self, object: PayloadRef, size_bytes: Option<u64>) -> Result<Bytes, PayloadError>;

    /// The object's length as the store states it; `None` where there is no such object. Asked once: for checks, not for readers.
    async fn size(&self, object: PayloadRef) -> Result<Option<u64>, PayloadError>;

    /// Deletes the object. One that isn't there is a success.
    async fn delete(&self, object: PayloadRef) -> Result<(), PayloadError>;

    /// At most `limit` (at least 1) objects whose keys follow `after`, in the order of keys.
    async fn list(&self, after: Option<&str>, limit: usize) -> Result<PayloadPage, PayloadError>;
}

/// What can go wrong with a payload.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PayloadError {
    /// The registry says that it exists, and the store doesn't have it.
    #[error(
        "payload {object} is missing: the object store has no such key, asked {tries} times. The row that refers to it can't be read: restore the object from \
         a backup of the bucket, or fetch the block again (`cairn repair`)"
    )]
    Missing {
        /// The object.
        object: PayloadRef,
        /// How often it was asked for.
        tries: u32,
    },
    /// The store holds something else under this name.
    #[error(
        "payload {object} is damaged: {what}. Restore the object from a backup of the bucket, or fetch the block again (`cairn repair`)"
    )]
    Damaged {
        /// The object.
        object: PayloadRef,
        /// What differs.
        what: String,
    },
    /// Longer than the store takes.
    #[error("payload {object} has {size_bytes} bytes; the limit is {limit_bytes} (`payload_max_bytes`)")]
    TooLarge {
        /// The object.
        object: PayloadRef,
        /// Its length.
        size_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The place belongs to another database.
    #[error(
        "{place} holds the payloads of the database {found}, not of {owner}; nothing was changed. Give each database a bucket, a prefix or a directory of its own"
    )]
    OtherOwner {
        /// The place.
        place: String,
        /// Whose it is.
        found: String,
        /// Who asked.
        owner: String,
    },
    /// The caller's mistake.
    #[error("invalid request to the payload store: {0}")]
    Invalid(String),
    /// The object store is away, slow or overloaded, after all tries.
    #[error("object storage could not do it now: {0}")]
    Unavailable(String),
    /// The object store refuses: credentials, permissions, no such bucket.
    #[error("object storage refused: {0}")]
    Refused(String),
}

impl PayloadError {
    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        match self {
            PayloadError::Unavailable(_) => ErrorKind::Retry,
            PayloadError::TooLarge { .. } | PayloadError::Invalid(_) => ErrorKind::GiveUp,
            PayloadError::Missing { .. }
            | PayloadError::Damaged { .. }
            | PayloadError::OtherOwner { .. }
            | PayloadError::Refused(_) => ErrorKind::Halt,
        }
    }

    /// The store's error, naming the row that holds the reference, such as `block 1200, event 7`: an alarm about a missing or damaged object says whose
    /// payload it is.
    pub fn at(self, place: impl Into<String>) -> StoreError {
        match self {
            PayloadError::Missing { .. } | PayloadError::Damaged { .. } => {
                StoreError::Corrupt { place: place.into(), what: self.to_string() }
            }
            PayloadError::TooLarge { .. } | PayloadError::Invalid(_) => {
                StoreError::Invalid(format!("{}: {self}", place.into()))
            }
            // Credentials come back, and so do buckets and rights: nothing of what is stored contradicts itself.
            PayloadError::Unavailable(_) | PayloadError::Refused(_) => {
                StoreError::Busy(format!("{}: {self}", place.into()))
            }
            PayloadError::OtherOwner { .. } => StoreError::Database(self.to_string()),
        }
    }

    /// Checks a body against its name and, where it is known, its length.
    pub fn check(object: PayloadRef, size_bytes: Option<u64>, body: &[u8]) -> Result<(), PayloadError> {
        if let Some(expected) = size_bytes.filter(|size| *size != body.len() as u64) {
            let what = format!("it has {} bytes instead of {expected}", body.len());
            return Err(PayloadError::Damaged { object, what });
        }
        let found = PayloadHash::of(body);
        if found == object.hash {
            Ok(())
        } else {
            Err(PayloadError::Damaged { object, what: format!("its content has the hash {found}") })
        }
    }
}

impl From<PayloadError> for StoreError {
    fn from(error: PayloadError) -> Self {
        error.at("object storage")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o30_storage_that_refuses_is_tried_again_like_storage_that_is_away() {
        for error in [
            PayloadError::Refused("PUT a failed: status 403".into()),
            PayloadError::Unavailable("PUT a failed: status 503".into()),
        ] {
            let words = error.to_string();
            let error = error.at("block 7");
            assert_eq!(error.kind(), ErrorKind::Retry, "{error}");
            assert!(error.to_string().contains(&format!("block 7: {words}")), "{error}");
        }
        let other = PayloadError::OtherOwner { place: "s3://b".into(), found: "x".into(), owner: "y".into() };
        assert_eq!(StoreError::from(other).kind(), ErrorKind::Halt);
    }
}
