//! What is read of a node's JSON before it is decoded: enough to judge linkage and completeness, in one pass and without
//! building trees.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use cairn_core::{BlockId, Height, TxId};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::endpoint::parse_quantity;

/// A transaction of a block, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxOutline {
    /// Its hash.
    pub hash: TxId,
    /// Its type, where it is given and is a number.
    pub ty: Option<u64>,
}

/// A block's claims about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// Its height.
    pub height: Height,
    /// The hash that it claims.
    pub id: BlockId,
    /// Its parent's.
    pub parent_id: BlockId,
    /// Whether its bloom says that there are logs.
    pub has_bloom: bool,
    /// Its transactions.
    pub txs: Vec<TxOutline>,
    /// How many ommers it has.
    pub ommers: usize,
}

/// Reads a block with whole transactions or with their hashes.
pub fn read_block(text: &[u8]) -> Result<Outline, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape<'a> {
        number: Quantity,
        #[serde(borrow)]
        hash: Cow<'a, str>,
        #[serde(borrow)]
        parent_hash: Cow<'a, str>,
        #[serde(borrow, default)]
        logs_bloom: Option<Cow<'a, str>>,
        #[serde(default)]
        transactions: Option<Vec<TxShape>>,
        // Nothing is stored for an ignored item: this only counts.
        #[serde(default)]
        uncles: Option<Vec<IgnoredAny>>,
    }
    let shape: Shape<'_> =
        serde_json::from_slice(text).map_err(|error| format!("malformed block: {error}"))?;
    let bloom = shape.logs_bloom.as_deref().unwrap_or_default();
    Ok(Outline {
        height: Height(shape.number.0.ok_or("malformed block: `number` is no quantity")?),
        id: parse_hash(&shape.hash).map(BlockId).ok_or("malformed block: `hash` is not 32 bytes of hex")?,
        parent_id: parse_hash(&shape.parent_hash)
            .map(BlockId)
            .ok_or("malformed block: `parentHash` is not 32 bytes of hex")?,
        has_bloom: bloom.strip_prefix("0x").unwrap_or(bloom).bytes().any(|digit| digit != b'0'),
        txs: shape.transactions.into_iter().flatten().map(|TxShape(tx)| tx).collect(),
        ommers: shape.uncles.map_or(0, |uncles| uncles.len()),
    })
}

fn parse_hash(text: &str) -> Option<[u8; 32]> {
    text.parse::<BlockId>().ok().map(|id| id.0)
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum TxField {
    Hash,
    Type,
    #[serde(other)]
    Other,
}

/// A quantity as text, or as a JSON integer as some nodes have it; none where it is null or something else.
struct Quantity(Option<u64>);

impl<'de> Deserialize<'de> for Quantity {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl Visitor<'_> for Reader {
            type Value = Quantity;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a quantity")
            }

            fn visit_str<E>(self, text: &str) -> Result<Quantity, E> {
                Ok(Quantity(parse_quantity(text)))
            }

            fn visit_u64<E>(self, number: u64) -> Result<Quantity, E> {
                Ok(Quantity(Some(number)))
            }

            fn visit_unit<E>(self) -> Result<Quantity, E> {
                Ok(Quantity(None))
            }
        }
        from.deserialize_any(Reader)
    }
}

/// A text that is borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A transaction as an object or as its hash alone.
struct TxShape(TxOutline);

impl<'de> Deserialize<'de> for TxShape {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = TxShape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a transaction or its hash")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<TxShape, E> {
                let hash = parse_hash(text)
                    .ok_or_else(|| E::custom("a transaction's hash is not 32 bytes of hex"))?;
                Ok(TxShape(TxOutline { hash: TxId(hash), ty: None }))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TxShape, A::Error> {
                let (mut hash, mut ty) = (None, None);
                while let Some(field) = map.next_key()? {
                    match field {
                        TxField::Hash => hash = parse_hash(&map.next_value::<Text<'de>>()?.0),
                        TxField::Type => ty = map.next_value::<Quantity>()?.0,
                        TxField::Other => {
                            map.next_value::<IgnoredAny>()?;
                        }
                    }
                }
                let hash =
                    hash.ok_or_else(|| serde::de::Error::custom("a transaction has no `hash` of 32 bytes"))?;
                Ok(TxShape(TxOutline { hash: TxId(hash), ty }))
            }
        }
        from.deserialize_any(Reader)
    }
}

