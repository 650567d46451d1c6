-- Version 2: what could not be indexed, once each. Ids of blocks are blobs, of transactions text (0x and hex; empty where it is in none).
CREATE TABLE indexing_errors (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    worker_name TEXT NOT NULL,
    block_height INTEGER NOT NULL,
    block_id BLOB NOT NULL,
    transaction_id TEXT NOT NULL DEFAULT '',
    error_hash TEXT NOT NULL,
    severity TEXT NOT NULL CHECK (severity IN ('WARN', 'FATAL')),
    error_message TEXT NOT NULL, -- truncated
    raw_data BLOB NOT NULL,      -- truncated
    raw_ref TEXT,
    resolved INTEGER NOT NULL DEFAULT 0 CHECK (resolved IN (0, 1)),
    created_at INTEGER NOT NULL, -- milliseconds since 1970
    resolved_at INTEGER,         -- likewise
    UNIQUE (worker_name, block_height, transaction_id, error_hash, block_id)
) STRICT;
-- Triage.
CREATE INDEX indexing_errors_open ON indexing_errors (resolved, worker_name, created_at DESC);
CREATE INDEX indexing_errors_height ON indexing_errors (block_height);
CREATE INDEX indexing_errors_block ON indexing_errors (block_id);
