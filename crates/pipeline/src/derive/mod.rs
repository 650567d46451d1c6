//! Derived work: processors, and what runs them.
//!
//! A [`Deriver`] runs workers for every service, the applier of reorgs, the committer, and maintenance, until told to stop. Many processes
//! may run one on the same stores; the app store's gate and fences order what they do.
//!
//! * **Ordering.** A mapper's ranges are worked on in any order; folders and enrichers go one range after the other. Nobody passes
//!   an upstream's checkpoint.
//! * **Atomicity.** A chunk's rows, its lease and, where it ends there, the checkpoint move in one transaction.
//! * **Back-pressure.** Workers read from the raw store at their own pace, a bounded chunk at a time; ingestion never waits for them.
//! * **Shutdown.** The running chunk is committed or dropped, and leases are given back.

mod absent;
mod ahead;
mod apply;
mod asking;
mod clearing;
mod committer;
mod context;
mod correct;
mod corrected;
mod enrich;
mod error;
mod faults;
mod fold;
mod guard;
mod held;
mod indexes;
mod looks;
mod map;
mod nearest;
mod options;
mod orphans;
mod part;
pub mod processor;
mod read;
mod recent;
mod refusals;
pub mod replay;
mod report;
mod standing;
pub mod state;
pub mod status;
mod steps;
mod strays;
mod troubles;
mod unanswered;
mod waiting;
mod wake;
mod worker;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cairn_core::Height;
use cairn_store::derived::{
    Catalog, DerivedSnapshot, DerivedStore, ErrorLog, LeaseFilter, LeaseKind, LeaseStatus, WorkerLease,
};
use cairn_store::{RawReader, StoreError};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use context::Context;
use processor::{Folder, Processor};
use status::{DeriveBoard, Halt};
use worker::Worker;

pub use error::DeriveError;
pub use guard::map_block;
pub use options::{Compute, DeriveOptions, MalformedPolicy};

/// Undo rows deleted by one statement.
const PRUNE_ROWS: usize = 10_000;
/// Leases that aren't completed and that are read at once.
const OPEN_LEASES_AT_ONCE: usize = 1_000;
/// How often maintenance comes round, in milliseconds.
const MAINTAIN_MS: u64 = 10_000;
/// How often it looks for closed errors that are old.
const PRUNE_ERRORS_EVERY: Duration = Duration::from_secs(3_600);
/// Such errors that are deleted by one statement.
const PRUNE_ERRORS: usize = 1_000;

/// Runs processors over a raw store into an app store.
pub struct Deriver {
    context: Arc<Context>,
    processors: Vec<Processor>,
    hint: Option<watch::Receiver<u64>>,
}

impl Deriver {
    /// Over these stores. Checks that the processors fit together: names are unique, upstreams exist and have no cycle, every table
    /// of a service is in the catalog and says so.
    pub fn new(
        raw: Arc<dyn RawReader>,
        app: Arc<dyn DerivedStore>,
        errors: Arc<dyn ErrorLog>,
        catalog: Catalog,
        processors: Vec<Processor>,
        options: DeriveOptions,
    ) -> Result<Self, DeriveError> {
        let processors = in_order_of_upstreams(processors)?;
        for processor in &processors {
            let service = processor.service();
            for def in service.tables {
                let table = catalog.table(def.name)?;
                if table.def().service != service.name {
                    return Err(DeriveError::Invalid(format!(
                        "table {} belongs to {}, {} can't write it",
                        def.name,
                        table.def().service,
                        service.name
                    )));
                }
            }
        }
        let folders = folders_of(&processors);
        let context = Context {
            raw,
            app,
            errors,
            catalog,
            folders,
            recent: recent::RecentBlocks::new(options.recent_bytes),
            tip: read::SharedTip::default(),
            looks: looks::Looks::default(),
            ahead: ahead::Ahead::default(),
            unanswered: unanswered::Unanswered::default(),
            troubles: troubles::Troubles::default(),
            options,
            faults: faults::Faults::default(),
            dropped: report::Dropped::default(),
            refusals: refusals::Refusals::default(),
            board: DeriveBoard::default(),
            wake: wake::Wake::default(),
            stop: CancellationToken::new(),
        };
        Ok(Deriver { context: Arc::new(context), processors, hint: None })
    }

