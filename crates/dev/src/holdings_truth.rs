//! What a node says of who holds what, and whether `/v1` says the same: all of it, in both directions.

use std::collections::BTreeMap;
use std::fmt::Debug;

use alloy_primitives::{Address, U256};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::cairn::Cairn;
use crate::rpc::{Answer, Call, Rpc, call, hex, text};
use crate::tokens::{Argument, BASKETS, PLOTS, Tokens, encode, word};

/// Calls in one batch request.
const BATCH: usize = 200;
/// Rows of a page: few, so that lists have several.
const PAGE_ROWS: usize = 20;
/// Pages of one list, at most.
const MAX_PAGES: usize = 1_000;

/// Balances above 0.
type Balances<K> = BTreeMap<K, U256>;

/// What the node answers at one block.
pub struct Truth {
    /// The block's number and hash.
    head: (u64, String),
    /// `balanceOf` of every party, and `totalSupply`, of each ERC-20 contract.
    grains: BTreeMap<Address, (Balances<Address>, U256)>,
    /// `ownerOf` of the items that have one.
    plots: BTreeMap<U256, Address>,
    /// `balanceOf` of every party of the ERC-721 contract.
    plot_balances: Balances<Address>,
    /// `balanceOf` of every party and item of the ERC-1155 contract.
    baskets: Balances<(U256, Address)>,
    /// `totalSupply` of each of its items.
    basket_supplies: Balances<U256>,
    /// Calls that were made.
    pub calls: usize,
}

impl Truth {
    /// Asks at the node's head.
    pub async fn ask(node: &Rpc, tokens: &Tokens) -> Result<Truth> {
        let head = node.head().await?.context("no head")?;
        let at = hex(head.0);
        let view = |to: Address, signature: &str, arguments: &[Argument]| {
            call("eth_call", json!([{"to": to, "data": encode(signature, arguments)}, at]))
        };
        let of = |party: &Address| Argument::Word(word(*party));
        let mut truth = Truth {
            head: head.clone(),
            grains: BTreeMap::new(),
            plots: BTreeMap::new(),
            plot_balances: BTreeMap::new(),
            baskets: BTreeMap::new(),
            basket_supplies: BTreeMap::new(),
            calls: 0,
        };
        for grain in &tokens.grains {
            let calls = tokens.parties.iter().map(|party| view(*grain, "balanceOf(address)", &[of(party)]));
            let balances = truth.words(node, calls.collect()).await?;
            let supply = truth.words(node, vec![view(*grain, "totalSupply()", &[])]).await?;
            let supply = supply.first().copied().flatten().context("totalSupply")?;
            truth.grains.insert(*grain, (above_zero(tokens.parties.iter().copied(), balances)?, supply));
        }
        let calls =
            (0..PLOTS).map(|item| view(tokens.plot, "ownerOf(uint256)", &[Argument::Word(U256::from(item))]));
        let owners = truth.words(node, calls.collect()).await?;
        for (item, owner) in (0..PLOTS).zip(owners) {
            // An item that nobody has makes the call fail.
            if let Some(owner) = owner {
                truth.plots.insert(U256::from(item), Address::from_word(owner.into()));
            }
        }
        let calls = tokens.parties.iter().map(|party| view(tokens.plot, "balanceOf(address)", &[of(party)]));
        let balances = truth.words(node, calls.collect()).await?;
        truth.plot_balances = above_zero(tokens.parties.iter().copied(), balances)?;
        for item in (0..BASKETS).map(U256::from) {
            let calls = tokens.parties.iter().map(|party| {
                view(tokens.basket, "balanceOf(address,uint256)", &[of(party), Argument::Word(item)])
            });
            let balances = truth.words(node, calls.collect()).await?;
            let places = tokens.parties.iter().map(|party| (item, *party));
            truth.baskets.extend(above_zero(places, balances)?);
            let supply = view(tokens.basket, "totalSupply(uint256)", &[Argument::Word(item)]);
            let supply = truth.words(node, vec![supply]).await?;
            truth.basket_supplies.extend(above_zero([item].into_iter(), supply)?);
        }
        ensure!(node.head().await? == Some(head), "the node's head moved while it was asked");
        Ok(truth)
    }

    /// The one word that each call answers with; `None` where it reverts.
    async fn words(&mut self, node: &Rpc, calls: Vec<Call>) -> Result<Vec<Option<U256>>> {
        self.calls += calls.len();
        let mut words = Vec::with_capacity(calls.len());
        for batch in calls.chunks(BATCH) {
            for answer in node.ask_all(batch).await? {
                words.push(match answer {
                    Answer::Result(word) => {
                        Some(text(&word)?.parse().with_context(|| format!("not a word: {word}"))?)
                    }
                    Answer::Error { code: 3, .. } => None,
                    Answer::Error { code, message, .. } => bail!("eth_call: error {code}: {message}"),
                });
            }
        }
        Ok(words)
    }

