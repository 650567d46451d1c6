//! Traffic for a test chain: the contracts of tests/contracts, and a stream of transactions of every type and of every
//! shape of log. What is sent depends on the seed alone; signing is anvil's, which holds the keys of its accounts, but for
//! blob and set-code transactions, which are signed here.

use std::path::Path;

use alloy_consensus::{SignableTransaction, TxEip4844, TxEip4844WithSidecar, TxEip7702, TxEnvelope};
use alloy_eips::eip2718::Encodable2718;
use alloy_eips::eip4844::builder::{SidecarBuilder, SimpleCoder};
use alloy_eips::eip7594::BlobTransactionSidecarVariant;
use alloy_eips::eip7702::Authorization;
use alloy_primitives::{Address, B256, Bytes, Signature, U256, keccak256};
use anyhow::{Context, Result, bail};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use secp256k1::ecdsa::RecoverableSignature;
use secp256k1::{Message, PublicKey, SecretKey};
use serde_json::{Value, json};

use crate::rpc::{Answer, Rpc, call, hex, quantity, text};

/// Enough for any base fee of a chain whose blocks are mostly empty.
const FEE_WEI: u64 = 20_000_000_000;
/// Enough for every transaction here; anvil estimates when it is left out, which is slow and refuses those that fail.
const GAS: u64 = 1_500_000;
/// Transactions in one batch request.
const BATCH: usize = 100;

/// A deployed contract.
#[derive(Clone)]
pub struct Contract {
    pub address: String,
    methods: Value,
    bytecode: String,
}

impl Contract {
    /// ABI-encodes a call; `data` follows as the one dynamic argument.
    fn call(&self, signature: &str, words: &[U256], data: Option<&[u8]>) -> Result<String> {
        let selector = self.methods[signature].as_str().with_context(|| format!("no method {signature}"))?;
        let mut bytes = Vec::new();
        for word in words {
            bytes.extend_from_slice(&word.to_be_bytes::<32>());
        }
        if let Some(data) = data {
            bytes.extend_from_slice(&U256::from((words.len() + 1) * 32).to_be_bytes::<32>());
            bytes.extend_from_slice(&U256::from(data.len()).to_be_bytes::<32>());
            bytes.extend_from_slice(data);
            bytes.resize(bytes.len().next_multiple_of(32), 0);
        }
        Ok(format!("0x{selector}{}", alloy_primitives::hex::encode(bytes)))
    }
}

/// A key whose address holds ether.
pub struct Account {
    key: SecretKey,
    pub address: Address,
}

impl Account {
    /// A made-up key, the same for the same name.
    pub fn named(name: &str) -> Result<Account> {
        let key = SecretKey::from_secret_bytes(keccak256(name).0)?;
        let public = PublicKey::from_secret_key(&key).serialize_uncompressed();
        Ok(Account { key, address: Address::from_raw_public_key(&public[1..]) })
    }

    /// Signs a digest.
    pub fn sign(&self, digest: B256) -> Signature {
        let signed = RecoverableSignature::sign_ecdsa_recoverable(Message::from_digest(digest.0), &self.key);
        let (recovery, bytes) = signed.serialize_compact();
        Signature::from_bytes_and_parity(&bytes, u8::from(recovery) & 1 == 1)
    }
}

/// Sends transactions to an anvil.
pub struct Traffic {
    rpc: Rpc,
    rng: SmallRng,
    accounts: Vec<String>,
    chain_id: u64,
    signer: Account,
    pub coin: Contract,
    deed: Contract,
    pouch: Contract,
    beacon: Contract,
    ember: Contract,
    /// Transactions that the node took.
    pub sent: u64,
}

impl Traffic {
    /// Deploys the contracts of `artifacts` ({NAME: {bytecode, methods}}), in a block of their own.
    pub async fn deploy(rpc: &Rpc, artifacts: &Path, seed: u64) -> Result<Traffic> {
        let artifacts: Value = serde_json::from_slice(
            &std::fs::read(artifacts).with_context(|| artifacts.display().to_string())?,
        )?;
        let accounts = rpc.result("eth_accounts", json!([])).await?;
        let accounts: Vec<String> =
            accounts.as_array().context("accounts")?.iter().map(text).collect::<Result<_>>()?;
        let signer = Account::named("cairn test signer")?;
        rpc.result("anvil_setBalance", json!([signer.address, "0x3635c9adc5dea00000"])).await?;
        let mut contracts = Vec::new();
        for name in ["Coin", "Deed", "Pouch", "Beacon"] {
            let bytecode = text(&artifacts[name]["bytecode"])?;
            let sent = json!([{"from": accounts[0], "data": bytecode, "gas": hex(5_000_000)}]);
            contracts.push((name, rpc.result("eth_sendTransaction", sent).await?, bytecode));
        }
        rpc.result("evm_mine", json!([])).await?;
        let mut deployed = Vec::new();
        for (name, hash, bytecode) in contracts {
            let receipt = rpc.result("eth_getTransactionReceipt", json!([hash])).await?;
            if receipt["status"] != "0x1" {
                bail!("{name} was not deployed: {receipt}");
            }
            deployed.push(Contract {
                address: text(&receipt["contractAddress"])?,
                methods: artifacts[name]["methods"].clone(),
                bytecode,
            });
        }
        let [coin, deed, pouch, beacon] =
            <[Contract; 4]>::try_from(deployed).map_err(|_| anyhow::anyhow!("four contracts"))?;
        let ember = Contract {
            address: String::new(),
            methods: artifacts["Ember"]["methods"].clone(),
            bytecode: text(&artifacts["Ember"]["bytecode"])?,
        };
        Ok(Traffic {
            rpc: rpc.clone(),
            rng: SmallRng::seed_from_u64(seed),
            chain_id: quantity(&rpc.result("eth_chainId", json!([])).await?)?,
            accounts,
            signer,
            coin,
            deed,
            pouch,
            beacon,
            ember,
            sent: 4,
        })
    }