/// Reads a transaction by itself.
pub fn read_tx(text: &[u8]) -> Result<TxOutline, String> {
    serde_json::from_slice::<TxShape>(text)
        .map(|TxShape(tx)| tx)
        .map_err(|error| format!("malformed transaction: {error}"))
}

/// A receipt's claims about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptOutline {
    /// The transaction's hash.
    pub tx: TxId,
    /// The block's hash, where it is given.
    pub block: Option<BlockId>,
    /// How many logs it has.
    pub logs: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReceiptShape<'a> {
    #[serde(borrow)]
    transaction_hash: Cow<'a, str>,
    #[serde(borrow, default)]
    block_hash: Option<Cow<'a, str>>,
    // Nothing is stored for an ignored item: this only counts.
    #[serde(default)]
    logs: Option<Vec<IgnoredAny>>,
}

impl ReceiptShape<'_> {
    fn outline(self) -> Result<ReceiptOutline, String> {
        Ok(ReceiptOutline {
            tx: parse_hash(&self.transaction_hash)
                .map(TxId)
                .ok_or("malformed receipt: `transactionHash` is not 32 bytes of hex")?,
            block: self.block_hash.as_deref().and_then(parse_hash).map(BlockId),
            logs: self.logs.map_or(0, |logs| logs.len()),
        })
    }
}

/// Reads a list of receipts.
pub fn read_receipts(text: &[u8]) -> Result<Vec<ReceiptOutline>, String> {
    let shapes: Vec<ReceiptShape<'_>> =
        serde_json::from_slice(text).map_err(|error| format!("malformed receipts: {error}"))?;
    shapes.into_iter().map(ReceiptShape::outline).collect()
}

/// Reads one receipt.
pub fn read_receipt(text: &[u8]) -> Result<ReceiptOutline, String> {
    let shape: ReceiptShape<'_> =
        serde_json::from_slice(text).map_err(|error| format!("malformed receipt: {error}"))?;
    shape.outline()
}

/// Whether receipts are those of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Coverage {
    /// As far as it can be seen here.
    Whole,
    /// Every transaction has one, but the header's bloom says that there are logs, and there are none (E03).
    NoLogs,
    /// They are not, or not all of them.
    Wrong(String),
}

