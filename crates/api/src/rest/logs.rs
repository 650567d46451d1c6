//! EVM logs by address and topics.

use std::ops::Bound;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use cairn_core::{BlockFacts, Height};
use cairn_evm::{DecodedLog, DecodedTx};
use cairn_store::derived::{Row, Value};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::answer::Page;
use super::blocks;
use super::cursor::Binding;
use super::fields::Fields;
use super::list::{List, Walk};
use super::params::{self, Order, Paging, Params};
use super::problem::Problem;
use super::view::View;
use super::words::{Address, Data, Hash, Num, rfc3339};

/// A log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Log {
    pub block_height: Num,
    pub transaction_id: Hash,
    pub transaction_index: u32,
    /// Its place in the block.
    pub log_index: u32,
    /// Milliseconds since 1970.
    pub timestamp_ms: Num,
    /// As RFC 3339; null for a time that has no date.
    #[schema(format = "date-time")]
    pub timestamp: Option<String>,
    pub address: Address,
    /// Up to four.
    #[schema(max_items = 4)]
    pub topics: Vec<Hash>,
    /// Null where there is more of it than the table keeps: then `data_hash` is its SHA-256, and the transaction's events have it.
    pub data: Option<Data>,
    pub data_length_bytes: Num,
    /// SHA-256 of the data where it is not given.
    pub data_hash: Option<Hash>,
}

impl Log {
    /// Out of a block.
    pub(crate) fn decoded(facts: &BlockFacts, tx: &DecodedTx, log: &DecodedLog) -> Log {
        Log {
            block_height: Num(facts.height.get()),
            transaction_id: Hash::of(tx.id.as_bytes()),
            transaction_index: tx.index,
            log_index: log.log_index,
            timestamp_ms: Num(facts.timestamp_ms),
            timestamp: rfc3339(facts.timestamp_ms),
            address: Address::of(log.address.as_slice()),
            topics: log.topics.iter().map(|topic| Hash::of(topic.as_slice())).collect(),
            data: Some(Data(log.data.clone())),
            data_length_bytes: Num(log.data.len() as u64),
            data_hash: None,
        }
    }

    fn of(view: &View, row: &Row) -> Result<Log, Problem> {
        let fields = Fields::new(view.table("evm_logs")?, row);
        let timestamp_ms = fields.uint("block_timestamp_ms")?;
        let mut topics = Vec::with_capacity(4);
        for name in TOPICS {
            topics.extend(fields.opt_hash(name)?);
        }
        Ok(Log {
            block_height: fields.num("block_height")?,
            transaction_id: fields.hash("transaction_id")?,
            transaction_index: fields.index("transaction_index")?,
            log_index: fields.index("log_index")?,
            timestamp_ms: Num(timestamp_ms),
            timestamp: rfc3339(timestamp_ms),
            address: fields.address("address")?,
            topics,
            data: fields.opt_data("data")?,
            data_length_bytes: fields.num("data_length_bytes")?,
            data_hash: fields.opt_hash("payload_hash")?,
        })
    }
}

const TOPICS: [&str; 4] = ["topic0", "topic1", "topic2", "topic3"];

/// Which logs.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogsQuery {
    /// Who logged. This or a topic has to be given.
    #[param(pattern = "^(0[xX])?[0-9a-fA-F]{40}$")]
    pub address: Option<String>,
    /// 64 hex digits: mostly the event's signature.
    #[param(pattern = "^(0[xX])?[0-9a-fA-F]{64}$")]
    pub topic0: Option<String>,
    /// 64 hex digits.
    #[param(pattern = "^(0[xX])?[0-9a-fA-F]{64}$")]
    pub topic1: Option<String>,
    /// 64 hex digits.
    #[param(pattern = "^(0[xX])?[0-9a-fA-F]{64}$")]
    pub topic2: Option<String>,
    /// 64 hex digits.
    #[param(pattern = "^(0[xX])?[0-9a-fA-F]{64}$")]
    pub topic3: Option<String>,
    /// The first height. One below the archive's first block is an error.
    #[param(pattern = "^[0-9]{1,19}$")]
    pub from: Option<String>,
    /// The last height, included. One that is not there yet is an error.
    #[param(pattern = "^[0-9]{1,19}$")]
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

