//! Tokens and items that moved in one transaction, as its events tell it.
//!
//! What is taken out of a vault lies in a hand, which the events name by the vault's id, till it is put into another vault, burnt, or left. The transactions of
//! this test never put tokens of several accounts into one hand, so that each movement is of one account: where one does, the test says so and fails.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use cairn_flow::network::Accounts;
use cairn_flow::{FlowAddress, proto};
use cairn_flow_node::deeds::{Deed, Done, ItemMove, MoveKind, TokenMove};
use cairn_flow_node::ledger::ContractId;

use super::payload::{Fields, parts};

/// Tokens that were taken out and not put anywhere yet.
#[derive(Debug, Clone)]
struct Hand {
    token: ContractId,
    /// Whose they were; `None`: they lay in no account.
    from: Option<FlowAddress>,
    amount: u64,
    /// The event that took them.
    event_index: u32,
}

/// What is on its way in a transaction.
struct Moves {
    flow: ContractId,
    /// By the vault's id.
    hands: BTreeMap<u64, Hand>,
    /// What contracts say that they made new, and nobody got yet.
    minted: BTreeMap<ContractId, u64>,
    /// By the resource's id: the item, who had it, and the event that took it.
    away: BTreeMap<u64, (ContractId, u64, FlowAddress, u32)>,
    minted_items: BTreeSet<(ContractId, u64)>,
    done: Vec<Done>,
}

