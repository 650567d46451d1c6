//! A source that lies is never let through.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use alloy_consensus::Header;
use alloy_primitives::{Bloom, keccak256};
use alloy_rlp::Decodable;
use bytes::Bytes;
use cairn_core::{BlockId, TxStatus};
use cairn_evm::check_block;
use proptest::prelude::*;

use super::*;
use crate::evm::synthetic::{
    FirstBlock, ForkId, ForkOptions, SyntheticChain, SyntheticOptions, View, ViewOfChain,
};

type Lie = Box<dyn Fn(u32, HeightRange, Vec<RawBlock>) -> Result<Vec<RawBlock>> + Send + Sync>;

/// Tells the truth about a chain, but for what `lie` makes of each answer; it hears which call this is, from 0.
struct Liar {
    truth: ViewOfChain,
    calls: AtomicU32,
    distrusted: AtomicU32,
    lie: Lie,
}

#[async_trait]
impl ChainSource for Liar {
    async fn chain_id(&self) -> Result<ChainId> {
        self.truth.chain_id().await
    }
    async fn heads(&self) -> Result<Heads> {
        self.truth.heads().await
    }
    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        self.truth.linked_ref(height).await
    }
    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        (self.lie)(call, range, self.truth.blocks(range).await?)
    }
    fn distrust(&self, _height: Height) {
        self.distrusted.fetch_add(1, Ordering::Relaxed);
    }
}

/// Three transactions a block, each with logs or none; heights up to 60.
fn chain() -> Arc<SyntheticChain> {
    Arc::new(SyntheticChain::new(SyntheticOptions { txs_per_block: 3..=3, ..SyntheticOptions::tiny(7) }))
}

fn verified(
    options: VerifyOptions,
    lie: impl Fn(u32, HeightRange, Vec<RawBlock>) -> Result<Vec<RawBlock>> + Send + Sync + 'static,
) -> Verified<Liar> {
    let truth = ViewOfChain::new(chain(), View::new(ForkId::MAIN, Height(60)));
    Verified::new(
        Liar { truth, calls: AtomicU32::new(0), distrusted: AtomicU32::new(0), lie: Box::new(lie) },
        options,
    )
}

fn inline() -> VerifyOptions {
    VerifyOptions { offload: Offload::Inline, bloom_retry_pause_ms: 1, ..VerifyOptions::default() }
}

fn relaxing(checks: Checks) -> VerifyOptions {
    VerifyOptions { profile: ChainProfile::relaxing(checks), ..inline() }
}

/// Asks for heights 10 to 15 of a source that spoils the block at height `at`, and gives what came through.
async fn spoiled(at: u64, spoil: impl Fn(&mut RawBlock) + Send + Sync + 'static) -> Result<Vec<RawBlock>> {
    let source = verified(inline(), move |_, _, mut blocks| {
        blocks.iter_mut().filter(|block| block.facts.height == Height(at)).for_each(&spoil);
        Ok(blocks)
    });
    source.blocks(HeightRange::new(Height(10), Height(16))).await
}

/// The lie is named by its check where it comes first, and cuts the answer where it comes later.
async fn assert_caught(check: &str, spoil: impl Fn(&mut RawBlock) + Clone + Send + Sync + 'static) {
    match spoiled(10, spoil.clone()).await {
        Err(error @ SourceError::Inconsistent { .. }) => {
            let text = error.to_string();
            assert!(text.contains(&format!("block 10 from source failed check `{check}`")), "{text}");
            assert!(error.kind().is_retryable());
        }
        other => panic!("let through: {other:?}"),
    }
    let before = spoiled(13, spoil).await.unwrap();
    let truth = chain();
    let expected: Vec<RawBlock> =
        (10..13).map(|height| RawBlock::clone(&truth.block(ForkId::MAIN, Height(height)))).collect();
    assert_eq!(before, expected);
}

/// Puts another header over the block, as a node would that believes in it.
fn with_header(block: &mut RawBlock, change: impl Fn(&mut Header)) {
    let mut header = Header::decode(&mut &block.header[..]).unwrap();
    change(&mut header);
    block.header = alloy_rlp::encode(&header).into();
    block.facts.id = BlockId(keccak256(&block.header).0);
    block.facts.timestamp_ms = header.timestamp * 1_000;
}

