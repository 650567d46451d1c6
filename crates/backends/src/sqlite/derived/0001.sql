-- Version 1 of the app store: what every app store has. The tables of derived rows are made from the catalog and described in
-- table_definitions. Heights and times are numbers, times in milliseconds since 1970; ids and digests are blobs.

CREATE TABLE counters (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    last_fence INTEGER NOT NULL
) STRICT;
INSERT INTO counters VALUES (1, 0);

-- Where the store stands in the raw store's reorg log; no row before it follows one.
CREATE TABLE fork_state (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    raw_uuid BLOB NOT NULL,
    base_id INTEGER NOT NULL, -- the entry at which it began to follow
    applied_id INTEGER NOT NULL,
    applied_digest BLOB NOT NULL,
    begun_id INTEGER NOT NULL,
    begun_digest BLOB NOT NULL
) STRICT;

-- Every entry that was begun since.
CREATE TABLE reorgs_applied (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL,
    first_orphan INTEGER NOT NULL, -- the height after the common block
    common_id BLOB NOT NULL,
    begun_at INTEGER NOT NULL,
    applied_at INTEGER,
    -- While it is being applied: state up to this table and key has been restored.
    restored_table TEXT NOT NULL DEFAULT '',
    restored_key BLOB NOT NULL DEFAULT x''
) STRICT;

CREATE TABLE indexing_checkpoints (
    service_name TEXT NOT NULL PRIMARY KEY,
    last_height INTEGER NOT NULL, -- the last complete one; -1 before height 0
    last_id BLOB,
    updated_at INTEGER NOT NULL,
    paused INTEGER NOT NULL CHECK (paused IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE TABLE worker_leases (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    worker_type TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('index', 'reindex')),
    from_height INTEGER NOT NULL,
    to_height INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('ACTIVE', 'COMPLETED', 'FAILED')),
    leased_by TEXT NOT NULL,
    fence INTEGER NOT NULL,
    lease_expires_at INTEGER NOT NULL,
    next_try_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    done_to INTEGER NOT NULL,
    claimed_done_to INTEGER NOT NULL,
    last_id BLOB,
    first_parent BLOB,
    version INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    UNIQUE (worker_type, kind, from_height),
    CHECK (from_height < to_height),
    CHECK (done_to BETWEEN from_height AND to_height)
) STRICT;
-- There are as many active ones as workers, and few failed ones.
CREATE INDEX worker_leases_active ON worker_leases (worker_type, lease_expires_at) WHERE status = 'ACTIVE';
CREATE INDEX worker_leases_failed ON worker_leases (worker_type, from_height) WHERE status = 'FAILED';

-- Leases of one service and kind never overlap: the highest one that begins below the new one's end has to end at or below its
-- beginning, which is enough because the others don't overlap with it.
CREATE TRIGGER worker_leases_apart BEFORE INSERT ON worker_leases
WHEN (SELECT to_height FROM worker_leases
      WHERE worker_type = NEW.worker_type AND kind = NEW.kind AND from_height < NEW.to_height
      ORDER BY from_height DESC LIMIT 1) > NEW.from_height
BEGIN
    SELECT RAISE(ABORT, 'leases of one service and kind must not overlap');
END;
CREATE TRIGGER worker_leases_stay BEFORE UPDATE OF worker_type, kind, from_height, to_height ON worker_leases
BEGIN
    SELECT RAISE(ABORT, 'a lease keeps its service, kind and heights');
END;

-- What rows of state were before blocks above finality changed them, encoded; before_row is null where there was none.
CREATE TABLE state_undo (
    height INTEGER NOT NULL,
    table_name TEXT NOT NULL,
    row_key BLOB NOT NULL,
    before_row BLOB,
    PRIMARY KEY (height, table_name, row_key)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX state_undo_row ON state_undo (table_name, row_key, height);

-- How each table of the catalog was defined when it was made.
CREATE TABLE table_definitions (
    table_name TEXT NOT NULL PRIMARY KEY,
    definition TEXT NOT NULL,
    -- Of tables of events: how many rows there are.
    row_count INTEGER NOT NULL DEFAULT 0,
    -- Of tables of state: at heights below this one, rows may have changed without an undo row that is still there.
    undo_floor INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TABLE index_definitions (
    table_name TEXT NOT NULL,
    index_name TEXT NOT NULL,
    columns TEXT NOT NULL,
    PRIMARY KEY (table_name, index_name)
) STRICT, WITHOUT ROWID;
