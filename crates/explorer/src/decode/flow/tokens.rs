//! The token events of one transaction: which forms there are, and which of two forms of the same event counts.
//!
//! | form | fungible | non-fungible |
//! | --- | --- | --- |
//! | new (Cadence 1.0): the standard's contract emits, and names the type | `FungibleToken.Withdrawn`, `Deposited`, `Burned` | `NonFungibleToken.Withdrawn`, `Deposited` |
//! | old: the token's own contract emits | `TokensWithdrawn`, `TokensDeposited`, `TokensMinted`, `TokensBurned` | `Withdraw`, `Deposit` |
//!
//! That an item was destroyed is told by the chain itself since Cadence 1.0 (`NFT.ResourceDestroyed`, of the standard's interface, and of the
//! collection's own type where it declares that, with the fields that it declares: the item's id, and seldom the resource's), and before by whatever event
//! a contract had for it.
//!
//! Contracts that are no tokens call events so too, `FlowFees.TokensDeposited(amount)` first of all: one without the standard's fields isn't one.
//!
//! Before Cadence 1.0 a contract was one token: its type was `Vault` or `NFT`. Since then it may have several, which are tokens of their own:
//! `Vault` and `NFT` go by the contract's name alone, another type by `<contract>.<type>`. What a contract's own events say, which name no
//! type, is of the one type that moves in the transaction, where there is only one.
//!
//! Some contracts (FlowToken among them) emit both: where a transaction has the new form of a contract's events, its old ones aren't
//! counted a second time. Tokens without events of their own have the new form alone. But `Burned` comes from the standard's `Burner` alone: a contract
//! that destroys a vault by itself tells of it by `TokensBurned` or not at all, beside a `Withdrawn` of the new form: which of these burns were told already, [`super::burns`] says.

use std::collections::{BTreeMap, BTreeSet};

use cairn_flow::cdc::{CdcValue, Composite};
use cairn_flow::{DecodedEvent, EventType, FlowAddress, Network};

use super::MAX_NAME_BYTES;
use super::burns::Burns;
use super::fungible::{Fungible, Vault};
use super::non_fungible::NonFungible;

/// What became of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FtKind {
    /// They are new, as the token's contract said in the transaction.
    Mint,
    /// They came from no account, and nobody said that they are new: out of some other resource, as a rule.
    Release,
    /// From one account to another, or to itself.
    Transfer,
    /// They were destroyed.
    Burn,
    /// They left an account and reached none: they lie in some other resource.
    Withdrawal,
    /// The transaction's fee. A movement like any other for balances; lists of transfers leave it out.
    Fee,
}

/// A movement of fungible tokens. One of `from` and `to` is an account, but for tokens that were burnt where they belonged to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FtMove {
    /// The contract, as `A.<address>.<name>`, with `.<type>` behind where its type isn't `Vault`.
    pub token: String,
    /// Whose they were.
    pub from: Option<FlowAddress>,
    /// Whose they are.
    pub to: Option<FlowAddress>,
    /// How many, in units of 10^-8.
    pub amount: u64,
    /// What became of them.
    pub kind: FtKind,
    /// The index of the event that ended the movement.
    pub event_index: u32,
    /// Its place among the movements that this event ended.
    pub sub_index: u32,
}

/// What became of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NftKind {
    /// It is new, as its collection's contract said in the transaction.
    Mint,
    /// It came from no account, and nobody said that it is new: out of some other resource, or of a collection that tells of no mints.
    Release,
    /// From one account to another, or to itself.
    Transfer,
    /// It was destroyed.
    Burn,
    /// It left its account and reached none: it lies in some other resource.
    Withdrawal,
}

/// A movement of one non-fungible token. One of `from` and `to` is an account, but for an item that was destroyed where it belonged to none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NftMove {
    /// The contract, as `A.<address>.<name>`, with `.<type>` behind where its type isn't `NFT`.
    pub collection: String,
    /// Its id in the collection.
    pub id: u64,
    /// The resource's id, in the new form.
    pub uuid: Option<u64>,
    /// Whose it was; `None`: it is new here.
    pub from: Option<FlowAddress>,
    /// Whose it is; `None`: it left, or was destroyed.
    pub to: Option<FlowAddress>,
    /// What became of it.
    pub kind: NftKind,
    /// The index of the event that ended the movement.
    pub event_index: u32,
}

