-- The key's own prefix gives a block's transactions. Partitions get the index by place when they are full (options.rs).
DROP INDEX IF EXISTS raw.transactions_in_order;

-- Flow: what a transaction says. Script and arguments are cut out of the body, the others are copies. The script is that of raw.scripts.
ALTER TABLE raw.transactions
  ADD COLUMN script_hash BYTEA, ADD COLUMN arguments BYTEA[], ADD COLUMN proposer BYTEA, ADD COLUMN payer BYTEA,
  ADD COLUMN authorizers BYTEA[], ADD COLUMN error TEXT, ADD COLUMN computation BIGINT;
ALTER TABLE raw.orphan_transactions
  ADD COLUMN script_hash BYTEA, ADD COLUMN arguments BYTEA[], ADD COLUMN proposer BYTEA, ADD COLUMN payer BYTEA,
  ADD COLUMN authorizers BYTEA[], ADD COLUMN error TEXT, ADD COLUMN computation BIGINT;

CREATE TABLE raw.orphan_collections (
  reorg_id BIGINT NOT NULL,
  LIKE raw.collections,
  -- Its block; a collection's own id is in id.
  of_block BYTEA NOT NULL,
  PRIMARY KEY (reorg_id, of_block, collection_index)
);
CREATE TABLE raw.orphan_execution_results (
  reorg_id BIGINT NOT NULL,
  LIKE raw.execution_results,
  PRIMARY KEY (reorg_id, block_id, id)
);
CREATE INDEX orphan_collections_payload ON raw.orphan_collections (payload_ref) WHERE payload_ref IS NOT NULL;
CREATE INDEX orphan_execution_results_payload ON raw.orphan_execution_results (payload_ref) WHERE payload_ref IS NOT NULL;
