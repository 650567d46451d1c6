//! The command line. Flags win over the environment, the environment over the file, the file over the defaults.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Serialize};

use crate::chain::settings::FlowNetwork;
use crate::config::first::First;

/// Indexes and archives blockchains: takes every block once, proves it whole, serves it.
#[derive(Debug, Parser)]
#[command(name = "cairn", version, about, long_about = None, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    /// Configuration file (TOML). Without it, `cairn.toml` in the working directory is read where it exists.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// What is logged: error, warn, info, debug, trace, or a filter like `info,cairn_pipeline=debug`.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log: Option<String>,
    /// Log as JSON lines.
    #[arg(long, global = true)]
    pub log_json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Archive a chain from a node and serve it: backfill, follow the head, JSON-RPC, health, metrics.
    Run(RunArgs),
    /// The same on a synthetic chain made in process: nothing to install, nothing to ask. Prints five requests to try.
    Demo(DemoArgs),
    /// Import a chain from a geth-style chain file and a receipts file.
    Import(ImportArgs),
    /// Serve an archive that exists, read only; may run beside `cairn run`.
    Serve(ServeArgs),
    /// Say what an archive holds and how it is: head, finality, gaps, reorgs, tables, errors, halts, sizes.
    Status(StatusArgs),
    /// Copy both SQLite databases into a directory, while everything goes on, so that they fit each other.
    Backup(BackupArgs),
    /// Ranges of derived work: list them, free dead ones, take one from its holder.
    Leases(LeasesArgs),
    /// The workers of derived tables: how far they are; pause, resume.
    Workers(WorkersArgs),
    /// What could not be indexed: list, close, try again.
    Errors(ErrorsArgs),
    /// Make derived rows again while everything else goes on.
    Reindex(ReindexArgs),
    /// Make or bring up to date the schemas of both databases.
    Migrate(MigrateArgs),
    /// Hold what is stored against itself, and mend it: lookups, counts, blocks, index entries, derived rows; on Flow, ask nodes again about gaps of the EVM
    /// chain. Exit status 1: something could not be mended; 3: something could not be compared.
    Repair(RepairArgs),
    /// Large payloads of a raw database on PostgreSQL: list them, collect those that nothing needs.
    Payloads(PayloadsArgs),
    /// Check every stored block against its own hashes, roots, links and index entries. Names what is wrong.
    Verify(VerifyArgs),
    /// Print the configuration in force, secrets hidden.
    Config(ConfigArgs),
}

/// Where the archive is.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub struct DataArgs {
    /// The archive's directory [default: cairn-data].
    #[arg(long = "data", value_name = "DIR", global = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data_dir: Option<PathBuf>,
}

/// Which nodes, and what is believed of them. Access nodes make it Flow, others an EVM chain.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub struct ChainArgs {
    /// EVM: nodes to take blocks from, the preferred one first: http(s) URLs, comma separated; ws(s) URLs among them only wake the poller.
    #[arg(long, value_name = "URL[,URL]", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc: Option<Vec<String>>,
    /// Flow: access nodes to take sealed blocks from, HOST:PORT or https://HOST:PORT, comma separated. Each says itself from which height on
    /// it serves; what else can be said of one is in the configuration file.
    #[arg(long = "flow-access", value_name = "URL[,URL]", value_delimiter = ',', conflicts_with = "rpc")]
    #[serde(rename = "access", skip_serializing_if = "Option::is_none")]
    pub flow_access: Option<Vec<String>>,
    /// Flow: the network that the access nodes have to serve [default: mainnet].
    #[arg(long, value_enum, value_name = "NETWORK")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<FlowNetwork>,
    /// EVM: refuse to start unless the chain has this id.
    #[arg(long, value_name = "ID")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chain_id: Option<u64>,
    /// EVM: a geth-style genesis.json: gives the fork schedule for eth_config, eth_baseFee and eth_blobBaseFee.
    #[arg(long, value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub genesis: Option<PathBuf>,
    /// EVM: what is final: `tag` (the node's), `depth:N`, or `both:N` (the more careful; the depth alone where the chain has no tag) [default: both:64].
    #[arg(long, value_name = "POLICY")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finality: Option<String>,
    /// EVM: checks to relax for a chain that doesn't follow Ethereum's rules, by name: header-hash, transactions-root,
    /// receipts-root, senders, bloom, withdrawals-root, ommers-hash, missing-receipts. docs/reference/chains.md says which chain needs which.
    #[arg(long, value_name = "CHECK[,CHECK]", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relax: Option<Vec<String>>,
    /// EVM: accept transactions and receipts that no root covers (chains that inject transactions).
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub extra_receipts: bool,
    /// EVM: archive call traces too (the node must offer debug_traceBlockByHash with callTracer).
    #[arg(long)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub traces: bool,
}