/// An item was destroyed whose collection the transaction doesn't name: it lay in a collection that was destroyed with it, or in some other
/// resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NftDestroyed {
    /// The resource's id.
    pub uuid: u64,
    /// The item's id in its collection, where the event says it.
    pub id: Option<u64>,
    /// The event's index.
    pub event_index: u32,
}

/// A token event that can't be read. It is kept raw; the others of its transaction count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedEvent {
    /// Its index.
    pub event_index: u32,
    /// Its type.
    pub event_type: String,
    /// What is wrong with it.
    pub message: String,
}

/// The movements of one transaction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenMoves {
    /// Of fungible tokens, by event.
    pub fungible: Vec<FtMove>,
    /// Of non-fungible tokens, by event.
    pub non_fungible: Vec<NftMove>,
    /// Items of unnamed collections that were destroyed, by event.
    pub destroyed: Vec<NftDestroyed>,
    /// What could not be read.
    pub malformed: Vec<MalformedEvent>,
}

/// A token event, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Withdrawn {
        vault: Option<Vault>,
        amount: u64,
        from: Option<FlowAddress>,
    },
    Deposited {
        vault: Option<Vault>,
        amount: u64,
        to: Option<FlowAddress>,
    },
    Minted {
        amount: u64,
    },
    Burned {
        vault: Option<u64>,
        amount: u64,
    },
    ItemWithdrawn {
        id: u64,
        uuid: Option<u64>,
        from: Option<FlowAddress>,
    },
    ItemDeposited {
        id: u64,
        uuid: Option<u64>,
        to: Option<FlowAddress>,
    },
    /// The chain itself says so in the name of the standard: of any collection, which it doesn't name.
    SomeItemDestroyed {
        uuid: u64,
        id: Option<u64>,
    },
    /// By the collection's own contract.
    ItemMinted {
        id: u64,
    },
    /// In the name of the collection's own contract, or by it.
    ItemDestroyed {
        id: u64,
        uuid: Option<u64>,
        /// Whether the chain says so, and not a contract in its own words.
        is_by_chain: bool,
    },
    Fee {
        amount: u64,
    },
    /// `FlowFees` says so of whatever is deposited to it: the fee, where no `Fee` is told.
    FeeReceived {
        amount: u64,
    },
}

/// The event by which the chain says that an item was destroyed.
const DESTROYED: &str = "NFT.ResourceDestroyed";
/// What contracts of before called theirs. They count only for an item that was taken out in the same transaction.
const OLD_DESTRUCTIONS: [&str; 6] =
    ["Destroy", "Destroyed", "Burn", "Burned", "NFTDestroyed", "MomentDestroyed"];

/// What contracts call the event by which they say that an item is new, and its field with the item's id. The standard has none.
const MINTS: [&str; 5] = ["Mint", "Minted", "NFTMinted", "MomentMinted", "TokenMinted"];
const MINTED_IDS: [&str; 6] = ["id", "nftID", "nftId", "momentID", "tokenID", "tokenId"];

#[derive(Debug)]
struct Read {
    index: u32,
    /// As [`FtMove::token`].
    token: String,
    is_new_form: bool,
    /// Whether the event says of which of its contract's types it is.
    is_typed: bool,
    said: Said,
}

impl TokenMoves {
    /// Of the events of one transaction, in order.
    pub fn of(events: &[DecodedEvent], network: Network) -> TokenMoves {
        let mut moves = TokenMoves::default();
        let mut all = Vec::new();
        for event in events {
            match read(event, network) {
                Ok(None) => {}
                Ok(Some(read)) => all.push(read),
                Err(message) => moves.malformed.push(MalformedEvent {
                    event_index: event.index,
                    event_type: event.event_type.clone(),
                    message,
                }),
            }
        }
        // By contract, those of its types that the new form names.
        let mut told_anew: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let mut burns = Burns::default();
        for read in &all {
            let contract = contract_of(&read.token);
            if read.is_new_form {
                told_anew.entry(contract.to_owned()).or_default().insert(read.token.clone());
            }
            if let Said::Burned { amount, .. } = read.said {
                burns.hear(read.index, contract, amount, read.is_new_form);
            }
        }
        let repeated_burns = burns.repeated();
        let mut fungible = Fungible::default();
        let mut non_fungible = NonFungible::default();
        for Read { index, mut token, is_new_form, is_typed, said } in all {
            let types = told_anew.get(&token).filter(|_| !is_new_form);
            let is_repeated = types.is_some() && tells_again(index, &said, &repeated_burns);
            if let Some(only) = types.filter(|types| !is_typed && types.len() == 1).and_then(BTreeSet::first)
            {
                token.clone_from(only);
            }
            match said {
                _ if is_repeated => {}
                Said::Burned { amount, .. } if types.is_some() => fungible.hear_burn(index, token, amount),
                said => {
                    fungible.hear(index, &token, &said);
                    non_fungible.hear(index, &token, &said);
                }
            }
        }
        let accounts = network.accounts();
        let flow = format!("A.{}.FlowToken", accounts.flow_token.bare());
        moves.fungible = fungible.end(&flow);
        (moves.non_fungible, moves.destroyed) = non_fungible.end();
        moves
    }
}

