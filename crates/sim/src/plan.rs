//! What happens in a run, drawn from its seed before anything starts.

use std::sync::Arc;

use cairn_core::Height;
use cairn_source::evm::synthetic::{FirstBlock, ForkId, ForkOptions, SyntheticChain, View};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use crate::derived::plan::DerivedPlan;

/// One moment of the chain's life: from `at_ms` on, this is what it is.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Since the start of the run.
    pub at_ms: u64,
    /// The chain then.
    pub view: View,
}

/// One node behind the load balancer.
#[derive(Debug, Clone)]
pub struct NodePlan {
    /// It sees the chain as it was so long ago.
    pub lag_ms: u64,
    /// While in `[from, to)` it sees the chain as it was at `from`: stuck.
    pub stuck_ms: Option<(u64, u64)>,
}

/// How often answers go wrong, in a thousand.
#[derive(Debug, Clone, Copy, Default)]
pub struct FaultRates {
    /// 429 with or without `Retry-After`.
    pub rate_limited: u32,
    /// A time-out of seconds, then a failure.
    pub timeout: u32,
    /// "Not here" for a block that was announced.
    pub missing: u32,
    /// Receipts of another fork's block at that height.
    pub foreign_receipts: u32,
    /// Receipts wrongly empty.
    pub empty_receipts: u32,
    /// A wrong sender, which no root covers.
    pub wrong_sender: u32,
    /// A shorter answer than asked for.
    pub partial: u32,
    /// Blocks of the answer out of order.
    pub shuffled: u32,
    /// An old head.
    pub stale_head: u32,
    /// A finalised mark of another fork.
    pub false_finality: u32,
}

/// What becomes of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFault {
    /// The process dies before it.
    CrashBefore,
    /// The process dies right after it.
    CrashAfter,
    /// It is done, but the answer says "busy".
    LostAnswer,
    /// It is not done, the answer says "busy".
    Busy,
    /// The process is cut off: another one takes over while it goes on.
    Takeover,
}

/// How a run has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// The store equals the final chain.
    FinalChain,
    /// The ingester halts and the store keeps what it had.
    Halt,
}

/// A whole run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where it comes from.
    pub seed: u64,
    /// The chain's life, by time; the last moment is the final chain.
    pub moments: Vec<Moment>,
    /// The nodes.
    pub nodes: Vec<NodePlan>,
    /// What goes wrong in their answers.
    pub faults: FaultRates,
    /// While in `[from, to)` every node refuses what it is asked. Not drawn, so that older seeds mean what they meant.
    pub refused_ms: Option<(u64, u64)>,
    /// While in `[from, to)` every node sees the chain as it is and answers right: before a fork that is too deep, so that the chain that
    /// it replaces is stored.
    pub calm_ms: Option<(u64, u64)>,
    /// From when on every node sees the final chain and answers right.
    pub quiet_from_ms: u64,
    /// The nth commit (from 0, over all processes) and its fault, ascending.
    pub commit_faults: Vec<(u64, CommitFault)>,
    /// Where the archive begins.
    pub start: Height,
    /// Where it ends.
    pub stop_inclusive: Option<Height>,
    /// `MAX_REORG_DEPTH`.
    pub max_reorg_depth_blocks: u64,
    /// Ranges filled at once and their heights.
    pub fill: Option<(usize, u64)>,
    /// How many heights the nodes like to be asked for at once.
    pub preferred_heights: u64,
    /// Bytes of blocks in flight.
    pub budget_bytes: u64,
    /// How it has to end.
    pub expected: Expected,
    /// The derived half, drawn apart; without one only raw data is played.
    pub derived: Option<DerivedPlan>,
}

