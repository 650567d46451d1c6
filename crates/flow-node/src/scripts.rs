//! Scripts that ask for what the ledger knows. A script is recognised by what it calls; there is no Cadence here.

use bytes::Bytes;
use cairn_flow::FlowAddress;
use serde_json::Value;

use crate::cdc::{self, Cdc};
use crate::ledger::{ContractId, Ledger};

/// The answer to a script at a height, as JSON-CDC.
///
/// | what the script calls | arguments | answer |
/// | --- | --- | --- |
/// | `getBalance` | an address, a token as `A.<address>.<name>` | `UFix64` |
/// | `getOwner` | a collection as `A.<address>.<name>`, an id | `Address?` |
/// | `borrowNFT` | a collection's address and name, an id, an owner | where the item's picture is, if the owner has it |
/// | `FTDisplay` | a token's address and name | its name, symbol and supply |
/// | `NFTCollectionDisplay` | a collection's address and name | its name |
///
/// The last three answer with a dictionary, without what there is not.
pub fn answer(ledger: &Ledger, height: u64, script: &[u8], arguments: &[Bytes]) -> Result<Bytes, String> {
    let script = std::str::from_utf8(script).map_err(|error| error.to_string())?;
    let arguments: Vec<Value> = arguments
        .iter()
        .map(|argument| serde_json::from_slice(argument).map_err(|error| error.to_string()))
        .collect::<Result<_, _>>()?;
    let text = |at: usize| {
        let text = arguments.get(at).and_then(|argument| argument["value"].as_str());
        text.ok_or_else(|| format!("argument {at} is missing"))
    };
    let address = |at: usize| text(at)?.parse::<FlowAddress>().map_err(|error| error.to_string());
    if script.contains("getBalance") {
        let (owner, token) = (address(0)?, text(1)?);
        let mut vaults = ledger.vaults.all_at(height);
        let found = vaults.find(|((contract, of), _)| *of == owner && contract.to_string() == token);
        return Ok(cdc::ufix64(found.map_or(0, |(_, vault)| vault.balance)).0.into());
    }
    if script.contains("getOwner") {
        let (collection, id) = (text(0)?, text(1)?.parse::<u64>().map_err(|error| error.to_string())?);
        let mut items = ledger.items.all_at(height);
        let found = items.find(|((contract, item), _)| *item == id && contract.to_string() == collection);
        let owner = found.and_then(|(_, item)| item.owner);
        return Ok(cdc::optional(owner.map(cdc::address)).0.into());
    }
    let contract = || Ok::<_, String>(ContractId::new(address(0)?, text(1)?));
    let mut found: Vec<(&str, Cdc)> = Vec::new();
    if script.contains("borrowNFT") {
        let (contract, owner) = (contract()?, address(3)?);
        let id = text(2)?.parse::<u64>().map_err(|error| error.to_string())?;
        if ledger.items.at(&(contract.clone(), id), height).is_some_and(|item| item.owner == Some(owner)) {
            found.push(("held", Cdc(r#"{"type":"Bool","value":true}"#.into())));
            found.push(("uri", cdc::string(&item_uri(&contract, id))));
        }
    } else if script.contains("FTDisplay") {
        let contract = contract()?;
        if let Some(supply) = ledger.supplies.at(&contract, height) {
            let (name, symbol) = token_names(&contract);
            found.push(("name", cdc::string(&name)));
            found.push(("symbol", cdc::string(&symbol)));
            found.push(("supply", cdc::ufix64(*supply)));
        }
    } else if script.contains("NFTCollectionDisplay") {
        let contract = contract()?;
        if ledger.items.all_at(height).any(|((collection, _), _)| *collection == contract) {
            found.push(("standard", Cdc(r#"{"type":"Bool","value":true}"#.into())));
            found.push(("name", cdc::string(&collection_name(&contract))));
        }
    } else {
        return Err(UNKNOWN.into());
    }
    Ok(cdc::dictionary(
        found.into_iter().map(|(name, value)| (cdc::string(name), cdc::optional(Some(value)))),
    )
    .0
    .into())
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
