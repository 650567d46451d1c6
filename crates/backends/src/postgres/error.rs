//! What PostgreSQL's errors mean to a caller.

use std::error::Error as _;

use cairn_store::StoreError;
use tokio_postgres::Error;
use tokio_postgres::error::{DbError, SqlState};

use super::tls;

/// What kind of failure an error is, for callers that do something about some of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The transaction lost against another one, and would go through if run again at once: a deadlock, a serialisation failure.
    Again,
    /// It passes: a lost connection, a lock or statement timeout, no space, too many connections.
    Busy,
    /// The server takes no writes: another one took its place. It passes with a new connection.
    ReadOnly,
    /// No partition takes a row's height.
    NoPartition,
    /// A table that a statement names is not there.
    NoTable,
    /// A unique or exclusion constraint refused a row; the name of the constraint.
    Unique(String),
    /// What is stored can't be read: damaged pages, or columns that are not what they should be.
    Corrupt,
    /// Anything else: it won't mend by itself.
    Other,
}

/// Classifies an error by its SQLSTATE, or by what the client met.
pub fn classify(error: &Error) -> Failure {
    if let Some(db) = error.as_db_error() {
        return classify_state(db);
    }
    if error.is_closed() || has_io_source(error) {
        return Failure::Busy;
    }
    // The client's own errors have no kind that can be asked for; their text begins with it.
    let text = error.to_string();
    if text.starts_with("error deserializing column")
        || text.starts_with("query returned an unexpected number")
    {
        return Failure::Corrupt;
    }
    if text.starts_with("error connecting to server")
        || text.starts_with("error communicating with the server")
        || text.starts_with("error performing TLS handshake")
        || text.starts_with("timeout waiting for server")
    {
        return Failure::Busy;
    }
    Failure::Other
}

fn classify_state(db: &DbError) -> Failure {
    let state = db.code();
    if *state == SqlState::UNIQUE_VIOLATION || *state == SqlState::EXCLUSION_VIOLATION {
        return Failure::Unique(db.constraint().unwrap_or_default().to_owned());
    }
    // A failed CHECK of our own would name its constraint.
    if *state == SqlState::CHECK_VIOLATION && db.constraint().is_none() {
        return Failure::NoPartition;
    }
    classify_code(state)
}

/// What a state says by itself.
fn classify_code(state: &SqlState) -> Failure {
    if *state == SqlState::T_R_SERIALIZATION_FAILURE || *state == SqlState::T_R_DEADLOCK_DETECTED {
        return Failure::Again;
    }
    if *state == SqlState::UNDEFINED_TABLE {
        return Failure::NoTable;
    }
    if *state == SqlState::READ_ONLY_SQL_TRANSACTION {
        return Failure::ReadOnly;
    }
    let passing = [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::OBJECT_IN_USE,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        SqlState::SYSTEM_ERROR,
        // It says only that a statement before it failed; run again, that one says what it is.
        SqlState::IN_FAILED_SQL_TRANSACTION,
    ];
    // Connections, too few resources, an operator's or the server's own interruption (a shutdown, a cancelled statement).
    let passing_classes = ["08", "53", "57"];
    if passing.contains(state) || passing_classes.iter().any(|class| state.code().starts_with(class)) {
        return Failure::Busy;
    }
    // A file that the server needs isn't there: what was in it is gone.
    let corrupt = [
        SqlState::DATA_CORRUPTED,
        SqlState::INDEX_CORRUPTED,
        SqlState::UNDEFINED_FILE,
        SqlState::DUPLICATE_FILE,
    ];
    if corrupt.contains(state) {
        return Failure::Corrupt;
    }
    Failure::Other
}

fn has_io_source(error: &Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.is::<std::io::Error>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// An error in words: message, detail, hint, table and SQLSTATE, as far as the server gave them; of one that TLS made, what to do too. Never a parameter's value.
pub fn text(error: &Error) -> String {
    let Some(db) = error.as_db_error() else {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let cause_text = cause.to_string();
            if !text.contains(&cause_text) {
                text = format!("{text}: {cause_text}");
            }
            source = cause.source();
        }
        return match tls::advice(error) {
            Some(advice) => format!("{text}; {advice}"),
            None => text,
        };
    };
    let mut text = format!("{} (SQLSTATE {})", db.message(), db.code().code());
    for (name, value) in [
        ("detail", db.detail()),
        ("hint", db.hint()),
        ("table", db.table()),
        ("constraint", db.constraint()),
        ("where", db.where_()),
    ] {
        if let Some(value) = value {
            let value: String = value.chars().take(300).collect();
            text = format!("{text}; {name}: {value}");
        }
    }
    text
}

/// The store's error for a database error: what passes is [`StoreError::Busy`].
pub fn db(error: Error) -> StoreError {
    let what = text(&error);
    match classify(&error) {
        Failure::Again | Failure::Busy | Failure::ReadOnly => StoreError::Busy(what),
        Failure::Corrupt => StoreError::Corrupt { place: "PostgreSQL".into(), what },
        Failure::NoPartition | Failure::NoTable | Failure::Unique(_) | Failure::Other => {
            StoreError::Database(what)
        }
    }
}

/// A contradiction in what is stored.
pub fn corrupt(place: impl std::fmt::Display, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { place: place.to_string(), what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_that_pass_are_not_taken_for_what_stays() {
        let of = |code: &str| classify_code(&SqlState::from_code(code));
        let passing = [
            "08000", "08003", "08006", "08P01", "25P02", "53100", "53200", "53300", "55006", "55P03",
            "57014", "57P01", "57P02", "57P03", "57P05", "58000",
        ];
        for code in passing {
            assert_eq!(of(code), Failure::Busy, "{code}");
        }
        assert_eq!(of("25006"), Failure::ReadOnly);
        for code in ["40001", "40P01"] {
            assert_eq!(of(code), Failure::Again, "{code}");
        }
        for code in ["XX001", "XX002", "58P01", "58P02"] {
            assert_eq!(of(code), Failure::Corrupt, "{code}");
        }
        for code in ["42501", "42703", "0A000", "22003", "58030", "XX000"] {
            assert_eq!(of(code), Failure::Other, "{code}");
        }
    }
}