/// Draws the plan of `seed`, with its forks in `chain`.
pub fn draw(seed: u64, chain: &Arc<SyntheticChain>) -> Plan {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0xca1e_0000);
    let limit = rng.random_range(2..=12u64);
    let mut life = Life::begin(chain.clone(), limit, &mut rng);
    let steps = rng.random_range(3..=14);
    for _ in 0..steps {
        life.step(&mut rng);
    }
    let over_the_limit = rng.random_ratio(1, 10);
    if over_the_limit {
        life.fork_too_deep(&mut rng);
    } else {
        // Whatever the last fork was, the chain goes on growing: a chain that stays shorter than one that was seen is told from
        // lag only by being asked again and again.
        life.grow(&mut rng, 1, 3);
    }
    let last_ms = life.at_ms;
    let nodes = rng.random_range(1..=3usize);
    let nodes = (0..nodes).map(|first| node(&mut rng, first == 0, last_ms)).collect();
    // An archive begins at a height that is final when the run begins: every fork shares it.
    let settled = life.moments[0].view.finalized.unwrap_or(Height::ZERO);
    let start =
        if rng.random_ratio(1, 3) { Height(rng.random_range(0..=settled.get())) } else { Height::ZERO };
    let calm = rng.random_ratio(1, 5);
    let faults = if calm { FaultRates::default() } else { fault_rates(&mut rng) };
    let final_head = life.moments.last().map_or(Height::ZERO, |moment| moment.view.head);
    let stops = !over_the_limit && rng.random_ratio(1, 8);
    Plan {
        seed,
        refused_ms: None,
        calm_ms: life.calm_ms,
        quiet_from_ms: last_ms + rng.random_range(1_000..20_000),
        moments: life.moments,
        nodes,
        faults,
        commit_faults: commit_faults(&mut rng),
        start,
        stop_inclusive: stops
            .then(|| Height(rng.random_range(start.get()..=final_head.get().max(start.get())))),
        max_reorg_depth_blocks: limit,
        fill: rng.random_ratio(1, 3).then(|| (rng.random_range(1..=3), rng.random_range(2..=9))),
        preferred_heights: rng.random_range(1..=9),
        budget_bytes: *[20_000, 200_000, 50 << 20].get(rng.random_range(0..3usize)).unwrap_or(&200_000),
        expected: if over_the_limit { Expected::Halt } else { Expected::FinalChain },
        derived: Some(crate::derived::plan::draw(seed, last_ms)),
    }
}

fn node(rng: &mut SmallRng, first: bool, last_ms: u64) -> NodePlan {
    let lag_ms = if first || rng.random_ratio(1, 2) { 0 } else { rng.random_range(100..8_000) };
    let stuck_ms = rng.random_ratio(1, 4).then(|| {
        let from = rng.random_range(0..=last_ms);
        (from, from + rng.random_range(500..20_000))
    });
    NodePlan { lag_ms, stuck_ms }
}

fn fault_rates(rng: &mut SmallRng) -> FaultRates {
    let mut rate = |most: u32| if rng.random_ratio(1, 2) { rng.random_range(0..=most) } else { 0 };
    FaultRates {
        rate_limited: rate(100),
        timeout: rate(60),
        missing: rate(250),
        foreign_receipts: rate(150),
        empty_receipts: rate(150),
        wrong_sender: rate(100),
        partial: rate(300),
        shuffled: rate(100),
        stale_head: rate(200),
        false_finality: rate(100),
    }
}

fn commit_faults(rng: &mut SmallRng) -> Vec<(u64, CommitFault)> {
    const KINDS: [CommitFault; 5] = [
        CommitFault::CrashBefore,
        CommitFault::CrashAfter,
        CommitFault::LostAnswer,
        CommitFault::Busy,
        CommitFault::Takeover,
    ];
    let mut at = 0;
    let many = if rng.random_ratio(1, 4) { 0 } else { rng.random_range(1..12) };
    (0..many)
        .map(|_| {
            at += rng.random_range(1..8u64);
            (at, KINDS[rng.random_range(0..KINDS.len())])
        })
        .collect()
}

/// The chain's life while it is drawn.
struct Life {
    chain: Arc<SyntheticChain>,
    moments: Vec<Moment>,
    at_ms: u64,
    fork: ForkId,
    head: Height,
    /// Forks that it was on, with the head that they had.
    left: Vec<(ForkId, Height)>,
    /// The highest head that anybody may have seen: no fork goes more than the limit below it.
    highest: Height,
    finalized: Option<Height>,
    limit: u64,
    salt: u64,
    calm_ms: Option<(u64, u64)>,
}

impl Life {
    fn begin(chain: Arc<SyntheticChain>, limit: u64, rng: &mut SmallRng) -> Life {
        let head = Height(rng.random_range(0..60));
        let mut life = Life {
            chain,
            moments: Vec::new(),
            at_ms: 0,
            fork: ForkId::MAIN,
            head,
            left: Vec::new(),
            highest: head,
            finalized: None,
            limit,
            salt: 0,
            calm_ms: None,
        };
        life.record();
        life
    }