/// Judges receipts against their block. `must_name_block`: each has to carry the block's hash, since they were not asked for by it. `allow_missing`:
/// transactions may be without one. Receipts of no transaction of the body are the codec's to judge: a root may cover them.
pub fn coverage(
    block: &Outline,
    receipts: &[ReceiptOutline],
    must_name_block: bool,
    allow_missing: bool,
) -> Coverage {
    let other = receipts.iter().find(|receipt| match receipt.block {
        Some(id) => id != block.id,
        None => must_name_block,
    });
    if let Some(other) = other {
        let found = other.block.map_or("no block".to_owned(), |id| id.to_string());
        return Coverage::Wrong(format!(
            "the receipt of {} belongs to {found}, not to {}",
            other.tx, block.id
        ));
    }
    if receipts.len() < block.txs.len() && !allow_missing {
        return Coverage::Wrong(format!("{} receipts for {} transactions", receipts.len(), block.txs.len()));
    }
    let covered: HashSet<&TxId> = receipts.iter().map(|receipt| &receipt.tx).collect();
    if covered.len() < receipts.len() {
        return Coverage::Wrong("a transaction has two receipts".into());
    }
    let bare = block.txs.iter().find(|tx| !covered.contains(&tx.hash));
    if let Some(bare) = bare.filter(|_| !allow_missing) {
        return Coverage::Wrong(format!("transaction {} has no receipt", bare.hash));
    }
    if block.has_bloom && receipts.iter().all(|receipt| receipt.logs == 0) {
        return Coverage::NoLogs;
    }
    Coverage::Whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u8) -> String {
        format!("0x{}", format!("{n:02x}").repeat(32))
    }

    fn block(txs: &[u8], bloom: &str) -> Outline {
        let txs: Vec<_> =
            txs.iter().map(|n| format!(r#"{{"hash":"{}","type":"0x2","x":[1]}}"#, id(*n))).collect();
        let text = format!(
            r#"{{"number":"0x7","hash":"{}","parentHash":"{}","logsBloom":"{bloom}","transactions":[{}]}}"#,
            id(0xb7),
            id(0xb6),
            txs.join(",")
        );
        read_block(text.as_bytes()).unwrap()
    }

    fn receipts(of: &[(u8, u8, usize)]) -> Vec<ReceiptOutline> {
        let texts: Vec<_> = of
            .iter()
            .map(|(tx, block, logs)| {
                let logs = vec!["{}"; *logs].join(",");
                format!(r#"{{"transactionHash":"{}","blockHash":"{}","logs":[{logs}]}}"#, id(*tx), id(*block))
            })
            .collect();
        read_receipts(format!("[{}]", texts.join(",")).as_bytes()).unwrap()
    }

    #[test]
    fn e03_receipts_must_cover_the_block() {
        let two = block(&[1, 2], "0x0100");
        assert_eq!(two.txs[0].ty, Some(2));
        let judge = |of: &[(u8, u8, usize)]| coverage(&two, &receipts(of), true, false);
        assert_eq!(judge(&[(2, 0xb7, 0), (1, 0xb7, 1)]), Coverage::Whole);
        assert_eq!(judge(&[(1, 0xb7, 0), (2, 0xb7, 0)]), Coverage::NoLogs);
        assert!(matches!(judge(&[]), Coverage::Wrong(_)));
        assert!(matches!(judge(&[(1, 0xb7, 1)]), Coverage::Wrong(_)));
        assert!(matches!(judge(&[(1, 0xb7, 1), (1, 0xb7, 1)]), Coverage::Wrong(_)));
        assert!(matches!(judge(&[(1, 0xb7, 1), (2, 0xb8, 1)]), Coverage::Wrong(_)), "another fork's");
        let one = receipts(&[(1, 0xb7, 1)]);
        assert_eq!(coverage(&two, &one, true, true), Coverage::Whole, "one may be missing");
        let three = [(1, 0xb7, 1), (2, 0xb7, 1), (3, 0xb7, 1)];
        assert_eq!(judge(&three), Coverage::Whole, "of a chain that has receipts of its own");
        assert_eq!(coverage(&block(&[], "0x0000"), &[], true, false), Coverage::Whole);
    }

    #[test]
    fn transactions_are_read_as_hashes_too() {
        let text = format!(
            r#"{{"number":"0x0","hash":"{0}","parentHash":"{0}","transactions":["{1}"]}}"#,
            id(0),
            id(9)
        );
        let read = read_block(text.as_bytes()).unwrap();
        assert_eq!(read.txs, [TxOutline { hash: TxId([9; 32]), ty: None }]);
        assert!(!read.has_bloom);
    }

    #[test]
    fn integers_and_nulls_are_read_where_nodes_write_them() {
        let text = format!(
            r#"{{"number":7,"hash":"{0}","parentHash":"{0}","logsBloom":null,"uncles":null,"transactions":[{{"hash":"{0}","type":2}},{{"hash":"{0}","type":null}}]}}"#,
            id(1)
        );
        let read = read_block(text.as_bytes()).unwrap();
        assert_eq!((read.height, read.ommers, read.has_bloom), (Height(7), 0, false));
        assert_eq!(read.txs.iter().map(|tx| tx.ty).collect::<Vec<_>>(), [Some(2), None]);
        let text =
            format!(r#"{{"number":"0x0","hash":"{0}","parentHash":"{0}","transactions":null}}"#, id(1));
        assert!(read_block(text.as_bytes()).unwrap().txs.is_empty());
    }

    #[test]
    fn malformed_parts_are_named() {
        for (text, part) in
            [("{}", "number"), ("[]", "block"), (r#"{"number":"7","hash":"0x","parentHash":"0x"}"#, "number")]
        {
            assert!(read_block(text.as_bytes()).unwrap_err().contains(part), "{text}");
        }
        assert!(read_receipts(b"{}").is_err());
        assert!(read_receipts(br#"[{"transactionHash":"0x1"}]"#).unwrap_err().contains("transactionHash"));
        let deep = format!(r#"{{"number":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(read_block(deep.as_bytes()).is_err());
    }
}
