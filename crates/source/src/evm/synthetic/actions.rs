//! What a synthetic transaction does: its call, and the logs that it leaves.

use alloy_primitives::{Address, B256, Bytes as LogBytes, Log, U256, keccak256};

use super::Traffic;
use super::draw::Draw;

/// Which kinds of actions come, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mix {
    /// Some of everything: ERC-20, ERC-721, ERC-1155, wrapped coin, swaps, plain transfers, creations, anonymous logs.
    Varied,
    /// The same kinds, of people who give away only what they have: see the module `economy`.
    Economy,
    /// What a busy chain mostly has, for benchmarks: ERC-20 transfers and swaps with about 2 logs and 100 bytes of data a
    /// transaction, recipients evenly from all accounts, and one call in a hundred to one of many rare contracts.
    TokenHeavy,
}

/// The contracts of a synthetic chain.
#[derive(Debug, Clone)]
pub struct Contracts {
    /// ERC-20 tokens, the busiest first.
    pub erc20: Vec<Address>,
    /// ERC-721 collections.
    pub erc721: Vec<Address>,
    /// ERC-1155 collections.
    pub erc1155: Vec<Address>,
    /// The wrapped coin.
    pub wrapped: Address,
    /// Where tokens are swapped.
    pub exchange: Address,
    /// Contracts that are hardly ever called.
    pub rare: Vec<Address>,
}

impl Contracts {
    pub(crate) fn new(seed: u64, mix: Mix) -> Contracts {
        let mut draw = Draw::of(&[seed, 0xc0de]);
        let mut some = |count: usize| (0..count).map(|_| draw.address()).collect::<Vec<_>>();
        let (erc20, rare) = match mix {
            Mix::Varied | Mix::Economy => (8, 64),
            Mix::TokenHeavy => (64, 50_000),
        };
        Contracts {
            erc20: some(erc20),
            erc721: some(4),
            erc1155: some(2),
            wrapped: some(1)[0],
            exchange: some(1)[0],
            rare: some(rare),
        }
    }

    /// The same, each where transaction `g` of a chain creates it, in order.
    pub(crate) fn deployed(self, created_by: impl Fn(u64) -> Address) -> Contracts {
        let mut next = 0..;
        let mut created = |_: &Address| next.next().map(&created_by).unwrap_or_default();
        Contracts {
            erc20: self.erc20.iter().map(&mut created).collect(),
            erc721: self.erc721.iter().map(&mut created).collect(),
            erc1155: self.erc1155.iter().map(&mut created).collect(),
            wrapped: created(&self.wrapped),
            exchange: created(&self.exchange),
            rare: self.rare.iter().map(&mut created).collect(),
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        (self.erc20.len() + self.erc721.len() + self.erc1155.len() + 2 + self.rare.len()) as u64
    }
}

/// Event signatures and method selectors, hashed once.
struct Abi {
    transfer: B256,
    approval: B256,
    transfer_single: B256,
    transfer_batch: B256,
    deposit: B256,
    withdrawal: B256,
    swap: B256,
    ping: B256,
}

static ABI: std::sync::LazyLock<Abi> = std::sync::LazyLock::new(|| Abi {
    transfer: keccak256("Transfer(address,address,uint256)"),
    approval: keccak256("Approval(address,address,uint256)"),
    transfer_single: keccak256("TransferSingle(address,address,address,uint256,uint256)"),
    transfer_batch: keccak256("TransferBatch(address,address,address,uint256[],uint256[])"),
    deposit: keccak256("Deposit(address,uint256)"),
    withdrawal: keccak256("Withdrawal(address,uint256)"),
    swap: keccak256("Swap(address,uint256,uint256,uint256,uint256,address)"),
    ping: keccak256("Ping(address,uint256)"),
});

/// `keccak256(signature)[..4]` of the methods that are called.
mod selector {
    pub(super) const TRANSFER: [u8; 4] = [0xa9, 0x05, 0x9c, 0xbb]; // transfer(address,uint256)
    pub(super) const TRANSFER_FROM: [u8; 4] = [0x23, 0xb8, 0x72, 0xdd]; // transferFrom(address,address,uint256)
    pub(super) const MINT: [u8; 4] = [0x40, 0xc1, 0x0f, 0x19]; // mint(address,uint256)
    pub(super) const BURN: [u8; 4] = [0x42, 0x96, 0x6c, 0x68]; // burn(uint256)
    pub(super) const SAFE_TRANSFER_FROM: [u8; 4] = [0x42, 0x84, 0x2e, 0x0e]; // safeTransferFrom(address,address,uint256)
    pub(super) const SINGLE: [u8; 4] = [0xf2, 0x42, 0x43, 0x2a]; // safeTransferFrom(address,address,uint256,uint256,bytes)
    pub(super) const BATCH: [u8; 4] = [0x2e, 0xb2, 0xc2, 0xd6]; // safeBatchTransferFrom(address,address,uint256[],uint256[],bytes)
    pub(super) const DEPOSIT: [u8; 4] = [0xd0, 0xe3, 0x0d, 0xb0]; // deposit()
    pub(super) const WITHDRAW: [u8; 4] = [0x2e, 0x1a, 0x7d, 0x4d]; // withdraw(uint256)
    pub(super) const SWAP: [u8; 4] = [0x02, 0x2c, 0x0d, 0x9f]; // swap(uint256,uint256,address,bytes)
    pub(super) const POKE: [u8; 4] = [0x18, 0x17, 0x83, 0x58]; // poke()
}

pub(crate) struct Action {
    /// `None` creates a contract.
    pub(crate) to: Option<Address>,
    pub(crate) value: U256,
    pub(crate) input: Vec<u8>,
    pub(crate) logs: Vec<Log>,
    pub(crate) gas_used: u64,
}

impl Action {
    pub(crate) fn draw(draw: &mut Draw, traffic: &Traffic, from: Address) -> Action {
        match traffic.options().mix {
            // What an economy does is not drawn here.
            Mix::Varied | Mix::Economy => varied(draw, traffic, from),
            Mix::TokenHeavy => token_heavy(draw, traffic, from),
        }
    }

