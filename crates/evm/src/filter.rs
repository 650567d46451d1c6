//! Filters of logs: what `eth_getLogs` and the `logs` subscription take.
//!
//! A filter is an AND of ORs: the address is one of some, and the topic at each constrained position is one of some. It is used
//! twice: [`LogFilter::groups`] asks the store's index for the blocks that may hold a match, and [`LogFilter::matches`] judges each log
//! exactly. The groups are never narrower than the filter.

use alloy_primitives::{Address, B256};
use cairn_core::IndexKey;
use serde_json::{Map, Value};

pub use crate::params::{BlockTag, ParamError, TagHeights};
use crate::params::{kind_of, parse_address, parse_block_tag, parse_hash};
use crate::terms::{TermSlot, log_term, unknown_logs_term};

/// How many topics a log can have, and so a filter's positions.
pub const MAX_TOPIC_POSITIONS: usize = 4;

/// How large a filter may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilterLimits {
    /// The most addresses, as sent (repeats count).
    pub max_addresses: usize,
    /// The most topics at one position, as sent (repeats count).
    pub max_topics_per_position: usize,
}

impl Default for FilterLimits {
    fn default() -> Self {
        FilterLimits { max_addresses: 1000, max_topics_per_position: 1000 }
    }
}

/// The blocks whose logs are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSelector {
    /// One block by its hash.
    Hash(B256),
    /// A range with both ends in it. A bound that was not given is `latest`, as geth has it.
    Range {
        /// The first block.
        from: BlockTag,
        /// The last block.
        to: BlockTag,
    },
}

/// Why a range can't be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// It is reversed or ends above the head: JSON-RPC error −32602. Nothing is clamped.
    #[error(transparent)]
    Invalid(ParamError),
    /// The chain has no such block yet, or doesn't know the tag.
    #[error("{0} block not found")]
    UnknownTag(BlockTag),
}

/// Turns the bounds of a range into heights `(first, last)`, both in it.
///
/// The order of the checks is part of the contract: a reversed range is never reported as too wide or too high.
pub fn resolve_range(from: BlockTag, to: BlockTag, heights: &TagHeights) -> Result<(u64, u64), RangeError> {
    let first = from.resolve(heights).ok_or(RangeError::UnknownTag(from))?;
    let last = to.resolve(heights).ok_or(RangeError::UnknownTag(to))?;
    // `[101, "latest"]` above head 100 reaches into the future; it is not reversed.
    if first > heights.latest && !matches!(to, BlockTag::Number(_)) {
        return Err(RangeError::Invalid(beyond_head(first, heights.latest)));
    }
    if first > last {
        return Err(RangeError::Invalid(ParamError::new(format!(
            "invalid block range params: fromBlock {first:#x} is above toBlock {last:#x}"
        ))));
    }
    if last > heights.latest {
        return Err(RangeError::Invalid(beyond_head(last, heights.latest)));
    }
    Ok((first, last))
}

fn beyond_head(asked: u64, head: u64) -> ParamError {
    ParamError::new(format!(
        "block range extends beyond current head block: {asked:#x} asked, the head is {head:#x}"
    ))
}

/// Which logs are asked for. Empty: every log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LogFilter {
    addresses: Vec<Address>,
    topics: Vec<Option<Vec<B256>>>,
}

impl LogFilter {
    /// A filter for logs of one of `addresses` (of any, where there are none) whose topic at each position is one of those given
    /// (`None` or an empty list: any topic). Repeats are dropped.
    ///
    /// A log with fewer topics than `topics` has positions never matches, positions without a demand included: that is geth's way.
    pub fn new(mut addresses: Vec<Address>, topics: Vec<Option<Vec<B256>>>) -> LogFilter {
        addresses.sort_unstable();
        addresses.dedup();
        let topics = topics
            .into_iter()
            .map(|position| {
                let mut position = position?;
                position.sort_unstable();
                position.dedup();
                (!position.is_empty()).then_some(position)
            })
            .collect();
        LogFilter { addresses, topics }
    }

    /// The addresses, sorted and without repeats; none: any address.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// The topics by position, sorted and without repeats, never an empty list; `None`: any topic.
    pub fn topics(&self) -> &[Option<Vec<B256>>] {
        &self.topics
    }

