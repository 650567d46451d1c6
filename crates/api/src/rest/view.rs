//! What one request sees: a snapshot of the app store and one of the raw store that agree about the forks at the heights that are
//! read.
//!
//! The app store's snapshot is opened first, so the raw one knows every reorg that the app store has begun. What is read is bounded by
//! the checkpoints in the app snapshot. The two agree where no reorg that the app store has not begun took away a block at or below
//! the highest of these checkpoints, and the raw store has each checkpoint's block at its height. Else both are opened again a few
//! times, and then the request is refused (DESIGN §8).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::Extension;
use cairn_core::{BlockFacts, BlockRef, Height, HeightRange, Parts};
use cairn_store::derived::{Catalog, DerivedCheckpoint, DerivedSnapshot, Quarantined, Table, TableClass};
use cairn_store::{HeadRow, RawSnapshot, StoreError};

use super::answer::{BesideWorker, BlockStamp, IncompleteBlock, Meta};
use super::cache::{Final, IfFinal};
use super::chain::RestChain;
use super::cursor::CursorKey;
use super::fields::{self, Fields};
use super::problem::{Code, Problem};
use super::words::Num;
use super::{Api, WorkerUse};

/// How many entries of the reorg log are read at once.
const REORGS_PER_READ: usize = 64;
/// The most blocks that an answer names as not whole.
const MAX_INCOMPLETE: usize = 100;
/// How long an answer of the raw store waits for what is shown beside it.
const BESIDE_MS: u64 = 1_000;
/// How long one waits that is mostly of derived tables, and can do without.
const WELCOME_MS: u64 = 3_000;

/// The tables of balances of fungible tokens, and of what is counted of them.
const BALANCES: [&str; 2] = ["ft_holdings", "token_stats"];

/// What one request sees.
pub(crate) struct View {
    raw: Arc<dyn RawSnapshot>,
    app: Option<Arc<dyn DerivedSnapshot>>,
    kind: RestChain,
    catalog: Catalog,
    workers: Vec<Worker>,
    /// Workers whose answers of nodes are shown beside, as of whenever they were asked.
    beside: Vec<&'static str>,
    watermark: Option<BlockFacts>,
    /// Where what the workers made is not whole.
    incomplete: Quarantined,
    /// Whose deposits and withdrawals count, where balances of fungible tokens are behind the answer.
    wrapped_tokens: Option<Vec<String>>,
}

/// A worker whose data the answer is made of.
struct Worker {
    name: &'static str,
    last: BlockRef,
    /// Its data is what was asked for, and not only welcome.
    is_needed: bool,
    /// By the configuration it doesn't run: it stays where it is.
    is_disabled: bool,
}

/// What becomes of welcome workers that don't run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disabled {
    /// They stand still somewhere, and what they lack would look as if it were not there.
    LeftOut,
    /// The caller leaves out those that have not come to the block that it is about.
    CountedIn,
}

/// Why a pair of snapshots is of no use.
enum Unfit {
    /// Another pair may be.
    ForNow(String),
    Problem(Problem),
}

impl From<StoreError> for Unfit {
    fn from(error: StoreError) -> Unfit {
        Unfit::Problem(error.into())
    }
}

impl From<Problem> for Unfit {
    fn from(problem: Problem) -> Unfit {
        Unfit::Problem(problem)
    }
}

impl View {
    /// Of the raw store alone.
    pub(crate) async fn raw(api: &Api) -> Result<View, Problem> {
        let raw = open_raw(api).await?;
        let watermark = tip(&*raw).await?;
        let catalog = api.catalog().clone();
        Ok(View {
            raw,
            app: None,
            kind: api.chain(),
            catalog,
            workers: Vec::new(),
            beside: Vec::new(),
            watermark,
            incomplete: Quarantined::default(),
            wrapped_tokens: None,
        })
    }

    /// Of both. The workers of the tables `needed` have to have finished a block; the answer ends where the slowest of them stands. Those of the tables `welcome`
    /// are shown beside, each up to its own height, where they are enabled and not made anew just now: they hold nothing back. Where nothing is needed, the slowest
    /// of these is where the answer ends. What nodes were asked is always shown beside, where it is welcome.
    pub(crate) async fn open(api: &Api, needed: &[&str], welcome: &[&str]) -> Result<View, Problem> {
        View::settled(api, needed, welcome, Disabled::LeftOut).await
    }

