-- Heights, positions, counters and times (milliseconds since 1970) are BIGINT; ids, hashes and chain bytes are BYTEA. No GIN.
-- Bytes that begin with a tag are packed as sqlite's are: see pack.rs.

-- One row: what exists.
CREATE TABLE raw.head (
  one BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (one),
  uuid BYTEA NOT NULL CHECK (octet_length(uuid) = 16),
  chain_id BIGINT NOT NULL,
  chain_config BYTEA NOT NULL,
  first_height BIGINT,
  tip_height BIGINT,
  tip_id BYTEA,
  safe_height BIGINT,
  safe_id BYTEA,
  finalized_height BIGINT,
  finalized_id BYTEA,
  reorg_id BIGINT NOT NULL,
  reorg_digest BYTEA NOT NULL,
  -- Rows that wait to become orphans.
  purge_from BIGINT,
  purge_to BIGINT,
  -- Rows of fills that were given up, and wait to be deleted.
  discard_from BIGINT,
  discard_to BIGINT,
  -- The ingester's fence, and the newest one given to anybody.
  fence BIGINT NOT NULL,
  last_fence BIGINT NOT NULL
);

CREATE TABLE raw.checkpoints (
  service_name TEXT PRIMARY KEY,
  last_height BIGINT NOT NULL,
  last_id BYTEA NOT NULL
);

CREATE TABLE raw.blocks (
  height BIGINT NOT NULL,
  timestamp_ms BIGINT NOT NULL,
  tx_count BIGINT NOT NULL,
  event_count BIGINT NOT NULL,
  -- Bits of relaxed checks, named by the chain's codec.
  unverified BIGINT NOT NULL,
  -- Lengths of the parts, unpacked and whole.
  body_bytes BIGINT NOT NULL,
  receipts_bytes BIGINT NOT NULL,
  extras_bytes BIGINT NOT NULL,
  traces_bytes BIGINT NOT NULL,
  id BYTEA NOT NULL,
  parent_id BYTEA NOT NULL,
  header BYTEA NOT NULL,
  -- Packed: whole, or with a layout what belongs to no transaction.
  body BYTEA,
  receipts BYTEA,
  -- Packed: how the rows of transactions and events fit between; NULL where the parts are whole.
  layout BYTEA,
  -- Packed.
  extras BYTEA,
  traces BYTEA,
  PRIMARY KEY (height)
) PARTITION BY RANGE (height);
-- Packed already.
ALTER TABLE raw.blocks ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN receipts SET STORAGE EXTERNAL,
  ALTER COLUMN layout SET STORAGE EXTERNAL, ALTER COLUMN extras SET STORAGE EXTERNAL, ALTER COLUMN traces SET STORAGE EXTERNAL;

CREATE TABLE raw.transactions (
  block_height BIGINT NOT NULL,
  transaction_index BIGINT NOT NULL,
  event_count BIGINT NOT NULL,
  -- 0 failed, 1 succeeded, 2 the chain doesn't say.
  status SMALLINT NOT NULL,
  id BYTEA NOT NULL,
  sender BYTEA NOT NULL,
  -- Its bytes in the body, unless they are elsewhere (payload_ref) or the block keeps its body whole.
  body BYTEA,
  -- Its receipt or result without the events.
  result BYTEA,
  payload_hash BYTEA,
  payload_ref TEXT,
  -- Some chains have one transaction twice in a block.
  PRIMARY KEY (block_height, id, transaction_index)
) PARTITION BY RANGE (block_height);

CREATE TABLE raw.events (
  block_height BIGINT NOT NULL,
  event_index BIGINT NOT NULL,
  transaction_index BIGINT NOT NULL,
  transaction_id BYTEA NOT NULL,
  -- Its bytes, unless they are elsewhere (payload_ref).
  payload BYTEA,
  payload_hash BYTEA,
  payload_ref TEXT,
  PRIMARY KEY (block_height, transaction_id, event_index)
) PARTITION BY RANGE (block_height);

