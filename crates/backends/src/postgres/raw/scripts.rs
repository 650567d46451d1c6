//! Scripts by their hash: stored once, before the rows that name them, and never deleted.
//!
//! They are written in a transaction of their own, sorted by hash: so no writer holds a script's row while it waits for another. A script whose rows were
//! never written is harmless, as an object in content-addressed storage is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use cairn_core::Height;
use cairn_store::{Result, StoreError};
use sha2::{Digest, Sha256};

use super::Shared;
use super::head::get_array;
use super::rows::EncodedBatch;
use crate::postgres::PgConn;
use crate::postgres::error::{corrupt, db};

/// SHA-256 of a script.
pub(super) type ScriptHash = [u8; 32];

/// How many scripts are remembered as stored.
const MAX_KNOWN: usize = 100_000;
/// How many bytes of scripts one statement stores, about.
const STEP_BYTES: usize = 4 << 20;

/// Scripts that this process knows to be stored.
#[derive(Debug, Default)]
pub(super) struct KnownScripts(Mutex<HashSet<ScriptHash>>);

impl KnownScripts {
    fn unknown_of(&self, scripts: BTreeMap<ScriptHash, Bytes>) -> Vec<(ScriptHash, Bytes)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        scripts.into_iter().filter(|(hash, _)| !known.contains(hash)).collect()
    }

    fn add(&self, scripts: &[(ScriptHash, Bytes)]) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() + scripts.len() > MAX_KNOWN {
            known.clear();
        }
        known.extend(scripts.iter().take(MAX_KNOWN).map(|(hash, _)| *hash));
    }

    fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

pub(super) fn script_hash(script: &[u8]) -> ScriptHash {
    Sha256::digest(script).into()
}

impl Shared {
    /// Stores the scripts of a batch that aren't known to be stored.
    pub(super) async fn store_scripts(&self, batch: &EncodedBatch) -> Result<()> {
        let scripts = self.scripts.unknown_of(batch.scripts());
        let mut from = 0;
        while from < scripts.len() {
            let (mut to, mut bytes) = (from, 0);
            while to < scripts.len() && bytes < STEP_BYTES {
                bytes += scripts[to].1.len();
                to += 1;
            }
            self.insert_scripts(&scripts[from..to]).await?;
            from = to;
        }
        self.scripts.add(&scripts);
        Ok(())
    }

    /// The same, whatever is known: for repair.
    pub(super) async fn restore_scripts(&self, batch: &EncodedBatch) -> Result<()> {
        self.scripts.forget();
        self.store_scripts(batch).await
    }

    async fn insert_scripts(&self, scripts: &[(ScriptHash, Bytes)]) -> Result<()> {
        let text = |bytes: &Bytes| {
            let text = std::str::from_utf8(bytes).map(str::to_owned);
            text.map_err(|_| StoreError::Invalid("a script is no text".into()))
        };
        let hashes: Vec<Vec<u8>> = scripts.iter().map(|(hash, _)| hash.to_vec()).collect();
        let texts: Vec<String> = scripts.iter().map(|(_, script)| text(script)).collect::<Result<_>>()?;
        self.commit("store_scripts", |tx| {
            let (hashes, texts) = (hashes.clone(), texts.clone());
            Box::pin(async move {
                tx.execute(
                    "INSERT INTO raw.scripts AS s (script_hash, script_text) \
                     SELECT * FROM unnest($1::bytea[], $2::text[]) ON CONFLICT (script_hash) \
                     DO UPDATE SET script_text = EXCLUDED.script_text WHERE s.script_text <> EXCLUDED.script_text",
                    &[&hashes, &texts],
                )
                .await
                .map(drop)
            })
        })
        .await
    }
}

/// These scripts, as they are stored: one that is gone is missing in the answer.
pub(super) async fn read_scripts(
    conn: &PgConn,
    hashes: &HashSet<ScriptHash>,
) -> Result<HashMap<ScriptHash, Bytes>> {
    if hashes.is_empty() {
        return Ok(HashMap::new());
    }
    let hashes: Vec<&[u8]> = hashes.iter().map(|hash| &hash[..]).collect();
    let rows = conn
        .query("SELECT script_hash, script_text FROM raw.scripts WHERE script_hash = ANY($1)", &[&hashes])
        .await?;
    let script = |row: &tokio_postgres::Row| {
        let text: &str = row.try_get(1).map_err(db)?;
        Ok((get_array(row, 0)?, Bytes::copy_from_slice(text.as_bytes())))
    };
    rows.iter().map(script).collect()
}

/// The script that a transaction names.
pub(super) fn script_of(
    scripts: &HashMap<ScriptHash, Bytes>,
    hash: &ScriptHash,
    height: Height,
    index: u64,
) -> Result<Bytes> {
    scripts.get(hash).cloned().ok_or_else(|| {
        corrupt(format!("height {height}, transaction {index}"), "its script is not in raw.scripts")
    })
}
