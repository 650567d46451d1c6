//! A processor's code, run so that a panic in it is an error of what it was given (E24, I07) and not the end of all derived work.
//!
//! What a panic leaves half done is dropped with it: rows go into an output of their own for each block, and what processors share between
//! blocks is behind locks and cells that a panic leaves as they were.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cairn_core::{BlockRef, StoredBlock};

use super::processor::{Mapper, Output, ProcessError};

/// Makes the rows of one block; a panic is a [`ProcessError`] of it.
pub fn map_block(mapper: &dyn Mapper, block: &StoredBlock) -> Result<Output, ProcessError> {
    guarded(block.facts.block_ref(), || {
        let mut out = Output::default();
        mapper.map(block, &mut out)?;
        Ok(out)
    })
}

/// Runs what belongs to one block.
pub(super) fn guarded<T>(
    block: BlockRef,
    run: impl FnOnce() -> Result<T, ProcessError>,
) -> Result<T, ProcessError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        Err(ProcessError { block, message: format!("the processor panicked: {}", text_of(&*panic)) })
    })
}

/// What a panic says.
pub(super) fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}