-- Flow: what a collection and its execution said. Other chains leave them empty.
CREATE TABLE raw.collections (
  block_height BIGINT NOT NULL,
  collection_index BIGINT NOT NULL,
  transaction_count BIGINT NOT NULL,
  id BYTEA NOT NULL,
  payload BYTEA,
  payload_hash BYTEA,
  payload_ref TEXT,
  PRIMARY KEY (block_height, id, collection_index)
) PARTITION BY RANGE (block_height);

CREATE TABLE raw.execution_results (
  block_height BIGINT NOT NULL,
  id BYTEA NOT NULL,
  block_id BYTEA NOT NULL,
  payload BYTEA,
  payload_hash BYTEA,
  payload_ref TEXT,
  PRIMARY KEY (block_height, id)
) PARTITION BY RANGE (block_height);

-- Never without their row, nor the row without them. The place is part of the key: an id may stand at several.
CREATE TABLE raw.tx_lookup (
  block_height BIGINT NOT NULL,
  tx_index BIGINT NOT NULL,
  timestamp_ms BIGINT NOT NULL,
  id BYTEA NOT NULL,
  block_id BYTEA NOT NULL,
  PRIMARY KEY (id, block_height, tx_index)
);
CREATE INDEX tx_lookup_by_height ON raw.tx_lookup USING brin (block_height) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE raw.block_lookup (
  height BIGINT NOT NULL,
  timestamp_ms BIGINT NOT NULL,
  id BYTEA NOT NULL,
  PRIMARY KEY (id)
);
CREATE INDEX block_lookup_by_height ON raw.block_lookup USING brin (height) WITH (pages_per_range = 32, autosummarize = on);

-- EVM transactions inside transactions. A duplicate is recorded, never fatal: the key has the place. Empty on EVM chains, where the id is the hash.
CREATE TABLE raw.evm_lookup (
  height BIGINT NOT NULL,
  evm_index BIGINT NOT NULL,
  evm_hash BYTEA NOT NULL,
  tx_id BYTEA NOT NULL,
  PRIMARY KEY (evm_hash, height, evm_index)
);
CREATE INDEX evm_lookup_by_height ON raw.evm_lookup USING brin (height) WITH (pages_per_range = 32, autosummarize = on);

CREATE TABLE raw.scripts (
  script_hash BYTEA PRIMARY KEY,
  script_text TEXT NOT NULL,
  created_at TIMESTAMPTZ NOT NULL DEFAULT now()
);

-- The index of log terms: immutable sorted runs of pages.
CREATE TABLE raw.runs (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  level BIGINT NOT NULL,
  from_height BIGINT NOT NULL,
  to_height BIGINT NOT NULL,
  entries BIGINT NOT NULL,
  bytes BIGINT NOT NULL,
  -- What a merge is made of, while it goes on.
  inputs BIGINT[],
  kind SMALLINT NOT NULL,
  -- 0 live, 1 being built, 2 dead.
  state SMALLINT NOT NULL,
  is_cut BOOLEAN NOT NULL DEFAULT FALSE
);
CREATE INDEX runs_by_state ON raw.runs (state, kind, from_height);

-- A page and its row fill one page of the table.
CREATE TABLE raw.run_pages (
  run_id BIGINT NOT NULL,
  place BYTEA NOT NULL,
  data BYTEA NOT NULL,
  PRIMARY KEY (run_id, place)
) WITH (toast_tuple_target = 8160, autovacuum_vacuum_scale_factor = 0.05);
ALTER TABLE raw.run_pages ALTER COLUMN data SET STORAGE EXTERNAL;

CREATE TABLE raw.reorgs (
  id BIGINT PRIMARY KEY,
  digest BYTEA NOT NULL,
  store_uuid BYTEA NOT NULL,
  common_height BIGINT NOT NULL,
  common_id BYTEA NOT NULL,
  decided_at_ms BIGINT NOT NULL
);

