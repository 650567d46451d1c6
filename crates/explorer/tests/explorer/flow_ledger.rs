//! Every table over a generated chain, held against the ledger of what was done there: keys and contracts of every age, tokens of every
//! form, EVM, failures, hostile data. The generator reads no events, and this crate none of the generator's code.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alloy_primitives::{Address, B256};
use async_trait::async_trait;
use cairn_core::{BlockRef, Height, HeightRange, RawBlock};
use cairn_explorer::processors::Settings;
use cairn_explorer::processors::flow::account_metadata;
use cairn_explorer::processors::flow::node::{ScriptAnswer, ScriptNode};
use cairn_flow::proto::Account;
use cairn_flow::{BlockParts, FlowAddress, assemble};
use cairn_flow_node::deeds::Deed;
use cairn_flow_node::ledger::KeyForm;
use cairn_flow_node::{Behaviour, ContractId, Generator, GeneratorOptions, Ledger};
use cairn_pipeline::derive::processor::AskError;
use cairn_store::derived::{Coordinator, Row, Sum, U256, Value};

use crate::support;
use support::flow::{self, get};
use support::world::{World, run};

/// The sealed blocks from a height on.
fn blocks(generator: &Generator, from: u64) -> Vec<RawBlock> {
    let state = generator.state();
    let state = state.lock().unwrap();
    let of = state.chain.blocks().filter(|block| block.header.height >= from);
    of.map(|block| {
        let parts = BlockParts {
            block: block.block.clone(),
            transactions: block.transactions.iter().map(|tx| tx.transaction.clone()).collect(),
            results: block.transactions.iter().map(|tx| tx.result.clone()).collect(),
            execution_result: block.execution_result.clone(),
        };
        assemble(&parts).unwrap()
    })
    .collect()
}

/// A row of a table, column by column.
struct Read<'r>(&'static str, &'r Row);

impl Read<'_> {
    fn value(&self, column: &str) -> &Value {
        get(self.0, self.1, column)
    }

    fn flow(&self, column: &str) -> Option<FlowAddress> {
        self.value(column).as_bytes().map(|bytes| FlowAddress(bytes[..].try_into().unwrap()))
    }

    fn evm(&self, column: &str) -> Option<Address> {
        self.value(column).as_bytes().map(|bytes| Address::from_slice(bytes))
    }

    fn bytes(&self, column: &str) -> Vec<u8> {
        self.value(column).as_bytes().unwrap().to_vec()
    }

    fn text(&self, column: &str) -> String {
        self.value(column).as_text().unwrap().to_owned()
    }

    fn number(&self, column: &str) -> u64 {
        match self.value(column) {
            Value::Amount(amount) => amount.try_into().unwrap(),
            other => other.as_int().unwrap().try_into().unwrap(),
        }
    }

    fn is(&self, column: &str) -> bool {
        self.value(column).as_bool().unwrap()
    }

    fn contract(&self, address: &str) -> ContractId {
        ContractId::new(self.flow(address).unwrap(), &self.text("contract_name"))
    }
}

/// Public key, both algorithms, weight, and whether it is revoked.
type FoundKey = (Vec<u8>, u64, Option<u64>, Option<u64>, bool);
/// Index, address, topics, and the length of its data.
type FoundLog = (u64, Address, Vec<B256>, u64);

async fn check(world: &World, ledger: &Ledger, tip: u64) {
    check_tokens(world, ledger, tip).await;
    check_accounts(world, ledger, tip).await;
    check_transactions(world, ledger).await;
    check_evm(world, ledger, tip).await;
}

