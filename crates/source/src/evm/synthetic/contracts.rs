//! What the contracts of a synthetic chain say of themselves: names, symbols, decimals, supplies, interfaces, token URIs and code.
//!
//! All of it follows from the traffic's seed and the contract. A contract says the same at every block of every fork: a supply is a fixed number. In an economy
//! ([`Mix::Economy`]) that is what its holders have together; elsewhere it stands whatever was minted and burnt.
//!
//! As on a real chain, not every contract keeps to the standard: one token says its name as tokens of before it did, one has none, and one collection knows no
//! URIs. The encodings are written down here on their own, as those of blocks are, and not with the codec that reads them.

use std::collections::{HashMap, HashSet};

use alloy_primitives::{Address, U256};

use super::actions::Mix;
use super::draw::Draw;
use super::traffic::Traffic;

/// `keccak256(signature)[..4]` of the functions that contracts have.
mod selector {
    pub(super) const NAME: [u8; 4] = [0x06, 0xfd, 0xde, 0x03]; // name()
    pub(super) const SYMBOL: [u8; 4] = [0x95, 0xd8, 0x9b, 0x41]; // symbol()
    pub(super) const DECIMALS: [u8; 4] = [0x31, 0x3c, 0xe5, 0x67]; // decimals()
    pub(super) const TOTAL_SUPPLY: [u8; 4] = [0x18, 0x16, 0x0d, 0xdd]; // totalSupply()
    pub(super) const SUPPORTS_INTERFACE: [u8; 4] = [0x01, 0xff, 0xc9, 0xa7]; // supportsInterface(bytes4)
    pub(super) const TOKEN_URI: [u8; 4] = [0xc8, 0x7b, 0x56, 0xdd]; // tokenURI(uint256)
    pub(super) const URI: [u8; 4] = [0x0e, 0x89, 0x34, 0x1c]; // uri(uint256)
}

/// Ids of interfaces (ERC-165).
mod interface {
    pub(super) const ERC165: [u8; 4] = [0x01, 0xff, 0xc9, 0xa7];
    pub(super) const ERC721: [u8; 4] = [0x80, 0xac, 0x58, 0xcd];
    pub(super) const ERC1155: [u8; 4] = [0xd9, 0xb6, 0x7a, 0x26];
}

// Two lists whose lengths have no common divisor: so many pairs are told apart.
const ADJECTIVES: [&str; 16] = [
    "Amber", "Brisk", "Copper", "Dusky", "Early", "Fallow", "Gentle", "Hollow", "Ivory", "Jolly", "Keen",
    "Lunar", "Mossy", "Northern", "Olive", "Pebble",
];
const NOUNS: [&str; 15] = [
    "Acorn", "Badger", "Cairn", "Dune", "Ember", "Fjord", "Grove", "Heron", "Inlet", "Juniper", "Kestrel",
    "Lantern", "Meadow", "Otter", "Quarry",
];
const DECIMALS: [u8; 6] = [18, 18, 6, 8, 18, 0];

/// What a contract is, and its number among those of its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Erc20(usize),
    Erc721(usize),
    Erc1155(usize),
    Wrapped,
    /// It has no function that anybody asks for.
    Other,
}

/// The contracts of a synthetic chain, ready to be asked.
#[derive(Debug)]
pub struct ContractAnswers {
    seed: u64,
    kinds: HashMap<Address, Kind>,
    /// Who has no code.
    accounts: HashSet<Address>,
    /// The token that answers `bytes32`, and the one without name and symbol, by number.
    old_token: Option<usize>,
    nameless_token: Option<usize>,
    /// The collection without URIs, by number.
    bare_collection: Option<usize>,
    /// What is wrapped changes all the time, and a contract that says the same at every block can't say how much it is.
    has_wrapped_supply: bool,
}

impl ContractAnswers {
    /// Those of this traffic: about 0.1 µs for each of its accounts.
    pub fn new(traffic: &Traffic) -> ContractAnswers {
        let contracts = traffic.contracts();
        let mut kinds = HashMap::new();
        let numbered = |addresses: &[Address], kind: fn(usize) -> Kind| -> Vec<(Address, Kind)> {
            addresses.iter().enumerate().map(|(at, address)| (*address, kind(at))).collect()
        };
        kinds.extend(numbered(&contracts.erc20, Kind::Erc20));
        kinds.extend(numbered(&contracts.erc721, Kind::Erc721));
        kinds.extend(numbered(&contracts.erc1155, Kind::Erc1155));
        kinds.insert(contracts.wrapped, Kind::Wrapped);
        let accounts = 0..traffic.options().accounts.max(traffic.options().signers);
        ContractAnswers {
            seed: traffic.options().seed,
            kinds,
            accounts: accounts.map(|at| traffic.account(at)).chain([Address::ZERO]).collect(),
            // The last ones: they are called least.
            old_token: contracts.erc20.len().checked_sub(2),
            nameless_token: contracts.erc20.len().checked_sub(1),
            bare_collection: contracts.erc721.len().checked_sub(1),
            has_wrapped_supply: traffic.options().mix != Mix::Economy,
        }
    }

