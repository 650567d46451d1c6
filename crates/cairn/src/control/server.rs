//! The process that holds the stores, and does what operators' commands ask.
//!
//! One request is done at a time; a few more wait a little, and are told what is being done where that takes longer. What was begun goes on to its end whoever hangs up: it
//! is a task of its own. When the process ends, what has not begun is sent back, also what comes as long as it holds the stores, and what has begun may take a little longer; what an end
//! cuts short is what a killed command would leave, which the next process finishes. What a request began to delete is deleted to the end here, whether or not this process derives.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::place::{self, Short};
use super::{Answer, MAX_ANSWER_BYTES, MAX_REQUEST_BYTES, Outcome, PROTOCOL, Request, Spoken};
use super::{read_frame, write_frame};
use crate::commands::reindex::{self, Stay};
use crate::config::Config;
use crate::operators::{self, Operation, Stores};
use crate::stores::{AppStore, LateApp, RawStore};

/// Connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 8;
/// How long it takes at most until a connection is there that was made before the end, and how many of them are answered.
const LAST_WITHIN: Duration = Duration::from_millis(50);
const MAX_LAST: usize = 128;
/// How often it is looked whether the app store is open.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The longest name of a thing that is being done.
const MAX_SHOWN_CHARS: usize = 200;

/// How long each part may take.
#[derive(Debug, Clone)]
struct Limits {
    /// A request to come, and an answer to be taken.
    read: Duration,
    /// A request to wait for those before it.
    turn: Duration,
    /// The app store to be opened.
    app: Duration,
    /// A request that deletes, to go on with it; what is left is deleted by whoever derives.
    delete: Duration,
    /// Whoever asks, to wait for what is being done.
    answer: Duration,
    /// What is being done when the process ends.
    end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            read: Duration::from_secs(5),
            turn: Duration::from_secs(10),
            app: Duration::from_secs(10),
            delete: Duration::from_secs(30),
            answer: Duration::from_secs(60),
            end: Duration::from_secs(10),
        }
    }
}

/// Somebody who takes requests.
pub struct Requests {
    task: JoinHandle<()>,
    over: CancellationToken,
}

impl Requests {
    /// Removes the socket, once all else that holds the stores has ended; returns when nothing is being done any more.
    pub async fn end(self) {
        self.over.cancel();
        if let Err(error) = self.task.await {
            tracing::warn!(%error, "operators' requests came to no end");
        }
    }
}

/// Takes requests until `stop`; from then on they are told that this process ends. `None`: no store is a file, so that anybody may write to them.
///
/// Nothing that goes wrong here touches the rest of the process.
pub fn start(
    config: &Config,
    raw: Arc<dyn RawStore>,
    app: Option<Arc<LateApp>>,
    stop: CancellationToken,
) -> Option<Requests> {
    let socket = place::socket(config)?;
    let doer = Arc::new(Doer::new(config.clone(), raw, app, stop, Limits::default()));
    let over = CancellationToken::new();
    let task = tokio::spawn({
        let over = over.clone();
        async move {
            if let Err(error) = doer.listen(&socket, &over).await {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "operators' commands that change something need this process stopped: no socket for them at {}",
                    socket.display()
                );
            }
        }
    });
    Some(Requests { task, over })
}

/// What does the work.
struct Doer {
    config: Config,
    raw: Arc<dyn RawStore>,
    app: Option<Arc<LateApp>>,
    stop: CancellationToken,
    limits: Limits,
    /// Whoever has it is at work.
    turn: Arc<Semaphore>,
    /// What is being done, or was last.
    doing: Mutex<String>,
    tasks: TaskTracker,
}

impl Doer {
    fn new(
        config: Config,
        raw: Arc<dyn RawStore>,
        app: Option<Arc<LateApp>>,
        stop: CancellationToken,
        limits: Limits,
    ) -> Doer {
        let turn = Arc::new(Semaphore::new(1));
        Doer { config, raw, app, stop, limits, turn, doing: Mutex::default(), tasks: TaskTracker::new() }
    }