async fn check_tokens(world: &World, ledger: &Ledger, tip: u64) {
    let mut balances = BTreeMap::new();
    for row in world.rows("ft_holdings").await {
        let row = Read("ft_holdings", &row);
        let balance = *row.value("balance").as_sum().unwrap();
        if !balance.is_zero() {
            let balance: u64 = balance.to_amount().unwrap().try_into().unwrap();
            balances.insert((row.contract("token_contract_address"), row.flow("address").unwrap()), balance);
        }
    }
    assert_eq!(balances, ledger.balances(tip));
    let mut held: BTreeMap<ContractId, Sum> = BTreeMap::new();
    for ((token, _), balance) in &balances {
        let sum = held.entry(token.clone()).or_default();
        *sum = *sum + Sum::from(U256::from(*balance));
    }
    for row in world.rows("token_stats").await {
        let row = Read("token_stats", &row);
        let sum = held.get(&row.contract("contract_address")).copied().unwrap_or_default();
        assert_eq!(row.value("net_minted").as_sum(), Some(&sum));
    }
    let mut items = BTreeMap::new();
    for row in world.rows("nft_ownership").await {
        let row = Read("nft_ownership", &row);
        let item = (row.contract("contract_address"), row.number("nft_id"));
        items.insert(item, (row.flow("owner"), row.is("is_burned")));
    }
    let truth = ledger.items_at(tip);
    let mut untold = 0;
    for ((collection, id), item) in &truth {
        let found = items.get(&(collection.clone(), *id));
        assert_eq!(found, Some(&(item.told_owner, item.is_burn_told)), "{collection} {id}");
        untold += usize::from(item.told_owner != item.owner);
    }
    assert_eq!(items.len(), truth.len());
    // What accounts hold is what they own, burnt items and all.
    let mut held = BTreeSet::new();
    let mut owners: BTreeMap<(ContractId, FlowAddress), u64> = BTreeMap::new();
    for row in world.rows("nft_holdings").await {
        let row = Read("nft_holdings", &row);
        let item = (row.contract("contract_address"), row.number("nft_id"));
        let balance = *row.value("balance").as_sum().unwrap();
        assert_eq!(row.is("is_held"), balance == Sum::from(U256::from(1)), "{item:?}");
        assert!(row.is("is_held") || balance.is_zero(), "{item:?}");
        if row.is("is_held") {
            *owners.entry((item.0.clone(), row.flow("address").unwrap())).or_default() += 1;
            held.insert((item, row.flow("address").unwrap()));
        }
    }
    let told: BTreeSet<_> =
        truth.iter().filter_map(|(item, of)| Some((item.clone(), of.told_owner?))).collect();
    assert_eq!(held, told);
    let mut counted = BTreeMap::new();
    for row in world.rows("nft_owners").await {
        let row = Read("nft_owners", &row);
        let balance = row.value("balance").as_sum().unwrap().to_amount().unwrap();
        if !balance.is_zero() {
            let owner = (row.contract("contract_address"), row.flow("address").unwrap());
            counted.insert(owner, u64::try_from(balance).unwrap());
        }
    }
    assert_eq!(counted, owners);
    for row in world.rows("nft_collection_stats").await {
        let row = Read("nft_collection_stats", &row);
        let collection = row.contract("contract_address");
        let items = truth.iter().filter(|((of, _), item)| *of == collection && !item.is_burn_told);
        assert_eq!(row.number("item_count"), items.count() as u64);
        let owners = counted.keys().filter(|(of, _)| *of == collection);
        assert_eq!(row.number("owner_count"), owners.count() as u64);
    }
    // A resource is the item that a movement said it is, or one of which nothing said it.
    let resources = world.rows("nft_resources").await;
    let (mut known, mut destroyed) = (0, 0);
    for row in resources.iter().map(|row| Read("nft_resources", row)) {
        let uuid = row.number("resource_uuid");
        if row.is("is_destroyed") {
            let (_, item) = truth.iter().find(|(_, item)| item.uuid == uuid).unwrap();
            assert!(item.is_burned);
            destroyed += 1;
        } else {
            let item = (row.contract("token_contract_address"), row.number("token_id"));
            assert_eq!(uuid, truth[&item].uuid);
            assert!(truth[&item].is_resource_told);
            known += 1;
        }
    }
    assert!(known > 20 && destroyed > 3, "{known} resources, {destroyed} destroyed");
    assert!(untold < destroyed, "{untold} of {destroyed} were of unknown items");
}

