//! Transactions of single chains, described as lists of fields.
//!
//! They have no signature of the usual kind; the chain makes them itself. Several chains use one type byte in different ways: the hash decides
//! which description is meant. Sources: the OP Stack's deposit specification; `core/types/deposit_tx.go` of Mantle's op-geth;
//! `core/types/l1_message_tx.go` of Scroll's go-ethereum; `core/types/arb_types.go` of Arbitrum's go-ethereum.

use alloy_consensus::{SignableTransaction, TxLegacy};
use alloy_primitives::{Address, Signature, TxKind, U256, hex};
use alloy_rlp::{Decodable, Encodable};
use serde_json::{Map, Value};

use super::Sender;
use crate::EvmError;
use crate::rlp::{self, Item};
use crate::rpc_block::object::Object;
use crate::signature::recover;
use crate::views::sink::{Field, Sink};

/// How a field is encoded, and what its absence means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// At most 64 bits; absent is 0.
    Number,
    /// At most 256 bits; absent is 0.
    Quantity,
    /// The same, and left out of JSON where it is 0.
    OptionalQuantity,
    Address,
    /// An address, or none for a creation.
    Recipient,
    Hash,
    /// Absent is empty.
    Data,
    /// Left out of JSON where it is false.
    Flag,
}

use Kind::{Address as Account, Data, Flag, Hash, Number, OptionalQuantity, Quantity, Recipient};

/// One way in which transactions of a type are encoded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    ty: u8,
    /// In the order of the encoding, by the names that nodes give them in JSON.
    fields: &'static [(&'static str, Kind)],
    /// What the chain's rules say and the encoding doesn't.
    fixed: &'static [(&'static str, &'static str)],
}

/// Other names under which nodes give a field.
const OTHER_NAMES: [(&str, &str); 3] =
    [("input", "data"), ("maxFeePerGas", "gasPrice"), ("refundTo", "feeRefundAddr")];

