//! From prepared transactions to a block's bytes, roots and header.
//!
//! The encodings are written down here on their own, from the protocol (EIP-2718, EIP-658, EIP-1559, EIP-4895, EIP-4788) and not with the codec that
//! reads them, so that a mistake of one is found by the other.

use std::borrow::Borrow;

use alloy_consensus::Header;
use alloy_consensus::constants::EMPTY_OMMER_ROOT_HASH;
use alloy_consensus::proofs::{calculate_withdrawals_root, ordered_trie_root_encoded};
use alloy_eips::eip1559::{BaseFeeParams, calc_next_block_base_fee};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{B256, Bloom, keccak256};
use alloy_rlp::{BufMut, Encodable};
use bytes::Bytes;
use cairn_core::{BlockFacts, BlockId, Height, RawBlock, TxFacts, TxId, TxStatus};
use cairn_evm::log_terms_of_receipts;

use super::draw::Draw;
use super::traffic::PreparedTx;

/// The base fee of a synthetic genesis block.
pub(crate) const FIRST_BASE_FEE_WEI: u64 = 1_000_000_000;

/// What the next block needs to know of its parent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seal {
    pub(crate) id: B256,
    /// The number of the first transaction after it.
    pub(crate) next_tx: u64,
    pub(crate) base_fee_wei: u64,
    pub(crate) gas_used: u64,
}

/// All of a block that doesn't depend on its parent.
pub(crate) struct Contents {
    /// The RLP list of transactions, ommers and withdrawals.
    pub(crate) body: Vec<u8>,
    /// The RLP list of receipts, without blooms.
    pub(crate) receipts: Vec<u8>,
    /// The receipts as the receipts root covers them: EIP-2718 with blooms.
    pub(crate) consensus_receipts: Vec<Vec<u8>>,
    pub(crate) transactions_root: B256,
    pub(crate) receipts_root: B256,
    pub(crate) withdrawals_root: B256,
    pub(crate) bloom: Bloom,
    pub(crate) gas_used: u64,
    pub(crate) log_count: u32,
    pub(crate) facts: Vec<TxFacts>,
}

/// Encodes and hashes transactions, with whether each succeeds, and withdrawals.
pub(crate) fn contents<T: Borrow<PreparedTx>>(txs: &[(T, bool)], withdrawals: &[Withdrawal]) -> Contents {
    let mut transactions = Vec::new();
    let mut receipts = Vec::new();
    let mut with_bloom: Vec<Vec<u8>> = Vec::with_capacity(txs.len());
    let mut facts = Vec::with_capacity(txs.len());
    let (mut bloom, mut gas_used, mut log_count) = (Bloom::ZERO, 0, 0);
    for (tx, succeeds) in txs {
        let tx: &PreparedTx = tx.borrow();
        match tx.type_byte {
            0 => transactions.put_slice(&tx.encoded),
            _ => tx.encoded.as_slice().encode(&mut transactions),
        }
        let (logs, tx_bloom): (&[u8], _) = match succeeds {
            true => (&tx.logs, tx.bloom),
            false => (&[alloy_rlp::EMPTY_LIST_CODE], Bloom::ZERO),
        };
        gas_used += tx.gas_used;
        log_count += if *succeeds { tx.log_count } else { 0 };
        bloom.accrue_bloom(&tx_bloom);
        let head = alloy_rlp::encode(*succeeds).len() + gas_used.length();
        list_header(tx.type_byte.length() + head + logs.len()).encode(&mut receipts);
        tx.type_byte.encode(&mut receipts);
        receipt_fields(*succeeds, gas_used, None, logs, &mut receipts);

        let mut hashed = Vec::with_capacity(head + logs.len() + 270);
        if tx.type_byte != 0 {
            hashed.put_u8(tx.type_byte);
        }
        list_header(head + tx_bloom.length() + logs.len()).encode(&mut hashed);
        receipt_fields(*succeeds, gas_used, Some(&tx_bloom), logs, &mut hashed);
        with_bloom.push(hashed);
        facts.push(TxFacts {
            id: TxId(tx.id.0),
            sender: tx.sender.clone(),
            status: if *succeeds { TxStatus::Ok } else { TxStatus::Failed },
        });
    }
    let encoded: Vec<&[u8]> = txs.iter().map(|(tx, _)| tx.borrow().encoded.as_slice()).collect();
    let mut tail = vec![alloy_rlp::EMPTY_LIST_CODE];
    alloy_rlp::encode_list::<Withdrawal, Withdrawal>(withdrawals, &mut tail);
    let list = list_header(transactions.len());
    let whole = list_header(list.length_with_payload() + tail.len());
    let mut body = Vec::with_capacity(whole.length_with_payload());
    whole.encode(&mut body);
    list.encode(&mut body);
    body.extend(&transactions);
    body.extend(&tail);
    let mut receipts_list = Vec::with_capacity(receipts.len() + 9);
    list_header(receipts.len()).encode(&mut receipts_list);
    receipts_list.extend(&receipts);
    Contents {
        body,
        receipts: receipts_list,
        transactions_root: ordered_trie_root_encoded(&encoded),
        receipts_root: ordered_trie_root_encoded(&with_bloom),
        withdrawals_root: calculate_withdrawals_root(withdrawals),
        consensus_receipts: with_bloom,
        bloom,
        gas_used,
        log_count,
        facts,
    }
}

