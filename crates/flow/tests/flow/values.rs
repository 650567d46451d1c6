//! Cadence values: every kind, exact numbers, and bytes from strangers.

use alloy_primitives::{I256, U256};
use cairn_flow::cdc::{CdcValue, MAX_DEPTH, StaticType};
use proptest::prelude::*;
use serde_json::json;

fn parse(json: &serde_json::Value) -> Result<CdcValue, cairn_flow::FlowError> {
    CdcValue::parse(json.to_string().as_bytes())
}

fn number(kind: &str, digits: &str) -> Option<String> {
    let value = parse(&json!({"type": kind, "value": digits})).ok()?;
    value.as_number().map(|number| number.text.clone())
}

#[test]
fn f07_numbers_beyond_64_bits_stay_exact() {
    let max = U256::MAX.to_string();
    let min = format!("-{}", U256::from(1) << 255);
    for (kind, digits) in [
        ("UInt64", "18446744073709551615"),
        ("UInt256", max.as_str()),
        ("Int256", min.as_str()),
        ("UFix64", "184467440737.09551615"),
        ("Fix64", "-92233720368.54775808"),
        ("Word128", "340282366920938463463374607431768211455"),
        (
            "Int",
            "-123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890",
        ),
    ] {
        assert_eq!(number(kind, digits).as_deref(), Some(digits), "{kind}");
    }
    let value = parse(&json!({"type": "Int256", "value": min})).expect("is read");
    assert_eq!(value.as_number().and_then(|number| number.to_i256()), Some(I256::MIN));
    let value = parse(&json!({"type": "UFix64", "value": "184467440737.09551615"})).expect("is read");
    assert_eq!(value.as_number().and_then(|number| number.to_scaled(8)), Some(U256::from(u64::MAX)));
    assert_eq!(value.as_number().and_then(|number| number.to_scaled(7)), None, "nothing is rounded");
}

#[test]
fn f07_numbers_out_of_their_bounds_are_refused_and_not_capped() {
    for (kind, digits) in [
        ("UInt64", "18446744073709551616"),
        ("UInt8", "256"),
        ("UInt8", "-1"),
        ("Int8", "128"),
        ("Int8", "-129"),
        ("UFix64", "184467440737.09551616"),
        ("UFix64", "1.000000001"),
        ("Fix64", "92233720368.54775808"),
        ("UInt", "-1"),
        ("Int", "1.0"),
        ("Int", ""),
        ("Int", "+1"),
        ("Int", "0x10"),
        ("Int", "1e3"),
        ("UFix64", ".5"),
    ] {
        assert_eq!(number(kind, digits), None, "{kind} {digits}");
    }
    assert_eq!(number("Int", &"9".repeat(600)), None, "longer than any number is");
    assert_eq!(number("Int8", "-0").as_deref(), Some("0"));
    assert_eq!(number("UFix64", "007.5").as_deref(), Some("7.50000000"));
}

#[test]
fn every_kind_is_read() {
    let address = json!({"type": "Address", "value": "0x1"});
    let text = json!({"type": "String", "value": "a\u{0}b"});
    let path = json!({"type": "Path", "value": {"domain": "public", "identifier": "flowTokenBalance"}});
    let of_type = json!({"kind": "Optional", "type": {"kind": "Resource", "typeID": "A.1.Token.Vault"}});
    let cases = [
        (json!({"type": "Void"}), json!(null)),
        (json!({"type": "Optional", "value": null}), json!(null)),
        (json!({"type": "Optional", "value": {"type": "Optional", "value": text}}), json!("a\u{0}b")),
        (json!({"type": "Bool", "value": true}), json!(true)),
        (
            json!({"type": "Character", "value": "\u{1f469}\u{200d}\u{1f680}"}),
            json!("\u{1f469}\u{200d}\u{1f680}"),
        ),
        (address.clone(), json!("0000000000000001")),
        (json!({"type": "Array", "value": [address, text]}), json!(["0000000000000001", "a\u{0}b"])),
        (
            json!({"type": "Dictionary", "value": [{"key": {"type": "UInt8", "value": "7"}, "value": text}]}),
            json!({"7": "a\u{0}b"}),
        ),
        (
            json!({"type": "Resource", "value": {"id": "R", "fields": [{"name": "uuid", "value": {"type": "UInt64", "value": "5"}}]}}),
            json!({"uuid": "5"}),
        ),
        (json!({"type": "Contract", "value": {"id": "C"}}), json!({})),
        (path.clone(), json!("/public/flowTokenBalance")),
        (
            json!({"type": "Type", "value": {"staticType": "A.1.Token.Vault"}}),
            json!("Type<A.1.Token.Vault>()"),
        ),
        (json!({"type": "Type", "value": {"staticType": of_type}}), json!("Type<A.1.Token.Vault?>()")),
        (json!({"type": "Type", "value": {"staticType": ""}}), json!("Type<>()")),
        (
            json!({"type": "Function", "value": {"functionType": {"kind": "Function", "typeID": "fun():Void"}}}),
            json!("Type<fun():Void>()"),
        ),
        (
            json!({"type": "InclusiveRange", "value": {
            "start": {"type": "Int", "value": "1"}, "end": {"type": "Int", "value": "9"}, "step": {"type": "Int", "value": "2"}}}),
            json!({"start": "1", "end": "9", "step": "2"}),
        ),
        (
            json!({"type": "Capability", "value": {"id": "3", "address": "0x1", "borrowType": {"kind": "Int"}}}),
            json!({"id": "3", "address": "0000000000000001", "path": null, "borrowType": "Int"}),
        ),
        (
            json!({"type": "Capability", "value": {"path": path, "address": "0x1", "borrowType": ""}}),
            json!({"id": null, "address": "0000000000000001", "path": "/public/flowTokenBalance", "borrowType": ""}),
        ),
        // Old sporks.
        (json!({"type": "Link", "value": {"targetPath": "x"}}), json!({"targetPath": "x"})),
    ];
    for (cdc, flat) in cases {
        assert_eq!(parse(&cdc).expect("is read").to_flat(), flat, "{cdc}");
    }
    let restricted = json!({"type": "Type", "value": {"staticType": {"kind": "Restriction", "typeID": "A.1.T.Vault{A.1.T.Receiver}", "type": "", "restrictions": []}}});
    assert_eq!(
        parse(&restricted).expect("is read"),
        CdcValue::Type(StaticType("A.1.T.Vault{A.1.T.Receiver}".into()))
    );
}

#[test]
fn depth_is_bounded() {
    let mut value = json!({"type": "Void"});
    for _ in 0..=MAX_DEPTH {
        value = json!({"type": "Optional", "value": value});
    }
    assert!(parse(&value).is_err());
    let text = "{\"type\":\"Optional\",\"value\":".repeat(100_000);
    assert!(CdcValue::parse(text.as_bytes()).is_err());
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = CdcValue::parse(&bytes);
        let _ = cairn_flow::evm::decode_payload(&bytes);
        let _ = cairn_flow::evm::logs(&bytes);
    }

    #[test]
    fn scaled_and_text_agree(units in any::<u64>()) {
        let text = format!("{}.{:08}", units / 100_000_000, units % 100_000_000);
        let value = parse(&json!({"type": "UFix64", "value": text})).expect("is read");
        prop_assert_eq!(value.as_number().and_then(|number| number.to_scaled(8)), Some(U256::from(units)));
    }
}