async fn check_accounts(world: &World, ledger: &Ledger, tip: u64) {
    let mut keys: BTreeMap<(FlowAddress, u64), FoundKey> = BTreeMap::new();
    for row in world.rows("account_keys").await {
        let row = Read("account_keys", &row);
        if row.value("public_key").is_null() {
            // Revoked, but as old as the chain.
            assert!(row.is("is_revoked"));
            continue;
        }
        let number = |column| (!row.value(column).is_null()).then(|| row.number(column));
        let key = (
            row.bytes("public_key"),
            row.number("sign_algo"),
            number("hash_algo"),
            number("weight"),
            row.is("is_revoked"),
        );
        keys.insert((row.flow("address").unwrap(), row.number("key_index")), key);
    }
    let mut unplaced: BTreeMap<(FlowAddress, Vec<u8>), u64> = BTreeMap::new();
    for row in world.rows("unplaced_key_revocations").await {
        let row = Read("unplaced_key_revocations", &row);
        let key = (row.flow("address").unwrap(), row.bytes("public_key"));
        unplaced.insert(key, row.number("revocation_count"));
    }
    unplaced.retain(|_, count| *count > 0);
    let (mut known, mut by_bytes, mut in_doubt) = (0, 0, BTreeSet::new());
    for (address, account) in ledger.accounts.all_at(tip) {
        for (index, key) in (0u64..).zip(&account.keys) {
            let found = keys.remove(&(*address, index));
            // Told without an index, of an account whose other keys nobody told of.
            let is_placed = account.created_height.is_some() || key.told == Some(KeyForm::Whole);
            if key.told.is_none() || !is_placed {
                assert_eq!(found, None);
                continue;
            }
            let said = |number: u64| (key.told != Some(KeyForm::Struct)).then_some(number);
            let (public_key, sign_algo, hash_algo, weight, is_revoked) = found.unwrap();
            assert_eq!((&public_key, sign_algo), (&key.public_key, u64::from(key.sign_algo)));
            assert_eq!(hash_algo, said(key.hash_algo.into()));
            assert_eq!(weight, said(key.weight.into()));
            // The oldest events name a revoked key by its bytes, which another may have too.
            if key.is_in_doubt {
                let bytes = (*address, key.public_key.clone());
                assert!(is_revoked || unplaced.contains_key(&bytes), "{address} {index}");
                assert!(!is_revoked || key.revoked.is_some(), "{address} {index}");
                in_doubt.insert(bytes);
            } else {
                assert_eq!(is_revoked, key.revoked.is_some(), "{address} {index}");
                by_bytes += usize::from(key.revoked == Some(KeyForm::Rlp));
            }
            known += 1;
        }
    }
    assert!(keys.is_empty() && known > 20, "{known} keys");
    assert_eq!(unplaced.keys().cloned().collect::<BTreeSet<_>>(), in_doubt);
    assert!(by_bytes > 0 && !in_doubt.is_empty(), "{by_bytes} by bytes, {} in doubt", in_doubt.len());

    let mut contracts = BTreeMap::new();
    for row in world.rows("account_contracts").await {
        let row = Read("account_contracts", &row);
        if !row.is("is_removed") {
            contracts
                .insert((row.flow("address").unwrap(), row.text("contract_name")), row.bytes("code_hash"));
        }
    }
    let mut truth = BTreeMap::new();
    for (address, account) in ledger.accounts.all_at(tip) {
        for (name, code) in &account.contracts {
            truth.insert((*address, name.clone()), code.hash.to_vec());
        }
    }
    assert_eq!(contracts, truth);

    let creations = world.rows("account_creations").await;
    let created: BTreeMap<_, _> = creations
        .iter()
        .map(|row| Read("account_creations", row))
        .map(|row| (row.flow("address").unwrap(), row.number("block_height")))
        .collect();
    let truth = ledger.accounts.all_at(tip);
    let truth: BTreeMap<_, _> =
        truth.filter_map(|(address, account)| Some((*address, account.created_height?))).collect();
    assert_eq!(created, truth);

    let coas = world.rows("coa_accounts").await;
    let coas: BTreeMap<_, _> = coas
        .iter()
        .map(|row| Read("coa_accounts", row))
        .map(|row| (row.evm("coa_address").unwrap(), row.flow("owner_address")))
        .collect();
    assert_eq!(coas.len(), ledger.coas.all_at(tip).count());
    assert!(!coas.is_empty());
    for (coa, owner) in ledger.coas.all_at(tip) {
        assert_eq!(coas[coa], Some(*owner), "{coa}");
    }
}

