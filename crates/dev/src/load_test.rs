//! One cairn under pressure: clients that ask for more than there is memory for, read slowly or not at all, hold connections, or come too many.
//!
//! Meanwhile a well-behaved client is served, and memory stays within what the settings allow.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::args::KeepArgs;
use crate::cairn::{Addresses, Cairn};
use crate::load_clients::{
    Batches, Outcome, Subscriber, ask_heads, ask_logs, ask_over, ask_pages, batch, caller, client, drain,
    drip, get_logs, idle, post, send_batches,
};
use crate::peer::{Peer, wait_until};
use crate::report::{Report, figure};

/// The memory of large answers. Notifications have a quarter of it beside.
const IN_FLIGHT_MIB: u64 = 32;
/// The memory of small answers.
const SMALL_MIB: u64 = 16;
/// Decoded blocks that wait for subscribers.
const FEED_MIB: u64 = 16;
/// Requests that are answered at once and may be large.
const MAX_HEAVY: u64 = 4;
/// The size of one wide answer, about.
const WIDE_MIB: u64 = 4;
/// The longest expected wait with which a request is still taken.
const QUEUE_TIMEOUT_MS: u64 = 1_000;
/// Settings that make the clients' answers exceed the memory, by the names of the environment.
const SETTINGS: [(&str, u64); 10] = [
    ("RESPONSES_IN_FLIGHT_BYTES", IN_FLIGHT_MIB << 20),
    ("RESPONSES_IN_FLIGHT_BYTES_PER_ADDRESS", IN_FLIGHT_MIB << 20),
    ("RESPONSES_IN_FLIGHT_BYTES_PER_CONNECTION", IN_FLIGHT_MIB << 20),
    ("SMALL_RESPONSES_IN_FLIGHT_BYTES", SMALL_MIB << 20),
    ("MAX_HEAVY_REQUESTS", MAX_HEAVY),
    ("QUEUE_TIMEOUT_MS", QUEUE_TIMEOUT_MS),
    ("MAX_LOG_RESULTS", 1_000_000),
    ("MAX_SUBSCRIPTIONS_PER_CONNECTION", SUBSCRIPTIONS),
    ("FEED_PAYLOAD_BYTES", FEED_MIB << 20),
    ("HEAD_POLL_MS", 100),
];
/// Beside the memory of answers: each request under way makes its answer before it is counted, from blocks that it has decoded.
const ANSWER_COPIES: u64 = 3;
/// What the allocator keeps, and caches that fill meanwhile.
const SLACK_MIB: u64 = 96;

/// Every answer to the well-behaved client comes within this.
const SERVED_WITHIN: Duration = Duration::from_secs(2);
/// How long each case loads the server.
const LOADED_FOR: Duration = Duration::from_secs(6);
/// How long the capacity is measured.
const MEASURED_FOR: Duration = Duration::from_secs(3);
/// How long the history and its first answers may take.
const PATIENCE: Duration = Duration::from_secs(120);
const QUICK_BLOCK_TIME: Duration = Duration::from_millis(50);
const BATCHING_CLIENTS: u8 = 12;
const BATCH_ITEMS: u64 = 10;
const DRIP_READERS: u8 = 4;
const SILENT_READERS: u8 = 48;
/// On each address, from four callers.
const IDLE_SOCKETS: u8 = 200;
const SUBSCRIPTIONS: u64 = 64;
/// Connections with so many subscriptions that nobody reads.
const SILENT_SUBSCRIBERS: u8 = 8;
/// Clients that measure the capacity, and later exceed it.
const CLOSED_LOOP_CLIENTS: u8 = 6;
/// Beside the expected wait: the answer itself takes time, and estimates are estimates.
const WAIT_MARGIN: Duration = Duration::from_secs(1);

/// Where things are, and how much of everything.
#[derive(Args)]
pub struct Options {
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    /// Heights of the history.
    #[arg(long, default_value_t = 2_000)]
    blocks: u64,
    /// What the chain is made from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Also twice the capacity of small answers: thousands of connections a second, for which the clients need as much of the machine as cairn does.
    #[arg(long)]
    small: bool,
    #[command(flatten)]
    keep: KeepArgs,
}