    /// `ft_holdings` against `balanceOf`, by token and by party. Says how many balances there are.
    pub async fn check_fungible(&self, cairn: &Cairn, tokens: &Tokens) -> Result<usize> {
        let mut by_party: BTreeMap<(Address, Address), U256> = BTreeMap::new();
        for (grain, (balances, supply)) in &self.grains {
            let rows = self.list(cairn, &format!("/v1/tokens/{grain}/holders")).await?;
            let found = table(&rows, |row| Ok((address(&row["address"])?, number(&row["balance"])?)))?;
            same(&format!("holders of {grain}"), balances, &found)?;
            let order: Vec<U256> = rows.iter().map(|row| number(&row["balance"])).collect::<Result<_>>()?;
            ensure!(order.is_sorted_by(|one, next| one >= next), "holders of {grain} are not by balance");
            let token = self.one(cairn, &format!("/v1/tokens/{grain}")).await?;
            ensure!(
                number(&token["net_minted"])? == *supply
                    && number(&token["holder_count"])? == U256::from(balances.len()),
                "the node has a supply of {supply} and {} holders, /v1 says {token}",
                balances.len()
            );
            by_party.extend(balances.iter().map(|(party, balance)| ((*party, *grain), *balance)));
        }
        let mut found = BTreeMap::new();
        for party in tokens.parties.iter().chain([&Address::ZERO]) {
            let rows = self.list(cairn, &format!("/v1/accounts/{party}/holdings")).await?;
            found.extend(table(&rows, |row| {
                Ok(((*party, address(&row["token_address"])?), number(&row["balance"])?))
            })?);
        }
        same("holdings by party", &by_party, &found)?;
        Ok(by_party.len())
    }

    /// `nft_ownership` against `ownerOf`, and the counts against `balanceOf`. Says how many items have an owner.
    pub async fn check_owners(&self, cairn: &Cairn, tokens: &Tokens) -> Result<usize> {
        let plot = tokens.plot;
        let items = self.list(cairn, &format!("/v1/nft-collections/{plot}/items")).await?;
        let listed = table(&items, |row| Ok((number(&row["id"])?, row["owner"].clone())))?;
        let mut found = BTreeMap::new();
        for row in &items {
            let owner = &row["owner"];
            ensure!(
                row["is_burned"] == json!(owner.is_null())
                    && row["net_minted"] == if owner.is_null() { "0" } else { "1" },
                "an item's owner, burning and number disagree: {row}"
            );
            if !owner.is_null() {
                found.insert(number(&row["id"])?, address(owner)?);
            }
        }
        ensure!(listed.len() == items.len(), "an item is listed twice");
        same("owners of items", &self.plots, &found)?;
        let rows = self.list(cairn, &format!("/v1/nft-collections/{plot}/owners")).await?;
        let found = table(&rows, |row| Ok((address(&row["address"])?, number(&row["balance"])?)))?;
        same("items of owners", &self.plot_balances, &found)?;
        self.check_counts(cairn, plot, self.plots.len(), self.plot_balances.len()).await?;
        Ok(self.plots.len())
    }

    /// Balances of the items that many may hold, against `balanceOf`; and what each party has of all items of both collections.
    pub async fn check_many(&self, cairn: &Cairn, tokens: &Tokens) -> Result<usize> {
        let (plot, basket) = (tokens.plot, tokens.basket);
        let mut expected: BTreeMap<(Address, Address, U256), U256> = BTreeMap::new();
        expected.extend(self.plots.iter().map(|(item, owner)| ((*owner, plot, *item), U256::ONE)));
        expected
            .extend(self.baskets.iter().map(|((item, owner), balance)| ((*owner, basket, *item), *balance)));
        let mut found = BTreeMap::new();
        for party in tokens.parties.iter().chain([&Address::ZERO]) {
            let rows = self.list(cairn, &format!("/v1/accounts/{party}/nfts")).await?;
            found.extend(table(&rows, |row| {
                let place = (*party, address(&row["collection_address"])?, number(&row["item_id"])?);
                Ok((place, number(&row["balance"])?))
            })?);
        }
        same("items of parties", &expected, &found)?;

        let items = self.list(cairn, &format!("/v1/nft-collections/{basket}/items")).await?;
        let mut found = BTreeMap::new();
        for row in &items {
            let supply = number(&row["net_minted"])?;
            ensure!(row["owner"].is_null(), "an item that many may hold has one owner: {row}");
            ensure!(row["is_burned"] == supply.is_zero(), "burning and number disagree: {row}");
            // Nothing of it was sent, and that is no item.
            ensure!(number(&row["id"])? < U256::from(BASKETS), "an item that was never minted: {row}");
            if !supply.is_zero() {
                found.insert(number(&row["id"])?, supply);
            }
        }
        same("supplies of items", &self.basket_supplies, &found)?;

        let mut owners: Balances<Address> = BTreeMap::new();
        for ((_, owner), balance) in &self.baskets {
            *owners.entry(*owner).or_default() += *balance;
        }
        let rows = self.list(cairn, &format!("/v1/nft-collections/{basket}/owners")).await?;
        let found = table(&rows, |row| Ok((address(&row["address"])?, number(&row["balance"])?)))?;
        same("items of owners", &owners, &found)?;
        self.check_counts(cairn, basket, self.basket_supplies.len(), owners.len()).await?;
        Ok(self.baskets.len())
    }

