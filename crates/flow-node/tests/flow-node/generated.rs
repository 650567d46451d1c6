//! The generated chain as cairn's source and decoders take it: whole, linked, and with the ledger's balances, owners and EVM transactions.

use std::collections::{BTreeMap, BTreeSet};

use cairn_core::{BlockLayout, Height, HeightRange, RawBlock, StoredBlock, TxStatus};
use cairn_explorer::decode::flow::{AccountChange, TokenMoves, account_event};
use cairn_flow::cdc::CdcValue;
use cairn_flow::evm::{EvmBlock, Executed, decode_payload};
use cairn_flow::{DecodedBlock, EventType, FlowAddress, FlowLayout, Network};
use cairn_flow_node::{Behaviour, FlowNode, Generator, GeneratorOptions, Ledger};
use cairn_source::ChainSource;
use cairn_source::flow::{FlowConfig, FlowSource, NodeConfig};

const NETWORK: Network = Network::Emulator;

async fn source(node: &FlowNode) -> FlowSource {
    let config = NodeConfig { requests_per_s: 0, ..NodeConfig::new(node.url.parse().expect("a URL")) };
    let config = FlowConfig { finality_heights: 5, ..FlowConfig::new(NETWORK, vec![config]) };
    FlowSource::connect(config).await.expect("connects")
}

/// Every sealed block.
async fn all(source: &FlowSource, options: &GeneratorOptions) -> Vec<RawBlock> {
    let tip = source.heads().await.expect("answers").latest.block.height;
    let mut blocks: Vec<RawBlock> = Vec::new();
    loop {
        let next = blocks.last().map_or(options.root_height, |last| last.facts.height.get() + 1);
        if next > tip.get() {
            return blocks;
        }
        let range = HeightRange::inclusive(Height(next), Height(tip.get().min(next + 15)));
        let more = source.blocks(range).await.expect("answers");
        assert!(!more.is_empty(), "the node has no block {next}");
        blocks.extend(more);
    }
}

fn decoded(raw: &RawBlock) -> DecodedBlock {
    DecodedBlock::decode(&StoredBlock::from(raw)).expect("is read")
}

/// Balances and owners that the movements of all blocks sum up to.
#[derive(Default, PartialEq, Debug)]
struct Sums {
    balances: BTreeMap<(String, FlowAddress), i128>,
    owners: BTreeMap<(String, u64), Option<FlowAddress>>,
}

/// Which item a resource is.
type Resources = BTreeMap<u64, (String, u64)>;

impl Sums {
    fn add(&mut self, block: &DecodedBlock, resources: &mut Resources) {
        for tx in &block.transactions {
            let moves = TokenMoves::of(&tx.events, NETWORK);
            assert_eq!(moves.malformed, []);
            for one in moves.fungible {
                let amount = i128::from(one.amount);
                for (party, by) in [(one.from, -amount), (one.to, amount)] {
                    if let Some(party) = party {
                        *self.balances.entry((one.token.clone(), party)).or_default() += by;
                    }
                }
            }
            for one in moves.non_fungible {
                let item = (one.collection, one.id);
                resources.extend(one.uuid.map(|uuid| (uuid, item.clone())));
                self.owners.insert(item, one.to);
            }
            // With its collection: whose it was isn't told.
            for one in moves.destroyed {
                if let Some(item) = resources.get(&one.uuid) {
                    self.owners.insert(item.clone(), None);
                }
            }
        }
        self.balances.retain(|_, balance| *balance != 0);
    }

    fn of(ledger: &Ledger, height: u64) -> Sums {
        let balances = ledger.balances(height).into_iter();
        let owners = ledger.items_at(height).into_iter();
        Sums {
            balances: balances
                .map(|((token, owner), balance)| ((token.to_string(), owner), balance.into()))
                .collect(),
            owners: owners
                .map(|((collection, id), item)| ((collection.to_string(), id), item.told_owner))
                .collect(),
        }
    }
}