    /// Looks at the raw store whenever this changes, instead of at the next poll.
    pub fn with_hint(mut self, hint: watch::Receiver<u64>) -> Self {
        self.hint = Some(hint);
        self
    }

    /// Knows folders whose workers don't run here: what mappers derive again corrects their state too.
    pub fn with_folders(mut self, folders: Vec<Arc<dyn Folder>>) -> Result<Self, DeriveError> {
        let Some(context) = Arc::get_mut(&mut self.context) else {
            return Err(DeriveError::Invalid("folders are named before anything runs".into()));
        };
        let known: BTreeSet<_> = context.folders.iter().map(|folder| folder.service().name).collect();
        let others = folders.into_iter().filter(|folder| !known.contains(folder.service().name));
        context.folders.extend(others.filter(|folder| folder.is_correctable()));
        Ok(self)
    }

    /// Where its status can be followed.
    pub fn board(&self) -> DeriveBoard {
        self.context.board.clone()
    }

    /// Works until told to stop, or until everything is derived where the options say so. An error has ended all derived work of this process.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), DeriveError> {
        let Deriver { context, processors, hint } = self;
        let mut tasks: JoinSet<Result<(), DeriveError>> = JoinSet::new();
        let ended = run_tasks(&context, processors, hint, &mut tasks, &shutdown).await;
        context.stop.cancel();
        let mut first = ended.err();
        while let Some(task) = tasks.join_next().await {
            if let Err(error) = flatten(task) {
                first.get_or_insert(error);
            }
        }
        match first {
            None => Ok(()),
            Some(error) => {
                context.board.halted(Halt {
                    service: None,
                    height: error.height(),
                    code: error.code(),
                    message: error.to_string(),
                });
                Err(error)
            }
        }
    }
}

/// Those whose state can be corrected.
fn folders_of(processors: &[Processor]) -> Vec<Arc<dyn Folder>> {
    let folders = processors.iter().filter_map(|processor| match processor {
        Processor::Folder(folder) => Some(folder.clone()),
        Processor::Mapper(_) | Processor::Enricher(_) => None,
    });
    folders.filter(|folder| folder.is_correctable()).collect()
}

async fn run_tasks(
    context: &Arc<Context>,
    processors: Vec<Processor>,
    hint: Option<watch::Receiver<u64>>,
    tasks: &mut JoinSet<Result<(), DeriveError>>,
    shutdown: &CancellationToken,
) -> Result<(), DeriveError> {
    let poll = Duration::from_millis(context.options.poll_ms.max(1));
    tasks.spawn({
        let context = context.clone();
        async move { context.wake.follow(&context, poll, hint).await }
    });
    let begun = tokio::select! {
        biased;
        () = shutdown.cancelled() => return Ok(()),
        begun = begin(context, &processors) => begun?,
    };
    if !begun {
        return Ok(());
    }
    tasks.spawn(apply::run(context.clone()));
    tasks.spawn(committer::run(context.clone()));
    tasks.spawn(clearing::run(context.clone()));
    let (finality, final_to) = watch::channel(Height::ZERO);
    tasks.spawn(maintain(context.clone(), finality));
    tasks.spawn({
        let context = context.clone();
        async move {
            indexes::run(context, final_to).await;
            Ok(())
        }
    });
    for processor in &processors {
        let workers = match processor {
            Processor::Mapper(_) => context.options.workers_per_service.max(1),
            Processor::Folder(_) | Processor::Enricher(_) => 1,
        };
        for number in 0..workers {
            tasks.spawn(Worker::new(context.clone(), processor.clone(), number).run());
        }
    }
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return Ok(()),
            done = caught_up(context, &processors), if context.options.exit_when_caught_up => return done,
            task = tasks.join_next() => match task {
                None => return Ok(()),
                Some(task) => flatten(task)?,
            },
        }
    }
}

