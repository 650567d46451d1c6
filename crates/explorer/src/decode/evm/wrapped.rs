//! Whose `Deposit` and `Withdrawal` events are token movements (E25): wrapped native tokens log no `Transfer` when they are wrapped and unwrapped.

use std::collections::BTreeSet;

use alloy_primitives::{Address, address};

/// Whose `Deposit` and `Withdrawal` events are token movements.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WrappedTokens {
    /// Nobody's.
    #[default]
    Off,
    /// Those of these contracts.
    Listed(BTreeSet<Address>),
    /// Those of every contract. Other contracts than tokens use the same events: they then look like tokens.
    Any,
}

impl WrappedTokens {
    /// The well-known ones of the chain with this EIP-155 id.
    pub fn known(chain_id: u64) -> WrappedTokens {
        let known = known(chain_id);
        if known.is_empty() { WrappedTokens::Off } else { WrappedTokens::Listed(known) }
    }

    /// Whether a contract's events count.
    pub fn include(&self, contract: &Address) -> bool {
        match self {
            WrappedTokens::Off => false,
            WrappedTokens::Listed(contracts) => contracts.contains(contract),
            WrappedTokens::Any => true,
        }
    }
}

/// At the same address on every chain of the OP stack.
const OP_STACK: Address = address!("4200000000000000000000000000000000000006");

fn known(chain_id: u64) -> BTreeSet<Address> {
    let known = match chain_id {
        // Ethereum, and its test networks.
        1 => vec![address!("c02aaa39b223fe8d0a0e5c4f27ead9083c756cc2")],
        11_155_111 => vec![
            address!("fff9976782d46cc05630d1f6ebab18b2324d6b14"),
            address!("7b79995e5f793a07bc00c21412e50ecae098e7f9"),
        ],
        17_000 => vec![address!("94373a4919b3240d86ea41593d5eba789fef3848")],
        // OP Mainnet, Unichain, World Chain, Soneium, Base, Mode, Ink, Zora; the test networks of OP and Base.
        10 | 130 | 480 | 1_868 | 8_453 | 34_443 | 57_073 | 7_777_777 | 84_532 | 11_155_420 => vec![OP_STACK],
        // Arbitrum One, Nova and Sepolia.
        42_161 => vec![address!("82af49447d8a07e3bd95bd0d56f35241523fbab1")],
        42_170 => vec![address!("722e8bdd2ce80a4422e880164f2079488e115365")],
        421_614 => vec![address!("980b62da83eff3d4576c647993b0c1d7faf17c73")],
        // BNB Smart Chain, Gnosis, Polygon, Fantom, Avalanche.
        56 => vec![address!("bb4cdb9cbd36b01bd1cbaebf2de08d9173bc095c")],
        100 => vec![address!("e91d153e0b41518a2ce8dd3d7944fa863463a97d")],
        137 => vec![address!("0d500b1d8e8ef31e21c99d1db9a6444d3adf1270")],
        250 => vec![address!("21be370d5312f44cb42ce377bc9b8a0cef1a4c83")],
        43_114 => vec![address!("b31f66aa3c1e785363f0875a1b74e27b85fd66c7")],
        // EVM on Flow, mainnet and testnet.
        747 | 545 => vec![address!("d3bf53dac106a0290b0483ecbc89d40fcc961f3e")],
        _ => Vec::new(),
    };
    known.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e25_well_known_wrapped_tokens_count_on_their_own_chain() {
        let weth = address!("c02aaa39b223fe8d0a0e5c4f27ead9083c756cc2");
        assert!(WrappedTokens::known(1).include(&weth));
        assert!(!WrappedTokens::known(10).include(&weth));
        for chain_id in [10, 8_453] {
            assert!(WrappedTokens::known(chain_id).include(&OP_STACK));
        }
        assert_eq!(WrappedTokens::known(1_337), WrappedTokens::Off);
    }
}
