//! Accounts: their creation (`account_creations`), their keys (`account_key_events`, `account_keys`), what they are in transactions
//! (`account_roles`), whose EVM account is whose (`coa_accounts`), and all of them (`flow_accounts`).

use bytes::Bytes;
use cairn_store::derived::{
    Change, ColumnType, IndexDef, Merge, Row, TableClass, TableDef, U256, Value, column,
};

use crate::names::{ACCOUNT_STATE_WORKER, ACCOUNTS_WORKER, META_WORKER};
use crate::tables::{Fields, LARGE_PARTITION_HEIGHTS, LOOKUP_PARTITION_HEIGHTS, RowError, opt, opt_bytes};

/// Accounts that were created. `payer_address` paid for it.
pub static ACCOUNT_CREATIONS: TableDef = TableDef {
    name: "account_creations",
    service: ACCOUNTS_WORKER,
    class: TableClass::Events { partition_heights: LOOKUP_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("address", ColumnType::Bytes),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("payer_address", ColumnType::Bytes),
    ],
    key: &["block_height", "address"],
    indexes: &[
        IndexDef { name: "by_address", columns: &["address", "block_height", "transaction_index"] },
        IndexDef { name: "by_payer", columns: &["payer_address", "block_height", "transaction_index"] },
    ],
};

/// What an account is in a transaction: whoever proposes it, pays for it or authorises it. Nobody is in it for a system transaction's empty
/// proposer and payer.
pub static ACCOUNT_ROLES: TableDef = TableDef {
    name: "account_roles",
    service: ACCOUNTS_WORKER,
    class: TableClass::Events { partition_heights: LARGE_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("address", ColumnType::Bytes),
        column("transaction_id", ColumnType::Bytes),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("is_proposer", ColumnType::Bool),
        column("is_payer", ColumnType::Bool),
        column("is_authorizer", ColumnType::Bool),
    ],
    key: &["block_height", "address", "transaction_id", "transaction_index"],
    indexes: &[IndexDef { name: "by_address", columns: &["address", "block_height", "transaction_index"] }],
};

/// EVM accounts that Cadence resources own, and the Flow accounts that have those resources.
///
/// The event doesn't name the owner. `owner_rule` says how it was found: `capability` (a capability for such a resource was issued or
/// published by that account in the same transaction), `authorizer` (it alone authorised the transaction), or `unknown` (several did;
/// `owner_address` is null).
pub static COA_ACCOUNTS: TableDef = TableDef {
    name: "coa_accounts",
    service: ACCOUNTS_WORKER,
    class: TableClass::Events { partition_heights: LOOKUP_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("coa_address", ColumnType::Bytes),
        column("transaction_id", ColumnType::Bytes),
        column("event_index", ColumnType::Int),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("owner_address", ColumnType::Bytes).nullable(),
        column("owner_rule", ColumnType::Text),
        column("resource_uuid", ColumnType::Amount).nullable(),
    ],
    key: &["block_height", "coa_address", "transaction_id", "transaction_index", "event_index"],
    indexes: &[
        IndexDef {
            name: "by_coa",
            columns: &["coa_address", "block_height", "transaction_index", "event_index"],
        },
        IndexDef {
            name: "by_owner",
            columns: &["owner_address", "block_height", "transaction_index", "event_index"],
        },
    ],
};

/// Keys as they were added and revoked. `change` is `added` or `revoked`. Events of before Cadence 1.0 leave out `key_index`, weight and
/// hash algorithm, or name a revoked key by its bytes. Algorithms are numbered as Cadence numbers them.
pub static ACCOUNT_KEY_EVENTS: TableDef = TableDef {
    name: "account_key_events",
    service: META_WORKER,
    class: TableClass::Events { partition_heights: LOOKUP_PARTITION_HEIGHTS },
    columns: &[
        column("block_height", ColumnType::Int),
        column("address", ColumnType::Bytes),
        column("transaction_id", ColumnType::Bytes),
        column("event_index", ColumnType::Int),
        column("transaction_index", ColumnType::Int),
        column("block_timestamp_ms", ColumnType::Int),
        column("change", ColumnType::Text),
        column("key_index", ColumnType::Amount).nullable(),
        column("public_key", ColumnType::Bytes).nullable(),
        column("sign_algo", ColumnType::Amount).nullable(),
        column("hash_algo", ColumnType::Amount).nullable(),
        column("weight", ColumnType::Amount).nullable(),
    ],
    key: &["block_height", "address", "transaction_id", "transaction_index", "event_index"],
    indexes: &[
        IndexDef {
            name: "by_address",
            columns: &["address", "block_height", "transaction_index", "event_index"],
        },
        IndexDef {
            name: "by_public_key",
            columns: &["public_key", "block_height", "transaction_index", "event_index"],
        },
    ],
};