const SHAPES: [Shape; 10] = [
    // A legacy transaction whose `v` is none of a signature's, as Optimism's before Bedrock.
    Shape {
        ty: 0,
        fields: &[
            ("nonce", Number),
            ("gasPrice", Quantity),
            ("gas", Number),
            ("to", Recipient),
            ("value", Quantity),
            ("input", Data),
            ("v", Quantity),
            ("r", Quantity),
            ("s", Quantity),
        ],
        fixed: &[],
    },
    // The OP Stack's deposits.
    Shape {
        ty: 0x7e,
        fields: &[
            ("sourceHash", Hash),
            ("from", Account),
            ("to", Recipient),
            ("mint", OptionalQuantity),
            ("value", Quantity),
            ("gas", Number),
            ("isSystemTx", Flag),
            ("input", Data),
        ],
        fixed: &[],
    },
    // Mantle's deposits.
    Shape {
        ty: 0x7e,
        fields: &[
            ("sourceHash", Hash),
            ("from", Account),
            ("to", Recipient),
            ("mint", OptionalQuantity),
            ("ethValue", OptionalQuantity),
            ("value", Quantity),
            ("gas", Number),
            ("isSystemTx", Flag),
            ("input", Data),
        ],
        fixed: &[],
    },
    // Scroll's messages from the chain below.
    Shape {
        ty: 0x7e,
        fields: &[
            ("queueIndex", Number),
            ("gas", Number),
            ("to", Recipient),
            ("value", Quantity),
            ("input", Data),
            ("from", Account),
        ],
        fixed: &[],
    },
    // Arbitrum: deposit.
    Shape {
        ty: 0x64,
        fields: &[
            ("chainId", Quantity),
            ("requestId", Hash),
            ("from", Account),
            ("to", Account),
            ("value", Quantity),
        ],
        fixed: &[],
    },
    // Arbitrum: unsigned.
    Shape {
        ty: 0x65,
        fields: &[
            ("chainId", Quantity),
            ("from", Account),
            ("nonce", Number),
            ("maxFeePerGas", Quantity),
            ("gas", Number),
            ("to", Recipient),
            ("value", Quantity),
            ("input", Data),
        ],
        fixed: &[],
    },
    // Arbitrum: by a contract on the chain below.
    Shape {
        ty: 0x66,
        fields: &[
            ("chainId", Quantity),
            ("requestId", Hash),
            ("from", Account),
            ("maxFeePerGas", Quantity),
            ("gas", Number),
            ("to", Recipient),
            ("value", Quantity),
            ("input", Data),
        ],
        fixed: &[],
    },
    // Arbitrum: redemption of a retryable ticket.
    Shape {
        ty: 0x68,
        fields: &[
            ("chainId", Quantity),
            ("nonce", Number),
            ("from", Account),
            ("maxFeePerGas", Quantity),
            ("gas", Number),
            ("to", Recipient),
            ("value", Quantity),
            ("input", Data),
            ("ticketId", Hash),
            ("refundTo", Account),
            ("maxRefund", Quantity),
            ("submissionFeeRefund", Quantity),
        ],
        fixed: &[],
    },
    // Arbitrum: submission of a retryable ticket.
    Shape {
        ty: 0x69,
        fields: &[
            ("chainId", Quantity),
            ("requestId", Hash),
            ("from", Account),
            ("l1BaseFee", Quantity),
            ("depositValue", Quantity),
            ("maxFeePerGas", Quantity),
            ("gas", Number),
            ("retryTo", Recipient),
            ("retryValue", Quantity),
            ("beneficiary", Account),
            ("maxSubmissionFee", Quantity),
            ("refundTo", Account),
            ("retryData", Data),
        ],
        fixed: &[("to", "0x000000000000000000000000000000000000006e")],
    },
    // Arbitrum: the start of each block.
    Shape {
        ty: 0x6a,
        fields: &[("chainId", Quantity), ("input", Data)],
        fixed: &[
            ("from", "0x00000000000000000000000000000000000a4b05"),
            ("to", "0x00000000000000000000000000000000000a4b05"),
        ],
    },
];

/// What nodes give as zero where such a transaction has no such field.
pub(crate) const ZEROS: [&str; 7] = ["nonce", "gas", "gasPrice", "value", "v", "r", "s"];

/// Whether a type above Ethereum's is described here.
pub(super) fn has_type(ty: u8) -> bool {
    SHAPES.iter().any(|shape| shape.ty == ty)
}

/// A transaction that fits a description.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Described {
    shape: &'static Shape,
    /// Its fields, and those that are fixed, as JSON.
    object: Map<String, Value>,
}

impl Described {
    /// The transactions that a node's object can be, by each description of its type. What the object lacks leaves a description out.
    pub fn candidates(object: Object<'_>, ty: u8) -> impl Iterator<Item = Described> + '_ {
        SHAPES.iter().filter(move |shape| shape.ty == ty).filter_map(move |shape| {
            let fields = shape.fields.iter().map(|(name, kind)| {
                let other = OTHER_NAMES.iter().find(|(known, _)| known == name).map(|(_, other)| *other);
                let given = match other {
                    Some(other) if object.get(name).is_none() => other,
                    _ => name,
                };
                Ok(((*name).to_owned(), kind.read(object, given)?))
            });
            let mut fields: Map<String, Value> = fields.collect::<Result<_, EvmError>>().ok()?;
            shape.add_fixed(&mut fields);
            Some(Described { shape, object: fields })
        })
    }

    /// From EIP-2718 bytes. `None`: they fit no description.
    pub fn decode(bytes: &[u8]) -> Option<Described> {
        let ty = super::type_of(bytes);
        let list = if ty == 0 { bytes } else { bytes.get(1..)? };
        let items: Vec<Item<'_>> = rlp::list(list).ok()?.collect::<Result<_, _>>().ok()?;
        SHAPES.iter().filter(|shape| shape.ty == ty && shape.fields.len() == items.len()).find_map(|shape| {
            let field = |((name, kind), item): (&(&str, Kind), &Item<'_>)| {
                Some(((*name).to_owned(), kind.decode(*item)?))
            };
            let mut object: Map<String, Value> =
                shape.fields.iter().zip(&items).map(field).collect::<Option<_>>()?;
            shape.add_fixed(&mut object);
            let described = Described { shape, object };
            // Each transaction has one encoding.
            (described.encode() == bytes).then_some(described)
        })
    }

    /// The EIP-2718 bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut payload = Vec::new();
        for (name, kind) in self.shape.fields {
            kind.encode(self.object.get(*name).unwrap_or(&Value::Null), &mut payload);
        }
        let mut bytes = Vec::with_capacity(payload.len() + 10);
        if self.shape.ty != 0 {
            bytes.push(self.shape.ty);
        }
        rlp::list_header(payload.len(), &mut bytes);
        bytes.extend_from_slice(&payload);
        bytes
    }