    fn call(to: Address, input: Vec<u8>, gas_used: u64, logs: Vec<Log>) -> Action {
        Action { to: Some(to), value: U256::ZERO, input, logs, gas_used }
    }
}

fn varied(draw: &mut Draw, traffic: &Traffic, from: Address) -> Action {
    let contracts = traffic.contracts();
    let accounts = u64::from(traffic.options().accounts.max(1));
    let other = traffic.account(draw.log_uniform(accounts) as u32);
    let token = pick(draw, &contracts.erc20);
    let nft = pick(draw, &contracts.erc721);
    let multi = pick(draw, &contracts.erc1155);
    let none = Address::ZERO;
    let amount = draw.amount(24);
    match draw.below(100) {
        0..=34 => erc20(token, selector::TRANSFER, from, other, amount),
        35..=39 => erc20(token, selector::MINT, none, other, amount),
        40..=42 => erc20(token, selector::BURN, from, none, amount),
        43..=44 => erc20(token, selector::TRANSFER, from, from, amount),
        45 => erc20(token, selector::TRANSFER, from, other, U256::ZERO),
        46..=49 => transfer_from(draw, traffic, token, from, other),
        50..=57 => erc721(nft, from, other, draw.log_uniform(10_000)),
        58..=61 => erc721(nft, none, other, draw.below(10_000)),
        62..=66 => {
            let id = U256::from(draw.log_uniform(500));
            single(multi, from, from, other, id, amount)
        }
        67..=69 => erc1155_batch(draw, multi, from, other),
        70..=74 => deposit(contracts.wrapped, from, amount),
        75..=77 => withdraw(contracts.wrapped, from, amount),
        78..=81 => swap(draw, traffic, from, other),
        82..=93 => pay(other, amount),
        94..=95 => creation(draw),
        96..=97 => {
            let to = pick(draw, &contracts.rare);
            anonymous(draw, to)
        }
        _ => rare(draw, traffic, from),
    }
}

fn token_heavy(draw: &mut Draw, traffic: &Traffic, from: Address) -> Action {
    let accounts = u64::from(traffic.options().accounts.max(1));
    let other = traffic.account(draw.below(accounts) as u32);
    let token = pick(draw, &traffic.contracts().erc20);
    match draw.below(100) {
        0..=59 => transfer_from(draw, traffic, token, from, other),
        60..=73 => erc20(token, selector::TRANSFER, from, other, draw.amount(24)),
        74..=93 => swap(draw, traffic, from, other),
        94..=98 => pay(other, draw.amount(20)),
        _ => rare(draw, traffic, from),
    }
}

fn erc20(token: Address, method: [u8; 4], from: Address, to: Address, amount: U256) -> Action {
    let input = match method {
        selector::BURN => call_data(method, &[amount]),
        _ => call_data(method, &[word(to), amount]),
    };
    let transfer = log(token, vec![ABI.transfer, topic(from), topic(to)], &[amount]);
    Action::call(token, input, 51_700, vec![transfer])
}

/// Somebody moves another's tokens: a transfer, and the allowance that is left.
fn transfer_from(
    draw: &mut Draw,
    traffic: &Traffic,
    token: Address,
    spender: Address,
    to: Address,
) -> Action {
    let owner = traffic.account(draw.log_uniform(u64::from(traffic.options().accounts.max(1))) as u32);
    let (amount, left) = (draw.amount(24), draw.amount(26));
    spend(token, spender, owner, to, amount, left)
}

/// The sender's own tokens.
pub(crate) fn transfer(token: Address, from: Address, to: Address, amount: U256) -> Action {
    erc20(token, selector::TRANSFER, from, to, amount)
}

/// New tokens.
pub(crate) fn mint(token: Address, to: Address, amount: U256) -> Action {
    erc20(token, selector::MINT, Address::ZERO, to, amount)
}

/// Another's tokens, and the allowance that is left.
pub(crate) fn spend(
    token: Address,
    spender: Address,
    owner: Address,
    to: Address,
    amount: U256,
    left: U256,
) -> Action {
    let input = call_data(selector::TRANSFER_FROM, &[word(owner), word(to), amount]);
    let logs = vec![
        log(token, vec![ABI.transfer, topic(owner), topic(to)], &[amount]),
        log(token, vec![ABI.approval, topic(owner), topic(spender)], &[left]),
    ];
    Action::call(token, input, 61_300, logs)
}

fn swap(draw: &mut Draw, traffic: &Traffic, from: Address, to: Address) -> Action {
    let contracts = traffic.contracts();
    let (sold, bought) = (pick(draw, &contracts.erc20), pick(draw, &contracts.erc20));
    let (paid, got) = (draw.amount(22), draw.amount(22));
    exchange(contracts.exchange, from, to, (sold, paid), (bought, got))
}

/// One token is sold to the pool for another.
pub(crate) fn exchange(
    pool: Address,
    from: Address,
    to: Address,
    (sold, paid): (Address, U256),
    (bought, got): (Address, U256),
) -> Action {
    let input = call_data(selector::SWAP, &[U256::ZERO, got, word(to), U256::from(128), U256::ZERO]);
    let logs = vec![
        log(sold, vec![ABI.transfer, topic(from), topic(pool)], &[paid]),
        log(bought, vec![ABI.transfer, topic(pool), topic(to)], &[got]),
        log(pool, vec![ABI.swap, topic(from), topic(to)], &[paid, U256::ZERO, U256::ZERO, got]),
    ];
    Action::call(pool, input, 112_000, logs)
}

/// Coins are wrapped.
pub(crate) fn deposit(wrapped: Address, from: Address, amount: U256) -> Action {
    let logs = vec![log(wrapped, vec![ABI.deposit, topic(from)], &[amount])];
    let call = Action::call(wrapped, selector::DEPOSIT.to_vec(), 45_038, logs);
    Action { value: amount, ..call }
}

/// Coins are unwrapped.
pub(crate) fn withdraw(wrapped: Address, from: Address, amount: U256) -> Action {
    let logs = vec![log(wrapped, vec![ABI.withdrawal, topic(from)], &[amount])];
    Action::call(wrapped, call_data(selector::WITHDRAW, &[amount]), 35_200, logs)
}

/// Coins are paid.
pub(crate) fn pay(to: Address, amount: U256) -> Action {
    Action { to: Some(to), value: amount, input: Vec::new(), logs: Vec::new(), gas_used: 21_000 }
}

/// A contract is created.
pub(crate) fn creation(draw: &mut Draw) -> Action {
    let mut code = vec![0x60, 0x80, 0x60, 0x40, 0x52];
    code.extend((0..draw.between(1, 8)).flat_map(|_| draw.word().0));
    Action {
        to: None,
        value: U256::ZERO,
        gas_used: 53_000 + code.len() as u64 * 216,
        input: code,
        logs: Vec::new(),
    }
}

/// LOG0: no topics, and sometimes no data either.
pub(crate) fn anonymous(draw: &mut Draw, to: Address) -> Action {
    let data: Vec<U256> = (0..draw.below(3)).map(|_| draw.word().into()).collect();
    Action::call(to, selector::POKE.to_vec(), 23_400, vec![log(to, Vec::new(), &data)])
}

/// Items of ERC-1155 of one kind.
pub(crate) fn single(
    contract: Address,
    operator: Address,
    from: Address,
    to: Address,
    id: U256,
    count: U256,
) -> Action {
    let input = call_data(selector::SINGLE, &[word(from), word(to), id, count, U256::from(160), U256::ZERO]);
    let topics = vec![ABI.transfer_single, topic(operator), topic(from), topic(to)];
    Action::call(contract, input, 58_000, vec![log(contract, topics, &[id, count])])
}

/// Items of ERC-1155 of several kinds.
pub(crate) fn batch(
    contract: Address,
    operator: Address,
    from: Address,
    to: Address,
    items: &[(U256, U256)],
) -> Action {
    let kinds = items.len() as u64;
    let len = U256::from(kinds);
    let mut data = vec![U256::from(64), U256::from(96 + 32 * kinds), len];
    data.extend(items.iter().map(|(id, _)| id));
    data.push(len);
    data.extend(items.iter().map(|(_, count)| count));
    let mut words = vec![
        word(from),
        word(to),
        U256::from(160),
        U256::from(192 + 32 * kinds),
        U256::from(224 + 64 * kinds),
    ];
    words.extend(&data[2..]);
    words.push(U256::ZERO);
    let topics = vec![ABI.transfer_batch, topic(operator), topic(from), topic(to)];
    let input = call_data(selector::BATCH, &words);
    Action::call(contract, input, 48_000 + 12_000 * kinds, vec![log(contract, topics, &data)])
}

pub(crate) fn erc721(nft: Address, from: Address, to: Address, id: u64) -> Action {
    let id = U256::from(id);
    let input = match from {
        Address::ZERO => call_data(selector::MINT, &[word(to), id]),
        _ => call_data(selector::SAFE_TRANSFER_FROM, &[word(from), word(to), id]),
    };
    let transfer = log(nft, vec![ABI.transfer, topic(from), topic(to), B256::from(id)], &[]);
    Action::call(nft, input, 64_000, vec![transfer])
}

fn erc1155_batch(draw: &mut Draw, multi: Address, from: Address, to: Address) -> Action {
    let count = draw.between(1, 4);
    let ids: Vec<_> = (0..count).map(|_| U256::from(draw.log_uniform(500))).collect();
    let items: Vec<_> = ids.into_iter().map(|id| (id, draw.amount(6))).collect();
    batch(multi, from, from, to, &items)
}

/// A call to a contract that hardly anybody calls.
fn rare(draw: &mut Draw, traffic: &Traffic, from: Address) -> Action {
    let rare = &traffic.contracts().rare;
    let to = rare[draw.below(rare.len() as u64) as usize];
    ping(draw, to, from)
}

/// One log, of anything.
pub(crate) fn ping(draw: &mut Draw, to: Address, from: Address) -> Action {
    let ping = log(to, vec![ABI.ping, topic(from)], &[draw.word().into()]);
    Action::call(to, selector::POKE.to_vec(), 24_900, vec![ping])
}

/// The topic of `Transfer` events.
#[cfg(test)]
pub(crate) fn transfer_topic() -> B256 {
    ABI.transfer
}

/// One of them, the first ones most often.
fn pick(draw: &mut Draw, some: &[Address]) -> Address {
    some[draw.log_uniform(some.len() as u64) as usize]
}

fn word(address: Address) -> U256 {
    U256::from_be_bytes(address.into_word().0)
}

fn topic(address: Address) -> B256 {
    address.into_word()
}

fn call_data(method: [u8; 4], words: &[U256]) -> Vec<u8> {
    let mut data = Vec::with_capacity(4 + words.len() * 32);
    data.extend(method);
    data.extend(words.iter().flat_map(|word| word.to_be_bytes::<32>()));
    data
}

fn log(address: Address, topics: Vec<B256>, words: &[U256]) -> Log {
    let data: LogBytes = words.iter().flat_map(|word| word.to_be_bytes::<32>()).collect::<Vec<u8>>().into();
    Log::new_unchecked(address, topics, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_the_hashes_of_their_signatures() {
        for (selector, signature) in [
            (selector::TRANSFER, "transfer(address,uint256)"),
            (selector::TRANSFER_FROM, "transferFrom(address,address,uint256)"),
            (selector::MINT, "mint(address,uint256)"),
            (selector::BURN, "burn(uint256)"),
            (selector::SAFE_TRANSFER_FROM, "safeTransferFrom(address,address,uint256)"),
            (selector::SINGLE, "safeTransferFrom(address,address,uint256,uint256,bytes)"),
            (selector::BATCH, "safeBatchTransferFrom(address,address,uint256[],uint256[],bytes)"),
            (selector::DEPOSIT, "deposit()"),
            (selector::WITHDRAW, "withdraw(uint256)"),
            (selector::SWAP, "swap(uint256,uint256,address,bytes)"),
            (selector::POKE, "poke()"),
        ] {
            assert_eq!(selector, keccak256(signature)[..4], "{signature}");
        }
    }
}