fn flatten(task: Result<Result<(), DeriveError>, tokio::task::JoinError>) -> Result<(), DeriveError> {
    match task {
        Ok(done) => done,
        Err(error) if error.is_cancelled() => Ok(()),
        Err(error) => Err(DeriveError::Panicked(error.to_string())),
    }
}

/// Adopts the raw store and makes every service known, once the raw store has its first block. One whose former rows are still being deleted is
/// made known by the last step of that; its workers claim nothing before.
async fn begin(context: &Context, processors: &[Processor]) -> Result<bool, DeriveError> {
    if apply::adopt(context).await?.is_none() {
        return Ok(false);
    }
    let mut listener = context.wake.listen();
    let poll = Duration::from_millis(context.options.poll_ms.max(1));
    let first = loop {
        if let Some(first) = context.wake.head().and_then(|head| head.first) {
            break first.max(context.options.start);
        }
        listener.wait(poll).await;
    };
    // All of them, before the first is known: who waits for the lowest of them mustn't take that for all.
    context.board.update(|status| {
        for processor in processors {
            let service = status.services.entry(processor.service().name).or_default();
            service.is_enricher = matches!(processor, Processor::Enricher(_));
        }
    });
    let mut backoff = crate::backoff::Backoff::new(100, 5_000, context.options.seed);
    for processor in processors {
        let name = processor.service().name;
        let checkpoint = loop {
            match context.app.register(name, first).await {
                Ok(checkpoint) => break Some(checkpoint),
                Err(StoreError::NotYet { .. }) => {
                    tracing::warn!(
                        service = name,
                        "this worker waits: it is being reset, and what it made before is still being deleted. Nothing is to be done: if whoever resets it was \
                         stopped, a process that derives finishes it, and so does `cairn reindex --worker {name}`"
                    );
                    break None;
                }
                Err(error) => {
                    let error = DeriveError::from(error);
                    if worker::ends_all(&error) {
                        return Err(error);
                    }
                    context.beside("register", Err::<(), _>(error));
                    tokio::select! {
                        biased;
                        () = context.stop.cancelled() => return Ok(false),
                        () = tokio::time::sleep(backoff.next_pause()) => {}
                    }
                }
            }
        };
        context.beside("register", Ok::<_, DeriveError>(()));
        if let Some(checkpoint) = checkpoint {
            context.board.checkpoint(name, &checkpoint);
        }
    }
    match standing::demand(context, None).await {
        // The committer looks again. A raw row that can't be read stops the ranges that need it, and not all work.
        Err(error) if !worker::ends_all(&error) => {
            tracing::debug!(%error, "can't tell yet whether what was derived stands on what is stored");
        }
        demanded => demanded?,
    }
    Ok(true)
}

/// Waits until everything is derived. Every checkpoint but an enricher's is at the raw tip, or at the stop. No range is to be derived again, and every reorg
/// is applied.
async fn caught_up(context: &Context, processors: &[Processor]) -> Result<(), DeriveError> {
    let mut listener = context.wake.listen();
    let poll = Duration::from_millis(context.options.poll_ms.max(1));
    loop {
        match is_caught_up(context, processors).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                let error = DeriveError::from(error);
                if worker::ends_all(&error) {
                    return Err(error);
                }
                tracing::debug!(%error, "can't tell yet whether all is derived");
            }
        }
        listener.wait(poll).await;
    }
}

async fn is_caught_up(context: &Context, processors: &[Processor]) -> Result<bool, StoreError> {
    let raw = context.raw.snapshot().await?;
    let head = raw.head();
    let Some(tip) = head.tip else { return Ok(false) };
    let end = context.options.stop_exclusive.map_or(tip.height.next(), |stop| stop.min(tip.height.next()));
    let app = context.app.snapshot().await?;
    let settled = app.forks().is_settled() && app.forks().applied.id == head.newest_reorg.id;
    let done = |processor: &Processor| {
        if matches!(processor, Processor::Enricher(_)) {
            return true;
        }
        app.checkpoint(processor.service().name).is_some_and(|own| own.paused || own.next >= end)
    };
    if !settled || !processors.iter().all(done) {
        return Ok(false);
    }
    let others = processors.iter().filter(|processor| !matches!(processor, Processor::Enricher(_)));
    let services: Vec<&str> = others.map(|processor| processor.service().name).collect();
    Ok(!derives_again(&*app, &services).await?)
}