    /// Whether every log matches.
    pub fn is_unconstrained(&self) -> bool {
        self.addresses.is_empty() && self.topics.is_empty()
    }

    /// The filter for the store's index: a block may hold a match only if it has at least one key of each group. No groups: every block
    /// with a log. No group is ever empty.
    ///
    /// Each group finds the blocks too of which not all logs are known: what a filter finds in them is not known.
    /// Positions without a demand give no group, so the groups may be wider than the filter, never narrower: logs without topics
    /// (LOG0) are found by address and by the empty filter.
    pub fn groups(&self) -> Vec<Vec<IndexKey>> {
        let group = |keys: &mut dyn Iterator<Item = IndexKey>| {
            let mut keys: Vec<IndexKey> = keys.chain([unknown_logs_term()]).collect();
            keys.sort_unstable();
            keys.dedup();
            keys
        };
        let mut groups = Vec::with_capacity(1 + self.topics.len());
        if !self.addresses.is_empty() {
            groups.push(group(&mut self.addresses.iter().map(|a| log_term(TermSlot::Address, a.as_slice()))));
        }
        for (position, topics) in (0u8..).zip(&self.topics) {
            if let Some(topics) = topics {
                let slot = TermSlot::Topic(position);
                groups.push(group(&mut topics.iter().map(|t| log_term(slot, t.as_slice()))));
            }
        }
        groups
    }

    /// Whether a log of `address` with these topics is asked for.
    pub fn matches<'a>(&self, address: &Address, topics: impl IntoIterator<Item = &'a B256>) -> bool {
        if !self.addresses.is_empty() && self.addresses.binary_search(address).is_err() {
            return false;
        }
        let mut topics = topics.into_iter();
        self.topics.iter().all(|wanted| match (topics.next(), wanted) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(topic), Some(wanted)) => wanted.binary_search(topic).is_ok(),
        })
    }
}

/// Parses the filter object of `eth_getLogs` and of the `logs` subscription.
///
/// * `blockHash` excludes `fromBlock` and `toBlock`; a `null` is as good as absent; a bound that isn't there is `latest`.
/// * `address`: null, one, or a list. `topics`: null, or a list of at most [`MAX_TOPIC_POSITIONS`] of null, one, or a list; an
///   empty list, or one with a null in it, is a wildcard.
/// * Unknown keys are ignored, as geth does.
pub fn parse_filter(value: &Value, limits: &FilterLimits) -> Result<(BlockSelector, LogFilter), ParamError> {
    let Value::Object(object) = value else {
        return Err(ParamError::new(format!("expected a filter object, got {}", kind_of(value))));
    };
    let blocks = parse_blocks(object)?;
    let addresses = match field(object, "address") {
        None => Vec::new(),
        Some(Value::Array(list)) => {
            within_limit(list.len(), limits.max_addresses, "address", "addresses")?;
            list.iter()
                .enumerate()
                .map(|(i, value)| {
                    parse_address(value).map_err(|error| error.within(format_args!("address[{i}]")))
                })
                .collect::<Result<_, _>>()?
        }
        Some(value) => vec![parse_address(value).map_err(|error| error.within("address"))?],
    };
    let topics = match field(object, "topics") {
        None => Vec::new(),
        Some(Value::Array(list)) => {
            within_limit(list.len(), MAX_TOPIC_POSITIONS, "topics", "positions")?;
            list.iter()
                .enumerate()
                .map(|(position, value)| parse_position(position, value, limits))
                .collect::<Result<_, _>>()?
        }
        Some(value) => {
            return Err(ParamError::new(format!("topics: expected a list, got {}", kind_of(value))));
        }
    };
    Ok((blocks, LogFilter::new(addresses, topics)))
}

fn field<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

fn parse_blocks(object: &Map<String, Value>) -> Result<BlockSelector, ParamError> {
    let (from, to) = (field(object, "fromBlock"), field(object, "toBlock"));
    if let Some(hash) = field(object, "blockHash") {
        if from.is_some() || to.is_some() {
            return Err(ParamError::new(
                "cannot specify both blockHash and fromBlock/toBlock, choose one or the other",
            ));
        }
        return parse_hash(hash).map(BlockSelector::Hash).map_err(|error| error.within("blockHash"));
    }
    let bound = |value: Option<&Value>, name: &str| match value {
        None => Ok(BlockTag::Latest),
        Some(value) => parse_block_tag(value).map_err(|error| error.within(name)),
    };
    Ok(BlockSelector::Range { from: bound(from, "fromBlock")?, to: bound(to, "toBlock")? })
}

