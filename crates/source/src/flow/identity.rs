//! What a node is: which network it serves, and from which height on.
//!
//! A node is asked before it is first used. One that doesn't answer is a stranger until it does: where nobody else serves a height it is asked
//! again each time, else after a pause that grows, so that little of the time is spent on waiting for it.

use std::sync::PoisonError;
use std::time::Duration;

use cairn_flow::{Network, proto};
use tokio::time::Instant;

use super::classify::Refusal;
use super::node::{Call, Node};
use crate::{Result, SourceError};

/// How long a node may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon a stranger that is needed is asked again.
const NEEDED_PAUSE: Duration = Duration::from_secs(1);
/// How soon one is that isn't, at first and at last.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// At most one part in so many of the time is spent on a stranger that isn't needed.
const PAUSE_FACTOR: u32 = 10;

/// Where a node's heights begin, as it says itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Root {
    /// Its spork's root; 0: it didn't say.
    pub spork: u64,
    /// The first height that it has itself, where that is higher.
    pub node: u64,
}

impl Root {
    /// The first height that it serves.
    pub fn first_height(self) -> u64 {
        self.spork.max(self.node)
    }
}

/// What is known of a node.
#[derive(Debug, Clone)]
pub(super) enum Standing {
    /// It didn't say yet what it is.
    Stranger,
    /// It serves the network, from here on.
    Known(Root),
    /// It is another network's, or doesn't serve the heights that it is configured for: it is not used.
    Unfit(SourceError),
}

/// The last time that a stranger didn't answer.
#[derive(Debug)]
pub(super) struct Unanswered {
    at: Instant,
    pause: Duration,
    error: SourceError,
}

