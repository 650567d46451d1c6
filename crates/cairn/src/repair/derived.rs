//! The derived tables' part of a repair: the rows that mappers wrote, against what they make of the same blocks now.
//!
//! Blocks and rows are read in pieces, each from one snapshot of either store, and compared only where both stand on the same forks; a piece
//! that a reorg disturbs is read again. Rows that are there and can't be compared make the repair incomplete; heights that nobody has derived yet have none, and are a note. What differs is asked for again, some thousand heights at a time so that memory has a bound, by [`begin_rebuild`](cairn_store::derived::DerivedMaintenance::begin_rebuild), and
//! running workers make it; who asks a node about what such rows name asks again. State that was folded from such rows may be wrong too: it is folded anew where that is asked for, and named where not.
//! Whether state is what the events make of it is looked at when they are right: [`super::state`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_core::{ErrorKind, Height, HeightRange, StoredBlock};
use cairn_pipeline::derive::map_block;
use cairn_pipeline::derive::processor::{Mapper, Processor};
use cairn_store::derived::{Catalog, DerivedSnapshot, Key, RebuildRequest, Row};
use cairn_store::{BlocksRead, RawReader, StoreError};

use super::lines::Lines;
use super::{Report, ranges_of};
use crate::commands::reindex::{self, UnderWay};
use crate::config::Config;
use crate::stores::AppStore;

/// Heights that are compared at once.
const PIECE_HEIGHTS: u64 = 200;
/// Bytes of blocks, and of rows, that are read at once.
const PIECE_BYTES: u64 = 8 << 20;
/// How often a piece is read again that a reorg disturbed.
const MAX_TRIES: u32 = 20;
/// The pause before that.
const PAUSE: Duration = Duration::from_millis(250);
/// Heights with differences, each counted once a table, that are kept in memory before they are asked for: some MiB.
pub const ASK_AFTER: usize = 20_000;
/// Heights with differences that lie closer together than this are made again as one range.
const JOIN_HEIGHTS: u64 = 1_000;

/// What to compare with what.
pub struct Derived<'a> {
    /// The blocks.
    pub raw: &'a Arc<dyn RawReader>,
    /// The rows.
    pub app: &'a dyn AppStore,
    /// What the rows are.
    pub catalog: &'a Catalog,
    /// Who makes them.
    pub processors: &'a [Processor],
    /// Which workers there are beside, and what reindexing is cut into.
    pub config: &'a Config,
    /// Fold state anew whose events differed.
    pub refold: bool,
    /// Heights with differences, each counted once a table, after which they are asked for before more is compared.
    pub ask_after: usize,
}

/// What became of a piece.
enum Piece {
    /// Compared up to here.
    To(Height),
    /// It could not be compared now: why.
    Disturbed(String),
    /// Its rows are gone: the worker stands lower than it did.
    Gone,
}

