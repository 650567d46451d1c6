//! State's part of a repair: rows that folders keep, against what their events make through the folder itself.
//!
//! A [`Replay`] folds the events from the first height on, in pieces that are each read from one snapshot of either store, until it stands at the
//! folder's checkpoint. Then stored rows are walked by key and compared, a piece at a time; where the folder has gone on meanwhile, the replay follows it before
//! the next piece. A reorg is taken back in the replay as it is in the store. A folder that looks at state sees that of the replay; events that it looks for by
//! an index are read for it from the store. Memory is bounded by the replay, which leaves out a part of the keys where it has
//! to: a whole repair goes over the events again for each part that was left out, one at intervals takes another part each time.
//!
//! A row that differs is mended by folding all of the folder's state anew, which is done only where it is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_core::{ErrorKind, Height, HeightRange};
use cairn_pipeline::derive::DeriveError;
use cairn_pipeline::derive::processor::{Folder, Processor};
use cairn_pipeline::derive::replay::{Deviation, Difference, Replay, Slice};
use cairn_pipeline::derive::state::{ChunkInput, Found, Lookup, cut_events};
use cairn_store::derived::{Catalog, DerivedSnapshot, Key, LeaseFilter, LeaseKind, Scan, TableDef, Value};
use cairn_store::{BlocksRead, RawReader, RawSnapshot, StoreError};

use super::Report;
use crate::commands::reindex;
use crate::stores::AppStore;

/// Heights that are folded at once, at most.
const CHUNK_HEIGHTS: u64 = 1_000;
/// Bytes of blocks, and of each table's events, that are read at once.
const CHUNK_BYTES: u64 = 8 << 20;
/// Stored rows that are compared at once.
const PIECE_ROWS: usize = 5_000;
/// How many lookups one snapshot answers: a store may end it after two seconds.
const LOOKUPS_PER_SNAPSHOT: usize = 200;
/// How often a piece is read again that could not be read now.
const MAX_TRIES: u32 = 20;
/// The pause before that.
const PAUSE: Duration = Duration::from_millis(250);
/// How often a replay begins anew that a reorg threw back further than it can follow.
const MAX_REPLAYS: u32 = 3;
/// Entries of the reorg log that a replay follows at once.
const MAX_REORGS: usize = 256;
/// Leases that are looked at.
const MAX_LEASES: usize = 100_000;

/// How much of the state is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All of it, in as many rounds as it takes.
    All,
    /// What fits into one round: another part each turn where that isn't all.
    Turn(u64),
}

/// What to compare with what.
pub struct States<'a> {
    /// The blocks.
    pub raw: &'a Arc<dyn RawReader>,
    /// Events and state.
    pub app: &'a dyn AppStore,
    /// What the rows are.
    pub catalog: &'a Catalog,
    /// Who makes them.
    pub processors: &'a [Processor],
    /// How much is compared.
    pub part: Part,
    /// The memory that state made once more may take, in bytes.
    pub max_bytes: usize,
    /// Fold state anew that differs.
    pub refold: bool,
}

/// Why something was not compared.
enum Stop {
    /// The rows are gone: it begins anew, so there is nothing to compare yet.
    Gone,
    /// Not now: what was in the way.
    Disturbed(String),
    /// A reorg went back further than the replay can.
    Anew,
    /// Not in this repair: why.
    Not(String),
    /// It failed.
    Failed(anyhow::Error),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        match error.kind() {
            ErrorKind::Retry | ErrorKind::Wait => Stop::Disturbed(error.to_string()),
            _ => Stop::Failed(error.into()),
        }
    }
}

impl From<DeriveError> for Stop {
    fn from(error: DeriveError) -> Self {
        match error {
            DeriveError::Store(error) => error.into(),
            error @ (DeriveError::Process(_) | DeriveError::Processor(_)) => Stop::Not(error.to_string()),
            error => Stop::Failed(error.into()),
        }
    }
}

/// Both stores where they stand on the same forks.
struct View {
    app: Arc<dyn DerivedSnapshot>,
    raw: Arc<dyn RawSnapshot>,
    /// The height after the last one that the folder has folded.
    checkpoint: Height,
}

/// What is folded next.
struct Chunk {
    heights: HeightRange,
    input: ChunkInput,
    finalized: Height,
    /// The newest reorg when it was read.
    reorg_id: Option<u64>,
    /// What the store has for lookups of events, and those that are wanted besides.
    found: BTreeMap<Lookup, Found>,
    wanted: BTreeSet<Lookup>,
}

enum Step {
    /// This has to be folded first.
    Fold(Box<Chunk>),
    /// A piece was compared.
    Compared,
    /// There is nothing more.
    Done,
}