/// A row of [`ACCOUNT_KEY_EVENTS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountKeyEvent {
    /// The block's height.
    pub block_height: u64,
    /// The account.
    pub address: Bytes,
    /// The transaction's id.
    pub transaction_id: Bytes,
    /// The event's place in its transaction.
    pub event_index: u32,
    /// The transaction's place in its block.
    pub transaction_index: u32,
    /// The block's time.
    pub block_timestamp_ms: u64,
    /// Whether the key was revoked; else it was added.
    pub is_revoked: bool,
    /// Its index among all keys that the account was ever given, where the event says.
    pub key_index: Option<u64>,
    /// The key, as far as the event says.
    pub key: KeyFields,
}

/// What is known of a key.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyFields {
    /// The public key.
    pub public_key: Option<Bytes>,
    /// 1 is ECDSA_P256, 2 ECDSA_secp256k1, 3 BLS.
    pub sign_algo: Option<u64>,
    /// 1 is SHA2_256, 3 SHA3_256 and so on.
    pub hash_algo: Option<u64>,
    /// Of 1000.
    pub weight: Option<u64>,
}

impl KeyFields {
    fn values(&self) -> [Value; 4] {
        [
            opt_bytes(&self.public_key),
            opt(self.sign_algo, amount),
            opt(self.hash_algo, amount),
            opt(self.weight, amount),
        ]
    }

    fn read(fields: &mut Fields<'_>) -> Result<KeyFields, RowError> {
        Ok(KeyFields {
            public_key: fields.opt_bytes()?,
            sign_algo: fields.opt_number()?,
            hash_algo: fields.opt_number()?,
            weight: fields.opt_number()?,
        })
    }
}

/// A number that an event says: any 64 bits.
fn amount(number: u64) -> Value {
    Value::Amount(U256::from(number))
}

impl AccountKeyEvent {
    /// As a row.
    pub fn to_row(&self) -> Row {
        let mut row = vec![
            Value::uint(self.block_height),
            Value::Bytes(self.address.clone()),
            Value::Bytes(self.transaction_id.clone()),
            Value::uint(self.event_index.into()),
            Value::uint(self.transaction_index.into()),
            Value::uint(self.block_timestamp_ms),
            Value::text(if self.is_revoked { "revoked" } else { "added" }),
            opt(self.key_index, amount),
        ];
        row.extend(self.key.values());
        Row(row)
    }

    /// From a row.
    pub fn from_row(row: &Row) -> Result<AccountKeyEvent, RowError> {
        let fields = &mut Fields::of(&ACCOUNT_KEY_EVENTS, row);
        Ok(AccountKeyEvent {
            block_height: fields.uint()?,
            address: fields.bytes()?,
            transaction_id: fields.bytes()?,
            event_index: fields.index()?,
            transaction_index: fields.index()?,
            block_timestamp_ms: fields.uint()?,
            is_revoked: fields.text()? == "revoked",
            key_index: fields.opt_number()?,
            key: KeyFields::read(fields)?,
        })
    }
}

/// The keys of accounts as they are now. A revoked key keeps its row. Of one that was revoked but never seen to be added (the archive
/// begins later) the row has its index alone. Not here, but in [`ACCOUNT_KEY_EVENTS`]: keys whose index neither an event says nor counting from
/// the account's creation (before Cadence 1.0). A key that was revoked by its bytes may stay unrevoked here: see [`UNPLACED_REVOCATIONS`].
pub static ACCOUNT_KEYS: TableDef = TableDef {
    name: "account_keys",
    service: ACCOUNT_STATE_WORKER,
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column("key_index", ColumnType::Amount),
        column("public_key", ColumnType::Bytes).nullable().merged(Merge::Last),
        column("sign_algo", ColumnType::Amount).nullable().merged(Merge::Last),
        column("hash_algo", ColumnType::Amount).nullable().merged(Merge::Last),
        column("weight", ColumnType::Amount).nullable().merged(Merge::Last),
        column("is_revoked", ColumnType::Bool).merged(Merge::Last),
        column("first_height", ColumnType::Int).merged(Merge::First),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address", "key_index"],
    indexes: &[IndexDef { name: "by_public_key", columns: &["public_key", "address", "key_index"] }],
};