/// What to take.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub struct IngestArgs {
    /// The first height of a new archive: a number, `latest`, or `-N` for N blocks below the head [default: 0].
    #[arg(long, value_name = "HEIGHT", allow_hyphen_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<First>,
    /// The last height to store; without it the head is followed for ever.
    #[arg(long, value_name = "HEIGHT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// Halt at a reorg of more blocks than this [default: 1000].
    #[arg(long, value_name = "BLOCKS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_reorg_depth: Option<u64>,
    /// Fill this many ranges at once below finality; 0: in order [default: 0].
    #[arg(long, value_name = "N")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill_workers: Option<usize>,
    /// Bytes of blocks in flight, in MiB [default: 96].
    #[arg(long, value_name = "MIB")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_mib: Option<u64>,
    /// How often the head is asked for, in milliseconds [default: 1000].
    #[arg(long, value_name = "MS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll_ms: Option<u64>,
}

/// Where to answer.
#[derive(Debug, Clone, Default, Args, Serialize)]
pub struct ListenArgs {
    /// EVM: JSON-RPC over HTTP and WebSocket [default: 127.0.0.1:8545].
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = crate::config::listen::address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpc_listen: Option<SocketAddr>,
    /// REST, health and metrics over HTTP [default: 127.0.0.1:8080].
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = crate::config::listen::address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listen: Option<SocketAddr>,
    /// Health and metrics on an address of their own [default: that of REST].
    #[arg(long, value_name = "[ADDR:]PORT", value_parser = crate::config::listen::address)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_listen: Option<SocketAddr>,
    /// EVM: forward state methods (eth_call, eth_getBalance, …) to this node.
    #[arg(long, value_name = "URL")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
}

/// Which parts of the work a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Everything.
    All,
    /// Takes blocks, and serves nothing but health and metrics.
    Ingest,
    /// Derives tables, and serves nothing but health and metrics.
    Work,
    /// Answers.
    Api,
}

/// `cairn leases`.
#[derive(Debug, Args)]
pub struct LeasesArgs {
    #[command(subcommand)]
    pub command: LeasesCommand,
    #[command(flatten)]
    pub data: DataArgs,
}

/// What to do with leases.
#[derive(Debug, Subcommand)]
pub enum LeasesCommand {
    /// List them: ranges of blocks that are filled ahead of the head first, by the name of `raw`, all of them.
    List {
        /// Of this worker only.
        #[arg(long, value_name = "NAME")]
        worker: Option<String>,
        /// In this state only.
        #[arg(long, value_name = "STATUS", value_parser = ["ACTIVE", "COMPLETED", "FAILED"])]
        status: Option<String>,
        /// Only those that failed too often.
        #[arg(long)]
        dead: bool,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Go on after this number, the last one of a list that was cut.
        #[arg(long, value_name = "ID", default_value_t = 0)]
        after: u64,
    },
    /// Free a failed or dead one: its attempts count from 0 again, and it is taken next.
    Retry {
        /// Its number, or `raw:HEIGHT` of a range of blocks.
        #[arg(value_parser = LeaseId::parse)]
        id: LeaseId,
    },
    /// Take an active one from its holder, whose next commit then fails.
    Release {
        /// Its number, or `raw:HEIGHT` of a range of blocks.
        #[arg(value_parser = LeaseId::parse)]
        id: LeaseId,
    },
    /// Take back what a worker did above its checkpoint, rows and ranges, so that it is derived anew: where a range stands on another fork than the one below it, or one was lost.
    Reset {
        /// Whose ranges.
        #[arg(long, value_name = "NAME")]
        worker: String,
        /// All that begin at this height or above it.
        #[arg(long, value_name = "HEIGHT")]
        from: u64,
    },
}

/// Which lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseId {
    /// One of derived work, by its number.
    Derived(u64),
    /// One of blocks, by its first height.
    Raw(u64),
}

impl LeaseId {
    /// `12`, or `raw:4000`.
    fn parse(text: &str) -> Result<LeaseId, String> {
        let (make, number): (fn(u64) -> LeaseId, &str) = match text.strip_prefix("raw:") {
            Some(height) => (LeaseId::Raw, height),
            None => (LeaseId::Derived, text),
        };
        number.parse().map(make).map_err(|_| "not a lease's number, nor raw: and its first height".to_owned())
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeaseId::Derived(id) => write!(f, "{id}"),
            LeaseId::Raw(start) => write!(f, "raw:{start}"),
        }
    }
}

