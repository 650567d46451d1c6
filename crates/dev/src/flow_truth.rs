//! Derived tables of a generated Flow chain against its ledger, in both directions.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::hex::encode;
use anyhow::{Result, ensure};
use cairn_explorer::tables::contracts::CONTRACT_CODE;
use cairn_explorer::tables::evm::{EVM_LOGS, EVM_TRANSACTIONS};
use cairn_explorer::tables::flow::accounts::{
    ACCOUNT_CREATIONS, ACCOUNT_KEYS, ACCOUNT_ROLES, COA_ACCOUNTS, FLOW_ACCOUNTS,
};
use cairn_explorer::tables::flow::contracts::ACCOUNT_CONTRACTS;
use cairn_explorer::tables::flow::evm::EVM_EXECUTIONS;
use cairn_explorer::tables::flow::transactions::FLOW_TX_METRICS;
use cairn_explorer::tables::holdings::FT_HOLDINGS;
use cairn_explorer::tables::metadata::{NFT_COLLECTIONS, NFT_METADATA, TOKENS};
use cairn_explorer::tables::nfts::{NFT_HOLDINGS, NFT_OWNERSHIP};
use cairn_explorer::tables::transactions::TX_METRICS;
use cairn_flow::FlowAddress;
use cairn_flow_node::ledger::{ContractId, EvmTx, FlowTx, KeyForm};
use cairn_flow_node::{Ledger, scripts};
use cairn_store::derived::DerivedSnapshot;

use crate::flow_archive::{Table, same};

/// Data up to so many bytes is kept in a row.
const INLINE_MAX_BYTES: usize = 8_192;

/// A ledger at a height.
pub struct Truth<'l> {
    pub ledger: &'l Ledger,
    pub height: u64,
    pub snapshot: &'l dyn DerivedSnapshot,
}

fn contract(id: &ContractId) -> (String, String) {
    (id.address.bare(), id.name.clone())
}

