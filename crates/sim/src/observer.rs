//! A reader that looks at the store all through a run: whatever it sees must be one fork, whole, at one moment.

use std::sync::Arc;

use cairn_core::{Height, HeightRange, Parts};
use cairn_source::evm::synthetic::{ForkId, SyntheticChain};
use cairn_store::{HeadRow, LogQuery, RawReader, RawSnapshot};
use rand::RngExt;
use rand::rngs::SmallRng;

/// How many blocks below the tip a look compares.
const LOOK_HEIGHTS: u64 = 24;

/// What must never go back.
#[derive(Debug, Default)]
pub struct Observer {
    finalized: Option<Height>,
    reorg_id: u64,
    digest: [u8; 32],
    first: Option<Height>,
}

impl Observer {
    /// Takes one look. The error says what was wrong.
    pub async fn look(
        &mut self,
        store: &Arc<dyn RawReader>,
        chain: &SyntheticChain,
        forks: &[ForkId],
        rng: &mut SmallRng,
    ) -> Result<(), String> {
        let snapshot = match store.snapshot().await {
            Ok(snapshot) => snapshot,
            // Before the first process has made the store there is nothing to see.
            Err(_) if self.first.is_none() => return Ok(()),
            Err(error) => return Err(format!("no snapshot: {error}")),
        };
        let head = snapshot.head().clone();
        self.marks(&*snapshot, &head).await?;
        let Some(tip) = head.tip else { return Ok(()) };
        let fork = forks
            .iter()
            .find(|fork| chain.block_ref(**fork, tip.height) == tip)
            .ok_or_else(|| format!("tip {tip} is a block of no fork"))?;
        let range = head.range();
        let from = range.start().max(tip.height.saturating_sub(LOOK_HEIGHTS));
        let seen = HeightRange::inclusive(from, tip.height);
        let blocks =
            snapshot.blocks(seen, Parts::all(), u64::MAX).await.map_err(|error| error.to_string())?.blocks;
        if blocks.len() as u64 != seen.len() {
            return Err(format!("{} of {} blocks in {seen} below tip {tip}", blocks.len(), seen.len()));
        }
        for block in &blocks {
            let want = chain.block(*fork, block.facts.height);
            let same = block.facts == want.facts
                && block.transactions == want.transactions
                && block.header == want.header
                && block.body == want.body
                && block.receipts == want.receipts;
            if !same {
                return Err(format!(
                    "block {} under tip {tip} is not that fork's block",
                    block.facts.block_ref()
                ));
            }
        }
        self.lookups(&*snapshot, chain, *fork, seen, rng).await
    }

    async fn marks(&mut self, snapshot: &dyn RawSnapshot, head: &HeadRow) -> Result<(), String> {
        if let Some(first) = self.first
            && head.first != Some(first)
        {
            return Err(format!("the first height moved from {first} to {:?}", head.first));
        }
        self.first = head.first;
        let finalized = head.finalized.map(|block| block.height);
        if finalized < self.finalized {
            return Err(format!("finality went back from {:?} to {finalized:?}", self.finalized));
        }
        self.finalized = finalized;
        if head.newest_reorg.id < self.reorg_id {
            return Err(format!(
                "the reorg log went back from {} to {}",
                self.reorg_id, head.newest_reorg.id
            ));
        }
        let entries = snapshot.reorgs(self.reorg_id, 1_000).await.map_err(|error| error.to_string())?;
        for entry in entries {
            if entry.id != self.reorg_id + 1 || !entry.follows(&self.digest) {
                return Err(format!("reorg entry {} does not follow entry {}", entry.id, self.reorg_id));
            }
            self.reorg_id = entry.id;
            self.digest = entry.digest;
        }
        if (self.reorg_id, self.digest) != (head.newest_reorg.id, head.newest_reorg.digest) {
            return Err(format!(
                "the head row's reorg {} is not the log's newest {}",
                head.newest_reorg.id, self.reorg_id
            ));
        }
        Ok(())
    }

    async fn lookups(
        &self,
        snapshot: &dyn RawSnapshot,
        chain: &SyntheticChain,
        fork: ForkId,
        seen: HeightRange,
        rng: &mut SmallRng,
    ) -> Result<(), String> {
        let at = Height(rng.random_range(seen.start().get()..seen.end().get()));
        let block = chain.block(fork, at);
        let found = snapshot.find_block(block.facts.id).await.map_err(|error| error.to_string())?;
        if found != Some(at) {
            return Err(format!("block id of height {at} is found at {found:?}"));
        }
        for (index, tx) in block.transactions.iter().enumerate() {
            let place = snapshot.find_tx(tx.id).await.map_err(|error| error.to_string())?;
            if place.map(|place| (place.height, place.index as usize)) != Some((at, index)) {
                return Err(format!("transaction {index} of height {at} is found at {place:?}"));
            }
        }
        let Some(term) = block.log_terms.get(rng.random_range(0..block.log_terms.len().max(1))).copied()
        else {
            return Ok(());
        };
        let query = LogQuery { groups: vec![vec![term]] };
        let candidates =
            snapshot.log_candidates(seen, &query, usize::MAX).await.map_err(|error| error.to_string())?;
        for height in seen.iter() {
            let has = chain.block(fork, height).log_terms.binary_search(&term).is_ok();
            if has && !candidates.contains(&height) {
                return Err(format!("a log of height {height} is not found by its term"));
            }
        }
        Ok(())
    }
}