/// Whether rows of one of these services are to be derived again, and somebody is to do it now: no operator has paused it, the range isn't dead, and the
/// service has come to it.
pub async fn derives_again(app: &dyn DerivedSnapshot, services: &[&str]) -> Result<bool, StoreError> {
    for name in services {
        let Some(own) = app.checkpoint(name).filter(|own| !own.paused) else { continue };
        for status in [LeaseStatus::Active, LeaseStatus::Failed] {
            let (service, limit) = (Some((*name).to_owned()), OPEN_LEASES_AT_ONCE);
            let mut filter = LeaseFilter { service, status: Some(status), limit, ..LeaseFilter::default() };
            loop {
                let leases = app.leases(&filter).await?;
                let is_again = |lease: &WorkerLease| {
                    lease.kind == LeaseKind::Reindex && !lease.is_dead() && lease.done_to < own.next
                };
                if leases.iter().any(is_again) {
                    return Ok(true);
                }
                let Some(last) = leases.last().filter(|_| leases.len() == limit) else { break };
                filter.after_id = last.id;
            }
        }
    }
    Ok(false)
}

/// Makes partitions, tells up to which height nothing is undone any more, and deletes undo rows below it, and closed errors that are old.
async fn maintain(context: Arc<Context>, finality: watch::Sender<Height>) -> Result<(), DeriveError> {
    let mut listener = context.wake.listen();
    let mut prune_errors_at = Instant::now();
    while !context.stop.is_cancelled() {
        if let Some(head) = context.wake.head() {
            let tip = head.tip.map(|tip| tip.height).unwrap_or_default();
            let maintained = async {
                context.app.maintain(tip).await?;
                match context.app.forks().await? {
                    Some(forks) => {
                        let final_to = read::undone_never(&head, &forks);
                        finality.send_replace(final_to);
                        context.app.prune_undo(final_to, PRUNE_ROWS).await
                    }
                    None => Ok(0),
                }
            };
            let maintained = maintained.await;
            context.beside("maintain", maintained);
        }
        if let Some(kept_ms) = context.options.closed_errors_kept_ms
            && Instant::now() >= prune_errors_at
        {
            let pruned = context.errors.prune_closed(kept_ms, PRUNE_ERRORS).await;
            // More are left: at the next round.
            if context.beside("errors", pruned).is_some_and(|gone| gone < PRUNE_ERRORS as u64) {
                prune_errors_at = Instant::now() + PRUNE_ERRORS_EVERY;
            }
        }
        tokio::select! {
            biased;
            () = context.stop.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(MAINTAIN_MS)) => {}
        }
        listener.wait(Duration::ZERO).await;
    }
    Ok(())
}

/// Sorts processors so that each comes after its upstreams; an error where one of those is missing.
pub fn in_order_of_upstreams(mut processors: Vec<Processor>) -> Result<Vec<Processor>, DeriveError> {
    let names: BTreeSet<_> = processors.iter().map(|processor| processor.service().name).collect();
    if names.len() != processors.len() {
        return Err(DeriveError::Invalid("two services have the same name".into()));
    }
    let mut sorted: Vec<Processor> = Vec::with_capacity(processors.len());
    while !processors.is_empty() {
        let ready = processors.iter().position(|processor| {
            let upstreams = processor.service().upstreams;
            upstreams.iter().all(|name| sorted.iter().any(|done| done.service().name == *name))
        });
        match ready {
            Some(at) => sorted.push(processors.remove(at)),
            None => {
                let service = processors[0].service();
                let what = match service.upstreams.iter().find(|name| !names.contains(*name)) {
                    Some(missing) => format!("{} needs {missing}, which is not enabled", service.name),
                    None => format!("the upstreams of {} go round in a circle", service.name),
                };
                return Err(DeriveError::Invalid(what));
            }
        }
    }
    Ok(sorted)
}
