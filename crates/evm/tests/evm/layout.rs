//! Every block of the public suite, cut into rows and put together again.

use cairn_core::BlockLayout;
use cairn_evm::{EvmLayout, from_consensus};
use cairn_store::layout::{TxBytes, cut, rebuild_body, rebuild_receipts};

#[test]
fn every_block_of_the_public_suite_is_cut_and_put_together_again() {
    let Some(suite) = crate::support::suite() else { return };
    let mut events_seen = 0;
    for block in crate::support::chain(&suite) {
        let block = from_consensus(&block).unwrap();
        let slices = EvmLayout.slices(&block).expect("an EVM block can be cut");
        let pieces = cut(&block, &slices).expect("the slices fit");
        assert_eq!(pieces.events.len(), block.facts.log_count as usize);
        let bodies: Vec<TxBytes<'_>> =
            pieces.transactions.iter().map(|tx| TxBytes::whole(&tx.body)).collect();
        let results: Vec<(&[u8], u32)> =
            pieces.transactions.iter().map(|tx| (&tx.result[..], tx.event_count)).collect();
        let events: Vec<&[u8]> = pieces.events.iter().map(|event| event.payload).collect();
        events_seen += events.len();
        let body = rebuild_body(&pieces.body_skeleton, &pieces.layout, &bodies).unwrap();
        assert_eq!(body, block.body, "block {}", block.block_ref());
        let receipts =
            rebuild_receipts(&pieces.receipts_skeleton, &pieces.layout, &results, &events).unwrap();
        assert_eq!(receipts, block.receipts, "block {}", block.block_ref());
        // A transaction's slice is its EIP-2718 bytes: their hash is its id.
        for (tx, body) in block.transactions.iter().zip(bodies) {
            assert_eq!(tx.id.0, alloy_primitives::keccak256(body.body).0);
        }
    }
    assert!(events_seen > 0);
}
