//! Child processes: servers that a test starts, waits for, and ends.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::process::{Child, Command};

/// A port that was free a moment ago.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

/// A running server with its log; killed when dropped.
pub struct Peer {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Peer {
    /// Starts `command` with both outputs appended to `log`.
    pub fn start(name: &str, mut command: Command, log: &Path) -> Result<Peer> {
        let out =
            File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())?;
        let errors = out.try_clone()?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(errors)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name}: {:?}", command.as_std().get_program()))?;
        Ok(Peer { name: name.to_owned(), child, log: log.to_owned() })
    }

    /// Fails when the process has ended, with the end of its log.
    pub fn check_alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status}; its log ends:\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Its process id.
    pub fn id(&self) -> Result<u32> {
        self.child.id().with_context(|| format!("{} has ended already", self.name))
    }

    /// The last lines of the log.
    pub fn log_tail(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// SIGKILL, and wait for the end.
    pub async fn kill(mut self) -> Result<()> {
        self.child.kill().await.with_context(|| format!("cannot kill {}", self.name))
    }

    /// SIGTERM; how it ended and after what time. Fails when it is still there after `limit`.
    pub async fn terminate(self, limit: Duration) -> Result<(ExitStatus, Duration)> {
        self.signal("TERM", limit).await
    }

    /// SIGINT, likewise: PostgreSQL then doesn't wait for its clients.
    pub async fn interrupt(self, limit: Duration) -> Result<(ExitStatus, Duration)> {
        self.signal("INT", limit).await
    }

    async fn signal(mut self, signal: &str, limit: Duration) -> Result<(ExitStatus, Duration)> {
        let id = self.id()?;
        let begun = Instant::now();
        // `kill` rather than a system call: the workspace forbids unsafe code.
        let sent = Command::new("kill").arg(format!("-{signal}")).arg(id.to_string()).status().await?;
        if !sent.success() {
            bail!("cannot send SIG{signal} to {}", self.name);
        }
        match tokio::time::timeout(limit, self.child.wait()).await {
            Ok(status) => Ok((status?, begun.elapsed())),
            Err(_) => bail!(
                "{} is still running {} s after SIG{signal}; its log ends:\n{}",
                self.name,
                limit.as_secs(),
                self.log_tail()
            ),
        }
    }

    /// Waits until the process ends by itself.
    pub async fn ended(mut self, limit: Duration) -> Result<ExitStatus> {
        self.wait(limit).await
    }

    /// The same, for one that is still looked at.
    pub async fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        match tokio::time::timeout(limit, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => bail!(
                "{} is still running after {} s; its log ends:\n{}",
                self.name,
                limit.as_secs(),
                self.log_tail()
            ),
        }
    }
}

/// Asks again and again until `probe` says that it has come true; its last word is in the error.
pub async fn wait_until<P, F>(what: &str, limit: Duration, mut probe: P) -> Result<()>
where
    P: FnMut() -> F,
    F: Future<Output = Result<Option<String>>>,
{
    let begun = Instant::now();
    loop {
        let pending = match probe().await {
            Ok(None) => return Ok(()),
            Ok(Some(pending)) => pending,
            Err(error) => format!("{error:#}"),
        };
        if begun.elapsed() >= limit {
            bail!("{what}: not within {} s; last: {pending}", limit.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
