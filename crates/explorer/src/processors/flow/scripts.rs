//! Scripts that enrichers run, their arguments, and what is read of their answers.
//!
//! A script asks for everything at once and answers with a dictionary of what it found, so that a contract that doesn't offer a view leaves
//! that out and nothing else. The contract's code runs in the script: what it returns is a stranger's, and where it fails the script
//! fails, with words that are a stranger's too.

use std::collections::BTreeMap;

use alloy_primitives::U256;
use cairn_core::BlockRef;
use cairn_flow::cdc::CdcValue;
use cairn_flow::{FlowAddress, Network};
use cairn_pipeline::derive::processor::AskError;
use serde_json::json;

use super::node::{MAX_ANSWER_BYTES, ScriptAnswer, ScriptNode};
use crate::decode::{Said, TextLimit, said};

/// Which contract a token is of, and which of its types it is where that isn't the one that its views are of when none is named.
pub(super) struct TokenOf<'n> {
    address: FlowAddress,
    contract: &'n str,
    kind: Option<&'n str>,
}

impl<'n> TokenOf<'n> {
    /// From the columns of tables that are keyed by token: an address, and `<contract>` or `<contract>.<type>`.
    pub fn new(address: FlowAddress, name: &'n str) -> TokenOf<'n> {
        let (contract, kind) =
            name.split_once('.').map_or((name, None), |(contract, kind)| (contract, Some(kind)));
        TokenOf { address, contract, kind }
    }

    /// The first arguments of its scripts; the last one, which only some have, comes behind all others.
    pub fn arguments(&self, others: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
        let mut arguments = vec![address(self.address), text(self.contract)];
        arguments.extend(others);
        if let Some(kind) = self.kind {
            arguments.push(text(&format!("A.{}.{}.{kind}", self.address.bare(), self.contract)));
        }
        arguments
    }

    /// The parameter for its type, and what a view is asked for of.
    fn parameter(&self) -> (&'static str, &'static str) {
        match self.kind {
            Some(_) => (", kind: String", "CompositeType(kind)"),
            None => ("", "nil"),
        }
    }
}

/// What a fungible token's contract says of itself.
pub(super) fn token(network: Network, of: &TokenOf<'_>) -> String {
    let (parameter, kind) = of.parameter();
    format!(
        r#"import FungibleToken from {ft}
import FungibleTokenMetadataViews from {ft}

access(all) fun main(address: Address, name: String{parameter}): {{String: AnyStruct}} {{
    let answer: {{String: AnyStruct}} = {{}}
    if let token = getAccount(address).contracts.borrow<&{{FungibleToken}}>(name: name) {{
        if let view = token.resolveContractView(resourceType: {kind}, viewType: Type<FungibleTokenMetadataViews.FTDisplay>()) {{
            if let display = view as? FungibleTokenMetadataViews.FTDisplay {{
                answer["name"] = display.name
                answer["symbol"] = display.symbol
            }}
        }}
        if let view = token.resolveContractView(resourceType: {kind}, viewType: Type<FungibleTokenMetadataViews.TotalSupply>()) {{
            if let total = view as? FungibleTokenMetadataViews.TotalSupply {{
                answer["supply"] = total.supply
            }}
        }}
    }}
    return answer
}}
"#,
        ft = network.accounts().fungible_token,
    )
}

/// What a collection's contract says of itself.
pub(super) fn collection(network: Network, of: &TokenOf<'_>) -> String {
    let (parameter, kind) = of.parameter();
    format!(
        r#"import NonFungibleToken from {nft}
import MetadataViews from {nft}

access(all) fun main(address: Address, name: String{parameter}): {{String: AnyStruct}} {{
    let answer: {{String: AnyStruct}} = {{}}
    if let collection = getAccount(address).contracts.borrow<&{{NonFungibleToken}}>(name: name) {{
        answer["standard"] = true
        if let view = collection.resolveContractView(resourceType: {kind}, viewType: Type<MetadataViews.NFTCollectionDisplay>()) {{
            if let display = view as? MetadataViews.NFTCollectionDisplay {{
                answer["name"] = display.name
            }}
        }}
    }}
    return answer
}}
"#,
        nft = network.accounts().non_fungible_token,
    )
}

/// Where the picture of an item is, while it lies in this account's public collection.
pub(super) fn item(network: Network, of: &TokenOf<'_>) -> String {
    let (parameter, kind) = of.parameter();
    format!(
        r#"import NonFungibleToken from {nft}
import MetadataViews from {nft}

access(all) fun main(address: Address, name: String, id: UInt64, owner: Address{parameter}): {{String: AnyStruct}} {{
    let answer: {{String: AnyStruct}} = {{}}
    if let collection = getAccount(address).contracts.borrow<&{{NonFungibleToken}}>(name: name) {{
        if let view = collection.resolveContractView(resourceType: {kind}, viewType: Type<MetadataViews.NFTCollectionData>()) {{
            if let data = view as? MetadataViews.NFTCollectionData {{
                if let held = getAccount(owner).capabilities.borrow<&{{NonFungibleToken.Collection}}>(data.publicPath) {{
                    if let item = held.borrowNFT(id) {{
                        answer["held"] = true
                        if let display = MetadataViews.getDisplay(item) {{
                            answer["uri"] = display.thumbnail.uri()
                        }}
                    }}
                }}
            }}
        }}
    }}
    return answer
}}
"#,
        nft = network.accounts().non_fungible_token,
    )
}

/// What a call of a contract of the EVM side returns, as hex, and whether it was successful. Nothing is changed by it.
pub(super) fn evm_call(network: Network) -> String {
    format!(
        r#"import EVM from {service}

access(all) fun main(to: String, data: String): {{String: AnyStruct}} {{
    let result = EVM.dryCall(
        from: EVM.addressFromString("0000000000000000000000000000000000000000"),
        to: EVM.addressFromString(to),
        data: data.decodeHex(),
        gasLimit: 10_000_000,
        value: EVM.Balance(attoflow: 0)
    )
    return {{
        "successful": result.status == EVM.Status.successful,
        "data": String.encodeHex(result.data)
    }}
}}
"#,
        service = network.accounts().service,
    )
}

/// The code of a contract of the EVM side, as hex.
pub(super) fn evm_code(network: Network) -> String {
    format!(
        r#"import EVM from {service}

access(all) fun main(address: String): {{String: AnyStruct}} {{
    return {{"code": String.encodeHex(EVM.addressFromString(address).code())}}
}}
"#,
        service = network.accounts().service,
    )
}

/// An argument of type `Address`.
pub(super) fn address(address: FlowAddress) -> Vec<u8> {
    json!({"type": "Address", "value": address.to_string()}).to_string().into_bytes()
}

/// An argument of type `String`.
pub(super) fn text(text: &str) -> Vec<u8> {
    json!({"type": "String", "value": text}).to_string().into_bytes()
}

/// An argument of type `UInt64`.
pub(super) fn number(number: u64) -> Vec<u8> {
    json!({"type": "UInt64", "value": number.to_string()}).to_string().into_bytes()
}

/// What a script found.
#[derive(Debug, Default)]
pub(super) struct Found(BTreeMap<String, CdcValue>);

impl Found {
    /// A text as it is.
    pub fn str(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.unwrapped()?.as_str()
    }

