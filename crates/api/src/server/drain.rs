//! A stream whose peer has to take what it asked for.
//!
//! Only time counts in which the peer has room for nothing more: an idle connection owes nothing.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// The time over which the rate is taken. Sockets give up their room in large pieces, so that a shorter one would be unjust.
const WINDOW: Duration = Duration::from_secs(10);
/// What was taken too much counts for the next window, up to this: a socket takes bytes in pieces as large as a third of its buffer.
const CREDIT_BYTES: u64 = 2 << 20;

/// What a peer owes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    /// How long it may take no byte.
    pub stall: Duration,
    /// What it has to take while something waits for it.
    pub min_bytes_per_s: u64,
}

/// A stream that ends with an error when its peer falls behind its pace.
pub(crate) struct Drained<S> {
    stream: S,
    pace: Pace,
    blocked: Option<Blocked>,
    /// Of this window: how long nothing could be written, and what was taken.
    waited: Duration,
    taken_bytes: u64,
    alarm: Pin<Box<Sleep>>,
}

/// Nothing can be written now.
struct Blocked {
    since: Instant,
    /// Up to when it is counted in the window.
    counted: Instant,
}

impl<S> Drained<S> {
    pub(crate) fn new(stream: S, pace: Pace) -> Self {
        Drained {
            stream,
            pace,
            blocked: None,
            waited: Duration::ZERO,
            taken_bytes: 0,
            alarm: Box::pin(tokio::time::sleep(Duration::ZERO)),
        }
    }

    /// Looks at the outcome of a write.
    fn judge(&mut self, cx: &mut Context<'_>, wrote: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match wrote {
            Poll::Ready(Ok(bytes)) => {
                self.taken_bytes = self.taken_bytes.saturating_add(bytes as u64);
                if let Some(blocked) = self.blocked.take() {
                    self.count(blocked.counted.elapsed())?;
                }
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => self.wait(cx),
        }
    }

    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let now = Instant::now();
            let blocked = self.blocked.get_or_insert(Blocked { since: now, counted: now });
            let window_end = blocked.counted + WINDOW.saturating_sub(self.waited);
            let until = window_end.min(blocked.since + self.pace.stall);
            if self.alarm.deadline() != until {
                self.alarm.as_mut().reset(until);
            }
            ready!(self.alarm.as_mut().poll(cx));
            let now = Instant::now();
            if now >= blocked.since + self.pace.stall {
                return Poll::Ready(Err(too_slow("took nothing")));
            }
            let more = now - blocked.counted;
            blocked.counted = now;
            self.count(more)?;
        }
    }

    /// Counts time in which the peer had room for nothing; demands the rate where a window is over, and begins the next.
    fn count(&mut self, more: Duration) -> io::Result<()> {
        self.waited += more;
        if self.waited < WINDOW {
            return Ok(());
        }
        let owed_bytes = (self.waited.as_secs_f64() * self.pace.min_bytes_per_s as f64) as u64;
        let Some(over) = self.taken_bytes.checked_sub(owed_bytes) else {
            return Err(too_slow("took too little"));
        };
        (self.waited, self.taken_bytes) = (Duration::ZERO, over.min(CREDIT_BYTES));
        Ok(())
    }
}

fn too_slow(how: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the peer {how} of its answer"))
}

impl<S: AsyncRead + Unpin> AsyncRead for Drained<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Drained<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PACE: Pace = Pace { stall: Duration::from_secs(20), min_bytes_per_s: 100_000 };

    /// Writes to a peer that takes `bytes` every `every`; says how long it took, and whether it was taken.
    async fn write(len: usize, bytes: usize, every: Duration) -> (Duration, bool) {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let mut stream = Drained::new(ours, PACE);
        let reading = tokio::spawn(async move {
            let mut piece = vec![0; bytes];
            loop {
                tokio::time::sleep(every).await;
                if bytes > 0 && theirs.read_exact(&mut piece).await.is_err() {
                    return;
                }
            }
        });
        let began = Instant::now();
        let outcome = stream.write_all(&vec![0; len]).await;
        reading.abort();
        (began.elapsed(), outcome.is_ok())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_its_answer_slowly_may_do_so_at_the_pace() {
        let (took, taken) = write(30_000_000, 150_000, Duration::from_secs(1)).await;
        assert!(taken && took > Duration::from_secs(150), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_drip_reader_is_cut_off_though_it_never_stalls() {
        let (took, taken) = write(30_000_000, 50_000, Duration::from_secs(1)).await;
        assert!(!taken && took <= Duration::from_secs(15), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_cut_off() {
        let quick = Pace { stall: Duration::from_secs(2), ..PACE };
        let (ours, theirs) = tokio::io::duplex(10);
        let began = Instant::now();
        let error = Drained::new(ours, quick).write_all(&[0; 100]).await.expect_err("stalled");
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, Duration::from_secs(2)));
        drop(theirs);
    }
}
