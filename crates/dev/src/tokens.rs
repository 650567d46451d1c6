//! Random movements of tokens that keep balances (tests/contracts/Holdings.sol): mints, transfers, burns, batches, of parties to themselves,
//! several of one item in one transaction, transfers of nothing, and calls that fail. What is sent depends on the seed alone.

use std::path::Path;

use alloy_primitives::{Address, U256, keccak256};
use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::rpc::{Answer, Rpc, call, hex, text};

/// Enough for any base fee of a chain whose blocks are mostly empty.
const FEE_WEI: u64 = 20_000_000_000;
/// Enough for every transaction here.
const GAS: u64 = 4_000_000;
/// Parties that never send a transaction.
const PASSIVE: u64 = 40;
/// Item numbers of the ERC-721 contract, from 0.
pub const PLOTS: u64 = 150;
/// Item numbers of the ERC-1155 contract, from 0.
pub const BASKETS: u64 = 12;
/// Item numbers above those that are never minted, of which nothing is sent all the same.
const NO_BASKETS: u64 = 6;

/// An argument of a call.
pub enum Argument {
    Word(U256),
    Words(Vec<U256>),
    Nothing,
}

/// ABI-encodes a call; `Nothing` is empty `bytes`.
pub fn encode(signature: &str, arguments: &[Argument]) -> String {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    for argument in arguments {
        let offset = U256::from(32 * (arguments.len() + tail.len()));
        match argument {
            Argument::Word(word) => head.push(*word),
            Argument::Words(words) => {
                head.push(offset);
                tail.push(U256::from(words.len()));
                tail.extend(words);
            }
            Argument::Nothing => {
                head.push(offset);
                tail.push(U256::ZERO);
            }
        }
    }
    let mut bytes = keccak256(signature)[..4].to_vec();
    for word in head.into_iter().chain(tail) {
        bytes.extend_from_slice(&word.to_be_bytes::<32>());
    }
    format!("0x{}", alloy_primitives::hex::encode(bytes))
}

/// An address as an argument.
pub fn word(address: Address) -> U256 {
    address.into_word().into()
}

/// Sends movements to an anvil.
pub struct Tokens {
    rpc: Rpc,
    rng: SmallRng,
    senders: Vec<Address>,
    /// Everybody who may hold something.
    pub parties: Vec<Address>,
    /// The ERC-20 contracts.
    pub grains: Vec<Address>,
    /// The ERC-721 contract.
    pub plot: Address,
    /// The ERC-1155 contract.
    pub basket: Address,
    /// Transactions that the node took.
    pub sent: u64,
}

impl Tokens {
    /// Deploys the contracts of `artifacts` ({NAME: {bytecode}}), in a block of their own.
    pub async fn deploy(rpc: &Rpc, artifacts: &Path, seed: u64) -> Result<Tokens> {
        let artifacts: Value = serde_json::from_slice(
            &std::fs::read(artifacts).with_context(|| artifacts.display().to_string())?,
        )?;
        let accounts = rpc.result("eth_accounts", json!([])).await?;
        let senders: Vec<Address> = accounts
            .as_array()
            .context("accounts")?
            .iter()
            .map(|account| Ok(text(account)?.parse()?))
            .collect::<Result<_>>()?;
        let mut hashes = Vec::new();
        for (name, argument) in [
            ("Grain", U256::from(1_000_000)),
            ("Grain", U256::ZERO),
            ("Plot", U256::ZERO),
            ("Basket", U256::ZERO),
        ] {
            // Contracts without arguments don't look at what follows their code.
            let argument = alloy_primitives::hex::encode(argument.to_be_bytes::<32>());
            let data = format!("{}{argument}", text(&artifacts[name]["bytecode"])?);
            let sent = json!([{"from": senders[0], "data": data, "gas": hex(5_000_000)}]);
            hashes.push(rpc.result("eth_sendTransaction", sent).await?);
        }
        rpc.result("evm_mine", json!([])).await?;
        let mut deployed: Vec<Address> = Vec::new();
        for hash in hashes {
            let receipt = rpc.result("eth_getTransactionReceipt", json!([hash])).await?;
            ensure!(receipt["status"] == "0x1", "a contract was not deployed: {receipt}");
            deployed.push(text(&receipt["contractAddress"])?.parse()?);
        }
        let mut parties = senders.clone();
        parties.extend((0..PASSIVE).map(|number| Address::from_word(keccak256(number.to_be_bytes()))));
        parties.extend(&deployed);
        let [first, second, plot, basket] = deployed[..] else { bail!("four contracts") };
        Ok(Tokens {
            rpc: rpc.clone(),
            rng: SmallRng::seed_from_u64(seed),
            senders,
            parties,
            grains: vec![first, second],
            plot,
            basket,
            sent: 4,
        })
    }

    fn party(&mut self) -> Address {
        self.parties[self.rng.random_range(0..self.parties.len())]
    }

    fn sender(&mut self) -> Address {
        self.senders[self.rng.random_range(0..self.senders.len())]
    }

    /// Giver and taker: a mint, a burn, or a transfer, which may be to oneself.
    fn pair(&mut self) -> (Address, Address) {
        let (from, to) = (self.party(), self.party());
        match self.rng.random_range(0..100u32) {
            0..=29 => (Address::ZERO, to),
            30..=41 => (from, Address::ZERO),
            42..=43 => (Address::ZERO, Address::ZERO),
            44..=51 => (from, from),
            _ => (from, to),
        }
    }

