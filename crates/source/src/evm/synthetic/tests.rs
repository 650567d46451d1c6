//! The synthetic chain is what it says: valid, deterministic, varied, and forked as asked.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use alloy_consensus::{EthereumTxEnvelope, Transaction, TxEip4844};
use alloy_primitives::Address;
use alloy_rlp::{Decodable, Header};
use cairn_core::{Height, HeightRange, RawBlock, TxStatus};
use cairn_evm::{ChainProfile, Checks, ConsensusBlock, check_block, from_consensus, from_rpc, signature};

use super::*;
use crate::verify::Offload;
use crate::{ChainSource, Heads};

type Envelope = EthereumTxEnvelope<TxEip4844>;

fn tiny(seed: u64) -> SyntheticChain {
    SyntheticChain::new(SyntheticOptions::tiny(seed))
}

/// The transactions of a block, decoded by alloy from its body.
fn transactions(block: &RawBlock) -> Vec<Envelope> {
    let mut body = &block.body[..];
    assert!(Header::decode(&mut body).unwrap().list);
    Vec::<Envelope>::decode(&mut body).unwrap()
}

fn assert_linked_and_valid(chain: &SyntheticChain, fork: ForkId, to: u64) {
    let mut before: Option<Arc<RawBlock>> = None;
    for height in 0..=to {
        let block = chain.block(fork, Height(height));
        assert_eq!(block.facts.height, Height(height));
        if let Some(before) = &before {
            assert_eq!(block.facts.parent_id, before.facts.id, "height {height}");
            assert!(block.facts.timestamp_ms > before.facts.timestamp_ms);
        }
        let unverified = check_block(&block, &ChainProfile::default());
        assert_eq!(unverified, Ok(Checks::empty()), "height {height}");
        assert_eq!(chain.linked_ref(fork, Height(height)), block.facts.linked_ref());
        before = Some(block);
    }
}

/// Every sender's nonces begin at 0 and grow by one, and no id comes twice.
fn assert_transactions_in_order(chain: &SyntheticChain, fork: ForkId, to: u64) -> usize {
    let mut next: HashMap<Address, u64> = HashMap::new();
    let mut ids = HashSet::new();
    for height in 0..=to {
        let block = chain.block(fork, Height(height));
        for (tx, facts) in transactions(&block).iter().zip(&block.transactions) {
            let sender = signature::recover(tx.signature(), tx.signature_hash()).unwrap();
            assert_eq!(sender.as_slice(), &facts.sender[..]);
            let nonce = next.entry(sender).or_default();
            assert_eq!(tx.nonce(), *nonce, "{sender} at height {height}");
            *nonce += 1;
            assert!(ids.insert(facts.id));
        }
    }
    ids.len()
}

#[test]
fn every_block_holds_against_every_check() {
    let chain = SyntheticChain::new(SyntheticOptions::default());
    assert_linked_and_valid(&chain, ForkId::MAIN, 40);
    assert!(assert_transactions_in_order(&chain, ForkId::MAIN, 40) > 200);
}

#[test]
fn the_codec_reads_the_same_block_from_its_consensus_bytes() {
    let chain = SyntheticChain::new(SyntheticOptions::default());
    let traffic = chain.traffic();
    let txs: Vec<_> = (0..60).map(|g| (traffic.tx(9, g), g % 7 != 0)).collect();
    let contents = assemble::contents(&txs, &assemble::withdrawals(1, 3, 2));
    let words = assemble::HeaderWords { seed: 1, fork_salt: 0, gas_limit: 30_000_000, timestamp_s: 5 };
    let header = assemble::header(3, None, &contents, &words);
    let receipts = contents.consensus_receipts.iter().map(|bytes| bytes.clone().into()).collect();
    let (_, sealed) = assemble::seal(&header, contents, 0);
    let consensus = ConsensusBlock { header: sealed.header.clone(), body: sealed.body.clone(), receipts };
    assert_eq!(from_consensus(&consensus).unwrap(), sealed);
}

#[test]
fn the_same_options_give_the_same_chain_in_whatever_order_it_is_asked() {
    let (one, other) = (tiny(5), tiny(5));
    let of_one: Vec<_> = (0..60).map(|height| one.block(ForkId::MAIN, Height(height))).collect();
    for height in (0..60).rev() {
        assert_eq!(other.block(ForkId::MAIN, Height(height)), of_one[height as usize]);
    }
    assert_ne!(tiny(6).block_ref(ForkId::MAIN, Height(0)), one.block_ref(ForkId::MAIN, Height(0)));
    // Kept: a change of this id changes every seed that was ever reported.
    assert_eq!(one.block_ref(ForkId::MAIN, Height(59)).id.to_string(), GOLDEN_ID);
}