impl Node {
    /// What is known of it.
    pub fn standing(&self) -> Standing {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn stands(&self, standing: Standing) {
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }

    /// Its root, where it is known and fit.
    pub fn root(&self) -> Option<Root> {
        match self.standing() {
            Standing::Known(root) => Some(root),
            _ => None,
        }
    }

    /// It said, refusing a height, that it begins higher than was thought (F02).
    pub fn begins_at(&self, root_height: u64, is_sporks: bool) {
        let mut standing = self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Standing::Known(root) = &mut *standing {
            let said = if is_sporks { &mut root.spork } else { &mut root.node };
            if *said < root_height {
                tracing::warn!(node = self.name, root_height, "the node serves only heights from here on");
                *said = root_height;
            }
        }
    }

    /// Whether a spork begins at this height: a block in which nothing is executed.
    pub fn is_spork_root(&self, height: u64) -> bool {
        // A chain's very first block is one.
        height == 0
            || self.root().is_some_and(|root| root.spork == height)
            || self.network.sporks().iter().any(|spork| spork.root_height == height)
    }

    /// Asks it what it is, unless that is known. `None`: it isn't needed, and somebody asks it now, or did lately in vain.
    pub async fn introduce(&self, is_needed: bool) -> Option<Result<()>> {
        let mut unanswered = match is_needed {
            true => self.introduction.lock().await,
            false => self.introduction.try_lock().ok()?,
        };
        match self.standing() {
            Standing::Known(_) => return Some(Ok(())),
            Standing::Unfit(error) => return Some(Err(error)),
            Standing::Stranger => {}
        }
        let began = Instant::now();
        if let Some(last) = unanswered.as_ref() {
            let pause = if is_needed { NEEDED_PAUSE } else { last.pause };
            if began < last.at + pause {
                return is_needed.then(|| Err(last.error.clone()));
            }
        }
        let outcome = tokio::time::timeout(PATIENCE, self.ask_what_it_is()).await.unwrap_or_else(|_| {
            let message = format!("it did not say what it is within {} s", PATIENCE.as_secs());
            Err(SourceError::Transient { endpoint: self.name.clone(), message })
        });
        Some(match outcome {
            Ok(root) => {
                tracing::debug!(node = self.name, ?root, "the node said what it is");
                self.stands(Standing::Known(root));
                Ok(())
            }
            Err(error @ (SourceError::WrongChain { .. } | SourceError::Invalid(_))) => {
                tracing::error!(node = self.name, %error, "the node is not used");
                self.stands(Standing::Unfit(error.clone()));
                Err(error)
            }
            Err(error) => {
                tracing::warn!(node = self.name, %error, "the node doesn't say what it is; it is asked again before it is used");
                let longer = unanswered.as_ref().map_or(PAUSES.0, |last| last.pause * 2);
                let pause = longer.max(began.elapsed() * PAUSE_FACTOR).min(PAUSES.1);
                *unanswered = Some(Unanswered { at: Instant::now(), pause, error: error.clone() });
                Err(error)
            }
        })
    }

    async fn ask_what_it_is(&self) -> Result<Root> {
        self.check_network().await?;
        let version =
            self.ask::<_, proto::GetNodeVersionInfoResponse>(Call::NodeVersionInfo, proto::EmptyRequest {});
        let info = match version.await {
            Err(Refusal::Unimplemented) => None,
            answer => self.absent(answer)?.and_then(|answer| answer.info),
        };
        let info = info.unwrap_or_default();
        let root = Root { spork: info.spork_root_block_height, node: info.node_root_block_height };
        self.believed(root.first_height())?;
        let root = match self.configured.first_height {
            None if root == Root::default() => self.root_by_refusal().await?,
            _ => root,
        };
        self.check_configured(root)?;
        Ok(root)
    }

    /// A height that it never serves is a mistake in the configuration, and nothing to wait for (F02).
    fn check_configured(&self, root: Root) -> Result<()> {
        let (first, until) = (self.configured.first_height, self.configured.end_height_exclusive);
        if let Some(first) = first.filter(|first| *first < root.first_height()) {
            return Err(SourceError::Invalid(format!(
                "{}: it is configured from height {first}, and serves none below {}; add a node of the spork before",
                self.name,
                root.first_height()
            )));
        }
        // One that doesn't say its spork is of that in which it is asked first.
        let spork = Some(root.spork).filter(|spork| *spork > 0).or(first);
        let Some(next) = spork.and_then(|spork| self.network.spork_end(spork)) else { return Ok(()) };
        let end = next.root_height;
        let configured = match (first, until) {
            (Some(first), _) if first >= end => format!("from height {first}"),
            (_, Some(until)) if until > end => format!("until height {until}"),
            _ => return Ok(()),
        };
        Err(SourceError::Invalid(format!(
            "{}: it is configured {configured}, and its spork ends before height {end}; add a node of {}",
            self.name, next.name
        )))
    }

    /// An old node says it only where it refuses a height. One that has the very first block, or says nothing, is taken to begin there.
    async fn root_by_refusal(&self) -> Result<Root> {
        let question = proto::GetBlockHeaderByHeightRequest { height: 0 };
        match self.ask::<_, proto::BlockHeaderResponse>(Call::BlockHeaderByHeight, question).await {
            Err(Refusal::BelowRoot { root_height, is_sporks: true }) => {
                Ok(Root { spork: root_height, node: 0 })
            }
            Err(Refusal::BelowRoot { root_height, is_sporks: false }) => {
                Ok(Root { spork: 0, node: root_height })
            }
            answer => self.absent(answer).map(|_| Root::default()),
        }
    }

    async fn check_network(&self) -> Result<()> {
        let answer = self
            .ask::<_, proto::GetNetworkParametersResponse>(Call::NetworkParameters, proto::EmptyRequest {});
        let Some(parameters) = self.absent(answer.await)? else {
            return Err(SourceError::Permanent {
                endpoint: self.name.clone(),
                message: "it does not say which network it serves".into(),
            });
        };
        match Network::from_chain_id(&parameters.chain_id) {
            Some(found) if found == self.network => Ok(()),
            Some(found) => Err(SourceError::WrongChain {
                endpoint: self.name.clone(),
                found: found.chain_number(),
                expected: self.network.chain_number(),
            }),
            None => Err(SourceError::Invalid(format!(
                "{} serves {:.100}, expected {}; remove it",
                self.name,
                parameters.chain_id,
                self.network.chain_id()
            ))),
        }
    }
}
