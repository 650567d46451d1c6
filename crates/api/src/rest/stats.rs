//! Statistics by day.

use std::ops::Bound;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_store::derived::Value;
use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::answer::Page;
use super::cursor::Binding;
use super::fields::Fields;
use super::list::{List, Walk};
use super::params::{Order, Paging, Params};
use super::problem::Problem;
use super::view::View;
use super::words::{Num, SumOf};

/// A day in UTC. The newest one grows until it is over.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Day {
    #[schema(format = "date")]
    pub date: String,
    pub block_count: Num,
    pub transaction_count: Num,
    /// Those that are known to have failed.
    pub failed_transaction_count: Num,
    pub gas_used: SumOf,
    /// In wei, as far as fees are known.
    pub fees: SumOf,
    /// Transactions whose fee isn't known.
    pub transactions_without_fee: Num,
    pub event_count: Num,
    pub ft_transfer_count: Num,
    pub nft_transfer_count: Num,
    pub new_contract_count: Num,
    pub first_height: Num,
    pub last_height: Num,
}

/// Which days.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct DaysQuery {
    /// The first day, YYYY-MM-DD.
    #[param(format = "date")]
    pub from: Option<String>,
    /// The last day, YYYY-MM-DD, included.
    #[param(format = "date")]
    pub to: Option<String>,
    /// The most rows of a page; 50 where nothing is said.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    /// `page.next` of the page before; the other parameters have to be the same.
    #[param(min_length = 1, max_length = 1024)]
    pub cursor: Option<String>,
    /// From which end; newest first where nothing is said.
    #[param(inline)]
    pub order: Option<Order>,
}

fn date(name: &str, text: &str) -> Result<String, Problem> {
    let wrong = || Problem::parameter(name, "expected a date as YYYY-MM-DD");
    if text.len() != 10 {
        return Err(wrong());
    }
    let date: NaiveDate = text.parse().map_err(|_| wrong())?;
    // Only one spelling, since it is compared as text.
    if date.to_string() == text { Ok(text.to_owned()) } else { Err(wrong()) }
}

/// Statistics by day, newest first. A day on which no block was made has no row.
#[utoipa::path(
    get,
    path = "/v1/stats/daily",
    tag = "stats",
    params(DaysQuery),
    responses((status = 200, description = "A page of days", body = Page<Day>))
)]
pub(crate) async fn list_days(
    State(api): State<Arc<Api>>,
    Params(query): Params<DaysQuery>,
) -> Result<Json<Page<Day>>, Problem> {
    let paging = Paging::new(api.limits(), query.limit, query.cursor, query.order.unwrap_or(Order::Desc))?;
    let from = query.from.as_deref().map(|text| date("from", text)).transpose()?;
    let to = query.to.as_deref().map(|text| date("to", text)).transpose()?;
    if let (Some(from), Some(to)) = (&from, &to)
        && from > to
    {
        return Err(Problem::parameter("from", format!("{from} is after to, which is {to}")));
    }
    let view = View::open(&api, &["daily_stats"], &[]).await?;
    let filters =
        [from.as_deref().unwrap_or_default(), to.as_deref().unwrap_or_default(), paging.order_word()];
    let binding = Binding::new("days", &filters);
    let mut walk = Walk::new("daily_stats", None, Vec::new());
    walk.lower = from.map_or(Bound::Unbounded, |from| Bound::Included(vec![Value::text(from)]));
    walk.upper = to.map_or(Bound::Unbounded, |to| Bound::Included(vec![Value::text(to)]));
    let found = List { binding, by_height: false, paging: &paging }.read(&api, &view, &[walk]).await?;
    let table = view.table("daily_stats")?;
    let data = found
        .rows
        .iter()
        .map(|(_, row)| {
            let fields = Fields::new(table, row);
            Ok(Day {
                date: fields.text("date")?,
                block_count: fields.count("block_count")?,
                transaction_count: fields.count("transaction_count")?,
                failed_transaction_count: fields.count("failed_transaction_count")?,
                gas_used: fields.sum("gas_used")?,
                fees: fields.sum("fees")?,
                transactions_without_fee: fields.count("transactions_without_fee")?,
                event_count: fields.count("event_count")?,
                ft_transfer_count: fields.count("ft_transfer_count")?,
                nft_transfer_count: fields.count("nft_transfer_count")?,
                new_contract_count: fields.count("new_contract_count")?,
                first_height: fields.num("first_height")?,
                last_height: fields.num("last_height")?,
            })
        })
        .collect::<Result<Vec<_>, Problem>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}