/// Logs by address and topics, newest first. Of the terms given, one is looked up in an index and the others are compared, so that a page may be
/// short, or empty, though there are more: follow `page.next`.
#[utoipa::path(
    get,
    path = "/v1/logs",
    tag = "logs",
    params(LogsQuery),
    responses((status = 200, description = "A page of logs", body = Page<Log>))
)]
pub(crate) async fn list_logs(
    State(api): State<Arc<Api>>,
    Params(query): Params<LogsQuery>,
) -> Result<Json<Page<Log>>, Problem> {
    let paging = Paging::new(api.limits(), query.limit, query.cursor, query.order.unwrap_or(Order::Desc))?;
    let mut terms: Vec<(&'static str, Value)> = Vec::new();
    for (name, text) in TOPICS.iter().zip([&query.topic0, &query.topic1, &query.topic2, &query.topic3]) {
        if let Some(text) = text {
            terms.push((name, Value::bytes(&params::hash(name, text)?)));
        }
    }
    if let Some(text) = &query.address {
        terms.push(("address", Value::Bytes(params::address("address", text)?)));
    }
    let from = query
        .from
        .as_deref()
        .map(|text| params::decimal("from", text, params::MAX_HEIGHT_DIGITS))
        .transpose()?
        .map(Height);
    let to = query
        .to
        .as_deref()
        .map(|text| params::decimal("to", text, params::MAX_HEIGHT_DIGITS))
        .transpose()?
        .map(Height);
    if let (Some(from), Some(to)) = (from, to)
        && from > to
    {
        return Err(Problem::parameter("from", format!("{from} is above to, which is {to}")));
    }
    let said: Vec<String> = terms.iter().map(|(name, value)| format!("{name}={value}")).collect();
    // The rarest term, as a rule: indexed arguments are rarer than contracts, and those rarer than signatures.
    let rarest = ["topic1", "topic2", "topic3", "address", "topic0"]
        .iter()
        .find_map(|name| terms.iter().position(|(term, _)| term == name));
    let Some(at) = rarest else {
        return Err(Problem::parameter("address", "give an address or a topic"));
    };
    let (term, value) = terms.swap_remove(at);

    let view = View::open(&api, &["evm_logs"], &[]).await?;
    if let Some(from) = from {
        blocks::at(&view, from).await?;
        view.reaches(from)?;
    }
    if let Some(to) = to {
        blocks::at(&view, to).await?;
        view.reaches(to)?;
    }
    let index = match term {
        "topic1" => "by_topic1",
        "topic2" => "by_topic2",
        "topic3" => "by_topic3",
        "address" => "by_address",
        _ => "by_topic0",
    };
    let mut walk = Walk::new("evm_logs", Some(index), vec![value]);
    walk.filters = terms;
    walk.lower = from.map_or(Bound::Unbounded, |from| Bound::Included(vec![Value::height(from)]));
    walk.upper = to.map_or(Bound::Unbounded, |to| Bound::Included(vec![Value::height(to)]));
    let bounds = format!("{from:?} {to:?}");
    let mut filters: Vec<&str> = said.iter().map(String::as_str).collect();
    filters.extend([bounds.as_str(), paging.order_word()]);
    let binding = Binding::new("logs", &filters);
    let found = List { binding, by_height: true, paging: &paging }.read(&api, &view, &[walk]).await?;
    let data = found.rows.iter().map(|(_, row)| Log::of(&view, row)).collect::<Result<Vec<_>, _>>()?;
    Ok(Json(Page { data, page: found.page(&paging), meta: view.meta() }))
}
