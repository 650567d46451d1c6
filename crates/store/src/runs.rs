//! stub
/// Which index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RunKind {
    /// Block id → height.
    BlockId = 1,
    /// Transaction id → height and index.
    TxId = 2,
    /// Log term → height.
    LogTerm = 3,
}