async fn check_transactions(world: &World, ledger: &Ledger) {
    let mut metrics = BTreeMap::new();
    for row in world.rows("tx_metrics").await {
        let row = Read("tx_metrics", &row);
        let fee = (!row.value("fee").is_null()).then(|| row.number("fee"));
        let place = (row.number("block_height"), row.number("transaction_index"));
        let of = (
            row.bytes("transaction_id"),
            row.text("status"),
            row.number("gas_used"),
            fee,
            row.number("event_count"),
        );
        metrics.insert(place, of);
    }
    let mut roles: BTreeMap<(u64, u64), BTreeMap<FlowAddress, [bool; 3]>> = BTreeMap::new();
    for row in world.rows("account_roles").await {
        let row = Read("account_roles", &row);
        let signs = ["is_proposer", "is_payer", "is_authorizer"].map(|column| row.is(column));
        let of = roles.entry((row.number("block_height"), row.number("transaction_index"))).or_default();
        of.insert(row.flow("address").unwrap(), signs);
    }
    let mut imported: BTreeMap<(u64, u64), BTreeSet<ContractId>> = BTreeMap::new();
    for row in world.rows("tx_contracts").await {
        let row = Read("tx_contracts", &row);
        if row.text("tags").split(',').any(|tag| tag == "import") {
            let of =
                imported.entry((row.number("block_height"), row.number("transaction_index"))).or_default();
            of.insert(row.contract("contract_address"));
        }
    }
    let mut count = 0;
    for (height, transactions) in &ledger.transactions {
        for (index, tx) in (0u64..).zip(transactions) {
            count += 1;
            let status = if tx.is_failed { "failed" } else { "ok" };
            let (id, found, computation, fee, events) = &metrics[&(*height, index)];
            assert_eq!((&id[..], found.as_str()), (&tx.id[..], status));
            assert_eq!((*computation, *events), (tx.computation, tx.event_types.len() as u64));
            // What the chain itself makes is free; where else no event tells of a fee, it isn't known.
            let paid = Some(tx.fee).filter(|_| tx.is_fee_told || tx.is_system);
            assert_eq!(*fee, paid, "{height} {index}");
            let place = (*height, index);
            let mut signs: BTreeMap<FlowAddress, [bool; 3]> = BTreeMap::new();
            signs.entry(tx.proposer).or_default()[0] = true;
            signs.entry(tx.payer).or_default()[1] = true;
            tx.authorizers.iter().for_each(|address| signs.entry(*address).or_default()[2] = true);
            signs.remove(&FlowAddress::ZERO);
            assert_eq!(roles.remove(&place).unwrap_or_default(), signs);
            assert_eq!(imported.remove(&place).unwrap_or_default(), tx.imports.iter().cloned().collect());
        }
    }
    assert_eq!(metrics.len(), count);
    assert!(roles.is_empty() && imported.is_empty());
}

