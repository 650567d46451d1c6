//! What happens on the emulator's chain: everything once in order, and then at random from a seed.

use alloy_consensus::{SignableTransaction, TxEip1559, TxEnvelope, TxLegacy};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Address, TxKind, U256, hex};
use anyhow::{Context, Result, ensure};
use cairn_flow::{FlowAddress, Network};
use cairn_flow_node::cdc::{self, Cdc};
use cairn_flow_node::{Key, Signer};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::cadence::{self, Places};
use super::wallet::{Holder, Meant, Wallet, created, field};
use crate::flow_truth::scripts;
use crate::traffic::Account;

/// Accounts that everything begins with.
const HOLDERS: usize = 6;
/// Of those, the first ones have EVM accounts of their own.
const COAS: usize = 3;
/// 10^8 of FLOW.
const FLOW: u64 = 100_000_000;
/// Logs what it is called with, the first word as the topic; reverts when it is called with nothing.
const LOGGER: &str = "6012 80 6009 5f 39 5f f3 36 6007 57 5f 5f fd 5b 36 5f 5f 37 5f 35 36 5f a1 00";
const ATTOFLOW: u64 = 1_000_000_000_000;
const GAS_PRICE: u128 = 1_000_000_000;

/// A chain to send to, and what is known of it.
pub struct Traffic {
    pub wallet: Wallet,
    places: Places,
    /// Of the EVM, with a key.
    evm_account: Account,
    logger: String,
    rng: SmallRng,
    names: u64,
}

fn strings(texts: &[String]) -> Cdc {
    cdc::array(texts.iter().map(|text| cdc::string(text)))
}

impl Traffic {
    /// Does everything once.
    pub async fn begin(wallet: Wallet, rng: SmallRng) -> Result<Traffic> {
        let none = FlowAddress::ZERO;
        let mut traffic = Traffic {
            wallet,
            places: Places { pebble: none, burner: Network::Emulator.accounts().service },
            evm_account: Account::named("cairn flow test")?,
            logger: String::new(),
            rng,
            names: 0,
        };
        for at in 0..HOLDERS {
            traffic.account(1 + at % 3).await?;
        }
        let owner = traffic.wallet.holder(0).clone();
        let code = [cdc::string("Pebble"), cdc::string(cadence::PEBBLE)];
        traffic.wallet.send(&owner, cadence::CONTRACT_ADD, &code, Meant::Succeed).await?;
        traffic.places.pebble = owner.address;
        for at in 0..HOLDERS {
            let holder = traffic.wallet.holder(at).clone();
            traffic.send(&holder, cadence::PEBBLE_SETUP, &[]).await?;
            traffic.send(&holder, cadence::NFT_SETUP, &[]).await?;
            traffic.mint_pebbles(at).await?;
            traffic.mint_items(at, 3).await?;
        }
        for at in 0..COAS {
            let holder = traffic.wallet.holder(at).clone();
            traffic.send(&holder, cadence::COA_CREATE, &[cdc::ufix64(50 * FLOW)]).await?;
        }
        let deployed =
            traffic.send(&owner, cadence::COA_DEPLOY, &[cdc::string(&LOGGER.replace(' ', ""))]).await?;
        let executed = format!("A.{}.EVM.TransactionExecuted", Network::Emulator.accounts().service.bare());
        let address = field(&deployed, &executed, "contractAddress")?;
        traffic.logger = address.as_str().context("no contract's address")?.to_owned();
        let to = cdc::string(&hex::encode(traffic.evm_account.address));
        traffic.send(&owner, cadence::COA_DEPOSIT, &[cdc::ufix64(100 * FLOW), to]).await?;
        for deed in 0..DEEDS {
            traffic.deed(deed).await.with_context(|| format!("deed {deed}"))?;
        }
        Ok(traffic)
    }

    /// Something, at random.
    pub async fn act(&mut self) -> Result<()> {
        let deed = self.rng.random_range(0..DEEDS);
        self.deed(deed).await.with_context(|| format!("deed {deed}"))
    }

    async fn send(
        &mut self,
        by: &Signer,
        script: &str,
        arguments: &[Cdc],
    ) -> Result<cairn_flow::proto::TransactionResult> {
        let script = self.places.fill(script);
        self.wallet.send(by, &script, arguments, Meant::Succeed).await
    }

    /// One of those that everything begins with.
    fn anyone(&mut self) -> Signer {
        let at = self.rng.random_range(0..HOLDERS);
        self.wallet.holder(at).clone()
    }

    fn amount(&mut self) -> u64 {
        self.rng.random_range(1..FLOW / 10)
    }

    fn name(&mut self, of: &str) -> String {
        self.names += 1;
        format!("{of}{}", self.names)
    }

