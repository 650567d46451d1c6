//! Which node is asked for a height.
//!
//! A node serves the heights from its spork's root to the next one's; several of the same stretch are asked in turn. Where one fails, the others
//! are asked before anybody hears of it. A node that could not be reached lately comes last, and one that never said what it is is asked that first.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_core::ErrorKind;
use cairn_flow::Network;

use super::config::{FlowConfig, NodeConfig};
use super::identity::Standing;
use super::memory::Memory;
use super::node::Node;
use crate::{Result, SourceError};

/// The heights that a node is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    first_height: u64,
    /// `None`: it goes on.
    end_height_exclusive: Option<u64>,
}

impl Stretch {
    fn is_empty(self) -> bool {
        self.end_height_exclusive.is_some_and(|end| end <= self.first_height)
    }
}

/// Where a node's heights begin.
#[derive(Debug, Clone, Copy)]
struct Begins {
    /// The first height that it is asked for.
    first_height: u64,
    /// Its spork's root.
    spork: u64,
    /// Whether it says itself that this is its spork's root.
    is_said: bool,
}

impl Begins {
    /// One that doesn't say its spork begins it where it is asked first.
    fn only_configured(first_height: u64) -> Begins {
        Begins { first_height, spork: first_height, is_said: false }
    }

    /// Whether it is of an earlier spork than another one. Where one of them doesn't say its spork, they may be of the same although they are asked from
    /// different heights.
    fn is_before(self, other: Begins) -> bool {
        let are_said = self.is_said && other.is_said;
        other.spork > if are_said { self.spork } else { self.spork.max(self.first_height) }
    }
}

/// What a node is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// A height.
    Height(u64),
    /// The tip.
    Live,
}

impl Want {
    fn is_served_in(self, stretch: Stretch) -> bool {
        match self {
            Want::Height(height) => {
                height >= stretch.first_height && stretch.end_height_exclusive.is_none_or(|end| height < end)
            }
            Want::Live => stretch.end_height_exclusive.is_none(),
        }
    }

    /// Of a node of which only the configuration speaks.
    fn may_be_served_by(self, configured: &NodeConfig) -> bool {
        self.is_served_in(Stretch {
            first_height: configured.first_height.unwrap_or(0),
            end_height_exclusive: configured.end_height_exclusive,
        })
    }
}

impl fmt::Display for Want {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Want::Height(height) => write!(f, "height {height}"),
            Want::Live => f.write_str("the tip"),
        }
    }
}

/// Nodes that were asked one question, and what became of it.
#[derive(Debug, Default)]
pub(super) struct Tried {
    nodes: Vec<usize>,
    error: Option<SourceError>,
}

impl Tried {
    /// It answered, and others are to be asked too.
    pub fn answered(&mut self, node: &Node) {
        self.nodes.push(node.index);
    }

    /// It failed. What another try may mend is remembered before what it can't.
    pub fn failed(&mut self, node: &Node, error: SourceError) {
        self.nodes.push(node.index);
        if self
            .error
            .as_ref()
            .is_none_or(|before| before.kind() != ErrorKind::Retry && error.kind() == ErrorKind::Retry)
        {
            self.error = Some(error);
        }
    }
}

/// All nodes.
#[derive(Debug)]
pub(super) struct Pool {
    network: Network,
    nodes: Vec<Node>,
    /// Which of several nodes of the same stretch is asked next.
    turn: AtomicUsize,
}

