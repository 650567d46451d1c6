//! Logs of a block one by one, for those who can't hold the texts of all at once.

use bytes::Bytes;

use super::{BlockView, LOG_TEXT_BYTES, matches};
use crate::EvmError;
use crate::filter::LogFilter;
use crate::receipts::Log;

/// Where a log is in its block.
#[derive(Debug, Clone)]
pub struct LogPlace {
    tx_index: usize,
    log_index: u32,
    raw: Bytes,
}

impl LogPlace {
    /// Its number in the block.
    pub fn index(&self) -> u32 {
        self.log_index
    }

    /// What its text has at most, in bytes, unless the node said more of it than consensus knows.
    pub fn text_bytes(&self) -> usize {
        LOG_TEXT_BYTES + self.raw.len() * 2
    }
}

impl BlockView {
    /// Where the logs are that match `filter`, in order. Needs receipts.
    pub fn find_logs(&self, filter: &LogFilter) -> Result<Vec<LogPlace>, EvmError> {
        let mut places = Vec::new();
        let mut log_index = 0;
        for (tx_index, receipt) in self.receipts_of_all()?.list.iter().enumerate() {
            for raw in receipt.raw_logs() {
                let raw = raw.map_err(|error| self.malformed("receipts", error))?;
                let log = Log::decode_raw(raw).map_err(|error| self.malformed("receipts", error))?;
                if matches(filter, &log) {
                    let raw = self.stored.receipts.slice_ref(raw);
                    places.push(LogPlace { tx_index, log_index, raw });
                }
                log_index += 1;
            }
        }
        Ok(places)
    }

    /// The text of one log that [`BlockView::find_logs`] found in this block. Needs transactions and receipts.
    pub fn log_text(&self, place: &LogPlace, removed: bool) -> Result<Vec<u8>, EvmError> {
        let log = Log::decode_raw(&place.raw).map_err(|error| self.malformed("receipts", error))?;
        let mut out = Vec::new();
        self.write_log(&self.log_block(), (place.tx_index, place.log_index), removed, &log, &mut out)?;
        Ok(out)
    }
}