    async fn account(&mut self, keys: usize) -> Result<()> {
        let name = self.name("holder ");
        let made: Vec<Key> = (0..keys).map(|at| Key::named(&format!("{name} {at}"))).collect();
        let service = self.wallet.service.clone();
        let public = made.iter().map(|key| cdc::string(&hex::encode(key.public_key())));
        let weights = (0..keys).map(|at| cdc::ufix64(if at == 0 { 1_000 * FLOW } else { 500 * FLOW }));
        let arguments = [cdc::array(public), cdc::array(weights), cdc::ufix64(1_000 * FLOW)];
        let result = self.send(&service, cadence::ACCOUNT_CREATE, &arguments).await?;
        let signer = Signer { address: created(&result)?, key: made[0].clone() };
        self.wallet.holders.push(Holder { signer, since_height: result.block_height });
        Ok(())
    }

    async fn mint_pebbles(&mut self, to: usize) -> Result<()> {
        let (owner, to) = (self.wallet.holder(0).clone(), self.wallet.holder(to).address);
        let amount = cdc::ufix64(self.rng.random_range(FLOW..1_000 * FLOW));
        self.send(&owner, cadence::PEBBLE_MINT, &[amount, cdc::address(to)]).await.map(drop)
    }

    async fn mint_items(&mut self, to: usize, count: u64) -> Result<()> {
        let (service, to) = (self.wallet.service.clone(), self.wallet.holder(to).address);
        let arguments = [cdc::number("Int", count), cdc::address(to)];
        self.send(&service, cadence::NFT_MINT, &arguments).await.map(drop)
    }

    /// What somebody has of the emulator's own collection.
    async fn items_of(&self, owner: FlowAddress) -> Result<Vec<Cdc>> {
        let script = scripts::items(Network::Emulator);
        let arguments =
            [cdc::address(owner), cdc::address(self.wallet.service.address), cdc::string("ExampleNFT")];
        let ids = self.wallet.ask(&script, &arguments).await?;
        let ids = ids.as_array().context("no list of ids")?;
        let id = |id: &serde_json::Value| Some(cdc::number("UInt64", id["value"].as_str()?));
        ids.iter().map(id).collect::<Option<_>>().context("no list of ids")
    }

    async fn evm_nonce(&self) -> Result<u64> {
        let address = cdc::string(&hex::encode(self.evm_account.address));
        let answer = self.wallet.ask(cadence::EVM_ACCOUNT, &[address]).await?;
        let nonce = answer[0]["value"].as_str().context("no nonce")?;
        nonce.parse().context("no nonce")
    }

    /// A transaction of the EVM, as its bytes in hex.
    fn evm_transaction(&self, nonce: u64, input: Vec<u8>, value: u64) -> Result<String> {
        let (chain_id, gas_limit) = (Network::Emulator.evm_chain_id(), 100_000);
        let to = TxKind::Call(self.logger.parse::<Address>().context("the logger's address")?);
        let (value, input) = (U256::from(value), input.into());
        // Types in turn.
        let signed = if nonce.is_multiple_of(2) {
            let chain_id = Some(chain_id);
            let tx = TxLegacy { chain_id, nonce, gas_price: GAS_PRICE, gas_limit, to, value, input };
            let signature = self.evm_account.sign(tx.signature_hash());
            TxEnvelope::Legacy(tx.into_signed(signature))
        } else {
            let tx = TxEip1559 {
                chain_id,
                nonce,
                gas_limit,
                max_fee_per_gas: GAS_PRICE,
                max_priority_fee_per_gas: GAS_PRICE,
                to,
                value,
                access_list: Default::default(),
                input,
            };
            let signature = self.evm_account.sign(tx.signature_hash());
            TxEnvelope::Eip1559(tx.into_signed(signature))
        };
        Ok(hex::encode(signed.encoded_2718()))
    }

    fn word(&mut self) -> Vec<u8> {
        let mut word = vec![0; 32 + self.rng.random_range(0..40)];
        self.rng.fill(&mut word[..]);
        word
    }

