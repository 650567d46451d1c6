//! How many items go into one request: learned per endpoint and kind of call, from sizes, refusals and time-outs.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::classify::ErrorClass;
use super::config::RpcLimits;

/// Answers at the learned ceiling before a wider batch is tried again.
const ANSWERS_BEFORE_WIDER: u32 = 64;

/// Kinds of calls whose answers differ in size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Headers, tags, the chain id.
    Header,
    /// Whole blocks.
    Block,
    /// All receipts of a block.
    Receipts,
    /// One receipt.
    Receipt,
    /// One transaction.
    Transaction,
    /// The call traces of a block, or of one transaction.
    Trace,
}

impl Kind {
    /// How many there are.
    pub const COUNT: usize = Kind::Trace as usize + 1;

    /// Its name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Header => "header",
            Kind::Block => "block",
            Kind::Receipts => "receipts",
            Kind::Receipt => "receipt",
            Kind::Transaction => "transaction",
            Kind::Trace => "trace",
        }
    }
}

/// A batch that was cut because it failed.
#[derive(Debug, Clone, Copy)]
pub struct Cut {
    /// How many items it had.
    pub items: usize,
    /// How it failed.
    pub class: ErrorClass,
}

#[derive(Debug)]
struct State {
    items: usize,
    /// Below what was refused; 0: nothing was.
    ceiling: usize,
    answers_at_ceiling: u32,
    /// A running mean.
    bytes_per_item: f64,
}

/// The width of the batches of one kind at one endpoint.
///
/// It grows by an eighth (at least one) with each full batch that was answered, towards the target size of an answer and not above what
/// was once refused; that ceiling itself is raised after many answers, so a limit that was lifted is found out. It is halved by refusals and
/// time-outs.
#[derive(Debug)]
pub struct Width {
    state: Mutex<State>,
    max_items: usize,
    target_bytes: f64,
}

impl Width {
    /// The width of a new endpoint.
    pub fn new(limits: &RpcLimits) -> Width {
        let max_items = limits.max_batch_items.max(1);
        Width {
            state: Mutex::new(State {
                items: limits.initial_batch_items.clamp(1, max_items),
                ceiling: 0,
                answers_at_ceiling: 0,
                bytes_per_item: 0.0,
            }),
            max_items,
            target_bytes: limits.target_response_bytes.max(1) as f64,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change below is whole before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Items for the next batch.
    pub fn items(&self) -> usize {
        self.state().items
    }

    /// A batch of `items` was answered with so many bytes.
    pub fn answered(&self, items: usize, bytes: u64) {
        if items == 0 {
            return;
        }
        let mut state = self.state();
        let per_item = bytes as f64 / items as f64;
        let known = state.bytes_per_item;
        state.bytes_per_item = if known == 0.0 { per_item } else { known * 0.7 + per_item * 0.3 };
        // The larger of the mean and the newest: blocks that suddenly grow are felt at once.
        let fits = (self.target_bytes / state.bytes_per_item.max(per_item).max(1.0)) as usize;
        if items >= state.items {
            let mut most = self.max_items;
            if state.ceiling > 0 && state.ceiling < self.max_items {
                most = state.ceiling;
                if state.items >= state.ceiling {
                    state.answers_at_ceiling += 1;
                    if state.answers_at_ceiling >= ANSWERS_BEFORE_WIDER {
                        state.answers_at_ceiling = 0;
                        state.ceiling += (state.ceiling / 4).max(1);
                        most = state.ceiling.min(self.max_items);
                    }
                }
            }
            state.items = (state.items + (state.items / 8).max(1)).min(most);
        }
        state.items = state.items.min(fits).clamp(1, self.max_items);
    }

    /// A batch of `items` was refused as too wide.
    pub fn too_wide(&self, items: usize) {
        let mut state = self.state();
        if items > 1 {
            state.ceiling = items - 1;
            state.answers_at_ceiling = 0;
        }
        state.items = state.items.min((items / 2).max(1));
    }

    /// A part of a batch that failed was answered: the whole was too wide. Where it may have failed because of the moment, no ceiling is remembered.
    pub fn was_cut(&self, cut: Cut) {
        match cut.class {
            ErrorClass::RateLimited => self.too_slow(cut.items),
            ErrorClass::TooWide | ErrorClass::Transient | ErrorClass::Refused => self.too_wide(cut.items),
        }
    }

    /// A batch of `items` took too long.
    pub fn too_slow(&self, items: usize) {
        let mut state = self.state();
        state.items = state.items.min((items / 2).max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn width(target_response_bytes: u64) -> Width {
        Width::new(&RpcLimits {
            max_batch_items: 64,
            initial_batch_items: 8,
            target_response_bytes,
            ..RpcLimits::default()
        })
    }

    #[test]
    fn e12_a_refused_width_is_remembered_and_tried_again_late() {
        let width = width(1 << 20);
        for _ in 0..100 {
            width.answered(width.items(), 100);
        }
        assert_eq!(width.items(), 64);
        width.too_wide(64);
        assert_eq!(width.items(), 32);
        width.too_wide(32);
        width.too_wide(16);
        assert_eq!(width.items(), 8);
        let mut widest = 0;
        for _ in 0..40 {
            width.answered(width.items(), 100);
            widest = widest.max(width.items());
        }
        assert_eq!(widest, 15, "never at the refused width in the short run");
        for _ in 0..64 {
            width.answered(width.items(), 100);
        }
        assert!(width.items() > 15, "a lifted limit is found");
    }

    #[test]
    fn batches_are_steered_to_the_target_size() {
        let width = width(1_000_000);
        for _ in 0..100 {
            width.answered(width.items(), 40_000 * width.items() as u64);
        }
        assert!((20..=25).contains(&width.items()), "{}", width.items());
        width.answered(width.items(), 3_000_000 * width.items() as u64);
        assert_eq!(width.items(), 1, "blocks that grow are felt at once");
    }

    #[test]
    fn a_partial_batch_does_not_widen() {
        let width = width(1 << 20);
        width.answered(2, 10);
        assert_eq!(width.items(), 8);
        width.too_slow(8);
        assert_eq!(width.items(), 4);
        width.too_wide(1);
        assert_eq!(width.items(), 1);
    }
}
