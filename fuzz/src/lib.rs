//! What the fuzz targets run: decoders of whatever strangers send, and what must hold of what they accept.

use std::io::Cursor;

use alloy_primitives::{Address, B256};
use bytes::{Buf, Bytes};
use cairn_core::{BlockLayout, RawBlock, StoredBlock};
use cairn_evm::{
    Arguments, BlockSelector, BlockView, ChainProfile, Checks, ConsensusBlock, DecodedLog, EvmError,
    FilterLimits, ForkSchedule, LogFilter, SendersAre, TagHeights, chain_config_json, check_block, check_block_with,
    from_consensus, from_rpc, genesis_block, linked_ref_from_rpc, log_terms_of_receipts, parse_address,
    parse_block_at, parse_count, parse_data, parse_filter, parse_percentiles, parse_quantity,
    parse_quantity_u256, resolve_range,
};
use cairn_explorer::decode::TextLimit;
use cairn_explorer::decode::evm::wrapped::WrappedTokens;
use cairn_explorer::decode::evm::{calls, transfers};
use cairn_flow::{BlockParts, CdcValue, EventType, FlowLayout, Network, assemble};
use cairn_source::evm::file::{scan_blocks, scan_receipts};
use serde_json::Value;

/// A client's JSON: each kind of parameter, and the log filter.
pub fn rpc_filter(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    let limits = FilterLimits { max_addresses: 100, max_topics_per_position: 100 };
    match parse_filter(&value, &limits) {
        Ok((blocks, filter)) => {
            assert!(filter.addresses().len() <= 100 && filter.topics().len() <= 4);
            assert!(filter.groups().iter().all(|group| !group.is_empty() && group.len() <= 100));
            // A log that has the first of everything that is demanded matches.
            let address = filter.addresses().first().copied().unwrap_or_default();
            let topics: Vec<_> = filter
                .topics()
                .iter()
                .map(|position| {
                    position.as_ref().and_then(|topics| topics.first()).copied().unwrap_or_default()
                })
                .collect();
            assert!(filter.matches(&address, &topics));
            if let BlockSelector::Range { from, to } = blocks {
                let heights = TagHeights { earliest: 5, latest: 100, safe: Some(90), finalized: None };
                if let Ok((first, last)) = resolve_range(from, to, &heights) {
                    assert!(first <= last && last <= heights.latest);
                }
            }
        }
        Err(error) => assert!(error.to_string().len() < 1000),
    }
    if let Ok(arguments) = Arguments::new(Some(&value), 4) {
        for index in 0..arguments.len() {
            let _ = arguments.optional(index, parse_quantity);
            let _ = arguments.optional(index, parse_quantity_u256);
            let _ = arguments.optional(index, parse_count);
            let _ = arguments.optional(index, parse_address);
            let _ = arguments.optional(index, parse_block_at);
            let _ = arguments.optional(index, parse_percentiles);
            if let Ok(Some(bytes)) = arguments.optional(index, |value| parse_data(value, 100)) {
                assert!(bytes.len() <= 100);
            }
        }
    }
}

/// RLP: as a chain file, and as one block with receipts, each with its length (u16, little-endian) before it.
pub fn rlp_block(data: &[u8]) {
    let mut end = 0;
    let _ = scan_blocks("input", Cursor::new(data), |place| {
        assert_eq!(place.offset, end);
        end += place.bytes;
        Ok(())
    });
    assert!(end <= data.len() as u64);

    let mut rest = Bytes::copy_from_slice(data);
    let mut part = || {
        let length = usize::from(rest.try_get_u16_le().ok()?);
        Some(rest.split_to(length.min(rest.len())))
    };
    let Some(block) = part() else { return };
    let receipts: Vec<Bytes> = std::iter::from_fn(part).collect();
    let Ok(consensus) = ConsensusBlock::from_block_rlp(&block, receipts) else { return };
    let Ok(raw) = from_consensus(&consensus) else { return };
    assert_eq!(raw.facts.tx_count as usize, raw.transactions.len());
    assert_eq!(log_terms_of_receipts(&raw.receipts).as_ref(), Ok(&raw.log_terms));
    let _ = check_block_with(&raw, &ChainProfile::default(), SendersAre::RecoveredHere);
    let view = serve(&raw);
    assert_eq!(view.raw_block(), Ok(block));
    // A receipt's bloom is derived, whatever the input had: what is served decodes to the same block.
    let receipts = view.raw_receipts().expect("an accepted block's receipts are readable");
    assert_eq!(from_consensus(&ConsensusBlock { receipts, ..consensus }).as_ref(), Ok(&raw));
}

/// JSON: as `{"block", "receipts"}` of a node, under the strict and the most relaxed profile; as a genesis file; as a receipts file.
pub fn json_block(data: &[u8]) {
    let _ = scan_receipts("input", data, |entry| {
        let bytes: usize = entry.receipts().iter().map(Bytes::len).sum();
        assert!(bytes <= data.len());
        Ok(())
    });
    let _ = genesis_block(data);
    if let Ok(schedule) = ForkSchedule::from_genesis_json(data) {
        let kept = chain_config_json(data).expect("it was read as JSON");
        assert_eq!(ForkSchedule::from_genesis_json(&kept), Ok(schedule.clone()));
        for timestamp in [0, 1, 1 << 31, u64::MAX] {
            let _ = schedule.eth_config_json(timestamp, Default::default());
            let _ = schedule.blob_base_fee(timestamp, timestamp);
        }
    }

    let Ok(Value::Object(mut node)) = cairn_evm::json::parse(data) else { return };
    let Some(block) = node.remove("block") else { return };
    let receipts = match node.remove("receipts") {
        Some(Value::Array(receipts)) => receipts,
        _ => Vec::new(),
    };
    let relaxed = ChainProfile::relaxing(Checks::all());
    for profile in [ChainProfile::default(), relaxed] {
        let linked = linked_ref_from_rpc(&block, &profile);
        let Ok(raw) = from_rpc(block.clone(), receipts.clone(), &profile) else { continue };
        assert_eq!(linked, Ok(raw.facts.linked_ref()));
        assert_eq!(raw.facts.tx_count as usize, raw.transactions.len());
        assert_eq!(log_terms_of_receipts(&raw.receipts).as_ref(), Ok(&raw.log_terms));
        let _ = check_block(&raw, &profile);
        serve(&raw);
    }
}

