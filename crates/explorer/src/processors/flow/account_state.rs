//! `account_state_worker`: accounts, their keys and their contracts as they are now, folded in chain order.
//!
//! A key has an index among all keys that its account was ever given. Events of before Cadence 1.0 don't say it, so those keys are
//! counted. How many there were before is known only of accounts whose creation the archive has seen; other accounts' keys without an index stay in
//! `account_key_events`.
//!
//! The oldest events name a revoked key by its bytes: see `revocations`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_pipeline::derive::processor::{
    Changes, FoldBlock, FoldState, Folder, ProcessError, Processor, ServiceInfo,
};
use cairn_store::derived::{Key, Row, TableDef, Value};

use super::revocations;
use crate::names::{ACCOUNT_STATE_WORKER, ACCOUNTS_WORKER, META_WORKER};
use crate::processors::Settings;
use crate::tables::RowError;
use crate::tables::flow::accounts::{
    ACCOUNT_CREATIONS, ACCOUNT_KEY_EVENTS, ACCOUNT_KEYS, AccountKeyEvent, AccountState, CREATED_HEIGHT,
    FLOW_ACCOUNTS, KEY_COUNT, UNPLACED_REVOCATIONS, account_key,
};
use crate::tables::flow::contracts::{
    ACCOUNT_CONTRACTS, CONTRACT_VERSIONS, ContractVersion, account_contract,
};

/// What it says of itself.
pub static SERVICE: ServiceInfo = ServiceInfo {
    name: ACCOUNT_STATE_WORKER,
    version: 2,
    upstreams: &[META_WORKER, ACCOUNTS_WORKER],
    tables: &[&FLOW_ACCOUNTS, &ACCOUNT_KEYS, &UNPLACED_REVOCATIONS, &ACCOUNT_CONTRACTS],
};

static READS: &[&TableDef] = &[&ACCOUNT_CREATIONS, &ACCOUNT_KEY_EVENTS, &CONTRACT_VERSIONS];

/// Makes it.
pub fn make(settings: &Settings) -> Option<Processor> {
    settings.network?;
    Some(Processor::Folder(Arc::new(AccountStateWorker)))
}

struct AccountStateWorker;

impl Folder for AccountStateWorker {
    fn service(&self) -> &'static ServiceInfo {
        &SERVICE
    }

    fn reads(&self) -> &'static [&'static TableDef] {
        READS
    }

    fn fold(&self, block: &FoldBlock<'_>, changes: &mut Changes) -> Result<(), ProcessError> {
        let height = block.facts.height.get();
        let rows = |at: usize| block.rows.get(at).copied().unwrap_or_default();
        let in_block = |error: RowError| error.in_block(block.facts.block_ref());
        let mut accounts: BTreeMap<Bytes, AccountState> = BTreeMap::new();
        for row in rows(0) {
            if let Some(Value::Bytes(address)) = row.0.get(1) {
                accounts.entry(address.clone()).or_default().created_height = Some(height);
            }
        }
        for event in key_events(rows(1)).map_err(in_block)? {
            match (event.is_revoked, event.key_index) {
                (true, None) => {}
                // The row of the account is there, or is made: who has keys is an account.
                (true, Some(_)) => _ = accounts.entry(event.address).or_default(),
                (false, _) => accounts.entry(event.address).or_default().keys += 1,
            }
        }
        let versions = rows(2).iter().map(ContractVersion::from_row).collect::<Result<Vec<_>, _>>();
        let mut versions = versions.map_err(in_block)?;
        versions.sort_by_key(|version| (version.transaction_index, version.event_index));
        for version in &versions {
            let contracts = match version.change.as_str() {
                "added" => 1,
                "removed" => -1,
                _ => 0,
            };
            accounts.entry(version.address.clone()).or_default().contracts += contracts;
            changes.change(&ACCOUNT_CONTRACTS, account_contract(version));
        }
        for (address, account) in accounts {
            changes.change(&FLOW_ACCOUNTS, account.to_change(&address));
        }
        Ok(())
    }

    fn looks_at_state(&self) -> bool {
        true
    }

    fn fold_with_state(&self, block: &FoldBlock<'_>, state: &mut FoldState<'_>) -> Result<(), ProcessError> {
        let height = block.facts.height.get();
        let in_block = |error: RowError| error.in_block(block.facts.block_ref());
        let events = key_events(block.rows.get(1).copied().unwrap_or_default()).map_err(in_block)?;
        let mut added: BTreeMap<Bytes, u64> = BTreeMap::new();
        for event in &events {
            if !event.is_revoked {
                *added.entry(event.address.clone()).or_default() += 1;
            }
        }
        let mut next: BTreeMap<Bytes, Option<u64>> = BTreeMap::new();
        for (address, added) in added {
            // Its row has what this block adds already.
            let row = state.row(&FLOW_ACCOUNTS, Key(vec![Value::Bytes(address.clone())]));
            next.insert(address, row.and_then(|row| keys_of_whole(&row)?.checked_sub(added)));
        }
        for event in &events {
            let address = &event.address;
            match (event.is_revoked, event.key_index) {
                (true, Some(index)) => {
                    state.change(&ACCOUNT_KEYS, &account_key(address, index, None, true, height));
                    revocations::by_index(address, index, height, state).map_err(in_block)?;
                }
                (true, None) => {
                    revocations::by_bytes(address, &event.key, height, state).map_err(in_block)?;
                }
                (false, said) => {
                    let counted = next.get_mut(address).and_then(Option::as_mut).map(|next| {
                        *next += 1;
                        *next - 1
                    });
                    if let Some(index) = said.or(counted) {
                        let key = account_key(address, index, Some(&event.key), false, height);
                        state.change(&ACCOUNT_KEYS, &key);
                    }
                }
            }
        }
        Ok(())
    }

    /// The account.
    fn group<'a>(&self, _table: &'static str, key: &'a Key) -> &'a [Value] {
        key.0.get(..1).unwrap_or_default()
    }
}

/// In chain order.
fn key_events(rows: &[Row]) -> Result<Vec<AccountKeyEvent>, RowError> {
    let mut events = rows.iter().map(AccountKeyEvent::from_row).collect::<Result<Vec<_>, _>>()?;
    events.sort_by_key(|event| (event.transaction_index, event.event_index));
    Ok(events)
}

/// How many keys an account was given; `None` where the archive has not seen it from the beginning.
fn keys_of_whole(row: &Row) -> Option<u64> {
    row.0.get(CREATED_HEIGHT)?.as_height()?;
    row.0.get(KEY_COUNT)?.as_int()?.try_into().ok()
}
