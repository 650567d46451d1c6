//! What is sent to the emulator, in Cadence: `tests/flow`.

use cairn_flow::FlowAddress;

macro_rules! cadence {
    ($($name:ident = $file:literal;)*) => {
        $(pub const $name: &str = include_str!(concat!("../../../../tests/flow/", $file, ".cdc"));)*
    };
}

cadence! {
    PEBBLE = "Pebble";
    ACCOUNT_CREATE = "account_create";
    KEY_ADD = "key_add";
    KEY_REVOKE = "key_revoke";
    CONTRACT_ADD = "contract_add";
    CONTRACT_UPDATE = "contract_update";
    CONTRACT_REMOVE = "contract_remove";
    FLOW_TRANSFER = "flow_transfer";
    FLOW_TRANSFER_TWO_SIGNERS = "flow_transfer_two_signers";
    PEBBLE_SETUP = "pebble_setup";
    PEBBLE_MINT = "pebble_mint";
    PEBBLE_TRANSFER = "pebble_transfer";
    PEBBLE_BURN = "pebble_burn";
    NFT_SETUP = "nft_setup";
    NFT_MINT = "nft_mint";
    NFT_TRANSFER = "nft_transfer";
    NFT_BURN = "nft_burn";
    COA_CREATE = "coa_create";
    COA_DEPOSIT = "coa_deposit";
    COA_WITHDRAW = "coa_withdraw";
    COA_DEPLOY = "coa_deploy";
    COA_CALLS = "coa_calls";
    EVM_RUN = "evm_run";
    EVM_BATCH_RUN = "evm_batch_run";
    FAILING = "failing";
    EVM_ACCOUNT = "evm_account";
    FEE_BALANCE = "fee_balance";
}

/// Where contracts of the tests stand: names in capitals in a text are replaced.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    pub pebble: FlowAddress,
    pub burner: FlowAddress,
}

impl Places {
    /// A text with the addresses in it.
    pub fn fill(&self, text: &str) -> String {
        text.replace("from PEBBLE", &format!("from {}", self.pebble))
            .replace("from BURNER", &format!("from {}", self.burner))
    }
}

/// A contract that nobody imports, in a version.
pub fn note(name: &str, version: u64) -> String {
    format!(
        "access(all) contract {name} {{\n    access(all) view fun version(): UInt64 {{ return {version} }}\n}}\n"
    )
}