impl Truth<'_> {
    async fn table(&self, def: &'static cairn_store::derived::TableDef) -> Result<Table> {
        Table::read(self.snapshot, def).await
    }

    /// `ft_holdings`: every balance above 0. Says how many there are, as all of these do.
    pub async fn balances(&self) -> Result<usize> {
        let truth = self.ledger.balances(self.height).into_iter();
        let truth = truth
            .map(|((token, owner), balance)| ((contract(&token), owner.bare()), balance.to_string()))
            .collect();
        let found = self.table(&FT_HOLDINGS).await?.map(|row| {
            let token = (
                row.hex("token_contract_address")?.unwrap_or_default(),
                row.text("contract_name")?.unwrap_or_default(),
            );
            let key = (token, row.hex("address")?.unwrap_or_default());
            let balance = row.digits("balance")?.unwrap_or_default();
            ensure!(row.boolean("is_held")? == (balance != "0"), "is_held of {key:?} with {balance}");
            Ok(Some((key, balance)).filter(|(_, balance)| balance != "0"))
        })?;
        same("ft_holdings", &truth, &found)
    }

    /// `nft_ownership` and `nft_holdings`: every item that there ever was, and who has it.
    pub async fn items(&self) -> Result<usize> {
        let items = self.ledger.items_at(self.height);
        let key = |(collection, id): &(ContractId, u64)| (contract(collection), id.to_string());
        let truth = items
            .iter()
            .map(|(of, item)| (key(of), (item.told_owner.map(|owner| owner.bare()), item.is_burn_told)));
        let truth = truth.collect();
        let collection = |row: crate::flow_archive::Named<'_>| -> Result<_> {
            let collection = (
                row.hex("contract_address")?.unwrap_or_default(),
                row.text("contract_name")?.unwrap_or_default(),
            );
            Ok((collection, row.digits("nft_id")?.unwrap_or_default()))
        };
        let found = self.table(&NFT_OWNERSHIP).await?.map(|row| {
            let item = collection(row)?;
            Ok(Some((item, (row.hex("owner")?, row.boolean("is_burned")?))))
        })?;
        let compared = same("nft_ownership", &truth, &found)?;
        let truth: BTreeMap<_, _> = items
            .iter()
            .filter_map(|(of, item)| Some(((key(of), item.told_owner?.bare()), "1".to_owned())))
            .collect();
        let found = self.table(&NFT_HOLDINGS).await?.map(|row| {
            let entry = (
                (collection(row)?, row.hex("address")?.unwrap_or_default()),
                row.digits("balance")?.unwrap_or_default(),
            );
            Ok(Some(entry).filter(|(_, balance)| balance != "0"))
        })?;
        Ok(compared + same("nft_holdings", &truth, &found)?)
    }

    /// `account_keys` and `flow_accounts`: every account that was created, and every key that it was ever given, as far as an event said it.
    pub async fn keys(&self) -> Result<usize> {
        let (mut keys, mut accounts, mut in_doubt) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        for (address, account) in self.ledger.accounts.all_at(self.height) {
            let Some(created) = account.created_height else { continue };
            accounts
                .insert(address.bare(), (created, account.keys.len() as u64, account.contracts.len() as u64));
            for (index, key) in account.keys.iter().enumerate() {
                let place = (address.bare(), index.to_string());
                // The oldest form names a revoked key by its bytes alone, and an account may have the same key twice.
                if key.is_in_doubt {
                    in_doubt.insert(place.clone());
                }
                let is_told = key.told != Some(KeyForm::Struct);
                let said = |number: String| Some(number).filter(|_| is_told);
                let value = (
                    Some(encode(&key.public_key)),
                    Some(key.sign_algo.to_string()),
                    said(key.hash_algo.to_string()),
                    said(key.weight.to_string()),
                    key.revoked.is_some() && !in_doubt.contains(&place),
                );
                keys.insert(place, value);
            }
        }
        let found = self.table(&ACCOUNT_KEYS).await?.map(|row| {
            let place =
                (row.hex("address")?.unwrap_or_default(), row.digits("key_index")?.unwrap_or_default());
            let is_revoked = row.boolean("is_revoked")? && !in_doubt.contains(&place);
            let value = (
                row.hex("public_key")?,
                row.digits("sign_algo")?,
                row.digits("hash_algo")?,
                row.digits("weight")?,
                is_revoked,
            );
            Ok(Some((place, value)))
        })?;
        let compared = same("account_keys", &keys, &found)?;
        let found = self.table(&FLOW_ACCOUNTS).await?.map(|row| {
            let counts = (row.int("created_height")?, row.int("key_count")?, row.int("contract_count")?);
            Ok(Some((row.hex("address")?.unwrap_or_default(), counts)))
        })?;
        Ok(compared + same("flow_accounts", &accounts, &found)?)
    }

    /// `account_creations` and `account_roles`: where every account was created, and what accounts are in transactions.
    pub async fn accounts(&self) -> Result<usize> {
        let accounts = self.ledger.accounts.all_at(self.height);
        let truth = accounts.filter_map(|(address, account)| Some((address.bare(), account.created_height?)));
        let found = self.table(&ACCOUNT_CREATIONS).await?;
        let found =
            found.map(|row| Ok(Some((row.hex("address")?.unwrap_or_default(), row.int("block_height")?))))?;
        let compared = same("account_creations", &truth.collect(), &found)?;
        let mut truth: BTreeMap<_, [bool; 3]> = BTreeMap::new();
        for (height, txs) in self.ledger.transactions.range(..=self.height) {
            for tx in txs {
                let of = |address: FlowAddress| (*height, Some(encode(tx.id)), Some(address.bare()));
                truth.entry(of(tx.proposer)).or_default()[0] = true;
                truth.entry(of(tx.payer)).or_default()[1] = true;
                tx.authorizers.iter().for_each(|address| truth.entry(of(*address)).or_default()[2] = true);
                truth.remove(&of(FlowAddress::ZERO));
            }
        }
        let found = self.table(&ACCOUNT_ROLES).await?.map(|row| {
            let key = (row.int("block_height")?, row.hex("transaction_id")?, row.hex("address")?);
            let roles =
                [row.boolean("is_proposer")?, row.boolean("is_payer")?, row.boolean("is_authorizer")?];
            Ok(Some((key, roles)))
        })?;
        Ok(compared + same("account_roles", &truth, &found)?)
    }

    /// `account_contracts`: every contract that is there, and its code's hash.
    pub async fn contracts(&self) -> Result<usize> {
        let mut truth = BTreeMap::new();
        for (address, account) in self.ledger.accounts.all_at(self.height) {
            for (name, code) in &account.contracts {
                truth.insert((address.bare(), name.clone()), Some(encode(code.hash)));
            }
        }
        let found = self.table(&ACCOUNT_CONTRACTS).await?.map(|row| {
            let key =
                (row.hex("address")?.unwrap_or_default(), row.text("contract_name")?.unwrap_or_default());
            let is_there = !row.boolean("is_removed")?;
            Ok(Some((key, row.hex("code_hash")?)).filter(|_| is_there))
        })?;
        same("account_contracts", &truth, &found)
    }

    /// `evm_transactions`, `evm_executions`, `evm_logs`, and `coa_accounts`.
    pub async fn evm(&self) -> Result<usize> {
        let all = || self.ledger.evm_transactions.range(..=self.height).flat_map(|(_, txs)| txs);
        let inline = |bytes: &[u8]| Some(encode(bytes)).filter(|_| bytes.len() <= INLINE_MAX_BYTES);
        let truth = all().map(|tx| {
            let parties = (Some(encode(tx.from)), tx.to.map(encode), tx.created.map(encode));
            let numbers = (Some(tx.nonce.to_string()), Some(tx.value.to_string()), tx.gas_limit, tx.gas_used);
            let kind = (u64::from(tx.tx_type), tx.error_code == 0, tx.logs.len() as u64, inline(&tx.input));
            ((tx.height, Some(encode(tx.hash))), (u64::from(tx.index), parties, numbers, kind))
        });
        let found = self.table(&EVM_TRANSACTIONS).await?.map(|row| {
            let parties = (row.hex("from_address")?, row.hex("to_address")?, row.hex("contract_address")?);
            let numbers =
                (row.digits("nonce")?, row.digits("value")?, row.int("gas_limit")?, row.int("gas_used")?);
            let is_ok = row.text("status")?.as_deref() == Some("ok");
            let kind = (row.int("tx_type")?, is_ok, row.int("log_count")?, row.hex("input")?);
            Ok(Some((
                (row.int("block_height")?, row.hex("transaction_id")?),
                (row.int("transaction_index")?, parties, numbers, kind),
            )))
        })?;
        let mut compared = same("evm_transactions", &truth.collect(), &found)?;
        let flow_id = |tx: &EvmTx| {
            let of_block = self.ledger.transactions.get(&tx.height)?;
            Some(encode(of_block.get(tx.flow_tx_index)?.id))
        };
        let truth =
            all().map(|tx| ((tx.height, Some(encode(tx.hash))), (flow_id(tx), u64::from(tx.error_code))));
        let found = self.table(&EVM_EXECUTIONS).await?.map(|row| {
            let of = (row.hex("flow_transaction_id")?, row.int("error_code")?);
            Ok(Some(((row.int("block_height")?, row.hex("transaction_id")?), of)))
        })?;
        compared += same("evm_executions", &truth.collect(), &found)?;
        let truth = all().flat_map(|tx| {
            tx.logs.iter().map(move |log| {
                let topic = |at: usize| log.topics.get(at).map(encode);
                let topics = (topic(0), topic(1), topic(2), topic(3));
                (
                    (tx.height, u64::from(log.index)),
                    (Some(encode(tx.hash)), Some(encode(log.address)), topics, inline(&log.data)),
                )
            })
        });
        let found = self.table(&EVM_LOGS).await?.map(|row| {
            let topics = (row.hex("topic0")?, row.hex("topic1")?, row.hex("topic2")?, row.hex("topic3")?);
            let value = (row.hex("transaction_id")?, row.hex("address")?, topics, row.hex("data")?);
            Ok(Some(((row.int("block_height")?, row.int("log_index")?), value)))
        })?;
        compared += same("evm_logs", &truth.collect(), &found)?;
        let truth = self.ledger.coas.all_at(self.height);
        let truth = truth.map(|(coa, owner)| (Some(encode(coa)), Some(owner.bare()))).collect();
        let found = self
            .table(&COA_ACCOUNTS)
            .await?
            .map(|row| Ok(Some((row.hex("coa_address")?, row.hex("owner_address")?))))?;
        Ok(compared + same("coa_accounts", &truth, &found)?)
    }

    /// `tx_metrics` and `flow_tx_metrics`: every transaction, its fee, whether it failed, and what it used.
    pub async fn transactions(&self) -> Result<usize> {
        let all = || {
            let blocks = self.ledger.transactions.range(..=self.height);
            blocks.flat_map(|(height, txs)| txs.iter().map(move |tx| ((*height, Some(encode(tx.id))), tx)))
        };
        // What the chain itself does is free; elsewhere, without an event, it isn't known what was paid.
        let fee = |tx: &FlowTx| Some(tx.fee.to_string()).filter(|_| tx.is_fee_told || tx.is_system);
        let truth =
            all().map(|(key, tx)| (key, (tx.is_failed, fee(tx), tx.computation, u64::from(tx.events))));
        let found = self.table(&TX_METRICS).await?.map(|row| {
            let is_failed = row.text("status")?.as_deref() == Some("failed");
            let value = (is_failed, row.digits("fee")?, row.int("gas_used")?, row.int("event_count")?);
            Ok(Some(((row.int("block_height")?, row.hex("transaction_id")?), value)))
        })?;
        let compared = same("tx_metrics", &truth.collect(), &found)?;
        let truth = all().map(|(key, tx)| (key, (tx.is_system, u64::from(tx.is_failed))));
        let found = self.table(&FLOW_TX_METRICS).await?.map(|row| {
            let value = (row.boolean("is_system")?, row.int("status_code")?);
            Ok(Some(((row.int("block_height")?, row.hex("transaction_id")?), value)))
        })?;
        Ok(compared + same("flow_tx_metrics", &truth.collect(), &found)?)
    }

    /// What a node was asked: `tokens` and `nft_collections` (what the contracts say of themselves, and the supply at the block at which they
    /// were asked), `nft_metadata`, `contract_code`.
    pub async fn metadata(&self) -> Result<usize> {
        let tokens = self.ledger.supplies.all_at(self.height);
        let truth = tokens.map(|(token, _)| {
            let (name, symbol) = scripts::token_names(token);
            (contract(token), (Some(name), Some(symbol), 8))
        });
        let supplies: BTreeMap<_, _> =
            self.ledger.supplies.all().map(|(token, _)| (contract(token), token.clone())).collect();
        let found = self.table(&TOKENS).await?.map(|row| {
            let token = (
                row.hex("contract_address")?.unwrap_or_default(),
                row.text("contract_name")?.unwrap_or_default(),
            );
            let asked_at = row.int("asked_at_height")?;
            let supply = supplies.get(&token).and_then(|token| self.ledger.supplies.at(token, asked_at));
            let found = row.digits("total_supply")?;
            ensure!(
                found == supply.map(ToString::to_string),
                "the supply of {token:?} at {asked_at} is {supply:?}, the table has {found:?}"
            );
            Ok(Some((token, (row.text("name")?, row.text("symbol")?, row.int("decimals")?))))
        })?;
        let compared = same("tokens", &truth.collect(), &found)?;
        let collections: BTreeSet<&ContractId> =
            self.ledger.items.all_at(self.height).map(|((collection, _), _)| collection).collect();
        let truth =
            collections.into_iter().map(|one| (contract(one), Some(scripts::collection_name(one)))).collect();
        let found = self.table(&NFT_COLLECTIONS).await?.map(|row| {
            let collection = (
                row.hex("contract_address")?.unwrap_or_default(),
                row.text("contract_name")?.unwrap_or_default(),
            );
            Ok(Some((collection, row.text("name")?)))
        })?;
        let compared = compared + same("nft_collections", &truth, &found)?;
        Ok(compared + self.pictures().await? + self.code().await?)
    }

    /// `nft_metadata`: where pictures are, of the items whose owner had them when a node was asked.
    async fn pictures(&self) -> Result<usize> {
        let items = self.ledger.items_at(self.height);
        let items: BTreeMap<_, _> = items
            .keys()
            .map(|(collection, id)| {
                ((contract(collection), id.to_string()), scripts::item_uri(collection, *id))
            })
            .collect();
        let found = self.table(&NFT_METADATA).await?.map(|row| {
            let collection = (
                row.hex("contract_address")?.unwrap_or_default(),
                row.text("contract_name")?.unwrap_or_default(),
            );
            let item = (collection, row.digits("nft_id")?.unwrap_or_default());
            let uri = row.text("token_uri")?;
            ensure!(
                uri.is_none() || uri.as_ref() == items.get(&item),
                "the picture of {item:?} is at {:?}, the table has {uri:?}",
                items.get(&item)
            );
            Ok(uri.map(|uri| (item, uri)))
        })?;
        ensure!(
            found.len() * 2 >= items.len(),
            "pictures of {} items of {} are known",
            found.len(),
            items.len()
        );
        Ok(found.len())
    }

    /// `contract_code`: the code of every contract that is there.
    async fn code(&self) -> Result<usize> {
        let codes = self.table(&CONTRACT_CODE).await?;
        let codes = codes.map(|row| Ok(Some((row.hex("code_hash")?, row.hex("code")?))))?;
        let mut compared = 0;
        for (address, account) in self.ledger.accounts.all_at(self.height) {
            for (name, code) in &account.contracts {
                let found = codes.get(&Some(encode(code.hash)));
                ensure!(
                    found == Some(&Some(encode(&code.source))),
                    "contract_code lacks the code of {name} of {address}, or has another"
                );
                compared += 1;
            }
        }
        Ok(compared)
    }
}
