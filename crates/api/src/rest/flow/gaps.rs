//! Where the EVM chain on Flow isn't whole, which Flow blocks have no EVM block, and which EVM blocks stand in several of them.

use std::ops::Bound;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_store::derived::{MAX_SCAN_ROWS, Row, Scan, Value};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::rest::Api;
use crate::rest::answer::Page;
use crate::rest::cursor::Binding;
use crate::rest::fields::Fields;
use crate::rest::list::{List, Walk};
use crate::rest::params::{ListQuery, Order, Paging, Params};
use crate::rest::problem::Problem;
use crate::rest::view::View;
use crate::rest::words::Num;

/// What is not as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GapKind {
    /// EVM blocks are missing.
    Gap,
    /// EVM blocks came again, or late.
    Repeat,
    /// An EVM block has another parent than the one before it.
    Fork,
}

impl GapKind {
    fn word(self) -> &'static str {
        match self {
            GapKind::Gap => "gap",
            GapKind::Repeat => "repeat",
            GapKind::Fork => "fork",
        }
    }
}

/// Of the list of gaps.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct GapsQuery {
    /// Only of this kind.
    #[param(inline)]
    pub kind: Option<GapKind>,
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
    /// From which end; the highest EVM blocks first where nothing is said.
    #[param(inline)]
    pub order: Option<Order>,
}

/// A place where the EVM chain isn't whole.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowEvmGap {
    /// `gap`: these EVM blocks are missing. `repeat`: the first of them comes after the last one, again or late. `fork`: this one has another parent than the one before it.
    pub kind: String,
    pub from_evm_height: Num,
    /// The last one included.
    pub to_evm_height: Num,
    /// Of a gap, the Flow block that has the EVM block before it: what is missing belongs into the Flow blocks from this one to `seen_at_height`. Else null.
    pub after_height: Option<Num>,
    /// The Flow block at which it was seen.
    pub seen_at_height: Num,
    /// Of a gap, whether EVM blocks of it are missing still: blocks that were read again may have brought them. Null where so many of one are there that they were not all looked at, and of other kinds.
    pub is_open: Option<bool>,
}

impl FlowEvmGap {
    /// `examine` is how many EVM blocks may still be looked at for this answer.
    async fn of(view: &View, row: &Row, examine: &mut usize) -> Result<FlowEvmGap, Problem> {
        let fields = Fields::new(view.table("evm_gaps")?, row);
        let kind = fields.text("kind")?;
        let (from, to) = (fields.uint("from_evm_height")?, fields.uint("to_evm_height")?);
        let seen_at = fields.uint("seen_at_height")?;
        let (mut after_height, mut is_open) = (None, None);
        if kind == GapKind::Gap.word() {
            after_height = place_of(view, from.saturating_sub(1), seen_at).await?;
            is_open = still_missing(view, from, to, examine).await?;
        }
        Ok(FlowEvmGap {
            kind,
            from_evm_height: Num(from),
            to_evm_height: Num(to),
            after_height,
            seen_at_height: Num(seen_at),
            is_open,
        })
    }
}

/// The last Flow block up to `height` that has the EVM block at `evm_height`.
async fn place_of(view: &View, evm_height: u64, height: u64) -> Result<Option<Num>, Problem> {
    let scan = Scan {
        index: Some("by_evm_height"),
        prefix: vec![Value::uint(evm_height)],
        upper: Bound::Included(vec![Value::uint(height)]),
        descending: true,
        ..Scan::new("evm_blocks", 1)
    };
    let rows = view.tables()?.scan(&scan).await?.rows;
    let table = view.table("evm_blocks")?;
    rows.first().map(|row| Fields::new(table, row).num("block_height")).transpose()
}

/// Whether an EVM block from `from` to `to` is not there. `None`: of `examine` blocks, which is as many as may be looked at, none is missing.
async fn still_missing(
    view: &View,
    from: u64,
    to: u64,
    examine: &mut usize,
) -> Result<Option<bool>, Problem> {
    let limit = (*examine).min(MAX_SCAN_ROWS);
    if limit == 0 {
        return Ok(None);
    }
    let wanted = usize::try_from(to.saturating_sub(from).saturating_add(1)).unwrap_or(usize::MAX);
    let scan = Scan {
        index: Some("by_evm_height"),
        lower: Bound::Included(vec![Value::uint(from)]),
        upper: Bound::Included(vec![Value::uint(to)]),
        ..Scan::new("evm_blocks", limit.min(wanted))
    };
    let page = view.tables()?.scan(&scan).await?;
    *examine -= page.rows.len().min(*examine);
    let table = view.table("evm_blocks")?;
    let mut next = from;
    for row in &page.rows {
        let height = Fields::new(table, row).uint("evm_height")?;
        if height > next {
            return Ok(Some(true));
        }
        if height == next {
            next = next.saturating_add(1);
        }
    }
    Ok(match page.more {
        _ if next > to => Some(false),
        None => Some(true),
        Some(_) => None,
    })
}

