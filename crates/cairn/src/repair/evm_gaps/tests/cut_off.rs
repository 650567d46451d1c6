//! Repairs that are killed, or met by others, between a block's replacement and the demand for what is made of it.
//!
//! Each tenth Flow block closes an EVM block. The third of these, in [`CLOSING`], lacks the event that says so, and [`OTHER`] before it one that no gap shows.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use cairn_core::{ChainId, LinkedRef, Parts, RawBlock, StoredBlock};
use cairn_flow::assemble;
use cairn_flow_node::Draft;
use cairn_pipeline::derive::map_block;
use cairn_source::{ChainSource, Heads, SourceError};
use cairn_store::derived::{ErrorFilter, ErrorLog, LeaseFilter, LeaseKind, RebuildRequest, WorkerLease};
use cairn_store::{AppendBatch, StoreInfo};
use tokio::sync::Notify;

use super::*;
use crate::commands::reindex::{self, Stay, pg};
use crate::commands::retry::retry;
use crate::config::DatabaseConfig;
use crate::operators::Stores;
use crate::repair::evm_gaps::left::{self, Left, Written};
use crate::stores::{self, Access};

const OTHER: Height = Height(FIRST + 15);
const CLOSING: Height = Height(FIRST + 20);
/// The Flow blocks between which the EVM block is missing.
const GAP: (Height, Height) = (Height(FIRST + 10), Height(FIRST + 30));
const UUID: [u8; 16] = [7; 16];

/// A block as it was stored, or whole.
fn block(height: Height, is_whole: bool) -> RawBlock {
    let events = if height == OTHER && is_whole { 3 } else { 2 };
    let mut draft = Draft::new(height.get(), &[1], events);
    let place = height.get() - FIRST;
    if place.is_multiple_of(10) && (height != CLOSING || is_whole) {
        draft.evm_block(place / 10 + 1, 0, &[], &[]);
    }
    assemble(&draft.parts()).expect("is whole")
}

fn heights() -> HeightRange {
    HeightRange::new(Height(FIRST), Height(FIRST + HEIGHTS))
}

/// A node that has these blocks whole and all others as they are stored.
#[derive(Default)]
struct Node {
    whole: Vec<Height>,
    /// Asked for this one, it says so, and nothing else ever.
    hangs_at: Option<Height>,
    hangs: Notify,
    /// Asked for this one, somebody asks for rows first.
    meets: Mutex<Option<Meeting>>,
}

/// At which block whom is asked for what.
type Meeting = (Height, Arc<dyn AppStore>, RebuildRequest);

#[async_trait]
impl ChainSource for Node {
    async fn chain_id(&self) -> Result<ChainId, SourceError> {
        Ok(Network::Emulator.chain_number())
    }

    async fn heads(&self) -> Result<Heads, SourceError> {
        Err(SourceError::Transient { endpoint: "test".into(), message: "nobody asks".into() })
    }

