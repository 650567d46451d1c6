//! Arguments that several commands have.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use tempfile::TempDir;

/// Where a command puts what it makes.
#[derive(Debug, Args)]
pub struct KeepArgs {
    /// Keep data, logs, and the databases that were made: in this folder, or beside it; default: nothing is kept.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
}

impl KeepArgs {
    /// Whether what is made outlives the command.
    pub fn keeps(&self) -> bool {
        self.keep.is_some()
    }

    /// The folder to work in; a temporary one where none is kept.
    pub fn folder(&self) -> Result<WorkFolder> {
        self.folder_in(&std::env::temp_dir())
    }

    /// The same; a temporary one lies in `parent`.
    pub fn folder_in(&self, parent: &Path) -> Result<WorkFolder> {
        Ok(match &self.keep {
            Some(folder) => WorkFolder::Kept(folder.clone()),
            None => WorkFolder::Temporary(tempfile::tempdir_in(parent)?),
        })
    }
}

/// A folder to work in. A temporary one goes when this does.
pub enum WorkFolder {
    /// It stays.
    Kept(PathBuf),
    /// It goes.
    Temporary(TempDir),
}

impl WorkFolder {
    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            WorkFolder::Kept(folder) => folder,
            WorkFolder::Temporary(folder) => folder.path(),
        }
    }
}

/// A PostgreSQL server.
#[derive(Debug, Args)]
pub struct ServerArgs {
    /// A PostgreSQL server on which databases may be made.
    #[arg(long, env = "CAIRN_TEST_PG_URL")]
    pub postgres: String,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        keep: KeepArgs,
    }

    #[test]
    fn a_folder_stays_where_it_is_kept_and_goes_otherwise() {
        let parent = tempfile::tempdir().expect("a folder");
        let kept = parent.path().join("kept");
        let args = Command::parse_from(["x".as_ref(), "--keep".as_ref(), kept.as_os_str()]);
        assert!(args.keep.keeps());
        assert_eq!(args.keep.folder().expect("a folder").path(), kept);

        let args = Command::parse_from(["x"]);
        assert!(!args.keep.keeps());
        let folder = args.keep.folder_in(parent.path()).expect("a folder");
        let path = folder.path().to_owned();
        assert!(path.is_dir() && path.starts_with(parent.path()));
        drop(folder);
        assert!(!path.exists());
    }
}
