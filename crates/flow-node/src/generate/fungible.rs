//! Fungible tokens: FLOW, and `ExampleToken`. Vaults have ids, and what moves is a vault, also where no event says so.

use cairn_flow::FlowAddress;
use rand::RngExt;

use super::block::BlockBuilder;
use super::transaction::Tx;
use crate::cdc;
use crate::ledger::{ContractId, Vault};

impl BlockBuilder<'_> {
    pub fn balance(&self, token: &ContractId, owner: FlowAddress) -> u64 {
        self.ledger.vaults.last(&(token.clone(), owner)).map_or(0, |vault| vault.balance)
    }

    fn vault(&mut self, token: &ContractId, owner: FlowAddress) -> Vault {
        match self.ledger.vaults.last(&(token.clone(), owner)) {
            Some(vault) => *vault,
            None => Vault { uuid: self.next_uuid(), balance: 0 },
        }
    }

    /// Tokens emit events of their own before Cadence 1.0, and FLOW still does.
    fn has_own_events(&self, token: &ContractId) -> bool {
        self.is_old() || *token == self.cast.flow
    }

    fn standard(&self, event: &str) -> String {
        format!(
            "{}.{event}",
            ContractId::new(self.options.network.accounts().fungible_token, "FungibleToken")
        )
    }

    fn tell_withdrawn(
        &self,
        tx: &mut Tx,
        token: &ContractId,
        from: Option<FlowAddress>,
        (of, moved): (u64, u64),
        (amount, left): (u64, u64),
    ) {
        let from = cdc::optional(from.map(cdc::address));
        if self.has_own_events(token) {
            let name = format!("{token}.TokensWithdrawn");
            tx.event(&name, &[("amount", cdc::ufix64(amount)), ("from", from.clone())]);
        }
        if !self.is_old() {
            tx.event(
                &self.standard("Withdrawn"),
                &[
                    ("type", cdc::string(&format!("{token}.Vault"))),
                    ("amount", cdc::ufix64(amount)),
                    ("from", from),
                    ("fromUUID", cdc::number("UInt64", of)),
                    ("withdrawnUUID", cdc::number("UInt64", moved)),
                    ("balanceAfter", cdc::ufix64(left)),
                ],
            );
        }
    }

    fn tell_deposited(
        &self,
        tx: &mut Tx,
        token: &ContractId,
        to: Option<FlowAddress>,
        (into, moved): (u64, u64),
        (amount, after): (u64, u64),
    ) {
        let to = cdc::optional(to.map(cdc::address));
        if self.has_own_events(token) {
            let name = format!("{token}.TokensDeposited");
            tx.event(&name, &[("amount", cdc::ufix64(amount)), ("to", to.clone())]);
        }
        if !self.is_old() {
            tx.event(
                &self.standard("Deposited"),
                &[
                    ("type", cdc::string(&format!("{token}.Vault"))),
                    ("amount", cdc::ufix64(amount)),
                    ("to", to),
                    ("toUUID", cdc::number("UInt64", into)),
                    ("depositedUUID", cdc::number("UInt64", moved)),
                    ("balanceAfter", cdc::ufix64(after)),
                ],
            );
        }
    }

    /// Takes tokens out of an account's vault; the id of the vault that holds them now.
    pub fn withdraw(&mut self, tx: &mut Tx, token: &ContractId, from: FlowAddress, amount: u64) -> u64 {
        let vault = self.vault(token, from);
        let moved = self.next_uuid();
        let left = vault.balance - amount;
        self.ledger.vaults.set((token.clone(), from), self.height, Vault { balance: left, ..vault });
        self.tell_withdrawn(tx, token, Some(from), (vault.uuid, moved), (amount, left));
        tx.took(token, moved, from, amount);
        moved
    }

    /// Puts a vault into an account's.
    pub fn deposit(&mut self, tx: &mut Tx, token: &ContractId, to: FlowAddress, moved: u64, amount: u64) {
        let vault = self.vault(token, to);
        let after = vault.balance + amount;
        self.ledger.vaults.set((token.clone(), to), self.height, Vault { balance: after, ..vault });
        self.tell_deposited(tx, token, Some(to), (vault.uuid, moved), (amount, after));
        tx.put(token, moved, to, amount);
    }

    fn supply(&self, token: &ContractId) -> u64 {
        self.ledger.supplies.last(token).copied().unwrap_or(0)
    }

    pub fn mint(&mut self, tx: &mut Tx, token: &ContractId, to: FlowAddress, amount: u64) {
        self.ledger.supplies.set(token.clone(), self.height, self.supply(token) + amount);
        let vault = self.next_uuid();
        tx.event(&format!("{token}.TokensMinted"), &[("amount", cdc::ufix64(amount))]);
        tx.minted(token, vault, amount);
        self.deposit(tx, token, to, vault, amount);
    }

    fn imports_of(&self, token: &ContractId) -> Vec<ContractId> {
        let standard = ContractId::new(self.options.network.accounts().fungible_token, "FungibleToken");
        vec![standard, token.clone()]
    }

    /// A part of what there is: all of it, one unit, or anything between.
    fn part_of(&mut self, balance: u64) -> u64 {
        match self.rng.random_range(0..10) {
            0 => balance,
            1 => 1,
            // The same few amounts again and again, so that pairing by amount is put to the test.
            2..5 => balance.min(5_000),
            _ => self.rng.random_range(1..=balance),
        }
    }

    /// From one account to another, or to itself. `which`: 0 FLOW, 1 `ExampleToken`.
    pub fn transfer(&mut self, tx: &mut Tx, actor: FlowAddress, which: u8) {
        let token = if which == 0 { self.cast.flow.clone() } else { self.cast.example_token.clone() };
        let to = if self.chance(5) { actor } else { self.actor() };
        let mut from = actor;
        if self.balance(&token, from) == 0 {
            // The service account signs alone, so nothing else is in its transaction.
            if which != 0 || !tx.events.is_empty() {
                return self.mint_example(tx);
            }
            from = self.service();
            tx.authorizers = vec![from];
        }
        // The service account does not give away everything at once.
        let at_hand = if from == self.service() {
            self.balance(&token, from) / 1_000
        } else {
            self.balance(&token, from)
        };
        let amount = self.part_of(at_hand.max(1));
        tx.scripted(self.imports_of(&token), "transfer");
        tx.argument(&cdc::ufix64(amount));
        tx.argument(&cdc::address(to));
        let vault = self.withdraw(tx, &token, from, amount);
        self.deposit(tx, &token, to, vault, amount);
    }

    /// One withdrawal, cut into vaults of no account, some of which are put together again, for several accounts.
    pub fn split(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let token = if self.chance(50) { self.cast.flow.clone() } else { self.cast.example_token.clone() };
        let balance = self.balance(&token, actor);
        if balance < 10 {
            return self.mint_example(tx);
        }
        tx.scripted(self.imports_of(&token), "split");
        let amount = self.rng.random_range(10..=balance);
        let whole = self.withdraw(tx, &token, actor, amount);
        let mut left = amount;
        for _ in 0..self.rng.random_range(1..4) {
            let part = self.rng.random_range(1..=left);
            if part == left {
                break;
            }
            left -= part;
            let cut = self.next_uuid();
            self.tell_withdrawn(tx, &token, None, (whole, cut), (part, left));
            tx.poured(&token, whole, cut, part);
            if self.chance(30) {
                self.tell_deposited(tx, &token, None, (whole, cut), (part, left + part));
                tx.poured(&token, cut, whole, part);
                left += part;
            } else {
                let to = self.actor();
                self.deposit(tx, &token, to, cut, part);
            }
        }
        let to = self.actor();
        self.deposit(tx, &token, to, whole, left);
    }

    pub fn mint_example(&mut self, tx: &mut Tx) {
        let token = self.cast.example_token.clone();
        let room = u64::MAX - self.supply(&token);
        // Once in a while nearly all that fits into a UFix64.
        let most = if self.chance(2) { room / 2 } else { room.min(1_000_000_000_000) };
        if most == 0 {
            return;
        }
        let amount = self.rng.random_range(1..=most);
        tx.scripted(self.imports_of(&token), "mint");
        let to = self.actor();
        self.mint(tx, &token, to, amount);
    }

    pub fn burn_example(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let token = self.cast.example_token.clone();
        let balance = self.balance(&token, actor);
        if balance == 0 {
            return self.mint_example(tx);
        }
        let amount = self.part_of(balance);
        tx.scripted(self.imports_of(&token), "burn");
        let vault = self.withdraw(tx, &token, actor, amount);
        self.ledger.supplies.set(token.clone(), self.height, self.supply(&token) - amount);
        // Since 1.0 the standard tells of what its `Burner` burns, and a contract that destroys a vault itself tells of it alone, as before; some tell of both.
        let (by_standard, by_contract) = match self.rng.random_range(0..3) {
            _ if self.is_old() => (false, true),
            0 => (true, false),
            1 => (false, true),
            _ => (true, true),
        };
        if by_standard {
            let fields = [
                ("type", cdc::string(&format!("{token}.Vault"))),
                ("amount", cdc::ufix64(amount)),
                ("fromUUID", cdc::number("UInt64", vault)),
            ];
            tx.event(&self.standard("Burned"), &fields);
            tx.burnt(&token, vault, amount);
        }
        if by_contract {
            tx.event(&format!("{token}.TokensBurned"), &[("amount", cdc::ufix64(amount))]);
            // Of what the standard told already nothing is left.
            tx.burnt(&token, vault, amount);
        }
    }

    /// Puts tokens into some other resource, of which no event tells; or takes such out again.
    pub fn park(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let parked = self.ledger.parked.all().find(|(_, amount)| **amount > 0);
        let parked = parked.map(|((token, uuid), amount)| (token.clone(), *uuid, *amount));
        if let Some((token, uuid, amount)) = parked
            && self.chance(50)
        {
            tx.scripted(self.imports_of(&token), "unpark");
            self.ledger.parked.set((token.clone(), uuid), self.height, 0);
            return self.deposit(tx, &token, actor, uuid, amount);
        }
        let token = if self.chance(50) { self.cast.flow.clone() } else { self.cast.example_token.clone() };
        let balance = self.balance(&token, actor);
        if balance == 0 {
            return self.mint_example(tx);
        }
        let amount = self.part_of(balance);
        tx.scripted(self.imports_of(&token), "park");
        let vault = self.withdraw(tx, &token, actor, amount);
        self.ledger.parked.set((token, vault), self.height, amount);
    }
}