    async fn deed(&mut self, deed: u32) -> Result<()> {
        let (one, other, third) = (self.anyone(), self.anyone(), self.anyone());
        let amount = cdc::ufix64(self.amount());
        let owner = self.wallet.holder(self.rng.random_range(0..COAS)).clone();
        let to = self.rng.random_range(0..HOLDERS);
        match deed {
            0 => {
                let to = cdc::array([cdc::address(other.address), cdc::address(third.address)]);
                self.send(&one, cadence::FLOW_TRANSFER, &[amount, to]).await?;
            }
            1 => {
                // Two who sign, and a third who pays.
                if one.address != other.address {
                    let service = self.wallet.service.clone();
                    let script = cadence::FLOW_TRANSFER_TWO_SIGNERS;
                    let signers = [&one, &other];
                    let wallet = &mut self.wallet;
                    wallet.send_for(&other, &service, &signers, script, &[amount], Meant::Succeed).await?;
                }
            }
            2 => self.mint_pebbles(to).await?,
            3 => {
                let to = [cdc::address(other.address), cdc::address(third.address)];
                let [to, also] = to;
                // Divisible by 4, so that nothing is rounded off.
                let amount = cdc::ufix64(self.rng.random_range(1..FLOW / 40) * 4);
                self.send(&one, cadence::PEBBLE_TRANSFER, &[amount, to, also]).await?;
            }
            4 => {
                let little = cdc::ufix64(self.rng.random_range(1..FLOW / 100));
                self.send(&one, cadence::PEBBLE_BURN, &[little]).await?;
            }
            5 => self.mint_items(to, 2).await?,
            6 => {
                let mut ids = self.items_of(one.address).await?;
                ids.truncate(3);
                let to = cdc::address(other.address);
                if !ids.is_empty() {
                    self.send(&one, cadence::NFT_TRANSFER, &[cdc::array(ids), to]).await?;
                }
            }
            7 => {
                if let Some(id) = self.items_of(one.address).await?.pop() {
                    self.send(&one, cadence::NFT_BURN, &[id]).await?;
                }
            }
            8 => self.account(2).await?,
            9 => {
                let key = Key::named(&self.name("key ")).public_key();
                let arguments = [cdc::string(&hex::encode(key)), cdc::ufix64(FLOW)];
                self.send(&one, cadence::KEY_ADD, &arguments).await?;
            }
            10 => {
                // Never the first, which signs.
                let height = self.wallet.client.latest().await?.height;
                let account = self.wallet.client.account(one.address, height).await?;
                let keys = account.context("no account")?.keys;
                let last = keys.iter().rev().find(|key| !key.revoked && key.index > 0);
                if let Some(key) = last {
                    let index = cdc::number("Int", key.index);
                    self.send(&one, cadence::KEY_REVOKE, &[index]).await?;
                }
            }
            11 => {
                let name = self.name("Note");
                let of = |version| [cdc::string(&name), cdc::string(&cadence::note(&name, version))];
                self.send(&one, cadence::CONTRACT_ADD, &of(1)).await?;
                self.send(&one, cadence::CONTRACT_UPDATE, &of(2)).await?;
                if self.rng.random() {
                    self.send(&one, cadence::CONTRACT_REMOVE, &[cdc::string(&name)]).await?;
                }
            }
            12 => {
                let to = cdc::string(&hex::encode(self.evm_account.address));
                self.send(&one, cadence::COA_DEPOSIT, &[amount, to]).await?;
            }
            13 => {
                self.send(&owner, cadence::COA_WITHDRAW, &[amount]).await?;
            }
            14 => {
                // One that moves value alone, one that logs, one that reverts.
                let to: Vec<String> = ["11".repeat(20), self.logger.clone(), self.logger.clone()].into();
                let data = vec![String::new(), hex::encode(self.word()), String::new()];
                let value = cdc::number("UInt", self.rng.random_range(0..2) * ATTOFLOW);
                self.send(&owner, cadence::COA_CALLS, &[strings(&to), strings(&data), value]).await?;
            }
            15 | 16 => {
                let nonce = self.evm_nonce().await?;
                let mut all = Vec::new();
                for at in 0..self.rng.random_range(1..4) {
                    // The second one reverts, since it says nothing.
                    let input = if at == 1 { Vec::new() } else { self.word() };
                    all.push(self.evm_transaction(nonce + at, input, 0)?);
                }
                let coinbase = cdc::string(&"22".repeat(20));
                let script = if deed == 15 { cadence::EVM_RUN } else { cadence::EVM_BATCH_RUN };
                self.send(&one, script, &[strings(&all), coinbase]).await?;
                let after = self.evm_nonce().await?;
                ensure!(after == nonce + all.len() as u64, "the EVM's nonce is {after}, it was {nonce}");
            }
            17 => {
                let arguments = [amount, cdc::address(other.address)];
                self.wallet.send(&one, cadence::FAILING, &arguments, Meant::Fail).await?;
            }
            _ => {
                // More than anybody has.
                let to = cdc::array([cdc::address(other.address)]);
                let arguments = [cdc::ufix64(u64::MAX / 2), to];
                self.wallet.send(&one, cadence::FLOW_TRANSFER, &arguments, Meant::Fail).await?;
            }
        }
        Ok(())
    }
}

/// Kinds of deeds.
const DEEDS: u32 = 19;
