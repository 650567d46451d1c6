//! What a Flow account is beside what is counted of every address: keys, contracts, and the EVM accounts that it owns.

use std::collections::BTreeSet;

use bytes::Bytes;
use cairn_store::derived::{Key, Row, Scan, Value};
use serde::Serialize;
use utoipa::ToSchema;

use crate::rest::fields::Fields;
use crate::rest::problem::Problem;
use crate::rest::view::View;
use crate::rest::words::{Address, Data, Hash, Num};

/// The most keys, contracts and EVM accounts that an answer names, each.
const MAX_NAMED: usize = 200;

/// The tables that say it.
pub(crate) const TABLES: [&str; 5] =
    ["flow_accounts", "account_keys", "unplaced_key_revocations", "account_contracts", "coa_accounts"];

/// What a Flow account is beside. Of an address of the EVM side, only whose it is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FlowAccount {
    /// Where it was created; null where the archive didn't see it.
    pub created_height: Option<Num>,
    /// Keys that it was ever given. Null where the archive didn't see it created: nobody knows then how many there were before.
    pub key_count: Option<Num>,
    /// Contracts that are there. Null likewise.
    pub contract_count: Option<Num>,
    /// The first 200 of its keys, by index, as far as the archive saw one added or revoked.
    #[schema(max_items = 200)]
    pub keys: Vec<AccountKey>,
    /// The first 200 of its contracts, by name, as far as the archive saw one change; removed ones too.
    #[schema(max_items = 200)]
    pub contracts: Vec<AccountContract>,
    /// EVM accounts that resources in it own; of an address of the EVM side its owner.
    #[schema(max_items = 200)]
    pub evm_accounts: Vec<EvmAccount>,
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
        let rows = view.tables()?.rows("flow_accounts", &[Key(vec![Value::Bytes(address.clone())])]).await?;
        if let Some(row) = rows.first().and_then(Option::as_ref) {
            let fields = Fields::new(view.table("flow_accounts")?, row);
            self.created_height = fields.opt_num("created_height")?;
            if self.created_height.is_some() {
                self.key_count = Some(fields.count("key_count")?);
                self.contract_count = Some(fields.count("contract_count")?);
            }
        }
        let of = |table| Scan { prefix: vec![Value::Bytes(address.clone())], ..Scan::new(table, MAX_NAMED) };
        let keys = view.tables()?.scan(&of("account_keys")).await?.rows;
        let unplaced = unplaced(view, address, &keys).await?;
        for row in keys {
            let fields = Fields::new(view.table("account_keys")?, &row);
            let number = |name| -> Result<Option<Num>, Problem> {
                Ok(fields.opt_amount(name)?.and_then(|amount| u64::try_from(amount.0).ok()).map(Num))
            };
            let public_key = fields.opt_bytes("public_key")?;
            let is_revoked = fields.boolean("is_revoked")?;
            let is_open = !is_revoked && public_key.is_some_and(|key| unplaced.contains(&key));
            self.keys.push(AccountKey {
                index: number("key_index")?.unwrap_or(Num(0)),
                public_key: fields.opt_data("public_key")?,
                sign_algo: number("sign_algo")?,
                hash_algo: number("hash_algo")?,
                weight: number("weight")?,
                is_revoked: Some(is_revoked).filter(|_| !is_open),
                first_height: fields.num("first_height")?,
                last_height: fields.num("last_height")?,
            });
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
