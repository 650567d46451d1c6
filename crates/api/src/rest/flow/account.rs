//! What a Flow account is beside what is counted of every address: keys, contracts, and the EVM accounts that it owns.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cairn_store::derived::{Key, Row, Scan, Sum, Value};
use serde::Serialize;
use utoipa::ToSchema;

use crate::rest::chain::RestChain;
use crate::rest::fields::Fields;
use crate::rest::problem::Problem;
use crate::rest::view::View;
use crate::rest::words::{Address, Amount, Data, Hash, Num, SumOf};

/// The most keys, contracts and EVM accounts that an answer names, each.
const MAX_NAMED: usize = 200;

/// The tables that say it.
pub(crate) const TABLES: [&str; 8] = [
    "flow_accounts",
    "account_keys",
    "unplaced_key_revocations",
    "account_contracts",
    "coa_accounts",
    "account_bases",
    "account_base_keys",
    "account_base_contracts",
];
/// The table that balances come from, beside `account_bases`.
pub(crate) const BALANCES: &str = "ft_holdings";

/// What a Flow account is beside. Of an address of the EVM side, only whose it is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowAccount {
    /// Where it was created; null where the archive didn't see it.
    pub created_height: Option<Num>,
    /// What a node says that it was before the archive's first block that names it: what is below counts from there. Null where it was created since, or no node
    /// was asked yet.
    pub base: Option<AccountBase>,
    /// Its FLOW, in units of 10^-8: that of `base`, and what moved since. Null where neither its creation nor its base is known; `holdings` then has what moved
    /// since the archive's first block.
    pub balance: Option<SumOf>,
    /// Keys that it was ever given. Null where neither its creation nor its base is known: nobody knows then how many there were before.
    pub key_count: Option<Num>,
    /// Contracts that are there. Null likewise.
    pub contract_count: Option<Num>,
    /// The first 200 of its keys, by index: those of `base`, and those that the archive saw added or revoked.
    #[schema(max_items = 200)]
    pub keys: Vec<AccountKey>,
    /// The first 200 of its contracts, by name: those of `base`, and those that the archive saw change; removed ones too.
    #[schema(max_items = 200)]
    pub contracts: Vec<AccountContract>,
    /// EVM accounts that resources in it own; of an address of the EVM side its owner.
    #[schema(max_items = 200)]
    pub evm_accounts: Vec<EvmAccount>,
}

/// What an account was before the archive saw anything of it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountBase {
    /// The block behind which a node was asked what it was.
    pub block_height: Num,
    /// `ok`; `absent`: there was no such account; `too-large`: only its first 1000 keys and contracts are known; `failed`: the node could not say, as a rule since
    /// it doesn't have the state of that block any more. What is counted then counts from the archive's first block.
    pub status: String,
    /// FLOW, in units of 10^-8; null where it isn't known. So are the two below.
    pub balance: Option<Amount>,
    pub key_count: Option<Num>,
    pub contract_count: Option<Num>,
}

/// A key of an account.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountKey {
    pub index: Num,
    /// Null where the archive didn't see it added.
    pub public_key: Option<Data>,
    /// 1 is ECDSA_P256, 2 ECDSA_secp256k1, 3 BLS.
    pub sign_algo: Option<Num>,
    /// 1 is SHA2_256, 2 SHA2_384, 3 SHA3_256, 4 SHA3_384, 5 KMAC128_BLS, 6 KECCAK_256.
    pub hash_algo: Option<Num>,
    /// Of 1000.
    pub weight: Option<Num>,
    /// Null where one of several keys with its bytes was revoked by them, and it isn't known which.
    pub is_revoked: Option<bool>,
    /// The first block that tells of it; of a key of `base` that one's.
    pub first_height: Num,
    pub last_height: Num,
}

/// A contract of an account.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccountContract {
    /// As paths take it.
    pub identifier: String,
    pub name: String,
    /// SHA3-256 of the newest code.
    pub code_hash: Hash,
    /// Versions since the archive's first block.
    pub version_count: Num,
    pub is_removed: bool,
    pub first_height: Num,
    pub last_height: Num,
}

/// An EVM account that a resource owns.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EvmAccount {
    /// Its address on the EVM side.
    pub address: Address,
    /// The Flow account that has the resource; null where it isn't known.
    pub owner: Option<Address>,
    /// How the owner was found: `capability`, `authorizer` or `unknown`.
    pub owner_rule: String,
    pub block_height: Num,
    pub transaction_id: Hash,
}