/// Where the blocks of Flow's EVM side don't follow each other, the highest first.
#[utoipa::path(
    get,
    path = "/v1/flow/evm/gaps",
    tag = "blocks",
    params(GapsQuery),
    responses((status = 200, description = "A page of gaps", body = Page<FlowEvmGap>))
)]
pub(crate) async fn list_evm_gaps(
    State(api): State<Arc<Api>>,
    Params(query): Params<GapsQuery>,
) -> Result<Json<Page<FlowEvmGap>>, Problem> {
    let order = query.order.unwrap_or(Order::Desc);
    let paging = Paging::new(api.limits(), query.limit, query.cursor, order)?;
    let view = View::open(&api, &["evm_gaps", "evm_blocks"], &[]).await?;
    let kind = query.kind.map(GapKind::word);
    let binding = Binding::new("evm gaps", &[kind.unwrap_or_default(), paging.order_word()]);
    let mut walk = Walk::new("evm_gaps", None, Vec::new());
    walk.filters.extend(kind.map(|kind| ("kind", Value::text(kind))));
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let mut examine = api.limits().max_examined_rows;
    let mut data = Vec::with_capacity(found.rows.len());
    for (_, row) in &found.rows {
        data.push(FlowEvmGap::of(&view, row, &mut examine).await?);
    }
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// Flow blocks in succession that have no EVM block. That is no fault by itself.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowEvmAbsence {
    /// The EVM block before them; none was made till after them.
    pub after_evm_height: Num,
    pub from_height: Num,
    /// The last one included. While the EVM stands still, this goes on.
    pub to_height: Num,
    /// How many they are.
    pub block_count: Num,
}

impl FlowEvmAbsence {
    fn of(view: &View, row: &Row) -> Result<FlowEvmAbsence, Problem> {
        let fields = Fields::new(view.table("evm_absences")?, row);
        Ok(FlowEvmAbsence {
            after_evm_height: fields.num("evm_height")?,
            from_height: fields.num("first_height")?,
            to_height: fields.num("last_height")?,
            block_count: fields.count("absent_count")?,
        })
    }
}

/// The Flow blocks since the first EVM block that have none, those in succession as one row, the highest first.
#[utoipa::path(
    get,
    path = "/v1/flow/evm/absences",
    tag = "blocks",
    params(ListQuery),
    responses((status = 200, description = "A page of Flow blocks without an EVM block", body = Page<FlowEvmAbsence>))
)]
pub(crate) async fn list_evm_absences(
    State(api): State<Arc<Api>>,
    Params(query): Params<ListQuery>,
) -> Result<Json<Page<FlowEvmAbsence>>, Problem> {
    let paging = query.paging(api.limits(), Order::Desc)?;
    let view = View::open(&api, &["evm_absences"], &[]).await?;
    let binding = Binding::new("evm absences", &[paging.order_word()]);
    let walk = Walk::new("evm_absences", None, Vec::new());
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let absences = found.rows.iter().map(|(_, row)| FlowEvmAbsence::of(&view, row));
    let data = absences.collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}

/// An EVM block that isn't whole in one Flow block.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowEvmSplit {
    pub evm_height: Num,
    /// The Flow block with the first part of it.
    pub from_height: Num,
    /// The Flow block with the last part of it, or that closes it.
    pub to_height: Num,
    /// Its transactions that are there.
    pub transaction_count: Num,
    /// What they used.
    pub gas_used: Num,
    /// What the EVM block says they used; null until it is closed.
    pub closed_gas_used: Option<Num>,
    /// Whether all its transactions are there; null until it is closed.
    pub is_complete: Option<bool>,
}

impl FlowEvmSplit {
    fn of(view: &View, row: &Row) -> Result<FlowEvmSplit, Problem> {
        let fields = Fields::new(view.table("evm_splits")?, row);
        Ok(FlowEvmSplit {
            evm_height: fields.num("evm_height")?,
            from_height: fields.num("first_height")?,
            to_height: fields.num("last_height")?,
            transaction_count: fields.count("transaction_count")?,
            gas_used: fields.count("gas_used")?,
            closed_gas_used: fields.opt_num("closed_gas_used")?,
            is_complete: fields.opt_boolean("is_complete")?,
        })
    }
}

/// Which EVM blocks.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct SplitsQuery {
    /// Only those that are complete, or that are not.
    pub is_complete: Option<bool>,
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
    /// From which end; the highest first where nothing is said.
    #[param(inline)]
    pub order: Option<Order>,
}

/// The EVM blocks that aren't whole in one Flow block: whose transactions stand in several, or are not all there. The highest first.
#[utoipa::path(
    get,
    path = "/v1/flow/evm/splits",
    tag = "blocks",
    params(SplitsQuery),
    responses((status = 200, description = "A page of EVM blocks", body = Page<FlowEvmSplit>))
)]
pub(crate) async fn list_evm_splits(
    State(api): State<Arc<Api>>,
    Params(query): Params<SplitsQuery>,
) -> Result<Json<Page<FlowEvmSplit>>, Problem> {
    let order = query.order.unwrap_or(Order::Desc);
    let paging = Paging::new(api.limits(), query.limit, query.cursor, order)?;
    let view = View::open(&api, &["evm_splits"], &[]).await?;
    let wanted = match query.is_complete {
        None => "",
        Some(true) => "complete",
        Some(false) => "incomplete",
    };
    let binding = Binding::new("evm splits", &[wanted, paging.order_word()]);
    let mut walk = Walk::new("evm_splits", None, Vec::new());
    walk.filters.extend(query.is_complete.map(|is_complete| ("is_complete", Value::Bool(is_complete))));
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let splits = found.rows.iter().map(|(_, row)| FlowEvmSplit::of(&view, row));
    let data = splits.collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}
