//! What differs between kinds of chains: how addresses and contracts are named in paths and queries, and whose codec reads a block.
//!
//! Chosen once, where REST is wired. Handlers ask it for what they were given by name; [`super::flow`] has what only Flow's blocks and tables say.

use bytes::Bytes;
use cairn_flow::{FlowAddress, Network};
use cairn_store::derived::{Key, Value};

use super::params;
use super::problem::Problem;

/// A kind of chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RestChain {
    /// Any EVM chain: addresses of 20 bytes, which name contracts too.
    #[default]
    Evm,
    /// A network of Flow: accounts of 8 bytes, contracts by account and name, and the addresses of its EVM side.
    Flow(Network),
}

/// A contract as tables are keyed by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContractName {
    pub address: Bytes,
    /// Its name within its account; empty where the address alone names it.
    pub name: String,
}

impl ContractName {
    /// The contract that an address alone names.
    pub(crate) fn at(address: &Bytes) -> ContractName {
        ContractName { address: address.clone(), name: String::new() }
    }

    /// The first columns of tables that are keyed by contract.
    pub(crate) fn values(&self) -> Vec<Value> {
        vec![Value::Bytes(self.address.clone()), Value::text(self.name.as_str())]
    }

    /// As a key of such a table.
    pub(crate) fn key(&self) -> Key {
        Key(self.values())
    }

    /// For the binding of cursors.
    pub(crate) fn binding(&self) -> String {
        format!("{}.{}", hex::encode(&self.address), self.name)
    }
}

impl RestChain {
    /// Its name in answers.
    pub(crate) fn name(self) -> &'static str {
        match self {
            RestChain::Evm => "evm",
            RestChain::Flow(network) => network.chain_id(),
        }
    }

    /// An address in any spelling.
    pub(crate) fn address(self, name: &str, text: &str) -> Result<Bytes, Problem> {
        match self {
            RestChain::Evm => params::address(name, text),
            RestChain::Flow(_) => flow_address(text).ok_or_else(|| {
                Problem::parameter(
                    name,
                    "expected a Flow address of up to 16 hex digits, or one of Flow's EVM side of 40, in any case, with or without 0x",
                )
            }),
        }
    }

    /// A contract.
    pub(crate) fn contract(self, name: &str, text: &str) -> Result<ContractName, Problem> {
        match self {
            RestChain::Evm => Ok(ContractName { address: params::address(name, text)?, name: String::new() }),
            RestChain::Flow(_) => flow_contract(text).ok_or_else(|| {
                Problem::parameter(
                    name,
                    "expected a contract as A.<address>.<name>, or an address of Flow's EVM side of 40 hex digits",
                )
            }),
        }
    }

    /// A token or a collection: a contract, and on Flow the one of its types that is meant where that isn't the usual one.
    pub(crate) fn token(self, name: &str, text: &str) -> Result<ContractName, Problem> {
        let contract = self.contract(name, text)?;
        match self {
            RestChain::Evm => Ok(contract),
            RestChain::Flow(_) => Ok(flow_token(text).unwrap_or(contract)),
        }
    }

    /// A contract as paths take it.
    pub(crate) fn identifier(self, address: &Bytes, name: &str) -> String {
        match self {
            RestChain::Flow(_) if !name.is_empty() => format!("A.{}.{name}", hex::encode(address)),
            _ => format!("0x{}", hex::encode(address)),
        }
    }
}

fn flow_address(text: &str) -> Option<Bytes> {
    if let Ok(address) = text.parse::<FlowAddress>() {
        return Some(Bytes::copy_from_slice(&address.0));
    }
    params::address("address", text).ok()
}

/// `A.<address>.<name>`, with the type of something in it behind or not, and the letter in front or not.
pub(crate) fn flow_contract(text: &str) -> Option<ContractName> {
    Some(flow_type(text)?.0)
}

/// The same of a token, which keeps its type, but for those that contracts have as a rule: they go by the contract's name alone.
pub(crate) fn flow_token(text: &str) -> Option<ContractName> {
    let (mut contract, kind) = flow_type(text)?;
    if let Some(kind) = kind.filter(|kind| !["Vault", "NFT", "Collection"].contains(kind)) {
        contract.name = format!("{}.{kind}", contract.name);
    }
    Some(contract)
}