async fn check_evm(world: &World, ledger: &Ledger, tip: u64) {
    let mut logs: BTreeMap<Vec<u8>, Vec<FoundLog>> = BTreeMap::new();
    for row in world.rows("evm_logs").await {
        let row = Read("evm_logs", &row);
        let topics =
            ["topic0", "topic1", "topic2", "topic3"].map(|column| row.value(column).as_bytes().cloned());
        let topics = topics.into_iter().flatten().map(|topic| B256::from_slice(&topic)).collect();
        let log =
            (row.number("log_index"), row.evm("address").unwrap(), topics, row.number("data_length_bytes"));
        logs.entry(row.bytes("transaction_id")).or_default().push(log);
    }
    let executions = world.rows("evm_executions").await;
    let executions: BTreeMap<_, _> = executions
        .iter()
        .map(|row| Read("evm_executions", row))
        .map(|row| (row.bytes("transaction_id"), row))
        .collect();
    let rows = world.rows("evm_transactions").await;
    let rows: BTreeMap<_, _> = rows
        .iter()
        .map(|row| Read("evm_transactions", row))
        .map(|row| (row.bytes("transaction_id"), row))
        .collect();
    let truths: Vec<_> = ledger.evm_transactions.values().flatten().collect();
    assert_eq!((rows.len(), executions.len()), (truths.len(), truths.len()));
    for tx in truths {
        let row = &rows[tx.hash.as_slice()];
        assert_eq!(
            (row.number("block_height"), row.number("transaction_index")),
            (tx.height, tx.index.into())
        );
        assert_eq!((row.evm("from_address"), row.evm("to_address")), (Some(tx.from), tx.to));
        assert_eq!(row.evm("contract_address"), tx.created);
        assert_eq!((row.number("nonce"), row.number("tx_type")), (tx.nonce, tx.tx_type.into()));
        assert_eq!(row.value("value"), &Value::Amount(tx.value));
        assert_eq!((row.number("gas_limit"), row.number("gas_used")), (tx.gas_limit, tx.gas_used));
        let price = if row.value("gas_price").is_null() { "max_fee_per_gas" } else { "gas_price" };
        assert_eq!(row.value(price), &Value::Amount(U256::from(tx.gas_price)));
        assert_eq!(row.number("input_length_bytes"), tx.input.len() as u64);
        assert_eq!(row.text("status"), if tx.error_code == 0 { "ok" } else { "failed" });
        assert_eq!(row.number("log_count"), tx.logs.len() as u64);
        let execution = &executions[tx.hash.as_slice()];
        assert_eq!(execution.number("flow_transaction_index"), tx.flow_tx_index as u64);
        assert_eq!(execution.number("error_code"), u64::from(tx.error_code));
        let mut found = logs.remove(tx.hash.as_slice()).unwrap_or_default();
        found.sort();
        let truth = tx
            .logs
            .iter()
            .map(|log| (u64::from(log.index), log.address, log.topics.clone(), log.data.len() as u64));
        assert_eq!(found, truth.collect::<Vec<_>>());
    }
    assert!(logs.is_empty());
    // The chain of EVM blocks is whole.
    assert!(world.rows("evm_gaps").await.is_empty());
    // Which Flow blocks have none, the rows say in runs.
    let first = *ledger.evm_blocks.keys().next().unwrap();
    let without = (first..=tip).filter(|height| !ledger.evm_blocks.contains_key(height));
    let mut absent = Vec::new();
    for row in world.rows("evm_absences").await {
        let row = Read("evm_absences", &row);
        let (from, to) = (row.number("first_height"), row.number("last_height"));
        assert_eq!(row.number("absent_count"), to - from + 1);
        assert_eq!(ledger.evm_blocks[&(from - 1)].height, row.number("evm_height"));
        assert!(to == tip || ledger.evm_blocks.contains_key(&(to + 1)));
        absent.extend(from..=to);
    }
    assert_eq!(absent, without.collect::<Vec<_>>());
}

#[test]
fn every_table_is_what_was_done_and_stays_so_through_a_rollback() {
    run(async {
        let options = GeneratorOptions::new(11);
        let root = options.root_height;
        let mut generator = Generator::new(options, Behaviour::default());
        generator.grow(400);
        let first = blocks(&generator, root);
        let world = World::new(first.clone()).await;
        world.derive().await;
        let tip = first.last().unwrap().facts.height.get();
        world.check_leases(tip).await;
        let ledger = generator.state().lock().unwrap().ledger.clone();
        check(&world, &ledger, tip).await;

        generator.rollback(30);
        generator.grow(50);
        let kept = &first[first.len() - 31];
        world.roll_back(kept).await;
        world.append(blocks(&generator, kept.facts.height.get() + 1)).await;
        world.derive().await;
        let tip = tip + 20;
        world.check_leases(tip).await;
        let ledger = generator.state().lock().unwrap().ledger.clone();
        check(&world, &ledger, tip).await;
        let clean = World::new(blocks(&generator, root)).await;
        clean.derive().await;
        assert_eq!(world.dump().await, clean.dump().await);
    });
}

