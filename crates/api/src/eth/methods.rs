//! Which methods there are, and what each costs.

/// How a method is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Answered from the head row or one block's facts.
    Light,
    /// May read or write megabytes.
    Heavy,
    /// Needs state: forwarded to an upstream, or refused; the archive has no work with it.
    State,
    /// Needs a connection that stays.
    Subscription,
}

/// The known methods. Names are in the order of a node's documentation.
const METHODS: &[(&str, Kind)] = &[
    ("eth_blockNumber", Kind::Light),
    ("eth_chainId", Kind::Light),
    ("eth_syncing", Kind::Light),
    ("eth_capabilities", Kind::Light),
    ("eth_config", Kind::Light),
    ("eth_baseFee", Kind::Light),
    ("eth_blobBaseFee", Kind::Light),
    ("eth_feeHistory", Kind::Heavy),
    ("net_version", Kind::Light),
    ("net_listening", Kind::Light),
    ("net_peerCount", Kind::Light),
    ("web3_clientVersion", Kind::Light),
    ("web3_sha3", Kind::Light),
    ("rpc_modules", Kind::Light),
    ("eth_getBlockByHash", Kind::Heavy),
    ("eth_getBlockByNumber", Kind::Heavy),
    ("eth_getHeaderByHash", Kind::Light),
    ("eth_getHeaderByNumber", Kind::Light),
    ("eth_getBlockReceipts", Kind::Heavy),
    ("eth_getBlockTransactionCountByHash", Kind::Light),
    ("eth_getBlockTransactionCountByNumber", Kind::Light),
    ("eth_getUncleCountByBlockHash", Kind::Light),
    ("eth_getUncleCountByBlockNumber", Kind::Light),
    ("eth_getUncleByBlockHashAndIndex", Kind::Light),
    ("eth_getUncleByBlockNumberAndIndex", Kind::Light),
    ("eth_getTransactionByHash", Kind::Light),
    ("eth_getTransactionByBlockHashAndIndex", Kind::Light),
    ("eth_getTransactionByBlockNumberAndIndex", Kind::Light),
    ("eth_getTransactionReceipt", Kind::Light),
    ("eth_getRawTransactionByHash", Kind::Light),
    ("eth_getRawTransactionByBlockHashAndIndex", Kind::Light),
    ("eth_getRawTransactionByBlockNumberAndIndex", Kind::Light),
    ("eth_getLogs", Kind::Heavy),
    ("eth_newFilter", Kind::Light),
    ("eth_newBlockFilter", Kind::Light),
    ("eth_uninstallFilter", Kind::Light),
    ("eth_getFilterChanges", Kind::Heavy),
    ("eth_getFilterLogs", Kind::Heavy),
    ("eth_subscribe", Kind::Subscription),
    ("eth_unsubscribe", Kind::Subscription),
    ("debug_getRawHeader", Kind::Light),
    ("debug_getRawBlock", Kind::Heavy),
    ("debug_getRawReceipts", Kind::Heavy),
    ("debug_getRawTransaction", Kind::Light),
    ("debug_traceBlockByHash", Kind::Heavy),
    ("debug_traceBlockByNumber", Kind::Heavy),
    ("debug_traceTransaction", Kind::Heavy),
    ("eth_accounts", Kind::State),
    ("eth_call", Kind::State),
    ("eth_createAccessList", Kind::State),
    ("eth_estimateGas", Kind::State),
    ("eth_gasPrice", Kind::State),
    ("eth_getBalance", Kind::State),
    ("eth_getCode", Kind::State),
    ("eth_getProof", Kind::State),
    ("eth_getStorageAt", Kind::State),
    ("eth_getStorageValues", Kind::State),
    ("eth_getTransactionCount", Kind::State),
    ("eth_maxPriorityFeePerGas", Kind::State),
    ("eth_newPendingTransactionFilter", Kind::State),
    ("eth_pendingTransactions", Kind::State),
    ("eth_sendRawTransaction", Kind::State),
    ("eth_sendRawTransactionSync", Kind::State),
    ("eth_simulateV1", Kind::State),
    ("debug_traceCall", Kind::State),
    ("debug_storageRangeAt", Kind::State),
    ("debug_accountRange", Kind::State),
    ("debug_executionWitness", Kind::State),
    ("txpool_content", Kind::State),
    ("txpool_contentFrom", Kind::State),
    ("txpool_inspect", Kind::State),
    ("txpool_status", Kind::State),
];

/// The name (for metrics) and kind of a method; `None`: unknown.
pub fn find(method: &str) -> Option<(&'static str, Kind)> {
    METHODS.iter().find(|(name, _)| *name == method).copied()
}

/// The names of the methods that are answered here, for `cairn conformance` and people.
pub fn served() -> impl Iterator<Item = &'static str> {
    METHODS.iter().filter(|(_, kind)| *kind != Kind::State).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_there_once() {
        for (i, (name, _)) in METHODS.iter().enumerate() {
            assert!(METHODS[..i].iter().all(|(other, _)| other != name), "{name} is there twice");
        }
        assert_eq!(find("eth_call"), Some(("eth_call", Kind::State)));
        assert_eq!(find("eth_nothing"), None);
    }
}
