//! Scripts that ask for what the ledger knows. A script is recognised by what it calls; there is no Cadence here.

use bytes::Bytes;
use cairn_flow::FlowAddress;
use serde_json::Value;
use sha3::{Digest, Sha3_256};

use crate::cdc::{self, Cdc};
use crate::ledger::{ContractId, Ledger};

/// The answer to a script at a height, as JSON-CDC.
///
/// | what the script calls | arguments | answer |
/// | --- | --- | --- |
/// | `FungibleToken.Balance` | an owner, a token's address and name | `UFix64`: 0 without a vault |
/// | `getIDs` | an owner, a collection's address and name | `[UInt64]`: none without a collection |
/// | `CadenceOwnedAccount` | an owner | `String?`: the EVM account's address, in hex |
/// | `borrowNFT` | a collection's address and name, an id, an owner | where the item's picture is, if the owner has it |
/// | `FTDisplay` | a token's address and name | its name, symbol and supply |
/// | `TotalSupply` alone | a token's address and name | `UFix64?` |
/// | `NFTCollectionDisplay` | a collection's address and name | its name |
/// | `EVM.dryCall` | an EVM contract's address and the input, in hex | whether it succeeded; its result in hex |
/// | `addressFromString` alone | an EVM contract's address, in hex | its code, in hex |
///
/// Those of `borrowNFT` and of what has `Display` in its name answer with a dictionary, without what there is not.
pub fn answer(ledger: &Ledger, height: u64, script: &[u8], arguments: &[Bytes]) -> Result<Bytes, String> {
    let script = std::str::from_utf8(script).map_err(|error| error.to_string())?;
    let value =
        value(ledger, height, script, arguments).map_err(|message| match message.starts_with('[') {
            true => message,
            false => format!("[Error Code: 1052] transaction arguments are invalid: {message}"),
        })?;
    Ok(value.0.into())
}

fn value(ledger: &Ledger, height: u64, script: &str, arguments: &[Bytes]) -> Result<Cdc, String> {
    let arguments = Arguments::read(arguments)?;
    Ok(if script.contains("FungibleToken.Balance") {
        let key = (arguments.contract(1)?, arguments.address(0)?);
        cdc::ufix64(ledger.vaults.at(&key, height).map_or(0, |vault| vault.balance))
    } else if script.contains("getIDs") {
        let (owner, collection) = (arguments.address(0)?, arguments.contract(1)?);
        let items = ledger.items.all_at(height);
        let owned = items.filter(|((of, _), item)| *of == collection && item.owner == Some(owner));
        cdc::array(owned.map(|((_, id), _)| cdc::number("UInt64", id)))
    } else if script.contains("CadenceOwnedAccount") {
        let owner = arguments.address(0)?;
        let coa = ledger.coas.all_at(height).find(|(_, of)| **of == owner);
        cdc::optional(coa.map(|(coa, _)| cdc::string(&hex::encode(coa))))
    } else if script.contains("borrowNFT") {
        let (contract, id, owner) = (arguments.contract(0)?, arguments.number(2)?, arguments.address(3)?);
        let item = ledger.items.at(&(contract.clone(), id), height);
        let is_held = item.is_some_and(|item| item.owner == Some(owner));
        let uri = cdc::string(&item_uri(&contract, id));
        found(if is_held { vec![("held", cdc::boolean(true)), ("uri", uri)] } else { Vec::new() })
    } else if script.contains("FTDisplay") {
        let contract = arguments.contract(0)?;
        let (name, symbol) = token_names(&contract);
        let said = ledger.supplies.at(&contract, height).map(|supply| {
            let (name, symbol) = (cdc::string(&name), cdc::string(&symbol));
            vec![("name", name), ("symbol", symbol), ("supply", cdc::ufix64(*supply))]
        });
        found(said.unwrap_or_default())
    } else if script.contains("TotalSupply") {
        let supply = ledger.supplies.at(&arguments.contract(0)?, height);
        cdc::optional(supply.copied().map(cdc::ufix64))
    } else if script.contains("NFTCollectionDisplay") {
        let contract = arguments.contract(0)?;
        let is_there = ledger.items.all_at(height).any(|((collection, _), _)| *collection == contract);
        let name = cdc::string(&collection_name(&contract));
        found(if is_there { vec![("standard", cdc::boolean(true)), ("name", name)] } else { Vec::new() })
    } else if script.contains("EVM.dryCall") {
        let (contract, input) = (arguments.text(0, "String")?, arguments.text(1, "String")?);
        let returned = evm_answer(contract, input);
        let data = cdc::string(&hex::encode(returned.as_deref().unwrap_or_default()));
        found(vec![("successful", cdc::boolean(returned.is_some())), ("data", data)])
    } else if script.contains("addressFromString") {
        found(vec![("code", cdc::string("60"))])
    } else {
        return Err(UNKNOWN.into());
    })
}