impl Pool {
    /// Asks each node what it is. One has to answer; none may be of another network, or begin above what it is configured for.
    pub async fn connect(config: &FlowConfig) -> Result<Pool> {
        let memory = Arc::new(Memory::new(config.max_response_bytes));
        let made = |(index, node)| Node::new(index, node, config, memory.clone());
        let nodes = config.nodes.iter().enumerate().map(made);
        let pool =
            Pool { network: config.network, nodes: nodes.collect::<Result<_>>()?, turn: AtomicUsize::new(0) };
        let answers = futures::future::join_all(pool.nodes.iter().map(|node| node.introduce(true))).await;
        let mut tried = Tried::default();
        for (node, answer) in pool.nodes.iter().zip(answers) {
            match answer {
                Some(Err(error @ (SourceError::WrongChain { .. } | SourceError::Invalid(_)))) => {
                    return Err(error);
                }
                Some(Err(error)) => tried.failed(node, error),
                Some(Ok(())) | None => {}
            }
        }
        match tried.error {
            Some(error) if tried.nodes.len() == pool.nodes.len() => Err(error),
            _ => Ok(pool),
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The first height that any node serves; 0 where one that didn't answer yet may serve any.
    pub fn first_height(&self) -> u64 {
        let may_serve_any = |node: &Node| {
            node.configured.first_height.is_none() && matches!(node.standing(), Standing::Stranger)
        };
        if self.nodes.iter().any(may_serve_any) {
            return 0;
        }
        self.stretches().into_iter().flatten().map(|stretch| stretch.first_height).min().unwrap_or(0)
    }

    /// Whether a spork begins at this height.
    pub fn is_spork_root(&self, height: u64) -> bool {
        self.nodes.iter().any(|node| node.is_spork_root(height))
    }

    /// The heights of each node; `None`: not known, or it is not used.
    ///
    /// A spork ends where the next one begins, whether or not a node of that one is configured, and wherever in it a node is asked first (F02).
    fn stretches(&self) -> Vec<Option<Stretch>> {
        let begins: Vec<Option<Begins>> = self
            .nodes
            .iter()
            .map(|node| {
                let configured = node.configured.first_height;
                match node.standing() {
                    Standing::Stranger => configured.map(Begins::only_configured),
                    Standing::Unfit(_) => None,
                    Standing::Known(root) => {
                        let first_height = configured.unwrap_or(0).max(root.first_height());
                        Some(match root.spork {
                            0 => Begins { first_height, ..Begins::only_configured(configured.unwrap_or(0)) },
                            spork => Begins { first_height, spork, is_said: true },
                        })
                    }
                }
            })
            .collect();
        self.nodes
            .iter()
            .zip(&begins)
            .map(|(node, own)| {
                let own = (*own)?;
                let later = begins.iter().flatten().filter(|other| own.is_before(**other));
                // One that doesn't say where it begins is taken for one of a chain of its own.
                let of_table = self.network.spork_end(own.spork).filter(|_| own.spork > 0);
                let next =
                    later.map(|other| other.spork).chain(of_table.map(|spork| spork.root_height)).min();
                let end_height_exclusive = node.configured.end_height_exclusive.or(next);
                let stretch = Stretch { first_height: own.first_height, end_height_exclusive };
                Some(stretch).filter(|stretch| !stretch.is_empty())
            })
            .collect()
    }

    /// Known nodes that serve it.
    fn serving(&self, want: Want, stretches: &[Option<Stretch>], tried: &Tried) -> Vec<&Node> {
        let serves = |(node, stretch): &(&Node, &Option<Stretch>)| {
            node.root().is_some()
                && stretch.is_some_and(|stretch| want.is_served_in(stretch))
                && !tried.nodes.contains(&node.index)
        };
        self.nodes.iter().zip(stretches).filter(serves).map(|(node, _)| node).collect()
    }

    /// One of several, in turn; those that could be reached lately before others.
    fn in_turn<'p>(&self, nodes: Vec<&'p Node>) -> Option<&'p Node> {
        let awake: Vec<&Node> = nodes.iter().copied().filter(|node| !node.health.is_resting()).collect();
        let among = if awake.is_empty() { nodes } else { awake };
        match among.len() {
            0 => None,
            count => among.get(self.turn.fetch_add(1, Ordering::Relaxed) % count).copied(),
        }
    }

    /// The next node to ask; an error where none is left that was not tried.
    pub async fn next(&self, want: Want, tried: &mut Tried) -> Result<&Node> {
        let mut passed_over: Vec<usize> = Vec::new();
        loop {
            let stretches = self.stretches();
            let serving = self.serving(want, &stretches, tried);
            let stranger = self.nodes.iter().find(|node| {
                matches!(node.standing(), Standing::Stranger)
                    && want.may_be_served_by(&node.configured)
                    && !tried.nodes.contains(&node.index)
                    && !passed_over.contains(&node.index)
            });
            let Some(stranger) = stranger else {
                let Some(node) = self.in_turn(serving) else {
                    return Err(self.nobody(want, &stretches, tried));
                };
                if tried.error.is_some() {
                    metrics::counter!("cairn_source_failovers_total", "endpoint" => node.name.clone())
                        .increment(1);
                }
                return Ok(node);
            };
            match stranger.introduce(serving.is_empty()).await {
                Some(Ok(())) => {}
                Some(Err(SourceError::Transient { endpoint, message })) => {
                    let message = format!("{message}; it is not known yet what it serves, maybe {want}");
                    tried.failed(stranger, SourceError::Transient { endpoint, message });
                }
                Some(Err(error)) => tried.failed(stranger, error),
                None => passed_over.push(stranger.index),
            }
        }
    }

    /// A known node of the live spork, without a wait.
    pub fn live(&self) -> Option<&Node> {
        self.in_turn(self.serving(Want::Live, &self.stretches(), &Tried::default()))
    }

    /// Why nobody is left.
    fn nobody(&self, want: Want, stretches: &[Option<Stretch>], tried: &mut Tried) -> SourceError {
        let is_served = !self.serving(want, stretches, &Tried::default()).is_empty();
        if let Some(error) = tried.error.take_if(|error| is_served || error.kind() == ErrorKind::Retry) {
            return error;
        }
        let unfit = self.nodes.iter().filter_map(|node| match node.standing() {
            Standing::Unfit(error) => Some(format!("; not used: {error}")),
            _ => None,
        });
        let unfit: String = unfit.collect();
        let sporks = self.network.sporks();
        let named = |spork: &cairn_flow::network::Spork| format!(" (spork {})", spork.name);
        SourceError::Invalid(match want {
            Want::Live => {
                let ends = stretches.iter().flatten().filter_map(|stretch| stretch.end_height_exclusive);
                let end = ends.max().unwrap_or(0);
                let next = sporks.iter().find(|spork| spork.root_height == end);
                format!(
                    "there is no live access node: those that are configured serve heights below {end}; add one of the current spork, or of the next{}{unfit}",
                    next.map_or_else(String::new, named)
                )
            }
            Want::Height(height) => {
                let spork = sporks.iter().rev().find(|spork| spork.root_height <= height);
                let serve: Vec<String> = self
                    .nodes
                    .iter()
                    .zip(stretches)
                    .filter_map(|(node, stretch)| {
                        Some(format!("{} ({})", (*stretch)?.first_height, node.name))
                    })
                    .collect();
                format!(
                    "no access node is configured for height {height}{}; nodes serve from {}{unfit}",
                    spork.map_or_else(String::new, named),
                    serve.join(", ")
                )
            }
        })
    }
}