    fn account(&mut self) -> String {
        self.accounts[self.rng.random_range(0..self.accounts.len())].clone()
    }

    /// Any account but the first.
    pub fn other_account(&mut self) -> String {
        self.accounts[self.rng.random_range(1..self.accounts.len())].clone()
    }

    fn account_word(&mut self) -> Result<U256> {
        Ok(self.account().parse::<Address>()?.into_word().into())
    }

    /// The next transaction, in the form of eth_sendTransaction.
    pub fn transaction(&mut self) -> Result<Value> {
        let to = self.account_word()?;
        let (a, b) = (U256::from(self.rng.random_range(0..50u64)), U256::from(self.rng.random::<u64>()));
        let (target, input) = match self.rng.random_range(0..100u32) {
            0..=19 => (self.account(), "0x".to_owned()),
            20..=27 => (self.coin.address.clone(), self.coin.call("mint(address,uint256)", &[to, b], None)?),
            28..=45 => {
                (self.coin.address.clone(), self.coin.call("transfer(address,uint256)", &[to, a], None)?)
            }
            46..=51 => (
                self.coin.address.clone(),
                self.coin.call("approve(address,uint256)", &[to, U256::MAX], None)?,
            ),
            52..=63 => {
                (self.deed.address.clone(), self.deed.call("transfer(address,uint256)", &[to, a], None)?)
            }
            64..=69 => (
                self.pouch.address.clone(),
                self.pouch.call("transferSingle(address,uint256,uint256)", &[to, a, b], None)?,
            ),
            70..=73 => (
                self.pouch.address.clone(),
                self.pouch.call("transferBatch(address,uint256)", &[to, a], None)?,
            ),
            74..=81 => {
                let mut data = vec![0u8; self.rng.random_range(0..200)];
                self.rng.fill(&mut data[..]);
                (
                    self.beacon.address.clone(),
                    self.beacon.call("shine(uint256,uint256,uint256,bytes)", &[a, b, to], Some(&data))?,
                )
            }
            82..=88 => (self.beacon.address.clone(), self.beacon.call("sparks(uint256)", &[a], None)?),
            89 => {
                (self.beacon.address.clone(), self.beacon.call("big(uint256)", &[U256::from(20_000)], None)?)
            }
            90..=94 => (self.beacon.address.clone(), self.beacon.call("fail(uint256)", &[a], None)?),
            95..=97 => (self.beacon.address.clone(), self.beacon.call("create(uint256)", &[b], None)?),
            _ => {
                let argument = b.to_be_bytes::<32>();
                (String::new(), format!("{}{}", self.ember.bytecode, alloy_primitives::hex::encode(argument)))
            }
        };
        let mut transaction = json!({"from": self.account(), "data": input, "gas": hex(GAS)});
        if !target.is_empty() {
            transaction["to"] = Value::String(target);
        }
        if input == "0x" {
            transaction["value"] = Value::String(hex(self.rng.random_range(1..1_000_000)));
        }
        match self.rng.random_range(0..4u8) {
            0 => transaction["gasPrice"] = Value::String(hex(FEE_WEI)),
            1 => {
                transaction["gasPrice"] = Value::String(hex(FEE_WEI));
                transaction["accessList"] =
                    json!([{"address": self.coin.address, "storageKeys": [B256::from(a), B256::ZERO]}]);
            }
            _ => {
                transaction["maxFeePerGas"] = Value::String(hex(FEE_WEI));
                transaction["maxPriorityFeePerGas"] =
                    Value::String(hex(self.rng.random_range(0..1_000_000_000)));
            }
        }
        Ok(transaction)
    }

    /// Sends `count` transactions to the pool, without mining.
    pub async fn send(&mut self, count: usize) -> Result<()> {
        let mut calls = Vec::with_capacity(count);
        for _ in 0..count {
            calls.push(call("eth_sendTransaction", json!([self.transaction()?])));
        }
        for batch in calls.chunks(BATCH) {
            for (answer, call) in self.rpc.ask_all(batch).await?.into_iter().zip(batch) {
                if let Answer::Error { code, message, .. } = answer {
                    bail!("anvil refused a transaction: {code} {message}: {}", call.params);
                }
                self.sent += 1;
            }
        }
        Ok(())
    }

