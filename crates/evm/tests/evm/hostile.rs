//! Damaged consensus bytes: an error or another block, never a panic, and nothing that grows with a length that only claims to be there.

use bytes::Bytes;
use cairn_evm::{BlockView, ChainProfile, Checks, ConsensusBlock, check_block, from_consensus};
use proptest::prelude::*;

use crate::support::{chain, suite};

fn damage(bytes: &Bytes, at: prop::sample::Index, to: u8) -> Bytes {
    if bytes.is_empty() {
        return bytes.clone();
    }
    let mut bytes = bytes.to_vec();
    let at = at.index(bytes.len());
    bytes[at] = to;
    bytes.into()
}

fn look_at_everything(view: &BlockView) {
    // Each either answers or says what is wrong.
    let answers = (
        view.block_json(true).is_ok(),
        view.header_json().is_ok(),
        view.receipts_json().is_ok(),
        view.logs(&Default::default(), false).is_ok(),
        view.ommer_json(0).is_ok(),
        view.raw_block().is_ok(),
        view.raw_receipts().is_ok(),
        view.raw_transaction(0).is_ok(),
        (
            view.tx_json(0).is_ok(),
            view.receipt_json(9).is_ok(),
            view.traces_json().is_ok(),
            view.trace_json(1).is_ok(),
        ),
    );
    std::hint::black_box(answers);
}

#[test]
fn damaged_bytes_never_panic_and_never_pass_for_the_block() {
    let Some(folder) = suite() else { return };
    let blocks: Vec<ConsensusBlock> = chain(&folder)
        .into_iter()
        .filter(|block| block.receipts.iter().map(Bytes::len).sum::<usize>() < 20_000)
        .collect();
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(block in any::<prop::sample::Index>(), part in 0..4u8, at in any::<prop::sample::Index>(), to in any::<u8>())| {
        let good = block.get(&blocks);
        let mut bad = good.clone();
        match part {
            0 => bad.header = damage(&bad.header, at, to),
            1 => bad.body = damage(&bad.body, at, to),
            2 => if !bad.receipts.is_empty() {
                let index = at.index(bad.receipts.len());
                bad.receipts[index] = damage(&bad.receipts[index], at, to);
            },
            _ => bad.receipts.truncate(at.index(bad.receipts.len() + 1)),
        }
        if let Ok(raw) = from_consensus(&bad) {
            let verdict = check_block(&raw, &ChainProfile::default());
            // A header of its own is another block; the receipts' bloom is derived and need not be right.
            if part != 0 {
                prop_assert!(verdict.is_err() || raw == from_consensus(good).unwrap());
            }
            look_at_everything(&BlockView::decode((&raw).into(), None).unwrap());
        }
        // Damage in the store.
        let mut raw = from_consensus(good).unwrap();
        match part {
            0 => raw.header = damage(&raw.header, at, to),
            1 => raw.body = damage(&raw.body, at, to),
            2 => raw.receipts = damage(&raw.receipts, at, to),
            _ => raw.extras = damage(&Bytes::from_static(b"{\"txs\":{\"0\":{\"json\":{}}},\"injected\":1}"), at, to),
        }
        for relaxed in [Checks::empty(), Checks::all()] {
            let _either_way = check_block(&raw, &ChainProfile::relaxing(relaxed));
        }
        if let Ok(view) = BlockView::decode((&raw).into(), None) {
            look_at_everything(&view);
        }
    });
}

#[test]
fn lengths_that_are_not_there_cost_nothing() {
    // A list that claims 2^56 bytes, one that nests without an end, and a long list of empty items.
    let claims = [
        Bytes::from_static(&[0xff, 0x01, 0, 0, 0, 0, 0, 0, 0]),
        Bytes::from(vec![0xc1; 100_000]),
        Bytes::from_static(&[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        Bytes::new(),
    ];
    let Some(folder) = suite() else { return };
    let good = chain(&folder).swap_remove(3);
    for claim in claims {
        assert!(ConsensusBlock::from_block_rlp(&claim, vec![]).is_err() || claim[0] == 0xc1);
        assert!(from_consensus(&ConsensusBlock { header: claim.clone(), ..good.clone() }).is_err());
        assert!(from_consensus(&ConsensusBlock { body: claim.clone(), ..good.clone() }).is_err());
        let receipts = vec![claim.clone(); good.receipts.len()];
        assert!(from_consensus(&ConsensusBlock { receipts, ..good.clone() }).is_err());
        assert!(cairn_evm::log_terms_of_receipts(&claim).is_err());
    }
}