/// `cairn workers`.
#[derive(Debug, Args)]
pub struct WorkersArgs {
    #[command(subcommand)]
    pub command: WorkersCommand,
    #[command(flatten)]
    pub data: DataArgs,
}

/// What to do with workers.
#[derive(Debug, Subcommand)]
pub enum WorkersCommand {
    /// How far each is.
    List,
    /// Claim nothing more for one; what it holds is worked off up to the running chunk.
    Pause {
        /// Its name.
        worker: String,
    },
    /// Go on with one.
    Resume {
        /// Its name.
        worker: String,
    },
}

/// `cairn errors`.
#[derive(Debug, Args)]
pub struct ErrorsArgs {
    #[command(subcommand)]
    pub command: ErrorsCommand,
    #[command(flatten)]
    pub data: DataArgs,
}

/// What to do with errors.
#[derive(Debug, Subcommand)]
pub enum ErrorsCommand {
    /// List them.
    List {
        /// Of this worker only.
        #[arg(long, value_name = "NAME")]
        worker: Option<String>,
        /// Closed ones too.
        #[arg(long)]
        resolved: bool,
        /// At this height only.
        #[arg(long, value_name = "HEIGHT")]
        height: Option<u64>,
        /// At most so many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Go on after this number, the last one of a list that was cut.
        #[arg(long, value_name = "ID", default_value_t = 0)]
        after: u64,
    },
    /// Show one whole: its message, and as much as was kept of what could not be understood.
    Show {
        /// Its number.
        id: u64,
    },
    /// Close them. One that happens again opens again.
    Resolve {
        /// Their numbers.
        #[arg(required = true)]
        ids: Vec<u64>,
    },
    /// Close an error and make the rows of its height again; where it happens again, it opens again.
    Retry {
        /// Its number.
        id: u64,
        /// Do it too where the worker can't make one height again and begins anew from its first block.
        #[arg(long)]
        yes: bool,
    },
}

/// `cairn reindex`.
#[derive(Debug, Args)]
pub struct ReindexArgs {
    /// Whose rows.
    #[arg(long, value_name = "NAME")]
    pub worker: String,
    /// The first height [default: the first that was derived]. Only for workers whose rows stand by themselves.
    #[arg(long, value_name = "HEIGHT")]
    pub from: Option<u64>,
    /// The last height [default: the last that was derived].
    #[arg(long, value_name = "HEIGHT")]
    pub to: Option<u64>,
    #[command(flatten)]
    pub data: DataArgs,
}

/// `cairn migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Make a table of PostgreSQL anew in place: rename it to `_old`, copy its rows in batches, compare counts and checksums, drop it. For a table whose
    /// partitions are to have another size (raw) or whose definition changed (app). Killed anywhere, the same command goes on.
    #[arg(long, value_name = "raw.TABLE|app.TABLE", conflicts_with = "recreate")]
    pub in_place: Option<String>,
    /// Rows that are copied in one transaction.
    #[arg(long, default_value_t = 5_000, value_name = "ROWS", requires = "in_place")]
    pub batch_rows: u64,
    /// Export a derived table of PostgreSQL, and all others of its worker, as CSV; then drop them and make them again, empty. They are derived anew, and so is
    /// whatever is folded from them. No other cairn may be connected.
    #[arg(long, value_name = "app.TABLE", requires = "export_dir")]
    pub recreate: Option<String>,
    /// Where exported tables go: one `app.TABLE.csv.gz` each.
    #[arg(long, value_name = "DIR")]
    pub export_dir: Option<PathBuf>,
    #[command(flatten)]
    pub data: DataArgs,
}

/// `cairn repair`.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// Heights to repair, both ends included: `100..200`, `100..`, `..200` or `100`; state, which is of all heights, is left out then [default: everything].
    #[arg(value_name = "RANGE")]
    pub range: Option<String>,
    /// Look at only so many heights in full, a stretch drawn at random, and at as much of the state as fits into memory at once; lookups and counts of all
    /// are looked at.
    #[arg(long, value_name = "HEIGHTS")]
    pub sample: Option<u64>,
    /// Leave derived tables out.
    #[arg(long)]
    pub raw_only: bool,
    /// Fold state anew (holdings, owners, statistics) that is not what its events make, or whose events differed.
    #[arg(long)]
    pub refold: bool,
    #[command(flatten)]
    pub chain: ChainArgs,
    #[command(flatten)]
    pub data: DataArgs,
}

