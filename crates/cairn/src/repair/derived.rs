//! The derived tables' part of a repair: the rows that mappers wrote, against what they make of the same blocks now.
//!
//! Blocks and rows are read in pieces, each from one snapshot of either store, and compared only where both stand on the same forks; a piece
//! that a reorg disturbs is read again. What differs is asked for again by [`begin_rebuild`](cairn_store::derived::DerivedMaintenance::begin_rebuild), and
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

use super::{Report, ranges_of};
use crate::commands::reindex;
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
}

/// A piece that could not be compared now.
enum Piece {
    /// Compared up to here.
    To(Height),
    /// A reorg is under way.
    Disturbed,
}

/// What differs, by table and height: missing, too many, different.
type Differences = BTreeMap<(&'static str, Height), [u64; 3]>;

impl Derived<'_> {
    /// Compares the rows of all mappers in `range`, as far as they are derived, and asks for what differs to be made again.
    pub async fn repair(&self, range: HeightRange) -> anyhow::Result<Report> {
        let mut report = Report::default();
        for processor in self.processors {
            if let Processor::Mapper(mapper) = processor {
                self.repair_one(mapper, range, &mut report).await?;
            }
        }
        Ok(report)
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
            if snapshot.rebuilds().iter().any(|rebuild| rebuild.service == service.name) {
                report.notes.push(format!(
                    "{}: its rows were not compared, since it begins anew and what it made before is still being deleted",
                    service.name
                ));
            }
            return Ok(());
        };
        drop(snapshot);
        let first = reindex::first_height(self.app, service.name, end).await?;
        let range = range.intersect(HeightRange::new(first.min(end), end));
        let mut differences = Differences::new();
        let (mut at, mut tries) = (range.start(), 0);
        while at < range.end() {
            let piece = HeightRange::new(at, Height(at.get().saturating_add(PIECE_HEIGHTS))).intersect(range);
            match self.compare(mapper, piece, &mut differences, report).await {
                Ok(Piece::To(next)) => (at, tries) = (next, 0),
                Ok(Piece::Disturbed) => tries += 1,
                Err(error) if error.kind() == ErrorKind::Retry => tries += 1,
                Err(error) => return Err(error.into()),
            }
            if tries > MAX_TRIES {
                report.notes.push(format!(
                    "{}: heights from {at} on were not compared, since a reorg or a restored database was in the way",
                    service.name
                ));
                break;
            }
            if tries > 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        if differences.is_empty() {
            return Ok(());
        }
        self.ask_again(mapper, &differences, range, report).await
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
        if head.info.uuid != forks.raw_uuid
            || !forks.is_settled()
            || forks.applied.id != head.newest_reorg.id
            || derived_to < piece.end()
        {
            return Ok(Piece::Disturbed);
        }
        let piece = piece.intersect(head.range());
        let BlocksRead { blocks, next: end } = raw.blocks(piece, mapper.parts(), PIECE_BYTES).await?;
        drop(raw);
        let piece = HeightRange::new(piece.start(), end);
        let mapping = mapper.clone();
        let (mut made, failed) = tokio::task::spawn_blocking(move || map(&*mapping, &blocks))
            .await
            .map_err(|error| StoreError::Database(format!("comparing blocks {piece} panicked: {error}")))?;
        let service = mapper.service().name;
        for (height, why) in &failed {
            // Of these it is known that they have no rows; of others there may be rows that nobody can hold against anything.
            let known = snapshot.quarantined(&[service], HeightRange::one(*height), 1).await?;
            let told = format!("{service}: height {height} was not compared: {why}");
            let told_in = if known.total > 0 { &mut report.notes } else { &mut report.unmended };
            told_in.push(told);
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
                found.entry((def.name, height)).or_default()[what] += 1;
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
        report.rows += rows;
        differences.extend(found);
        Ok(Piece::To(end))
    }

    /// Names what differs and asks for it again.
    async fn ask_again(
        &self,
        mapper: &Arc<dyn Mapper>,
        differences: &Differences,
        derived: HeightRange,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        let service = mapper.service();
        let mut heights: BTreeSet<Height> = BTreeSet::new();
        let mut tables: BTreeSet<&str> = BTreeSet::new();
        for ((table, height), [missing, extra, different]) in differences {
            report.rows_damaged += missing + extra + different;
            report.name(format!(
                "{}: {table}, height {height}: {missing} rows missing, {extra} too many, {different} different",
                service.name
            ));
            heights.insert(*height);
            tables.insert(table);
        }
        let count = |range: HeightRange| -> u64 {
            let of = differences.iter().filter(|((_, height), _)| range.contains(*height));
            of.map(|(_, counts)| counts.iter().sum::<u64>()).sum()
        };
        // All of it in one transaction: whoever is killed after it leaves nothing to ask for once more.
        let (mut asked, mut told, mut requested) = (RebuildRequest::default(), Vec::new(), 0);
        for range in ranges_of(heights, JOIN_HEIGHTS) {
            let range = range.intersect(derived);
            // One each, since a store may end it after two seconds; what has changed by then is refused.
            let snapshot = self.app.snapshot().await?;
            match reindex::in_the_way(&*snapshot, service.name, range).await? {
                None => {
                    asked.again.push(reindex::again(self.config, service, range));
                    requested += count(range);
                }
                // What an earlier repair asked for is not mended yet.
                Some(_) if is_being_made_again(&*snapshot, service.name, range).await? => told.push(format!(
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
            told.extend(
                reindex::ask_again_behind(self.config, self.app, &*snapshot, service.name, range, &mut asked)
                    .await?,
            );
        }
        let snapshot = self.app.snapshot().await?;
        for follower in self.processors {
            let Processor::Folder(folder) = follower else { continue };
            let own = folder.service();
            if !folder.reads().iter().any(|table| tables.contains(table.name)) {
                continue;
            }
            if !self.refold {
                told.push(format!(
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
        report.notes.extend(told);
        for rebuild in begun {
            reindex::clear(self.app, &rebuild.service).await?;
            report.notes.push(format!(
                "{} is folded from these rows and begins anew at height {}",
                rebuild.service, rebuild.first
            ));
        }
        Ok(())
    }
}

async fn is_being_made_again(
    snapshot: &dyn DerivedSnapshot,
    service: &str,
    range: HeightRange,
) -> Result<bool, StoreError> {
    let again = snapshot.made_again_from(service, range.start()).await?;
    Ok(again.is_some_and(|from| from < range.end()))
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
mod tests {
    use cairn_core::{BlockFacts, BlockId, Parts};
    use cairn_pipeline::derive::processor::{Output, ProcessError, ServiceInfo};
    use cairn_store::derived::{BLOCK_HEIGHT, ColumnType, TableClass, TableDef, Value, column};

    use super::*;

    static ROWS: TableDef = TableDef {
        name: "rows",
        service: "row_worker",
        class: TableClass::Events { partition_heights: 16 },
        columns: &[column(BLOCK_HEIGHT, ColumnType::Int)],
        key: &[BLOCK_HEIGHT],
        indexes: &[],
    };
    static SERVICE: ServiceInfo =
        ServiceInfo { name: "row_worker", version: 1, upstreams: &[], tables: &[&ROWS] };

    /// Can't process height 2, and panics at height 3.
    struct Rows;

    impl Mapper for Rows {
        fn service(&self) -> &'static ServiceInfo {
            &SERVICE
        }

        fn parts(&self) -> Parts {
            Parts::empty()
        }

        fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
            let at = block.facts.block_ref();
            out.row(&ROWS, Row(vec![Value::height(at.height)]));
            match at.height.get() {
                2 => Err(ProcessError { block: at, message: "not this one".into() }),
                3 => panic!("nor this one"),
                _ => Ok(()),
            }
        }
    }

    fn block(height: u64) -> StoredBlock {
        let facts = BlockFacts {
            height: Height(height),
            id: BlockId([7; 32]),
            parent_id: BlockId([6; 32]),
            timestamp_ms: 0,
            tx_count: 0,
            log_count: 0,
            unverified: 0,
        };
        StoredBlock {
            facts,
            transactions: Vec::new(),
            header: Default::default(),
            body: Default::default(),
            receipts: Default::default(),
            extras: Default::default(),
            traces: None,
        }
    }

    #[test]
    fn e24_a_block_that_can_not_be_mapped_keeps_no_other_from_being_compared() {
        let (made, failed) = map(&Rows, &(1..=4).map(block).collect::<Vec<_>>());
        let heights: Vec<_> = made["rows"].iter().map(|row| row.0[0].as_height()).collect();
        assert_eq!(heights, [Some(Height(1)), Some(Height(4))]);
        assert_eq!(failed.keys().copied().collect::<Vec<_>>(), [Height(2), Height(3)]);
        assert!(failed[&Height(2)].contains("not this one") && failed[&Height(3)].contains("nor this one"));
    }
}