    pub fn ty(&self) -> u8 {
        self.shape.ty
    }

    /// Its fields as JSON, by the names that nodes give them.
    pub fn object(&self) -> &Map<String, Value> {
        &self.object
    }

    /// Whom it calls.
    pub fn to(&self) -> Option<Address> {
        address(self.object.get("to"))
    }

    /// Whether its chain's rules alone say who sent it.
    pub fn has_fixed_sender(&self) -> bool {
        self.shape.fixed.iter().any(|(name, _)| *name == "from")
    }

    /// Who sent it: as its bytes or the chain's rules say, or its signature.
    pub fn sender(&self) -> Sender {
        if let Some(from) = address(self.object.get("from")) {
            return Sender::Proven(from);
        }
        let word = |name: &str| self.object.get(name).and_then(crate::json::quantity).unwrap_or_default();
        let (r, s) = (word("r"), word("s"));
        if r.is_zero() && s.is_zero() {
            return Sender::Unsigned;
        }
        let tx = TxLegacy {
            chain_id: None,
            nonce: word("nonce").saturating_to(),
            gas_price: word("gasPrice").saturating_to(),
            gas_limit: word("gas").saturating_to(),
            to: self.to().map_or(TxKind::Create, TxKind::Call),
            value: word("value"),
            input: data(self.object.get("input")).into(),
        };
        let signature = Signature::new(r, s, word("v") == U256::from(1));
        recover(&signature, tx.signature_hash()).map_or(Sender::None, Sender::Proven)
    }

    /// Its own fields, but for the sender, and what nodes give as zero.
    pub fn put(&self, sink: &mut impl Sink) {
        for (name, kind) in self.shape.fields {
            let value = self.object.get(*name).cloned().unwrap_or_default();
            let left_out = match kind {
                Flag => value == Value::Bool(false),
                OptionalQuantity => value == "0x0",
                _ => *name == "from",
            };
            if !left_out {
                sink.put(name, Field::Json(value));
            }
        }
        for (name, value) in self.shape.fixed.iter().filter(|(name, _)| *name != "from") {
            sink.put(name, Field::Json((*value).into()));
        }
        for name in ZEROS.into_iter().filter(|name| !self.object.contains_key(*name)) {
            sink.put(name, Field::Number(0));
        }
    }
}

impl Shape {
    fn add_fixed(&self, object: &mut Map<String, Value>) {
        object.extend(self.fixed.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())));
    }
}

