//! A geth that has imported the public suite's chain, as the node: cairn takes the chain from it over JSON-RPC, and then
//! every answer is geth's own, raw consensus bytes and call traces included. The suite runs against that archive too.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::process::Command;

use crate::args::KeepArgs;
use crate::cairn::Cairn;
use crate::compare::{self, Allowed};
use crate::peer::{Peer, free_port, wait_until};
use crate::report::{Report, figure};
use crate::rpc::Rpc;

const LIMIT: Duration = Duration::from_secs(60);

/// Fields in which geth's answers are its own, each with the reason.
const GETH_ALLOWED: &[Allowed] = &[];

/// Where things are.
#[derive(Args)]
pub struct Options {
    /// The geth binary.
    #[arg(long)]
    geth: PathBuf,
    /// The cairn binary.
    #[arg(long)]
    cairn: PathBuf,
    /// The folder with chain.rlp, genesis.json and headfcu.json.
    #[arg(long)]
    suite: PathBuf,
    #[command(flatten)]
    keep: KeepArgs,
}

struct Geth {
    rpc: Rpc,
    url: String,
    _peer: Peer,
}

impl Geth {
    async fn start(binary: &Path, suite: &Path, folder: &Path) -> Result<Geth> {
        let data = folder.join("geth");
        for (what, file) in [("init", "genesis.json"), ("import", "chain.rlp")] {
            let mut command = Command::new(binary);
            command.arg("--datadir").arg(&data).args(["--cache", "64", what]).arg(suite.join(file));
            let output =
                command.kill_on_drop(true).output().await.with_context(|| binary.display().to_string())?;
            if !output.status.success() {
                bail!("geth {what}: {}", String::from_utf8_lossy(&output.stderr));
            }
        }
        let secret = [7u8; 32];
        let secret_file = folder.join("jwt");
        std::fs::write(&secret_file, "07".repeat(32))?;
        let (port, engine_port) = (free_port()?, free_port()?);
        let mut command = Command::new(binary);
        command.arg("--datadir").arg(&data);
        command.args([
            "--cache",
            "64",
            "--nodiscover",
            "--maxpeers",
            "0",
            "--port",
            "0",
            "--ipcdisable",
            "--verbosity",
            "2",
        ]);
        command.args([
            "--http",
            "--http.addr",
            "127.0.0.1",
            "--http.port",
            &port.to_string(),
            "--http.api",
            "eth,net,web3,debug",
        ]);
        command
            .args(["--authrpc.port", &engine_port.to_string()])
            .arg("--authrpc.jwtsecret")
            .arg(&secret_file);
        let mut peer = Peer::start("geth", command, &folder.join("geth.log"))?;
        let url = format!("http://127.0.0.1:{port}");
        let rpc = Rpc::new(&url)?;
        wait_until("geth answers", LIMIT, || async {
            rpc.result("eth_chainId", json!([])).await.map(|_| None)
        })
        .await?;
        peer.check_alive()?;
        let choice: Value = serde_json::from_slice(&std::fs::read(suite.join("headfcu.json"))?)?;
        choose_head(engine_port, &secret, &choice).await?;
        Ok(Geth { rpc, url, _peer: peer })
    }
}

/// Sends the suite's fork choice to the engine API, which makes its head safe and finalized.
async fn choose_head(port: u16, secret: &[u8], choice: &Value) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let unsigned = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256","typ":"JWT"}"#),
        URL_SAFE_NO_PAD.encode(json!({"iat": now}).to_string())
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(secret)?;
    mac.update(unsigned.as_bytes());
    let token = format!("{unsigned}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()));
    let http = reqwest::Client::builder().no_proxy().timeout(LIMIT).build()?;
    let request = http.post(format!("http://127.0.0.1:{port}")).bearer_auth(token);
    let answer = request.header("content-type", "application/json").body(choice.to_string()).send().await?;
    let answer: Value = serde_json::from_slice(&answer.bytes().await?)?;
    ensure!(
        answer["result"]["payloadStatus"]["status"] == "VALID",
        "geth did not take the fork choice: {answer}"
    );
    Ok(())
}

/// `cairn-dev geth-test`.
pub async fn run(options: Options) -> Result<ExitCode> {
    let folder = options.keep.folder()?;
    let folder = folder.path();
    std::fs::create_dir_all(folder)?;
    let geth = Geth::start(&options.geth, &options.suite, folder).await?;
    let cairn = Cairn::new(&options.cairn, folder)?;
    let mut report = Report::default();
    let genesis = options.suite.join("genesis.json");
    let genesis = genesis.to_str().context("a path that is not UTF-8")?;

    report
        .case("takes the whole chain from geth and ends by itself", async {
            let options = ["--exit-after-head", "--traces", "--finality", "tag", "--genesis", genesis];
            let process = cairn.run(&geth.url, &options).await?;
            let status = process.ended(LIMIT).await?;
            ensure!(status.success(), "ended with {status}; {}", cairn.log_tail());
            Ok(())
        })
        .await;
    let mut process = cairn.serve(&[]).await?;
    if report.case("serves geth's head", cairn.wait_head(&geth.rpc, LIMIT)).await {
        let head = geth.rpc.head().await?.context("geth has no head")?.0;
        let rpc = cairn.rpc()?;
        compare::everything(&geth.rpc, &rpc, 0, head, GETH_ALLOWED, true, &mut report).await?;
        figure("geth_blocks", head + 1, "blocks");
        crate::conformance::ask_all(&rpc, &options.suite, &mut report).await?;
    }
    report.case("is still running", async { process.check_alive() }).await;
    report.case("SIGTERM ends it", async { process.terminate(Duration::from_secs(5)).await.map(drop) }).await;
    report
        .case("cairn verify finds the archive whole", async { cairn.finish("verify", &[]).await.map(drop) })
        .await;
    Ok(report.finish())
}