    async fn linked_ref(&self, _height: Height) -> Result<Option<LinkedRef>, SourceError> {
        Ok(None)
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>, SourceError> {
        if self.hangs_at.is_some_and(|height| range.contains(height)) {
            self.hangs.notify_one();
            std::future::pending::<()>().await;
        }
        let met = {
            let mut meets = self.meets.lock().expect("no panic");
            meets.take_if(|(height, ..)| range.contains(*height))
        };
        if let Some((_, app, request)) = met {
            app.begin_rebuild(&request).await.expect("is asked for");
        }
        Ok(range.iter().map(|height| block(height, self.whole.contains(&height))).collect())
    }
}

/// An archive with a gap, of which all is derived.
struct Archive {
    config: Config,
    store: Arc<dyn RawStore>,
    app: Arc<dyn AppStore>,
    mappers: Vec<Processor>,
}

/// What a mapper makes of a block.
fn made(mapper: &Processor, block: &RawBlock) -> Vec<TableRows> {
    let Processor::Mapper(mapper) = mapper else { return Vec::new() };
    let out = map_block(&**mapper, &StoredBlock::from(block)).expect("is mapped");
    out.into_parts().0.into_iter().map(|(table, rows)| TableRows { table, rows }).collect()
}

impl Archive {
    async fn new(mut config: Config) -> Archive {
        config.chain.kind = Some(ChainKind::Flow);
        config.chain.network = Some(FlowNetwork::from(Network::Emulator));
        let store = stores::open_raw(&config, Access::Write).await.expect("opens");
        let chain_id = Network::Emulator.chain_number();
        let info = StoreInfo { uuid: UUID, chain_id, chain_config: Default::default() };
        store.init(info).await.expect("is made");
        let fence = store.acquire().await.expect("is free").fence;
        let blocks: Vec<RawBlock> = heights().iter().map(|height| block(height, false)).collect();
        let batch = AppendBatch { blocks: blocks.clone(), ..AppendBatch::default() };
        store.append(fence, batch).await.expect("appends");
        let app = derive::open_for_command(&config).await.expect("opens");
        app.adopt(UUID, ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
        let mut mappers = derive::processors(&config, derive::Asked::default(), None).expect("workers");
        mappers.retain(|processor| matches!(processor, Processor::Mapper(_)));
        for mapper in &mappers {
            let mut rows: BTreeMap<&'static str, Vec<Row>> = BTreeMap::new();
            for TableRows { table, rows: some } in blocks.iter().flat_map(|block| made(mapper, block)) {
                rows.entry(table).or_default().extend(some);
            }
            let rows = rows.into_iter().map(|(table, rows)| TableRows { table, rows }).collect();
            done(&*app, mapper.service().name, rows, Vec::new()).await;
        }
        let gaps = vec![gap(3, GAP.1.get())];
        done(&*app, EVM_CHAIN_WORKER, Vec::new(), vec![StateRows { table: EVM_GAPS.name, rows: gaps }]).await;
        Archive { config, store, app, mappers }
    }

    async fn on_sqlite(dir: &tempfile::TempDir) -> Archive {
        Archive::new(Config { data_dir: dir.path().into(), ..Config::default() }).await
    }

    async fn on_postgres(dir: &tempfile::TempDir, db: &pg::TestDb) -> Archive {
        let database = || DatabaseConfig { url: Some(db.url.clone()), ..DatabaseConfig::default() };
        let (raw, app) = (database(), database());
        Archive::new(Config { data_dir: dir.path().into(), raw, app, ..Config::default() }).await
    }

    async fn repair(&self, node: &Arc<Node>) -> Report {
        let gaps =
            EvmGaps { config: &self.config, store: &self.store, app: &*self.app, bounds: Bounds::WHOLE };
        gaps.repair(None, Some(&Fetch::From(node.clone()))).await
    }

    /// A repair that is killed once the node hangs.
    async fn repair_and_die(&self, node: &Arc<Node>) {
        tokio::select! {
            report = self.repair(node) => panic!("it came to an end: {report}"),
            () = node.hangs.notified() => {}
            () = tokio::time::sleep(Duration::from_secs(60)) => panic!("it did not come to where it hangs"),
        }
    }

    /// The heights that repairs have left to the next one.
    async fn left(&self) -> Vec<Height> {
        Left::of(&*self.store).await.expect("reads").heights().collect()
    }

    async fn stored(&self, height: Height) -> StoredBlock {
        let reader: Arc<dyn RawReader> = self.store.clone();
        let snapshot = reader.snapshot().await.expect("reads");
        snapshot.block(height, Parts::all()).await.expect("reads").expect("is there")
    }

    /// What is asked for again of mappers and not done yet, by service.
    async fn asked_again(&self) -> Vec<(String, HeightRange)> {
        let filter = LeaseFilter { limit: 1_000, ..LeaseFilter::default() };
        let leases = self.app.snapshot().await.expect("reads").leases(&filter).await.expect("reads");
        let is_open =
            |lease: &WorkerLease| lease.kind == LeaseKind::Reindex && lease.done_to < lease.range.end();
        let mut asked: Vec<_> =
            leases.into_iter().filter(is_open).map(|lease| (lease.service, lease.range)).collect();
        asked.sort_unstable_by(|a, b| (&a.0, a.1.start()).cmp(&(&b.0, b.1.start())));
        asked
    }

    /// Does what is asked for again of a mapper, from blocks as it has read them.
    async fn work(&self, mapper: &Processor, read: impl Fn(Height) -> RawBlock) {
        let service = mapper.service();
        let request = ClaimRequest {
            service: service.name.into(),
            version: service.version,
            owner: "test".into(),
            ttl_ms: 60_000,
            range_heights: FIRST + HEIGHTS,
            first: Height(FIRST),
            limit_exclusive: Height(FIRST + HEIGHTS),
            stop_exclusive: None,
            in_order: false,
        };
        while let Some(lease) = self.app.claim(&request).await.expect("claims") {
            assert_eq!(lease.kind, LeaseKind::Reindex);
            let mut rows: BTreeMap<&'static str, Vec<Row>> = BTreeMap::new();
            for height in HeightRange::new(lease.done_to, lease.range.end()).iter() {
                for TableRows { table, rows: some } in made(mapper, &read(height)) {
                    rows.entry(table).or_default().extend(some);
                }
            }
            let commit = ChunkCommit {
                chunk: HeightRange::new(lease.done_to, lease.range.end()),
                parent_id: Some(block(lease.done_to, false).facts.parent_id),
                last_id: Some(block(lease.range.end().saturating_sub(1), false).facts.id),
                read: ReadMark { reorg_id: 0, known_to: 0, newer: Vec::new() },
                folded_at: None,
                rows: rows.into_iter().map(|(table, rows)| TableRows { table, rows }).collect(),
                states: Vec::new(),
                replaces: service.tables.iter().map(|table| table.name).collect(),
                corrections: Vec::new(),
                quarantined: Vec::new(),
                finalized: Height(0),
                ttl_ms: 60_000,
            };
            self.app.commit_chunk(&lease, commit).await.expect("commits");
        }
    }

    /// Those of the mappers that make something else of a block when it is whole.
    fn concerned(&self, height: Height) -> Vec<&Processor> {
        let differs =
            |mapper: &&Processor| made(mapper, &block(height, true)) != made(mapper, &block(height, false));
        self.mappers.iter().filter(differs).collect()
    }

    fn names(&self, height: Height) -> Vec<&'static str> {
        let mut names: Vec<_> = self.concerned(height).iter().map(|mapper| mapper.service().name).collect();
        names.sort_unstable();
        names
    }
}

async fn the_next_repair_finishes_one_that_was_killed(archive: Archive) {
    assert!(!archive.names(OTHER).is_empty() && archive.names(CLOSING).contains(&EVM_WORKER));
    // The node gives more of a block that closes no EVM block; then the process dies.
    let hanging = Node { whole: vec![OTHER], hangs_at: Some(OTHER + 1), ..Node::default() };
    archive.repair_and_die(&Arc::new(hanging)).await;
    assert_eq!(archive.stored(OTHER).await, StoredBlock::from(&block(OTHER, true)), "it is replaced");
    assert_eq!((archive.asked_again().await, archive.left().await), (Vec::new(), vec![OTHER]));
    // No worker made that entry.
    let filter = ErrorFilter { service: Some(REPAIR_SERVICE.into()), limit: 10, ..ErrorFilter::default() };
    let id = ErrorLog::list(&*archive.store, &filter).await.expect("reads")[0].id;
    let open = Stores { raw: Some(archive.store.clone()), app: Some(archive.app.clone()) };
    let refused = retry(&archive.config, &open, id, true, &Stay::to_the_end()).await;
    let refused = refused.expect_err("nobody to ask").to_string();
    assert!(refused.contains("`cairn repair`"), "{refused}");

    // All that the node gives is stored by now, and the gap is open still.
    let same = Arc::new(Node { whole: vec![OTHER], ..Node::default() });
    let report = archive.repair(&same).await;
    assert_eq!((report.gaps, report.gaps_same, report.gaps_mended), (1, 1, 0), "{report}");
    assert!(report.to_string().contains("height 115: replaced by a repair that was cut off"), "{report}");
    let asked = archive.asked_again().await;
    let of = |names: Vec<&str>| -> Vec<(String, HeightRange)> {
        names.into_iter().map(|name| (name.to_owned(), HeightRange::one(OTHER))).collect()
    };
    assert_eq!(asked, of(archive.names(OTHER)));
    assert_eq!(archive.left().await, Vec::new(), "it is asked for, and nothing is left");
    for mapper in archive.concerned(OTHER) {
        archive.work(mapper, |height| block(height, height == OTHER)).await;
    }

    // Killed once more, behind the block that closes the gap.
    let hanging = Node { whole: vec![OTHER, CLOSING], hangs_at: Some(CLOSING + 1), ..Node::default() };
    archive.repair_and_die(&Arc::new(hanging)).await;
    assert_eq!((archive.asked_again().await, archive.left().await), (Vec::new(), vec![CLOSING]));
    let whole = Arc::new(Node { whole: vec![OTHER, CLOSING], ..Node::default() });
    let report = archive.repair(&whole).await;
    assert_eq!((report.gaps, report.gaps_mended, report.unmended.count()), (1, 1, 0), "{report}");
    for mapper in archive.concerned(CLOSING) {
        archive.work(mapper, |height| block(height, true)).await;
    }
    // Nothing is left to do, and no row differs from what a clean run makes.
    assert_eq!((archive.asked_again().await, archive.left().await), (Vec::new(), Vec::new()));
    let (reader, catalog) =
        (archive.store.clone() as Arc<dyn RawReader>, derive::catalog(&archive.config).expect("tables"));
    let derived = Derived {
        raw: &reader,
        app: &*archive.app,
        catalog: &catalog,
        processors: &archive.mappers,
        config: &archive.config,
        refold: false,
        ask_after: ASK_AFTER,
    };
    let compared = derived.repair(heights()).await;
    assert_eq!((compared.rows_damaged, compared.not_compared.count()), (0, 0), "{compared}");
    assert!(compared.rows > 0);
}

#[tokio::test]
async fn f04_the_next_repair_finishes_one_that_was_killed_on_sqlite() {
    let dir = tempfile::tempdir().expect("a directory");
    the_next_repair_finishes_one_that_was_killed(Archive::on_sqlite(&dir).await).await;
}

#[tokio::test]
async fn f04_the_next_repair_finishes_one_that_was_killed_on_postgres() {
    let Some(db) = pg::database().await else { return };
    let dir = tempfile::tempdir().expect("a directory");
    the_next_repair_finishes_one_that_was_killed(Archive::on_postgres(&dir, &db).await).await;
}

/// Between the look at who makes rows and a block's replacement somebody asks for rows of it: whoever makes them has read it as it was.
#[tokio::test]
async fn f04_rows_that_are_asked_for_while_a_block_is_replaced_are_looked_at_once_they_are_made() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = Archive::on_sqlite(&dir).await;
    let maker = archive.concerned(OTHER).into_iter().next().expect("one makes something else of it");
    let name = maker.service().name;
    let asked = HeightRange::inclusive(GAP.0, GAP.1);
    let request = RebuildRequest {
        again: vec![reindex::again(&archive.config, maker.service(), asked)],
        ..RebuildRequest::default()
    };
    let met = Some((OTHER, archive.app.clone(), request));
    let node = Arc::new(Node { whole: vec![OTHER, CLOSING], meets: Mutex::new(met), ..Node::default() });
    let report = archive.repair(&node).await;
    assert_eq!((report.gaps, report.gaps_mended), (1, 0), "{report}");
    assert_eq!(report.outcome(), crate::repair::Outcome::Incomplete, "{report}");
    assert!(report.to_string().contains(&format!("when {name} has made its rows")), "{report}");
    assert_eq!(archive.left().await, [OTHER, CLOSING]);