fn list_header(payload_length: usize) -> alloy_rlp::Header {
    alloy_rlp::Header { list: true, payload_length }
}

fn receipt_fields(succeeds: bool, gas_used: u64, bloom: Option<&Bloom>, logs: &[u8], out: &mut Vec<u8>) {
    succeeds.encode(out);
    gas_used.encode(out);
    if let Some(bloom) = bloom {
        bloom.encode(out);
    }
    out.put_slice(logs);
}

/// What a header says beyond its contents and its parent.
pub(crate) struct HeaderWords {
    pub(crate) seed: u64,
    /// 0 on the main chain.
    pub(crate) fork_salt: u64,
    pub(crate) gas_limit: u64,
    pub(crate) timestamp_s: u64,
}

/// The header of the block at `height`; `None` for the parent makes a genesis block.
pub(crate) fn header(height: u64, parent: Option<&Seal>, contents: &Contents, words: &HeaderWords) -> Header {
    let mut draw = Draw::of(&[words.seed, words.fork_salt, height, 0xb10c]);
    let base_fee = parent.map_or(FIRST_BASE_FEE_WEI, |parent| {
        calc_next_block_base_fee(
            parent.gas_used,
            words.gas_limit,
            parent.base_fee_wei,
            BaseFeeParams::ethereum(),
        )
    });
    let mut extra_data = b"cairn synthetic".to_vec();
    if words.fork_salt != 0 {
        extra_data.extend(words.fork_salt.to_be_bytes());
    }
    Header {
        parent_hash: parent.map_or(B256::ZERO, |parent| parent.id),
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: Draw::of(&[words.seed, draw.below(16), 0xfee]).address(),
        state_root: draw.word(),
        transactions_root: contents.transactions_root,
        receipts_root: contents.receipts_root,
        withdrawals_root: Some(contents.withdrawals_root),
        logs_bloom: contents.bloom,
        number: height,
        gas_limit: words.gas_limit,
        gas_used: contents.gas_used,
        timestamp: words.timestamp_s,
        mix_hash: draw.word(),
        extra_data: extra_data.into(),
        base_fee_per_gas: Some(base_fee),
        blob_gas_used: Some(0),
        excess_blob_gas: Some(0),
        parent_beacon_block_root: Some(draw.word()),
        ..Header::default()
    }
}

/// The withdrawals of a block: `count` of them, numbered through the chain.
pub(crate) fn withdrawals(seed: u64, height: u64, count: u64) -> Vec<Withdrawal> {
    let one = |index: u64| {
        let mut draw = Draw::of(&[seed, index, 0x3a7d]);
        Withdrawal {
            index,
            validator_index: draw.below(4_096),
            address: draw.address(),
            amount: draw.between(10_000_000, 20_000_000),
        }
    };
    // Genesis has none.
    (0..count).filter(|_| height > 0).map(|at| one((height - 1) * count + at)).collect()
}

/// Seals the contents under their header.
pub(crate) fn seal(header: &Header, contents: Contents, first_tx: u64) -> (Seal, RawBlock) {
    let encoded: Bytes = alloy_rlp::encode(header).into();
    let id = keccak256(&encoded);
    let tx_count = contents.facts.len() as u32;
    let seal = Seal {
        id,
        next_tx: first_tx + u64::from(tx_count),
        base_fee_wei: header.base_fee_per_gas.unwrap_or_default(),
        gas_used: header.gas_used,
    };
    #[expect(clippy::expect_used, reason = "receipts that were just encoded")]
    let log_terms = log_terms_of_receipts(&contents.receipts).expect("well-formed receipts");
    let facts = BlockFacts {
        height: Height(header.number),
        id: BlockId(id.0),
        parent_id: BlockId(header.parent_hash.0),
        timestamp_ms: header.timestamp * 1_000,
        tx_count,
        log_count: contents.log_count,
        unverified: 0,
    };
    let block = RawBlock {
        facts,
        transactions: contents.facts,
        header: encoded,
        body: contents.body.into(),
        receipts: contents.receipts.into(),
        extras: Bytes::new(),
        traces: None,
        log_terms,
    };
    (seal, block)
}
