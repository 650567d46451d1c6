//! Gaps of the EVM chain on Flow, closed (F04): the Flow blocks that have to hold what is missing are asked for again.
//!
//! | step | what is done | where it goes on after a kill |
//! | --- | --- | --- |
//! | [`find`] | open gaps with their Flow blocks, within bounds | |
//! | `ask` | each of these blocks from each node that has it; one that has all that is stored, and more, takes the place of the one that was read | what was replaced is in the error log |
//! | settle | of gaps of which something came, and of blocks that were replaced ([`left`]): index entries and lookups of their heights are held against the blocks, and made anew where they differ | is done again |
//! | derive | what mappers make of these blocks is held against their rows; what differs is made again, folders behind it from the beginning | is done again; once `evm_worker`'s rows are asked for, the gap is as good as closed, so they come last |
//!
//! So a gap stays open until all that hangs on its blocks is mended or asked for, and a block that was replaced is in the error log until then: the next repair comes to both if this one is killed. A
//! gap for which nodes give the same again is told as not mended.
//!
//! Who makes rows of a block while it is replaced may have read it before. So once all were asked for, and before any row is, it is looked again whether somebody is about to make rows of
//! them: those are not done with before the next repair. Whoever begins later reads what stands there now.

mod ask;
mod find;
mod left;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cairn_api::rest::rfc3339;
use cairn_core::{Clock, Height, HeightRange, SystemClock};
use cairn_explorer::names::EVM_WORKER;
use cairn_flow::Network;
use cairn_pipeline::derive::processor::Processor;
use cairn_store::RawReader;
use cairn_store::derived::Catalog;

use self::ask::Asked;
pub use self::find::{Found, OpenGap};
use self::left::Left;
pub use self::left::REPAIR_SERVICE;
use super::derived::{ASK_AFTER, Derived};
use super::fetch::Fetch;
use super::{Report, ranges_of, raw};
use crate::chain::Chain;
use crate::config::Config;
use crate::derive;
use crate::stores::{AppStore, RawStore};

/// How much one repair looks at; later ones look at others.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Gaps, at most.
    pub gaps: usize,
    /// Flow blocks, at most.
    pub blocks: u64,
}

impl Bounds {
    /// Of a repair at intervals, or of a sample.
    pub const PART: Bounds = Bounds { gaps: 100, blocks: 2_000 };
    /// Of one that looks at everything.
    pub const WHOLE: Bounds = Bounds { gaps: 1_000, blocks: 50_000 };
}

/// What it takes.
pub struct EvmGaps<'a> {
    /// Of the chain and its workers.
    pub config: &'a Config,
    /// The blocks, and the log of errors.
    pub store: &'a Arc<dyn RawStore>,
    /// The tables.
    pub app: &'a dyn AppStore,
    /// How much of it.
    pub bounds: Bounds,
}

/// What came of each Flow block that was asked for.
type Answers = BTreeMap<Height, anyhow::Result<Asked>>;

impl OpenGap {
    fn answers<'a>(
        &self,
        asked: &'a Answers,
    ) -> impl Iterator<Item = (&'a Height, &'a anyhow::Result<Asked>)> + use<'a> {
        asked.range(self.blocks.start()..self.blocks.end())
    }

    /// The EVM blocks of the gap that its Flow blocks close, as they are stored now.
    fn came(&self, asked: &Answers) -> BTreeSet<u64> {
        let closed = self.answers(asked).filter_map(|(_, asked)| asked.as_ref().ok());
        closed.flat_map(|asked| asked.closes.iter().copied()).filter(|height| self.has(*height)).collect()
    }

    /// Whether its Flow blocks have something that they hadn't when they were derived.
    fn has_come(&self, asked: &Answers) -> bool {
        let is_replaced =
            |asked: &anyhow::Result<Asked>| matches!(asked, Ok(Asked { new_events: Some(_), .. }));
        !self.came(asked).is_empty() || self.answers(asked).any(|(_, asked)| is_replaced(asked))
    }
}

/// Of which blocks all that hangs on them is mended, or asked for.
#[derive(Default)]
struct Mended {
    is_done: bool,
    /// But for these: somebody is about to make rows of them, who may have read them as they were.
    busy: Vec<HeightRange>,
}

impl Mended {
    fn has(&self, blocks: HeightRange) -> bool {
        self.is_done && self.busy.iter().all(|busy| busy.intersect(blocks).is_empty())
    }
}