/// What differs, by height and table: missing, too many, different.
type Differences = BTreeMap<(Height, &'static str), [u64; 3]>;

impl Derived<'_> {
    /// Compares the rows of all mappers in `range`, as far as they are derived, and asks for what differs to be made again.
    pub async fn repair(&self, range: HeightRange) -> Report {
        let mut report = Report::default();
        for processor in self.processors {
            let Processor::Mapper(mapper) = processor else { continue };
            // One that can't be compared keeps no other from it.
            if let Err(error) = self.repair_one(mapper, range, &mut report).await {
                let service = mapper.service().name;
                report.not_compared.push(format!("{service}: some of heights {range}: {error:#}"));
            }
        }
        report
    }

    async fn repair_one(
        &self,
        mapper: &Arc<dyn Mapper>,
        range: HeightRange,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let service = mapper.service();
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
                false => "it has not run here yet",
            };
            report.notes.push(format!("{}: there are no rows to compare: {why}", service.name));
            return Ok(());
        };
        drop(snapshot);
        let first = reindex::first_height(self.app, service.name, end).await?;
        let derived = range.intersect(HeightRange::new(first.min(end), end));
        let above = HeightRange::new(range.start().max(end), range.end());
        if !above.is_empty() {
            report.notes.push(format!("{}: heights {above} are not derived yet", service.name));
        }
        let below = HeightRange::new(range.start(), range.end().min(first.min(end)));
        if !below.is_empty() {
            report.not_compared.push(format!(
                "{}: heights {below}: it has no lease on them; cairn leases list shows where its leases begin",
                service.name
            ));
        }
        let mut differences = Differences::new();
        let (mut at, mut tries) = (derived.start(), 0);
        while at < derived.end() {
            let piece =
                HeightRange::new(at, Height(at.get().saturating_add(PIECE_HEIGHTS))).intersect(derived);
            let left = HeightRange::new(at, derived.end());
            let compared = match self.compare(mapper, piece, &mut differences, report).await {
                Ok(compared) => compared,
                Err(error) if matches!(error.kind(), ErrorKind::Retry | ErrorKind::Wait) => {
                    Piece::Disturbed(error.to_string())
                }
                // What was found before is told and asked for all the same.
                Err(error) => {
                    report.not_compared.push(format!("{}: heights {left}: {error}", service.name));
                    break;
                }
            };
            match compared {
                Piece::To(next) => {
                    (at, tries) = (next, 0);
                    // So that memory has a bound, whatever is lost.
                    if differences.len() >= self.ask_after {
                        self.ask(mapper, std::mem::take(&mut differences), derived, report).await;
                    }
                    continue;
                }
                Piece::Disturbed(why) if tries == MAX_TRIES => {
                    report.not_compared.push(format!("{}: heights {left}: {why}", service.name));
                    break;
                }
                Piece::Gone if tries == MAX_TRIES => {
                    report.notes.push(format!(
                        "{}: heights {left} are not derived any more: it stands lower than it did when this began",
                        service.name
                    ));
                    break;
                }
                Piece::Disturbed(_) | Piece::Gone => tries += 1,
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.ask(mapper, differences, derived, report).await;
        Ok(())
    }

    /// Asks for what differs; where that fails, it is not mended.
    async fn ask(
        &self,
        mapper: &Arc<dyn Mapper>,
        differences: Differences,
        derived: HeightRange,
        report: &mut Report,
    ) {
        if differences.is_empty() {
            return;
        }
        if let Err(error) = self.ask_again(mapper, differences, derived, report).await {
            let service = mapper.service().name;
            report.unmended.push(format!("{service}: its rows can't be asked for again: {error:#}"));
        }
    }

    /// Compares one piece.
    async fn compare(
        &self,
        mapper: &Arc<dyn Mapper>,
        piece: HeightRange,
        differences: &mut Differences,
        report: &mut Report,
    ) -> Result<Piece, StoreError> {
        let snapshot = self.app.snapshot().await?;
        let raw = self.raw.snapshot().await?;
        let (forks, head) = (snapshot.forks(), raw.head());
        let derived_to = snapshot.checkpoint(mapper.service().name).map_or(Height::ZERO, |own| own.next);
        let is_other = head.info.uuid != forks.raw_uuid;
        if !is_other && (!forks.is_settled() || forks.applied.id != head.newest_reorg.id) {
            return Ok(Piece::Disturbed("a reorg was in the way".into()));
        }
        if is_other || piece.intersect(head.range()) != piece {
            let why =
                "a restored database was in the way: the blocks that its rows were made of aren't all stored";
            return Ok(Piece::Disturbed(why.into()));
        }
        if derived_to < piece.end() {
            return Ok(Piece::Gone);
        }
        let BlocksRead { blocks, next: end } = raw.blocks(piece, mapper.parts(), PIECE_BYTES).await?;
        drop(raw);
        let piece = HeightRange::new(piece.start(), end);
        let mapping = mapper.clone();
        let (mut made, failed) = tokio::task::spawn_blocking(move || map(&*mapping, &blocks))
            .await
            .map_err(|error| StoreError::Database(format!("comparing blocks {piece} panicked: {error}")))?;
        let service = mapper.service().name;
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for (height, why) in &failed {
            // Of these it is known that they have no rows; of others there may be rows that nobody can hold against anything.
            let quarantined = snapshot.quarantined(&[service], HeightRange::one(*height), 1).await?;
            let told = format!("{service}: height {height} was not compared: {why}");
            if quarantined.total > 0 { known.push(told) } else { unknown.push(told) }
        }
        let mut found = Differences::new();
        let mut rows = 0;
        for def in mapper.service().tables {
            let table = self.catalog.table(def.name)?;
            let expected: BTreeMap<Key, Row> = made
                .remove(def.name)
                .unwrap_or_default()
                .into_iter()
                .map(|row| (table.key_of(&row), row))
                .collect();
            let stored = all_rows(&*snapshot, def.name, piece).await?;
            rows += expected.len().max(stored.len()) as u64;
            let height_of = |key: &Key| key.0.first().and_then(|value| value.as_height());
            let mut stored: BTreeMap<Key, Row> =
                stored.into_iter().map(|row| (table.key_of(&row), row)).collect();
            stored.retain(|key, _| height_of(key).is_none_or(|height| !failed.contains_key(&height)));
            let mut note = |key: &Key, what: usize| {
                let height = height_of(key).unwrap_or(piece.start());
                found.entry((height, def.name)).or_default()[what] += 1;
            };
            for (key, row) in &expected {
                match stored.get(key) {
                    None => note(key, 0),
                    Some(other) if other != row => note(key, 2),
                    Some(_) => {}
                }
            }
            stored.keys().filter(|key| !expected.contains_key(key)).for_each(|key| note(key, 1));
        }
        // Only now, since a piece that is disturbed is compared again.
        known.into_iter().for_each(|line| report.notes.push(line));
        unknown.into_iter().for_each(|line| report.unmended.push(line));
        report.rows += rows;
        differences.extend(found);
        Ok(Piece::To(end))
    }

    /// Names what differs and asks for it again.
    async fn ask_again(
        &self,
        mapper: &Arc<dyn Mapper>,
        differences: Differences,
        derived: HeightRange,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let service = mapper.service();
        let mut heights: BTreeSet<Height> = BTreeSet::new();
        let mut tables: BTreeSet<&str> = BTreeSet::new();
        for ((height, table), [missing, extra, different]) in &differences {
            report.rows_damaged += missing + extra + different;
            report.name(format!(
                "{}: {table}, height {height}: {missing} rows missing, {extra} too many, {different} different",
                service.name
            ));
            heights.insert(*height);
            tables.insert(table);
        }
        let count = |range: HeightRange| -> u64 {
            let of = differences.range((range.start(), "")..(range.end(), ""));
            of.map(|(_, counts)| counts.iter().sum::<u64>()).sum()
        };
        // Once for all ranges; what has changed by then is refused.
        let under_way = UnderWay::of(self.app, service.name).await?;
        let askers = reindex::askers_behind(self.config, self.app, service.name).await?;
        // All of it in one transaction: whoever is killed after it leaves nothing to ask for once more.
        let (mut asked, mut told, mut requested) = (RebuildRequest::default(), Lines::default(), 0);
        for range in ranges_of(heights, JOIN_HEIGHTS) {
            let range = range.intersect(derived);
            match under_way.in_the_way(range) {
                None => {
                    asked.again.push(reindex::again(self.config, service, range));
                    requested += count(range);
                }
                // What an earlier repair asked for is not mended yet.
                Some(_) if under_way.makes_again(range) => told.push(format!(
                    "{}: of heights {range} some are being made again already; look again when they are",
                    service.name
                )),
                Some(lease) => {
                    report.unmended.push(format!(
                        "{}: heights {range} can't be asked for again now: lease {} on {} is not done",
                        service.name, lease.id, lease.range
                    ));
                    continue;
                }
            }
            // Of what is being made again already too: whoever asked for it may have ended in between.
            for asker in &askers {
                if let Some(line) = asker.ask_again(self.config, range, &mut asked) {
                    told.push(line);
                }
            }
        }
        let snapshot = self.app.snapshot().await?;
        for follower in self.processors {
            let Processor::Folder(folder) = follower else { continue };
            let own = folder.service();
            if !folder.reads().iter().any(|table| tables.contains(table.name)) {
                continue;
            }
            if !self.refold {
                report.notes.push_once(format!(
                    "{} is folded from these rows: `cairn reindex --worker {}` once they are made again, if they were wrong when it read them",
                    own.name, own.name
                ));
            } else if reindex::has_run(&*snapshot, own.name) {
                asked.anew.push(own.name.to_owned());
            }
        }
        if self.refold {
            // Those that the configuration disables are folded anew when it enables them again.
            for name in reindex::behind(self.config, &[service.name])?.folders {
                let is_known = self.processors.iter().any(|other| other.service().name == name);
                if !is_known && reindex::has_run(&*snapshot, &name) {
                    asked.anew.push(name);
                }
            }
        }
        drop(snapshot);
        let begun = match self.app.begin_rebuild(&asked).await {
            Ok(begun) => begun,
            // Somebody else asked for some of it in between.
            Err(StoreError::Invalid(why)) => {
                report
                    .unmended
                    .push(format!("{}: its rows can't be asked for again now: {why}", service.name));
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        report.rows_requested += requested;
        report.notes.add(told);
        for rebuild in begun {
            reindex::clear(self.app, &rebuild.service).await?;
            report.notes.push_once(format!(
                "{} is folded from these rows and begins anew at height {}",
                rebuild.service, rebuild.first
            ));
        }
        Ok(())
    }
}

async fn all_rows(
    snapshot: &dyn DerivedSnapshot,
    table: &'static str,
    piece: HeightRange,
) -> Result<Vec<Row>, StoreError> {
    let (mut rows, mut at) = (Vec::new(), piece.start());
    while at < piece.end() {
        let (some, next) = snapshot.events(table, at, piece.end(), PIECE_BYTES as usize).await?;
        rows.extend(some);
        if next <= at {
            return Err(StoreError::Busy(format!("{table} is derived to height {at} only")));
        }
        at = next;
    }
    Ok(rows)
}

/// The rows of blocks, by table, and of the heights that can't be mapped why not.
fn map(
    mapper: &dyn Mapper,
    blocks: &[StoredBlock],
) -> (BTreeMap<&'static str, Vec<Row>>, BTreeMap<Height, String>) {
    let (mut made, mut failed) = (BTreeMap::<_, Vec<Row>>::new(), BTreeMap::new());
    for block in blocks {
        match map_block(mapper, block) {
            Ok(out) => {
                for (table, rows) in out.into_parts().0 {
                    made.entry(table).or_default().extend(rows);
                }
            }
            Err(error) => drop(failed.insert(block.facts.height, error.message)),
        }
    }
    (made, failed)
}

#[cfg(test)]
mod tests;
