//! What SQLite's errors mean to a caller.

use cairn_store::StoreError;
use rusqlite::ErrorCode;

/// The name of the raw store's file in the data directory.
pub(super) const FILE_NAME: &str = "raw.sqlite";

/// What an error of the raw store's file means.
pub(super) fn db(error: rusqlite::Error) -> StoreError {
    db_in(FILE_NAME, error)
}

/// Busy and full pass; damage and unreadable columns are corruption; anything else won't mend by itself.
pub(super) fn db_in(file_name: &str, error: rusqlite::Error) -> StoreError {
    let damaged = || StoreError::Corrupt { place: file_name.into(), what: error.to_string() };
    match &error {
        rusqlite::Error::SqliteFailure(failure, _) => match failure.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
                StoreError::Busy(format!("{file_name} is locked: {error}"))
            }
            ErrorCode::DiskFull => {
                StoreError::Busy(format!("no space left for {file_name}; free some: {error}"))
            }
            // A file system that takes no writes any more, until somebody mends it.
            ErrorCode::ReadOnly => StoreError::Busy(format!("{file_name} can't be written now: {error}")),
            ErrorCode::OutOfMemory => StoreError::Busy(format!("no memory left: {error}")),
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => damaged(),
            _ => StoreError::Database(format!("{file_name}: {error}")),
        },
        rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::QueryReturnedNoRows => damaged(),
        _ => StoreError::Database(format!("{file_name}: {error}")),
    }
}

pub(super) fn corrupt(place: impl std::fmt::Display, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { place: place.to_string(), what: what.into() }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn what_passes_is_not_taken_for_what_stays() {
        let of = |code| db(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
        for code in
            [ffi::SQLITE_BUSY, ffi::SQLITE_LOCKED, ffi::SQLITE_FULL, ffi::SQLITE_NOMEM, ffi::SQLITE_READONLY]
        {
            assert!(matches!(of(code), StoreError::Busy(_)), "{code}: {}", of(code));
        }
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB] {
            assert!(matches!(of(code), StoreError::Corrupt { .. }), "{code}: {}", of(code));
        }
        // A disk that can't be read is of what stands there.
        for code in [ffi::SQLITE_IOERR, ffi::SQLITE_CONSTRAINT, ffi::SQLITE_CANTOPEN] {
            assert!(matches!(of(code), StoreError::Database(_)), "{code}: {}", of(code));
        }
    }
}
