-- Version 1. Heights are numbers as they are; ids, digests and uuids are blobs; u64 values that may pass 2^63
-- (chain id, time) keep their bits. Blobs called "packed" begin with a byte: 0 raw bytes follow, 1 a length and a zstd frame.

-- The head row: what exists. Every read begins with it.
CREATE TABLE head (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    uuid BLOB NOT NULL,
    chain_id INTEGER NOT NULL,
    first_height INTEGER,
    tip_height INTEGER,
    tip_id BLOB,
    safe_height INTEGER,
    safe_id BLOB,
    finalized_height INTEGER,
    finalized_id BLOB,
    reorg_id INTEGER NOT NULL,
    reorg_digest BLOB NOT NULL,
    -- The pending purge, which is always that of the newest reorg: [from, to).
    purge_from INTEGER,
    purge_to INTEGER,
    -- Filled rows that were given up and still have to be deleted: [from, to).
    discard_from INTEGER,
    discard_to INTEGER,
    fence INTEGER NOT NULL,
    last_fence INTEGER NOT NULL
) STRICT;

CREATE TABLE chain_config (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    data BLOB NOT NULL
) STRICT;

CREATE TABLE checkpoints (
    service_name TEXT NOT NULL PRIMARY KEY,
    height INTEGER NOT NULL,
    id BLOB NOT NULL
) STRICT;

-- Blocks: canonical ones up to the tip, orphans that wait for their purge, and what was filled above the head.
CREATE TABLE blocks (
    height INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    parent_id BLOB NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    tx_count INTEGER NOT NULL,
    log_count INTEGER NOT NULL,
    unverified INTEGER NOT NULL,
    header BLOB NOT NULL -- packed
) STRICT;

-- Queries without terms walk this instead of the headers.
CREATE INDEX blocks_with_logs ON blocks (height) WHERE log_count > 0;

-- Parts, each by itself, packed; no row where there is nothing.
CREATE TABLE transactions (
    height INTEGER PRIMARY KEY,
    ids BLOB NOT NULL,  -- 32 bytes each, not packed
    facts BLOB NOT NULL -- packed: every status byte, then every sender's length byte, then the senders
) STRICT;
CREATE TABLE bodies (height INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE receipts (height INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE extras (height INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;
CREATE TABLE traces (height INTEGER PRIMARY KEY, data BLOB NOT NULL) STRICT;

-- The reorg log, append-only.
CREATE TABLE reorgs (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,
    store_uuid BLOB NOT NULL,
    common_height INTEGER NOT NULL,
    common_id BLOB NOT NULL,
    decided_at_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE reorg_orphans (
    reorg_id INTEGER NOT NULL,
    height INTEGER NOT NULL,
    id BLOB NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    PRIMARY KEY (reorg_id, height)
) STRICT, WITHOUT ROWID;

-- Blocks that a reorg took away, whole.
CREATE TABLE orphans (
    number INTEGER PRIMARY KEY,
    reorg_id INTEGER NOT NULL,
    height INTEGER NOT NULL,
    id BLOB NOT NULL,
    parent_id BLOB NOT NULL,
    timestamp_ms INTEGER NOT NULL,
    tx_count INTEGER NOT NULL,
    log_count INTEGER NOT NULL,
    unverified INTEGER NOT NULL,
    header BLOB NOT NULL,
    tx_ids BLOB,
    tx_facts BLOB,
    body BLOB,
    receipts BLOB,
    extras BLOB,
    traces BLOB,
    UNIQUE (reorg_id, id),
    UNIQUE (reorg_id, height)
) STRICT;

CREATE TABLE raw_leases (
    from_height INTEGER PRIMARY KEY,
    to_height INTEGER NOT NULL,
    state INTEGER NOT NULL, -- 0 active, 1 completed, 2 failed
    owner TEXT NOT NULL,
    fence INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    done_to INTEGER NOT NULL,
    claimed_at INTEGER NOT NULL, -- done_to at the claim
    last_id BLOB,
    first_parent BLOB
) STRICT;

-- Index runs: see cairn_store::runs.
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    kind INTEGER NOT NULL,
    state INTEGER NOT NULL, -- 0 live, 1 being made by a merge, 2 dead: its pages are to be deleted
    level INTEGER NOT NULL,
    from_height INTEGER NOT NULL,
    to_height INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    is_cut INTEGER NOT NULL, -- 1: its pages also hold entries at or above to_height, which don't count
    inputs BLOB -- of a merge: the ids of its inputs, 8 bytes each, big-endian
) STRICT;
CREATE INDEX runs_by_height ON runs (state, kind, from_height);
CREATE TABLE run_pages (
    number INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL,
    place BLOB NOT NULL, -- the page's first key and position, 16 bytes
    data BLOB NOT NULL,
    UNIQUE (run_id, place)
) STRICT;

-- What each part takes, kept with every change, so that nobody has to count.
CREATE TABLE part_sizes (
    part TEXT NOT NULL PRIMARY KEY,
    part_rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO part_sizes VALUES
    ('headers', 0, 0), ('transactions', 0, 0), ('bodies', 0, 0), ('receipts', 0, 0), ('extras', 0, 0), ('traces', 0, 0);