impl FlowAccount {
    /// Of an address; `None` where none of the workers behind it is enabled.
    pub(crate) async fn of(view: &View, address: &Bytes) -> Result<Option<FlowAccount>, Problem> {
        let (has_state, has_coa) = (view.has("flow_accounts")?, view.has("coa_accounts")?);
        if !has_state && !has_coa {
            return Ok(None);
        }
        let mut account = FlowAccount {
            created_height: None,
            base: None,
            balance: None,
            key_count: None,
            contract_count: None,
            keys: Vec::new(),
            contracts: Vec::new(),
            evm_accounts: Vec::new(),
        };
        if has_state && address.len() == 8 {
            account.state(view, address).await?;
        }
        if has_coa {
            account.coas(view, address).await?;
        }
        Ok(Some(account))
    }

    async fn state(&mut self, view: &View, address: &Bytes) -> Result<(), Problem> {
        let mut counted = (Num(0), 0);
        let rows = view.tables()?.rows("flow_accounts", &[Key(vec![Value::Bytes(address.clone())])]).await?;
        if let Some(row) = rows.first().and_then(Option::as_ref) {
            let fields = Fields::new(view.table("flow_accounts")?, row);
            self.created_height = fields.opt_num("created_height")?;
            counted = (fields.count("key_count")?, fields.signed("contract_count")?);
        }
        self.base = AccountBase::of(view, address).await?;
        // One that was created since had nothing.
        let known = match &self.base {
            _ if self.created_height.is_some() => Some((0, 0)),
            Some(base) if base.status == "absent" => Some((0, 0)),
            Some(AccountBase { key_count: Some(keys), contract_count: Some(contracts), .. }) => {
                Some((keys.0, contracts.0))
            }
            _ => None,
        };
        if self.created_height.is_some() {
            self.base = None;
        }
        if let Some((keys, contracts)) = known {
            self.key_count = Some(Num(keys + counted.0.0));
            let contracts = i128::from(contracts) + i128::from(counted.1);
            self.contract_count = Some(Num(contracts.max(0) as u64));
            self.balance = balance(view, address, self.base.as_ref()).await?;
        }
        let of = |table| Scan { prefix: vec![Value::Bytes(address.clone())], ..Scan::new(table, MAX_NAMED) };
        let keys = view.tables()?.scan(&of("account_keys")).await?.rows;
        let unplaced = unplaced(view, address, &keys).await?;
        for row in keys {
            let fields = Fields::new(view.table("account_keys")?, &row);
            let mut key = AccountKey::of(&fields, ("first_height", "last_height"))?;
            let is_open = fields.opt_bytes("public_key")?.is_some_and(|key| unplaced.contains(&key));
            key.is_revoked = key.is_revoked.filter(|is_revoked| *is_revoked || !is_open);
            self.keys.push(key);
        }
        if self.base.is_some() {
            let before = view.tables()?.scan(&of("account_base_keys")).await?.rows;
            self.keys = with_base_keys(view, std::mem::take(&mut self.keys), &before)?;
        }
        for row in view.tables()?.scan(&of("account_contracts")).await?.rows {
            let fields = Fields::new(view.table("account_contracts")?, &row);
            let name = fields.text("contract_name")?;
            self.contracts.push(AccountContract {
                identifier: view.kind().identifier(address, &name),
                name,
                code_hash: fields.hash("code_hash")?,
                version_count: fields.count("version_count")?,
                is_removed: fields.boolean("is_removed")?,
                first_height: fields.num("first_height")?,
                last_height: fields.num("last_height")?,
            });
        }
        if self.base.is_some() {
            for row in view.tables()?.scan(&of("account_base_contracts")).await?.rows {
                let fields = Fields::new(view.table("account_base_contracts")?, &row);
                let name = fields.text("contract_name")?;
                // What changed since has a row of its own.
                if self.contracts.iter().any(|contract| contract.name == name) {
                    continue;
                }
                let asked_at_height = fields.num("asked_at_height")?;
                self.contracts.push(AccountContract {
                    identifier: view.kind().identifier(address, &name),
                    name,
                    code_hash: fields.hash("code_hash")?,
                    version_count: Num(0),
                    is_removed: false,
                    first_height: asked_at_height,
                    last_height: asked_at_height,
                });
            }
            self.contracts.sort_by(|a, b| a.name.cmp(&b.name));
            self.contracts.truncate(MAX_NAMED);
        }
        Ok(())
    }

    async fn coas(&mut self, view: &View, address: &Bytes) -> Result<(), Problem> {
        let index = if address.len() == 8 { "by_owner" } else { "by_coa" };
        let scan = Scan {
            index: Some(index),
            prefix: vec![Value::Bytes(address.clone())],
            descending: true,
            ..Scan::new("coa_accounts", MAX_NAMED)
        };
        let watermark = view.watermark();
        for row in view.tables()?.scan(&scan).await?.rows {
            let fields = Fields::new(view.table("coa_accounts")?, &row);
            if watermark
                .is_some_and(|watermark| fields.height("block_height").is_ok_and(|height| height > watermark))
            {
                continue;
            }
            self.evm_accounts.push(EvmAccount {
                address: fields.address("coa_address")?,
                owner: fields.opt_address("owner_address")?,
                owner_rule: fields.text("owner_rule")?,
                block_height: fields.num("block_height")?,
                transaction_id: fields.hash("transaction_id")?,
            });
        }
        Ok(())
    }
}