    /// Sends `count` transactions and mines them in one block.
    pub async fn block(&mut self, count: usize) -> Result<()> {
        self.send(count).await?;
        self.rpc.result("evm_mine", json!([])).await.map(drop)
    }

    /// Fails where a contract has no code at the node's head any more: a node that lost it goes on as if nothing were.
    pub async fn demand_contracts(&self) -> Result<()> {
        for contract in [&self.coin, &self.deed, &self.pouch, &self.beacon] {
            let code = text(&self.rpc.result("eth_getCode", json!([contract.address, "latest"])).await?)?;
            if code == "0x" {
                bail!("the node has lost the code of {}", contract.address);
            }
        }
        Ok(())
    }

    async fn signer_nonce(&self) -> Result<u64> {
        let parameters = json!([self.signer.address, "pending"]);
        quantity(&self.rpc.result("eth_getTransactionCount", parameters).await?)
    }

    /// Sends one blob transaction, without mining.
    pub async fn send_blob(&mut self) -> Result<()> {
        let sidecar = SidecarBuilder::<SimpleCoder>::from_slice(b"a cairn marks the way").build_7594()?;
        let input = self.coin.call("transfer(address,uint256)", &[U256::from(1), U256::from(2)], None)?;
        let blob = TxEip4844 {
            chain_id: self.chain_id,
            nonce: self.signer_nonce().await?,
            gas_limit: 100_000,
            max_fee_per_gas: FEE_WEI.into(),
            max_priority_fee_per_gas: 1,
            to: self.coin.address.parse()?,
            value: U256::ZERO,
            access_list: Default::default(),
            blob_versioned_hashes: sidecar.versioned_hashes().collect(),
            max_fee_per_blob_gas: FEE_WEI.into(),
            input: input.parse()?,
        };
        let sidecar = BlobTransactionSidecarVariant::Eip7594(sidecar);
        let blob = TxEip4844WithSidecar::from_tx_and_sidecar(blob, sidecar);
        let signature = self.signer.sign(blob.signature_hash());
        self.send_raw(blob.into_signed(signature).encoded_2718()).await
    }

    /// Sends one set-code transaction (EIP-7702), without mining; its log comes from an account without code of its own.
    pub async fn send_set_code(&mut self) -> Result<()> {
        let authority = Account::named("cairn test authority")?;
        let parameters = json!([authority.address, "pending"]);
        let nonce = quantity(&self.rpc.result("eth_getTransactionCount", parameters).await?)?;
        let chain_id = U256::from(self.chain_id);
        let authorization = Authorization { chain_id, address: self.beacon.address.parse()?, nonce };
        let authorized = authority.sign(authorization.signature_hash());
        let set_code = TxEip7702 {
            chain_id: self.chain_id,
            nonce: self.signer_nonce().await?,
            gas_limit: 500_000,
            max_fee_per_gas: FEE_WEI.into(),
            max_priority_fee_per_gas: 1,
            to: authority.address,
            value: U256::ZERO,
            access_list: Default::default(),
            authorization_list: vec![authorization.into_signed(authorized)],
            input: self.beacon.call("sparks(uint256)", &[U256::from(3)], None)?.parse()?,
        };
        let signature = self.signer.sign(set_code.signature_hash());
        self.send_raw(TxEnvelope::from(set_code.into_signed(signature)).encoded_2718()).await
    }

    async fn send_raw(&mut self, raw: Vec<u8>) -> Result<()> {
        self.rpc.result("eth_sendRawTransaction", json!([Bytes::from(raw)])).await?;
        self.sent += 1;
        Ok(())
    }

    /// What `Anvil::reorg` takes: `per_block` new transactions for each of `depth` blocks.
    pub fn for_reorg(&mut self, depth: u64, per_block: usize) -> Result<Vec<(Value, u64)>> {
        let mut transactions = Vec::new();
        for block in 0..depth {
            for _ in 0..per_block {
                transactions.push((self.transaction()?, block));
            }
        }
        self.sent += transactions.len() as u64;
        Ok(transactions)
    }
}

/// What to send where.
#[derive(clap::Args)]
pub struct Options {
    /// An anvil's JSON-RPC over HTTP.
    #[arg(long)]
    node: String,
    /// Compiled tests/contracts.
    #[arg(long)]
    contracts: std::path::PathBuf,
    /// Blocks to mine.
    #[arg(long, default_value_t = 10)]
    blocks: u64,
    /// Transactions in each.
    #[arg(long, default_value_t = 100)]
    transactions: usize,
    /// Decides every transaction.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// `cairn-dev traffic`.
pub async fn run(options: Options) -> Result<std::process::ExitCode> {
    let rpc = Rpc::new(&options.node)?;
    let mut traffic = Traffic::deploy(&rpc, &options.contracts, options.seed).await?;
    for block in 0..options.blocks {
        if block % 10 == 0 {
            traffic.send_set_code().await?;
        }
        traffic.block(options.transactions).await?;
    }
    println!("{} transactions in {} blocks", traffic.sent, options.blocks + 1);
    Ok(std::process::ExitCode::SUCCESS)
}
