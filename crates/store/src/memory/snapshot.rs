//! Reading one state of the memory store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use cairn_core::{BlockId, Height, HeightRange, IndexKey, LinkedRef, Parts, RawBlock, StoredBlock, TxId};

use super::state::{State, not_initialised, stored};
use crate::{
    BlocksRead, Checkpoint, HeadRow, IndexFingerprint, LogQuery, RAW_INGESTER, RawLease, RawSnapshot,
    ReorgEntry, Result, StoreError, StoreSizes, TxPlace,
};

pub(super) struct MemorySnapshot {
    state: Arc<State>,
    head: HeadRow,
}

impl MemorySnapshot {
    pub(super) fn new(state: Arc<State>) -> Result<Self> {
        let head = state.head.clone().ok_or_else(not_initialised)?;
        Ok(MemorySnapshot { state, head })
    }

    /// `None` outside the head's range.
    fn row(&self, height: Height) -> Result<Option<&Arc<RawBlock>>> {
        if !self.head.range().contains(height) {
            return Ok(None);
        }
        self.required(height).map(Some)
    }

    fn required(&self, height: Height) -> Result<&Arc<RawBlock>> {
        self.state.blocks.get(&height).ok_or_else(|| StoreError::hole(height))
    }

    /// The heights in `range` where `term` stands.
    fn heights_of(&self, term: IndexKey, range: HeightRange) -> impl Iterator<Item = Height> {
        self.state.terms.range((term, range.start())..(term, range.end())).map(|(_, height)| *height)
    }

    /// The first of these, and whether the limit ended the read.
    fn read(
        &self,
        heights: impl Iterator<Item = Height>,
        parts: Parts,
        max_bytes: u64,
    ) -> Result<(Vec<StoredBlock>, bool)> {
        let mut blocks = Vec::new();
        let mut bytes = 0;
        for height in heights {
            let block = stored(self.required(height)?, parts);
            bytes += part_bytes(&block);
            blocks.push(block);
            if bytes >= max_bytes {
                return Ok((blocks, true));
            }
        }
        Ok((blocks, false))
    }

    fn candidates(&self, range: HeightRange, query: &LogQuery, limit: usize) -> Vec<Height> {
        let mut groups = query.groups.iter();
        let Some(first) = groups.next() else {
            let rows = self.state.blocks.range(range.start()..range.end());
            return rows.filter(|(_, row)| row.facts.log_count > 0).map(|(at, _)| *at).take(limit).collect();
        };
        let mut heights: BTreeSet<Height> =
            first.iter().flat_map(|term| self.heights_of(*term, range)).collect();
        for group in groups {
            heights.retain(|at| group.iter().any(|term| self.state.terms.contains(&(*term, *at))));
        }
        heights.into_iter().take(limit).collect()
    }
}

fn part_bytes(block: &StoredBlock) -> u64 {
    let traces = block.traces.as_ref().map_or(0, bytes::Bytes::len);
    (block.header.len() + block.body.len() + block.receipts.len() + block.extras.len() + traces) as u64
}

#[async_trait]
impl RawSnapshot for MemorySnapshot {
    fn head(&self) -> &HeadRow {
        &self.head
    }

    async fn block(&self, height: Height, parts: Parts) -> Result<Option<StoredBlock>> {
        Ok(self.row(height)?.map(|block| stored(block, parts)))
    }

    async fn blocks(&self, range: HeightRange, parts: Parts, max_bytes: u64) -> Result<BlocksRead> {
        let there = range.intersect(self.head.range());
        let (blocks, is_cut) = self.read(there.iter(), parts, max_bytes)?;
        Ok(if is_cut { BlocksRead::cut(range, blocks) } else { BlocksRead::whole(range, blocks) })
    }

