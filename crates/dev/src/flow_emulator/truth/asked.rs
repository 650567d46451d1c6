//! What scripts and account calls answer of contracts: their code, how many there are of a token, and what they call themselves and their items.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use cairn_flow::{FlowAddress, Network};
use cairn_flow_node::deeds::{Deed, MoveKind};
use cairn_flow_node::ledger::ContractId;
use cairn_flow_node::{AccessClient, Ledger, cdc};
use futures::{StreamExt, TryStreamExt};

use super::book::Codes;
use crate::flow_truth::node::{named, of_contract, units, value};
use crate::flow_truth::{Names, scripts};

/// Questions that are on their way at once.
const AT_ONCE: usize = 8;

/// What contracts say of themselves: once for all heights.
#[derive(Default)]
pub struct Said {
    tokens: BTreeMap<ContractId, (String, String)>,
    collections: BTreeMap<ContractId, String>,
    pictures: BTreeMap<(ContractId, u64), String>,
}

impl Names for Said {
    fn token(&self, token: &ContractId) -> Option<(String, String)> {
        self.tokens.get(token).cloned()
    }

    fn collection(&self, collection: &ContractId) -> Option<String> {
        self.collections.get(collection).cloned()
    }

    fn picture(&self, collection: &ContractId, id: u64) -> Option<String> {
        self.pictures.get(&(collection.clone(), id)).cloned()
    }

    /// No tokens move in this EVM.
    fn evm(&self, _: &str) -> Option<(String, String)> {
        None
    }
}

impl Said {
    /// Asks about what it doesn't know yet of a chain.
    pub async fn update(&mut self, client: &AccessClient, ledger: &Ledger, height: u64) -> Result<()> {
        let (mut tokens, mut collections, mut items) = (BTreeSet::new(), BTreeSet::new(), BTreeMap::new());
        for (height, txs) in &ledger.transactions {
            for done in txs.iter().flat_map(|tx| &tx.done) {
                match &done.deed {
                    Deed::Tokens(moved) => {
                        tokens.insert(&moved.token);
                    }
                    Deed::Item(moved) => {
                        collections.insert(&moved.collection);
                        if let Some(owner) = moved.to {
                            // Whoever got it first had it then.
                            items.entry((&moved.collection, moved.id)).or_insert((owner, *height));
                        }
                    }
                    _ => {}
                }
            }
        }
        let (token, collection) = (scripts::token(Network::Emulator), scripts::collection(Network::Emulator));
        for of in tokens.into_iter().filter(|of| !self.tokens.contains_key(*of)).collect::<Vec<_>>() {
            let said = value(&client.script(&token, &of_contract(of), height).await?)?;
            let names = named(&said, "name").zip(named(&said, "symbol"));
            self.tokens.insert(of.clone(), names.with_context(|| format!("{of} has no name"))?);
        }
        for of in collections.into_iter().filter(|of| !self.collections.contains_key(*of)).collect::<Vec<_>>()
        {
            let said = value(&client.script(&collection, &of_contract(of), height).await?)?;
            let name = named(&said, "name").with_context(|| format!("{of} has no name"))?;
            self.collections.insert(of.clone(), name);
        }
        let picture = &scripts::picture(Network::Emulator);
        let unknown = items
            .into_iter()
            .filter(|((of, id), _)| !self.pictures.contains_key(&((*of).clone(), *id)))
            .collect::<Vec<_>>();
        let one = |((of, id), (owner, height)): ((&ContractId, u64), (FlowAddress, u64))| {
            let of = of.clone();
            async move {
                let [address, name] = of_contract(&of);
                let arguments = [address, name, cdc::number("UInt64", id), cdc::address(owner)];
                let said = value(&client.script(picture, &arguments, height).await?)?;
                let uri = named(&said, "uri");
                let uri = uri.with_context(|| format!("{owner} has no item {id} of {of} at {height}"))?;
                Ok::<_, anyhow::Error>(((of, id), uri))
            }
        };
        let mut asked = futures::stream::iter(unknown.into_iter().map(one)).buffer_unordered(AT_ONCE);
        while let Some((item, uri)) = asked.try_next().await? {
            self.pictures.insert(item, uri);
        }
        Ok(())
    }
}

/// The contracts of accounts, where one of them changed.
pub async fn codes(client: &AccessClient, changes: BTreeSet<(u64, FlowAddress)>) -> Result<Codes> {
    let one = |(height, address): (u64, FlowAddress)| async move {
        let account = client.account(address, height).await?;
        let account = account.with_context(|| format!("there is no account {address} at {height}"))?;
        Ok::<_, anyhow::Error>(((height, address), account.contracts))
    };
    futures::stream::iter(changes.into_iter().map(one)).buffer_unordered(AT_ONCE).try_collect().await
}

/// Writes into a ledger how many there are of each token, where that may have changed: where it moved first, and where some came from no account or
/// reached none.
pub async fn supplies(client: &AccessClient, ledger: &mut Ledger) -> Result<()> {
    let mut wanted: BTreeSet<(ContractId, u64)> = BTreeSet::new();
    let mut seen: BTreeSet<ContractId> = BTreeSet::new();
    for (height, txs) in &ledger.transactions {
        for done in txs.iter().flat_map(|tx| &tx.done) {
            let Deed::Tokens(moved) = &done.deed else { continue };
            let is_told = moved.kind != MoveKind::Fee;
            let is_first = is_told && seen.insert(moved.token.clone());
            if is_first || moved.from.is_none() || moved.to.is_none() {
                wanted.insert((moved.token.clone(), *height));
            }
        }
    }
    let supply = &scripts::supply(Network::Emulator);
    let one = |(of, height): (ContractId, u64)| async move {
        let said = value(&client.script(supply, &of_contract(&of), height).await?)?;
        ensure!(!said.is_null(), "{of} doesn't say how many there are");
        Ok::<_, anyhow::Error>((of, height, units(&said["value"])?))
    };
    // In order: of each token by height.
    let mut asked = futures::stream::iter(wanted.into_iter().map(one)).buffered(AT_ONCE);
    while let Some((of, height, units)) = asked.try_next().await? {
        ledger.supplies.set(of, height, units);
    }
    Ok(())
}