#[tokio::test]
async fn a_generated_chain_is_whole_and_has_the_ledgers_balances_owners_and_evm_transactions() {
    let options = GeneratorOptions::new(7);
    let generator = Generator::new(options.clone(), Behaviour::default());
    generator.grow(500);
    let node = FlowNode::serve(generator.state()).await.expect("listens");
    let blocks = all(&source(&node).await, &options).await;
    assert_eq!(blocks.len(), 500);
    let state = node.state();
    let ledger = &state.ledger;
    let (mut sums, mut resources) = (Sums::default(), Resources::new());
    let (mut evm, mut evm_tip) = (0, None);
    let mut kinds = BTreeSet::new();
    let (mut large, mut failed, mut keys, mut system) = (0, 0, 0, BTreeSet::new());
    for (raw, next) in blocks.iter().zip(blocks.iter().skip(1).map(Some).chain([None])) {
        assert!(next.is_none_or(|next| next.facts.parent_id == raw.facts.id));
        let height = raw.facts.height.get();
        let block = decoded(raw);
        let slices = FlowLayout::new(NETWORK).slices(raw).expect("can be cut");
        assert_eq!(slices.events.len(), raw.facts.log_count as usize);
        sums.add(&block, &mut resources);
        assert_eq!(sums, Sums::of(ledger, height), "height {height}");
        let mut executed = Vec::new();
        for (tx, truth) in block.transactions.iter().zip(&ledger.transactions[&height]) {
            assert_eq!((tx.id.as_bytes(), tx.is_system), (&truth.id, truth.is_system));
            assert_eq!(tx.status() == TxStatus::Failed, truth.is_failed);
            failed += usize::from(truth.is_failed);
            if tx.is_system {
                system.insert(tx.id);
            }
            for event in &tx.events {
                large += usize::from(event.payload.len() > 8192);
                let fields = CdcValue::parse_event(&event.payload).expect("is read");
                let name = EventType::parse(&event.event_type).expect("has a type");
                kinds.insert(name.event.to_owned());
                let change = account_event(event).expect("is read");
                keys += usize::from(
                    change.is_some_and(|one| matches!(one.change, AccountChange::KeyAdded { .. })),
                );
                if name.is(NETWORK.accounts().service, "EVM", "TransactionExecuted") {
                    executed.push(Executed::from_event(&fields).expect("is read"));
                }
                if name.is(NETWORK.accounts().service, "EVM", "BlockExecuted") {
                    let block = EvmBlock::from_event(&fields).expect("is read");
                    if let Some((height, hash)) = evm_tip {
                        assert_eq!((block.height, block.parent_hash), (height + 1, hash));
                    }
                    evm_tip = Some((block.height, block.hash));
                }
            }
        }
        let truths = ledger.evm_transactions.get(&height).map(Vec::as_slice).unwrap_or_default();
        assert_eq!(executed.len(), truths.len());
        evm += truths.len();
        for (found, truth) in executed.iter().zip(truths) {
            let tx = decode_payload(&found.payload).expect("is read");
            assert_eq!((found.hash, tx.hash, tx.tx_type), (truth.hash, truth.hash, truth.tx_type));
            assert_eq!((tx.from, tx.to, tx.nonce), (Some(truth.from), truth.to, truth.nonce));
            assert_eq!(
                (tx.value, tx.gas_limit, tx.gas_price),
                (truth.value, truth.gas_limit, truth.gas_price)
            );
            assert_eq!((found.error_code, found.contract_address), (truth.error_code, truth.created));
            assert_eq!(found.logs.len(), truth.logs.len());
            for (log, truth) in found.logs.iter().zip(&truth.logs) {
                assert_eq!(
                    (log.address, &log.topics, &log.data[..]),
                    (truth.address, &truth.topics, &truth.data[..])
                );
            }
        }
    }
    println!(
        "{evm} EVM transactions, {large} large events, {failed} failed transactions, {keys} keys, {kinds:?}"
    );
    assert!(evm > 100 && large > 10 && failed > 50 && keys > 50);
    for kind in [
        "TokensBurned",
        "Burned",
        "Withdraw",
        "NFT.ResourceDestroyed",
        "AccountContractRemoved",
        "AccountKeyRemoved",
        "CadenceOwnedAccountCreated",
        "StorageCapabilityControllerIssued",
        "CapabilityPublished",
        "FLOWTokensWithdrawn",
        "Everything",
        "Executed",
    ] {
        assert!(kinds.contains(kind), "no {kind}");
    }
    assert!(system.len() >= 3, "the chunk's, the scheduler's, and scheduled ones");
}

#[tokio::test]
async fn a_crowd_is_in_the_ledger_as_its_blocks_tell_it() {
    let options = GeneratorOptions {
        crowd: 5,
        transactions: 0..=1,
        rlp_heights: 10,
        old_heights: 20,
        ..GeneratorOptions::new(9)
    };
    let generator = Generator::new(options.clone(), Behaviour::default());
    generator.grow(40);
    let node = FlowNode::serve(generator.state()).await.expect("listens");
    let blocks = all(&source(&node).await, &options).await;
    let (mut sums, mut resources) = (Sums::default(), Resources::new());
    blocks.iter().for_each(|raw| sums.add(&decoded(raw), &mut resources));
    let state = node.state();
    assert_eq!(sums, Sums::of(&state.ledger, 1_039));
    let accounts = state.ledger.accounts.all().count();
    assert!(
        accounts > 39 * 5 && sums.owners.len() > 39 * 5,
        "{accounts} accounts, {} items",
        sums.owners.len()
    );
}

#[tokio::test]
async fn sealed_blocks_are_undone_and_the_ledger_with_them() {
    let options = GeneratorOptions { unsealed_heights: 3, ..GeneratorOptions::new(3) };
    let mut generator = Generator::new(options.clone(), Behaviour::default());
    generator.grow(200);
    let node = FlowNode::serve(generator.state()).await.expect("listens");
    let source = source(&node).await;
    let before = all(&source, &options).await;
    assert_eq!(before.len(), 197, "three aren't sealed");
    let kept = Sums::of(&node.state().ledger, 1_180);
    generator.rollback(20);
    generator.grow(30);
    assert_eq!(Sums::of(&node.state().ledger, 1_179), {
        let (mut sums, mut resources) = (Sums::default(), Resources::new());
        before[..180].iter().for_each(|raw| sums.add(&decoded(raw), &mut resources));
        sums
    });
    let after = all(&source, &options).await;
    assert_eq!(after.len(), 207);
    assert_eq!(before[..180], after[..180]);
    assert!(before[180..].iter().zip(&after[180..]).all(|(before, after)| before.facts.id != after.facts.id));
    let (mut sums, mut resources) = (Sums::default(), Resources::new());
    after.iter().for_each(|raw| sums.add(&decoded(raw), &mut resources));
    assert_eq!(sums, Sums::of(&node.state().ledger, 1_206));
    assert_ne!(kept, Sums::of(&node.state().ledger, 1_180));
}

#[tokio::test]
async fn the_same_seed_is_the_same_chain() {
    let made = |seed| {
        let mut generator = Generator::new(GeneratorOptions::new(seed), Behaviour::default());
        generator.grow(60);
        generator.rollback(10);
        generator.grow(20);
        let state = generator.state();
        let state = state.lock().expect("not poisoned");
        state.chain.blocks().map(|block| block.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(made(1), made(1));
    assert_ne!(made(1)[1..], made(2)[1..]);
}