/// Whether what a contract says in the old form is told in the new one too.
fn tells_again(event_index: u32, said: &Said, repeated_burns: &BTreeSet<u32>) -> bool {
    match said {
        // A mint has no new form, and a fee no old one.
        Said::Minted { .. }
        | Said::Fee { .. }
        | Said::FeeReceived { .. }
        | Said::ItemDestroyed { .. }
        | Said::ItemMinted { .. } => false,
        Said::Burned { .. } => repeated_burns.contains(&event_index),
        _ => true,
    }
}

fn read(event: &DecodedEvent, network: Network) -> Result<Option<Read>, String> {
    let Some(name) = EventType::parse(&event.event_type) else { return Ok(None) };
    let Some(address) = name.address else { return Ok(None) };
    let accounts = network.accounts();
    let standard = match name.contract {
        "FungibleToken" if address == accounts.fungible_token => true,
        "NonFungibleToken" if address == accounts.non_fungible_token => true,
        _ => false,
    };
    let is_fee = name.is(accounts.flow_fees, "FlowFees", "FeesDeducted");
    let is_old = matches!(
        name.event,
        "TokensWithdrawn" | "TokensDeposited" | "TokensMinted" | "TokensBurned" | "Withdraw" | "Deposit"
    );
    let is_destruction = name.event == DESTROYED || OLD_DESTRUCTIONS.contains(&name.event);
    let is_item_mint = MINTS.contains(&name.event);
    if !standard && !is_old && !is_fee && !is_destruction && !is_item_mint {
        return Ok(None);
    }
    let fields = CdcValue::parse_event(&event.payload).map_err(|error| error.to_string())?;
    let said = match (standard, name.contract, name.event) {
        (true, "FungibleToken", "Withdrawn") => Said::Withdrawn {
            vault: Some(Vault { of: number(&fields, "fromUUID")?, moved: number(&fields, "withdrawnUUID")? }),
            amount: amount(&fields)?,
            from: account(&fields, "from")?,
        },
        (true, "FungibleToken", "Deposited") => Said::Deposited {
            vault: Some(Vault { of: number(&fields, "toUUID")?, moved: number(&fields, "depositedUUID")? }),
            amount: amount(&fields)?,
            to: account(&fields, "to")?,
        },
        (true, "FungibleToken", "Burned") => {
            Said::Burned { vault: Some(number(&fields, "fromUUID")?), amount: amount(&fields)? }
        }
        (true, "NonFungibleToken", "Withdrawn") => Said::ItemWithdrawn {
            id: number(&fields, "id")?,
            uuid: Some(number(&fields, "uuid")?),
            from: account(&fields, "from")?,
        },
        (true, "NonFungibleToken", "Deposited") => Said::ItemDeposited {
            id: number(&fields, "id")?,
            uuid: Some(number(&fields, "uuid")?),
            to: account(&fields, "to")?,
        },
        (true, "NonFungibleToken", DESTROYED) => {
            Said::SomeItemDestroyed { uuid: number(&fields, "uuid")?, id: number(&fields, "id").ok() }
        }
        (true, ..) => return Ok(None),
        // Any contract's, whatever its fields: only what is shaped like the standard's is an item's.
        _ if is_destruction => match number(&fields, "id") {
            Ok(id) => Said::ItemDestroyed {
                id,
                uuid: number(&fields, "uuid").ok(),
                is_by_chain: name.event == DESTROYED,
            },
            Err(_) => return Ok(None),
        },
        _ if is_item_mint => match MINTED_IDS.iter().find_map(|name| number(&fields, name).ok()) {
            Some(id) => Said::ItemMinted { id },
            None => return Ok(None),
        },
        _ if is_fee => Said::Fee { amount: amount(&fields)? },
        (_, _, "TokensDeposited") if name.is(accounts.flow_fees, "FlowFees", "TokensDeposited") => {
            Said::FeeReceived { amount: amount(&fields)? }
        }
        // Any contract may call an event so: only one that is shaped like the standard's is a token's.
        (_, _, "TokensWithdrawn") if is_tokens(&fields, Some("from")) => {
            Said::Withdrawn { vault: None, amount: amount(&fields)?, from: account(&fields, "from")? }
        }
        (_, _, "TokensDeposited") if is_tokens(&fields, Some("to")) => {
            Said::Deposited { vault: None, amount: amount(&fields)?, to: account(&fields, "to")? }
        }
        (_, _, "TokensMinted") if is_tokens(&fields, None) => Said::Minted { amount: amount(&fields)? },
        (_, _, "TokensBurned") if is_tokens(&fields, None) => {
            Said::Burned { vault: None, amount: amount(&fields)? }
        }
        (_, _, "Withdraw") if is_item(&fields, "from") => {
            Said::ItemWithdrawn { id: number(&fields, "id")?, uuid: None, from: account(&fields, "from")? }
        }
        (_, _, "Deposit") if is_item(&fields, "to") => {
            Said::ItemDeposited { id: number(&fields, "id")?, uuid: None, to: account(&fields, "to")? }
        }
        _ => return Ok(None),
    };
    let token = if matches!(said, Said::SomeItemDestroyed { .. }) {
        String::new()
    } else if standard {
        token_of_type(&fields, if name.contract == "FungibleToken" { "Vault" } else { "NFT" })?
    } else {
        format!("A.{}.{}", address.bare(), name.contract)
    };
    // `A.`, 16 digits, a point.
    let name_bytes = token.len().saturating_sub(19);
    if name_bytes > MAX_NAME_BYTES {
        return Err(format!("its token's name has {name_bytes} bytes, more than {MAX_NAME_BYTES}"));
    }
    let is_new_form = standard && !token.is_empty();
    let is_typed = standard || name.event == DESTROYED;
    Ok(Some(Read { index: event.index, token, is_new_form, is_typed, said }))
}