    /// What a call returns: nothing where there is no contract, and `None` where the contract has no such function and reverts.
    pub fn call(&self, to: Address, input: &[u8]) -> Option<Vec<u8>> {
        if self.accounts.contains(&to) {
            return Some(Vec::new());
        }
        let (selector, arguments) = input.split_first_chunk::<4>()?;
        let kind = self.kind(to);
        match (kind, *selector) {
            (Kind::Erc20(_) | Kind::Erc721(_) | Kind::Wrapped, selector::NAME) => {
                self.text(kind, &self.name(kind)?)
            }
            (Kind::Erc20(_) | Kind::Erc721(_) | Kind::Wrapped, selector::SYMBOL) => {
                self.text(kind, &self.symbol(kind)?)
            }
            (Kind::Erc20(_) | Kind::Wrapped, selector::DECIMALS) => Some(word(U256::from(decimals(kind)))),
            (Kind::Erc20(number), selector::TOTAL_SUPPLY) => {
                Some(word(U256::from(supply_of(self.seed, to, number))))
            }
            (Kind::Wrapped, selector::TOTAL_SUPPLY) if self.has_wrapped_supply => {
                Some(word(U256::from(supply(self.seed, to, kind))))
            }
            (Kind::Erc721(_) | Kind::Erc1155(_), selector::SUPPORTS_INTERFACE) => {
                let asked = arguments.first_chunk::<4>()?;
                Some(word(U256::from(u8::from(supports(kind, *asked)))))
            }
            (Kind::Erc721(number), selector::TOKEN_URI) if self.bare_collection != Some(number) => {
                let id = U256::from_be_bytes(*arguments.first_chunk::<32>()?);
                Some(string(&format!("{}/{id}.json", self.folder(to))))
            }
            (Kind::Erc1155(_), selector::URI) => Some(string(&format!("{}/{{id}}.json", self.folder(to)))),
            _ => None,
        }
    }

    /// The code at an address. Whatever is no account has some: contracts that transactions create are at addresses of their own, and
    /// nobody else is asked about. Tokens of one kind have the same.
    pub fn code(&self, address: Address) -> Vec<u8> {
        if self.accounts.contains(&address) {
            return Vec::new();
        }
        let mut draw = match self.kind(address) {
            Kind::Erc20(_) => Draw::of(&[self.seed, CODE, 20]),
            Kind::Erc721(_) => Draw::of(&[self.seed, CODE, 721]),
            Kind::Erc1155(_) => Draw::of(&[self.seed, CODE, 1_155]),
            Kind::Wrapped | Kind::Other => self.draw_of(CODE, address),
        };
        let mut code = vec![0x60, 0x80, 0x60, 0x40, 0x52];
        code.extend((0..draw.between(2, 12)).flat_map(|_| draw.word().0));
        code
    }

    fn kind(&self, address: Address) -> Kind {
        self.kinds.get(&address).copied().unwrap_or(Kind::Other)
    }

    fn draw_of(&self, what: u64, address: Address) -> Draw {
        draw_of(self.seed, what, address)
    }

