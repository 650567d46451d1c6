//! What SQLite's errors mean to a caller.

use cairn_store::StoreError;
use rusqlite::ErrorCode;

/// The name of the database file in the data directory.
pub(super) const FILE_NAME: &str = "raw.sqlite";

/// Busy and full pass; damage and unreadable columns are corruption; anything else won't mend by itself.
pub(super) fn db(error: rusqlite::Error) -> StoreError {
    match &error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                StoreError::Busy(format!("{FILE_NAME} is locked: {error}"))
            }
            ErrorCode::DiskFull => {
                StoreError::Busy(format!("no space left for {FILE_NAME}; free some: {error}"))
            }
            ErrorCode::OutOfMemory => StoreError::Busy(format!("no memory left: {error}")),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                StoreError::Corrupt { place: FILE_NAME.into(), what: error.to_string() }
            }
            _ => StoreError::Database(error.to_string()),
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::QueryReturnedNoRows => {
            StoreError::Corrupt { place: FILE_NAME.into(), what: error.to_string() }
        }
        _ => StoreError::Database(error.to_string()),
    }
}

pub(super) fn corrupt(place: impl std::fmt::Display, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { place: place.to_string(), what: what.into() }
}