    async fn listen(self: &Arc<Self>, socket: &Path, over: &CancellationToken) -> anyhow::Result<()> {
        if self.config.raw.url.is_some() && !self.holds_app().await {
            return Ok(());
        }
        place::make_room(socket)?;
        let short = Short::to(socket)?;
        let listener = UnixListener::bind(short.path())?;
        drop(short);
        place::close_to_others(socket)?;
        // This process's own user: a file's owner is what a mount makes of it.
        let owner = UnixStream::pair()?.0.peer_cred()?.uid();
        self.accept(&listener, owner, over).await;
        // As long as the lock is held, so that it is no other process's.
        if let Err(error) = std::fs::remove_file(socket) {
            tracing::debug!(%error, "{} stays; the next process removes it", socket.display());
        }
        self.accept_last(&listener, owner).await;
        drop(listener);
        self.tasks.close();
        if timeout(self.limits.end + self.limits.read, self.tasks.wait()).await.is_err() {
            tracing::warn!(
                "an operator's request did not end in time; what it began is finished by the next process"
            );
        }
        Ok(())
    }

    /// Waits until the app store is open, whose lock is the only one where the raw database is a server; whether it comes to that.
    async fn holds_app(&self) -> bool {
        let Some(late) = &self.app else { return false };
        while late.app().is_none() {
            tokio::select! {
                () = self.stop.cancelled() => return false,
                () = sleep(LOOK_EVERY) => {}
            }
        }
        true
    }

