//! What `evm_chain_worker` told of gaps in the error log, closed once they are.

use cairn_core::Height;
use cairn_explorer::names::EVM_CHAIN_WORKER;
use cairn_store::StoreError;
use cairn_store::derived::{ErrorFilter, ErrorLog, LoggedError};

use super::OpenGap;
use super::find::{self, MAX_LISTED};
use crate::stores::{AppStore, RawStore};

/// Open errors that are looked at.
const MAX_ERRORS: usize = 10_000;

/// How a message about a gap begins.
fn beginning(from_evm_height: u64, to_evm_height: u64) -> String {
    format!("EVM blocks {from_evm_height} to {to_evm_height} are missing")
}

/// Whether an error is about a gap, whichever.
fn is_of_a_gap(message: &str) -> bool {
    let numbers = message.strip_prefix("EVM blocks ").and_then(|rest| rest.split_once(" are missing"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    numbers
        .and_then(|(numbers, _)| numbers.split_once(" to "))
        .is_some_and(|(from, to)| is_number(from) && is_number(to))
}

async fn open_errors(store: &dyn RawStore, height: Option<Height>) -> Result<Vec<LoggedError>, StoreError> {
    let filter = ErrorFilter {
        service: Some(EVM_CHAIN_WORKER.into()),
        height,
        limit: MAX_ERRORS,
        ..ErrorFilter::default()
    };
    ErrorLog::list(store, &filter).await
}

async fn close(store: &dyn RawStore, errors: impl Iterator<Item = &LoggedError>) -> Result<(), StoreError> {
    let ids: Vec<u64> = errors.map(|logged| logged.id).collect();
    match ids.is_empty() {
        true => Ok(()),
        false => ErrorLog::resolve(store, &ids).await.map(drop),
    }
}

/// Closes what the worker reported of a gap. If it is still there when the worker comes to it again, it opens again.
pub(super) async fn close_of(store: &dyn RawStore, gap: &OpenGap) -> Result<(), StoreError> {
    let told = beginning(gap.from_evm_height, gap.to_evm_height);
    let errors = open_errors(store, Some(gap.seen_at)).await?;
    close(store, errors.iter().filter(|logged| logged.error.message.starts_with(&told))).await
}

/// Closes what the worker reported of gaps that have no row any more: of those that closed after a repair that was killed before it could say so, or by rows that were made again
/// otherwise.
pub(super) async fn close_of_closed(store: &dyn RawStore, app: &dyn AppStore) -> anyhow::Result<()> {
    let mut errors = open_errors(store, None).await?;
    errors.retain(|logged| is_of_a_gap(&logged.error.message));
    if errors.is_empty() {
        return Ok(());
    }
    // Only now: the worker tells of a gap before it writes its row.
    let snapshot = match app.snapshot().await {
        Ok(snapshot) => snapshot,
        // Nothing was ever derived here.
        Err(StoreError::Invalid(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if snapshot.being_rebuilt(EVM_CHAIN_WORKER).is_some() {
        return Ok(());
    }
    let Some(next) = snapshot.checkpoint(EVM_CHAIN_WORKER).map(|own| own.next) else { return Ok(()) };
    drop(snapshot);
    let gaps = find::gaps(app).await?;
    if gaps.len() >= MAX_LISTED {
        return Ok(());
    }
    let is_there = |logged: &LoggedError| {
        gaps.iter().any(|gap| {
            Height(gap.seen_at_height) == logged.error.height
                && logged.error.message.starts_with(&beginning(gap.from_evm_height, gap.to_evm_height))
        })
    };
    let is_closed = |logged: &&LoggedError| logged.error.height < next && !is_there(logged);
    Ok(close(store, errors.iter().filter(is_closed)).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_gaps_are_told_from_others() {
        assert!(is_of_a_gap(&format!("{}: block 7 of Flow block 20 …", beginning(5, 6))));
        for other in
            ["EVM block 5 comes again", "EVM blocks 5 to x are missing", "EVM blocks are missing", "else"]
        {
            assert!(!is_of_a_gap(other), "{other}");
        }
    }
}
