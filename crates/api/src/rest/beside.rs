//! What workers say of one transaction, beside what the raw store has: its fee, its tags and the contracts that it touched.

use cairn_core::TxId;
use cairn_store::TxPlace;
use cairn_store::derived::{Key, Scan, Value};
use serde::Serialize;
use utoipa::ToSchema;

use super::fields::Fields;
use super::problem::Problem;
use super::transactions::Transaction;
use super::view::View;
use super::words::Address;

/// The tables that say it.
pub(crate) const TABLES: [&str; 3] = ["tx_metrics", "tx_contracts", "tx_tags"];
/// The most contracts and tags that an answer names, each.
const MAX_NAMED: usize = 200;

/// A contract that a transaction touched.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TouchedContract {
    /// As paths take it: the address, on Flow `A.<address>.<name>`.
    pub identifier: String,
    pub address: Address,
    /// Its name within its account, where the chain has such; else empty.
    pub contract_name: String,
    /// What happened to it: `call`, `create`, `log`, `ft`, `nft`; on Flow also `import`, `update` and `remove`.
    pub tags: Vec<String>,
}

/// What keys of tables of transactions begin with.
pub(crate) fn place_values(place: TxPlace, id: TxId) -> Vec<Value> {
    vec![Value::height(place.height), Value::bytes(id.as_bytes()), Value::uint(place.index.into())]
}

impl Transaction {
    /// Fills in what workers that have done its block say. What they don't say stays null: it isn't known.
    pub(crate) async fn add_derived(&mut self, view: &View, place: TxPlace, id: TxId) -> Result<(), Problem> {
        let place = || place_values(place, id);
        if view.has("tx_metrics")? {
            let rows = view.tables()?.rows("tx_metrics", &[Key(place())]).await?;
            if let Some(row) = rows.first().and_then(Option::as_ref) {
                self.fee = Fields::new(view.table("tx_metrics")?, row).opt_amount("fee")?;
            }
        }
        let of = |table| Scan { prefix: place(), ..Scan::new(table, MAX_NAMED) };
        if view.has("tx_contracts")? {
            let mut contracts = Vec::new();
            for row in view.tables()?.scan(&of("tx_contracts")).await?.rows {
                let fields = Fields::new(view.table("tx_contracts")?, &row);
                contracts.push(TouchedContract {
                    identifier: view.identifier(&fields, "contract_address")?,
                    address: fields.address("contract_address")?,
                    contract_name: fields.text("contract_name")?,
                    tags: fields.text("tags")?.split(',').map(str::to_owned).collect(),
                });
            }
            self.contracts = Some(contracts);
        }
        if view.has("tx_tags")? {
            let mut tags = Vec::new();
            for row in view.tables()?.scan(&of("tx_tags")).await?.rows {
                tags.push(Fields::new(view.table("tx_tags")?, &row).text("tag")?);
            }
            self.tags = Some(tags);
        }
        Ok(())
    }
}
