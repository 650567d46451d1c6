//! A PostgreSQL server of a test's own that speaks TLS, by the certificates in `tests/tls`.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cairn_backends::postgres::{PgOptions, PgPool};
use tempfile::TempDir;

/// How long a server may take to start, and to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of the certificates, by the end of its name.
pub fn certificate(name: &str) -> PathBuf {
    // Where it is now: what was compiled may be used in a clone at another place.
    let folder = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    Path::new(&folder).join("tests/tls").join(format!("made-for-tests-{name}"))
}

/// A server that ends when this is dropped.
pub struct TlsServer {
    process: Child,
    pub port: u16,
    dir: TempDir,
}

/// Who runs it, where that has to be another user: the server refuses root.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl User {
    fn of_servers() -> Option<User> {
        if id(&["-u"]) != Some(0) {
            return None;
        }
        let postgres =
            |what| id(&[what, "postgres"]).expect("PostgreSQL refuses root, and there is no user postgres");
        Some(User { uid: postgres("-u"), gid: postgres("-g") })
    }
}

fn id(arguments: &[&str]) -> Option<u32> {
    let said = Command::new("id").args(arguments).output().ok()?;
    String::from_utf8(said.stdout).ok()?.trim().parse().ok()
}

/// The folder of the newest server's programs that were built with TLS.
fn programs() -> Option<PathBuf> {
    let mut installed: Vec<(u32, PathBuf)> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|version| Some((version.file_name().to_str()?.parse().ok()?, version.path().join("bin"))))
        .collect();
    installed.sort();
    let named = std::env::var_os("CAIRN_POSTGRES_BIN").filter(|named| !named.is_empty()).map(PathBuf::from);
    let in_path = std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let mut folders = named
        .into_iter()
        .chain(installed.into_iter().rev().map(|(_, folder)| folder))
        .chain(in_path.into_iter().flatten());
    folders.find(|folder| folder.join("initdb").exists() && has_tls(&folder.join("postgres")))
}

/// Whether it takes the setting: it says so without a server.
fn has_tls(postgres: &Path) -> bool {
    let Ok(empty) = tempfile::tempdir() else { return false };
    let made = File::create(empty.path().join("postgresql.conf"));
    let asked = Command::new(postgres).args(["-C", "ssl", "-c", "ssl=on", "-D"]).arg(empty.path()).output();
    made.is_ok() && asked.is_ok_and(|said| said.status.success() && said.stdout.starts_with(b"on"))
}

impl TlsServer {
    /// Starts one; `None`, with a word on how to get it, where there are no programs of one (a failure in CI).
    pub async fn start() -> Option<TlsServer> {
        let Some(programs) = programs() else {
            let why = "no PostgreSQL server with TLS on this machine (Debian: postgresql)";
            assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "{why}");
            println!("not run: {why}; CAIRN_POSTGRES_BIN names the folder of its programs");
            return None;
        };
        let dir = tempfile::Builder::new().prefix("cairn-tls-").tempdir().expect("a folder");
        let user = User::of_servers();
        let give = |path: &Path| {
            if let Some(user) = user {
                chown(path, Some(user.uid), Some(user.gid)).expect("is given away");
            }
        };
        give(dir.path());
        let log = dir.path().join("log");
        let run = |program: &str| {
            let mut command = Command::new(programs.join(program));
            let log = File::options().create(true).append(true).open(&log).expect("a log");
            command.current_dir("/").stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
            if let Some(user) = user {
                command.uid(user.uid).gid(user.gid);
            }
            command
        };
        let data = dir.path().join("data");
        let made = run("initdb")
            .arg("-D")
            .arg(&data)
            .args(["-U", "postgres", "-E", "UTF8", "--locale=C", "--auth=trust", "--no-sync"])
            .status()
            .expect("initdb runs");
        assert!(made.success(), "initdb: {}", fs::read_to_string(&log).unwrap_or_default());
        for name in ["server.crt", "server.key"] {
            let own = dir.path().join(name);
            fs::copy(certificate(name), &own).expect("is copied");
            // Keys that others may read are refused.
            fs::set_permissions(&own, fs::Permissions::from_mode(0o600)).expect("is closed");
            give(&own);
        }
        let port =
            TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
        let process = run("postgres")
            .arg("-D")
            .arg(&data)
            .args([
                "-p",
                &port.to_string(),
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                "unix_socket_directories=",
            ])
            .args(["-c", "ssl=on"])
            .arg("-c")
            .arg(format!("ssl_cert_file={}", dir.path().join("server.crt").display()))
            .arg("-c")
            .arg(format!("ssl_key_file={}", dir.path().join("server.key").display()))
            .args(["-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=30"])
            .spawn()
            .expect("postgres runs");
        let mut server = TlsServer { process, port, dir };
        server.until_it_answers(&log).await;
        Some(server)
    }

    async fn until_it_answers(&mut self, log: &Path) {
        let pool = PgPool::new(PgOptions::new(self.url("127.0.0.1", ""))).expect("a URL");
        let begun = Instant::now();
        while let Err(error) = pool.get().await {
            let ended = self.process.try_wait().expect("asks");
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "{error}\n{}",
                fs::read_to_string(log).unwrap_or_default()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Its URL by a name of it, with these parameters.
    pub fn url(&self, host: &str, parameters: &str) -> String {
        format!("postgres://postgres@{host}:{}/postgres?{parameters}", self.port)
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        // At once, without waiting for clients; its processes end with it.
        let asked = Command::new("kill").args(["-QUIT", &self.process.id().to_string()]).status();
        let begun = Instant::now();
        while asked.as_ref().is_ok_and(|asked| asked.success()) && begun.elapsed() < PATIENCE {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("the server in {} did not end by itself", self.dir.path().display());
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            println!("nor otherwise: {error}");
        }
    }
}
