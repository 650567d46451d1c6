//! `cairn serve`: answers from an archive that exists, read only.

use std::path::Path;

use crate::cli::ServeArgs;
use crate::config::{self, Overrides};
use crate::service;

/// Serves until it is told to stop.
pub async fn serve(file: Option<&Path>, args: &ServeArgs) -> anyhow::Result<()> {
    let config =
        config::load_to_stay(file, &Overrides::default().data(&args.data).listen(&args.listen)).await?;
    service::serve(&config).await
}