    /// A text, cleaned.
    pub fn text(&self, name: &str, limit: TextLimit) -> Said<String> {
        said(self.str(name).unwrap_or_default().as_bytes(), limit)
    }

    /// A fixed-point number, in units of 10^-8.
    pub fn units(&self, name: &str) -> Option<U256> {
        self.0.get(name)?.unwrapped()?.as_number()?.to_scaled(8)
    }

    /// Whether it says yes.
    pub fn is(&self, name: &str) -> bool {
        self.0.get(name).and_then(CdcValue::unwrapped) == Some(&CdcValue::Bool(true))
    }
}

/// Runs a script. One that answers more than anybody should, or something else than was asked for, found nothing. One that fails is an error that stays, with the
/// node's words: nothing is known of the thing then, which isn't the same as that it says nothing.
///
/// Scripts are of Cadence 1.0: below the block with which it came they fail whatever they ask about. There the thing waits for a later block.
pub(super) async fn run(
    node: &dyn ScriptNode,
    network: Network,
    script: &str,
    arguments: Vec<Vec<u8>>,
    at: BlockRef,
) -> Result<Found, AskError> {
    if let Some(root) = network.cadence_1_root().filter(|root| at.height.get() < *root) {
        return Err(AskError::transient(format!(
            "scripts are of Cadence 1.0, which came with block {root}: block {at} is not asked"
        )));
    }
    let answer = match node.execute(script, arguments, at).await? {
        ScriptAnswer::Returned(answer) if answer.len() <= MAX_ANSWER_BYTES => answer,
        ScriptAnswer::Returned(_) => return Ok(Found::default()),
        ScriptAnswer::Failed(message) => return Err(AskError::last(message)),
    };
    let Ok(CdcValue::Dictionary(entries)) = CdcValue::parse(&answer) else { return Ok(Found::default()) };
    let named = entries.into_iter().filter_map(|(name, value)| Some((name.as_str()?.to_owned(), value)));
    Ok(Found(named.collect()))
}