/// Asks everything of a block that was accepted.
fn serve(raw: &RawBlock) -> BlockView {
    let stored = StoredBlock::from(raw);
    let schedule = ForkSchedule::known(1);
    let view = BlockView::decode(stored, schedule.as_ref()).expect("an accepted block is readable");
    let _ = view.block_json(true);
    let _ = view.block_json(false);
    let _ = view.header_json();
    let _ = view.receipts_json();
    for index in 0..view.tx_count() {
        let _ = view.tx_json(index);
        let _ = view.receipt_json(index);
        let _ = view.raw_transaction(index);
    }
    let everything = LogFilter::default();
    let logs = view.logs(&everything, false).map(|logs| logs.len());
    match logs {
        Err(EvmError::ReceiptMissing { .. }) => {}
        logs => assert_eq!(logs, Ok(raw.facts.log_count as usize)),
    }
    for index in 0..view.ommer_count().unwrap_or(0) {
        let _ = view.ommer_json(index);
    }
    view
}

/// A log: its number of topics (one byte, at most 4), the topics, its data. Then its data as an answer of a token to a call.
pub fn token_log(data: &[u8]) {
    let Some((&count, mut rest)) = data.split_first() else { return };
    let mut topics = Vec::new();
    for _ in 0..count.min(4) {
        let Some((topic, after)) = rest.split_first_chunk::<32>() else { break };
        topics.push(B256::from(*topic));
        rest = after;
    }
    let log = DecodedLog {
        log_index: 0,
        address: Address::ZERO,
        topics,
        data: Bytes::copy_from_slice(rest).into(),
    };
    for wrapped in [WrappedTokens::Off, WrappedTokens::Any] {
        match transfers::decode(&log, &wrapped) {
            Ok(Some(event)) => {
                assert!(event.moves.len() <= 1.max(rest.len()));
                assert!(event.moves.iter().flat_map(|moved| moved.each()).count() <= 10_000.max(rest.len()));
            }
            Ok(None) => {}
            Err(error) => assert!(error.to_string().len() < 1000),
        }
    }
    let limit = TextLimit { chars: 20, bytes: 60 };
    let said = calls::text(rest, limit);
    if let Some(text) = said.value {
        assert!(text.chars().count() <= limit.chars && text.len() <= limit.bytes);
        assert!(!text.contains('\0'));
    }
    assert!(said.bytes.is_none_or(|bytes| bytes.len() <= limit.bytes));
    let _ = calls::uint(rest);
    let _ = calls::decimals(rest);
    let _ = calls::boolean(rest);
}

/// Messages of an access node, each with its length (u16, little-endian) before it: a block, an execution result, then transactions and
/// results in turn.
pub fn flow_block(data: &[u8]) {
    let mut rest = Bytes::copy_from_slice(data);
    let mut part = || {
        let length = usize::from(rest.try_get_u16_le().ok()?);
        Some(rest.split_to(length.min(rest.len())))
    };
    let (Some(block), Some(execution_result)) = (part(), part()) else { return };
    let mut parts = BlockParts { block, execution_result: Some(execution_result), ..BlockParts::default() };
    while let (Some(transaction), Some(result)) = (part(), part()) {
        parts.transactions.push(transaction);
        parts.results.push(result);
    }
    let Ok(raw) = assemble(&parts) else { return };
    let slices = FlowLayout::new(Network::Emulator).slices(&raw).expect("what was put together can be cut");
    assert_eq!(slices.events.len(), raw.facts.log_count as usize);
    let decoded = cairn_flow::DecodedBlock::decode(&StoredBlock::from(&raw))
        .expect("what was put together can be read");
    assert_eq!(decoded.transactions.len(), raw.transactions.len());
    for (decoded, facts) in decoded.transactions.iter().zip(&raw.transactions) {
        assert_eq!(decoded.id, facts.id);
    }
}

/// JSON-CDC, and the same bytes as a payload and as logs of an EVM transaction.
pub fn cadence_value(data: &[u8]) {
    if let Ok(value) = CdcValue::parse(data) {
        let _ = value.to_flat();
        if let Some(number) = value.as_number() {
            let again = serde_json::json!({"type": number.kind, "value": number.text}).to_string();
            assert_eq!(CdcValue::parse(again.as_bytes()), Ok(value.clone()));
        }
        if let Ok(event) = CdcValue::parse_event(data) {
            let _ = EventType::parse(&event.id);
            let _ = cairn_flow::evm::Executed::from_event(&event);
            let _ = cairn_flow::evm::EvmBlock::from_event(&event);
        }
    }
    let _ = cairn_flow::evm::decode_payload(data);
    let _ = cairn_flow::evm::logs(data);
}
