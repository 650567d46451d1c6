//! One transaction of a user: who signs and pays, what it does, its fee.

use bytes::Bytes;
use cairn_flow::FlowAddress;
use cairn_flow::proto::Signature;
use rand::RngExt;

use super::block::{BlockBuilder, hash};
use super::moves::OnTheWay;
use crate::cdc::{self, Cdc};
use crate::deeds::Done;
use crate::ledger::ContractId;

/// A transaction while it is made.
pub(super) struct Tx {
    pub script: Bytes,
    /// Each JSON-CDC.
    pub arguments: Vec<Bytes>,
    pub proposer: FlowAddress,
    pub payer: FlowAddress,
    pub authorizers: Vec<FlowAddress>,
    pub imports: Vec<ContractId>,
    /// Types and payloads.
    pub events: Vec<(String, Bytes)>,
    /// What the node says of a failure.
    pub error: Option<String>,
    pub is_system: bool,
    pub fee: Option<u64>,
    /// What including and executing it cost, where the fee's event says it.
    pub efforts: Option<(u64, u64)>,
    /// What it did.
    pub done: Vec<Done>,
    pub on_the_way: OnTheWay,
}

impl Tx {
    pub fn new(proposer: FlowAddress, payer: FlowAddress, authorizers: Vec<FlowAddress>) -> Tx {
        Tx {
            script: Bytes::new(),
            arguments: Vec::new(),
            proposer,
            payer,
            authorizers,
            imports: Vec::new(),
            events: Vec::new(),
            error: None,
            is_system: false,
            fee: None,
            efforts: None,
            done: Vec::new(),
            on_the_way: OnTheWay::default(),
        }
    }

    /// The same once more: it fails, since its sequence number is used up, and leaves nothing.
    pub fn again(&self) -> Tx {
        let mut again = Tx::new(self.proposer, self.payer, self.authorizers.clone());
        (again.script, again.arguments, again.imports) =
            (self.script.clone(), self.arguments.clone(), self.imports.clone());
        again.error = Some("[Error Code: 1007] invalid proposal key: the sequence number was used".into());
        again
    }

    /// Emits an event.
    pub fn event(&mut self, name: &str, fields: &[(&str, Cdc)]) {
        self.events.push((name.to_owned(), cdc::event(name, fields)));
    }

    /// Its script: what it imports, and a body that says what it does.
    pub fn scripted(&mut self, imports: Vec<ContractId>, body: &str) {
        let mut script = String::new();
        for (at, import) in imports.iter().enumerate() {
            // In more than one spelling, as people write them.
            let place = if at % 2 == 0 {
                import.address.to_string()
            } else {
                format!("0x{}", import.address.bare().to_uppercase())
            };
            script += &format!("import {} from {place}\n", import.name);
        }
        script += &format!("\ntransaction {{\n  prepare(signer: auth(Storage) &Account) {{ {body} }}\n}}\n");
        (self.script, self.imports) = (script.into(), imports);
    }

    pub fn argument(&mut self, value: &Cdc) {
        // A payload ends with a newline, an argument too.
        self.arguments.push((value.0.clone() + "\n").into());
    }

    /// A signature of its signer, or none. Nobody checks them.
    pub fn signatures(&self, is_signed: bool, signer: FlowAddress) -> Vec<Signature> {
        if !is_signed {
            return Vec::new();
        }
        let half = hash(&[&self.script, &signer.0]);
        vec![Signature {
            address: Bytes::copy_from_slice(&signer.0),
            key_id: 0,
            signature: [half, half].concat().into(),
            extension_data: Bytes::new(),
        }]
    }
}