/// The movements of a transaction, each at the event that ended it.
pub fn moves(events: &[proto::Event], accounts: &Accounts) -> Result<Vec<Done>> {
    let mut moves = Moves {
        flow: ContractId::new(accounts.flow_token, "FlowToken"),
        hands: BTreeMap::new(),
        minted: BTreeMap::new(),
        away: BTreeMap::new(),
        minted_items: BTreeSet::new(),
        done: Vec::new(),
    };
    for event in events {
        moves.hear(event, accounts).with_context(|| event.r#type.clone())?;
    }
    Ok(moves.end())
}

/// The token or collection of an event of the standards; its type has to be the usual one.
fn contract(fields: &Fields, usual: &str) -> Result<ContractId> {
    let kind = fields.text("type")?;
    match parts(kind) {
        Some((account, name, of)) if of == usual => Ok(ContractId::new(account, name)),
        _ => bail!("{kind} is no type that the test knows"),
    }
}

impl Moves {
    fn hear(&mut self, event: &proto::Event, accounts: &Accounts) -> Result<()> {
        let Some((account, of, name)) = parts(&event.r#type) else { return Ok(()) };
        let at = event.event_index;
        let is_ft = of == "FungibleToken" && account == accounts.fungible_token;
        let is_nft = of == "NonFungibleToken" && account == accounts.non_fungible_token;
        match name {
            "Withdrawn" | "Deposited" | "Burned" if is_ft => {
                let fields = Fields::of(&event.payload)?;
                let (token, amount) = (contract(&fields, "Vault")?, fields.units("amount")?);
                // Nothing moves where nothing is moved.
                if amount == 0 {
                    return Ok(());
                }
                match name {
                    "Withdrawn" => self.withdrawn(&fields, token, amount, at),
                    "Deposited" => self.deposited(&fields, token, amount, at),
                    _ => self.burned(&fields, token, amount, at),
                }
            }
            "Withdrawn" | "Deposited" | "NFT.ResourceDestroyed" if is_nft => {
                self.item(name, &Fields::of(&event.payload)?, at)
            }
            "TokensMinted" => {
                let amount = Fields::of(&event.payload)?.units("amount")?;
                *self.minted.entry(ContractId::new(account, of)).or_default() += amount;
                Ok(())
            }
            // What contracts say by themselves, beside the standard or in its place.
            "TokensBurned" => {
                let amount = Fields::of(&event.payload)?.units("amount")?;
                self.burned_by_its_contract(&ContractId::new(account, of), amount, at)
            }
            "Minted" => {
                let fields = Fields::of(&event.payload)?;
                if fields.has("id") {
                    self.minted_items.insert((ContractId::new(account, of), fields.number("id")?));
                }
                Ok(())
            }
            "FeesDeducted" if of == "FlowFees" && account == accounts.flow_fees => {
                self.fee(Fields::of(&event.payload)?.units("amount")?)
            }
            _ => Ok(()),
        }
    }

    fn withdrawn(&mut self, fields: &Fields, token: ContractId, amount: u64, at: u32) -> Result<()> {
        let (of, into) = (fields.number("fromUUID")?, fields.number("withdrawnUUID")?);
        let hand = match fields.account_or_nil("from")? {
            Some(from) => Hand { token, from: Some(from), amount, event_index: at },
            // Out of what is in a hand already.
            None => match self.hands.get_mut(&of) {
                Some(hand) => {
                    let left = hand.amount.checked_sub(amount);
                    let left = left.with_context(|| format!("{hand:?} has less than {amount}"))?;
                    let part = Hand { amount, ..hand.clone() };
                    hand.amount = left;
                    part
                }
                None => Hand { token, from: None, amount, event_index: at },
            },
        };
        let before = self.hands.insert(into, hand);
        ensure!(before.is_none_or(|hand| hand.amount == 0), "vault {into} is in a hand already");
        Ok(())
    }

    /// What is in the hand that an event names: all of it, or it was in none.
    fn taken(&mut self, vault: u64, amount: u64) -> Result<Option<FlowAddress>> {
        let Some(hand) = self.hands.remove(&vault) else { return Ok(None) };
        ensure!(hand.amount == amount, "{amount} of {hand:?}: the test can't say whose that is");
        Ok(hand.from)
    }

    /// Whether so many are those that the token's contract has just made.
    fn is_mint(&mut self, token: &ContractId, amount: u64) -> bool {
        let left = self.minted.get(token).and_then(|minted| minted.checked_sub(amount));
        left.is_some_and(|left| self.minted.insert(token.clone(), left).is_some())
    }

    fn deposited(&mut self, fields: &Fields, token: ContractId, amount: u64, at: u32) -> Result<()> {
        let (into, vault) = (fields.number::<u64>("toUUID")?, fields.number("depositedUUID")?);
        let from = self.taken(vault, amount)?;
        let Some(to) = fields.account_or_nil("to")? else {
            let hand = Hand { token, from, amount, event_index: at };
            let other = self.hands.entry(into).or_insert(Hand { amount: 0, ..hand.clone() });
            ensure!(other.from == from, "{hand:?} is put to {other:?}: the test can't say whose that is");
            other.amount += amount;
            return Ok(());
        };
        let kind = match from {
            Some(_) => MoveKind::Transfer,
            None if self.is_mint(&token, amount) => MoveKind::Mint,
            None => MoveKind::Release,
        };
        self.tokens(at, TokenMove { token, from, to: Some(to), amount, kind });
        Ok(())
    }

    fn burned(&mut self, fields: &Fields, token: ContractId, amount: u64, at: u32) -> Result<()> {
        let from = self.taken(fields.number("fromUUID")?, amount)?;
        self.tokens(at, TokenMove { token, from, to: None, amount, kind: MoveKind::Burn });
        Ok(())
    }

    /// A hand with so many of it has them no more, unless the standard's event was the one that told of it.
    fn burned_by_its_contract(&mut self, token: &ContractId, amount: u64, at: u32) -> Result<()> {
        let is_it = |hand: &Hand| hand.token == *token && hand.amount == amount;
        let mut hands = self.hands.iter().filter(|(_, hand)| is_it(hand)).map(|(vault, _)| *vault);
        match (hands.next(), hands.next()) {
            (Some(vault), None) => {
                let from = self.taken(vault, amount)?;
                let token = token.clone();
                self.tokens(at, TokenMove { token, from, to: None, amount, kind: MoveKind::Burn });
                Ok(())
            }
            (None, _) => {
                let is_told = self.done.iter().any(|done| {
                    matches!(&done.deed, Deed::Tokens(moved) if moved.token == *token && moved.amount == amount
                        && moved.kind == MoveKind::Burn)
                });
                ensure!(is_told, "{amount} of {token:?} are burnt that nobody took out");
                Ok(())
            }
            (Some(_), Some(_)) => {
                bail!("{amount} of {token:?} are in several hands: the test can't say which is burnt")
            }
        }
    }

    fn tokens(&mut self, event_index: u32, moved: TokenMove) {
        self.done.push(Done { event_index, deed: Deed::Tokens(moved) });
    }

    /// The fee is what was paid last, of as much.
    fn fee(&mut self, fee: u64) -> Result<()> {
        let flow = &self.flow;
        let paid = self.done.iter_mut().rev().find_map(|done| match &mut done.deed {
            Deed::Tokens(moved) if moved.token == *flow && moved.amount == fee => Some(moved),
            _ => None,
        });
        let paid = paid.with_context(|| format!("nobody paid the fee of {fee}"))?;
        ensure!(paid.kind == MoveKind::Transfer, "the fee of {fee} is {paid:?}");
        paid.kind = MoveKind::Fee;
        Ok(())
    }

    fn item(&mut self, name: &str, fields: &Fields, at: u32) -> Result<()> {
        let (id, uuid) = (fields.number("id")?, fields.number::<u64>("uuid")?);
        let moved = match name {
            "Withdrawn" => {
                if let Some(from) = fields.account_or_nil("from")? {
                    let before = self.away.insert(uuid, (contract(fields, "NFT")?, id, from, at));
                    ensure!(before.is_none(), "item {id} is taken out twice");
                }
                return Ok(());
            }
            "Deposited" => {
                let Some(to) = fields.account_or_nil("to")? else { return Ok(()) };
                let collection = contract(fields, "NFT")?;
                let from = self.away.remove(&uuid).map(|(_, _, from, _)| from);
                let kind = if from.is_some() { MoveKind::Transfer } else { MoveKind::Release };
                ItemMove { collection, id, uuid: Some(uuid), from, to: Some(to), kind }
            }
            // The chain names neither the collection nor the owner.
            _ => {
                let taken = self.away.remove(&uuid);
                let (collection, id, from, _) = taken.context("an item is destroyed that nobody took out")?;
                let kind = MoveKind::Burn;
                ItemMove { collection, id, uuid: Some(uuid), from: Some(from), to: None, kind }
            }
        };
        self.done.push(Done { event_index: at, deed: Deed::Item(moved) });
        Ok(())
    }

    /// What is still on its way left its account.
    fn end(mut self) -> Vec<Done> {
        for Hand { token, from, amount, event_index } in std::mem::take(&mut self.hands).into_values() {
            if from.is_some() && amount > 0 {
                let kind = MoveKind::Withdrawal;
                self.tokens(event_index, TokenMove { token, from, to: None, amount, kind });
            }
        }
        for (uuid, (collection, id, from, event_index)) in std::mem::take(&mut self.away) {
            let kind = MoveKind::Withdrawal;
            let moved = ItemMove { collection, id, uuid: Some(uuid), from: Some(from), to: None, kind };
            self.done.push(Done { event_index, deed: Deed::Item(moved) });
        }
        for done in &mut self.done {
            if let Deed::Item(moved) = &mut done.deed
                && moved.kind == MoveKind::Release
                && self.minted_items.remove(&(moved.collection.clone(), moved.id))
            {
                moved.kind = MoveKind::Mint;
            }
        }
        self.done.sort_by_key(|done| done.event_index);
        self.done
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cairn_flow::Network;
    use cairn_flow_node::cdc::{self, Cdc};

    use super::*;

    const ONE: FlowAddress = FlowAddress([1; 8]);
    const OTHER: FlowAddress = FlowAddress([2; 8]);

    fn accounts() -> Accounts {
        Network::Emulator.accounts()
    }

    fn event(event_index: u32, kind: String, payload: Bytes) -> proto::Event {
        proto::Event { r#type: kind, event_index, payload, ..proto::Event::default() }
    }

    /// An event of the standard of fungible tokens, of vaults.
    fn vault(
        at: u32,
        name: &str,
        party: Option<(&str, Option<FlowAddress>)>,
        ids: [(&str, u64); 2],
    ) -> proto::Event {
        let kind = format!("A.{}.FungibleToken.{name}", accounts().fungible_token.bare());
        let mut fields: Vec<(&str, Cdc)> =
            vec![("type", cdc::string("A.0303030303030303.Stone.Vault")), ("amount", cdc::ufix64(7))];
        fields.extend(party.map(|(name, who)| (name, cdc::optional(who.map(cdc::address)))));
        fields.extend(ids.map(|(name, id)| (name, cdc::number("UInt64", id))));
        event(at, kind.clone(), cdc::event(&kind, &fields))
    }

    fn told(events: &[proto::Event]) -> Vec<(u32, Option<FlowAddress>, Option<FlowAddress>, MoveKind)> {
        let done = moves(events, &accounts()).expect("can be said");
        let tokens = done.into_iter().filter_map(|done| match done.deed {
            Deed::Tokens(moved) => Some((done.event_index, moved.from, moved.to, moved.kind)),
            _ => None,
        });
        tokens.collect()
    }

    #[test]
    fn tokens_are_followed_from_hand_to_hand() {
        let out = vault(0, "Withdrawn", Some(("from", Some(ONE))), [("fromUUID", 1), ("withdrawnUUID", 2)]);
        let split = vault(1, "Withdrawn", Some(("from", None)), [("fromUUID", 2), ("withdrawnUUID", 3)]);
        let put = vault(2, "Deposited", Some(("to", Some(OTHER))), [("toUUID", 9), ("depositedUUID", 3)]);
        let burnt = vault(2, "Burned", None, [("fromUUID", 3), ("unused", 0)]);
        let all = [out.clone(), split.clone(), put.clone()];
        assert_eq!(told(&all), [(2, Some(ONE), Some(OTHER), MoveKind::Transfer)]);
        assert_eq!(told(&[out.clone(), split, burnt]), [(2, Some(ONE), None, MoveKind::Burn)]);
        assert_eq!(told(&[out]), [(0, Some(ONE), None, MoveKind::Withdrawal)]);
        assert_eq!(told(std::slice::from_ref(&put)), [(2, None, Some(OTHER), MoveKind::Release)]);
        let kind = "A.0303030303030303.Stone.TokensMinted".to_owned();
        let mint = event(0, kind.clone(), cdc::event(&kind, &[("amount", cdc::ufix64(7))]));
        assert_eq!(told(&[mint, put]), [(2, None, Some(OTHER), MoveKind::Mint)]);
    }

    #[test]
    fn tokens_of_two_accounts_in_one_hand_are_refused() {
        let out = |at, of, into| {
            let who = if at == 0 { ONE } else { OTHER };
            vault(at, "Withdrawn", Some(("from", Some(who))), [("fromUUID", of), ("withdrawnUUID", into)])
        };
        let merged = vault(2, "Deposited", Some(("to", None)), [("toUUID", 2), ("depositedUUID", 3)]);
        assert!(moves(&[out(0, 1, 2), out(1, 8, 3), merged], &accounts()).is_err());
    }
}