#[test]
fn every_cut_into_chunks_leaves_the_same_tables_through_a_rollback() {
    run(async {
        let options = GeneratorOptions { rlp_heights: 30, old_heights: 50, ..GeneratorOptions::new(23) };
        let root = options.root_height;
        let mut generator = Generator::new(options, Behaviour::default());
        generator.grow(130);
        let first = blocks(&generator, root);
        let mut worlds = Vec::new();
        for chunk_heights in [1, 2, 7] {
            let world = World::new(first.clone()).await;
            world.derive_by(chunk_heights).await;
            worlds.push((chunk_heights, world));
        }
        // Into the oldest age, so that what it left open is undone and comes anew.
        generator.rollback(110);
        generator.grow(110);
        let kept = &first[first.len() - 111];
        let again = blocks(&generator, kept.facts.height.get() + 1);
        let clean = World::new(blocks(&generator, root)).await;
        clean.derive().await;
        let ledger = generator.state().lock().unwrap().ledger.clone();
        check_tokens(&clean, &ledger, kept.facts.height.get() + 110).await;
        for (chunk_heights, world) in worlds {
            world.roll_back(kept).await;
            world.append(again.clone()).await;
            world.derive_by(chunk_heights).await;
            assert_eq!(world.dump().await, clean.dump().await, "chunks of {chunk_heights}");
        }
    });
}

/// Oddities of the real network: transactions that were included more than once (flow-dps #351), a missing index behind service events (flow-go #3393), scheduled
/// calls that fail.
#[test]
fn f18_tables_of_an_odd_chain_are_what_was_done() {
    run(async {
        let options = GeneratorOptions { is_odd: true, ..GeneratorOptions::new(31) };
        let root = options.root_height;
        let mut generator = Generator::new(options, Behaviour::default());
        generator.grow(250);
        let first = blocks(&generator, root);
        let repeats = first.iter().filter(|block| {
            let ids: BTreeSet<_> = block.transactions.iter().map(|tx| tx.id).collect();
            ids.len() < block.transactions.len()
        });
        assert!(repeats.count() > 10);
        let world = World::new(first.clone()).await;
        world.derive().await;
        let tip = first.last().unwrap().facts.height.get();
        world.check_leases(tip).await;
        let ledger = generator.state().lock().unwrap().ledger.clone();
        check(&world, &ledger, tip).await;
        let tags = world.rows("tx_tags").await;
        let scheduled =
            tags.iter().map(|row| Read("tx_tags", row)).filter(|row| row.text("tag") == "scheduled");
        let scheduled: BTreeSet<_> =
            scheduled.map(|row| (row.number("block_height"), row.number("transaction_index"))).collect();
        let mut failed = 0;
        for (height, transactions) in &ledger.transactions {
            for (index, tx) in (0u64..).zip(transactions) {
                let is_scheduled = tx.done.iter().any(|done| done.deed == Deed::Scheduled);
                assert_eq!(scheduled.contains(&(*height, index)), is_scheduled, "{height} {index}");
                failed += u64::from(is_scheduled && tx.is_failed);
            }
        }
        assert!(failed > 0);

        generator.rollback(40);
        generator.grow(60);
        let kept = &first[first.len() - 41];
        world.roll_back(kept).await;
        world.append(blocks(&generator, kept.facts.height.get() + 1)).await;
        world.derive().await;
        let clean = World::new(blocks(&generator, root)).await;
        clean.derive().await;
        assert_eq!(world.dump().await, clean.dump().await);
    });
}

/// A node that knows of accounts what the ledger does.
struct Knowing(Generator);

#[async_trait]
impl ScriptNode for Knowing {
    async fn execute(&self, _: &str, _: Vec<Vec<u8>>, _: BlockRef) -> Result<ScriptAnswer, AskError> {
        Ok(ScriptAnswer::Failed("no script".into()))
    }

    async fn account(&self, address: FlowAddress, at: BlockRef) -> Result<Option<Account>, AskError> {
        Ok(self.0.state().lock().unwrap().ledger.account(&address.0, at.height.get()))
    }
}