/// A change of a key: `key` is given where it was added.
pub fn account_key(
    address: &Bytes,
    index: u64,
    key: Option<&KeyFields>,
    is_revoked: bool,
    height: u64,
) -> Change {
    let values = key.map(KeyFields::values).map_or_else(|| [const { None }; 4], |values| values.map(Some));
    let mut change = vec![Some(Value::Bytes(address.clone())), Some(amount(index))];
    change.extend(values);
    change.extend([Some(Value::Bool(is_revoked)), Some(Value::uint(height)), None]);
    Change(change)
}

/// The place of `is_revoked` in a row of [`ACCOUNT_KEYS`].
pub const KEY_IS_REVOKED: usize = 6;

/// A row of [`ACCOUNT_KEYS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountKeyRow {
    /// Its index among all keys that the account was ever given.
    pub key_index: u64,
    /// The key, as far as an event said.
    pub key: KeyFields,
    /// Whether it was revoked.
    pub is_revoked: bool,
}

impl AccountKeyRow {
    /// From a row.
    pub fn from_row(row: &Row) -> Result<AccountKeyRow, RowError> {
        let fields = &mut Fields::of(&ACCOUNT_KEYS, row);
        fields.bytes()?;
        let key_index = fields.amount()?.saturating_to();
        let key = KeyFields::read(fields)?;
        Ok(AccountKeyRow { key_index, key, is_revoked: fields.boolean()? })
    }
}

/// Revocations by bytes that several keys of an account have, so that no event says which it was. With `revocation_count` above 0 so many of the keys with
/// these bytes that [`ACCOUNT_KEYS`] shows unrevoked are revoked; as soon as that is all of them, they are revoked there, and it is 0.
///
/// `revocations` are the keys as they were revoked, in the folder's own encoding.
pub static UNPLACED_REVOCATIONS: TableDef = TableDef {
    name: "unplaced_key_revocations",
    service: ACCOUNT_STATE_WORKER,
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column("public_key", ColumnType::Bytes),
        column("revocation_count", ColumnType::Int).merged(Merge::Last),
        column("revocations", ColumnType::Bytes).nullable().merged(Merge::Last),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address", "public_key"],
    indexes: &[],
};

/// The place of `revocations` in a row of [`UNPLACED_REVOCATIONS`].
pub const REVOCATIONS: usize = 3;

/// A change of what is unplaced.
pub fn unplaced_revocations(
    address: &Bytes,
    public_key: &Bytes,
    count: usize,
    encoded: Option<Bytes>,
) -> Change {
    Change(vec![
        Some(Value::Bytes(address.clone())),
        Some(Value::Bytes(public_key.clone())),
        Some(Value::uint(count as u64)),
        Some(opt_bytes(&encoded)),
        None,
    ])
}

/// Accounts of which the archive has seen a creation, a key or a contract. `created_height` is null where the creation lies below the
/// archive. `key_count` counts keys that were added, revoked ones too; `contract_count` contracts that were added less those that were removed: what an
/// account has only where its creation is known.
///
/// `keys_without_index` is null: the worker's first version kept there what it now counts at once.
pub static FLOW_ACCOUNTS: TableDef = TableDef {
    name: "flow_accounts",
    service: ACCOUNT_STATE_WORKER,
    class: TableClass::State,
    columns: &[
        column("address", ColumnType::Bytes),
        column("created_height", ColumnType::Int).nullable().merged(Merge::First),
        column("key_count", ColumnType::Int).merged(Merge::Sum),
        column("contract_count", ColumnType::Int).merged(Merge::Sum),
        column("keys_without_index", ColumnType::Bytes).nullable().merged(Merge::Last),
        column("last_height", ColumnType::Int).merged(Merge::Last),
    ],
    key: &["address"],
    indexes: &[],
};

/// The place of `created_height` in a row of [`FLOW_ACCOUNTS`].
pub const CREATED_HEIGHT: usize = 1;
/// The place of `key_count`.
pub const KEY_COUNT: usize = 2;

/// What a block changes of an account.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AccountState {
    /// Where it was created, where that was here.
    pub created_height: Option<u64>,
    /// Keys that were added.
    pub keys: i64,
    /// Contracts that were added, less those that were removed.
    pub contracts: i64,
}

impl AccountState {
    /// As a change.
    pub fn to_change(&self, address: &Bytes) -> Change {
        Change(vec![
            Some(Value::Bytes(address.clone())),
            self.created_height.map(Value::uint),
            Some(Value::Int(self.keys)),
            Some(Value::Int(self.contracts)),
            Some(Value::Null),
            None,
        ])
    }
}
