//! Breaking a writing transaction between any two of its statements, for tests.

use cairn_store::Result;

/// Is told of every statement of a writing transaction, and may break it: tests stop a verb between any two of them.
pub trait StatementHook: Send + Sync {
    /// Called before each statement, `COMMIT` included. An error ends the verb there: its transaction is rolled back by the server as if
    /// the process had died.
    fn before_statement(&self) -> Result<()>;
}
