//! Where the socket is: beside the lock of the files that its process holds.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::config::Config;

/// Only the process's own user, in octal.
const MODE: u32 = 0o600;

/// The socket of the process that holds the stores of this configuration; `None` where none is a file.
pub fn socket(config: &Config) -> Option<PathBuf> {
    // As the locks: whoever has the blocks has the derived tables too.
    let name = match (&config.raw.url, &config.app.url) {
        (None, _) => "cairn.sock",
        (Some(_), None) => "app.sock",
        (Some(_), Some(_)) => return None,
    };
    Some(config.data_dir.join(name))
}

/// Makes room for a socket. One that is there was left by a process that is gone, since its lock is ours; anything else is somebody's.
pub fn make_room(socket: &Path) -> anyhow::Result<()> {
    match fs::symlink_metadata(socket) {
        Ok(found) if found.file_type().is_socket() => Ok(fs::remove_file(socket)?),
        Ok(_) => anyhow::bail!("{} is there and is no socket; move it away", socket.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Lets nobody else connect.
pub fn close_to_others(socket: &Path) -> io::Result<()> {
    fs::set_permissions(socket, Permissions::from_mode(MODE))
}

/// A path of a socket that the system takes. A socket's path is at most some hundred bytes long, whatever other paths are; where it is longer, the way leads through a link
/// in a directory of our own, which goes when this is dropped.
pub struct Short {
    path: PathBuf,
    _link: Option<tempfile::TempDir>,
}

impl Short {
    /// The way to `socket`, whose directory is there.
    pub fn to(socket: &Path) -> anyhow::Result<Short> {
        Short::through(socket, &[std::env::temp_dir(), PathBuf::from("/tmp")])
    }

    fn through(socket: &Path, places: &[PathBuf]) -> anyhow::Result<Short> {
        if fits(socket) {
            return Ok(Short { path: socket.to_owned(), _link: None });
        }
        let too_long = || format!("{} is longer than a socket's path may be", socket.display());
        let (dir, name) = socket.parent().zip(socket.file_name()).with_context(too_long)?;
        let dir = std::path::absolute(dir).with_context(too_long)?;
        for place in places {
            let mut builder = tempfile::Builder::new();
            let made = builder.prefix("cairn-").permissions(Permissions::from_mode(0o700)).tempdir_in(place);
            let Ok(link) = made else { continue };
            let path = link.path().join("d").join(name);
            if fits(&path) {
                symlink(&dir, link.path().join("d")).with_context(too_long)?;
                return Ok(Short { path, _link: Some(link) });
            }
        }
        let places: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        anyhow::bail!("{}, and there is no short way to it through {}", too_long(), places.join(" or "))
    }

    /// The path to bind or connect to.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn fits(path: &Path) -> bool {
    SocketAddr::from_pathname(path).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_long_path_is_reached_by_a_short_one_that_goes_again() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("d".repeat(120)).join("e".repeat(120));
        fs::create_dir_all(&dir).expect("is made");
        let socket = dir.join("cairn.sock");
        assert!(!fits(&socket));
        let short = Short::to(&socket).expect("a short way");
        let listener = UnixListener::bind(short.path()).expect("binds");
        let way = short.path().parent().expect("a link").to_owned();
        drop(short);
        assert!(fs::symlink_metadata(way).is_err(), "the link is gone");
        assert!(fs::metadata(&socket).expect("is there").file_type().is_socket());
        close_to_others(&socket).expect("is ours");
        assert_eq!(fs::metadata(&socket).expect("is there").permissions().mode() & 0o777, MODE);
        UnixStream::connect(Short::to(&socket).expect("a short way").path()).expect("connects");
        drop(listener);

        // A short one is taken as it is, and without a place for the link there is a word on it.
        assert_eq!(Short::to(Path::new("a/cairn.sock")).expect("fits").path(), Path::new("a/cairn.sock"));
        let Err(error) = Short::through(&socket, std::slice::from_ref(&dir)) else { panic!("it fits") };
        assert!(error.to_string().contains("longer than a socket's path may be"), "{error}");
    }

    #[test]
    fn only_a_socket_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("cairn.sock");
        make_room(&socket).expect("nothing is there");
        drop(UnixListener::bind(&socket).expect("binds"));
        make_room(&socket).expect("was left");
        assert!(!socket.exists());
        fs::write(&socket, "mine").expect("writes");
        let error = make_room(&socket).expect_err("is somebody's");
        assert!(error.to_string().contains("is no socket"), "{error}");
        assert_eq!(fs::read(&socket).expect("stays"), b"mine");
    }

    #[test]
    fn there_is_a_socket_where_a_store_is_a_file() {
        let mut config = Config { data_dir: "data".into(), ..Config::default() };
        assert_eq!(socket(&config), Some("data/cairn.sock".into()));
        config.app.url = Some("postgres://127.0.0.1/app".into());
        assert_eq!(socket(&config), Some("data/cairn.sock".into()));
        config.raw.url = Some("postgres://127.0.0.1/raw".into());
        assert_eq!(socket(&config), None);
        config.app.url = None;
        assert_eq!(socket(&config), Some("data/app.sock".into()));
    }
}
