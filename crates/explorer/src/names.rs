//! The names of the services: `worker_type` of their leases, `service_name` of their checkpoints.

/// Token events as transfers.
pub const TOKEN_WORKER: &str = "token_worker";
/// Normalised transactions and logs.
pub const EVM_WORKER: &str = "evm_worker";
/// Contracts and who created them.
pub const META_WORKER: &str = "meta_worker";
/// Which addresses a transaction concerns.
pub const ACCOUNTS_WORKER: &str = "accounts_worker";
/// What a transaction used, paid and did.
pub const TX_METRICS_WORKER: &str = "tx_metrics_worker";
/// Which contracts a transaction touched.
pub const TX_CONTRACTS_WORKER: &str = "tx_contracts_worker";
/// Balances of fungible tokens.
pub const FT_HOLDINGS_WORKER: &str = "ft_holdings_worker";
/// Owners of NFTs.
pub const NFT_OWNERSHIP_WORKER: &str = "nft_ownership_worker";
/// Statistics by day and by address.
pub const STATS_WORKER: &str = "stats_worker";
/// Names and symbols of tokens and collections.
pub const TOKEN_METADATA_WORKER: &str = "token_metadata_worker";
/// URIs of single NFTs.
pub const NFT_METADATA_WORKER: &str = "nft_metadata_worker";
/// Code of contracts.
pub const CONTRACT_CODE_WORKER: &str = "contract_code_worker";
/// Flow accounts with their keys and contracts as they are now.
pub const ACCOUNT_STATE_WORKER: &str = "account_state_worker";
/// What Flow accounts were before the archive saw anything of them.
pub const ACCOUNT_METADATA_WORKER: &str = "account_metadata_worker";
/// Whether the EVM chain on Flow is whole.
pub const EVM_CHAIN_WORKER: &str = "evm_chain_worker";
