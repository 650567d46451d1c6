//! A processor's code, run so that a panic in it is an error of what it was given (E24, I07) and not the end of all derived work.
//!
//! What a panic leaves half done is dropped with it: rows go into an output of their own for each block, and what processors share between
//! blocks is behind locks and cells that a panic leaves as they were.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cairn_core::{BlockRef, StoredBlock};

use super::processor::{MAX_BLOCK_OUTPUT_BYTES, Mapper, Output, ProcessError};

/// Makes the rows of one block; a panic is a [`ProcessError`] of it, and so are more rows than one block may make.
pub fn map_block(mapper: &dyn Mapper, block: &StoredBlock) -> Result<Output, ProcessError> {
    map_within(mapper, block, MAX_BLOCK_OUTPUT_BYTES)
}

fn map_within(mapper: &dyn Mapper, block: &StoredBlock, max_bytes: usize) -> Result<Output, ProcessError> {
    let at = block.facts.block_ref();
    guarded(at, || {
        let mut out = Output::with_limit(max_bytes);
        mapper.map(block, &mut out)?;
        if out.is_too_large() {
            let message = format!("it makes {} bytes of rows, more than {max_bytes}", out.size_bytes());
            return Err(ProcessError { block: at, message });
        }
        if let Some((table, column)) = out.unfit() {
            let message =
                format!("a number for {table}.{column} is 2^63 or more, which the column can't hold");
            return Err(ProcessError { block: at, message });
        }
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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cairn_core::{BlockFacts, BlockId, Height, Parts};
    use cairn_store::derived::{BLOCK_HEIGHT, ColumnType, Row, TableClass, TableDef, Value, column};

    use super::super::processor::ServiceInfo;
    use super::*;

    static MANY: TableDef = TableDef {
        name: "many",
        service: "many_worker",
        class: TableClass::Events { partition_heights: 16 },
        columns: &[column(BLOCK_HEIGHT, ColumnType::Int), column("number", ColumnType::Int)],
        key: &[BLOCK_HEIGHT, "number"],
        indexes: &[],
    };
    static SERVICE: ServiceInfo =
        ServiceInfo { name: "many_worker", version: 1, upstreams: &[], tables: &[&MANY] };

    /// One row with this number.
    struct Number(u64);

    impl Mapper for Number {
        fn service(&self) -> &'static ServiceInfo {
            &SERVICE
        }

        fn parts(&self) -> Parts {
            Parts::empty()
        }

        fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
            out.row(&MANY, Row(vec![Value::height(block.facts.height), Value::uint(self.0)]));
            Ok(())
        }
    }

    /// So many rows of each block.
    struct Many(i64);

    impl Mapper for Many {
        fn service(&self) -> &'static ServiceInfo {
            &SERVICE
        }

        fn parts(&self) -> Parts {
            Parts::empty()
        }

        fn map(&self, block: &StoredBlock, out: &mut Output) -> Result<(), ProcessError> {
            for number in 0..self.0 {
                out.row(&MANY, Row(vec![Value::height(block.facts.height), Value::Int(number)]));
            }
            Ok(())
        }
    }

    fn block() -> StoredBlock {
        let facts = BlockFacts {
            height: Height(7),
            id: BlockId([7; 32]),
            parent_id: BlockId([6; 32]),
            timestamp_ms: 0,
            tx_count: 0,
            log_count: 0,
            unverified: 0,
        };
        let (header, body, receipts, extras) = (Bytes::new(), Bytes::new(), Bytes::new(), Bytes::new());
        StoredBlock { facts, transactions: Vec::new(), header, body, receipts, extras, traces: None }
    }

    #[test]
    fn a05_a_number_that_a_column_can_not_hold_is_no_other_number() {
        let block = block();
        let largest = map_block(&Number(i64::MAX as u64), &block).expect("it fits");
        assert_eq!(largest.into_parts().0["many"][0].0[1], Value::Int(i64::MAX));
        for number in [1 << 63, u64::MAX] {
            let error = map_block(&Number(number), &block).expect_err("it doesn't");
            assert!(error.message.contains("many.number"), "{error}");
        }
    }

    #[test]
    fn e24_a_block_that_makes_too_many_rows_can_not_be_processed_and_they_are_not_kept() {
        let block = block();
        let row_bytes = Row(vec![Value::Int(0), Value::Int(0)]).size_bytes();
        let just = map_within(&Many(100), &block, 100 * row_bytes).expect("as many as may be");
        assert_eq!(just.into_parts().0["many"].len(), 100);
        let error = map_within(&Many(101), &block, 100 * row_bytes).expect_err("one more");
        assert_eq!(error.block, block.facts.block_ref());
        assert!(error.message.contains("bytes of rows"), "{error}");

        let mut out = Output::with_limit(100 * row_bytes);
        Many(10_000).map(&block, &mut out).expect("it can't know");
        assert!(out.is_too_large());
        assert_eq!(out.into_parts().0["many"].len(), 100, "what is over the limit takes no memory");
    }
}
