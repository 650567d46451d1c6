//! The token movements of a transaction as rows.

use bytes::Bytes;
use cairn_core::StoredBlock;
use cairn_flow::{DecodedTx, FlowAddress};
use cairn_store::derived::{Row, U256, Value};

use crate::decode::flow::{FEE_KIND, FT_KIND, FtKind, FtMove, NFT_KIND, NftDestroyed, NftKind, NftMove};
use crate::tables::opt;
use crate::tables::transfers::{EventPlace, FtTransfer, NftTransfer, Parties};

/// The account and the name of a contract, from `A.<address>.<name>`; of a token with its type, `<name>.<type>`.
pub(super) fn contract(name: &str) -> Option<(FlowAddress, &str)> {
    let (address, name) = name.strip_prefix("A.")?.split_once('.')?;
    Some((address.parse().ok()?, name))
}

/// A place in the chain.
pub(super) fn place(
    block: &StoredBlock,
    index: u32,
    tx: &DecodedTx,
    event_index: u32,
    sub_index: u32,
) -> EventPlace {
    EventPlace {
        block_height: block.facts.height.get(),
        transaction_id: super::id(tx),
        event_index,
        sub_index,
        transaction_index: index,
        block_timestamp_ms: block.facts.timestamp_ms,
    }
}

fn parties(token: &str, from: Option<FlowAddress>, to: Option<FlowAddress>) -> Option<Parties> {
    let (address, name) = contract(token)?;
    let account = |account: Option<FlowAddress>| -> Option<Bytes> { account.map(super::bytes) };
    Some(Parties {
        contract_address: super::bytes(address),
        contract_name: name.to_owned(),
        from_address: account(from),
        to_address: account(to),
        is_mint: false,
        is_burn: false,
    })
}

/// The row of a movement; a fee's is one of `fee_transfers`. `None`: its token's name is no contract's, which decoding has checked.
pub(super) fn ft_row(block: &StoredBlock, index: u32, tx: &DecodedTx, moved: &FtMove) -> Option<FtTransfer> {
    let parties = parties(&moved.token, moved.from, moved.to)?;
    Some(FtTransfer {
        place: place(block, index, tx, moved.event_index, moved.sub_index),
        parties: Parties {
            is_mint: moved.kind == FtKind::Mint,
            is_burn: moved.kind == FtKind::Burn,
            ..parties
        },
        amount: U256::from(moved.amount),
        kind: if moved.kind == FtKind::Fee { FEE_KIND } else { FT_KIND }.to_owned(),
        affects_balance: true,
    })
}

/// The row of an item's movement.
pub(super) fn nft_row(
    block: &StoredBlock,
    index: u32,
    tx: &DecodedTx,
    moved: &NftMove,
) -> Option<NftTransfer> {
    let parties = parties(&moved.collection, moved.from, moved.to)?;
    Some(NftTransfer {
        place: place(block, index, tx, moved.event_index, 0),
        parties: Parties {
            is_mint: moved.kind == NftKind::Mint,
            is_burn: moved.kind == NftKind::Burn,
            ..parties
        },
        token_id: U256::from(moved.id),
        amount: U256::from(1),
        kind: NFT_KIND.to_owned(),
    })
}

/// The row of `nft_resources` of a movement that says which resource the item is; its end needs none.
pub(super) fn resource_row_of(
    block: &StoredBlock,
    index: u32,
    tx: &DecodedTx,
    moved: &NftMove,
) -> Option<Row> {
    let uuid = moved.uuid.filter(|_| moved.kind != NftKind::Burn)?;
    let of = contract(&moved.collection)?;
    Some(resource_row(block, index, tx, moved.event_index, uuid, Some(of), Some(moved.id)))
}

/// The row of `nft_resources` of an item that was destroyed, of a collection that isn't named.
pub(super) fn destroyed_row(
    block: &StoredBlock,
    index: u32,
    tx: &DecodedTx,
    destroyed: &NftDestroyed,
) -> Row {
    resource_row(block, index, tx, destroyed.event_index, destroyed.uuid, None, destroyed.id)
}

/// One without a collection is destroyed.
fn resource_row(
    block: &StoredBlock,
    index: u32,
    tx: &DecodedTx,
    event_index: u32,
    uuid: u64,
    collection: Option<(FlowAddress, &str)>,
    id: Option<u64>,
) -> Row {
    Row(vec![
        Value::height(block.facts.height),
        Value::Bytes(super::id(tx)),
        Value::uint(event_index.into()),
        Value::uint(index.into()),
        Value::uint(block.facts.timestamp_ms),
        Value::Amount(U256::from(uuid)),
        opt(collection, |(address, _)| Value::Bytes(super::bytes(address))),
        opt(collection, |(_, name)| Value::text(name)),
        opt(id, |id| Value::Amount(U256::from(id))),
        Value::Bool(collection.is_none()),
    ])
}