impl BlockBuilder<'_> {
    pub fn actor(&mut self) -> FlowAddress {
        match self.actors.len() {
            0 => self.service(),
            count => self.actors[self.rng.random_range(0..count)],
        }
    }

    /// The first block's: FLOW is made, and a first few accounts.
    pub fn first_block(&mut self) {
        let service = self.service();
        let mut tx = Tx::new(service, service, vec![service]);
        let flow = self.cast.flow.clone();
        tx.scripted(vec![flow.clone()], "mint");
        self.mint(&mut tx, &flow, service, 100_000_000_000_000_000);
        self.finish(tx);
        for _ in 0..8 {
            let mut tx = Tx::new(service, service, vec![service]);
            self.create_account(&mut tx, service);
            self.finish(tx);
        }
    }

    /// Any transaction that is possible now.
    pub fn user_transaction(&mut self) {
        let actor = self.actor();
        let payer = if self.chance(50) { self.service() } else { actor };
        let mut tx = Tx::new(actor, payer, vec![actor]);
        if self.chance(8) {
            self.failed(&mut tx);
        } else {
            self.act(&mut tx, actor);
            // Some do several things.
            while tx.events.len() < 40 && tx.authorizers == [actor] && self.chance(12) {
                let (imports, script) = (std::mem::take(&mut tx.imports), tx.script.clone());
                self.act(&mut tx, actor);
                if !imports.is_empty() {
                    (tx.imports, tx.script) = (imports, script);
                }
            }
        }
        self.pay_fee(&mut tx);
        self.finish(tx);
    }

    /// Accounts and items by the dozen: see [`super::GeneratorOptions::crowd`].
    pub fn crowd_transaction(&mut self) {
        let service = self.service();
        let mut tx = Tx::new(service, service, vec![service]);
        for _ in 0..self.options.crowd {
            self.create_account(&mut tx, service);
            self.mint_item(&mut tx);
            self.mint_item(&mut tx);
        }
        self.pay_fee(&mut tx);
        self.finish(tx);
    }

    fn act(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let is_old = self.is_old();
        if self.age() < self.options.rlp_heights && self.chance(20) {
            // The oldest age is short, and its keys are told in forms of their own.
            return if self.chance(40) { self.add_key(tx, actor) } else { self.revoke_key(tx, actor) };
        }
        match self.rng.random_range(0..100) {
            0..22 => self.transfer(tx, actor, 0),
            22..27 => self.split(tx, actor),
            27..34 => self.transfer(tx, actor, 1),
            34..38 => self.mint_example(tx),
            38..41 => self.burn_example(tx, actor),
            41..44 => self.park(tx, actor),
            44..50 => self.mint_item(tx),
            50..58 => self.move_item(tx, actor),
            58..60 => self.burn_item(tx, actor),
            60..62 => self.park_item(tx, actor),
            62..66 => self.create_account(tx, actor),
            66..69 => self.add_key(tx, actor),
            69..72 => self.revoke_key(tx, actor),
            72..77 => self.change_contract(tx, actor),
            77..81 => self.destroy_collection(tx, actor),
            81..95 if !is_old => self.evm_action(tx, actor),
            81..95 => self.transfer(tx, actor, 0),
            _ => self.hostile(tx, actor),
        }
    }

    /// Takes the fee from the payer: the last events of every transaction, failed ones too.
    pub fn pay_fee(&mut self, tx: &mut Tx) {
        let flow = self.cast.flow.clone();
        let fee = self.rng.random_range(100..20_000);
        if self.balance(&flow, tx.payer) < fee {
            tx.payer = self.service();
        }
        let fees = self.options.network.accounts().flow_fees;
        let vault = self.withdraw(tx, &flow, tx.payer, fee);
        self.deposit(tx, &flow, fees, vault, fee);
        tx.paid();
        tx.fee = Some(fee);
        let contract = ContractId::new(fees, "FlowFees");
        if self.has_fixed_fee() {
            return tx.event(&format!("{contract}.TokensDeposited"), &[("amount", cdc::ufix64(fee))]);
        }
        let (inclusion, execution) = (100_000_000, fee / 3);
        tx.efforts = Some((inclusion, execution));
        let name = format!("{contract}.FeesDeducted");
        tx.event(
            &name,
            &[
                ("amount", cdc::ufix64(fee)),
                ("inclusionEffort", cdc::ufix64(inclusion)),
                ("executionEffort", cdc::ufix64(execution)),
            ],
        );
    }

    /// Whether only the deposit of a fee is told, which names nobody.
    fn has_fixed_fee(&self) -> bool {
        self.age() < self.options.rlp_heights
    }
}