    /// Two words, no pair of which comes twice among the first 240 of a chain.
    fn words(&self, number: usize) -> (&'static str, &'static str) {
        let mut draw = Draw::of(&[self.seed, NAMES]);
        let mut some = |of: &[&'static str]| of[(draw.below(of.len() as u64) as usize + number) % of.len()];
        (some(&ADJECTIVES), some(&NOUNS))
    }

    fn name(&self, kind: Kind) -> Option<String> {
        match kind {
            Kind::Erc20(number) if self.nameless_token == Some(number) => None,
            Kind::Erc20(number) => {
                let (adjective, noun) = self.words(number);
                Some(format!("{adjective} {noun}"))
            }
            Kind::Erc721(number) => {
                let (adjective, noun) = self.words(COLLECTIONS_FROM + number);
                Some(format!("{adjective} {noun} Club"))
            }
            Kind::Wrapped => Some("Wrapped Coin".into()),
            Kind::Erc1155(_) | Kind::Other => None,
        }
    }

    fn symbol(&self, kind: Kind) -> Option<String> {
        let name = self.name(kind)?;
        let mut words = name.split(' ');
        let (first, second) = (words.next()?, words.next()?);
        Some(format!("{}{}", first.get(..1)?, second.get(..3)?).to_uppercase())
    }

    /// Where the descriptions of a collection's items would be.
    fn folder(&self, collection: Address) -> String {
        format!("ipfs://{:x}", self.draw_of(URIS, collection).word())
    }

    /// A text as this contract returns it.
    fn text(&self, kind: Kind, text: &str) -> Option<Vec<u8>> {
        match kind {
            Kind::Erc20(number) if self.old_token == Some(number) => {
                let mut bytes = text.as_bytes().to_vec();
                bytes.resize(32, 0);
                Some(bytes)
            }
            _ => Some(string(text)),
        }
    }
}

fn draw_of(seed: u64, what: u64, address: Address) -> Draw {
    let mut words = vec![seed, what];
    words.extend(
        address.0.chunks(8).map(|bytes| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte))),
    );
    Draw::of(&words)
}

/// How much of the ERC-20 token with this number there is, in its smallest unit.
pub(crate) fn supply_of(seed: u64, token: Address, number: usize) -> u128 {
    supply(seed, token, Kind::Erc20(number))
}

fn supply(seed: u64, token: Address, kind: Kind) -> u128 {
    let whole = draw_of(seed, SUPPLY, token).between(1, 9_999) * 1_000_000;
    u128::from(whole) * 10u128.pow(u32::from(decimals(kind)))
}

fn decimals(kind: Kind) -> u8 {
    match kind {
        Kind::Erc20(number) => DECIMALS[number % DECIMALS.len()],
        _ => 18,
    }
}

fn supports(kind: Kind, asked: [u8; 4]) -> bool {
    match kind {
        Kind::Erc721(_) => [interface::ERC165, interface::ERC721].contains(&asked),
        Kind::Erc1155(_) => [interface::ERC165, interface::ERC1155].contains(&asked),
        _ => false,
    }
}

fn word(number: U256) -> Vec<u8> {
    number.to_be_bytes_vec()
}