fn is_tokens(fields: &Composite, party: Option<&str>) -> bool {
    let amount = fields.field("amount").and_then(CdcValue::as_number);
    amount.is_some_and(|number| number.kind == "UFix64")
        && party.is_none_or(|party| matches!(fields.field(party), Some(CdcValue::Optional(_))))
}

fn is_item(fields: &Composite, party: &str) -> bool {
    let is_number = |value: &CdcValue| value.as_number().is_some_and(|number| number.kind == "UInt64");
    fields.field("id").is_some_and(is_number) && matches!(fields.field(party), Some(CdcValue::Optional(_)))
}

/// The contract of a token, of which it may be one of several types.
pub fn contract_of(token: &str) -> &str {
    token.match_indices('.').nth(2).map_or(token, |(at, _)| &token[..at])
}

/// The token of a type `A.<address>.<contract>.<type>`: without the type where that is the one that contracts have as a rule.
fn token_of_type(fields: &Composite, usual: &str) -> Result<String, String> {
    let name = fields.field("type").and_then(CdcValue::as_str).ok_or("it names no type")?;
    let parsed = EventType::parse(name).and_then(|parsed| Some((parsed.address?, parsed)));
    let (address, parsed) = parsed.ok_or_else(|| format!("{name:.200} is no type of a contract"))?;
    let contract = format!("A.{}.{}", address.bare(), parsed.contract);
    // Where an event is taken apart, a type's name stands in its place.
    Ok(if parsed.event == usual { contract } else { format!("{contract}.{}", parsed.event) })
}

fn number(fields: &Composite, name: &str) -> Result<u64, String> {
    let number = fields.field(name).and_then(CdcValue::unwrapped).and_then(CdcValue::as_number);
    number.and_then(|number| number.to_u64()).ok_or_else(|| format!("its {name} is missing or no UInt64"))
}

fn amount(fields: &Composite) -> Result<u64, String> {
    let number = fields.field("amount").and_then(CdcValue::as_number);
    let units = number.filter(|number| number.kind == "UFix64").and_then(|number| number.to_scaled(8));
    units
        .and_then(|units| u64::try_from(units).ok())
        .ok_or_else(|| "its amount is missing or no UFix64".into())
}

fn account(fields: &Composite, name: &str) -> Result<Option<FlowAddress>, String> {
    match fields.field(name) {
        None => Err(format!("it has no {name}")),
        Some(value) => match value.unwrapped() {
            None => Ok(None),
            Some(value) => value.as_address().map(Some).ok_or_else(|| format!("its {name} is no address")),
        },
    }
}
