//! What transactions are said to have done is what became of balances, items, keys and contracts, and stands at the events that tell of it.

use std::collections::BTreeMap;

use cairn_flow::FlowAddress;
use cairn_flow_node::deeds::{ContractChange, Deed, MoveKind};
use cairn_flow_node::ledger::{ContractId, FlowTx};
use cairn_flow_node::{Behaviour, Generator, GeneratorOptions, Ledger};

/// A chain of all three ages.
fn ledger() -> Ledger {
    let mut generator = Generator::new(GeneratorOptions::new(21), Behaviour::default());
    generator.grow(350);
    generator.rollback(30);
    generator.grow(60);
    let state = generator.state();
    state.lock().expect("nobody panicked").ledger.clone()
}

/// The kinds of events that may tell of a deed.
fn told_by(deed: &Deed) -> &'static [&'static str] {
    match deed {
        Deed::AccountCreated(_) => &["flow.AccountCreated"],
        Deed::KeyAdded { .. } => &["flow.AccountKeyAdded"],
        Deed::KeyRevoked { .. } => &["flow.AccountKeyRemoved"],
        Deed::ContractChanged { change: ContractChange::Added, .. } => &["flow.AccountContractAdded"],
        Deed::ContractChanged { change: ContractChange::Updated, .. } => &["flow.AccountContractUpdated"],
        Deed::ContractChanged { change: ContractChange::Removed, .. } => &["flow.AccountContractRemoved"],
        Deed::Tokens(moved) => match moved.kind {
            MoveKind::Burn => &[".Burned", ".TokensBurned"],
            MoveKind::Withdrawal => &[".Withdrawn", ".TokensWithdrawn"],
            _ => &[".Deposited", ".TokensDeposited"],
        },
        Deed::Item(moved) => match moved.kind {
            MoveKind::Burn => &[".NFT.ResourceDestroyed"],
            MoveKind::Withdrawal => &[".Withdrawn", ".Withdraw"],
            _ => &[".Deposited", ".Deposit"],
        },
        Deed::ItemDestroyed { .. } => &[".NonFungibleToken.NFT.ResourceDestroyed"],
        Deed::CoaCreated { .. } => &[".CadenceOwnedAccountCreated"],
        Deed::Bridged => &[".FLOWTokensDeposited", ".FLOWTokensWithdrawn"],
        Deed::Scheduled => &[".Executed"],
    }
}

fn check_place(tx: &FlowTx) {
    for done in &tx.done {
        let event_type = tx.event_types.get(done.event_index as usize);
        let event_type = event_type.unwrap_or_else(|| panic!("no event {} of {done:?}", done.event_index));
        let is_it = told_by(&done.deed).iter().any(|end| event_type.ends_with(end));
        assert!(is_it, "{event_type} tells of {done:?}");
    }
}

#[test]
fn movements_sum_up_to_balances_and_owners_at_every_height() {
    let ledger = ledger();
    let mut balances: BTreeMap<(ContractId, FlowAddress), i128> = BTreeMap::new();
    let mut owners: BTreeMap<(ContractId, u64), Option<FlowAddress>> = BTreeMap::new();
    let mut kinds: BTreeMap<(bool, MoveKind), u64> = BTreeMap::new();
    let mut destroyed = 0;
    for (height, txs) in &ledger.transactions {
        for tx in txs {
            check_place(tx);
            let mut fees = 0;
            for done in &tx.done {
                match &done.deed {
                    Deed::Tokens(moved) => {
                        *kinds.entry((false, moved.kind)).or_default() += 1;
                        fees += if moved.kind == MoveKind::Fee { moved.amount } else { 0 };
                        let amount = i128::from(moved.amount);
                        for (party, by) in [(moved.from, -amount), (moved.to, amount)] {
                            if let Some(party) = party {
                                *balances.entry((moved.token.clone(), party)).or_default() += by;
                            }
                        }
                    }
                    Deed::Item(moved) => {
                        *kinds.entry((true, moved.kind)).or_default() += 1;
                        owners.insert((moved.collection.clone(), moved.id), moved.to);
                    }
                    Deed::ItemDestroyed { collection, id, .. } => {
                        destroyed += 1;
                        owners.insert((collection.clone(), *id), None);
                    }
                    _ => {}
                }
            }
            assert_eq!(fees, tx.fee, "at {height}");
        }
        balances.retain(|_, balance| *balance != 0);
        let truth = ledger.balances(*height).into_iter();
        assert_eq!(balances, truth.map(|(key, balance)| (key, balance.into())).collect(), "at {height}");
        let truth = ledger.items_at(*height).into_iter();
        assert_eq!(owners, truth.map(|(key, item)| (key, item.owner)).collect(), "at {height}");
    }
    assert!(destroyed > 3, "{destroyed} items were destroyed without a word on their collection");
    for kind in [MoveKind::Mint, MoveKind::Release, MoveKind::Transfer, MoveKind::Burn, MoveKind::Withdrawal]
    {
        for is_item in [false, true] {
            assert!(kinds.get(&(is_item, kind)).is_some_and(|count| *count > 3), "{kind:?} {kinds:?}");
        }
    }
}