    async fn check_counts(
        &self,
        cairn: &Cairn,
        collection: Address,
        items: usize,
        owners: usize,
    ) -> Result<()> {
        let found = self.one(cairn, &format!("/v1/nft-collections/{collection}")).await?;
        ensure!(
            number(&found["item_count"])? == U256::from(items)
                && number(&found["owner_count"])? == U256::from(owners),
            "{items} items and {owners} owners, /v1 says {found}"
        );
        Ok(())
    }

    /// `/v1` at this block and no other.
    async fn get(&self, cairn: &Cairn, path: &str) -> Result<Value> {
        let (status, body) = cairn.page(path).await.with_context(|| path.to_owned())?;
        ensure!(status == 200, "{path}: {status}: {body}");
        let answer: Value = serde_json::from_str(&body).with_context(|| format!("{path}: {body}"))?;
        let watermark = &answer["meta"]["data_watermark"];
        ensure!(
            watermark["id"] == self.head.1 && number(&watermark["height"])? == U256::from(self.head.0),
            "{path}: an answer of {watermark}, not of {:?}",
            self.head
        );
        Ok(answer)
    }

    async fn one(&self, cairn: &Cairn, path: &str) -> Result<Value> {
        Ok(self.get(cairn, path).await?["data"].take())
    }

    /// All rows of a list, page by page.
    async fn list(&self, cairn: &Cairn, path: &str) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        let mut cursor = String::new();
        for _ in 0..MAX_PAGES {
            let mut answer = self.get(cairn, &format!("{path}?limit={PAGE_ROWS}{cursor}")).await?;
            rows.append(answer["data"].as_array_mut().with_context(|| format!("{path}: no list"))?);
            match answer["page"]["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(rows),
            }
        }
        bail!("{path}: more than {MAX_PAGES} pages")
    }
}

fn above_zero<K: Ord>(keys: impl Iterator<Item = K>, words: Vec<Option<U256>>) -> Result<Balances<K>> {
    let mut balances = BTreeMap::new();
    for (key, word) in keys.zip(words) {
        let word = word.context("a balance or a supply reverted")?;
        if !word.is_zero() {
            balances.insert(key, word);
        }
    }
    Ok(balances)
}

/// Rows by key; a key that is there twice is an error.
fn table<K: Ord + Debug, V>(
    rows: &[Value],
    read: impl Fn(&Value) -> Result<(K, V)>,
) -> Result<BTreeMap<K, V>> {
    let mut table = BTreeMap::new();
    for row in rows {
        let (key, value) = read(row).with_context(|| row.to_string())?;
        if table.contains_key(&key) {
            bail!("{key:?} is listed twice");
        }
        table.insert(key, value);
    }
    Ok(table)
}

/// The first difference between what the node says and what is listed is an error.
fn same<K: Ord + Debug, V: PartialEq + Debug>(
    what: &str,
    node: &BTreeMap<K, V>,
    listed: &BTreeMap<K, V>,
) -> Result<()> {
    for (key, theirs) in node {
        match listed.get(key) {
            Some(ours) if ours == theirs => {}
            ours => bail!("{what}: {key:?}: the node says {theirs:?}, /v1 {ours:?}"),
        }
    }
    match listed.iter().find(|(key, _)| !node.contains_key(key)) {
        Some((key, ours)) => bail!("{what}: {key:?}: the node has nothing, /v1 {ours:?}"),
        None => Ok(()),
    }
}

fn address(value: &Value) -> Result<Address> {
    text(value)?.parse().with_context(|| format!("not an address: {value}"))
}

/// A number in decimal digits; a negative one, which no balance is, is an error.
fn number(value: &Value) -> Result<U256> {
    let digits = text(value)?;
    ensure!(
        !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()),
        "not a balance: {value}"
    );
    digits.parse().with_context(|| format!("not a balance: {value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_difference_is_found() {
        let node = BTreeMap::from([(1, "a"), (2, "b")]);
        assert!(same("rows", &node, &node).is_ok());
        for listed in [
            BTreeMap::from([(1, "a")]),
            BTreeMap::from([(1, "a"), (2, "c")]),
            BTreeMap::from([(1, "a"), (2, "b"), (3, "c")]),
        ] {
            assert!(same("rows", &node, &listed).is_err(), "{listed:?}");
        }
        let twice = [json!({"id": "1"}), json!({"id": "1"})];
        assert!(table(&twice, |row| Ok((number(&row["id"])?, ()))).is_err());
        assert!(number(&json!("-1")).is_err());
    }
}