impl Kind {
    /// Reads a node's field into the one form that [`Kind::encode`] takes.
    fn read(self, object: Object<'_>, name: &str) -> Result<Value, EvmError> {
        let bytes = |bytes: &[u8]| Value::String(hex::encode_prefixed(bytes));
        Ok(match self {
            Number => Field::Number(object.opt_u64(name)?.unwrap_or_default()).into_value(),
            Quantity | OptionalQuantity => {
                Field::Quantity(object.opt_u256(name)?.unwrap_or_default()).into_value()
            }
            Account => bytes(&object.fixed::<20>(name)?),
            Recipient => object.opt_address(name)?.map_or(Value::Null, |address| bytes(address.as_slice())),
            Hash => bytes(&object.fixed::<32>(name)?),
            Data => bytes(&object.data(name)?),
            Flag => Value::Bool(match object.get(name) {
                Some(Value::Bool(flag)) => *flag,
                _ => object.opt_u64(name)?.is_some_and(|flag| flag != 0),
            }),
        })
    }

    fn decode(self, item: Item<'_>) -> Option<Value> {
        let payload = item.string().ok()?;
        let bytes = || Value::String(hex::encode_prefixed(payload));
        Some(match self {
            Number => Field::Number(u64::decode(&mut &*item.raw).ok()?).into_value(),
            Quantity | OptionalQuantity => Field::Quantity(U256::decode(&mut &*item.raw).ok()?).into_value(),
            Account if payload.len() == 20 => bytes(),
            Recipient if payload.is_empty() => Value::Null,
            Recipient if payload.len() == 20 => bytes(),
            Hash if payload.len() == 32 => bytes(),
            Data => bytes(),
            Flag => Value::Bool(bool::decode(&mut &*item.raw).ok()?),
            Account | Recipient | Hash => return None,
        })
    }

    fn encode(self, value: &Value, out: &mut Vec<u8>) {
        match self {
            Number | Quantity | OptionalQuantity => {
                crate::json::quantity(value).unwrap_or_default().encode(out);
            }
            Account | Recipient | Hash | Data => rlp::string(&data(Some(value)), out),
            Flag => (*value == Value::Bool(true)).encode(out),
        }
    }
}

fn data(value: Option<&Value>) -> Vec<u8> {
    value.and_then(Value::as_str).and_then(|text| hex::decode(text).ok()).unwrap_or_default()
}

fn address(value: Option<&Value>) -> Option<Address> {
    Address::try_from(&data(value)[..]).ok()
}

#[cfg(test)]
mod tests {
    use alloy_primitives::{b256, keccak256};
    use serde_json::json;

    use super::*;
    use crate::rpc_block::object::Place;
    use crate::tx::Tx;

    fn candidates(json: &Value, ty: u8) -> Vec<Described> {
        let place = Place { height: Some(7), what: "transaction", index: Some(0) };
        Described::candidates(Object::new(json, place).unwrap(), ty).collect()
    }

