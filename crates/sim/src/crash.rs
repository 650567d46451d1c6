//! Faults at the store's commits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cairn_store::StoreError;
use cairn_store::memory::CommitHook;
use tokio::sync::Notify;

use crate::plan::CommitFault;

/// What the harness has to do about the process that commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// It is dead: drop it and start another.
    Crash,
    /// Start another one beside it.
    Takeover,
}

/// Counts the commits of a run and strikes at the planned ones.
#[derive(Debug)]
pub struct Crashes {
    commits: AtomicU64,
    planned: Vec<(u64, CommitFault)>,
    /// While dead, nothing commits: a process that crashed does nothing more.
    dead: AtomicBool,
    blow: Mutex<Option<Blow>>,
    struck: Notify,
}

impl Crashes {
    /// Strikes at `planned` (the nth commit from 0, ascending).
    pub fn new(planned: Vec<(u64, CommitFault)>) -> Arc<Self> {
        Arc::new(Crashes {
            commits: AtomicU64::new(0),
            planned,
            dead: AtomicBool::new(false),
            blow: Mutex::new(None),
            struck: Notify::new(),
        })
    }

    /// Waits for a blow. The process that was dead may commit again afterwards.
    pub async fn next_blow(&self) -> Blow {
        loop {
            let struck = self.struck.notified();
            if let Some(blow) = self.blow.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return blow;
            }
            struck.await;
        }
    }

    /// A new process begins.
    pub fn revive(&self) {
        self.dead.store(false, Ordering::SeqCst);
    }

    /// How many commits were tried.
    pub fn commits(&self) -> u64 {
        self.commits.load(Ordering::SeqCst)
    }

    fn strike(&self, blow: Blow) {
        *self.blow.lock().unwrap_or_else(PoisonError::into_inner) = Some(blow);
        self.struck.notify_waiters();
        self.struck.notify_one();
    }

    fn die(&self) -> StoreError {
        self.dead.store(true, Ordering::SeqCst);
        self.strike(Blow::Crash);
        busy("the process died")
    }
}

fn busy(why: &str) -> StoreError {
    StoreError::Busy(format!("simulated: {why}"))
}

impl CommitHook for Crashes {
    fn before(&self, _verb: &'static str) -> cairn_store::Result<()> {
        if self.dead.load(Ordering::SeqCst) {
            return Err(busy("the process is dead"));
        }
        let nth = self.commits.fetch_add(1, Ordering::SeqCst);
        match self.planned.iter().find(|(at, _)| *at == nth).map(|(_, fault)| *fault) {
            Some(CommitFault::CrashBefore) => Err(self.die()),
            Some(CommitFault::Busy) => Err(busy("not done")),
            Some(CommitFault::Takeover) => {
                self.strike(Blow::Takeover);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn after(&self, _verb: &'static str) -> cairn_store::Result<()> {
        let nth = self.commits.load(Ordering::SeqCst).saturating_sub(1);
        match self.planned.iter().find(|(at, _)| *at == nth).map(|(_, fault)| *fault) {
            Some(CommitFault::CrashAfter) => Err(self.die()),
            Some(CommitFault::LostAnswer) => Err(busy("done, but the answer was lost")),
            _ => Ok(()),
        }
    }
}