    async fn accept(self: &Arc<Self>, listener: &UnixListener, owner: u32, over: &CancellationToken) {
        let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                biased;
                () = over.cancelled() => return,
                accepted = async {
                    // Never closed.
                    let connection = connections.clone().acquire_owned().await.ok()?;
                    Some((listener.accept().await, connection))
                } => accepted,
            };
            match accepted {
                Some((Ok((stream, _)), connection)) => {
                    let doer = self.clone();
                    self.tasks.spawn(async move {
                        doer.serve(stream, owner).await;
                        drop(connection);
                    });
                }
                Some((Err(error), _)) => {
                    tracing::warn!(%error, "an operator's request could not be accepted");
                    sleep(LOOK_EVERY).await;
                }
                None => return,
            }
        }
    }

    /// Tells those who connected before the socket was removed, and wait to be accepted, that this process ends.
    async fn accept_last(self: &Arc<Self>, listener: &UnixListener, owner: u32) {
        for _ in 0..MAX_LAST {
            match timeout(LAST_WITHIN, listener.accept()).await {
                Ok(Ok((stream, _))) => drop(self.tasks.spawn(self.clone().serve(stream, owner))),
                Ok(Err(error)) => return tracing::debug!(%error, "a last request could not be accepted"),
                Err(_) => return,
            }
        }
    }

    /// One connection: a request and its answer.
    async fn serve(self: Arc<Self>, mut stream: UnixStream, owner: u32) {
        let read = timeout(self.limits.read, read_frame(&mut stream, MAX_REQUEST_BYTES, "a request"));
        let outcome = tokio::select! {
            biased;
            () = self.stop.cancelled() => Outcome::Ending,
            read = read => match read {
                Err(_) => Outcome::Failed(format!("no request came within {} s", self.limits.read.as_secs())),
                Ok(Err(error)) => Outcome::Failed(format!("that is no request: {error}")),
                Ok(Ok(bytes)) => match admit(&stream, owner).and_then(|()| parse(&bytes)) {
                    Ok(operation) => self.answer(operation).await,
                    Err(error) => Outcome::Failed(format!("{error:#}")),
                },
            }
        };
        if let Outcome::Failed(why) = &outcome {
            tracing::debug!(why, "an operator's request failed or was refused");
        }
        let answer = Answer { protocol: PROTOCOL, outcome: shortened(outcome) };
        let sent = async {
            let bytes = serde_json::to_vec(&answer)?;
            write_frame(&mut stream, &bytes).await
        };
        if !matches!(timeout(self.limits.read, sent).await, Ok(Ok(()))) {
            tracing::debug!("whoever asked went away before the answer");
        }
    }

    /// Does it when its turn comes.
    async fn answer(self: &Arc<Self>, operation: Operation) -> Outcome {
        let turn = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Outcome::Ending,
            turn = timeout(self.limits.turn, self.turn.clone().acquire_owned()) => turn,
        };
        let Ok(Ok(turn)) = turn else {
            let doing = self.doing.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Outcome::Failed(format!(
                "the running cairn is busy with another request (`cairn {doing}`), and does one at a time; ask again later"
            ));
        };
        let shown: String = operation.to_string().chars().take(MAX_SHOWN_CHARS).collect();
        tracing::info!(request = shown, "an operator asks");
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = shown;
        let mut task = self.tasks.spawn(self.clone().perform(operation, turn));
        let ending = async {
            self.stop.cancelled().await;
            sleep(self.limits.end).await;
        };
        tokio::select! {
            biased;
            done = &mut task => match done {
                Ok(Ok(told)) => Outcome::Done(told),
                Ok(Err(error)) => Outcome::Failed(format!("{error:#}")),
                Err(error) => Outcome::Failed(format!("it came to no end: {error}")),
            },
            () = ending => Outcome::Failed(
                "the running cairn is ending and waits no longer for it; ask again when it has ended, which finishes what was begun and does no harm".into(),
            ),
            () = sleep(self.limits.answer) => Outcome::Failed(format!(
                "not done within {} s; the running cairn goes on with it, and says in its log how it ends",
                self.limits.answer.as_secs()
            )),
        }
    }

    async fn perform(
        self: Arc<Self>,
        operation: Operation,
        turn: OwnedSemaphorePermit,
    ) -> anyhow::Result<String> {
        let result = async {
            let app = match operation.needs_app() {
                true => Some(self.app_store().await?),
                false => None,
            };
            let stores = Stores { raw: Some(self.raw.clone()), app: app.clone() };
            let stay = Stay::within(self.limits.delete, self.stop.clone());
            let result = operators::perform(&self.config, &operation, &stores, &stay).await;
            if let Some(app) = app {
                self.tasks.spawn(self.clone().delete_the_rest(app));
            }
            result
        };
        let result = result.await;
        match &result {
            Ok(told) => tracing::info!(told = told.trim_end(), "done for an operator"),
            Err(error) => tracing::info!(error = format!("{error:#}"), "not done for an operator"),
        }
        drop(turn);
        result
    }

    /// Deletes what a request began to delete and left. Whoever derives does so too, but derived work may have halted here.
    async fn delete_the_rest(self: Arc<Self>, app: Arc<dyn AppStore>) {
        if let Err(error) = reindex::clear_all(&*app, &Stay::until(self.stop.clone())).await {
            tracing::warn!(
                error = format!("{error:#}"),
                "what a worker made before it began anew could not be deleted to the end; the next request, or whoever derives, goes on with it"
            );
        }
    }

    async fn app_store(&self) -> anyhow::Result<Arc<dyn AppStore>> {
        let late = self.app.as_ref().context(
            "the running cairn derives nothing (derive.enabled is false): it has no derived tables to change",
        )?;
        let deadline = Instant::now() + self.limits.app;
        loop {
            if let Some(app) = late.app() {
                return Ok(app);
            }
            if Instant::now() >= deadline || self.stop.is_cancelled() {
                bail!("the running cairn has not opened its derived tables; its /readyz says why");
            }
            sleep(LOOK_EVERY).await;
        }
    }
}