/// How far a comparison is, and what it found.
#[derive(Default)]
struct Comparison {
    /// The newest reorg that the replay knows of; `None` before the first look.
    reorg_id: Option<u64>,
    /// The table that is walked, by number, and the last key that was compared.
    table: usize,
    after: Option<Key>,
    compared: u64,
    found: Vec<(&'static str, Difference)>,
    /// How many differ, also of those that `found` has no place for.
    damaged: u64,
}

impl States<'_> {
    /// Compares the state of all folders.
    pub async fn repair(&self) -> Report {
        let mut report = Report::default();
        for processor in self.processors {
            let Processor::Folder(folder) = processor else { continue };
            // One that can't be compared keeps no other from it.
            if let Err(error) = self.repair_one(folder, &mut report).await {
                let service = folder.service().name;
                report.not_compared.push(format!("{service}: its state, to the end: {error:#}"));
            }
        }
        report
    }

    async fn repair_one(&self, folder: &Arc<dyn Folder>, report: &mut Report) -> anyhow::Result<()> {
        let service = folder.service();
        let snapshot = match self.app.snapshot().await {
            Ok(snapshot) => snapshot,
            // Nothing was ever derived here.
            Err(StoreError::Invalid(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Some(end) = snapshot.checkpoint(service.name).map(|checkpoint| checkpoint.next) else {
            let begins_anew = snapshot.rebuilds().iter().any(|rebuild| rebuild.service == service.name);
            let why = match begins_anew {
                true => "it begins anew, and what it made before is still being deleted",
                false => "it has folded nothing yet",
            };
            report.notes.push(format!("{}: there is no state to compare: {why}", service.name));
            return Ok(());
        };
        drop(snapshot);
        let first = reindex::first_height(self.app, service.name, end).await?;
        if first >= end {
            report
                .notes
                .push(format!("{}: there is no state to compare: it has folded nothing yet", service.name));
            return Ok(());
        }
        let (mut slices, mut damaged) = (vec![Slice::ALL], 0);
        while let Some(slice) = slices.pop() {
            let (replay, comparison) = match self.compare(folder, slice, first).await {
                Ok(compared) => compared,
                // What was found before is told and mended all the same.
                Err(Stop::Failed(error)) => {
                    report.not_compared.push(format!("{}: its state, to the end: {error:#}", service.name));
                    break;
                }
                Err(Stop::Gone) => {
                    report.notes.push(format!(
                        "{}: there is no state to compare any more: it began anew meanwhile",
                        service.name
                    ));
                    break;
                }
                Err(Stop::Not(why) | Stop::Disturbed(why)) => {
                    report.not_compared.push(format!("{}: its state: {why}", service.name));
                    break;
                }
                Err(Stop::Anew) => {
                    report.not_compared.push(format!("{}: its state: reorgs were in the way", service.name));
                    break;
                }
            };
            report.states += comparison.compared;
            damaged += comparison.damaged;
            for (table, difference) in &comparison.found {
                report.name(describe(service.name, table, difference));
            }
            for group in replay.too_large() {
                report.not_compared.push(format!(
                    "{}: rows of {}, since they take more memory than half of repair.state_mib",
                    service.name,
                    list(group)
                ));
            }
            if self.part == Part::All {
                slices.extend(replay.left_out());
            }
        }
        report.states_damaged += damaged;
        if damaged == 0 {
            return Ok(());
        }
        if self.refold {
            match reindex::reset(self.app, service.name).await {
                Ok(first) => {
                    report.states_requested += damaged;
                    report
                        .notes
                        .push(format!("{}: its state is folded anew, from height {first} on", service.name));
                }
                Err(error) => report.unmended.push(format!(
                    "{}: {damaged} rows of its state are not what their events make, and it could not begin anew: {error:#}",
                    service.name
                )),
            }
        } else {
            report.unmended.push(format!(
                "{}: {damaged} rows of its state are not what their events make: `cairn repair --refold` folds it anew",
                service.name
            ));
        }
        Ok(())
    }

    /// Compares a slice, from the first height on.
    async fn compare(
        &self,
        folder: &Arc<dyn Folder>,
        slice: Slice,
        first: Height,
    ) -> Result<(Replay, Comparison), Stop> {
        let turn = match self.part {
            Part::All => 0,
            Part::Turn(turn) => turn,
        };
        for _ in 0..MAX_REPLAYS {
            let made_again = self.newest_reindex(folder).await?;
            let replay = Replay::new(folder.clone(), self.catalog, slice, turn, first, self.max_bytes)?;
            let (replay, comparison) = match self.run(folder, replay, first).await {
                Err(Stop::Anew) => continue,
                ended => ended?,
            };
            // Some of the events may be newer than others.
            if comparison.damaged > 0 && self.newest_reindex(folder).await? != made_again {
                return Err(Stop::Not("events that it is folded from were made again meanwhile".into()));
            }
            return Ok((replay, comparison));
        }
        Err(Stop::Anew)
    }

    async fn run(
        &self,
        folder: &Arc<dyn Folder>,
        mut replay: Replay,
        first: Height,
    ) -> Result<(Replay, Comparison), Stop> {
        let (mut comparison, mut tries, mut halted) = (Comparison::default(), 0, None);
        loop {
            let step = match halted.take() {
                Some(chunk) => self.look(folder, &mut replay, &mut comparison, first, chunk).await,
                None => {
                    let max_heights = CHUNK_HEIGHTS >> tries.min(6);
                    self.step(folder, &mut replay, &mut comparison, first, max_heights).await
                }
            };
            match step {
                Ok(Step::Done) => return Ok((replay, comparison)),
                Ok(Step::Compared) => tries = 0,
                Ok(Step::Fold(chunk)) => {
                    let (folded, chunk) = fold(replay, *chunk).await?;
                    replay = folded;
                    if chunk.wanted.is_empty() {
                        tries = 0;
                    } else {
                        halted = Some(chunk);
                    }
                }
                Err(Stop::Disturbed(why)) if tries == MAX_TRIES => return Err(Stop::Not(why)),
                Err(Stop::Disturbed(_)) => {
                    tries += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Reads what is folded next; where everything is folded, compares the next piece.
    async fn step(
        &self,
        folder: &Arc<dyn Folder>,
        replay: &mut Replay,
        comparison: &mut Comparison,
        first: Height,
        max_heights: u64,
    ) -> Result<Step, Stop> {
        let view = self.view(folder, replay, comparison, first).await?;
        if replay.next() < view.checkpoint {
            let end = Height(replay.next().get().saturating_add(max_heights)).min(view.checkpoint);
            let heights = HeightRange::new(replay.next(), end);
            return Ok(Step::Fold(Box::new(read(folder, view, heights, comparison.reorg_id).await?)));
        }
        let Some(table) = folder.service().tables.get(comparison.table) else { return Ok(Step::Done) };
        let mut scan = Scan::new(table.name, PIECE_ROWS);
        if let Some(after) = &comparison.after {
            scan.lower = std::ops::Bound::Excluded(after.0.clone());
        }
        let page = view.app.scan(&scan).await?;
        let to = page.more.map(Key);
        let (compared, differences) =
            replay.differences(table.name, comparison.after.as_ref(), to.as_ref(), &page.rows)?;
        comparison.compared += compared;
        comparison.damaged += differences.len() as u64;
        let room = super::MAX_NAMED.saturating_sub(comparison.found.len());
        comparison
            .found
            .extend(differences.into_iter().take(room).map(|difference| (table.name, difference)));
        if to.is_none() {
            comparison.table += 1;
        }
        comparison.after = to;
        Ok(Step::Compared)
    }

    /// Reads the events that the folder looks for while it folds a chunk.
    async fn look(
        &self,
        folder: &Arc<dyn Folder>,
        replay: &mut Replay,
        comparison: &mut Comparison,
        first: Height,
        mut chunk: Chunk,
    ) -> Result<Step, Stop> {
        while !chunk.wanted.is_empty() {
            let view = self.view(folder, replay, comparison, first).await?;
            if comparison.reorg_id != chunk.reorg_id {
                return Err(Stop::Disturbed("a reorg was in the way".into()));
            }
            for _ in 0..LOOKUPS_PER_SNAPSHOT {
                let Some(lookup) = chunk.wanted.pop_first() else { break };
                let page = view.app.scan(&lookup.to_scan()).await?;
                chunk.found.insert(lookup, Found { is_whole: page.more.is_none(), rows: page.rows });
            }
        }
        Ok(Step::Fold(Box::new(chunk)))
    }

    /// Opens both stores; reorgs that came meanwhile are taken back in the replay.
    async fn view(
        &self,
        folder: &Arc<dyn Folder>,
        replay: &mut Replay,
        comparison: &mut Comparison,
        first: Height,
    ) -> Result<View, Stop> {
        let app = self.app.snapshot().await?;
        let raw = self.raw.snapshot().await?;
        let (forks, head) = (app.forks(), raw.head());
        if head.info.uuid != forks.raw_uuid || !forks.is_settled() || forks.applied.id != head.newest_reorg.id
        {
            return Err(Stop::Disturbed("a reorg or a restored database was in the way".into()));
        }
        let newest = forks.applied.id;
        let known = *comparison.reorg_id.get_or_insert(newest);
        if known != newest {
            let entries = raw.reorgs(known, MAX_REORGS).await?;
            let whole = entries.last().is_some_and(|entry| entry.id == newest);
            let lowest = entries.iter().map(|entry| entry.first_orphan()).min();
            if !whole || !lowest.is_some_and(|lowest| replay.roll_back(lowest)) {
                return Err(Stop::Anew);
            }
            comparison.reorg_id = Some(newest);
        }
        let checkpoint = app.checkpoint(folder.service().name).map(|own| own.next);
        let Some(checkpoint) = checkpoint.filter(|checkpoint| *checkpoint >= replay.next()) else {
            return Err(Stop::Gone);
        };
        for service in services(folder.reads()) {
            if app.made_again_from(service, first).await?.is_some_and(|from| from < checkpoint) {
                return Err(Stop::Not(format!(
                    "rows of {service} that it is folded from are being made again; look again when they are"
                )));
            }
        }
        Ok(View { app, raw, checkpoint })
    }

    /// The newest fence among the leases under which events were made again that the folder reads.
    async fn newest_reindex(&self, folder: &Arc<dyn Folder>) -> Result<Option<u64>, Stop> {
        let snapshot = self.app.snapshot().await?;
        let mut newest = None;
        for service in services(folder.reads()) {
            let filter =
                LeaseFilter { service: Some(service.into()), limit: MAX_LEASES, ..LeaseFilter::default() };
            let leases = snapshot.leases(&filter).await?;
            let again = leases.iter().filter(|lease| lease.kind == LeaseKind::Reindex);
            newest = newest.max(again.map(|lease| lease.fence.0).max());
        }
        Ok(newest)
    }
}

/// The services whose tables these are.
fn services(tables: &[&'static TableDef]) -> Vec<&'static str> {
    let mut services: Vec<&'static str> = tables.iter().map(|table| table.service).collect();
    services.sort_unstable();
    services.dedup();
    services
}

async fn read(
    folder: &Arc<dyn Folder>,
    view: View,
    heights: HeightRange,
    reorg_id: Option<u64>,
) -> Result<Chunk, Stop> {
    let head = view.raw.head();
    if heights.intersect(head.range()) != heights {
        return Err(Stop::Not(format!("not all blocks of heights {heights} are stored")));
    }
    let BlocksRead { blocks, next: mut end } = view.raw.blocks(heights, folder.parts(), CHUNK_BYTES).await?;
    let mut events = Vec::new();
    for table in folder.reads() {
        let (rows, go_on) = view.app.events(table.name, heights.start(), end, CHUNK_BYTES as usize).await?;
        events.push(rows);
        end = end.min(go_on);
    }
    let heights = HeightRange::new(heights.start(), end);
    if heights.is_empty() {
        return Err(Stop::Disturbed(format!("events of height {end} are not there")));
    }
    let blocks = blocks.into_iter().filter(|block| block.facts.height < end).collect();
    cut_events(&mut events, end);
    let finalized = head.stored_finalized().map_or(Height::ZERO, Height::next);
    drop(view);
    let folder = folder.clone();
    let input = compute(move || ChunkInput::fold(&*folder, blocks, events)).await?;
    Ok(Chunk { heights, input, finalized, reorg_id, found: BTreeMap::new(), wanted: BTreeSet::new() })
}

async fn fold(mut replay: Replay, mut chunk: Chunk) -> Result<(Replay, Chunk), Stop> {
    compute(move || {
        chunk.wanted = replay.fold(chunk.heights, &chunk.input, &chunk.found, chunk.finalized)?;
        Ok((replay, chunk))
    })
    .await
}

/// Off the async threads.
async fn compute<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, DeriveError> + Send + 'static,
) -> Result<T, Stop> {
    let ended = tokio::task::spawn_blocking(run).await;
    Ok(ended.map_err(|error| Stop::Failed(anyhow::anyhow!("the folder panicked: {error}")))??)
}

fn describe(service: &str, table: &str, difference: &Difference) -> String {
    let what = match &difference.deviation {
        Deviation::Missing => "the row is missing".to_owned(),
        Deviation::Extra => "no event makes this row".to_owned(),
        Deviation::Columns(columns) => {
            let columns = columns
                .iter()
                .map(|(name, stored, made)| format!("{name} is {stored}, its events make {made}"));
            columns.collect::<Vec<_>>().join("; ")
        }
    };
    format!("{service}: {table}, {}: {what}", list(&difference.key.0))
}

fn list(values: &[Value]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("({})", values.join(", "))
}
