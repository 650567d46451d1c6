//! What broke a transaction, as far as the verb itself does something about it.

use cairn_store::StoreError;
use tokio_postgres::Error;

use crate::postgres::error::{Failure, classify, db};

/// A failure inside of a transaction.
#[derive(Debug)]
pub(super) enum Fault {
    /// A refusal of the store's own, or of the pool.
    Store(StoreError),
    /// The server's or the connection's.
    Pg(Error),
}

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Fault {
        Fault::Store(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Pg(error)
    }
}

impl Fault {
    fn failure(&self) -> Option<Failure> {
        match self {
            Fault::Store(_) => None,
            Fault::Pg(error) => Some(classify(error)),
        }
    }

    /// The server has undone the transaction and it may be run again: a deadlock or a serialisation failure (P02).
    pub(super) fn is_rerun(&self) -> bool {
        self.failure() == Some(Failure::Again)
    }

    /// The server takes no writes now.
    pub(super) fn is_read_only(&self) -> bool {
        self.failure() == Some(Failure::ReadOnly)
    }

    /// A row is there already, or leases overlap.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self.failure(), Some(Failure::Unique(_)))
    }

    /// A row for which there is no partition (P07): somebody took it away behind our back.
    pub(super) fn is_without_partition(&self) -> bool {
        self.failure() == Some(Failure::NoPartition)
    }

    pub(super) fn into_store(self) -> StoreError {
        match self {
            Fault::Store(error) => error,
            Fault::Pg(error) => db(error),
        }
    }
}