/// A contract, and the type behind it.
fn flow_type(text: &str) -> Option<(ContractName, Option<&str>)> {
    let rest = text.strip_prefix("A.").or_else(|| text.strip_prefix("a.")).unwrap_or(text);
    let Some((address, named)) = rest.split_once('.') else {
        return params::address("address", text).ok().map(|address| (ContractName::at(&address), None));
    };
    let (name, inner) = named.split_once('.').map_or((named, None), |(name, inner)| (name, Some(inner)));
    let address: FlowAddress = address.parse().ok()?;
    let fits = is_identifier(name) && inner.is_none_or(is_identifier);
    let contract = ContractName { address: Bytes::copy_from_slice(&address.0), name: name.to_owned() };
    fits.then_some((contract, inner))
}

/// An identifier of Cadence.
fn is_identifier(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 256
        && !text.as_bytes()[0].is_ascii_digit()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: RestChain = RestChain::Flow(Network::Mainnet);

    #[test]
    fn p09_flow_addresses_are_read_in_any_spelling() {
        let one = FLOW.address("address", "0x1654653399040a61").expect("read");
        for text in ["1654653399040a61", "0X1654653399040A61", "0x1654653399040A61"] {
            assert_eq!(FLOW.address("address", text).expect("read"), one, "{text}");
        }
        assert_eq!(FLOW.address("address", "0x1").expect("read").as_ref(), [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(
            FLOW.address("address", "0000000000000001").expect("read").as_ref(),
            [0, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(FLOW.address("address", &"aB".repeat(20)).expect("read").as_ref(), [0xab; 20]);
        for text in ["", "0x", "xyz", "1654653399040a611", &"ab".repeat(32), "A.1.X"] {
            assert!(FLOW.address("address", text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_keeps_its_type_but_for_the_usual_ones() {
        let name = |text: &str| FLOW.token("address", text).expect("read").name;
        for (text, expected) in [
            ("A.1.Coin", "Coin"),
            ("A.1.Coin.Vault", "Coin"),
            ("A.1.Cats.NFT", "Cats"),
            ("A.1.Cats.Collection", "Cats"),
            ("A.1.Coin.Gold", "Coin.Gold"),
            ("0x1.Coin.Coin", "Coin.Coin"),
            ("A.1.Vault", "Vault"),
            ("A.1.Vault.Vault", "Vault"),
        ] {
            assert_eq!(name(text), expected, "{text}");
        }
        let gold = FLOW.token("address", "A.1.Coin.Gold").expect("read");
        assert_eq!(FLOW.identifier(&gold.address, &gold.name), "A.0000000000000001.Coin.Gold");
        assert_eq!(FLOW.contract("address", "A.1.Coin.Gold").expect("read").name, "Coin");
        for text in ["A.1", "A.1.Coin.2x", "A.1.Coin.Gold.X"] {
            assert!(FLOW.token("address", text).is_err(), "{text}");
        }
        let evm = "ab".repeat(20);
        assert_eq!(FLOW.token("address", &evm).expect("read"), FLOW.contract("address", &evm).expect("read"));
    }

    #[test]
    fn flow_contracts_are_read_in_any_spelling_and_written_in_one() {
        let one = FLOW.contract("address", "A.1654653399040a61.FlowToken").expect("read");
        assert_eq!(FLOW.identifier(&one.address, &one.name), "A.1654653399040a61.FlowToken");
        for text in [
            "A.1654653399040A61.FlowToken",
            "A.0x1654653399040a61.FlowToken",
            "0x1654653399040a61.FlowToken",
            "A.1654653399040a61.FlowToken.Vault",
        ] {
            assert_eq!(FLOW.contract("address", text).expect("read"), one, "{text}");
        }
        assert_eq!(
            FLOW.contract("address", "A.1.T").expect("read").address.as_ref(),
            [0, 0, 0, 0, 0, 0, 0, 1]
        );
        let evm = FLOW.contract("address", &format!("0x{}", "ab".repeat(20))).expect("read");
        assert_eq!((evm.address.as_ref(), evm.name.as_str()), (&[0xab; 20][..], ""));
        for text in ["", "A.", "A.1", "A.1.", "A.1.2x", "A.1.x y", "1654653399040a61", "A.1.T.V.W", "A.1.é"]
        {
            assert!(FLOW.contract("address", text).is_err(), "{text}");
        }
        assert!(RestChain::Evm.contract("address", "A.1654653399040a61.FlowToken").is_err());
    }
}
