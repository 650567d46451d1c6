//! Balances: sums of what events say, which may be below 0. Lists show every balance that isn't 0, and say why one may be below it.

use std::ops::Bound;

use cairn_store::derived::{Sum, Value};
use serde::Serialize;
use utoipa::ToSchema;

use super::list::Walk;
use super::view::View;
use super::words::SumOf;

/// What most likely explains a sum below 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum BelowZero {
    /// The archive begins above the chain's first block (`meta.counts_from_height`): what was there before isn't counted.
    ArchiveBeginsLater,
    /// A worker passed over blocks (`meta.incomplete`): what moved there isn't counted.
    IncompleteBlocks,
    /// The token changes balances without an event that counts: a rebase, a supply that was never minted, a deposit of a wrapped token that isn't
    /// among `derive.wrapped_tokens`.
    UntoldByEvents,
}

impl BelowZero {
    /// Of a sum; `None` where it isn't below 0.
    pub(crate) fn of(view: &View, sum: &SumOf) -> Option<BelowZero> {
        sum.0.is_negative().then(|| match () {
            () if view.counts_from().is_some() => BelowZero::ArchiveBeginsLater,
            () if view.has_holes() => BelowZero::IncompleteBlocks,
            () => BelowZero::UntoldByEvents,
        })
    }
}

/// The walks that list what is above 0 and what is below it, by the index `by_balance`. Rows at 0 between them may be many, and are not examined.
pub(crate) fn not_zero(table: &'static str, prefix: Vec<Value>) -> [Walk; 2] {
    let zero = || Bound::Excluded(vec![Value::Sum(Box::new(Sum::ZERO))]);
    let walk = || Walk::new(table, Some("by_balance"), prefix.clone());
    [Walk { lower: zero(), ..walk() }, Walk { upper: zero(), ..walk() }]
}