const GOLDEN_ID: &str = "0x18370b3047f68bdf598ef2cd98c9e444cc9421f1b6c2510c43976aadd228a40b";

#[test]
fn a_block_that_left_the_cache_is_made_again() {
    let kept = tiny(3);
    let dropped = SyntheticChain::new(SyntheticOptions { cache_bytes: 0, ..SyntheticOptions::tiny(3) });
    let fork = |chain: &SyntheticChain| chain.fork_at((ForkId::MAIN, Height(20)), ForkOptions::new(4));
    let forks = (fork(&kept), fork(&dropped));
    for height in [30, 5, 29, 21, 20, 0] {
        assert_eq!(kept.block(forks.0, Height(height)), dropped.block(forks.1, Height(height)));
    }
}

#[test]
fn chains_on_one_traffic_carry_the_same_transactions_under_other_headers() {
    let traffic = SyntheticChain::tiny_traffic();
    let of = |seed| SyntheticChain::with_traffic(SyntheticOptions::tiny(seed), Arc::clone(&traffic));
    let (one, other) = (of(1), of(9));
    let ids = |chain: &SyntheticChain| -> Vec<_> {
        let blocks = (0..50).map(|height| chain.block(ForkId::MAIN, Height(height)));
        blocks
            .flat_map(|block| block.transactions.iter().map(|tx| tx.id).collect::<Vec<_>>())
            .take(40)
            .collect()
    };
    assert_eq!(ids(&one), ids(&other));
    assert_ne!(one.block_ref(ForkId::MAIN, Height(1)), other.block_ref(ForkId::MAIN, Height(1)));
    assert_ne!(ids(&one), ids(&of(2)));
    assert_linked_and_valid(&other, ForkId::MAIN, 50);
}

#[test]
fn there_is_some_of_everything() {
    let chain = SyntheticChain::new(SyntheticOptions::default());
    let (mut empty, mut failed, mut creations, mut types) = (0, 0, 0, [0; 3]);
    let mut senders: HashMap<Vec<u8>, u32> = HashMap::new();
    let mut shapes: HashMap<(usize, usize), u32> = HashMap::new();
    let total = 120;
    for height in 1..=total {
        let block = chain.block(ForkId::MAIN, Height(height));
        empty += u32::from(block.transactions.is_empty());
        failed += block.transactions.iter().filter(|tx| tx.status == TxStatus::Failed).count();
        for (tx, facts) in transactions(&block).iter().zip(&block.transactions) {
            types[usize::from(tx.tx_type() as u8)] += 1;
            creations += u32::from(tx.to().is_none());
            *senders.entry(facts.sender.to_vec()).or_default() += 1;
        }
        for log in logs(&block) {
            *shapes.entry((log.topics().len(), log.data.data.len())).or_default() += 1;
        }
    }
    assert!(
        empty > 2 && failed > 10 && creations > 5,
        "{empty} empty, {failed} failed, {creations} creations"
    );
    assert!(types.iter().all(|count| *count > 50), "{types:?}");
    let some = |topics, data| shapes.get(&(topics, data)).is_some_and(|count| *count > 2);
    // ERC-20 (3 topics, 32 bytes), ERC-721 (4, none), ERC-1155 single (4, 64), deposits (2, 32), swaps (3, 128), LOG0 (0).
    assert!(some(3, 32) && some(4, 0) && some(4, 64) && some(2, 32) && some(3, 128), "{shapes:?}");
    assert!(some(0, 0) || some(0, 32) || some(0, 64), "{shapes:?}");
    let most = senders.values().max().copied().unwrap_or_default();
    let all: u32 = senders.values().sum();
    assert!(
        senders.len() > 50 && most > all / 8,
        "{} senders, the busiest sent {most} of {all}",
        senders.len()
    );
}

/// The logs of a block, decoded by alloy.
fn logs(block: &RawBlock) -> Vec<alloy_primitives::Log> {
    let mut receipts = &block.receipts[..];
    let mut payload = Header::decode_bytes(&mut receipts, true).unwrap();
    let mut logs = Vec::new();
    while !payload.is_empty() {
        let mut receipt = Header::decode_bytes(&mut payload, true).unwrap();
        for _ in 0..3 {
            Header::decode_bytes(&mut receipt, false).unwrap();
        }
        logs.extend(Vec::<alloy_primitives::Log>::decode(&mut receipt).unwrap());
    }
    logs
}

