//! What is true of the emulator's chain, as it says it itself, and the tables held against it.
//!
//! | subject | module |
//! | --- | --- |
//! | JSON-CDC | `payload` |
//! | blocks, collections, transactions and results by block | `blocks` |
//! | what transactions did, as a ledger | `book`; tokens and items in `moves`, the EVM in `evm` |
//! | code, supplies and names of contracts | `asked` |
//! | accounts and what they have, at heights | `state` |
//! | transactions by id | `by_id` |
//! | tables of blocks as they are | `raw` |
//! | which tables there are, and which say nothing that a node could be asked | `catalog` |
//!
//! The ledger has the form of the one that `cairn-flow-node` writes of a chain that it makes, so that every table of the catalog is compared as stage `flow`
//! compares it, by `flow_truth`: row by row, in both directions. Nothing of cairn's decoders and processors is in it: JSON is read by `serde_json`, bytes of
//! the EVM by alloy.

mod asked;
mod blocks;
mod book;
pub mod by_id;
pub mod catalog;
mod evm;
mod moves;
mod payload;
pub mod raw;
pub mod state;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cairn_flow_node::ledger::Vault;
use cairn_flow_node::{AccessClient, Ledger};

pub use blocks::Blocks;
pub use evm::compare_evm;

use crate::flow_truth::Truth;
use crate::flow_truth::node::NodeTruth;
use asked::Said;
use state::Answers;

/// What was asked of a chain so far. What blocks that are still there said is not asked again.
#[derive(Default)]
pub struct Asked {
    blocks: Blocks,
    said: Said,
    height: u64,
    ledger: Option<Ledger>,
    /// Of a few heights; the head's are the last.
    pub answers: Vec<Answers>,
}

impl Asked {
    /// Asks for all of a chain up to its head, and about the accounts at a few heights besides.
    pub async fn update(
        &mut self,
        client: &AccessClient,
        first: u64,
        earlier: &[u64],
        height: u64,
    ) -> Result<()> {
        self.blocks.update(client, first, height).await?;
        let codes = asked::codes(client, book::contract_changes(&self.blocks)?).await?;
        let mut ledger = book::ledger(&self.blocks, &codes)?;
        asked::supplies(client, &mut ledger).await?;
        self.said.update(client, &ledger, height).await?;
        let question = state::question(&ledger);
        let before = state::ask_first(client, &question, first).await?;
        self.answers.clear();
        for at in earlier.iter().chain([&height]) {
            self.answers.push(state::ask(client, &question, before.clone(), *at).await?);
        }
        let head = self.answers.last().context("the head was asked about")?;
        add_answers(&mut ledger, &before, &head.then)?;
        (self.height, self.ledger) = (height, Some(ledger));
        Ok(())
    }

    /// What is true of the chain. `is_forked`: the tables may have code of contracts that never were.
    pub fn truth(&self, first: u64, is_forked: bool) -> Result<Truth<'_>> {
        let ledger = self.ledger.as_ref().context("nothing was asked yet")?;
        Ok(Truth { ledger, root: first, height: self.height, new_from: first, is_forked, names: &self.said })
    }

    /// The blocks.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }
}

/// What accounts have at the head and had before, and whose the EVM accounts are: as the node answers it, not as events sum up.
fn add_answers(ledger: &mut Ledger, before: &Arc<NodeTruth>, head: &NodeTruth) -> Result<()> {
    for ((owner, token), balance) in &head.balances {
        let vault = Vault { uuid: 0, balance: *balance };
        ledger.vaults.set((token.clone(), *owner), head.height, vault);
    }
    for ((owner, token), balance) in &before.balances {
        ledger.before.insert((token.clone(), *owner), *balance);
    }
    for (owner, coa) in &head.coas {
        let coa = coa.parse().with_context(|| format!("{coa} is no account of the EVM"))?;
        let other = ledger.coas.last(&coa).copied();
        ensure!(other.is_none(), "{coa} is {owner}'s and {other:?}'s");
        ledger.coas.set(coa, head.height, *owner);
    }
    Ok(())
}