impl AccountKey {
    /// From a row; `heights` are the columns of the first and the last height.
    fn of(fields: &Fields<'_>, heights: (&str, &str)) -> Result<AccountKey, Problem> {
        let number = |name| -> Result<Option<Num>, Problem> {
            Ok(fields.opt_amount(name)?.and_then(|amount| u64::try_from(amount.0).ok()).map(Num))
        };
        Ok(AccountKey {
            index: number("key_index")?.unwrap_or(Num(0)),
            public_key: fields.opt_data("public_key")?,
            sign_algo: number("sign_algo")?,
            hash_algo: number("hash_algo")?,
            weight: number("weight")?,
            is_revoked: Some(fields.boolean("is_revoked")?),
            first_height: fields.num(heights.0)?,
            last_height: fields.num(heights.1)?,
        })
    }
}

impl AccountBase {
    async fn of(view: &View, address: &Bytes) -> Result<Option<AccountBase>, Problem> {
        if !view.has("account_bases")? {
            return Ok(None);
        }
        let rows = view.tables()?.rows("account_bases", &[Key(vec![Value::Bytes(address.clone())])]).await?;
        let Some(row) = rows.first().and_then(Option::as_ref) else { return Ok(None) };
        let fields = Fields::new(view.table("account_bases")?, row);
        Ok(Some(AccountBase {
            block_height: fields.num("asked_at_height")?,
            status: fields.text("status")?,
            balance: fields.opt_amount("balance")?,
            key_count: fields.opt_num("key_count")?,
            contract_count: fields.opt_num("contract_count")?,
        }))
    }
}

/// The FLOW of an account whose base is known, or that had nothing before.
async fn balance(view: &View, address: &Bytes, base: Option<&AccountBase>) -> Result<Option<SumOf>, Problem> {
    let RestChain::Flow(network) = view.kind() else { return Ok(None) };
    if !view.has(BALANCES)? {
        return Ok(None);
    }
    let token = Value::bytes(&network.accounts().flow_token.0);
    let key = Key(vec![Value::Bytes(address.clone()), token, Value::text("FlowToken")]);
    let rows = view.tables()?.rows(BALANCES, &[key]).await?;
    let moved = match rows.first().and_then(Option::as_ref) {
        Some(row) => Fields::new(view.table(BALANCES)?, row).sum("balance")?.0,
        None => Sum::ZERO,
    };
    let before = base.and_then(|base| base.balance).map_or(Sum::ZERO, |amount| Sum::from(amount.0));
    Ok(Some(SumOf(before + moved)))
}

/// The keys that an account had before, with what happened to them since, and the keys that it was given since.
fn with_base_keys(view: &View, since: Vec<AccountKey>, before: &[Row]) -> Result<Vec<AccountKey>, Problem> {
    let mut keys: BTreeMap<u64, AccountKey> = BTreeMap::new();
    for row in before {
        let fields = Fields::new(view.table("account_base_keys")?, row);
        let key = AccountKey::of(&fields, ("asked_at_height", "asked_at_height"))?;
        keys.insert(key.index.0, key);
    }
    for key in since {
        match keys.get_mut(&key.index.0) {
            // The event of a revocation doesn't say the key.
            Some(before) if key.public_key.is_none() => {
                (before.is_revoked, before.last_height) = (key.is_revoked, key.last_height);
            }
            _ => drop(keys.insert(key.index.0, key)),
        }
    }
    Ok(keys.into_values().take(MAX_NAMED).collect())
}

/// Those public keys of these rows of which more keys are revoked than it is known which.
async fn unplaced(view: &View, address: &Bytes, keys: &[Row]) -> Result<BTreeSet<Bytes>, Problem> {
    let mut wanted = BTreeSet::new();
    for row in keys {
        wanted.extend(Fields::new(view.table("account_keys")?, row).opt_bytes("public_key")?);
    }
    let place = |key: &Bytes| Key(vec![Value::Bytes(address.clone()), Value::Bytes(key.clone())]);
    let places: Vec<Key> = wanted.iter().map(place).collect();
    let mut unplaced = BTreeSet::new();
    let found = view.tables()?.rows("unplaced_key_revocations", &places).await?;
    for (key, row) in wanted.into_iter().zip(&found) {
        let Some(row) = row else { continue };
        let fields = Fields::new(view.table("unplaced_key_revocations")?, row);
        if fields.count("revocation_count")? != Num(0) {
            unplaced.insert(key);
        }
    }
    Ok(unplaced)
}
