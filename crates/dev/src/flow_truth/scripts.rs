//! Scripts as somebody would send them who asks a node what accounts have.

use cairn_flow::Network;

/// What an account has of a token: `main(owner, contract, name)`.
pub fn balance(network: Network) -> String {
    format!(
        r#"import FungibleToken from {ft}
import FungibleTokenMetadataViews from {ft}

access(all) fun main(owner: Address, holder: Address, name: String): UFix64 {{
    let token = getAccount(holder).contracts.borrow<&{{FungibleToken}}>(name: name)
        ?? panic("there is no such token")
    let view = token.resolveContractView(resourceType: nil, viewType: Type<FungibleTokenMetadataViews.FTVaultData>())
        ?? panic("it says nothing of its vaults")
    let data = view as! FungibleTokenMetadataViews.FTVaultData
    if let vault = getAccount(owner).capabilities.borrow<&{{FungibleToken.Balance}}>(data.metadataPath) {{
        return vault.balance
    }}
    return 0.0
}}
"#,
        ft = network.accounts().fungible_token,
    )
}

/// Which items of a collection an account has: `main(owner, contract, name)`.
pub fn items(network: Network) -> String {
    format!(
        r#"import NonFungibleToken from {nft}
import MetadataViews from {nft}

access(all) fun main(owner: Address, holder: Address, name: String): [UInt64] {{
    let items = getAccount(holder).contracts.borrow<&{{NonFungibleToken}}>(name: name)
        ?? panic("there is no such collection")
    let view = items.resolveContractView(resourceType: nil, viewType: Type<MetadataViews.NFTCollectionData>())
        ?? panic("it says nothing of its collections")
    let data = view as! MetadataViews.NFTCollectionData
    if let held = getAccount(owner).capabilities.borrow<&{{NonFungibleToken.Collection}}>(data.publicPath) {{
        return held.getIDs()
    }}
    return []
}}
"#,
        nft = network.accounts().non_fungible_token,
    )
}

/// How many there are of a token: `main(contract, name)`.
pub fn supply(network: Network) -> String {
    format!(
        r#"import FungibleToken from {ft}
import FungibleTokenMetadataViews from {ft}

access(all) fun main(holder: Address, name: String): UFix64? {{
    let token = getAccount(holder).contracts.borrow<&{{FungibleToken}}>(name: name)
        ?? panic("there is no such token")
    if let view = token.resolveContractView(resourceType: nil, viewType: Type<FungibleTokenMetadataViews.TotalSupply>()) {{
        return (view as! FungibleTokenMetadataViews.TotalSupply).supply
    }}
    return nil
}}
"#,
        ft = network.accounts().fungible_token,
    )
}

/// What a token calls itself: `main(contract, name)`.
pub fn token(network: Network) -> String {
    format!(
        r#"import FungibleToken from {ft}
import FungibleTokenMetadataViews from {ft}

access(all) fun main(holder: Address, name: String): {{String: AnyStruct?}} {{
    let token = getAccount(holder).contracts.borrow<&{{FungibleToken}}>(name: name)
        ?? panic("there is no such token")
    let view = token.resolveContractView(resourceType: nil, viewType: Type<FungibleTokenMetadataViews.FTDisplay>())
        ?? panic("it says nothing of itself")
    let display = view as! FungibleTokenMetadataViews.FTDisplay
    return {{"name": display.name, "symbol": display.symbol}}
}}
"#,
        ft = network.accounts().fungible_token,
    )
}

/// What a collection calls itself: `main(contract, name)`.
pub fn collection(network: Network) -> String {
    format!(
        r#"import NonFungibleToken from {nft}
import MetadataViews from {nft}

access(all) fun main(holder: Address, name: String): {{String: AnyStruct?}} {{
    let items = getAccount(holder).contracts.borrow<&{{NonFungibleToken}}>(name: name)
        ?? panic("there is no such collection")
    let view = items.resolveContractView(resourceType: nil, viewType: Type<MetadataViews.NFTCollectionDisplay>())
        ?? panic("it says nothing of itself")
    return {{"name": (view as! MetadataViews.NFTCollectionDisplay).name}}
}}
"#,
        nft = network.accounts().non_fungible_token,
    )
}

/// Where the picture of an item is that an account has: `main(contract, name, id, owner)`.
pub fn picture(network: Network) -> String {
    format!(
        r#"import NonFungibleToken from {nft}
import MetadataViews from {nft}

access(all) fun main(holder: Address, name: String, id: UInt64, owner: Address): {{String: AnyStruct?}} {{
    let items = getAccount(holder).contracts.borrow<&{{NonFungibleToken}}>(name: name)
        ?? panic("there is no such collection")
    let view = items.resolveContractView(resourceType: nil, viewType: Type<MetadataViews.NFTCollectionData>())
        ?? panic("it says nothing of its collections")
    let data = view as! MetadataViews.NFTCollectionData
    if let held = getAccount(owner).capabilities.borrow<&{{NonFungibleToken.Collection}}>(data.publicPath) {{
        if let item = held.borrowNFT(id) {{
            return {{"uri": MetadataViews.getDisplay(item)?.thumbnail?.uri()}}
        }}
    }}
    return {{}}
}}
"#,
        nft = network.accounts().non_fungible_token,
    )
}

/// The EVM account that an account's resource owns: `main(owner)`.
pub fn coa(network: Network) -> String {
    format!(
        r#"import EVM from {evm}

access(all) fun main(owner: Address): String? {{
    let account = getAuthAccount<auth(BorrowValue) &Account>(owner)
    if let coa = account.storage.borrow<&EVM.CadenceOwnedAccount>(from: /storage/evm) {{
        return coa.address().toString()
    }}
    return nil
}}
"#,
        evm = network.accounts().service,
    )
}
