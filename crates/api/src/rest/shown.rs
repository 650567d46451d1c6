//! The transactions that rows of derived lists name: on an EVM chain as `evm_worker` has them, on Flow as the raw store has them.

use std::collections::HashMap;

use cairn_core::Height;
use cairn_store::derived::{Key, Row, Value};

use super::chain::RestChain;
use super::fields::Fields;
use super::flow;
use super::problem::Problem;
use super::transactions::TransactionRow;
use super::view::View;

impl RestChain {
    /// What a view has to welcome for [`transactions`].
    pub(crate) fn transaction_tables(self) -> &'static [&'static str] {
        match self {
            RestChain::Evm => &["evm_transactions"],
            // That table has the transactions of the EVM side there: its own are in the raw store.
            RestChain::Flow(_) => &[],
        }
    }
}

/// The transaction of each of these rows of a table, in their order; `None` where `evm_worker` has not done its block, or doesn't run.
pub(crate) async fn transactions(
    view: &View,
    table: &'static str,
    rows: &[(usize, Row)],
) -> Result<Vec<Option<TransactionRow>>, Problem> {
    let table = view.table(table)?;
    let fields = || rows.iter().map(|(_, row)| Fields::new(table, row));
    match view.kind() {
        RestChain::Flow(_) => {
            let places = fields()
                .map(|fields| Ok((fields.height("block_height")?, fields.index("transaction_index")?)))
                .collect::<Result<Vec<(Height, u32)>, Problem>>()?;
            let mut found: HashMap<_, _> = flow::list::at_places(view, &places).await?;
            Ok(places.iter().map(|place| found.remove(place)).collect())
        }
        RestChain::Evm if view.has("evm_transactions")? => {
            let keys = fields()
                .map(|fields| {
                    let id = Value::Bytes(fields.bytes("transaction_id")?);
                    Ok(Key(vec![Value::height(fields.height("block_height")?), id]))
                })
                .collect::<Result<Vec<_>, Problem>>()?;
            let found = view.tables()?.rows("evm_transactions", &keys).await?;
            found
                .iter()
                .map(|row| row.as_ref().map(|row| TransactionRow::of(view, row)).transpose())
                .collect()
        }
        RestChain::Evm => Ok(rows.iter().map(|_| None).collect()),
    }
}