    /// Of any size up to `bits`, sometimes all there is, sometimes nothing.
    fn value(&mut self, bits: usize) -> U256 {
        match self.rng.random_range(0..10u8) {
            0 => U256::ZERO,
            1 => U256::MAX >> (256 - bits),
            _ => {
                let some = U256::from_be_bytes(self.rng.random::<[u8; 32]>());
                some >> (256 - self.rng.random_range(1..=bits))
            }
        }
    }

    fn item(&mut self, items: u64) -> U256 {
        U256::from(self.rng.random_range(0..items))
    }

    /// The next transaction, in the form of eth_sendTransaction.
    fn transaction(&mut self) -> Value {
        use Argument::{Nothing, Word, Words};
        let count = self.rng.random_range(1..9usize);
        let (sender, party) = (self.sender(), self.party());
        let mut steps = Vec::new();
        let (target, input) = match self.rng.random_range(0..100u32) {
            0..=34 => {
                let which = self.rng.random_range(0..self.grains.len());
                // Of the first one amounts that fit into 64 bits; of the second up to all that 256 bits hold.
                let bits = if which == 0 { 40 } else { 256 };
                for _ in 0..count {
                    let ((from, to), value) = (self.pair(), self.value(bits));
                    steps.extend([word(from), word(to), value]);
                }
                (self.grains[which], encode("many(uint256[])", &[Words(steps)]))
            }
            35..=44 => {
                let (grain, value) =
                    (self.grains[self.rng.random_range(0..self.grains.len())], self.value(20));
                (grain, encode("transfer(address,uint256)", &[Word(word(party)), Word(value)]))
            }
            45..=64 => {
                let mut last = self.item(PLOTS);
                for _ in 0..count {
                    let to = if self.rng.random_ratio(1, 8) { Address::ZERO } else { self.party() };
                    // The same item again and again too, and to whom it was given just now.
                    if self.rng.random_ratio(2, 3) {
                        last = self.item(PLOTS);
                    }
                    steps.extend([word(to), last]);
                    if self.rng.random_ratio(1, 8) {
                        steps.extend([word(to), last]);
                    }
                }
                (self.plot, encode("many(uint256[])", &[Words(steps)]))
            }
            65..=69 => {
                let item = self.item(PLOTS);
                let arguments = [Word(word(sender)), Word(word(party)), Word(item)];
                (self.plot, encode("transferFrom(address,address,uint256)", &arguments))
            }
            70..=79 => {
                for _ in 0..count {
                    let ((from, to), item, value) = (self.pair(), self.item(BASKETS), self.value(100));
                    steps.extend([word(from), word(to), item, value]);
                }
                (self.basket, encode("many(uint256[])", &[Words(steps)]))
            }
            80..=89 => {
                let (from, to) = self.pair();
                for _ in 0..count - 1 {
                    let (item, value) = (self.item(BASKETS), self.value(100));
                    steps.extend([item, value]);
                }
                let arguments = [Word(word(from)), Word(word(to)), Words(steps)];
                (self.basket, encode("move(address,address,uint256[])", &arguments))
            }
            // The standard lets anybody send nothing, of an item that is there, that is burnt, or that never was.
            90..=91 => {
                let item = self.item(BASKETS + NO_BASKETS);
                let arguments =
                    [Word(word(sender)), Word(word(party)), Word(item), Word(U256::ZERO), Nothing];
                (self.basket, encode("safeTransferFrom(address,address,uint256,uint256,bytes)", &arguments))
            }
            92..=94 => {
                let (item, value) = (self.item(BASKETS), self.value(20));
                let arguments = [Word(word(sender)), Word(word(party)), Word(item), Word(value), Nothing];
                (self.basket, encode("safeTransferFrom(address,address,uint256,uint256,bytes)", &arguments))
            }
            _ => {
                let items = vec![self.item(BASKETS), self.item(BASKETS)];
                let values = vec![self.value(20), self.value(20)];
                let arguments = [Word(word(sender)), Word(word(party)), Words(items), Words(values), Nothing];
                let signature = "safeBatchTransferFrom(address,address,uint256[],uint256[],bytes)";
                (self.basket, encode(signature, &arguments))
            }
        };
        json!({"from": sender, "to": target, "data": input, "gas": hex(GAS), "gasPrice": hex(FEE_WEI)})
    }

    /// Sends `count` transactions and mines them in one block.
    pub async fn block(&mut self, count: usize) -> Result<()> {
        let calls: Vec<_> =
            (0..count).map(|_| call("eth_sendTransaction", json!([self.transaction()]))).collect();
        if !calls.is_empty() {
            for (answer, call) in self.rpc.ask_all(&calls).await?.into_iter().zip(&calls) {
                if let Answer::Error { code, message, .. } = answer {
                    bail!("anvil refused a transaction: {code} {message}: {}", call.params);
                }
            }
        }
        self.sent += count as u64;
        self.rpc.result("evm_mine", json!([])).await.map(drop)
    }

    /// What `Anvil::reorg` takes: new transactions for each of `depth` blocks.
    pub fn for_reorg(&mut self, depth: u64, per_block: usize) -> Vec<(Value, u64)> {
        let mut transactions = Vec::new();
        for block in 0..depth {
            for _ in 0..per_block {
                transactions.push((self.transaction(), block));
            }
        }
        self.sent += transactions.len() as u64;
        transactions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_follow_the_words_and_offsets_point_at_them() {
        let words = vec![U256::from(5), U256::from(6)];
        let arguments = [Argument::Word(U256::from(9)), Argument::Words(words), Argument::Nothing];
        let encoded = encode("transfer(address,uint256)", &arguments);
        let expected: String = [9, 0x60, 0xc0, 2, 5, 6, 0].map(|word| format!("{word:064x}")).concat();
        assert_eq!(encoded, format!("0xa9059cbb{expected}"));
    }
}