    // It comes to its end with what it read.
    archive.work(maker, |height| block(height, false)).await;
    for mapper in &archive.mappers {
        archive.work(mapper, |height| block(height, true)).await;
    }
    let report = archive.repair(&node).await;
    assert_eq!(report.unmended.count() + report.not_compared.count(), 0, "{report}");
    let again = [OTHER, CLOSING].map(|height| (name.to_owned(), HeightRange::one(height)));
    assert_eq!(archive.asked_again().await, again, "{report}");
    assert_eq!(archive.left().await, Vec::new());
}

/// Two repairs of one gap: the one that comes later keeps what the other one found, and adds to it.
#[tokio::test]
async fn f04_what_another_repair_put_there_meanwhile_is_kept() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = Archive::on_sqlite(&dir).await;
    let ask = async |answers: Vec<RawBlock>| {
        let fetch = Fetch::From(Arc::new(Racing { answers, meets: archive.store.clone() }));
        ask::ask(&archive.store, &fetch, Network::Emulator, OTHER).await
    };
    let of = |events| assemble(&Draft::new(OTHER.get(), &[1], events).parts()).expect("is whole");
    // Judged against two events three were more. By then there are four.
    let asked = ask(vec![of(3)]).await;
    let error = asked.expect_err("lacks what is stored").to_string();
    assert!(error.contains("what the nodes give now is not what is stored"), "{error}");
    assert_eq!(archive.stored(OTHER).await, StoredBlock::from(&of(4)));
    // What has those and more follows.
    let asked = ask(vec![of(3), of(5)]).await.expect("takes its place");
    assert_eq!((asked.new_events, archive.stored(OTHER).await), (Some(2), StoredBlock::from(&of(5))));
}