    fn record(&mut self) {
        self.highest = self.highest.max(self.head);
        // Never above what every fork still shares.
        let settled = self.highest.get().checked_sub(self.limit).map(Height);
        self.finalized = self.finalized.max(settled.filter(|settled| *settled <= self.head));
        let view = View {
            safe: self.finalized.map(|finalized| Height((finalized.get() + self.head.get()) / 2)),
            finalized: self.finalized,
            ..View::new(self.fork, self.head)
        };
        self.moments.push(Moment { at_ms: self.at_ms, view });
    }

    fn step(&mut self, rng: &mut SmallRng) {
        self.at_ms += match rng.random_range(0..3) {
            0 => rng.random_range(0..400),
            1 => rng.random_range(400..3_000),
            _ => rng.random_range(3_000..30_000),
        };
        match rng.random_range(0..10) {
            0..=3 => self.grow(rng, 1, 6),
            4 => self.grow(rng, 6, 30),
            5..=7 => self.fork(rng),
            8 => self.replace_tip(rng),
            _ => self.go_back(rng),
        }
    }

    fn grow(&mut self, rng: &mut SmallRng, least: u64, most: u64) {
        self.at_ms += rng.random_range(1..2_000);
        self.head = self.head + rng.random_range(least..=most);
        self.record();
    }

    /// The lowest block that a fork may share: within the limit of whatever was seen, at or above finality.
    fn lowest_common(&self) -> Height {
        self.highest.saturating_sub(self.limit).max(self.finalized.unwrap_or(Height::ZERO))
    }

    fn options(&mut self, rng: &mut SmallRng) -> ForkOptions {
        self.salt += 1;
        ForkOptions {
            salt: self.salt,
            reincluded_percent: rng.random_range(0..=100),
            first_block: match rng.random_range(0..3) {
                0 => FirstBlock::Empty,
                1 => FirstBlock::SameTransactions,
                _ => FirstBlock::Drawn,
            },
        }
    }

    fn fork(&mut self, rng: &mut SmallRng) {
        let lowest = self.lowest_common();
        if lowest >= self.head {
            return self.grow(rng, 1, 3);
        }
        let common = Height(rng.random_range(lowest.get()..self.head.get()));
        let options = self.options(rng);
        self.left.push((self.fork, self.head));
        self.fork = self.chain.fork_at((self.fork, common), options);
        // Shorter, as long, or longer.
        let length = rng.random_range(1..=self.head.since(common) + 3);
        self.head = common + length;
        self.record();
    }

    fn replace_tip(&mut self, rng: &mut SmallRng) {
        let Some(common) = self.head.prev().filter(|common| *common >= self.lowest_common()) else {
            return self.grow(rng, 1, 3);
        };
        let options = self.options(rng);
        self.left.push((self.fork, self.head));
        self.fork = self.chain.fork_at((self.fork, common), options);
        self.record();
    }

    /// Back to a fork that was left, if it still may be.
    fn go_back(&mut self, rng: &mut SmallRng) {
        let lowest = self.lowest_common();
        let chain = self.chain.clone();
        let now = self.fork;
        let back = self.left.iter().rposition(|(fork, _)| *fork != now && chain.common(*fork, now) >= lowest);
        let Some(back) = back else { return self.grow(rng, 1, 3) };
        let (fork, head) = self.left.remove(back);
        let common = self.chain.common(fork, now);
        self.left.push((self.fork, self.head));
        self.fork = fork;
        self.head = Height((head.get() + rng.random_range(0..3)).max(common.get() + 1));
        self.record();
    }

    /// One block deeper than may be undone, after everybody has seen the chain that it replaces.
    fn fork_too_deep(&mut self, rng: &mut SmallRng) {
        self.grow(rng, 1, 3);
        while self.highest != self.head || self.head.get() < self.limit + 2 {
            self.grow(rng, 1, 3);
        }
        // Long enough for the slowest ingester to have reached this head.
        let calm_from_ms = self.at_ms;
        self.at_ms += 3_600_000;
        self.calm_ms = Some((calm_from_ms, self.at_ms));
        let common = self.head - (self.limit + 1);
        let options = self.options(rng);
        self.fork = self.chain.fork_at((self.fork, common), options);
        self.head = self.head + rng.random_range(1..4);
        self.record();
    }
}