/// The socket's mode keeps others out; between its making and that, and where a system ignores modes of sockets, this does.
fn admit(stream: &UnixStream, owner: u32) -> anyhow::Result<()> {
    let asks = stream.peer_cred()?.uid();
    if asks != owner && asks != 0 {
        bail!("only the user who runs this cairn may ask it");
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> anyhow::Result<Operation> {
    let spoken: Spoken = serde_json::from_slice(bytes).context("that is no request")?;
    if spoken.protocol != PROTOCOL {
        bail!(
            "the running cairn is of another version (it speaks {PROTOCOL}, the command {}): use its own command, or stop it first",
            spoken.protocol
        );
    }
    let request: Request = serde_json::from_slice(bytes).context("no request that this cairn knows")?;
    Ok(request.operation)
}

/// So that it fits into a frame, whatever JSON makes of its characters.
fn shortened(outcome: Outcome) -> Outcome {
    const MAX_CHARS: usize = MAX_ANSWER_BYTES / 8;
    let cut = |text: String| match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…\n", &text[..end]),
        None => text,
    };
    match outcome {
        Outcome::Done(text) => Outcome::Done(cut(text)),
        Outcome::Failed(text) => Outcome::Failed(cut(text)),
        Outcome::Ending => Outcome::Ending,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use cairn_core::{Height, SystemClock};
    use cairn_store::derived::memory::MemoryDerived;
    use cairn_store::derived::{
        Catalog, Coordinator, DerivedMaintenance, DerivedReader, RebuildRequest, ReorgApplier,
    };
    use cairn_store::memory::CommitHook;
    use cairn_store::{ReorgMark, StoreError};

    use super::super::client::{Asked, ask};
    use super::*;
    use crate::derive;
    use crate::stores::{self, Access};

    struct Running {
        dir: tempfile::TempDir,
        config: Config,
        raw: Arc<dyn RawStore>,
        late: Arc<LateApp>,
        stop: CancellationToken,
    }

    impl Running {
        async fn new() -> Running {
            let dir = tempfile::tempdir().expect("a directory");
            let config = Config { data_dir: dir.path().into(), ..Config::default() };
            let raw = stores::open_raw(&config, Access::Write).await.expect("opens");
            Running { dir, config, raw, late: Arc::default(), stop: CancellationToken::new() }
        }

        async fn open_app(&self) {
            let app = derive::open_for_command(&self.config).await.expect("opens");
            app.adopt([7; 16], ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
            self.late.set(app);
        }

        fn doer(&self, limits: Limits) -> Arc<Doer> {
            let late = Some(self.late.clone());
            Arc::new(Doer::new(self.config.clone(), self.raw.clone(), late, self.stop.clone(), limits))
        }
    }

    fn pause() -> Operation {
        Operation::PauseWorker { worker: "no_worker".into() }
    }

    fn failed(outcome: &Outcome, words: &str) {
        assert!(matches!(outcome, Outcome::Failed(told) if told.contains(words)), "{words}: {outcome:?}");
    }

    #[tokio::test]
    async fn it_answers_until_it_is_stopped() {
        let running = Running::new().await;
        running.open_app().await;
        assert_eq!(ask(&running.config, &pause()).await.expect("nobody is there"), Asked::Nobody);
        let late = Some(running.late.clone());
        let requests =
            start(&running.config, running.raw.clone(), late, running.stop.clone()).expect("starts");
        let socket = running.dir.path().join("cairn.sock");
        while !socket.exists() {
            sleep(Duration::from_millis(10)).await;
        }
        let error = ask(&running.config, &pause()).await.expect_err("there is no such worker");
        assert!(error.to_string().contains("there is no worker `no_worker`"), "{error}");
        let many = Operation::ResolveErrors { ids: vec![u64::MAX; 20_000] };
        let error = ask(&running.config, &many).await.expect_err("is too long");
        assert!(error.to_string().contains("too much for one request"), "{error}");
        running.stop.cancel();
        // As long as it holds the stores it says so.
        for _ in 0..2 {
            assert_eq!(ask(&running.config, &pause()).await.expect("is told"), Asked::Ending);
        }
        timeout(Duration::from_secs(5), requests.end()).await.expect("ends");
        assert!(!socket.exists());
        assert_eq!(ask(&running.config, &pause()).await.expect("nobody is there"), Asked::Nobody);
    }

    #[tokio::test]
    async fn whoever_waits_to_be_accepted_at_the_end_is_told_of_it() {
        let running = Running::new().await;
        let requests = start(&running.config, running.raw.clone(), None, running.stop.clone());
        let requests = requests.expect("starts");
        let socket = running.dir.path().join("cairn.sock");
        while !socket.exists() {
            sleep(Duration::from_millis(10)).await;
        }
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(UnixStream::connect(&socket).await.expect("connects"));
        }
        let config = running.config.clone();
        let waiting = tokio::spawn(async move { ask(&config, &pause()).await });
        sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        running.stop.cancel();
        timeout(Duration::from_secs(5), requests.end()).await.expect("ends");
        assert_eq!(waiting.await.expect("no panic").expect("is told"), Asked::Ending);
    }

    #[tokio::test]
    async fn what_was_begun_is_deleted_to_the_end_where_nobody_derives() {
        let running = Running::new().await;
        running.open_app().await;
        let app = running.late.app().expect("is open");
        app.register("stats_worker", Height(0)).await.expect("registers");
        let is_clearing = async || {
            let snapshot = app.snapshot().await.expect("reads");
            snapshot.rebuilds().iter().any(|rebuild| rebuild.is_clearing)
        };
        // It leaves at once.
        let doer = running.doer(Limits { delete: Duration::ZERO, ..Limits::default() });
        let reset = Operation::Reindex { worker: "stats_worker".into(), from: None, to: None };
        let outcome = doer.answer(reset).await;
        assert!(matches!(&outcome, Outcome::Done(told) if told.contains("once what is left")), "{outcome:?}");
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_clearing().await {
            assert!(Instant::now() < deadline, "nobody deletes it");
            sleep(Duration::from_millis(10)).await;
        }
        assert!(app.snapshot().await.expect("reads").checkpoint("stats_worker").is_some());
    }

    /// Busy so many times.
    struct Busy {
        verb: &'static str,
        left: AtomicU32,
    }

    impl CommitHook for Busy {
        fn before(&self, verb: &'static str) -> Result<(), StoreError> {
            let take = |left: u32| left.checked_sub(1);
            let is_busy = verb == self.verb && self.left.fetch_update(SeqCst, SeqCst, take).is_ok();
            if is_busy { Err(StoreError::Busy("it is busy".into())) } else { Ok(()) }
        }

        fn after(&self, _verb: &'static str) -> Result<(), StoreError> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_busy_is_asked_again_for_what_is_to_be_deleted() {
        // For so long it is waited, and no longer.
        for (times, is_finished) in [(5, true), (1_000, false)] {
            let running = Running::new().await;
            let app = MemoryDerived::new(Catalog::new([]).expect("works"), Arc::new(SystemClock));
            app.adopt([7; 16], ReorgMark { id: 0, digest: [0; 32] }).await.expect("adopts");
            app.register("stats_worker", Height(0)).await.expect("registers");
            let anew = RebuildRequest { anew: vec!["stats_worker".into()], ..RebuildRequest::default() };
            app.begin_rebuild(&anew).await.expect("begins");
            let busy = Arc::new(Busy { verb: "reset_step", left: AtomicU32::new(times) });
            app.set_hook(Some(busy.clone()));
            let began = Instant::now();
            running.doer(Limits::default()).delete_the_rest(Arc::new(app.clone())).await;
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
            let snapshot = app.snapshot().await.expect("reads");
            assert_eq!(snapshot.checkpoint("stats_worker").is_some(), is_finished);
            assert_eq!(busy.left.load(SeqCst) == 0, is_finished);
        }
    }

    #[tokio::test]
    async fn a_file_in_the_way_is_left_and_nothing_else_fails() {
        let running = Running::new().await;
        let socket = running.dir.path().join("cairn.sock");
        std::fs::write(&socket, "mine").expect("writes");
        let requests = start(&running.config, running.raw.clone(), None, running.stop.clone());
        timeout(Duration::from_secs(5), requests.expect("starts").end()).await.expect("ends");
        assert_eq!(std::fs::read(&socket).expect("stays"), b"mine");
        assert_eq!(ask(&running.config, &pause()).await.expect("nobody is there"), Asked::Nobody);
    }

    #[tokio::test]
    async fn one_is_done_at_a_time_and_the_others_are_told() {
        let running = Running::new().await;
        running.open_app().await;
        let doer = running.doer(Limits { turn: Duration::from_millis(50), ..Limits::default() });
        failed(&doer.answer(pause()).await, "there is no worker");
        let turn = doer.turn.clone().acquire_owned().await.expect("is free");
        failed(&doer.answer(pause()).await, "busy with another request (`cairn workers pause no_worker`)");
        drop(turn);
        failed(&doer.answer(pause()).await, "there is no worker");
    }

    #[tokio::test]
    async fn whoever_waits_is_told_how_it_stands() {
        let running = Running::new().await;
        // The app store is not open yet.
        let app = Duration::from_millis(250);
        failed(&running.doer(Limits { app, ..Limits::default() }).answer(pause()).await, "has not opened");
        let answer = Duration::from_millis(20);
        failed(
            &running.doer(Limits { answer, ..Limits::default() }).answer(pause()).await,
            "goes on with it",
        );
        let (raw, stop) = (running.raw.clone(), running.stop.clone());
        let alone = Arc::new(Doer::new(running.config.clone(), raw, None, stop, Limits::default()));
        failed(&alone.answer(pause()).await, "derives nothing");

        // The process ends: what is being done is left, and what waits for its turn was never begun.
        let doer = running.doer(Limits { end: Duration::ZERO, ..Limits::default() });
        let (first, second) = (doer.clone(), doer.clone());
        let first = tokio::spawn(async move { first.answer(pause()).await });
        while doer.turn.available_permits() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
        let second = tokio::spawn(async move { second.answer(pause()).await });
        sleep(Duration::from_millis(20)).await;
        running.stop.cancel();
        failed(&first.await.expect("ends"), "waits no longer");
        assert_eq!(second.await.expect("ends"), Outcome::Ending);
        assert_eq!(doer.answer(pause()).await, Outcome::Ending);
    }

    #[test]
    fn only_operations_of_this_version_are_taken() {
        let refused = |text: &str| format!("{:#}", parse(text.as_bytes()).expect_err(text));
        for text in [
            "",
            "{}",
            "[1]",
            r#"{"protocol":1}"#,
            r#"{"protocol":1,"operation":{"sql":"DROP TABLE blocks"}}"#,
            r#"{"protocol":1,"operation":{"pause_worker":{"worker":"w","path":"/"}}}"#,
            r#"{"protocol":1,"operation":{"pause_worker":{"worker":"w"}},"more":1}"#,
        ] {
            assert!(refused(text).contains("no request"), "{text}: {}", refused(text));
        }
        assert!(refused(r#"{"protocol":7,"anything":1}"#).contains("(it speaks 1, the command 7)"));
        let taken = parse(br#"{"protocol":1,"operation":{"pause_worker":{"worker":"no_worker"}}}"#);
        assert_eq!(taken.expect("is taken"), pause());
    }

    #[test]
    fn an_answer_fits_into_a_frame() {
        let outcome = shortened(Outcome::Done("\u{1}".repeat(MAX_ANSWER_BYTES)));
        let answer = serde_json::to_vec(&Answer { protocol: PROTOCOL, outcome }).expect("is JSON");
        assert!(answer.len() <= MAX_ANSWER_BYTES, "{}", answer.len());
    }
}