/// `cairn-dev load-test`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    println!("seed {}", options.seed);
    let mut report = Report::default();
    let cairn = cairn_in(&options, folder)?;
    let blocks = options.blocks.to_string();
    let mut process = demo(&cairn, &options, &["--blocks", &blocks, "--block-time-ms", "1000"]).await?;
    let load = Load::prepare(&cairn, &process, options.blocks).await.with_context(|| cairn.log_tail())?;
    figure("load_wide_answer_bytes", load.wide_bytes, "bytes");
    report.case("batches whose answers exceed the memory stop nobody", load.batches()).await;
    report.case("readers that drip or take nothing stop nobody", load.slow_readers()).await;
    report.case("idle connections stop nobody", load.idle_sockets()).await;
    let sizes = [("large", load.wide), ("small", load.wide.div_ceil(16))];
    for (what, last) in sizes.into_iter().take(if options.small { 2 } else { 1 }) {
        let case = format!("at twice the capacity of {what} answers the surplus is refused");
        report.case(case, load.twice_the_capacity(&format!("twice_{what}"), last)).await;
    }
    report
        .case("afterwards a large answer is served, and SIGTERM ends it", async {
            load.wide_answer_within(Duration::from_secs(10)).await?;
            process.check_alive()?;
            let (status, _) = process.terminate(Duration::from_secs(25)).await?;
            ensure!(status.success(), "ended with {status}");
            Ok(())
        })
        .await;
    let folder = folder.join("subscriptions");
    report.case("subscriptions that nobody reads stop nobody", subscriptions(&options, &folder)).await;
    Ok(report.finish())
}

/// A cairn with the settings of this test.
fn cairn_in(options: &Options, folder: &Path) -> Result<Cairn> {
    std::fs::create_dir_all(folder)?;
    // Derived work has nothing to do with what is measured here.
    let mut cairn = Cairn::new(&options.cairn, folder)?.with("CAIRN_DERIVE__ENABLED", "false");
    for (name, value) in SETTINGS {
        cairn = cairn.with(&format!("CAIRN_SERVE__LIMITS__{name}"), &value.to_string());
    }
    Ok(cairn)
}

async fn demo(cairn: &Cairn, options: &Options, more: &[&str]) -> Result<Peer> {
    let seed = options.seed.to_string();
    cairn.demo(&[&["--health-listen", "127.0.0.1:0", "--seed", &seed], more].concat()).await
}

/// On a chain that is so quick that what the subscriptions are told exceeds the memory by far.
async fn subscriptions(options: &Options, folder: &Path) -> Result<()> {
    let cairn = cairn_in(options, folder)?;
    let block_time_ms = QUICK_BLOCK_TIME.as_millis().to_string();
    let process = demo(&cairn, options, &["--blocks", "800", "--block-time-ms", &block_time_ms]).await?;
    let load = Load::prepare(&cairn, &process, 800).await.with_context(|| cairn.log_tail())?;
    load.silent_subscriptions().await.with_context(|| cairn.log_tail())?;
    process.terminate(Duration::from_secs(25)).await.map(drop)
}

/// The server, and what its answers are like.
struct Load {
    at: Addresses,
    process_id: u32,
    /// The last block of a wide query, and the length of its answer.
    wide: u64,
    wide_bytes: usize,
    before_mib: u64,
}

impl Load {
    /// Waits for the history, and chooses a query with an answer of [`WIDE_MIB`], about.
    async fn prepare(cairn: &Cairn, process: &Peer, blocks: u64) -> Result<Load> {
        let rpc = cairn.rpc()?;
        wait_until("the history is stored", PATIENCE, || async {
            let head = rpc.head().await?.map_or(0, |(height, _)| height);
            Ok((head < blocks).then(|| format!("head {head}")))
        })
        .await?;
        let at = cairn.addresses()?;
        let probe = client(caller(1), PATIENCE, 1)?;
        let answer =
            async |last: u64| drain(post(&probe, at.rpc, get_logs(1, last).to_string()).await?).await;
        let sample = blocks.min(500);
        let wide = (WIDE_MIB << 20) * sample / u64::try_from(answer(sample).await?)?.max(1);
        ensure!(wide <= blocks, "the history of {blocks} blocks is too short for answers of {WIDE_MIB} MiB");
        // Before the memory is looked at, so that what it leaves in caches isn't taken for load.
        let wide_bytes = answer(wide).await?;
        let process_id = process.id()?;
        Ok(Load { at, process_id, wide, wide_bytes, before_mib: resident_mib(process_id)? })
    }

    /// What the process may have at most, by its settings.
    fn limit_mib(&self) -> u64 {
        let answers = IN_FLIGHT_MIB + IN_FLIGHT_MIB / 4 + SMALL_MIB + FEED_MIB;
        self.before_mib + answers + MAX_HEAVY * WIDE_MIB * ANSWER_COPIES + SLACK_MIB
    }