#[test]
fn f19_what_accounts_were_before_the_archive_and_what_happened_since_is_what_they_are() {
    run(async {
        let options = GeneratorOptions::new(41);
        let mut generator = Generator::new(options.clone(), Behaviour::default());
        generator.grow(300);
        let from = options.root_height + 200;
        let first = blocks(&generator, from);
        let settings = |generator: &Generator| Settings {
            scripts: Some(Arc::new(Knowing(generator.clone()))),
            ..flow::settings()
        };
        let world = World::with(first.clone(), settings(&generator)).await;
        world.derive().await;
        check_bases(&world, &generator, from).await;

        generator.rollback(30);
        generator.grow(60);
        let kept = &first[first.len() - 31];
        world.roll_back(kept).await;
        world.append(blocks(&generator, kept.facts.height.get() + 1)).await;
        world.derive().await;
        check_bases(&world, &generator, from).await;
        let clean = World::with(blocks(&generator, from), settings(&generator)).await;
        clean.derive().await;
        assert_eq!(world.dump().await, clean.dump().await);

        // A range that is made again asks about what is known where it was asked.
        let before = world.rows("account_bases").await;
        let service = &account_metadata::SERVICE;
        let range = HeightRange::new(Height(from + 20), Height(from + 60));
        world.app.request_reindex(service.name, service.version, range, 5).await.unwrap();
        world.derive().await;
        assert_eq!(world.rows("account_bases").await, before);
    });
}

/// Bases are what the ledger says of that height, each from before all that the archive has of the account; with what moved since they are what it has.
async fn check_bases(world: &World, generator: &Generator, from: u64) {
    let state = generator.state();
    let (ledger, tip) = {
        let state = state.lock().unwrap();
        (state.ledger.clone(), state.chain.tip().unwrap().header.height)
    };
    let mut first_seen: BTreeMap<FlowAddress, u64> = BTreeMap::new();
    for table in ["address_transactions", "account_key_events", "contract_versions"] {
        for row in world.rows(table).await {
            let row = Read(table, &row);
            if row.value("address").as_bytes().is_none_or(|address| address.len() != 8) {
                continue;
            }
            let height = row.number("block_height");
            let seen = first_seen.entry(row.flow("address").unwrap()).or_insert(height);
            *seen = height.min(*seen);
        }
    }
    let flow = ledger.flow_token();
    let mut moved: BTreeMap<FlowAddress, i128> = BTreeMap::new();
    for row in world.rows("ft_holdings").await {
        let row = Read("ft_holdings", &row);
        if row.contract("token_contract_address") == flow {
            let units = row.value("balance").as_sum().unwrap().to_string().parse().unwrap();
            moved.insert(row.flow("address").unwrap(), units);
        }
    }
    let balances = ledger.balances(tip);
    let mut found = BTreeMap::new();
    let (mut present, mut absent) = (0, 0);
    for row in world.rows("account_bases").await {
        let row = Read("account_bases", &row);
        let (address, at) = (row.flow("address").unwrap(), row.number("asked_at_height"));
        assert!(at + 1 >= from);
        let base = match ledger.account(&address.0, at) {
            None => {
                assert_eq!(row.text("status"), "absent");
                absent += 1;
                0
            }
            Some(account) => {
                assert_eq!(row.text("status"), "ok");
                assert_eq!(row.number("balance"), account.balance);
                assert_eq!(row.number("key_count"), account.keys.len() as u64);
                assert_eq!(row.number("contract_count"), account.contracts.len() as u64);
                present += 1;
                account.balance
            }
        };
        let now = i128::from(base) + moved.get(&address).copied().unwrap_or(0);
        let has = balances.get(&(flow.clone(), address)).copied().unwrap_or(0);
        assert_eq!(now, i128::from(has), "{address}");
        found.insert(address, at);
    }
    assert!(present > 5 && absent > 0, "{present} {absent}");
    for (address, seen) in first_seen {
        assert!(found.get(&address).is_some_and(|at| *at < seen), "{address} {seen}");
    }
    for row in world.rows("account_base_keys").await {
        let row = Read("account_base_keys", &row);
        let at = row.number("asked_at_height");
        let account = ledger.accounts.at(&row.flow("address").unwrap(), at).unwrap();
        let key = &account.keys[row.number("key_index") as usize];
        assert_eq!(row.bytes("public_key"), key.public_key);
        assert_eq!(row.number("sign_algo"), u64::from(key.sign_algo));
        assert_eq!(row.is("is_revoked"), key.revoked.is_some());
    }
}
