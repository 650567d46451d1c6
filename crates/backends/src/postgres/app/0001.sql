-- What every app store has, in schema app. The tables of derived rows are made from the catalog and described in
-- app.table_definitions. Heights are numbers; ids, digests and keys are bytea.

-- The one counter of fences (law 5).
CREATE SEQUENCE app.fences AS BIGINT;

-- Where the store stands in the raw store's reorg log; no row before it follows one. Every applier locks it.
CREATE TABLE app.reorg_state (
    only_row BOOLEAN PRIMARY KEY DEFAULT true CHECK (only_row),
    raw_uuid BYTEA NOT NULL,
    -- The entry at which this store began to follow: older ones are unknown to it.
    base_id BIGINT NOT NULL,
    applied_id BIGINT NOT NULL,
    applied_digest BYTEA NOT NULL,
    begun_id BIGINT NOT NULL,
    begun_digest BYTEA NOT NULL,
    CHECK (base_id <= applied_id AND begun_id BETWEEN applied_id AND applied_id + 1)
);

-- Every entry that was begun since. first_orphan is the height after the common block.
CREATE TABLE app.reorgs_applied (
    id BIGINT PRIMARY KEY,
    digest BYTEA NOT NULL,
    first_orphan BIGINT NOT NULL,
    common_id BYTEA NOT NULL,
    begun_at TIMESTAMPTZ NOT NULL,
    finished BOOLEAN NOT NULL DEFAULT false
);

-- last_height is the last complete one: start - 1, and no id, before the first.
CREATE TABLE app.indexing_checkpoints (
    service_name TEXT COLLATE "C" PRIMARY KEY,
    last_height BIGINT NOT NULL CHECK (last_height >= -1),
    last_id BYTEA,
    updated_at TIMESTAMPTZ NOT NULL,
    paused BOOLEAN NOT NULL DEFAULT false,
    -- For folders: a change of state below this height may have no undo row.
    undo_floor BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE app.worker_leases (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    worker_type TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL CHECK (kind IN ('index', 'reindex')),
    from_height BIGINT NOT NULL CHECK (from_height >= 0),
    to_height BIGINT NOT NULL,
    status TEXT COLLATE "C" NOT NULL CHECK (status IN ('ACTIVE', 'COMPLETED', 'FAILED')),
    leased_by TEXT NOT NULL,
    lease_expires_at TIMESTAMPTZ NOT NULL,
    next_try_at TIMESTAMPTZ NOT NULL,
    attempt BIGINT NOT NULL,
    fence BIGINT NOT NULL,
    done_to BIGINT NOT NULL,
    claimed_done_to BIGINT NOT NULL,
    last_id BYTEA,
    first_parent BYTEA,
    version BIGINT NOT NULL,
    last_error TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL,
    UNIQUE (worker_type, kind, from_height),
    CHECK (from_height < to_height),
    CHECK (done_to BETWEEN from_height AND to_height)
) WITH (fillfactor = 50);
CREATE INDEX worker_leases_active ON app.worker_leases (lease_expires_at) WHERE status = 'ACTIVE';
CREATE INDEX worker_leases_open ON app.worker_leases (worker_type, from_height, id) WHERE status <> 'COMPLETED';

-- What rows of state were before blocks above finality changed them; previous is null where there was none.
CREATE TABLE app.state_undo (
    table_name TEXT COLLATE "C" NOT NULL,
    key BYTEA NOT NULL,
    height BIGINT NOT NULL,
    previous BYTEA,
    PRIMARY KEY (table_name, key, height)
);
CREATE INDEX state_undo_height ON app.state_undo (height);

-- How each table of the catalog was defined when it was made.
CREATE TABLE app.table_definitions (
    table_name TEXT COLLATE "C" PRIMARY KEY,
    definition TEXT NOT NULL,
    definition_hash BYTEA NOT NULL
);
CREATE TABLE app.index_definitions (
    table_name TEXT COLLATE "C" NOT NULL,
    index_name TEXT COLLATE "C" NOT NULL,
    columns TEXT NOT NULL,
    PRIMARY KEY (table_name, index_name)
);