/// ABI: where it begins, its length, its bytes, zeros up to a whole word.
fn string(text: &str) -> Vec<u8> {
    let mut out = word(U256::from(32));
    out.extend(word(U256::from(text.len())));
    out.extend(text.as_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    out
}

/// Tokens take the words before.
const COLLECTIONS_FROM: usize = 100;

// Which stream of numbers is drawn from; other files have 1 to 5.
const NAMES: u64 = 6;
const SUPPLY: u64 = 7;
const URIS: u64 = 8;
const CODE: u64 = 9;

#[cfg(test)]
mod tests {
    use alloy_primitives::keccak256;

    use super::super::{SyntheticChain, SyntheticOptions};
    use super::*;

    fn chain(seed: u64) -> SyntheticChain {
        SyntheticChain::new(SyntheticOptions { seed, ..SyntheticOptions::default() })
    }

    fn text(answer: &[u8]) -> String {
        let (head, tail) = answer.split_at(64);
        assert_eq!(head[..32], word(U256::from(32)));
        let length = usize::from(head[63]);
        assert!(tail.len().is_multiple_of(32) && tail[length..].iter().all(|byte| *byte == 0));
        String::from_utf8(tail[..length].to_vec()).expect("text")
    }

    fn number(answer: &[u8]) -> U256 {
        U256::from_be_slice(answer)
    }

    fn with_id(selector: [u8; 4], id: u64) -> Vec<u8> {
        [&selector[..], &word(U256::from(id))].concat()
    }

    fn interfaces(answers: &ContractAnswers, of: Address) -> [Option<U256>; 2] {
        [interface::ERC721, interface::ERC1155].map(|id| {
            let input = [&selector::SUPPORTS_INTERFACE[..], &id[..], &[0; 28][..]].concat();
            answers.call(of, &input).map(|answer| number(&answer))
        })
    }

    #[test]
    fn selectors_are_the_hashes_of_their_signatures() {
        for (selector, signature) in [
            (selector::NAME, "name()"),
            (selector::SYMBOL, "symbol()"),
            (selector::DECIMALS, "decimals()"),
            (selector::TOTAL_SUPPLY, "totalSupply()"),
            (selector::SUPPORTS_INTERFACE, "supportsInterface(bytes4)"),
            (selector::TOKEN_URI, "tokenURI(uint256)"),
            (selector::URI, "uri(uint256)"),
            (interface::ERC165, "supportsInterface(bytes4)"),
        ] {
            assert_eq!(selector, keccak256(signature)[..4], "{signature}");
        }
    }

    #[test]
    fn tokens_have_names_of_their_own_that_follow_from_the_seed() {
        let (ours, again, other) = (chain(7), chain(7), chain(8));
        let [ours_say, again_say, other_says] =
            [&ours, &again, &other].map(|chain| ContractAnswers::new(chain.traffic()));
        let contracts = ours.traffic().contracts();
        let mut names = HashSet::new();
        let (named, odd) = contracts.erc20.split_at(contracts.erc20.len() - 2);
        for token in named.iter().chain([&contracts.wrapped]) {
            let name = ours_say.call(*token, &selector::NAME).expect("a name");
            assert_eq!(again_say.call(*token, &selector::NAME).as_ref(), Some(&name));
            assert!(names.insert(text(&name)), "{name:?} comes twice");
            assert_eq!(text(&ours_say.call(*token, &selector::SYMBOL).expect("a symbol")).len(), 4);
            let decimals = number(&ours_say.call(*token, &selector::DECIMALS).expect("decimals"));
            assert!(decimals <= U256::from(18));
            let supply = number(&ours_say.call(*token, &selector::TOTAL_SUPPLY).expect("a supply"));
            assert!(supply >= U256::from(1_000_000) * U256::from(10).pow(decimals));
            // A token isn't a collection, and says so by having no such function.
            assert_eq!(interfaces(&ours_say, *token), [None, None]);
            // Another seed's chain has other contracts.
            assert_eq!(other_says.call(*token, &selector::NAME), None);
        }
        // As tokens of before the standard, and without any.
        let old = ours_say.call(odd[0], &selector::NAME).expect("a name");
        assert!(old.len() == 32 && old[0].is_ascii_uppercase() && old[31] == 0, "{old:?}");
        assert_eq!(ours_say.call(odd[1], &selector::NAME), None);
        assert_eq!(ours_say.call(odd[1], &selector::SYMBOL), None);
        assert!(ours_say.call(odd[1], &selector::DECIMALS).is_some());
    }

    #[test]
    fn collections_say_which_standard_they_keep_to_and_where_their_items_are_described() {
        let chain = chain(7);
        let answers = ContractAnswers::new(chain.traffic());
        let contracts = chain.traffic().contracts();
        let (yes, no) = (Some(U256::from(1)), Some(U256::ZERO));
        let (bare, collections) = contracts.erc721.split_last().expect("some");
        for collection in collections {
            assert!(text(&answers.call(*collection, &selector::NAME).expect("a name")).ends_with(" Club"));
            assert_eq!(interfaces(&answers, *collection), [yes, no]);
            let uri = text(&answers.call(*collection, &with_id(selector::TOKEN_URI, 12)).expect("a URI"));
            assert!(uri.starts_with("ipfs://") && uri.ends_with("/12.json"), "{uri}");
            assert_eq!(answers.call(*collection, &with_id(selector::URI, 12)), None);
        }
        assert_eq!(answers.call(*bare, &with_id(selector::TOKEN_URI, 12)), None);
        for multi in &contracts.erc1155 {
            assert_eq!(interfaces(&answers, *multi), [no, yes]);
            assert!(
                text(&answers.call(*multi, &with_id(selector::URI, 3)).expect("a URI")).contains("/{id}.")
            );
        }
        // What is cut short is refused.
        for input in [&selector::TOKEN_URI[..], &selector::SUPPORTS_INTERFACE, &[0x06], &[]] {
            assert_eq!(answers.call(collections[0], input), None, "{input:?}");
        }
    }

    #[test]
    fn contracts_have_code_and_accounts_have_none() {
        let chain = chain(7);
        let answers = ContractAnswers::new(chain.traffic());
        let contracts = chain.traffic().contracts();
        assert_eq!(answers.code(contracts.erc20[0]), answers.code(contracts.erc20[1]));
        assert_ne!(answers.code(contracts.erc20[0]), answers.code(contracts.erc721[0]));
        let created = chain.traffic().account(0).create(3);
        assert_ne!(answers.code(contracts.rare[0]), answers.code(created));
        assert!(answers.code(created).starts_with(&[0x60, 0x80, 0x60, 0x40, 0x52]));
        for account in [chain.traffic().account(0), chain.traffic().account(4_999), Address::ZERO] {
            assert!(answers.code(account).is_empty());
            assert_eq!(answers.call(account, &selector::NAME), Some(Vec::new()));
        }
    }
}