    /// Tries until both snapshots fit.
    async fn settled(
        api: &Api,
        needed: &[&str],
        welcome: &[&str],
        disabled: Disabled,
    ) -> Result<View, Problem> {
        let tries = api.limits().fork_tries.max(1);
        let mut pause = Duration::from_millis(api.limits().fork_pause_ms);
        let mut why = String::new();
        for attempt in 0..tries {
            if attempt > 0 {
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            match View::once(api, needed, welcome, disabled).await {
                Ok(view) => return Ok(view),
                Err(Unfit::Problem(problem)) => return Err(problem),
                Err(Unfit::ForNow(reason)) => why = reason,
            }
        }
        Err(Problem::new(Code::ForksDisagree, format!("{why}; try again in a moment")))
    }

    /// Of the raw store, with the workers of the tables `welcome` beside where they can be counted in. Trouble with the app store takes nothing
    /// from what the raw store says: the view is then of the raw store alone, and its `required_workers` say so.
    pub(crate) async fn with_welcome(api: &Api, welcome: &[&str]) -> Result<View, Problem> {
        View::beside_raw(api, welcome, Disabled::LeftOut, WELCOME_MS).await
    }

    /// The same for an answer about one block, which is then given to [`View::keep_those_at`]: what a worker that doesn't run any more made of that block holds.
    pub(crate) async fn of_one_block(api: &Api, welcome: &[&str]) -> Result<View, Problem> {
        View::beside_raw(api, welcome, Disabled::CountedIn, BESIDE_MS).await
    }

    async fn beside_raw(
        api: &Api,
        welcome: &[&str],
        disabled: Disabled,
        within_ms: u64,
    ) -> Result<View, Problem> {
        if api.app().is_none() {
            return View::raw(api).await;
        }
        let within = Duration::from_millis(within_ms);
        match tokio::time::timeout(within, View::settled(api, &[], welcome, disabled)).await {
            Ok(Ok(view)) => return Ok(view),
            Ok(Err(problem)) => tracing::debug!(problem = %problem.detail, "answered without derived tables"),
            Err(_) => {
                tracing::debug!("answered without derived tables: they took longer than {within_ms} ms")
            }
        }
        View::raw(api).await
    }

    /// Blocks that the workers, or those that they read from, could not process.
    async fn holes(&self, api: &Api, heights: HeightRange) -> Result<Quarantined, StoreError> {
        let Some(app) = self.app.as_ref().filter(|_| !self.workers.is_empty()) else {
            return Ok(Quarantined::default());
        };
        let mut services: Vec<&str> = self.workers.iter().map(|worker| worker.name).collect();
        let mut at = 0;
        while let Some(service) = services.get(at).copied() {
            let more = api.upstreams_of(service).iter().filter(|name| !services.contains(name));
            services.extend(more.copied().collect::<Vec<_>>());
            at += 1;
        }
        app.quarantined(&services, heights, MAX_INCOMPLETE).await
    }

    /// The answer is about the one block at `height`: what is not whole elsewhere is not said.
    pub(crate) async fn is_of(&mut self, api: &Api, height: Height) -> Result<(), Problem> {
        if self.incomplete.total > 0 {
            self.incomplete = self.holes(api, HeightRange::one(height)).await?;
        }
        Ok(())
    }

    /// The same, and leaves out the workers that have not done that block.
    pub(crate) async fn keep_those_at(&mut self, api: &Api, height: Height) -> Result<(), Problem> {
        let before = self.workers.len();
        self.workers.retain(|worker| worker.last.height >= height);
        self.is_of(api, height).await?;
        if self.workers.len() == before {
            return Ok(());
        }
        self.watermark = match self.lowest() {
            Some(lowest) => self.raw.block(lowest, Parts::empty()).await?.map(|block| block.facts),
            None => tip(&*self.raw).await?,
        };
        Ok(())
    }

    /// The workers at whose slowest the answer ends.
    fn bounding(&self) -> impl Iterator<Item = &Worker> {
        let any_needed = self.workers.iter().any(|worker| worker.is_needed);
        self.workers.iter().filter(move |worker| worker.is_needed || !any_needed)
    }

    /// Where the slowest of these stands.
    fn lowest(&self) -> Option<Height> {
        self.bounding().map(|worker| worker.last.height).min()
    }

    async fn once(api: &Api, needed: &[&str], welcome: &[&str], disabled: Disabled) -> Result<View, Unfit> {
        let catalog = api.catalog().clone();
        if let Some(name) = needed.iter().find(|name| catalog.table(name).is_err()) {
            return Err(Problem::no_such_table(name, api.chain().name()).into());
        }
        let app = match api.app() {
            Some(app) => match app.snapshot().await {
                Ok(app) => app,
                Err(StoreError::Invalid(_)) => {
                    return Err(Unfit::Problem(Problem::new(
                        Code::NotYet,
                        "the derived tables have not been begun yet",
                    )));
                }
                Err(error) => return Err(error.into()),
            },
            None => {
                let worker = needed
                    .first()
                    .map_or(Ok("derived tables"), |name| Ok(fields::table(&catalog, name)?.def().service));
                return Err(worker
                    .map(Problem::not_enabled)
                    .unwrap_or_else(|problem: Problem| problem)
                    .into());
            }
        };
        let raw = open_raw(api).await?;
        let forks = *app.forks();
        let head = raw.head();
        if forks.raw_uuid != head.info.uuid {
            return Err(Problem::internal("the app store follows another raw store").into());
        }
        let mut workers: Vec<Worker> = Vec::new();
        let mut beside = Vec::new();
        for (name, is_needed) in
            needed.iter().map(|name| (name, true)).chain(welcome.iter().map(|name| (name, false)))
        {
            // What a chain has no table for is not welcome to say anything.
            let Ok(table) = catalog.table(name) else { continue };
            let def = table.def();
            let service = def.service;
            if !is_needed && matches!(def.class, TableClass::Answers | TableClass::Content) {
                if app.checkpoint(service).is_some() {
                    beside.push(service);
                }
                continue;
            }
            if workers.iter().any(|worker| worker.name == service) {
                continue;
            }
            let is_disabled = api.use_of(service) == WorkerUse::Disabled;
            if is_disabled && !is_needed && disabled == Disabled::LeftOut {
                continue;
            }
            let checkpoint = app.checkpoint(service);
            // What it has made so far is less than what was shown before, and would look whole.
            if let Some(rebuild) = app.being_rebuilt(service) {
                if is_needed && is_disabled {
                    return Err(Problem::not_enabled(service).into());
                }
                if is_needed {
                    let watermark = checkpoint.and_then(DerivedCheckpoint::last).map(|last| last.height);
                    return Err(Problem::being_rebuilt(service, watermark, rebuild.until.prev()).into());
                }
                continue;
            }
            match checkpoint {
                Some(checkpoint) => match checkpoint.last() {
                    Some(last) => workers.push(Worker { name: service, last, is_needed, is_disabled }),
                    None if is_needed && is_disabled => return Err(Problem::not_enabled(service).into()),
                    None if is_needed => return Err(Problem::not_yet(service, None).into()),
                    None => {}
                },
                None if is_needed => return Err(Problem::not_enabled(service).into()),
                None => {}
            }
        }
        let has_balances = needed.iter().any(|name| BALANCES.contains(name));
        let mut view = View {
            wrapped_tokens: has_balances.then(|| api.wrapped_tokens(raw.head().info.chain_id)),
            raw,
            app: Some(app),
            kind: api.chain(),
            catalog,
            workers,
            beside,
            watermark: None,
            incomplete: Quarantined::default(),
        };
        view.agree().await?;
        if let Some(watermark) = view.watermark() {
            let heights = HeightRange::inclusive(Height::ZERO, watermark);
            view.incomplete = view.holes(api, heights).await?;
        }
        Ok(view)
    }

    /// Demands that both snapshots stand on one fork up to the highest checkpoint, and finds the block at which the answer ends.
    async fn agree(&mut self) -> Result<(), Unfit> {
        let heights = self.workers.iter().map(|worker| worker.last.height);
        let (Some(highest), Some(lowest)) = (heights.max(), self.lowest()) else {
            self.watermark = tip(&*self.raw).await?;
            return Ok(());
        };
        let Some(app) = &self.app else { return Ok(()) };
        let begun = app.forks().begun.id;
        let newest = self.head().newest_reorg.id;
        if newest < begun {
            return Err(Unfit::ForNow(format!(
                "the derived tables know reorg {begun}, the raw store only reorg {newest}"
            )));
        }
        let mut seen = begun;
        while seen < newest {
            let entries = self.raw.reorgs(seen, REORGS_PER_READ).await?;
            let Some(last) = entries.last() else { break };
            if let Some(entry) = entries.iter().find(|entry| entry.first_orphan() <= highest) {
                return Err(Unfit::ForNow(format!(
                    "the derived tables reach up to block {highest}, and have not followed reorg {} at block {} yet",
                    entry.id,
                    entry.first_orphan()
                )));
            }
            seen = last.id;
        }
        let mut watermark: Option<BlockFacts> = None;
        let mut checked: Option<BlockRef> = None;
        for worker in &self.workers {
            if checked == Some(worker.last) {
                continue;
            }
            checked = Some(worker.last);
            let here = self.raw.block(worker.last.height, Parts::empty()).await?.map(|block| block.facts);
            match here {
                Some(facts) if facts.id == worker.last.id => {
                    if facts.height == lowest {
                        watermark = Some(facts);
                    }
                }
                _ => {
                    return Err(Unfit::ForNow(format!(
                        "{} stands at block {}, which the raw store does not have",
                        worker.name, worker.last
                    )));
                }
            }
        }
        self.watermark = watermark;
        Ok(())
    }

    /// The kind of chain.
    pub(crate) fn kind(&self) -> RestChain {
        self.kind
    }

    /// The contract of a row as paths take it: `address` is the column of its address.
    pub(crate) fn identifier(&self, fields: &Fields<'_>, address: &str) -> Result<String, Problem> {
        Ok(self.kind.identifier(&fields.bytes(address)?, &fields.text("contract_name")?))
    }

    /// The raw snapshot.
    pub(crate) fn chain(&self) -> &dyn RawSnapshot {
        &*self.raw
    }

    /// The app snapshot.
    pub(crate) fn tables(&self) -> Result<&dyn DerivedSnapshot, Problem> {
        self.app.as_deref().ok_or_else(|| Problem::internal("no app snapshot was opened for this request"))
    }

    /// The raw head row.
    pub(crate) fn head(&self) -> &HeadRow {
        self.raw.head()
    }

    /// What a table is.
    pub(crate) fn table(&self, name: &str) -> Result<&Arc<Table>, Problem> {
        fields::table(&self.catalog, name)
    }

    /// Whether the worker of a table is counted in. Nobody's is where this chain has no such table.
    pub(crate) fn has(&self, name: &str) -> Result<bool, Problem> {
        let Ok(table) = self.catalog.table(name) else { return Ok(false) };
        let service = table.def().service;
        Ok(self.beside.contains(&service) || self.workers.iter().any(|worker| worker.name == service))
    }

    /// The newest height that the answer counts in.
    pub(crate) fn watermark(&self) -> Option<Height> {
        self.watermark.map(|facts| facts.height)
    }

    /// The first stored height, where that isn't the chain's first: every worker begins there.
    pub(crate) fn counts_from(&self) -> Option<Height> {
        self.head().first.filter(|first| *first > Height::ZERO)
    }

    /// Whether a worker passed over blocks that the answer counts in.
    pub(crate) fn has_holes(&self) -> bool {
        self.incomplete.total > 0
    }

    /// Demands that the required workers have done the block at `height`. One that doesn't run never will.
    pub(crate) fn reaches(&self, height: Height) -> Result<(), Problem> {
        let behind = || self.bounding().filter(|worker| worker.last.height < height);
        if let Some(idle) = behind().find(|worker| worker.is_disabled) {
            return Err(Problem::stopped(idle.name, idle.last.height));
        }
        match behind().min_by_key(|worker| worker.last.height) {
            Some(slowest) => Err(Problem::not_yet(slowest.name, Some(slowest.last.height))),
            None => Ok(()),
        }
    }

    /// Whether there are derived tables here that did not answer.
    pub(crate) fn lacks_tables(&self, api: &Api) -> bool {
        self.app.is_none() && api.app().is_some()
    }

    /// Seals and opens cursors.
    pub(crate) fn cursor_key(&self) -> CursorKey {
        CursorKey::of_store(&self.head().info.uuid)
    }

    /// Those that are only welcome, beside what was asked for.
    fn beside_workers(&self) -> Vec<BesideWorker> {
        if !self.workers.iter().any(|worker| worker.is_needed) {
            return Vec::new();
        }
        let welcome = self.workers.iter().filter(|worker| !worker.is_needed);
        welcome
            .map(|worker| BesideWorker { worker: worker.name, height: Num(worker.last.height.get()) })
            .collect()
    }

    /// How far the data goes.
    /// Goes with an answer about the block at `height`, where that is final.
    pub(crate) fn if_final(&self, height: Height) -> IfFinal {
        let last = self.head().stored_finalized();
        last.is_some_and(|last| height <= last).then_some(Extension(Final))
    }

    pub(crate) fn meta(&self) -> Meta {
        let head = self.head();
        Meta {
            chain_id: Num(head.info.chain_id.0),
            data_watermark: self.watermark.as_ref().map(BlockStamp::of),
            finalized_height: head.stored_finalized().map(|height| Num(height.get())),
            counts_from_height: self.counts_from().map(|first| Num(first.get())),
            wrapped_tokens: self.wrapped_tokens.clone(),
            required_workers: self.bounding().map(|worker| worker.name).collect(),
            beside: self.beside_workers(),
            incomplete: self.incomplete.lowest.iter().cloned().map(IncompleteBlock::of).collect(),
            incomplete_count: Num(self.incomplete.total),
        }
    }
}

/// The newest stored block.
async fn tip(raw: &dyn RawSnapshot) -> Result<Option<BlockFacts>, StoreError> {
    match raw.head().tip {
        Some(tip) => Ok(raw.block(tip.height, Parts::empty()).await?.map(|block| block.facts)),
        None => Ok(None),
    }
}

async fn open_raw(api: &Api) -> Result<Arc<dyn RawSnapshot>, Problem> {
    match api.raw().snapshot().await {
        Ok(snapshot) => Ok(snapshot),
        Err(StoreError::Invalid(_)) => {
            Err(Problem::new(Code::NotYet, "the archive has not been begun yet: no source was heard"))
        }
        Err(error) => Err(error.into()),
    }
}
