//! The access nodes that Flow's enrichers ask: scripts and accounts, as they are at a block.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use cairn_core::{BlockRef, ErrorKind};
use cairn_explorer::processors::flow::node::{MAX_ANSWER_BYTES, ScriptAnswer, ScriptNode};
use cairn_flow::proto::Account;
use cairn_flow::{FlowAddress, Network};
use cairn_pipeline::derive::processor::AskError;
use cairn_source::flow::FlowSource;
use cairn_source::flow::state::Script;
use cairn_source::{ChainSource, SourceError};
use tokio::sync::OnceCell;

use crate::config::Config;
use crate::wiring;

/// Access nodes, connected when they are first asked where nobody did it before.
pub struct AccessScripts {
    source: OnceCell<Arc<FlowSource>>,
    /// How to connect.
    config: Option<(Config, Network)>,
}

impl AccessScripts {
    /// Those that blocks come from: scripts keep to the same pace.
    pub fn of(source: Arc<FlowSource>) -> AccessScripts {
        AccessScripts { source: OnceCell::new_with(Some(source)), config: None }
    }

    /// Those that the configuration names, in a process that takes no blocks.
    pub fn configured(config: &Config, network: Network) -> AccessScripts {
        AccessScripts { source: OnceCell::new(), config: Some((config.clone(), network)) }
    }

    async fn source(&self) -> Result<&FlowSource, AskError> {
        let connecting = || async {
            let Some((config, network)) = &self.config else {
                return Err(AskError::last("there is no access node"));
            };
            let connected = wiring::connect_flow(config, *network).await;
            connected.map(Arc::new).map_err(|error| AskError::transient(format!("{error:#}")))
        };
        Ok(self.source.get_or_try_init(connecting).await?)
    }
}

fn failed(error: &SourceError) -> AskError {
    let message = error.to_string();
    match error {
        SourceError::RateLimited { retry_after_ms, .. } => AskError::busy(*retry_after_ms, message),
        _ if error.kind() == ErrorKind::Retry => AskError::transient(message),
        _ => AskError::last(message),
    }
}

#[async_trait]
impl ScriptNode for AccessScripts {
    async fn execute(
        &self,
        script: &str,
        arguments: Vec<Vec<u8>>,
        at: BlockRef,
    ) -> Result<ScriptAnswer, AskError> {
        let arguments = arguments.into_iter().map(Bytes::from).collect();
        match self.source().await?.execute_script(at, script, arguments).await {
            Ok(Script::Returned(value)) if value.len() > MAX_ANSWER_BYTES => Err(AskError::last(format!(
                "the script answered {} bytes; at most {MAX_ANSWER_BYTES} are read",
                value.len()
            ))),
            Ok(Script::Returned(value)) => Ok(ScriptAnswer::Returned(value)),
            Ok(Script::Failed(message)) => Ok(ScriptAnswer::Failed(message)),
            Err(error) => Err(failed(&error)),
        }
    }

    async fn account(&self, address: FlowAddress, at: BlockRef) -> Result<Option<Account>, AskError> {
        self.source().await?.account(at, address).await.map_err(|error| failed(&error))
    }

    async fn finalized(&self) -> Result<Option<BlockRef>, AskError> {
        let heads = self.source().await?.heads().await.map_err(|error| failed(&error))?;
        Ok(heads.finalized)
    }
}