#[test]
fn a_fork_shares_what_is_below_it_and_carries_some_transactions_again() {
    let chain = SyntheticChain::new(SyntheticOptions { txs_per_block: 2..=6, ..SyntheticOptions::tiny(11) });
    let fork = chain.fork_at((ForkId::MAIN, Height(30)), ForkOptions::new(1));
    assert_eq!(fork, chain.fork_at((ForkId::MAIN, Height(30)), ForkOptions::new(1)));
    let second = chain.fork_at((fork, Height(33)), ForkOptions::new(1));
    let beside = chain.fork_at((fork, Height(25)), ForkOptions::new(2));
    for fork in [ForkId::MAIN, fork, second, beside] {
        assert_linked_and_valid(&chain, fork, 45);
        assert_transactions_in_order(&chain, fork, 45);
    }
    assert_eq!(chain.common(ForkId::MAIN, fork), Height(30));
    assert_eq!(chain.common(second, fork), Height(33));
    assert_eq!(chain.common(second, ForkId::MAIN), Height(30));
    assert_eq!(chain.common(beside, second), Height(25));
    for (a, b) in [(ForkId::MAIN, fork), (second, fork), (second, ForkId::MAIN), (beside, second)] {
        let common = chain.common(a, b);
        assert_eq!(chain.block(a, common), chain.block(b, common));
        assert_ne!(chain.block_ref(a, common + 1), chain.block_ref(b, common + 1));
    }

    let places = |fork: ForkId| -> HashMap<_, _> {
        let blocks = (31..=45).map(|height| chain.block(fork, Height(height)));
        let of_block = |block: Arc<RawBlock>| {
            let place = |(at, tx): (usize, &cairn_core::TxFacts)| (tx.id, (block.facts.height, at));
            block.transactions.iter().enumerate().map(place).collect::<Vec<_>>()
        };
        blocks.flat_map(of_block).collect()
    };
    let (on_main, on_fork) = (places(ForkId::MAIN), places(fork));
    let again = on_fork.iter().filter(|(id, _)| on_main.contains_key(id)).count();
    let moved =
        on_fork.iter().filter(|(id, place)| on_main.get(id).is_some_and(|there| there != *place)).count();
    assert!(again > on_fork.len() / 2 && again < on_fork.len(), "{again} of {}", on_fork.len());
    assert!(moved > again / 4, "{moved} of {again}");
}

#[test]
fn the_first_block_of_a_fork_is_what_was_asked_for() {
    let chain = SyntheticChain::new(SyntheticOptions { txs_per_block: 3..=3, ..SyntheticOptions::tiny(12) });
    let at = |first_block| ForkOptions { first_block, ..ForkOptions::new(7) };
    let empty = chain.fork_at((ForkId::MAIN, Height(9)), at(FirstBlock::Empty));
    let same = chain.fork_at((ForkId::MAIN, Height(9)), at(FirstBlock::SameTransactions));
    let replaced = chain.block(ForkId::MAIN, Height(10));
    assert!(chain.block(empty, Height(10)).transactions.is_empty());
    let block = chain.block(same, Height(10));
    assert_eq!(block.body, replaced.body);
    assert_ne!(block.facts.id, replaced.facts.id);
    for fork in [empty, same] {
        assert_linked_and_valid(&chain, fork, 15);
        assert_transactions_in_order(&chain, fork, 15);
    }
}

#[test]
fn a_mock_node_can_serve_it_as_json() {
    let chain = SyntheticChain::new(SyntheticOptions::default());
    for height in 0..12 {
        let block = chain.block(ForkId::MAIN, Height(height));
        let (json, receipts) = to_rpc_json(&block).unwrap();
        assert_eq!(json["hash"], block.facts.id.to_string());
        assert_eq!(json["parentHash"], block.facts.parent_id.to_string());
        assert_eq!(json["number"], format!("{height:#x}"));
        assert_eq!(json["transactions"].as_array().unwrap().len(), block.transactions.len());
        assert_eq!(receipts.len(), block.transactions.len());
        let logs = receipts.iter().flat_map(|receipt| receipt["logs"].as_array().unwrap());
        for (at, log) in logs.clone().enumerate() {
            assert_eq!(log["logIndex"], format!("{at:#x}"));
            assert_eq!(log["blockHash"], json["hash"]);
        }
        assert_eq!(logs.count() as u32, block.facts.log_count);
        assert_eq!(from_rpc(json, receipts, &ChainProfile::default()).unwrap(), *block);
    }
}