fn parse_position(
    position: usize,
    value: &Value,
    limits: &FilterLimits,
) -> Result<Option<Vec<B256>>, ParamError> {
    let place = |i: Option<usize>| match i {
        Some(i) => format!("topics[{position}][{i}]"),
        None => format!("topics[{position}]"),
    };
    match value {
        Value::Null => Ok(None),
        Value::Array(list) => {
            within_limit(list.len(), limits.max_topics_per_position, &place(None), "topics")?;
            let mut topics = Vec::with_capacity(list.len());
            for (i, value) in list.iter().enumerate() {
                if value.is_null() {
                    return Ok(None);
                }
                topics.push(parse_hash(value).map_err(|error| error.within(place(Some(i))))?);
            }
            Ok((!topics.is_empty()).then_some(topics))
        }
        _ => parse_hash(value).map(|topic| Some(vec![topic])).map_err(|error| error.within(place(None))),
    }
}

fn within_limit(found: usize, limit: usize, place: &str, what: &str) -> Result<(), ParamError> {
    if found > limit {
        return Err(ParamError::new(format!("{place}: {found} {what} are over the limit of {limit}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const A: Address = Address::repeat_byte(0xaa);
    const B: Address = Address::repeat_byte(0xbb);

    fn topic(n: u8) -> B256 {
        B256::repeat_byte(n)
    }

    fn parse(value: Value) -> Result<(BlockSelector, LogFilter), ParamError> {
        parse_filter(&value, &FilterLimits::default())
    }

    fn filter(value: Value) -> LogFilter {
        parse(value).expect("a good filter").1
    }

    #[test]
    fn bounds_default_to_latest_and_exclude_a_hash() {
        let latest = BlockSelector::Range { from: BlockTag::Latest, to: BlockTag::Latest };
        assert_eq!(parse(json!({})), Ok((latest, LogFilter::default())));
        assert_eq!(
            parse(json!({"fromBlock": null, "toBlock": null, "address": null, "topics": null, "limit": 7})),
            Ok((latest, LogFilter::default()))
        );
        assert_eq!(
            parse(json!({"fromBlock": "0x1", "toBlock": "safe"})).map(|f| f.0),
            Ok(BlockSelector::Range { from: BlockTag::Number(1), to: BlockTag::Safe })
        );
        assert_eq!(
            parse(json!({"blockHash": topic(1), "toBlock": null})).map(|f| f.0),
            Ok(BlockSelector::Hash(topic(1)))
        );
        for wrong in [
            json!({"blockHash": topic(1), "fromBlock": "0x3", "toBlock": "0x4"}),
            json!({"blockHash": topic(1), "fromBlock": "latest"}),
            json!({"blockHash": topic(1), "toBlock": "0x4"}),
            json!({"blockHash": "0x1"}),
            json!({"fromBlock": 1}),
            json!({"fromBlock": "1"}),
            json!(null),
            json!([]),
            json!("latest"),
        ] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn topics_take_null_scalar_and_list() {
        let t = |n| Some(vec![topic(n)]);
        assert_eq!(filter(json!({"topics": [topic(1), null, [topic(2)]]})).topics(), [t(1), None, t(2)]);
        assert_eq!(filter(json!({"topics": [[], [topic(2)]]})).topics(), [None, t(2)]);
        assert_eq!(filter(json!({"topics": []})).topics(), []);
        // A null inside a list is a wildcard for the position.
        assert_eq!(filter(json!({"topics": [[topic(1), null]]})).topics(), [None]);
        assert_eq!(filter(json!({"topics": [[null, topic(1)]]})).topics(), [None]);
        for wrong in [
            json!({"topics": topic(1)}),
            json!({"topics": [1]}),
            json!({"topics": [[[topic(1)]]]}),
            json!({"topics": [{}]}),
            json!({"topics": ["0x1"]}),
            json!({"topics": [null, null, null, null, null]}),
            json!({"address": {}}),
            json!({"address": [A, null]}),
            json!({"address": [[A]]}),
            json!({"address": "0x"}),
        ] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn g02_logs_without_topics_are_found_by_address_and_by_empty_topics() {
        for (found, value) in [
            (true, json!({})),
            (true, json!({"topics": []})),
            (true, json!({"address": A})),
            (true, json!({"address": [B, A], "topics": []})),
            (false, json!({"address": B})),
            // A position is a demand for a topic there, whatever it holds.
            (false, json!({"topics": [null]})),
            (false, json!({"topics": [[]]})),
            (false, json!({"topics": [topic(1)]})),
        ] {
            assert_eq!(filter(value.clone()).matches(&A, []), found, "{value}");
        }
        assert_eq!(filter(json!({"topics": []})).groups(), Vec::<Vec<IndexKey>>::new());
        assert_eq!(
            filter(json!({"address": A})).groups(),
            vec![group(&[log_term(TermSlot::Address, A.as_slice())])]
        );
        // Positions without a demand must not narrow the search.
        assert!(filter(json!({"topics": [null, []]})).groups().is_empty());
    }

    /// A group of these keys, and that of the blocks of which not all logs are known.
    fn group(keys: &[IndexKey]) -> Vec<IndexKey> {
        let mut keys = [keys, &[unknown_logs_term()]].concat();
        keys.sort_unstable();
        keys
    }

    #[test]
    fn a_position_is_judged_by_its_own_topics() {
        let wanted = filter(json!({"address": [A, B], "topics": [[topic(1), topic(2)], null, topic(3)]}));
        let log = |topics: &[u8]| topics.iter().map(|&n| topic(n)).collect::<Vec<_>>();
        assert!(wanted.matches(&A, &log(&[1, 9, 3])));
        assert!(wanted.matches(&B, &log(&[2, 9, 3, 4])));
        assert!(!wanted.matches(&B, &log(&[1, 9])));
        assert!(!wanted.matches(&B, &log(&[3, 9, 1])));
        assert!(!wanted.matches(&Address::ZERO, &log(&[1, 9, 3])));
        assert_eq!(wanted.groups().len(), 3);
        assert_eq!(wanted.groups()[1].len(), group(&[1, 2]).len());
        assert_ne!(
            filter(json!({"topics": [topic(1)]})).groups(),
            filter(json!({"topics": [null, topic(1)]})).groups()
        );
    }

    #[test]
    fn g03_a_range_beyond_the_head_or_reversed_is_refused() {
        let heights = TagHeights { earliest: 0, latest: 100, safe: Some(90), finalized: None };
        let range = |from: &str, to: &str| {
            let selector = parse(json!({"fromBlock": from, "toBlock": to})).expect("well-formed").0;
            let BlockSelector::Range { from, to } = selector else { panic!("a range") };
            resolve_range(from, to, &heights)
        };
        let message = |result: Result<(u64, u64), RangeError>| result.expect_err("refused").to_string();
        assert!(message(range("0x65", "0x65")).contains("beyond current head"));
        assert!(message(range("0x32", "0x96")).contains("beyond current head"));
        assert!(message(range("0x65", "latest")).contains("beyond current head"));
        assert!(message(range("0x14", "0xa")).contains("invalid block range"));
        assert!(message(range("latest", "0xa")).contains("invalid block range"));
        assert!(message(range("latest", "safe")).contains("invalid block range"));
        // Both wrong: the order decides, not the width.
        assert!(message(range("0xffff", "0xfff")).contains("invalid block range"));
        assert_eq!(range("latest", "latest"), Ok((100, 100)));
        assert_eq!(range("pending", "pending"), Ok((100, 100)));
        assert_eq!(range("earliest", "safe"), Ok((0, 90)));
        assert_eq!(range("0x64", "latest"), Ok((100, 100)));
        assert_eq!(range("0x0", "finalized"), Err(RangeError::UnknownTag(BlockTag::Finalized)));
    }

    #[test]
    fn g08_a_topic_with_leading_zero_bytes_stays_whole() {
        let low = B256::with_last_byte(1);
        let wanted = filter(json!({"topics": [low]}));
        assert!(wanted.matches(&A, &[low]));
        assert!(parse(json!({"topics": ["0x1"]})).is_err());
        assert!(parse(json!({"fromBlock": "0x010f"})).is_err());
        assert_eq!(
            parse(json!({"fromBlock": "0x10f", "toBlock": "0x0"})).map(|f| f.0),
            Ok(BlockSelector::Range { from: BlockTag::Number(271), to: BlockTag::Number(0) })
        );
    }

    #[test]
    fn g09_repeated_addresses_count_once_and_lists_are_limited() {
        let lower = "0x7dcd17433742f4c0ca53122ab541d0ba67fc27df";
        let upper = lower.to_uppercase().replace("0X", "0x");
        let mixed = "0x7DCD17433742f4c0ca53122ab541d0ba67fc27df";
        let wanted = filter(json!({"address": [lower, upper, mixed], "topics": [[topic(1), topic(1)]]}));
        assert_eq!(wanted.addresses().len(), 1);
        let one = group(&[1]).len();
        assert_eq!(wanted.groups().iter().map(Vec::len).collect::<Vec<_>>(), [one, one]);

        let addresses =
            |n: u64| (0..n).map(|i| Address::left_padding_from(&i.to_be_bytes())).collect::<Vec<_>>();
        let many = filter(json!({"address": addresses(1000)}));
        assert_eq!(many.addresses().len(), 1000);
        assert!(many.matches(&addresses(1000)[777], []));
        assert!(!many.matches(&A, []));
        let message = parse(json!({"address": addresses(1001)})).expect_err("over the limit").to_string();
        assert!(message.contains("1001") && message.contains("1000"), "{message}");
        let topics: Vec<_> = (0..1001u64).map(|i| B256::left_padding_from(&i.to_be_bytes())).collect();
        assert!(parse(json!({"topics": [topics[..1000]]})).is_ok());
        assert!(parse(json!({"topics": [topics]})).is_err());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC*".prop_map(Value::from),
            "0[xX][0-9a-fA-F]{0,70}".prop_map(Value::from),
            Just(json!("latest")),
            Just(json!(topic(1))),
            Just(json!(A)),
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            let key = prop_oneof![
                Just("address".to_owned()),
                Just("topics".to_owned()),
                Just("fromBlock".to_owned()),
                Just("toBlock".to_owned()),
                Just("blockHash".to_owned()),
                "[a-z]{0,8}",
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..8)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_a_filter_or_a_clear_error(value in any_json()) {
            match parse(value) {
                Ok((_, filter)) => {
                    prop_assert!(filter.topics().len() <= MAX_TOPIC_POSITIONS);
                    prop_assert!(filter.groups().iter().all(|group| !group.is_empty()));
                }
                Err(error) => prop_assert!(error.to_string().len() < 500),
            }
        }

        /// Whatever matches is found by the index: each group holds a term of the log.
        #[test]
        fn groups_never_hide_a_match(
            addresses in prop::collection::vec(0u8..4, 0..3),
            positions in prop::collection::vec(prop::option::of(prop::collection::vec(0u8..4, 0..3)), 0..5),
            address in 0u8..4,
            log in prop::collection::vec(0u8..4, 0..5),
        ) {
            let filter = LogFilter::new(
                addresses.iter().map(|&n| Address::repeat_byte(n)).collect(),
                positions.iter().map(|p| p.as_ref().map(|p| p.iter().map(|&n| topic(n)).collect())).collect(),
            );
            let address = Address::repeat_byte(address);
            let topics: Vec<_> = log.iter().map(|&n| topic(n)).collect();
            let plain = (addresses.is_empty() || addresses.iter().any(|&n| Address::repeat_byte(n) == address))
                && positions.len() <= topics.len()
                && positions.iter().zip(&log).all(|(wanted, n)| {
                    wanted.as_ref().is_none_or(|wanted| wanted.is_empty() || wanted.contains(n))
                });
            prop_assert_eq!(filter.matches(&address, &topics), plain);
            if plain {
                let terms: Vec<_> = std::iter::once(log_term(TermSlot::Address, address.as_slice()))
                    .chain((0u8..).zip(&topics).map(|(i, t)| log_term(TermSlot::Topic(i), t.as_slice())))
                    .collect();
                prop_assert!(filter.groups().iter().all(|group| group.iter().any(|key| terms.contains(key))));
            }
        }
    }
}