CREATE TABLE raw.reorg_orphans (
  reorg_id BIGINT NOT NULL,
  height BIGINT NOT NULL,
  id BYTEA NOT NULL,
  timestamp_ms BIGINT NOT NULL,
  PRIMARY KEY (reorg_id, height)
);

-- Rows of blocks that a reorg took away, under the entry that took them.
CREATE TABLE raw.orphan_blocks (
  reorg_id BIGINT NOT NULL,
  LIKE raw.blocks INCLUDING STORAGE,
  PRIMARY KEY (reorg_id, id)
);
CREATE TABLE raw.orphan_transactions (
  reorg_id BIGINT NOT NULL,
  block_id BYTEA NOT NULL,
  LIKE raw.transactions,
  PRIMARY KEY (reorg_id, block_id, transaction_index)
);
CREATE TABLE raw.orphan_events (
  reorg_id BIGINT NOT NULL,
  block_id BYTEA NOT NULL,
  LIKE raw.events,
  PRIMARY KEY (reorg_id, block_id, event_index)
);

-- Ranges of raw work ahead of the head.
CREATE TABLE raw.leases (
  from_height BIGINT PRIMARY KEY,
  to_height BIGINT NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('ACTIVE', 'COMPLETED', 'FAILED')),
  leased_by TEXT NOT NULL,
  fence BIGINT NOT NULL,
  lease_expires_at_ms BIGINT NOT NULL,
  attempt BIGINT NOT NULL,
  done_to BIGINT NOT NULL,
  -- Where it stood when it was claimed.
  claimed_at_height BIGINT NOT NULL,
  last_id BYTEA,
  first_parent BYTEA,
  CONSTRAINT leases_do_not_overlap EXCLUDE USING gist (int8range(from_height, to_height) WITH &&)
);

CREATE TABLE raw.indexing_errors (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  worker_name TEXT NOT NULL,
  block_height BIGINT NOT NULL,
  block_id BYTEA NOT NULL,
  transaction_id TEXT NOT NULL DEFAULT '',
  error_hash TEXT NOT NULL,
  severity TEXT NOT NULL CHECK (severity IN ('FATAL', 'WARN')),
  error_message TEXT NOT NULL,
  raw_data BYTEA NOT NULL DEFAULT '',
  raw_ref TEXT,
  resolved BOOLEAN NOT NULL DEFAULT FALSE,
  created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
  resolved_at TIMESTAMPTZ,
  UNIQUE (worker_name, block_height, transaction_id, error_hash, block_id)
);
CREATE INDEX indexing_errors_triage ON raw.indexing_errors (resolved, worker_name, created_at DESC);
CREATE INDEX indexing_errors_by_height ON raw.indexing_errors (block_height);
CREATE INDEX indexing_errors_by_block ON raw.indexing_errors (block_id);

-- Objects that hold large payloads.
CREATE SEQUENCE raw.payload_generation;
CREATE TABLE raw.payloads (
  hash BYTEA NOT NULL CHECK (octet_length(hash) = 32),
  generation BIGINT NOT NULL CHECK (generation > 0),
  state TEXT NOT NULL CHECK (state IN ('live', 'dead', 'deleting')),
  size_bytes BIGINT NOT NULL CHECK (size_bytes >= 0),
  changed_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (hash, generation)
);
-- At most one object of a content can be used; older ones may still be on their way out.
CREATE UNIQUE INDEX payloads_usable ON raw.payloads (hash) WHERE state <> 'deleting';
CREATE INDEX payloads_not_live ON raw.payloads (changed_at) WHERE state <> 'live';
CREATE INDEX transactions_payload ON raw.transactions (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX events_payload ON raw.events (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX collections_payload ON raw.collections (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX execution_results_payload ON raw.execution_results (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX orphan_transactions_payload ON raw.orphan_transactions (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX orphan_events_payload ON raw.orphan_events (payload_ref) WHERE payload_ref IS NOT NULL;
