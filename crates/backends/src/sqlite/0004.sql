-- Version 4: with `blocks_with_logs` an entry for each block, so that the rows of a wide range can be counted without reading headers.
CREATE INDEX IF NOT EXISTS blocks_without_logs ON blocks (height) WHERE log_count = 0;