/// The receipts of the block as it would be without the last receipt's logs.
fn without_logs(block: &mut RawBlock) {
    let mut list = &block.receipts[..];
    let mut items = alloy_rlp::Header::decode_bytes(&mut list, true).unwrap();
    let mut receipts = Vec::new();
    while !items.is_empty() {
        let mut receipt = alloy_rlp::Header::decode_bytes(&mut items, true).unwrap();
        let mut fields = Vec::new();
        for _ in 0..3 {
            let before = receipt;
            alloy_rlp::Header::decode_bytes(&mut receipt, false).unwrap();
            fields.extend(&before[..before.len() - receipt.len()]);
        }
        fields.push(alloy_rlp::EMPTY_LIST_CODE);
        alloy_rlp::Header { list: true, payload_length: fields.len() }.encode(&mut receipts);
        receipts.extend(fields);
    }
    let mut encoded = Vec::new();
    alloy_rlp::Header { list: true, payload_length: receipts.len() }.encode(&mut encoded);
    encoded.extend(receipts);
    block.receipts = encoded.into();
    block.facts.log_count = 0;
    block.log_terms.clear();
}

#[tokio::test]
async fn the_truth_comes_through_unchanged_on_whatever_threads() {
    let truth = chain();
    for offload in [Offload::Inline, Offload::Blocking] {
        let source =
            verified(VerifyOptions { offload, parallelism: 3, ..inline() }, |_, _, blocks| Ok(blocks));
        let mut expected = Height(0);
        while expected <= Height(60) {
            let blocks = source.blocks(HeightRange::new(expected, Height(100))).await.unwrap();
            assert_eq!(blocks.len() as u64, 16.min(61 - expected.0));
            for block in blocks {
                assert_eq!(block, *truth.block(ForkId::MAIN, expected));
                expected = expected.next();
            }
        }
        assert!(source.blocks(HeightRange::one(Height(61))).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn receipts_of_another_fork_are_caught() {
    // The same transactions under another outcome, as a balancer gives them between two nodes.
    let truth = chain();
    let fork = |base| {
        let options = ForkOptions { first_block: FirstBlock::SameTransactions, ..ForkOptions::new(3) };
        truth.fork_at((ForkId::MAIN, Height(base)), options)
    };
    let blocks: Vec<_> = [9, 12].map(|base| truth.block(fork(base), Height(base + 1))).into();
    let other: Vec<_> =
        blocks.iter().map(|block| truth.block(ForkId::MAIN, block.facts.height + 1)).collect();
    let at = |blocks: &[Arc<RawBlock>], height: Height, plus: u64| {
        blocks.iter().find(|block| block.facts.height == height + plus).cloned().unwrap()
    };
    // Whether or not the facts follow the receipts, the root doesn't.
    assert_caught("receipts-root", move |block| {
        let theirs = at(&other, block.facts.height, 1);
        block.receipts = theirs.receipts.clone();
        block.facts.log_count = theirs.facts.log_count;
        for (tx, their) in block.transactions.iter_mut().zip(&theirs.transactions) {
            tx.status = their.status;
        }
    })
    .await;
    assert_caught("transactions-root", move |block| {
        let theirs = truth.block(ForkId::MAIN, block.facts.height + 1);
        block.body = theirs.body.clone();
        block.transactions = theirs.transactions.clone();
    })
    .await;
}

#[tokio::test]
async fn wrong_facts_are_caught() {
    assert_caught("senders", |block| block.transactions[1].sender = Bytes::from(vec![7; 20])).await;
    assert_caught("senders", |block| block.transactions[1].sender = Bytes::new()).await;
    assert_caught("transactions-root", |block| block.transactions[1].id.0[3] ^= 1).await;
    assert_caught("transactions-root", |block| block.transactions.swap(0, 2)).await;
    assert_caught("transactions-root", |block| block.facts.tx_count += 1).await;
    assert_caught("receipts-root", |block| block.facts.log_count += 1).await;
    assert_caught("receipts-root", |block| {
        let status = &mut block.transactions[0].status;
        *status = if *status == TxStatus::Ok { TxStatus::Failed } else { TxStatus::Ok };
    })
    .await;
    assert_caught("header-hash", |block| block.facts.timestamp_ms += 1_000).await;
    assert_caught("header-hash", |block| block.facts.id.0[31] ^= 1).await;
    assert_caught("height", |block| block.facts.height = block.facts.height + 1).await;
}

#[tokio::test]
async fn logs_that_were_left_out_are_caught() {
    assert_caught("receipts-root", without_logs).await;
}

#[tokio::test]
async fn a_header_that_does_not_fit_its_block_is_caught() {
    // Every root and hash in the header, under an id that is the header's own.
    assert_caught("transactions-root", |block| {
        with_header(block, |header| header.transactions_root.0[0] ^= 1)
    })
    .await;
    assert_caught("receipts-root", |block| with_header(block, |header| header.receipts_root.0[0] ^= 1)).await;
    assert_caught("ommers-hash", |block| with_header(block, |header| header.ommers_hash.0[0] ^= 1)).await;
    assert_caught("withdrawals-root", |block| {
        with_header(block, |header| header.withdrawals_root = Some(keccak256("other")));
    })
    .await;
    assert_caught("withdrawals-root", |block| {
        // A header from before Shanghai over a body with withdrawals.
        with_header(block, |header| {
            header.withdrawals_root = None;
            (header.blob_gas_used, header.excess_blob_gas, header.parent_beacon_block_root) =
                (None, None, None);
        });
    })
    .await;
    assert_caught("header-hash", |block| with_header(block, |header| header.number += 1)).await;
    assert_caught("receipts-root", |block| with_header(block, |header| header.gas_used += 1)).await;
    assert_caught("header-hash", |block| block.facts.parent_id.0[0] ^= 1).await;
}

#[tokio::test]
async fn blocks_that_were_not_asked_for_do_not_come_through() {
    let source = verified(inline(), |_, _, _| {
        let truth = chain();
        Ok((10..30).map(|height| RawBlock::clone(&truth.block(ForkId::MAIN, Height(height)))).collect())
    });
    assert_eq!(source.blocks(HeightRange::new(Height(10), Height(14))).await.unwrap().len(), 4);
    let error = source.blocks(HeightRange::one(Height(9))).await.unwrap_err().to_string();
    assert!(error.contains("failed check `height`: asked for height 9, got 10"), "{error}");
}

#[tokio::test]
async fn e17_an_answer_of_two_forks_is_cut_where_it_stops_linking() {
    let source = verified(inline(), |call, range, mut blocks| {
        let truth = chain();
        let fork = truth.fork_at((ForkId::MAIN, Height(8)), ForkOptions::new(5));
        for block in &mut blocks {
            // The node imported the other fork between two items.
            if call == 0 && block.facts.height > range.start() {
                *block = RawBlock::clone(&truth.block(fork, block.facts.height));
            }
        }
        Ok(blocks)
    });
    let range = HeightRange::new(Height(10), Height(13));
    let first = source.blocks(range).await.unwrap();
    assert_eq!(first.iter().map(|block| block.facts.height.0).collect::<Vec<_>>(), [10]);
    assert_eq!(source.blocks(range).await.unwrap().len(), 3);
}

#[tokio::test]
async fn e10_receipts_without_a_transaction_are_refused_and_nothing_is_taken() {
    assert_caught("receipts-root", |block| {
        let truth = chain();
        let longer = SyntheticChain::with_traffic(
            SyntheticOptions { txs_per_block: 4..=4, ..truth.options().clone() },
            SyntheticChain::tiny_traffic(),
        );
        block.receipts = longer.block(ForkId::MAIN, Height(4)).receipts.clone();
    })
    .await;
    // With facts for it as well: the state-sync receipt of a chain that has none.
    assert_caught("extra-receipts", |block| {
        let extra = block.transactions[2].clone();
        block.transactions.push(extra);
        block.facts.tx_count += 1;
        let mut receipts = Vec::new();
        let mut items = &block.receipts[..];
        let payload = alloy_rlp::Header::decode_bytes(&mut items, true).unwrap();
        let receipt = [0xc4, 0x80, 0x01, 0x80, 0xc0];
        alloy_rlp::Header { list: true, payload_length: payload.len() + receipt.len() }.encode(&mut receipts);
        receipts.extend(payload);
        receipts.extend(receipt);
        block.receipts = receipts.into();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn e03_a_wrongly_empty_answer_is_asked_for_again() {
    // The receipts of no transaction at all, twice; then the truth.
    let source = verified(inline(), |call, _, mut blocks| {
        if call < 2 {
            blocks[0].receipts = vec![alloy_rlp::EMPTY_LIST_CODE].into();
        }
        Ok(blocks)
    });
    let range = HeightRange::one(Height(20));
    for _ in 0..2 {
        assert!(source.blocks(range).await.unwrap_err().kind().is_retryable());
    }
    assert_eq!(source.blocks(range).await.unwrap()[0], *chain().block(ForkId::MAIN, Height(20)));
    assert_eq!(source.inner().distrusted.load(Ordering::Relaxed), 2);

    // The logs left out, on a chain whose receipts root can't be checked: the bloom is what tells.
    let height = height_with_logs();
    let source = verified(relaxing(Checks::RECEIPTS_ROOT), |call, _, mut blocks| {
        if call < 2 {
            blocks.iter_mut().for_each(without_logs);
        }
        Ok(blocks)
    });
    let blocks = source.blocks(HeightRange::one(height)).await.unwrap();
    assert_eq!(source.inner().calls.load(Ordering::Relaxed), 3);
    assert_eq!(source.inner().distrusted.load(Ordering::Relaxed), 2);
    assert_eq!(blocks[0].facts.unverified, Checks::RECEIPTS_ROOT.bits());
    assert_eq!(blocks[0].receipts, chain().block(ForkId::MAIN, height).receipts);
}

fn height_with_logs() -> Height {
    let truth = chain();
    let logs_at = |height: &u64| truth.block(ForkId::MAIN, Height(*height)).facts.log_count > 0;
    Height((10..60).find(logs_at).unwrap())
}

#[tokio::test(start_paused = true)]
async fn e03_a_bloom_that_stays_wrong_is_taken_and_marked() {
    let height = height_with_logs();
    let spoil = |_, _, mut blocks: Vec<RawBlock>| {
        blocks
            .iter_mut()
            .for_each(|block| with_header(block, |header| header.logs_bloom = Bloom::repeat_byte(1)));
        Ok(blocks)
    };
    let source = verified(relaxing(Checks::SENDERS), spoil);
    let blocks = source.blocks(HeightRange::one(height)).await.unwrap();
    assert_eq!(source.inner().calls.load(Ordering::Relaxed), 3);
    assert_eq!(blocks[0].facts.unverified, (Checks::BLOOM | Checks::SENDERS).bits());

    // Without retries it is taken at once.
    let source = verified(VerifyOptions { bloom_retries: 0, ..inline() }, spoil);
    let blocks = source.blocks(HeightRange::one(height)).await.unwrap();
    assert_eq!(
        (blocks[0].facts.unverified, source.inner().calls.load(Ordering::Relaxed)),
        (Checks::BLOOM.bits(), 1)
    );
}

#[tokio::test(start_paused = true)]
async fn e03_blooms_that_are_always_wrong_are_learned_and_mended_ones_are_not() {
    let spoil = |blocks: &mut Vec<RawBlock>| {
        blocks
            .iter_mut()
            .for_each(|block| with_header(block, |header| header.logs_bloom = Bloom::repeat_byte(1)));
    };
    let one = |height: u64| HeightRange::one(Height(height));
    let source = verified(inline(), move |_, _, mut blocks| {
        spoil(&mut blocks);
        Ok(blocks)
    });
    let mut calls = Vec::new();
    for height in 20..26 {
        let blocks = source.blocks(one(height)).await.unwrap();
        assert_eq!(blocks[0].facts.unverified, Checks::BLOOM.bits());
        calls.push(source.inner().calls.swap(0, Ordering::Relaxed));
    }
    assert_eq!(calls, [3, 3, 3, 1, 1, 1]);

    // A wrong bloom that mends itself is the mark of missing logs: it is asked about each time.
    let source = verified(inline(), move |call, _, mut blocks| {
        if call % 2 == 0 {
            spoil(&mut blocks);
        }
        Ok(blocks)
    });
    for height in 20..26 {
        assert_eq!(source.blocks(one(height)).await.unwrap()[0].facts.unverified, 0);
        assert_eq!(source.inner().calls.swap(0, Ordering::Relaxed), 2);
    }
}

#[tokio::test]
async fn a_refused_block_names_its_height_its_check_and_the_way_out() {
    let error =
        spoiled(10, |block| block.transactions[1].sender = Bytes::from(vec![7; 20])).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("block 10 ") && text.contains("`senders`") && text.contains("`--relax senders`"),
        "{text}"
    );
    assert_eq!((error.height(), error.check()), (Some(Height(10)), Some("senders")));
    let error = spoiled(10, |block| block.facts.height = block.facts.height + 1).await.unwrap_err();
    assert!(!error.to_string().contains("--relax"), "nothing can be relaxed: {error}");
}

#[tokio::test(start_paused = true)]
async fn e03_answers_that_differ_each_time_are_not_believed() {
    let height = height_with_logs();
    let spoil = |call: u32, _: HeightRange, mut blocks: Vec<RawBlock>| {
        let bloom = Bloom::repeat_byte(call as u8 + 1);
        blocks.iter_mut().for_each(|block| with_header(block, |header| header.logs_bloom = bloom));
        Ok(blocks)
    };
    let error = verified(inline(), spoil).blocks(HeightRange::one(height)).await.unwrap_err();
    assert!(matches!(&error, SourceError::Inconsistent { check, .. } if check == "bloom"), "{error}");

    // Nor is a single answer where nothing came after it.
    let once = move |call: u32, range, blocks: Vec<RawBlock>| {
        if call == 0 { spoil(call, range, blocks) } else { Ok(Vec::new()) }
    };
    assert!(verified(inline(), once).blocks(HeightRange::one(height)).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_reorg_while_a_bloom_is_settled_ends_the_answer() {
    let height = height_with_logs();
    let source = verified(inline(), move |call, _, mut blocks| {
        let truth = chain();
        let fork = truth.fork_at((ForkId::MAIN, height - 2), ForkOptions::new(5));
        for block in &mut blocks {
            match call {
                0 if block.facts.height == height => {
                    // Nothing after it links, but it is not the first of the answer.
                    with_header(block, |header| header.logs_bloom = Bloom::repeat_byte(1));
                }
                0 => {}
                _ => *block = RawBlock::clone(&truth.block(fork, block.facts.height)),
            }
        }
        Ok(blocks)
    });
    let blocks = source.blocks(HeightRange::new(height - 2, height + 3)).await.unwrap();
    assert_eq!(blocks.len(), 2);
}

#[tokio::test]
async fn relaxed_checks_are_noted_in_the_facts() {
    let relaxed = ChainProfile::parse_relaxations("senders,ommers-hash").unwrap();
    let source = verified(relaxing(relaxed), |_, _, mut blocks| {
        blocks[0].transactions[0].sender = Bytes::from(vec![7; 20]);
        Ok(blocks)
    });
    let blocks = source.blocks(HeightRange::new(Height(5), Height(8))).await.unwrap();
    assert!(blocks.iter().all(|block| block.facts.unverified == relaxed.bits()));
}

#[tokio::test]
async fn senders_that_the_source_recovered_are_not_recovered_again() {
    let options = VerifyOptions { senders: SendersAre::RecoveredHere, ..inline() };
    let source = verified(options, |_, _, mut blocks| {
        blocks[0].transactions[0].sender = Bytes::from(vec![7; 20]);
        Ok(blocks)
    });
    let blocks = source.blocks(HeightRange::one(Height(5))).await.unwrap();
    assert_eq!((blocks.len(), blocks[0].facts.unverified), (1, 0));
}

#[tokio::test]
async fn errors_of_the_source_are_passed_on() {
    let limited =
        || SourceError::RateLimited { endpoint: "a".into(), message: "slow".into(), retry_after_ms: Some(5) };
    let source = verified(inline(), move |_, _, _| Err(limited()));
    let error = source.blocks(HeightRange::one(Height(5))).await.unwrap_err();
    assert!(matches!(error, SourceError::RateLimited { retry_after_ms: Some(5), .. }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever byte of a block's header, body or receipts is another one, the block is refused.
    #[test]
    fn any_changed_byte_is_caught(height in 0u64..20, part in 0usize..3, at in any::<prop::sample::Index>(), flip in 1u8..) {
        thread_local!(static CHAIN: Arc<SyntheticChain> = Arc::new(SyntheticChain::new(SyntheticOptions {
            txs_per_block: 2..=12,
            signers: 16,
            ..SyntheticOptions::default()
        })));
        let mut block = CHAIN.with(|chain| RawBlock::clone(&chain.block(ForkId::MAIN, Height(height))));
        prop_assert_eq!(check_block(&block, &ChainProfile::default()), Ok(Checks::empty()));
        let part = match part {
            0 => &mut block.header,
            1 => &mut block.body,
            _ => &mut block.receipts,
        };
        let mut bytes = part.to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        let became = bytes[at];
        *part = bytes.into();
        let checked = check_block(&block, &ChainProfile::default());
        prop_assert!(checked.is_err(), "byte {} became {:#x}: {:?}", at, became, checked);
    }
}