/// A node that another repair, which is given four events of each transaction, is quicker than.
struct Racing {
    answers: Vec<RawBlock>,
    meets: Arc<dyn RawStore>,
}

#[async_trait]
impl ChainSource for Racing {
    async fn chain_id(&self) -> Result<ChainId, SourceError> {
        Ok(Network::Emulator.chain_number())
    }

    async fn heads(&self) -> Result<Heads, SourceError> {
        Err(SourceError::Transient { endpoint: "test".into(), message: "nobody asks".into() })
    }

    async fn linked_ref(&self, _height: Height) -> Result<Option<LinkedRef>, SourceError> {
        Ok(None)
    }

    async fn blocks(&self, range: HeightRange) -> Result<Vec<RawBlock>, SourceError> {
        let more = assemble(&Draft::new(range.start().get(), &[1], 4).parts()).expect("is whole");
        self.meets.repair_block(more).await.expect("is replaced");
        Ok(self.answers.clone())
    }
}

/// An error about a gap is closed where its row is gone, whoever closed it, and one of a gap that is there stays.
#[tokio::test]
async fn f04_errors_of_gaps_that_are_gone_are_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = Archive::on_sqlite(&dir).await;
    let error = |evm_height: u64, height: Height, message: String| cairn_store::derived::NewError {
        service: EVM_CHAIN_WORKER.into(),
        height,
        block_id: BlockId([evm_height as u8; 32]),
        transaction_id: String::new(),
        severity: cairn_store::derived::Severity::Fatal,
        message,
        raw_data: Vec::new(),
        raw_ref: None,
    };
    let missing =
        |from: u64| format!("EVM blocks {from} to {from} are missing: block {} of Flow block 1", from + 1);
    let errors = [
        error(3, GAP.1, missing(3)),
        error(4, GAP.1, missing(4)),
        error(5, GAP.1 + 10, missing(5)),
        error(6, GAP.1 + 10, "EVM block 6 comes again".into()),
        // The worker has told of it, and not come to it yet.
        error(9, Height(FIRST + HEIGHTS), missing(9)),
    ];
    ErrorLog::record(&*archive.store, &errors).await.expect("records");
    archive.repair(&Arc::new(Node::default())).await;
    let filter = ErrorFilter { limit: 100, ..ErrorFilter::default() };
    let open = ErrorLog::list(&*archive.store, &filter).await.expect("reads");
    let open: Vec<u8> = open.iter().map(|logged| logged.error.block_id.0[0]).collect();
    assert_eq!(open, [3, 6, 9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn f04_a_repair_that_looked_before_a_block_was_replaced_does_not_close_what_is_left_of_it() {
    let dir = tempfile::tempdir().expect("dir");
    let archive = Archive::on_sqlite(&dir).await;
    let store = &*archive.store;
    let at = block(Height(FIRST + 1), false).block_ref();
    left::note(store, at, None).await.expect("is told");
    // Somebody else looks, finds the block as it was, and so nothing to do.
    let beside = Left::of(store).await.expect("reads");
    left::note(store, at, Some(Written { events: 1, bytes: 100 })).await.expect("is told");
    beside.close(store, |_| true).await.expect("closes");
    assert_eq!(archive.left().await, [at.height]);
    Left::of(store).await.expect("reads").close(store, |_| true).await.expect("closes");
    assert_eq!(archive.left().await, []);
}