#[test]
fn keys_contracts_and_evm_accounts_are_those_that_transactions_made() {
    let ledger = ledger();
    let mut keys: BTreeMap<FlowAddress, Vec<(Vec<u8>, bool)>> = BTreeMap::new();
    let mut contracts: BTreeMap<ContractId, [u8; 32]> = BTreeMap::new();
    let mut coas = BTreeMap::new();
    for tx in ledger.transactions.values().flatten() {
        for done in &tx.done {
            match &done.deed {
                Deed::AccountCreated(address) => {
                    assert!(keys.insert(*address, Vec::new()).is_none(), "{address} is made twice");
                }
                Deed::KeyAdded { address, index, key } => {
                    let of = keys.entry(*address).or_default();
                    assert_eq!(of.len(), *index as usize);
                    of.push((key.public_key.clone(), false));
                }
                Deed::KeyRevoked { address, index, key, .. } => {
                    let of = &mut keys.get_mut(address).expect("has keys")[*index as usize];
                    assert_eq!(*of, (key.public_key.clone(), false));
                    of.1 = true;
                }
                Deed::ContractChanged { contract, code_hash, change } => {
                    match change {
                        ContractChange::Removed => assert_eq!(contracts.remove(contract), Some(*code_hash)),
                        _ => drop(contracts.insert(contract.clone(), *code_hash)),
                    };
                }
                Deed::CoaCreated { coa, by_capability, .. } => {
                    assert_eq!(*by_capability, tx.authorizers.len() > 1);
                    coas.insert(*coa, tx.authorizers[0]);
                }
                _ => {}
            }
        }
    }
    let made = ledger.accounts.all().filter(|(_, account)| account.created_height.is_some());
    let made: Vec<_> = made.collect();
    assert_eq!(made.len(), keys.len());
    for (address, account) in made {
        let truth = account.keys.iter().map(|key| (key.public_key.clone(), key.revoked.is_some()));
        assert_eq!(keys[address], truth.collect::<Vec<_>>(), "{address}");
        for (name, code) in &account.contracts {
            assert_eq!(contracts.remove(&ContractId::new(*address, name)), Some(code.hash));
        }
    }
    assert!(contracts.is_empty(), "{contracts:?}");
    let truth = ledger.coas.all().map(|(coa, owner)| (*coa, *owner)).collect();
    assert_eq!(coas, truth);
    assert!(coas.len() > 3);
    let evm_heights: Vec<u64> = ledger.evm_blocks.values().map(|block| block.height).collect();
    assert_eq!(evm_heights, (1..=evm_heights.len() as u64).collect::<Vec<_>>());
    let mut splits = 0;
    for (height, block) in &ledger.evm_blocks {
        let of_block = ledger.evm_transactions.range(..=height).flat_map(|(_, txs)| txs);
        let txs: Vec<_> = of_block.filter(|tx| tx.evm_height == block.height).collect();
        assert_eq!(txs.len(), block.transactions as usize);
        assert_eq!(txs.iter().map(|tx| tx.gas_used).sum::<u64>(), block.gas_used);
        assert!(txs.iter().zip(0..).all(|(tx, index)| tx.index == index));
        splits += usize::from(txs.iter().any(|tx| tx.height != *height));
    }
    assert!(splits > 0, "an EVM block stands in several Flow blocks");
}
