//! What a writer does with large bodies before its transaction.

use std::collections::HashMap;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use crate::{PayloadContent, PayloadHash, PayloadRef, PayloadRegistry, PayloadStore, Reservation, Result};

/// Limits of an offload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OffloadOptions {
    /// How many objects are uploaded at once.
    pub max_uploads: usize,
}

impl Default for OffloadOptions {
    fn default() -> Self {
        OffloadOptions { max_uploads: 8 }
    }
}

/// Puts `bodies` into object storage, each content once, and answers their objects in the order given. When it returns, every object is there and verified, and no row
/// refers to it yet: the caller's transaction makes them live and writes the rows (see [`PayloadRegistry`], "making live"). Where that finds an object lost, the
/// transaction is rolled back and this is called again with the same bodies.
///
/// At the first error nothing more is begun, and the batch is not to be committed. What was uploaded is found by the next try, or collected.
/// The caller holds no database transaction open meanwhile, and bounds the bytes of a batch.
pub async fn offload(
    store: &dyn PayloadStore,
    registry: &dyn PayloadRegistry,
    bodies: &[Bytes],
    options: OffloadOptions,
) -> Result<Vec<PayloadRef>> {
    let hashes: Vec<PayloadHash> = bodies.iter().map(|body| PayloadHash::of(body)).collect();
    let mut first_of: HashMap<PayloadHash, usize> = HashMap::new();
    let mut contents = Vec::new();
    let mut distinct = Vec::new();
    for (body, hash) in bodies.iter().zip(&hashes) {
        first_of.entry(*hash).or_insert_with(|| {
            contents.push(PayloadContent { hash: *hash, size_bytes: body.len() as u64 });
            distinct.push(body.clone());
            contents.len() - 1
        });
    }
    if contents.is_empty() {
        return Ok(Vec::new());
    }
    let reserved: Vec<Reservation> = registry.reserve(&contents).await?;
    let missing: Vec<(PayloadRef, Bytes)> = reserved
        .iter()
        .zip(distinct)
        .filter(|(reservation, _)| !reservation.live)
        .map(|(reservation, body)| (reservation.object, body))
        .collect();
    stream::iter(missing)
        .map(|(object, body)| store.put(object, body))
        .buffer_unordered(options.max_uploads.max(1))
        .try_for_each(|_| async { Ok(()) })
        .await?;
    let object_of: HashMap<PayloadHash, PayloadRef> =
        reserved.iter().map(|reservation| (reservation.object.hash, reservation.object)).collect();
    hashes
        .iter()
        .map(|hash| {
            object_of.get(hash).copied().ok_or_else(|| crate::StoreError::Corrupt {
                place: "the registry of payloads".into(),
                what: format!("it reserved no object for content {hash}"),
            })
        })
        .collect()
}