impl EvmGaps<'_> {
    /// Closes the gaps that can be, those that reach into `range` where one is given. Without `nodes`, those that the configuration names are connected where there is a gap.
    pub async fn repair(&self, range: Option<HeightRange>, nodes: Option<&Fetch>) -> Report {
        match self.try_repair(range, nodes).await {
            Ok(report) => report,
            Err(error) => {
                let mut report = Report::default();
                report.not_compared.push(format!("gaps of the EVM chain: {error:#}"));
                report
            }
        }
    }

    async fn try_repair(&self, range: Option<HeightRange>, nodes: Option<&Fetch>) -> anyhow::Result<Report> {
        let Chain::Flow(network) = self.config.chain() else { return Ok(Report::default()) };
        let processors =
            derive::processors(self.config, derive::Asked::default(), Some(network.chain_number()))?;
        let Found { gaps, mut report } = find::find(self.app, &processors, range, self.bounds).await?;
        let asked = match nodes {
            _ if gaps.is_empty() => Answers::new(),
            Some(nodes) => self.ask_for_all(&gaps, nodes, network, &mut report).await,
            None => {
                let configured = Fetch::configured(self.config, network.chain_number()).await?;
                self.ask_for_all(&gaps, &configured, network, &mut report).await
            }
        };
        let mended = match self.mend(&gaps, &asked, processors, &mut report).await {
            Ok(mended) => mended,
            Err(error) => {
                report
                    .not_compared
                    .push(format!("what is made of Flow blocks that were asked for: {error:#}"));
                Mended::default()
            }
        };
        for gap in &gaps {
            self.tell(gap, &asked, mended.has(gap.blocks), &mut report).await;
        }
        if let Err(error) = told::close_of_closed(&**self.store, self.app).await {
            report.notes.push(format!("errors of gaps that are closed are not looked for: {error:#}"));
        }
        Ok(report)
    }

    /// Lets all be made again that hangs on blocks of which something came, now or to a repair that was cut off.
    async fn mend(
        &self,
        gaps: &[OpenGap],
        asked: &Answers,
        processors: Vec<Processor>,
        report: &mut Report,
    ) -> anyhow::Result<Mended> {
        let left = Left::of(&**self.store).await?;
        if gaps.is_empty() && left.heights().next().is_none() {
            return Ok(Mended::default());
        }
        for height in left.heights() {
            if !matches!(asked.get(&height), Some(Ok(Asked { new_events: Some(_), .. }))) {
                report.name(format!(
                    "height {height}: replaced by a repair that was cut off; what is made of it is looked at again"
                ));
            }
        }
        let (ranges, busy) = self.to_derive(gaps, asked, &left, &processors, report).await?;
        let is_done = self.settle(&ranges, report).await && {
            let catalog = derive::catalog(self.config)?;
            self.derive_again(&ranges, &catalog, processors, report).await
        };
        let mended = Mended { is_done, busy };
        left.close(&**self.store, |height| mended.has(HeightRange::one(height))).await?;
        Ok(mended)
    }

    /// The heights of which all is looked at, and made again where it differs: of gaps for which something came, and of blocks that were replaced. What nobody has more of needs
    /// nothing else. And those of which somebody is about to make rows.
    async fn to_derive(
        &self,
        gaps: &[OpenGap],
        asked: &Answers,
        left: &Left,
        processors: &[Processor],
        report: &mut Report,
    ) -> anyhow::Result<(Vec<HeightRange>, Vec<HeightRange>)> {
        let reader: Arc<dyn RawReader> = self.store.clone();
        let stored = reader.snapshot().await?.head().range();
        let makers = find::made(self.app, processors).await?;
        let mut is_busy = |range: HeightRange| {
            let maker = makers.iter().find(|maker| maker.is_to_make(range));
            if let Some(maker) = maker {
                let service = maker.service;
                report.notes.push_once(format!(
                    "what is made of Flow blocks {range} is looked at again when {service} has made its rows of them"
                ));
            }
            maker.is_some()
        };
        let (mut heights, mut busy) = (BTreeSet::new(), Vec::new());
        for gap in gaps.iter().filter(|gap| gap.has_come(asked)) {
            match is_busy(gap.blocks) {
                true => busy.push(gap.blocks),
                false => heights.extend(gap.blocks.iter()),
            }
        }
        for height in left.heights().filter(|height| stored.contains(*height)) {
            // What others make of it can be asked for: it is known of until all have.
            heights.insert(height);
            if is_busy(HeightRange::one(height)) {
                busy.push(HeightRange::one(height));
            }
        }
        Ok((ranges_of(heights, 0), busy))
    }

    async fn ask_for_all(
        &self,
        gaps: &[OpenGap],
        fetch: &Fetch,
        network: Network,
        report: &mut Report,
    ) -> Answers {
        let mut asked = BTreeMap::new();
        // Two gaps that follow each other have a block in common.
        for height in gaps.iter().flat_map(|gap| gap.blocks.iter()).collect::<BTreeSet<_>>() {
            let answer = ask::ask(self.store, fetch, network, height).await;
            if let Ok(Asked { new_events: Some(events), .. }) = &answer {
                report.name(format!("height {height}: the node gives {events} events more now: replaced"));
            }
            asked.insert(height, answer);
        }
        asked
    }

    /// Index entries of blocks that were replaced, now or by a repair that was killed.
    async fn settle(&self, ranges: &[HeightRange], report: &mut Report) -> bool {
        let reader: Arc<dyn RawReader> = self.store.clone();
        // What a new block needs is no damage that was found.
        let mut settled = Report::default();
        let (chain, none) = (self.config.chain(), BTreeSet::new());
        let done = raw::settle(self.store, &reader, chain, ranges, &none, &mut settled);
        if let Err(error) = done.await {
            settled
                .unmended
                .push(format!("index entries of Flow blocks that were asked for again: {error:#}"));
        }
        let is_done = settled.unmended.is_empty();
        report.unmended.add(settled.unmended);
        is_done
    }

    /// Whether all rows that differ are asked for.
    async fn derive_again(
        &self,
        ranges: &[HeightRange],
        catalog: &Catalog,
        processors: Vec<Processor>,
        report: &mut Report,
    ) -> bool {
        let raw: Arc<dyn RawReader> = self.store.clone();
        let (mut first, mut last) = (processors.clone(), processors);
        let is_last = |processor: &Processor| processor.service().name == EVM_WORKER;
        first.retain(|processor| !is_last(processor));
        last.retain(|processor| is_last(processor) || !matches!(processor, Processor::Mapper(_)));
        for processors in [first, last] {
            let mut compared = Report::default();
            let derived = Derived {
                raw: &raw,
                app: self.app,
                catalog,
                processors: &processors,
                config: self.config,
                refold: true,
                ask_after: ASK_AFTER,
            };
            for range in ranges {
                compared.add(derived.repair(*range).await);
            }
            let is_done = compared.unmended.is_empty() && compared.not_compared.is_empty();
            report.add(compared);
            if !is_done {
                return false;
            }
        }
        true
    }

    /// Says what became of a gap, and closes the error of one that is mended.
    async fn tell(&self, gap: &OpenGap, asked: &Answers, is_mended: bool, report: &mut Report) {
        report.gaps += 1;
        let (from, to) = (gap.from_evm_height, gap.to_evm_height);
        let named = format!("EVM blocks {from} to {to}, between Flow blocks {}", gap.blocks);
        let failed = gap.answers(asked).find_map(|(height, asked)| Some((height, asked.as_ref().err()?)));
        if let Some((height, error)) = failed {
            return report.unmended.push(format!("{named}, are missing: height {height}: {error:#}"));
        }
        let now = rfc3339(SystemClock.now_ms()).unwrap_or_default();
        if !gap.has_come(asked) {
            report.gaps_same += 1;
            return report.unmended.push(format!("{named}, are missing: asked again at {now}, same answer"));
        }
        let came = gap.came(asked);
        let missing = gap.evm_blocks().saturating_sub(came.len() as u64);
        if missing > 0 {
            let told = format!("{missing} of {named}, are missing still: asked again at {now}");
            return report.unmended.push(told);
        }
        if !is_mended {
            let told =
                format!("{named}, are there now, and not all that is made of these is asked for again");
            return report.not_compared.push(told);
        }
        report.gaps_mended += 1;
        report.gaps_open = report.gaps_open.map(|open| open.saturating_sub(1));
        report.name(format!("{named}, are there now: their rows are made again"));
        if let Err(error) = told::close_of(&**self.store, gap).await {
            report.notes.push(format!("the error of {named} is not closed: {error}"));
        }
    }
}

#[cfg(test)]
mod tests;