    /// The first transactions of real blocks: of OP Mainnet (151,539,208), and of Base (26,293,517).
    #[test]
    fn deposits_of_the_op_stack_hash_to_their_ids() {
        let deposit = |input: &str, source: &str| {
            json!({
                "from": "0xdeaddeaddeaddeaddeaddeaddeaddeaddead0001", "gas": "0xf4240", "gasPrice": "0x0", "input": input,
                "nonce": "0x2c28b94", "to": "0x4200000000000000000000000000000000000015", "value": "0x0", "type": "0x7e", "v": "0x0",
                "r": "0x0", "s": "0x0", "sourceHash": source, "mint": "0x0", "depositReceiptVersion": "0x1",
            })
        };
        let op = deposit(
            "0x3db6be2b0000146b000f79c50000000000000003000000006a04756f00000000017ec99d0000000000000000000000000000000000000000000000000000000020017d620000000000000000000000000000000000000000000000000000000001d918f3af6d6abe101cdf792f420a962b62de02ba52726b1d21f5b9d43aff3c572b27cf0000000000000000000000006887246668a3b87f54deb3b94ba47a6f63f329850000000000000000000000000190",
            "0xc912db3c7247e182b351c44e56b691ebcafbc8ada96c394ee5f5aa65d90b930e",
        );
        let base = deposit(
            "0x440a5e20000008dd00101c1200000000000000030000000067acc63f00000000014d1f2d000000000000000000000000000000000000000000000000000000005ba4c0eb00000000000000000000000000000000000000000000000000000001ce2291bdcbb8f62c15343b39cfacdbf81c4747822ebb16c2518126e47d984422a82defc10000000000000000000000005050f69a9786f081509234f1a7f4684b5e5b76c9",
            "0x990d7122a1f121f3a6bc45723e28f4921c269037a77e77ffee3c8585136d1a92",
        );
        for (json, hash) in [
            (op, b256!("8298e19f39ad1e9a2d670739614fafbbed1d5b3824319384f479168d2d8c8f95")),
            (base, b256!("096c03d72acb06339c9c7860d1c36b6451932ec0ff16fd34aa9e30a73a245e13")),
        ] {
            let found: Vec<Described> =
                candidates(&json, 0x7e).into_iter().filter(|tx| keccak256(tx.encode()) == hash).collect();
            let [deposit] = &found[..] else { panic!("{found:?}") };
            let Some(Tx::Described(decoded)) = Tx::decode(&deposit.encode()).unwrap() else {
                panic!("a deposit")
            };
            assert_eq!(decoded, *deposit);
            let from: Address = json["from"].as_str().unwrap().parse().unwrap();
            assert_eq!(decoded.sender(), Sender::Proven(from));
            assert_eq!(decoded.to().unwrap().to_string().to_lowercase(), json["to"].as_str().unwrap());
            // The node's JSON, but for what its receipt says too.
            let mut served = Map::new();
            decoded.put(&mut served);
            for (name, value) in json.as_object().unwrap() {
                match &name[..] {
                    "from" | "type" | "mint" | "nonce" | "depositReceiptVersion" => {}
                    name => assert_eq!(served.get(name), Some(value), "{name}"),
                }
            }
            assert_eq!(served["nonce"], "0x0");
        }
    }

    #[test]
    fn every_shape_is_read_from_json_and_from_its_own_bytes() {
        let value = |kind: Kind, at: usize| match kind {
            Number | Quantity | OptionalQuantity => json!(format!("{:#x}", at + 1)),
            Account | Recipient => json!(Address::repeat_byte(at as u8)),
            Hash => json!(alloy_primitives::B256::repeat_byte(at as u8)),
            Data => json!("0x0102"),
            Flag => json!(true),
        };
        for shape in &SHAPES {
            let given = shape
                .fields
                .iter()
                .enumerate()
                .map(|(at, (name, kind))| ((*name).to_owned(), value(*kind, at)));
            let given = Value::Object(given.collect());
            let read = candidates(&given, shape.ty)
                .into_iter()
                .find(|tx| tx.shape == shape)
                .expect("its own fields");
            let bytes = read.encode();
            assert_eq!(Described::decode(&bytes).as_ref(), Some(&read), "{shape:?}");
            // What is absent is zero, empty or nobody; without what has no such value the shape isn't meant.
            let needed = |kind: Kind| matches!(kind, Account | Hash);
            let bare: Map<String, Value> = given
                .as_object()
                .unwrap()
                .iter()
                .zip(shape.fields)
                .filter(|(_, (_, kind))| needed(*kind))
                .map(|((name, value), _)| (name.clone(), value.clone()))
                .collect();
            let bare = candidates(&Value::Object(bare), shape.ty);
            let bytes = bare.iter().find(|tx| tx.shape == shape).expect("its own fields").encode();
            assert!(Described::decode(&bytes).is_some_and(|tx| tx.shape == shape), "{shape:?}");
            // Bytes that could be encoded otherwise are nobody's.
            for at in 1..bytes.len() {
                let mut bad = bytes.clone();
                bad[at] ^= 0x80;
                if let Some(tx) = Described::decode(&bad) {
                    assert_eq!(tx.encode(), bad);
                }
                assert!(Described::decode(&bytes[..at]).is_none());
            }
        }
    }
}