#[tokio::test]
async fn e01_a_node_may_announce_what_it_does_not_serve_yet() {
    let node = ViewOfChain::new(Arc::new(tiny(1)), View::new(ForkId::MAIN, Height(100)));
    node.set(View { served_to: Some(Height(99)), finalized: Some(Height(90)), ..node.view() });
    let heads = node.heads().await.unwrap();
    assert_eq!(heads.latest.block.height, Height(100));
    assert_eq!(heads.finalized, Some(node.chain().block_ref(ForkId::MAIN, Height(90))));
    assert_eq!(node.linked_ref(Height(100)).await.unwrap(), None);
    assert!(node.blocks(HeightRange::one(Height(100))).await.unwrap().is_empty());
    let served = node.blocks(HeightRange::new(Height(95), Height(101))).await.unwrap();
    assert_eq!(served.last().unwrap().facts.height, Height(99));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_follower_wakes_when_the_view_moves() {
    let node = Arc::new(ViewOfChain::new(Arc::new(tiny(1)), View::new(ForkId::MAIN, Height(1))));
    let waiting = {
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            let begun = tokio::time::Instant::now();
            node.wait_for_head(60_000).await;
            begun.elapsed().as_millis()
        })
    };
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    node.set(View::new(ForkId::MAIN, Height(2)));
    assert_eq!(waiting.await.unwrap(), 500);
}

#[tokio::test(start_paused = true)]
async fn the_live_chain_grows_with_time_and_forks_now_and_then() {
    let chain = Arc::new(tiny(21));
    let options = LiveOptions {
        start_height: 100,
        block_time_ms: 1_000,
        until_height: Some(1_000),
        offload: Offload::Inline,
        ..LiveOptions::default()
    };
    let (deepest, finality) = (options.fork_depth_max_heights, options.finality_depth_heights);
    let source = SyntheticSource::new(Arc::clone(&chain), options);
    source.prepare().await.unwrap();
    assert_eq!(source.blocks(HeightRange::new(Height(0), Height(500))).await.unwrap().len(), 64);
    let mut depths: HashMap<u64, u32> = HashMap::new();
    let mut at_same_height = 0;
    let mut before: Heads = source.heads().await.unwrap();
    let mut fork_before = ForkId::MAIN;
    loop {
        source.wait_for_head(60_000).await;
        let heads = source.heads().await.unwrap();
        let fork = source.view().fork;
        assert!(heads.latest.block.height >= before.latest.block.height);
        assert!(heads.finalized.unwrap().height >= before.finalized.unwrap().height);
        let finalized = heads.finalized.unwrap();
        assert_eq!(finalized, chain.block_ref(ForkId::MAIN, finalized.height), "finalised on a side branch");
        let common = chain.common(fork_before, fork).0;
        if common < before.latest.block.height.0 {
            *depths.entry(before.latest.block.height.0 - common).or_default() += 1;
            at_same_height += u32::from(heads.latest.block.height == before.latest.block.height);
        }
        (before, fork_before) = (heads, fork);
        if heads.latest.block.height == Height(1_000) {
            break;
        }
    }
    assert_eq!(source.view().fork, ForkId::MAIN);
    let forks: u32 = depths.values().sum();
    assert!((20..=25).contains(&forks), "{depths:?}");
    assert!(
        depths.keys().all(|depth| *depth <= deepest && *depth < finality) && depths.len() > 3,
        "{depths:?}"
    );
    assert!(at_same_height > 5 && at_same_height < forks, "{at_same_height} of {forks}");
    tokio::time::sleep(std::time::Duration::from_secs(3_600)).await;
    assert_eq!(source.heads().await.unwrap().latest.block.height, Height(1_000));
}

#[tokio::test(start_paused = true)]
async fn in_steps_whoever_follows_slowly_sees_every_block_of_every_fork() {
    let followed = async |pause_ms: u64| {
        let options = LiveOptions {
            start_height: 50,
            block_time_ms: 10,
            until_height: Some(170),
            in_steps: true,
            offload: Offload::Inline,
            ..LiveOptions::default()
        };
        let source = SyntheticSource::new(Arc::new(tiny(21)), options);
        let mut seen = Vec::new();
        for _ in 0..1_000 {
            // Nobody took the newest block: it waits, however long that is.
            let head = source.heads().await.unwrap().latest.block;
            tokio::time::sleep(std::time::Duration::from_millis(pause_ms)).await;
            source.wait_for_head(60_000).await;
            if seen.last() != Some(&head) {
                assert_eq!(source.heads().await.unwrap().latest.block, head);
                seen.push(head);
            }
            source.blocks(HeightRange::one(head.height)).await.unwrap();
            source.wait_for_head(60_000).await;
        }
        seen
    };
    let seen = followed(1).await;
    assert_eq!(seen, followed(5_000).await);
    assert_eq!(seen.last().unwrap().height, Height(170));
    let heights: HashSet<Height> = seen.iter().map(|block| block.height).collect();
    assert_eq!(heights.len(), 121, "no height is left out");
    let replaced = seen.windows(2).filter(|pair| pair[1].height <= pair[0].height).count();
    assert!(seen.len() > heights.len() && replaced > 0, "{replaced} replaced at their height");
}