    /// Does `work`, and holds the most memory that the process had meanwhile against the limit.
    async fn bounded<T>(&self, name: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        let mut looks = tokio::time::interval(Duration::from_millis(50));
        let mut peak_mib = 0;
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                _ = looks.tick() => peak_mib = peak_mib.max(resident_mib(self.process_id)?),
            }
        };
        figure(&format!("load_{name}_before_mib"), self.before_mib, "MiB");
        figure(&format!("load_{name}_peak_mib"), peak_mib, "MiB");
        let done = done?;
        ensure!(peak_mib <= self.limit_mib(), "{peak_mib} MiB; the limit is {} MiB", self.limit_mib());
        Ok(done)
    }

    /// Under load: the well-behaved client is served, and memory is bounded.
    async fn heads_are_served(&self, name: &str, during: Duration) -> Result<()> {
        let seen = self.bounded(name, ask_heads(self.at.rpc, during, SERVED_WITHIN)).await?;
        figure(&format!("load_{name}_slowest_head_ms"), seen.slowest.as_millis(), "ms");
        figure(&format!("load_{name}_heads"), seen.asked, "answers");
        Ok(())
    }

    async fn batches(&self) -> Result<()> {
        let until = Instant::now() + LOADED_FOR;
        let whole_bytes = self.wide_bytes * usize::try_from(BATCH_ITEMS)?;
        let mut clients = JoinSet::new();
        for number in 1..=BATCHING_CLIENTS {
            let body = batch(BATCH_ITEMS, self.wide);
            clients.spawn(send_batches(caller(number), self.at.rpc, body, whole_bytes, until));
        }
        self.heads_are_served("batches", LOADED_FOR).await?;
        let mut all = Batches::default();
        while let Some(one) = clients.join_next().await {
            let one = one.context("a client")??;
            all.whole += one.whole;
            all.cut += one.cut;
            all.bytes += one.bytes;
        }
        figure("load_batches_whole", all.whole, "answers");
        figure("load_batches_cut", all.cut, "answers");
        figure("load_batches_taken_mib", all.bytes >> 20, "MiB");
        ensure!(all.cut > 0, "all batches were answered whole: their answers don't exceed the memory");
        ensure!(all.bytes >= self.wide_bytes, "not one item of a batch was answered");
        self.wide_answer_within(Duration::from_secs(10)).await
    }

    async fn slow_readers(&self) -> Result<()> {
        let until = Instant::now() + LOADED_FOR;
        let body = batch(4, self.wide);
        let mut silent = Vec::new();
        for number in 1..=SILENT_READERS {
            silent.push(ask_over(caller(100 + number), self.at.rpc, &body).await?);
        }
        let mut dripping = JoinSet::new();
        for number in 1..=DRIP_READERS {
            dripping.spawn(drip(caller(number), self.at.rpc, body.clone(), until));
        }
        self.heads_are_served("slow_readers", LOADED_FOR).await?;
        while let Some(one) = dripping.join_next().await {
            one.context("a reader")??;
        }
        drop(silent);
        self.wide_answer_within(Duration::from_secs(10)).await
    }

    async fn idle_sockets(&self) -> Result<()> {
        let Addresses { rpc, rest, health } = self.at;
        let settling = Duration::from_secs(1);
        let until = Instant::now() + settling + LOADED_FOR;
        let mut sockets = JoinSet::new();
        for to in [rpc, rest, health] {
            for number in 0..IDLE_SOCKETS {
                sockets.spawn(idle(caller(1 + number % 4), to, until));
            }
        }
        tokio::time::sleep(settling).await;
        let pages = [(health, "livez"), (health, "readyz"), (health, "metrics"), (rest, "v1/status")]
            .map(|(at, path)| format!("http://{at}/{path}"));
        let (heads, pages) = tokio::join!(
            self.heads_are_served("idle_sockets", LOADED_FOR),
            ask_pages(&pages, LOADED_FOR, SERVED_WITHIN)
        );
        heads?;
        let pages = pages?;
        figure("load_idle_sockets_slowest_page_ms", pages.slowest.as_millis(), "ms");
        figure("load_idle_sockets_pages", pages.asked, "answers");
        while let Some(one) = sockets.join_next().await {
            one.context("an idle socket")??;
        }
        Ok(())
    }

    async fn silent_subscriptions(&self) -> Result<()> {
        let mut silent = Vec::new();
        for number in 1..=SILENT_SUBSCRIBERS {
            let mut subscriber = Subscriber::connect(caller(number), self.at.rpc).await?;
            subscriber.subscribe("logs", SUBSCRIPTIONS).await?;
            silent.push(subscriber);
        }
        let mut reader = Subscriber::connect(caller(200), self.at.rpc).await?;
        reader.subscribe("newHeads", 1).await?;
        let (heads, read) =
            tokio::join!(self.heads_are_served("subscriptions", LOADED_FOR), reader.read_heads(LOADED_FOR));
        heads?;
        let read = read.context("the subscriber that reads")?;
        figure("load_subscriptions_new_heads", read.asked, "notifications");
        figure("load_subscriptions_longest_silence_ms", read.slowest.as_millis(), "ms");
        let least = LOADED_FOR.as_millis() / QUICK_BLOCK_TIME.as_millis() / 4;
        ensure!(u128::from(read.asked) >= least, "{} new heads, not {least}", read.asked);
        ensure!(read.slowest <= SERVED_WITHIN, "no new head for {} ms", read.slowest.as_millis());
        drop(silent);
        Ok(())
    }

    /// Measures how many queries of `last` blocks a few clients get answered, and then offers twice as many.
    async fn twice_the_capacity(&self, name: &str, last: u64) -> Result<()> {
        let clients = (1..=CLOSED_LOOP_CLIENTS)
            .map(|number| client(caller(number), PATIENCE, 16))
            .collect::<Result<Vec<_>>>()?;
        let begun = Instant::now();
        let answered = futures::future::try_join_all(clients.iter().map(async |client| {
            let mut answered = 0u32;
            while begun.elapsed() < MEASURED_FOR {
                match ask_logs(client, self.at.rpc, last).await? {
                    Outcome::Answered(_) => answered += 1,
                    Outcome::Refused => tokio::time::sleep(Duration::from_millis(50)).await,
                }
            }
            anyhow::Ok(answered)
        }))
        .await?;
        let capacity = f64::from(answered.iter().sum::<u32>()) / begun.elapsed().as_secs_f64();
        figure(&format!("load_{name}_capacity_per_s"), format!("{capacity:.0}"), "1/s");
        ensure!(capacity > 0.0, "nothing was answered");

        let offer = async {
            let (begun, mut asked) = (Instant::now(), JoinSet::new());
            let mut ticks = tokio::time::interval(Duration::from_secs_f64(0.5 / capacity));
            for client in clients.iter().cycle() {
                if begun.elapsed() >= LOADED_FOR {
                    break;
                }
                ticks.tick().await;
                let (client, rpc) = (client.clone(), self.at.rpc);
                asked.spawn(async move { ask_logs(&client, rpc, last).await });
            }
            let mut outcomes = Vec::new();
            while let Some(one) = asked.join_next().await {
                outcomes.push(one.context("a request")??);
            }
            anyhow::Ok(outcomes)
        };
        let (heads, outcomes) = tokio::join!(self.heads_are_served(name, LOADED_FOR), offer);
        let outcomes = outcomes?;
        let mut waits = Vec::new();
        for outcome in &outcomes {
            if let Outcome::Answered(took) = outcome {
                waits.push(*took);
            }
        }
        waits.sort_unstable();
        let (offered, refused) = (outcomes.len(), outcomes.len() - waits.len());
        figure(&format!("load_{name}_offered"), offered, "requests");
        figure(&format!("load_{name}_refused"), refused, "requests");
        let at = |percent: usize| waits.get(waits.len().saturating_sub(1) * percent / 100).copied();
        let (median, p99) = (at(50).context("nothing was answered")?, at(99).unwrap_or_default());
        figure(&format!("load_{name}_p50_ms"), median.as_millis(), "ms");
        figure(&format!("load_{name}_p99_ms"), p99.as_millis(), "ms");
        heads?;
        let limit = Duration::from_millis(QUEUE_TIMEOUT_MS) + WAIT_MARGIN;
        ensure!(median <= limit, "half of the answers took longer than {} ms", median.as_millis());
        // A machine that was slow while the capacity was measured answers more than twice as much later: then nobody may have waited.
        ensure!(
            refused * 10 >= offered || p99 <= limit,
            "{refused} of {offered} requests were refused, and the slowest hundredth waited {} ms",
            p99.as_millis()
        );
        Ok(())
    }

    /// The memory that others had is free again.
    async fn wide_answer_within(&self, limit: Duration) -> Result<()> {
        let client = client(caller(240), PATIENCE, 1)?;
        wait_until("a large answer is served", limit, || async {
            let answer = post(&client, self.at.rpc, get_logs(1, self.wide).to_string()).await?;
            let status = answer.status();
            let bytes = drain(answer).await?;
            Ok((status != 200).then(|| format!("{status}, {bytes} bytes")))
        })
        .await
    }
}

/// The memory that a process has now.
fn resident_mib(process_id: u32) -> Result<u64> {
    let path = format!("/proc/{process_id}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("{path} (this test needs Linux)"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().with_context(|| line.to_owned())?;
    Ok(kib / 1024)
}
