//! Events about Flow accounts, of every age.

use alloy_rlp::Encodable;
use cairn_explorer::decode::flow::{
    AccountChange, AccountEvent, AccountKey, ContractChange, RevokedKey, account_event,
};
use cairn_flow::{DecodedEvent, FlowAddress};
use serde_json::{Value, json};

const ACCOUNT: FlowAddress = FlowAddress([0, 0, 0, 0, 0, 0, 0, 7]);

fn event(name: &str, fields: &[(&str, Value)]) -> DecodedEvent {
    let mut all = vec![json!({"name": "address", "value": {"type": "Address", "value": "0x7"}})];
    all.extend(fields.iter().map(|(name, value)| json!({"name": name, "value": value})));
    let payload = json!({"type": "Event", "value": {"id": name, "fields": all}}).to_string();
    DecodedEvent { event_type: name.into(), index: 0, payload: payload.into() }
}

fn bytes(bytes: &[u8]) -> Value {
    let each: Vec<Value> =
        bytes.iter().map(|byte| json!({"type": "UInt8", "value": byte.to_string()})).collect();
    json!({"type": "Array", "value": each})
}

fn raw(number: u8) -> Value {
    json!({"type": "Enum", "value": {"id": "E", "fields": [{"name": "rawValue", "value": {"type": "UInt8", "value": number.to_string()}}]}})
}

fn change(event: &DecodedEvent) -> AccountChange {
    let AccountEvent { address, change } =
        account_event(event).expect("is read").expect("is about an account");
    assert_eq!(address, ACCOUNT);
    change
}

fn struct_key() -> Value {
    json!({"type": "Struct", "value": {"id": "PublicKey", "fields": [
        {"name": "publicKey", "value": bytes(&[1, 2, 3])}, {"name": "signatureAlgorithm", "value": raw(2)}]}})
}

/// A key as RLP says it: the algorithm as the node's library counts, the hash algorithm, the weight; of a stored key more follows.
fn rlp(key: &[u8], numbers: &[u64]) -> Vec<u8> {
    let mut inner = Vec::new();
    key.encode(&mut inner);
    for number in numbers {
        number.encode(&mut inner);
    }
    let mut whole = Vec::new();
    alloy_rlp::Header { list: true, payload_length: inner.len() }.encode(&mut whole);
    whole.extend(inner);
    whole
}

#[test]
fn keys_of_every_age_are_read() {
    let new = event(
        "flow.AccountKeyAdded",
        &[
            ("publicKey", struct_key()),
            ("weight", json!({"type": "UFix64", "value": "1000.00000000"})),
            ("hashAlgorithm", raw(3)),
            ("keyIndex", json!({"type": "Int", "value": "4"})),
        ],
    );
    let key = AccountKey { public_key: vec![1, 2, 3], sign_algo: 2, hash_algo: Some(3), weight: Some(1000) };
    assert_eq!(change(&new), AccountChange::KeyAdded { index: Some(4), key: key.clone() });

    let before = event("flow.AccountKeyAdded", &[("publicKey", struct_key())]);
    let known = AccountKey { hash_algo: None, weight: None, ..key.clone() };
    assert_eq!(change(&before), AccountChange::KeyAdded { index: None, key: known });

    // RLP counts BLS first, where Cadence counts it last.
    let mut key =
        AccountKey { public_key: vec![9; 64], sign_algo: 3, hash_algo: Some(3), weight: Some(1000) };
    for (rlp_algo, sign_algo) in [(1, 3), (3, 2), (2, 1)] {
        let oldest =
            event("flow.AccountKeyAdded", &[("publicKey", bytes(&rlp(&[9; 64], &[rlp_algo, 3, 1000])))]);
        key.sign_algo = sign_algo;
        assert_eq!(change(&oldest), AccountChange::KeyAdded { index: None, key: key.clone() });
    }

    let by_index = event("flow.AccountKeyRemoved", &[("publicKey", json!({"type": "Int", "value": "4"}))]);
    assert_eq!(change(&by_index), AccountChange::KeyRevoked(RevokedKey::Index(4)));
    for numbers in [&[2, 3, 1000][..], &[2, 3, 1000, 77, 1]] {
        let by_key = event("flow.AccountKeyRemoved", &[("publicKey", bytes(&rlp(&[9; 64], numbers)))]);
        assert_eq!(change(&by_key), AccountChange::KeyRevoked(RevokedKey::Key(key.clone())));
    }
}

#[test]
fn accounts_and_contracts_are_read() {
    assert_eq!(change(&event("flow.AccountCreated", &[])), AccountChange::Created);
    for (name, kind) in [
        ("flow.AccountContractAdded", ContractChange::Added),
        ("flow.AccountContractUpdated", ContractChange::Updated),
        ("flow.AccountContractRemoved", ContractChange::Removed),
    ] {
        let fields =
            [("codeHash", bytes(&[5; 32])), ("contract", json!({"type": "String", "value": "Counter"}))];
        let want = AccountChange::Contract { name: "Counter".into(), code_hash: [5; 32], change: kind };
        assert_eq!(change(&event(name, &fields)), want);
    }
}

#[test]
fn other_events_are_left_alone_and_malformed_ones_named() {
    for name in ["flow.InboxValuePublished", "A.0000000000000001.Fake.AccountCreated", "nonsense"] {
        assert_eq!(account_event(&event(name, &[])), Ok(None), "{name}");
    }
    let wrong = [
        event("flow.AccountKeyAdded", &[]),
        event("flow.AccountKeyAdded", &[("publicKey", bytes(&[1, 2]))]),
        event("flow.AccountKeyAdded", &[("publicKey", bytes(&rlp(&[9; 64], &[4, 3, 1000])))]),
        event("flow.AccountKeyRemoved", &[("publicKey", bytes(&rlp(&[9; 64], &[2, 3, 1000, 77, 1, 1])))]),
        event("flow.AccountKeyRemoved", &[("publicKey", json!({"type": "Int", "value": "-1"}))]),
        event(
            "flow.AccountContractAdded",
            &[("codeHash", bytes(&[5; 31])), ("contract", json!({"type": "String", "value": "C"}))],
        ),
        DecodedEvent { event_type: "flow.AccountCreated".into(), index: 0, payload: "{}".into() },
    ];
    for event in wrong {
        assert!(account_event(&event).is_err(), "{event:?}");
    }
}