    async fn blocks_at(&self, heights: &[Height], parts: Parts, max_bytes: u64) -> Result<Vec<StoredBlock>> {
        if heights.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(StoreError::Invalid(
                "blocks_at: heights must be ascending and without repeats".into(),
            ));
        }
        let range = self.head.range();
        if let Some(at) = heights.iter().position(|height| !range.contains(*height)) {
            let run = heights[at..]
                .iter()
                .zip(heights[at].get()..)
                .take_while(|(height, expected)| height.get() == *expected && !range.contains(**height))
                .count();
            let missing = HeightRange::new(heights[at], heights[at] + run as u64);
            return Err(StoreError::Missing { missing });
        }
        Ok(self.read(heights.iter().copied(), parts, max_bytes)?.0)
    }

    async fn linked_ref(&self, height: Height) -> Result<Option<LinkedRef>> {
        Ok(self.row(height)?.map(|block| block.facts.linked_ref()))
    }

    async fn find_block(&self, id: BlockId) -> Result<Option<Height>> {
        let range = self.head.range();
        let found = self.state.block_lookup.range((id, range.start())..(id, range.end())).next();
        Ok(found.map(|(_, height)| *height))
    }

    async fn find_tx(&self, id: TxId) -> Result<Option<TxPlace>> {
        Ok(self.places_of_tx(id, self.head.range(), 1).await?.pop())
    }

    async fn places_of_tx(&self, id: TxId, range: HeightRange, limit: usize) -> Result<Vec<TxPlace>> {
        let range = range.intersect(self.head.range());
        let found = self.state.tx_lookup.range((id, range.start(), 0)..(id, range.end(), 0));
        let place = |(_, height, index): &(TxId, Height, u32)| TxPlace { height: *height, index: *index };
        Ok(found.map(place).take(limit).collect())
    }

    async fn log_candidates(
        &self,
        range: HeightRange,
        query: &LogQuery,
        limit: usize,
    ) -> Result<Vec<Height>> {
        let range = range.intersect(self.head.range());
        let found = self.candidates(range, query, limit);
        for height in LogQuery::accounted(range, &found, limit).iter() {
            self.required(height)?;
        }
        Ok(found)
    }

    async fn reorgs(&self, after_id: u64, limit: usize) -> Result<Vec<ReorgEntry>> {
        Ok(self.state.reorgs.iter().filter(|entry| entry.id > after_id).take(limit).cloned().collect())
    }

    async fn orphan(&self, reorg_id: u64, id: BlockId, parts: Parts) -> Result<Option<StoredBlock>> {
        if let Some(block) = self.state.orphans.get(&(reorg_id, id)) {
            return Ok(Some(stored(block, parts)));
        }
        // Not moved yet: its row still stands above the tip.
        let Some(purge) = self.head.pending_purge.filter(|purge| purge.reorg_id == reorg_id) else {
            return Ok(None);
        };
        let rows = self.state.blocks.range(purge.orphans.start()..purge.orphans.end());
        Ok(rows.map(|(_, row)| row).find(|row| row.facts.id == id).map(|row| stored(row, parts)))
    }

    async fn checkpoints(&self) -> Result<Vec<Checkpoint>> {
        let raw = self.head.tip.map(|last| Checkpoint { service_name: RAW_INGESTER.into(), last });
        Ok(raw.into_iter().collect())
    }

    async fn raw_leases(&self) -> Result<Vec<RawLease>> {
        Ok(self.state.leases.values().map(|row| row.lease.clone()).collect())
    }

    async fn sizes(&self) -> Result<StoreSizes> {
        let state = &self.state;
        let bytes_of =
            |rows: &mut dyn Iterator<Item = &Arc<RawBlock>>| rows.map(|row| row.size_bytes()).sum::<u64>();
        let mut parts = vec![
            ("blocks".to_owned(), state.blocks.len() as u64, bytes_of(&mut state.blocks.values())),
            ("orphans".to_owned(), state.orphans.len() as u64, bytes_of(&mut state.orphans.values())),
            (
                "block_lookup".to_owned(),
                state.block_lookup.len() as u64,
                40 * state.block_lookup.len() as u64,
            ),
            ("tx_lookup".to_owned(), state.tx_lookup.len() as u64, 44 * state.tx_lookup.len() as u64),
            ("log_terms".to_owned(), state.terms.len() as u64, 16 * state.terms.len() as u64),
        ];
        parts.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
        Ok(StoreSizes { total_bytes: parts.iter().map(|part| part.2).sum(), parts })
    }

    async fn index_fingerprints(&self, range: HeightRange) -> Result<Vec<IndexFingerprint>> {
        let mut by_height: BTreeMap<Height, IndexFingerprint> = BTreeMap::new();
        for (kind, key, height, tx_index) in self.state.index_entries(range.intersect(self.head.range())) {
            by_height
                .entry(height)
                .or_insert_with(|| IndexFingerprint::empty(height))
                .add(kind, key, tx_index);
        }
        Ok(by_height.into_values().collect())
    }
}
