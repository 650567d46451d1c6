//! What nobody asked for: failed transactions with odd words, events too large for a row, every kind of value, names of others.

use cairn_flow::FlowAddress;
use rand::RngExt;

use super::block::BlockBuilder;
use super::transaction::Tx;
use crate::cdc::{self, Cdc};
use crate::ledger::ContractId;

/// Text as strangers write it.
const TEXTS: [&str; 8] = [
    "'; DROP TABLE app.ft_holdings; --",
    "\u{0}\u{1}\u{7f} nul and others",
    "\u{202e}right to left\u{202c}\u{200b}",
    "👩‍👩‍👧‍👦 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \u{fdd0}\u{10ffff}",
    "{\"type\":\"Event\",\"value\":{\"id\":\"flow.AccountCreated\"}}",
    "\\\"\\u0000\\\\N \r\n\t",
    "<script>alert(1)</script>",
    "",
];
const MAX_UINT256: &str = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
const MIN_INT256: &str = "-57896044618658097711785492504343953926634992332820282019728792003956564819968";

impl BlockBuilder<'_> {
    fn text(&mut self) -> &'static str {
        TEXTS[self.rng.random_range(0..TEXTS.len())]
    }

    /// It fails: its events are those of its fee alone.
    pub fn failed(&mut self, tx: &mut Tx) {
        let text = self.text();
        tx.scripted(vec![self.cast.flow.clone()], "panic");
        if self.chance(30) {
            // Not even text.
            tx.script = [&b"transaction { \xff\xfe\x00"[..], text.as_bytes(), b" }"].concat().into();
            tx.imports.clear();
        }
        tx.argument(&cdc::string(text));
        let repeated = if self.chance(10) { 3_000 } else { 1 };
        tx.error =
            Some(format!("[Error Code: 1101] error caused by: 1 error occurred: {}", text.repeat(repeated)));
    }

    pub fn hostile(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let contract = ContractId::new(actor, "Hostile");
        tx.scripted(vec![contract.clone()], "hostile");
        match self.rng.random_range(0..4) {
            0 => {
                let data = "x".repeat(self.rng.random_range(8_000..60_000));
                tx.event(&format!("{contract}.Large"), &[("data", cdc::string(&data))]);
            }
            1 => {
                let text = self.text();
                tx.event(
                    &format!("{contract}.Said"),
                    &[("text", cdc::string(text)), ("again", cdc::string(text))],
                );
            }
            2 => self.imitate(tx, actor),
            _ => self.every_kind(tx, &contract),
        }
    }

    /// Events of the standards' names, of contracts that aren't theirs: nothing moves.
    fn imitate(&mut self, tx: &mut Tx, actor: FlowAddress) {
        let standard = ContractId::new(actor, "FungibleToken");
        let fields = [
            ("type", cdc::string(&format!("{}.Vault", self.cast.flow))),
            ("amount", cdc::ufix64(u64::MAX)),
            ("to", cdc::optional(Some(cdc::address(actor)))),
            ("toUUID", cdc::number("UInt64", 1)),
            ("depositedUUID", cdc::number("UInt64", 2)),
            ("balanceAfter", cdc::ufix64(u64::MAX)),
        ];
        tx.event(&format!("{standard}.Deposited"), &fields);
        let nfts = ContractId::new(actor, "NonFungibleToken");
        let fields = [
            ("type", cdc::string(&format!("{}.NFT", self.cast.example_nft))),
            ("id", cdc::number("UInt64", 0)),
            ("uuid", cdc::number("UInt64", 0)),
            ("to", cdc::optional(Some(cdc::address(actor)))),
            ("collectionUUID", cdc::number("UInt64", 0)),
        ];
        tx.event(&format!("{nfts}.Deposited"), &fields);
        let evm = ContractId::new(actor, "EVM");
        tx.event(&format!("{evm}.TransactionExecuted"), &[("hash", cdc::bytes(&[1; 32]))]);
        let fees = ContractId::new(actor, "FlowFees");
        tx.event(&format!("{fees}.FeesDeducted"), &[("amount", cdc::ufix64(1))]);
        // A withdrawal of something else: its id is text.
        let other = ContractId::new(actor, "Shop");
        let fields = [("id", cdc::string("42")), ("from", cdc::optional(Some(cdc::address(actor))))];
        tx.event(&format!("{other}.Withdraw"), &fields);
    }

    fn every_kind(&mut self, tx: &mut Tx, contract: &ContractId) {
        let raw = |json: &str| Cdc(json.to_owned());
        let path = raw(r#"{"type":"Path","value":{"domain":"storage","identifier":"flowTokenVault"}}"#);
        let fields = [
            ("void", raw(r#"{"type":"Void"}"#)),
            ("nothing", cdc::optional(None)),
            ("nested", cdc::optional(Some(cdc::optional(Some(cdc::number("Int8", -128)))))),
            ("uint64", cdc::number("UInt64", u64::MAX)),
            ("uint256", cdc::number("UInt256", MAX_UINT256)),
            ("int256", cdc::number("Int256", MIN_INT256)),
            ("word128", cdc::number("Word128", u128::MAX)),
            ("int", cdc::number("Int", format_args!("-{}", "9".repeat(300)))),
            ("ufix64", cdc::ufix64(u64::MAX)),
            ("fix64", cdc::number("Fix64", "-92233720368.54775808")),
            ("character", raw(r#"{"type":"Character","value":"é"}"#)),
            ("bool", raw(r#"{"type":"Bool","value":false}"#)),
            ("path", path),
            ("list", cdc::array([cdc::array([]), cdc::bytes(&[0, 255])])),
            (
                "dictionary",
                cdc::dictionary([
                    (cdc::string("a\"b"), cdc::number("UInt8", 1)),
                    (cdc::number("UInt8", 1), cdc::string("")),
                ]),
            ),
            (
                "resource",
                cdc::composite("Resource", &format!("{contract}.R"), &[("uuid", cdc::number("UInt64", 0))]),
            ),
            (
                "type",
                raw(r#"{"type":"Type","value":{"staticType":{"kind":"Optional","type":{"kind":"Int"}}}}"#),
            ),
            ("oldType", raw(r#"{"type":"Type","value":{"staticType":"A.1.Old.T"}}"#)),
            (
                "capability",
                raw(
                    r#"{"type":"Capability","value":{"id":"18446744073709551615","address":"0x1","borrowType":{"kind":"Int"}}}"#,
                ),
            ),
            (
                "oldCapability",
                raw(r#"{"type":"Capability","value":{"path":"/public/x","address":"0x01","borrowType":""}}"#),
            ),
            (
                "link",
                raw(
                    r#"{"type":"Link","value":{"targetPath":{"type":"Path","value":{"domain":"storage","identifier":"x"}},"borrowType":"T"}}"#,
                ),
            ),
            (
                "range",
                raw(
                    r#"{"type":"InclusiveRange","value":{"start":{"type":"Int","value":"1"},"end":{"type":"Int","value":"9"},"step":{"type":"Int","value":"2"}}}"#,
                ),
            ),
        ];
        tx.event(&format!("{contract}.Everything"), &fields);
    }
}