/// `cairn payloads`.
#[derive(Debug, Args)]
pub struct PayloadsArgs {
    #[command(subcommand)]
    pub command: PayloadsCommand,
    #[command(flatten)]
    pub data: DataArgs,
}

/// What to do with payloads.
#[derive(Debug, Subcommand)]
pub enum PayloadsCommand {
    /// List the objects that the database knows, and sum them up.
    List {
        /// In this state only.
        #[arg(long, value_name = "STATE", value_parser = ["live", "dead", "deleting"])]
        state: Option<String>,
        /// Name at most so many.
        #[arg(long, default_value_t = 100)]
        limit: usize,
        /// Ask the object store for each live one, and name those that are missing or have another length.
        #[arg(long)]
        check: bool,
    },
    /// Delete what nothing needs: objects whose rows are gone, and what a crash left behind. May run beside everything else.
    Gc {
        /// Change nothing: name what would go.
        #[arg(long)]
        dry_run: bool,
        /// How long an object stays after its last use, and again after it was found unneeded, in seconds; longer than the longest lease.
        #[arg(long, default_value_t = 86_400, value_name = "SECONDS")]
        grace_s: u64,
        /// Don't look for objects that the database doesn't know, which lists the whole place.
        #[arg(long)]
        no_listing: bool,
    },
}

/// `cairn run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Which part of the work this process does. Several processes need PostgreSQL.
    #[arg(long, value_enum, default_value_t = Role::All)]
    pub role: Role,
    #[command(flatten)]
    pub chain: ChainArgs,
    #[command(flatten)]
    pub ingest: IngestArgs,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub listen: ListenArgs,
    /// End when the head is stored and derived; a halt is then an error at once (for scripts).
    #[arg(long)]
    pub exit_after_head: bool,
}

/// `cairn demo`.
#[derive(Debug, Args)]
pub struct DemoArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub listen: ListenArgs,
    /// How many blocks exist before the chain goes on living.
    #[arg(long, default_value_t = 1_000, value_name = "BLOCKS")]
    pub blocks: u64,
    /// The seed that the chain is made from.
    #[arg(long, default_value_t = 7)]
    pub seed: u64,
    /// Milliseconds between new blocks.
    #[arg(long, default_value_t = 2_000, value_name = "MS")]
    pub block_time_ms: u64,
    /// The time of block 0, in seconds since 1970, for comparisons [default: so that the newest block is of now; with --until a fixed one].
    #[arg(long, value_name = "SECONDS")]
    pub genesis_time_s: Option<u64>,
    /// Let the chain stand still at this height, and come to it block by block, each no sooner than the one before is stored: so the same forks are seen each time (for comparisons).
    #[arg(long, value_name = "HEIGHT", conflicts_with = "exit_after_head")]
    pub until: Option<u64>,
    /// End when the head is stored and derived; a halt is then an error at once (for scripts).
    #[arg(long)]
    pub exit_after_head: bool,
}

/// `cairn import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The chain file: RLP blocks one after another, as `geth export` writes them; may be gzipped.
    #[arg(long, value_name = "FILE")]
    pub chain: PathBuf,
    /// The receipts file: a JSON list of {number, hash, receipts: [EIP-2718 hex]}; may be gzipped.
    #[arg(long, value_name = "FILE")]
    pub receipts: PathBuf,
    /// The chain's genesis.json: gives block 0, the chain id and the fork schedule.
    #[arg(long, value_name = "FILE")]
    pub genesis: PathBuf,
    #[command(flatten)]
    pub data: DataArgs,
}

/// `cairn serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub listen: ListenArgs,
}

/// `cairn status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub data: DataArgs,
    /// One JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

/// `cairn backup`.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// Where the copies go; no copy may be there yet.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    #[command(flatten)]
    pub data: DataArgs,
}

/// `cairn verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Heights to check, both ends included: `100..200`, `100..`, `..200` or `100` [default: everything].
    #[arg(value_name = "RANGE")]
    pub range: Option<String>,
    #[command(flatten)]
    pub data: DataArgs,
    /// List at most this many problems.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub max_findings: usize,
}

/// `cairn config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// As of `cairn run`, so that its flags can be given as they are; no setting, so it is only said in a comment.
    #[arg(long, value_enum)]
    pub role: Option<Role>,
    /// Likewise.
    #[arg(long)]
    pub exit_after_head: bool,
    #[command(flatten)]
    pub chain: ChainArgs,
    #[command(flatten)]
    pub ingest: IngestArgs,
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub listen: ListenArgs,
}