/// What a contract of the EVM side calls itself, by its address in hex.
pub fn evm_name(contract: &str) -> String {
    format!("Coin {}", &contract[..2])
}

/// Its symbol.
pub const EVM_SYMBOL: &str = "COIN";
/// How many decimals it has, and its supply.
pub const EVM_DECIMALS: u64 = 6;

/// What a contract of the EVM side returns: each is a token, and none a collection with names of its items.
fn evm_answer(contract: &str, input: &str) -> Option<Vec<u8>> {
    let word = |number: u64| [vec![0; 24], number.to_be_bytes().to_vec()].concat();
    let string = |text: &str| {
        let mut padded = text.as_bytes().to_vec();
        padded.resize(text.len().next_multiple_of(32), 0);
        [word(32), word(text.len() as u64), padded].concat()
    };
    match input.get(..8)? {
        "06fdde03" => Some(string(&evm_name(contract))),
        "95d89b41" => Some(string(EVM_SYMBOL)),
        "313ce567" | "18160ddd" => Some(word(EVM_DECIMALS)),
        _ => None,
    }
}

/// What a script found, by name.
fn found(found: Vec<(&str, Cdc)>) -> Cdc {
    cdc::dictionary(found.into_iter().map(|(name, value)| (cdc::string(name), cdc::optional(Some(value)))))
}

/// A script's arguments.
struct Arguments(Vec<Value>);

impl Arguments {
    fn read(arguments: &[Bytes]) -> Result<Arguments, String> {
        let read =
            arguments.iter().map(|json| serde_json::from_slice(json).map_err(|error| error.to_string()));
        Ok(Arguments(read.collect::<Result<_, _>>()?))
    }

    /// The text of one, of this type.
    fn text(&self, at: usize, kind: &str) -> Result<&str, String> {
        let argument = self.0.get(at).filter(|argument| argument["type"] == kind);
        let text = argument.and_then(|argument| argument["value"].as_str());
        text.ok_or_else(|| format!("argument {at} is missing, or no {kind}"))
    }

    fn address(&self, at: usize) -> Result<FlowAddress, String> {
        self.text(at, "Address")?.parse::<FlowAddress>().map_err(|error| error.to_string())
    }

    fn number(&self, at: usize) -> Result<u64, String> {
        self.text(at, "UInt64")?.parse::<u64>().map_err(|error| error.to_string())
    }

    /// An address and, behind it, a name.
    fn contract(&self, at: usize) -> Result<ContractId, String> {
        Ok(ContractId::new(self.address(at)?, self.text(at + 1, "String")?))
    }
}

const UNKNOWN: &str = "[Error Code: 1101] cadence runtime error: this node knows no such script";

/// What a token's contract calls itself, and its symbol.
pub fn token_names(token: &ContractId) -> (String, String) {
    let symbol = token.name.chars().filter(char::is_ascii_uppercase).collect();
    (format!("The {}", token.name), symbol)
}

/// What a collection's contract calls itself.
pub fn collection_name(collection: &ContractId) -> String {
    format!("Items of {}", collection.name)
}

/// Where the picture of an item is.
pub fn item_uri(collection: &ContractId, id: u64) -> String {
    format!("https://example.org/{collection}/{id}.png")
}

/// What events call the hash of a contract's code: SHA3-256.
pub fn code_hash(code: &[u8]) -> [u8; 32] {
    Sha3_256::digest(code).into()
}
